"""What `bench/paper/himach.py forecast` works out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mdio
from mdio.advisor.closed_form import Workload, predict
from mdio.advisor.profile import load_profile

N_FRAMES = 2_500_000
"""Of the paper's water residence."""
WORKERS = 1, 2, 8, 24, 64, 128, 256, 512
RATES = {"shared storage, 10 GB/s": 1e10, "the paper's local disks, 20 GB/s": 2e10}
"""Bytes that all nodes read a second."""


def forecast_of(trajectory: str, top: Any, program: Any, repeats: int) -> Iterator[dict[str, Any]]:
    """Print times over numbers of workers for each rate; yield the figures of most workers."""
    runs = []
    for _ in range(repeats):
        begun = time.process_time()
        runs.append(
            (mdio.map_reduce(trajectory, top=top, map=program), time.process_time() - begun)
        )
    best, cpu_s = min(runs, key=lambda run: run[1])
    times = best.to_json()
    scale = N_FRAMES / best.n_frames
    # The file is in the page cache, so that all of it is CPU time, whatever else the machine does.
    cpu = scale * min(1.0, cpu_s / best.seconds)
    nbytes = Path(trajectory).stat().st_size * scale
    work = Workload(
        n_frames=N_FRAMES,
        nbytes=nbytes,
        t_comp_s=times["t_comp_s"] * cpu,
        t_io_s=times["t_io_s"] * cpu,
        t_open_s=times["t_open_s"],
        result_nbytes_per_frame=0.0,
    )
    pairs_nbytes = best.nbytes_shuffled * scale
    reduce_s = best.reduce_s * cpu  # at worst: it grows with pairs or with keys
    for storage, rate in RATES.items():
        profile = load_profile("generic")
        profile = replace(profile, storage=replace(profile.storage, aggregate_bytes_per_s=rate))
        found = {}
        print(storage)
        for n_workers in WORKERS:
            mapped = predict(profile, "segments", "gather", n_workers, work).t_total_s
            nodes = -(-n_workers // profile.cores_per_node)
            rate_of_nodes = nodes * profile.storage.node_bytes_per_s
            network_s = pairs_nbytes * (1 - 1 / nodes) / rate_of_nodes
            parts = (mapped, network_s, reduce_s / n_workers)
            found[n_workers] = sum(parts)
            text = ", ".join(f"{part:.1f}" for part in parts)
            gain = found[1] / found[n_workers]
            print(f"  {n_workers:3d} workers: map, network, reduce {text} s; {gain:.0f}x")
        share = found[512] / found[1]
        yield {
            "storage": storage,
            "n_frames": N_FRAMES,
            "one_worker_s": found[1],
            "workers_512_s": found[512],
            "gain_512": 1 / share,
            "part_that_does_not_scale": share - 1 / 512,
            "in_the_paper": 1 / 100 - 1 / 512,  # from 100x at 512 cores
        }
