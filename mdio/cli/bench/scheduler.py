"""``mdio bench scheduler``."""

from __future__ import annotations

import argparse

from mdio.analysis.pages.pictures import need_matplotlib
from mdio.benches.records import append_jsonl, make_folder
from mdio.benches.scheduler import SCHEDULERS, measure, save_scheduler_page
from mdio.cli.bench import one_of
from mdio.cli.shared.common import add, add_bench_output, positive, print_json
from mdio.parallel.executors import available_cores


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument(
        "--tasks", type=positive, default=2000, help="the papers have 100000 (default: 2000)"
    )
    add(parser, "-w --workers N", "default: all cores", positive)
    names = tuple(SCHEDULERS)
    add(
        parser,
        "--scheduler S,S",
        f"of {', '.join(names)} (default: all)",
        one_of(names),
        default=",".join(names),
    )
    add(parser, "--repeats N", "runs of each (default: 3)", positive, default=3)
    add_bench_output(parser, "scheduler", "scheduler.jsonl and scheduler.html")


def run(args: argparse.Namespace) -> int:
    """Run the tasks on each scheduler in turn, save, print."""
    need_matplotlib("mdio bench scheduler")
    folder = make_folder(args.out)
    n_workers = args.workers or available_cores()
    records = []
    for repeat in range(args.repeats):
        for name in args.scheduler:
            found = measure(name, args.tasks, n_workers)
            append_jsonl(folder / "scheduler.jsonl", [{"bench": "scheduler", **found}])
            records.append({"repeat": repeat, **found})
            if not (args.json or args.quiet):
                rate = found["tasks_per_s"]
                print(
                    f"{repeat + 1}/{args.repeats}  {name:<17}"
                    f"{'-' if rate is None else f'{rate:,.0f}':>10} tasks/s"
                    f"{found['seconds']:10.3f} s in all, {found['start_s']:.3f} s to the first",
                    flush=True,
                )
    save_scheduler_page(folder / "scheduler.html", records)
    if args.json:
        print_json({"out": str(folder), "records": records})
    elif not args.quiet:
        print(f"{folder}: scheduler.html, scheduler.jsonl")
    return 0
