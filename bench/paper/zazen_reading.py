"""What caches on nodes give, for `zazen.py`: bandwidths, and nodes that are switched off."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import mdio
from mdio.core.cache import Cache, CachedUnit
from mdio.core.files.page_cache import drop_cache
from mdio.core.files.reading import OpenFile, reads
from mdio.layouts import caching as unit_reads
from mdio.layouts.caching import cache_units
from mdio.parallel.assignment import assign

N_ATOMS = 25_000
"""Of the paper's systems."""
N_NODES = 8
NODE_RATE, SOURCE_RATE = 60e6, 120e6
"""Bytes a second of each node's disk, and of the storage that all share."""
Row = dict[str, Any]


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
        unit_reads.MAX_UNIT_NBYTES = unit_reads.MIN_UNIT_NBYTES = size
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


class Disk:
    """Makes reads last as long as their bytes would take at a rate.

    By how much it has slept too long is taken off its next sleep: that is no fault of who reads.
    """

    def __init__(self, nbytes_per_s: float) -> None:
        self._rate = nbytes_per_s
        self._late_s = 0.0

    def wait(self, nbytes: int, begun: float) -> None:
        """Wait until so many bytes may have come since `begun`."""
        until = begun + nbytes / self._rate - self._late_s
        left = until - time.perf_counter()
        time.sleep(max(0.0, left))
        self._late_s = time.perf_counter() - until if left > 0 else 0.0


class Nodes:
    """Nodes with caches in one folder, each with all units that are its own."""

    def __init__(self, path: Path) -> None:
        unit_reads.MAX_UNIT_NBYTES = unit_reads.MIN_UNIT_NBYTES = 2 << 20
        self.path, self.folder = path, path.parent / "nodes"
        self.names = [f"n{number}" for number in range(N_NODES)]
        self.cache = Cache(str(self.folder))
        with mdio.open(path, cache=self.cache) as layout:
            _ = layout.info
            self.edges = cache_units(layout, None).edges
        nobody = np.zeros((N_NODES, len(self.edges) - 1), bool)
        self.has = assign(nobody, self.names)
        for node, name in enumerate(self.names):
            self._read(name, np.flatnonzero(self.has == node))

    def _read(self, name: str, units: Any, disks: tuple[Disk, Disk] | None = None) -> float:
        """Read units on a node, from disks that are no faster than they may be; return seconds."""
        os.environ["MDIO_NODE"] = name
        from_file, checked = OpenFile._read_uncached, CachedUnit._read

        def throttled(file: Any, buffers: Any, offset: int) -> int:
            begun = time.perf_counter()
            found = from_file(file, buffers, offset)
            disks[0].wait(found, begun)  # type: ignore[index]
            return found

        def waiting(unit: Any, first: int, last: int) -> Any:
            begun = time.perf_counter()
            data = checked(unit, first, last)
            disks[1].wait(last - first, begun)  # type: ignore[index]
            return data

        with mdio.open(self.path, cache=self.cache) as layout:
            _ = layout.info
            if disks is not None:
                OpenFile._read_uncached, CachedUnit._read = throttled, waiting  # type: ignore[method-assign,assignment]
            begun = time.perf_counter()
            for unit in units:
                layout.read(int(self.edges[unit]), int(self.edges[unit + 1]))
            seconds = time.perf_counter() - begun
            OpenFile._read_uncached, CachedUnit._read = from_file, checked  # type: ignore[method-assign]
        return seconds

    def read_all(self, n_off: int) -> tuple[float, int]:
        """Read every frame with some nodes off: seconds of the slowest, and bytes of the source.

        Nodes take turns, and get the share of the storage that they had if all read at once.
        """
        held = np.stack([self.has == node for node in range(n_off, N_NODES)])
        owners = assign(held, self.names[n_off:])
        slowest, before = 0.0, reads.nbytes_source
        for node, name in enumerate(self.names[n_off:]):
            own, kept = self.folder / f"node-{name}", self.folder / "kept"
            shutil.copytree(own, kept)
            disks = Disk(SOURCE_RATE / len(held)), Disk(NODE_RATE)
            slowest = max(slowest, self._read(name, np.flatnonzero(owners == node), disks))
            shutil.rmtree(own)  # what it has kept beside its own
            kept.rename(own)
        return slowest, reads.nbytes_source - before - len(held) * self.opening_nbytes()

    def opening_nbytes(self) -> int:
        """Return what opening the trajectory takes of the source."""
        before = reads.nbytes_source
        with mdio.open(self.path, cache=self.cache) as layout:
            _ = layout.info
        return reads.nbytes_source - before

    def close(self) -> None:
        """Remove the caches."""
        del os.environ["MDIO_NODE"]
        shutil.rmtree(self.folder)


def switched_off(path: Path, repeats: int) -> list[Row]:
    """Read all frames with some nodes off, beside the law T (1 + delta B / b); medians."""
    nodes = Nodes(path)
    every = range(N_NODES // 2 + 1)
    try:
        nodes.read_all(0)  # once before, when all is warm
        found = [[nodes.read_all(n_off) for n_off in every] for _ in range(repeats)]
    finally:
        nodes.close()
    rows = []
    for n_off in every:
        delta = n_off / N_NODES
        seconds = statistics.median(turn[n_off][0] for turn in found)
        laws = [turn[0][0] * (1 + delta * N_NODES * NODE_RATE / SOURCE_RATE) for turn in found]
        rows.append(
            {
                "what": "off",
                "share": delta,
                "seconds": seconds,
                "law_s": statistics.median(laws),
                "of_law": statistics.median(
                    turn[n_off][0] / law for turn, law in zip(found, laws, strict=True)
                ),
                "nbytes_source": found[-1][n_off][1],
                "of_local_rate": path.stat().st_size / N_NODES / NODE_RATE / seconds,
            }
        )
        print(rows[-1])
    return rows
