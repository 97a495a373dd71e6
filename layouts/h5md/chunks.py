"""One array of our own H5MD files: its chunks, found and decoded without HDF5."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.piece_sums import Sums, row_sums
from mdio.core.files.reading import OpenFile
from mdio.core.frames import AtomIndices
from mdio.layouts.chunked.in_file import ChunksInFile
from mdio.layouts.h5md.io import Column

if TYPE_CHECKING:
    from mdio.layouts.plan import ArrayPlan
    from mdio.layouts.writer import EncodedChunk

Unpack = Callable[[NDArray[np.uint8], NDArray[np.float32]], None]


class PlacedChunks(ChunksInFile):
    """One ``/particles/GROUP/ELEMENT/value``, (F, A, 3).

    `crcs`, (frame chunks, atom chunks): checksum of what each chunk holds. `unpack`: what fills an
    array with what is in a chunk, if that is not as it is in memory. `pieces`: checksums of parts
    of chunks, if there are any; see `mdio.layouts.h5md.io.PIECES`. The rest is that of
    `ChunksInFile`.
    """

    sums_of_decoded = True

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, int],
        file: OpenFile,
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        crcs: NDArray[np.uint32],
        *,
        unpack: Unpack | None,
        pieces: Column | None,
        verify: bool,
    ) -> None:
        facts = {"plain": unpack is None, "verify": verify, "in_pieces": pieces is not None}
        super().__init__(what, shape, chunk, file, offset, nbytes, **facts)
        self.crcs, self.pieces, self._unpack = crcs, pieces, unpack

    def _compare(self, i: int, j: int, file: OpenFile, crc: int, _: NDArray[np.uint8]) -> None:
        expected = int(self.crcs[i, j])
        if crc != expected:
            raise self.corrupt(
                i,
                j,
                file,
                f"crc32c {crc:08x} found, {expected:08x} expected; the file is damaged: "
                "convert the source again",
            )

    def _pieces(self, start: int, stop: int, j: int, first: int, n_pieces: int) -> Sums:
        assert self.pieces is not None
        table = self.pieces.read(self.file, start, stop)
        return table[:, j, first : first + n_pieces]

    def _decode(
        self,
        data: NDArray[np.uint8],
        out: NDArray[np.float32],
        atoms: AtomIndices | None,  # noqa: ARG002
        last: int,  # noqa: ARG002
    ) -> None:
        assert self._unpack is not None
        self._unpack(data, out)


Arrays = Mapping[tuple[str, str], PlacedChunks]
"""By group and field."""


def plans_of(arrays: Arrays, *, contiguous: bool) -> tuple[ArrayPlan, ...]:
    """Return how arrays are cut into chunks."""
    from mdio.layouts.plan import ArrayPlan  # reading frames needs none

    return tuple(
        ArrayPlan(*of, one.n_atoms, one.chunk_frames, one.chunk_atoms, contiguous)
        for of, one in arrays.items()
    )


def stored_chunks(arrays: Arrays, start: int, stop: int) -> Iterator[EncodedChunk]:
    """Yield the chunks of frames ``start:stop`` of all arrays, each checked.

    Raises CorruptLayoutError: one of them is not what was written.
    """
    from mdio.layouts.writer import EncodedChunk

    for (group, field), array in arrays.items():
        rows = range(start // array.chunk_frames, -(-stop // array.chunk_frames))
        for i, j in ((i, j) for i in rows for j in range(array.grid[1])):
            array.check(i, j)
            file, offset, nbytes = array.locate(i, j)
            data = file.array(offset, nbytes)
            crcs = [int(array.crcs[i, j])]
            if array.plain:
                crcs += row_sums(data.reshape(-1, array.row_nbytes)).tolist()
            yield EncodedChunk(f"{group}/{field}/{i}/{j}", data, crcs)
