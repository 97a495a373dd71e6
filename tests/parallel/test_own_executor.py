"""An executor of somebody else: everything runs on it, with the results of one process."""

import pickle
import threading
import uuid
from concurrent.futures import (
    FIRST_COMPLETED,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from itertools import islice

import numpy as np
import pytest
from suites.every_command import Counted, make_sources
from suites.outputs import as_options

import mdio
from mdio.analysis import series
from mdio.core.errors import BlockError, PlanError, SourceError
from mdio.parallel.executors import Executor, item_error

_local = threading.local()


def _call(token, pickled, item):
    """Run one item in a worker, which has a copy of the function from its first one on."""
    if getattr(_local, "token", None) != token:
        _local.token, _local.func = token, pickle.loads(pickled)
    return _local.func(item)


class PoolExecutor(Executor):
    """Runs items in a pool of processes of the standard library."""

    shares_files = True
    n_workers = 2
    kind = ProcessPoolExecutor

    def __init__(self):
        self._pool = self.kind(self.n_workers)

    def imap(self, func, items, *, describe=str):
        token, pickled = uuid.uuid4().hex, pickle.dumps(func)
        source, under_way = enumerate(items), {}
        while True:
            for number, item in islice(source, self.n_workers + 2 - len(under_way)):
                under_way[self._pool.submit(_call, token, pickled, item)] = number, item
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                number, item = under_way.pop(future)
                if (cause := future.exception()) is not None:
                    raise item_error(describe(item), cause)
                yield number, future.result()

    def close(self):
        self._pool.shutdown(cancel_futures=True)


class ThreadExecutor(PoolExecutor):
    """In threads, and states nothing of itself."""

    shares_files = False
    kind = ThreadPoolExecutor


@pytest.fixture(scope="module", params=[PoolExecutor, ThreadExecutor])
def executor(request):
    with request.param() as executor:
        yield executor


def frames_of(path, **more):
    with mdio.open(path, **more) as layout:
        block = layout.read(0, layout.info.n_frames)
    return block.positions, block.box, block.time, block.step


def same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.zarr", {"chunk_frames": 10}),
        ("a.zarr", {"chunk_frames": 10, "precision": 0.01}),
        ("a.h5md", {"chunk_frames": 10, "compression": "gzip:1"}),
        ("dcd.segments", {"container": "dcd", "segments": 3}),
        ("xtc.segments", {"container": "xtc", "segments": 3}),
    ],
)
def test_conversions(adk, tmp_path, executor, name, options):
    out, alone = tmp_path / name, tmp_path / f"alone-{name}"
    assert (
        mdio.convert(adk["xtc"], out, executor=executor, stop=60, **as_options(options)).workers
        == 2
    )
    mdio.convert(adk["xtc"], alone, stop=60, **as_options(options))
    mdio.append(adk["xtc"], out, executor=executor)
    mdio.append(adk["xtc"], alone)
    same(frames_of(out), frames_of(alone))
    found = mdio.verify(out, executor=executor)
    assert found.ok, found.bad
    assert found.units == mdio.verify(out).units


def test_steps_that_go_on_from_frame_to_frame(tmp_path, executor):
    make_sources(tmp_path, 60)
    out, alone = tmp_path / "a.zarr", tmp_path / "alone.zarr"
    options = {"pbc": "nojump", "chunk_frames": 5}
    mdio.convert(tmp_path / "all.xtc", out, executor=executor, **as_options(options))
    mdio.convert(tmp_path / "all.xtc", alone, **as_options(options))
    same(frames_of(out), frames_of(alone))


def test_splitting(adk, tmp_path, executor):
    out = tmp_path / "a.segments"
    mdio.split(adk["xtc"], out, 3, executor=executor)
    found = mdio.verify(out, adk["xtc"], executor=executor)
    assert (found.ok, found.frames_compared) == (True, 98)
    same(frames_of(out), frames_of(adk["xtc"]))


@pytest.mark.parametrize("kernel", [mdio.RMSD("name CA"), mdio.MSD("name CA")])
@pytest.mark.parametrize("is_cached", [False, True])
def test_analyses(adk, tmp_path, executor, kernel, is_cached):
    where = {"executor": executor, "cache": tmp_path if is_cached else None}
    found = mdio.analyze(adk["xtc"], top=adk["psf"], kernel=kernel, **where)
    expected = mdio.analyze(adk["xtc"], top=adk["psf"], kernel=kernel)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.time, expected.time)
    assert (found.executor, found.workers) == ("custom", 2)


@pytest.mark.parametrize("n_members", [2, 5])
def test_ensembles(adk, tmp_path, executor, n_members):
    members = {f"r{n}": adk["xtc"] for n in range(n_members)}
    out = tmp_path / "all.zarr"
    mdio.convert_ensemble(members, out, top=adk["psf"], step=10, executor=executor)
    assert mdio.verify(out, executor=executor).ok
    found = mdio.analyze(out, kernel=mdio.RMSD("name CA"), executor=executor)
    expected = mdio.analyze(out, kernel=mdio.RMSD("name CA"))
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.label, expected.label)


