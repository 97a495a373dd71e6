"""What AMBER's programs write besides plain trajectories."""

from pathlib import Path

import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from MDAnalysisTests.datafiles import INPCRD, PRM_NCBOX, TRJ_NCBOX
from numpy.testing import assert_array_equal
from suites.native_files import write_ncdf

import mdio
from mdio.core.errors import SourceError

N_ATOMS, N_FRAMES = 5, 7


def write_compressed(path, *, power=4, **more):
    """Write integers as cpptraj does (src/NetcdfFile.cpp, NC_writeIntCompressed); return floats."""
    rng = np.random.default_rng(1)
    with netCDF4.Dataset(path, "w", format="NETCDF4") as file:
        file.Conventions, file.ConventionVersion = "AMBER", "1.0"
        for name, size in (("frame", None), ("atom", N_ATOMS), ("spatial", 3)):
            file.createDimension(name, size)
        time = file.createVariable("time", "f4", ("frame",))
        time.units, time[:N_FRAMES] = "picosecond", np.arange(N_FRAMES)
        kinds = {
            "compressedpos": ("angstrom", None),
            "compressedvel": ("angstrom/picosecond", 20.455),
            "compressedfrc": ("kilocalorie/mole/angstrom", None),
        }
        found = {}
        for name, (unit, scale) in kinds.items():
            values = rng.normal(scale=30, size=(N_FRAMES, N_ATOMS, 3))
            dimensions = ("frame", "atom", "spatial")
            variable = file.createVariable(name, "i4", dimensions, zlib=True, chunksizes=(1, 5, 3))
            variable.setncattr("icompressfac", np.float64(10.0**power))
            variable.units = unit
            if scale is not None:
                variable.scale_factor = np.float64(scale)
            variable.set_auto_scale(False)
            variable[:] = np.round(values * 10.0**power).astype("i4")
            found[name] = np.round(values * 10.0**power) / 10.0**power * (scale or 1.0)
        for name, value in more.items():
            file["compressedpos"].setncattr(name, value)
    return found


def test_integers_of_cpptraj(tmp_path):
    values = write_compressed(tmp_path / "md.nc")
    with mdio.open(tmp_path / "md.nc") as layout:
        info = layout.info
        assert (info.n_frames, info.n_atoms, info.layout) == (N_FRAMES, N_ATOMS, "ncdf")
        assert (info.has_velocities, info.has_forces) == (True, True)
        assert "rounded coordinates to 0.0001 angstrom" in " ".join(layout.notes)
        block = layout.read(0, N_FRAMES)
        assert_array_equal(block.positions, values["compressedpos"].astype("f4"))
        np.testing.assert_allclose(block.velocities, values["compressedvel"], rtol=2e-7)
        np.testing.assert_allclose(block.forces, values["compressedfrc"] * 4.184, rtol=2e-7)
        part = layout.read(2, 5, atoms=[4, 1])
        assert_array_equal(part.positions, block.positions[2:5, [4, 1]])
    mdio.convert(tmp_path / "md.nc", tmp_path / "o.zarr", workers=2)
    assert mdio.verify(tmp_path / "o.zarr", against=tmp_path / "md.nc").ok


@pytest.mark.parametrize("factor", [0.0, -1.0, "many"])
def test_factors_that_are_none(tmp_path, factor):
    write_compressed(tmp_path / "md.nc", icompressfac=factor)
    n_open = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(SourceError, match=r"md\.nc: compressedpos .*icompressfac"):
        _ = mdio.open(tmp_path / "md.nc").info
    assert len(list(Path("/dev/fd").iterdir())) == n_open


def test_factors_in_single_precision(tmp_path):
    values = write_compressed(tmp_path / "md.nc", icompressfac=np.float32(10000))
    with mdio.open(tmp_path / "md.nc") as layout:
        assert_array_equal(layout.read(0, 1).positions, values["compressedpos"][:1].astype("f4"))


