"""Frames in memory, as a layout."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo, absent_frames
from mdio.core.topology import Topology
from mdio.layouts.base import FormatFacts, Layout


class MemoryLayout(Layout):
    """One block of frames, and their topology."""

    name = "memory"
    facts = FormatFacts(options=frozenset({"block", "atoms"}))

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        block: FrameBlock,
        atoms: Topology | None = None,
        **options: Any,
    ) -> None:
        super().__init__(path, block=block, atoms=atoms, **options)
        self.block, self.atoms = block, atoms

    def _open(self) -> TrajectoryInfo:
        sparse = tuple(
            name
            for name, values in self.block.present().items()
            if name != "positions" and absent_frames(values).any()
        )
        return TrajectoryInfo.of_block(
            self.block, self.name, str(self.path), sparse=sparse, nbytes=self.block.nbytes
        )

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        frames = self.block.frames(slice(start, stop))
        block.assign(frames if atoms is None else frames.take(atoms))

    def topology(self) -> Topology | None:
        return self.atoms

    def file_layouts(self) -> Iterator[Layout]:
        """Yield itself, since it has no files."""
        yield self
