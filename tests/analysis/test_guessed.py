"""What topologies lack is guessed as MDAnalysis does, and told; it goes into no output."""

import json

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.analysis.kernels.geometry import RadiusOfGyration
from mdio.cli.main import main
from mdio.core.errors import PlanError

pytestmark = pytest.mark.filterwarnings("ignore:Unknown masses:PendingDeprecationWarning")
NAMES = ["N", "H", "CA", "HA", "CB", "HB1", "C", "O", "OW", "HW1", "HW2", "QX"]


@pytest.fixture
def system(tmp_path):
    """A residue, a water and something unknown as GRO, which holds no masses; three frames."""
    frames = np.random.default_rng(0).random((3, len(NAMES), 3)).astype("f4") * 20
    lines = []
    for at, (name, row) in enumerate(zip(NAMES, frames[0] / 10, strict=True)):
        number, residue = (1, "ALA") if at < 8 else (2, "SOL") if at < 11 else (3, "XXX")
        place = "".join(f"{x:8.3f}" for x in row)
        lines.append(f"{number:5d}{residue:<5s}{name:>5s}{at + 1:5d}{place}")
    text = "\n".join(["test", str(len(NAMES)), *lines, "   2.00000   2.00000   2.00000", ""])
    (tmp_path / "a.gro").write_text(text)
    universe = mda.Universe(str(tmp_path / "a.gro"))
    universe.load_new(frames, dimensions=np.tile(np.float32([20, 20, 20, 90, 90, 90]), (3, 1)))
    universe.atoms.write(str(tmp_path / "a.xtc"), frames="all")
    return tmp_path / "a.gro", tmp_path / "a.xtc"


def test_masses_are_guessed_with_a_note(system, capsys):
    top, path = system
    assert main(["analyze", "rgyr", str(path), "-s", str(top), "--json"]) == 0
    notes = json.loads(capsys.readouterr()[0])["notes"]
    (note,) = [note for note in notes if "masses" in note]
    assert "guessed from names" in note and "--weights none" in note
    assert "1 of 12 atoms weigh 0 (QX)" in note
    universe = mda.Universe(str(top), str(path))
    expected = [universe.atoms.radius_of_gyration() for _ in universe.trajectory]
    result = mdio.analyze(path, top=top, kernel="rgyr")
    np.testing.assert_allclose(result.values, expected, rtol=1e-5)
    result = mdio.analyze(path, top=top, kernel=mdio.RMSD(weights="mass"))
    assert any("guessed from names" in note for note in result.notes)
    plain = mdio.analyze(path, top=top, kernel=mdio.RMSD())
    assert not any("guessed" in note for note in plain.notes)


def test_what_masses_are_guessed_from_is_named(system):
    """MDAnalysis takes elements and types of the topology before it takes names."""
    top, path = system
    universe = mda.Universe(str(top), to_guess=())
    universe.add_TopologyAttr("types", [*"CN", *["O"] * (len(NAMES) - 2)])
    for source, said in (("types", "types (C, N, O)"), ("elements", "elements (H)")):
        if source == "elements":
            universe.add_TopologyAttr("elements", ["H"] * len(NAMES))
        (note,) = [
            note
            for note in mdio.analyze(path, top=universe, kernel="rgyr").notes
            if "masses" in note
        ]
        assert f"guessed from {said}" in note


def test_masses_of_the_topology_need_no_note(adk):
    result = mdio.analyze(adk["dcd"], top=adk["psf"], kernel="rgyr", select="resid 1:5")
    assert not any("guessed" in note for note in result.notes)


@pytest.mark.parametrize(
    "selection", ["protein and not type H", "prop mass > 2", "type C or name O"]
)
@pytest.mark.parametrize("out", [None, "out.zarr", "out.h5md"])
def test_selections_by_type_and_mass(system, tmp_path, selection, out):
    top, path = system
    expected = mda.Universe(str(top)).select_atoms(selection).indices
    source, given = path, {"top": top}
    if out is not None:
        source, given = tmp_path / out, {}
        mdio.convert(path, source, top=top)
    result = mdio.analyze(source, kernel="rmsf", select=selection, **given)
    assert len(result.values) == len(expected)
    assert any("guessed from names" in note for note in result.notes)
    made = mdio.convert(source, tmp_path / "some.zarr", groups={"heavy": selection}, **given)
    assert any("guessed from names" in note for note in made.plan.notes)
    with mdio.open(tmp_path / "some.zarr") as layout:
        assert layout.info.groups["heavy"] == len(expected)
        assert not {"masses", "types"} & set(layout.topology().columns)


def test_what_cannot_be_guessed_is_refused(system):
    top, path = system
    with pytest.raises(
        PlanError, match=r"cannot select 'prop charge > 0' .* give a topology file that has it"
    ):
        mdio.analyze(path, top=top, kernel="rmsf", select="prop charge > 0")


def test_masses_that_a_parser_makes_up_are_none(tmp_path):
    """MDAnalysis' parser of LAMMPS dumps gives atoms 1.0 u where there are only types."""
    for columns, has_masses in (("", False), (" mass", True), (" element", True)):
        values = {"": ["", "", ""], " mass": [" 16", " 1", " 1"], " element": [" O", " H", " H"]}
        rows = [
            f"{atom + 1} {atom} {atom}.5 1 2{value}" for atom, value in enumerate(values[columns])
        ]
        box = ["ITEM: BOX BOUNDS pp pp pp", "0 10", "0 10", "0 10"]
        head = ["ITEM: TIMESTEP", "0", "ITEM: NUMBER OF ATOMS", "3", *box]
        path, out = tmp_path / "a.lammpsdump", tmp_path / "a.zarr"
        path.write_text("\n".join([*head, f"ITEM: ATOMS id type x y z{columns}", *rows, ""]))
        mdio.convert(path, out, force=True)
        with mdio.open(out) as layout:
            masses = layout.topology().numbers("masses")
        assert (masses is not None) == has_masses
        for source in (
            {"trajectory": path},
            {"trajectory": path, "top": path},
            {"trajectory": out},
        ):
            if has_masses:
                by_mass = mdio.analyze(kernel="rgyr", **source)
                equal = mdio.analyze(kernel=RadiusOfGyration(weights=None), **source)
                assert not np.allclose(by_mass.values, equal.values, rtol=0.01)
            else:
                with pytest.raises(PlanError, match="no masses"):
                    mdio.analyze(kernel="rgyr", **source)
