"""Text with flags of periodic axes: dumps of LAMMPS, HISTORY of DL_POLY.

LAMMPS (https://docs.lammps.org/dump.html): the origin is the corner of the box, also of scaled
coordinates: x = xlo + xs (xhi - xlo). DL_POLY: two lines of header, then frames that begin with
``timestep``; such a line has the step, the number of atoms, a key of what is written, a key of the
boundaries, the time step in ps, and in newer files the time. Forces are in dalton angstrom/ps^2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.boxes import MAX_TILT, are_rotated
from mdio.layouts.foreign.snapshot import IMAGES_UNREAD, Snapshot
from mdio.layouts.foreign.text.format import (
    FrameError,
    FrameRecord,
    Lines,
    SameAtoms,
    TextFormat,
    integer,
    note_on_axes,
    quoted,
    skip_atoms,
    text_lines,
    to_text,
    without_axes,
)

MIN_DUMP_ATOM_NBYTES = 6
"""Least bytes of a line of an atom such as ``0 0 0``, with its end."""
_AVOGADRO = 6.02214076e23
_NEWTON = _AVOGADRO * 1e-13
"""In kJ/(mol angstrom)."""


@dataclass(frozen=True, slots=True)
class Units:
    """One unit of a style in angstrom, ps, angstrom/ps and kJ/(mol angstrom)."""

    length: float
    time: float
    velocity: float
    force: float


STYLES: Mapping[str, Units] = {
    "real": Units(1, 1e-3, 1e3, 4.184),
    "metal": Units(1, 1, 1, 96.48533212331),
    "si": Units(1e10, 1e12, 1e-2, _NEWTON),
    "cgs": Units(1e8, 1e12, 1e-4, 1e-5 * _NEWTON),
    "electron": Units(
        0.529177210903, 1e-3, 0.529177210903 / 1.03275e-3, 2625.4996394799 / 0.529177210903
    ),
    "micro": Units(1e4, 1e6, 1e-2, 1e-9 * _NEWTON),
    "nano": Units(10, 1e3, 1e-2, 1e-12 * _NEWTON),
}
"""https://docs.lammps.org/units.html; the style ``lj`` has none."""

COORDINATE_COLUMNS = {
    "unscaled": ("x", "y", "z"),
    "scaled": ("xs", "ys", "zs"),
    "unwrapped": ("xu", "yu", "zu"),
    "scaled_unwrapped": ("xsu", "ysu", "zsu"),
}
"""Columns of coordinates by MDAnalysis' names; of several it takes the first."""


@dataclass(slots=True)
class FrameHeader:
    """The header of a frame."""

    time: float | None
    step: int
    n_atoms: int
    bounds: str
    """The words after ``BOX BOUNDS``."""
    bound_lines: list[bytes]
    columns: list[str]

    @property
    def periodic(self) -> tuple[bool, ...]:
        words = [word for word in self.bounds.split() if re.fullmatch("[pfsm]{2}", word)]
        return tuple(word == "pp" for word in words) if len(words) == 3 else (True,) * 3


MAX_SHIFT = 1e-5
"""By how much of the box its corner may move more than periodic lengths change, by rounding."""
SHIFTED = (
    "the corner of the box, from which positions are read as MDAnalysis does, is not where the "
    "first frame has it: displacements contain its movement"
)
OF_CHEMFILES = (
    "chemfiles seems to have written it, which writes times and velocities in ps under units that "
    "mean fs, and the bounds of tilted boxes too small: these are read as LAMMPS would"
)


