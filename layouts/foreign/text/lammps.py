"""Dumps of LAMMPS as text: https://docs.lammps.org/dump.html.

The origin is the corner of the box, also of scaled coordinates: x = xlo + xs (xhi - xlo).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import (
    FrameError,
    Lines,
    SameAtoms,
    Span,
    TextFormat,
    integer,
    plain,
    remark_on_axes,
    shown,
    skip_atoms,
    without_axes,
)

LEAST_NBYTES = 6
"""Of a line such as ``0 0 0``, with its end."""
_AVOGADRO = 6.02214076e23
_NEWTON = _AVOGADRO * 1e-13
"""In kJ/(mol angstrom)."""


@dataclass(frozen=True, slots=True)
class Units:
    """What one unit of a style is in angstrom, ps, angstrom/ps and kJ/(mol angstrom)."""

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

CONVENTIONS = {
    "unscaled": ("x", "y", "z"),
    "scaled": ("xs", "ys", "zs"),
    "unwrapped": ("xu", "yu", "zu"),
    "scaled_unwrapped": ("xsu", "ysu", "zsu"),
}
"""Columns of coordinates by MDAnalysis' names; of several it takes the first."""


@dataclass(slots=True)
class Frame:
    """What stands before the atoms of a frame."""

    time: float | None
    step: int
    n_atoms: int
    bounds: str
    """What stands behind ``BOX BOUNDS``."""
    box: list[bytes]
    columns: list[str]

    @property
    def periodic(self) -> tuple[bool, ...]:
        """Which axes are."""
        words = [word for word in self.bounds.split() if re.fullmatch("[pfsm]{2}", word)]
        return tuple(word == "pp" for word in words) if len(words) == 3 else (True,) * 3


class LAMMPS(TextFormat):
    """A dump of atoms."""

    kind = "LAMMPSDUMP"
    names_lengths = False
    counts = "steps"

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        super().__init__(kind, options)
        self._ids = SameAtoms("id")
        self._has_ids: bool | None = None
        self._style: Units | None = None
        self._has_time = False

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        while lines.peek():
            start = lines.offset
            frame = self._before_atoms(lines)
            fields = {"time"} if frame.time is not None else set()
            self._has_time |= frame.time is not None
            for name, axes in (("velocities", "v"), ("forces", "f")):
                if {f"{axes}{axis}" for axis in "xyz"} <= set(frame.columns):
                    fields.add(name)
            if self._has_ids is None:
                self._has_ids = "id" in frame.columns
            skip_atoms(lines, frame.n_atoms, nbytes, LEAST_NBYTES)
            yield Span(
                start,
                lines.offset,
                frame.n_atoms,
                frozenset(fields),
                remark_on_axes(frame.periodic, f"BOX BOUNDS {frame.bounds}"),
            )

    def _before_atoms(self, lines: Lines) -> Frame:
        """Go to the atoms of a frame."""
        values: dict[str, Any] = {"TIME": None}
        while True:
            line = lines.next()
            if not line.startswith(b"ITEM: "):
                raise FrameError(f"{shown(line)} in place of an ITEM of a dump", at_end=not line)
            item = plain(line)[6:].strip()
            if item == "UNITS":
                self._learn_units(plain(lines.next()).strip())
            elif item == "TIME":
                values[item] = _real(lines.next(), "a time")
            elif item == "TIMESTEP":
                values[item] = integer(lines.next(), "a step")
            elif item == "NUMBER OF ATOMS":
                values[item] = integer(lines.next(), "a number of atoms")
            elif item.startswith("BOX BOUNDS"):
                values["BOX BOUNDS"] = item[10:].strip(), lines.take(3)
                _check_bounds(*values["BOX BOUNDS"])
            elif item.startswith("ATOMS"):
                break
            else:
                raise FrameError(
                    f"ITEM: {item[:60]} in place of UNITS, TIME, TIMESTEP, NUMBER OF ATOMS, "
                    "BOX BOUNDS or ATOMS",
                    at_end=not lines.peek(),
                )
        if missing := [
            name for name in ("TIMESTEP", "NUMBER OF ATOMS", "BOX BOUNDS") if name not in values
        ]:
            raise FrameError(f"ITEM: ATOMS without {missing[0]} before it")
        if not line.endswith(b"\n"):
            raise FrameError(f"{shown(line)} at the end", at_end=True)
        return Frame(
            values["TIME"],
            values["TIMESTEP"],
            values["NUMBER OF ATOMS"],
            values["BOX BOUNDS"][0],
            values["BOX BOUNDS"][1],
            item.split()[1:],
        )

    def _learn_units(self, style: str) -> None:
        """Take what ``ITEM: UNITS`` says."""
        if style not in (*STYLES, "lj"):
            raise FrameError(f"units {style!r}, expected one of {', '.join(STYLES)}, lj")
        self.head.facts["units"] = style
        self._style = STYLES.get(style)
        self.names_lengths = self._style is not None

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; atoms are in the order of their ids."""
        head, rows = _head_and_rows(raw)
        frame = self._frame_of(head)
        low, lengths, tilts = _corner(frame)
        # Of scaled coordinates MDAnalysis subtracts a corner that they do not have.
        is_scaled = self._convention(frame.columns).startswith("scaled")
        text = _with_bounds(frame, np.zeros(3) if is_scaled else low, lengths, tilts, rows)
        snapshot = self._by_mdanalysis(text, n_atoms)
        self._check_ids(frame.columns, rows)
        snapshot.box = without_axes(snapshot.box, frame.periodic)
        snapshot.step = frame.step
        snapshot.time = frame.time
        if self._style is not None:
            self._convert(snapshot, self._style)
        return snapshot

    def _convention(self, columns: list[str]) -> str:
        """Return which of its coordinates MDAnalysis takes; raises FrameError."""
        asked = self.options.get("lammps_coordinate_convention", "auto")
        if asked != "auto":
            return str(asked)
        for name, columns_of in CONVENTIONS.items():
            if set(columns_of) <= set(columns):
                return name
        raise FrameError(
            f"ITEM: ATOMS {' '.join(columns)}, without x y z, xs ys zs, xu yu zu, xsu ..."
        )

    def _frame_of(self, head: bytes) -> Frame:
        from io import BytesIO

        return self._before_atoms(Lines(BytesIO(head)))

    def _check_ids(self, columns: list[str], rows: list[str]) -> None:
        """Raise FrameError unless a frame has the ids of the first, each once."""
        if ("id" in columns) != self._has_ids:
            raise FrameError(
                "ids of atoms in some frames and none in others, so their order is open"
            )
        if not self._has_ids:
            return
        at = columns.index("id")
        self._ids.check(np.array([row.split(None, at + 1)[at] for row in rows], np.int64))

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether what the last line lacks can be nothing that is read."""
        head, rows = _head_and_rows(raw)
        columns = self._frame_of(head).columns
        is_read = columns[-1] == "id" or columns[-1].strip("xyz") in ("", "v", "f")
        is_read |= columns[-1].rstrip("su") in ("x", "y", "z")
        has_all = len(rows[-1].split()) == len(columns)
        return has_all and (not is_read or super().is_whole_without_newline(raw))

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame without the items that MDAnalysis does not know."""
        head, rows = _head_and_rows(raw)
        frame = self._frame_of(head)
        return _with_bounds(frame, *_corner(frame), rows)

    @staticmethod
    def _convert(snapshot: Snapshot, units: Units) -> None:
        """Turn numbers of a style into those of MDAnalysis' units."""
        snapshot.positions *= np.float32(units.length)
        if snapshot.box is not None:
            snapshot.box[:3] *= np.float32(units.length)
        if snapshot.velocities is not None:
            snapshot.velocities *= np.float32(units.velocity)
        if snapshot.forces is not None:
            snapshot.forces *= np.float32(units.force)
        if snapshot.time is not None:
            snapshot.time *= units.time

    def made_up(self) -> Iterator[str]:
        """Yield what else is assumed."""
        if self._has_time and self._style is None:
            yield "the dump names no unit of its times: assumed to be ps"
        if self._has_ids is False:
            yield (
                "the dump has no ids of atoms: they are taken to be in the same order in all frames"
            )


