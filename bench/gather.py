"""The three gathers side by side, by size of the result and number of ranks.

The authors of the study that mdio grew from gathered with Global Arrays and asked whether
non-blocking sends would do as well; `verdict` answers it for one's own machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
from measuring import run_bench, sizes

from mdio.analysis import report as page
from mdio.analysis.plots import figure, figure_svg
from mdio.analysis.report import BLOCK_COLOURS, need_matplotlib
from mdio.analysis.scaling import append_jsonl, make_folder, mpiexec_command, run_for_json
from mdio.cli.common import add, add_bench_output, positive, positives, print_json
from mdio.cli.workers import comm_world, raise_on_rank_0_alone
from mdio.core.errors import BlockError
from mdio.core.words import human_nbytes, plural
from mdio.parallel import GATHERS
from mdio.parallel.gather import PART_UNIT_NBYTES, RowType, gather_rows

KEPT = "kept array"
WAYS = (*GATHERS, KEPT)
"""``one-sided`` makes a new array for each gather; ``kept array`` puts into one that is there
already and gets from it, which is what the papers call t_comm of a global array."""

ROW_VALUES = 2
"""The papers' row: time and RMSD."""
ALIKE = 1.1
"""Up to this ratio, two ways count as equally good."""


class KeptArray:
    """An array with as many rows of each rank, made once and put into at each gather."""

    def __init__(self, comm: Any, n_rows: int) -> None:
        from mpi4py import MPI

        self.comm, self.n_rows = comm, n_rows
        self.row = RowType((ROW_VALUES,), np.float64)
        nbytes = -(-self.row.nbytes * n_rows // PART_UNIT_NBYTES) * PART_UNIT_NBYTES
        self.window = MPI.Win.Allocate(nbytes, self.row.nbytes, comm=comm)
        self.window.Lock_all()

    def gather(self, rows: Any) -> Any:
        """Return the rows of all ranks on rank 0 (collective)."""
        part = [0, self.n_rows, self.row.datatype]
        self.window.Put(self.row.message(rows), self.comm.rank, part)
        self.window.Flush_all()
        self.window.Sync()
        self.comm.Barrier()
        self.window.Sync()
        if self.comm.rank:
            return None
        whole = self.row.empty(self.n_rows * self.comm.size)
        for rank, rows_of_rank in enumerate(np.split(whole, self.comm.size)):
            self.window.Get(self.row.message(rows_of_rank), rank, part)
        self.window.Flush_all()
        return whole

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Free the memory (collective); after an error the others may never make these calls."""
        if error_type is None:
            self.window.Unlock_all()
            self.window.Free()
            self.row.free()


def measure(comm: Any, sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Time every gather on the ranks of `comm` (collective).

    `comm` (mpi4py.MPI.Intracomm): the ranks. `sizes`: bytes that each rank sends, in rows of two
    doubles. `repeats`: of each; the ways take turns, and one round before them warms up.
    Returns list of dict: on rank 0, one record a run: ``n_ranks``, ``nbytes_per_rank``, ``gather``,
    ``repeat``, ``seconds`` (from a barrier until the last rank is through), ``seconds_root`` (until
    rank 0 is).
    Raises BlockError: a gather gave other rows than were sent.
    """
    records = []
    for nbytes in sizes:
        n_rows = max(1, nbytes // (8 * ROW_VALUES))
        rows = np.full((n_rows, ROW_VALUES), float(comm.rank))
        with KeptArray(comm, n_rows) as array:
            for repeat, how in itertools.product(range(-1, repeats), WAYS):
                comm.Barrier()
                begun = time.perf_counter()
                if how == KEPT:
                    whole = array.gather(rows)
                else:
                    counts = [n_rows] * comm.size
                    whole = gather_rows(rows, comm, counts, how).rows  # type: ignore[arg-type]
                took_s = time.perf_counter() - begun
                every = comm.gather(took_s)
                if comm.rank == 0:
                    _check(whole, n_rows, comm.size, how)
                    records.append(
                        {
                            "n_ranks": comm.size,
                            "nbytes_per_rank": n_rows * 8 * ROW_VALUES,
                            "gather": how,
                            "repeat": repeat,
                            "seconds": max(every),
                            "seconds_root": took_s,
                        }
                    )
    return [record for record in records if record["repeat"] >= 0]


def _check(rows: Any, n_rows: int, n_ranks: int, how: str) -> None:
    expected = np.repeat(np.arange(n_ranks, dtype=float), n_rows)
    if rows is None or not np.array_equal(rows[:, 0], expected):
        raise BlockError(f"the gather {how} on {n_ranks} ranks gave other rows than were sent")


def launch(
    n_ranks: int, sizes: Sequence[int], repeats: int, mpiexec: str | None
) -> list[dict[str, Any]]:
    """Run `measure` on `n_ranks` ranks of a new MPI program.

    Raises MissingExtraError: there is no mpiexec. BlockError: the program failed.
    """
    words = ["--on-ranks", "--json", "--repeats", str(repeats)]
    words += ["--nbytes", ",".join(map(str, sizes))]
    command = mpiexec_command(mpiexec, n_ranks, *words, program=(__file__,))
    records: list[dict[str, Any]] = run_for_json(command)["records"]
    return records


def summarise(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each number of ranks and size: the median of each way, and ratios.

    Returns list of dict: ``n_ranks``, ``nbytes_per_rank``, a median time (seconds) for each way by
    its name, and ``nonblocking_to_one_sided`` and ``nonblocking_to_kept_array``: one time divided
    by the other.
    """
    groups: dict[tuple[int, int], dict[str, list[float]]] = {}
    for record in records:
        key = record["n_ranks"], record["nbytes_per_rank"]
        groups.setdefault(key, {}).setdefault(record["gather"], []).append(record["seconds"])
    rows = []
    for (n_ranks, nbytes), ways in sorted(groups.items()):
        medians = {how: statistics.median(ways[how]) for how in WAYS}
        rows.append(
            {
                "n_ranks": n_ranks,
                "nbytes_per_rank": nbytes,
                **medians,
                "nonblocking_to_one_sided": medians["nonblocking"] / medians["one-sided"],
                "nonblocking_to_kept_array": medians["nonblocking"] / medians[KEPT],
            }
        )
    return rows


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Say whether non-blocking sends did as well as the global array, in these runs."""
    several = [row for row in rows if row["n_ranks"] > 1]
    if not several:
        return "One rank sends nothing: no answer."
    said = []
    for what, key in (
        ("a global array made for the gather", "nonblocking_to_one_sided"),
        ("a global array that was there already", "nonblocking_to_kept_array"),
    ):
        ratios = [row[key] for row in several]
        well = sum(ratio <= ALIKE for ratio in ratios)
        said.append(
            f"Beside {what}, non-blocking sends did as well or better in {well} of {len(ratios)} "
            f"cases: they took {min(ratios):.2f} to {max(ratios):.2f} of its time, "
            f"{statistics.median(ratios):.2f} in the median."
        )
    return " ".join(said)


def save_gather_page(path: str | PathLike[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write table, picture and answer as one HTML file."""
    heads = ("ranks", "kB per rank", *(f"{how}, ms" for how in WAYS))
    cells = [
        (row["n_ranks"], row["nbytes_per_rank"] / 1e3, *(1e3 * row[how] for how in WAYS))
        for row in rows
    ]
    pictures = [
        page.picture(_picture([row for row in rows if row["n_ranks"] == n]))
        for n in sorted({row["n_ranks"] for row in rows})
    ]
    title = "Ways to gather"
    answer = page.section("Answer", page.paragraph(verdict(rows)))
    table = page.section("Medians", page.table(heads, cells), *pictures)
    page.save_page(path, title, [answer, table])


def _picture(rows: Sequence[dict[str, Any]]) -> str:
    title = f"{rows[0]['n_ranks']} ranks"
    with figure(2.6) as (made, axes):
        for how, colour, marker in zip(WAYS, BLOCK_COLOURS, "osD^", strict=False):
            sizes = [row["nbytes_per_rank"] for row in rows]
            times = [1e3 * row[how] for row in rows]
            axes.loglog(sizes, times, f"{marker}-", color=colour, label=how)
        axes.set(xlabel="bytes per rank", ylabel="milliseconds (median)", title=title)
        made.legend(loc="outside lower center", ncols=2)
        return figure_svg(made, f"Time of the gathers on {title}")


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
    need_matplotlib("bench/gather.py")
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
    comm = comm_world("--on-ranks")
    with raise_on_rank_0_alone(comm):
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


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, setup, run))
