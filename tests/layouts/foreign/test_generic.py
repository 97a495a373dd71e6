"""Formats that only MDAnalysis reads, against its readers used directly."""

from __future__ import annotations

import bz2
import re
import subprocess
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests import datafiles
from oracles.versions import MDA_2_11

import mdio
from mdio.core.errors import MdioError, SourceError, UnknownLayoutError
from mdio.layouts.foreign.generic import GenericLayout
from mdio.layouts.registry import open_layout
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

FILES = {
    "XYZ_mini": {},
    "PDB_multiframe": {},
    "GRO_velocity": {},
    "INPCRD": {},
    "XYZ_bz2": {},
    "TRZ": {"n_atoms": 8184},
    "TRJ_bz2": {"n_atoms": 252},
    "LAMMPSDUMP": {"format": "LAMMPSDUMP"},
    "DLP_HISTORY": {"format": "HISTORY"},
}


@cache
def case_of(name: str) -> ReadingCase:
    path = Path(getattr(datafiles, name))
    options = FILES[name]
    return ReadingCase(GenericLayout, path, oracle_from_mdanalysis(None, path, **options), options)


@pytest.mark.parametrize("name", ["XYZ_mini", "PDB_multiframe", "GRO_velocity", "INPCRD", "TRZ"])
class TestFormats(LayoutReadingTests):
    @pytest.fixture
    def case(self, name):
        return case_of(name)


@pytest.mark.parametrize("name", ["TRJ_bz2", "XYZ_bz2", "DLP_HISTORY", "LAMMPSDUMP"])
def test_packed_and_named_formats(name):
    case = case_of(name)
    with case.open() as layout:
        assert layout.info.n_frames == case.oracle.n_frames
        block = layout.read(1, 3, atoms=[5, 2])
    expected = case.oracle.positions[1:3][:, [5, 2]]
    if name == "LAMMPSDUMP":  # scaled: MDAnalysis takes a corner off that is not in them
        corners = re.findall(rb"BOX BOUNDS.*\n(\S+)", bz2.decompress(case.path.read_bytes()))
        expected = expected + np.array(corners[1:3], np.float32)[:, None, None]
    np.testing.assert_allclose(block.positions, expected, atol=1e-5 * (name == "LAMMPSDUMP"))
    # MDAnalysis does not read the steps of HISTORY.
    steps = [11, 21] if name == "DLP_HISTORY" else case.oracle.step[1:3]
    np.testing.assert_array_equal(block.step, steps)


def test_the_number_of_atoms_is_asked_for(tmp_path):
    with pytest.raises(SourceError, match=r"give a topology with -s.*n_atoms="):
        GenericLayout(datafiles.TRJ_bz2).info  # noqa: B018


def test_frames_of_other_sizes_are_named(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_text("2\n\nC 0 0 0\nC 1 1 1\n1\n\nC 0 0 0\n")
    with pytest.raises(SourceError, match=r"frame 1 \(byte 19\) has 1 atom, the first has 2"):
        _ = GenericLayout(path).info


@pytest.mark.parametrize("suffix", [".xtc", ".trr", ".dcd", ".ncdf", ".nc"])
def test_misnamed_native_files_are_told(tmp_path, suffix):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"no trajectory at all")
    assert GenericLayout.sniff(path)
    with pytest.raises(SourceError, match=r"begins with b'no traje', which is not how"):
        GenericLayout(path).info  # noqa: B018


@pytest.mark.parametrize("suffix", [".xyz", ".pdb", ".gro", ".trz", ".inpcrd", ".lammpsdump"])
def test_damage_is_never_more_than_an_error(tmp_path, suffix):
    random = np.random.default_rng(2)
    path = tmp_path / f"damaged{suffix}"
    for raw in (b"", b"\n" * 5, b"99999999999\n\n", random.bytes(3000), b"3\n\nC 0 0 0\n"):
        path.write_bytes(raw)
        try:
            with GenericLayout(path, n_atoms=3) as layout:
                layout.read(0, layout.info.n_frames)
        except MdioError as error:
            assert f"damaged{suffix}" in str(error)
            assert "\n" not in str(error)


def test_what_is_no_trajectory_is_not_opened(tmp_path):
    for name in ("a.json", "b", "c.psf", ".xyz"):
        path = tmp_path / name
        path.write_text("{}")
        assert not GenericLayout.sniff(path)
        with pytest.raises(UnknownLayoutError):
            open_layout(path)
    assert not GenericLayout.sniff(tmp_path)


