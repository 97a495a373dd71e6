"""What the tests of all writers share: frames, what is known of them, a worker's part."""

from __future__ import annotations

from typing import Any

import numpy as np

from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.writer import LayoutWriter, PieceRecord
from mdio.testing.oracles import Oracle

__all__ = ["dt_of", "info_of", "oracle_of", "random_block", "store_piece"]


def random_block(n_frames: int = 13, n_atoms: int = 23, **fields: bool) -> FrameBlock:
    """Return frames of random coordinates every 0.5 ps in a triclinic cell."""
    rng = np.random.default_rng(n_frames)
    block = FrameBlock.empty(n_frames, n_atoms, **fields)
    for array in block.present().values():
        array[:] = rng.normal(scale=20, size=array.shape)
    block.box[:] = [40, 50, 60, 70, 80, 100]
    block.time[:] = np.arange(n_frames) * 0.5 + 10
    block.step[:] = np.arange(n_frames) * 250 + 5000
    return block


def dt_of(block: FrameBlock) -> float:
    """Return the time between the first two frames."""
    return float(block.time[1] - block.time[0]) if block.n_frames > 1 else 1.0


def info_of(block: FrameBlock, **changes: Any) -> TrajectoryInfo:
    """Return what a source that holds `block` says of itself."""
    return TrajectoryInfo(
        layout="generic",
        path="source",
        n_frames=block.n_frames,
        n_atoms=block.n_atoms,
        dt_ps=dt_of(block),
        time_first_ps=float(block.time[0]),
        time_last_ps=float(block.time[-1]),
        has_velocities=block.velocities is not None,
        has_forces=block.forces is not None,
        has_box=bool(block.box[0].any()),
    ).replace(**changes)


def oracle_of(block: FrameBlock, atoms: Any = None) -> Oracle:
    """Return what a reader of the output should find."""
    block = block if atoms is None else block.take(np.asarray(atoms))
    return Oracle(
        positions=block.positions,
        box=block.box,
        time=block.time,
        step=block.step,
        velocities=block.velocities,
        forces=block.forces,
        dt_ps=dt_of(block),
    )


def store_piece(
    writer: LayoutWriter,
    block: FrameBlock,
    piece: tuple[int, int],
    owner: LayoutWriter | None = None,
) -> PieceRecord:
    """Do a worker's part of one piece; the owner, where there is another one, stores it."""
    start, stop = int(piece[0]), int(piece[1])
    part = block.frames(slice(start, stop))
    items = writer.encode(start, part)
    for item in items:
        (owner or writer).store(item)
    return PieceRecord(
        start=start,
        stop=stop,
        crcs={item.key: item.crcs for item in items},
        nbytes=sum(item.nbytes for item in items),
        box=part.box.copy(),
        time=part.time.copy(),
        step=part.step.copy(),
    )
