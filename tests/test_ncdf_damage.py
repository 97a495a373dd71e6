"""NetCDF files that are truncated, damaged, or not what AMBER's convention says."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from suites.native_files import ALL, UNITS, write_ncdf

from mdio.core.errors import MdioError, SourceError
from mdio.layouts.ncdf import NCDFLayout

WRONG = {
    "no conventions": ({"conventions": None}, "conventions are ''"),
    "a restart": ({"conventions": "AMBERRESTART"}, "conventions are 'AMBERRESTART'"),
    "other units": ({"units": {**UNITS, "coordinates": "nm"}}, "coordinates is in units of 'nm'"),
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


def test_no_coordinates(tmp_path):
    path = write_ncdf(tmp_path / "none.nc", ("time",))
    with pytest.raises(SourceError, match="no coordinates"):
        NCDFLayout(path).info  # noqa: B018


def test_truncation_anywhere_is_an_error(tmp_path):
    whole = write_ncdf(tmp_path / "whole.ncdf", ALL).read_bytes()
    with NCDFLayout(tmp_path / "whole.ncdf") as layout:
        record_nbytes = layout.data.record_nbytes
    path = tmp_path / "cut.ncdf"
    for nbytes in range(0, len(whole), 7):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(SourceError, match=r"cut\.ncdf"):
            NCDFLayout(path).info  # noqa: B018
    path.write_bytes(whole[: -record_nbytes - 5])
    with pytest.raises(
        SourceError, match=f"frame 3 is truncated: the header says 5 frames of {record_nbytes}"
    ):
        NCDFLayout(path).info  # noqa: B018


def test_truncated_hdf5_is_an_error(tmp_path):
    whole = write_ncdf(tmp_path / "whole.nc", ALL, version="NETCDF4").read_bytes()
    path = tmp_path / "cut.nc"
    for nbytes in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(SourceError, match=r"cut\.nc"), NCDFLayout(path) as layout:
            layout.read(0, 5)


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


def test_a_count_of_records_that_lies(tmp_path):
    path = write_ncdf(tmp_path / "lie.ncdf", ALL)
    raw = bytearray(path.read_bytes())
    raw[4:8] = struct.pack(">i", 2**31 - 1)
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="frame 5 is truncated"):
        NCDFLayout(path).info  # noqa: B018
