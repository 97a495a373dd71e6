"""The options on workers, the executor that they choose, and checks among ranks of MPI."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from typing import TYPE_CHECKING, Any

from mdio.cli.common import add, positive, print_notes
from mdio.core.errors import MdioError, MissingExtraError, PlanError
from mdio.core.words import RANK_VARIABLES, plural, without_passwords

if TYPE_CHECKING:
    from mdio.parallel.executors import Executor


SLURM_RANK_NAME = "SLURM_PROCID"
"""The variable of srun, which also starts programs that do not use MPI."""
RANK_COUNT_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which launchers pass the number of ranks."""
EXIT_DELAY_S = 0.5
"""How long other ranks wait before they exit with an error: some launchers end all ranks when the
first fails, so that rank 0 might not print its message."""
RANK_0_GRACE_S = 10.0
"""How long other ranks wait after a signal for rank 0 to end the program."""


def launched_rank(words: Sequence[str]) -> int:
    """Return this process' rank from the launcher's environment; 0 without MPI."""
    names = RANK_VARIABLES + ((SLURM_RANK_NAME,) if {"--mpi", "mpi"} & set(words) else ())
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return 0


def n_launched_ranks() -> int:
    """Return the number of ranks from the launcher's environment; 1 without MPI."""
    sizes = (os.environ.get(name, "") for name in RANK_COUNT_VARIABLES)
    return max([1, *(int(size) for size in sizes if size.isdecimal())])


@contextmanager
def rank_0_parser_messages(words: Sequence[str], *, compares_words: bool = True) -> Iterator[None]:
    """Let rank 0 alone print messages of argparse on `words`; all ranks get its exit code.

    mpi4py is not imported yet, so the rank comes from the launcher's environment. Other ranks,
    whose words may be right, would wait without end for one that ends here: it takes part in the
    comparison of words first. `compares_words`: whether the command does.
    """
    rank = launched_rank(words)
    try:
        with ExitStack() as redirected:
            if rank > 0:
                redirected.enter_context(redirect_stdout(io.StringIO()))
                redirected.enter_context(redirect_stderr(io.StringIO()))
            yield
    except SystemExit as end:
        if end.code and (rank > 0 or n_launched_ranks() > 1):
            if compares_words:
                with suppress(ImportError, RuntimeError, PlanError):  # rank 0 reports it
                    from mpi4py import MPI

                    check_same_words(MPI.COMM_WORLD, words)
            if rank > 0:
                _exit_quietly(end.code)
        raise


def check_same_words(comm: Any, words: Sequence[str]) -> None:
    """Check that all ranks were started with the same words (collective); raises PlanError."""
    from mdio.parallel.sleeping import allgather, bcast

    first_words = bcast(comm, words)
    differing = allgather(comm, None if words == first_words else words)
    for rank, other_words in enumerate(differing):
        if other_words is not None:
            raise PlanError(
                without_passwords(
                    f"rank 0 was started as 'mdio {shlex.join(first_words)}', and rank {rank} as "
                    f"'mdio {shlex.join(other_words)}'; start all ranks with the same words"
                )
            )


def _exit_quietly(code: Any) -> None:
    """End this rank with an exit code, after rank 0 has printed its message."""
    time.sleep(EXIT_DELAY_S)
    raise SystemExit(code)


def comm_world(option: str) -> Any:
    """Return COMM_WORLD for the option that needs it; without MPI, rank 0 alone raises an error."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if launched_rank(["mpi"]) > 0:
            _exit_quietly(1)
        raise MissingExtraError(
            f"{option} needs mpi4py and an MPI ({error}); make mpi builds an environment with both "
            '(.venv-mpi), or, with an MPI installed: pip install "mdio-layouts[mpi]"; then start '
            "with mpiexec -n RANKS mdio ..."
        ) from error
    return MPI.COMM_WORLD


@contextmanager
def raise_on_rank_0_alone(comm: Any) -> Iterator[None]:
    """Let rank 0 alone raise an error of all ranks; the others end with its exit code."""
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
    text = "default: processes with -w, else serial"
    add(parser, f"--executor {choices}", text, choices=EXECUTORS)
    text = "number of workers (default: 1; with --executor processes or dask, all cores)"
    add(parser, "-w --workers N", text, positive)
    add(parser, "--scheduler ADDRESS", "address, or scheduler file, of a running Dask cluster")
    add(parser, "--mpi", "share the work among MPI ranks")


def executor_name(args: argparse.Namespace) -> str:
    """Return the name of the requested executor; raises PlanError if options do not fit it."""
    if args.mpi:
        if args.executor not in (None, "mpi"):
            raise PlanError(
                f"--mpi cannot be combined with --executor {args.executor}; leave one out"
            )
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
    """Yield the chosen executor; with MPI, that of all ranks of COMM_WORLD (rank 0 prints)."""
    name = executor_name(args)
    context: AbstractContextManager[Executor]
    if name == "mpi":
        context = all_ranks("--mpi" if args.mpi else "--executor mpi", args.words)
    elif name == "dask":
        from mdio.parallel.dask_executor import DaskExecutor

        address = args.scheduler
        context = DaskExecutor.at(address) if address else DaskExecutor(n_workers=args.workers)
    else:
        from mdio.parallel.executors import Processes, Serial

        context = Processes(args.workers) if name == "processes" else Serial()
    with context as executor:
        if args.workers not in (None, executor.n_workers) and executor.is_owner:
            count = plural(executor.n_workers, "worker")
            print_notes(
                args.command, [f"-w {args.workers} is ignored: {executor.name} has {count}"]
            )
        yield executor


@contextmanager
def all_ranks(option: str, words: Sequence[str] = ()) -> Iterator[Executor]:
    """Yield the executor of all ranks of COMM_WORLD, of which rank 0 prints.

    `option`: the one that needs MPI. `words`: the command line of this rank; all have the same.
    """
    from mdio.core.signals import ending_signals_left_to_rank_0, signals_as_exceptions
    from mdio.parallel.mpi_executor import MPIExecutor

    comm = comm_world(option)
    if comm.rank == 0:
        signals = signals_as_exceptions()
    else:
        signals = ending_signals_left_to_rank_0(RANK_0_GRACE_S)
    with signals, raise_on_rank_0_alone(comm):
        check_same_words(comm, words)
        with MPIExecutor(comm, to_all=False) as ranks:
            yield ranks
