"""Does the scaling model carry over? Machines that are not Comet, made up, fitted to few rows.

    python bench/model/machines.py [--machines 12] [--seed 0] [--out model_machines.jsonl]

Each machine is drawn with its own cores a node, compute, storage, locks, opens, gathers and noise,
some of them far from Comet's. Half of the machines run in the closed form, half in the simulation,
which is another model than the one fitted. Each row gets the noise of repeats. A profile is then
fitted to one rank and one or two points, as a new user has them, and predicts all other rows.
Printed: for each way of choosing rows and each layout and gather, the median and the 90% quantile
of the absolute errors, and how many rows lie inside the predicted band (80% should).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import append_jsonl
from paper.simulate import simulate

from mdio.advisor.closed_form import predict, reference_workload
from mdio.advisor.fit import TimingRow, fit_profile, residuals
from mdio.advisor.profile import LAYOUT_GATHER_PAIRS, Gather, Profile, load_profile

CORES = (12, 16, 20, 28, 36, 48, 64, 128)
NODES = (0.5, 1, 2, 3, 4, 6, 8)
WORKLOADS = (1.0, 40.0)
Rows = list[TimingRow]


@dataclass(frozen=True)
class Machine:
    """A made-up machine, and what was measured on it."""

    title: str
    profile: Profile
    rows: Rows


def draw_profile(rng: np.random.Generator) -> Profile:
    """Return Comet with every constant multiplied by a lognormal deviate of its own."""

    def about(value: float, width: float) -> float:
        return float(value * np.exp(width * rng.standard_normal()))

    comet = load_profile("comet")
    storage, noise, task = comet.storage, comet.noise, comet.task
    slower = about(1.0, 0.6)
    compute = about(1.0, 0.4)
    return replace(
        comet,
        cores_per_node=int(rng.choice(CORES)),
        node_slowdown=about(0.1, 0.7),
        task=replace(
            task,
            t_io_s={name: about(value * slower, 0.2) for name, value in task.t_io_s.items()},
            t_open_s={name: about(value, 0.7) for name, value in task.t_open_s.items()},
            t_comp_fixed_s=about(task.t_comp_fixed_s * compute, 0.3),
            t_comp_repeat_s=task.t_comp_repeat_s * compute,
        ),
        storage=replace(
            storage,
            lock_s=about(storage.lock_s * slower, 0.6),
            lock_gather_s=about(storage.lock_gather_s * slower, 0.6),
            client_lock_s=about(storage.client_lock_s * slower, 0.6),
            open_file_s=about(storage.open_file_s, 0.5),
            metadata_ops_per_s=about(storage.metadata_ops_per_s, 0.7),
            aggregate_bytes_per_s=about(storage.aggregate_bytes_per_s / slower, 0.5),
            stripe_bytes_per_s=about(storage.stripe_bytes_per_s / slower, 0.5),
            read_factor={name: about(v, 0.1) for name, v in storage.read_factor.items()},
        ),
        noise=replace(
            noise,
            compute=about(0.02, 0.5),
            io={
                layout: {gather: about(0.1, 0.5) for gather in table}
                for layout, table in noise.io.items()
            },
        ),
        gather={
            kind: Gather(about(cost.base_s, 0.7), about(cost.per_rank_s, 0.7))
            for kind, cost in comet.gather.items()
        },
    )


def measured_rows(profile: Profile, rng: np.random.Generator, simulated: bool) -> Rows:
    """Return a row for each layout, gather, workload and number of ranks."""
    rows = []
    counts = [1, *(max(2, round(share * profile.cores_per_node)) for share in NODES)]
    scatter = float(rng.choice([0.03, 0.08, 0.15]))
    for layout, gather in LAYOUT_GATHER_PAIRS:
        for workload_x in WORKLOADS:
            workload = reference_workload(profile, layout, workload_x)
            for n_ranks in counts:
                guess = predict(profile, layout, gather, n_ranks, workload)
                total = guess.t_total_s
                if simulated and n_ranks > 1:
                    total = simulate(profile, layout, gather, n_ranks, workload).t_total_s
                    total += guess.t_imbalance_s  # of ranks, which the simulation has not
                factor = np.exp((0.02 if n_ranks == 1 else scatter) * rng.standard_normal(3))
                rows.append(
                    TimingRow(
                        layout,
                        gather,
                        workload_x,
                        n_ranks,
                        float(total * factor[0]),
                        float(guess.t_comp_s * factor[1]),
                        float(guess.t_io_s * factor[2]),
                        t_open_mean_s=guess.t_open_s / 2 if n_ranks > 1 else guess.t_open_s,
                        t_total_std_s=scatter * total,
                        machine="made-up",
                    )
                )
    return rows


def machines(count: int, seed: int) -> Iterator[Machine]:
    """Yield made-up machines, closed form and simulation in turn."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        profile = draw_profile(rng)
        simulated = number % 2 == 1
        kind = "simulated" if simulated else "closed form"
        title = f"{number}: {kind}, {profile.cores_per_node} cores"
        yield Machine(title, profile, measured_rows(profile, rng, simulated))


