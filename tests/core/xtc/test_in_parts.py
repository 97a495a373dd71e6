"""The frames of an XTC file, found in parts of it, are those that a walk through it finds."""

import numpy as np
import pytest

from mdio.core.files import requests
from mdio.core.xtc.codec import scan
from mdio.core.xtc.in_parts import comes_over_a_network, joined, scan_part


@pytest.mark.parametrize("n_parts", [1, 2, 7, 400])
def test_parts_fit_together(adk, n_parts):
    path, index = adk["xtc"], scan(adk["xtc"])
    parts = [scan_part(path, index.n_atoms, part, n_parts) for part in range(n_parts)]
    assert sum(len(starts) for starts, _ in parts) == index.n_frames
    assert np.array_equal(joined(parts, index.n_atoms, index.nbytes).offsets, index.offsets)


def test_what_looks_like_a_header_is_none(adk, tmp_path):
    whole, index = adk["xtc"].read_bytes(), scan(adk["xtc"])
    first, second = index.offsets[:2]
    at = first + (second - first) // 2
    made = bytearray(whole)
    made[at : at + 92] = whole[:92]
    path = tmp_path / "made.xtc"
    path.write_bytes(made)
    n_parts = len(made) // (at - 100)
    parts = [scan_part(path, index.n_atoms, part, n_parts) for part in range(n_parts)]
    assert np.array_equal(joined(parts, index.n_atoms, index.nbytes).offsets, index.offsets)


def test_what_does_not_fit_together_is_left_to_one_walk(adk, tmp_path):
    whole, index = adk["xtc"].read_bytes(), scan(adk["xtc"])
    middle = index.offsets[50]
    path = tmp_path / "damaged.xtc"
    for damaged in (whole[:-10], whole[:middle] + bytes(100) + whole[middle + 100 :]):
        path.write_bytes(damaged)
        parts = [scan_part(path, index.n_atoms, part, 3) for part in range(3)]
        assert joined(parts, index.n_atoms, len(damaged)) is None


def test_disks_of_the_machine_are_known(adk, monkeypatch):
    monkeypatch.setattr(requests.os, "preadv", lambda *_: 1)
    assert not comes_over_a_network(adk["xtc"])
    with monkeypatch.context() as patch:
        patch.delattr(requests.os, "RWF_NOWAIT")
        assert comes_over_a_network(adk["xtc"])
