"""A discrete-event simulation of ranks, network and storage, beside the closed form.

What it is made of (SimPy keeps the time):

- **Ranks** open, then read and compute a batch of frames at a time, then hand over their results.
  A batch stands for many requests, so that 10,000 ranks stay within seconds; every cost below is
  per request or per byte, times what the batch holds.
- **Metadata server**: one queue, first come first served, for each open and close.
- **Storage targets**: one queue each. Segments lie on targets drawn at random; a shared file lies
  on as many as it has stripes.
- **Locks of a shared file**: a request is served after the lock has travelled if the one before
  came from another node. How often it does follows from the ranks that still read, node by node.
  The queue is not fair: each rank has a standing, drawn once a run, and who waits with the best
  is next. Nothing on a lock server promises turns, and only so do a few ranks finish as if they
  were alone while others wait to the end, as was measured.
- **The node's client**: requests of one node to one shared file, one at a time; and **its link**.
- **Rank 0** takes results: after the last is done where the gather blocks, as they come where it
  is one-sided.

Ranks differ beforehand only by the jitter of a quiet machine (the least noise of any layout and
gather in the profile). The noise of each layout and gather, by which the closed form has ranks
differ, is not put in: what queues do not explain is missing here, and comparing shows how much.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.advisor.closed_form import Workload
from mdio.advisor.profile import Profile, access_model, gather_model
from mdio.core.errors import MissingExtraError, PlanError

if TYPE_CHECKING:
    import simpy

MAX_SIMULATED_RANKS = 100_000
MAX_BATCHES = 160_000
"""Batches in all; few ranks make up to 64 each, many at least 8."""


@dataclass(frozen=True)
class Simulation:
    """What one simulated run took, s."""

    n_ranks: int
    t_total_s: float
    """Until rank 0 has all results."""
    finish_s: NDArray[np.float64]
    """When each rank was done with its frames: shape (N,)."""
    n_events: int

    @property
    def n_stragglers(self) -> int:
        """Ranks that took half as long again as the median rank."""
        return int(np.count_nonzero(self.finish_s > 1.5 * np.median(self.finish_s)))


class _Queue:
    """One server, first come first served: when one is done is known on arrival."""

    def __init__(self) -> None:
        self.free_at = 0.0

    def wait(self, now: float, service: float) -> float:
        """Return the time from `now` until a service that is asked for now has been given."""
        self.free_at = max(now, self.free_at) + service
        return self.free_at - now


class _Target:
    """A storage target with a shared file: of those that wait, the one of best standing is next."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.waiting: list[tuple[float, int, float, simpy.Event]] = []
        self.busy = False
        self.count = 0

    def serve(self, standing: float, service: float) -> simpy.Event:
        """Return an event that comes when the service has been given."""
        done = self.env.event()
        self.count += 1
        heappush(self.waiting, (standing, self.count, service, done))
        if not self.busy:
            self._next(None)
        return done

    def _next(self, event: simpy.Event | None) -> None:
        if event is not None and event.value is not None:
            event.value.succeed()
        self.busy = bool(self.waiting)
        if self.busy:
            _, _, service, done = heappop(self.waiting)
            self.env.timeout(service, done).callbacks.append(self._next)


