"""AMBER NetCDF against MDAnalysis, and NetCDF-4 against netCDF4."""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path

import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
import scipy.io
from MDAnalysisTests import datafiles
from suites.native_files import ALL, DIMENSIONS, values_of, write_ncdf

import mdio
from mdio.core.errors import OptionError, PlanError
from mdio.layouts.native.netcdf.layout import NCDFLayout
from mdio.testing.reading import LayoutReadingTests, Oracle, ReadingCase, oracle_from_mdanalysis


@cache
def mdanalysis_oracle(path: Path) -> Oracle:
    return oracle_from_mdanalysis(None, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ncdf")


@pytest.mark.parametrize("name", ["NCDF", "PFncdf_Trj", "CPPTRAJ_TRAJ", "NCDFtruncoct"])
class TestFilesOfMDAnalysis(LayoutReadingTests):
    @pytest.fixture
    def case(self, name):
        path = Path(getattr(datafiles, name))
        return ReadingCase(NCDFLayout, path, mdanalysis_oracle(path))


KINDS = {
    "all": (ALL, {}),
    "coordinates-only": (("coordinates",), {}),
    "one-record-variable": (("coordinates",), {"n_atoms": 1}),
    "velocities": (("time", "coordinates", "velocities"), {}),
    "amber-velocities": (ALL, {"scales": {"velocities": np.float32(20.455)}}),
    "scaled": (ALL, {"scales": {name: 1.1 + len(name) / 7 for name in ALL if name != "time"}}),
    "scaled-f4": (ALL, {"scales": {n: np.float32(1.1) for n in ALL if n != "time"}}),
    "scaled-by-one": (ALL, {"scales": dict.fromkeys(ALL, 1 + 1e-12)}),
    "double": (ALL, {"types": dict.fromkeys(ALL, "f8")}),
    "double-scaled": (
        ALL,
        {"types": dict.fromkeys(ALL, "f8"), "scales": {"forces": np.float32(1.7)}},
    ),
    "fixed-frames": (ALL, {"unlimited": False}),
    "single-cells": (ALL, {"types": dict.fromkeys(ALL, "f4")}),
    "one-frame": (ALL, {"n_frames": 1}),
    "other-conventions-too": (ALL, {"conventions": "CF,AMBER"}),
}


@pytest.mark.parametrize("kind", KINDS)
class TestKinds(LayoutReadingTests):
    @pytest.fixture
    def case(self, kind, folder):
        path = folder / f"{kind}.ncdf"
        variables, options = KINDS[kind]
        if not path.exists():
            write_ncdf(path, variables, **options)
        return ReadingCase(NCDFLayout, path, mdanalysis_oracle(path))


class TestLargeFrames(LayoutReadingTests):
    """Frames large enough that narrow selections are read alone."""

    @pytest.fixture
    def case(self, folder):
        path = folder / "large.ncdf"
        if not path.exists():
            write_ncdf(path, ALL, n_atoms=12_000)
        return ReadingCase(NCDFLayout, path, mdanalysis_oracle(path))


def oracle_of(variables: tuple[str, ...], n_frames: int = 5, n_atoms: int = 7) -> Oracle:
    values = {name: values_of(name, n_frames, n_atoms) for name in variables}
    box = np.concatenate([values["cell_lengths"], values["cell_angles"]], axis=1, dtype=np.float32)
    time = values["time"].astype(np.float32)
    return Oracle(
        positions=values["coordinates"].astype(np.float32),
        velocities=values["velocities"].astype(np.float32),
        forces=values["forces"].astype(np.float32) * np.float32(4.184),
        box=box,
        time=time.astype(np.float64),
        step=np.arange(n_frames),
        dt_ps=float(time[1] - time[0]),
    )


VERSIONS = {
    "classic": {"version": "NETCDF3_CLASSIC"},
    "64bit-data": {"version": "NETCDF3_64BIT_DATA"},
    "hdf5": {"version": "NETCDF4"},
    "hdf5-compressed": {"version": "NETCDF4", "zlib": True, "chunksizes": (2, 3, 3)},
    "hdf5-classic-model": {"version": "NETCDF4_CLASSIC"},
    "hdf5-big-endian": {
        "version": "NETCDF4",
        "endian": "big",
        "types": dict.fromkeys(("coordinates", "velocities", "forces"), ">f4"),
    },
}


@pytest.mark.parametrize("version", VERSIONS)
class TestVersionsBeyondMDAnalysis(LayoutReadingTests):
    @pytest.fixture
    def case(self, version, folder):
        path = folder / f"{version}.nc"
        if not path.exists():
            write_ncdf(path, ALL, **VERSIONS[version])
        return ReadingCase(NCDFLayout, path, oracle_of(ALL))


def test_chunks_and_compression_of_hdf5_are_known(folder):
    path = write_ncdf(folder / "chunks.nc", ALL, **VERSIONS["hdf5-compressed"])
    with NCDFLayout(path) as layout:
        info = layout.info
        edges = layout.boundaries()
    assert (info.chunk_frames, info.chunk_atoms, info.compression) == (2, 3, "zlib:4")
    assert edges.tolist() == [0, 2, 4, 5]


def test_a_scaled_time(tmp_path):
    path = write_ncdf(tmp_path / "a.ncdf", ALL, scales={"time": 0.5})
    theirs = oracle_from_mdanalysis(None, path)
    with NCDFLayout(path) as layout:
        np.testing.assert_array_equal(layout.read(0, 5).time, theirs.time)
        assert layout.info.dt_ps == pytest.approx(theirs.time[1] - theirs.time[0], rel=1e-6)


def test_times_that_are_all_equal_may_be_replaced(tmp_path):
    """As in files that programs write which do not fill them in."""
    universe = mda.Universe.empty(2, trajectory=True)
    with mda.Writer(str(tmp_path / "a.ncdf"), 2) as writer:
        for frame in range(5):
            universe.atoms.positions = np.full((2, 3), frame)
            universe.trajectory.ts.time = 7.0
            writer.write(universe)
    assert mdio.open(tmp_path / "a.ncdf").read(0, 5).time.tolist() == [7.0] * 5
    with pytest.raises(PlanError, match=r"all 5 frames lie at 7 ps.*--timestep"):
        mdio.analyze(tmp_path / "a.ncdf", kernel="msd")
    mdio.convert(tmp_path / "a.ncdf", tmp_path / "equal.zarr")
    with pytest.raises(PlanError, match="is to be converted again with it"):
        mdio.analyze(tmp_path / "equal.zarr", kernel="msd")
    with pytest.raises(OptionError, match="or give it to the conversion of a file that lacks"):
        mdio.open(tmp_path / "equal.zarr", dt=2)
    layout = mdio.open(tmp_path / "a.ncdf", dt=2)
    assert layout.read(0, 5).time.tolist() == [0, 2, 4, 6, 8]
    assert "whose times are all equal" in layout.notes[0]
    result = mdio.analyze(layout, kernel="msd")
    np.testing.assert_allclose(result.values.ravel(), [0, 3, 12, 27, 48])
    mdio.convert(tmp_path / "a.ncdf", tmp_path / "a.zarr", source_options={"dt": 2})
    assert mdio.open(tmp_path / "a.zarr").info.time_last_ps == 8
    assert mdio.verify(tmp_path / "a.zarr", tmp_path / "a.ncdf").ok


def test_a_cell_without_lengths_is_none(tmp_path):
    """MDAnalysis 2.11 cannot read such a frame."""
    path = write_ncdf(tmp_path / "a.ncdf", ALL)
    with netCDF4.Dataset(str(path), "a") as data:
        data["cell_lengths"][1] = 0
    block = NCDFLayout(path).read(0, 5)
    assert not block.box[1].any()
    assert block.box[[0, 2, 3, 4]].all()


def test_files_of_scipy(tmp_path):
    """Another writer than the NetCDF library, and a count of records that was never set."""
    path = tmp_path / "scipy.ncdf"
    with scipy.io.netcdf_file(str(path), "w", version=2) as data:
        data.Conventions, data.ConventionVersion = "AMBER", "1.0"
        data.createDimension("frame", None)
        data.createDimension("atom", 4)
        data.createDimension("spatial", 3)
        variable = data.createVariable("coordinates", "f4", DIMENSIONS["coordinates"])
        variable.units = "angstrom"
        variable[:] = values_of("coordinates", 3, 4)
    wanted = values_of("coordinates", 3, 4).astype(np.float32)
    np.testing.assert_array_equal(NCDFLayout(path).read(0, 3).positions, wanted)
    raw = bytearray(path.read_bytes())
    raw[4:8] = b"\xff" * 4
    path.write_bytes(raw)
    np.testing.assert_array_equal(NCDFLayout(path).read(0, 3).positions, wanted)


def test_a_narrow_selection_reads_few_bytes(folder, monkeypatch):
    path = write_ncdf(folder / "narrow.ncdf", ALL, n_atoms=12_000)
    n_read = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: n_read.append(real(*args)) or n_read[-1])
    with NCDFLayout(path, fields=("positions",)) as layout:
        _ = layout.info
        n_read.clear()
        layout.read(0, 5, atoms=np.arange(500, 600))
    assert sum(n_read) == 5 * (1200 + 4 + 24 + 24)


def test_sniff(tmp_path):
    hdf5 = write_ncdf(tmp_path / "a.dat", ALL, version="NETCDF4")
    assert NCDFLayout.sniff(hdf5)
    assert not NCDFLayout.sniff(
        write_ncdf(tmp_path / "b.dat", ALL, version="NETCDF4", conventions="CF")
    )
    assert NCDFLayout.sniff(write_ncdf(tmp_path / "c.dat", ALL))
    assert not NCDFLayout.sniff(tmp_path)
    assert not NCDFLayout.sniff(Path(datafiles.DCD))


def test_no_warnings_are_made_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NCDFLayout(datafiles.NCDF).read(0, 1)
