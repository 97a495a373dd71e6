"""Commands under MPI: where COMM_WORLD comes from, and that one rank speaks for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mdio.core.errors import MdioError, MissingExtraError, PlanError

__all__ = ["root_speaks", "world"]


def world(option: str) -> Any:
    """Return COMM_WORLD for the option that asks for MPI.

    Raises
    ------
    MissingExtraError
        mpi4py is not installed, or finds no MPI.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"{option} needs mpi4py and an MPI ({error}); make mpi builds an environment with both "
            '(.venv-mpi), or, with an MPI installed: pip install "mdio-layouts[mpi]"; then start '
            "with mpiexec -n RANKS mdio ..."
        ) from error
    return MPI.COMM_WORLD


@contextmanager
def root_speaks(comm: Any) -> Iterator[None]:
    """Let rank 0 alone tell of an error that all ranks have; the others end with its exit code."""
    try:
        yield
    except MdioError as error:
        if comm.rank == 0:
            raise
        raise SystemExit(2 if isinstance(error, PlanError) else 1) from error
