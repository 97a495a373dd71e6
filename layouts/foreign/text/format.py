"""Trajectories as text: where frames end, and how each is read by itself, by a library."""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MdioError, SourceError
from mdio.core.frames import LostBytes
from mdio.core.words import plural
from mdio.layouts.foreign.packed import UNPACKED_BY, opened_unpacked, packed_as
from mdio.layouts.foreign.snapshot import ForeignFrames, Snapshot, one_line, snapshot_of

MAX_LINE_NBYTES = 1 << 20
"""A line of more bytes is not text."""


class Lines:
    """Lines of an open file from its beginning on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._again: bytes | None = None
        self.offset = 0
        """Where the next line begins."""
        self.number = 1
        """Number of the next line, as editors count."""

    def peek(self) -> bytes:
        """Return the next line without taking it; empty at the end of the file."""
        if self._again is None:
            self._again = self._file.readline(MAX_LINE_NBYTES)
        return self._again

    def next(self) -> bytes:
        """Return the next line; empty at the end of the file."""
        line = self.peek()
        self._again = None
        self.offset += len(line)
        self.number += bool(line)
        return line

    def take(self, count: int) -> list[bytes]:
        """Return the next `count` lines; fewer at the end of the file."""
        return [line for _ in range(count) if (line := self.next())]

    def skip(self, count: int) -> int:
        """Go over lines; return how many there were, fewer than asked at the end of the file."""
        n_skipped = nbytes = 0
        if count and self._again is not None:
            n_skipped += bool(self.next())
        for line in islice(self._file, count - n_skipped):
            nbytes += len(line)
            n_skipped += 1
        self.offset += nbytes
        self.number += n_skipped
        return n_skipped


_NUMBER = re.compile(rb"[-+]?\d+\.\d+")
_REAL = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?")
MIN_DECIMALS = 3
MIN_DIGITS = 6
SHOWN = 60
"""Characters of a line that a message shows."""


class FrameError(Exception):
    """There is no whole frame here; the text says what there is and what was expected."""

    def __init__(self, text: str, *, at_end: bool = False) -> None:
        super().__init__(text)
        self.at_end = at_end
        """Whether the file ends within a frame."""


@dataclass(slots=True)
class Span:
    """Where a frame lies in the file, and what it is seen to hold while frames are counted."""

    start: int
    stop: int
    n_atoms: int
    fields: frozenset[str] = frozenset()
    """Those of velocities, forces and times that frames may have."""
    remarks: tuple[str, ...] = ()
    """Notes on what is not read of the frame, or read in another way."""
    units: str = ""
    """Those that the file names for its numbers, if it does."""


class TextFormat(ABC):
    """Cuts a file into frames by its own counts and marks, and lets MDAnalysis read each alone.

    So no frame can get what another one holds, and none is read beyond its end.
    """

    names_lengths: bool = True
    """Whether the unit of lengths is known."""
    counts: str = "frames"
    """Where times come from if frames have none."""
    needs_n_atoms: bool = False
    """Whether the number of atoms is to be given."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        self.kind_read = kind
        self.options = dict(options)

    @abstractmethod
    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames in turn; raises FrameError where none begins or one is not whole.

        `nbytes`: size of the file; None if it is packed.
        """

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the last frame is whole though its last line has no end."""
        return has_all_digits(raw)

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a file of one frame for MDAnalysis' readers and parsers."""
        return plain(raw)

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; raises FrameError, or what MDAnalysis raises."""
        return self._by_mdanalysis(self.text_for_mdanalysis(raw), n_atoms)

    def _by_mdanalysis(self, text: str, n_atoms: int) -> Snapshot:
        from MDAnalysis.coordinates.core import get_reader_for
        from MDAnalysis.lib.util import NamedStream

        name = f"frame.{self.kind_read.lower()}"
        reader_class = self.reader_class(get_reader_for(name, format=self.kind_read))
        ours = ("format", "length_unit", "dt", "time_offset")
        options = {key: value for key, value in self.options.items() if key not in ours}
        options["n_atoms"] = n_atoms
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = reader_class(NamedStream(StringIO(text), name), **options)
            snapshot = snapshot_of(reader.ts)
            reader.close()
        if snapshot.n_atoms != n_atoms:
            raise FrameError(f"{snapshot.n_atoms} atoms can be read, the frame has {n_atoms}")
        return snapshot

    def reader_class(self, reader: Any) -> Any:
        """Return MDAnalysis' reader, or what is made of it."""
        return reader

    def made_up(self) -> Iterator[str]:
        """Yield what else is assumed, in words."""
        yield from ()


