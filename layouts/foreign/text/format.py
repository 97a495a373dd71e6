"""Trajectories as text: finding the frames, and reading each alone with a library."""

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

from mdio.core.errors import MdioError, SourceError, one_line
from mdio.core.frames import LostBytes
from mdio.core.words import plural
from mdio.layouts.foreign.compressed import DECOMPRESSORS, compression_of, open_decompressed
from mdio.layouts.foreign.snapshot import ForeignReader, Snapshot, snapshot_of

MAX_LINE_NBYTES = 1 << 20
"""A line of more bytes is not text."""


class Lines:
    """The lines of an open file, in order."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._peeked_line: bytes | None = None
        self.offset = 0
        self.number = 1
        """Number of the next line, as editors count."""

    def peek(self) -> bytes:
        """Return the next line without moving on; empty at the end of the file."""
        if self._peeked_line is None:
            self._peeked_line = self._file.readline(MAX_LINE_NBYTES)
        return self._peeked_line

    def next(self) -> bytes:
        """Return the next line; empty at the end of the file."""
        line = self.peek()
        self._peeked_line = None
        self.offset += len(line)
        self.number += bool(line)
        return line

    def next_lines(self, count: int) -> list[bytes]:
        """Return the next `count` lines; fewer at the end of the file."""
        return [line for _ in range(count) if (line := self.next())]

    def skip(self, count: int) -> int:
        """Skip lines; return how many were skipped, fewer than `count` at the end of the file."""
        n_skipped = nbytes = 0
        if count and self._peeked_line is not None:
            n_skipped += bool(self.next())
        for line in islice(self._file, count - n_skipped):
            nbytes += len(line)
            n_skipped += 1
        self.offset += nbytes
        self.number += n_skipped
        return n_skipped


_NUMBER = re.compile(rb"[-+]?\d+\.\d+")
_REAL = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?")
MIN_DECIMALS, MIN_DIGITS = 3, 6
"""Least decimals and digits with which the last number of a file counts as complete."""
MAX_QUOTED = 60
"""Most characters of a line in a message."""


class FrameError(Exception):
    """There is no complete frame here; the text says what was found and what was expected."""

    def __init__(self, text: str, *, at_end: bool = False) -> None:
        super().__init__(text)
        self.at_end = at_end
        """Whether the file ends within a frame."""


@dataclass(slots=True)
class FrameRecord:
    """The bytes of a frame, and its contents as far as finding the frames shows them."""

    start: int
    stop: int
    n_atoms: int
    fields: frozenset[str] = frozenset()
    """Which of velocities, forces and time it has."""
    notes: tuple[str, ...] = ()
    """Notes on contents that are not read, or not as they are stored."""
    units: str = ""
    """Units that the file names; empty if it names none."""


class TextFormat(ABC):
    """Divides a file into frames by counts and marks; MDAnalysis reads each frame alone.

    So no number of one frame can end up in another.
    """

    has_length_unit: bool = True
    time_unit: str = "frames"
    """Unit in which times are counted if frames have none: ``frames`` or ``steps``."""
    needs_n_atoms: bool = False

    def __init__(self, path: Path, format_name: str, options: Mapping[str, Any]) -> None:
        self.path = path
        self.format_name = format_name
        self.options = dict(options)

    @abstractmethod
    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        """Yield the frames in order; raises FrameError where no frame begins, or one is incomplete.

        `nbytes`: size of the file; None if it is compressed.
        """

    def is_complete_without_newline(self, raw: bytes) -> bool:
        """Return whether the last frame is complete, although its last line does not end."""
        return has_all_digits(raw)

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a file of one frame for MDAnalysis' readers and parsers."""
        return to_text(raw)

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; raises FrameError, and any error of MDAnalysis."""
        return self._read_by_mdanalysis(self.text_for_mdanalysis(raw), n_atoms)

    def _read_by_mdanalysis(self, text: str, n_atoms: int) -> Snapshot:
        from MDAnalysis.coordinates.core import get_reader_for
        from MDAnalysis.lib.util import NamedStream

        name = f"frame.{self.format_name.lower()}"
        reader_class = self.reader_class(get_reader_for(name, format=self.format_name))
        own_options = ("format", "length_unit", "dt", "time_offset")
        options = {key: value for key, value in self.options.items() if key not in own_options}
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
        return reader

    def made_up_notes(self) -> Iterator[str]:
        """Yield notes on other values that are made up."""
        yield from ()


def has_all_digits(raw: bytes) -> bool:
    """Return whether the last line of a text, which does not end, is complete.

    It is if it has as many words as the line before, and its last number has as many digits as any
    other: a truncated number has fewer.
    """
    line_before, last_line = [b"", *raw.splitlines()][-2:]
    words = last_line.split()
    if not words or len(line_before.split()) != len(words):
        return False
    numbers = [word for word in raw.split() if _NUMBER.fullmatch(word)]
    if _NUMBER.fullmatch(words[-1]) is None:
        return False
    decimals = {len(number.partition(b".")[2]) for number in numbers}
    if len(decimals) == 1:
        return decimals.pop() >= MIN_DECIMALS
    return _n_digits(words[-1]) >= max(MIN_DIGITS, *map(_n_digits, numbers))


def _n_digits(number: bytes) -> int:
    return len(number.strip(b"+-").replace(b".", b"").lstrip(b"0"))


def to_text(raw: bytes) -> str:
    """Return bytes as text, one character a byte, with lines that end in a newline."""
    return raw.decode("latin-1").replace("\r\n", "\n")


def text_lines(raw: bytes) -> list[str]:
    """Return lines as text; `str.splitlines` would also split at bytes of some UTF-8 letters."""
    return to_text(raw).removesuffix("\n").split("\n")


def quoted(line: bytes) -> str:
    """Return the beginning of a line in quotation marks, for a message."""
    text = to_text(line).rstrip("\n")
    return repr(text[:MAX_QUOTED] + ("..." if len(text) > MAX_QUOTED else ""))


def deviating_line(raw: bytes) -> str:
    """Return a message on the first line with numbers in other places; empty if none."""
    lines = raw.splitlines()
    patterns = [tuple(_REAL.fullmatch(word) is not None for word in line.split()) for line in lines]
    most_common, count = max(Counter(patterns).items(), key=lambda item: len(item[0]) * item[1])
    if count < 2:
        return ""
    begin = patterns.index(most_common)
    for number, pattern in enumerate(patterns[begin:], begin):
        if pattern != most_common:
            return f"its line {number + 1} is {quoted(lines[number])}, unlike other lines"
    return ""


def integer(line: bytes, quantity: str) -> int:
    """Return the number on a line; raises FrameError."""
    if re.fullmatch(rb"\s*\d{1,15}\s*", line) is None:
        raise FrameError(f"{quoted(line)} in place of {quantity}", at_end=not line)
    return int(line)


def skip_atoms(
    lines: Lines, count: int, nbytes: int | None, min_nbytes: int, *, n_atoms: int | None = None
) -> None:
    """Skip the lines of atoms; raises FrameError if the file ends before.

    `min_nbytes`: of a line, so that a count that does not fit into the file is refused at once.
    `n_atoms`: number of atoms in the frame's header, if not `count`.
    """
    n_atoms = count if n_atoms is None else n_atoms
    if not n_atoms:
        raise FrameError("a frame of 0 atoms")
    remaining_nbytes = None if nbytes is None else nbytes - lines.offset
    if remaining_nbytes is not None and (remaining_nbytes + 1) // min_nbytes < count:
        raise FrameError(f"says {n_atoms} atoms, and {remaining_nbytes} bytes follow", at_end=True)
    if (n_skipped := lines.skip(count)) < count:
        raise FrameError(f"says {n_atoms} atoms, and {n_skipped} lines follow", at_end=True)


def without_axes(box: np.ndarray | None, periodic: tuple[bool, ...]) -> np.ndarray | None:
    """Return a box with length 0 along axes that are not periodic; None if none is."""
    if box is None or not any(periodic):
        return None
    box[:3][~np.array(periodic)] = 0
    return box


def note_on_axes(periodic: tuple[bool, ...], reason: str) -> tuple[str, ...]:
    """Return a note on axes along which boxes have no length."""
    axes = [axis for axis, is_periodic in zip("xyz", periodic, strict=True) if not is_periodic]
    if not axes:
        return ()
    if len(axes) == len(periodic):
        return (f"no axis is periodic ({reason}): there is no box",)
    noun = "axis" if len(axes) == 1 else "axes"
    verb = "is" if len(axes) == 1 else "are"
    return (
        f"{noun} {' and '.join(axes)} {verb} not periodic ({reason}): the box has length 0 there",
    )


class SameAtoms:
    """Checks that all frames have the atom numbers of the first, each once."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._first: NDArray[np.int64] | None = None

    def check(self, numbers: NDArray[np.int64]) -> None:
        """Raise FrameError unless they are those of the first frame that was read."""
        numbers = np.sort(numbers)
        if (repeated := numbers[1:][numbers[1:] == numbers[:-1]]).size:
            raise FrameError(f"two atoms have the {self._noun} {repeated[0]}")
        if self._first is None:
            self._first = numbers
        if (new := np.setdiff1d(numbers, self._first)).size:
            raise FrameError(f"an atom has the {self._noun} {new[0]}, which frame 0 does not have")


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
"""Module beside this one and class of each format, by MDAnalysis' names."""
_NUMBER_ERRORS = re.compile("could not convert|inhomogeneous|invalid literal|out of (range|bounds)")
"""Errors of Python and NumPy for lines with other contents."""


