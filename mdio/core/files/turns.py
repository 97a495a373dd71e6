"""Who changes what has a name: one process at a time, and only what it has seen there.

A run reads an output, works for a while, and puts a new one in its place. If another run has done
the same meanwhile, what that one made must not get lost: so the state that was read is compared
with what is there, and exchanged, while nobody else may do so. Locks of the system (flock) do not
hold on every network; a name that is given only where there is none (a link) does, on NFS too. The
file tells who made it, so that one left by a dead process is in nobody's way.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.files.fingerprint import END_NBYTES, MANIFESTS
from mdio.core.files.store import store_at
from mdio.core.files.temporaries import host_name, is_process_gone, process_identity
from mdio.core.kernels import crc32c

LOOK_S = 0.02
"""How long a process waits until it looks again whether it is its turn."""
STALE_S = 60.0
"""So long is the file of an unknown process left alone; names are changed within far less."""
WAIT_S = 600.0
"""How long a process waits for others at most."""
OWNER_NBYTES = 4096

State = tuple[Any, ...]

_unremoved: dict[Path, State | None] = {}
"""Files of this process that could not be removed yet: the disk refused, perhaps for a while."""


def state_at(path: Path) -> State | None:
    """Return what tells the output that is at `path` from any that takes its place; None if none.

    Of a folder, that of its manifest, which is written last. None in stores, which compare.
    Raises OSError: it cannot be looked at.
    """
    if store_at(path).compares_states:
        return None
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return status.st_ino, str(path.readlink())
        file = path
        if stat.S_ISDIR(status.st_mode):
            file = next((path / name for name in MANIFESTS if (path / name).is_file()), path)
        return status.st_ino, *_state_of(file)
    except FileNotFoundError:
        return None


def _state_of(file: Path) -> State:
    try:
        # Opening it asks a server what is there now, where its clients remember what was.
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        status = file.lstat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    try:
        status = os.fstat(fd)
        ends = b""
        if stat.S_ISREG(status.st_mode):
            ends = os.pread(fd, END_NBYTES, 0)
            ends += os.pread(fd, END_NBYTES, max(0, status.st_size - END_NBYTES))
        return status.st_ino, status.st_size, status.st_mtime_ns, crc32c(ends)
    finally:
        os.close(fd)


def changed(path: Path) -> OutputError:
    """Return the error of the run that comes second."""
    return OutputError(
        f"{path}: another run has changed it meanwhile, so nothing of this one was put in its "
        "place; run it again"
    )


@contextlib.contextmanager
def turn_at(goal: Path) -> Iterator[None]:
    """Be the only one who changes what is at `goal`, on whatever machine others are.

    Raises OutputError: another one does so for too long. OSError: the folder cannot be written.
    """
    lock = _lock_of(goal)
    number = _take(lock, goal)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if lock.lstat().st_ino == number:
                _remove(lock)


def clear_dead_turn(goal: Path) -> None:
    """Remove what a process of this machine has left that was killed while it was its turn."""
    lock = _lock_of(goal)
    _remove_again(lock.parent)
    for own in lock.parent.glob(".mdio-turn-*"):  # on its way to be a lock, or aside
        if _is_left(own):
            own.unlink(missing_ok=True)
    state = state_at(lock)
    if state is not None and _is_gone(_owner(lock)):
        _clear(lock, state)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _lock_of(goal: Path) -> Path:
    return goal.with_name(f".{goal.name}.mdio-turn")


def _is_gone(owner: dict[str, Any]) -> bool:
    return owner.get("host") == host_name() and is_process_gone(owner)


def _take(lock: Path, goal: Path) -> int:
    """Make the file that says whose turn it is, and return its number."""
    _remove_again(lock.parent)
    begun = time.monotonic()
    seen: tuple[State | None, float] = (None, begun)
    while True:
        state = state_at(lock)
        if state is None:
            with contextlib.suppress(FileExistsError):
                return _make(lock)
            continue
        now = time.monotonic()
        if state != seen[0]:
            seen = state, now
        owner = _owner(lock)
        if _is_gone(owner) or now - seen[1] > STALE_S:
            _clear(lock, state)
        elif now - begun > WAIT_S:
            who = f"process {owner.get('pid', '?')} on {owner.get('host', 'some machine')}"
            raise OutputError(
                f"{goal}: another run ({who}) has been changing it for {WAIT_S:g} s; if that is "
                f"gone, remove {lock}, and run this again"
            )
        else:
            time.sleep(LOOK_S)


def _make(lock: Path) -> int:
    """Make the file, which says whose it is from the beginning, and return its number.

    Raises FileExistsError: there is one.
    """
    own = _name_of_ours(lock)
    try:
        number = _write(own)
        os.link(own, lock)
        return number
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        return _write(lock)
    finally:
        _remove(own)


def _remove(path: Path) -> None:
    """Remove a file of ours, now or, if the disk refuses, when this process is here again."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            _unremoved[path] = state_at(path)


def _remove_again(folder: Path) -> None:
    """Remove what could not be removed before, unless another one has its name by now."""
    for path in [path for path in list(_unremoved) if path.parent == folder]:
        state = _unremoved.pop(path, None)
        with contextlib.suppress(OSError):
            if state is not None and state_at(path) == state:
                _remove(path)


def _name_of_ours(lock: Path) -> Path:
    """Return a free name beside the lock that tells of this process; goals may have long names."""
    return lock.with_name(f".mdio-turn-{_here()}-{os.getpid()}-{os.urandom(4).hex()}")


def _here() -> str:
    return f"{crc32c(host_name().encode()):08x}"


def _is_left(own: Path) -> bool:
    """Return whether the process that made a file on its way to be the lock has gone."""
    owner = _owner(own)
    if owner:
        return _is_gone(owner)
    *_, host, pid, _ = ("", "", *own.name.split("-"))
    if host == _here() and pid.isdecimal():
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except OSError:  # somebody else's, or none at all
            return False
    return _age_s(own) > STALE_S


def _write(path: Path) -> int:
    """Make a file where there is none, with who we are in it; return its number."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # a full disk is in nobody's way
            os.write(fd, json.dumps(_ourselves()).encode())
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _ourselves() -> dict[str, Any]:
    return {"host": host_name(), **process_identity(os.getpid())}


def _owner(lock: Path) -> dict[str, Any]:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            said = json.loads(os.read(fd, OWNER_NBYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _clear(lock: Path, state: State) -> None:
    """Remove the file of a dead process; one that was made meanwhile comes back."""
    aside = _name_of_ours(lock)
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return
    if state_at(aside) != state:
        with contextlib.suppress(OSError):
            os.link(aside, lock)
    _remove(aside)
