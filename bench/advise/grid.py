"""Is the advice right? Every option it chooses from is made and run whole, and compared.

    python bench/advise/grid.py [--quick] [--only 'dcd slow'] [--store advise_grid.jsonl]
    python bench/advise/grid.py --replay            # decide again from what was measured
    python bench/advise/grid.py --score OWN.json    # how good what another adviser chose is

For each trajectory and analysis, with 1 and 2 workers, the advisor measures as for a user, but in a
few seconds; it then advises for 1, 3 and 30 passes. The truth: each option converted whole and the
analysis run on it whole, options in turn, again and again; total = median conversion + passes x
median run. Regret = total of what is advised / total of the best. Wanted: at most 1.1 in 9 of 10
cases, never beyond 1.5. What was measured is stored line by line: a run that was cut goes on where
it stopped, and ``--replay`` evaluates what is stored with the decisions of the present code.
``--list`` prints all cases that are stored, with the options there are; ``--score`` takes
``{case: option}`` for some of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from advise.truth import ANALYSES, Truth, trajectories
from measuring import append_jsonl

from mdio.advisor.measure import Limits
from mdio.advisor.measurements import measurements_from
from mdio.advisor.recommend import recommend

CASES = Path(__file__).with_name("cases.jsonl")
MEASURED = Path("bench-output/advise_grid.jsonl")
PASSES = (1, 3, 30)
WORKERS = (1, 2)
WITHIN, NEVER, SHARE = 1.1, 1.5, 0.9
Store = dict[tuple[str, str, bool], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One question, what was advised, and what would have been best."""

    where: str
    advised: str
    best: str
    regret: float
    is_tie: bool
    """Whether the two differ by less than their repeats do."""
    why: str
    """Which forecast went wrong most."""


@dataclass(frozen=True)
class Measured:
    """Repeats: their median, and half of the distance between their quartiles."""

    median: float
    spread: float

    @classmethod
    def of(cls, seconds: list[float]) -> Measured:
        """Return those of seconds; nothing takes none."""
        if len(seconds) < 2:
            return cls(seconds[0] if seconds else 0.0, 0.0)
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(statistics.median(seconds), (high - low) / 2)


def options_of(record: dict[str, Any]) -> dict[str, list[str]]:
    """Return the options of each case of a record."""
    return {
        _name(record, workers, passes): list(one["run_s"])
        for workers, one in record["workers"].items()
        for passes in PASSES
    }


def _name(record: dict[str, Any], workers: str, passes: int) -> str:
    return f"{record['source']}, {record['analysis']}, {workers} w, {passes} passes"


def _truths(one: dict[str, Any], passes: int) -> dict[str, tuple[float, float]]:
    """Return what converting and all passes took with each option, s, and the spread of that."""
    found = {}
    for name, took_s in one["run_s"].items():
        convert, run = Measured.of(one["convert_s"].get(name, [])), Measured.of(took_s)
        spread = math.hypot(convert.spread, passes * run.spread)
        found[name] = convert.median + passes * run.median, spread
    return found


def scored(record: dict[str, Any], choices: Mapping[str, str]) -> list[float]:
    """Return the regret of each choice that is about a case of this record."""
    found = []
    for workers, one in record["workers"].items():
        for passes in PASSES:
            name = _name(record, workers, passes)
            if name in choices:
                totals = {option: total for option, (total, _) in _truths(one, passes).items()}
                found.append(totals[choices[name]] / min(totals.values()))
    return found


def evaluate(record: dict[str, Any]) -> list[Case]:
    """Return the cases of a record, as the present code decides them."""
    cases = []
    for workers, one in record["workers"].items():
        found = measurements_from(one["measurements"], "stored measurements")
        found = replace(found, t_prepare_s=0.0)  # what ran was prepared already
        for passes in PASSES:
            advice = recommend(found, int(workers), passes, **one.get("asked", {}))
            convert = {name: Measured.of(one["convert_s"].get(name, [])) for name in one["run_s"]}
            run = {name: Measured.of(took_s) for name, took_s in one["run_s"].items()}
            truths = _truths(one, passes)
            totals = {name: total for name, (total, _) in truths.items()}
            best, advised = min(totals, key=lambda name: totals[name]), advice.recommended.name
            wrong: dict[str, float] = {}
            for name, sign in ((advised, 1), (best, -1)):
                forecast = next(option.total for option in advice.options if option.name == name)
                if forecast is None:
                    wrong[f"{name} was not measured"] = math.inf
                    continue
                for part, seen, told in (
                    ("converting", convert[name].median, forecast.convert_s),
                    ("a pass", run[name].median, forecast.run.t_total_s),
                ):
                    weight = sign * (passes if part == "a pass" else 1)
                    wrong[f"{name}: {part} {seen:.3g} s, forecast {told:.3g} s"] = weight * (
                        seen - told
                    )
            why = max(wrong, key=lambda text: wrong[text])
            told = {o.name: o.total.total_s for o in advice.options if o.total is not None}
            if advised != best and told[advised] > told.get(best, math.inf):
                why = f"forecasts {told[advised]:.3g} and {told[best]:.3g} s taken to be alike"
            cases.append(
                Case(
                    _name(record, workers, passes),
                    advised,
                    best,
                    totals[advised] / totals[best],
                    totals[advised] - totals[best]
                    <= math.hypot(truths[advised][1], truths[best][1]),
                    why,
                )
            )
    return cases