class _Run:
    """The state of one simulated run."""

    def __init__(
        self,
        env: simpy.Environment,
        profile: Profile,
        layout: str,
        gather: str,
        n_ranks: int,
        workload: Workload,
        rng: np.random.Generator,
    ) -> None:
        self.env, self.profile, self.workload, self.n_ranks = env, profile, workload, n_ranks
        self.layout, self.gather = layout, gather
        storage, cores = profile.storage, profile.cores_per_node
        self.shared = layout in ("xtc-shared", "hdf5")
        self.n_nodes = -(-n_ranks // cores)
        self.active = [min(cores, n_ranks - node * cores) for node in range(self.n_nodes)]
        self.n_active = n_ranks
        stripes = storage.stripe_count
        n_targets = max(1, round(storage.aggregate_bytes_per_s / storage.stripe_bytes_per_s))
        self.queues = [_Queue() for _ in range(n_targets)]
        self.place = rng.integers(0, n_targets, n_ranks).tolist()
        self.targets = [_Target(env) for _ in range(stripes)]
        self.metadata, self.root = _Queue(), _Queue()
        self.clients = [_Queue() for _ in range(self.n_nodes)]
        self.links = [_Queue() for _ in range(self.n_nodes)]
        self.n_batches = max(8, min(64, MAX_BATCHES // n_ranks))
        full = (min(n_ranks, cores) - 1) / (cores - 1) if cores > 1 else 1.0
        self.slower = 1 + profile.node_slowdown * full
        quiet = min(min(table.values()) for table in profile.noise.io.values())
        deviates = np.clip(rng.standard_normal((2, n_ranks)), -4, 4) * (n_ranks > 1)
        self.io_jitter = np.maximum(1 + quiet * deviates[0], 0.1).tolist()
        self.comp_jitter = np.maximum(1 + profile.noise.compute * deviates[1], 0.1).tolist()
        self.standing = rng.random(n_ranks).tolist()
        self.first = rng.random(n_ranks).tolist()
        self.finish = np.zeros(n_ranks)
        self.lock_s = storage.lock_s + (storage.lock_gather_s if gather == "gather" else 0.0)

    def rank(self, number: int) -> Generator[simpy.Event, Any, None]:
        """One rank, from its first open to the handing over of its results."""
        yield from self._open()
        yield from self._frames(number)
        node = number // self.profile.cores_per_node
        self.active[node] -= 1
        self.n_active -= 1
        self.finish[number] = self.env.now
        if self.gather == "global-array" and self.n_ranks > 1:
            cost = self.profile.gather[self.gather]
            yield self.env.timeout(self.root.wait(self.env.now, cost.per_rank_s))

    def _open(self) -> Generator[simpy.Event, Any, None]:
        files = 1
        if self.layout == "segments-chainreader" and self.n_ranks > 1:
            files = max(1, self.workload.n_files or self.n_ranks)
        storage, left = self.profile.storage, files
        yield self.env.timeout(self.workload.t_open_s)
        while left:
            now = min(left, max(1, files // 8))
            left -= now
            queued = self.metadata.wait(self.env.now, now / storage.metadata_ops_per_s)
            alone = 0.0 if files == 1 else now * storage.open_file_s
            yield self.env.timeout(max(queued, alone))

    def _frames(self, number: int) -> Generator[simpy.Event, Any, None]:
        work, storage, env = self.workload, self.profile.storage, self.env
        node = number // self.profile.cores_per_node
        factor = storage.read_factor[self.layout] if self.n_ranks > 1 else 1.0
        io = factor * self.slower * self.io_jitter[number] * work.t_io_s / self.n_ranks
        comp = self.slower * self.comp_jitter[number] * work.t_comp_s / self.n_ranks
        nbytes = work.nbytes / self.n_ranks
        frames = work.n_frames / self.n_ranks
        target_s, link_s = nbytes / storage.stripe_bytes_per_s, nbytes / storage.node_bytes_per_s
        rest = self.slower * work.t_rest_s / self.n_ranks
        own_s = max(io - target_s - link_s, 0.0) + comp + rest
        left = 1.0
        # A first batch of random size: ranks do not stay in step.
        share = self.first[number] / self.n_batches
        batch = 0
        while left > 1e-9:
            share = min(share or left, left)
            if self.shared:
                yield from self._shared_read(number, share * frames, share * target_s, batch)
            else:
                queue = self.queues[self.place[number]]
                yield env.timeout(queue.wait(env.now, share * target_s))
            link = self.links[node].wait(env.now, share * link_s)
            yield env.timeout(link + share * own_s)
            left -= share
            share = 1 / self.n_batches
            batch += 1

    def _shared_read(
        self, number: int, frames: float, transfer_s: float, batch: int
    ) -> Generator[simpy.Event, Any, None]:
        """Read from the one file: past the node's client, then for the lock, then the bytes."""
        node, locks_s = number // self.profile.cores_per_node, 0.0
        if self.layout == "xtc-shared" and self.n_ranks > 1:
            mates = (self.active[node] - 1) / max(min(self.profile.cores_per_node, self.n_ranks), 1)
            client_s = frames * self.profile.storage.client_lock_s * mates
            yield self.env.timeout(self.clients[node].wait(self.env.now, client_s))
            elsewhere = 1 - self.active[node] / self.n_active
            locks_s = frames * self.lock_s * elsewhere
        target = self.targets[batch % len(self.targets)]
        yield target.serve(self.standing[number], locks_s + transfer_s)

    def total(self) -> float:
        """Return when rank 0 has all results, once all ranks are done."""
        last = float(self.finish.max())
        if self.n_ranks == 1:
            return last
        cost = self.profile.gather[self.gather]
        if self.gather == "gather":
            return last + cost.base_s + self.n_ranks * cost.per_rank_s
        return max(last, self.root.free_at) + cost.base_s


def simulate(
    profile: Profile,
    layout: str,
    gather: str,
    n_ranks: int,
    workload: Workload,
    *,
    seed: int = 0,
) -> Simulation:
    """Simulate one run; the same seed gives the same run.

    Raises
    ------
    PlanError
        The layout or gather is unknown, or `n_ranks` not from 1 to `MAX_SIMULATED_RANKS`.
    MissingExtraError
        SimPy is not installed.
    """
    try:
        import simpy
    except ImportError:
        raise MissingExtraError("the simulation needs SimPy: pip install simpy") from None
    layout, gather = access_model(layout), gather_model(gather)
    if not 1 <= n_ranks <= MAX_SIMULATED_RANKS:
        raise PlanError(f"{n_ranks!r} ranks: the simulation takes 1 to {MAX_SIMULATED_RANKS:,}")
    env = simpy.Environment()
    run = _Run(env, profile, layout, gather, n_ranks, workload, np.random.default_rng(seed))
    for number in range(n_ranks):
        env.process(run.rank(number))
    n_events = 0
    while env.peek() != float("inf"):
        env.step()
        n_events += 1
    return Simulation(n_ranks, run.total(), run.finish, n_events)
