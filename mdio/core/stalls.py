"""Reports of storage that does not answer: a thread watches the calls of the others.

A read from a lost server can hang for minutes without an error. `StallWatch` looks every few
seconds at each thread's call. One that takes too long is reported, with rank, host, file and time.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Set
from itertools import count
from pathlib import Path
from threading import get_ident
from typing import NamedTuple

from mdio.core.words import RANK_VARIABLES

STALL_TIMEOUT_S = 60.0
MAX_POLL_S = 5.0


class PendingCall(NamedTuple):
    """A call in progress."""

    operation: str
    """``reading``, ``opening``, ``writing`` or ``flushing``."""
    file: Path | int
    """The file, or its descriptor."""
    number: int
    """Different for each call."""

    def __str__(self) -> str:
        """Return operation and file, for messages."""
        file: Path | int | str = self.file
        if isinstance(file, int):
            try:
                file = Path(f"/proc/self/fd/{file}").readlink()
            except OSError:
                file = "a file"
        return f"{self.operation} {file}"


class PendingCalls:
    """The calls in progress, one per thread.

    Reads, which may take a microsecond, are noted only while a `StallWatch` watches (`n_watches`).
    """

    def __init__(self) -> None:
        self.n_watches = 0
        self.by_thread: dict[int, PendingCall] = {}
        self._numbers = count()

    def begin(self, operation: str, file: Path | int) -> None:
        """Note that this thread begins a call."""
        self.by_thread[get_ident()] = PendingCall(operation, file, next(self._numbers))

    def end(self) -> None:
        """Note that this thread's call has ended."""
        self.by_thread.pop(get_ident(), None)


pending_calls = PendingCalls()


class StallWatch:
    """Watches this process and those that it forks.

    `timeout_s`: how long one operation may take before it is reported, again and again. `abort_s`:
    how long before the process is ended; never by default. `report`: called with each message.
    """

    def __init__(
        self,
        timeout_s: float = STALL_TIMEOUT_S,
        abort_s: float | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.abort_s = abort_s
        self._report = report or _print_to_stderr
        self._poll_s = min(MAX_POLL_S, timeout_s / 4, (abort_s or timeout_s) / 4)
        self._stopped = threading.Event()
        self._watched_calls: dict[int, tuple[PendingCall, float, int]] = {}
        """By thread: its call, since when it waits for that, and the number of the next report."""
        pending_calls.n_watches += 1
        self._start_thread()
        os.register_at_fork(after_in_child=self._start_thread)

    def _start_thread(self) -> None:
        if not self._stopped.is_set():
            self._watched_calls = {}
            pending_calls.by_thread.clear()  # of the parent's threads, after a fork
            threading.Thread(target=self._watch, name="mdio stalls", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        if not self._stopped.is_set():
            pending_calls.n_watches -= 1
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            self.check_threads(time.monotonic())

    def check_threads(self, now_s: float) -> None:
        """Check all threads once, and report those that have waited for too long."""
        watched_calls: dict[int, tuple[PendingCall, float, int]] = {}
        for thread, call in list(pending_calls.by_thread.items()):
            last = self._watched_calls.get(thread)
            if last is None or last[0] != call:
                watched_calls[thread] = call, now_s, 1
                continue
            _, since_s, n_report = last
            waited_s = now_s - since_s
            if waited_s >= n_report * self.timeout_s:
                self._report(f"{describe_process()}: {call} has taken {waited_s:.0f} s; {STALLED}")
                n_report += 1
            if self.abort_s is not None and waited_s >= self.abort_s:
                self._report(
                    f"{describe_process()}: {call} has taken {waited_s:.0f} s: ended, "
                    "as --stall-abort asks; what was being written stays under its temporary name"
                )
                _abort()
            watched_calls[thread] = call, since_s, n_report
        self._watched_calls = watched_calls


LOST_MOUNT = {errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.ESHUTDOWN, errno.EHOSTDOWN}
"""Error numbers of the system for files on a lost mount."""
LOST_STORAGE = LOST_MOUNT | {errno.EIO}
"""Error numbers of the system for a lost mount or a failing disk."""

STALLED = "the storage does not answer, still waiting"


def describe_process() -> str:
    """Return rank and host of this process, for messages."""
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), None)
    host = os.uname().nodename
    return f"mdio on {host}" if rank is None else f"mdio, rank {rank} on {host}"


def lost_storage_text(error: BaseException | None) -> str:
    """Return `` on HOST``, for a message, if an error comes from lost or failing storage."""
    return f" on {os.uname().nodename}" if _has_errno(LOST_STORAGE, error) else ""


def is_mount_lost(error: BaseException) -> bool:
    """Return whether an error comes from a lost mount, so that the file may be intact."""
    return _has_errno(LOST_MOUNT, error)


def _has_errno(numbers: Set[int], error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__
    return False


def _print_to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _abort() -> None:
    """End the process, and the MPI program that it belongs to, without waiting for anything."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(1)
    os._exit(1)
