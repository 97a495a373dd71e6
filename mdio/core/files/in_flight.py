"""Several requests under way at the same time, for bytes that will be read soon.

A program that waits for each request before it makes the next gets what one server of striped
storage gives, and computes while the wires are idle. `InFlight` is told which ranges of which files
come next, asks for several of them in threads, and hands their bytes over when they are read.

How many it asks for is found out: the number doubles as long as the reader has to wait for bytes
and these come faster for it. Disks of the machine itself, known by their answer to a read that must
not wait, are left to the system's own reading ahead. Where bytes come from the page cache all the
same, the first requests notice it, for which nobody had to wait, and reading goes on without.

The requests that are made ahead: their bounds, and what one tells of the storage.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import Spans
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote import objects
from mdio.core.files.remote.objects import RemoteObject
from mdio.core.frames import AtomIndices

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


Bytes = NDArray[np.uint8]

REQUEST_NBYTES = 1 << 20
"""Requests begin and end at multiples of this: as large as the stripes that are usual."""
MAX_NBYTES = 48 << 20
"""Bytes that are asked for, or wait to be read, at a time."""
MAX_FILES = 14
"""Files of which something is asked for. Who reads them keeps those open that were used last, 31 as
a rule: each is used once as it is asked for, and again as it is read."""
GUESSED_NBYTES = 16 << 20
"""Bytes that are asked for at a time while nobody knows how much will be read, and as many
as have been: on a slow wire all else would hold up what is read first."""
STORE_THREADS = 32
"""Requests to stores at once. More wait in line, so that what is read first comes first."""


def _future() -> Future[float]:
    from concurrent.futures import Future  # brings logging, for those who ask ahead alone

    return Future()


@dataclass(slots=True)
class _Request:
    file: OpenFile
    offset: int
    nbytes: int
    buffer: Bytes
    future: Future[float] = field(default_factory=_future)
    """Gives the seconds that it took."""
    taken: bool = False
    """Whether any of its bytes have been read."""
    held: bool = False
    """Whether they came as the object was opened."""


_all: WeakSet[InFlight] = WeakSet()


class InFlight:
    """Ranges of files on their way into memory; for one reader.

    `max_nbytes`: memory for bytes that have been asked for and not yet read. `request_nbytes`:
    largest request. Stores, whose answers take long, get more of both (`STORE_FACTOR`,
    `STORE_ROOM_FACTOR`).
    """

    def __init__(self, max_nbytes: int = MAX_NBYTES, request_nbytes: int = REQUEST_NBYTES) -> None:
        self._request_nbytes = request_nbytes
        self._max_requests = max(1, max_nbytes // request_nbytes)
        self._max_nbytes = self._max_requests * request_nbytes
        self._pool: ThreadPoolExecutor | None = None
        self._coming: Iterator[tuple[OpenFile, int, int]] = iter(())
        self._requests: deque[_Request] = deque()
        self._free: list[Bytes] = []
        self._files: dict[OpenFile, int] = {}
        """Descriptors of our own; -1 for objects."""
        self.pace = Pace(self._max_requests, request_nbytes)
        """How many are kept under way."""
        self._local = False
        self._guessed_nbytes: int | None = None
        _all.add(self)

    @property
    def pays(self) -> bool:
        """Whether bytes come slowly enough for asking ahead, as far as is known."""
        return not self._local and self.pace.pays

    def prefetch(self, ranges: Iterable[ByteRange], *, guessed: bool = False) -> None:
        """Ask for what will be read next, in this order, and for nothing else any more.

        `ranges`: looked at as far as there is room for requests, and later on while bytes are read:
        it may be long, and make its ranges as it goes. Their files may be closed meanwhile.
        `guessed`: whether reading may end at any time.
        """
        self.forget()
        self._guessed_nbytes = GUESSED_NBYTES if guessed else None
        if not self._local:
            self.pace.n_cached = 0
            self._coming = requests_for(ranges, self._request_nbytes)
            self._ask()

    def read_into(self, file: OpenFile, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with bytes that have come, or will.

        `file`: from which they are read. `buffers`: one after the other; C-contiguous. `offset`:
        where in the file their bytes begin.
        Returns int: bytes filled: 0 if nothing there was asked for, or could not be read; then the
        caller reads for himself, and sees what is wrong.
        """
        done = 0
        wanted = sum(buffer.nbytes for buffer in buffers)
        while done < wanted:
            request = self._find(file, offset + done)
            if request is None:
                break
            n_read = self._finish(request)
            begin = offset + done - request.offset
            n_taken = min(n_read - begin, wanted - done)
            if n_taken > 0:
                copy(request.buffer[begin : begin + n_taken], buffers, done)
                done += n_taken
            if n_taken <= 0 or begin + n_taken >= request.nbytes:
                self._drop(request)
            if n_taken <= 0:
                break
        return done

    def forget(self) -> None:
        """Expect nothing any more; what is under way is waited for."""
        self._coming = iter(())
        while self._requests:
            self._drop(self._requests[0])
        for file in list(self._files):
            self._leave(file)

    def stop(self) -> None:
        """Expect nothing any more, and end the threads."""
        self.forget()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._free.clear()

    def _ask(self) -> None:
        """Keep as many requests under way as are wanted."""
        while self.pays and self._has_room():
            found = self._next()
            if found is None:
                return
            file, offset, nbytes = found
            if file.remote is not None:
                self._ask_store(file, file.remote, offset, nbytes)
                continue
            buffer = self._free.pop() if self._free else np.empty(0, np.uint8)
            if buffer.size < nbytes:
                buffer = np.empty(max(nbytes, self._request_nbytes), np.uint8)
            request = _Request(file, offset, nbytes, buffer)
            self._requests.append(request)
            if self._pool is not None:
                request.future = self._pool.submit(read, self._files[file], buffer[:nbytes], offset)
            elif self._had_to_wait(request):
                self.pace.n_cached = 0
                self._start()
            else:
                self.pace.n_cached += 1

    def _ask_store(self, file: OpenFile, remote: RemoteObject, offset: int, nbytes: int) -> None:
        """Ask for bytes of an object, whose answers take long: for many at once from the first."""
        request = _Request(file, offset, nbytes, np.empty(0, np.uint8))
        self._requests.append(request)
        here = remote.held(offset, nbytes)
        if here is not None:
            request.buffer, request.held = np.frombuffer(here, np.uint8), True
            request.future.set_result(0.0)
            return
        self.pace.n_wanted = self._max_requests
        self._max_nbytes = self._max_requests * self._request_nbytes * STORE_ROOM_FACTOR
        if self._pool is None:
            self._start(min(self._max_requests, STORE_THREADS))
        assert self._pool is not None

        def get() -> float:
            request.buffer = np.frombuffer(remote.get(offset, nbytes), np.uint8)
            if request.buffer.nbytes < nbytes:
                raise OSError(f"it ends at byte {offset + request.buffer.nbytes}")
            return 0.0

        request.future = self._pool.submit(get)

    def _start(self, most: int | None = None) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(most or self._max_requests, "mdio in-flight")
        self.pace.begin()

    def _has_room(self) -> bool:
        """Return whether more may be under way than is."""
        if len(self._files) >= MAX_FILES:
            return False
        untaken = [request for request in self._requests if not request.taken]
        if untaken and untaken[-1].held:  # others are on their way without being asked for here
            return False
        n_most = self.pace.n_wanted if self._pool else 1
        nbytes = sum(request.nbytes for request in untaken)
        most = self._max_nbytes if self._guessed_nbytes is None else self._guessed_nbytes
        return len(untaken) < n_most and nbytes < min(most, self._max_nbytes)

    def _next(self) -> tuple[OpenFile, int, int] | None:
        """Return what to ask for next; None if there is nothing, or it cannot be had."""
        try:
            found = next(self._coming, None)
            if found is not None and found[0] not in self._files:
                file, offset, _ = found
                if file.ahead is not None:  # somebody else asks for its bytes
                    return None
                self._local = file.remote is None and is_local(file.fileno(), offset)
                if self._local:
                    return None
                # Whoever opened it may close it.
                self._files[file] = -1 if file.remote else os.dup(file.fileno())
                file.ahead = self
        except OSError:  # who reads there will meet it, too
            return None
        return found

    def _had_to_wait(self, request: _Request) -> bool:
        """Read without a thread, and return whether bytes came from elsewhere than memory."""
        before = n_waits()
        try:
            own = self._files[request.file]
            seconds = read(own, request.buffer[: request.nbytes], request.offset)
            request.future.set_result(seconds)
        except OSError as error:
            request.future.set_exception(error)
        return n_waits() != before

    def _find(self, file: OpenFile, offset: int) -> _Request | None:
        """Return the request with this byte, and drop those that were to be read before it."""
        for request in self._requests:
            if request.file is file and 0 <= offset - request.offset < request.nbytes:
                while self._requests[0] is not request:
                    self._drop(self._requests[0])
                return request
        return None

    def _finish(self, request: _Request) -> int:
        """Wait for a request and return how many bytes it has read; 0 if it failed."""
        waits = not request.future.done()
        try:
            seconds = request.future.result()
        except OSError:
            return 0
        if not request.taken:
            request.taken = True
            if self._guessed_nbytes is not None:
                self._guessed_nbytes += request.nbytes
            learns = self._pool is not None and request.file.remote is None
            self.pace.note(request.nbytes, seconds if learns else None, waited=waits)
            self._ask()  # its reader may never want its last bytes
        return request.nbytes

    def _drop(self, request: _Request) -> None:
        self._requests.remove(request)
        if not request.future.cancel():
            request.future.exception()  # its buffer is not free before it has ended
        if request.file.remote is None:
            self._free.append(request.buffer)
        if not any(other.file is request.file for other in self._requests):
            self._leave(request.file)  # there may be thousands, one after the other

    def _leave(self, file: OpenFile) -> None:
        file.ahead = None
        own = self._files.pop(file)
        if own >= 0:
            with suppress(OSError):  # of a mount that is gone
                os.close(own)


