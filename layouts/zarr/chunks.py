"""A per-atom array of our own Zarr trees: its chunks, found in shards and decoded without zarr."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.blocks import Spans
from mdio.core.errors import CorruptLayoutError
from mdio.core.files.piece_sums import Sums, pieces_of_row
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote.paths import RemotePath
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.chunked.grid import AtomIndices
from mdio.layouts.codecs.quantised import decode_chunk
from mdio.layouts.zarr.checksums import Checksums
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import ArrayMetadata
from mdio.layouts.zarr.shard import CRC_NBYTES, MAX_AHEAD, ShardFiles

if TYPE_CHECKING:
    from mdio.layouts.output import EncodedChunk

FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class ShardedChunks(ChunkedArray):
    """A per-atom array in shards.

    `root`: of the tree. `name`: of the array in it. `what`: what messages call it. `metadata`: what
    its ``zarr.json`` says; shape (frames, atoms, 3), float32. `checksums`: what is read should have
    these. `verify`: whether it is compared with them.
    """

    behind_nbytes = CRC_NBYTES

    def __init__(
        self,
        root: Folder,
        name: str,
        what: str,
        metadata: ArrayMetadata,
        checksums: Checksums,
        *,
        verify: bool,
    ) -> None:
        super().__init__(
            what,
            metadata.shape,
            metadata.chunk_shape,
            plain=metadata.plain,
            verify=verify,
            in_pieces=checksums.has_pieces,
        )
        self._name = name
        self.metadata = metadata
        self.checksums = checksums
        self.frames_per_shard, self._n_columns, _ = metadata.chunks_per_file
        self.decodes_parts = metadata.quantised is not None
        self._chunk_nbytes = metadata.chunk_nbytes
        self._files = ShardFiles(root, name, metadata)

    def close(self) -> None:
        """Close files and forget what was decoded."""
        super().close()
        self._files.close()

    def locate(self, i: int, j: int) -> tuple[OpenFile, int, int]:
        """Return the shard of a chunk, and offset and size of the chunk in it."""
        number, row = divmod(i, self.frames_per_shard)
        try:
            shard = self._files[number]
            offset, nbytes = shard.span(row * self._n_columns + j)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(f"{error} ({self.name_of(i, j)})") from error
        if self.plain and nbytes != self._chunk_nbytes:
            raise self.corrupt(
                i, j, shard.file, f"a chunk of {nbytes} bytes, not {self._chunk_nbytes}"
            )
        return shard.file, offset, nbytes

    def look_ahead(self, runs: Spans, atoms: AtomIndices | None, share: int) -> None:
        """Ask for shards, whole where all of their chunks are wanted; see the base class."""
        if self.verifies and runs:
            covered = [self._covered(*run, self.chunk_frames) for run in runs]
            self.checksums.look_ahead(
                runs[0][0],
                runs[-1][1],
                whole=any(whole for _, whole in covered),
                parts=any(len(touched) > len(whole) for touched, whole in covered),
            )
        columns = self.columns(atoms) if runs else []
        every = len(columns) == self.grid[1] and all(column.span is None for column in columns)
        coming, wholly = dict[int, None](), set[int]()
        for run in runs:
            touched, whole = self._covered(*run, self.frames_per_shard * self.chunk_frames)
            coming |= dict.fromkeys(touched[:MAX_AHEAD])
            wholly.update(whole[:MAX_AHEAD] if every else ())
        self._files.look_ahead(list(coming), wholly, share)

    def _covered(self, start: int, stop: int, frames: int) -> tuple[range, range]:
        """Return which parts of so many frames a run of frames touches, and which it has whole."""
        touched = range(start // frames, -(-stop // frames))
        end = touched.stop if stop == self.n_frames else stop // frames
        return touched, range(-(-start // frames), end)

    def corrupt(self, i: int, j: int, file: OpenFile, problem: str) -> CorruptLayoutError:
        """Return an error that tells of the frames of a chunk."""
        return CorruptLayoutError(f"{file.path}: {problem} ({self.name_of(i, j)})")

    def _compare(self, i: int, j: int, file: OpenFile, crc: int, behind: Bytes) -> None:
        if crc != int.from_bytes(behind.tobytes(), "little"):
            raise self.corrupt(
                i,
                j,
                file,
                "the checksum of a chunk is wrong; the file is damaged, convert the source again",
            )
        if self.checksums.stored(i, j) not in (None, crc):
            raise self.corrupt(
                i,
                j,
                file,
                "not what was written there, though whole: a shard of another output, or another "
                "one of this, has its place; convert the source again",
            )

    def _pieces(self, start: int, stop: int, j: int, first: int, n_pieces: int) -> Sums:
        return self.checksums.pieces(start, stop, j, first, n_pieces)

    def _decode(self, data: Bytes, out: FloatArray, atoms: AtomIndices | None, last: int) -> None:
        if self.metadata.quantised is not None:
            decode_chunk(data.data, (self.chunk_frames, self.chunk_atoms), out, atoms, 0, last)
        elif self.metadata.compressor is not None:
            self.metadata.compressor.decode(data.data, out.reshape(-1).view(np.uint8))

    def check(self, i: int, j: int) -> FloatArray:
        """Return a whole chunk, compared with all its checksums; raises CorruptLayoutError."""
        chunk = super().check(i, j)
        file, *_ = self.locate(i, j)
        if kernels.crc32c(chunk) != self.checksums.decoded(i, j):
            raise self.corrupt(i, j, file, "not what was written there")
        if self.plain and self.checksums.has_pieces:
            n_rows = min(self.chunk_frames, self.n_frames - i * self.chunk_frames)
            self._check_rows(i, j, 0, file, chunk[:n_rows])
        return chunk

    def stored(self, start: int, stop: int) -> EncodedChunk:
        """Return the shard of frames ``start:stop``, in which all has been checked."""
        from mdio.layouts.output import EncodedChunk  # reading frames needs none

        rows = range(start // self.chunk_frames, -(-stop // self.chunk_frames))
        decoded: list[int] = []
        others: list[int | None] = []
        for i, j in product(rows, range(self.grid[1])):
            self.check(i, j)
            decoded.append(self.checksums.decoded(i, j))
            others.append(self.checksums.stored(i, j))
        path = self.locate(rows.start, 0)[0].path
        if self.plain:
            n_pieces = self.grid[1] * pieces_of_row(self.row_nbytes)
            others = [*self.checksums.pieces(start, stop, 0, 0, n_pieces).reshape(-1).tolist()]
        name = self.metadata.file_name(rows.start // self.frames_per_shard)
        crcs = cast(list[int], [*decoded, *others])
        remote = isinstance(path, RemotePath)  # it stays where it is
        data = np.empty(0, np.uint8) if remote else np.memmap(path, np.uint8, "r")
        return EncodedChunk(f"{self._name}/{name}", data, crcs, path)
