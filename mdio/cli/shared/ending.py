"""How a process under MPI ends: all ranks together, with one exit code, and at once.

MPI_Finalize of MPICH 4 with UCX over TCP waits for ever now and then, once ranks have talked to
each other. Where Hydra (MPICH's mpiexec) has started the ranks, they take leave of it themselves,
in its own words (PMI-1, the wire protocol of MPICH's process managers: `cmd=barrier_in`,
`cmd=finalize`), and end without MPI_Finalize. Under other launchers it is called, and watched.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import math
import os
import select
import sys
import time
from threading import Timer
from typing import Any

FAILED_ALONE_S = 10.0
"""A rank that has failed waits so long for the others to come to their end."""
FINALIZE_S = 2.0
"""MPI_Finalize has so long; afterwards the process ends without it."""
LAUNCHER_S = 5.0
"""Hydra has so long to answer."""
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def end_mpi(code: int) -> int:
    """End MPI after the work, if it was begun, with one exit code: the largest of all ranks.

    Does not return where the process has ended without MPI_Finalize. Otherwise returns the code.
    """
    MPI: Any = sys.modules.get("mpi4py.MPI")  # noqa: N806
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized():
        return code
    import numpy as np

    from mdio.parallel.sleeping import Nap

    _end_python()  # before the others are met: then all leave at one moment
    # All leave with one code: that of rank 0 alone is lost now and then on its way to the launcher.
    # Ranks sleep meanwhile, as rank 0 may still write. Who has failed alone ends the others.
    largest = np.array([code], np.int32)
    all_here = MPI.COMM_WORLD.Iallreduce(np.array([code], np.int32), largest, MPI.MAX)
    deadline = time.monotonic() + FAILED_ALONE_S if code else math.inf
    Nap().until(lambda: all_here.Test() or time.monotonic() > deadline)
    if not all_here.Test():
        os._exit(code)
    code = int(largest[0])
    launcher = _hydra(MPI)
    if launcher is not None and _take_leave(launcher, MPI.COMM_WORLD):
        os._exit(code)
    timer = Timer(FINALIZE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    ctypes.CDLL(MPI.__file__).MPI_Finalize()  # mpi4py's would hold up all threads of Python
    timer.cancel()
    return code


def _hydra(MPI: Any) -> int | None:  # noqa: N803
    """Return the descriptor on which Hydra speaks PMI-1 with this rank; None under others."""
    descriptor = os.environ.get("PMI_FD", "")
    library = MPI.Get_library_version()
    speaks = library.startswith("MPICH") and "pmi2" not in library and "pmix" not in library
    # srun's PMI-2 has a descriptor of that name too, but does not count the ranks of a node so.
    if descriptor.isdecimal() and os.environ.get("MPI_LOCALNRANKS") and speaks:
        return int(descriptor)
    return None


def _take_leave(launcher: int, comm: Any) -> bool:
    """Meet all ranks at the launcher and say that this one is done; return whether it agreed."""
    try:
        # The last message of a rank may still be on its way when it has what it waited for: all go
        # on serving MPI until the launcher says that every one has come.
        return _ask(launcher, b"barrier_in", b"barrier_out", math.inf, comm.Iprobe) and _ask(
            launcher, b"finalize", b"finalize_ack", LAUNCHER_S
        )
    except OSError:
        return False


def _ask(
    launcher: int, command: bytes, answer: bytes, timeout_s: float, meanwhile: Any = None
) -> bool:
    """Send a command to the launcher; return whether `answer` came back within `timeout_s`."""
    os.write(launcher, b"cmd=%s\n" % command)
    deadline, line = time.monotonic() + timeout_s, b""
    while time.monotonic() < deadline and not line.endswith(b"\n"):
        if meanwhile is not None:
            meanwhile()
        if select.select([launcher], [], [], 0.001)[0]:
            piece = os.read(launcher, 1)
            if not piece:
                return False
            line += piece
    return b"cmd=" + answer in line


def _end_python() -> None:
    """Do what Python would at its end, but for what calls MPI: its own exit and HDF5's."""
    atexit._run_exitfuncs()
    gc.unfreeze()
    for file in gc.get_objects():  # what a user's function has left open
        if issubclass(type(file), FILES):
            try:
                file.flush()
            except (OSError, ValueError):  # closed, or not for writing
                continue
    ctypes.CDLL(None).fflush(None)
