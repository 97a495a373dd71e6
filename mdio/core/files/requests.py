"""The requests that are made ahead: their bounds, and what one tells of the storage."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.reading import OpenFile

Bytes = NDArray[np.uint8]

STORE_FACTOR, STORE_ROOM_FACTOR = 8, 4
"""Requests to stores are larger by the first, what is under way from them by the second."""
GAP_NBYTES = 64 << 10
"""Ranges that lie no farther apart are asked for together."""
END_NBYTES = 512
"""Behind the last range of an object there is no more than this, as a shard's index."""
FIRST_REQUESTS = 8
GROWTH = 1.1
"""More requests stay if bytes come faster by this factor."""
CACHED_NBYTES_PER_S = 1.0e9
"""What comes faster came out of memory (or of a disk that one reader at a time gets enough of)."""
CACHED_REQUESTS = 3
"""So many requests in a row out of memory, and asking ahead ends."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of an open file."""

    file: OpenFile
    offset: int
    nbytes: int


class Pace:
    """How many requests are kept under way, by how fast bytes come, and whether they are at all.

    `most`: requests at the most. `request_nbytes`: of the largest.
    """

    def __init__(self, most: int, request_nbytes: int) -> None:
        self._most, self._request_nbytes = most, request_nbytes
        self.n_wanted = FIRST_REQUESTS
        self.n_cached = 0
        """So many came out of memory, one after the other."""
        self._grows, self._waited = True, False
        self._best_nbytes_per_s = 0.0
        self._window_nbytes, self._window_began = 0, 0.0

    @property
    def pays(self) -> bool:
        """Whether bytes come slowly enough for asking ahead, as far as is known."""
        return self.n_cached < CACHED_REQUESTS

    def begin(self) -> None:
        """Begin to look at how fast bytes come."""
        self._window_began = time.perf_counter()

    def note(self, nbytes: int, seconds: float | None, *, waited: bool) -> None:
        """Ask for more at a time, or for nothing any more, by what a request took.

        `seconds`: None where that tells nothing. `waited`: whether its reader had to wait for it.
        """
        self._waited = self._waited or waited
        if seconds is None:
            return
        cached = nbytes > CACHED_NBYTES_PER_S * seconds
        self.n_cached = self.n_cached + 1 if cached else 0
        self._window_nbytes += nbytes
        if self._window_nbytes < self.n_wanted * self._request_nbytes:
            return
        now = time.perf_counter()
        rate = self._window_nbytes / (now - self._window_began)
        if self._waited and self._grows:
            if rate > GROWTH * self._best_nbytes_per_s:
                self.n_wanted = min(2 * self.n_wanted, self._most)
            else:
                self._grows = False
        self._best_nbytes_per_s = max(rate, self._best_nbytes_per_s)
        self._window_nbytes, self._window_began, self._waited = 0, now, False


def requests_for(
    ranges: Iterable[ByteRange], request_nbytes: int
) -> Iterator[tuple[OpenFile, int, int]]:
    """Yield (file, offset, nbytes) of requests: ranges joined where they meet, cut where long.

    Looks no farther than the range that completes a request. Those to stores are larger by
    `STORE_FACTOR`: each costs them, and us, as much as a few hundred KiB.
    """
    file: OpenFile | None = None
    least_nbytes = request_nbytes
    at = stop = 0
    for one in ranges:
        if one.file is file and at <= one.offset <= stop + GAP_NBYTES:
            stop = max(stop, one.offset + one.nbytes)
        else:
            if file is not None and at < stop:
                yield file, at, stop - at
            file, at, stop = one.file, one.offset, one.offset + one.nbytes
            request_nbytes = least_nbytes * (1 if file.remote is None else STORE_FACTOR)
        while (end := (at // request_nbytes + 1) * request_nbytes) <= stop:
            yield one.file, at, end - at
            at = end
        if one.file.remote and at < stop and stop + END_NBYTES >= one.file.nbytes:
            yield one.file, at, stop - at  # before one waits for the next object to be opened
            at = stop
    if file is not None and at < stop:
        yield file, at, stop - at


def is_local(fd: int, offset: int) -> bool:
    """Return whether a file lies on a disk of this machine."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:  # it would have to be read from the disk
        return True
    except (AttributeError, OSError):  # there are no such reads here
        return False
    return True


def n_waits() -> float:
    """Return how often this thread has waited for anything; what grows always, where unknown."""
    if hasattr(resource, "RUSAGE_THREAD"):
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return time.perf_counter()


def read(fd: int, buffer: Bytes, offset: int) -> float:
    """Fill `buffer` and return the seconds that took; raises OSError, also at the end."""
    begun = time.perf_counter()
    view = buffer.data
    done = 0
    while done < len(view):
        n_read = os.preadv(fd, [view[done:]], offset + done)
        if n_read == 0:
            raise OSError(f"it ends at byte {offset + done}")
        done += n_read
    return time.perf_counter() - begun


def copy(source: Bytes, targets: Sequence[Any], skip: int) -> None:
    """Copy `source` into what lies behind the first `skip` bytes of `targets`."""
    data, at = source.data, 0
    for target in targets:
        if skip >= target.nbytes:
            skip -= target.nbytes
            continue
        n_bytes = min(target.nbytes - skip, len(data) - at)
        memoryview(target).cast("B")[skip : skip + n_bytes] = data[at : at + n_bytes]
        at += n_bytes
        skip = 0
        if at == len(data):
            return
