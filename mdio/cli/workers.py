"""Who shares the work: ``--executor``, ``-w``, ``--scheduler`` and ``--mpi`` in all commands.

Under MPI: where COMM_WORLD comes from, and that one rank speaks for all.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from mdio.cli.common import add, positive
from mdio.core.errors import MdioError, MissingExtraError, PlanError
from mdio.core.words import RANK_NAMES

if TYPE_CHECKING:
    from mdio.parallel.executors import Executor


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


EXECUTORS = ("serial", "processes", "dask", "mpi")
"""The last is spelled ``--mpi``."""


def add_workers(parser: Any) -> None:
    """Add the options to a parser or a group of one."""
    choices = "|".join(EXECUTORS[:-1])
    help_text = "default: processes with -w, else serial"
    add(parser, f"--executor {choices}", help_text, choices=EXECUTORS)
    add(
        parser,
        "-w --workers N",
        "number of workers (default: 1; with --executor processes or dask, all cores)",
        positive,
    )
    add(parser, "--scheduler ADDRESS", "address of a running Dask cluster")
    add(parser, "--mpi", "share the work among MPI ranks")


def executor_name(args: argparse.Namespace) -> str:
    """Return the executor that was requested; raises PlanError where options do not fit it."""
    if args.mpi:
        if args.executor not in (None, "mpi"):
            raise PlanError(f"--mpi does not go with --executor {args.executor}; leave one out")
        return "mpi"
    if args.scheduler and args.executor not in (None, "dask"):
        raise PlanError(f"--scheduler is for --executor dask, not {args.executor}")
    if args.executor is not None:
        return str(args.executor)
    if args.scheduler:
        return "dask"
    return "processes" if args.workers and args.workers > 1 else "serial"


@contextmanager
def chosen_executor(args: argparse.Namespace) -> Iterator[Executor]:
    """Yield what shares the work; under MPI that is all ranks of COMM_WORLD, and rank 0 speaks."""
    name = executor_name(args)
    if name == "mpi":
        with all_ranks("--mpi" if args.mpi else "--executor mpi") as ranks:
            yield ranks
        return
    with _local_or_dask(name, args) as executor:
        yield executor


@contextmanager
def all_ranks(option: str) -> Iterator[Executor]:
    """Yield the ranks of COMM_WORLD, of which rank 0 speaks; `option` asks for them."""
    from mdio.parallel.mpi_executor import MPIExecutor

    comm = world(option)
    with root_speaks(comm), MPIExecutor(comm, to_all=False) as ranks:
        yield ranks


def _local_or_dask(name: str, args: argparse.Namespace) -> Executor:
    if name == "dask":
        from mdio.parallel.dask_executor import DaskExecutor

        if args.scheduler:
            return DaskExecutor.at(args.scheduler)
        return DaskExecutor(n_workers=args.workers)
    from mdio.parallel.executors import Processes, Serial  # most commands load them by themselves

    return Processes(args.workers) if name == "processes" else Serial()
