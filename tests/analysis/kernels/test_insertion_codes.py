"""Chains whose numbers have letters or gaps: a residue's neighbours are those beside it."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.distances import calc_dihedrals

import mdio

ANTIBODY = [("51", "ALA"), ("52", "GLY"), ("52A", "GLY"), ("52B", "VAL"), ("53", "LEU")]
PROTEASE = [("34", "ALA"), ("37", "GLY"), ("37A", "SER"), ("40", "VAL"), ("41", "LEU")]


def chain(path, residues, *, break_after=None):
    """Write a backbone; return its positions, (residues, 4, 3)."""
    rng = np.random.default_rng(8)
    place, atoms, lines = np.zeros(3), [], []
    for number, (resid, name) in enumerate(residues):
        digits = resid.rstrip("AB")
        code = resid[len(digits) :] or " "
        for atom in ("N", "CA", "C", "O"):
            place = place + rng.normal(0, 0.1, 3) + (0.9, 0.7 * (-1) ** len(atoms), 0.3)
            atoms.append(place.round(3))
            if atom == "O":  # off the chain: C and the next N are neighbours
                place = place - (0.5, 0, 0.3)
            lines.append(
                f"ATOM  {len(atoms):5d}  {atom:<3s} {name} A{int(digits):4d}{code}"
                f"   {atoms[-1][0]:8.3f}{atoms[-1][1]:8.3f}{atoms[-1][2]:8.3f}"
                f"  1.00  0.00           {atom[0]}"
            )
        if number == break_after:
            place = place + 20.0
    path.write_text("\n".join([*lines, "END", ""]))
    return np.array(atoms).reshape(-1, 4, 3)


def right(positions):
    """Return phi and psi of all residues but the ends, from neighbours in the chain."""
    n, ca, c = (positions[:, at] for at in range(3))
    phi = calc_dihedrals(c[:-2], n[1:-1], ca[1:-1], c[1:-1])
    psi = calc_dihedrals(n[1:-1], ca[1:-1], c[1:-1], n[2:])
    return np.degrees(np.stack([phi, psi], axis=1)).ravel()


@pytest.mark.parametrize("residues", [ANTIBODY, PROTEASE], ids=["antibody", "protease"])
def test_angles_are_of_neighbours_in_the_chain(tmp_path, residues):
    positions = chain(tmp_path / "a.pdb", residues)
    kernel = mdio.Dihedrals(degrees=True)
    result = mdio.analyze(tmp_path / "a.pdb", kernel=kernel, top=tmp_path / "a.pdb")
    np.testing.assert_allclose(result.values[0], right(positions), atol=0.01)
    inner = [f"A:{name}{number}" for number, name in residues[1:-1]]
    assert list(result.labels) == [f"{angle}:{one}" for one in inner for angle in ("phi", "psi")]


def test_no_angle_reaches_over_a_gap(tmp_path):
    chain(tmp_path / "a.pdb", PROTEASE, break_after=2)
    kernel = mdio.Dihedrals(degrees=True)
    result = mdio.analyze(tmp_path / "a.pdb", kernel=kernel, top=tmp_path / "a.pdb")
    assert list(result.labels) == ["phi:A:GLY37", "psi:A:GLY37"]


def test_the_topology_inside_an_output_has_the_letters_too(tmp_path):
    positions = chain(tmp_path / "a.pdb", ANTIBODY)
    mdio.convert(tmp_path / "a.pdb", tmp_path / "a.zarr", top=tmp_path / "a.pdb")
    result = mdio.analyze(tmp_path / "a.zarr", kernel=mdio.Dihedrals(degrees=True))
    np.testing.assert_allclose(result.values[0], right(positions), atol=0.01)
    assert "phi:A:GLY52A" in result.labels


def test_rows_and_pairs_are_named_with_their_letters(tmp_path):
    chain(tmp_path / "a.pdb", ANTIBODY)
    given = {"top": tmp_path / "a.pdb", "select": "name CA"}
    rows = mdio.analyze(tmp_path / "a.pdb", kernel="rmsf", **given).row_labels
    assert rows == ["A:ALA51:CA", "A:GLY52:CA", "A:GLY52A:CA", "A:VAL52B:CA", "A:LEU53:CA"]
    labels = mdio.analyze(tmp_path / "a.pdb", kernel="pairs", **given).labels
    assert "A:GLY52:CA-A:GLY52A:CA" in labels


def test_other_numbers_are_as_in_mdanalysis(tmp_path):
    chain(tmp_path / "a.pdb", [(str(number), "ALA") for number in range(4, 10)])
    universe = mda.Universe(tmp_path / "a.pdb")
    residues = universe.residues
    phi = [group for group in residues.phi_selections() if group is not None]
    result = mdio.analyze(
        tmp_path / "a.pdb", kernel=mdio.Dihedrals(degrees=True, angles=["phi"]), top=universe
    )
    expected = [group.dihedral.value() for group in phi]
    np.testing.assert_allclose(result.values[0], expected, atol=1e-3)
