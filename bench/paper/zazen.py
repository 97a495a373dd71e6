"""Zazen's figures, redrawn: who reads what, and what caches on nodes give.

    python bench/paper/zazen.py -o bench-output/zazen             # ten minutes, 1e9 units
    python bench/paper/zazen.py -o bench-output/zazen --quick     # a minute, 1e7 units

After Tu, Rendleman, Miller, Sacerdoti, Dror and Shaw (2010): the time in which units are assigned
to nodes, against nodes and against units; bandwidth by size of a unit and processes a node; reading
while others write; nodes that are switched off. Writes `zazen.png` and `zazen.jsonl`.

Assigning is measured as one rank of N has it: the others' bitmaps are made here, and what would
travel is copied; with `--mpi` real ranks do it (`.venv-mpi`). Where nodes and storage have a given
bandwidth (nodes switched off), it is this program that waits: reads of the source, and of units of
the cache, take at least as long as their bytes at that rate, and nodes read one after the other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import mdio
from mdio.core.cache.folder import Cache
from mdio.core.cache.unit import HeldUnit
from mdio.core.files.page_cache import drop_cache
from mdio.core.files.reading import OpenFile, reads
from mdio.layouts.caching import reads as unit_reads
from mdio.layouts.caching.units import units_of
from mdio.parallel.assignment import assign, assign_words, share_together, words_in_block

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import append_jsonl
from paper.zazen_pictures import draw

ROOT = Path(__file__).resolve().parents[2]
N_ATOMS = 25_000
"""Of the paper's systems."""
N_NODES = 8
NODE_RATE, SOURCE_RATE = 60e6, 120e6
"""Bytes a second of each node's disk, and of the storage that all share."""
Row = dict[str, Any]


