"""A file that MDAnalysis reads as a whole: binary formats, and text of one frame."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.files.marks import open_regular
from mdio.core.frames import LostBytes
from mdio.layouts.foreign.packed import let_mdanalysis_read, opened_unpacked
from mdio.layouts.foreign.snapshot import (
    ForeignFrames,
    Snapshot,
    forget,
    lacking,
    one_line,
    snapshot_of,
)
from mdio.layouts.foreign.text.format import has_all_digits

TEXT = ("CRD", "CONFIG", "FHIAIMS", "IN", "DATA", "GMS")
"""Formats of lines of numbers, whose last may be cut, ..."""
WIDTHS = {"INPCRD": 12, "RESTRT": 12}
"""... and those of numbers of a width."""
UNCOUNTED = ("CONFIG", "FHIAIMS", "IN")
LAST_LINES = {"GMS": b"EXECUTION OF GAMESS TERMINATED"}
"""Bytes near the end of whole files, for formats without a number of frames."""
END_NBYTES = 1 << 16


class WholeFile(ForeignFrames):
    """The frames that MDAnalysis' reader counts."""

    def __init__(self, path: Path, kind: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.kind, self._options = kind, options
        if (kind in TEXT or kind in WIDTHS) and not _ends_whole(path, WIDTHS.get(kind)):
            raise SourceError(
                f"{path}: the last line has no end, and its last number may be cut; if it is "
                "whole, put a newline there"
            )
        with self._translated("opened"):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                reader = self._file
            self._warnings = [str(one.message) for one in warned if one.category is UserWarning]
            self.n_frames, self.n_atoms = int(reader.n_frames), int(reader.n_atoms)
        if (n_models := self._n_models()) > 1:
            self.close()
            raise SourceError(
                f"{path}: {n_models} models, expected one: those of {kind} are not read as frames "
                "by MDAnalysis; write them into a PDB file, of which each model is read as a frame"
            )
        first = self.read(0)
        if kind in LAST_LINES and LAST_LINES[kind] not in _end_of(path):
            size = path.stat().st_size
            self.lost = (LostBytes(str(path), self.n_frames, size, 0),)
        self._take_facts(first)

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
            reader._auxs, reader.close = {}, lambda: None
            raise
        return reader

    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        with self._translated(f"read at frame {frame}"):
            reader = self._file
            if self.n_frames == 1:
                return snapshot_of(reader[frame])
            forget(reader.ts)
            snapshot = snapshot_of(reader[frame])
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
        """Yield notes on what is unknown, and MDAnalysis' warnings."""
        if self.kind in UNCOUNTED:
            yield f"{self.kind} has no number of atoms: whether some are missing cannot be told"
        for text in dict.fromkeys(self._warnings):
            yield f"MDAnalysis: {' '.join(text.split())[:200]}"

    def _failure(self, what: str, error: BaseException) -> BaseException:
        if "n_atoms" in str(error) and "n_atoms" not in self._options:
            return self._lacks_n_atoms()
        return SourceError(
            f"{self.path}: cannot be {what} as {self.kind}: MDAnalysis finds {one_line(error)}; if "
            "it is of another format, name it with --format; else it is damaged, or uses what "
            "MDAnalysis does not read"
        )


def _ends_whole(path: Path, width: int | None) -> bool:
    """Return whether a text has an end of its last line, or cannot be cut there."""
    raw = _end_of(path)
    last = raw.rpartition(b"\n")[2]
    if not last.strip():
        return True
    return has_all_digits(raw) if width is None else len(last.rstrip()) % width == 0


def _end_of(path: Path) -> bytes:
    """Return the last bytes of a file, unpacked."""
    with opened_unpacked(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - END_NBYTES))
        return file.read()


FIXED = 40
"""Bytes of a header before the name."""
MAX_HEADER = 4096
PIECE_NBYTES = 4 << 20
BY_CHEMFILES = "read by chemfiles, since pytng cannot: forces, if there are any, are left out"


