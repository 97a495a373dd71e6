"""The discrete-event simulation: the same again, what queues must give, Comet, 10,000 ranks."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mdio.advisor.closed_form import Workload, predict, reference_workload
from mdio.advisor.fit import read_timings
from mdio.advisor.profile import LAYOUT_GATHER_PAIRS, load_profile
from mdio.core.errors import MissingExtraError, PlanError

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from paper.simulate import MAX_SIMULATED_RANKS, simulate  # noqa: E402

ROWS = read_timings(BENCH / "paper/published/comet_rmsd.csv")
COMET = load_profile("comet")


def run(layout, gather, n_ranks, profile=COMET, workload_x=1, **options):
    workload = reference_workload(profile, layout, workload_x)
    return simulate(profile, layout, gather, n_ranks, workload, **options)


@pytest.mark.parametrize(("layout", "gather"), LAYOUT_GATHER_PAIRS)
def test_the_same_seed_gives_the_same_run(layout, gather):
    one, two, other = (run(layout, gather, 50, seed=seed) for seed in (3, 3, 4))
    assert one.t_total_s == two.t_total_s
    assert np.array_equal(one.finish_s, two.finish_s)
    assert one.n_events == two.n_events
    assert not np.array_equal(one.finish_s, other.finish_s)


@pytest.mark.parametrize(("layout", "gather"), LAYOUT_GATHER_PAIRS)
def test_one_rank_takes_what_it_takes_alone(layout, gather):
    workload = reference_workload(COMET, layout, 40)
    parts = workload.t_comp_s + workload.t_io_s + workload.t_open_s + workload.t_rest_s
    assert run(layout, gather, 1, workload_x=40).t_total_s == pytest.approx(parts, rel=1e-6)
    guess = predict(COMET, layout, gather, 1, workload)
    assert guess.t_total_s == pytest.approx(parts, rel=1e-3)


def free_machine():
    """Comet without anything to queue for, and without jitter."""
    storage = replace(
        COMET.storage,
        lock_s=0.0,
        lock_gather_s=0.0,
        client_lock_s=0.0,
        open_file_s=0.0,
        metadata_ops_per_s=1e18,
        aggregate_bytes_per_s=1e18,
        stripe_bytes_per_s=1e18,
        node_bytes_per_s=1e18,
        read_factor=dict.fromkeys(COMET.storage.read_factor, 1.0),
    )
    io = {layout: dict.fromkeys(table, 0.0) for layout, table in COMET.noise.io.items()}
    return replace(
        COMET,
        node_slowdown=0.0,
        storage=storage,
        noise=replace(COMET.noise, compute=0.0, io=io),
        gather={kind: replace(c, base_s=0.0, per_rank_s=0.0) for kind, c in COMET.gather.items()},
    )


@pytest.mark.parametrize(("layout", "gather"), LAYOUT_GATHER_PAIRS)
def test_without_queues_and_jitter_ranks_share_the_work_evenly(layout, gather):
    workload = reference_workload(COMET, layout, 1)
    parts = workload.t_comp_s + workload.t_io_s + workload.t_rest_s
    done = run(layout, gather, 96, free_machine())
    assert done.finish_s == pytest.approx(workload.t_open_s + parts / 96, rel=1e-6)
    assert done.n_stragglers == 0


def test_one_lock_server_serves_all_requests_of_many_nodes():
    """On a machine of one-core nodes that only locks, the lock's work is a lower bound, and met."""
    quiet = free_machine()
    profile = replace(
        quiet, cores_per_node=1, storage=replace(quiet.storage, lock_s=1e-4, stripe_count=1)
    )
    work = Workload(n_frames=1_000_000, nbytes=0.0, t_comp_s=1.0, t_io_s=1.0)
    done = simulate(profile, "xtc-shared", "global-array", 400, work)
    assert 85 < done.t_total_s < 102  # 1e6 requests x 1e-4 s; the last ranks find nobody in the way
    spread = replace(profile, storage=replace(profile.storage, stripe_count=4))
    four = simulate(spread, "xtc-shared", "global-array", 400, work)
    assert 20 < four.t_total_s < 35
    # One node keeps its lock.
    alone = simulate(replace(profile, cores_per_node=400), "xtc-shared", "gather", 400, work)
    assert alone.t_total_s < 0.1


def test_one_metadata_server_serves_ranks_times_files():
    profile = free_machine()
    profile = replace(profile, storage=replace(profile.storage, metadata_ops_per_s=1000.0))
    done = run("segments-chainreader", "gather", 100, profile)
    assert done.t_total_s == pytest.approx(100 * 100 / 1000 + 1033 / 100, rel=0.1)
    segments = run("segments", "gather", 100, profile)
    assert segments.t_total_s < 0.6 * done.t_total_s


def test_stragglers_come_with_the_second_node():
    assert run("xtc-shared", "gather", 24).n_stragglers == 0
    two = run("xtc-shared", "gather", 72)
    assert two.n_stragglers > 5
    assert run("segments", "global-array", 72).n_stragglers == 0
    without = replace(COMET, storage=replace(COMET.storage, lock_s=0.0, lock_gather_s=0.0))
    assert run("xtc-shared", "gather", 72, without).n_stragglers == 0


def test_comet_beyond_one_node():
    """Totals, and who is done first and on average, which no parameter was fitted to."""
    rows = [r for r in ROWS if r.pair == ("xtc-shared", "gather") and r.workload_x == 1]
    rows = [row for row in rows if row.n_ranks > 24]
    assert len(rows) == 6
    errors, means, firsts = [], [], []
    for row in rows:
        done = run("xtc-shared", "gather", row.n_ranks)
        errors.append(done.t_total_s / row.t_total_max_s - 1)
        means.append(done.finish_s.mean() / (row.t_total_max_s - row.t_comm_mean_s) - 1)
        firsts.append(done.finish_s.min() / (row.t_total_max_s - row.t_comm_max_s) - 1)
    assert np.median(np.abs(errors)) < 0.2
    assert np.median(np.abs(means)) < 0.15
    assert np.median(np.abs(firsts)) < 0.1


@pytest.mark.parametrize(("layout", "gather"), [("xtc-shared", "gather"), ("hdf5", "gather")])
def test_ten_thousand_ranks(layout, gather):
    done = run(layout, gather, 10_000)
    assert done.n_events < 2_000_000
    guess = predict(COMET, layout, gather, 10_000, reference_workload(COMET, layout, 1))
    assert done.t_total_s == pytest.approx(guess.t_total_s, rel=0.35)
    assert done.finish_s.shape == (10_000,)
    assert np.isfinite(done.finish_s).all()


def test_ranks_that_cannot_be_simulated():
    for n_ranks in (0, MAX_SIMULATED_RANKS + 1):
        with pytest.raises(PlanError, match="ranks: the simulation takes 1 to"):
            run("hdf5", "gather", n_ranks)


def test_without_simpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        run("hdf5", "gather", 2)
