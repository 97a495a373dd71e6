"""A layout for tests: an .npz file in memory, with chunks of any size."""

from pathlib import Path

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import FormatFacts, Layout

__all__ = ["MemoryLayout", "save_memory", "save_universe"]


class MemoryLayout(Layout):
    """Options: chunk_frames (None = single frames), fail_at (a frame that cannot be read)."""

    name = "memory"
    facts = FormatFacts(
        options=None,
    )

    @classmethod
    def sniff(cls, path: Path) -> bool:
        return False

    def _open(self):
        self.arrays = dict(np.load(self.path))
        self.reads = []
        n_frames, n_atoms = self.arrays["positions"].shape[:2]
        time = self.arrays["time"]
        return TrajectoryInfo(
            "memory",
            str(self.path),
            n_frames,
            n_atoms,
            float(time[1] - time[0]) if n_frames > 1 else 1.0,
            float(time[0]),
            float(time[-1]),
            has_velocities="velocities" in self.arrays and "velocities" in self.fields,
            has_box=bool(self.arrays["box"].any()),
            chunk_frames=self.options.get("chunk_frames"),
        )

    def _read_into(self, start, stop, atoms, block):
        self.reads.append((start, stop, None if atoms is None else len(atoms)))
        fail_at = self.options.get("fail_at")
        if fail_at is not None and start <= fail_at < stop:
            raise SourceError(f"{self.path}: frame {fail_at} is damaged")
        for name in ("box", "time", "step"):
            getattr(block, name)[...] = self.arrays[name][start:stop]
        for name, array in block.present().items():
            rows = self.arrays[name][start:stop]
            array[...] = rows if atoms is None else rows[:, atoms]


def save_memory(path, positions, box=None, time=None, velocities=None):
    n_frames = len(positions)
    arrays = {
        "positions": np.asarray(positions, np.float32),
        "box": np.zeros((n_frames, 6), np.float32) if box is None else np.float32(box),
        "time": np.arange(n_frames) * 2.5 if time is None else np.float64(time),
        "step": np.arange(n_frames) * 10,
    }
    if velocities is not None:
        arrays["velocities"] = np.asarray(velocities, np.float32)
    np.savez(path, **arrays)
    return path


def save_universe(path, universe, frames=slice(None), atoms=None):
    """Save what MDAnalysis reads."""
    positions, box, time = [], [], []
    for ts in universe.trajectory[frames]:
        positions.append(ts.positions.copy() if atoms is None else ts.positions[atoms])
        box.append(np.zeros(6) if ts.dimensions is None else ts.dimensions.copy())
        time.append(ts.time)
    return save_memory(path, positions, box, time)
