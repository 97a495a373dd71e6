"""The papers' Algorithm 1 with MDAnalysis alone: a block a rank, read and computed frame by frame.

    mpiexec -n 8 python bench/cluster/by_frames.py TOP XTC "name CA" --timings FILE

FILE gets the record of timings that ``mdio analyze --timings`` writes, as far as pictures need it.
As there, the topology does not count: it is read before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rms import rmsd
from mpi4py import MPI

from mdio.core.timing import WorkerTiming, stragglers, worker_name


def block_rmsd(comm: MPI.Comm, top: str, trajectory: str, select: str) -> WorkerTiming:
    """Do this rank's block and gather; return where the time went."""
    timing = WorkerTiming(worker_name(), comm.rank, n_blocks=1)
    universe = mda.Universe(top)
    atoms = universe.select_atoms(select)
    begun = at = time.perf_counter()
    universe.load_new(trajectory)
    reference = atoms.positions.copy()
    timing.t_open_s = time.perf_counter() - at

    n_frames = len(universe.trajectory)
    n_block = -(-n_frames // comm.size)
    mine = universe.trajectory[comm.rank * n_block : (comm.rank + 1) * n_block]
    rows = np.zeros((len(mine), 2))
    loop = at = time.perf_counter()
    for row, step in zip(rows, mine, strict=True):
        read = time.perf_counter()
        row[:] = step.time, rmsd(atoms.positions, reference, center=True, superposition=True)
        done = time.perf_counter()
        timing.t_io_s += read - at
        timing.t_comp_s += done - read
        at = done
    ended = time.perf_counter()
    timing.n_frames, timing.t_end_loop_s = len(mine), ended - at
    timing.t_all_frame_s, timing.t_block_s = ended - loop, ended - begun

    comm.Barrier()
    timing.t_wait_s = time.perf_counter() - ended
    gathered = comm.gather(rows)
    timing.t_comm_s = time.perf_counter() - ended
    assert gathered is None or sum(map(len, gathered)) == n_frames
    return timing


def main() -> None:
    """Run on all ranks; rank 0 writes what all of them took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs=3, metavar="TOP TRAJECTORY SELECTION")
    parser.add_argument("--timings", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    ranks = MPI.COMM_WORLD.gather(block_rmsd(MPI.COMM_WORLD, *args.words))
    if ranks is None:
        return
    seconds = max(rank.t_total_s for rank in ranks)
    n_frames = sum(rank.n_frames for rank in ranks)
    found = {"seconds": seconds, "t_total_s": seconds, "n_frames": n_frames}
    workers = {"ranks": [rank.to_json() for rank in ranks], "stragglers": stragglers(ranks)}
    args.timings.write_text(json.dumps(found | workers))
    if args.json:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
