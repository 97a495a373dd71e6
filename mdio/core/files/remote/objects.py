"""Objects in stores and on web servers: requests, a short-lived cache of answers, open objects."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mdio.core.errors import MissingExtraError

if TYPE_CHECKING:
    from concurrent.futures import Future


URL = re.compile(r"(s3|gs|az|https?)://([^/]*)", re.IGNORECASE)
TIMEOUT_S = 30
MAX_TRIES = 4
"""Tries for a request whose answer breaks off; obstore itself repeats those that fail at once."""
PAUSE_S = 0.2
"""Before the second try; doubled before each further one."""

Result = TypeVar("Result")

NO_BUCKET = "there is no such bucket; see its name, region and endpoint"
NO_RANGES = "the server gives no ranges of bytes; use one that does, or copy the file here"
# Patterns of a store's errors: no such bucket, refused requests, the region of the bucket.
NO_BUCKET_PATTERN = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
REFUSAL = re.compile(
    r"\b40[13] (Forbidden|Unauthorized)|InvalidAccessKeyId|SignatureDoesNotMatch|UserNotFound"
    r"|AuthorizationHeaderMalformed"
)
REGION = re.compile(r"<Region>([\w-]+)<")

_pid = 0
"""The process in which obstore has threads; 0 = none yet."""


def has_store_threads() -> bool:
    """Return whether this process has threads of obstore, which are lost in a forked one."""
    return _pid == os.getpid()


@lru_cache(maxsize=64)
def _store(root: str, process: int) -> Any:  # noqa: ARG001
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise MissingExtraError(
            f"{root}: reading it needs obstore: pip install 'mdio-layouts[cloud]'"
        ) from error
    return from_url(
        root,
        client_options={"allow_http": True, "timeout": f"{TIMEOUT_S}s", "connect_timeout": "10s"},
        retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=TIMEOUT_S)},
    )


def store_and_name(path: Path) -> tuple[Any, str]:
    """Return the store of an object, and its name there."""
    global _pid
    if _pid not in (0, os.getpid()):
        raise OSError(
            errno.ENOTSUP,
            "this process was forked from one that had read from stores, and would wait for ever; "
            "start processes with 'spawn' or 'forkserver': multiprocessing.set_start_method",
            str(path),
        )
    text = str(path)
    match = URL.match(text)
    assert match is not None
    store = _store(text[: match.end()], os.getpid())
    _pid = os.getpid()
    return store, text[match.end() :].lstrip("/")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn errors of obstore into OSError, without secrets that their texts may contain.

    PermissionError: another try would not help.
    """
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(17, "another object has this name by now", str(path)) from None
    except (FileNotFoundError, exceptions.BaseError) as error:
        text = str(error)  # errors of lists have no kind
        if NO_BUCKET_PATTERN.search(text):
            raise PermissionError(13, NO_BUCKET, str(path)) from None
        refusals = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        if isinstance(error, refusals) or REFUSAL.search(text):
            region = REGION.search(text)
            region_hint = f" (it is in {region[1]})" if region else ""
            refusal = f"the store refuses it; see credentials, region{region_hint} and endpoint"
            raise PermissionError(13, refusal, str(path)) from None
        if "Range request not supported" in text:
            raise PermissionError(13, NO_RANGES, str(path)) from None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such object", str(path)) from None
        text = text.split("\n")[0].split(" - ", 1)[-1]
        text = re.sub(r"\S*://\S+", "the store", text)[:200]
        if "error sending request" in text:
            text = f"the store cannot be reached ({text}); see endpoint and network"
        raise OSError(5, text or type(error).__name__, str(path)) from None


def with_retries(path: Path, call: Callable[[], Result]) -> Result:
    """Return the result of a request, repeated if its answer breaks off; raises OSError."""
    for attempt in range(MAX_TRIES):
        try:
            with translated_errors(path):
                return call()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if attempt == MAX_TRIES - 1:
                raise
            time.sleep(PAUSE_S * 2**attempt)
    raise AssertionError


