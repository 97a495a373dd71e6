"""Bytes of AMBER NetCDF trajectories: classic NetCDF with 64-bit offsets, big-endian.

The file format is that of https://docs.unidata.ucar.edu/nug/current/file_format_specifications.html
(CDF-2), the variables those of the AMBER convention 1.0 (https://ambermd.org/netcdf/nctraj.xhtml),
in the order in which MDAnalysis writes them: forces in kcal/(mol angstrom); velocities in AMBER's
own unit, whose scale factor is named, since cpptraj takes it for granted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio._version import __version__
from mdio.core.errors import OutputError
from mdio.core.frames import FrameBlock
from mdio.layouts.native.encoder import Bytes, Encoder

NC_CHAR, NC_INT, NC_FLOAT, NC_DOUBLE = 2, 4, 5, 6
NC_DIMENSION, NC_VARIABLE, NC_ATTRIBUTE = 10, 11, 12
KCAL = 1 / 4.184
VELOCITY = 20.455
"""angstrom/ps in AMBER's unit of velocities, as cpptraj has it."""
ATTRIBUTES = {
    "program": "mdio",
    "programVersion": __version__,
    "Conventions": "AMBER",
    "ConventionVersion": "1.0",
    "application": "mdio",
}
REMD_DIMENSION = "remd_dimension"
DIMENSIONS = (
    *("frame", "atom", "spatial", "cell_spatial", "cell_angular", "label"),
    REMD_DIMENSION,
)
LABELS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "spatial": (("spatial",), b"xyz"),
    "cell_spatial": (("cell_spatial",), b"abc"),
    "cell_angular": (("cell_angular", "label"), b"alphabeta gamma"),
}
"""Variables that name the axes: dimensions, value."""
UNITS = {
    "coordinates": "angstrom",
    "time": "picosecond",
    "cell_lengths": "angstrom",
    "cell_angles": "degree",
    "velocities": "angstrom/picosecond",
    "forces": "kilocalorie/mole/angstrom",
}
VARIABLES = {"positions": "coordinates", "velocities": "velocities", "forces": "forces"}
TYPES = {"i4": NC_INT, "f4": NC_FLOAT, "f8": NC_DOUBLE}
REMD_DIMTYPE = "remd_dimtype"
"""What is exchanged along each dimension; the same in all frames, and stored once."""


