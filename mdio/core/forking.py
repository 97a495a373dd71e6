"""Signals while a process is forked."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["ending_signals_held", "let_ending_signals_in"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that handlers of the parent may turn into exceptions."""


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
