"""What MDAnalysis answers to paths that are called as our outputs and are none."""

import MDAnalysis as mda
import pytest
from MDAnalysis import _READER_HINTS, _READERS
from MDAnalysis.coordinates.memory import MemoryReader
from MDAnalysisTests.datafiles import PSF

import mdio
from mdio.readers.reader import ZarrReader


@pytest.mark.parametrize("suffix", [".zarr", ".segments", ".refs"])
def test_a_path_where_nothing_is_is_told_so(tmp_path, suffix):
    path = tmp_path / f"nope{suffix}"
    for files in ((PSF, path), (PSF, str(path)), (path,)):
        with pytest.raises(OSError, match=f"nope{suffix}: no such file or folder"):
            mda.Universe(*files)


def test_a_folder_that_is_none_is_told_of(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(OSError, match=r"a\.zarr: it has no zarr\.json"):
        mda.Universe(PSF, tmp_path / "a.zarr")


def test_references_need_no_format(tmp_path, adk):
    mdio.convert(adk["dcd"], tmp_path / "a.refs")
    expected = mda.Universe(PSF, adk["dcd"]).trajectory[7].positions
    for files in ((PSF, tmp_path / "a.refs"), (str(tmp_path / "a.refs"),)):
        assert (mda.Universe(*files).trajectory[7].positions == expected).all()


def test_what_others_read_stays_theirs(tmp_path, adk, monkeypatch):
    theirs, ours = str(tmp_path / "theirs.zarr"), str(tmp_path / "ours.zarr")
    mdio.convert(adk["dcd"], ours, stop=2)
    assert ZarrReader._format_hint(theirs)
    monkeypatch.setitem(_READER_HINTS, "THEIRS", lambda thing: "theirs" in str(thing))
    assert not ZarrReader._format_hint(theirs)
    monkeypatch.delitem(_READER_HINTS, "THEIRS")
    monkeypatch.setitem(_READERS, "ZARR", MemoryReader)
    assert not ZarrReader._format_hint(theirs)
    assert ZarrReader._format_hint(ours)