HEAD_NBYTES = 64 << 10
"""Bytes fetched by the request that opens an object: enough for metadata and headers."""
REUSE_S = 2.0
"""How long an answer is reused: recognising a format requests the same bytes several times."""
MAX_ANSWERS = 64
PREFETCHED_S = 120.0
"""How long a prefetched answer is used."""
PREFETCH_THREADS = 32
"""Objects that are prefetched at the same time."""
STAGGER_NBYTES_PER_S = 4e9
"""Rate at which large objects are requested, so that the first arrive first, and the next can be
requested while the others arrive. Requested at once, all would share the network and arrive last.
"""
LARGE_NBYTES = 1 << 20
"""Bytes from the opening request are freed once they are read, if they are more than this."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """Size, tag and time of an object, which differ once it is replaced."""

    nbytes: int
    tag: str
    modified_ns: int

    @classmethod
    def of(cls, meta: Any) -> ObjectState:
        """Return the state in the metadata of an answer."""
        modified = meta["last_modified"]
        modified_ns = round(modified.timestamp() * 1e6) * 1000 if modified is not None else 0
        return cls(
            meta["size"], f"{meta['e_tag'] or ''} {meta['version'] or ''}".strip(), modified_ns
        )

    def status(self, file_type: int) -> os.stat_result:
        """Return the state as the status of a file, with an inode made from the ETag."""
        inode = zlib.crc32(self.tag.encode())
        seconds = self.modified_ns // 10**9
        times = {"st_mtime_ns": self.modified_ns}
        return os.stat_result(
            (file_type | 0o444, inode, 0, 1, 0, 0, self.nbytes, seconds, seconds, seconds), times
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a store: the state of an object, and some of its bytes."""

    state: ObjectState
    begin: int
    data: bytes | memoryview
    received_s: float = field(default_factory=time.monotonic)


SMALL_NBYTES = 4 << 10
"""Answers up to this size, such as a frame's header, are kept for `SMALL_REUSE_S`: opening a file
reads the same headers several times."""
SMALL_REUSE_S = 10.0
MAX_SMALL_ANSWERS = 256

_answers: OrderedDict[str, Answer | float] = OrderedDict()
"""Recent answers by URL; the time of the answer if the object did not exist."""
_small_answers: OrderedDict[tuple[str, tuple[int, int]], Answer] = OrderedDict()
"""Recent small answers, by object and range."""
_prefetched: OrderedDict[str, Future[Answer]] = OrderedDict()
"""Prefetched answers, in flight or complete, by URL."""
_pretended_answers: dict[str, Answer] = {}
"""Objects that are read as if they were stored; see `pretend_stored`."""
END_SUFFIX = " and its end"
"""Suffix of the key under which the end of an object is kept."""
_lock = threading.RLock()
"""Reentrant, and held only for a moment: garbage collection drops objects in any thread."""
# Requests of other threads never end in a child.
os.register_at_fork(after_in_child=_prefetched.clear)


def get(path: Path, byte_range: Any) -> Answer:
    """Fetch a range (first byte, one beyond the last; or ``{"suffix": n}``) of an object."""
    import obstore

    store, name = store_and_name(path)

    def request() -> Answer:
        answer = obstore.get(store, name, options={"range": byte_range})
        begin, end = answer.range
        data = memoryview(answer.bytes())
        if len(data) != end - begin:
            raise OSError(5, f"{len(data)} bytes came of {end - begin}", str(path))
        return Answer(ObjectState.of(answer.meta), begin, data)

    return with_retries(path, request)


def get_via_cache(path: Path, byte_range: tuple[int, int], state: ObjectState) -> Answer:
    """Fetch a range of an object that had `state`; the answer has its present state."""
    if byte_range[1] - byte_range[0] > SMALL_NBYTES:
        return get(path, byte_range)
    key = str(path), byte_range
    answer = _small_answers.get(key)
    if (
        answer is None
        or answer.state != state
        or answer.received_s < time.monotonic() - SMALL_REUSE_S
    ):
        answer = get(path, byte_range)
        _keep_entry(_small_answers, key, answer, MAX_SMALL_ANSWERS)
    return answer


