"""Splitting where copying bytes would not do: frames are decoded and written again."""

import struct

import netCDF4
import numpy as np
import pytest
from MDAnalysisTests.datafiles import (
    DCD,
    DCD_NAMD_TRICLINIC,
    NCDF,
    PRMncdf,
)
from suites.segment_cases import (
    copy_of,
    joined_oracle,
    raw_frames,
)

import mdio
from mdio.converters.convert import split
from mdio.testing.reading import oracle_from_mdanalysis

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")


def test_fixed_atoms_are_decoded(tmp_path):
    """DCD files with fixed atoms hold them in the first frame alone."""
    from MDAnalysisTests import datafiles

    source = copy_of(DCD, tmp_path)
    data = bytearray(source.read_bytes())
    n_atoms, n_frames = 3341, 98
    frames = raw_frames(source)
    free = np.arange(2, n_atoms + 1, dtype="<i4")  # all but the first one
    data[4 + 36 : 4 + 40] = struct.pack("<i", 1)
    header = bytes(data[: source.stat().st_size - sum(map(len, frames))])
    record = struct.pack("<i", free.nbytes)
    out = [header, record + free.tobytes() + record, frames[0]]
    marker = struct.pack("<i", 4 * (n_atoms - 1))
    plane = 4 * n_atoms + 8
    for frame in frames[1:]:
        for axis in range(3):
            begin = axis * plane + 4
            out.append(marker + frame[begin + 4 : begin + 4 * n_atoms] + marker)
    (tmp_path / "fixed.dcd").write_bytes(b"".join(out))
    oracle = oracle_from_mdanalysis(None, tmp_path / "fixed.dcd")
    assert oracle.n_frames == n_frames and datafiles
    result = split(tmp_path / "fixed.dcd", tmp_path / "out.segments", 5)
    assert not result.copied and result.plan.container == "dcd"
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, oracle.positions)
    np.testing.assert_allclose(found.time, oracle.time, rtol=1e-6)


def test_netcdf4_is_decoded(tmp_path):
    with netCDF4.Dataset(NCDF) as old, netCDF4.Dataset(tmp_path / "a.ncdf", "w") as new:
        new.setncatts({name: old.getncattr(name) for name in old.ncattrs()})
        for name, dimension in old.dimensions.items():
            new.createDimension(name, None if dimension.isunlimited() else len(dimension))
        for name, variable in old.variables.items():
            made = new.createVariable(name, variable.dtype, variable.dimensions)
            made.setncatts({key: variable.getncattr(key) for key in variable.ncattrs()})
            made[:] = variable[:]
    result = split(tmp_path / "a.ncdf", tmp_path / "out.segments", 3)
    assert not result.copied and result.plan.container == "ncdf"
    expected = oracle_from_mdanalysis(PRMncdf, NCDF)
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.time, expected.time)


def test_several_dcd_files_are_decoded(tmp_path):
    result = split([DCD_NAMD_TRICLINIC] * 2, tmp_path / "out.segments", 2)
    assert not result.copied
    expected = oracle_from_mdanalysis(None, DCD_NAMD_TRICLINIC)
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, np.concatenate([expected.positions] * 2))


@pytest.mark.parametrize("layout", ["zarr", "h5md"])
def test_integers_of_an_xtc_become_xtc_again(tmp_path, adk, layout):
    source, out = tmp_path / f"a.{layout}", tmp_path / "a.segments"
    mdio.convert(adk["xtc"], source, compression="bitpack", stop=20)
    assert split(source, out, 3).plan.container == "xtc"
    assert mdio.verify(out, source).ok
    with mdio.open(out) as found, mdio.open(adk["xtc"]) as want:
        assert np.array_equal(found.read(0, 20).positions, want.read(0, 20).positions)
    rounded = tmp_path / f"b.{layout}"
    mdio.convert(adk["dcd"], rounded, precision=0.01, stop=20)
    assert split(rounded, tmp_path / "b.segments", 3).plan.container == "ncdf"


def test_notes_name_the_segment_whose_figures_they_have(tmp_path):
    result = split([DCD, DCD], tmp_path / "a.segments", 3)
    (note,) = (note for note in result.plan.notes if "not equally spaced" in note)
    assert note.startswith("dcd cannot hold times")
    assert note.endswith(" (figures of 000/seg-000001.dcd)")
