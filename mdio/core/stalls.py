"""Reports of storage that does not answer: a thread watches what the others wait for.

A read from a lost server can hang for minutes without an error, and nobody can see why the program
makes no progress. `StallWatch` checks every few seconds which function of `mdio.core.files` each
thread is in. A thread that stays at the same bytes of the same file for too long is reported, with
rank, host, file and time. Reads and writes are not slowed down: the watch inspects the stack frames
of their threads.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mdio.core.files import reading, writing
from mdio.core.words import RANK_NAMES

STALL_TIMEOUT_S = 60.0
MAX_POLL_S = 5.0

WATCHED: dict[CodeType, tuple[str, tuple[str, ...]]] = {
    reading.OpenFile.fill.__code__: ("reading", ("offset", "n_read")),
    reading.OpenFile.fill_rows.__code__: ("reading", ("offset",)),
    reading.OpenFile.peek.__code__: ("reading", ("offset", "done")),
    reading.OpenFile.__init__.__code__: ("opening", ()),
    writing.write_all.__code__: ("writing", ("offset",)),
    writing.flush.__code__: ("flushing", ()),
}
"""By code object of a blocking function: what it does, and variables that show its progress."""

Wait = tuple[str, str, tuple[Any, ...]]
"""An operation: its name, its file, and its progress."""


def _file_of(variables: dict[str, Any]) -> str:
    """Return the file that one of the `WATCHED` functions works on, from its variables."""
    path = variables.get("path") or getattr(variables.get("self"), "path", None)
    if path is not None:
        return str(path)
    file = variables.get("file", variables.get("fd"))
    descriptor = file if isinstance(file, int) else getattr(file, "fileno", lambda: -1)()
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return "a file"


def _wait_of(frame: FrameType | None) -> Wait | None:
    """Return the operation that a thread waits for, if it is in one of `WATCHED`."""
    while frame is not None:
        watched = WATCHED.get(frame.f_code)
        if watched is not None:
            what, names = watched
            variables = frame.f_locals
            return what, _file_of(variables), (id(frame), *(variables.get(n) for n in names))
        frame = frame.f_back
    return None


class StallWatch:
    """Watches this process and those that it forks.

    `timeout_s`: how long one operation may take before it is reported, and after which it is
    reported again. `abort_s`: how long before the process is ended; never by default. `report`:
    called with each message; prints to stderr by default.
    """

    def __init__(
        self,
        timeout_s: float = STALL_TIMEOUT_S,
        abort_s: float | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.abort_s = abort_s
        self._report = report or _print
        self._poll_s = min(MAX_POLL_S, timeout_s / 4, (abort_s or timeout_s) / 4)
        self._end = threading.Event()
        self._since: dict[int, tuple[Wait, float, int]] = {}
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        if not self._end.is_set():
            self._since = {}
            threading.Thread(target=self._watch, name="mdio stalls", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(self._poll_s):
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Check all threads once, and report those that have waited for too long."""
        own = threading.get_ident()
        waits: dict[int, tuple[Wait, float, int]] = {}
        for thread, frame in sys._current_frames().items():
            wait = None if thread == own else _wait_of(frame)
            if wait is None:
                continue
            last = self._since.get(thread)
            if last is None or last[0] != wait:
                waits[thread] = wait, now_s, 1
                continue
            _, since_s, n_report = last
            lasted_s = now_s - since_s
            if lasted_s >= n_report * self.timeout_s:
                self._report(
                    f"{describe_process()}: {wait[0]} {wait[1]} has taken {lasted_s:.0f} s; "
                    f"{WAITING}"
                )
                n_report += 1
            if self.abort_s is not None and lasted_s >= self.abort_s:
                self._report(
                    f"{describe_process()}: {wait[0]} {wait[1]} has taken {lasted_s:.0f} s: ended, "
                    "as --stall-abort asks; what was being written stays under its temporary name"
                )
                _abort()
            waits[thread] = wait, since_s, n_report
        self._since = waits


LOST_MOUNT = {errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.ESHUTDOWN, errno.EHOSTDOWN}
"""Error numbers of the system for files on a lost mount."""
LOST_STORAGE = LOST_MOUNT | {errno.EIO}
"""Error numbers of the system for a lost mount or a failing disk."""

WAITING = "the storage does not answer, still waiting"


def describe_process() -> str:
    """Return rank and host of this process, for messages."""
    rank = next((os.environ[name] for name in RANK_NAMES if name in os.environ), None)
    host = os.uname().nodename
    return f"mdio on {host}" if rank is None else f"mdio, rank {rank} on {host}"


def lost_mount(error: BaseException | None) -> str:
    """Return `` on HOST``, for a message, if an error comes of storage that this machine lost."""
    return f" on {os.uname().nodename}" if _is_one_of(LOST_STORAGE, error) else ""


def is_mount_gone(error: BaseException) -> bool:
    """Return whether an error comes from a lost mount, so that the file may be intact."""
    return _is_one_of(LOST_MOUNT, error)


def _is_one_of(numbers: Set[int], error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__
    return False


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _abort() -> None:
    """End the process, and the MPI program that it belongs to, without waiting for anything."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(1)
    os._exit(1)
