"""Rows from every rank to every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.parallel.gather import RowType

if TYPE_CHECKING:
    from mpi4py import MPI

PIECE_NBYTES = 1 << 30
"""From one rank to another in one call: some MPIs fail beyond 2 GiB."""


def exchange_rows(rows: NDArray[Any], counts: Sequence[int], comm: MPI.Intracomm) -> NDArray[Any]:
    """Send rows to all ranks and return what comes from them (collective; Alltoallv).

    `rows`, (n, ...): C-contiguous, those for rank 0 first; of one dtype and shape of a row on all
    ranks. `counts`: how many of them go to each rank. `comm` (mpi4py.MPI.Intracomm): the ranks.
    Returns (m, ...) array: in order of rank, of each as it sent them.
    """
    row = RowType(rows.shape[1:], rows.dtype)
    incoming = comm.alltoall(list(counts))
    out = row.empty(sum(incoming))
    most = max(1, PIECE_NBYTES // max(1, row.nbytes))
    n_pieces = max(comm.allgather(math.ceil(max(counts) / most)))
    for piece in range(n_pieces if row.nbytes else 0):
        sent, received = (
            [*row.message(array)[:1], *_piece(numbers, piece * most, most), row.datatype]
            for array, numbers in ((rows, counts), (out, incoming))
        )
        comm.Alltoallv(sent, received)
    row.free()
    return out


def _piece(counts: Sequence[int], done: int, most: int) -> tuple[list[int], list[int]]:
    """Return how many rows of each rank come next, and where they begin."""
    firsts = np.cumsum([0, *counts])[:-1].tolist()
    left = [min(most, max(0, count - done)) for count in counts]
    starts = [first + min(done, count) for first, count in zip(firsts, counts, strict=True)]
    return left, starts