def has_all_digits(raw: bytes) -> bool:
    """Return whether the last line of a text is whole though it has no end.

    It is if it has as many words as that before, and its last number as many digits as any, since a
    number that is cut has fewer.
    """
    before, last = ([b"", *raw.splitlines()])[-2:]
    if not last.strip() or len(before.split()) != len(last.split()):
        return False
    numbers = [word for word in raw.split() if _NUMBER.fullmatch(word)]
    word = last.split()[-1]
    if _NUMBER.fullmatch(word) is None:
        return False
    decimals = {len(number.partition(b".")[2]) for number in numbers}
    if len(decimals) == 1:
        return decimals.pop() >= MIN_DECIMALS
    return _n_digits(word) >= max(MIN_DIGITS, *map(_n_digits, numbers))


def _n_digits(number: bytes) -> int:
    """Return how many digits of a number count."""
    return len(number.strip(b"+-").replace(b".", b"").lstrip(b"0"))


def plain(raw: bytes) -> str:
    """Return bytes as text, a character each, with line ends of this system."""
    return raw.decode("latin-1").replace("\r\n", "\n")


def text_lines(raw: bytes) -> list[str]:
    """Return lines as text; `str.splitlines` also ends them within some letters of UTF-8."""
    return plain(raw).removesuffix("\n").split("\n")


def shown(line: bytes) -> str:
    """Return how a line begins, for a message."""
    text = plain(line).rstrip("\n")
    return repr(text[:SHOWN] + ("..." if len(text) > SHOWN else ""))


def odd_line(raw: bytes) -> str:
    """Return which line of a frame is unlike those around it, for a message; empty if none is."""
    lines = raw.splitlines()
    kinds = [tuple(_REAL.fullmatch(word) is not None for word in line.split()) for line in lines]
    usual, count = max(Counter(kinds).items(), key=lambda item: len(item[0]) * item[1])
    if count < 2:
        return ""
    begin = kinds.index(usual)
    for number, kind in enumerate(kinds[begin:], begin):
        if kind != usual:
            return f"its line {number + 1} is {shown(lines[number])}, unlike other lines"
    return ""


def integer(line: bytes, what: str) -> int:
    """Return the number that a line is; raises FrameError."""
    if re.fullmatch(rb"\s*\d{1,15}\s*", line) is None:
        raise FrameError(f"{shown(line)} in place of {what}", at_end=not line)
    return int(line)


def skip_atoms(
    lines: Lines, count: int, nbytes: int | None, least: int, *, says: int | None = None
) -> None:
    """Go over the lines of atoms; raises FrameError if the file ends before.

    `least`: bytes of a line, so that a count that the size refutes is refused at once. `says`: how
    many atoms the frame says it has, if not as many as lines.
    """
    says = count if says is None else says
    if not says:
        raise FrameError("a frame of 0 atoms")
    left = None if nbytes is None else nbytes - lines.offset
    if left is not None and (left + 1) // least < count:
        raise FrameError(f"says {says} atoms, and {left} bytes follow", at_end=True)
    if (n_skipped := lines.skip(count)) < count:
        raise FrameError(f"says {says} atoms, and {n_skipped} lines follow", at_end=True)


def without_axes(box: np.ndarray | None, periodic: tuple[bool, ...]) -> np.ndarray | None:
    """Return a box with length 0 along axes that are not periodic; None if none is."""
    if box is None or not any(periodic):
        return None
    box[:3][[not one for one in periodic]] = 0
    return box


def remark_on_axes(periodic: tuple[bool, ...], why: str) -> tuple[str, ...]:
    """Return in words that boxes have no length along some axes."""
    axes = [axis for axis, one in zip("xyz", periodic, strict=True) if not one]
    if not axes:
        return ()
    if len(axes) == len(periodic):
        return (f"no axis is periodic ({why}): there is no box",)
    noun = "axis" if len(axes) == 1 else "axes"
    verb = "is" if len(axes) == 1 else "are"
    return (f"{noun} {' and '.join(axes)} {verb} not periodic ({why}): the box has length 0 there",)


