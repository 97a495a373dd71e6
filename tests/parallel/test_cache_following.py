"""Keeping what a simulation writes."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import mdio
from mdio.core.cache import Cache, cached_trajectories
from mdio.core.errors import PlanError
from mdio.core.files.reading import reads
from mdio.layouts.caching import cache_units
from mdio.parallel.assignment import CacheFollower, follow_into_cache


def held(path, cache):
    with mdio.open(path, cache=cache) as layout:
        _ = layout.info
        return cache_units(layout, None).cached(cache)


@pytest.mark.parametrize("kind", ["xtc", "dcd", "trr"])
def test_a_file_that_grows(adk, tmp_path, kind):
    raw = adk[kind].read_bytes()
    path = tmp_path / f"md.{kind}"
    cache = Cache(str(tmp_path / "c"))
    follower = CacheFollower(str(tmp_path / "*.???"), cache, ["a"], "a")
    seen = 0
    for share in (0.001, 0.3, 0.55, 0.8, 1.0):
        path.write_bytes(b"") if not path.exists() else None
        with path.open("ab") as file:
            file.write(raw[file.tell() : int(share * len(raw))])
        assert follower.cache_complete_units() == 1
        assert follower.n_units >= seen
        seen = follower.n_units
    assert seen > 5
    assert held(path, cache)[:-1].all()
    assert not held(path, cache)[-1]
    assert follower.cache_complete_units() == 0
    assert held(path, cache).all()
    assert follower.n_units == len(held(path, cache))
    expected = mdio.open(adk[kind]).read(0, 98).positions
    with mdio.open(path, cache=cache) as layout:
        _ = layout.info
        opened = reads.nbytes_source
        assert np.array_equal(layout.read(0, 98).positions, expected)
        assert reads.nbytes_source == opened


def test_nodes_share(adk, tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}.xtc").write_bytes(adk["xtc"].read_bytes())
    nodes = ["a", "b", "c"]
    counts = []
    for name in nodes:
        monkeypatch.setenv("MDIO_NODE", name)
        cache = Cache(str(tmp_path / "c"))
        done = follow_into_cache(str(tmp_path / "*.xtc"), cache, nodes=nodes, until_idle_s=0.0)
        counts.append(done.n_units)
    assert all(counts)
    monkeypatch.delenv("MDIO_NODE")
    every = list(cached_trajectories(tmp_path / "c"))
    assert sum(one["units_cached"] for one in every) == sum(counts)
    assert sum(counts) == sum(one["units"] for one in every if one["node"] == "a")
    monkeypatch.setenv("MDIO_NODE", "d")
    with pytest.raises(PlanError, match="this node is d"):
        follow_into_cache("*", cache, nodes=nodes)


def test_a_pattern_of_no_file_is_told(tmp_path):
    pattern = str(tmp_path / "*.xct")
    done = follow_into_cache(pattern, Cache(str(tmp_path / "c")), until_idle_s=0.0)
    assert done.notes == [f"{pattern}: no file matches this pattern"]


def test_killed_and_started_again(adk, tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.trr").write_bytes(adk["trr"].read_bytes())
    words = [sys.executable, "-m", "mdio.cli.main", "cache", "follow", str(tmp_path / "*.trr")]
    words += ["--dir", str(tmp_path / "c"), "--until-idle", "0.2s", "--quiet"]
    first = subprocess.Popen(words)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "c").rglob("*.unit")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    subprocess.run(words, check=True, timeout=120)
    for number in range(6):
        assert held(tmp_path / f"{number}.trr", Cache(str(tmp_path / "c"))).all()
