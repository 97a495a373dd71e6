"""What is known of a format of text: where a frame ends, and how one is read.

The lines of a file, read forwards, with the place of each.
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mdio.layouts.foreign.snapshot import Snapshot, snapshot_of

MOST_LINE_NBYTES = 1 << 20
"""A line of more bytes is not text."""


class Lines:
    """Lines of an open file from its beginning on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._again: bytes | None = None
        self.offset = 0
        """Where the next line begins."""
        self.number = 1
        """Of the next line, as editors count."""

    def peek(self) -> bytes:
        """Return the next line without taking it; empty at the end of the file."""
        if self._again is None:
            self._again = self._file.readline(MOST_LINE_NBYTES)
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
LEAST_DECIMALS = 3
LEAST_DIGITS = 6
SHOWN = 60
"""Characters of a line that a message shows."""


class FrameError(Exception):
    """What lies here is no whole frame; the text says what it is and what was expected."""

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
    """Of velocities and forces; times, if frames may have them."""
    remarks: tuple[str, ...] = ()
    """What of the frame is not read, or read in another way, in words."""


class TextFormat(ABC):
    """Cuts a file into frames by its own counts and marks, and lets MDAnalysis read each alone.

    So no frame can get what another one holds, and none is read beyond its end.
    """

    names_lengths: bool = True
    """Whether the unit of lengths is known."""
    counts: str = "frames"
    """What times are made of where there are none."""

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

    @property
    def reader_options(self) -> dict[str, Any]:
        """What MDAnalysis' reader is given."""
        ours = ("format", "length_unit", "dt", "time_offset")
        return {name: value for name, value in self.options.items() if name not in ours}

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return what a frame holds; raises FrameError, or whatever MDAnalysis raises."""
        return self._by_mdanalysis(self.text_for_mdanalysis(raw), n_atoms)

    def _by_mdanalysis(self, text: str, n_atoms: int) -> Snapshot:
        from MDAnalysis.coordinates.core import get_reader_for
        from MDAnalysis.lib.util import NamedStream

        name = f"frame.{self.kind_read.lower()}"
        reader_class = self.reader_class(get_reader_for(name, format=self.kind_read))
        options = self.reader_options | {"n_atoms": n_atoms}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = reader_class(NamedStream(StringIO(text), name), **options)
            snapshot = snapshot_of(reader.ts)
            reader.close()
        if snapshot.n_atoms != n_atoms:
            raise FrameError(f"{snapshot.n_atoms} atoms can be read, the frame has {n_atoms}")
        return snapshot

    def reader_class(self, theirs: Any) -> Any:
        """Return MDAnalysis' reader, or what is made of it."""
        return theirs

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
        return decimals.pop() >= LEAST_DECIMALS
    return _n_digits(word) >= max(LEAST_DIGITS, *map(_n_digits, numbers))


def _n_digits(number: bytes) -> int:
    """Return how many digits of a number count."""
    return len(number.strip(b"+-").replace(b".", b"").lstrip(b"0"))


def plain(raw: bytes) -> str:
    """Return bytes as text, whatever they are, a character each, with line ends of this system."""
    return raw.decode("latin-1").replace("\r\n", "\n")


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
    if (there := lines.skip(count)) < count:
        raise FrameError(f"says {says} atoms, and {there} lines follow", at_end=True)


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
