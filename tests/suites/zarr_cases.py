"""Zarr trees for tests: made-up frames, and a plain loop that drives the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.frames import FrameBlock
from mdio.layouts.plan import WriteOptions
from mdio.layouts.writer import OutputMeta
from mdio.layouts.zarr.tree import count_files
from mdio.layouts.zarr.writer import ZarrWriter
from mdio.testing.blocks import info_of, store_piece

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
    )
    return ZarrWriter(path, plan, meta)


def write_tree(
    path: Path, block: FrameBlock, *, order: Sequence[int] | None = None, **options: Any
) -> ZarrWriter:
    """Write `block` as a tree, its pieces in the given order; return the writer."""
    writer = new_writer(path, block, **options)
    writer.create()
    pieces = writer.plan.write_tasks()
    for number in range(len(pieces)) if order is None else order:
        writer.commit(store_piece(writer, block, pieces[number]))
    writer.finish()
    return writer
