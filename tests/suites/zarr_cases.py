"""Zarr trees for tests: made-up frames, and a plain loop that drives the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from suites.layout_reading import Oracle

from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.base import LayoutWriter, OutputMeta, Receipt
from mdio.layouts.plan import WriteOptions
from mdio.layouts.zarr_tree import count_files
from mdio.layouts.zarr_writer import ZarrWriter

TRICLINIC = [80.1, 81.7, 82.3, 60.5, 75.25, 81]


def make_block(
    n_frames: int = 23,
    n_atoms: int = 17,
    *,
    box: Sequence[float] | None = (80.1, 81.7, 82.3, 90, 90, 90),
    velocities: bool = False,
    forces: bool = False,
) -> FrameBlock:
    """Return frames of atoms that wander about, the same every time."""
    rng = np.random.default_rng(n_frames * 1000 + n_atoms)
    block = FrameBlock.empty(n_frames, n_atoms, velocities=velocities, forces=forces)
    for array in block.present().values():
        array[...] = rng.normal(scale=30, size=array.shape[1:])
        array += np.cumsum(rng.normal(scale=0.4, size=array.shape), axis=0)
    if box is not None:
        block.box[:] = box
        block.box[:, 0] += rng.random(n_frames, np.float32)
    block.time[:] = 5 + 2.0 * np.arange(n_frames)
    block.step[:] = 500 + 1000 * np.arange(n_frames)
    return block


def oracle_of(block: FrameBlock, atoms: Any = None) -> Oracle:
    """Return what a reader of the tree should find."""
    block = block if atoms is None else block.take(np.asarray(atoms))
    return Oracle(
        positions=block.positions,
        box=block.box,
        time=block.time,
        step=block.step,
        velocities=block.velocities,
        forces=block.forces,
        dt_ps=float(block.time[1] - block.time[0]) if block.n_frames > 1 else 1.0,
    )


def info_of(block: FrameBlock, **changes: Any) -> TrajectoryInfo:
    """Return what a source that holds `block` says of itself."""
    return TrajectoryInfo(
        layout="test",
        path="test",
        n_frames=block.n_frames,
        n_atoms=block.n_atoms,
        dt_ps=oracle_of(block).dt_ps or 1.0,
        time_first_ps=float(block.time[0]),
        time_last_ps=float(block.time[-1]),
        has_velocities=block.velocities is not None,
        has_forces=block.forces is not None,
    ).replace(**changes)


def new_writer(
    path: Path,
    block: FrameBlock,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    piece_chunks: int | None = None,
    source: Mapping[str, Any] | None = None,
    **options: Any,
) -> ZarrWriter:
    """Return a writer for `block`, which has not created its tree yet.

    `piece_chunks`: chunks of the full system in a piece; else a small trajectory is one piece.
    """
    groups = {name: np.asarray(atoms, np.int64) for name, atoms in (groups or {}).items()}
    info = info_of(block, **(source or {}))
    sizes = {name: len(atoms) for name, atoms in groups.items()}
    plan = ZarrWriter.plan_for(info, WriteOptions(groups=sizes, **options))
    if piece_chunks is not None:
        frames = piece_chunks * plan.arrays[0].chunk_frames
        arrays = tuple(replace(a, chunk_frames=min(a.chunk_frames, frames)) for a in plan.arrays)
        plan = plan.replace(piece_frames=frames, arrays=arrays)
        plan = plan.replace(n_files=count_files(plan))
    meta = OutputMeta(
        uuid="00000000-0000-0000-0000-000000000000",
        created="2024-01-01T00:00:00+00:00",
        source={"path": "test"},
        dt_ps=info.dt_ps,
        frames=[[0, block.n_frames, 1]],
        groups=groups,
        source_precision=info.precision,
    )
    return ZarrWriter(path, plan, meta)


def store_piece(writer: LayoutWriter, block: FrameBlock, piece: tuple[int, int]) -> Receipt:
    """Do a worker's part of one piece."""
    start, stop = piece
    part = block.frames(slice(start, stop))
    items = writer.encode(start, part)
    for item in items:
        writer.store(item)
    return Receipt(
        start=start,
        stop=stop,
        crcs={item.key: item.crcs for item in items},
        nbytes=sum(item.nbytes for item in items),
        box=part.box.copy(),
        time=part.time.copy(),
        step=part.step.copy(),
    )


def write_tree(
    path: Path, block: FrameBlock, *, order: Sequence[int] | None = None, **options: Any
) -> ZarrWriter:
    """Write `block` as a tree, its pieces in the given order; return the writer."""
    writer = new_writer(path, block, **options)
    writer.create()
    pieces = writer.plan.pieces()
    for number in range(len(pieces)) if order is None else order:
        writer.commit(store_piece(writer, block, pieces[number]))
    writer.finish()
    return writer
