"""Writing and reading each layout, by ways to write it, numbers of workers, chunks and stripes.

Every run is the command that a user would give, as a program of its own (``mdio convert`` or
``mdio split``, then this script with ``--read``), and times itself, so that starting Python and
MPI does not count. Runs of one repeat take turns over all cases: what disturbs the machine for a
while disturbs all of them.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from measuring import run_bench, sizes

from mdio.analysis import report as page
from mdio.analysis.plots import figure, figure_svg
from mdio.analysis.report import BLOCK_COLOURS, need_matplotlib
from mdio.analysis.scaling import MDIO, append_jsonl, make_folder, mpiexec_command, run_for_json
from mdio.cli.common import add, add_bench_output, names_among, positive, positives, print_json
from mdio.cli.workers import all_ranks
from mdio.core.blocks import aligned_blocks, sub_blocks
from mdio.core.errors import PlanError
from mdio.core.files.page_cache import drop_cache
from mdio.core.words import align_columns
from mdio.layouts.base import Layout
from mdio.layouts.registry import layout_class, open_layout, writer_class
from mdio.parallel.executors import Executor, Processes, Serial

WAYS = ("workers", "mpi", "mpio", "collective")
"""Worker processes; ranks that write by plain calls; parallel HDF5, independent or collective."""
BLOCK_NBYTES = 16 << 20
"""Decoded bytes that are read at a time, as an analysis would."""
SPLIT = "split"
"""In place of a layout: the source's bytes into as many segments as there are workers."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to write one layout."""

    layout: str
    """h5md, zarr, segments (the source's format), segments:dcd, split, xtc, ..."""
    way: str
    n_workers: int
    compression: str | None = None
    chunk_frames: int | None = None
    stripe_nbytes: int | None = None
    stripe_count: int | None = None

    @property
    def name(self) -> str:
        """What tables and pictures call it, without the number of workers."""
        words = [self.layout]
        if self.compression:
            words.append(self.compression)
        if self.chunk_frames is not None:
            words.append(f"{self.chunk_frames} frames")
        if self.stripe_nbytes is not None:
            words.append(f"stripe {self.stripe_nbytes}")
        if self.stripe_count is not None:
            words.append(f"x {self.stripe_count}")
        return " ".join([*words, f"({self.way})"])

    def words(self, source: str, out: Path) -> list[str]:
        """Return the command that writes it, after ``mdio``."""
        common = ["--force", "--json", "--quiet"]
        common += ["-w", str(self.n_workers)] if self.way == "workers" else ["--mpi"]
        if self.layout == SPLIT:
            return ["split", source, str(out), "-n", str(self.n_workers), *common]
        layout, _, container = self.layout.partition(":")
        words = ["convert", source, str(out), "--to", layout, *common]
        words += [f"--{self.way}"] if self.way in ("mpio", "collective") else []
        if layout_class(layout).facts.can_choose_n_files:
            words += ["--segments", str(self.n_workers)]
        for option, value in (
            ("--container", container or None),
            ("--compression", self.compression),
            ("--chunk-frames", self.chunk_frames),
            ("--stripe-size", self.stripe_nbytes),
            ("--stripe-count", self.stripe_count),
        ):
            words += [] if value is None else [option, str(value)]
        return words

    @property
    def suffix(self) -> str:
        """What the name of the output ends with."""
        layout = self.layout.partition(":")[0]
        return ".segments" if layout == SPLIT else f".{layout}"


