"""Writes DCD, TRR and AMBER NetCDF files of every kind, without mdio."""

from __future__ import annotations

import struct
from pathlib import Path

import netCDF4
import numpy as np


def record(payload: bytes, marker: str) -> bytes:
    length = struct.pack(marker, len(payload))
    return length + payload + length


def write_dcd(
    path: Path,
    positions: np.ndarray,
    cells: np.ndarray | None = None,
    *,
    order: str = "<",
    wide: bool = False,
    fixed: list[int] | None = None,
    w: bool = False,
    n_frames: int | None = None,
    charmm: int = 24,
    nsavc: int = 10,
) -> None:
    """Write a DCD file by the book, one record after the other."""
    marker = order + ("q" if wide else "i")
    fixed = fixed or []
    n_atoms = positions.shape[1]
    control = [len(positions) if n_frames is None else n_frames, 30, nsavc, 0, 0, 0, 0, 0]
    head = b"CORD" + struct.pack(f"{order}8i", *control) + struct.pack(f"{order}i", len(fixed))
    if charmm:
        head += struct.pack(f"{order}fii", 0.02, cells is not None, w) + bytes(28)
    else:
        head += struct.pack(f"{order}d", 0.02) + bytes(32)
    head += struct.pack(f"{order}i", charmm)
    free = np.setdiff1d(np.arange(n_atoms), fixed)
    with path.open("wb") as file:
        file.write(record(head, marker))
        file.write(record(struct.pack(f"{order}i", 2) + b"title".ljust(160), marker))
        file.write(record(struct.pack(f"{order}i", n_atoms), marker))
        if fixed:
            file.write(record((free + 1).astype(f"{order}i4").tobytes(), marker))
        for number, frame in enumerate(positions):
            if cells is not None:
                file.write(record(cells[number].astype(f"{order}f8").tobytes(), marker))
            kept = frame[free] if number else frame
            for axis in range(3):
                file.write(record(kept[:, axis].astype(f"{order}f4").tobytes(), marker))
            if w:
                file.write(record(np.full(len(kept), 9, f"{order}f4").tobytes(), marker))


def made_up(n_frames: int, n_atoms: int) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 30, (n_frames, n_atoms, 3)).astype(np.float32)


CELLS = np.array([[30 + i, 0.0, 40.0, 0.0, 0.0, 50.0] for i in range(9)])
"""Cosines of right angles."""


BOX = np.array([[3.0, 0, 0], [0.5, 4.0, 0], [0.25, 0.75, 5.0]])


def trr_frame(
    number: int, n_atoms: int, parts: str = "xvf", *, double: bool = False, box: bool = True
) -> bytes:
    """Return the bytes of one frame; 'p' in `parts` adds a virial and a pressure."""
    real = ">f8" if double else ">f4"
    random = np.random.default_rng(number)
    matrix = ((BOX + number * 0.01) * (BOX != 0)).astype(real).tobytes()
    arrays = {
        name: random.normal(0, 3, (n_atoms, 3)).astype(real).tobytes()
        for name in "xvf"
        if name in parts
    }
    extra = len(matrix) if "p" in parts else 0
    sizes = [0, 0, len(matrix) * box, extra, extra, 0, 0]
    sizes += [len(arrays.get(name, b"")) for name in "xvf"]
    head = struct.pack(">iii", 1993, 13, 12) + b"GMX_trn_file"
    head += struct.pack(">13i", *sizes, n_atoms, 50 * number, 0)
    head += struct.pack(">dd" if double else ">ff", 0.1 * number, 0.5)
    body = matrix * box + bytes(2 * extra) + b"".join(arrays.values())
    return head + body


def write_trr(path: Path, kinds: list[str], n_atoms: int = 6, **options) -> Path:
    frames = (trr_frame(number, n_atoms, kind, **options) for number, kind in enumerate(kinds))
    path.write_bytes(b"".join(frames))
    return path


UNITS = {
    "time": "picosecond",
    "coordinates": "angstrom",
    "velocities": "angstrom/picosecond",
    "forces": "kilocalorie/mole/angstrom",
    "cell_lengths": "angstrom",
    "cell_angles": "degree",
}
DIMENSIONS = {
    "time": ("frame",),
    "coordinates": ("frame", "atom", "spatial"),
    "velocities": ("frame", "atom", "spatial"),
    "forces": ("frame", "atom", "spatial"),
    "cell_lengths": ("frame", "cell_spatial"),
    "cell_angles": ("frame", "cell_angular"),
}
TYPES = {"cell_lengths": "f8", "cell_angles": "f8"}


def values_of(name: str, n_frames: int, n_atoms: int) -> np.ndarray:
    random = np.random.default_rng(len(name))
    if name == "time":
        return 2.5 + 0.2 * np.arange(n_frames)
    if name == "cell_lengths":
        return 40 + random.normal(0, 1, (n_frames, 3))
    if name == "cell_angles":
        return 90 + random.normal(0, 5, (n_frames, 3))
    return random.normal(0, 20, (n_frames, n_atoms, 3))


def write_ncdf(
    path: Path,
    variables: tuple[str, ...],
    *,
    n_frames: int = 5,
    n_atoms: int = 7,
    version: str = "NETCDF3_64BIT_OFFSET",
    scales: dict[str, object] | None = None,
    types: dict[str, str] | None = None,
    unlimited: bool = True,
    conventions: str | None = "AMBER",
    units: dict[str, str] | None = None,
    **creation: object,
) -> Path:
    """Write a trajectory with netCDF4, numbers as given and factors only noted."""
    with netCDF4.Dataset(str(path), "w", format=version) as data:
        data.set_auto_scale(False)
        if conventions is not None:
            data.Conventions = conventions
        data.ConventionVersion = "1.0"
        data.program, data.programVersion = "test", "1"
        data.createDimension("frame", None if unlimited else n_frames)
        for name, size in (("atom", n_atoms), ("spatial", 3), ("label", 5)):
            data.createDimension(name, size)
        data.createDimension("cell_spatial", 3)
        data.createDimension("cell_angular", 3)
        data.createVariable("spatial", "S1", ("spatial",))[:] = np.array(list("xyz"), "S1")
        for name in variables:
            dtype = (types or {}).get(name, TYPES.get(name, "f4"))
            chunked = creation if DIMENSIONS[name][1:2] == ("atom",) else {}
            variable = data.createVariable(name, dtype, DIMENSIONS[name], **chunked)
            variable.set_auto_scale(False)
            variable.units = (units or UNITS)[name]
            if name in (scales or {}):
                variable.scale_factor = scales[name]
            variable[:] = values_of(name, n_frames, n_atoms)
    return path


ALL = tuple(UNITS)
