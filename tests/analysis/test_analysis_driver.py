"""The block driver: the same result for every partition, bounded reads, errors that say where."""

import json
import os
import pickle
import re
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_layout import MemoryLayout, save_memory

import mdio
from mdio.analysis import work
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.geometry import RMSD
from mdio.analysis.kernels.kernel import UserKernel
from mdio.analysis.plan import Request
from mdio.analysis.reducers import Mean
from mdio.analysis.system import System
from mdio.core.errors import BlockError, PlanError, SourceError
from mdio.parallel.executors import Processes, Serial

N_FRAMES, N_ATOMS = 103, 17


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(5)
    positions = rng.normal(size=(N_FRAMES, N_ATOMS, 3)) * 10
    return save_memory(
        tmp_path_factory.mktemp("t") / "a.npz",
        positions,
        velocities=rng.normal(size=positions.shape),
    )


@pytest.fixture(scope="module")
def positions(path):
    return np.load(path)["positions"]


def first_x(block):
    return block.positions[:, 0, 0]


def whole(block):
    return block.positions


def speeds(block):
    return block.velocities[:, :, 0]


def in_nanoseconds(block):
    block.time /= 1000
    return block.time


def no_rows(block):
    return 1.0


def wrong_rows(block):
    return np.zeros(block.n_frames + 1)


def nothing(block):
    return None


def fails_late(block):
    if block.time[-1] > 200:
        raise ZeroDivisionError("too late")
    return block.time


def killed_late(block):
    if block.time[-1] > 200:
        os.kill(os.getpid(), signal.SIGKILL)
    return block.time


@settings(max_examples=60)
@given(
    chunk=st.sampled_from([None, 1, 7, 50, 200]),
    workers=st.integers(1, 9),
    per_worker=st.integers(1, 5),
    start=st.integers(-110, 110),
    length=st.integers(1, 110),
    step=st.integers(1, 13),
    read_nbytes=st.sampled_from([1, 1000, 4 << 20]),
)
def test_any_partition_gives_the_same(
    path, positions, chunk, workers, per_worker, start, length, step, read_nbytes
):
    class Pretend(Serial):
        n_workers = workers

    wanted = slice(start, start + length, step)
    layout = MemoryLayout(path, chunk_frames=chunk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "READ_NBYTES", read_nbytes)
        run = {"start": start, "stop": start + length, "step": step}
        if len(positions[wanted]) == 0:
            with pytest.raises(PlanError, match="no frame"):
                analyze(layout, kernel=whole, executor=Pretend(), **run)
            return
        got = analyze(layout, kernel=whole, executor=Pretend(), blocks_per_worker=per_worker, **run)
    assert np.array_equal(got.values, positions[wanted])
    assert np.array_equal(got.frame, np.arange(N_FRAMES)[wanted])
    assert np.array_equal(got.time, (np.arange(N_FRAMES) * 2.5)[wanted])
    assert got.n_frames == len(got.frame)
    assert len(got.timings) == min(got.n_frames, workers * per_worker)
    assert sum(t.n_frames for t in got.timings) == got.n_frames


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("per_worker", [1, 3])
def test_processes_equal_serial(path, workers, per_worker):
    kernel = RMSD()
    serial = analyze(MemoryLayout(path, chunk_frames=10), kernel=kernel)
    with Processes(workers) as executor:
        parallel = analyze(
            MemoryLayout(path, chunk_frames=10),
            kernel=kernel,
            executor=executor,
            blocks_per_worker=per_worker,
        )
    for name in ("frame", "time", "values"):
        assert np.array_equal(getattr(serial, name), getattr(parallel, name))
    assert parallel.workers == workers
    assert os.getpid() not in {int(t.worker.split(":")[1]) for t in parallel.timings}


def test_views_of_the_buffer_are_copied(path, positions):
    got = analyze(MemoryLayout(path, chunk_frames=4), kernel=first_x, executor=Serial())
    assert np.array_equal(got.values, positions[:, 0, 0])


@pytest.mark.parametrize("workers", [1, 2])
def test_times_that_a_kernel_changes_are_its_own(path, workers, monkeypatch):
    monkeypatch.setattr(work, "READ_NBYTES", 10 * 12 * N_ATOMS)
    want = analyze(MemoryLayout(path), kernel=first_x).time
    got = analyze(MemoryLayout(path), kernel=in_nanoseconds, workers=workers)
    assert np.array_equal(got.time, want)
    assert np.array_equal(got.values, want / 1000)


def test_reducer_of_the_callers_choice(path, positions):
    got = analyze(MemoryLayout(path, chunk_frames=4), kernel=whole, reducer=Mean())
    np.testing.assert_allclose(got.values, positions.astype(float).mean(axis=0), atol=1e-12)
    assert len(got.time) == N_FRAMES


