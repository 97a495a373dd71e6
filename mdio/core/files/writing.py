"""The floor for writing: all of what is given, at its place, however many calls that takes."""

from __future__ import annotations

import errno
import os

from mdio.core.kernels.checks import Buffer, buffer

__all__ = ["Data", "write_all"]

Data = Buffer
"""C-contiguous."""

MAX_BUFFERS = 512
"""Buffers that one call writes; the system allows 1024."""


def write_all(fd: int, offset: int, *parts: Data) -> int:
    """Write `parts`, one after the other, from `offset` on.

    Returns
    -------
    int
        The offset behind them.

    Raises
    ------
    OSError
        As the system has it.
    """
    for first in range(0, len(parts), MAX_BUFFERS):
        views = [buffer(part) for part in parts[first : first + MAX_BUFFERS]]
        left = [view for view in views if view.nbytes]
        while left:  # the system writes at most 2 GiB at a time
            done = os.pwritev(fd, left, offset)
            if not done:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            offset += done
            while left and done >= left[0].nbytes:
                done -= left.pop(0).nbytes
            if left:
                left[0] = left[0][done:]
    return offset
