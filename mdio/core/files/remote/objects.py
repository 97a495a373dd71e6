"""Objects in stores and on web servers: requests, what is known of an object, and open ones."""

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
TRIES = 4
"""How often bytes are asked for whose answer broke off; obstore tries again what is refused."""
PAUSE_S = 0.2

Result = TypeVar("Result")

NO_BUCKET = "there is no such bucket; see its name, region and endpoint"
NO_RANGES = "the server gives no ranges of bytes; use one that does, or copy the file here"
NAMES_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
REFUSED = re.compile(
    r"\b40[13] (Forbidden|Unauthorized)|InvalidAccessKeyId|SignatureDoesNotMatch|UserNotFound"
    r"|AuthorizationHeaderMalformed"
)
REGION = re.compile(r"<Region>([\w-]+)<")

_pid = 0
"""The process in which obstore has threads."""


def has_store_threads() -> bool:
    """Return whether this process has threads of obstore, which a forked one would wait for."""
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
    """Return store and name of an object."""
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
    """Turn errors of obstore into OSError, without what their texts may give away.

    PermissionError: what no further try would mend.
    """
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(17, "there is another one by now", str(path)) from None
    except (FileNotFoundError, exceptions.BaseError) as error:
        text = str(error)  # errors of lists have no kind
        if NAMES_NO_BUCKET.search(text):
            raise PermissionError(13, NO_BUCKET, str(path)) from None
        kinds = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        if isinstance(error, kinds) or REFUSED.search(text):
            there = REGION.search(text)
            hint = f" (it is in {there[1]})" if there else ""
            said = f"the store refuses it; see credentials, region{hint} and endpoint"
            raise PermissionError(13, said, str(path)) from None
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
    """Return what a request gives, which is made again if its answer breaks off; raises OSError."""
    for attempt in range(TRIES):
        try:
            with translated_errors(path):
                return call()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if attempt == TRIES - 1:
                raise
            time.sleep(PAUSE_S * 2**attempt)
    raise AssertionError


HEAD_NBYTES = 64 << 10
"""Bytes of an object that come with the request that opens it: enough for metadata and headers."""
KNOWN_S = 2.0
"""So long an answer about an object counts: formats ask the same several times to know a file."""
MAX_KNOWN = 64
AHEAD_S = 120.0
LOOKS = 32
"""Objects that are asked for ahead at the same time."""
LARGE_NBYTES = 1 << 20
"""What came with the request that opened an object is let go once it is read, if it is larger."""


