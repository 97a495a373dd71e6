"""Zazen's figures, redrawn: who reads what, and what caches on nodes give.

    python bench/paper/zazen.py -o bench-output/zazen --mpi       # ten minutes, 1e9 units
    python bench/paper/zazen.py -o bench-output/zazen --quick     # a minute, 1e7 units
    python bench/paper/zazen.py --mpi --only assign,off           # what has to be reached

After Tu, Rendleman, Miller, Sacerdoti, Dror and Shaw (2010): the time in which units are assigned
to nodes, against nodes and against units; bandwidth by size of a unit and processes a node; reading
while others write; nodes that are switched off. Writes `zazen.png` (of all) and `zazen.jsonl`,
and says of each aim whether it is reached.

Assigning is measured as one rank of N has it: the others' bitmaps are made here, and what would
travel is copied; with `--mpi` real ranks do it (`.venv-mpi`). Where nodes and storage have a given
bandwidth (nodes switched off), it is this program that waits: reads of the source, and of units of
the cache, take at least as long as their bytes at that rate, and nodes read one after the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import append_jsonl
from paper.zazen_assigning import assignments, real_ranks
from paper.zazen_pictures import draw
from paper.zazen_reading import N_NODES, bandwidths, make_source, switched_off

Row = dict[str, Any]
PARTS = ("assign", "read", "off")


def aims(rows: list[Row]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield what is to be reached, the limit, what was found, and whether it is reached."""
    for row in rows:
        if row["what"] in ("one rank", "real ranks") and row["nodes"] in (4, 100):
            units, nodes = row["units"], row["nodes"]
            limit = {10**6: 3.0}.get(units)
            if limit is None or (nodes == 4 and row["what"] == "one rank"):
                continue
            ranks = "4 real ranks" if nodes == 4 else "one of 100 ranks"
            found = f"{row['seconds']:.2f} s, {row['cpu_s']:.2f} s of CPU"
            yield f"assign {units:,} units, {ranks}", f"{limit} s", found, row["seconds"] < limit
            if "peak_nbytes" in row:
                peak = row["peak_nbytes"]
                yield f"memory of one of {ranks}", "1 GB", f"{peak / 1e9:.2f} GB", peak < 1e9
        elif row["what"] == "off" and not row["share"]:
            share, moved = row["of_local_rate"], row["nbytes_source"]
            yield "second pass, of the local disks", "0.9", f"{share:.3f}", share >= 0.9
            yield "second pass, from the shared storage", "0 bytes", f"{moved} bytes", not moved
        elif row["what"] == "off":
            name = f"{row['share']:.1%} of nodes off, of T (1 + delta B / b)"
            yield name, "1.10", f"{row['of_law']:.3f}", row["of_law"] <= 1.1


def main() -> None:
    """Measure, draw, say what is reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--out", type=Path, default=Path("bench-output/zazen"))
    parser.add_argument("--only", default=",".join(PARTS), help="of assign, read, off")
    parser.add_argument("--repeats", type=int, default=3, help="of nodes switched off")
    parser.add_argument("--quick", action="store_true", help="small: a minute")
    parser.add_argument("--mpi", action="store_true", help="real ranks too")
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks:
        real_ranks(args.ranks)
        return
    wanted = args.only.split(",")
    if not set(wanted) <= set(PARTS):
        parser.error(f"--only {args.only}: give some of {', '.join(PARTS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    if "assign" in wanted:
        rows += assignments(10**5 if args.quick else 10**6, args.mpi)
    path = make_source(args.out, (48 if args.quick else 400) << 20)
    try:
        if "read" in wanted:
            sizes = [2 << 20, 16 << 20] if args.quick else [2 << 20, 16 << 20, 64 << 20]
            rows += bandwidths(path, sizes, [1, 2] if args.quick else [1, 2, 4, 8])
        if "off" in wanted:
            rows += switched_off(path, 1 if args.quick else args.repeats)
    finally:
        path.unlink()
        (args.out / "written").unlink(missing_ok=True)
    append_jsonl(args.out / "zazen.jsonl", rows)
    if len(wanted) == len(PARTS):
        draw(rows, args.out / "zazen.png", N_NODES)
        print(args.out / "zazen.png")
    for what, limit, found, reached in aims(rows):
        print(f"{'reached' if reached else 'missed '}  {what}: {found} (must {limit})")


if __name__ == "__main__":
    main()
