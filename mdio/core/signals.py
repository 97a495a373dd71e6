"""Signals that end a program: turned into exceptions, and kept from being lost in a fork."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process that does not handle them."""
ENDING_SIGNALS = (signal.SIGINT, *TERMINATION_SIGNALS)
"""Signals that handlers of the parent may turn into exceptions."""
LAUNCHER_READ_S = 0.5
"""Time for a launcher to read a rank's last message: it drops unread output at the end."""

_received: list[int] = []
"""Signals whose exceptions `signals_as_exceptions` has raised and nothing has handled yet."""


@contextlib.contextmanager
def signals_as_exceptions(note: str = "") -> Iterator[None]:
    """Turn the signals that end a process into SystemExit, unless other code handles them.

    Python swallows the exception if it is raised within a finaliser or a callback of a weak
    reference, which libraries use. So loops call `raise_received_signal`, and so does the
    end of the block. `note`: added to the exception that is raised there.
    """
    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        defaults: dict[int, Any] = dict.fromkeys(TERMINATION_SIGNALS, signal.SIG_DFL)
        defaults[signal.SIGINT] = signal.default_int_handler  # raises KeyboardInterrupt
        former = {n: handler for n, handler in defaults.items() if signal.getsignal(n) == handler}
    for number in former:
        signal.signal(number, _raise_exception)
    former_hook = sys.unraisablehook

    def print_other_errors(unraisable: Any) -> None:
        if not (_received and isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit)):
            former_hook(unraisable)

    sys.unraisablehook = print_other_errors
    try:
        yield
        raise_received_signal(note)
    finally:
        sys.unraisablehook = former_hook
        for number, handler in former.items():
            signal.signal(number, handler)
        if former:
            _received.clear()


def _raise_exception(number: int, _frame: FrameType | None) -> None:
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the clean-up
    _received.append(number)
    raise_received_signal()


def raise_received_signal(note: str = "") -> None:
    """Raise the exception of a signal again if work goes on in spite of it.

    To be called between pieces of work in the main thread, not in what cleans up.
    """
    if _received and threading.current_thread() is threading.main_thread():
        is_interrupt = _received[0] == signal.SIGINT
        exit_exception = KeyboardInterrupt() if is_interrupt else SystemExit(128 + _received[0])
        if note:
            exit_exception.add_note(note)
        raise exit_exception


@contextlib.contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have `handler` called on signals that end a program."""
    old_handlers = {number: signal.signal(number, handler) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)


@contextlib.contextmanager
def stop_event_on_signals() -> Iterator[threading.Event]:
    """Yield an event, which the first signal that would end the program sets; a second ends it."""
    stop_event = threading.Event()

    def set_event(number: int, _frame: FrameType | None) -> None:
        if stop_event.is_set():
            raise SystemExit(128 + number)
        stop_event.set()

    with _handling_signals(set_event):
        yield stop_event


@contextlib.contextmanager
def ending_signals_left_to_rank_0(grace_s: float) -> Iterator[None]:
    """Let rank 0 end the program on a signal that all ranks get, since it reports what is kept.

    If this rank still runs after `grace_s`, it prints a message and ends by itself.
    """

    def end(number: int) -> None:
        from mdio.core.stalls import describe_process  # for this end only

        name = signal.Signals(number).name
        reason = f"since rank 0 did not end within {grace_s:g} s"
        sys.stderr.write(f"{describe_process()}: ended by {name}, {reason}\n")
        sys.stderr.flush()
        time.sleep(LAUNCHER_READ_S)
        os._exit(128 + number)

    def wait_for_rank_0(number: int, _frame: FrameType | None) -> None:
        deadline = threading.Timer(grace_s, end, (number,))
        deadline.daemon = True
        deadline.start()

    with _handling_signals(wait_for_rank_0):
        yield


@contextlib.contextmanager
def termination_signals_blocked() -> Iterator[None]:
    """Hold back signals that end a program until a child is forked and registered.

    An exception of a handler while Python forks would only be printed, and the signal be lost.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def unblock_termination_signals() -> None:
    """Release held signals; to be called first in a child, which inherits the mask."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