def test_velocities_that_a_trajectory_lacks(path, tmp_path):
    lacking = save_memory(tmp_path / "no.npz", np.load(path)["positions"])
    kernel = UserKernel(lambda block: block.velocities[:, 0], fields="velocities")
    with pytest.raises(BlockError, match=r"NoneType.*; the trajectory has no velocities"):
        analyze(MemoryLayout(lacking), kernel=kernel)
    asks = UserKernel(
        lambda block: np.full(block.n_frames, block.velocities is None), fields="velocities"
    )
    assert analyze(MemoryLayout(lacking), kernel=asks).values.all()


def test_velocities_on_request(path):
    got = analyze(MemoryLayout(path), kernel=UserKernel(speeds, fields=("positions", "velocities")))
    assert np.array_equal(got.values, np.load(path)["velocities"][:, :, 0])


def test_reads_are_whole_chunks_once(path):
    layout = MemoryLayout(path, chunk_frames=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "READ_NBYTES", 25 * 12 * N_ATOMS)
        analyze(layout, kernel=first_x, executor=Serial(), blocks_per_worker=2, start=0)
        # The driver leaves an open layout open, so what it read can be looked up.
        reads = [(a, b) for a, b, _ in layout.reads]
    assert reads == [(0, 20), (20, 40), (40, 50), (50, 70), (70, 90), (90, 103)]


def test_sparse_frames_are_read_alone(path):
    layout = MemoryLayout(path)
    analyze(layout, kernel=first_x, step=10)
    assert [b - a for a, b, _ in layout.reads] == [1] * 11


def test_memory_is_bounded(tmp_path):
    path = save_memory(tmp_path / "b.npz", np.zeros((4000, 100, 3)))
    seen = []

    def spy(block):
        seen.append(block.nbytes)
        return block.time

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "READ_NBYTES", 1 << 16)
        analyze(MemoryLayout(path), kernel=spy)
    assert max(seen) < (1 << 16) * 1.1
    assert len(seen) > 50


@pytest.mark.parametrize("executor", [Serial(), Processes(2)], ids=["serial", "processes"])
class TestErrors:
    @pytest.mark.parametrize(
        ("kernel", "says"),
        [
            (no_rows, r"an array of shape \(\)"),
            (wrong_rows, r"an array of shape \(5[23],\)"),
            (nothing, "None"),
        ],
    )
    def test_results_without_a_row_a_frame(self, path, executor, kernel, says):
        message = (
            r"^\S+: block \d \(frames \d+:\d+\): "
            rf"{kernel.__name__} returned {says} for 5[12] frames"
        )
        with pytest.raises(
            BlockError, match=message + r".*one row per frame, that is shape \(5[12], ...\)"
        ):
            analyze(
                MemoryLayout(path),
                kernel=kernel,
                executor=executor,
                blocks_per_worker=2 // executor.n_workers,
            )

    def test_kernel_that_fails(self, path, executor):
        with pytest.raises(BlockError, match=r"block \d \(frames \d+:103\) failed: ZeroDiv.*late"):
            analyze(MemoryLayout(path), kernel=fails_late, executor=executor)

    def test_kernel_that_fails_in_one_of_many_reads(self, path, executor, monkeypatch):
        monkeypatch.setattr(work, "READ_NBYTES", 10 * 12 * N_ATOMS)
        says = (
            r"^\S+: block \d \(frames \d+:103\) failed: ZeroDiv.*late.* \(in frames (\d+):(\d+)\)"
        )
        with pytest.raises(BlockError, match=says) as caught:
            analyze(MemoryLayout(path), kernel=fails_late, executor=executor)
        first, beyond = map(int, re.match(says, str(caught.value)).groups())
        assert 0 < beyond - first <= 10
        assert isinstance(caught.value.__cause__, ZeroDivisionError) or executor.n_workers > 1

    def test_damaged_source(self, path, executor):
        layout = MemoryLayout(path, fail_at=70)
        with pytest.raises(SourceError, match=r"block \d \(frames .*a.npz: frame 70 is damaged"):
            analyze(layout, kernel=first_x, executor=executor)


def test_killed_worker(path):
    start = time.monotonic()
    with pytest.raises(BlockError, match=r"block \d \(frames \d+:103\) failed: .*SIGKILL"):
        analyze(MemoryLayout(path), kernel=killed_late, executor=Processes(3))
    assert time.monotonic() - start < 20


