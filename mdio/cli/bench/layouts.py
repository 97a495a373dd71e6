"""``mdio bench layouts``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mdio.analysis.pages.pictures import need_matplotlib
from mdio.benches.layouts import (
    WAYS,
    cases,
    measure,
    read_all,
    save_layouts_page,
    summarise,
    table_rows,
)
from mdio.benches.records import append_jsonl, make_folder
from mdio.cli.bench import one_of, positives, sizes
from mdio.cli.shared.common import add, add_bench_output, positive, print_json
from mdio.cli.shared.workers import all_ranks
from mdio.core.errors import PlanError
from mdio.core.words import aligned
from mdio.parallel.executors import Processes, Serial

LAYOUTS = (
    *("h5md", "zarr", "segments", "segments:xtc", "segments:trr", "segments:dcd", "segments:ncdf"),
    *("split", "xtc", "trr", "dcd", "ncdf"),
)


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    add(parser, "source SRC", "trajectory")
    add(parser, "--folder DIR", "on the storage in question")
    add(
        parser,
        "--layouts L,L",
        f"of {', '.join(LAYOUTS)}; segments are as many as workers, and split copies bytes "
        "into them (default: %(default)s)",
        one_of(LAYOUTS),
        default="h5md,zarr,segments,split",
    )
    add(
        parser,
        "--ways W,W",
        "workers (processes), mpi (ranks, plain writes), mpio (parallel HDF5), collective "
        "(the same, collectively); (default: %(default)s)",
        one_of(WAYS),
        default="workers",
    )
    add(
        parser,
        "-w --workers N,N",
        "numbers of workers or ranks (default: %(default)s)",
        positives,
        default="1,2",
    )
    add(parser, "--compressions C,C", "none,gzip:1,...", default="none")
    add(parser, "--chunk-frames N,N", "default: planned", positives)
    add(parser, "--stripe-sizes S,S", "default: planned", sizes)
    add(parser, "--stripe-counts N,N", "for Lustre", positives)
    add(parser, "--repeats N", "runs of each (default: 3)", positive, default=3)
    add(parser, "--write-only", "do not read outputs")
    add(parser, "--mpiexec CMD", "launcher of MPI programs, with options")
    add(parser, "--read", "read SRC once with -w N or --mpi, and print the time")
    add(parser, "--mpi", "with --read: on the ranks of mpiexec")
    add_bench_output(parser, "layouts", "layouts.jsonl and layouts.html")


def run(args: argparse.Namespace) -> int:
    """Write and read all cases, save, print a table."""
    if args.read:
        return _read(args)
    if args.folder is None or not Path(args.folder).is_dir():
        raise PlanError(f"--folder {args.folder}: name a folder that is there, for the outputs")
    need_matplotlib("mdio bench layouts")
    out = make_folder(args.out)
    wanted = cases(
        args.layouts,
        args.ways,
        args.workers,
        compressions=[None if one == "none" else one for one in args.compressions.split(",")],
        chunk_frames=args.chunk_frames or (None,),
        stripes=args.stripe_sizes or (None,),
        stripe_counts=args.stripe_counts or (None,),
    )
    told = None if args.quiet or args.json else _tell
    records = []
    for record in measure(
        args.source,
        Path(args.folder),
        wanted,
        repeats=args.repeats,
        read=not args.write_only,
        mpiexec=args.mpiexec,
        told=told,
    ):
        append_jsonl(out / "layouts.jsonl", [{"bench": "layouts", **record}])
        records.append(record)
    rows = summarise(records)
    save_layouts_page(out / "layouts.html", rows)
    if args.json:
        print_json({"out": str(out), "rows": rows})
    elif not args.quiet:
        _print(rows)
        print(f"{out}: layouts.html, layouts.jsonl")
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _read(args: argparse.Namespace) -> int:
    n_workers = args.workers[0]
    alone = Processes(n_workers) if n_workers > 1 else Serial()
    with all_ranks("--mpi") if args.mpi else alone as executor:
        found = read_all(args.source, executor)
        if executor.is_owner:
            print_json(found)
    return 0


def _print(rows: list[dict[str, object]]) -> None:
    cells = table_rows(rows)
    print(*aligned(cells, len(cells[0])), sep="\n")
    if any(not row["cache_dropped"] and row["read_cold_s"] for row in rows):
        print("* the system's cache could not be dropped, or nobody can tell")