class SameAtoms:
    """Sees that frames have the numbers of atoms that the first has, each once."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._first: NDArray[np.int64] | None = None

    def check(self, numbers: NDArray[np.int64]) -> None:
        """Raise FrameError unless they are those of the first frame that was read."""
        numbers = np.sort(numbers)
        if (twice := numbers[1:][numbers[1:] == numbers[:-1]]).size:
            raise FrameError(f"two atoms have the {self._noun} {twice[0]}")
        if self._first is None:
            self._first = numbers
        if (other := np.setdiff1d(numbers, self._first)).size:
            raise FrameError(f"an atom has the {self._noun} {other[0]}, which frame 0 has not")


FORMATS = {
    **dict.fromkeys(("PDB", "ENT", "XPDB", "PDBQT"), "marked:PDB"),
    **dict.fromkeys(("TXYZ", "ARC"), "counted:Tinker"),
    **dict.fromkeys(("MDCRD", "TRJ", "CRDBOX"), "counted:MDCRD"),
    "PQR": "marked:PQR",
    "XYZ": "counted:XYZ",
    "GRO": "counted:GRO",
    "LAMMPSDUMP": "dumps:LAMMPS",
    "HISTORY": "dumps:History",
    "TRC": "marked:TRC",
    "MOL2": "marked:MOL2",
}
"""By MDAnalysis' names: where each is, beside this module."""
_ABOUT_NUMBERS = re.compile("could not convert|inhomogeneous|invalid literal|out of (range|bounds)")
"""Errors of Python and NumPy for lines that hold something else."""