def choices(machine: Machine) -> Iterator[tuple[str, Rows]]:
    """Yield what a user may have measured: a title and the rows."""
    cores = machine.profile.cores_per_node
    plain = [row for row in machine.rows if row.workload_x == 1]
    alone = [row for row in plain if row.n_ranks == 1]

    def some(pairs: Sequence[tuple[str, str]], nodes: Sequence[float]) -> Rows:
        counts = [round(share * cores) for share in nodes]
        more = [row for row in plain if row.pair in pairs and row.n_ranks in counts]
        return [*alone, *more]

    yield "one rank, all layouts", alone
    yield "one rank, shared XTC", [row for row in alone if row.layout == "xtc-shared"]
    for pair in LAYOUT_GATHER_PAIRS:
        yield f"one rank, 1 node of {pair[0]}/{pair[1]}", some([pair], [1])
        yield f"one rank, 1 and 3 nodes of {pair[0]}/{pair[1]}", some([pair], [1, 3])
    shared, hdf5, segments = ("xtc-shared", "gather"), ("hdf5", "gather"), LAYOUT_GATHER_PAIRS[3]
    yield "one rank, 2 nodes of xtc-shared and hdf5", some([shared, hdf5], [2])
    yield "one rank, 2 nodes of segments and hdf5", some([segments, hdf5], [2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON lines")
    args = parser.parse_args()
    found: dict[str, dict[str, list[tuple[float, bool]]]] = defaultdict(lambda: defaultdict(list))
    for machine in machines(args.machines, args.seed):
        print(machine.title, file=sys.stderr, flush=True)
        for title, taken in choices(machine):
            cores = machine.profile.cores_per_node
            profile = fit_profile(taken, name="new", source="", cores_per_node=cores)
            rest = [row for row in machine.rows if row not in taken and row.n_ranks > 1]
            for item in residuals(profile, rest):
                inside = item.low_s <= item.row.t_total_max_s <= item.high_s
                found[title]["/".join(item.row.pair)].append((item.relative, inside))
                if not 0 < item.low_s <= item.t_total_s <= item.high_s < np.inf:
                    raise SystemExit(f"{machine.title}, {title}: band of {item} is none")
    records = []
    print("\nmedian / 90% quantile of absolute errors, share inside the band")
    print(
        f"{'rows that were known':48}", *(f"{'/'.join(pair):>32}" for pair in LAYOUT_GATHER_PAIRS)
    )
    for title, pairs in found.items():
        cells = []
        for pair in LAYOUT_GATHER_PAIRS:
            errors = np.abs([error for error, _ in pairs["/".join(pair)]])
            inside = np.mean([flag for _, flag in pairs["/".join(pair)]])
            middle, high = np.median(errors), np.quantile(errors, 0.9)
            cells.append(f"{100 * middle:16.0f}% {100 * high:4.0f}% {100 * inside:7.0f}%")
            record = {"median": float(middle), "q90": float(high), "inside": float(inside)}
            records.append({"bench": "model_machines", "known": title, "pair": pair, **record})
        print(f"{title:48}", *cells)
    if args.out:
        append_jsonl(args.out, records)


if __name__ == "__main__":
    main()
