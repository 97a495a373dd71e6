"""A file that MDAnalysis reads as a whole: binary formats, and text of one frame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mdio.core.errors import AtomCountError, MdioError, SourceError
from mdio.core.frames import LostBytes
from mdio.layouts.foreign.packed import let_mdanalysis_read
from mdio.layouts.foreign.snapshot import Snapshot, forget, lacking, snapshot_of


class WholeFile:
    """The frames that MDAnalysis' reader counts."""

    counts = "frames"
    names_lengths = True
    sparse: tuple[str, ...] = ()
    lost: tuple[LostBytes, ...] = ()

    def __init__(self, path: Path, kind: str, options: Mapping[str, Any]) -> None:
        self.path, self.kind, self._options = path, kind, options
        with self._translated("opened"):
            self._reader, self._process = self._open(), os.getpid()
            self.n_frames, self.n_atoms = int(self._reader.n_frames), int(self._reader.n_atoms)
        first = self.read(0)
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

    def remarks(self) -> Iterator[str]:
        """Yield nothing: what MDAnalysis leaves out is not known."""
        yield from ()

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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _nothing() -> None:
    """Do nothing."""
