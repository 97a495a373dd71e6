"""What AMBER's replica exchange writes of each frame goes where the frames go."""

import json

import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import mdio
from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError
from mdio.core.frames import columns_from_json, columns_to_json

N_FRAMES, N_ATOMS = 12, 7
VALUES = {
    "temp0": (280.0 + 7.5 * (np.arange(N_FRAMES) % 4), ("frame",)),
    "remd_dimtype": (np.array([1, 3], "i4"), ("remd_dimension",)),
    "remd_indices": (
        (np.arange(2 * N_FRAMES, dtype="i4") % 5).reshape(-1, 2),
        ("frame", "remd_dimension"),
    ),
    "remd_repidx": (np.arange(N_FRAMES, dtype="i4") // 3, ("frame",)),
    "remd_crdidx": (np.arange(N_FRAMES, dtype="i4")[::-1] % 4, ("frame",)),
    "remd_values": (np.linspace(0, 1, 2 * N_FRAMES).reshape(-1, 2), ("frame", "remd_dimension")),
}
"""As cpptraj defines them (src/NetcdfFile.cpp)."""


def write(path, form="NETCDF3_64BIT_OFFSET", first=0):
    rng = np.random.default_rng(2)
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.Conventions, file.ConventionVersion = "AMBER", "1.0"
        sizes = {"frame": None, "atom": N_ATOMS, "spatial": 3, "remd_dimension": 2}
        for name, size in sizes.items():
            file.createDimension(name, size)
        time = file.createVariable("time", "f4", ("frame",))
        time.units, time[:N_FRAMES] = "picosecond", first + np.arange(N_FRAMES)
        positions = file.createVariable("coordinates", "f4", ("frame", "atom", "spatial"))
        positions.units = "angstrom"
        positions[:] = rng.normal(size=(N_FRAMES, N_ATOMS, 3))
        for name, (values, dimensions) in VALUES.items():
            file.createVariable(name, values.dtype, dimensions)[:] = values
    return path


def expected(frames):
    found = {name: values for name, (values, _) in VALUES.items()}
    found["remd_dimtype"] = np.broadcast_to(found["remd_dimtype"], (N_FRAMES, 2))
    return {name: values[frames] for name, values in found.items()}


def check(found, frames=slice(None)):
    wanted = expected(frames)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert_array_equal(found[name], values)


@pytest.mark.parametrize("form", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_files_of_both_kinds(tmp_path, form, capsys):
    path = write(tmp_path / "r.nc", form)
    with mdio.open(path) as layout:
        check(layout.frame_data())
    assert main(["info", str(path)]) == 0
    assert "temp0 280 to 302.5, " in capsys.readouterr().out
    assert main(["info", str(path), "--json"]) == 0
    assert "remd_crdidx 0 to 3" in json.loads(capsys.readouterr().out)["frame_data"]


@pytest.mark.parametrize("name", ["o.zarr", "o.h5md", "o.segments"])
def test_outputs_keep_it_and_give_it_back(tmp_path, name):
    path, out, back = write(tmp_path / "r.nc"), tmp_path / name, tmp_path / "back.nc"
    mdio.convert(path, out, select=np.arange(2, 6), start=1, step=3, workers=2)
    with mdio.open(out) as layout:
        check(layout.frame_data(), slice(1, None, 3))
    assert mdio.verify(out).ok
    mdio.convert(out, back, workers=2)
    with netCDF4.Dataset(back) as file, netCDF4.Dataset(path) as source:
        file.set_auto_mask(False)
        for one, (values, dimensions) in VALUES.items():
            values = values if one == "remd_dimtype" else values[1::3]
            assert_array_equal(file[one][...], values)
            assert (file[one].dtype, file[one].dimensions) == (values.dtype, dimensions)
        assert_array_equal(file["coordinates"][...], source["coordinates"][1::3, 2:6])
        assert file["temp0"].units == "kelvin"


def test_mdanalysis_has_it_in_each_timestep(tmp_path):
    mdio.convert(write(tmp_path / "r.nc"), tmp_path / "o.zarr")
    universe = mda.Universe(tmp_path / "o.zarr")
    for ts in universe.trajectory[::-5]:
        for name, value in expected(ts.frame).items():
            assert_array_equal(ts.data[name], value)


def test_a_dataset_of_xarray_has_it(tmp_path):
    dataset = mdio.open(write(tmp_path / "r.nc")).to_xarray()
    check({name: dataset[name].values for name in VALUES})
    assert dataset.temp0.dims == ("frame",)
    assert dataset.remd_indices.dims == ("frame", "remd_indices_column")


def test_files_that_are_joined_or_appended(tmp_path):
    paths = [write(tmp_path / f"{at}.nc", first=20 * at) for at in range(2)]
    twice = np.tile(np.arange(N_FRAMES), 2)
    with mdio.open(paths) as layout:
        check(layout.frame_data(), twice)
    mdio.convert(paths[0], tmp_path / "o.zarr")
    mdio.append(paths[1], tmp_path / "o.zarr")
    with mdio.open(tmp_path / "o.zarr") as layout:
        check(layout.frame_data(), twice)


@pytest.mark.parametrize(
    "change",
    [{"dtype": "O"}, {"shape": [3]}, {"shape": [N_FRAMES, 99999]}, {"zlib": "eJw="}, {"zlib": 3}],
)
def test_numbers_that_are_damaged(change):
    said = columns_to_json({"temp0": VALUES["temp0"][0]})
    said["temp0"] |= change
    with pytest.raises(CorruptLayoutError, match=r"o\.zarr: its manifest has columns of frames"):
        columns_from_json(said, N_FRAMES, "o.zarr")
