"""A file and its parts stay and go together."""

import subprocess
import sys

import pytest
from suites.h5md_parts_cases import copy_parts, frames_of, make_parts

import mdio
from mdio.core.errors import OutputError
from mdio.core.files import replacing


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    """An output in three parts that nobody changes."""
    return make_parts(adk, tmp_path_factory.mktemp("made"))


@pytest.fixture
def mine(made, tmp_path):
    """A copy to change."""
    return copy_parts(made, tmp_path)


def alone(path):
    return [one.name for one in path.parent.iterdir()] == [path.name]


def test_force_replaces_both(adk, mine):
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["xtc"], mine)
    mdio.convert(adk["xtc"], mine, stop=7, force=True)
    assert alone(mine) and mdio.verify(mine, adk["xtc"]).ok


def test_parts_of_a_file_that_was_moved_away_stay(adk, mine):
    mine.rename(mine.with_name("kept.h5md"))
    mdio.convert(adk["xtc"], mine)  # one file is in nobody's way
    mdio.convert(adk["xtc"], mine, force=True)  # and has no parts to take away
    assert frames_of(mine.with_name("kept.h5md")).n_frames == 784


def test_a_part_is_not_replaced_by_what_is_made_of_it(mine):
    part = mine.with_name("a.h5md.parts") / "0001.h5md"
    with pytest.raises(OutputError, match="the source"):
        mdio.convert(part, mine, force=True)
    assert mdio.verify(mine).ok


def test_a_rename_that_fails_leaves_the_former_output(adk, mine, monkeypatch):
    def fail(*_):
        raise OSError(5, "broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "rename", fail)
        with pytest.raises(OSError, match="broken disk"):
            mdio.convert(adk["xtc"], mine, force=True)
    names = ["a.h5md", "a.h5md.parts"]
    assert sorted(path.name for path in mine.parent.glob("[!.]*")) == names
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784
    mdio.convert(adk["xtc"], mine, force=True, resume=True)
    assert alone(mine) and frames_of(mine).n_frames == 98


def test_killed_between_renames(adk, mine):
    """The former file has been moved aside: the next run restores it, with its parts."""
    code = (
        "import os, sys, mdio\n"
        "from mdio.core.files import replacing\n"
        "rename = replacing.rename\n"
        "replacing.rename = lambda *words: (rename(*words), os._exit(9))\n"
        "mdio.convert(sys.argv[1], sys.argv[2], force=True)\n"
    )
    words = [sys.executable, "-c", code, str(adk["xtc"]), str(mine)]
    assert subprocess.run(words, check=False).returncode == 9
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["xtc"], mine, stop=3)
    names = {path.name for path in mine.parent.glob("[!.]*")}
    assert names == {mine.name, f"{mine.name}.parts"}
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784