class LAMMPS(TextFormat):
    """A dump of atoms."""

    has_length_unit = False
    time_unit = "steps"

    def __init__(self, path: Path, format_name: str, options: Mapping[str, Any]) -> None:
        super().__init__(path, format_name, options)
        self._same_ids = SameAtoms("id")
        self._has_ids: bool | None = None
        self._units_style = ""
        """Style of the last ``ITEM: UNITS``; empty without one, and for ``lj``."""
        self._has_time = False
        self._first_corner: tuple[np.ndarray, np.ndarray] | None = None
        """Corner and lengths of the first box."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        while lines.peek():
            start = lines.offset
            frame = self._read_header(lines)
            fields = {"time"} if frame.time is not None else set()
            self._has_time |= frame.time is not None
            for name, axes in (("velocities", "v"), ("forces", "f")):
                if {f"{axes}{axis}" for axis in "xyz"} <= set(frame.columns):
                    fields.add(name)
            if self._has_ids is None:
                self._has_ids = "id" in frame.columns
            skip_atoms(lines, frame.n_atoms, nbytes, MIN_DUMP_ATOM_NBYTES)
            yield FrameRecord(
                start,
                lines.offset,
                frame.n_atoms,
                frozenset(fields),
                self._notes(frame),
                self._units_style,
            )

    def _notes(self, frame: FrameHeader) -> tuple[str, ...]:
        notes = note_on_axes(frame.periodic, f"BOX BOUNDS {frame.bounds}")
        low, lengths, _ = _cell_corner(frame)
        first_low, first_lengths = self._first_corner = self._first_corner or (low, lengths)
        growth = np.where(frame.periodic, np.abs(lengths - first_lengths), 0)
        if (np.abs(low - first_low) > growth + MAX_SHIFT * lengths.max()).any():
            notes += (SHIFTED,)
        if {"ix", "iy", "iz"} & {*frame.columns} and "unwrapped" not in self._convention(
            frame.columns
        ):
            notes += (IMAGES_UNREAD.format("ix iy iz"),)
        return notes + ((OF_CHEMFILES,) if _is_of_chemfiles(frame) else ())

    def _read_header(self, lines: Lines) -> FrameHeader:
        values: dict[str, Any] = {"time": None}
        while True:
            line = lines.next()
            if not line.startswith(b"ITEM: "):
                raise FrameError(f"{quoted(line)} in place of an ITEM of a dump", at_end=not line)
            item = to_text(line)[6:].strip()
            if item == "UNITS":
                style = to_text(lines.next()).strip()
                if style not in (*STYLES, "lj"):
                    raise FrameError(f"units {style!r}, expected one of {', '.join(STYLES)}, lj")
                self._units_style = style if style in STYLES else ""
                self.has_length_unit = style in STYLES
            elif item == "TIME":
                values["time"] = _time(lines.next())
            elif item == "TIMESTEP":
                values["step"] = integer(lines.next(), "a step")
            elif item == "NUMBER OF ATOMS":
                values["n_atoms"] = integer(lines.next(), "a number of atoms")
            elif item.startswith("BOX BOUNDS"):
                bounds = values["bounds"] = item[10:].strip()
                values["bound_lines"] = lines.next_lines(3)
                _check_bounds(bounds, values["bound_lines"])
            elif item.startswith("ATOMS"):
                break
            else:
                raise FrameError(
                    f"ITEM: {item[:60]} in place of UNITS, TIME, TIMESTEP, NUMBER OF ATOMS, "
                    "BOX BOUNDS or ATOMS",
                    at_end=not lines.peek(),
                )
        items = {"step": "TIMESTEP", "n_atoms": "NUMBER OF ATOMS", "bounds": "BOX BOUNDS"}
        if missing := [item for name, item in items.items() if name not in values]:
            raise FrameError(f"ITEM: ATOMS without {missing[0]} before it")
        if not line.endswith(b"\n"):
            raise FrameError(f"{quoted(line)} at the end", at_end=True)
        if item == "ATOMS":
            raise FrameError("ITEM: ATOMS names no columns, expected such as id type x y z")
        return FrameHeader(**values, columns=item.split()[1:])

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; atoms are in the order of their ids."""
        head, rows = _head_and_rows(raw)
        frame = self._parse_header(head)
        low, lengths, tilts = _cell_corner(frame)
        # MDAnalysis subtracts the corner from scaled coordinates, too, which do not include it.
        is_scaled = self._convention(frame.columns).startswith("scaled")
        text = _with_bounds(frame, np.zeros(3) if is_scaled else low, lengths, tilts, rows)
        snapshot = self._read_by_mdanalysis(text, n_atoms)
        self._check_ids(frame.columns, rows)
        snapshot.box = without_axes(snapshot.box, frame.periodic)
        snapshot.step = frame.step
        snapshot.time = frame.time
        if self._units_style:
            self._convert(snapshot, STYLES[self._units_style])
        return snapshot

    def _convention(self, columns: list[str]) -> str:
        """Return the convention of the coordinates that MDAnalysis reads; raises FrameError."""
        convention = self.options.get("lammps_coordinate_convention", "auto")
        if convention != "auto":
            return str(convention)
        for name, coordinates in COORDINATE_COLUMNS.items():
            if set(coordinates) <= set(columns):
                return name
        raise FrameError(
            f"ITEM: ATOMS {' '.join(columns)}, without x y z, xs ys zs, xu yu zu, xsu ..."
        )

    def _parse_header(self, head: bytes) -> FrameHeader:
        from io import BytesIO

        return self._read_header(Lines(BytesIO(head)))

    def _check_ids(self, columns: list[str], rows: list[str]) -> None:
        """Raise FrameError unless a frame has the ids of the first, each once."""
        if ("id" in columns) != self._has_ids:
            raise FrameError(
                "ids of atoms in some frames and none in others, so their order is open"
            )
        if not self._has_ids:
            return
        id_column = columns.index("id")
        self._same_ids.check(
            np.array([row.split(None, id_column + 1)[id_column] for row in rows], np.int64)
        )

    def is_complete_without_newline(self, raw: bytes) -> bool:
        """Return whether a truncated last line has all that is read."""
        head, rows = _head_and_rows(raw)
        columns = self._parse_header(head).columns
        reads_last_column = columns[-1] == "id" or columns[-1].strip("xyz") in ("", "v", "f")
        reads_last_column |= columns[-1].rstrip("su") in ("x", "y", "z")
        has_all = len(rows[-1].split()) == len(columns)
        return has_all and (not reads_last_column or super().is_complete_without_newline(raw))

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame without the items that MDAnalysis does not know."""
        head, rows = _head_and_rows(raw)
        frame = self._parse_header(head)
        return _with_bounds(frame, *_cell_corner(frame), rows)

    @staticmethod
    def _convert(snapshot: Snapshot, units: Units) -> None:
        snapshot.positions *= np.float32(units.length)
        if snapshot.box is not None:
            snapshot.box[:3] *= np.float32(units.length)
        if snapshot.velocities is not None:
            snapshot.velocities *= np.float32(units.velocity)
        if snapshot.forces is not None:
            snapshot.forces *= np.float32(units.force)
        if snapshot.time is not None:
            snapshot.time *= units.time

    def made_up_notes(self) -> Iterator[str]:
        if self._has_time and not self._units_style:
            yield "the dump names no unit of its times: assumed to be ps"
        if self._has_ids is False:
            yield (
                "the dump has no ids of atoms: they are taken to be in the same order in all frames"
            )


def _time(line: bytes) -> float:
    try:
        return float(line)
    except ValueError:
        raise FrameError(f"{quoted(line)} in place of a time", at_end=not line) from None


def _is_of_chemfiles(frame: FrameHeader) -> bool:
    """Return whether a dump has chemfiles' columns, and bounds of 12 decimals: LAMMPS has 16."""
    are_its_columns = frame.columns[:5] == ["id", "xu", "yu", "zu", "type"]
    return are_its_columns and frame.bound_lines[0].startswith(b"0.000000000000e+00 ")


