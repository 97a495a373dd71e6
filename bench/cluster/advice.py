"""Is the advice right on slow, shared storage? Every option is made and run on the cluster.

    python bench/cluster/advice.py               # on a cluster that is up; some 20 minutes
    python bench/cluster/advice.py --replay      # decide again from what is stored

For each analysis the advisor measures once, with a rank on each node. The truth, for each number of
ranks: all options converted on these ranks, and the analysis run on them, cold and warm. Wanted:
within 10% of the best in 9 of 10 cases, never beyond 1.3.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from cephfs import CephFS
from cluster import FOLDER
from machines import Cluster
from runs import ROOT, measure, run
from study import N_TILES, prepare

sys.path.insert(0, str(ROOT / "bench"))
from advise.grid import report
from measuring import append_jsonl

from mdio.advisor.measurements import Measurements, Trial, measurements_from, segments_for

ANALYSES = {"rmsd of all": "all", "rmsd of C-alphas": "name CA"}
CACHES = ("cold", "warm")
NEVER = 1.3


def advise(cluster: Cluster, source: Path, top: Path, select: str, out: Path) -> dict[str, Any]:
    """Return what the advisor measures, with a rank on each node."""
    kept = cluster.folder / "advice.json"
    words = ["advise", str(source), "-s", str(top), "--select", select, "--target", str(out)]
    run(cluster, len(cluster.nodes), [*words, "--mpi", "--save-measurements", str(kept), "--quiet"])
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def conversion(found: Measurements, trial: Trial, ranks: int, source: Path, out: Path) -> list[str]:
    """Return the words of the conversion that the advice would name."""
    words = ["convert", str(source), str(out), "--mpi", "--force"]
    for option, value in trial.convert_options.items():
        words += [option, value]
    if trial.groups:
        words += ["-s", str(found.question.top)]
    if trial.layout == "segments":
        decoded = 12 * found.source.n_atoms
        words += ["--segments", str(segments_for(found.source.n_frames, decoded, ranks))]
    return words


class Grid:
    """The cases on one cluster."""

    def __init__(self, cluster: Cluster, tiles: int, repeats: int) -> None:
        self.cluster, self.repeats = cluster, repeats
        paths, self.top = prepare(cluster, [("xtc", "all")], tiles)
        self.source = paths["xtc", "all"]
        self.out = CephFS(cluster).make_folder("advised", "fine")

    def records(self, name: str, ranks: list[int]) -> list[dict[str, Any]]:
        """Return what `advise.grid` evaluates: one record for cold passes, one for warm ones."""
        select = ANALYSES[name]
        begun = time.monotonic()
        measured = advise(self.cluster, self.source, self.top, select, self.out)
        advise_s = time.monotonic() - begun
        found = measurements_from(measured, "measurements")
        records: list[dict[str, Any]] = [
            {
                "bench": "advice_on_cluster",
                "source": f"{found.source.n_atoms} atoms xtc {cache}",
                "analysis": name,
                "quick": False,
                "workers": {},
            }
            for cache in CACHES
        ]
        for count in ranks:
            convert_s, run_s = self._truth(found, select, count)
            for cache, record in zip(CACHES, records, strict=True):
                record["workers"][str(count)] = {
                    "convert_s": convert_s,
                    "run_s": run_s[cache],
                    "advise_s": advise_s,
                    "measurements": measured,
                    "asked": {"cache": cache, "nodes": min(count, len(self.cluster.nodes))},
                }
        return records

    def _truth(
        self, found: Measurements, select: str, ranks: int
    ) -> tuple[dict[str, list[float]], dict[str, dict[str, list[float]]]]:
        """Return the seconds of all conversions, and of all runs by cache."""
        convert_s: dict[str, list[float]] = {}
        run_s: dict[str, dict[str, list[float]]] = {cache: {} for cache in CACHES}
        for number, trial in enumerate(found.trials):
            if trial.problem is not None or not trial.fits:
                continue
            path = self.source
            if trial.layout != "as-is":
                path = self.out / f"{number}.{trial.layout}"
                words = conversion(found, trial, ranks, self.source, path)
                for _ in range(self.repeats):
                    row = measure(self.cluster, trial.name, "fine", ranks, words)
                    convert_s.setdefault(trial.name, []).append(row.seconds)
            words = ["analyze", "rmsd", str(path), "-s", str(self.top), "--select", select]
            for cache in CACHES:  # what was read cold is warm
                for _ in range(self.repeats):
                    row = measure(
                        self.cluster, trial.name, "fine", ranks, [*words, "--executor", "mpi"],
                        warm=cache == "warm",
                    )  # fmt: skip
                    run_s[cache].setdefault(trial.name, []).append(row.seconds)
            if path != self.source:
                self.cluster.nodes[0].run("rm", "-rf", str(path))
        return convert_s, run_s


def main() -> int:
    """Measure what the command line asks for, and print how good the advice is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1,4,8")
    parser.add_argument("--analyses", default=",".join(ANALYSES))
    parser.add_argument("--tiles", type=int, default=N_TILES, help="of 98 frames each")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--replay", action="store_true", help="measure nothing")
    parser.add_argument("--store", type=Path, default=ROOT / "bench-output/advice_on_cluster.jsonl")
    args = parser.parse_args()
    if not args.replay:
        grid = Grid(Cluster.load(FOLDER), args.tiles, args.repeats)
        for name in args.analyses.split(","):
            append_jsonl(args.store, grid.records(name, [int(n) for n in args.ranks.split(",")]))
    records = [json.loads(line) for line in args.store.read_text().splitlines()]
    return 0 if report(records, NEVER) else 1


if __name__ == "__main__":
    sys.exit(main())