def test_arguments(path):
    layout = MemoryLayout(path)
    for wrong, says in (
        ({"kernel": 3}, "takes a FrameBlock"),
        ({"kernel": RMSD}, r"the class RMSD; call it: kernel=RMSD\("),
        ({"kernel": RMSD(), "select": "all"}, r"write RMSD\(select='all'\)"),
        ({"kernel": whole, "executor": "processes"}, r"give one of mdio's: Serial\(\)"),
        ({"kernel": whole, "executor": Serial(), "workers": 2}, "not both"),
        ({"kernel": whole, "dt_ps": 0}, "--dt is 0 ps"),
        ({"kernel": whole, "start": 9, "end_ps": 5}, "no frames with --start 9 --end 5; it has"),
        ({"kernel": whole, "select": "name CA"}, "topology"),
        ({"kernel": whole, "step": 0}, "--step is 0"),
        ({"kernel": whole, "blocks_per_worker": 0}, "blocks per worker"),
        ({"kernel": whole, "blocks_per_worker": 2.5}, "2.5 blocks per worker"),
        ({"kernel": whole, "progress": 5}, "progress is 5; give a function"),
        ({"kernel": whole, "verify": "no"}, "verify is 'no'; give True or False"),
        ({"kernel": whole, "cache": 5}, "the cache is 5"),
        ({"kernel": whole, "select": "name CA", "top": 5}, "the topology is 5"),
        ({"kernel": whole, "group": "ca"}, "group"),
        ({"kernel": RMSD(reference=103)}, "reference frame 103"),
        ({"kernel": RMSD(repeat=0)}, "repeat"),
        ({"kernel": RMSD(reference=np.zeros((3, 3)))}, "17 atoms"),
        ({"kernel": RMSD(reference=[["a"] * 3])}, "the reference is .*; give coordinates"),
        ({"kernel": RMSD(weights=[1.0])}, "weights"),
        ({"kernel": RMSD(weights="charge")}, "mass"),
        ({"kernel": RMSD(weights=-np.ones(17))}, "negative"),
    ):
        with pytest.raises(PlanError, match=says):
            analyze(layout, **wrong)


def test_workers(path):
    result = analyze(MemoryLayout(path), kernel=first_x, workers=2)
    assert (result.executor, result.workers) == ("processes", 2)
    assert repr(Processes(2)) == "Processes(2)"


@pytest.mark.parametrize("executor", [Serial(), Processes(2)], ids=["serial", "processes"])
def test_progress(path, executor):
    seen = []
    analyze(
        MemoryLayout(path),
        kernel=first_x,
        executor=executor,
        progress=lambda n_frames, nbytes: seen.append((n_frames, nbytes)),
    )
    assert sum(n for n, _ in seen) == N_FRAMES
    assert sum(n for _, n in seen) >= N_FRAMES * N_ATOMS * 12


class Slow:
    """Takes 2 ms a frame."""

    def __call__(self, block):
        time.sleep(0.002 * block.n_frames)
        return block.time


@pytest.mark.parametrize("executor", [Serial(), Processes(2)], ids=["serial", "processes"])
def test_timings(path, executor):
    got = analyze(MemoryLayout(path), kernel=Slow(), executor=executor, blocks_per_worker=2)
    record = got.to_json()
    assert json.loads(json.dumps(record)) == record
    assert record["n_frames"] == N_FRAMES
    assert record["workers"] == executor.n_workers
    assert record["executor"] == executor.name
    assert record["t_comp_s"] >= 0.206
    assert record["t_comp_s"] / executor.n_workers <= record["t_comp_max_s"] <= record["seconds"]
    assert record["ratio_comp_io"] == record["t_comp_s"] / record["t_io_s"]
    assert record["t_open_s"] > 0
    assert sum(t.t_open_s > 0 for t in got.timings) == executor.n_workers
    for timing in got.timings:
        assert timing.t_overhead1_s >= -1e-9
        assert timing.t_overhead2_s >= -1e-9
        assert timing.t_total_s == timing.t_block_s + timing.t_comm_s


def test_work_travels_light(path):
    layout = MemoryLayout(path)
    prepared = UserKernel(first_x).prepare(System(layout))
    doer = work.BlockWork(layout, prepared)
    doer((0, range(50)))
    assert len(pickle.dumps(doer)) < 1000


def test_the_file_of_the_longest_read_is_told(adk, tmp_path):
    out = tmp_path / "adk.segments"
    mdio.split(adk["xtc"], out, n_segments=2)
    result = mdio.analyze(
        out, top=adk["psf"], kernel=mdio.RMSD("name CA"), executor=mdio.Processes(2)
    )
    files = sorted(out.rglob("*.xtc"))
    assert [timing.slowest_file for timing in result.timings] == [str(file) for file in files]
    assert all(0 < timing.slowest_read_s <= timing.t_io_s for timing in result.timings)


@pytest.mark.parametrize("is_open", [False, True])
def test_only_a_layout_that_was_opened_for_a_plan_is_closed(adk, monkeypatch, is_open):
    closed = []
    real_plan = Request.plan

    def plan(request):
        made = real_plan(request)
        monkeypatch.setattr(made.layout, "close", lambda: closed.append("the plan's layout"))
        return made

    monkeypatch.setattr(Request, "plan", plan)
    with mdio.open(adk["dcd"]) as layout:
        mdio.analyze(layout if is_open else adk["dcd"], kernel=first_x, stop=9)
        assert bool(closed) != is_open