def _check_bounds(words: str, box: list[bytes]) -> None:
    if words.startswith("abc"):
        raise FrameError(
            f"BOX BOUNDS {words} (a general triclinic box); expected a restricted one, as "
            "dump_modify triclinic/general no writes it"
        )
    expected = 3 if words.startswith("xy") else 2
    for line in box:
        try:
            numbers = [float(word) for word in line.split()]
        except ValueError:
            numbers = []
        if len(numbers) != expected:
            raise FrameError(f"{quoted(line)} in place of {expected} bounds of a box")
    if len(box) < 3:
        raise FrameError(f"{len(box)} lines of bounds, expected 3", at_end=True)


def _head_and_rows(raw: bytes) -> tuple[bytes, list[str]]:
    begin = raw.index(b"\n", raw.index(b"ITEM: ATOMS")) + 1
    return raw[:begin], text_lines(raw[begin:])


def _cell_corner(frame: FrameHeader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corner of a box, its lengths, and its tilt factors xy, xz, yz."""
    numbers = np.array([line.split() for line in frame.bound_lines], np.float64)
    tilts = numbers[:, 2] if numbers.shape[1] == 3 else np.zeros(3)
    low, high = numbers[:, 0].copy(), numbers[:, 1].copy()
    below, above = _tilt_extent(tilts)
    low -= below
    high -= above
    return low, high - low, tilts


def _tilt_extent(tilts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much the bounds of a tilted box exceed its corners."""
    xy, xz, yz = tilts
    below = np.array([min(0, xy, xz, xy + xz), min(0, yz), 0])
    above = np.array([max(0, xy, xz, xy + xz), max(0, yz), 0])
    return below, above


def _with_bounds(
    frame: FrameHeader, low: np.ndarray, lengths: np.ndarray, tilts: np.ndarray, rows: list[str]
) -> str:
    """Return a frame as MDAnalysis reads it, in a box that begins at `low`."""
    below, above = _tilt_extent(tilts)
    is_tilted = frame.bounds.startswith("xy")
    bounds = [low + below, low + lengths + above, *([tilts] if is_tilted else [])]
    lines = [
        f"ITEM: TIMESTEP\n{frame.step}\nITEM: NUMBER OF ATOMS\n{frame.n_atoms}",
        f"ITEM: BOX BOUNDS {frame.bounds}",
        *(" ".join(map(repr, row)) for row in np.transpose(bounds).tolist()),
        f"ITEM: ATOMS {' '.join(frame.columns)}",
        *rows,
        "",
    ]
    return "\n".join(lines)


FRAME_MARK = b"timestep"
MIN_HISTORY_ATOM_NBYTES = 8
"""Least bytes of an atom: two lines such as ``C`` and ``0 0 0``."""
FORCE_FACTOR = np.float32(1e-2)
"""A dalton angstrom/ps^2 in kJ/(mol angstrom)."""
PERIODIC = {0: (False,) * 3, 1: (True,) * 3, 2: (True,) * 3, 3: (True,) * 3, 6: (True, True, False)}
UNREAD_SHAPES = {4: "a truncated octahedron", 5: "a rhombic dodecahedron", 7: "a hexagonal prism"}
"""Boundaries for which the vectors in the file are not those of the lattice."""
_REAL = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_VECTOR = re.compile(rb"\s*%s(?:\s+%s){2}\s*" % (_REAL, _REAL))


class History(TextFormat):
    """A trajectory of DL_POLY."""

    def __init__(self, path: Path, format_name: str, options: Mapping[str, Any]) -> None:
        super().__init__(path, format_name, options)
        self._same_atoms = SameAtoms("number")

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        lines.next_lines(2)
        while lines.peek():
            start = lines.offset
            n_atoms, key = _header_integers(lines.next())[1:4:2]
            has_cell = _VECTOR.fullmatch(lines.peek()) is not None
            cell = lines.next_lines(3) if has_cell else []
            if has_cell and not all(map(_VECTOR.fullmatch, cell)):
                raise FrameError(
                    f"{quoted(cell[-1])} in place of a vector", at_end=not lines.peek()
                )
            lines.next()
            lines_per_atom = 1
            while _VECTOR.fullmatch(lines.peek()):
                lines.next()
                lines_per_atom += 1
            if not 2 <= lines_per_atom <= 4:
                at_end = not lines.peek()
                raise FrameError(f"{lines_per_atom - 1} vectors of the first atom", at_end=at_end)
            count = (n_atoms - 1) * lines_per_atom
            skip_atoms(lines, count, nbytes, MIN_HISTORY_ATOM_NBYTES // 4, n_atoms=n_atoms)
            fields = {"time", *("velocities", "forces")[: lines_per_atom - 2]}
            notes = _notes(key, cell)
            yield FrameRecord(start, lines.offset, n_atoms, frozenset(fields), notes)

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a file of one frame, with the header of its contents.

        Lines of atoms are cut to names and numbers: MDAnalysis would take three words for a vector
        of a cell.
        """
        _, n_atoms, _, key = _header_integers(raw.split(b"\n", 1)[0])
        begin, n_vectors = _first_atom(raw.splitlines())
        lines = text_lines(raw)
        n_words = 2 if self._atom_numbers(raw) else 1
        for line_number in range(begin, len(lines), 1 + n_vectors):
            lines[line_number] = " ".join(lines[line_number].split()[:n_words])
        return "\n".join(["one frame", f"{n_vectors - 1} {key} {n_atoms}", *lines, ""])

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; atoms are in the order of their numbers."""
        line, *lines = raw.splitlines()
        step, _, _, key = _header_integers(line)
        cell = lines[:3] if _VECTOR.fullmatch(lines[0]) else []
        if numbers := self._atom_numbers(raw):
            self._same_atoms.check(np.array(numbers, np.int64))
        snapshot = super().read(raw, n_atoms)
        if not cell or key not in PERIODIC or _is_rotated(cell):
            snapshot.box = None
        else:
            snapshot.box = without_axes(snapshot.box, PERIODIC[key])
        if snapshot.forces is not None:
            snapshot.forces *= FORCE_FACTOR
        words = line.split()
        snapshot.step = step
        snapshot.time = float(words[6]) if len(words) > 6 else step * float(words[5])
        return snapshot

    def _atom_numbers(self, raw: bytes) -> list[int]:
        """Return the numbers of atoms; none if they have none, or all the same."""
        lines = raw.splitlines()
        begin, n_vectors = _first_atom(lines)
        rows = [line.split() for line in lines[begin :: 1 + n_vectors]]
        numbers = [int(row[1]) for row in rows if len(row) > 1]
        return numbers if len(numbers) == 1 or len({*numbers}) > 1 else []


def _first_atom(lines: list[bytes]) -> tuple[int, int]:
    """Return the number of the line of a frame's first atom, and how many vectors follow it."""
    begin = 4 if _VECTOR.fullmatch(lines[1]) else 1
    return begin, len(list(takewhile(_VECTOR.fullmatch, lines[begin + 1 : begin + 4])))


def _header_integers(line: bytes) -> list[int]:
    """Return step, atoms, and the keys of a line ``timestep``; raises FrameError."""
    words = line.split()
    try:
        if words[0] != FRAME_MARK or not line.startswith(FRAME_MARK):
            raise ValueError
        numbers = [int(word) for word in words[1:5]]
        [float(word) for word in words[5:7]]
        if len(numbers) < 4 or len(words) < 6 or numbers[1] < 1:
            raise ValueError
    except (ValueError, IndexError):
        raise FrameError(
            f"{quoted(line)} in place of timestep and the step, the number of atoms, two keys and "
            "the time step",
            at_end=not line.endswith(b"\n"),
        ) from None
    return numbers


def _is_rotated(cell: list[bytes]) -> bool:
    """Return whether lengths and angles do not determine the vectors of a cell."""
    vectors = np.array([line.split() for line in cell], np.float64)
    is_upper = np.abs(np.triu(vectors, 1)) > MAX_TILT * np.abs(vectors).max()
    return bool(is_upper.any()) or are_rotated(vectors[np.newaxis])


def _notes(key: int, cell: list[bytes]) -> tuple[str, ...]:
    if not cell:
        return ()
    if key not in PERIODIC:
        shape = UNREAD_SHAPES.get(key, "not known")
        return (f"boundaries of key {key} are {shape}: no box is read",)
    if _is_rotated(cell):
        return ("the cell is rotated against x, y and z: no box is read",)
    return note_on_axes(PERIODIC[key], f"boundary key {key}")
