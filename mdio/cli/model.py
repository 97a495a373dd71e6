"""``mdio model``: fit a machine profile to timings, and predict other runs from it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from statistics import median
from typing import Any

from mdio.advisor.closed_form import predict, reference_workload
from mdio.advisor.fit import fit_profile, read_timings, residuals, rows_of_executor
from mdio.advisor.profile import (
    ACCESS_MODELS,
    GATHERS,
    PROFILE_NAMES,
    access_model,
    load_profile,
    save_profile,
)
from mdio.analysis.results import check_output
from mdio.cli.common import add, check_outputs_differ, positive, positives, print_json, print_notes
from mdio.core.words import plural


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    fit = actions.add_parser("fit", help="a machine profile from a table of timings")
    add(fit, "csv CSV", "timings: scaling.csv of mdio bench scaling, or its columns")
    fit.add_argument("-o", "--out", metavar="PROFILE.toml", required=True)
    fit.add_argument("--name", help="name of the machine (default: as in the table)")
    text = "fit the rows of this executor (default: the only one in the table, or mpi)"
    add(fit, "--executor NAME", text)
    text = "default: as in the table, or else in the profile of --prior"
    add(fit, "--cores-per-node N", text, positive)
    text = f"profile of what is not measured: a file, {' or '.join(PROFILE_NAMES)} (default: comet)"
    add(fit, "--prior PROFILE", text)
    add(fit, "--json", "print one JSON object")
    prediction = actions.add_parser("predict", help="seconds for numbers of ranks")
    add(prediction, "profile PROFILE.toml", f"a file, {' or '.join(PROFILE_NAMES)}")
    add(prediction, "--layout", "may be repeated (default: all)", action="append")
    add(prediction, "--gather", "may be repeated (default: all)", action="append")
    add(prediction, "--workload X", "how often a frame is computed (default 1)", float, default=1.0)
    prediction.add_argument("--ranks", type=positives, metavar="N,N,...", required=True)
    add(prediction, "--json", "print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Fit or predict."""
    return _fit(args) if args.action == "fit" else _predict(args)


def _fit(args: argparse.Namespace) -> int:
    check_output(args.out, (".toml",))
    check_outputs_differ([args.csv, args.prior], args.out)
    rows, notes = rows_of_executor(read_timings(args.csv), args.csv, args.executor)
    profile = fit_profile(
        rows,
        name=args.name or rows[0].machine or "unnamed",
        source=f"fitted to {plural(len(rows), 'row')} of measured timings",
        cores_per_node=args.cores_per_node,
        base=load_profile(args.prior) if args.prior else None,
    )
    save_profile(profile, args.out)
    if args.cores_per_node is None and rows[0].cores is None:
        notes.append(
            f"{profile.cores_per_node} cores a node are assumed: {args.csv} has no column cores; "
            "give --cores-per-node"
        )
    row_residuals = residuals(profile, rows)
    n_outside = sum(residual.is_outside for residual in row_residuals)
    if n_outside > len(rows) / 5:
        notes.append(
            f"{n_outside:,} of {plural(len(rows), 'row')} took more or less time than this profile "
            "predicts for them (low_s to high_s): it cannot tell these runs apart; runs that last "
            "seconds, of more frames and on more ranks, make a better profile"
        )
    print_notes("model", notes)
    table: list[dict[str, Any]] = [
        {
            "layout": residual.row.layout,
            "gather": residual.row.gather,
            "workload_x": residual.row.workload_x,
            "n_ranks": residual.row.n_ranks,
            "measured_s": residual.row.t_total_max_s,
            "t_total_s": residual.t_total_s,
            "relative_error": residual.relative,
        }
        for residual in row_residuals
    ]
    error = median(abs(row["relative_error"]) for row in table)
    if args.json:
        print_json(
            {
                "out": args.out,
                "name": profile.name,
                "cores_per_node": profile.cores_per_node,
                "n_rows": len(rows),
                "median_relative_error": error,
                "residuals": table,
            }
        )
        return 0
    _print_table(table, ["measured_s", "t_total_s", "relative_error"])
    print(
        f"{args.out}: {profile.name}, {profile.cores_per_node} cores a node, "
        f"{plural(len(rows), 'row')}, median error {100 * error:.1f}%"
    )
    return 0


def _predict(args: argparse.Namespace) -> int:
    profile = load_profile(args.profile)
    table: list[dict[str, Any]] = []
    for layout in args.layout or ACCESS_MODELS:
        for gather in args.gather or GATHERS:
            workload = reference_workload(profile, layout, args.workload)
            for n_ranks in args.ranks:
                row = {"layout": layout, "gather": gather, "workload_x": args.workload}
                row |= asdict(predict(profile, layout, gather, n_ranks, workload))
                table.append(row)
    measured = {pair.partition("/")[0] for pair in profile.measured}
    notes = [
        f"{layout} was not measured for this profile: the times of its files are assumed, and may "
        "be wrong many times over; measure it with mdio bench scaling, and fit again"
        for layout in args.layout or ACCESS_MODELS
        if access_model(layout) not in measured
    ]
    if args.json:
        profile_values = {"profile": profile.name, "cores_per_node": profile.cores_per_node}
        print_json(profile_values | {"rows": table, "notes": notes})
    else:
        print_notes("model", notes)
        _print_table(table, ["t_total_s", "low_s", "high_s"])
    return 0


def _print_table(table: list[dict[str, Any]], columns: list[str]) -> None:
    print(f"{'layout':21}{'gather':14}{'X':>5}{'ranks':>8}", *(f"{name:>14}" for name in columns))
    for row in table:
        cells = (f"{row[name]:14.4g}" for name in columns)
        print(
            f"{row['layout']:21}{row['gather']:14}{row['workload_x']:5g}{row['n_ranks']:8}", *cells
        )
