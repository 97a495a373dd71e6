"""``mdio bench gather``."""

from __future__ import annotations

import argparse
import sys

from mdio.analysis.pages.pictures import need_matplotlib
from mdio.benches.gather import WAYS, launch, measure, save_gather_page, summarise, verdict
from mdio.benches.records import append_jsonl, make_folder
from mdio.cli.bench import positives, sizes
from mdio.cli.shared.common import add, add_bench_output, positive, print_json
from mdio.cli.shared.ranks import root_speaks, world
from mdio.core.words import human_nbytes, plural


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    add(
        parser,
        "-w --workers N,N",
        "numbers of ranks (default: %(default)s)",
        positives,
        default="1,2",
    )
    add(
        parser,
        "--nbytes S,S",
        "that each rank sends (default: %(default)s)",
        sizes,
        default="1K,16K,256K,4M",
    )
    add(parser, "--repeats N", "runs of each (default: 20)", positive, default=20)
    add(parser, "--mpiexec CMD", "launcher of MPI programs, with options")
    add(
        parser,
        "--on-ranks",
        "this is an MPI program already: measure on its ranks, print, save nothing",
    )
    add_bench_output(parser, "gather", "gather.jsonl and gather.html")


def run(args: argparse.Namespace) -> int:
    """Measure on each number of ranks, save, print a table."""
    if args.on_ranks:
        return _run_on_ranks(args)
    need_matplotlib("mdio bench gather")
    folder = make_folder(args.out)
    records = []
    for n_ranks in args.workers:
        if not (args.quiet or args.json):
            print(plural(n_ranks, "rank"), file=sys.stderr, flush=True)
        found = launch(n_ranks, args.nbytes, args.repeats, args.mpiexec)
        append_jsonl(folder / "gather.jsonl", [{"bench": "gather", **one} for one in found])
        records += found
    rows = summarise(records)
    save_gather_page(folder / "gather.html", rows)
    if args.json:
        print_json({"out": str(folder), "rows": rows, "verdict": verdict(rows)})
    elif not args.quiet:
        _print(rows)
        print(f"{folder}: gather.html, gather.jsonl")
    return 0


def _run_on_ranks(args: argparse.Namespace) -> int:
    comm = world("--on-ranks")
    with root_speaks(comm):
        records = measure(comm, args.nbytes, args.repeats)
        if comm.rank == 0:
            rows = summarise(records)
            if args.json:
                print_json({"records": records, "rows": rows})
            elif not args.quiet:
                _print(rows)
    return 0


def _print(rows: list[dict[str, float]]) -> None:
    print(f"ranks   per rank {''.join(f'{how:>15}' for how in WAYS)}")
    for row in rows:
        times = "".join(f"{1e3 * row[how]:12.3f} ms" for how in WAYS)
        print(f"{row['n_ranks']:5}{human_nbytes(row['nbytes_per_rank']):>11} {times}")
    print(verdict(rows))
