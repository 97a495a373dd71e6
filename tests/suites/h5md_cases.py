"""H5MD files for tests: made-up frames, and a plain loop that drives the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.frames import FrameBlock
from mdio.layouts.h5md.writer import H5MDWriter
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import OutputMeta
from mdio.testing.blocks import info_of, store_piece

BOXES = {
    "orthogonal": [80.1, 81.7, 82.3, 90, 90, 90],
    "triclinic": [80.1, 81.7, 82.3, 60.5, 75.25, 81],
}


def make_block(
    n_frames: int = 23,
    n_atoms: int = 17,
    *,
    box: str = "orthogonal",
    velocities: bool = False,
    forces: bool = False,
) -> FrameBlock:
    """Return frames of random coordinates, the same every time.

    `box` is orthogonal, triclinic, none, or some (only every third frame from the second on).
    """
    rng = np.random.default_rng(n_frames * 1000 + n_atoms)
    block = FrameBlock.empty(n_frames, n_atoms, velocities=velocities, forces=forces)
    for array in block.present().values():
        array[...] = rng.normal(scale=40, size=array.shape)
    if box != "none":
        block.box[:] = BOXES["triclinic" if box == "some" else box]
        block.box[:, 0] += rng.random(n_frames, np.float32)
    if box == "some":
        block.box[np.arange(n_frames) % 3 != 1] = 0
    block.time[:] = 5 + 2.0 * np.arange(n_frames)
    block.step[:] = 500 + 1000 * np.arange(n_frames)
    return block


def new_writer(
    path: Path,
    block: FrameBlock,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    atoms: Any = None,
    **options: Any,
) -> H5MDWriter:
    """Return a writer for `block`, which has not created its file yet."""
    groups = groups or {}
    sizes = {name: len(members) for name, members in groups.items()}
    plan = H5MDWriter.plan_for(info_of(block), WriteOptions(groups=sizes, **options))
    meta = OutputMeta(
        uuid="0f1e2d3c",
        created="2024-01-01T00:00:00+00:00",
        source={"path": "/data/run.xtc", "nbytes": 12345},
        dt_ps=2.0,
        frames=[[0, block.n_frames, 1]],
        atoms=atoms,
        groups={name: np.array(members) for name, members in groups.items()},
    )
    return H5MDWriter(path, plan, meta)


def write_h5md(path: Path, block: FrameBlock, *, seed: int = 0, **options: Any) -> LayoutPlan:
    """Write a whole file, its pieces in random order."""
    writer = new_writer(path, block, **options)
    try:
        writer.create()
        pieces = writer.plan.write_tasks()
        np.random.default_rng(seed).shuffle(pieces)
        for piece in pieces:
            writer.commit(store_piece(writer, block, piece))
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return writer.plan
