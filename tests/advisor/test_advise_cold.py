"""Advice for passes that read from storage: what the wires allow is the least time there is."""

from itertools import pairwise

import pytest
from advise_cases import measurements, run, trial

import mdio
from mdio.advisor import probes
from mdio.advisor.recommend import recommend
from mdio.core.errors import PlanError

MS = 1e-3


def on_storage(cold_rate=10e6, **more):
    """From memory all take 1 s a pass; the source has 100 MB, zarr 30 MB, h5md 300 MB."""
    quick = [run(1, 0.09 * MS, 0.01 * MS), run(2, 0.09 * MS, 0.01 * MS)]
    return measurements(
        trial("as-is", quick, nbytes=100e6),
        trial("zarr", quick, nbytes=30e6, convert_s=2.0),
        trial("h5md", quick, nbytes=300e6, convert_s=2.0),
        cold_rate=cold_rate,
        **more,
    )


def option(decision, name):
    return next(one for one in decision.options if one.name == name)


def test_cold_passes_take_what_the_wires_allow():
    decision = recommend(on_storage(), 1, 100, cache="cold")
    for name, seconds in (("as-is", 10.0), ("zarr", 3.0), ("h5md", 30.0)):
        found = option(decision, name).total.run
        assert found.t_io_s == pytest.approx(seconds)
        assert found.t_comp_s == pytest.approx(0.1)
    assert decision.recommended.layout == "zarr"
    # Reading the source, of 1 GB, takes as long as the wires need for it.
    assert option(decision, "zarr").total.convert_s == pytest.approx(100.0)
    assert any("10 MB/s to all readers" in reason for reason in decision.reasons)


def test_warm_passes_do_not_know_of_the_wires():
    decision = recommend(on_storage(), 1, 10, cache="warm")
    assert option(decision, "h5md").total.run.t_total_s == pytest.approx(1.0)
    assert decision.recommended.layout == "as-is"
    assert not any("to all readers" in reason for reason in decision.reasons)


def test_more_ranks_share_the_wires_and_nodes_bring_cores():
    one = recommend(on_storage(), 1, 1, cache="cold")
    eight = recommend(on_storage(), 8, 1, cache="cold", nodes=4)
    assert option(eight, "as-is").total.run.t_io_s == option(one, "as-is").total.run.t_io_s
    warm = recommend(on_storage(), 8, 1, cache="warm", nodes=4)
    assert option(warm, "as-is").total.run.t_total_s == pytest.approx(1.0 / 8)
    crowded = recommend(on_storage(), 8, 1, cache="warm")
    assert option(crowded, "as-is").total.run.t_total_s == pytest.approx(1.0 / 2)
    assert any("--nodes N" in reason for reason in crowded.reasons)
    assert not any("take turns" in reason for reason in warm.reasons)


def test_memory_of_all_nodes_decides_where_nothing_is_said():
    large = measurements(
        trial("as-is", [run(1, 0.1 * MS, 0.0)], nbytes=3 * 2**33), cold_rate=1e9, cores=1
    )
    assert option(recommend(large, 1), "as-is").total.run.t_io_s > 20  # half of 16 GiB is free
    assert option(recommend(large, 4, nodes=4), "as-is").total.run.t_io_s < 1


def test_targets_elsewhere_are_not_limited_by_the_sources_wires():
    decision = recommend(on_storage(target_fs="xfs"), 1, 10, cache="cold")
    assert option(decision, "h5md").total.run.t_total_s == pytest.approx(1.0)


@pytest.mark.parametrize(("more", "words"), [({"nodes": 0}, "nodes"), ({"cache": "hot"}, "hot")])
def test_what_makes_no_sense(more, words):
    with pytest.raises(PlanError, match=words):
        mdio.advise(replay="measured.json", **more)


def test_no_byte_is_read_twice_cold(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    seen = []
    monkeypatch.setattr(probes, "drop_cache", lambda path: None)
    monkeypatch.setattr(probes, "_read_part", lambda part: seen.append(part[1:]) or part[2])
    found = probes.bandwidths([path], [1, 2, 16])
    assert [(one.readers, one.cache) for one in found][::2] == [(n, "cold") for n in (1, 2, 16)]
    spans = sorted(set(seen))
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))
    assert len(spans) == 19  # each part twice: cold, then from memory
