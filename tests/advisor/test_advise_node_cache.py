"""A cache on each node, weighed from measured disks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import mdio
from mdio.advisor.measure import Limits
from mdio.advisor.measurements import (
    Bandwidth,
    LocalDisk,
    load_measurements,
    save_measurements,
)
from mdio.advisor.recommend import recommend

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "advise_rmsd_xtc.json"


def measured(read=800e6, write=400e6, storage=95e6):
    """Return measurements with rates as if the trajectory had 95 GB."""
    found = load_measurements(GOLDEN)
    scale = found.source.nbytes / 95e9
    return replace(
        found,
        local=LocalDisk(scale * read, scale * write),
        bandwidths=(Bandwidth(1, "cold", scale * storage),),
    )


def test_where_it_pays():
    found = recommend(measured(), 4, 3, cache="cold", nodes=4)
    cache = found.node_cache
    here_s, there_s = 95e9 / (4 * 800e6), 1000.0
    assert cache.cached_pass_s == pytest.approx(cache.source_pass_s - (there_s - here_s))
    assert cache.first_pass_s == pytest.approx(cache.source_pass_s + 95e9 / (4 * 400e6))
    assert cache.pays_from_pass == 2
    assert cache.missing_pass_s["0.5"] == pytest.approx(
        cache.cached_pass_s * (1 + 0.5 * 4 * 800 / 95)
    )
    assert "pays from pass 2 on" in found.reasons[-1]
    assert found.to_json()["node_cache"]["nodes"] == 4


def test_where_it_does_not():
    for given in (
        recommend(measured(), 4, 3, cache="warm"),
        recommend(measured(read=50e6), 1, 3, cache="cold"),
    ):
        assert given.node_cache.pays_from_pass is None
        assert "does not pay" in given.reasons[-1]
    assert recommend(load_measurements(GOLDEN), 4, 3).node_cache is None


def test_a_disk_that_writes_slowly_pays_later():
    slow = recommend(measured(write=10e6), 4, 3, cache="cold", nodes=4).node_cache
    assert slow.pays_from_pass == 1 + 3


def test_it_is_measured_and_kept(adk, tmp_path):
    (tmp_path / "local").mkdir()
    look = Limits(sample_nbytes=1 << 20, repeats=1, max_repeats=1)
    advice = mdio.advise(
        adk["xtc"],
        top=adk["psf"],
        select="name CA",
        limits=look,
        target=tmp_path,
        local_folder=tmp_path / "local",
        save=tmp_path / "m.json",
    )
    local = json.loads((tmp_path / "m.json").read_text())["local"]
    again = load_measurements(tmp_path / "m.json")
    if local is not None:  # a disk, not memory
        assert again.local.read_nbytes_per_s == local["read_nbytes_per_s"] > 0
    save_measurements(again, tmp_path / "n.json")
    assert load_measurements(tmp_path / "n.json") == again
    assert (advice.to_json()["node_cache"] is None) == (local is None)
    assert not list((tmp_path / "local").iterdir())
