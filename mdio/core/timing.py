"""Where the time of a parallel analysis goes, in the terms of Khoshlessan et al. (their Table 1).

The papers time every frame of a rank; here one reading (t_io) and one computation (t_comp) covers
the frames of one call, so that measuring costs nothing worth measuring.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["BlockTiming", "Stopwatch", "summary"]


def _worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class Stopwatch:
    """Gives the seconds since it was last asked."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the start."""
        now = time.perf_counter()
        last, self._last = self._last, now
        return now - last


@dataclass(slots=True)
class BlockTiming:
    """The times of one block in one worker, in seconds."""

    block: int
    """Number of the block."""
    start: int
    stop: int
    step: int
    n_frames: int
    worker: str = field(default_factory=_worker_name)
    """Host and process."""
    began_unix_s: float = field(default_factory=time.time)
    """When the worker took the block up, on the worker's clock."""
    t_open_s: float = 0.0
    """Opening the trajectory, t0 - t00: in the first block of each worker only."""
    t_io_s: float = 0.0
    """Reading all frames into memory."""
    t_comp_s: float = 0.0
    """Computing all frames."""
    t_end_loop_s: float = 0.0
    """From the end of the last computation until the loop is left, t3 - t1."""
    t_all_frame_s: float = 0.0
    """The loop over all frames, t3 - t0."""
    t_rmsd_s: float = 0.0
    """The whole block function, t5 - t4, whatever it computes."""
    t_comm_s: float = 0.0
    """From the end of the block function until its result is where all are gathered, t6 - t5."""
    nbytes_read: int = 0
    """Decoded bytes that reading gave."""

    @property
    def t_overhead1_s(self) -> float:
        """What the loop spends on neither reading nor computing."""
        return self.t_all_frame_s - self.t_io_s - self.t_comp_s - self.t_end_loop_s

    @property
    def t_overhead2_s(self) -> float:
        """What the block function spends outside of the loop and of opening."""
        return self.t_rmsd_s - self.t_all_frame_s - self.t_open_s

    @property
    def t_total_s(self) -> float:
        """All of it: t_rmsd + t_comm."""
        return self.t_rmsd_s + self.t_comm_s

    def gathered(self) -> None:
        """Note that the result has arrived; called where all results are gathered.

        Worker and gatherer read the time of day: on several machines this is as good as their
        clocks agree, and a result that seems to arrive before it was sent took no time.
        """
        sent_unix_s = self.began_unix_s + self.t_rmsd_s
        self.t_comm_s = max(0.0, time.time() - sent_unix_s)

    def to_json(self) -> dict[str, Any]:
        """Return all times as plain values, the derived ones too."""
        derived = ("t_overhead1_s", "t_overhead2_s", "t_total_s")
        return asdict(self) | {name: getattr(self, name) for name in derived}


SUMMED = ("t_open_s", "t_io_s", "t_comp_s", "t_comm_s")


def summary(timings: Sequence[BlockTiming]) -> dict[str, Any]:
    """Return what the workers' times come to.

    Returns
    -------
    dict
        ``t_open_s``, ``t_io_s``, ``t_comp_s``, ``t_comm_s``: sums over all workers; each also as
        ``t_*_max_s``, that of the worker with most of it; ``t_total_max_s``, the papers' t_total
        (the longest sum of a worker's blocks); ``ratio_comp_io`` = t_comp / t_IO (None without
        reading); ``workers``: how many took part; ``nbytes_read``.
    """
    by_worker: dict[str, list[BlockTiming]] = {}
    for timing in timings:
        by_worker.setdefault(timing.worker, []).append(timing)
    found: dict[str, Any] = {}
    for name in (*SUMMED, "t_total_s"):
        sums = [sum(getattr(t, name) for t in blocks) for blocks in by_worker.values()]
        if name in SUMMED:
            found[name] = sum(sums)
        found[f"{name.removesuffix('_s')}_max_s"] = max(sums, default=0.0)
    found["ratio_comp_io"] = found["t_comp_s"] / found["t_io_s"] if found["t_io_s"] > 0 else None
    found["workers"] = len(by_worker)
    found["nbytes_read"] = sum(t.nbytes_read for t in timings)
    return found
