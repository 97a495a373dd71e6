"""The profile of SDSC Comet from its published rows, and how far the model is to be trusted.

``python bench/paper/comet.py`` fits the rows of published/comet_rmsd.csv, writes the profile
that mdio ships, and prints: predicted beside measured and simulated for each row; errors by layout
and gather; the order of layouts; errors on rows held out of the fit. It draws them all into
bench-output/model_comet.png and appends the errors to bench-output/model_comet.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import append_jsonl
from model.cases import Case, cases, errors, from_nothing, order
from paper.simulate import simulate

from mdio.advisor.closed_form import predict, reference_workload
from mdio.advisor.fit import Residual, read_timings, residuals
from mdio.advisor.profile import ACCESS_MODELS, GATHERS, Profile, save_profile

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (
    "Khoshlessan et al., Parallel performance of molecular dynamics trajectory analysis (2020), "
    "supplementary data, CC-BY-SA 4.0; fitted by bench/paper/comet.py"
)


def simulated(profile: Profile, item: Residual) -> tuple[float, float, float]:
    """Return the total, the mean and the least rank's time of a simulated run."""
    row = item.row
    workload = reference_workload(profile, row.layout, row.workload_x)
    run = simulate(profile, row.layout, row.gather, row.n_ranks, workload)
    return run.t_total_s, float(run.finish_s.mean()), float(run.finish_s.min())


def print_rows(profile: Profile, found: list[Residual]) -> dict[tuple[str, str], list[float]]:
    """Print each row; return the simulation's relative errors by layout and gather."""
    print(
        f"{'layout':21}{'gather':14}{'X':>4}{'ranks':>6}{'measured':>10}{'+-':>7}{'model':>9}"
        f"{'error':>7}{'10%':>9}{'90%':>9}{'simul.':>9}{'error':>7}"
        f"   mean and first rank done: measured / simulated"
    )
    wrong: dict[tuple[str, str], list[float]] = {}
    for item in found:
        row = item.row
        total, mean, first = simulated(profile, item)
        if row.n_ranks > 1:
            wrong.setdefault(row.pair, []).append(total / row.t_total_max_s - 1)
        done = ""
        if row.gather == "gather" and row.n_ranks > 1:
            # Who waits in a blocking gather is done: total - wait.
            waits = row.t_comm_mean_s or 0.0, row.t_comm_max_s or 0.0
            done = "   {:.4g} {:.4g} / ".format(*(row.t_total_max_s - wait for wait in waits))
            done += f"{mean:.4g} {first:.4g}"
        print(
            f"{row.layout:21}{row.gather:14}{row.workload_x:4g}{row.n_ranks:6}"
            f"{row.t_total_max_s:10.2f}{row.t_total_std_s or 0:7.1f}{item.t_total_s:9.2f}"
            f"{100 * item.relative:+6.0f}%{item.low_s:9.2f}{item.high_s:9.2f}{total:9.2f}"
            f"{100 * (total / row.t_total_max_s - 1):+6.0f}%{done}"
        )
    return wrong


def print_errors(case: Case) -> dict[str, object]:
    """Print a case's errors; return them as a record."""
    print(f"\n{case.name}")
    found = errors(case)
    for pair, (middle, largest, inside, count) in found.items():
        print(
            f"  {pair:36} median {100 * middle:4.0f}%  largest {100 * largest:4.0f}%  "
            f"in the 10-90% band {100 * inside:4.0f}%  ({count} rows)"
        )
    return {"bench": "model_comet", "case": case.name, "errors": found}


def draw(profile: Profile, found: list[Residual], path: Path) -> None:
    """Draw measured rows, the model with its band, and simulated runs to 10,000 ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(18, 8.5), sharex=True)
    curve = np.unique(np.round(np.geomspace(1, 10_000, 60)).astype(int)).tolist()
    dots = [1, 24, 48, 96, 192, 384, 1000, 3000, 10_000]
    for column, layout in enumerate(ACCESS_MODELS):
        for line, gather in enumerate(GATHERS):
            axis = axes[line, column]
            for number, times in enumerate((1, 40, 100) if layout == "xtc-shared" else (1,)):
                colour = f"C{number}"
                workload = reference_workload(profile, layout, times)
                guess = [predict(profile, layout, gather, n, workload) for n in curve]
                low, high = [g.low_s for g in guess], [g.high_s for g in guess]
                axis.fill_between(curve, low, high, alpha=0.2, color=colour, linewidth=0)
                axis.plot(
                    curve, [g.t_total_s for g in guess], color=colour, label=f"{times}x, model"
                )
                runs = [simulate(profile, layout, gather, n, workload).t_total_s for n in dots]
                axis.plot(dots, runs, ":x", color=colour, lw=0.8, ms=5, label="simulated")
                rows = [
                    item.row
                    for item in found
                    if item.row.pair == (layout, gather) and item.row.workload_x == times
                ]
                if rows:
                    axis.errorbar(
                        [row.n_ranks for row in rows],
                        [row.t_total_max_s for row in rows],
                        [row.t_total_std_s or 0 for row in rows],
                        fmt="o",
                        color=colour,
                        ms=4,
                        label="measured",
                    )
            axis.set(xscale="log", yscale="log", title=f"{layout}, {gather}")
            axis.set_xlabel("ranks")
            axis.legend(fontsize=7)
        axes[0, column].tick_params(labelbottom=True)
    axes[0, 0].set_ylabel("slowest rank, s")
    axes[1, 0].set_ylabel("slowest rank, s")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, default=ROOT / "bench/paper/published/comet_rmsd.csv")
    parser.add_argument("--out", type=Path, default=ROOT / "mdio/advisor/model/profiles/comet.toml")
    parser.add_argument("--folder", type=Path, default=Path("bench-output"))
    args = parser.parse_args()
    rows = read_timings(args.csv)
    profile = from_nothing(rows, source=SOURCE)
    save_profile(profile, args.out)
    found = residuals(profile, rows)
    of_simulation = print_rows(profile, found)
    records = [print_errors(Case("fit to all rows", profile, rows))]
    count, wrong = order(found)
    print(f"\norder of layouts right in {count - len(wrong)} of {count} pairs beyond their spread")
    for one, two in wrong:
        print(f"  wrong: {one.row} and {two.row}")
    print(
        "\nsimulated runs beside measured ones (the simulation takes the closed form's parameters)"
    )
    for (layout, gather), sizes in of_simulation.items():
        middle, mean = np.median(np.abs(sizes)), np.mean(sizes)
        print(f"  {layout + '/' + gather:36} median {100 * middle:4.0f}%  mean {100 * mean:+4.0f}%")
    records += [print_errors(case) for case in cases(rows)]
    print("\n10,000 ranks: model and simulation")
    for layout, gather in (
        ("xtc-shared", "gather"),
        *((name, "global-array") for name in ACCESS_MODELS),
    ):
        workload = reference_workload(profile, layout, 1)
        guess = predict(profile, layout, gather, 10_000, workload)
        begun = time.perf_counter()
        run = simulate(profile, layout, gather, 10_000, workload)
        seconds = time.perf_counter() - begun
        print(
            f"  {layout:21}{gather:14} {guess.t_total_s:9.2f} s {run.t_total_s:9.2f} s, "
            f"{run.n_stragglers} stragglers, {run.n_events:,} events in {seconds:.1f} s"
        )
    draw(profile, found, args.folder / "model_comet.png")
    append_jsonl(args.folder / "model_comet.jsonl", records)


if __name__ == "__main__":
    main()
