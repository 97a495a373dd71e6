"""Who shares the work: ``--executor``, ``-w``, ``--scheduler`` and ``--mpi`` in all commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mdio.cli.shared.common import add, positive
from mdio.cli.shared.ranks import root_speaks, world
from mdio.core.errors import PlanError
from mdio.parallel.executors import Executor, Processes, Serial

EXECUTORS = ("serial", "processes", "dask", "mpi")
"""The last is spelled ``--mpi``."""


def add_workers(parser: Any) -> None:
    """Add the options to a parser or a group of one."""
    shown = "|".join(EXECUTORS[:-1])
    help_text = "default: processes with -w, else serial"
    add(parser, f"--executor {shown}", help_text, choices=EXECUTORS)
    add(
        parser,
        "-w --workers N",
        "number of workers (default: 1; with --executor processes or dask, all cores)",
        positive,
    )
    add(parser, "--scheduler ADDRESS", "address of a running Dask cluster")
    add(parser, "--mpi", "share the work among MPI ranks")


def executor_name(args: argparse.Namespace) -> str:
    """Return the executor that is asked for; raises PlanError where options do not fit it."""
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
    return Processes(args.workers) if name == "processes" else Serial()