@pytest.mark.parametrize("packing", ["gzip", "bz2", "backports.zstd"])
def test_packed_files_are_known_whatever_they_are_called(tmp_path, packing):
    path = tmp_path / "trajectory"
    has_zstd = sys.version_info >= (3, 14)
    known = "compression.zstd" if has_zstd and packing == "backports.zstd" else packing
    path.write_bytes(import_module(known).compress(Path(datafiles.XYZ_mini).read_bytes()))
    with open_layout(path) as found, open_layout(datafiles.XYZ_mini) as plain:
        assert np.array_equal(found.read(0, 1).positions, plain.read(0, 1).positions)


@pytest.mark.parametrize("name", ["XTC", "DCD", "NCDF", "TRR", "GSD", "TNG_traj", "H5MD_xvf"])
def test_packed_files_that_are_read_by_position_are_to_be_unpacked(tmp_path, name):
    source = Path(getattr(datafiles, name))
    path = tmp_path / f"{source.name}.bz2"
    path.write_bytes(bz2.compress(source.read_bytes()[:100_000]))
    said = rf"cannot be read; decompress it first \(bunzip2 {path.name}"
    with pytest.raises(SourceError, match=said), open_layout(path) as layout:
        _ = layout.info


def test_units_that_are_taken_are_told():
    with open_layout(datafiles.LAMMPSDUMP_image_vf, length_unit="nm") as layout:
        told = " ".join(layout.notes)
    for unit in (
        "lengths: assumed to be nm",
        "velocities: assumed to be nm/ps",
        "forces: assumed to be kJ/",
    ):
        assert f"names no unit of {unit}" in told
    with open_layout(datafiles.LAMMPSDUMP_additional_columns) as layout:
        assert "velocities" not in " ".join(layout.notes)


@pytest.mark.parametrize("name", ["DLP_HISTORY", "DLP_HISTORY_classic", "DLP_HISTORY_minimal"])
def test_histories_of_dl_poly_are_known_whatever_they_are_called(tmp_path, name):
    import MDAnalysis as mda

    path = tmp_path / "run1"
    path.write_bytes(Path(getattr(datafiles, name)).read_bytes())
    with open_layout(path) as found:
        reader = mda.coordinates.DLPoly.HistoryReader(str(path))
        assert found.info.n_frames == reader.n_frames > 0
        for ts in reader:
            assert np.array_equal(found.read(ts.frame, ts.frame + 1).positions[0], ts.positions)


def test_every_format_of_mdanalysis_is_known():
    import MDAnalysis as mda

    from mdio.layouts.foreign import generic

    no_files = {"CHAIN", "CHEMFILES", "IMD", "MEMORY", "PARMED", "RDKIT", "TPR"}
    theirs = {
        name.removesuffix(".GZ")
        for name, reader in mda._READERS.items()
        if reader.__module__.startswith("MDAnalysis.") and not name.startswith("OPENMM")
    }
    newest = set() if MDA_2_11 else {"CIF", "MMCIF"}
    assert theirs - no_files == generic.FORMATS - newest


