"""A file that MDAnalysis reads as a whole: binary formats, and text of one frame."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mdio.core.errors import AtomCountError, MdioError, SourceError
from mdio.core.frames import LostBytes
from mdio.layouts.foreign.packed import let_mdanalysis_read, opened_unpacked
from mdio.layouts.foreign.snapshot import Snapshot, forget, lacking, snapshot_of
from mdio.layouts.foreign.text.format import has_all_digits

TEXT = ("CRD", "CONFIG", "FHIAIMS", "IN", "DATA", "GMS")
"""Formats of lines of numbers, whose last may be cut, ..."""
WIDTHS = {"INPCRD": 12, "RESTRT": 12}
"""... and those of numbers of a width."""
UNCOUNTED = ("CONFIG", "FHIAIMS", "IN")
LAST_LINES = {"GMS": b"EXECUTION OF GAMESS TERMINATED"}
"""What a whole file has near its end, of formats that do not say how many frames there are."""
END_NBYTES = 1 << 16


class WholeFile:
    """The frames that MDAnalysis' reader counts."""

    counts = "frames"
    names_lengths = True
    sparse: tuple[str, ...] = ()
    lost: tuple[LostBytes, ...] = ()

    def __init__(self, path: Path, kind: str, options: Mapping[str, Any]) -> None:
        self.path, self.kind, self._options = path, kind, options
        if (kind in TEXT or kind in WIDTHS) and not _ends_whole(path, WIDTHS.get(kind)):
            raise SourceError(
                f"{path}: the last line has no end, and its last number may be cut; if it is "
                "whole, put a newline there"
            )
        with self._translated("opened"):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self._reader, self._process = self._open(), os.getpid()
            self._warnings = [str(one.message) for one in warned if one.category is UserWarning]
            self.n_frames, self.n_atoms = int(self._reader.n_frames), int(self._reader.n_atoms)
        if (n_models := self._n_models()) > 1:
            self.close()
            raise SourceError(
                f"{path}: {n_models} models, expected one: those of {kind} are not read as frames "
                "by MDAnalysis; write them into a PDB file, of which each model is read as a frame"
            )
        first = self.read(0)
        if kind in LAST_LINES and not _has(path, LAST_LINES[kind]):
            size = path.stat().st_size
            self.lost = (LostBytes(str(path), self.n_frames, size, 0),)
        self.fields = tuple(
            name for name in ("velocities", "forces") if getattr(first, name) is not None
        )
        self.has_times = first.time is not None

    def _open(self) -> Any:
        from MDAnalysis.coordinates.core import get_reader_for

        let_mdanalysis_read(self.path)
        reader_class = get_reader_for(str(self.path), format=self.kind)
        if reader_class.__module__.startswith("mdio."):
            raise SourceError(f"{self.path}: no layout of mdio reads it, nor does MDAnalysis")
        ours = ("format", "length_unit")
        options = {name: value for name, value in self._options.items() if name not in ours}
        reader = reader_class.__new__(reader_class)
        try:
            reader.__init__(str(self.path), **options)
        except BaseException:
            # Its __del__ would fail on what is not there yet, and print that on stderr.
            with suppress(Exception):
                reader.close()
            reader._auxs, reader.close = {}, _nothing
            raise
        return reader

    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        with self._translated(f"read at frame {frame}"):
            # A forked process has its parent's position in the file: it opens it for itself.
            if self._process != os.getpid():
                self._reader, self._process = self._open(), os.getpid()
            if self.n_frames == 1:
                return snapshot_of(self._reader[frame])
            forget(self._reader.ts)
            snapshot = snapshot_of(self._reader[frame])
            for name in lacking(snapshot):
                if name == "positions":
                    raise ValueError("a frame without positions")
                setattr(snapshot, name, None)
            return snapshot

    def _n_models(self) -> int:
        """Return how many models a file has, of formats of which MDAnalysis reads one frame."""
        if self.kind == "MMTF":
            from MDAnalysis.coordinates.MMTF import _parse_mmtf

            return int(_parse_mmtf(str(self.path)).num_models)
        words = " ".join(self._warnings)
        models = re.search(r"has (\d+) models", words) if self.kind in ("CIF", "MMCIF") else None
        return 1 if models is None else int(models[1])

    def remarks(self) -> Iterator[str]:
        """Yield what cannot be told of the file, and what MDAnalysis says of it."""
        if self.kind in UNCOUNTED:
            yield f"{self.kind} has no number of atoms: whether some are missing cannot be told"
        for text in dict.fromkeys(self._warnings):
            yield f"MDAnalysis: {' '.join(text.split())[:200]}"

    def topology_file(self) -> Any:
        """Return the file itself."""
        return str(self.path)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn whatever a reader raises into a SourceError, and keep its warnings to itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except MdioError:
                raise
            except Exception as error:  # readers raise anything on bad input
                if "n_atoms" in str(error) and "n_atoms" not in self._options:
                    raise AtomCountError(
                        f"{self.path}: its format does not hold the number of atoms; give a "
                        "topology with -s/--top FILE (in Python: n_atoms=)"
                    ) from error
                raise SourceError(
                    f"{self.path}: cannot be {what} as {self.kind}: MDAnalysis finds "
                    f"{_one_line(error)}; if it is of another format, name it with --format; else "
                    "it is damaged, or uses what MDAnalysis does not read"
                ) from error


def _ends_whole(path: Path, width: int | None) -> bool:
    """Return whether a text has an end of its last line, or cannot be cut there."""
    raw = _end_of(path)
    last = raw.rpartition(b"\n")[2]
    if not last.strip():
        return True
    return has_all_digits(raw) if width is None else len(last.rstrip()) % width == 0


def _has(path: Path, text: bytes) -> bool:
    return text in _end_of(path)


def _end_of(path: Path) -> bytes:
    """Return the last bytes of a file, unpacked."""
    with opened_unpacked(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - END_NBYTES))
        return file.read()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _nothing() -> None:
    """Do nothing."""
