"""XTC files of GROMACS, read without MDAnalysis.

Frames are found through a stored index (`mdio.core.files.index`) and decoded in runs. What comes
back is what MDAnalysis' XTCReader gives, times included, which the file has in single precision.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from mdio.core.boxes import boxes_from_vectors
from mdio.core.files.fingerprint import head_of
from mdio.core.files.index import FrameIndex, load_index
from mdio.core.files.requests import ByteRange
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.units import NM_TO_ANGSTROM
from mdio.core.xtc.codec import XTCFrames, read_header, scan
from mdio.core.xtc.header import HEADER_NBYTES, MAGICS, parse_header
from mdio.layouts.base import AtomIndices, Layout
from mdio.layouts.frame_bytes import FrameBytes
from mdio.layouts.native.salvage import scan_around_damage
from mdio.layouts.native.xtc.bytes import check_frames

__all__ = ["XTCLayout"]

NO_ATOMS = np.empty(0, np.int64)


def _scan_around(path: Path, n_atoms: int) -> tuple[FrameIndex, list[int]]:
    """Find the frames of a damaged file; see `mdio.layouts.native.salvage.scan_around_damage`."""

    def size_of(raw: bytes) -> int | None:
        try:
            return parse_header(raw, 0, 0, n_atoms).nbytes
        except ValueError:
            return None

    begins = [struct.pack(">ii", magic, n_atoms) for magic in MAGICS]
    return scan_around_damage(path, n_atoms, begins, size_of, HEADER_NBYTES)


class XTCLayout(Layout):
    """An XTC file.

    Parameters
    ----------
    path
        The file.
    n_threads : int, optional
        Threads that decode the frames of one `read`; 1 by default, since those who read in
        parallel have a process for every core. Without the native module there is only one.
    salvage : bool, optional
        Look for frames behind damage too; what lies between is listed as a frame that does not
        read.
    """

    name = "xtc"
    suffixes: ClassVar[tuple[str, ...]] = (".xtc",)
    rounds = ("positions",)
    known_options = frozenset({"n_threads", "salvage", "sums"})

    _frames: XTCFrames
    _index: FrameIndex

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins with a magic number of XTC."""
        return int.from_bytes(head_of(path)[:4], "big") in MAGICS

    @property
    def index(self) -> FrameIndex:
        """Where the frames are; opens the file if need be."""
        _ = self.info
        return self._index

    def _open(self) -> TrajectoryInfo:
        first = read_header(self.path)
        sums = self.options.get("sums")
        self._second = 1
        if self.options.get("salvage"):
            self._index, whole = _scan_around(self.path, first.n_atoms)
            self._second = next((frame for frame in whole if frame), 1)
        elif sums is None:
            self._index = load_index(self.path, scan, first.n_atoms)
        else:
            self._index = sums.index(first.n_atoms)
        self._frames = XTCFrames(self.path, self._index, sums)
        try:
            return self._describe()
        except BaseException:
            self._frames.close()
            raise

    @property
    def decodes(self) -> bool:
        """XTC is nothing but decoding."""
        return True

    @property
    def container(self) -> str:
        """Its own format."""
        return self.name

    def frame_bytes(self) -> FrameBytes | None:
        """Return where its frames lie; see `Layout.frame_bytes`."""
        index = self.index
        edges = np.append(index.offsets, np.int64(index.nbytes))
        sums = self.options.get("sums")
        return FrameBytes(self.path, edges, sums=sums, check=check_frames)

    def _close(self) -> None:
        self._frames.close()

    def _describe(self) -> TrajectoryInfo:
        last = self._index.n_frames - 1
        if self._index.frame_nbytes[last] != self._frames.header(last).nbytes:
            # MDAnalysis stores offsets of files that end within a frame: see for ourselves.
            self._frames.close()
            self._index = scan(self.path)
            self._frames = XTCFrames(self.path, self._index)
            last = self._index.n_frames - 1
        edges = FrameBlock.empty(3, 0)
        for row, frame in enumerate((0, min(self._second, last), last)):
            self._read_into(frame, frame + 1, NO_ATOMS, edges.frames(slice(row, row + 1)))
        times = edges.time.tolist()
        precision = self._frames.header(0).precision
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=self._index.n_frames,
            n_atoms=self._index.n_atoms,
            dt_ps=(times[1] - times[0]) / self._second if last else 1.0,
            time_first_ps=times[0],
            time_last_ps=times[2],
            has_box=bool(edges.box[0].any()),
            compression=None if precision is None else "xtc",
            precision=None if precision is None else NM_TO_ANGSTROM / precision,
            xtc_integers=precision is not None,
            nbytes=self._index.nbytes + self._index.lost_nbytes,
            lost=self._index.lost(self.path),
        )

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield where the frames lie: selected atoms are decoded from whole frames."""
        if atoms is None or atoms.size:
            yield self._frames.byte_range(start, stop)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        vectors_nm = np.empty((stop - start, 3, 3), np.float32)
        self._frames.read(
            start,
            stop,
            block.positions,
            vectors_nm,
            block.time,
            block.step,
            atoms,
            n_threads=self.options.get("n_threads", 1),
        )
        block.box[...] = boxes_from_vectors(vectors_nm, scale=NM_TO_ANGSTROM)
