"""Several concurrent requests for bytes that will be read soon.

A program that waits for each request before the next uses one server of striped storage at a time,
and computes while the network is idle. `InFlight` is given the ranges of files that will be read
next, requests several of them in threads, and returns their bytes when they are read.

The number of requests adapts: it doubles as long as the reader has to wait and the rate grows. On
local disks, recognised by a read that must not wait, the system's own read-ahead is enough. Where
bytes come from the page cache, the first requests return at once, and prefetching stops.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import FrameRuns
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote import objects
from mdio.core.files.remote.objects import RemoteObject, copy_into
from mdio.core.frames import AtomIndices, uninitialised_array

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


Bytes = NDArray[np.uint8]

REQUEST_NBYTES = 1 << 20
"""Requests begin and end at multiples of this size, a common size of stripes."""
MAX_NBYTES = 48 << 20
"""Bytes that are in flight or not yet read, at a time."""
MAX_FILES = 14
"""Files with requests in flight. Readers usually keep the 31 files open that were used last, and
each is used twice: for the request and for the read."""
OPEN_ENDED_NBYTES = 16 << 20
"""Limit instead of `MAX_NBYTES` if reading may end at any time, to which bytes that were read are
added: more would delay the first reads on a slow network."""
MAX_STORE_THREADS = 32
"""Concurrent requests to stores. More are queued, in the order of reading."""


def _future() -> Future[float]:
    from concurrent.futures import Future  # imports logging, which only prefetching needs

    return Future()


@dataclass(slots=True)
class _Request:
    """A range of a file that is being read into memory."""

    file: OpenFile
    offset: int
    nbytes: int
    buffer: Bytes
    future: Future[float] = field(default_factory=_future)
    """Seconds that the request took."""
    was_used: bool = False
    """Whether the reader has had some of its bytes."""
    came_with_opening: bool = False
    """Whether the bytes came with the request that opened the object."""


_instances: WeakSet[InFlight] = WeakSet()


class InFlight:
    """Ranges of files that are being read into memory, for one reader.

    `max_nbytes`: memory for bytes that are in flight or not yet read. `request_nbytes`:
    largest request. For stores, whose answers take long, both are larger
    (`STORE_MEMORY_FACTOR`, `STORE_REQUEST_FACTOR`).
    """

    def __init__(self, max_nbytes: int = MAX_NBYTES, request_nbytes: int = REQUEST_NBYTES) -> None:
        self._request_nbytes = request_nbytes
        self._max_requests = max(1, max_nbytes // request_nbytes)
        self._max_nbytes = self._max_requests * request_nbytes
        self._pool: ThreadPoolExecutor | None = None
        self._next_ranges: Iterator[tuple[OpenFile, int, int]] = iter(())
        self._requests: deque[_Request] = deque()
        self._free_buffers: list[Bytes] = []
        self._files: dict[OpenFile, int] = {}
        """Files with requests, and their duplicated descriptors; -1 for objects."""
        self.limit = RequestLimit(self._max_requests, request_nbytes)
        """Limit of the requests in flight."""
        self._is_local = False
        self._open_ended_nbytes: int | None = None
        self._lock = RLock()
        """Held while requests are made, awaited or dropped: another thread may fork meanwhile."""
        _instances.add(self)

    @property
    def is_worthwhile(self) -> bool:
        """Whether bytes come so slowly that prefetching pays, as far as is known."""
        return not self._is_local and self.limit.n_cached < MAX_CACHED_REQUESTS

    def prefetch(self, ranges: Iterable[ByteRange], *, open_ended: bool = False) -> None:
        """Request ranges that will be read next, in this order, in place of earlier ones.

        `ranges`: consumed as memory becomes free, so it may be a long generator. Their files may be
        closed meanwhile. `open_ended`: whether reading may end at any time.
        """
        with self._lock:
            self.cancel()
            self._open_ended_nbytes = OPEN_ENDED_NBYTES if open_ended else None
            if not self._is_local:
                self.limit.n_cached = 0
                self._next_ranges = requests_for(ranges, self._request_nbytes)
                self._start_requests()

    def read_into(self, file: OpenFile, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with requested bytes, waiting for them; return how many.

        0 if nothing was requested there, or the request failed: the caller then reads by itself,
        and gets the error.
        """
        n_done = 0
        nbytes = sum(buffer.nbytes for buffer in buffers)
        with self._lock:
            while n_done < nbytes:
                request = self._find_request(file, offset + n_done)
                if request is None:
                    break
                n_read = self._finish_request(request)
                begin = offset + n_done - request.offset
                n_copied = min(n_read - begin, nbytes - n_done)
                if n_copied > 0:
                    copy_into(request.buffer[begin : begin + n_copied], buffers, n_done)
                    n_done += n_copied
                if n_copied <= 0 or begin + n_copied >= request.nbytes:
                    self._drop_request(request)
                if n_copied <= 0:
                    break
        return n_done

    def cancel(self) -> None:
        """Drop all requests, waiting for those that are running."""
        self._next_ranges = iter(())
        while self._requests:
            self._drop_request(self._requests[0])
        for file in list(self._files):
            self._release_file(file)

    def stop(self) -> None:
        """Drop all requests, and end the threads."""
        with self._lock:
            self.cancel()
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown()
            self._free_buffers.clear()

    def _start_requests(self) -> None:
        """Start requests up to the number that `limit` allows."""
        while self.is_worthwhile and self._has_room():
            next_range = self._next_range()
            if next_range is None:
                return
            file, offset, nbytes = next_range
            if file.remote is not None:
                self._request_object(file, file.remote, offset, nbytes)
                continue
            buffer = self._free_buffers.pop() if self._free_buffers else np.empty(0, np.uint8)
            if buffer.size < nbytes:
                buffer = uninitialised_array((max(nbytes, self._request_nbytes),), np.uint8)
            request = _Request(file, offset, nbytes, buffer)
            self._requests.append(request)
            if self._pool is not None:
                request.future = self._pool.submit(read, self._files[file], buffer[:nbytes], offset)
            elif self._read_in_this_thread(request):
                self.limit.n_cached = 0
                self._start_threads()
            else:
                self.limit.n_cached += 1

    def _request_object(
        self, file: OpenFile, remote: RemoteObject, offset: int, nbytes: int
    ) -> None:
        """Request bytes of an object: as answers take long, many at once from the beginning."""
        request = _Request(file, offset, nbytes, np.empty(0, np.uint8))
        self._requests.append(request)
        buffered_bytes = remote.buffered_bytes(offset, nbytes)
        if buffered_bytes is not None:
            request.buffer = np.frombuffer(buffered_bytes, np.uint8)
            request.came_with_opening = True
            request.future.set_result(0.0)
            return
        self.limit.n_requests = self._max_requests
        self._max_nbytes = self._max_requests * self._request_nbytes * STORE_MEMORY_FACTOR
        if self._pool is None:
            self._start_threads(min(self._max_requests, MAX_STORE_THREADS))
        assert self._pool is not None

        def get() -> float:
            request.buffer = np.frombuffer(remote.get(offset, nbytes), np.uint8)
            if request.buffer.nbytes < nbytes:
                raise OSError(f"it ends at byte {offset + request.buffer.nbytes}")
            return 0.0

        request.future = self._pool.submit(get)

    def _start_threads(self, n_threads: int | None = None) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(n_threads or self._max_requests, "mdio in-flight")
        self.limit.begin()

    def _has_room(self) -> bool:
        """Return whether another request may be started."""
        if len(self._files) >= MAX_FILES:
            return False
        unused = [request for request in self._requests if not request.was_used]
        if unused and unused[-1].came_with_opening:  # more such bytes may be read first
            return False
        max_requests = self.limit.n_requests if self._pool else 1
        nbytes = sum(request.nbytes for request in unused)
        max_nbytes = (
            self._max_nbytes if self._open_ended_nbytes is None else self._open_ended_nbytes
        )
        return len(unused) < max_requests and nbytes < min(max_nbytes, self._max_nbytes)

    def _next_range(self) -> tuple[OpenFile, int, int] | None:
        """Return the next range to request; None if there is none, or no file to prefetch."""
        try:
            next_range = next(self._next_ranges, None)
            if next_range is not None and next_range[0] not in self._files:
                file, offset, _ = next_range
                if file.prefetcher is not None:  # another reader prefetches it
                    return None
                self._is_local = file.remote is None and is_local(file.fileno(), offset)
                if self._is_local:
                    return None
                # Its reader may close it meanwhile.
                self._files[file] = -1 if file.remote else os.dup(file.fileno())
                file.prefetcher = self
        except OSError:  # reading will raise it, too
            return None
        return next_range

    def _read_in_this_thread(self, request: _Request) -> bool:
        """Read in this thread, and return whether it had to wait for the bytes."""
        n_waits_before = n_waits()
        try:
            descriptor = self._files[request.file]
            seconds = read(descriptor, request.buffer[: request.nbytes], request.offset)
            request.future.set_result(seconds)
        except OSError as error:
            request.future.set_exception(error)
        return n_waits() != n_waits_before

    def _find_request(self, file: OpenFile, offset: int) -> _Request | None:
        """Return the request with this byte, and drop those before it."""
        for request in self._requests:
            if request.file is file and 0 <= offset - request.offset < request.nbytes:
                while self._requests[0] is not request:
                    self._drop_request(self._requests[0])
                return request
        return None

    def _finish_request(self, request: _Request) -> int:
        """Wait for a request and return its number of bytes; 0 if it failed."""
        had_to_wait = not request.future.done()
        try:
            seconds = request.future.result()
        except OSError:
            return 0
        if not request.was_used:
            request.was_used = True
            if self._open_ended_nbytes is not None:
                self._open_ended_nbytes += request.nbytes
            is_measured = self._pool is not None and request.file.remote is None
            self.limit.adapt(request.nbytes, seconds if is_measured else None, waited=had_to_wait)
            self._start_requests()  # now, since its last bytes may never be read
        return request.nbytes

    def _drop_request(self, request: _Request) -> None:
        self._requests.remove(request)
        if not request.future.cancel():
            request.future.exception()  # wait: it still writes into its buffer
        if request.file.remote is None:
            self._free_buffers.append(request.buffer)
        if not any(pending.file is request.file for pending in self._requests):
            self._release_file(request.file)  # keep few files open

    def _release_file(self, file: OpenFile) -> None:
        """Close the descriptor of a file without requests, which others may prefetch then."""
        file.prefetcher = None
        descriptor = self._files.pop(file)
        if descriptor >= 0:
            with suppress(OSError):  # a lost mount
                os.close(descriptor)


