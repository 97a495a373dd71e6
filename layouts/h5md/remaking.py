"""H5MD files that an earlier run has left: all but the frames is made anew, the frames stay.

That run may have ended while HDF5 was writing, so that nothing but the chunks can be believed. What
HDF5 makes of a plan is always the same: the chunks have their places before the first is written.
But compressed chunks have none beforehand: of these the journal tells the places, and they are
copied into a new file. The file of run N is called ``NAME.N`` as soon as there is a run after it,
so that whatever ends that one too, the journal's places are right.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.copying import copy_bytes
from mdio.core.files.reading import OpenFile
from mdio.core.files.temporaries import TEMPORARY, temporary_for
from mdio.core.kernels import crc32c
from mdio.layouts.chunked.in_file import inflate
from mdio.layouts.h5md.encoding import coder_of, unpack
from mdio.layouts.h5md.file import Places, create_file, value_path
from mdio.layouts.h5md.io import checksum
from mdio.layouts.h5md.seal import gaps
from mdio.layouts.plan import ArrayPlan, LayoutPlan
from mdio.layouts.writer import EncodedChunk, PieceRecord


def _beside(path: Path, ending: str) -> Path:
    """Return a name for what goes where an unfinished file goes."""
    match = TEMPORARY.fullmatch(path.name)
    assert match is not None
    return temporary_for(path.with_name(f"{match[1]}.{ending}"), path)


def _chunk_nbytes(array: ArrayPlan, row: int, n_frames: int) -> int:
    """Return the bytes of a chunk, or of a run of frames of an array in one piece."""
    if not array.contiguous:
        return array.chunk_nbytes
    return 12 * array.n_atoms * min(array.chunk_frames, n_frames - row * array.chunk_frames)


def remake(path: Path, plan: LayoutPlan, atom_ids: Mapping[str, NDArray[np.int64]]) -> Places:
    """Make everything but the chunks of an unfinished file as it was when it was created.

    `path`: temporary path of the file. `plan`, `atom_ids`: as for `create_file`; nothing is
    compressed.
    """
    fresh = _beside(path, "new")
    fresh.unlink(missing_ok=True)
    try:
        places = create_file(fresh, plan.replace(direct=False), atom_ids)
        chunks = []
        for array in plan.arrays:
            offsets = places.chunks[array.group, array.field]
            sizes = [_chunk_nbytes(array, row, plan.n_frames) for row in range(len(offsets))]
            chunks.append((offsets, np.broadcast_to(np.array(sizes)[:, None], offsets.shape)))
        with fresh.open("rb", buffering=0) as source, path.open("r+b", buffering=0) as file:
            size = os.fstat(source.fileno()).st_size
            file.truncate(size)
            for begin, stop in gaps(chunks, size):
                copy_bytes(source.fileno(), begin, stop - begin, file.fileno(), begin)
    finally:
        fresh.unlink(missing_ok=True)
    return places


def holds_chunks(file: OpenFile, receipt: PieceRecord, plan: LayoutPlan, places: Places) -> bool:
    """Return whether the chunks of a piece are in the file, by their checksums."""
    for key, crcs in receipt.crcs.items():
        group, field, row, column = key.split("/")
        array = plan.array(group, field)
        offset = int(places.chunks[group, field][int(row), int(column)])
        nbytes = _chunk_nbytes(array, int(row), plan.n_frames)
        try:
            if checksum(file, offset, nbytes) != crcs[0]:
                return False
        except CorruptLayoutError:
            return False
    return True


def with_places(file: h5py.File, receipt: PieceRecord, plan: LayoutPlan, run: int) -> PieceRecord:
    """Return the receipt of compressed chunks with their places in the open file of a run."""
    places = []
    for key in receipt.crcs:
        group, field, row, column = key.split("/")
        array = plan.array(group, field)
        first = (int(row) * array.chunk_frames, int(column) * array.chunk_atoms, 0)
        info = file[value_path(group, field)].id.get_chunk_info_by_coord(first)
        places.append((info.byte_offset, info.size))
    extra = {"places": np.array(places, "<i8"), "run": np.array([run], "<i8")}
    return replace(receipt, extra=extra)


class FormerChunks:
    """Compressed chunks in the files of former runs.

    `path`: temporary path of the file, which gets the name that its run has. `receipts`: what
    former runs have stored, with the places of chunks. Attributes: `run` (int): number of this run.
    """

    def __init__(self, path: Path, receipts: Sequence[PieceRecord]) -> None:
        self._path = path
        last = max(int(receipt.extra["run"][0]) for receipt in receipts)
        self.run = last + 1
        if os.path.lexists(self._file(last)):
            path.unlink(missing_ok=True)  # it was begun, and nothing is told of it
        else:
            path.rename(self._file(last))

    def _file(self, run: int) -> Path:
        return _beside(self._path, str(run))

    def chunks(self, receipt: PieceRecord, plan: LayoutPlan) -> Iterator[EncodedChunk]:
        """Yield the chunks of a piece, each checked; raises CorruptLayoutError."""
        path = self._file(int(receipt.extra["run"][0]))
        with OpenFile(path, CorruptLayoutError) as file:
            found = zip(receipt.crcs.items(), receipt.extra["places"].tolist(), strict=True)
            for (key, crcs), (offset, nbytes) in found:
                data = file.array(offset, nbytes)
                array = plan.array(*key.split("/")[:2])
                room = np.empty((array.chunk_frames, array.chunk_atoms, 3), "<f4")
                coder = coder_of(plan, array.field)
                try:
                    (inflate if isinstance(coder, int) else unpack)(data, room)
                except ValueError as error:
                    raise CorruptLayoutError(f"{path}: chunk {key}: {error}") from error
                if crc32c(room) != crcs[0]:
                    raise CorruptLayoutError(f"{path}: chunk {key} is not as it was written")
                yield EncodedChunk(key, data, crcs)

    def holds(self, receipt: PieceRecord, plan: LayoutPlan) -> bool:
        """Return whether the chunks of a piece are there, by their checksums."""
        try:
            return all(True for _ in self.chunks(receipt, plan))
        except CorruptLayoutError:
            return False

    def remove(self) -> None:
        """Remove the files: all that is in them is in the new one."""
        for run in range(1, self.run):
            self._file(run).unlink(missing_ok=True)
