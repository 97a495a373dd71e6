"""One frame as a structure file, read by MDAnalysis' own readers of GRO and PDB."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, PSF, TPR, TRR, XTC
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.errors import OutputError, PlanError

HALF_STEP = {"gro": 0.005, "pdb": 0.0005}
ROUNDING = 1e-4
"""Of float32 at these coordinates: some 100 angstrom."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("suffix", "select"),
    [("gro", None), ("gro", "protein"), ("pdb", "protein"), ("pdb", "resid 9990:10010")],
)
def test_is_the_frame(tmp_path, suffix, select):
    out = tmp_path / f"frame.{suffix}"
    done = mdio.convert(TRR, out, top=TPR, select=select, start=4, stop=5)
    source = mda.Universe(TPR, TRR)
    ts = source.trajectory[4]
    chosen = source.select_atoms(select or "all")
    read = mda.Universe(out)
    assert (done.n_frames, done.n_atoms, done.layout) == (1, len(chosen), suffix)
    assert done.nbytes_out == out.stat().st_size <= done.plan.nbytes
    assert ("pdb holds no velocities: left out" in done.plan.notes) == (suffix == "pdb")
    assert any("rounded" in note for note in done.plan.notes)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    off = np.abs(read.atoms.positions - chosen.positions).max()
    assert off <= HALF_STEP[suffix] + ROUNDING
    np.testing.assert_allclose(read.dimensions, ts.dimensions, atol=0.01)
    for name in ("names", "resnames", "resids"):
        np.testing.assert_array_equal(getattr(read.atoms, name), getattr(chosen, name))
    if suffix == "gro":
        np.testing.assert_allclose(read.atoms.velocities, chosen.velocities, atol=6e-4)


def test_names_from_a_topology_inside_and_frames_from_the_end(tmp_path):
    mdio.convert(XTC, tmp_path / "md.zarr", top=GRO)
    assert (
        main(["convert", str(tmp_path / "md.zarr"), str(tmp_path / "last.gro"), "-b", "900"]) == 0
    )
    read, source = mda.Universe(tmp_path / "last.gro"), mda.Universe(GRO, XTC)
    ts = source.trajectory[-1]
    np.testing.assert_allclose(read.atoms.positions, ts.positions, atol=0.005 + ROUNDING)
    np.testing.assert_array_equal(read.atoms.names, source.atoms.names)
    assert mdio.open(tmp_path / "last.gro").info.time_first_ps == pytest.approx(ts.time)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["gro", "pdb"])
def test_the_title_has_time_and_step(tmp_path, suffix):
    out = tmp_path / f"one.{suffix}"
    mdio.convert(XTC, out, top=GRO, select="resid 1:3", start=4, stop=5)
    step = mdio.open(XTC).read(4, 5).step[0]
    title = next(line for line in out.read_text().splitlines() if "t= " in line)
    assert title.endswith(f"t= 400.00003 step= {step}") and out.read_text().count("t= ") == 1


@pytest.mark.filterwarnings("ignore")
def test_names_that_are_cut_are_told(tmp_path):
    universe = mda.Universe.empty(
        4, n_residues=2, n_segments=2, atom_resindex=[0, 0, 1, 1], residue_segindex=[0, 1]
    )
    universe.add_TopologyAttr("names", ["C1", "OXYG1", "OXYGEN2", "HA"])
    universe.add_TopologyAttr("resnames", ["LIG", "LIG"])
    universe.add_TopologyAttr("segids", ["CHAIN_A", "CHAIN_B"])
    universe.load_new(np.ones((1, 4, 3), np.float32))
    universe.atoms.write(str(tmp_path / "a.xtc"))

    def notes(suffix):
        done = mdio.convert(tmp_path / "a.xtc", tmp_path / f"frame.{suffix}", top=universe)
        return [note for note in done.notes if "letters" in note]

    name, segment = notes("pdb")
    assert "4 letters" in name and "2 names" in name and "OXYG1" in name
    assert "CHAIN_A and CHAIN_B become CHAI" in segment
    (name,) = notes("gro")
    assert "5 letters" in name and "1 name " in name and "OXYGEN2" in name