def report(records: list[dict[str, Any]], never: float = NEVER) -> bool:
    """Print the tables; return whether what is wanted is reached."""
    cases = [case for record in records for case in evaluate(record)]
    if not cases:
        print("nothing is stored that fits")
        return False
    good = [case for case in cases if case.regret <= WITHIN]
    ties = [case for case in cases if case.regret <= WITHIN or case.is_tie]
    worst = max(case.regret for case in cases)
    advise_s = [one["advise_s"] for record in records for one in record["workers"].values()]
    print(
        "| cases | within 10% of the best | within 10%, or within the spread of repeats | worst | "
        "best option itself | advising took |\n| --- | --- | --- | --- | --- | --- |\n"
        f"| {len(cases)} | {_share(len(good), len(cases))} | {_share(len(ties), len(cases))} | "
        f"{worst:.2f}x | {_share(sum(c.advised == c.best for c in cases), len(cases))} | "
        f"{statistics.median(advise_s):.0f} s, at most {max(advise_s):.0f} s |"
    )
    for title, place in (("analysis", 1), ("source", 0), ("passes", 3)):
        print(f"\n| {title} | cases | within 10% | worst |\n| --- | --- | --- | --- |")
        for name in dict.fromkeys(case.where.split(", ")[place] for case in cases):
            own = [case for case in cases if case.where.split(", ")[place] == name]
            n_good = sum(case.regret <= WITHIN for case in own)
            print(f"| {name} | {len(own)} | {n_good} | {max(c.regret for c in own):.2f}x |")
    misses = sorted((case for case in cases if case.regret > WITHIN), key=lambda c: -c.regret)
    if misses:
        print("\n| missed | advised | best | regret | within the spread | why |")
        print("| --- | --- | --- | --- | --- | --- |")
    for case in misses:
        tie = "yes" if case.is_tie else "no"
        print(
            f"| {case.where} | {case.advised} | {case.best} | {case.regret:.2f}x | {tie} | "
            f"{case.why} |"
        )
    return len(good) >= SHARE * len(cases) and worst <= never


def _share(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.0f}%)"


def stored(path: Path) -> Store:
    """Return the stored records by source, analysis and size of run; the last of each counts."""
    found: Store = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the line that was being written when the run was cut
                continue
            found[record["source"], record["analysis"], record["quick"]] = record
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("bench-output/advise"))
    parser.add_argument("--store", type=Path, metavar="FILE", help="of cases")
    parser.add_argument("--list", action="store_true", help="print the cases and their options")
    parser.add_argument("--score", type=Path, metavar="OWN.json", help="{case: option}")
    parser.add_argument("--replay", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="shorter trajectories")
    parser.add_argument("--only", metavar="TEXT", default="", help="such as 'dcd slow'")
    parser.add_argument("--again", action="store_true", help="measure also what is stored")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="for repeats of one kind")
    parser.add_argument("--advise-seconds", type=float, default=10.0, help="for the advisor")
    args = parser.parse_args()
    if args.store is None:
        args.store = CASES if args.list or args.score or args.replay else MEASURED
    found = stored(args.store)
    if args.list:
        print(json.dumps(dict(item for one in found.values() for item in options_of(one).items())))
        return 0
    if args.score is not None:
        choices = json.loads(args.score.read_text())
        regrets = [regret for one in found.values() for regret in scored(one, choices)]
        if not regrets:
            parser.error(f"{args.score}: it names none of the cases in {args.store}; see --list")
        good = sum(regret <= WITHIN for regret in regrets)
        print(
            f"{len(regrets)} cases: within 10% of the best in {_share(good, len(regrets))}, "
            f"worst {max(regrets):.2f}x, mean {statistics.fmean(regrets):.3f}x"
        )
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    limits = Limits(seconds=args.advise_seconds)
    begun = time.monotonic()
    for source in () if args.replay else trajectories(args.folder, args.quick):
        truth = Truth(source, args.folder, args.repeats, args.seconds)
        for name in ANALYSES:
            key = source.title, name, args.quick
            if not all(word in f"{source.title} {name}" for word in args.only.split()):
                continue
            if key in found and not args.again:
                continue
            workers = {str(count): truth.measure(name, count, limits) for count in WORKERS}
            record = {"bench": "advise_grid", "source": source.title, "analysis": name}
            found[key] = {**record, "quick": args.quick, "workers": workers}
            if args.store.exists() and not args.store.read_bytes().endswith(b"\n"):
                with args.store.open("a") as file:  # ends the line that a cut run began
                    file.write("\n")
            append_jsonl(args.store, [found[key]])
            regrets = " ".join(f"{case.regret:.2f}" for case in evaluate(found[key]))
            print(
                f"{time.monotonic() - begun:5.0f} s  {source.title}, {name}: {regrets}",
                file=sys.stderr,
                flush=True,
            )
        truth.close()
    chosen = [
        record
        for (title, name, quick), record in found.items()
        if quick == args.quick and all(word in f"{title} {name}" for word in args.only.split())
    ]
    return 0 if report(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