def prefetch(paths: Iterable[Path], last_nbytes: int, expected_nbytes: int = 0) -> None:
    """Request, in threads, the last bytes of objects that will be opened next; with 0, the first.

    Objects no longer than `last_nbytes` come whole; those with a recent answer are left out.
    `expected_nbytes`: about how many come of each, if they are many.
    """
    with _lock:
        names = {str(path): path for path in paths}
        missing = [name for name in names if name not in _prefetched]
        missing = [name for name in missing if not _has_end(_answers.get(name), last_nbytes)]
    if not missing:  # perhaps at the exit of the interpreter, when nothing can be imported
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    byte_range = {"suffix": last_nbytes} if last_nbytes else (0, HEAD_NBYTES)
    futures: dict[str, Future[Answer]] = {name: Future() for name in missing}
    with _lock:  # another thread may request the same objects
        futures = {
            name: future
            for name, future in futures.items()
            if _prefetched.setdefault(name, future) is future
        }
        while len(_prefetched) > MAX_ANSWERS:
            _prefetched.popitem(last=False)

    def request(number: int, name: str) -> None:
        time.sleep(number * expected_nbytes / STAGGER_NBYTES_PER_S)
        try:
            futures[name].set_result(get(names[name], byte_range))
        except BaseException as error:
            futures[name].set_exception(error)

    pool = ThreadPoolExecutor(PREFETCH_THREADS, "mdio prefetch")
    try:
        for number, name in enumerate(futures):
            pool.submit(request, number, name)
    except RuntimeError:  # the interpreter exits: nobody must wait for these
        with _lock:
            for name in futures:
                _prefetched.pop(name, None)
        raise
    pool.shutdown(wait=False)


def forget_prefetched(paths: Iterable[Path]) -> None:
    """Forget prefetched answers of objects that were not opened."""
    with _lock:
        for path in paths:
            _prefetched.pop(str(path), None)


def _has_end(answer: Answer | float | None, nbytes: int) -> bool:
    """Return whether a recent answer has the last `nbytes` of an object; with 0, the first."""
    if not isinstance(answer, Answer) or time.monotonic() - answer.received_s > REUSE_S / 2:
        return False
    if not nbytes:
        return not answer.begin
    end, size = answer.begin + len(answer.data), answer.state.nbytes
    return end == size and len(answer.data) >= min(nbytes, size)


@contextmanager
def pretend_stored(path: Path, data: bytes) -> Iterator[None]:
    """Have reads of an object in this process return `data`, as if it were already stored."""
    _pretended_answers[str(path)] = Answer(ObjectState(len(data), "to be sent", 0), 0, data)
    try:
        yield
    finally:
        del _pretended_answers[str(path)]


def find(path: Path, byte_range: Any = (0, HEAD_NBYTES)) -> Answer | None:
    """Return the state of an object and its first (or last) bytes; None if there is none."""
    import obstore

    key = str(path)
    if key in _pretended_answers:
        return _pretended_answers[key]
    future = _prefetched.get(key)
    if future is not None:
        prefetched = None
        try:
            prefetched = future.result()
        except FileNotFoundError:
            _keep_answer(key, time.monotonic())
        except OSError:  # it is requested again below
            pass
        if prefetched is not None and len(prefetched.data) < LARGE_NBYTES:
            _keep_answer(key, prefetched)
        with _lock:
            if _prefetched.get(key) is future:
                del _prefetched[key]
        if prefetched is not None and prefetched.received_s > time.monotonic() - PREFETCHED_S:
            return prefetched
    with _lock:
        entry = _answers.get(key)
    received_s = entry.received_s if isinstance(entry, Answer) else entry
    if received_s is not None and time.monotonic() - received_s < REUSE_S:
        return entry if isinstance(entry, Answer) else None
    answer: Answer | None
    try:
        answer = get(path, byte_range)
    except FileNotFoundError:
        answer = None
    except PermissionError:
        raise
    except OSError:  # an empty object, or a server without ranges: request its state alone
        store, name = store_and_name(path)
        try:
            with translated_errors(path):
                answer = Answer(ObjectState.of(obstore.head(store, name)), 0, b"")
        except FileNotFoundError:
            answer = None
    _keep_answer(key, time.monotonic() if answer is None else answer)
    return answer


def _keep_answer(key: str, answer: Answer | float) -> None:
    _keep_entry(_answers, key, answer, MAX_ANSWERS)