@pytest.mark.parametrize("version", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_offsets_of_numbers_are_refused(tmp_path, version):
    path = write_ncdf(tmp_path / "md.nc", ("coordinates", "time"), version=version)
    with netCDF4.Dataset(path, "a") as file:
        file["coordinates"].add_offset = np.float32(5)
    with pytest.raises(SourceError, match=r"md\.nc: coordinates has an add_offset of"):
        _ = mdio.open(path).info


def write_restart(path, *, text, velocities=True, n_atoms=N_ATOMS):
    """Write a restart file; return its coordinates, velocities (angstrom/ps) and cell."""
    rng = np.random.default_rng(2)
    x, v = np.round(rng.normal(scale=9, size=(2, n_atoms, 3)), 7)
    cell = np.array([30.0, 40, 50, 90, 80, 70])
    if text:
        lines = ["made here".ljust(80), f"{n_atoms:5d}{1.5:15.7e}"]
        for values in (x, v)[: 1 + velocities]:
            flat = [f"{number:12.7f}" for number in values.ravel()]
            lines += ["".join(flat[at : at + 6]) for at in range(0, len(flat), 6)]
        path.write_text("\n".join([*lines, "".join(f"{n:12.7f}" for n in cell)]) + "\n")
        return x, v * 20.455, cell
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.Conventions, file.ConventionVersion = "AMBERRESTART", "1.0"
        file.createDimension("atom", n_atoms)
        file.createDimension("spatial", 3)
        file.createVariable("time", "f8", ())[...] = 1.5
        for name, values in (("coordinates", x), ("velocities", v))[: 1 + velocities]:
            variable = file.createVariable(name, "f8", ("atom", "spatial"))
            variable.set_auto_scale(False)
            variable[:] = values
            if name == "velocities":
                variable.scale_factor = 20.455
        file.createVariable("cell_lengths", "f8", ("spatial",))[:] = cell[:3]
        file.createVariable("cell_angles", "f8", ("spatial",))[:] = cell[3:]
    return x, v * 20.455, cell


@pytest.mark.parametrize("velocities", [True, False])
@pytest.mark.parametrize("name", ["md.ncrst", "md.rst7"])
def test_restart_files(tmp_path, name, velocities):
    x, v, cell = write_restart(tmp_path / name, text=name == "md.rst7", velocities=velocities)
    with mdio.open(tmp_path / name) as layout:
        info = layout.info
        assert (info.n_frames, info.n_atoms, info.has_velocities) == (1, N_ATOMS, velocities)
        block = layout.read(0, 1)
        assert_array_equal(block.positions[0], x.astype("f4"))
        np.testing.assert_allclose(block.box[0], cell)
        assert block.time[0] == 1.5
        if velocities:
            np.testing.assert_allclose(block.velocities[0], v, rtol=2e-7)
        assert_array_equal(layout.read(0, 1, atoms=[3]).positions[0, 0], x[3].astype("f4"))
    mdio.convert(tmp_path / name, tmp_path / "o.h5md")
    assert mdio.verify(tmp_path / "o.h5md", against=tmp_path / name).ok


def test_mdtraj_gives_the_time_of_a_restart_file_a_dimension(tmp_path):
    path = tmp_path / "md.ncrst"
    write_restart(path, text=False)
    with netCDF4.Dataset(path, "a") as file:
        file.renameVariable("time", "old_time")
        file.createDimension("time", 1)
        file.createVariable("time", "f8", ("time",))[:] = 2.5
    with mdio.open(path) as layout:
        assert layout.read(0, 1).time.tolist() == [2.5]


def test_a_restart_file_of_amber():
    with mdio.open(INPCRD) as layout:
        expected = mda.coordinates.INPCRD.INPReader(INPCRD).ts.positions
        assert_array_equal(layout.read(0, 1).positions[0], expected)


@pytest.mark.parametrize(
    ("cell", "box"),
    [
        ((30, 40, 50), [30, 40, 50, 90, 90, 90]),
        ((1000, 1000, 1000, 90, 90, 90), [1000, 1000, 1000, 90, 90, 90]),
        ((0, 0, 0, 90, 90, 90), [0] * 6),
        ((30, 40), None),
        ((30, 40, 50, 90), None),
    ],
)
def test_cells_of_restart_files(tmp_path, cell, box):
    path = tmp_path / "md.rst7"
    write_restart(path, text=True)
    *lines, _ = path.read_text().splitlines()
    path.write_text("\n".join([*lines, "".join(f"{x:12.7f}" for x in cell), ""]))
    if box is None:
        with pytest.raises(SourceError, match=rf"md\.rst7: .*a box of {len(cell)} numbers"):
            _ = mdio.open(path).info
    else:
        with mdio.open(path) as layout:
            assert layout.read(0, 1).box[0].tolist() == box
            assert layout.info.has_box == any(box)


def test_restart_files_in_other_units_or_not_written_whole(tmp_path):
    path = tmp_path / "md.ncrst"
    x, *_ = write_restart(path, text=False, velocities=False)
    with netCDF4.Dataset(path, "a") as file:
        file.createVariable("velocities", "f8", ("atom", "spatial"))
        file["coordinates"].units = "nanometer"
    with mdio.open(path) as layout:
        assert not layout.info.has_velocities
        np.testing.assert_allclose(layout.read(0, 1).positions[0], x * 10, rtol=1e-6)
    with netCDF4.Dataset(path, "a") as file:
        file["coordinates"].units = "parsec"
    with pytest.raises(SourceError, match=r"md\.ncrst: coordinates is in units of 'parsec'"):
        _ = mdio.open(path).info
    with netCDF4.Dataset(path, "a") as file:
        file["coordinates"].units = "angstrom"
        file.renameVariable("cell_angles", "other")
    with pytest.raises(SourceError, match="cell_lengths without cell_angles"):
        _ = mdio.open(path).info


@pytest.mark.parametrize("name", ["md.ncrst", "md.rst7"])
def test_restart_files_that_are_cut(tmp_path, name):
    path = tmp_path / name
    write_restart(path, text=name == "md.rst7", n_atoms=40)
    data = path.read_bytes()
    for size in (len(data) // 2, len(data) // 3, 1300):
        path.write_bytes(data[:size])
        with pytest.raises(OSError, match=r"md\."):
            mdio.open(path).read(0, 1)


def test_mdio_and_mdanalysis_agree_on_a_trajectory_of_amber():
    u = mda.Universe(PRM_NCBOX, TRJ_NCBOX)
    with mdio.open(TRJ_NCBOX) as layout:
        assert_array_equal(layout.read(3, 4).positions[0], u.trajectory[3].positions)


def test_a_count_of_zero_records_in_cdf5(tmp_path):
    path = write_ncdf(tmp_path / "md.nc", ("coordinates", "time"), version="NETCDF3_64BIT_DATA")
    with mdio.open(path) as layout:
        expected = layout.read(0, 5).positions
    data = bytearray(path.read_bytes())
    assert (data[3], int.from_bytes(data[4:12], "big")) == (5, 5)
    data[4:12] = bytes(8)
    path.write_bytes(data)
    with mdio.open(path) as layout:
        assert_array_equal(layout.read(0, layout.info.n_frames).positions, expected)
        assert layout.info.n_frames == 5
