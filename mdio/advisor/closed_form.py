"""The scaling model: a closed form for the time of N ranks. Pure: numbers in, numbers out.

The time of the slowest rank, for which the others wait, is modelled as::

    t_total = t_open + t_comp + t_io + t_rest + t_imbalance + t_contention + t_gather

    t_comp       = comp/N (1 + d q)             q = (min(N, c) - 1)/(c - 1): how full a node is
    t_io         = io r/N (1 + d q), no less than the bytes take at the limits of links and storage
    t_rest       = rest/N (1 + d q)                                   the loop itself
    t_imbalance  = z(N) sqrt((s_c t_comp)^2 + (s_io t_io)^2)
    t_contention = n_requests ((t_lock [+ t_lock,gather]) (1 - c/N) + t_client (min(N, c) - 1)/N)
                                                                      one shared file
    t_open       = open + (M - 1) t_file + (N M - 1)/R                M files that each rank opens
    t_gather     = base + N t_rank

where comp, io, rest and open are the times of one rank that does everything, c is the number of
cores of a node, d its slow-down when full, r the factor by which a rank's reads are slower among
other ranks than alone (for each layout), and R the rate of the metadata server.

Sources of the terms: the definitions of the parts, the one-node limit of a shared file, one lock
for each request and N x M opens of a chain of files are from Khoshlessan et al., "Parallel
performance of molecular dynamics trajectory analysis" (2020). ``1 - c/N`` is the chance that the
previous request, of N ranks in random order, came from another node, so that the lock must move;
within a node it stays. The expected largest of N normal deviates is approximated as in
Chen and Tyler, "Accurate approximation to the extreme order statistics of Gaussian samples"
(1999): ``z(N) = Phi^-1(0.5264^(1/N))``; its quantiles are exact: ``Phi^-1(p^(1/N))``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from mdio.advisor.profile import Profile, access_model, gather_model, io_family
from mdio.core.errors import PlanError

MAX_RANKS = 10_000_000
NORMAL = NormalDist()
Z90 = NORMAL.inv_cdf(0.9)
UNMEASURED_LOCKS_ERROR = 1.6
"""Relative standard deviation of the cost of contention on a machine whose locks were not
measured: wide enough for locks that cost from a quarter to three times those of the known one."""


@dataclass(frozen=True)
class Workload:
    """A task of a single rank: seconds and bytes for all frames together."""

    n_frames: int
    nbytes: float
    t_comp_s: float
    t_io_s: float
    t_open_s: float = 0.0
    t_rest_s: float = 0.0
    result_nbytes_per_frame: float = 16.0
    n_files: int | None = None
    """Files of a chain that each rank opens; None: one for each rank."""


@dataclass(frozen=True)
class Prediction:
    """The parts of the slowest rank's time, s, their sum, and its 10 and 90% quantiles."""

    n_ranks: int
    t_open_s: float
    t_comp_s: float
    t_io_s: float
    t_rest_s: float
    t_imbalance_s: float
    t_contention_s: float
    t_gather_s: float
    t_total_s: float
    low_s: float
    high_s: float


def reference_workload(profile: Profile, layout: str, workload_x: float) -> Workload:
    """Return the task that the profile was fitted to, computed X times a frame, in a layout."""
    if not (math.isfinite(workload_x) and 0 < workload_x <= 1e9):
        raise PlanError(f"workload {workload_x!r} is not a number above 0 and up to 1e9")
    family = io_family(access_model(layout))
    task = profile.task
    return Workload(
        n_frames=task.n_frames,
        nbytes=task.nbytes[family],
        t_comp_s=task.t_comp_s(workload_x),
        t_io_s=task.t_io_s[family],
        t_open_s=task.t_open_s[family],
        t_rest_s=task.t_rest_s[family],
        result_nbytes_per_frame=task.result_nbytes_per_frame,
    )


def expected_max(n: int) -> float:
    """Return the expected largest of `n` standard normal deviates, 0 for one."""
    return max_quantile(n, 0.5264) if n > 1 else 0.0


def max_quantile(n: int, p: float) -> float:
    """Return the `p` quantile of the largest of `n` standard normal deviates."""
    return NORMAL.inv_cdf(math.exp(math.log(p) / n))