def _real(line: bytes, what: str) -> float:
    try:
        return float(line)
    except ValueError:
        raise FrameError(f"{shown(line)} in place of {what}", at_end=not line) from None


def _check_bounds(words: str, box: list[bytes]) -> None:
    """Raise FrameError unless a box is one that can be read."""
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
            raise FrameError(f"{shown(line)} in place of {expected} bounds of a box")
    if len(box) < 3:
        raise FrameError(f"{len(box)} lines of bounds, expected 3", at_end=True)


def _head_and_rows(raw: bytes) -> tuple[bytes, list[str]]:
    """Return what stands before the atoms, and their lines."""
    begin = raw.index(b"\n", raw.index(b"ITEM: ATOMS")) + 1
    return raw[:begin], plain(raw[begin:]).splitlines()


def _corner(frame: Frame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the corner of a box, its lengths, and its tilt factors xy, xz, yz."""
    numbers = np.array([line.split() for line in frame.box], np.float64)
    tilts = numbers[:, 2] if numbers.shape[1] == 3 else np.zeros(3)
    low, high = numbers[:, 0].copy(), numbers[:, 1].copy()
    below, above = _overhang(tilts)
    low -= below
    high -= above
    return low, high - low, tilts


def _overhang(tilts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far the bounds of a box lie beyond its corners."""
    xy, xz, yz = tilts
    below = np.array([min(0, xy, xz, xy + xz), min(0, yz), 0])
    above = np.array([max(0, xy, xz, xy + xz), max(0, yz), 0])
    return below, above


def _with_bounds(
    frame: Frame, low: np.ndarray, lengths: np.ndarray, tilts: np.ndarray, rows: list[str]
) -> str:
    """Return a frame as MDAnalysis reads it, in a box that begins at `low`."""
    below, above = _overhang(tilts)
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
