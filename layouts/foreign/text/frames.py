"""The frames of a text file, read one by one."""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from mdio.core.errors import AtomCountError, MdioError, SourceError
from mdio.core.frames import LostBytes
from mdio.core.words import plural
from mdio.layouts.foreign.packed import UNPACKED_BY, opened_unpacked, packed_as
from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.counted import GRO, MDCRD, XYZ, Tinker
from mdio.layouts.foreign.text.dumps import LAMMPS, History
from mdio.layouts.foreign.text.format import FrameError, Lines, Span, TextFormat, odd_line
from mdio.layouts.foreign.text.marked import MOL2, PDB, PQR, TRC

FORMATS: Mapping[str, type[TextFormat]] = {
    **dict.fromkeys(("PDB", "ENT", "XPDB", "PDBQT"), PDB),
    **dict.fromkeys(("TXYZ", "ARC"), Tinker),
    **dict.fromkeys(("MDCRD", "TRJ", "CRDBOX"), MDCRD),
    "PQR": PQR,
    "XYZ": XYZ,
    "GRO": GRO,
    "LAMMPSDUMP": LAMMPS,
    "HISTORY": History,
    "TRC": TRC,
    "MOL2": MOL2,
}
"""By MDAnalysis' names."""
_ABOUT_NUMBERS = re.compile("could not convert|inhomogeneous|invalid literal|out of (range|bounds)")
"""What Python and NumPy say of lines that hold something else."""


@dataclass(slots=True)
class Division:
    """Where frames lie, and what they are seen to hold."""

    starts: array[int] = field(default_factory=partial(array, "q"))
    stops: array[int] = field(default_factory=partial(array, "q"))
    n_atoms: int = 0
    n_with: Counter[str] = field(default_factory=Counter)
    """By field: in how many frames it is."""
    remarks: dict[str, list[int]] = field(default_factory=dict)
    """By remark: the first frame that it is about, and how many."""
    lost: tuple[LostBytes, ...] = ()
    _last: Span | None = None

    def add(self, span: Span) -> None:
        """Take in the next frame."""
        self.n_atoms, self._last = span.n_atoms, span
        self.n_with.update(span.fields)
        for remark in span.remarks:
            self.remarks.setdefault(remark, [len(self.starts), 0])[1] += 1
        self.starts.append(span.start)
        self.stops.append(span.stop)

    def drop_last(self) -> None:
        """Leave the last frame out."""
        assert self._last is not None
        self.n_with.subtract(self._last.fields)
        for remark in self._last.remarks:
            self.remarks[remark][1] -= 1
        self.starts.pop()
        self.stops.pop()


