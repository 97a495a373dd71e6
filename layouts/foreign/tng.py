"""TNG files: whether their blocks are whole, and what reads them.

The package that reads TNG follows damaged lengths out of memory, which ends the process. Each block
has a header (its length, that of the contents, the kind, an MD5 of the contents, a name), so that
damage can be told before the package sees it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.files.regular import open_regular
from mdio.core.frames import LostBytes
from mdio.layouts.foreign.snapshot import Frames, Snapshot
from mdio.layouts.foreign.whole_file import WholeFile

FIXED = 40
"""Bytes of a header before the name."""
MOST_HEADER = 4096
PIECE_NBYTES = 4 << 20
BY_CHEMFILES = "read by chemfiles, since pytng cannot: forces, if there are any, are left out"


def check_blocks(path: Path) -> None:
    """Compare all blocks with their checksums; raises SourceError: one is cut or damaged."""
    at, number, size = 0, 0, path.stat().st_size
    with open(open_regular(path), "rb") as file:
        order = ">" if file.read(8)[:4] == bytes(4) else "<"
        while at < size:
            file.seek(at)
            head = file.read(FIXED)
            length, nbytes = (
                struct.unpack(order + "qq", head[:16]) if len(head) == FIXED else (0, 0)
            )
            end = at + length + nbytes
            if not FIXED < length <= MOST_HEADER or nbytes < 0 or end > size:
                raise SourceError(
                    f"{path}: block {number} at byte {at} says it ends at byte {end}, the file has "
                    f"{size}: it is cut or damaged; copy it anew"
                )
            if any(expected := head[24:FIXED]):
                found, left = hashlib.md5(usedforsecurity=False), nbytes
                file.seek(at + length)
                while left and (piece := file.read(min(left, PIECE_NBYTES))):
                    found.update(piece)
                    left -= len(piece)
                if found.digest() != expected:
                    raise SourceError(
                        f"{path}: block {number} at byte {at} has the MD5 {found.hexdigest()}, "
                        f"expected {expected.hex()}: it is damaged; copy the file anew"
                    )
            at, number = end, number + 1


class TNGByChemfiles:
    """The frames of a TNG file as chemfiles reads them: no forces."""

    counts = "frames"
    names_lengths = True
    sparse: tuple[str, ...] = ()
    lost: tuple[LostBytes, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._translated("opened"):
            self._open()
        self.n_frames = int(self._trajectory.nsteps)
        first = self.read(0)
        self.n_atoms = first.n_atoms
        self.has_times = first.time is not None
        self.fields: tuple[str, ...] = ("velocities",) if first.velocities is not None else ()

    def _open(self) -> None:
        import chemfiles

        self._process = os.getpid()
        self._trajectory: Any = chemfiles.Trajectory(str(self.path), "r", "TNG")

    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        with self._translated(f"read at frame {frame}"):
            # A forked process has its parent's position in the file: it opens it for itself.
            if self._process != os.getpid():
                self._open()
            whole = self._trajectory.read_step(frame)
        box = np.array([*whole.cell.lengths, *whole.cell.angles], np.float32)
        return Snapshot(
            positions=np.array(whole.positions, np.float32),
            velocities=(np.array(whole.velocities, np.float32) if whole.has_velocities() else None),
            box=box if box[:3].any() else None,
            time=float(whole["time"]) if "time" in whole.list_properties() else None,
            step=int(whole.step),
        )

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        import chemfiles

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # chemfiles says as a warning, too, what it raises
            try:
                yield
            except chemfiles.ChemfilesError as error:
                raise SourceError(
                    f"{self.path}: cannot be {what} by chemfiles ({error}); {way_out(self.path)}"
                ) from error

    def remarks(self) -> Iterator[str]:
        """Yield what is not read."""
        yield BY_CHEMFILES

    def topology_file(self) -> Any:
        """Return the file itself."""
        return str(self.path)

    def close(self) -> None:
        """Close the file."""
        self._trajectory.close()


def tng_frames(path: Path, options: Mapping[str, Any]) -> Frames:
    """Return what reads a TNG file: pytng, or chemfiles where that cannot; raises SourceError.

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
    """Return what to do with a TNG file that no package reads."""
    return f"turn it into another format: gmx trjconv -f {path.name} -o {path.stem}.xtc"
