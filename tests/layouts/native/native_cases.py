"""What the tests of native writers share: frames, a way to write them, MDAnalysis alone."""

import pickle
import random
import warnings
from functools import cache
from pathlib import Path

import MDAnalysis as mda
from MDAnalysisTests.datafiles import DCD, GRO, NCDF, PSF, TRR, XTC, PRMncdf

from mdio.core.frames import FrameBlock
from mdio.layouts.native import writer as native_writer
from mdio.layouts.plan import WriteOptions
from mdio.layouts.registry import writer_class
from mdio.layouts.writer import OutputMeta
from mdio.testing.blocks import info_of, store_piece

META = OutputMeta(uuid="0", created="", source={}, dt_ps=1.0, frames=[])
SOURCES = {
    "adk": (PSF, DCD, 7),
    "triclinic": (GRO, XTC, 3),
    "trr": (GRO, TRR, 3),
    "amber": (PRMncdf, NCDF, 10),
}


@cache
def universe(source: str) -> mda.Universe:
    top, traj, _ = SOURCES[source]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(top, traj)


def block_of(u: mda.Universe, n_frames: int) -> FrameBlock:
    ts = u.trajectory.ts
    block = FrameBlock.empty(
        n_frames, u.atoms.n_atoms, velocities=ts.has_velocities, forces=ts.has_forces
    )
    for i, frame in enumerate(u.trajectory[:n_frames]):
        block.positions[i] = frame.positions
        block.box[i] = 0 if frame.dimensions is None else frame.dimensions
        block.time[i] = frame.time
        block.step[i] = frame.data.get("step", frame.frame)
        for name in ("velocities", "forces"):
            if getattr(block, name) is not None:
                getattr(block, name)[i] = getattr(frame, name)
    return block


def write(
    path: Path,
    container: str,
    block: FrameBlock,
    piece_frames: int = 2,
    order: str = "forward",
    **options: object,
) -> native_writer.FileWriter:
    """Write in pieces through pickled workers, as a conversion does."""
    cls = writer_class(container)
    plan = cls.plan_for(info_of(block), WriteOptions(**options)).replace(piece_frames=piece_frames)
    owner = cls(path, plan, META)
    owner.create()
    worker = pickle.loads(pickle.dumps(owner))
    try:
        write_pieces(owner, worker, block, order)
        owner.finish()
    finally:
        worker.abort()
        owner.abort()
    return owner


def write_pieces(
    owner: native_writer.FileWriter,
    worker: native_writer.FileWriter,
    block: FrameBlock,
    order: str,
) -> None:
    pieces = owner.plan.write_tasks()
    if order == "backward":
        pieces.reverse()
    elif order == "random":
        random.Random(1).shuffle(pieces)
    for piece in pieces:
        storing = worker if owner.facts.parallel_store else owner
        owner.commit(store_piece(worker, block, piece, storing))


def mdanalysis_file(path: Path, source: str, n_frames: int, **kwargs: object) -> Path:
    u = universe(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mda.Writer(str(path), u.atoms.n_atoms, **kwargs) as w:
            for _ in u.trajectory[:n_frames]:
                w.write(u.atoms)
    return path


def frames_of(path: Path, n_atoms: int) -> list[dict[str, object]]:
    """Read with MDAnalysis alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = mda.coordinates.core.get_reader_for(str(path))(str(path))
        assert reader.n_atoms == n_atoms
        rows = [
            {
                "time": ts.time,
                "step": ts.data.get("step"),
                "box": None if ts.dimensions is None else ts.dimensions.tolist(),
                "positions": ts.positions.tobytes(),
                "velocities": ts.velocities.tobytes() if ts.has_velocities else None,
                "forces": ts.forces.tobytes() if ts.has_forces else None,
            }
            for ts in reader
        ]
        reader.close()
    return rows
