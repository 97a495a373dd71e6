"""What layouts of native files share: how they open, and how frames are found by an index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.index import FrameIndex, load_index
from mdio.core.frames import FrameBlock, Stretch, TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.frame_bytes import FrameBytes
from mdio.layouts.native.fixed_records import PositionalFile, open_positional
from mdio.layouts.native.in_parts import FrameMarks, extended, scan_fast
from mdio.layouts.native.salvage import scan_around_damage

NO_ATOMS = np.empty(0, np.int64)


class NativeLayout(Layout):
    """A file that is opened by position, and closed again if it cannot be understood."""

    reads_remote = True
    _file: PositionalFile

    @property
    def container(self) -> str:
        """Its own format."""
        return self.name

    def _open(self) -> TrajectoryInfo:
        self._file = open_positional(self.path, self.options)
        try:
            return self._open_frames()
        except BaseException:
            self._close()
            raise

    @abstractmethod
    def _open_frames(self) -> TrajectoryInfo:
        """Say what is in the opened file; raises SourceError."""

    def _close(self) -> None:
        self._file.close()


class IndexedLayout(NativeLayout):
    """A file whose frames are found through an index (`mdio.core.files.index`)."""

    check_frames: ClassVar[staticmethod[[NDArray[np.uint8], range, FrameBytes, int], None]]
    """Its `mdio.layouts.frame_bytes.FrameCheck`."""

    _index: FrameIndex
    _whole: list[int] | None
    """Frames that can be read, of a file with damage between them."""

    @property
    def index(self) -> FrameIndex:
        """Where the frames are; opens the file if need be."""
        _ = self.info
        return self._index

    def frame_bytes(self) -> FrameBytes | None:
        """Return where its frames lie; see `Layout.frame_bytes`."""
        edges = np.append(self.index.offsets, np.int64(self.index.nbytes))
        sums = self.options.get("sums")
        order = None if self.info.xtc_integers else ">"
        return FrameBytes(self.path, edges, sums=sums, check=self.check_frames, byte_order=order)

    @classmethod
    @abstractmethod
    def marks(cls, path: Path) -> FrameMarks:
        """Return how frames of a file are known, by its first."""

    def _find_frames(self, n_atoms: int, scan: Callable[[Path], FrameIndex]) -> None:
        """Find the frames: by checksums, around damage, or by the stored index."""
        sums, self._whole = self.options.get("sums"), None
        if self.options.get("salvage"):
            self._index, self._whole = scan_around_damage(self.path, self.marks(self.path))
        elif sums is None:
            self._index = load_index(
                self.path,
                lambda path: scan_fast(path, self.marks(path), scan),
                n_atoms,
                lambda path, former: extended(path, self.marks(path), former),
            )
        else:
            self._index = sums.index(n_atoms)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What lies between frames with headers; see `Layout.stretches`."""
        info = self.info
        if self._whole is None:
            return ()
        whole = np.array(self._whole)
        sizes, offsets = self._index.frame_nbytes, self._index.offsets
        usual = float(np.median(sizes[whole]))
        found = []
        for frame in np.setdiff1d(np.arange(info.n_frames), whole).tolist():
            at = int(np.searchsorted(whole, frame))
            around = [int(whole[n]) for n in (at - 1, at) if 0 <= n < len(whole)]
            times = [float(self.read(n, n + 1, atoms=[]).time[0]) for n in around]
            by_size = max(1, round(sizes[frame] / usual))
            by_time = round((times[-1] - times[0]) / info.dt_ps) - 1 if info.dt_ps > 0 else 0
            # Both are guesses; times may have a gap of their own there.
            about = by_time if abs(by_time - by_size) <= max(1, by_size // 4) else by_size
            bytes_ = int(offsets[frame]), int(sizes[frame])
            found.append(
                Stretch(str(self.path), frame, *bytes_, times[0], times[-1], max(1, about))
            )
        return tuple(found)

    def _describe(self, **more: Any) -> TrajectoryInfo:
        last = self._index.n_frames - 1
        second = min(1, last) if self._whole is None else next(filter(None, self._whole), last)
        edges = FrameBlock.empty(3, 0)
        for row, frame in enumerate((0, second, last)):
            self._read_into(frame, frame + 1, NO_ATOMS, edges.frames(slice(row, row + 1)))
        times = edges.time.tolist()
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=self._index.n_frames,
            n_atoms=self._index.n_atoms,
            dt_ps=(times[1] - times[0]) / second if second else 1.0,
            time_first_ps=times[0],
            time_last_ps=times[2],
            has_box=bool(edges.box[0].any()),
            nbytes=self._index.nbytes + self._index.lost_nbytes,
            lost=self._index.lost(self.path),
            **more,
        )