class TextFrames:
    """A file of text whose frames are found by the rules of its format."""

    def __init__(self, path: Path, kind: str, options: Mapping[str, Any]) -> None:
        self.path = path
        self.format = FORMATS[kind](kind, options)
        self._file, self._process = opened_unpacked(path), os.getpid()
        try:
            self.division = self._divide()
        except BaseException:
            self.close()
            raise
        self.n_frames = len(self.division.starts)
        self.n_atoms = self.division.n_atoms
        n_with = self.division.n_with
        self.has_times = n_with["time"] == self.n_frames
        self.fields = tuple(name for name in ("velocities", "forces") if n_with[name])
        self.lost = self.division.lost
        self.counts = self.format.counts
        self.sparse = tuple(name for name in self.fields if n_with[name] < self.n_frames)

    def _divide(self) -> Division:
        nbytes = None if packed_as(self.path) in UNPACKED_BY else self.path.stat().st_size
        lines, division = Lines(self._file), Division()
        problem: FrameError | None = None
        with self._whole():
            try:
                for span in self.format.spans(lines, nbytes):
                    self._check_atoms(division, span)
                    division.add(span)
            except FrameError as error:
                problem = error
            except (ValueError, LookupError, ArithmeticError) as error:
                problem = FrameError(f"what stands there cannot be read ({_words(error)})")
            size = self._size() if nbytes is None else nbytes
            if division.stops and division.stops[-1] == size and not self._ends_whole(division):
                division.drop_last()
                problem = FrameError(
                    "the last line has no end and may be cut; if it is whole, put a newline there",
                    at_end=True,
                )
            end = division.stops[-1] if division.stops else 0
            if not division.stops:
                raise self._refusal(0, str(problem or "it holds no frame"), lines.number)
            if problem is not None and not self._is_blank(end):
                n_frames = len(division.stops)
                division.lost = (
                    LostBytes(str(self.path), n_frames, end, size - end, at_end=problem.at_end),
                )
        return division

    def _check_atoms(self, division: Division, span: Span) -> None:
        if division.starts and span.n_atoms != division.n_atoms:
            raise SourceError(
                f"{self.path}: frame {len(division.starts)} (byte {span.start}) has "
                f"{plural(span.n_atoms, 'atom')}, the first has {division.n_atoms}; a trajectory "
                "has the same atoms throughout: write the others into a file of their own"
            )

    def _ends_whole(self, division: Division) -> bool:
        """Return whether the last frame is whole, also if its last line has no end."""
        raw = self._raw(division.starts[-1], division.stops[-1])
        return raw.endswith(b"\n") or self.format.is_whole_without_newline(raw)

    def _size(self) -> int:
        """Return how large the file is once it is unpacked."""
        return self._file.seek(0, os.SEEK_END)

    def _is_blank(self, start: int) -> bool:
        """Return whether nothing follows."""
        self._file.seek(start)
        while piece := self._file.read(1 << 20):
            if piece.strip():
                return False
        return True

    def _raw(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return self._file.read(stop - start)

    def _frame(self, frame: int) -> bytes:
        # A forked process has its parent's position in the file: it opens the file for itself.
        if self._process != os.getpid():
            self._file, self._process = opened_unpacked(self.path), os.getpid()
        start, stop = self.division.starts[frame], self.division.stops[frame]
        raw = self._raw(start, stop)
        if len(raw) < stop - start:
            raise SourceError(
                f"{self.path}: frame {frame} has {len(raw)} bytes, and had {stop - start} when the "
                "file was opened: it changed; open it anew"
            )
        return raw

    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        with self._whole():
            raw = self._frame(frame)
        try:
            snapshot = self.format.read(raw, self.n_atoms)
        except MdioError:
            raise
        except FrameError as error:
            raise self._refusal(frame, str(error)) from error
        except Exception as error:  # MDAnalysis' readers raise anything
            line = odd_line(raw) if _ABOUT_NUMBERS.search(str(error)) else ""
            problem = line or f"MDAnalysis finds: {_words(error)}"
            raise self._refusal(frame, problem) from error
        if not self.has_times:
            snapshot.time = None
        return snapshot

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Name the file in errors that do not, and tell what is packed and damaged."""
        try:
            yield
        except AtomCountError:
            raise AtomCountError(
                f"{self.path}: its format does not hold the number of atoms; give a topology with "
                "-s/--top FILE (in Python: n_atoms=)"
            ) from None
        except SourceError as error:
            text = str(error)
            raise (
                error if text.startswith(str(self.path)) else SourceError(f"{self.path}: {text}")
            ) from None
        except MdioError:
            raise
        except Exception as error:
            if (suffix := packed_as(self.path)) not in UNPACKED_BY:
                raise
            raise SourceError(
                f"{self.path}: cannot be unpacked ({_words(error)}); it is cut or damaged: "
                f"{UNPACKED_BY[suffix]} tells more"
            ) from error

    def _refusal(self, frame: int, problem: str, line: int | None = None) -> SourceError:
        where = "" if line is None else f" (by line {line})"
        kind = self.format.kind_read
        return SourceError(
            f"{self.path}: frame {frame}{where} cannot be read as {kind}: {problem}; if the file "
            f"is of another format, name it with --format; else mend it, or cut it before that "
            "frame"
        )

    @property
    def names_lengths(self) -> bool:
        """Whether the unit of lengths is known."""
        return self.format.names_lengths

    def topology_file(self) -> Any:
        """Return a file of the first frame, for parsers of topologies."""
        from MDAnalysis.lib.util import NamedStream

        text = self.format.text_for_mdanalysis(self._frame(0))
        return NamedStream(StringIO(text), f"frame.{self.format.kind_read.lower()}")

    def remarks(self) -> Iterator[str]:
        """Yield what is assumed or not read, in words."""
        yield from self.format.made_up()
        for remark, (first, count) in self.division.remarks.items():
            if count == self.n_frames:
                yield remark
            elif count:
                yield f"{remark} (frame {first}; {plural(count, 'frame')} in all)"

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