class TextFrames(ForeignReader):
    """A text file whose frames are found by the rules of its format."""

    def __init__(self, path: Path, format_name: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        module_name, _, name = FORMATS[format_name].partition(":")
        module = import_module(f"mdio.layouts.foreign.text.{module_name}")
        self.format: TextFormat = getattr(module, name)(path, format_name, options)
        if self.format.needs_n_atoms and "n_atoms" not in options:
            raise self._atom_count_error()
        self._starts, self._stops = array("q"), array("q")
        self._n_frames_with = Counter[str]()
        self._notes: dict[str, list[int]] = {}
        try:
            self._find_frames()
        except BaseException:
            self.close()
            raise
        self.n_frames, n_with = len(self._starts), self._n_frames_with
        self.has_times = n_with["time"] == self.n_frames
        self.fields = tuple(name for name in ("velocities", "forces") if n_with[name])
        self.time_unit = self.format.time_unit
        self.has_length_unit = self.format.has_length_unit
        self.sparse = tuple(name for name in self.fields if n_with[name] < self.n_frames)

    def _open(self) -> BinaryIO:
        return open_decompressed(self.path)

    def _find_frames(self) -> None:
        """Find the frames; the last one counts only if it is complete."""
        nbytes = None if compression_of(self.path) in DECOMPRESSORS else self.path.stat().st_size
        lines, last = Lines(self._file), None
        problem: FrameError | None = None
        with self._library_errors("divided into frames"):
            try:
                for record in self.format.records(lines, nbytes):
                    if last is not None:
                        self._add(last)
                    self._check_atoms(record)
                    last = record
            except FrameError as error:
                problem = error
            except (ValueError, LookupError, ArithmeticError) as error:
                problem = FrameError(f"the text there cannot be read ({one_line(error)[:200]})")
            size = int(self._file.seek(0, os.SEEK_END)) if nbytes is None else nbytes
            if last is not None and (last.stop < size or self._ends_complete(last)):
                self._add(last)
            elif last is not None:
                problem = FrameError(
                    "the last line has no end and may be cut; if it is whole, put a newline there",
                    at_end=True,
                )
            if not self._stops:
                raise self._format_error(0, str(problem or "it holds no frame"), lines.number)
            n_frames, end = len(self._stops), self._stops[-1]
            if problem is not None and not self._is_blank(end):
                loss = LostBytes(str(self.path), n_frames, end, size - end, at_end=problem.at_end)
                self.lost = (loss,)

    def _check_atoms(self, record: FrameRecord) -> None:
        if not self._starts:
            self.n_atoms, self._units = record.n_atoms, record.units
        elif record.n_atoms != self.n_atoms:
            raise SourceError(
                f"{self.path}: frame {len(self._starts)} (byte {record.start}) has "
                f"{plural(record.n_atoms, 'atom')}, the first has {self.n_atoms}; a trajectory "
                "has the same atoms throughout: write the others into a file of their own"
            )
        elif record.units != self._units:
            units, first_units = (u or "that it does not name" for u in (record.units, self._units))
            raise SourceError(
                f"{self.path}: frame {len(self._starts)} (byte {record.start}) is in units "
                f"{units}, the first in units {first_units}; a trajectory has the same units "
                "throughout: write the others into a file of their own, and join the files"
            )

    def _add(self, record: FrameRecord) -> None:
        self._n_frames_with.update(record.fields)
        for note in record.notes:
            self._notes.setdefault(note, [len(self._starts), 0])[1] += 1
        self._starts.append(record.start)
        self._stops.append(record.stop)

    def _ends_complete(self, record: FrameRecord) -> bool:
        raw = self._raw(record.start, record.stop)
        return raw.endswith(b"\n") or self.format.is_complete_without_newline(raw)

    def _is_blank(self, start: int) -> bool:
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
                "file was opened: it changed; open it again"
            )
        return raw

    def read(self, frame: int) -> Snapshot:
        with self._library_errors("read"):
            raw = self._frame(frame)
        try:
            snapshot = self.format.read(raw, self.n_atoms)
        except MdioError:
            raise
        except FrameError as error:
            raise self._format_error(frame, str(error)) from error
        except Exception as error:  # MDAnalysis' readers raise anything
            line = deviating_line(raw) if _NUMBER_ERRORS.search(str(error)) else ""
            problem = line or f"MDAnalysis finds: {one_line(error)[:200]}"
            raise self._format_error(frame, problem) from error
        if snapshot.step is not None and not -(2**63) <= snapshot.step < 2**63:
            raise self._format_error(frame, f"its step, {snapshot.step}, does not fit 64 bits")
        if not self.has_times:
            snapshot.time = None
        elif snapshot.time is not None:
            snapshot.time += float(self.format.options.get("time_offset") or 0.0)
        return snapshot

    def _error_for(self, action: str, error: BaseException) -> BaseException:  # noqa: ARG002
        if (suffix := compression_of(self.path)) not in DECOMPRESSORS:
            return error
        return SourceError(
            f"{self.path}: cannot be unpacked ({one_line(error)[:200]}); it is cut or damaged: "
            f"{DECOMPRESSORS[suffix]} tells more"
        )

    def _format_error(self, frame: int, problem: str, line: int | None = None) -> SourceError:
        place = "" if line is None else f" (by line {line})"
        name = self.format.format_name
        return SourceError(
            f"{self.path}: frame {frame}{place} cannot be read as {name}: {problem}; if the file "
            f"is of another format, name it with --format; else mend it, or cut it before that "
            "frame"
        )

    def topology_file(self) -> Any:
        from MDAnalysis.lib.util import NamedStream

        text = self.format.text_for_mdanalysis(self._frame(0))
        return NamedStream(StringIO(text), f"frame.{self.format.format_name.lower()}")

    def notes(self) -> Iterator[str]:
        yield from self.format.made_up_notes()
        if 0 < (n_timed := self._n_frames_with["time"]) < self.n_frames:
            yield f"times of {plural(n_timed, 'frame')} are left out, since others have none"
        for note, (first, count) in self._notes.items():
            if count == self.n_frames:
                yield note
            else:
                yield f"{note} (frame {first}; {plural(count, 'frame')} in all)"
