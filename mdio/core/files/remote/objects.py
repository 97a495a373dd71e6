"""Requests to stores: what an object is, and ranges of its bytes."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.errors import MissingExtraError

if TYPE_CHECKING:
    from concurrent.futures import Future

URL = re.compile(r"(s3|gs|az|https?)://([^/]*)", re.IGNORECASE)
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
TRIES = 4
"""How often bytes are asked for whose answer broke off; obstore tries again what is refused."""
PAUSE_S = 0.2
TIMEOUT_S = 30

REFUSED = re.compile(r"\b40[13] (Forbidden|Unauthorized)|InvalidAccessKeyId|SignatureDoesNotMatch")

_pid = 0
"""The process in which obstore has threads."""


def threads_would_be_lost() -> bool:
    """Return whether this process has threads of obstore, which a forked one would wait for."""
    return _pid == os.getpid()


@dataclass(frozen=True, slots=True)
class _State:
    """By what an object is known again."""

    nbytes: int
    tag: str
    modified_ns: int

    @classmethod
    def of(cls, meta: Any) -> _State:
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
class _Look:
    """The answer to the request that opened an object."""

    state: _State
    begin: int
    data: bytes | memoryview
    at: float = field(default_factory=time.monotonic)


_known: OrderedDict[str, _Look | float] = OrderedDict()
"""Answers of late; the time where there was no object."""
_coming: OrderedDict[str, Future[_Look]] = OrderedDict()
"""Answers that were asked for ahead."""
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # what other threads ask for never comes in a child
    os.register_at_fork(after_in_child=_coming.clear)


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


def store_of(path: Path) -> tuple[Any, str]:
    """Return store and name of an object."""
    global _pid
    if _pid not in (0, os.getpid()):
        raise OSError(
            "the process that reads it was forked from one that had read from stores, which waits "
            "for ever; start processes with 'spawn' or 'forkserver'"
        )
    text = str(path)
    match = URL.match(text)
    assert match is not None
    store = _store(text[: match.end()], os.getpid())
    _pid = os.getpid()
    return store, text[match.end() :].lstrip("/")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn errors of obstore into OSError, without what their texts may give away."""
    from obstore import exceptions

    refused = PermissionError(
        13, "the store refuses it; see credentials, region and endpoint", str(path)
    )
    try:
        yield
    except FileNotFoundError as error:
        if REFUSED.search(str(error)):
            raise refused from None
        raise FileNotFoundError(2, "no such object", str(path)) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(17, "there is another one by now", str(path)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise refused from None
    except exceptions.BaseError as error:
        if REFUSED.search(str(error)):  # of lists, whose errors have no kind
            raise refused from None
        text = str(error).split("\n")[0].split(" - ", 1)[-1]
        text = re.sub(r"\S*://\S+", "the store", text)[:200]
        raise OSError(5, text or type(error).__name__, str(path)) from None


def _get(path: Path, wanted: Any) -> _Look:
    """Ask for a range (first byte, one beyond the last; or ``{"suffix": n}``) of an object."""
    import obstore

    store, name = store_of(path)
    for attempt in range(TRIES):
        try:
            with told(path):
                answer = obstore.get(store, name, options={"range": wanted})
                begin, end = answer.range
                data = memoryview(answer.bytes())
            if len(data) != end - begin:
                raise OSError(5, f"{len(data)} bytes came of {end - begin}", str(path))
            return _Look(_State.of(answer.meta), begin, data)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if attempt == TRIES - 1:
                raise
            time.sleep(PAUSE_S * 2**attempt)
    raise AssertionError


def look_ahead(paths: Iterable[Path], last_nbytes: int) -> None:
    """Ask in threads, which end with their answers, for the ends of objects to be opened next.

    Objects that are no longer than `last_nbytes` come whole.
    """
    from concurrent.futures import ThreadPoolExecutor

    wanted = {"suffix": last_nbytes}
    with _lock:
        new = [path for path in paths if str(path) not in _coming]
        if not new:
            return
        pool = ThreadPoolExecutor(LOOKS, "mdio look")
        for path in new:
            _coming[str(path)] = pool.submit(_get, path, wanted)
        while len(_coming) > MAX_KNOWN:
            _coming.popitem(last=False)
    pool.shutdown(wait=False)


def look(path: Path, wanted: Any = (0, HEAD_NBYTES)) -> _Look | None:
    """Return what an object is and how it begins (or ends); None if there is none."""
    import obstore

    key = str(path)
    with _lock:
        coming = _coming.pop(key, None)
    if coming is not None:
        with suppress(OSError):  # whatever it was, it is asked for again
            if (came := coming.result()).at > time.monotonic() - AHEAD_S:
                if len(came.data) < LARGE_NBYTES:
                    _keep(key, came)
                return came
    with _lock:
        found = _known.get(key)
    at = found.at if isinstance(found, _Look) else found
    if at is not None and time.monotonic() - at < KNOWN_S:
        return found if isinstance(found, _Look) else None
    now: _Look | None
    try:
        now = _get(path, wanted)
    except FileNotFoundError:
        now = None
    except PermissionError:
        raise
    except OSError:  # nothing to have a range of, or no such ranges here: see what it is
        store, name = store_of(path)
        try:
            with told(path):
                now = _Look(_State.of(obstore.head(store, name)), 0, b"")
        except FileNotFoundError:
            now = None
    _keep(key, time.monotonic() if now is None else now)
    return now


def _keep(key: str, found: _Look | float) -> None:
    with _lock:
        _known[key] = found
        _known.move_to_end(key)
        while len(_known) > MAX_KNOWN:
            _known.popitem(last=False)


def forget(path: Path, *, below: bool = False) -> None:
    """Forget what was found out about an object, which is changed.

    With `below`, what is known of those in a folder, or was asked for ahead: whoever opens it next
    may find another output.
    """
    with _lock:
        if below:
            for found in (_known, _coming):
                for key in [key for key in found if key.startswith(f"{path}/")]:
                    del found[key]
            return
        _known.pop(str(path), None)
        _coming.pop(str(path), None)


class RemoteObject:
    """One object, as it was when it was opened; for any number of threads.

    `path`: its URL. `last_nbytes`: bytes at its end that are wanted first: they come with the
    request that opens it.
    Raises OSError: it is not there, or the store does not give it.
    """

    def __init__(self, path: Path, last_nbytes: int = 0) -> None:
        found = look(path, {"suffix": last_nbytes} if last_nbytes else (0, HEAD_NBYTES))
        if found is None:
            raise FileNotFoundError(2, "no such object", str(path))
        self.path, self.state = path, found.state
        self._begin, self._data = found.begin, found.data
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
            return None
        if at <= self._front:
            self._front = max(self._front, at + nbytes)
            if LARGE_NBYTES < len(data) <= self._front + self._last_nbytes:
                self._data = b""
        return data[at : at + nbytes]

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes of it, with one request where need be: fewer only at the end.

        Raises OSError: they cannot be had, or the object is another one than was opened.
        """
        nbytes = max(0, min(nbytes, self.state.nbytes - offset))
        if (here := self.held(offset, nbytes)) is not None or not nbytes:
            return memoryview(b"") if here is None else here
        found = _get(self.path, (offset, offset + nbytes))
        if found.state != self.state:
            forget(self.path)
            raise OSError(
                5,
                f"it was replaced while it was open: {self.state.nbytes} bytes with ETag "
                f"{self.state.tag} were opened, {found.state.nbytes} with {found.state.tag} "
                "are there now; open it again",
                str(self.path),
            )
        return memoryview(found.data)

    def read_into(self, buffers: Sequence[Any], offset: int) -> int:
        """Fill `buffers`, and return how many bytes came; 0 at the end; raises as `get` does."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data, at = self.get(offset, sum(map(len, views))), 0
        for view in views:
            part = data[at : at + len(view)]
            view[: len(part)] = part
            at += len(part)
        return at
