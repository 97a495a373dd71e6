"""H5MD files as GROMACS 2026 writes them, HDF5 files as mdtraj does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

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


F, N = 11, 6
UNITS = {
    "coordinates": "nanometers",
    "velocities": "nanometers/picosecond",
    "time": "picoseconds",
    "cell_lengths": "nanometers",
    "cell_angles": "degrees",
}


def write_mdtraj(
    path: Path, x: NDArray[Any] | None = None, **creation: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Write what mdtraj 1.11 writes (its convention 1.1); return positions, velocities, lengths.

    `x`: positions (F, N, 3) in nm, of molecules of three atoms; random ones by default.
    """
    rng = np.random.default_rng(4)
    x = rng.normal(size=(F, N, 3)).astype("f4") if x is None else x
    n_frames, n_atoms, _ = x.shape
    v = rng.normal(size=x.shape).astype("f4")
    lengths = rng.uniform(3, 4, (n_frames, 3)).astype("f4")
    starts = range(0, n_atoms, 3)
    atoms = [
        {"index": i, "name": name, "element": name[0]}
        for i, name in enumerate(["OW", "H1", "H2"] * len(starts))
    ]
    residues = [
        {"index": i, "resSeq": 7 + i, "name": "HOH", "atoms": atoms[at : at + 3]}
        for i, at in enumerate(starts)
    ]
    chains = [{"index": 0, "residues": residues}]
    bonds = [[at, at + one] for at in starts for one in (1, 2)]
    topology = json.dumps({"chains": chains, "bonds": bonds})
    with h5py.File(path, "w") as file:
        file.attrs["conventions"], file.attrs["conventionVersion"] = "Pande", "1.1"
        file.create_dataset("coordinates", data=x, **creation)
        file["velocities"], file["time"] = v, np.arange(n_frames, dtype="f4") * 2
        file["cell_lengths"], file["cell_angles"] = lengths, np.full((n_frames, 3), 90, "f4")
        file["topology"] = np.array([topology.encode()])
        for name, unit in UNITS.items():
            file[name].attrs["units"] = unit
    return x, v, lengths
