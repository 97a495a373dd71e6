"""What ``-w N`` and ``--mpi`` ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mdio.cli.ranks import root_speaks, world
from mdio.parallel.executors import Executor, Processes, Serial
from mdio.parallel.mpi_executor import MPIExecutor

__all__ = ["workers_or_ranks"]


@contextmanager
def workers_or_ranks(n_workers: int, *, mpi: bool) -> Iterator[Executor]:
    """Yield what shares the work: so many processes, or (``--mpi``) all ranks of COMM_WORLD."""
    if not mpi:
        with Processes(n_workers) if n_workers > 1 else Serial() as executor:
            yield executor
        return
    comm = world("--mpi")
    with root_speaks(comm), MPIExecutor(comm, to_all=False) as executor:
        yield executor