def test_map_reduce(adk, executor):
    program = {"map": Counted().map, "reduce": Counted().reduce, "select": "name CA"}
    given = {"trajectory": adk["xtc"], "top": adk["psf"], **program}
    if not executor.shares_files:
        with pytest.raises(PlanError, match=r"^workers of ThreadExecutor\(2\) .*shares_files"):
            mdio.map_reduce(**given, executor=executor)
        return
    found = mdio.map_reduce(**given, executor=executor)
    expected = mdio.map_reduce(**given)
    np.testing.assert_array_equal(found.keys, expected.keys)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], column)


class Sharing(PoolExecutor):
    """Threads that have one function in common."""

    kind = ThreadPoolExecutor

    def imap(self, func, items, *, describe=str):
        numbers = {self._pool.submit(func, item): number for number, item in enumerate(items)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()


def test_threads_that_share_a_function_are_told(adk):
    has_ended = threading.Event()

    def slow(block):
        has_ended.wait(10)
        return block.time

    with Sharing() as sharing:
        with pytest.raises(PlanError, match="from two threads at once; give each"):
            mdio.analyze(adk["xtc"], kernel=slow, executor=sharing)
        has_ended.set()


class Losing(mdio.Serial):
    """Loses one result."""

    def imap(self, func, items, *, describe=str):
        for number, result in super().imap(func, items, describe=describe):
            if number != 1:
                yield number, result


class Misnumbering(mdio.Serial):
    """Gives all results one number."""

    def imap(self, func, items, *, describe=str):
        for _, result in super().imap(func, items, describe=describe):
            yield 0, result


class WithoutNumbers(mdio.Serial):
    """Yields results alone."""

    def imap(self, func, items, *, describe=str):
        yield from map(func, items)


class WithoutLabels(mdio.Serial):
    """Takes no `describe`."""

    def imap(self, func, items):
        yield from enumerate(map(func, items))


class Returning(mdio.Serial):
    """Forgets to return what it has."""

    def imap(self, func, items, *, describe=str):
        dict(enumerate(map(func, items)))


class Nobody(mdio.Serial):
    """Has no workers."""

    n_workers = 0


def map_reduce(paths, out, executor):
    program = Counted()
    mdio.map_reduce(paths["dcd"], map=program.map, reduce=program.reduce, executor=executor)


def convert(paths, out, executor):
    mdio.convert(paths["dcd"], out, storage=mdio.Storage(chunk_frames=10), executor=executor)


def convert_ensemble(paths, out, executor):
    members = {f"r{number}": paths["dcd"] for number in range(5)}
    mdio.convert_ensemble(members, out, step=10, executor=executor)


def verify(paths, out, executor):
    mdio.verify(paths["dcd"], paths["xtc"], executor=executor)


def analyze(paths, out, executor):
    mdio.analyze(paths["dcd"], kernel=lambda block: block.time, executor=executor)


def analyze_series(paths, out, executor):
    mdio.analyze(paths["dcd"], kernel=mdio.MSD(), stop=5, executor=executor)


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        (Losing, BlockError, r"Losing\(2\) returned no result of (block|batch|frames|units|r\d)"),
        (Misnumbering, PlanError, r"imap of Misnumbering\(2\) yielded \(0, .* each item once"),
        (WithoutNumbers, PlanError, r"imap of WithoutNumbers\(2\) yielded .* \(number, result\)"),
        (WithoutLabels, PlanError, r"imap of WithoutLabels\(2\) failed: .*describe=\.\.\."),
        (Returning, PlanError, r"imap of Returning\(2\) failed: .* yields"),
        (Nobody, PlanError, r"0 workers of Nobody\(0\)"),
    ],
)
@pytest.mark.parametrize(
    "call", [map_reduce, convert, convert_ensemble, verify, analyze, analyze_series]
)
def test_what_an_executor_does_wrong_is_told_with_its_name(
    adk, tmp_path, monkeypatch, kind, error, told, call
):
    if kind is not Nobody:
        monkeypatch.setattr(kind, "n_workers", 2)
    monkeypatch.setattr(kind, "shares_memory", False)
    monkeypatch.setattr(series, "WIDE_NBYTES", 12 * 5 * 2000)  # two batches
    with pytest.raises(error, match=told):
        call(adk, tmp_path / "a.zarr", kind())


def fails(block):
    raise ValueError("no such thing")


def test_failures(adk, tmp_path, executor):
    with pytest.raises(BlockError, match=r"block \d .* no such thing"):
        mdio.analyze(adk["xtc"], top=adk["psf"], kernel=fails, executor=executor)
    cut = tmp_path / "cut.dcd"
    cut.write_bytes(adk["dcd"].read_bytes()[:-1000])
    with pytest.raises(SourceError, match=r"cut\.dcd"):
        mdio.convert(cut, tmp_path / "a.zarr", executor=executor)
    assert not (tmp_path / "a.zarr").exists()
