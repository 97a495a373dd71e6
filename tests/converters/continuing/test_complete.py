"""--resume of what is complete: said to be so if it is the same, an error if it is not."""

import os
import shutil

import pytest
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.errors import OutputError

MADE = {
    "a.zarr": {},
    "b.h5md": {"contiguous": True},
    "c.segments": {"segments": 5, "container": "xtc"},
}


@pytest.fixture
def source(adk, tmp_path):
    shutil.copy(adk["dcd"], tmp_path / "adk.dcd")
    return tmp_path / "adk.dcd"


def state(path):
    return path.stat().st_ino, path.stat().st_mtime_ns


@pytest.mark.parametrize("name", MADE)
def test_the_same_once_more(source, tmp_path, name):
    out = tmp_path / name
    assert not mdio.convert(source, out, resume=True, **as_options(MADE[name])).found_complete
    before = state(out)
    found = mdio.convert(source, out, resume=True, **as_options(MADE[name] | {"workers": 1}))
    assert found.found_complete and found.n_frames == 98 and found.nbytes_out > 0
    assert state(out) == before
    assert not mdio.convert(
        source, out, resume=True, force=True, **as_options(MADE[name])
    ).found_complete


def test_the_command_ends_with_0(source, adk, tmp_path, capsys):
    command = ["convert", str(source), str(tmp_path / "a.zarr"), "-s", str(adk["psf"]), "--resume"]
    command += ["--select", "name CA"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert "a.zarr: already complete, nothing was written" in capsys.readouterr().out
    (tmp_path / "a.top.pdb").write_text("END")
    assert main(command) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"stop": 5},
        {"select": "name CA"},
        {"groups": {"ca": "name CB"}},
        {"precision": 0.1},
        {"compression": "zstd"},
        {"chunk_frames": 3},
        {"stripe_nbytes": 1 << 22},
        {"topology": False},
        {"pbc": "whole"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_one_is_an_error(adk, tmp_path, other):
    usual = {"top": adk["psf"], "groups": {"ca": "name CA"}, "resume": True}
    mdio.convert(adk["xtc"], tmp_path / "a.zarr", **usual)
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", **as_options(usual | other))


def test_of_a_source_that_has_changed_it_is_an_error(source, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(source, out)
    at = source.stat().st_mtime_ns
    os.utime(source, ns=(at, at + 10**9))
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(source, out, resume=True)


def test_what_says_nothing_of_itself_is_an_error(source, tmp_path):
    """A native file, and what is no trajectory."""
    mdio.convert(source, tmp_path / "a.xtc")
    (tmp_path / "c.h5md").write_text("notes")
    for name in ("a.xtc", "c.h5md"):
        with pytest.raises(OutputError, match="exists already"):
            mdio.convert(source, tmp_path / name, resume=True)