def test_mdanalysis_is_imported_only_when_a_file_is_opened(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    code = (
        "import sys; from pathlib import Path;"
        "from mdio.layouts.foreign.generic import GenericLayout;"
        f"assert GenericLayout.sniff(Path({datafiles.XYZ_mini!r}));"
        f"assert not GenericLayout.sniff(Path({str(tmp_path / 'a.json')!r}));"
        "assert 'MDAnalysis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_readers_keep_their_warnings_to_themselves():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GenericLayout(datafiles.XYZ_mini).read(0, 1)


def test_a_format_of_another_package_is_known_once_it_is_imported(tmp_path):
    import MDAnalysis as mda

    path = tmp_path / "a.mdiotest"
    path.write_text(Path(datafiles.XYZ_mini).read_text())
    from MDAnalysis.coordinates.XYZ import XYZReader

    class Other(XYZReader):
        format = "MDIOTEST"

    try:
        assert GenericLayout.sniff(path)
        with open_layout(path) as layout:
            assert (layout.name, layout.info.n_atoms) == ("generic", 3)
    finally:
        del mda._READERS["MDIOTEST"]


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments"])
def test_outputs_tell_what_of_their_source_was_made_up(tmp_path, name):
    """So do those that are made from them, and those that are continued."""
    said = [
        "times are made up, since XYZ holds none: frames are 1 ps apart without --timestep",
        "XYZ names no unit of lengths: assumed to be angstrom without --length-unit",
    ]
    first, second, out = datafiles.XYZ_mini, tmp_path / "b.xyz", tmp_path / name
    mdio.convert(first, out, precision=None)
    mdio.convert(out, again := tmp_path / "again.h5md")
    for path in (first, out, again):
        with mdio.open(path) as layout:
            assert list(layout.info.made_up) == said
            assert layout.notes == tuple(f"{path}: {one}" for one in said)
    text = Path(first).read_text()
    second.write_text(text)
    mdio.append([second], out, overlap="keep-all")
    with mdio.open(out) as layout:
        assert list(layout.info.made_up) == said
    with mdio.open([out, again], overlap="keep-all") as layout:
        assert list(layout.info.made_up) == said
        told = [note for note in layout.with_metadata().notes if "made up" in note]
        assert len(told) == 1
    with mdio.open(datafiles.XTC) as layout:
        assert layout.info.made_up == layout.notes == ()


def test_times_and_steps_of_cp2k(tmp_path):
    """The comments that CP2K 2023.1 wrote for steps of 2 fs, every fifth of them."""
    path = tmp_path / "md-pos-1.xyz"
    comments = [
        " i =        0, time =        0.000, E =        -0.1672748717",
        " i =        5, time =       10.000, E =        -0.1670503535",
        " i =       10, time =       20.000, E =        -0.1664746041",
    ]
    path.write_text("".join(f"       1\n{comment}\n Ar 0.1 0.2 0.3\n" for comment in comments))
    with open_layout(path) as layout:
        block = layout.read(0, 3)
        assert not any("times" in note for note in layout.info.flaws.made_up)
    assert block.time.tolist() == [0, 0.01, 0.02] and block.step.tolist() == [0, 5, 10]
    with open_layout(path, dt=0.5) as layout:  # as in the manifests of older outputs
        block = layout.read(0, 3)
    assert block.time.tolist() == [0, 0.5, 1] and block.step.tolist() == [0, 1, 2]
    optimised = "".join(f"1\n i = {i}, E = -0.1\n Ar 0.1 0.2 0.3\n" for i in range(2))
    path.write_text(optimised)
    with open_layout(path) as layout:
        assert layout.read(0, 2).time.tolist() == [0, 1]


IPI_CELL = "# CELL(abcABC):   37.79452    39.68425    41.57397    90.00000    80.00000    90.00000"


@pytest.mark.parametrize(
    ("unit", "factor"), [("atomic_unit", 0.529177210903), ("angstrom", 1), ("nanometer", 10)]
)
@pytest.mark.parametrize("contents", ["positions", "x_centroid"])
def test_units_and_cells_of_ipi(tmp_path, contents, unit, factor):
    """The comments of i-PI 3; its positions are in bohr unless it is told otherwise."""
    path, frames = tmp_path / "a.xyz", ""
    for step in (0, 2):
        title = f"  Step:  {step:10d}  Bead:       0 {contents}{{{unit}}}  cell{{atomic_unit}}"
        frames += f"1\n{IPI_CELL}{title}\n       O  1.88973e+00  3.77945e+00  {step}.0e+00\n"
    path.write_text(frames)
    with mdio.open(path) as layout:
        block = layout.read(0, 2)
        assert not any("no unit" in note for note in layout.notes)
    assert block.step.tolist() == [0, 2]
    np.testing.assert_allclose(block.box, [[20, 21, 22, 90, 80, 90]] * 2, atol=1e-5)
    first = [1.88973 * factor, 3.77945 * factor]
    np.testing.assert_allclose(block.positions[:, 0, :2], [first] * 2, rtol=1e-6)
    assert block.positions[:, 0, 2].tolist() == pytest.approx([0, 2 * factor])
    with pytest.raises(MdioError, match=r"a\.xyz"):
        mdio.open(path, length_unit="nm").info  # noqa: B018 - which the file names
    path.write_text(frames.replace(unit, "furlong", 1))
    with pytest.raises(MdioError, match=r"a.xyz.*furlong"):
        mdio.open(path).read(0, 1)


@pytest.mark.parametrize(
    ("title", "step"),
    [
        ("cell{atomic_unit}  Traj: positions{angstrom} Step:         20  Bead:       0", 20),
        ("Traj: positions{angstrom} Step:         20  Bead:       0 cell{atomic_unit}", 20),
        ("positions{angstrom}  cell{atomic_unit}", 0),
    ],
)
def test_comments_of_earlier_versions_of_ipi(tmp_path, title, step):
    (tmp_path / "a.xyz").write_text(f"1\n{IPI_CELL} {title}\n O  1.0  2.0  3.0\n")
    with mdio.open(tmp_path / "a.xyz") as layout:
        block = layout.read(0, 1)
        assert not any("no unit" in note for note in layout.notes)
    assert block.step.tolist() == [step] and block.positions.tolist() == [[[1, 2, 3]]]
    np.testing.assert_allclose(block.box, [[20, 21, 22, 90, 80, 90]], atol=1e-5)


@pytest.mark.parametrize(("unit", "factor"), [("atomic_unit", 0.529177210903), ("angstrom", 1)])
def test_units_of_ipi_in_pdb(tmp_path, unit, factor):
    """Its examples have PDB in bohr; TITLE names the units."""
    frames = ""
    for step in (0, 2):
        title = f"Step:  {step:10d}  Bead:       0 x_centroid{{{unit}}}  cell{{{unit}}}"
        frames += f"TITLE   {title:>70}\n"
        frames += "CRYST1   20.000   21.000   22.000  90.00  80.00  90.00 P 1           1\n"
        frames += (
            "ATOM      1    O   1     1       1.000   2.000   3.000  0.00  0.00            0\n"
        )
        frames += "END\n"
    (tmp_path / "a.pdb").write_text(frames)
    block = mdio.open(tmp_path / "a.pdb").read(0, 2)
    np.testing.assert_allclose(block.positions[:, 0], [[factor, 2 * factor, 3 * factor]] * 2)
    np.testing.assert_allclose(block.box[:, :3], factor * np.array([[20, 21, 22]] * 2))


@pytest.mark.parametrize("n_frames", [1, 3])
def test_one_cell_of_all_frames_is_told(tmp_path, n_frames):
    """As OpenMM's PDBReporter writes it, also at constant pressure."""
    text = "CRYST1   20.000   21.000   22.000  90.00  80.00  90.00 P 1           1\n"
    for number in range(n_frames):
        text += f"MODEL {number + 1:8d}\n"
        text += "ATOM      1  AR  AR  A   1       1.000   2.000   3.000  1.00  0.00          AR\n"
        text += "ENDMDL\n"
    (tmp_path / "a.pdb").write_text(text + "END\n")
    with mdio.open(tmp_path / "a.pdb") as layout:
        assert ("before all 3 frames and is read for each" in " ".join(layout.notes)) == (
            n_frames == 3
        )
        assert layout.read(0, n_frames).box[:, 0].tolist() == [20] * n_frames


@pytest.mark.parametrize(("more", "is_told"), [("", False), ("  0.5  1.0  2.0  3.0", True)])
def test_columns_without_names_are_told(tmp_path, more, is_told):
    """DFTB+ writes charges and velocities behind the coordinates of geo_end.xyz."""
    (tmp_path / "a.xyz").write_text(f"1\nMD iter: 0\nO  1.0  2.0  3.0{more}\n" * 2)
    with mdio.open(tmp_path / "a.xyz") as layout:
        assert ("behind the coordinates" in " ".join(layout.notes)) == is_told
        assert layout.read(0, 2).positions[1].tolist() == [[1, 2, 3]]


def test_times_without_a_unit_are_told(tmp_path):
    """GPUMD's are in fs, those of LAMMPS in its own unit."""
    (tmp_path / "a.xyz").write_text("1\nTime=10.0 Properties=species:S:1:pos:R:3\nO 1.0 2.0 3.0\n")
    with mdio.open(tmp_path / "a.xyz") as layout:
        assert "times in comments are not read" in " ".join(layout.notes)


def test_xyz_with_the_suffix_of_amber(tmp_path):
    """The name that xtb gives its trajectories."""
    (tmp_path / "xtb.trj").write_text("1\n energy: -5.07 gnorm: 0.002\nO 1.0 2.0 3.0\n")
    assert mdio.open(tmp_path / "xtb.trj").read(0, 1).positions.tolist() == [[[1, 2, 3]]]


def test_centroids_of_ipi_in_extended_xyz(tmp_path):
    """ASE, through which it writes them, adds a column of positions that are all 0."""
    comment = 'Lattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3:x_centroid:R:3'
    (tmp_path / "a.xyz").write_text(f"1\n{comment}\nO 0.0 0.0 0.0 1.0 2.0 3.0\n")
    assert mdio.open(tmp_path / "a.xyz").read(0, 1).positions.tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize("damaged", ["--------", "3.9.6842", "1e99"])
def test_a_damaged_cell_of_ipi_is_told(tmp_path, damaged):
    title = "  Step:           0  Bead:       0 positions{angstrom}  cell{angstrom}"
    cell = IPI_CELL.replace("39.68425", damaged)
    (tmp_path / "a.xyz").write_text(f"1\n{cell}{title}\n O  1.0e-05  2.0e-05  3.0e-05\n")
    with pytest.raises(MdioError, match=r"a\.xyz.*CELL '37.*, expected six numbers"):
        mdio.open(tmp_path / "a.xyz").read(0, 1)


def test_positions_and_velocities_of_ipi_in_a_file_are_refused(tmp_path):
    title = "  Step:           0  Bead:       0 positions{angstrom}  cell{angstrom}"
    frame = f"1\n{IPI_CELL}{title}\n O  1.0e-05  2.0e-05  3.0e-05\n"
    (tmp_path / "a.xyz").write_text(frame + frame.replace("positions", "velocities"))
    with pytest.raises(SourceError, match=r"units that it does not name, the first in .* angstrom"):
        mdio.open(tmp_path / "a.xyz").info  # noqa: B018


def test_velocities_of_ipi_are_told(tmp_path):
    title = "  Step:           0  Bead:       0 velocities{atomic_unit}  cell{atomic_unit}"
    (tmp_path / "a.xyz").write_text(f"1\n{IPI_CELL}{title}\n O  1.0e-05  2.0e-05  3.0e-05\n")
    with mdio.open(tmp_path / "a.xyz") as layout:
        assert "velocities in atomic_unit, as i-PI says" in " ".join(layout.notes)


@pytest.mark.parametrize(
    ("comment", "is_told"),
    [
        (" 3.000000 4.000000 5.000000", True),
        (" 3.000 0.000 0.000 -1.000 4.000 0.000 0.000 0.500 5.000", True),
        ("3.000 4.000 5.000 6.000", False),
        ("frame 3.000 4.000 5.000", False),
        ("3 4 5", False),
    ],
)
def test_boxes_and_units_of_plumed_are_told(tmp_path, comment, is_told):
    """DUMPATOMS writes XYZ in PLUMED's own unit, nm, and the box as a comment."""
    (tmp_path / "a.xyz").write_text(f"1\n{comment}\nX 0.1 0.2 0.3\n")
    with mdio.open(tmp_path / "a.xyz") as layout:
        assert ("lengths of PLUMED are in nm" in " ".join(layout.notes)) == is_told


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("md-vel-1.xyz", "velocities, as its name says and CP2K names files, in bohr per atomic"),
        ("md-frc-1.xyz", "forces, as its name says and CP2K names files, in hartree/bohr"),
        ("md-pos-1.xyz", None),
    ],
)
def test_files_of_cp2k_that_hold_no_positions(tmp_path, name, contents):
    path, out = tmp_path / name, tmp_path / "a.zarr"
    path.write_text("1\n i = 0, time = 0.000, E = -0.1\n Ar 0.1 0.2 0.3\n")
    mdio.convert(path, out)
    for file in (path, out):  # outputs keep it
        with mdio.open(file) as layout:
            notes = " ".join(layout.notes)
            assert contents in notes if contents else "CP2K" not in notes
    path.write_text("1\nargon\n Ar 0.1 0.2 0.3\n")  # of another program
    with mdio.open(path) as layout:
        assert not any("CP2K" in note for note in layout.notes)


