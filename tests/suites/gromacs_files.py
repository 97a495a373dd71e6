"""H5MD files as GROMACS 2026 writes them."""

from __future__ import annotations

import h5py
import numpy as np

N_ATOMS = 6
STEPS = {"position": range(0, 40, 2), "velocity": range(0, 40, 10), "force": (4, 5)}
FIELDS = {"position": "positions", "velocity": "velocities", "force": "forces"}


def series(group, name, steps, *, tail=(N_ATOMS, 3), dtype="f4", time="f8"):
    """Write an element as GROMACS does: a frame a chunk, arrays that grow; return its numbers."""
    rng = np.random.default_rng(len(steps) + len(name))
    values = rng.normal(size=(len(steps), *tail)).astype(dtype)
    element = group.create_group(name)
    grows = {"maxshape": (None, *tail), "chunks": (1, *tail)}
    element.create_dataset("value", data=values, **grows)
    element.create_dataset("step", data=np.array(steps, "i8"), maxshape=(None,), chunks=(1,))
    times = np.array(steps).astype(time) * (1 if time[0] == "i" else 0.5)
    element.create_dataset("time", data=times, maxshape=(None,), chunks=(1,))
    return values


def write_gromacs(path, steps=STEPS, *, time="f8"):
    """Write a file with GROMACS' names and no units; return the numbers."""
    with h5py.File(path, "w") as file:
        creator = file.create_group("h5md/creator")
        creator.attrs["name"] = np.bytes_("GROMACS")
        system = file.create_group("particles/system")
        box = system.create_group("box")
        box.attrs["boundary"] = np.array(["periodic"] * 3, "S9")
        box.attrs["dimension"] = np.int32(3)
        values = {name: series(system, name, own, time=time) for name, own in steps.items()}
        n_frames = len(steps["position"])
        edges = box.create_group("edges")
        edges["value"] = np.tile(np.diag([3.0, 4.0, 5.0]).astype("f4"), (n_frames, 1, 1))
        for name in ("step", "time"):
            edges[name] = system[f"position/{name}"]
    return values
