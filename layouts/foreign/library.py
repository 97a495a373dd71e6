"""Files in which the library finds the frames: binary formats, and text of one frame."""

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

from mdio.core.errors import SourceError, one_line
from mdio.core.files.checks import open_regular
from mdio.core.frames import LostBytes
from mdio.layouts.foreign.compressed import open_decompressed
from mdio.layouts.foreign.snapshot import (
    ForeignReader,
    Snapshot,
    absent_fields,
    clear_timestep,
    snapshot_of,
)
from mdio.layouts.foreign.text.format import has_all_digits

TEXT_FORMATS = ("CRD", "CONFIG", "FHIAIMS", "IN", "DATA", "GMS")
"""Formats of lines of numbers, of which the last may be truncated."""
NUMBER_WIDTHS = {"INPCRD": 12, "RESTRT": 12}
"""Characters of each number, of formats with numbers of a fixed width."""
WITHOUT_N_ATOMS = ("CONFIG", "FHIAIMS", "IN")
"""Formats that do not store the number of atoms."""
END_MARKS = {"GMS": b"EXECUTION OF GAMESS TERMINATED"}
"""Bytes near the end of complete files, for formats without a number of frames."""
TAIL_NBYTES = 1 << 16


class MDAnalysisFrames(ForeignReader):
    """The frames of a file, as MDAnalysis' reader finds and reads them."""

    def __init__(self, path: Path, format_name: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.format_name, self._options = format_name, options
        is_text = format_name in TEXT_FORMATS or format_name in NUMBER_WIDTHS
        if is_text and not _is_complete(path, NUMBER_WIDTHS.get(format_name)):
            raise SourceError(
                f"{path}: the last line does not end in a newline, and its last number may be "
                "truncated; if it is complete, append a newline"
            )
        with self._library_errors("opened"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                reader = self._file
            self._warnings = [str(w.message) for w in caught if w.category is UserWarning]
            self.n_frames, self.n_atoms = int(reader.n_frames), int(reader.n_atoms)
        if (n_models := self._n_models()) > 1:
            self.close()
            raise SourceError(
                f"{path}: {n_models} models, expected one: those of {format_name} are not read as "
                "frames by MDAnalysis; write them into a PDB file, of which each model is read as "
                "a frame"
            )
        first = self.read(0)
        if format_name in END_MARKS and END_MARKS[format_name] not in _tail(path):
            size = path.stat().st_size
            self.lost = (LostBytes(str(path), self.n_frames, size, 0),)
        self._set_properties(first)

    def _open(self) -> Any:
        from MDAnalysis.coordinates.core import get_reader_for

        reader_class = get_reader_for(str(self.path), format=self.format_name)
        if reader_class.__module__.startswith("mdio."):
            raise SourceError(f"{self.path}: no layout of mdio reads it, nor does MDAnalysis")
        names = self._options.keys() - {"format", "length_unit"}  # which are the layout's
        options = {name: self._options[name] for name in names}
        reader = reader_class.__new__(reader_class)
        try:
            reader.__init__(str(self.path), **options)
        except BaseException:
            # Its __del__ would fail on missing attributes, and print that on stderr.
            with suppress(Exception):
                reader.close()
            reader._auxs, reader.close = {}, lambda: None
            raise
        return reader

    def read(self, frame: int) -> Snapshot:
        with self._library_errors(f"read at frame {frame}"):
            reader = self._file
            if self.n_frames == 1:
                return snapshot_of(reader[frame])
            clear_timestep(reader.ts)
            snapshot = snapshot_of(reader[frame])
            for name in absent_fields(snapshot):
                if name == "positions":
                    raise ValueError("a frame without positions")
                setattr(snapshot, name, None)
            return snapshot

    def _n_models(self) -> int:
        """Return the number of models in a file of a format of which MDAnalysis reads only one."""
        if self.format_name == "MMTF":
            from MDAnalysis.coordinates.MMTF import _parse_mmtf

            return int(_parse_mmtf(str(self.path)).num_models)
        words = " ".join(self._warnings)
        models = re.search(r"has (\d+) models", words)
        return int(models[1]) if models and self.format_name in ("CIF", "MMCIF") else 1

    def notes(self) -> Iterator[str]:
        if self.format_name in WITHOUT_N_ATOMS:
            name = self.format_name
            yield f"{name} has no number of atoms: it is unknown whether some are missing"
        for text in dict.fromkeys(self._warnings):
            yield f"MDAnalysis: {' '.join(text.split())[:200]}"

    def _error_for(self, action: str, error: BaseException) -> BaseException:
        if "n_atoms" in str(error) and "n_atoms" not in self._options:
            return self._atom_count_error()
        return SourceError(
            f"{self.path}: cannot be {action} as {self.format_name}: MDAnalysis finds "
            f"{one_line(error)[:200]}; if it is of another format, name it with --format; else it "
            "is damaged, or uses what MDAnalysis does not read"
        )


def _is_complete(path: Path, width: int | None) -> bool:
    """Return whether the last line of a text ends, or has complete numbers of `width`."""
    raw = _tail(path)
    last_line = raw.rpartition(b"\n")[2]
    if not last_line.strip():
        return True
    return has_all_digits(raw) if width is None else len(last_line.rstrip()) % width == 0


def _tail(path: Path) -> bytes:
    with open_decompressed(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_NBYTES))
        return file.read()


FIXED_HEADER_NBYTES = 40
"""Bytes of the header of a TNG block before its name."""
MAX_HEADER_NBYTES = 4096
READ_NBYTES = 4 << 20
CHEMFILES_NOTE = "read by chemfiles, since pytng cannot: forces, if there are any, are left out"


def check_tng_blocks(path: Path) -> None:
    """Compare all blocks of a TNG file with their checksums; raises SourceError."""
    offset, number, size = 0, 0, path.stat().st_size
    with open(open_regular(path), "rb") as file:
        order = ">" if file.read(8)[:4] == bytes(4) else "<"
        while offset < size:
            file.seek(offset)
            head = file.read(FIXED_HEADER_NBYTES)
            length, nbytes = (
                struct.unpack(order + "qq", head[:16])
                if len(head) == FIXED_HEADER_NBYTES
                else (0, 0)
            )
            end = offset + length + nbytes
            if not FIXED_HEADER_NBYTES < length <= MAX_HEADER_NBYTES or nbytes < 0 or end > size:
                raise SourceError(
                    f"{path}: block {number} at byte {offset} says it ends at byte {end}, the file "
                    f"has {size}: it is truncated or damaged; copy it again"
                )
            if any(expected := head[24:FIXED_HEADER_NBYTES]):
                digest, n_remaining = hashlib.md5(usedforsecurity=False), nbytes
                file.seek(offset + length)
                while n_remaining and (data := file.read(min(n_remaining, READ_NBYTES))):
                    digest.update(data)
                    n_remaining -= len(data)
                if digest.digest() != expected:
                    raise SourceError(
                        f"{path}: block {number} at byte {offset} has the MD5 "
                        f"{digest.hexdigest()}, expected {expected.hex()}: it is damaged; copy the "
                        "file again"
                    )
            offset, number = end, number + 1


class ChemfilesFrames(ForeignReader):
    """The frames of a TNG file as chemfiles reads them: no forces."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import chemfiles

        self._errors = (chemfiles.ChemfilesError,)
        with self._library_errors("opened"):
            self.n_frames = int(self._file.nsteps)
        first = self.read(0)
        self.n_atoms = first.n_atoms
        self._set_properties(first)

    def _open(self) -> Any:
        import chemfiles

        return chemfiles.Trajectory(str(self.path), "r", "TNG")

    def read(self, frame: int) -> Snapshot:
        with self._library_errors(f"read at frame {frame}"):
            source = self._file.read_step(frame)
        box = np.array([*source.cell.lengths, *source.cell.angles], np.float32)
        return Snapshot(
            positions=np.array(source.positions, np.float32),
            velocities=(
                np.array(source.velocities, np.float32) if source.has_velocities() else None
            ),
            box=box if box[:3].any() else None,
            time=float(source["time"]) if "time" in source.list_properties() else None,
            step=int(source.step),
        )

    def _error_for(self, action: str, error: BaseException) -> BaseException:
        return SourceError(
            f"{self.path}: cannot be {action} by chemfiles ({error}); {conversion_hint(self.path)}"
        )

    def notes(self) -> Iterator[str]:
        yield CHEMFILES_NOTE


def tng_frames(path: Path, options: Mapping[str, Any]) -> ForeignReader:
    """Return the reader of a TNG file: pytng, or chemfiles if pytng fails; raises SourceError.

    Only pytng reads forces, but it reads only files with a box and positions in all frames.
    """
    check_tng_blocks(path)
    is_installed = {
        name: importlib.util.find_spec(name) is not None for name in ("pytng", "chemfiles")
    }
    if not any(is_installed.values()):
        raise SourceError(
            f"{path}: TNG files are read through the packages pytng or chemfiles, which are not "
            "installed; install one: pip install pytng"
        )
    problems = []
    if is_installed["pytng"]:
        try:
            return MDAnalysisFrames(path, "TNG", options)
        except SourceError as error:
            problems.append(f"pytng: {error.__cause__ or error}")
    if is_installed["chemfiles"]:
        try:
            return ChemfilesFrames(path)
        except SourceError as error:
            problems.append(f"chemfiles: {error.__cause__ or error}")
    else:
        problems.append(
            "chemfiles, which reads more of them, is not installed: pip install chemfiles"
        )
    raise SourceError(
        f"{path}: cannot be read as TNG ({'; '.join(problems)}); {conversion_hint(path)}"
    )


def conversion_hint(path: Path) -> str:
    """Return advice on a TNG file that no package reads."""
    return f"convert it to another format: gmx trjconv -f {path.name} -o {path.stem}.xtc"
