"""Commands under MPI: where COMM_WORLD comes from, and that one rank speaks for all."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from mdio.core.errors import MdioError, MissingExtraError, PlanError
from mdio.core.words import RANK_NAMES

SLURM_RANK_NAME = "SLURM_PROCID"
"""The same of srun, which also starts programs that have nothing to do with each other."""
SIZE_NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""In which they tell how many ranks there are."""
ROOT_SPEAKS_S = 0.5
"""Some launchers end all ranks when the first one fails; rank 0 has to be heard before."""


def _launched_rank(words: Sequence[str]) -> int:
    """Return what the launcher says is this process' rank; 0 where there is none, or no MPI."""
    names = RANK_NAMES + ((SLURM_RANK_NAME,) if {"--mpi", "mpi"} & set(words) else ())
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return 0


def launched_ranks() -> int:
    """Return how many ranks the launcher of an MPI program says it started; 1 without one."""
    found = (os.environ.get(name, "") for name in SIZE_NAMES)
    return max([1, *(int(size) for size in found if size.isdecimal())])


@contextmanager
def parse_once(words: Sequence[str]) -> Iterator[None]:
    """Let rank 0 alone print what argparse has to say of `words`; the exit code stays.

    That comes before mpi4py is imported, so that the launcher has to be asked.
    """
    if _launched_rank(words) == 0:
        yield
        return
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            yield
        except SystemExit as end:
            _leave_quietly(end.code)


def _leave_quietly(code: Any) -> None:
    if code:
        time.sleep(ROOT_SPEAKS_S)
    raise SystemExit(code)


def world(option: str) -> Any:
    """Return COMM_WORLD for the option that asks for MPI.

    Raises MissingExtraError: mpi4py is not installed, or finds no MPI (on rank 0; other ranks leave
    with its exit code).
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if _launched_rank(["mpi"]) > 0:
            _leave_quietly(1)
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