class TextFrames(ForeignFrames):
    """A file of text whose frames are found by the rules of its format."""

    def __init__(self, path: Path, kind: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        module, _, name = FORMATS[kind].partition(":")
        home = import_module(f"mdio.layouts.foreign.text.{module}")
        self.format: TextFormat = getattr(home, name)(kind, options)
        if self.format.needs_n_atoms and "n_atoms" not in options:
            raise self._lacks_n_atoms()
        self._starts, self._stops = array("q"), array("q")
        self._n_with = Counter[str]()
        """By field: in how many frames it is."""
        self._remarks: dict[str, list[int]] = {}
        """By remark: the first frame that it is about, and how many."""
        try:
            self._divide()
        except BaseException:
            self.close()
            raise
        self.n_frames, n_with = len(self._starts), self._n_with
        self.has_times = n_with["time"] == self.n_frames
        self.fields = tuple(name for name in ("velocities", "forces") if n_with[name])
        self.counts, self.names_lengths = self.format.counts, self.format.names_lengths
        self.sparse = tuple(name for name in self.fields if n_with[name] < self.n_frames)

    def _open(self) -> BinaryIO:
        return opened_unpacked(self.path)

    def _divide(self) -> None:
        """Find the frames; the last is taken in if it is seen to be whole."""
        nbytes = None if packed_as(self.path) in UNPACKED_BY else self.path.stat().st_size
        lines, last = Lines(self._file), None
        problem: FrameError | None = None
        with self._translated("divided"):
            try:
                for span in self.format.spans(lines, nbytes):
                    if last is not None:
                        self._take(last)
                    self._check_atoms(span)
                    last = span
            except FrameError as error:
                problem = error
            except (ValueError, LookupError, ArithmeticError) as error:
                problem = FrameError(f"what stands there cannot be read ({one_line(error)})")
            size = int(self._file.seek(0, os.SEEK_END)) if nbytes is None else nbytes
            if last is not None and (last.stop < size or self._ends_whole(last)):
                self._take(last)
            elif last is not None:
                problem = FrameError(
                    "the last line has no end and may be cut; if it is whole, put a newline there",
                    at_end=True,
                )
            if not self._stops:
                raise self._refusal(0, str(problem or "it holds no frame"), lines.number)
            n_frames, end = len(self._stops), self._stops[-1]
            if problem is not None and not self._is_blank(end):
                left = LostBytes(str(self.path), n_frames, end, size - end, at_end=problem.at_end)
                self.lost = (left,)

    def _check_atoms(self, span: Span) -> None:
        if not self._starts:
            self.n_atoms, self._units = span.n_atoms, span.units
        elif span.n_atoms != self.n_atoms:
            raise SourceError(
                f"{self.path}: frame {len(self._starts)} (byte {span.start}) has "
                f"{plural(span.n_atoms, 'atom')}, the first has {self.n_atoms}; a trajectory "
                "has the same atoms throughout: write the others into a file of their own"
            )
        elif span.units != self._units:
            raise SourceError(
                f"{self.path}: frame {len(self._starts)} (byte {span.start}) is in units "
                f"{span.units or 'lj, or none'}, those before in {self._units or 'lj, or none'}; a "
                "trajectory has the same units throughout: write the others into a file of their "
                "own, and join the files"
            )

    def _take(self, span: Span) -> None:
        self._n_with.update(span.fields)
        for remark in span.remarks:
            self._remarks.setdefault(remark, [len(self._starts), 0])[1] += 1
        self._starts.append(span.start)
        self._stops.append(span.stop)

    def _ends_whole(self, span: Span) -> bool:
        """Return whether the last frame is whole, also if its last line has no end."""
        raw = self._raw(span.start, span.stop)
        return raw.endswith(b"\n") or self.format.is_whole_without_newline(raw)

    def _is_blank(self, start: int) -> bool:
        """Return whether nothing follows."""
        self._file.seek(start)
        while piece := self._file.read(1 << 20):
            if piece.strip():
                return False
        return True

    def _raw(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return bytes(self._file.read(stop - start))

    def _frame(self, frame: int) -> bytes:
        start, stop = self._starts[frame], self._stops[frame]
        raw = self._raw(start, stop)
        if len(raw) < stop - start:
            raise SourceError(
                f"{self.path}: frame {frame} has {len(raw)} bytes, and had {stop - start} when the "
                "file was opened: it changed; open it anew"
            )
        return raw

    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        with self._translated("read"):
            raw = self._frame(frame)
        try:
            snapshot = self.format.read(raw, self.n_atoms)
        except MdioError:
            raise
        except FrameError as error:
            raise self._refusal(frame, str(error)) from error
        except Exception as error:  # MDAnalysis' readers raise anything
            line = odd_line(raw) if _ABOUT_NUMBERS.search(str(error)) else ""
            problem = line or f"MDAnalysis finds: {one_line(error)}"
            raise self._refusal(frame, problem) from error
        if not self.has_times:
            snapshot.time = None
        elif snapshot.time is not None:
            snapshot.time += float(self.format.options.get("time_offset") or 0.0)
        return snapshot

    def _failure(self, what: str, error: BaseException) -> BaseException:  # noqa: ARG002
        if (suffix := packed_as(self.path)) not in UNPACKED_BY:
            return error
        return SourceError(
            f"{self.path}: cannot be unpacked ({one_line(error)}); it is cut or damaged: "
            f"{UNPACKED_BY[suffix]} tells more"
        )

    def _refusal(self, frame: int, problem: str, line: int | None = None) -> SourceError:
        where = "" if line is None else f" (by line {line})"
        kind = self.format.kind_read
        return SourceError(
            f"{self.path}: frame {frame}{where} cannot be read as {kind}: {problem}; if the file "
            f"is of another format, name it with --format; else mend it, or cut it before that "
            "frame"
        )

    def topology_file(self) -> Any:
        """Return a file of the first frame, for parsers of topologies."""
        from MDAnalysis.lib.util import NamedStream

        text = self.format.text_for_mdanalysis(self._frame(0))
        return NamedStream(StringIO(text), f"frame.{self.format.kind_read.lower()}")

    def remarks(self) -> Iterator[str]:
        """Yield what is assumed or not read, in words."""
        yield from self.format.made_up()
        if 0 < (n_timed := self._n_with["time"]) < self.n_frames:
            yield f"times of {plural(n_timed, 'frame')} are left out, since others have none"
        for remark, (first, count) in self._remarks.items():
            if count == self.n_frames:
                yield remark
            else:
                yield f"{remark} (frame {first}; {plural(count, 'frame')} in all)"
