"""Large results of worker processes: written to shared memory, equal to serial, nothing left."""

import gc
import mmap
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from memory_layout import MemoryLayout, save_memory

import mdio
from mdio.analysis import work
from mdio.analysis.driver import analyze
from mdio.analysis.reducers import Mean
from mdio.core.errors import BlockError
from mdio.parallel import pool
from mdio.parallel.executors import Processes
from mdio.parallel.pool import SharedRows

N_FRAMES, N_ATOMS = 103, 17

pytestmark = pytest.mark.skipif(not SharedRows.available(), reason="this system has no memfd")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(5)
    positions = rng.normal(size=(N_FRAMES, N_ATOMS, 3)) * 10
    return save_memory(tmp_path_factory.mktemp("t") / "a.npz", positions)


@pytest.fixture
def carried(monkeypatch):
    """Bytes of arrays that came through pipes; rows of any size are large; reads are short."""
    nbytes = []

    def counting(pipe, receive=pool._receive):
        message = receive(pipe)
        state = getattr(message[1], "state", None)
        rows = state[0] if state is not None and isinstance(state[0], list) else []
        nbytes.append(sum(part.nbytes for part in rows))
        return message

    monkeypatch.setattr(pool, "_receive", counting)
    monkeypatch.setattr(pool, "SHARED_NBYTES", 1)
    monkeypatch.setattr(work, "READ_NBYTES", 10 * 12 * N_ATOMS)
    return nbytes


def whole(block):
    return block.positions


def backwards(block):
    return block.positions[:, ::-1, 1]


def whole_numbers(block):
    return (block.positions[:, 0] * 1e6).astype(">i8")


def times(block):
    return block.time


def words(block):
    return np.array([f"{x:.3f}" for x in block.positions[:, 0, 0]], "U9")


def records(block):
    found = np.zeros(block.n_frames, [("x", "f4", (3,)), ("t", "f8")])
    found["x"], found["t"] = block.positions[:, 0], block.time
    return found


def nothing(block):
    return np.empty((block.n_frames, 0))


def type_by_time(block):
    """Whole numbers in the first frames, floats in others."""
    column = np.floor(block.positions[:, 0])
    return column.astype(np.int32) if block.time[-1] < 90 else column.astype(np.float64)


def longer_words(block):
    return np.array(["x" * int(1 + time) for time in block.time])


def shape_by_time(block):
    return np.zeros((block.n_frames, 3 if block.time[0] < 120 else 4))


def objects(block):
    found = np.empty(block.n_frames, [("a", object)])
    found["a"] = [f"{time}" for time in block.time]
    return found


def killed_late(block):
    if block.time[-1] > 150:
        os.kill(os.getpid(), signal.SIGKILL)
    return block.positions