def check_blocks(path: Path) -> None:
    """Compare all blocks with their checksums; raises SourceError: one is cut or damaged."""
    offset, number, size = 0, 0, path.stat().st_size
    with open(open_regular(path), "rb") as file:
        order = ">" if file.read(8)[:4] == bytes(4) else "<"
        while offset < size:
            file.seek(offset)
            head = file.read(FIXED)
            length, nbytes = (
                struct.unpack(order + "qq", head[:16]) if len(head) == FIXED else (0, 0)
            )
            end = offset + length + nbytes
            if not FIXED < length <= MAX_HEADER or nbytes < 0 or end > size:
                raise SourceError(
                    f"{path}: block {number} at byte {offset} says it ends at byte {end}, the file "
                    f"has {size}: it is cut or damaged; copy it anew"
                )
            if any(expected := head[24:FIXED]):
                digest, left = hashlib.md5(usedforsecurity=False), nbytes
                file.seek(offset + length)
                while left and (piece := file.read(min(left, PIECE_NBYTES))):
                    digest.update(piece)
                    left -= len(piece)
                if digest.digest() != expected:
                    raise SourceError(
                        f"{path}: block {number} at byte {offset} has the MD5 "
                        f"{digest.hexdigest()}, expected {expected.hex()}: it is damaged; copy the "
                        "file anew"
                    )
            offset, number = end, number + 1


class TNGByChemfiles(ForeignFrames):
    """The frames of a TNG file as chemfiles reads them: no forces."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import chemfiles

        self._errors = (chemfiles.ChemfilesError,)
        with self._translated("opened"):
            self.n_frames = int(self._file.nsteps)
        first = self.read(0)
        self.n_atoms = first.n_atoms
        self._take_facts(first)

    def _open(self) -> Any:
        import chemfiles

        return chemfiles.Trajectory(str(self.path), "r", "TNG")

    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        with self._translated(f"read at frame {frame}"):
            whole = self._file.read_step(frame)
        box = np.array([*whole.cell.lengths, *whole.cell.angles], np.float32)
        return Snapshot(
            positions=np.array(whole.positions, np.float32),
            velocities=(np.array(whole.velocities, np.float32) if whole.has_velocities() else None),
            box=box if box[:3].any() else None,
            time=float(whole["time"]) if "time" in whole.list_properties() else None,
            step=int(whole.step),
        )

    def _failure(self, what: str, error: BaseException) -> BaseException:
        return SourceError(
            f"{self.path}: cannot be {what} by chemfiles ({error}); {way_out(self.path)}"
        )

    def remarks(self) -> Iterator[str]:
        """Yield what is not read."""
        yield BY_CHEMFILES


def tng_frames(path: Path, options: Mapping[str, Any]) -> ForeignFrames:
    """Return the reader of a TNG file: pytng, or chemfiles where that cannot; raises SourceError.

    pytng reads forces too, but only files whose frames all have a box, and positions as often.
    """
    check_blocks(path)
    has = {name: importlib.util.find_spec(name) is not None for name in ("pytng", "chemfiles")}
    if not any(has.values()):
        raise SourceError(
            f"{path}: TNG files are read through the packages pytng or chemfiles, which are not "
            "installed; install one: pip install pytng"
        )
    problems = []
    if has["pytng"]:
        try:
            return WholeFile(path, "TNG", options)
        except SourceError as error:
            problems.append(f"pytng: {error.__cause__ or error}")
    if has["chemfiles"]:
        try:
            return TNGByChemfiles(path)
        except SourceError as error:
            problems.append(f"chemfiles: {error.__cause__ or error}")
    else:
        problems.append(
            "chemfiles, which reads more of them, is not installed: pip install chemfiles"
        )
    raise SourceError(f"{path}: cannot be read as TNG ({'; '.join(problems)}); {way_out(path)}")


def way_out(path: Path) -> str:
    """Return advice on a TNG file that no package reads."""
    return f"turn it into another format: gmx trjconv -f {path.name} -o {path.stem}.xtc"
