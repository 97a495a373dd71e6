"""Who shares the work: ``--executor``, ``-w``, ``--scheduler`` and ``--mpi`` in all commands.

Options of how an output lies on disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mdio.cli.shared.common import add, auto_or_positive, parse_nbytes, parse_stripes, positive
from mdio.cli.shared.ranks import root_speaks, world
from mdio.core.errors import PlanError
from mdio.layouts.chunk_shapes import PATTERNS
from mdio.parallel.executors import Executor, Processes, Serial

EXECUTORS = ("serial", "processes", "dask", "mpi")


def add_workers(parser: Any, *, mpi_option: bool = True) -> None:
    """Add the options to a parser or a group of one.

    `parser`: of argparse. `mpi_option`: whether ``--mpi`` is there as a short form of ``--executor
    mpi``.
    """
    add(parser, "--executor", "default: processes with -w, else serial", choices=EXECUTORS)
    add(
        parser,
        "-w --workers N",
        "number of workers (default: 1; with --executor processes or dask, all cores)",
        positive,
    )
    add(parser, "--scheduler ADDRESS", "address of a running Dask cluster")
    if mpi_option:
        add(parser, "--mpi", "share the work among MPI ranks; the same as --executor mpi")


def executor_name(args: argparse.Namespace) -> str:
    """Return the executor that is asked for; raises PlanError where options do not fit it."""
    if getattr(args, "mpi", False):
        if args.executor not in (None, "mpi"):
            raise PlanError(f"--mpi is for --executor mpi, not {args.executor}")
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
        with all_ranks("--mpi" if getattr(args, "mpi", False) else "--executor mpi") as ranks:
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


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    place = parser.add_argument_group("how it lies on disk")
    add(
        place,
        "--for",
        "h5md, zarr: how it will be read: single frames in any order, blocks of whole frames "
        "(default), the same selection of neighbouring atoms, time series of each atom",
        dest="pattern",
        choices=PATTERNS,
    )
    add(place, "--chunk-frames N|auto", "frames in a chunk", auto_or_positive)
    add(place, "--chunk-atoms N|auto", "atoms in a chunk", auto_or_positive)
    add(
        place,
        "--contiguous",
        "h5md: each array in one piece, without chunks (--chunk-frames is then how many "
        "frames share a checksum)",
    )
    add(
        place,
        "--container",
        "format of the segments (default: that of the source)",
        choices=("xtc", "trr", "dcd", "ncdf"),
    )
    add(
        place,
        "--flavour",
        "h5md: in the units and under the names that GROMACS 2026 reads",
        choices=("gromacs",),
    )
    add(place, "--segments N", "number of segments", positive)
    add(
        place,
        "--stripe-size SIZE",
        "stripe that chunks should fit, and Lustre is asked for (default: what the folder of "
        "OUT has on Lustre, else 1M)",
        parse_nbytes,
        dest="stripe_nbytes",
    )
    add(
        place,
        "--direct",
        "on: large writes go past the page cache (auto: on a disk of this machine, if OUT is "
        "larger than 1 GiB and the disk takes 1 GB/s, or larger than a quarter of the memory that "
        "is available)",
        choices=("on", "off", "auto"),
        default="auto",
    )
    counts = place.add_mutually_exclusive_group()
    add(counts, "--stripe-count N", "stripes, -1 for all targets", int)
    add(
        counts,
        "--progressive END:N,...,-1:N",
        "stripes that grow with the file on Lustre: 1G:1,-1:8 is one up to 1 GiB, then eight",
        parse_stripes,
    )
