"""Kernels for the command line under MPI."""

import os
import signal

import numpy as np


def fails_late(block):
    """Fail in one block only: of several that fail, whichever is first ends the others."""
    if block.time[0] <= 60 < block.time[-1]:
        raise ZeroDivisionError("no such\nangle")
    return block.time


def corners(block):
    return np.stack([block.positions[:, 0], block.positions[:, 3]], axis=1)


def killed_late(block):
    if 60 < block.time[-1] < 90:  # one block of three: of several, any may be first
        os.kill(os.getpid(), signal.SIGKILL)
    return block.time