@pytest.mark.parametrize(
    "name", ["PDB_multiframe", "mol2_molecules", "GRO", "XYZ_mini", "PQR_icodes"]
)
def test_what_files_say_of_their_atoms(name, tmp_path):
    import MDAnalysis as mda

    path = Path(getattr(datafiles, name))
    made = tmp_path / "made.zarr"
    mdio.convert(path, made, stop=1)
    known, found = (mda.Universe(str(one), to_guess=()) for one in (path, made))
    for attribute in ("names", "types", "elements", "resids", "resnames", "segids", "charges"):
        told = [list(getattr(one.atoms, attribute, ())) for one in (known, found)]
        assert told[0] == told[1], attribute
    select = f"name {known.atoms[0].name}"
    chosen = mdio.convert(path, tmp_path / "few.zarr", stop=1, select=select)
    assert chosen.n_atoms == len(known.select_atoms(select)) > 0


def test_a_file_whose_atoms_cannot_be_told_has_no_topology(tmp_path):
    assert mdio.open(datafiles.TRZ, n_atoms=8184).topology() is None
    pieces = Path(datafiles.mol2_molecule).read_text().partition("@<TRIPOS>BOND")
    damaged = tmp_path / "a.mol2"
    damaged.write_text(pieces[0] + pieces[1] + "\n" + " 1 2\n" * 51)
    assert mdio.open(damaged).read(0, 1).n_atoms == 49
    assert mdio.open(damaged).topology() is None
