"""Selections that depend on positions: from which frame, and that it is told."""

import json

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF

import mdio
from mdio.cli.main import main

NEAR = "name CA and around 8 resid 10"
BY_PLACE = [
    NEAR,
    "name CA and sphzone 8 resid 10",
    "sphlayer 2 8 (resid 10)",
    "isolayer 2 8 resid 10",
    "cyzone 8 5 -5 resid 10",
    "name CA and cylayer 2 8 5 -5 resid 10",
    "point 0.0 0.0 0.0 12",
    "prop z > 0",
    "prop abs x<5",
    "prop 5 >= y",
    "same x as index 3",
]
BY_NAME = ["name CA", "prop mass > 12.5", "same residue as name CA", "byres resid 1:3"]


def by_place(notes):
    return [note for note in notes if "depends on positions" in note]


@pytest.mark.parametrize("select", BY_PLACE)
def test_the_frame_is_named(select, tmp_path):
    selection = mdio.Selection(select=select)
    result = mdio.convert(DCD, tmp_path / "a.zarr", top=PSF, selection=selection, start=50, stop=52)
    (note,) = by_place(result.plan.notes)
    assert "frame 0" in note and DCD in note and select in note
    expected = mda.Universe(PSF, DCD).select_atoms(select)
    assert result.n_atoms == len(expected)
    analysed = mdio.analyze(DCD, top=PSF, kernel="rgyr", select=select, start=50, stop=51)
    assert by_place(analysed.notes) == [note]


@pytest.mark.parametrize("select", BY_NAME)
def test_others_are_not_told_of(select, tmp_path):
    result = mdio.convert(DCD, tmp_path / "a.zarr", top=PSF, select=select, stop=2)
    assert not by_place(result.plan.notes)
    assert not by_place(mdio.analyze(DCD, top=PSF, kernel="rgyr", select=select, stop=1).notes)


def test_groups_and_fits(tmp_path, capsys):
    command = ["convert", DCD, str(tmp_path / "a.zarr"), "-s", PSF, "--json", "--stop", "2"]
    assert main([*command, "--group", f"near={NEAR}", "--fit", "rot+trans"]) == 0
    assert len(by_place(json.loads(capsys.readouterr()[0])["notes"])) == 1
    fit = ["--fit", "rot+trans", "--fit-select", NEAR, "--force"]
    assert main([*command, *fit, "--select", NEAR]) == 0
    assert len(by_place(json.loads(capsys.readouterr()[0])["notes"])) == 1


def test_analyses_choose_in_the_source(tmp_path):
    """As conversions do: before frames are fitted, which needs the atoms that are chosen."""
    given = {"top": PSF, "kernel": mdio.RMSF(NEAR), "fit": "rot+trans"}
    fitted = mdio.analyze(DCD, **given)
    selection = mdio.Selection(fit="rot+trans")
    mdio.convert(DCD, tmp_path / "a.dcd", top=PSF, select=NEAR, selection=selection)
    np.testing.assert_allclose(
        fitted.values, mdio.analyze(tmp_path / "a.dcd", kernel="rmsf").values, atol=1e-4
    )
    assert len(by_place(fitted.notes)) == 1


def test_of_a_universe_it_is_the_frame_where_it_stands():
    universe = mda.Universe(PSF, DCD)
    universe.trajectory[7]
    result = mdio.analyze(DCD, top=universe, kernel="rgyr", select=NEAR, stop=1)
    assert "frame 7" in by_place(result.notes)[0]