def _keep_entry(cache: OrderedDict[Any, Any], key: object, entry: object, max_entries: int) -> None:
    with _lock:
        cache.pop(key, None)
        cache[key] = entry
        while len(cache) > max_entries:
            cache.popitem(last=False)


def prefetch_end(path: Path) -> None:
    """Fetch the end of an object with one request, for a library that opens it now.

    For formats that keep their index at the end: 1 MiB of small files, 8 MiB of very large ones.
    After opening, `forget_end` is called, so that the next opening sees whether it was replaced.
    """
    key, head = f"{path}{END_SUFFIX}", find(path)
    if head is None or len(head.data) == head.state.nbytes:
        return
    size = head.state.nbytes
    with _lock:
        answer = _answers.get(key)
    if isinstance(answer, Answer) and answer.state == head.state:
        return
    with suppress(OSError):  # opening it will raise the error
        end = get(path, (max(0, size - min(max(size // 200, 1 << 20), 8 << 20)), size))
        if end.state != head.state:
            forget(path)
        else:
            keep_end(path, end)


def cached_end(path: Path, state: ObjectState) -> Answer:
    """Return the end of an object that `prefetch_end` keeps; an empty answer if it keeps none."""
    end = _answers.get(f"{path}{END_SUFFIX}")
    return end if isinstance(end, Answer) and end.state == state else Answer(state, 0, b"")


def keep_end(path: Path, end: Answer) -> None:
    """Keep the end of an object for its next opening."""
    _keep_answer(f"{path}{END_SUFFIX}", end)


def forget_end(path: Path) -> None:
    """Forget the end kept by `prefetch_end`; open objects keep their own reference."""
    with _lock:
        _answers.pop(f"{path}{END_SUFFIX}", None)


def forget(path: Path, *, below: bool = False) -> None:
    """Forget cached answers about an object that is being changed.

    With `below`, those about all objects in a folder, prefetched ones too.
    """
    with _lock:
        if below:
            for cache in (_answers, _prefetched):
                for key in [key for key in cache if key.startswith(f"{path}/")]:
                    cache.pop(key, None)
            return
        for key in (str(path), f"{path}{END_SUFFIX}"):
            _answers.pop(key, None)
            _prefetched.pop(key, None)


END_NBYTES = 32 << 10
"""Bytes at the end of an object that are fetched by one request."""


class RemoteObject:
    """One object in the state in which it was opened; for any number of threads.

    `path`: its URL. `last_nbytes`: bytes at its end to fetch with the request that opens it. With
    0, all of the last `END_NBYTES` are fetched once any of them is read: formats read there
    several times.
    Raises OSError: it does not exist, or the store refuses it.
    """

    def __init__(self, path: Path, last_nbytes: int = 0) -> None:
        answer = find(path, {"suffix": last_nbytes} if last_nbytes else (0, HEAD_NBYTES))
        if answer is None:
            raise FileNotFoundError(2, "no such object", str(path))
        self.path, self.state = path, answer.state
        self._begin, self._data = answer.begin, answer.data
        self._end = cached_end(path, self.state)
        self._last_nbytes = last_nbytes
        self._n_read = 0
        """Bytes at the beginning of `_data` that have been read."""

    @property
    def status(self) -> os.stat_result:
        """Size, time and identity, as for a file."""
        return self.state.status(stat.S_IFREG)

    def buffered_bytes(self, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes that came with the opening request; None if they did not, or were freed."""
        data, position = memoryview(self._data), offset - self._begin
        if position < 0 or position + nbytes > len(data):
            end = self._end
            position = offset - end.begin
            is_buffered = position >= 0 and position + nbytes <= len(end.data)
            return memoryview(end.data)[position : position + nbytes] if is_buffered else None
        if position <= self._n_read:
            self._n_read = max(self._n_read, position + nbytes)
            if LARGE_NBYTES < len(data) <= self._n_read + self._last_nbytes:
                self._data = b""
        return data[position : position + nbytes]

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes of the object, with one request at most: fewer only at the end.

        Raises OSError: they cannot be read, or the object was replaced since it was opened.
        """
        size = self.state.nbytes
        nbytes = max(0, min(nbytes, size - offset))
        if (data := self.buffered_bytes(offset, nbytes)) is not None or not nbytes:
            return memoryview(b"") if data is None else data
        begin, end = offset, offset + nbytes
        is_at_end = offset >= size - END_NBYTES and not self._last_nbytes
        if is_at_end:
            # Another reader may have fetched it since.
            self._end = cached_end(self.path, self.state)
            if (data := self.buffered_bytes(offset, nbytes)) is not None:
                return data
            begin, end = max(0, size - END_NBYTES), size
        answer = get_via_cache(self.path, (begin, end), self.state)
        if answer.state != self.state:
            forget(self.path)
            raise OSError(
                5,
                f"it was replaced while it was open: {self.state.nbytes} bytes with ETag "
                f"{self.state.tag} were opened, {answer.state.nbytes} with {answer.state.tag} "
                "are stored now; open it again",
                str(self.path),
            )
        if is_at_end:
            self._end = answer
            keep_end(self.path, answer)
        return memoryview(answer.data)[offset - begin : offset - begin + nbytes]

    def read_into(self, buffers: Sequence[Any], offset: int) -> int:
        """Fill `buffers`, and return with how many bytes, 0 at the end; raises as `get` does."""
        data = self.get(offset, sum(memoryview(buffer).nbytes for buffer in buffers))
        copy_into(data, buffers, 0)
        return len(data)


def copy_into(source: Any, targets: Sequence[Any], skip: int) -> None:
    """Copy the bytes of `source` into `targets`, after their first `skip` bytes in all."""
    data, offset = memoryview(source).cast("B"), 0
    for target in targets:
        view = memoryview(target)
        if skip >= view.nbytes:
            skip -= view.nbytes
            continue
        view = view.cast("B")
        part = data[offset : offset + len(view) - skip]
        view[skip : skip + len(part)] = part
        offset += len(part)
        skip = 0
        if offset == len(data):
            return


LIBRARY_READ_NBYTES = 1 << 20
"""Bytes of the ranges in which libraries' reads are requested."""
MAX_CACHED_RANGES = 16


class ObjectFile(io.RawIOBase):
    """An object as a file object, for libraries: it is read in blocks, which are kept."""

    def __init__(self, remote: RemoteObject) -> None:
        self._object, self._position = remote, 0
        self._cached_ranges: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a byte."""
        base = (0, self._position, self._object.state.nbytes)[whence]
        if base + offset < 0:
            raise OSError(22, "before the beginning", str(self._object.path))
        self._position = base + offset
        return self._position

    def readinto(self, target: Any) -> int:
        """Fill `target` from the position on; return how many bytes were read."""
        view = memoryview(target).cast("B")
        n_done = 0
        while n_done < len(view):
            number, begin = divmod(self._position, LIBRARY_READ_NBYTES)
            nbytes = min(len(view) - n_done, LIBRARY_READ_NBYTES - begin)
            data = None
            if number not in self._cached_ranges:
                data = self._object.buffered_bytes(self._position, nbytes)
            if data is not None:  # from the request that opened the object
                n_read = nbytes
                view[n_done : n_done + n_read] = data
            elif not begin and len(view) - n_done > LIBRARY_READ_NBYTES:
                n_read = self._object.read_into([view[n_done:]], self._position)
            else:
                part = self._cached_range(number)[begin : begin + len(view) - n_done]
                n_read = len(part)
                view[n_done : n_done + n_read] = part
            if not n_read:
                break
            n_done, self._position = n_done + n_read, self._position + n_read
        return n_done

    def _cached_range(self, number: int) -> bytes:
        data = self._cached_ranges.get(number)
        if data is None:
            begin = number * LIBRARY_READ_NBYTES
            buffer = bytearray(max(0, min(LIBRARY_READ_NBYTES, self._object.state.nbytes - begin)))
            self._object.read_into([buffer], begin)
            data = self._cached_ranges[number] = bytes(buffer)
            if len(self._cached_ranges) > MAX_CACHED_RANGES:
                self._cached_ranges.popitem(last=False)
        self._cached_ranges.move_to_end(number)
        return data


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Yield the path of a copy of an object, for libraries that open files; raises OSError."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mdio-") as folder:
        copy = Path(folder, path.name)
        with ObjectFile(RemoteObject(path)) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, LIBRARY_READ_NBYTES)
        yield copy
