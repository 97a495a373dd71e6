"""How long it takes to say who reads what, for `zazen.py`."""

from __future__ import annotations

import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from mdio.parallel.assignment import assign, assign_together

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


def peak_nbytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one_rank(n_units: int, n_nodes: int) -> Row:
    """Time what one of so many ranks does; units lie on one node each, a tenth on none."""
    rng = np.random.default_rng(n_nodes)
    names = [f"node{number}" for number in range(n_nodes)]
    held = np.zeros((n_nodes, n_units), bool)
    there = np.flatnonzero(rng.random(n_units) < 0.9)
    held[rng.integers(0, n_nodes, len(there)), there] = True
    begun, cpu = time.perf_counter(), time.process_time()
    owners = assign(held, names)
    row = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
    assert held[owners[there], there].all()
    return {"what": "one rank", "units": n_units, "nodes": n_nodes, **row}


def real_ranks(n_units: int) -> None:
    """Assign on all ranks of this MPI program, each a node; rank 0 prints the largest time."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rng = np.random.default_rng(comm.rank)
    cached = np.zeros(-(-n_units // 8), np.uint8)
    for begin in range(comm.rank << 10, len(cached), comm.size << 10):
        some = cached[begin : begin + 1024]
        some[:] = rng.integers(0, 256, len(some), np.uint8)
    comm.alltoall(range(comm.size))  # MPI connects ranks when they first talk
    comm.Barrier()
    begun, cpu = time.perf_counter(), time.process_time()
    mine = assign_together(cached, n_units, f"node{comm.rank}", 1, comm)
    seconds = comm.allreduce(time.perf_counter() - begun, MPI.MAX)
    cpu_s = comm.allreduce(time.process_time() - cpu, MPI.MAX)
    total = comm.allreduce(int(np.bitwise_count(mine).sum()))
    peak = comm.allreduce(peak_nbytes(), MPI.MAX)
    assert total == n_units
    if comm.rank == 0:
        print(seconds, cpu_s, peak)


def under_mpi(n_units: int, n_ranks: int) -> Row:
    """Run `real_ranks`."""
    python = ROOT / ".venv-mpi" / "bin" / "python"
    script = Path(__file__).with_name("zazen.py")
    words = [python.with_name("mpiexec"), "-n", n_ranks, python, script, "--ranks", n_units]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=True, timeout=600
    )
    seconds, cpu_s, peak = done.stdout.split()
    return {
        "what": "real ranks",
        "units": n_units,
        "nodes": n_ranks,
        "seconds": float(seconds),
        "cpu_s": float(cpu_s),
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
        rows += [under_mpi(n_most, 4)]
    for row in rows:
        print(row)
    return rows