@contextmanager
def in_flight(ranges: Iterable[ByteRange]) -> Iterator[None]:
    """Have ranges of files under way, which are read in this order meanwhile."""
    ahead = InFlight()
    ahead.prefetch(ranges)
    try:
        yield
    finally:
        ahead.stop()


GUESSED_RUNS, MOST_RUNS = 8, 1000
"""Of runs to come so many are looked at while nobody knows how much will be read, and as many as
have been; and so many at the most, ..."""
MOST_APART = 24
"""... with gaps between them."""
PIECES_AT_ONCE = 8
"""After so many pieces of a layout (chunks, segments), the objects that come next are asked for."""


class Opening(NamedTuple):
    """An object that is opened before ranges of it are known, as a shard for its index."""

    path: Path
    last_nbytes: int
    """Bytes at its end that come with the request that opens it; 0: those at its beginning do."""
    is_open: bool
    """Whether it is, so that it need not be asked for."""


def prefetch_openings(openings: Iterable[Opening]) -> None:
    """Ask for objects of stores that are not open yet."""
    new: dict[int, list[Path]] = {}
    for one in openings:
        if not one.is_open:
            new.setdefault(one.last_nbytes, []).append(one.path)
    for last_nbytes, paths in new.items():
        objects.prefetch(paths, last_nbytes)