@dataclass(frozen=True, slots=True)
class State:
    """By what an object is known again."""

    nbytes: int
    tag: str
    modified_ns: int

    @classmethod
    def of(cls, meta: Any) -> State:
        """Return that of an answer."""
        modified = meta["last_modified"]
        since = round(modified.timestamp() * 1e6) * 1000 if modified is not None else 0
        return cls(meta["size"], f"{meta['e_tag'] or ''} {meta['version'] or ''}".strip(), since)

    def status(self, kind: int) -> os.stat_result:
        """Return this as of a file; the inode stands for the ETag."""
        inode = zlib.crc32(self.tag.encode())
        seconds = self.modified_ns // 10**9
        times = {"st_mtime_ns": self.modified_ns}
        return os.stat_result(
            (kind | 0o444, inode, 0, 1, 0, 0, self.nbytes, seconds, seconds, seconds), times
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a store: what an object is, and some of its bytes."""

    state: State
    begin: int
    data: bytes | memoryview
    at: float = field(default_factory=time.monotonic)


SMALL_NBYTES = 4 << 10
"""So few bytes, as a frame's header, are asked for once in a while only: who opens an object looks
at the same ones to know what it is, where it ends and when it began."""
SMALL_S = 10.0
MAX_SMALL = 256

_known: OrderedDict[str, Answer | float] = OrderedDict()
"""Answers of late; the time where there was no object."""
_small: OrderedDict[tuple[str, tuple[int, int]], Answer] = OrderedDict()
"""Few bytes of late, by object and range."""
_coming: OrderedDict[str, Future[Answer]] = OrderedDict()
"""Answers that were asked for ahead."""
_supposed: dict[str, Answer] = {}
"""What takes the place of answers, see `pretend_stored`."""
ENDING = " and its end"
"""Behind the name of an object: what is known of its end."""
_lock = threading.RLock()
"""Held for a moment only: what is collected as garbage lets go of objects too, in any thread, also
in one that is just being started."""
if hasattr(os, "register_at_fork"):  # what other threads ask for never comes in a child
    os.register_at_fork(after_in_child=_coming.clear)


def get(path: Path, wanted: Any) -> Answer:
    """Ask for a range (first byte, one beyond the last; or ``{"suffix": n}``) of an object."""
    import obstore

    store, name = store_and_name(path)

    def ask() -> Answer:
        answer = obstore.get(store, name, options={"range": wanted})
        begin, end = answer.range
        data = memoryview(answer.bytes())
        if len(data) != end - begin:
            raise OSError(5, f"{len(data)} bytes came of {end - begin}", str(path))
        return Answer(State.of(answer.meta), begin, data)

    return with_retries(path, ask)


def get_unchanged(path: Path, wanted: tuple[int, int], state: State) -> Answer:
    """Ask for a range of an object that was as `state` tells; the answer has what it is now."""
    if wanted[1] - wanted[0] > SMALL_NBYTES:
        return get(path, wanted)
    key = str(path), wanted
    found = _small.get(key)
    if found is None or found.state != state or found.at < time.monotonic() - SMALL_S:
        found = get(path, wanted)
        _put(_small, key, found, MAX_SMALL)
    return found


def prefetch(paths: Iterable[Path], last_nbytes: int) -> None:
    """Ask in threads, which end with their answers, for the ends of objects to be opened next.

    Objects that are no longer than `last_nbytes` come whole; with 0, the beginnings of objects are
    asked for. What is at hand is not.
    """
    with _lock:
        names = {str(path): path for path in paths}
        new = [name for name in names if name not in _coming]
        new = [name for name in new if not _is_at_hand(_known.get(name), last_nbytes)]
    if not new:  # as when the interpreter ends, and nothing can be imported
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    wanted = {"suffix": last_nbytes} if last_nbytes else (0, HEAD_NBYTES)
    asked: dict[str, Future[Answer]] = {name: Future() for name in new}
    with _lock:  # another thread may ask for the same
        asked = {name: one for name, one in asked.items() if _coming.setdefault(name, one) is one}
        while len(_coming) > MAX_KNOWN:
            _coming.popitem(last=False)

    def ask(name: str) -> None:
        try:
            asked[name].set_result(get(names[name], wanted))
        except BaseException as error:
            asked[name].set_exception(error)

    pool = ThreadPoolExecutor(LOOKS, "mdio look")
    try:
        for name in asked:
            pool.submit(ask, name)
    except RuntimeError:  # the interpreter ends: nobody is to wait for these
        with _lock:
            for name in asked:
                _coming.pop(name, None)
        raise
    pool.shutdown(wait=False)


def forget_prefetched(paths: Iterable[Path]) -> None:
    """Let go of what was asked for ahead and nobody has opened."""
    with _lock:
        for path in paths:
            _coming.pop(str(path), None)


def _is_at_hand(found: Answer | float | None, nbytes: int) -> bool:
    """Return whether an answer of late has the last bytes of an object; with 0, the first."""
    if not isinstance(found, Answer) or time.monotonic() - found.at > KNOWN_S / 2:
        return False
    if not nbytes:
        return not found.begin
    end, size = found.begin + len(found.data), found.state.nbytes
    return end == size and len(found.data) >= min(nbytes, size)


@contextmanager
def pretend_stored(path: Path, data: bytes) -> Iterator[None]:
    """Have an object read, in this process, as though it were there already, and held `data`."""
    _supposed[str(path)] = Answer(State(len(data), "to be sent", 0), 0, data)
    try:
        yield
    finally:
        del _supposed[str(path)]


def find(path: Path, wanted: Any = (0, HEAD_NBYTES)) -> Answer | None:
    """Return what an object is and how it begins (or ends); None if there is none."""
    import obstore

    key = str(path)
    if key in _supposed:
        return _supposed[key]
    coming = _coming.get(key)
    if coming is not None:
        came = None
        try:
            came = coming.result()
        except FileNotFoundError:
            _keep(key, time.monotonic())
        except OSError:  # whatever it was, it is asked for again
            pass
        if came is not None and len(came.data) < LARGE_NBYTES:
            _keep(key, came)
        with _lock:
            if _coming.get(key) is coming:
                del _coming[key]
        if came is not None and came.at > time.monotonic() - AHEAD_S:
            return came
    with _lock:
        found = _known.get(key)
    at = found.at if isinstance(found, Answer) else found
    if at is not None and time.monotonic() - at < KNOWN_S:
        return found if isinstance(found, Answer) else None
    now: Answer | None
    try:
        now = get(path, wanted)
    except FileNotFoundError:
        now = None
    except PermissionError:
        raise
    except OSError:  # nothing to have a range of, or no such ranges here: see what it is
        store, name = store_and_name(path)
        try:
            with translated_errors(path):
                now = Answer(State.of(obstore.head(store, name)), 0, b"")
        except FileNotFoundError:
            now = None
    _keep(key, time.monotonic() if now is None else now)
    return now


def _keep(key: str, found: Answer | float) -> None:
    _put(_known, key, found, MAX_KNOWN)


def _put(kept: OrderedDict[Any, Any], key: object, found: object, most: int) -> None:
    with _lock:
        kept.pop(key, None)
        kept[key] = found
        while len(kept) > most:
            kept.popitem(last=False)


def prefetch_end(path: Path) -> None:
    """Have the end of an object at hand for who opens it now, with one request.

    Programs that write what they know of a file behind the rest of it are read so: 1 MiB of small
    files, 8 MiB of very large ones. Who has opened it forgets it here (`forget_end`): the next one
    is to see whether it was replaced.
    """
    key, found = f"{path}{ENDING}", find(path)
    if found is None or len(found.data) == found.state.nbytes:
        return
    size = found.state.nbytes
    with _lock:
        known = _known.get(key)
    if isinstance(known, Answer) and known.state == found.state:
        return
    with suppress(OSError):  # who opens it will meet it
        end = get(path, (max(0, size - min(max(size // 200, 1 << 20), 8 << 20)), size))
        if end.state != found.state:
            forget(path)
        else:
            keep_end(path, end)


def known_end(path: Path, state: State) -> Answer:
    """Return what is at hand of the end of an object."""
    end = _known.get(f"{path}{ENDING}")
    return end if isinstance(end, Answer) and end.state == state else Answer(state, 0, b"")


def keep_end(path: Path, found: Answer) -> None:
    """Have the end of an object at hand for who opens it next, as it is."""
    _keep(f"{path}{ENDING}", found)


def forget_end(path: Path) -> None:
    """Forget what was kept by `prefetch_end`; objects that are open have it."""
    with _lock:
        _known.pop(f"{path}{ENDING}", None)


def forget(path: Path, *, below: bool = False) -> None:
    """Forget what was found out about an object, which is changed.

    With `below`, what is known of those in a folder, or was asked for ahead: whoever opens it next
    may find another output.
    """
    with _lock:
        if below:
            for found in (_known, _coming):
                for key in [key for key in found if key.startswith(f"{path}/")]:
                    found.pop(key, None)
            return
        for key in (str(path), f"{path}{ENDING}"):
            _known.pop(key, None)
            _coming.pop(key, None)


TAIL_NBYTES = 32 << 10
"""Bytes at the end of an object that come together."""


class RemoteObject:
    """One object, as it was when it was opened; for any number of threads.

    `path`: its URL. `last_nbytes`: bytes at its end that are wanted first: they come with the
    request that opens it. Of others the last bytes come together once any of them are wanted:
    formats look there several times.
    Raises OSError: it is not there, or the store does not give it.
    """

    def __init__(self, path: Path, last_nbytes: int = 0) -> None:
        found = find(path, {"suffix": last_nbytes} if last_nbytes else (0, HEAD_NBYTES))
        if found is None:
            raise FileNotFoundError(2, "no such object", str(path))
        self.path, self.state = path, found.state
        self._begin, self._data = found.begin, found.data
        self._end = known_end(path, self.state)
        self._front, self._last_nbytes = 0, last_nbytes
        """So many of these bytes have been read, from front to back; what lies behind them."""

    @property
    def status(self) -> os.stat_result:
        """Size, time and identity, as of a file."""
        return self.state.status(stat.S_IFREG)

    def held(self, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes that came when it was opened; None if they did not, or were let go."""
        data, at = memoryview(self._data), offset - self._begin
        if at < 0 or at + nbytes > len(data):
            end = self._end
            at = offset - end.begin
            here = at >= 0 and at + nbytes <= len(end.data)
            return memoryview(end.data)[at : at + nbytes] if here else None
        if at <= self._front:
            self._front = max(self._front, at + nbytes)
            if LARGE_NBYTES < len(data) <= self._front + self._last_nbytes:
                self._data = b""
        return data[at : at + nbytes]

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes of it, with one request where need be: fewer only at the end.

        Raises OSError: they cannot be had, or the object is another one than was opened.
        """
        size = self.state.nbytes
        nbytes = max(0, min(nbytes, size - offset))
        if (here := self.held(offset, nbytes)) is not None or not nbytes:
            return memoryview(b"") if here is None else here
        begin, end = offset, offset + nbytes
        at_end = offset >= size - TAIL_NBYTES and not self._last_nbytes
        if at_end:
            self._end = known_end(self.path, self.state)  # others may have read it since
            if (here := self.held(offset, nbytes)) is not None:
                return here
            begin, end = max(0, size - TAIL_NBYTES), size
        found = get_unchanged(self.path, (begin, end), self.state)
        if found.state != self.state:
            forget(self.path)
            raise OSError(
                5,
                f"it was replaced while it was open: {self.state.nbytes} bytes with ETag "
                f"{self.state.tag} were opened, {found.state.nbytes} with {found.state.tag} "
                "are there now; open it again",
                str(self.path),
            )
        if at_end:
            self._end = found
            keep_end(self.path, found)
        return memoryview(found.data)[offset - begin : offset - begin + nbytes]

    def read_into(self, buffers: Sequence[Any], offset: int) -> int:
        """Fill `buffers`, and return how many bytes came; 0 at the end; raises as `get` does."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data, at = self.get(offset, sum(map(len, views))), 0
        for view in views:
            part = data[at : at + len(view)]
            view[: len(part)] = part
            at += len(part)
        return at


BLOCK_NBYTES = 1 << 20
"""What libraries read is asked for in blocks of this size."""
MAX_BLOCKS = 16


class ObjectFile(io.RawIOBase):
    """An object as a file, for libraries that want one: it is read in blocks, which are kept."""

    def __init__(self, remote: RemoteObject) -> None:
        self._object, self._at = remote, 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where it is."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        base = (0, self._at, self._object.state.nbytes)[whence]
        if base + offset < 0:
            raise OSError(22, "before the beginning", str(self._object.path))
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill `target` from there on; return how many bytes came."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view):
            number, begin = divmod(self._at, BLOCK_NBYTES)
            wanted = min(len(view) - done, BLOCK_NBYTES - begin)
            here = self._object.held(self._at, wanted) if number not in self._blocks else None
            if here is not None:  # it came as the object was opened
                n_read = wanted
                view[done : done + n_read] = here
            elif not begin and len(view) - done > BLOCK_NBYTES:
                n_read = self._object.read_into([view[done:]], self._at)
            else:
                part = self._block(number)[begin : begin + len(view) - done]
                n_read = len(part)
                view[done : done + n_read] = part
            if not n_read:
                break
            done, self._at = done + n_read, self._at + n_read
        return done

    def _block(self, number: int) -> bytes:
        found = self._blocks.get(number)
        if found is None:
            begin = number * BLOCK_NBYTES
            room = bytearray(max(0, min(BLOCK_NBYTES, self._object.state.nbytes - begin)))
            self._object.read_into([room], begin)
            found = self._blocks[number] = bytes(room)
            if len(self._blocks) > MAX_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return found


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Yield a copy of an object, for libraries that want a name; raises OSError."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mdio-") as folder:
        copy = Path(folder, path.name)
        with ObjectFile(RemoteObject(path)) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, BLOCK_NBYTES)
        yield copy
