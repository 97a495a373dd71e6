"""Rows of a wrong number or shape: messages name block, frames and kernel, and what was wrong."""

import re
from functools import partial

import numpy as np
import pytest
from memory_layout import MemoryLayout, save_memory

from mdio.analysis import work
from mdio.analysis.driver import analyze
from mdio.analysis.reducers import Histogram, Mean, Sum
from mdio.core.errors import BlockError
from mdio.parallel import pool
from mdio.parallel.executors import Processes, Serial

N_FRAMES, N_ATOMS = 103, 17

both = pytest.mark.parametrize("executor", [Serial(), Processes(2)], ids=["serial", "processes"])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    positions = np.random.default_rng(5).normal(size=(N_FRAMES, N_ATOMS, 3))
    return save_memory(tmp_path_factory.mktemp("t") / "a.npz", positions)


def scalar_late(block, after):
    return 1.0 if block.time[0] >= after else block.time


def wider_late(block, after):
    return np.zeros((block.n_frames, 4 if block.time[0] >= after else 3))


def analyze_two_blocks(path, executor, kernel, reducer=None):
    return analyze(
        MemoryLayout(path),
        kernel=kernel,
        executor=executor,
        blocks_per_worker=2 // executor.n_workers,
        stop=100,
        reducer=reducer,
    )


@both
def test_wrong_rows_in_one_of_many_reads(path, executor, monkeypatch):
    monkeypatch.setattr(work, "READ_NBYTES", 10 * 12 * N_ATOMS)
    says = r"^\S+: block 1 \(frames 50:100\) \(in frames 70:80\): scalar_late returned .* 10 frames"
    with pytest.raises(BlockError, match=says):
        analyze_two_blocks(path, executor, partial(scalar_late, after=175))


@both
@pytest.mark.parametrize("reducer", [None, Sum(), Mean()])
@pytest.mark.parametrize(
    ("after", "says"),
    [
        (
            125,
            "rows of shape (4,), but in block 0 (frames 0:50) rows of shape (3,); rows of",
        ),
        (175, "rows of different shapes, (3,) and then (4,), which cannot be joined"),
    ],
)
def test_rows_of_other_shapes(path, executor, after, says, reducer, monkeypatch):
    """Between blocks, and within one."""
    monkeypatch.setattr(work, "READ_NBYTES", 10 * 12 * N_ATOMS)
    where = "" if after == 125 else " (in frames 70:80)"
    message = f": block 1 (frames 50:100){where}: wider_late returned {says}"
    with pytest.raises(BlockError, match=r"^\S+" + re.escape(message)):
        analyze_two_blocks(path, executor, partial(wider_late, after=after), reducer)


def renamed_late(block, after):
    return np.zeros(block.n_frames, [("b" if block.time[0] >= after else "a", float)])


@both
@pytest.mark.parametrize("shared_nbytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("after", "says"),
    [
        (
            125,
            "rows of type [('b', '<f8')], but in block 0 (frames 0:50) rows of type "
            "[('a', '<f8')]; rows of different types cannot be joined",
        ),
        (
            175,
            "rows of different types, [('a', '<f8')] and then [('b', '<f8')], which cannot be "
            "joined",
        ),
    ],
)
def test_rows_of_types_that_do_not_go_together(
    path, executor, after, says, shared_nbytes, monkeypatch
):
    """Between blocks, and within one; also where rows are in shared memory."""
    monkeypatch.setattr(work, "READ_NBYTES", 10 * 12 * N_ATOMS)
    monkeypatch.setattr(pool, "SHARED_NBYTES", shared_nbytes)
    where = "" if after == 125 else " (in frames 70:80)"
    message = f": block 1 (frames 50:100){where}: renamed_late returned {says}"
    with pytest.raises(BlockError, match=r"^\S+" + re.escape(message)):
        analyze_two_blocks(path, executor, partial(renamed_late, after=after))


@both
def test_rows_of_other_shapes_where_they_may(path, executor):
    kernel, counts = partial(wider_late, after=125), Histogram([-1, 1])
    found = analyze_two_blocks(path, executor, kernel, counts)
    assert found.values.tolist() == [50 * 3 + 50 * 4]
