"""Gathering every rank's rows on one rank: blocking, non-blocking, or one-sided.

All three give the same array; which is fastest depends on the network and on how unevenly ranks
finish. One-sided, rows go into an array that is spread over all ranks (an MPI-3
window; Global Arrays, Nieplocha et al. 1996, 10.1007/BF00130708, are the model), so no rank
waits for the receiver, which fetches the whole array at the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mdio.core.timing import Stopwatch
from mdio.parallel import GatherMode
from mdio.parallel.sleeping import ROOT, Backoff

if TYPE_CHECKING:
    from mpi4py import MPI

SMALL_NBYTES = 1 << 20
"""Ranks sleep while they wait for fewer bytes; more move only while ranks call MPI."""
PART_UNIT_NBYTES = 64
"""Ranks' parts of a window are multiples of this."""
TAG = 3


@dataclass(frozen=True, slots=True)
class Gathered:
    """The result of `gather_rows` on each rank."""

    rows: NDArray[Any] | None
    """Rows of all ranks in order of rank, on rank 0; None elsewhere."""
    t_comm_s: float
    """Seconds that this rank spent in communication, waiting for others included."""
    t_put_s: float = 0.0
    """One-sided: the part spent on making the array and putting this rank's rows into it."""
    t_get_s: float = 0.0
    """One-sided: the part spent on fetching the whole array (rank 0)."""


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


class RowType:
    """An MPI datatype of one row, so that counts are rows and stay far below 2**31."""

    def __init__(self, row_shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = row_shape
        self.dtype = np.dtype(dtype)
        self.nbytes = self.dtype.itemsize * math.prod(row_shape)
        self.datatype = _mpi().BYTE.Create_contiguous(self.nbytes).Commit()

    def empty(self, n_rows: int) -> NDArray[Any]:
        """Return an uninitialised array of rows."""
        return np.empty((n_rows, *self.shape), self.dtype)

    def message(self, rows: NDArray[Any]) -> list[Any]:
        """Return rows as a message for MPI."""
        return [rows.reshape(-1).view(np.uint8), len(rows), self.datatype]

    def free(self) -> None:
        """Free the datatype."""
        self.datatype.Free()


def gather_rows(
    rows: NDArray[Any], comm: MPI.Intracomm, counts: list[int], mode: GatherMode = "blocking"
) -> Gathered:
    """Gather the rows of all ranks on rank 0, in order of rank (collective).

    `rows`, (n, ...): this rank's rows, one per frame; n may differ from rank to rank and be 0, but
    dtype and the shape of a row may not. `comm` (mpi4py.MPI.Intracomm): the ranks. `counts`:
    numbers of rows of all ranks. `mode`: ``blocking`` (Gatherv), ``nonblocking`` (each rank sends
    when it is ready, rank 0 receives from all at once) or ``one-sided`` (every rank puts its rows
    into an array that is distributed over all, rank 0 gets them).
    """
    began_s = time.perf_counter()
    rows = np.ascontiguousarray(rows)
    row, put_s, get_s = RowType(rows.shape[1:], rows.dtype), 0.0, 0.0
    if mode == "one-sided":
        gathered, put_s, get_s = _gather_one_sided(rows, comm, counts, row)
    else:
        gather = _gather_blocking if mode == "blocking" else _gather_nonblocking
        gathered = gather(rows, comm, counts, row)
    row.free()
    return Gathered(gathered, time.perf_counter() - began_s, put_s, get_s)


def _gather_blocking(
    rows: NDArray[Any], comm: MPI.Intracomm, counts: list[int], row: RowType
) -> NDArray[Any] | None:
    n_rows = sum(counts)
    gathered, receive = None, None
    if comm.rank == ROOT:
        gathered = row.empty(n_rows)
        receive = [gathered.reshape(-1).view(np.uint8), counts, None, row.datatype]
    request = comm.Igatherv(row.message(rows), receive, root=ROOT)
    if n_rows * row.nbytes <= SMALL_NBYTES:
        Backoff().wait_until(request.Test)
    else:
        request.Wait()
    return gathered


def _gather_nonblocking(
    rows: NDArray[Any], comm: MPI.Intracomm, counts: list[int], row: RowType
) -> NDArray[Any] | None:
    if comm.rank != ROOT:
        if len(rows):
            comm.Isend(row.message(rows), dest=ROOT, tag=TAG).Wait()
        return None
    gathered = row.empty(sum(counts))
    requests, first = [], 0
    for rank, count in enumerate(counts):
        part = gathered[first : first + count]
        first += count
        if rank == ROOT:
            part[...] = rows
        elif count:
            requests.append(comm.Irecv(row.message(part), source=rank, tag=TAG))
    _mpi().Request.Waitall(requests)
    return gathered


def _gather_one_sided(
    rows: NDArray[Any], comm: MPI.Intracomm, counts: list[int], row: RowType
) -> tuple[NDArray[Any] | None, float, float]:
    """Return the rows on rank 0, and the seconds of putting and of getting them.

    Rank r keeps rows ``r * share`` to ``(r + 1) * share`` of the array.
    """
    watch, n_rows, gathered = Stopwatch(), sum(counts), None
    share = max(1, math.ceil(n_rows / comm.size))
    # MPICH 4.0.2 lets the parts of ranks on one node overlap unless all are multiples of 16.
    nbytes = math.ceil(row.nbytes * share / PART_UNIT_NBYTES) * PART_UNIT_NBYTES
    window = _mpi().Win.Allocate(nbytes, max(1, row.nbytes), comm=comm)
    window.Lock_all()

    def transfer(call: Callable[..., None], start: int, rows: NDArray[Any]) -> None:
        """Put or get rows from row `start` on, those of each rank with one call."""
        first, stop = start, start + len(rows)
        while first < stop:
            rank, offset = divmod(first, share)
            end = min(stop, (rank + 1) * share)
            part = row.message(rows[first - start : end - start])
            call(part, rank, [offset, end - first, row.datatype])
            first = end
        window.Flush_all()

    transfer(window.Put, sum(counts[: comm.rank]), rows)
    window.Sync()
    comm.Barrier()
    window.Sync()
    put_s = watch.lap()
    if comm.rank == ROOT:
        gathered = row.empty(n_rows)
        transfer(window.Get, 0, gathered)
    get_s = watch.lap()
    window.Unlock_all()
    window.Free()
    return gathered, put_s, get_s