@contextmanager
def in_flight(ranges: Iterable[ByteRange]) -> Iterator[None]:
    """Prefetch ranges of files, which the block reads in this order."""
    requests = InFlight()
    requests.prefetch(ranges)
    try:
        yield
    finally:
        requests.stop()


OPEN_ENDED_RUNS, MAX_RUNS = 8, 1000
"""Runs to prefetch if reading may end at any time, to which those that were read are added; and the
limit in any case."""
MAX_SEPARATE_RUNS = 24
"""The limit for runs with gaps between them."""
UNITS_PER_OPENING = 8
"""Units of a layout (chunks, segments) whose objects are opened ahead at a time."""


class Opening(NamedTuple):
    """An object to open before its byte ranges are known, such as a shard, for its index."""

    path: Path
    last_nbytes: int
    """Bytes at its end to fetch with the request that opens it; 0 = fetch its beginning."""
    expected_nbytes: int = 0
    """Bytes that come with it, if they are many."""


def prefetch_openings(openings: Iterable[Opening]) -> None:
    """Prefetch the ends of objects."""
    by_nbytes: dict[tuple[int, int], list[Path]] = {}
    for path, last_nbytes, expected_nbytes in openings:
        by_nbytes.setdefault((last_nbytes, expected_nbytes), []).append(path)
    for (last_nbytes, expected_nbytes), paths in by_nbytes.items():
        objects.prefetch(paths, last_nbytes, expected_nbytes)