def peak_nbytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_rank(n_units: int, n_nodes: int) -> Row:
    """Time what one of so many ranks does; units lie on one node each, a tenth on none."""
    rng = np.random.default_rng(n_nodes)
    names = [f"node{number}" for number in range(n_nodes)]
    words = words_in_block(n_units)
    owner = rng.integers(0, n_nodes, -(-n_units // (64 * words * n_nodes)) * words)
    there = rng.random(len(owner)) < 0.9
    held = np.stack(
        [np.where((owner == node) & there, ~np.uint64(0), 0) for node in range(n_nodes)]
    )
    begun, cpu = time.perf_counter(), time.process_time()
    sent = held.copy()  # what the others have sent
    mine = assign_words(sent, names, words)
    back = mine.copy()  # what they get
    row = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
    assert np.bitwise_count(back).sum() == 64 * held.shape[1]
    return {"what": "one rank", "units": n_units, "nodes": n_nodes, **row}


def real_ranks(n_units: int) -> None:
    """Assign on all ranks of this MPI program, each a node; rank 0 prints the largest time."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rng = np.random.default_rng(comm.rank)
    held = np.zeros(-(-n_units // 8), np.uint8)
    for begin in range(comm.rank << 10, len(held), comm.size << 10):
        some = held[begin : begin + 1024]
        some[:] = rng.integers(0, 256, len(some), np.uint8)
    comm.Barrier()
    begun = time.perf_counter()
    mine = share_together(held, n_units, f"node{comm.rank}", 1, comm)
    seconds = comm.allreduce(time.perf_counter() - begun, MPI.MAX)
    total = comm.allreduce(int(np.bitwise_count(mine).sum()))
    peak = comm.allreduce(peak_nbytes(), MPI.MAX)
    assert total == n_units
    if comm.rank == 0:
        print(comm.size, seconds, peak)


def under_mpi(n_units: int, n_ranks: int) -> Row:
    """Run `real_ranks`."""
    python = ROOT / ".venv-mpi" / "bin" / "python"
    words = [python.with_name("mpiexec"), "-n", n_ranks, python, __file__, "--ranks", n_units]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=True, timeout=600
    )
    _, seconds, peak = done.stdout.split()
    return {
        "what": "real ranks",
        "units": n_units,
        "nodes": n_ranks,
        "seconds": float(seconds),
        "peak_nbytes": int(peak),
    }


def assignments(n_most: int, with_mpi: bool) -> list[Row]:
    """Time assignments against nodes, and against units on 100 nodes."""
    rows = [one_rank(n_most, nodes) for nodes in (4, 8, 16, 32, 64, 100, 128)]
    units = 10**3
    while units < n_most:
        rows.append(one_rank(units, 100))
        units *= 10
    if with_mpi:
        rows += [under_mpi(n_most, 4), under_mpi(n_most // 64, 4)]
    return rows


def make_source(folder: Path, nbytes: int) -> Path:
    """Write a DCD file of random coordinates."""
    import MDAnalysis as mda

    path = folder / "source.dcd"
    u = mda.Universe.empty(N_ATOMS, trajectory=True)
    rng = np.random.default_rng(1)
    with mda.Writer(str(path), N_ATOMS) as writer:
        for _ in range(max(16, nbytes // (12 * N_ATOMS))):
            u.atoms.positions = rng.random((N_ATOMS, 3), np.float32)
            writer.write(u.atoms)
    return path


def read_part(path: Path, cache: str | None, part: int, parts: int) -> None:
    """Read every frame of one part, some at a time."""
    with mdio.open(path, cache=cache) as layout:
        n_frames = layout.info.n_frames
        first, last = n_frames * part // parts, n_frames * (part + 1) // parts
        for start in range(first, last, 16):
            layout.read(start, min(start + 16, last))


def rate(path: Path, cache: Path | None, n_processes: int, writes: int = 0) -> float:
    """Return bytes a second that processes read together, from disk, while others write."""
    drop_cache(path if cache is None else cache)
    given = None if cache is None else str(cache)
    stop = multiprocessing.Event()
    others = [
        multiprocessing.Process(target=write_on, args=(path.parent, writes, stop))
        for _ in range(bool(writes))
    ]
    workers = [
        multiprocessing.Process(target=read_part, args=(path, given, part, n_processes))
        for part in range(n_processes)
    ]
    for process in others:
        process.start()
    begun = time.perf_counter()
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    seconds = time.perf_counter() - begun
    stop.set()
    for process in others:
        process.join()
    return path.stat().st_size / seconds


def write_on(folder: Path, nbytes: int, stop: Any) -> None:
    """Write and flush one file after the other, as a simulation at 50 MB/s would."""
    data = os.urandom(nbytes)
    while not stop.is_set():
        begun = time.perf_counter()
        with (folder / "written").open("wb") as file:
            file.write(data)
            os.fsync(file.fileno())
        time.sleep(max(0.0, nbytes / 50e6 - (time.perf_counter() - begun)))


def bandwidths(path: Path, sizes: list[int], processes: list[int]) -> list[Row]:
    """Read a whole trajectory through the cache, by size of its units; beside the file itself."""
    rows = []
    for size in sizes:
        unit_reads.UNIT_NBYTES = unit_reads.LEAST_NBYTES = size
        cache = path.parent / f"cache-{size}"
        read_part(path, str(cache), 0, 1)
        for n in processes:
            row = {"what": "read", "unit_nbytes": size, "processes": n}
            rows.append({**row, "rate": rate(path, cache, n), "file_rate": rate(path, None, n)})
            print(rows[-1])
        quiet, busy = rate(path, cache, 1), rate(path, cache, 1, writes=32 << 20)
        rows.append({"what": "while writing", "unit_nbytes": size, "share": busy / quiet})
        print(rows[-1])
        shutil.rmtree(cache)
    return rows


def wait(nbytes: int, nbytes_per_s: float, begun: float) -> None:
    """Wait until so many bytes may have come at that rate since `begun`."""
    time.sleep(max(0.0, begun + nbytes / nbytes_per_s - time.perf_counter()))


def switched_off(path: Path) -> list[Row]:
    """Read all frames with some nodes off, beside the law T (1 + delta B / b)."""
    unit_reads.UNIT_NBYTES = unit_reads.LEAST_NBYTES = 2 << 20
    folder = path.parent / "nodes"
    names = [f"n{number}" for number in range(N_NODES)]
    cache = Cache(str(folder))
    with mdio.open(path, cache=cache) as layout:
        _ = layout.info
        units = units_of(layout, None)
        edges = units.edges
        nobody = np.zeros((N_NODES, len(edges) - 1), bool)
        has = assign(nobody, names)
    for node, name in enumerate(names):
        os.environ["MDIO_NODE"] = name
        with mdio.open(path, cache=cache) as layout:
            for unit in np.flatnonzero(has == node):
                layout.read(int(edges[unit]), int(edges[unit + 1]))
    from_file, checked = OpenFile._from_file, HeldUnit._checked
    rows, whole = [], 0.0
    for n_off in (0, *range(N_NODES // 2 + 1)):  # once more, when all is warm
        on = names[n_off:]
        held = np.stack([has == node for node in range(n_off, N_NODES)])
        owners = assign(held, on)
        slowest, from_source = 0.0, 0
        for node, name in enumerate(on):
            os.environ["MDIO_NODE"] = name
            rate_of_source = SOURCE_RATE / len(on)

            def throttled(file: Any, buffers: Any, offset: int, at: float = rate_of_source) -> int:
                begun = time.perf_counter()
                found = from_file(file, buffers, offset)
                wait(found, at, begun)
                return found

            def waiting(unit: Any, first: int, last: int) -> Any:
                begun = time.perf_counter()
                data = checked(unit, first, last)
                wait(last - first, NODE_RATE, begun)
                return data

            copied = folder / f"node-{name}"
            shutil.copytree(copied, folder / "kept")
            with mdio.open(path, cache=cache) as layout:
                _ = layout.info
                OpenFile._from_file, HeldUnit._checked = throttled, waiting  # type: ignore[method-assign,assignment]
                before, begun = reads.nbytes_source, time.perf_counter()
                for unit in np.flatnonzero(owners == node):
                    layout.read(int(edges[unit]), int(edges[unit + 1]))
                slowest = max(slowest, time.perf_counter() - begun)
                OpenFile._from_file, HeldUnit._checked = from_file, checked  # type: ignore[method-assign]
                from_source += reads.nbytes_source - before
            shutil.rmtree(copied)
            (folder / "kept").rename(copied)
        delta = n_off / N_NODES
        whole = slowest if not n_off else whole
        law = whole * (1 + delta * N_NODES * NODE_RATE / SOURCE_RATE)
        rows.append({"what": "off", "share": delta, "seconds": slowest, "law_s": law})
        if not n_off:
            perfect = path.stat().st_size / N_NODES / NODE_RATE
            rows[-1] |= {"nbytes_source": from_source, "of_local_rate": perfect / slowest}
        print(rows[-1])
    del rows[0]
    del os.environ["MDIO_NODE"]
    shutil.rmtree(folder)
    return rows


def main() -> None:
    """Measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--out", type=Path, default=Path("bench-output/zazen"))
    parser.add_argument("--quick", action="store_true", help="small: a minute")
    parser.add_argument("--mpi", action="store_true", help="real ranks too")
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks:
        real_ranks(args.ranks)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    rows = assignments(10**7 if args.quick else 10**9, args.mpi)
    for row in rows:
        print(row)
    path = make_source(args.out, (48 if args.quick else 400) << 20)
    try:
        sizes = [2 << 20, 16 << 20] if args.quick else [2 << 20, 16 << 20, 64 << 20]
        rows += bandwidths(path, sizes, [1, 2] if args.quick else [1, 2, 4, 8])
        rows += switched_off(path)
    finally:
        path.unlink()
        (args.out / "written").unlink(missing_ok=True)
    append_jsonl(args.out / "zazen.jsonl", rows)
    draw(rows, args.out / "zazen.png", N_NODES)
    print(args.out / "zazen.png")


if __name__ == "__main__":
    main()
