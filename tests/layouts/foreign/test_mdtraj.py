"""mdtraj's HDF5, and formats that are known by how they begin."""

import gzip
import json
import warnings

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests import datafiles
from numpy.testing import assert_array_equal
from suites.files_of_others import F, N, write_mdtraj

import mdio
from mdio.cli.main import main
from mdio.core.errors import SourceError


@pytest.mark.parametrize("creation", [{}, {"chunks": (3, N, 3), "compression": "gzip"}])
def test_blocks_of_mdtraj(tmp_path, creation):
    x, v, lengths = write_mdtraj(tmp_path / "md.h5", **creation)
    with mdio.open(tmp_path / "md.h5") as layout:
        assert (layout.info.layout, layout.info.n_frames, layout.info.dt_ps) == ("mdtraj", F, 2)
        block = layout.read(2, 9)
        assert_array_equal(block.positions, x[2:9] * np.float32(10))
        assert_array_equal(block.velocities, v[2:9] * np.float32(10))
        assert_array_equal(block.box[:, :3], lengths[2:9] * np.float32(10))
        assert_array_equal(block.time, np.arange(2, 9) * 2)
        part = layout.read(1, 4, atoms=[5, 0])
        assert_array_equal(part.positions, x[1:4, [5, 0]] * np.float32(10))
    out = tmp_path / "o.zarr"
    mdio.convert(tmp_path / "md.h5", out, workers=2, groups={"o": "name OW and resid 8"})
    assert mdio.verify(out, against=tmp_path / "md.h5").ok
    u = mda.Universe(str(out))
    assert (u.atoms.names.tolist()[:3], len(u.bonds)) == (["OW", "H1", "H2"], 4)
    assert mdio.open(out).info.groups == {"o": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f["coordinates"].attrs.update(units="ells"), "expected nanometers"),
        (lambda f: (f.pop("time"), f.create_dataset("time", (3,), "f4"))[0], "time has shape"),
        (
            lambda f: (f.pop("velocities"), f.create_dataset("velocities", (F, 2, 3), "f4")),
            "velocities",
        ),
        (lambda f: f.pop("cell_angles") and None, "cell_lengths alone"),
        (lambda f: big(f), "claims"),
    ],
)
def test_files_of_mdtraj_that_are_none(tmp_path, change, says):
    write_mdtraj(tmp_path / "md.h5")
    with h5py.File(tmp_path / "md.h5", "r+") as file:
        change(file)
    with pytest.raises(SourceError, match=rf"md\.h5: .*{says}"):
        _ = mdio.open(tmp_path / "md.h5").info


def test_cells_without_lengths_are_none(tmp_path):
    write_mdtraj(tmp_path / "md.h5")
    with h5py.File(tmp_path / "md.h5", "r+") as file:
        file["cell_lengths"][:2] = 0
    with mdio.open(tmp_path / "md.h5") as layout:
        assert not layout.info.has_box
        assert layout.read(0, 3).box.any(axis=1).tolist() == [False, False, True]


def big(file):
    del file["coordinates"]
    file.create_dataset("coordinates", (10**9, 10**6, 3), "f4", chunks=(1, 1000, 3))


def test_a_topology_of_other_atoms(tmp_path):
    write_mdtraj(tmp_path / "md.h5")
    with h5py.File(tmp_path / "md.h5", "r+") as file:
        del file["topology"]
        file["topology"] = np.array([b'{"chains": []}'])
    with pytest.raises(SourceError, match=r"md\.h5: its topology .*fewer atoms"):
        mdio.open(tmp_path / "md.h5").topology()


FILES = {
    "LAMMPSDUMP": datafiles.LAMMPSDUMP_chain1,
    "XYZ": datafiles.XYZ_mini,
    "PDB": datafiles.PDB_multiframe,
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_formats_are_known_by_how_files_begin(tmp_path, kind, packed):
    path = tmp_path / ("odd.out.gz" if packed else "odd.out")
    with open(FILES[kind], "rb") as file:
        data = file.read()
    path.write_bytes(gzip.compress(data) if packed else data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = mda.coordinates.core.get_reader_for(FILES[kind], format=kind)(FILES[kind])
    with mdio.open(path) as layout:
        assert (layout.info.n_frames, layout.info.n_atoms) == (expected.n_frames, expected.n_atoms)
        last = expected.n_frames - 1
        assert_array_equal(layout.read(last, last + 1).positions[0], expected[last].positions)


def test_what_a_format_does_not_hold_is_said(tmp_path, capsys):
    path = str(FILES["XYZ"])
    assert main(["info", path]) == 0
    told = capsys.readouterr().err
    assert "times are made up" in told and "names no unit of lengths" in told
    out = str(tmp_path / "o.zarr")
    words = ["convert", path, out, "--timestep", "2.5", "--length-unit", "nm", "--quiet"]
    assert main(words) == 0
    with mdio.open(path) as plain, mdio.open(out) as layout:
        n_frames = plain.info.n_frames
        block = layout.read(0, n_frames)
        assert_array_equal(block.positions, plain.read(0, n_frames).positions * np.float32(10))
        assert block.time.tolist() == [2.5 * frame for frame in range(n_frames)]
    assert mdio.verify(out, against=path).ok
    assert main(["info", path, "--format", "XYZ", "--length-unit", "mile"]) == 1
    assert "mile is not a unit of length" in capsys.readouterr().err


def test_zarr_names_its_dimensions(tmp_path):
    mdio.convert(FILES["XYZ"], tmp_path / "o.zarr")
    value = tmp_path / "o.zarr/particles/trajectory/position/value/zarr.json"
    assert json.loads(value.read_text())["dimension_names"] == ["frame", "atom", "axis"]
