"""The file of a unit: ranges of bytes of a source's files, with checksums of pieces.

``MDIOUNIT``, the bytes of the header (uint32), the crc32c of all that follows up to the data
(uint32), the header (JSON: ``name``; ``ranges``, a list of [file, offset, bytes], ``file`` relative
to the trajectory and empty for itself; ``nbytes``), the crc32c of each piece of 64 KiB of the data
(uint32), and the data, one range after the other. Little-endian.
"""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.cache.folder import TEMPORARY, is_private
from mdio.core.files.direct import write_whole
from mdio.core.files.in_flight import copy
from mdio.core.files.reading import reads
from mdio.core.files.regular import open_regular
from mdio.core.kernels import crc32c, crc32c_pieces

MAGIC = b"MDIOUNIT"
HEAD = struct.Struct("<8sII")
PIECE_NBYTES = 64 << 10

SourceRange = tuple[str, int, int]
"""File, relative to the trajectory; offset; bytes."""
Bytes = NDArray[np.uint8]


class DamagedUnitError(Exception):
    """The bytes of a unit are not those that were stored."""


def _edges(begin: int, end: int) -> NDArray[np.int64]:
    return np.append(np.arange(begin, end, PIECE_NBYTES), np.int64(end))


class HeldUnit:
    """A unit that is read from: its file, or its bytes in memory.

    `ranges`: where its bytes lie in the source. `data`: they themselves, where they have just been
    read.
    """

    def __init__(self, ranges: Sequence[SourceRange], data: Bytes | None = None) -> None:
        self._data = data
        self._fd = -1
        self._begin = 0
        self._sums: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._room = np.empty(0, np.uint8)
        self._files: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        placed, at = [], 0
        for file, offset, nbytes in ranges:
            placed.append((file, offset, offset + nbytes, at))
            at += nbytes
        self.nbytes = at
        for file, offset, end, begin in sorted(placed):
            starts, places = self._files.setdefault(file, ([], []))
            starts.append(offset)
            places.append((end, begin))

    @classmethod
    def of_file(cls, fd: int, name: str) -> HeldUnit:
        """Return the unit of an open file, which is closed with it.

        Raises DamagedUnitError: the file is not what was written under `name`. OSError: it cannot
        be read.
        """
        head = os.pread(fd, HEAD.size, 0)
        if len(head) < HEAD.size or not head.startswith(MAGIC):
            raise DamagedUnitError("no unit of a cache")
        _, header_nbytes, crc = HEAD.unpack(head)
        size = os.fstat(fd).st_size
        raw = os.pread(fd, min(header_nbytes, size), HEAD.size)
        try:
            header: dict[str, Any] = json.loads(raw)
            nbytes = int(header["nbytes"])
            n_pieces = -(-nbytes // PIECE_NBYTES)
            sums = os.pread(fd, min(4 * n_pieces, size), HEAD.size + header_nbytes)
            begin = HEAD.size + header_nbytes + 4 * n_pieces
            if crc32c(sums, crc32c(raw)) != crc or header["name"] != name:
                raise DamagedUnitError("its header has changed")
            if size != begin + nbytes:
                raise DamagedUnitError("it has been cut")
            found = cls([(str(f), int(o), int(n)) for f, o, n in header["ranges"]])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedUnitError("its header cannot be read") from error
        found._fd, found._begin, found._sums = fd, begin, np.frombuffer(sums, "<u4")
        return found

    def read_into(self, file: str, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with bytes of a file; 0 if they are not of this unit.

        Raises DamagedUnitError: they are not what was stored. OSError: they cannot be read.
        """
        known = self._files.get(file)
        number = -1 if known is None else bisect_right(known[0], offset) - 1
        if known is None or number < 0 or offset >= known[1][number][0]:
            return 0
        end, at = known[1][number]
        begin = at + offset - known[0][number]
        wanted: int = min(sum(buffer.nbytes for buffer in buffers), end - offset)
        if self._data is not None:
            copy(self._data[begin : begin + wanted], buffers, 0)
            return wanted
        reads.nbytes_cache += wanted
        first = begin // PIECE_NBYTES * PIECE_NBYTES
        last = min(-(-(begin + wanted) // PIECE_NBYTES) * PIECE_NBYTES, self.nbytes)
        copy(self._checked(first, last)[begin - first : begin - first + wanted], buffers, 0)
        return wanted

    def _checked(self, first: int, last: int) -> Bytes:
        """Return bytes between edges of pieces, compared with their checksums."""
        if self._room.size < last - first:
            self._room = np.empty(last - first, np.uint8)
        room = self._room[: last - first]
        done = 0
        while done < len(room):
            n_read = os.preadv(self._fd, [room.data[done:]], self._begin + first + done)
            if not n_read:
                raise DamagedUnitError("it has been cut")
            done += n_read
        sums = self._sums[first // PIECE_NBYTES : -(-last // PIECE_NBYTES)]
        if crc32c_pieces(room, _edges(first, last)).tobytes() != sums.tobytes():
            raise DamagedUnitError("its bytes have changed")
        return room

    def check(self) -> None:
        """Read and compare all of it; raises as `read_into`."""
        for first in range(0, self.nbytes, 64 * PIECE_NBYTES):
            self._checked(first, min(first + 64 * PIECE_NBYTES, self.nbytes))

    def touch(self) -> None:
        """Note that it is used."""
        os.utime(self._fd)

    def close(self) -> None:
        """Let go of its file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def write_unit(path: Path, ranges: Sequence[SourceRange], data: Bytes) -> None:
    """Write a unit; it is there whole or not at all. Raises OSError."""
    header = {"name": path.stem, "ranges": ranges, "nbytes": data.nbytes}
    raw = json.dumps(header).encode()
    sums = crc32c_pieces(data, _edges(0, data.nbytes)).astype("<u4").tobytes()
    head = HEAD.pack(MAGIC, len(raw), crc32c(sums, crc32c(raw)))
    write_whole(path, head, raw, sums, data, prefix=TEMPORARY, mode=0o600)


def open_unit(path: Path) -> HeldUnit | None:
    """Open the unit of a file; None if there is none, it cannot be opened, or others wrote it.

    Raises DamagedUnitError: it is not what was written.
    """
    try:
        fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    if not is_private(os.fstat(fd)):
        os.close(fd)
        return None
    try:
        return HeldUnit.of_file(fd, path.stem)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise DamagedUnitError(f"it cannot be read ({error.strerror})") from error
        raise
