"""Reading the next run of frames in a thread, while the analysis looks at the present one."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakSet

from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout
from mdio.readers.ring import FrameBuffer

_all: WeakSet[ReadAhead] = WeakSet()


def may_read_ahead(layout: Layout) -> bool:
    """Return whether to read ahead: if asked to, with a core to spare and something to decode.

    It is asked for with ``MDIO_READ_AHEAD=1`` in the environment, since it pays only where nobody
    else works on the other cores: the workers of a parallel analysis would be in each other's way.
    """
    if os.environ.get("MDIO_READ_AHEAD", "0") in ("", "0") or not layout.decodes:
        return False
    if hasattr(os, "sched_getaffinity"):
        n_cores = len(os.sched_getaffinity(0))
    else:
        n_cores = os.cpu_count() or 1
    return n_cores > 1 and layout.info.compression is not None


class ReadAhead:
    """One run of frames at a time on its way into memory, in a thread.

    The layout is the thread's from `begin` until `take` or `stop` has returned. The thread ends
    with `stop`, with the last reference to this, and before the process forks.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._thread: ThreadPoolExecutor | None = None
        self._begun: tuple[int, int, FrameBuffer, Future[FrameBlock]] | None = None
        _all.add(self)

    def begin(self, start: int, stop: int, room: FrameBuffer) -> None:
        """Begin to read frames ``start:stop``."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "mdio read-ahead")
        future = self._thread.submit(self._layout.read, start, stop, out=room.block)
        self._begun = start, stop, room, future

    def take(self, start: int, stop: int) -> FrameBuffer | None:
        """Wait for what was begun, and return it if it is frames ``start:stop``.

        None also if they could not be read: the error comes again when they are read for good,
        and belongs to the frame that is asked for then.
        """
        begun, self._begun = self._begun, None
        if begun is None or begun[3].exception() is not None or begun[:2] != (start, stop):
            return None
        return begun[2]

    def stop(self) -> None:
        """Wait for the thread, forget what it has read, and end it."""
        self._begun = None
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()


def _stop_all() -> None:
    for ahead in list(_all):
        ahead.stop()


if hasattr(os, "register_at_fork"):
    # The child would have no such thread, but what the thread was about.
    os.register_at_fork(before=_stop_all)