def check_equal(path, kernel, n_workers, per_worker=1, **frames):
    serial = analyze(MemoryLayout(path, chunk_frames=4), kernel=kernel, **frames)
    with Processes(n_workers) as executor:
        got = analyze(
            MemoryLayout(path, chunk_frames=4),
            kernel=kernel,
            executor=executor,
            blocks_per_worker=per_worker,
            **frames,
        )
    for name in ("frame", "time", "values"):
        one, other = getattr(serial, name), getattr(got, name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    return got


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("kernel", [whole, backwards, whole_numbers, times, words, records])
def test_rows_equal_serial_and_go_through_no_pipe(path, carried, kernel, n_workers):
    check_equal(path, kernel, n_workers)
    check_equal(path, kernel, n_workers, per_worker=3, start=3, stop=99, step=7)
    assert len(carried) >= 2 * n_workers
    assert sum(carried) == 0


def test_a_kernel_that_fills_rows(adk, carried):
    kernel = mdio.Dihedrals(select="protein and resid 1:40")
    run = {"top": adk["psf"], "kernel": kernel}
    want = mdio.analyze(adk["dcd"], **run)
    with Processes(2) as executor:
        got = mdio.analyze(adk["dcd"], **run, executor=executor, blocks_per_worker=2)
    assert sum(carried) == 0 and len(carried) == 4
    assert np.array_equal(got.values, want.values)


def test_small_results_go_through_the_pipe(path, carried, monkeypatch):
    monkeypatch.setattr(pool, "SHARED_NBYTES", N_FRAMES * 8 + 1)
    check_equal(path, times, 2)
    assert sum(carried) == N_FRAMES * 8
    check_equal(path, whole, 2)
    assert sum(carried) == N_FRAMES * 8
    check_equal(path, nothing, 2)


@pytest.mark.parametrize("kernel", [type_by_time, longer_words])
@pytest.mark.parametrize("per_worker", [1, 5])
def test_types_that_differ(path, carried, kernel, per_worker):
    """Between blocks and within one; whichever block is the first to say what rows are."""
    for n_workers in (1, 2):
        check_equal(path, kernel, n_workers, per_worker)


def test_objects_are_not_shared(path, carried):
    with Processes(2) as executor:
        got = analyze(MemoryLayout(path), kernel=objects, executor=executor)
    assert [row[0] for row in got.values] == [str(time) for time in got.time]


def test_shapes_that_differ(path, carried):
    says = r"^\S+: block \d \(frames .*\): shape_by_time returned rows of .*\(3,\).* joined"
    for per_worker in (1, 3):
        with Processes(2) as executor, pytest.raises(BlockError, match=says):
            analyze(
                MemoryLayout(path),
                kernel=shape_by_time,
                executor=executor,
                blocks_per_worker=per_worker,
            )


def test_reduced_rows_are_not_shared(path, carried):
    with Processes(2) as executor:
        got = analyze(MemoryLayout(path), kernel=whole, reducer=Mean(), executor=executor)
    want = analyze(MemoryLayout(path), kernel=whole, reducer=Mean())
    np.testing.assert_allclose(got.values, want.values, rtol=1e-12, atol=1e-12)


def test_the_array_is_like_any_other(path, carried, monkeypatch):
    """It was not copied, can be changed, and a process forked later changes its own."""
    monkeypatch.setattr(pool, "MAPPED_NBYTES", 1)
    values = check_equal(path, whole, 2).values
    owner = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner.obj, mmap.mmap)
    values[0, 0, 0] = 5
    if os.fork() == 0:
        values[...] = 7
        os._exit(0)
    assert os.wait()[1] == 0
    assert values[0, 0, 0] == 5 and not (values == 7).any()


def names_in_memory():
    """Of shared memory; others' semaphores, and what MPI of other tests has, come and go."""
    names = {path.name for path in Path("/dev/shm").iterdir()}
    return {name for name in names if not name.startswith(("sem", "mpich_", "ucx_"))}


def open_files():
    gc.collect()  # what former tests have left is closed now, and not between two counts
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left(path, carried, monkeypatch):
    before = open_files(), names_in_memory()
    check_equal(path, whole, 2)
    assert (open_files(), names_in_memory()) == before
    kept = [check_equal(path, whole, 2).values for _ in range(3)]
    assert (open_files(), len(kept)) == (before[0], 3)
    monkeypatch.setattr(pool, "MAPPED_NBYTES", 1)
    check_equal(path, whole, 2)
    assert (open_files(), names_in_memory()) == before
    with Processes(2) as executor, pytest.raises(BlockError, match=r"block 1 .*SIGKILL"):
        analyze(MemoryLayout(path), kernel=killed_late, executor=executor)
    assert (open_files(), names_in_memory()) == before


def run_until_killed(path, told):
    os.setsid()
    os.write(told, b"x")
    with Processes(2) as executor:
        analyze(MemoryLayout(path), kernel=never_done, executor=executor)


def never_done(block):
    time.sleep(0.5)
    return block.positions


def test_nothing_is_left_of_a_parent_that_is_killed(path, carried):
    """No process, and no memory that has a name."""
    before = names_in_memory()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run_until_killed(path, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    assert os.read(ours, 1) == b"x"
    time.sleep(0.7)  # its workers write by now; they hold the pipe too
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert os.read(ours, 1) == b""  # until all workers have ended
    os.close(ours)
    assert names_in_memory() == before


def test_where_files_may_not_be_large(path, carried):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (pool.HEADER_NBYTES + 100, hard))
    try:
        check_equal(path, whole, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sum(carried) == N_FRAMES * N_ATOMS * 12


def test_no_room_in_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SharedRows(1 << 10) as rows:
        assert rows.accepts((1 << 10,), np.dtype("f8"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(MemoryError, match="1024 frames"):
                rows.write(512, np.zeros((1, 1 << 10)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nobody_has_written():
    with SharedRows(5) as rows, pytest.raises(ValueError, match="no rows"):
        rows.read_all()
