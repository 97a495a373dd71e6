"""Offsets that MDAnalysis stored: taken where its own conditions hold."""

from __future__ import annotations

import warnings
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from MDAnalysisTests import datafiles

import mdio
from mdio.core.files.index import FrameIndex, load_index


class Scanner:
    """Pretends to scan, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, path: Path) -> FrameIndex:
        self.calls += 1
        return FrameIndex(np.zeros(1, np.int64), path.stat().st_size, 10)


def beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.mdio-index")


def xdr_copy(name: str, tmp_path: Path) -> Path:
    path = tmp_path / Path(getattr(datafiles, name)).name
    path.write_bytes(Path(getattr(datafiles, name)).read_bytes())
    return path


def store_offsets(path: Path, **changes) -> np.ndarray:
    """Store offsets as MDAnalysis does."""
    opener = TRRFile if path.suffix == ".trr" else XTCFile
    with opener(str(path)) as file:
        offsets, n_atoms = file.offsets, file.n_atoms
    values = {
        "offsets": offsets,
        "size": path.stat().st_size,
        "ctime": path.stat().st_ctime,
        "n_atoms": n_atoms,
    }
    np.savez(path.with_name(f".{path.name}_offsets"), **{**values, **changes})
    return offsets


@pytest.mark.parametrize("name", ["TRR_multi_frame", "XTC_sub_sol"])
def test_offsets_of_mdanalysis_are_taken(tmp_path, name):
    path = xdr_copy(name, tmp_path)
    offsets = store_offsets(path)
    scan = Scanner()
    index = load_index(path, scan)
    np.testing.assert_array_equal(index.offsets, offsets)
    assert scan.calls == 0
    assert beside(path).exists()


def test_offsets_that_mdanalysis_writes_itself_are_taken(tmp_path):
    path = xdr_copy("TRR_multi_frame", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mda.coordinates.TRR.TRRReader(str(path)).close()
    scan = Scanner()
    assert load_index(path, scan, n_atoms=10).n_frames == 10
    assert scan.calls == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 5},
        {"ctime": 1.5},
        {"n_atoms": 11},
        {"n_atoms": -1},
        {"offsets": np.array([0, 50, 40])},
        {"offsets": np.array([4, 50])},
        {"offsets": np.array([0, 10**12])},
        {"offsets": np.array([0.0, 50.0])},
        {"offsets": np.array([[0, 50]])},
        {"offsets": np.array([], np.int64)},
        {"offsets": np.array([{}], object)},
    ],
)
def test_wrong_offsets_of_mdanalysis_are_not_taken(tmp_path, changes):
    path = xdr_copy("TRR_multi_frame", tmp_path)
    store_offsets(path, **changes)
    scan = Scanner()
    load_index(path, scan, n_atoms=10)
    assert scan.calls == 1


def test_damaged_offsets_of_mdanalysis_are_not_taken(tmp_path):
    path = xdr_copy("TRR_multi_frame", tmp_path)
    store_offsets(path)
    stored = path.with_name(f".{path.name}_offsets.npz")
    raw = stored.read_bytes()
    for bad in (b"", b"PK", raw[: len(raw) // 2], bytes(300)):
        stored.write_bytes(bad)
        beside(path).unlink(missing_ok=True)
        scan = Scanner()
        load_index(path, scan, n_atoms=7)
        assert scan.calls == 1
        assert stored.read_bytes() == bad


def test_names_that_leave_no_room_for_offsets(tmp_path):
    path = tmp_path / f"{'a' * 248}.xtc"
    path.write_bytes(Path(datafiles.XTC).read_bytes())
    with mdio.open(path) as layout:
        assert layout.info.n_frames == 10
