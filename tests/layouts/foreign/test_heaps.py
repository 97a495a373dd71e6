"""Damaged global heaps of HDF5, in which the library would never end: an error, at once."""

import json
import struct
import subprocess
import sys

import h5py
import netCDF4
import numpy as np
import pytest
from suites.h5md_cases import make_block, write_h5md
from suites.native_files import ALL, write_ncdf

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.layouts.foreign.hdf5 import check_heaps
from mdio.layouts.h5md.io import MANIFEST
from mdio.layouts.h5md.layout import H5MDLayout


def write_foreign(path):
    with h5py.File(path, "w") as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        position = file.create_group("particles/all/position")
        position["value"] = np.ones((2, 3, 3), np.float32)
        position["value"].attrs["unit"] = "nm"
        position["time"] = [0.0, 1.0]
        position["time"].attrs["unit"] = "ps"


def write_netcdf4(path):
    write_ncdf(path, ALL, version="NETCDF4")
    with netCDF4.Dataset(str(path), "a") as data:
        data.setncattr_string("remark", ["strings of", "variable length"])


def objects_of(data):
    """Yield where the objects of the first heap begin, and their numbers."""
    heap = data.index(b"GCOL")
    at, end = heap + 16, heap + struct.unpack_from("<Q", data, heap + 8)[0]
    while at + 16 <= end:
        number, size = struct.unpack_from("<H6xQ", data, at)
        yield at, number
        at += 16 + size + -size % 8 if number else size


def damage(path, number, size):
    """Give the last object of this kind (0: free space) another size."""
    data = bytearray(path.read_bytes())
    at = [at for at, found in objects_of(data) if bool(found) == bool(number)][-1]
    struct.pack_into("<Q", data, at + 8, size)
    path.write_bytes(data)


@pytest.mark.parametrize("write", [write_foreign, write_netcdf4])
@pytest.mark.parametrize(("number", "size"), [(0, 0), (0, 8), (1, 2**64 - 16), (1, 2**40)])
def test_sizes_that_lead_nowhere(tmp_path, write, number, size):
    path = tmp_path / ("x.h5md" if write is write_foreign else "x.nc")
    write(path)
    check_heaps(path)
    damage(path, number, size)
    words = [sys.executable, "-m", "mdio.cli.main", "info", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert str(path) in done.stderr
    assert "global heap" in done.stderr
    assert done.stderr.count("\n") == 1


def test_damage_elsewhere_does_not_hide_it(tmp_path):
    path = tmp_path / "x.h5md"
    write_foreign(path)
    with h5py.File(path, "r+", libver="latest") as file:  # object headers have checksums
        file.create_group("observables/a_group")
        at = h5py.h5o.get_info(file["observables"].id).addr
    raw = bytearray(path.read_bytes())
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    damage(path, 0, 0)
    with pytest.raises(SourceError, match="global heap"):
        check_heaps(path)


def test_files_of_others_are_sound(tmp_path):
    from MDAnalysisTests.datafiles import H5MD_energy, H5MD_xvf

    for path in (H5MD_xvf, H5MD_energy):
        with H5MDLayout(path) as layout:
            assert layout.info.n_frames > 0


def test_times_that_are_strings(tmp_path):
    path = tmp_path / "x.h5md"
    write_foreign(path)
    with h5py.File(path, "r+") as file:
        del file["particles/all/position/time"]
        file["particles/all/position/time"] = ["first", "second"]
        file["particles/all/position/time"].attrs["unit"] = "ps"
    with pytest.raises(SourceError, match=r"x\.h5md.*expected numbers"), H5MDLayout(path) as layout:
        _ = layout.info


def test_a_manifest_of_variable_length(tmp_path):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block())
    with h5py.File(path, "r+") as file:
        text = file[MANIFEST].asstr()[()]
        del file[MANIFEST]
        file.create_dataset(MANIFEST, data=text, dtype=h5py.string_dtype())
    with H5MDLayout(path) as layout:
        assert layout.manifest == json.loads(text)
    damage(path, 0, 0)
    assert H5MDLayout.uuid_at(path) is None
    with (
        pytest.raises(CorruptLayoutError, match="manifest cannot be read"),
        H5MDLayout(path) as layout,
    ):
        _ = layout.info
