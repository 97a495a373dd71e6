"""Requests to stores: what an object is, and ranges of its bytes."""

from __future__ import annotations

import os
import stat
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.files.remote.stores import patiently, store_of, told

if TYPE_CHECKING:
    from concurrent.futures import Future

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
_supposed: dict[str, _Look] = {}
"""What takes the place of answers, see `supposed`."""
ENDING = " and its end"
"""Behind the name of an object: what is known of its end."""
_lock = threading.RLock()
"""Held for a moment only: what is collected as garbage lets go of objects too, in any thread, also
in one that is just being started."""
if hasattr(os, "register_at_fork"):  # what other threads ask for never comes in a child
    os.register_at_fork(after_in_child=_coming.clear)


def _get(path: Path, wanted: Any) -> _Look:
    """Ask for a range (first byte, one beyond the last; or ``{"suffix": n}``) of an object."""
    import obstore

    store, name = store_of(path)

    def ask() -> _Look:
        answer = obstore.get(store, name, options={"range": wanted})
        begin, end = answer.range
        data = memoryview(answer.bytes())
        if len(data) != end - begin:
            raise OSError(5, f"{len(data)} bytes came of {end - begin}", str(path))
        return _Look(_State.of(answer.meta), begin, data)

    return patiently(path, ask)


def look_ahead(paths: Iterable[Path], last_nbytes: int) -> None:
    """Ask in threads, which end with their answers, for the ends of objects to be opened next.

    Objects that are no longer than `last_nbytes` come whole. What is at hand is not asked for.
    """
    with _lock:
        names = {str(path): path for path in paths}
        new = [name for name in names if name not in _coming]
        new = [name for name in new if not _has_end(_known.get(name), last_nbytes)]
    if not new:  # as when the interpreter ends, and nothing can be imported
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    asked: dict[str, Future[_Look]] = {name: Future() for name in new}
    with _lock:  # another thread may ask for the same
        asked = {name: one for name, one in asked.items() if _coming.setdefault(name, one) is one}
        while len(_coming) > MAX_KNOWN:
            _coming.popitem(last=False)

    def ask(name: str) -> None:
        try:
            asked[name].set_result(_get(names[name], {"suffix": last_nbytes}))
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


def _has_end(found: _Look | float | None, nbytes: int) -> bool:
    """Return whether an answer of late has the last bytes of an object."""
    if not isinstance(found, _Look) or time.monotonic() - found.at > KNOWN_S / 2:
        return False
    end, size = found.begin + len(found.data), found.state.nbytes
    return end == size and len(found.data) >= min(nbytes, size)


@contextmanager
def supposed(path: Path, data: bytes) -> Iterator[None]:
    """Have an object read, in this process, as though it were there already, and held `data`."""
    _supposed[str(path)] = _Look(_State(len(data), "to be sent", 0), 0, data)
    try:
        yield
    finally:
        del _supposed[str(path)]


def look(path: Path, wanted: Any = (0, HEAD_NBYTES)) -> _Look | None:
    """Return what an object is and how it begins (or ends); None if there is none."""
    import obstore

    key = str(path)
    if key in _supposed:
        return _supposed[key]
    coming = _coming.get(key)
    if coming is not None:
        came = None
        with suppress(OSError):  # whatever it was, it is asked for again
            came = coming.result()
        if came is not None and len(came.data) < LARGE_NBYTES:
            _keep(key, came)
        with _lock:
            if _coming.get(key) is coming:
                del _coming[key]
        if came is not None and came.at > time.monotonic() - AHEAD_S:
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
        _known.pop(key, None)
        _known[key] = found
        while len(_known) > MAX_KNOWN:
            _known.popitem(last=False)


def look_at_end(path: Path) -> None:
    """Have the end of an object at hand for who opens it now, with one request.

    Programs that write what they know of a file behind the rest of it are read so: 1 MiB of small
    files, 8 MiB of very large ones. Who has opened it forgets it here (`forget_end`): the next one
    is to see whether it was replaced.
    """
    key, found = f"{path}{ENDING}", look(path)
    if found is None or len(found.data) == found.state.nbytes:
        return
    size = found.state.nbytes
    with _lock:
        known = _known.get(key)
    if isinstance(known, _Look) and known.state == found.state:
        return
    with suppress(OSError):  # who opens it will meet it
        end = _get(path, (max(0, size - min(max(size // 200, 1 << 20), 8 << 20)), size))
        if end.state != found.state:
            forget(path)
        else:
            _keep(key, end)


def forget_end(path: Path) -> None:
    """Forget what was kept by `look_at_end`; objects that are open have it."""
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
        with _lock:
            end = _known.get(f"{path}{ENDING}")
        self._end = _Look(self.state, 0, b"")
        if isinstance(end, _Look) and end.state == self.state:
            self._end = end
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
            end, at = self._end, offset - self._end.begin
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