class Prefetchable(Protocol):
    """A layout, or anything else that knows the byte ranges of its frames."""

    def boundaries(self) -> NDArray[np.int64]:
        """Return the first frames of its units, and their end; see `mdio.layouts.base.Layout`."""

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield the byte ranges that a read needs, in its order."""

    def _openings(self, runs: FrameRuns, atoms: AtomIndices | None) -> Iterator[Opening]:
        """Yield the objects to open before the byte ranges of these runs are known."""


class Prefetch:
    """Prefetches the byte ranges of the next reads of one layout.

    `layout`: open. `opens_ahead`: whether to open objects ahead, too, as in a store.
    """

    def __init__(self, layout: Prefetchable, *, opens_ahead: bool) -> None:
        self._layout, self._opens_ahead = layout, opens_ahead
        self._in_flight = InFlight()
        self._requested: set[Path] = set()
        """Objects that were requested and are not open yet."""
        self._edges = layout.boundaries() if opens_ahead else np.zeros(1, np.int64)
        self._next_frame = -1
        """One beyond the last frame that was read alone."""

    def begin(
        self, runs: Iterable[tuple[int, int]], atoms: AtomIndices | None, *, open_ended: bool
    ) -> None:
        """Prefetch these runs of frames, in place of earlier ones."""
        runs = (run for run in runs if run[0] < run[1])
        if self._opens_ahead:
            runs = self._with_openings(self._cut_runs(runs), atoms, open_ended=open_ended)
        ranges = (
            byte_range for run in runs for byte_range in self._layout.byte_ranges(*run, atoms)
        )
        self._in_flight.prefetch(ranges, open_ended=open_ended and self._opens_ahead)

    def prefetch_frame(self, frame: int, atoms: AtomIndices | None) -> None:
        """Open the objects of one frame ahead, and the next ones if frames are read in order."""
        runs = [(frame, frame + 1)]
        if frame == self._next_frame:
            next_unit = int(self._edges.searchsorted(frame, side="right"))
            edges = self._edges[next_unit : next_unit + UNITS_PER_OPENING].tolist()
            runs += [(edge, edge + 1) for edge in edges if edge < self._edges[-1]]
        self._next_frame = frame + 1
        self.open_ahead(runs, atoms)
        chunks = list(self._layout.byte_ranges(frame, frame + 1, atoms))
        gaps = [b.offset - a.offset - a.nbytes for a, b in pairwise(chunks) if a.file is b.file]
        # Several chunks, of a large frame or several fields; not if the gaps would be read, too.
        if len(chunks) > 1 and not any(0 < gap <= MAX_GAP_NBYTES for gap in gaps):
            self._in_flight.prefetch(chunks)

    def open_ahead(self, runs: FrameRuns, atoms: AtomIndices | None) -> None:
        """Open the objects of some runs, which ascend, ahead, and forget those of others."""
        openings = {opening.path: opening for opening in self._layout._openings(runs, atoms)}
        objects.forget_prefetched(self._requested - openings.keys())
        prefetch_openings(
            opening for opening in openings.values() if opening.path not in self._requested
        )
        self._requested = {*openings}

    def stop(self) -> None:
        """Drop all requests, and end the threads."""
        self._in_flight.stop()
        if self._opens_ahead:
            self.open_ahead((), None)

    def _cut_runs(self, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Cut runs into shorter ones, of a few units of the layout each."""
        edges = self._edges
        for start, stop in runs:
            while start < stop:
                last_unit = int(edges.searchsorted(start, side="right")) - 1 + UNITS_PER_OPENING
                end = min(stop, int(edges[min(last_unit, len(edges) - 1)]))
                yield start, end
                start = end

    def _with_openings(
        self, runs: Iterable[tuple[int, int]], atoms: AtomIndices | None, *, open_ended: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield `runs`, each when the openings of the next ones have been requested."""
        iterator = iter(runs)
        next_run, queue = next(iterator, None), deque[tuple[int, int]]()
        joined = deque[tuple[int, int]]()
        """The runs in `queue`, joined where they are adjacent."""
        max_runs, growth = (OPEN_ENDED_RUNS, 1) if open_ended else (MAX_RUNS, 0)
        while queue or next_run is not None:
            while (
                next_run is not None and len(queue) < max_runs and len(joined) < MAX_SEPARATE_RUNS
            ):
                is_adjacent = bool(joined) and joined[-1][1] == next_run[0]
                begin = joined.pop()[0] if is_adjacent else next_run[0]
                joined.append((begin, next_run[1]))
                queue.append(next_run)
                next_run = next(iterator, None)
            self.open_ahead(tuple(joined), atoms)
            yield queue[0]
            _, run_stop = queue.popleft()
            _, end = joined.popleft()
            if run_stop < end:
                joined.appendleft((run_stop, end))
            max_runs = min(max_runs + growth, MAX_RUNS)


def _stop_all() -> None:
    for instance in list(_instances):
        # Another thread that uses it may wait for a lock that forking holds.
        if instance._lock.acquire(blocking=False):
            try:
                instance.stop()
            finally:
                instance._lock.release()


def _forget_all() -> None:
    for instance in list(_instances):
        instance._lock, instance._pool = RLock(), None
        instance._requests.clear()
        instance.cancel()


# A child has copies of the requests, but not the threads that would complete them.
os.register_at_fork(before=_stop_all, after_in_child=_forget_all)


STORE_REQUEST_FACTOR, STORE_MEMORY_FACTOR = 8, 4
"""For stores: factors of the request size, and of the bytes in flight."""
MAX_GAP_NBYTES = 64 << 10
"""Ranges with at most this gap between them are coalesced."""
MAX_END_NBYTES = 512
"""Maximum number of bytes after the last range of an object, such as a shard's index."""
FIRST_REQUESTS = 8
MIN_RATE_GROWTH = 1.1
"""The number of requests is doubled again if the rate grew by this factor."""
CACHED_NBYTES_PER_S = 1.0e9
"""A faster request came from memory (or from a disk that needs no concurrent requests)."""
MAX_CACHED_REQUESTS = 3
"""Prefetching stops after this many requests in a row that came from memory."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of an open file."""

    file: OpenFile
    offset: int
    nbytes: int


class RequestLimit:
    """Adapts the number of requests in flight to the rate of the storage.

    `max_requests`: the largest number of requests. `request_nbytes`: size of the largest.
    """

    def __init__(self, max_requests: int, request_nbytes: int) -> None:
        self._max_requests, self._request_nbytes = max_requests, request_nbytes
        self.n_requests = FIRST_REQUESTS
        self.n_cached = 0
        """Requests in a row that came from memory."""
        self._may_double, self._waited = True, False
        self._best_nbytes_per_s = 0.0
        self._window_nbytes, self._window_began_s = 0, 0.0

    def begin(self) -> None:
        """Start measuring the rate."""
        self._window_began_s = time.perf_counter()

    def adapt(self, nbytes: int, seconds: float | None, *, waited: bool) -> None:
        """Adapt the number of requests, after one of `nbytes` has ended.

        `seconds`: None = not measured. `waited`: whether the reader had to wait for it.
        """
        self._waited = self._waited or waited
        if seconds is None:
            return
        is_cached = nbytes > CACHED_NBYTES_PER_S * seconds
        self.n_cached = self.n_cached + 1 if is_cached else 0
        self._window_nbytes += nbytes
        if self._window_nbytes < self.n_requests * self._request_nbytes:
            return
        now_s = time.perf_counter()
        rate = self._window_nbytes / (now_s - self._window_began_s)
        if self._waited and self._may_double:
            if rate > MIN_RATE_GROWTH * self._best_nbytes_per_s:
                self.n_requests = min(2 * self.n_requests, self._max_requests)
            else:
                self._may_double = False
        self._best_nbytes_per_s = max(rate, self._best_nbytes_per_s)
        self._window_nbytes, self._window_began_s, self._waited = 0, now_s, False


def requests_for(
    ranges: Iterable[ByteRange], request_nbytes: int
) -> Iterator[tuple[OpenFile, int, int]]:
    """Yield (file, offset, nbytes) of requests: ranges coalesced where near, and cut where long.

    Consumes no range beyond the one that completes a request.
    """
    file: OpenFile | None = None
    max_nbytes = request_nbytes
    offset = stop = 0
    for byte_range in ranges:
        if byte_range.file is file and offset <= byte_range.offset <= stop + MAX_GAP_NBYTES:
            stop = max(stop, byte_range.offset + byte_range.nbytes)
        else:
            if file is not None and offset < stop:
                yield file, offset, stop - offset
            file, offset = byte_range.file, byte_range.offset
            stop = offset + byte_range.nbytes
            max_nbytes = request_nbytes * (1 if file.remote is None else STORE_REQUEST_FACTOR)
        while (end := (offset // max_nbytes + 1) * max_nbytes) <= stop:
            yield byte_range.file, offset, end - offset
            offset = end
        is_at_end = stop + MAX_END_NBYTES >= byte_range.file.nbytes
        if byte_range.file.remote and offset < stop and is_at_end:
            # Before the next range, for which another object may have to be opened.
            yield byte_range.file, offset, stop - offset
            offset = stop
    if file is not None and offset < stop:
        yield file, offset, stop - offset


def is_local(fd: int, offset: int) -> bool:
    """Return whether a file lies on a disk of this machine."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:  # not in the page cache
        return True
    except (AttributeError, OSError):  # unsupported here
        return False
    return True


def n_waits() -> float:
    """Return how often this thread has waited; where unknown, a number that always grows."""
    if hasattr(resource, "RUSAGE_THREAD"):
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return time.perf_counter()


def read(fd: int, buffer: Bytes, offset: int) -> float:
    """Fill `buffer` and return the seconds it took; raises OSError, also at the end of the file."""
    began_s = time.perf_counter()
    view = buffer.data
    n_done = 0
    while n_done < len(view):
        n_read = os.preadv(fd, [view[n_done:]], offset + n_done)
        if n_read == 0:
            raise OSError(f"it ends at byte {offset + n_done}")
        n_done += n_read
    return time.perf_counter() - began_s
