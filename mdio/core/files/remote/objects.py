"""Requests to stores: what an object is, and ranges of its bytes."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.files.remote.stores import naming_errors, patiently, store_of

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
"""What takes the place of answers, see `supposed`."""
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

    store, name = store_of(path)

    def ask() -> Answer:
        answer = obstore.get(store, name, options={"range": wanted})
        begin, end = answer.range
        data = memoryview(answer.bytes())
        if len(data) != end - begin:
            raise OSError(5, f"{len(data)} bytes came of {end - begin}", str(path))
        return Answer(State.of(answer.meta), begin, data)

    return patiently(path, ask)


def get_of(path: Path, wanted: tuple[int, int], state: State) -> Answer:
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


def drop(paths: Iterable[Path]) -> None:
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
def supposed(path: Path, data: bytes) -> Iterator[None]:
    """Have an object read, in this process, as though it were there already, and held `data`."""
    _supposed[str(path)] = Answer(State(len(data), "to be sent", 0), 0, data)
    try:
        yield
    finally:
        del _supposed[str(path)]


def look(path: Path, wanted: Any = (0, HEAD_NBYTES)) -> Answer | None:
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
        store, name = store_of(path)
        try:
            with naming_errors(path):
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
