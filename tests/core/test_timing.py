"""Timing records: the papers' definitions, sums over workers."""

import json
import time

from mdio.core.timing import BlockTiming, Stopwatch, per_worker, summary


def record(block, worker, **times):
    return BlockTiming(block, range(10), worker=worker, **times)


def test_stopwatch():
    watch = Stopwatch()
    time.sleep(0.01)
    assert 0.01 <= watch.lap() < 5
    time.sleep(0.001)
    assert 0.001 <= watch.lap() < 5


def test_derived_times():
    timing = record(
        0, "a", t_open_s=1, t_io_s=2, t_comp_s=3, t_end_loop_s=0.5, t_all_frame_s=7, t_block_s=10
    )
    timing.t_comm_s = 4
    assert timing.t_overhead1_s == 7 - 2 - 3 - 0.5
    assert timing.t_overhead2_s == 10 - 7 - 1
    assert timing.t_total_s == 14
    plain = timing.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert {k for k in plain if k.endswith("_s") and k.startswith("t_")} == {
        "t_opening_trajectory_s",
        "t_IO_s",
        "t_comp_s",
        "t_end_loop_s",
        "t_all_frame_s",
        "t_block_s",
        "t_comm_s",
        "t_overhead1_s",
        "t_overhead2_s",
        "t_N_s",
    }


def test_summary_adds_blocks_of_a_worker():
    timings = [
        record(0, "a", t_open_s=1, t_io_s=2, t_comp_s=10, t_block_s=13, nbytes_read=5),
        record(1, "a", t_io_s=2, t_comp_s=10, t_block_s=12, nbytes_read=5),
        record(2, "b", t_open_s=3, t_io_s=3, t_comp_s=1, t_block_s=7, t_comm_s=1, nbytes_read=5),
    ]
    found = summary(per_worker(timings))
    assert found == {
        "t_open_s": 4,
        "t_open_max_s": 3,
        "t_io_s": 7,
        "t_io_max_s": 4,
        "t_comp_s": 21,
        "t_comp_max_s": 20,
        "t_comm_s": 1,
        "t_comm_max_s": 1,
        "t_total_max_s": 25,
        "ratio_comp_io": 3,
        "ratio_comp_comm": 21,
        "workers": 2,
        "nbytes_read": 15,
        "nbytes_source": 0,
        "nbytes_cache": 0,
    }


def test_nothing_read():
    assert summary([])["ratio_comp_io"] is None
    assert summary(per_worker([record(0, "a", t_comp_s=1)]))["ratio_comp_io"] is None


def test_gathered():
    timing = BlockTiming(0, range(1))
    timing.t_block_s = 0.001
    time.sleep(0.02)
    timing.record_arrival()
    assert 0.01 < timing.t_comm_s < 5
    ahead = BlockTiming(0, range(1), began_unix_s=time.time() + 100)
    ahead.record_arrival()
    assert ahead.t_comm_s == 0


def test_cost():
    """A record for each block and two laps for each read: microseconds."""
    watch, best = Stopwatch(), 1.0
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(200):
            BlockTiming(0, range(1))
            watch.lap()
            watch.lap()
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 50e-6
