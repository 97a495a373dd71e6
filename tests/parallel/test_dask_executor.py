"""The Dask executor on a real local cluster."""

import itertools
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from parallel.on_dask import dask_client

import mdio
from mdio.cli.main import main
from mdio.core.errors import BlockError, MissingExtraError, PlanError, SourceError
from mdio.parallel.dask_executor import DaskExecutor, _result

pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("default")  # dask's own


@pytest.fixture(scope="module")
def client():
    with dask_client(threads_per_worker=2) as client:
        yield client


def square(x):
    return x * x


class Exclusive:
    """Fails if two threads are in the same copy; counts the calls of each copy."""

    def __init__(self):
        self.busy = False
        self.calls = 0

    def __call__(self, item):
        assert not self.busy
        self.busy = True
        time.sleep(0.01)
        self.calls += 1
        self.busy = False
        return os.getpid(), threading.get_ident(), self.calls


def boom_at_five(x):
    if x == 5:
        raise ValueError("five is\nright out")
    if x == 50:
        raise SourceError("a.xtc: truncated")
    return x


def kill_self(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_map_keeps_order(client):
    executor = DaskExecutor(client)
    assert executor.n_workers == 4
    assert executor.map(square, range(40)) == [x * x for x in range(40)]
    assert executor.map(square, []) == []
    assert client.status == "running"


def test_lambda_travels(client):
    assert DaskExecutor(client).map(lambda x: x + 1, [1, 2]) == [2, 3]


MODULE = """import mdio
import {name}_helps

def highest(block):
    return {name}_helps.heights(block).max(axis=1)

class Highest(mdio.Kernel):
    def prepare(self, system):
        return mdio.Prepared(self.rows, reducer=Last())
    def rows(self, block):
        return highest(block)

class Last(mdio.analysis.reducers.Reducer):
    def lift(self, rows): return (rows[-1:],)
    def merge(self, earlier, later): return later
    def finish(self, state): return state[0]

class Counted:
    def map(self, block):
        import numpy
        rows = numpy.arange(block.n_frames)
        return 0 * rows, rows, {{"height": highest(block)}}
    def reduce(self, key, frame, time, values):
        return {{"height": values["height"].max()}}
"""


def test_a_module_of_the_working_folder_travels(client, adk, tmp_path, monkeypatch, capsys):
    """Workers run elsewhere, without that folder on their path."""
    name = "travelling_kernels"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    text = "def heights(block):\n    return block.positions[:, :, 2]\n"
    (tmp_path / f"{name}_helps.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    words = [adk["xtc"], "--scheduler", client.scheduler.address, "-q", "-o"]
    assert main(list(map(str, ["analyze", f"{name}:highest", *words, "a.npz"]))) == 0
    assert main(list(map(str, ["analyze", f"{name}:Highest", *words, "b.npz"]))) == 0
    assert main(list(map(str, ["mapreduce", f"{name}:Counted", *words, "c.npz"]))) == 0
    with mdio.open(adk["xtc"]) as layout:
        want = layout.read(0, layout.info.n_frames).positions[:, :, 2].max(axis=1)
    assert np.array_equal(np.load("a.npz")["values"], want)
    assert np.array_equal(np.load("b.npz")["values"], want[-1:])
    assert np.load("c.npz")["height"] == [want.max()]
    monkeypatch.chdir("/")
    assert main(list(map(str, ["analyze", f"{name}:highest", *words, "d.npz"]))) == 1
    assert "No module named 'travelling_kernels'" in (told := capsys.readouterr().err)
    assert "client.upload_file('travelling_kernels.py')" in told


def test_each_thread_keeps_one_copy(client):
    seen = DaskExecutor(client).map(Exclusive(), range(30))
    for who in {(pid, thread) for pid, thread, _ in seen}:
        calls = sorted(n for pid, thread, n in seen if (pid, thread) == who)
        assert calls == list(range(1, len(calls) + 1))
    assert {pid for pid, _, _ in seen} <= set(client.run(os.getpid).values())


def test_endless_generator(client):
    taken = []

    def endless():
        for i in itertools.count():
            taken.append(i)
            yield i

    executor = DaskExecutor(client)
    iterator = executor.imap(square, endless())
    for _ in range(10):
        number, result = next(iterator)
        assert result == number**2
    assert len(taken) <= 10 + executor.n_workers + 2
    iterator.close()


@pytest.mark.parametrize(
    ("items", "kind", "message"),
    [
        (range(9), BlockError, "item 5 failed: ValueError: five is right out"),
        ([50], SourceError, "item 50: a.xtc: truncated"),
    ],
)
def test_failures(client, items, kind, message):
    with pytest.raises(kind) as e:
        DaskExecutor(client).map(boom_at_five, items, describe=lambda x: f"item {x}")
    assert str(e.value) == message
    assert e.value.__cause__ is not None


def test_what_does_not_pickle(client):
    with pytest.raises(PlanError, match="cannot be sent"):
        DaskExecutor(client).map(threading.Lock().acquire, [1])


def test_killed_workers(client):
    executor = DaskExecutor(client)
    start = time.monotonic()
    with pytest.raises(BlockError, match=r"frames \d failed: its dask workers were killed"):
        executor.map(kill_self, range(6), describe=lambda x: f"frames {x}")
    assert time.monotonic() - start < 100
    client.wait_for_workers(2, timeout=100)
    assert executor.map(square, [3]) == [9]


def test_own_cluster_is_closed():
    with DaskExecutor(n_workers=1) as executor:
        assert executor.n_workers == 1
        (pid,) = executor.map(pid_of_worker, [0])
        os.kill(pid, 0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker outlived its executor")


def pid_of_worker(_):
    return os.getpid()


def test_arguments(client, monkeypatch):
    with pytest.raises(PlanError, match="not both"):
        DaskExecutor(client, 3)
    with pytest.raises(PlanError, match="0 dask workers"):
        DaskExecutor(n_workers=0)
    with pytest.raises(PlanError, match="'2' dask workers"):
        DaskExecutor(n_workers="2")
    with pytest.raises(PlanError, match=r"the client is 'tcp://one:1'; .*DaskExecutor.at"):
        DaskExecutor("tcp://one:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        DaskExecutor()


@pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")
def test_analysis_on_dask_equals_serial(client):
    from MDAnalysisTests.datafiles import DCD, PSF

    from mdio.analysis.driver import analyze
    from mdio.analysis.kernels.geometry import RMSD

    serial = analyze(DCD, top=PSF, kernel=RMSD("name CA"))
    got = analyze(
        DCD, top=PSF, kernel=RMSD("name CA"), executor=DaskExecutor(client), blocks_per_worker=2
    )
    assert np.array_equal(got.values, serial.values)
    assert np.array_equal(got.time, serial.time)
    assert got.to_json()["executor"] == "dask"
    assert len(got.timings) == 8


def test_a_result_lost_with_its_worker_is_made_again():
    class Again:
        status = "lost"  # it was done when it was looked at a moment before

        def exception(self):
            return None

        def result(self):
            return 7

    assert _result(Again(), "frames 1") == 7


def test_the_file_of_a_scheduler_names_it(client, tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": client.scheduler.address}))
    with DaskExecutor.at(str(file)) as executor:
        assert executor.map(square, [3]) == [9]
        executor.client.close()
        with pytest.raises(PlanError, match="is closed"):
            _ = executor.n_workers