def predict(
    profile: Profile, layout: str, gather: str, n_ranks: int, workload: Workload
) -> Prediction:
    """Return the times of `n_ranks` ranks, on nodes filled one after another, for a workload."""
    layout, gather = access_model(layout), gather_model(gather)
    if isinstance(n_ranks, bool) or not isinstance(n_ranks, int) or not 1 <= n_ranks <= MAX_RANKS:
        raise PlanError(f"{n_ranks!r} ranks: expected a whole number from 1 to {MAX_RANKS:,}")
    storage, noise, slowdown = profile.storage, profile.noise, profile.slowdown(n_ranks)
    comp_s = slowdown * workload.t_comp_s / n_ranks
    io_s = slowdown * _mean_io_s(profile, layout, n_ranks, workload)
    spread_s = math.hypot(noise.compute * comp_s, noise.io[layout][gather] * io_s)
    spread_s *= n_ranks > 1  # a single rank has no others to differ from
    imbalance_s = expected_max(n_ranks) * spread_s
    contention_s = _contention_s(profile, layout, gather, n_ranks, workload)
    files = 1
    if layout == "segments-chainreader":
        files = max(n_ranks if workload.n_files is None else workload.n_files, 1)
    open_s = workload.t_open_s + (files - 1) * storage.open_file_s
    open_s += (n_ranks * files - 1) / storage.metadata_ops_per_s
    gather_s = 0.0
    if n_ranks > 1:
        task, cost = profile.task, profile.gather[gather]
        nbytes_ratio = workload.n_frames * workload.result_nbytes_per_frame
        nbytes_ratio /= task.n_frames * task.result_nbytes_per_frame
        gather_s = cost.base_s * nbytes_ratio + cost.per_rank_s * n_ranks
    rest_s = slowdown * workload.t_rest_s / n_ranks
    total_s = open_s + comp_s + io_s + rest_s + imbalance_s + contention_s + gather_s
    # The 10 and 90% quantiles, about the mean, of independent errors of a lognormal.
    width_max = max_quantile(n_ranks, 0.9) - max_quantile(n_ranks, 0.1)
    locks_measured = any(pair.startswith("xtc-shared/") for pair in profile.measured)
    is_measured = f"{layout}/{gather}" in profile.measured
    sigma_s = math.hypot(
        spread_s * width_max / (2 * Z90),
        (noise.straggler if locks_measured else UNMEASURED_LOCKS_ERROR) * contention_s,
        (noise.fit if is_measured else noise.carry) * total_s,
    )
    width = Z90 * math.sqrt(math.log1p((sigma_s / total_s) ** 2))
    lowest_s = total_s * math.exp(-width)
    return Prediction(
        n_ranks=n_ranks,
        t_open_s=open_s,
        t_comp_s=comp_s,
        t_io_s=io_s,
        t_rest_s=rest_s,
        t_imbalance_s=imbalance_s,
        t_contention_s=contention_s,
        t_gather_s=gather_s,
        t_total_s=total_s,
        low_s=max(lowest_s, min(total_s, workload.t_comp_s / n_ranks)),
        high_s=total_s * math.exp(width),
    )


def _mean_io_s(profile: Profile, layout: str, n_ranks: int, workload: Workload) -> float:
    """Return the mean seconds a rank reads, no less than the bandwidths allow."""
    storage = profile.storage
    if n_ranks == 1:
        return workload.t_io_s
    unlimited_s = workload.t_io_s * storage.read_factor[layout] / n_ranks
    nodes = math.ceil(n_ranks / profile.cores_per_node)
    rates = [storage.aggregate_bytes_per_s, nodes * storage.node_bytes_per_s]
    if layout in ("xtc-shared", "hdf5"):
        rates.append(storage.file_bytes_per_s)
    # The larger of two times, with a smooth change from one to the other (4-norm).
    smaller, larger = sorted((unlimited_s, workload.nbytes / min(rates)))
    return larger * (1 + (smaller / larger) ** 4) ** 0.25 if larger > 0 else 0.0


def _contention_s(
    profile: Profile, layout: str, gather: str, n_ranks: int, workload: Workload
) -> float:
    """Return the seconds that requests of several nodes queue for the locks of one shared file."""
    if layout != "xtc-shared" or n_ranks == 1:
        return 0.0
    storage, cores = profile.storage, profile.cores_per_node
    n_on_node = min(n_ranks, cores)
    same_node_s = storage.client_lock_s * (n_on_node - 1) / n_ranks
    other_node_s = storage.lock_s + (storage.lock_gather_s if gather == "gather" else 0.0)
    return workload.n_frames * (same_node_s + other_node_s * max(0.0, 1 - cores / n_ranks))
