"""What a map or a reduce may do wrong, and what is said of it."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from mapreduce import programs

import mdio
from mdio.core.errors import BlockError, OutputError, PlanError, WorkerDiedError
from mdio.mapreduce.pairs import convert_keys
from mdio.mapreduce.programs.residence import WaterResidence

MASKED = np.ma.masked_greater(np.array([0, 1]), 0)


def run(adk, map, reduce=programs.total, **more):
    return mdio.map_reduce(adk["dcd"], map=map, reduce=reduce, **more)


def giving(keys, rows=None, values=None):
    def give(block):
        n = len(keys)
        return keys, np.zeros(n, int) if rows is None else rows, values or {"n": np.ones(n)}

    return give


def per_frame(*pairs):
    return lambda block: iter(pairs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            giving([1, 2], values={"n": np.ones(3)}),
            r"there are 2 keys, but the values 'n' have the shape \(3,\)",
        ),
        (giving([1, 2], rows=[0]), "there are 2 keys, but rows of shape .* number for each key"),
        (
            giving([1, 2], rows=[0, 98]),
            "rows are 0 to 98, but the [0-9]+ frames of the block are the rows 0 to",
        ),
        (giving([1, 2], rows=[0, -1]), "rows are -1 to 0"),
        (giving([1, 2], rows=[0.0, 0.5]), "rows of shape .* float64"),
        (giving([1, "a"]), "keys are of mixed types, text and whole numbers"),
        (giving([1, 2.5]), "mixed types, numbers with fractions and whole numbers"),
        (giving([1, None]), "the key None is a NoneType"),
        (giving([(1, 2)]), "a tuple"),
        (giving(np.array([1.0, np.nan])), "1 of 2 keys are not a number"),
        (giving([float("nan")]), "not a number"),
        (giving(np.array([2**63], np.uint64)), "does not fit into a signed 64-bit"),
        (giving(np.zeros((2, 2))), "keys have the shape"),
        (giving([1], values={"n": [object()]}), "the values 'n' are object"),
        (giving([1], values={"n": 3}), r"shape \(\)"),
        (giving([1], values=[1]), "the values are a list"),
        (giving([1, 2], values={"n": MASKED}), "values 'n' are masked"),
        (giving(MASKED), "keys are masked"),
        (giving([1, 2], rows=MASKED), "rows are masked"),
        (lambda block: block.time, "map|returned a ndarray; expected"),
        (lambda block: 1 / 0, "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("n_workers", [None, 2])
def test_a_map_that_gives_something_else(adk, given, message, n_workers, monkeypatch):
    if n_workers:  # forked workers find what was put here
        given.__qualname__ = given.__name__ = "given_here"
        given.__module__ = __name__
        monkeypatch.setitem(globals(), "given_here", given)
    with pytest.raises(BlockError, match=rf"block \d+ \(frames \d+:\d+\) failed: .*({message})"):
        run(adk, given, workers=n_workers)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, {"n": 1}), ("a", {"n": 1})], "mixed types"),
        ([(1, {"n": 1}), (2, {"m": 1})], "values of the key 2 are .*m.*, earlier .*n"),
        ([(float("nan"), 1)], "not a number"),
        ([(1, {"n": 1}), (2, {"n": [1, 2]})], "inhomogeneous"),
        ([(1, {"n": MASKED})], "values 'n' are masked"),
    ],
)
def test_a_generator_that_gives_something_else(adk, pairs, message):
    with pytest.raises(BlockError, match=message):
        run(adk, per_frame(*pairs), per_frame=True)


@pytest.mark.parametrize("n_workers", [None, 2])
def test_blocks_that_do_not_go_together(adk, n_workers):
    with pytest.raises(
        BlockError, match=r"block 0 .*, block \d+ .*: keys are whole numbers and text"
    ):
        run(adk, programs.text_later, workers=n_workers)
    with pytest.raises(BlockError, match=r"each value of 'n' has the shape \(\) and then \(2,\)"):
        run(adk, programs.wider_later, workers=n_workers)


@pytest.mark.parametrize("n_workers", [None, 2])
def test_a_reduce_that_fails_for_a_key_names_it(adk, n_workers):
    with pytest.raises(
        BlockError, match=r"fails_for_odd of the key -?[0-9]+ failed: ValueError: odd"
    ):
        run(adk, programs.bins, programs.fails_for_odd, workers=n_workers)
    found = run(adk, programs.bins, programs.fails_for_odd, workers=n_workers, keep_going=True)
    assert len(found.keys) and not (found.keys % 2).any()
    assert found.failures and all(key % 2 for key, _, _ in found.failures)
    assert found.failures[0][1:] == (None, "ValueError: odd")
    every = run(adk, programs.bins, programs.total).keys.tolist()
    assert sorted([*found.keys.tolist(), *(key for key, _, _ in found.failures)]) == every


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_begin_that_fails_is_not_told_as_the_reduce_of_a_key(adk, keep_going):
    class Begins:
        def map(self, block):
            return programs.bins(block)

        def begin(self, frame, time):
            raise KeyError("reference")

        def reduce(self, key, frame, time, values):
            return {"n": len(frame)}

    with pytest.raises(BlockError, match=r"^begin failed: KeyError: 'reference'"):
        mdio.map_reduce(adk["dcd"], map=Begins(), keep_going=keep_going)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda key: None, "returned None; expected a dict"),
        (lambda key: {"n": object()}, "'n' is object"),
        (lambda key: {"n": np.ma.masked}, "values 'n' are masked"),
        (lambda key: {"keys": 1}, "a column cannot be called 'keys'"),
        (lambda key: {"n": np.zeros(abs(key))}, r"returned 'n' of shape .* pad to one"),
        (lambda key: {f"n{key}": 1}, "returned .* for other keys"),
    ],
)
def test_a_reduce_that_returns_something_else(adk, returned, message):
    with pytest.raises(BlockError, match=f"of the key -?[0-9]+ .*{message}"):
        run(adk, programs.bins, lambda key, *_: returned(key))


def test_what_cannot_be_sent_is_told_before_the_work(adk):
    with pytest.raises(PlanError, match="cannot be sent to worker processes"):
        run(adk, lambda block: 1 / 0, workers=2)
    with pytest.raises(PlanError, match=r"<lambda>.*define functions and classes at the top"):
        run(adk, programs.dies, lambda *_: {}, workers=2)


def test_workers_that_die_again_and_again(adk, tmp_path):
    with pytest.raises(WorkerDiedError, match=r"block \d+ .* was killed by SIGKILL"):
        run(adk, programs.dies, workers=2, local_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", [programs.KilledInMap, programs.KilledInReduce])
def test_a_worker_that_dies(adk, tmp_path, program):
    """Every frame is mapped once all the same, and every key reduced."""
    killed = program(tmp_path / "killed")
    found = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=killed.map, workers=2)
    assert (tmp_path / "killed").exists()
    expected = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=programs.Windows("few").map)
    np.testing.assert_array_equal(found.n_pairs, expected.n_pairs)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], column)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"frames": [3, 3]}, "a frame is in the list twice"),
        ({"frames": [98]}, "there is no frame 98; it has 98 frames"),
        ({"frames": [-99]}, "there is no frame -99"),
        ({"frames": []}, "frames are a list"),
        ({"frames": [0.5]}, "it has no frame at 0.5 ps"),
        ({"frames": [float("nan")]}, "it has no frame at nan ps"),
        ({"frames": slice(5, 5)}, "no frames with --start 5 --stop 5"),
        ({"frames": lambda time: time}, "expected bool, one per frame"),
        ({"frames": lambda time: time < 0}, "none of its 98 frames is chosen"),
        ({"combine": "mean"}, "combine is 'mean'; give one of sum, min, max"),
        ({"memory": 0}, "memory is 0 bytes"),
        ({"workers": 2, "executor": mdio.Serial()}, "not both"),
        ({"reduce": None}, "there is no reduce; give reduce="),
        (
            {"reduce": lambda key, values: {}},
            r"takes \(key, values\); the reduce is called as reduce\(key, frame, time, values\)",
        ),
        ({"map": 3}, "the map is 3; give .* map and reduce$"),
        ({"map": SimpleNamespace()}, "or an object with the methods map and reduce"),
        ({"select": "name CA"}, "needs a topology"),
        ({"start": 5}, r"no option 'start'; give frames=slice\(START, STOP, STEP\)"),
        ({"dt_ps": 2.0}, r"give frames=slice\(BEGIN, END, DT\), floats"),
        ({"fields": "velocites"}, "choose from positions, velocities"),
        ({"map": WaterResidence(), "fields": "forces"}, "give the fields to the program"),
    ],
)
def test_arguments_that_do_not_fit(adk, more, message):
    arguments = {"map": programs.bins, "reduce": programs.total} | more
    with pytest.raises(PlanError, match=message):
        mdio.map_reduce(adk["dcd"], **arguments)


def test_no_trajectory():
    with pytest.raises(PlanError, match="no trajectory"):
        mdio.map_reduce({}, map=programs.bins, reduce=programs.total)


def test_a_folder_that_is_not_there(adk, tmp_path):
    with pytest.raises(OutputError, match=r"no folder for pairs can be made there .*No such file"):
        run(adk, programs.bins, local_dir=tmp_path / "none")


def test_a_disk_that_is_full(adk, tmp_path):
    pid = os.fork()
    if not pid:  # a limit of the size of files stands for the disk
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            run(adk, programs.bins, memory=1 << 20, local_dir=tmp_path)
        except OutputError as error:
            said = "cannot be written" in str(error) and "--local-dir" in str(error)
            os._exit(0 if said and not list(tmp_path.iterdir()) else 2)
        os._exit(3)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_damaged_run_is_noticed(adk, tmp_path, monkeypatch):
    def cut(reduce):
        for path in tmp_path.rglob("*.run"):
            os.truncate(path, path.stat().st_size - 100)
        return programs.total

    from mdio.mapreduce import driver

    common_schema = driver.common_schema
    monkeypatch.setattr(driver, "common_schema", lambda runs: (cut(None), common_schema(runs))[1])
    with pytest.raises(OSError, match="truncated"):
        run(adk, programs.bins, workers=2, local_dir=tmp_path)


def test_zeros_are_one_key():
    assert np.signbit(convert_keys([0.0, -0.0])).tolist() == [False, False]
    assert convert_keys(np.array([True, False])).dtype == np.int64
    assert convert_keys([]).dtype == np.int64
