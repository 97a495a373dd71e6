"""Signals that end a program: turned into exceptions, and kept from being lost in a fork."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

TERMINATING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process that does not handle them."""
ENDING = (signal.SIGINT, *TERMINATING)
"""Signals that handlers of the parent may turn into exceptions."""


@contextlib.contextmanager
def terminations_raised() -> Iterator[None]:
    """Turn the signals that end a process into SystemExit, where nobody else handles them.

    Work that passes over the exception, such as a finaliser, may go on, but not past the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ended: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the tidying
        ended.append(number)
        raise SystemExit(128 + number)

    unhandled = [number for number in TERMINATING if signal.getsignal(number) == signal.SIG_DFL]
    for number in unhandled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in unhandled:
            signal.signal(number, signal.SIG_DFL)
    if ended:
        raise SystemExit(128 + ended[0])


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have `handler` called on signals that end a program."""
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def ending_signals_noted() -> Iterator[threading.Event]:
    """Yield an event that signals that end a program set instead; the second one ends it."""
    noted = threading.Event()

    def note(number: int, _frame: FrameType | None) -> None:
        if noted.is_set():
            raise SystemExit(128 + number)
        noted.set()

    with _handled(note):
        yield noted


@contextlib.contextmanager
def ending_signals_left_to_rank_0(grace_s: float) -> Iterator[None]:
    """Let rank 0 end the program on a signal that all ranks get: it reports what is kept.

    This rank ends by itself if it is still there after `grace_s`.
    """

    def wait_for_rank_0(number: int, _frame: FrameType | None) -> None:
        deadline = threading.Timer(grace_s, os._exit, (128 + number,))
        deadline.daemon = True
        deadline.start()

    with _handled(wait_for_rank_0):
        yield


@contextlib.contextmanager
def ending_signals_held() -> Iterator[None]:
    """Have signals that end a program wait until a child is forked and noted down.

    What a handler raises while Python forks would only be printed, and the signal be lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_ending_signals_in() -> None:
    """Call this first in the child, which inherits that they are held."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
