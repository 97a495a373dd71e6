"""Closing files of parallel HDF5, also those that cannot be written any more.

A full disk shows when HDF5 closes a file and writes what it has kept in memory. HDF5 1.10 then
frees the file but keeps its identifier, and whatever closes that once more makes the process crash:
h5py when it forgets the file, or HDF5 itself when the process ends, in which parallel HDF5 has a
part already in the end of MPI. So such an identifier is never closed again, and the process ends
without HDF5's part in that: where MPI runs, by MPI's own emergency exit.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import time

import h5py

from mdio.layouts.foreign.tree import FOREIGN_ERRORS

__all__ = ["close_file"]

CLOSES_AGAIN = (2, 0, 0)
"""HDF5 2.0 takes a second close; nothing is lost if versions before it do so too."""
FORWARD_S = 0.5
"""Launchers drop what they have not yet read of a message when the program is ended."""

_left: list[h5py.h5f.FileID] = []


def close_file(file: h5py.File) -> None:
    """Close `file`; if that fails, leave it as it is for good and raise what h5py has raised.

    A file that was left so before counts as closed.
    """
    if any(file.id is one for one in _left):
        return
    try:
        file.close()
    except FOREIGN_ERRORS:
        if h5py.version.hdf5_version_tuple < CLOSES_AGAIN:
            _leave(file.id)
        raise


def _leave(file_id: h5py.h5f.FileID) -> None:
    """Make sure that nothing closes a file again."""
    if not _left:
        library = ctypes.CDLL(None)
        if hasattr(library, "on_exit"):
            # Runs when Python has ended, and before HDF5's own end would; it keeps the exit code.
            library.on_exit(library._exit, None)
        atexit.register(_end_mpi)
    _left.append(file_id)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(file_id))  # h5py closes it with the last reference


def _end_mpi() -> None:
    """End the MPI program, if this is one, while its regular end would crash."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(FORWARD_S)
    mpi.COMM_WORLD.Abort(1)
