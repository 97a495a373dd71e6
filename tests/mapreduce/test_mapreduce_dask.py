"""Map-reduce on a Dask cluster, of which workers may be killed."""

import numpy as np
import pytest
from mapreduce import programs
from parallel.on_dask import dask_client

import mdio
from mdio.core.errors import BlockError, PlanError

pytestmark = pytest.mark.filterwarnings("default")  # dask's own


@pytest.fixture(scope="module")
def executor():
    with dask_client() as client:
        yield mdio.DaskExecutor(client)


def same(found, expected):
    np.testing.assert_array_equal(found.keys, expected.keys)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], column)
    np.testing.assert_array_equal(found.n_pairs, expected.n_pairs)


@pytest.mark.parametrize("keys", ["atom", "text", "one"])
@pytest.mark.parametrize("memory", [60_000, 1 << 30])
def test_the_same_table(adk, executor, keys, memory):
    arguments = {"top": adk["psf"], "map": programs.Windows(keys).map}
    found = mdio.map_reduce(adk["dcd"], **arguments, executor=executor, memory=memory)
    same(found, mdio.map_reduce(adk["dcd"], **arguments))
    assert found.executor == "dask" and found.nbytes_on_disk == 0


def test_errors(adk, executor):
    with pytest.raises(BlockError, match=r"block \d+ .*ZeroDivisionError: no such angle"):
        run(adk, executor, map=programs.fails_late)
    with pytest.raises(BlockError, match="failed: ValueError: odd"):
        run(adk, executor, reduce=programs.fails_for_odd)
    with pytest.raises(BlockError, match="keys are whole numbers and text"):
        run(adk, executor, map=programs.text_later)
    with pytest.raises(PlanError, match="cannot be sent to dask workers"):
        lock = __import__("threading").Lock()
        run(adk, executor, reduce=lambda *_: lock)
    assert len(run(adk, executor, map=programs.nothing).keys) == 0


def run(adk, executor, map=programs.bins, reduce=programs.total):
    return mdio.map_reduce(adk["dcd"], map=map, reduce=reduce, executor=executor)


@pytest.mark.parametrize("program", [programs.KilledInMap, programs.KilledInReduce])
def test_a_worker_is_killed(adk, executor, program, tmp_path):
    """Every frame is counted once all the same."""
    killed = program(tmp_path / "killed")
    found = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=killed.map, executor=executor)
    assert (tmp_path / "killed").exists()
    same(found, mdio.map_reduce(adk["dcd"], top=adk["psf"], map=programs.Windows("few").map))
