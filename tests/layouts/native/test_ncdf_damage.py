"""NetCDF files that are truncated, damaged, or not what AMBER's convention says."""

from __future__ import annotations

import struct

import netCDF4
import numpy as np
import pytest
from suites.native_files import ALL, UNITS, write_ncdf

from mdio.core.errors import MdioError, SourceError
from mdio.layouts.native.netcdf.layout import NCDFLayout

WRONG = {
    "no conventions": ({"conventions": None}, "conventions are ''"),
    "a restart": ({"conventions": "AMBERRESTART"}, "conventions are 'AMBERRESTART'"),
    "other units": ({"units": {**UNITS, "coordinates": "ell"}}, "coordinates is in units of 'ell'"),
    "integers": ({"types": {"coordinates": "i4"}}, "coordinates holds >?i"),
    "an integer scale": ({"scales": {"forces": np.int32(3)}}, "scale_factor of"),
    "no frames": ({"n_frames": 0}, "0 frames"),
}


@pytest.mark.parametrize("version", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_the_convention_is_an_error(tmp_path, wrong, version):
    options, message = WRONG[wrong]
    path = write_ncdf(tmp_path / "wrong.nc", ALL, version=version, **options)
    with pytest.raises(SourceError, match=message):
        NCDFLayout(path).info  # noqa: B018


@pytest.mark.parametrize("version", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_attributes_that_are_arrays(tmp_path, version):
    path = write_ncdf(tmp_path / "arrays.nc", ALL, version=version)
    with NCDFLayout(path) as layout:
        expected = layout.read(0, 5)
    with netCDF4.Dataset(path, "a") as data:
        data.program = np.array([1.0, 2.0])
    with NCDFLayout(path) as layout:
        assert np.array_equal(layout.read(0, 5).positions, expected.positions)
    with netCDF4.Dataset(path, "a") as data:
        data["coordinates"].add_offset = np.array([0.0, 2.0])
    with pytest.raises(SourceError, match=r"arrays\.nc.*add_offset"):
        NCDFLayout(path).info  # noqa: B018


def test_no_coordinates(tmp_path):
    path = write_ncdf(tmp_path / "none.nc", ("time",))
    with pytest.raises(SourceError, match="no coordinates"):
        NCDFLayout(path).info  # noqa: B018


def check_cut(path, layout, expected, n_whole, lost):
    assert layout.info.n_frames == n_whole
    assert [(one.frame, one.offset, one.nbytes) for one in layout.info.lost] == lost
    found = layout.read(0, n_whole)
    for name, values in found.present().items():
        assert values.tobytes() == getattr(expected, name)[:n_whole].tobytes(), (path, name)
    assert found.time.tolist() == expected.time[:n_whole].tolist()
    assert found.box.tobytes() == expected.box[:n_whole].tobytes()


@pytest.mark.parametrize("count", [None, 0, -1, 2**31 - 1])
def test_of_a_cut_file_the_whole_frames_are_read(tmp_path, count):
    """Also where a program that was killed has left no number of frames in the header."""
    raw = bytearray(write_ncdf(tmp_path / "whole.ncdf", ALL).read_bytes())
    with NCDFLayout(tmp_path / "whole.ncdf") as layout:
        expected, record_nbytes = layout.read(0, 5), layout.data.record_nbytes
    if count is not None:
        raw[4:8] = struct.pack(">i", count)
    begin = len(raw) - 5 * record_nbytes
    path = tmp_path / "cut.ncdf"
    for nbytes in [*range(0, len(raw), 37), *(begin + n * record_nbytes for n in range(6))]:
        path.write_bytes(raw[:nbytes])
        n_whole, left = divmod(nbytes - begin, record_nbytes)
        if n_whole < 1:
            with pytest.raises(SourceError, match=r"cut\.ncdf"):
                NCDFLayout(path).info  # noqa: B018
            continue
        ends_early = left or (n_whole < 5 and count is None) or count == 2**31 - 1
        lost = [(n_whole, nbytes - left, left)] if ends_early else []
        with NCDFLayout(path) as layout:
            check_cut(path, layout, expected, n_whole, lost)


def test_of_a_cut_file_without_records_the_whole_frames_are_read(tmp_path):
    path = write_ncdf(tmp_path / "cut.ncdf", ("time", "coordinates"), unlimited=False)
    with NCDFLayout(path) as layout:
        expected = layout.read(0, 5)
    raw = path.read_bytes()
    row_nbytes = 7 * 3 * 4
    for n_cut in (1, row_nbytes - 1, row_nbytes, 2 * row_nbytes + 1):
        path.write_bytes(raw[:-n_cut])
        n_whole, left = divmod(5 * row_nbytes - n_cut, row_nbytes)
        with NCDFLayout(path) as layout:
            lost = [(n_whole, len(raw) - n_cut - left, left)]
            check_cut(path, layout, expected, n_whole, lost)


@pytest.mark.parametrize("shift", [-4, 4, -400, 4000])
@pytest.mark.parametrize("name", ALL)
def test_variables_that_lie_on_others_are_an_error(tmp_path, name, shift):
    path = write_ncdf(tmp_path / "moved.ncdf", ALL)
    with NCDFLayout(path) as layout:
        begin = layout.data.variables[name].begin
    raw = path.read_bytes()
    found = struct.pack(">q", begin)
    assert raw.count(found) == 1
    path.write_bytes(raw.replace(found, struct.pack(">q", begin + shift)))
    with pytest.raises(SourceError, match=r"moved\.ncdf: the header is damaged: '.*(lies|ends) at"):
        NCDFLayout(path).info  # noqa: B018


def test_a_size_that_the_shape_does_not_make_is_an_error(tmp_path):
    path = write_ncdf(tmp_path / "size.ncdf", ALL)
    with NCDFLayout(path) as layout:
        variable = layout.data.variables["coordinates"]
    raw = path.read_bytes()
    found = struct.pack(">iq", variable.row_nbytes, variable.begin)
    assert raw.count(found) == 1
    path.write_bytes(raw.replace(found, struct.pack(">iq", 4, variable.begin)))
    with pytest.raises(SourceError, match="a row of 'coordinates' is said to have 4 bytes"):
        NCDFLayout(path).info  # noqa: B018


def test_truncated_hdf5_is_an_error(tmp_path):
    whole = write_ncdf(tmp_path / "whole.nc", ALL, version="NETCDF4").read_bytes()
    path = tmp_path / "cut.nc"
    for nbytes in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(SourceError, match=r"cut\.nc"), NCDFLayout(path) as layout:
            layout.read(0, 5)


def test_what_h5py_cannot_open_is_told_of_the_file(tmp_path, monkeypatch):
    """A read that fails as h5py looks for a dataset is a KeyError there."""
    path = write_ncdf(tmp_path / "a.nc", ALL, version="NETCDF4")

    class Failing(dict):
        def close(self):
            pass

    monkeypatch.setattr("mdio.layouts.native.netcdf.hdf5.h5py.File", lambda *_, **__: Failing())
    with NCDFLayout(path) as layout, pytest.raises(SourceError, match=r"a\.nc: frames 0:1 cannot"):
        layout.read(0, 1)


def test_damage_is_never_more_than_an_error(tmp_path):
    path = write_ncdf(tmp_path / "damaged.nc", ALL)
    raw = path.read_bytes()
    random = np.random.default_rng(4)
    n_errors = 0
    for attempt in range(300):
        damaged = bytearray(raw)
        for position in random.integers(0, 900 if attempt % 2 else len(raw), 3):
            damaged[position] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            with NCDFLayout(path) as layout, np.errstate(all="ignore"):
                layout.read(0, layout.info.n_frames)
        except MdioError as error:
            assert "damaged.nc" in str(error)
            n_errors += 1
    assert n_errors > 50


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"CDF",
        b"CDF\x02",
        b"CDF\x07" + bytes(100),
        b"CDF\x02" + b"\xff" * 400,
        b"CDF\x02" + struct.pack(">iii", 3, 10, 2**31 - 1) + bytes(4000),
        b"CDF\x02" + struct.pack(">iiii", 3, 10, 1, 2**31 - 1) + bytes(4000),
        b"\x89HDF\r\n\x1a\n" + bytes(500),
        bytes(300),
    ],
)
def test_other_bytes(tmp_path, raw):
    path = tmp_path / "other.nc"
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"other\.nc"):
        NCDFLayout(path).info  # noqa: B018
