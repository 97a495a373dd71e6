"""What the threads of this process wait for: calls on storage that are in progress.

A `mdio.core.stalls.StallWatch` looks at them. Reads, which may take a microsecond, are only noted
while one watches (`n_watches`).
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from threading import get_ident
from typing import NamedTuple


class Wait(NamedTuple):
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


class Waits:
    """The call in progress of each thread."""

    def __init__(self) -> None:
        self.n_watches = 0
        self.by_thread: dict[int, Wait] = {}
        self._numbers = count()

    def begin(self, operation: str, file: Path | int) -> None:
        """Note that this thread begins a call."""
        self.by_thread[get_ident()] = Wait(operation, file, next(self._numbers))

    def end(self) -> None:
        """Note that this thread's call has ended."""
        self.by_thread.pop(get_ident(), None)


waits = Waits()