def cases(
    layouts: Sequence[str],
    ways: Sequence[str],
    workers: Sequence[int],
    *,
    compressions: Sequence[str | None] = (None,),
    chunk_frames: Sequence[int | None] = (None,),
    stripes: Sequence[int | None] = (None,),
    stripe_counts: Sequence[int | None] = (None,),
) -> list[Case]:
    """Return every combination that makes sense.

    Parallel HDF5 writes h5md only, and compresses in collective writes only; segments and native
    files have no chunks and compressors of ours.

    Raises PlanError: None does.
    """
    every = itertools.product(layouts, ways, workers, compressions, chunk_frames)
    places = list(itertools.product(stripes, stripe_counts))
    found: list[Case] = []
    for layout, way, n_workers, compression, frames in every:
        name = "segments" if layout == SPLIT else layout.partition(":")[0]
        facts = writer_class(name).facts
        mpi_writer = facts.mpi_writer is not None
        parallel_hdf5 = way in ("mpio", "collective")
        if (parallel_hdf5 and not mpi_writer) or (way == "mpio" and compression):
            continue
        for stripe, count in places if layout != SPLIT else [(None, None)]:
            has_chunks = "chunk_frames" in facts.own_options
            shape = (compression, frames) if has_chunks else (None, None)
            case = Case(layout, way, n_workers, *shape, stripe, count)
            if case not in found:
                found.append(case)
    if not found:
        raise PlanError("no layout can be written in any of these ways; see --layouts and --ways")
    return found


def measure(
    source: str,
    folder: Path,
    wanted: Sequence[Case],
    *,
    repeats: int,
    read: bool = True,
    mpiexec: str | None = None,
    told: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Write and read every case, and yield a record of each run.

    `source`: the trajectory. `folder`: where outputs are written, on the storage in question, one
    at a time; they are removed. `wanted`, `repeats`: what to write, how often. `read`: whether to
    read outputs too, with the cache dropped and then from it, by as many workers or ranks as wrote
    them. `mpiexec`: launcher with its options. `told`: called with a line before each run.
    Yields dict: the case, ``repeat``, ``write_s``, ``nbytes``, ``read_cold_s``, ``read_warm_s`` and
    ``cache_dropped``.
    Raises BlockError: a command failed; the message has its own.
    """
    for repeat in range(repeats):
        for case in wanted:
            if told is not None:
                told(f"{repeat + 1}/{repeats}: {case.name}, {case.n_workers}")
            out = folder / f"bench-layouts{case.suffix}"
            try:
                written = _run(case, case.words(source, out), mpiexec)
                record: dict[str, Any] = {
                    **asdict(case),
                    "case": case.name,
                    "repeat": repeat,
                    "write_s": written["seconds"],
                    "nbytes": written["nbytes_out"],
                }
                if read:
                    words = [str(out), "--read", "--json"]
                    words += ["--mpi"] if case.way != "workers" else ["-w", str(case.n_workers)]
                    record["cache_dropped"] = drop_cache(out) is None
                    record["read_cold_s"] = _run(case, words, mpiexec, (__file__,))["read_s"]
                    record["read_warm_s"] = _run(case, words, mpiexec, (__file__,))["read_s"]
                yield record
            finally:
                _remove(out)


def _run(
    case: Case, words: Sequence[str], mpiexec: str | None, program: Sequence[str] = MDIO
) -> dict[str, Any]:
    command = [sys.executable, *program, *words]
    if case.way != "workers":
        command = mpiexec_command(mpiexec, case.n_workers, *words, program=program)
    return run_for_json(command)


def _remove(out: Path) -> None:
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink(missing_ok=True)


def summarise(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each case and number of workers: medians, and the least and most.

    Returns list of dict: ``case``, ``n_workers``, ``nbytes``, and of each of ``write_s``,
    ``read_cold_s`` and ``read_warm_s`` that was measured (median, least, most).
    """
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["case"], record["n_workers"]), []).append(record)
    rows = []
    for (case, n_workers), runs in groups.items():
        row: dict[str, Any] = {"case": case, "n_workers": n_workers, "nbytes": runs[0]["nbytes"]}
        for what in ("write_s", "read_cold_s", "read_warm_s"):
            times = [run[what] for run in runs if what in run]
            row[what] = (statistics.median(times), min(times), max(times)) if times else None
        row["cache_dropped"] = all(run.get("cache_dropped") for run in runs)
        rows.append(row)
    return rows


