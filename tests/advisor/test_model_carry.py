"""Profiles of machines that are not Comet: few rows, other speeds, other models, odd tables."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from mdio.advisor.closed_form import predict, reference_workload
from mdio.advisor.fit import TimingRow, fit_profile, read_timings, residuals
from mdio.advisor.profile import ACCESS_MODELS, LAYOUT_GATHER_PAIRS, load_profile

BENCH = Path(__file__).parents[2] / "bench"
ROWS = read_timings(BENCH / "paper/published/comet_rmsd.csv")
ONE = [row for row in ROWS if row.n_ranks == 1 and row.workload_x == 1]


@pytest.fixture(scope="module")
def machines():
    """Two made-up machines, one of the closed form and one simulated, and what is known of them.

    The seed is one of few cores a node: the simulation follows each rank.
    """
    sys.path.insert(0, str(BENCH))
    try:
        from model import machines as machines_bench
    finally:
        sys.path.remove(str(BENCH))
    return [
        (machine, dict(machines_bench.choices(machine)))
        for machine in machines_bench.machines(2, seed=2)
    ]


@pytest.mark.parametrize(
    "pair", [pair for pair in LAYOUT_GATHER_PAIRS if pair != ("hdf5", "global-array")]
)
@pytest.mark.parametrize("n_ranks", [24, 48])
def test_one_point_of_one_layout_and_orders_of_magnitude_tell_comet(pair, n_ranks):
    point = [row for row in ROWS if row.pair == pair and row.n_ranks == n_ranks]
    known = [*ONE, *(row for row in point if row.workload_x == 1)]
    profile = fit_profile(known, name="x", source="", base=load_profile("generic"))
    for other in LAYOUT_GATHER_PAIRS:
        rest = [row for row in ROWS if row.pair == other and row.n_ranks > 1 and row not in known]
        if rest:
            found = residuals(profile, rest)
            # Segments with a blocking gather took half as long again as anything else tells.
            bound = 0.35 if "segments" in (other[0], pair[0]) else 0.25
            assert median(abs(item.relative) for item in found) < bound, other


def test_made_up_machines_are_told_from_few_rows(machines):
    errors, inside = [], []
    for machine, known in machines:
        for title in ("one rank, all layouts", "one rank, 2 nodes of xtc-shared and hdf5"):
            taken = known[title]
            cores = machine.profile.cores_per_node
            profile = fit_profile(taken, name="x", source="", cores_per_node=cores)
            rest = [row for row in machine.rows if row.n_ranks > 1 and row not in taken]
            for item in residuals(profile, rest):
                assert math.isfinite(item.high_s)
                assert 0 < item.low_s <= item.t_total_s <= item.high_s
                errors.append(abs(item.relative))
                inside.append(item.low_s <= item.row.t_total_max_s <= item.high_s)
    assert np.median(errors) < 0.2
    assert np.mean(inside) > 0.7


def test_the_order_of_rows_does_not_matter():
    known = [*ONE, *(row for row in ROWS if row.n_ranks == 72 and row.workload_x == 1)]
    one, other = (fit_profile(rows, name="x", source="") for rows in (known, known[::-1]))
    for layout, gather in LAYOUT_GATHER_PAIRS:
        times = [
            predict(p, layout, gather, 96, reference_workload(p, layout, 1)).t_total_s
            for p in (one, other)
        ]
        assert times[0] == pytest.approx(times[1], rel=0.01)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("layout", ACCESS_MODELS)
def test_one_rank_is_met_and_a_second_helps_whatever_the_size_of_the_task(layout, scale):
    """A short trajectory is no machine of huge bandwidth that a link of Comet would slow down."""
    row = TimingRow(layout, "gather", 1, 1, 1000 * scale, 220 * scale, 779.9 * scale)
    profile = fit_profile([row], name="x", source="")
    workload = reference_workload(profile, layout, 1)
    one, two = (predict(profile, layout, "gather", n, workload) for n in (1, 2))
    assert one.t_total_s == pytest.approx(1000 * scale, rel=0.01)
    overhead = two.t_gather_s + two.t_open_s + two.t_contention_s
    assert two.t_total_s - overhead < 0.8 * one.t_total_s


def test_a_run_that_went_astray_does_not_set_the_noise_of_all():
    one = [row for row in ONE if row.pair == ("xtc-shared", "gather")]
    astray = TimingRow("xtc-shared", "gather", 1, 24, 10_000.0, 9.0, 35.0)
    profile = fit_profile([*one, astray], name="x", source="")
    assert all(noise <= 1 for table in profile.noise.io.values() for noise in table.values())
    times = [
        predict(profile, "hdf5", "gather", n, reference_workload(profile, "hdf5", 1)).t_total_s
        for n in (1, 2, 8, 24, 96)
    ]
    assert times == sorted(times, reverse=True)
    assert times[3] == pytest.approx(times[0] / 24, rel=0.3)


def test_names_that_mdio_measures_under_are_understood(tmp_path):
    table = tmp_path / "scaling.csv"
    head = "layout,gather,workload_x,n_ranks,t_total_max_s,t_comp_mean_s,t_io_mean_s\n"
    table.write_text(f"{head}xtc,blocking,1,1,10,2,8\nh5md,one-sided,1,1,6,2,4\n")
    rows = read_timings(table)
    assert [row.pair for row in rows] == [("xtc-shared", "gather"), ("hdf5", "global-array")]


@pytest.mark.parametrize("dearer", [0.25, 0.5, 2.0, 3.0])
def test_the_band_of_a_shared_file_holds_where_nobody_measured_its_locks(dearer):
    comet = load_profile("comet")
    locks = {
        name: getattr(comet.storage, name) * dearer
        for name in ("lock_s", "lock_gather_s", "client_lock_s")
    }
    there = replace(comet, storage=replace(comet.storage, **locks))
    alone = [row for row in ONE if row.layout == "xtc-shared"]
    unseen = fit_profile(alone, name="x", source="")
    seen = fit_profile([row for row in ROWS if row.layout == "xtc-shared"], name="x", source="")
    for n_ranks in (48, 96, 192):
        workload = reference_workload(comet, "xtc-shared", 1)
        true_s = predict(there, "xtc-shared", "gather", n_ranks, workload).t_total_s
        wide, narrow = (
            predict(p, "xtc-shared", "gather", n_ranks, reference_workload(p, "xtc-shared", 1))
            for p in (unseen, seen)
        )
        assert wide.low_s < true_s < wide.high_s
        assert narrow.high_s / narrow.low_s < wide.high_s / wide.low_s / 1.5
