"""Is the advice right? Every option it chooses from is made and run whole, and compared.

    python bench/advise_grid.py [--quick] [--folder DIR] [--out advise_grid.jsonl]

For each trajectory, analysis and number of workers the advisor measures once; it then advises for
1, 3 and 30 passes. The truth: each option converted whole, each analysis run on it whole (the least
of the repeats, since disturbances only add), total = convert + passes x run. Regret = total of what
is advised / total of the best. Wanted: within 10% in 9 of 10 cases, never beyond 1.5.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adk
import numpy as np
from measuring import provenance

import mdio
from mdio.advisor.candidates import Group, candidates
from mdio.advisor.kernel_probe import Ready, read_only
from mdio.advisor.measure import measure
from mdio.advisor.recommend import recommend
from mdio.advisor.trial import convert_trial
from mdio.analysis.kernel import Kernel, Prepared, UserKernel
from mdio.analysis.system import System

PASSES = (1, 3, 30)
WITHIN, NEVER = 1.1, 1.5
SHARE = 0.9
LONG_S = 5.0
"""Runs that take longer are not repeated."""


def slow(block: mdio.FrameBlock) -> np.ndarray:
    """Compute for half a millisecond a frame, as what has not been vectorised does."""
    rows = np.empty((block.n_frames, 1))
    for frame, positions in enumerate(block.positions):
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.0005:
            rows[frame] = np.linalg.norm(positions - positions.mean(axis=0))
    return rows


ANALYSES: dict[str, Callable[[], Kernel]] = {
    "rmsd x1": lambda: mdio.RMSD(select="name CA"),
    "rmsd x10": lambda: mdio.RMSD(select="name CA", repeat=10),
    "rmsd x100": lambda: mdio.RMSD(select="name CA", repeat=100),
    "dihedrals": lambda: mdio.Dihedrals(),
    "slow callable": lambda: UserKernel(slow, "name CA"),
}


@dataclass
class Trajectory:
    """A trajectory, its topology, and what was made and timed of it."""

    title: str
    path: Path
    top: Path
    analyses: tuple[str, ...]
    prepared: dict[str, Prepared] = field(default_factory=dict)
    converted_s: dict[tuple[str, str, int], float] = field(default_factory=dict)
    runs_s: dict[tuple[str, str, int], float] = field(default_factory=dict)


def systems(folder: Path, quick: bool) -> list[Trajectory]:
    """Return 3,341 atoms in three formats, and 47,681 atoms in two."""
    tiles, frames = (10, 40) if quick else (50, 200)
    every = tuple(ANALYSES)
    found = [
        Trajectory(f"3,341 atoms {suffix}", adk.tiled(folder, tiles, suffix), adk.topology(), every)
        for suffix in adk.SUFFIXES
    ]
    water = adk.solvated(folder, 1, frames)
    few = ("rmsd x1", "rmsd x100", "dihedrals")
    found.append(Trajectory("47,681 atoms xtc", water, adk.solvated_topology(), few))
    dcd = water.with_suffix(".dcd")
    if not dcd.exists():
        mdio.convert(water, dcd)
    found.append(Trajectory("47,681 atoms dcd", dcd, adk.solvated_topology(), ("rmsd x1",)))
    return found


def truth(system: Trajectory, name: str, workers: int, folder: Path, repeats: int) -> None:
    """Convert into each option, run the analysis on each, and note the seconds."""
    with mdio.open(str(system.path)) as layout:
        info = layout.info
        prepared = ANALYSES[name]().prepare(System(layout, str(system.top)))
    group = Group("selection", np.unique(prepared.atoms))
    outs = {"as-is": system.path}
    for candidate in candidates(info, group, workers):
        out = folder / f"{candidate.name.replace(' ', '-')}.{candidate.to}"
        took = []
        for _ in range(min(3, repeats)):
            seconds, _ = convert_trial(
                candidate,
                [str(system.path)],
                range(info.n_frames),
                out,
                workers,
                candidate.segments if candidate.layout == "segments" else None,
            )
            took.append(seconds)
        outs[candidate.name] = out
        system.converted_s[name, candidate.name, workers] = min(took)
    executor = mdio.Processes(workers) if workers > 1 else mdio.Serial()
    seconds_of: dict[str, list[float]] = {option: [] for option in outs}
    for repeat in range(repeats + 1):
        for option, out in outs.items():
            with executor:
                # The first brings the bytes into memory.
                kernel = Ready(prepared if repeat else read_only(prepared))
                result = mdio.analyze(str(out), kernel=kernel, executor=executor)
            if repeat:
                seconds_of[option].append(result.seconds)
        if repeat and max(took[-1] for took in seconds_of.values()) > LONG_S:
            break
    for option, took in seconds_of.items():
        system.runs_s[name, option, workers] = min(took)


def cases(system: Trajectory, name: str, workers: int, folder: Path, repeats: int) -> list[Any]:
    """Return one record for each number of passes."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as own:  # runs do not meet
        truth(system, name, workers, Path(own), repeats)
    begun = time.perf_counter()
    found = measure(
        system.path, analysis=ANALYSES[name](), top=system.top, target=folder, ranks=workers
    )
    took_s = time.perf_counter() - begun
    records = []
    for passes in PASSES:
        advice = recommend(found, workers, passes)
        totals = {
            option: system.converted_s.get((name, option, workers), 0.0) + passes * seconds
            for (analysis, option, count), seconds in system.runs_s.items()
            if (analysis, count) == (name, workers)
        }
        best = min(totals, key=lambda option: totals[option])
        chosen = advice.recommended.name
        records.append(
            {
                "bench": "advise_grid",
                "system": system.title,
                "analysis": name,
                "workers": workers,
                "passes": passes,
                "advised": chosen,
                "best": best,
                "regret": totals[chosen] / totals[best],
                "measured_s": totals,
                "predicted_s": {
                    option.name: option.total.total_s for option in advice.options if option.total
                },
                "advise_s": took_s,
            }
        )
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("bench-output/advise"))
    parser.add_argument("--out", type=Path, help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="shorter trajectories")
    parser.add_argument("--only", metavar="TEXT", default="", help="such as 'dcd slow'")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    about = provenance()
    print(f"{'system':18}{'analysis':15}{'w':>2}{'passes':>7}  {'advised':20}{'best':20}regret")
    for system in systems(args.folder, args.quick):
        for name in system.analyses:
            if not all(word in f"{system.title} {name}" for word in args.only.split()):
                continue
            for workers in args.workers:
                for one in cases(system, name, workers, args.folder, args.repeats):
                    records.append(one)
                    print(
                        f"{one['system']:18}{one['analysis']:15}{one['workers']:2}"
                        f"{one['passes']:7}  {one['advised']:20}{one['best']:20}"
                        f"{one['regret']:.2f}",
                        flush=True,
                    )
                    if args.out is not None:
                        with args.out.open("a") as file:
                            file.write(json.dumps({**one, **about}) + "\n")
    regrets = [one["regret"] for one in records]
    good = sum(regret <= WITHIN for regret in regrets)
    print(
        f"{len(regrets)} cases: {good} within {WITHIN:g} ({100 * good / len(regrets):.0f}%), "
        f"worst {max(regrets):.2f}; advising took at most "
        f"{max(one['advise_s'] for one in records):.0f} s"
    )
    return 0 if good >= SHARE * len(regrets) and max(regrets) <= NEVER else 1


if __name__ == "__main__":
    sys.exit(main())
