"""Runs of indices, the manifest's checks and the choice of a stored group."""

import json

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdio.core.errors import CorruptLayoutError
from mdio.layouts.chunked.own import StoredGroups
from mdio.layouts.manifest import (
    build_manifest,
    check_manifest,
    indices_from_runs,
    runs_from_indices,
    with_checksum,
)
from mdio.layouts.plan import ArrayPlan, LayoutPlan
from mdio.layouts.writer import OutputMeta


@given(st.lists(st.integers(0, 40), max_size=60))
def test_runs_give_any_indices_back(indices):
    runs = runs_from_indices(indices)
    assert [i for run in runs for i in range(*run)] == indices
    assert all(step > 0 for _, _, step in runs)
    assert indices_from_runs(runs).tolist() == indices


def test_regular_indices_take_one_run():
    assert runs_from_indices(range(2, 300, 3)) == [[2, 300, 3]]
    assert runs_from_indices([*range(10), *range(50, 60)]) == [[0, 10, 1], [50, 60, 1]]
    assert runs_from_indices([]) == []


def manifest(**extra):
    plan = LayoutPlan(
        layout="zarr",
        n_frames=7,
        n_atoms=5,
        piece_frames=7,
        arrays=(
            ArrayPlan("trajectory", "positions", 5, 7, 5),
            ArrayPlan("ca", "positions", 2, 7, 2),
        ),
    )
    meta = OutputMeta(
        uuid="u",
        created="2024-01-01T00:00:00Z",
        source={"path": "x.xtc"},
        dt_ps=np.float32(2.0),
        frames=[(0, np.int64(14), 2)],
        atoms=np.array([0, 1, 2, 3, 9]),
        groups={"ca": np.array([1, 4])},
    )
    return build_manifest(plan, meta, has_box=True, **extra)


def test_manifest_survives_json():
    made = manifest()
    assert check_manifest(json.loads(json.dumps(made)), "x") == made
    assert made["groups"] == {"ca": 2}
    assert made["group_atoms"] == {"ca": [[1, 5, 3]]}
    assert indices_from_runs(made["atoms"]).tolist() == [0, 1, 2, 3, 9]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "other"}, "not one of mdio"),
        ({"format_version": 2}, "newer mdio"),
        ({"format_version": "1"}, "expected 1"),
        ({"n_frames": "many"}, "n_frames"),
        ({"n_frames": 0}, "0 frames"),
        ({"uuid": None}, "uuid"),
        ({"atoms": [[0, 10**30, 1]]}, "atoms"),
        ({"atoms": "all"}, "atoms"),
        ({"group_atoms": {}}, "group ca"),
        ({"group_atoms": {"ca": [[0, 3, 0]]}}, "group ca"),
        ({"group_atoms": {"ca": [[4, 6, 1]]}}, "group ca .* beyond its 5"),
        ({"group_atoms": {"ca": [[-2, 0, 1]]}}, "group ca"),
        ({"group_atoms": {"ca": 1}}, "group ca"),
        ({"groups": {"../x": 2}, "group_atoms": {"../x": [[1, 5, 3]]}}, r"a group '\.\./x'"),
        ({"groups": {"trajectory": 2}}, "a group 'trajectory'"),
        ({"groups": {"ca": [2]}}, "'groups'"),
        ({"groups": {"ca": "2"}}, "'groups'"),
        ({"n_frames": True}, "'n_frames'"),
        ({"n_frames": [7]}, "'n_frames'"),
        ({"dt_ps": [2.0]}, "'dt_ps'"),
        ({"nbytes": [1]}, "'nbytes'"),
        ({"precision": [0.1]}, "'precision'"),
        ({"frames": [[0, 7]]}, "'frames'"),
        ({"frames": [[[0], 7, 1]]}, "'frames'"),
        ({"fields": [["positions"]]}, "'fields'"),
        ({"fields": "positions"}, "'fields'"),
        ({"time_last_ps": "1"}, "'time_last_ps'"),
    ],
)
def test_manifest_that_cannot_be_read(changes, says):
    with pytest.raises(CorruptLayoutError, match=says):
        check_manifest(with_checksum(manifest() | changes), "x")


def test_the_checksum_is_that_of_the_canonical_json():
    made = manifest(note="\u00e5")
    rest = {key: value for key, value in made.items() if key != "manifest_crc32c"}
    text = json.dumps(json.loads(json.dumps(rest)), sort_keys=True, separators=(",", ":"))
    assert made["manifest_crc32c"] == google_crc32c.value(text.encode())
    again = json.loads(json.dumps(dict(reversed(made.items())), indent=2))
    assert check_manifest(again, "x") == made


@pytest.mark.parametrize(
    "changes",
    [
        {"dt_ps": 3.0},
        {"group_atoms": {"ca": [[0, 4, 3]]}},
        {"added": None},
        {"manifest_crc32c": 1},
        {"manifest_crc32c": None},
    ],
)
def test_a_changed_manifest(changes):
    with pytest.raises(CorruptLayoutError, match="x: its manifest has the checksum"):
        check_manifest(manifest() | changes, "x")


@pytest.mark.parametrize("lost", ["manifest_crc32c", "checksum", "error_bound_angstrom"])
def test_a_manifest_that_lost_a_key(lost):
    made = manifest()
    del made[lost]
    with pytest.raises(CorruptLayoutError, match="x: its manifest has the checksum"):
        check_manifest(made, "x")


def test_manifests_of_older_versions_have_no_checksum():
    made = manifest()
    del made["manifest_crc32c"], made["checksum"]
    assert check_manifest(made, "x") == made


@pytest.mark.parametrize("found", [None, [], {}, "mdio"])
def test_no_manifest(found):
    with pytest.raises(CorruptLayoutError):
        check_manifest(found, "x")


@given(st.lists(st.integers(0, 19), max_size=12))
def test_smallest_group_that_covers(atoms):
    groups = {
        "big": np.arange(15)[::-1].copy(),
        "odd": np.arange(1, 20, 2),
        "few": np.array([3, 1, 5]),
    }
    stored = StoredGroups(groups)
    picked = np.array(atoms, np.int64)
    sizes = [(g.size, name) for name, g in groups.items() if set(atoms) <= set(g.tolist())]
    for _ in range(2):  # the second answer is the remembered one
        found = stored.smallest_group(picked)
        assert (found is None) == (not sizes)
        if found is not None:
            assert found[0] == min(sizes)[1]
            within = slice(None) if found[1] is None else found[1]
            np.testing.assert_array_equal(groups[found[0]][within], picked)


def test_whole_group_in_its_order_needs_no_indices():
    stored = StoredGroups({"few": np.array([3, 1, 5])})
    assert stored.smallest_group(np.array([3, 1, 5])) == ("few", None)
    name, indices = stored.smallest_group(np.array([1, 3, 5]))
    assert name == "few"
    assert indices.tolist() == [1, 0, 2]


def test_remembered_selection_is_a_copy():
    stored = StoredGroups({"few": np.array([3, 1, 5])})
    atoms = np.array([1, 5])
    assert stored.smallest_group(atoms) is not None
    atoms[0] = 2
    assert stored.smallest_group(atoms) is None
