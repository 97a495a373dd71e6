"""H5MD files for tests: made-up frames, and a plain loop that drives the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from suites.layout_reading import Oracle

from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.base import OutputMeta, Receipt
from mdio.layouts.h5md_writer import H5MDWriter
from mdio.layouts.plan import LayoutPlan, WriteOptions

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


def oracle_of(block: FrameBlock, atoms: Any = None) -> Oracle:
    """Return what a reader of the file should find."""
    block = block if atoms is None else block.take(np.asarray(atoms))
    return Oracle(
        positions=block.positions,
        box=block.box,
        time=block.time,
        step=block.step,
        velocities=block.velocities,
        forces=block.forces,
        dt_ps=2.0,
    )


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
    info = TrajectoryInfo(
        layout="test",
        path="test",
        n_frames=block.n_frames,
        n_atoms=block.n_atoms,
        dt_ps=2.0,
        time_first_ps=float(block.time[0]),
        time_last_ps=float(block.time[-1]),
        has_velocities=block.velocities is not None,
        has_forces=block.forces is not None,
    )
    sizes = {name: len(members) for name, members in groups.items()}
    plan = H5MDWriter.plan_for(info, WriteOptions(groups=sizes, **options))
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


def store_piece(writer: H5MDWriter, block: FrameBlock, start: int, stop: int) -> Receipt:
    """Do what a worker does with one piece."""
    part = block.frames(slice(start, stop))
    items = writer.encode(start, part)
    for item in items:
        writer.store(item)
    crcs = {item.key: item.crcs for item in items}
    return Receipt(start, stop, crcs, 0, part.box, part.time, part.step)


def write_h5md(path: Path, block: FrameBlock, *, seed: int = 0, **options: Any) -> LayoutPlan:
    """Write a whole file, its pieces in random order."""
    writer = new_writer(path, block, **options)
    try:
        writer.create()
        pieces = writer.plan.pieces()
        np.random.default_rng(seed).shuffle(pieces)
        for start, stop in pieces:
            writer.commit(store_piece(writer, block, int(start), int(stop)))
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return writer.plan
