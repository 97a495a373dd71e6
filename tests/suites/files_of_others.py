"""H5MD files as GROMACS 2026, LAMMPS, HALMD and ESPResSo write them, HDF5 files as mdtraj does."""

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


def head(file: h5py.File, creator: str, version: tuple[int, int]) -> None:
    """Write who wrote it; strings fill their type, without the zero that should end them."""
    file.create_group("h5md").attrs["version"] = np.array(version, "i4")
    for kind, name in (("creator", creator), ("author", "N/A")):
        file.create_group(f"h5md/{kind}").attrs["name"] = np.bytes_(name)


def write_lammps(path: Path, x: NDArray[Any]) -> None:
    """Write what ``dump ID all h5md 10 F position image velocity every 2 species charge`` does.

    `x`: positions (F, N, 3), in doubles. Velocities are their negatives, every other frame. Made
    after dump_h5md.cpp and its library ch5md: no units, 256 atoms a chunk, cells with the steps and
    times of positions, other elements with their own.
    """
    n_frames, n_atoms, _ = x.shape
    chunk = 256 if n_atoms // 4 > 256 else n_atoms
    steps = 10 * np.arange(n_frames)
    with h5py.File(path, "w") as file:
        head(file, "lammps", (1, 0))
        group = file.create_group("particles/all")

        def element(name: str, values: NDArray[Any], every: int = 1, like: str = "") -> None:
            made = group.create_group(name)
            tail = values.shape[1:]
            size = min(chunk, tail[0])
            made.create_dataset(
                "value", data=values, maxshape=(None, *tail), chunks=(1, size, *tail[1:])
            )
            for axis, scale, dtype in (("step", 1, "i4"), ("time", 0.005, "f8")):
                if like:
                    made[axis] = group[f"{like}/{axis}"]
                else:
                    own = (steps[::every] * scale).astype(dtype)
                    made.create_dataset(axis, data=own, maxshape=(None,), chunks=(1,))

        element("position", x.astype("f8"))
        box = group.create_group("box")
        box.attrs["dimension"] = np.int32(3)
        box.attrs["boundary"] = np.array(["periodic"] * 3, "S9")
        element("box/edges", 20 + np.arange(3.0 * n_frames).reshape(-1, 3), like="position")
        element("image", np.zeros(x.shape, "i4"), like="position")
        element("velocity", -x[::2].astype("f8"), every=2)
        element("species", np.ones(x.shape[:2], "i4"))
        element("charge", np.zeros(x.shape[:2]))
        group["charge"].attrs["type"] = np.bytes_("effective")


def write_halmd(path: Path, x: NDArray[Any]) -> None:
    """Write what HALMD's ``phase_space.writer`` does of positions and velocities (their negatives).

    `x`: positions (F, N, 3), or in two dimensions. No units; chunks of a power of two of frames,
    deflated; one cell, as vectors; one array of steps and one of times for all elements.
    """
    n_frames, _, n_axes = x.shape
    with h5py.File(path, "w") as file:
        head(file, "HAL's MD package", (1, 0))
        group = file.create_group("particles/all")

        def grows(parent: h5py.Group, name: str, values: NDArray[Any]) -> None:
            row, frames = values[0].nbytes, 1
            while frames * row < 8092:
                frames *= 2
            made = {"maxshape": (None, *values.shape[1:]), "compression": 6}
            parent.create_dataset(name, data=values, chunks=(frames, *values.shape[1:]), **made)

        for name, values in (("position", x), ("velocity", -x)):
            grows(group.create_group(name), "value", values)
        grows(group["position"], "step", 500 * np.arange(n_frames, dtype="u8"))
        grows(group["position"], "time", 0.5 * np.arange(n_frames))
        for axis in ("step", "time"):
            group[f"velocity/{axis}"] = group[f"position/{axis}"]
        box = group.create_group("box")
        box.attrs["dimension"] = np.int32(n_axes)
        box.attrs["boundary"] = np.array(["periodic"] * n_axes, "S8")
        box["edges"] = np.diag([20.0, 21.0, 22.0][:n_axes])


def write_espresso(path: Path, x: NDArray[Any], unit: str = "nm", *, seeded: bool = True) -> None:
    """Write what ESPResSo 4.2's ``H5md`` does, of positions (F, N, 3) and ids.

    `unit`: of lengths. `seeded`: whether steps and times begin with the fill value, as they do
    until June 2026. Atoms come in any order; all arrays grow along all axes.
    """
    n_frames, n_atoms, _ = x.shape
    ids = np.array([np.random.default_rng(at).permutation(n_atoms) for at in range(n_frames)])
    with h5py.File(path, "w") as file:
        head(file, "ESPResSo", (1, 1))
        group = file.create_group("particles/atoms")

        def element(name: str, values: NDArray[Any]) -> None:
            chunks = (1, 1000, 3)[: values.ndim] if "edges" not in name else (1, 1000)
            grows = {"maxshape": (None,) * values.ndim, "chunks": chunks, "fillvalue": -10}
            group.create_dataset(f"{name}/value", data=values, **grows)

        element("id", ids.astype("i4"))
        fill = [-10] if seeded else []
        for axis, values, dtype in (
            ("step", 100 * np.arange(n_frames), "i4"),
            ("time", 0.5 + np.arange(n_frames), "f8"),
        ):
            made = np.concatenate([fill, values]).astype(dtype)
            group["id"].create_dataset(
                axis, data=made, maxshape=(None,), chunks=(1,), fillvalue=-10
            )
        element("position", np.take_along_axis(x, ids[:, :, None], axis=1).astype("f8"))
        element("box/edges", np.tile([20.0, 21.0, 22.0], (n_frames, 1)))
        element("mass", np.ones((n_frames, n_atoms)))
        for name in ("position", "box/edges", "mass"):
            for axis in ("step", "time"):
                group[f"{name}/{axis}"] = group[f"id/{axis}"]
        group["box"].attrs["dimension"] = np.int32(3)
        group["box"].attrs["boundary"] = np.bytes_("periodic")
        for name, text in (("position/value", unit), ("box/edges/value", unit), ("id/time", "ps")):
            group[name].attrs["unit"] = np.bytes_(text)


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