class _Reader:
    """Reads one worker's share of the frames; returns frames and bytes."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, frames: range) -> tuple[int, int]:
        most = max(1, BLOCK_NBYTES // self.layout.info.frame_nbytes)
        blocks = sub_blocks(self.layout.boundaries(), frames, most)
        nbytes = sum(self.layout.read(one.start, one.stop).positions.nbytes for one in blocks)
        return len(frames), nbytes


def read_all(path: str | PathLike[str], executor: Executor) -> dict[str, Any]:
    """Read every frame of a trajectory once, each worker a run of neighbouring frames.

    Returns dict: ``read_s``, from before the first worker opens the trajectory until the last one
    is through; ``n_frames`` and ``nbytes`` (decoded positions) read.
    """
    layout = executor.from_owner(lambda: open_layout(path))
    n_frames = layout.info.n_frames
    shares = aligned_blocks(layout.boundaries(), range(n_frames), min(executor.n_workers, n_frames))
    layout.close()
    executor.from_owner(lambda: None)  # all begin together
    begun = time.perf_counter()
    done = executor.map(_Reader(layout), shares)
    seconds = time.perf_counter() - begun
    n_frames, nbytes = map(sum, zip((0, 0), *done, strict=True))
    return {"read_s": seconds, "n_frames": n_frames, "nbytes": nbytes}


HEADS = ("written as", "workers", "MB", "write, s", "read cold, s", "read warm, s")


def table_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the cells of a table: medians, with the least and most behind them."""

    def cell(times: tuple[float, float, float] | None) -> str:
        return "" if times is None else f"{times[0]:.3f} ({times[1]:.3f}-{times[2]:.3f})"

    return [HEADS] + [
        (
            row["case"],
            str(row["n_workers"]),
            f"{row['nbytes'] / 1e6:.1f}",
            cell(row["write_s"]),
            cell(row["read_cold_s"]) + ("" if row["cache_dropped"] else " *"),
            cell(row["read_warm_s"]),
        )
        for row in rows
    ]


def save_layouts_page(path: str | PathLike[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write table and pictures as one HTML file."""
    heads, *cells = table_rows(rows)
    note = "Median (least-most). * The system's cache could not be dropped, or nobody can tell."
    pictures = [
        page.picture(_picture(rows, what, title))
        for what, title in (("write_s", "Writing"), ("read_cold_s", "Reading, cache dropped"))
        if any(row[what] is not None for row in rows)
    ]
    shown = page.section("Times", page.paragraph(note), page.table(heads, cells), *pictures)
    page.save_page(path, "Layouts, written and read", [shown])


def _picture(rows: Sequence[dict[str, Any]], what: str, title: str) -> str:
    with figure(3.2) as (made, axes):
        names = list(dict.fromkeys(row["case"] for row in rows))
        for name, colour in zip(names, itertools.cycle(BLOCK_COLOURS), strict=False):
            own = sorted(
                (row["n_workers"], *row[what]) for row in rows if row["case"] == name and row[what]
            )
            workers = [one[0] for one in own]
            medians = [one[1] for one in own]
            spread = [[one[1] - one[2] for one in own], [one[3] - one[1] for one in own]]
            axes.errorbar(workers, medians, spread, fmt="o-", color=colour, label=name, capsize=2)
        axes.set(xlabel="workers or ranks", ylabel="seconds (median)", title=title, ylim=(0, None))
        made.legend(loc="outside lower center", ncols=1)
        return figure_svg(made, title)


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
        names_among(LAYOUTS),
        default="h5md,zarr,segments,split",
    )
    add(
        parser,
        "--ways W,W",
        "workers (processes), mpi (ranks, plain writes), mpio (parallel HDF5), collective "
        "(the same, collectively); (default: %(default)s)",
        names_among(WAYS),
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
    need_matplotlib("bench/layouts.py")
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
    print(*align_columns(cells, len(cells[0])), sep="\n")
    if any(not row["cache_dropped"] and row["read_cold_s"] for row in rows):
        print("* the system's cache could not be dropped, or nobody can tell")


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, setup, run))
