"""The frames of an XTC file, found in parts of it, are those that a walk through it finds."""

import numpy as np
import pytest

import mdio
from mdio.core.xtc import scan
from mdio.layouts.native import file as native_file
from mdio.layouts.native.file import is_on_network, join_parts, scan_fast, scan_part
from mdio.layouts.native.trr import TRRLayout
from mdio.layouts.native.trr import scan as scan_trr
from mdio.layouts.native.xtc import XTCLayout


@pytest.mark.parametrize("n_parts", [1, 2, 7, 400])
def test_parts_fit_together(adk, n_parts):
    path, index = adk["xtc"], scan(adk["xtc"])
    parts = [scan_part(path, XTCLayout.magic(path), part, n_parts) for part in range(n_parts)]
    assert sum(len(starts) for starts, _ in parts) == index.n_frames
    assert np.array_equal(join_parts(parts, index.n_atoms, index.end).offsets, index.offsets)


def test_what_looks_like_a_header_is_none(adk, tmp_path):
    whole, index = adk["xtc"].read_bytes(), scan(adk["xtc"])
    first, second = index.offsets[:2]
    at = first + (second - first) // 2
    made = bytearray(whole)
    made[at : at + 92] = whole[:92]
    path = tmp_path / "made.xtc"
    path.write_bytes(made)
    n_parts = len(made) // (at - 100)
    parts = [scan_part(path, XTCLayout.magic(path), part, n_parts) for part in range(n_parts)]
    assert np.array_equal(join_parts(parts, index.n_atoms, index.end).offsets, index.offsets)


def test_what_does_not_fit_together_is_left_to_one_walk(adk, tmp_path):
    whole, index = adk["xtc"].read_bytes(), scan(adk["xtc"])
    middle = index.offsets[50]
    path = tmp_path / "damaged.xtc"
    for damaged in (whole[:-10], whole[:middle] + bytes(100) + whole[middle + 100 :]):
        path.write_bytes(damaged)
        parts = [scan_part(path, XTCLayout.magic(path), part, 3) for part in range(3)]
        assert join_parts(parts, index.n_atoms, len(damaged)) is None


@pytest.mark.parametrize("n_parts", [1, 2, 5])
def test_parts_of_trr_fit_together(adk, tmp_path, n_parts):
    path = tmp_path / "adk.trr"
    mdio.convert(adk["xtc"], path, stop=40)
    index, magic = scan_trr(path), TRRLayout.magic(path)
    parts = [scan_part(path, magic, part, n_parts) for part in range(n_parts)]
    assert np.array_equal(join_parts(parts, magic.n_atoms, index.end).offsets, index.offsets)


@pytest.mark.parametrize(("kind", "name"), [(XTCLayout, "a.xtc"), (TRRLayout, "a.trr")])
def test_over_a_network_the_file_is_read_once(adk, tmp_path, monkeypatch, kind, name):
    path = tmp_path / name
    mdio.convert(adk["xtc"], path, stop=20)
    expected = {XTCLayout: scan, TRRLayout: scan_trr}[kind](path)
    monkeypatch.setattr(native_file, "is_on_network", lambda _: True)

    def walk(path):
        raise AssertionError(f"{path}: walked through")

    assert np.array_equal(scan_fast(path, kind.magic(path), walk).offsets, expected.offsets)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(AssertionError, match="walked"):  # it can say what is wrong
        scan_fast(path, kind.magic(path), walk)


def test_disks_of_the_machine_are_known(adk, monkeypatch):
    for system, expected in (("ext4", False), ("tmpfs", False), ("lustre", True)):
        monkeypatch.setattr(native_file, "file_system_type", lambda _, found=system: found)
        assert is_on_network(adk["xtc"]) == expected