class Prefetched(Protocol):
    """A layout, or what else says which bytes reading frames takes."""

    def boundaries(self) -> NDArray[np.int64]:
        """Return the frames at which its pieces begin; see `mdio.layouts.base.Layout`."""

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield the bytes that reading takes, in its order."""

    def _openings(self, runs: Spans, atoms: AtomIndices | None) -> Iterator[Opening]: ...


class Prefetch:
    """Asks for what the reads to come of one layout take.

    `layout`: open. `opens_ahead`: whether objects are opened ahead, too, as in a store.
    """

    def __init__(self, layout: Prefetched, *, opens_ahead: bool) -> None:
        self._layout, self._opens_ahead = layout, opens_ahead
        self._in_flight = InFlight()
        self._asked: set[Path] = set()
        """Objects that were asked for and are not open yet."""
        self._edges = layout.boundaries() if opens_ahead else np.zeros(1, np.int64)
        self._stop = -1
        """Behind the frame that was read last by itself."""

    def begin(
        self, runs: Iterable[tuple[int, int]], atoms: AtomIndices | None, *, guessed: bool
    ) -> None:
        """Ask for what reading these runs of frames takes, and for nothing else any more."""
        runs = (run for run in runs if run[0] < run[1])
        if self._opens_ahead:
            runs = self._opened_ahead(self._cut(runs), atoms, guessed=guessed)
        ranges = (one for run in runs for one in self._layout.byte_ranges(*run, atoms))
        self._in_flight.prefetch(ranges, guessed=guessed and self._opens_ahead)

    def open_for(self, frame: int, atoms: AtomIndices | None) -> None:
        """Ask for objects that reading one frame opens, and one after the other if they are."""
        runs = [(frame, frame + 1)]
        if frame == self._stop:
            following = int(self._edges.searchsorted(frame, side="right"))
            edges = self._edges[following : following + PIECES_AT_ONCE].tolist()
            runs += [(at, at + 1) for at in edges if at < self._edges[-1]]
        self._stop = frame + 1
        self.open_ahead(runs, atoms)
        chunks = list(self._layout.byte_ranges(frame, frame + 1, atoms))
        gaps = [b.offset - a.offset - a.nbytes for a, b in pairwise(chunks) if a.file is b.file]
        # Of a large frame, or of several fields; not if what lies between them would come, too.
        if len(chunks) > 1 and not any(0 < gap <= GAP_NBYTES for gap in gaps):
            self._in_flight.prefetch(chunks)

    def open_ahead(self, runs: Spans, atoms: AtomIndices | None) -> None:
        """Ask for objects that reading runs opens, and for no others any more.

        `runs`: first frame, and one beyond the last; they ascend, with gaps between them.
        """
        near = {one.path: one for one in self._layout._openings(runs, atoms)}
        objects.forget_prefetched(self._asked - near.keys())
        prefetch_openings(one for one in near.values() if one.path not in self._asked)
        self._asked = {one.path for one in near.values() if not one.is_open}

    def stop(self) -> None:
        """Ask for nothing any more, and end the threads."""
        self._in_flight.stop()
        if self._opens_ahead:
            self.open_ahead((), None)

    def _cut(self, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield runs in parts of a few pieces of the layout each."""
        edges = self._edges
        for start, stop in runs:
            while start < stop:
                number = int(edges.searchsorted(start, side="right")) - 1 + PIECES_AT_ONCE
                end = min(stop, int(edges[min(number, len(edges) - 1)]))
                yield start, end
                start = end

    def _opened_ahead(
        self, runs: Iterable[tuple[int, int]], atoms: AtomIndices | None, *, guessed: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield `runs`, piece by piece, and ask for the objects of those that come next."""
        rest = iter(runs)
        following, near = next(rest, None), deque[tuple[int, int]]()
        joined = deque[tuple[int, int]]()
        """Those near, joined where there is no gap between them."""
        most, more = (GUESSED_RUNS, 1) if guessed else (MOST_RUNS, 0)
        while near or following is not None:
            while following is not None and len(near) < most and len(joined) < MOST_APART:
                goes_on = bool(joined) and joined[-1][1] == following[0]
                begin = joined.pop()[0] if goes_on else following[0]
                joined.append((begin, following[1]))
                near.append(following)
                following = next(rest, None)
            self.open_ahead(tuple(joined), atoms)
            yield near[0]
            _, until = near.popleft()
            _, end = joined.popleft()
            if until < end:
                joined.appendleft((until, end))
            most = min(most + more, MOST_RUNS)


def _stop_all() -> None:
    for one in list(_all):
        one.stop()


if hasattr(os, "register_at_fork"):
    # The child would have no such threads, but what they were about.
    os.register_at_fork(before=_stop_all)


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
