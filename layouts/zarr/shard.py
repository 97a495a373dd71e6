"""Shard files: chunks one after the other, each with its crc32c, and an index at the end.

The index has offset and size (uint64) of every chunk, with a crc32c of its own; a chunk that is not
there has all bits set in both.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.handles import Handles
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote.objects import forget, look_ahead
from mdio.core.files.remote.paths import RemotePath
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import ArrayMetadata

Bytes = NDArray[np.uint8]

CRC_NBYTES = 4
MISSING = 2**64 - 1
AHEAD = 8
"""Shards of stores that are looked at ahead, where one after the other is read."""
WHOLE_NBYTES = 16 << 20
"""Shards up to this size that are read whole come with the request that opens them, ..."""
AHEAD_NBYTES = 192 << 20
"""... so many of them at a time as this holds, ..."""
MAX_AHEAD = 24
"""... but no more: they are kept open."""
MAX_OPEN = 31
"""Shard files of one array that are kept open beside the tree's folder."""


def packed_nbytes(sizes: Sequence[int], n_chunks: int) -> int:
    """Return the bytes of a shard with chunks of these sizes, and room for `n_chunks`."""
    return sum(sizes) + CRC_NBYTES * len(sizes) + 16 * n_chunks + CRC_NBYTES


def pack_shard(chunks: Sequence[Bytes], n_chunks: int, crcs: Sequence[int]) -> list[Bytes]:
    """Return the bytes of a shard, in parts that follow one another in the file.

    `chunks`: the bytes of the first chunks of the shard, encoded, in C order; they themselves are
    among the parts: nothing is copied. `n_chunks`: how many the shard has room for; those that are
    not given are missing. `crcs`: crc32c of each of `chunks`.
    """
    index = np.full((n_chunks, 2), MISSING, "<u8")
    parts = []
    at = 0
    for number, (chunk, crc) in enumerate(zip(chunks, crcs, strict=True)):
        index[number] = at, chunk.nbytes + CRC_NBYTES
        parts += [chunk, _crc_bytes(crc)]
        at += chunk.nbytes + CRC_NBYTES
    table = index.reshape(-1).view(np.uint8)
    return [*parts, table, _crc_bytes(kernels.crc32c(table))]


def _crc_bytes(crc: int) -> Bytes:
    return np.frombuffer(crc.to_bytes(CRC_NBYTES, "little"), np.uint8)


class Shard:
    """An opened shard file with its index, which has been checked."""

    def __init__(self, root: Folder, name: str, n_chunks: int) -> None:
        self.path = root.place(name)
        try:
            self.file = OpenFile(
                self.path, CorruptLayoutError, root.open(name), 16 * n_chunks + CRC_NBYTES
            )
        except FileNotFoundError as error:
            raise CorruptLayoutError(
                f"{self.path}: no such shard; it is missing from the tree, convert the source again"
            ) from error
        try:
            self.index = self._read_index(n_chunks)
        except BaseException:
            self.close()
            raise

    def _read_index(self, n_chunks: int) -> list[tuple[int, int]]:
        nbytes = self.file.nbytes
        index_nbytes = 16 * n_chunks
        begin = nbytes - index_nbytes - CRC_NBYTES
        if begin < 0:
            raise CorruptLayoutError(
                f"{self.path}: {nbytes} bytes, too few for an index of {n_chunks} chunks; it is "
                "truncated, convert the source again"
            )
        tail = self.file.peek(begin, index_nbytes + CRC_NBYTES)
        if kernels.crc32c(tail[:-CRC_NBYTES]) != int.from_bytes(tail[-CRC_NBYTES:], "little"):
            raise CorruptLayoutError(
                f"{self.path}: the checksum of its index is wrong; it is truncated or damaged, "
                "convert the source again"
            )
        index = np.frombuffer(tail, "<u8", 2 * n_chunks).reshape(n_chunks, 2)
        there = index[index[:, 0] != MISSING]
        if there.size and (
            int(there[:, 1].max()) > begin
            or int(there[:, 1].min()) < CRC_NBYTES
            or int(there[:, 0].max()) > begin
            or int(there.sum(axis=1).max()) > begin
        ):
            raise CorruptLayoutError(f"{self.path}: its index points outside of the file")
        return [(int(offset), int(size)) for offset, size in index]

    def span(self, chunk: int) -> tuple[int, int]:
        """Return offset and size of a chunk, its crc32c not counted."""
        offset, size = self.index[chunk]
        if offset == MISSING:
            raise CorruptLayoutError(
                f"{self.path}: chunk {chunk} is missing from it; convert the source again"
            )
        return offset, size - CRC_NBYTES

    def crc32c(self, chunk: int) -> int:
        """Return the checksum of a chunk as it lies on disk; raises CorruptLayoutError."""
        offset, nbytes = self.span(chunk)
        return kernels.crc32c(self.file.array(offset, nbytes))

    def close(self) -> None:
        """Let go of the file, which is closed once nobody reads it any more."""
        self.__dict__.pop("file", None)