@pytest.mark.filterwarnings("ignore")
def test_numbers_of_residues_that_are_cut_are_told(tmp_path):
    universe = mda.Universe.empty(3, n_residues=3, atom_resindex=[0, 1, 2])
    universe.add_TopologyAttr("names", ["OW"] * 3)
    universe.add_TopologyAttr("resids", [943, 10943, 123456])
    universe.load_new(np.ones((1, 3, 3), np.float32))
    universe.atoms.write(str(tmp_path / "a.xtc"))

    def notes(name, **options):
        done = mdio.convert(tmp_path / "a.xtc", tmp_path / name, top=universe, **options)
        return [note for note in done.notes if "digits" in note]

    (note,) = notes("a.pdb")
    assert "4 digits" in note and "10943 becomes 943" in note and "the highest is 123456" in note
    assert mda.Universe(tmp_path / "a.pdb").residues.resids.tolist() == [943, 3456]  # two are one
    (note,) = notes("a.gro")
    assert "5 digits" in note and "123456 becomes 23456" in note
    (note,) = notes("b.dcd", select=[0, 1])  # in the topology beside it
    assert "the matching topology" in note and "10943 becomes 943" in note
    assert not notes("c.dcd", select=[0]) and not notes("d.zarr", select=[0, 1])


def test_molecules_made_whole(tmp_path):
    options = as_options({"pbc": "whole"}) | {
        "top": TPR,
        "select": "protein",
        "start": 2,
        "stop": 3,
    }
    mdio.convert(XTC, tmp_path / "whole.gro", **options)
    mdio.convert(XTC, tmp_path / "whole.zarr", **options)
    with mdio.open(tmp_path / "whole.zarr") as whole:
        positions = whole.read(0, 1).positions[0]
    read = mda.Universe(tmp_path / "whole.gro").atoms.positions
    np.testing.assert_allclose(read, positions, atol=0.005 + ROUNDING)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("x.gro", {"top": PSF}, r"x\.gro: a structure file holds one frame, and 98 are chosen"),
        ("x.xyz", {"stop": 1}, r"x\.xyz: .*\.gro \(one frame\), \.pdb \(one frame\)"),
        ("x.pdb", {"stop": 1}, r"x\.pdb: .* give a topology with -s/--top"),
        ("x.gro", {"top": PSF, "stop": 1, "precision": 0.1}, "--precision is not for"),
        ("x.gro", {"top": PSF, "stop": 1, "groups": {"ca": "name CA"}}, "--group is not for"),
        ("x.gro", {"top": PSF, "stop": 1, "chunk_frames": 2}, "--chunk-frames is not for"),
    ],
)
def test_refused(tmp_path, adk, name, options, match):
    with pytest.raises(PlanError, match=match):
        mdio.convert(adk["dcd"], tmp_path / name, **as_options(options))
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path, adk):
    out = tmp_path / "x.gro"
    out.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["dcd"], out, top=PSF, stop=1)
    assert out.read_text() == "mine"
    mdio.convert(adk["dcd"], out, top=PSF, stop=1, force=True)
    assert len(mda.Universe(out).atoms) == 3341


def test_coordinates_beyond_the_columns(tmp_path, adk):
    with mda.Writer(str(tmp_path / "far.xtc"), 3341) as writer:
        universe = mda.Universe(PSF, adk["dcd"])
        universe.atoms.translate([20000, 0, 0])
        writer.write(universe.atoms)
    with pytest.raises(OutputError, match=r"x\.pdb: MDAnalysis cannot write this frame as PDB"):
        mdio.convert(tmp_path / "far.xtc", tmp_path / "x.pdb", top=PSF)
    assert not list(tmp_path.glob("*x.pdb*"))


def test_verify_is_refused(tmp_path, adk, capsys):
    command = ["convert", str(adk["dcd"]), str(tmp_path / "x.gro"), "-s", str(PSF), "--stop", "1"]
    assert main([*command, "--verify"]) == 2
    assert "--verify is not for a structure file" in capsys.readouterr().err
