"""What the tests of segments share: frames, a way to write them, and a reader that is not mdio."""

import json
import pickle
import random
import shutil
import struct
import warnings
from itertools import pairwise
from pathlib import Path

import MDAnalysis as mda
import numpy as np
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from scipy.io import netcdf_file

from mdio.core.frames import FrameBlock
from mdio.layouts.plan import WriteOptions
from mdio.layouts.segments.writer import SegmentsWriter
from mdio.layouts.writer import OutputMeta
from mdio.testing.blocks import info_of, store_piece
from mdio.testing.reading import Oracle, oracle_from_mdanalysis

CONTAINERS = ("xtc", "trr", "dcd", "ncdf")
META = OutputMeta(
    uuid="0", created="2024-01-01", source={"path": "source"}, dt_ps=0.5, frames=[[0, 13, 1]]
)


def write_segments(
    path: Path,
    block: FrameBlock,
    piece_frames: int = 2,
    shuffle: bool = False,
    skip: int | None = None,
    **options: object,
) -> SegmentsWriter:
    """Write in pieces through pickled workers, as a conversion does."""
    plan = SegmentsWriter.plan_for(info_of(block), WriteOptions(**options))
    writer = SegmentsWriter(path, plan.replace(piece_frames=piece_frames), META)
    writer.create()
    worker = pickle.loads(pickle.dumps(writer))
    pieces = writer.plan.write_tasks()
    if shuffle:
        random.Random(0).shuffle(pieces)
    for piece in pieces:
        if piece[0] == skip:
            continue
        writer.commit(store_piece(worker, block, piece))
    writer.finish()
    return writer


def manifest_of_folder(path: Path) -> dict[str, object]:
    return json.loads((path / "manifest.json").read_text())


def segment_paths(path: Path) -> list[Path]:
    """All files that are neither hidden nor the manifest, by name."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.name[0] != "." and file.name != "manifest.json"
    )


def joined_oracle(path: Path) -> Oracle:
    """Read each segment alone with MDAnalysis, and put them together.

    Formats without steps count the frames of a file: here those of the whole.
    """
    parts = [oracle_from_mdanalysis(None, file) for file in segment_paths(path)]
    at = 0
    for part, file in zip(parts, segment_paths(path), strict=True):
        if file.suffix in (".dcd", ".ncdf"):
            part.step[:] += at
        at += part.n_frames
    names = ("positions", "box", "time", "step", "velocities", "forces")
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    arrays = {
        name: None if column[0] is None else np.concatenate(column)
        for name, column in columns.items()
    }
    return Oracle(**arrays)


def silent_universe(*args: str, **kwargs: object) -> mda.Universe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(*args, **kwargs)


def copy_of(path: str, folder: Path) -> Path:
    """Copy a file of the tests' data, so that no index is left beside it."""
    return Path(shutil.copy(path, folder / Path(path).name))


def raw_frames(path: Path) -> list[bytes]:
    """Find the bytes of each frame without mdio."""
    data = path.read_bytes()
    if path.suffix in (".xtc", ".trr"):
        with {".xtc": XTCFile, ".trr": TRRFile}[path.suffix](str(path)) as file:
            edges = [*file.offsets.tolist(), len(data)]
        return [data[a:b] for a, b in pairwise(edges)]
    if path.suffix == ".dcd":
        records, at = [], 0
        while at < len(data):
            nbytes = struct.unpack_from("<i", data, at)[0] + 8
            records.append(data[at : at + nbytes])
            at += nbytes
        has_cell = struct.unpack_from("<i", data, 4 + 44)[0]
        each, frames = 3 + has_cell, records[3:]
        return [b"".join(frames[i : i + each]) for i in range(0, len(frames), each)]
    with netcdf_file(path, mmap=False) as file:
        n_frames, nbytes = file.variables["time"].shape[0], file._recsize
    begin = len(data) - n_frames * nbytes
    return [data[begin + i * nbytes : begin + (i + 1) * nbytes] for i in range(n_frames)]