class ShardFiles:
    """The shard files of one array, a few of them open at a time."""

    def __init__(self, root: Folder, name: str, metadata: ArrayMetadata) -> None:
        self._root = root
        self._name = name
        self.metadata = metadata
        self.n_chunks = int(np.prod(metadata.chunks_per_file))
        self._open = Handles(self._shard, MAX_OPEN)
        self._nbytes = packed_nbytes([metadata.chunk_nbytes] * self.n_chunks, self.n_chunks)
        """Of the shard that was opened last; at first, of one without compression."""
        self._newest = -2
        self._asked: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what was asked for here."""
        return {**self.__dict__, "_asked": set()}

    def _name_of(self, number: int) -> str:
        return f"{self._name}/{self.metadata.file_name(number)}"

    def _shard(self, number: int) -> Shard:
        following = number == self._newest + 1
        self._newest = number
        if following and not self._asked:
            n_files = -(-self.metadata.shape[0] // self.metadata.file_shape[0])
            self.look_ahead(range(number, min(number + AHEAD, n_files)), set())
        shard = Shard(self._root, self._name_of(number), self.n_chunks)
        self._nbytes = shard.file.nbytes
        self._asked.discard(number)
        return shard

    def look_ahead(self, coming: Sequence[int], whole: Set[int], share: int = 1) -> None:
        """Ask for the shards that are read next, and for no others any more.

        `coming`: these, in order. `whole`: of which all is read. `share`: how many arrays are read
        at the same time.
        """
        if not isinstance(self._root.path, RemotePath):  # whose answers take long
            return
        alone = len(coming) == 1  # and maybe one of several in a row, which are looked at then
        if alone and coming[0] in self._asked:
            return
        ahead = AHEAD
        if whole and self._nbytes <= WHOLE_NBYTES:
            ahead = min(max(2, AHEAD_NBYTES // (share * self._nbytes)), MAX_AHEAD)
        else:
            whole = set()
        near = {number for number in coming[:ahead] if number not in self._open}
        for number in self._asked - near:
            forget(self._root.place(self._name_of(number)))
        index_nbytes = 16 * self.n_chunks + CRC_NBYTES
        for last_nbytes, numbers in ((WHOLE_NBYTES, whole), (index_nbytes, near - whole)):
            new = sorted((near & numbers) - self._asked)
            look_ahead([self._root.place(self._name_of(n)) for n in new], last_nbytes)
        self._asked = set() if alone else near

    def __getitem__(self, number: int) -> Shard:
        """Return shard `number` along the frames; raises CorruptLayoutError."""
        try:
            return self._open[number]
        except SourceError:  # too many open files, some of which are ours
            if not self._open:
                raise
            self._open.close()
            return self._open[number]

    def close(self) -> None:
        """Close all files."""
        self._open.close()
        self._asked.clear()
