"""TNG files, by either of the libraries that read them."""

import importlib.util

import numpy as np
import pytest
from MDAnalysisTests import datafiles

import mdio
from mdio.core.errors import SourceError
from mdio.layouts.foreign import library


def without(monkeypatch, *names):
    """Let some packages be missing."""
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in names else known(name)
    )


def test_chemfiles_reads_what_pytng_reads(monkeypatch):
    without(monkeypatch, "pytng")
    with mdio.open(datafiles.TNG_traj) as layout:
        assert (layout.info.n_frames, layout.info.n_atoms) == (101, 1000)
        assert layout.info.dt_ps == pytest.approx(10)
        assert layout.notes == (f"{datafiles.TNG_traj}: {library.CHEMFILES_NOTE}",)
        block = layout.read(1, 3)
    assert block.step.tolist() == [5000, 10000]
    np.testing.assert_allclose(block.time, [10, 20])
    # As gmx dump and pytng have them: nm of a precision of 0.001, in angstrom.
    np.testing.assert_allclose(block.positions[0, 0], [25.24, 11.86, 2.33], atol=1e-5)
    np.testing.assert_allclose(block.box[0], [35.73002] * 3 + [90] * 3, atol=1e-5)


def test_frames_of_tng_are_the_same_in_any_order(monkeypatch):
    without(monkeypatch, "pytng")
    with mdio.open(datafiles.TNG_traj) as layout:
        whole = layout.read(0, 101)
        for frame in (100, 3, 50, 0):
            assert np.array_equal(
                layout.read(frame, frame + 1).positions[0], whole.positions[frame]
            )


def test_packages_for_tng_are_named(monkeypatch):
    without(monkeypatch, "pytng", "chemfiles")
    with pytest.raises(SourceError, match="pip install pytng"):
        _ = mdio.open(datafiles.TNG_traj).info


def test_a_way_out_is_named_where_no_package_reads_it(monkeypatch):
    pytest.importorskip("pytng")
    without(monkeypatch, "chemfiles")
    path = datafiles.TNG_traj_uneven_blocks
    with pytest.raises(SourceError, match=r"pip install chemfiles.*gmx trjconv -f argon"):
        _ = mdio.open(path).info


def test_damage_that_chemfiles_finds_is_told_with_a_way_out(monkeypatch):
    without(monkeypatch, "pytng")
    path = datafiles.TNG_traj_uneven_blocks
    with pytest.raises(SourceError, match=r"read at frame \d+ by chemfiles.*gmx trjconv -f argon"):
        _ = mdio.open(path).info