@dataclass(frozen=True)
class NCDFEncoder(Encoder):
    """AMBER NetCDF: positions, velocities, forces, cells; time in single precision, no steps."""

    more: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Numbers of each frame of replica exchange: name, type, (k,) of those of each dimension."""
    kinds: tuple[int, ...] = ()
    """What is exchanged along each dimension."""

    def with_more(self, data: Mapping[str, NDArray[Any]]) -> NCDFEncoder:
        """Return one that leaves room in each record for these numbers (`fill`)."""
        kinds = tuple(map(int, data[REMD_DIMTYPE][0])) if REMD_DIMTYPE in data else ()
        more = []
        for name, values in data.items():
            one = values.shape[1:] in ((), (len(kinds),)) and values.dtype.kind in "fi"
            if one and name != REMD_DIMTYPE:
                dtype = ">f8" if values.dtype.kind == "f" else ">i4"
                more.append((name, dtype, values.shape[1:]))
        return replace(self, more=tuple(more), kinds=kinds)

    def fill(self, records: Bytes, start: int, data: Mapping[str, NDArray[Any]]) -> None:
        """Put numbers of frames from `start` on into their records."""
        rows = records.view(self._dtype)
        for name, _, _ in self.more:
            rows[name] = data[name][start : start + len(rows)]

    @property
    def header_nbytes(self) -> int:
        """Bytes before the first record."""
        return len(self._header(0))

    @property
    def frame_nbytes(self) -> int:
        """Bytes of a record."""
        return self._dtype.itemsize

    @property
    def _dtype(self) -> np.dtype[np.void]:
        """A record: every variable in turn, packed (all are multiples of four bytes)."""
        xyz = (self.n_atoms, 3)
        columns = [("coordinates", ">f4", xyz), ("time", ">f4", ())]
        if self.has_box:
            columns += [("cell_lengths", ">f8", (3,)), ("cell_angles", ">f8", (3,))]
        columns += [(name, ">f4", xyz) for name in self.fields if name != "positions"]
        return np.dtype(columns + list(self.more))

    def header(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> bytes:  # noqa: ARG002
        """Return the header of a file with these frames; see the base class."""
        return self._header(len(time))

    def frames(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        """Return the records of all frames; see the base class."""
        rows = np.empty(block.n_frames, self._dtype) if out is None else out.view(self._dtype)
        rows["coordinates"] = block.positions
        rows["time"] = block.time
        if self.has_box:
            rows["cell_lengths"] = block.box[:, :3]
            rows["cell_angles"] = block.box[:, 3:]
        elif block.box.any():
            raise OutputError(
                "ncdf files have unit cells in all frames or in none, but the first frame has none "
                "and a later one has; write trr, h5md or zarr"
            )
        if "velocities" in self.fields and block.velocities is not None:
            np.divide(block.velocities, np.float32(VELOCITY), out=rows["velocities"])
        if "forces" in self.fields and block.forces is not None:
            np.multiply(block.forces, np.float32(KCAL), out=rows["forces"])
        return rows.view(np.uint8)

    def _header(self, n_frames: int) -> bytes:
        sizes = dict(zip(DIMENSIONS, (0, self.n_atoms, 3, 3, 3, 5, len(self.kinds)), strict=True))
        sizes = {name: size for name, size in sizes.items() if size or name == "frame"}
        head = struct.pack(">4sI", b"CDF\x02", n_frames)
        head += struct.pack(">II", NC_DIMENSION, len(sizes))
        for name, size in sizes.items():
            head += _text(name) + struct.pack(">I", size)
        head += _attributes(ATTRIBUTES)
        fixed = [
            (_variable(name, dimensions, NC_CHAR, {}), _padded(value))
            for name, (dimensions, value) in LABELS.items()
            if self.has_box or name == "spatial"
        ]
        if self.kinds:
            of_kinds = _variable(REMD_DIMTYPE, (REMD_DIMENSION,), NC_INT, {})
            fixed.append((of_kinds, np.array(self.kinds, ">i4").tobytes()))
        fields = self._dtype.fields
        records = [(name, *fields[name][:2]) for name in self._dtype.names or ()] if fields else []
        head += struct.pack(">II", NC_VARIABLE, len(fixed) + len(records))
        described = []
        for name, column, _ in records:
            kind = TYPES[column.base.str[1:]]
            unit = UNITS.get(name, "kelvin" if name == "temp0" else None)
            said: dict[str, str | float] = {} if unit is None else {"units": unit}
            said |= {"scale_factor": VELOCITY} if name == "velocities" else {}
            dimensions = _dimensions(name) + ((REMD_DIMENSION,) if name in self._in_each else ())
            described.append(_variable(name, dimensions, kind, said))
        texts = [*(text for text, _ in fixed), *described]
        begin = len(head) + sum(len(text) + 12 for text in texts)
        values = b""
        for text, value in fixed:
            head += text + struct.pack(">IQ", len(value), begin + len(values))
            values += value
        begin += len(values)
        for text, (_, column, offset) in zip(described, records, strict=True):
            head += text + struct.pack(">IQ", column.itemsize, begin + offset)
        return head + values

    @property
    def _in_each(self) -> set[str]:
        """Which of `more` have a number for each dimension."""
        return {name for name, _, shape in self.more if shape}


def _dimensions(name: str) -> tuple[str, ...]:
    if name in VARIABLES.values():
        return ("frame", "atom", "spatial")
    cells = {"cell_lengths": ("cell_spatial",), "cell_angles": ("cell_angular",)}
    return ("frame", *cells.get(name, ()))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _text(text: str) -> bytes:
    return struct.pack(">I", len(text)) + _padded(text.encode())


def _attributes(attributes: Mapping[str, str | float]) -> bytes:
    if not attributes:
        return bytes(8)
    out = struct.pack(">II", NC_ATTRIBUTE, len(attributes))
    for name, value in attributes.items():
        if isinstance(value, str):
            out += _text(name) + struct.pack(">I", NC_CHAR) + _text(value)
        else:
            out += _text(name) + struct.pack(">IId", NC_DOUBLE, 1, value)
    return out


def _variable(
    name: str, dimensions: Sequence[str], kind: int, said: Mapping[str, str | float]
) -> bytes:
    """Return the description of a variable up to its size and place."""
    ids = [DIMENSIONS.index(dimension) for dimension in dimensions]
    return (
        _text(name)
        + struct.pack(f">{1 + len(ids)}I", len(ids), *ids)
        + _attributes(said)
        + struct.pack(">I", kind)
    )
