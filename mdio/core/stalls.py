"""Storage that does not answer never stays silent: a thread watches what the others wait for.

A read from a server that is gone can hang for minutes without an error, and nobody who looks at the
program knows why it stands still. `StallWatch` looks every few seconds at which function of the
floor (`mdio.core.files`) each thread is in. One that stays at the same bytes of the same file for
too long is reported, with rank, host, file and how long. That costs the reads and writes nothing:
the watch looks at their frames, and they know nothing of it.
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
MOST_POLL_S = 5.0

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
    """Return the file that a function of the floor works on."""
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
        self._poll_s = min(MOST_POLL_S, timeout_s / 4, (abort_s or timeout_s) / 4)
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
        """Watch no longer."""
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(self._poll_s):
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Look at all threads once, and report those that are stuck."""
        own = threading.get_ident()
        waits: dict[int, tuple[Wait, float, int]] = {}
        for thread, frame in sys._current_frames().items():
            wait = None if thread == own else _wait_of(frame)
            if wait is None:
                continue
            before = self._since.get(thread)
            if before is None or before[0] != wait:
                waits[thread] = wait, now_s, 1
                continue
            _, since_s, n_next = before
            lasted_s = now_s - since_s
            if lasted_s >= n_next * self.timeout_s:
                self._report(
                    f"{describe_process()}: {wait[0]} {wait[1]} has taken {lasted_s:.0f} s; "
                    f"{WAITING}"
                )
                n_next += 1
            if self.abort_s is not None and lasted_s >= self.abort_s:
                self._report(
                    f"{describe_process()}: {wait[0]} {wait[1]} has taken {lasted_s:.0f} s: ended, "
                    "as --stall-abort asks; what was being written stays under its temporary name"
                )
                _abort()
            waits[thread] = wait, since_s, n_next
        self._since = waits


GONE = {errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.ESHUTDOWN, errno.EHOSTDOWN}
"""What the system says of files on a mount that is lost."""
LOST = GONE | {errno.EIO}
"""Error numbers of the system for a lost mount or a failing disk."""

WAITING = "the storage does not answer, still waiting"


def describe_process() -> str:
    """Return rank and host of this process, as messages have it."""
    rank = next((os.environ[name] for name in RANK_NAMES if name in os.environ), None)
    host = os.uname().nodename
    return f"mdio on {host}" if rank is None else f"mdio, rank {rank} on {host}"


def lost_mount(error: BaseException | None) -> str:
    """Return the name of this machine, where an error is of storage that it has lost."""
    return f" on {os.uname().nodename}" if _is_one_of(LOST, error) else ""


def is_mount_gone(error: BaseException) -> bool:
    """Return whether an error comes from a lost mount, so that the file may be intact."""
    return _is_one_of(GONE, error)


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
