"""Analyses through caches on nodes: processes, ranks, Dask workers of which one is killed."""

import json
import os
import signal
import threading
import time

import numpy as np
import pytest
from suites.under_mpi import needs_mpi, run_checks

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError

CA = "name CA"


def rmsd(adk, trajectory, **arguments):
    return mdio.analyze(trajectory, top=adk["psf"], kernel=mdio.RMSD(CA), **arguments)


def same(result, expected):
    for name in ("frame", "time", "values"):
        assert np.array_equal(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize("executor", [None, mdio.Processes(3)])
@pytest.mark.parametrize("frames", [{}, {"start": 5, "stop": 90, "step": 4}, {"dt_ps": 6.0}])
def test_every_executor(adk, tmp_path, executor, frames):
    expected = rmsd(adk, adk["xtc"], **frames)
    assert expected.to_json()["nbytes_cache"] == 0
    assert expected.to_json()["nbytes_source"] > 0
    for turn in range(2):
        found = rmsd(adk, adk["xtc"], executor=executor, cache=tmp_path / "c", **frames)
        same(found, expected)
        numbers = found.to_json()
        assert (numbers["nbytes_source"] == 0) == (turn == 1)
        assert numbers["nbytes_cache"] > 0 or turn == 0
        assert found.notes == expected.notes


def test_several_files_and_an_open_layout(adk, tmp_path):
    paths = [adk["xtc"], adk["trr"]]
    expected = rmsd(adk, paths, overlap="keep-all")
    for executor in (mdio.Processes(2), None):
        found = rmsd(
            adk,
            paths,
            overlap="keep-all",
            cache=tmp_path / "c",
            cache_size=1 << 30,
            executor=executor,
        )
        same(found, expected)
    assert found.to_json()["nbytes_source"] == 0
    layout = mdio.open(adk["xtc"], cache=tmp_path / "c")
    same(rmsd(adk, layout), rmsd(adk, adk["xtc"]))
    with pytest.raises(PlanError, match="with the cache instead"):
        rmsd(adk, layout, cache=tmp_path / "other")


def test_command_line(adk, tmp_path, capsys):
    words = ["analyze", "rmsd", adk["dcd"], "-s", adk["psf"], "--select", CA, "--json"]
    found = []
    for _ in range(2):
        more = ["--cache", tmp_path / "c", "--cache-size", "1G", "-w", "2"]
        assert main([str(word) for word in (*words, *more)]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["nbytes_source"] > 98 * 3341 * 12
    assert found[1]["nbytes_source"] == 0
    assert found[1]["nbytes_cache"] > 98 * 3341 * 12
    assert main(["cache", "status", str(tmp_path / "c")]) == 0
    assert " of 1 trajectory\n" in capsys.readouterr().out
    assert main(["cache", "status", str(tmp_path / "c"), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["trajectories"]
    assert one["path"] == str(adk["dcd"])
    assert one["units"] == one["units_cached"] > 1
    assert one["nbytes"] > 98 * 3341 * 12
    assert not one["is_stale"]
    (tmp_path / "d").write_text("")
    assert main([str(word) for word in (*words, "--cache", tmp_path / "d", "-w", "2")]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert len([note for note in notes if "cannot write to this cache" in note]) == 1
    unit = next((tmp_path / "c").rglob("*.unit"))
    unit.write_bytes(unit.read_bytes()[:-1])
    assert main(["cache", "verify", str(tmp_path / "c")]) == 1
    assert "1 damaged" in capsys.readouterr().out
    words = ["--keep", "0", "--trajectory", str(adk["dcd"])]
    assert main(["cache", "evict", str(tmp_path / "c"), *words]) == 0
    assert main(["cache", "status", str(tmp_path / "nothing")]) == 1


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_ranks(adk, tmp_path, n_ranks):
    for kind in ("dcd", "xtc"):
        (tmp_path / f"adk.{kind}").write_bytes(adk[kind].read_bytes())
    mdio.convert(tmp_path / "adk.xtc", tmp_path / "adk.zarr", storage=mdio.Storage(chunk_frames=7))
    run_checks(n_ranks, "caching/check_cached.py", adk["psf"], tmp_path)


class Slow:
    """Leaves time to kill a worker."""

    def __call__(self, block):
        time.sleep(0.15)
        return np.linalg.norm(block.positions[:, 0] - block.positions[:, -1], axis=1)


def far_atoms(block):
    rows, atoms = np.nonzero(block.positions[:, :, 2] > 10)
    return atoms, rows, {}


def how_many(key, frame, time, values):
    return {"n": len(frame)}


@pytest.mark.filterwarnings("default")
def test_a_dask_worker_is_killed(adk, tmp_path):
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    kernel = Slow()
    expected = mdio.analyze(adk["dcd"], kernel=kernel)
    one = {"nthreads": 1, "memory_limit": 0, "silence_logs": 50}
    workers = {
        n: {"cls": distributed.Nanny, "options": {**one, "env": {"MDIO_NODE": f"n{n}"}}}
        for n in range(3)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": ":0"}}
    with (
        # A worker that is free may else take what another one's node has.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        distributed.SpecCluster(workers, scheduler, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(3)
        executor = mdio.DaskExecutor(client)
        for turn in range(3):
            if turn == 2:
                pid = next(iter(client.run(os.getpid).values()))
                timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
                timer.start()
            found = mdio.analyze(
                adk["dcd"],
                kernel=kernel,
                executor=executor,
                cache=tmp_path / "c",
                blocks_per_worker=4,
            )
            same(found, expected)
            if turn < 2:
                assert (found.to_json()["nbytes_source"] == 0) == (turn == 1)
            if turn == 1:
                pairs = {"map": far_atoms, "reduce": how_many, "frames": [*range(40), 50, 77]}
                rows = mdio.map_reduce(adk["dcd"], **pairs, executor=executor, cache=tmp_path / "c")
                assert rows.to_json()["nbytes_source"] == 0
                assert rows.to_json()["nbytes_cache"] > 0
                alone = mdio.map_reduce(adk["dcd"], **pairs)
                assert np.array_equal(rows.keys, alone.keys)
                assert np.array_equal(rows.columns["n"], alone.columns["n"])
        timer.join()
        assert pid not in client.run(os.getpid).values()
    nodes = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert nodes == ["node-n0", "node-n1", "node-n2"]


def test_notes_reach_the_user_through_transformations(adk, tmp_path):
    (tmp_path / "c").write_text("no folder")
    for fit in (None, "translation"):
        result = mdio.analyze(
            adk["xtc"], kernel="rgyr", cache=tmp_path / "c", fit=fit, top=adk["psf"]
        )
        assert any("cannot write to this cache" in note for note in result.notes), fit


def test_a_folder_is_not_named_after_a_variable_that_is_not_set(adk, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    with pytest.raises(PlanError, match=r"\$NO_SUCH_FOLDER is not set"):
        rmsd(adk, adk["xtc"], cache="$NO_SUCH_FOLDER/c")
    monkeypatch.setenv("NO_SUCH_FOLDER", "")
    for folder in ("", "$NO_SUCH_FOLDER"):
        with pytest.raises(PlanError, match="names no folder"):
            rmsd(adk, adk["xtc"], cache=folder)
