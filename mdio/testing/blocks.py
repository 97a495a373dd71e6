"""Helpers for tests of readers and writers: frames, their oracles, and storing a piece."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.writer import LayoutWriter, PieceRecord

__all__ = ["info_of", "oracle_of", "random_block", "store_piece"]


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


def info_of(block: FrameBlock, **changes: Any) -> TrajectoryInfo:
    """Return the info of a source with the frames of `block`."""
    return TrajectoryInfo.of_block(block, "generic", "source").replace(**changes)


def oracle_of(block: FrameBlock, atoms: Any = None) -> Oracle:
    """Return the frames that a reader of the output must return."""
    block = block if atoms is None else block.take(np.asarray(atoms))
    arrays = {item.name: getattr(block, item.name) for item in fields(block)}
    return Oracle(**arrays, dt_ps=info_of(block).dt_ps)


def store_piece(
    writer: LayoutWriter,
    block: FrameBlock,
    piece: tuple[int, int],
    storing_writer: LayoutWriter | None = None,
) -> PieceRecord:
    """Encode one piece as a worker does, and store it with `storing_writer`, or with `writer`."""
    start, stop = int(piece[0]), int(piece[1])
    part = block.frames(slice(start, stop))
    items = writer.encode(start, part)
    for item in items:
        (storing_writer or writer).store(item)
    return PieceRecord(
        start=start,
        stop=stop,
        crcs={item.key: item.crcs for item in items},
        nbytes=sum(item.nbytes for item in items),
        box=part.box.copy(),
        time=part.time.copy(),
        step=part.step.copy(),
    )


Floats = NDArray[np.float32]


@dataclass(slots=True)
class Oracle(FrameBlock):
    """All frames of a trajectory, as another program reads them."""

    dt_ps: float | None = None
    """Time between frames, ps, if known."""


def oracle_from_mdanalysis(top: Any, traj: Any, **kwargs: Any) -> Oracle:
    """Read all frames with MDAnalysis' reader; without a topology if `top` is None."""
    import MDAnalysis as mda
    from MDAnalysis.coordinates.core import get_reader_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if top is None:
            reader = get_reader_for(str(traj), format=kwargs.get("format"))(str(traj), **kwargs)
        else:
            reader = mda.Universe(str(top), str(traj), **kwargs).trajectory
        rows = [_row(ts) for ts in reader]
        dt_ps = float(reader.dt)
        reader.close()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    arrays: dict[str, Any] = {
        "positions": np.array(columns["positions"], np.float32),
        "box": np.array(columns["box"], np.float32),
        "time": np.array(columns["time"], np.float64),
        "step": np.array(columns["step"], np.int64),
    }
    missing = np.full(arrays["positions"].shape[1:], np.nan, np.float32)
    for name in ("velocities", "forces"):
        if any(array is not None for array in columns[name]):
            arrays[name] = np.array([missing if a is None else a for a in columns[name]])
    return Oracle(**arrays, dt_ps=dt_ps)


def _row(ts: Any) -> dict[str, Any]:
    return {
        "positions": ts.positions.copy(),
        "velocities": ts.velocities.copy() if ts.has_velocities else None,
        "forces": ts.forces.copy() if ts.has_forces else None,
        "box": np.zeros(6, np.float32) if ts.dimensions is None else ts.dimensions.copy(),
        "time": ts.time,
        "step": ts.data.get("step", ts.frame),
    }
