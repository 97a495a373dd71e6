"""A file and its parts appear, stay and go together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from suites.fake_lfs import FakeLfs
from suites.h5md_parts_cases import copy_parts, frames_of, is_alone, make_parts, parts_in

import mdio
from mdio.core.errors import OutputError, PlanError
from mdio.core.files import publish, replacing


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    """An output in three parts that nobody changes."""
    return make_parts(adk, tmp_path_factory.mktemp("made"))


@pytest.fixture
def mine(made, tmp_path):
    """A copy to change."""
    return copy_parts(made, tmp_path)


def test_force_replaces_both(adk, mine):
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["xtc"], mine, per_rank=True)
    mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
    assert frames_of(mine).n_frames == 98
    assert parts_in(mine) == ["0000.h5md"]
    mdio.convert(adk["xtc"], mine, stop=7, force=True)
    assert [path.name for path in mine.parent.iterdir()] == ["a.h5md"]
    mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
    assert is_alone(mine)
    assert mdio.verify(mine, adk["xtc"]).ok


def test_parts_of_a_file_that_was_moved_away_are_not_replaced(adk, mine):
    mine.rename(mine.with_name("kept.h5md"))
    with pytest.raises(OutputError, match=r"a\.h5md\.parts: it exists already"):
        mdio.convert(adk["xtc"], mine, per_rank=True)
    mdio.convert(adk["xtc"], mine)  # one file is in nobody's way
    mdio.convert(adk["xtc"], mine, force=True)  # and has no parts to take away
    assert frames_of(mine.with_name("kept.h5md")).n_frames == 784


def test_a_folder_of_something_else_is_not_replaced(adk, tmp_path):
    (tmp_path / "a.h5md.parts").mkdir()
    (tmp_path / "a.h5md.parts" / "thesis.tex").touch()
    with pytest.raises(OutputError, match="no trajectory"):
        mdio.convert(adk["xtc"], tmp_path / "a.h5md", per_rank=True, force=True)


def test_a_part_is_not_replaced_by_what_is_made_of_it(mine):
    part = mine.with_name("a.h5md.parts") / "0001.h5md"
    for per_rank in (True, False):
        with pytest.raises(OutputError, match="the source"):
            mdio.convert(part, mine, force=True, per_rank=per_rank)
    assert mdio.verify(mine).ok


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_frame_leaves_the_former_output(adk, mine, tmp_path_factory, workers):
    bad = tmp_path_factory.mktemp("bad") / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    at = len(data) * 2 // 3
    data[at : at + 64] = b"\xff" * 64
    bad.write_bytes(data)
    for options in ({}, {"compression": "gzip:1"}):
        with pytest.raises(OSError, match=r"bad\.xtc"):
            mdio.convert(
                [adk["xtc"]] * 3 + [bad],
                mine,
                workers=workers,
                per_rank=True,
                force=True,
                **options,
            )
    assert is_alone(mine)
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784


def test_of_several_writers_the_parts_of_the_first_one_stay(adk, mine, monkeypatch):
    """Who comes second is told, and takes nothing away."""

    put_in_place = publish.put_in_place

    def after_another(*words, **more):
        monkeypatch.undo()
        mdio.convert(adk["xtc"], mine, stop=5, per_rank=True, force=True)
        put_in_place(*words, **more)

    for _ in range(2):  # over the first folder's name, and over another
        monkeypatch.setattr(publish, "put_in_place", after_another)
        with pytest.raises(OutputError, match="another run has changed it meanwhile"):
            mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
        assert mdio.verify(mine).ok and frames_of(mine).n_frames == 5
    assert mdio.convert(adk["xtc"], mine, per_rank=True, force=True).n_frames == 98
    assert is_alone(mine)


@pytest.mark.parametrize("nth", [0, 1])
def test_a_rename_that_fails_leaves_the_former_output(adk, mine, nth, monkeypatch):
    rename, left = replacing.rename, [nth]

    def fail(*words):
        left[0] -= 1
        if left[0] == -1:
            raise OSError(5, "broken disk")
        return rename(*words)

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "rename", fail)
        with pytest.raises(OSError, match="broken disk"):
            mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
    names = ["a.h5md", "a.h5md.parts"]
    assert sorted(path.name for path in mine.parent.glob("[!.]*")) == names
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784
    mdio.convert(adk["xtc"], mine, per_rank=True, force=True, resume=True)
    assert is_alone(mine)
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 98


@pytest.mark.parametrize("nth", [1, 2])
def test_killed_between_renames(adk, mine, nth):
    """There is always a file with its own parts; the next conversion puts right what is left."""
    code = (
        "import os, sys, mdio\n"
        "from mdio.core.files import replacing\n"
        "rename, left = replacing.rename, [int(sys.argv[3])]\n"
        "def once(*words):\n"
        "    rename(*words)\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os._exit(9)\n"
        "replacing.rename = once\n"
        "mdio.convert(sys.argv[1], sys.argv[2], per_rank=True, force=True)\n"
    )
    words = [sys.executable, "-c", code, str(adk["xtc"]), str(mine), str(nth)]
    assert subprocess.run(words, check=False).returncode == 9
    assert mdio.verify(mine).ok
    with pytest.raises((OutputError, PlanError)):
        mdio.convert(adk["xtc"], mine, stop=3, per_rank=True)  # it is there again
    assert mdio.verify(mine).ok
    assert frames_of(mine).n_frames == (98 if nth == 2 else 784)
    mdio.convert(adk["xtc"], mine, stop=3, per_rank=True, force=True)
    assert is_alone(mine)


def test_stripes_are_asked_for_the_folder(adk, tmp_path, tmp_path_factory, monkeypatch):
    lfs = FakeLfs(tmp_path_factory.mktemp("lfs") / "bin")
    lfs.answer(setstripe={"makes": True})
    monkeypatch.setenv("PATH", f"{lfs.folder}{os.pathsep}{os.environ['PATH']}")
    out = tmp_path / "a.h5md"
    mdio.convert(adk["xtc"], out, per_rank=True, stripe_nbytes=4 << 20, stripe_count=4)
    (call,) = [call for call in lfs.calls if call[0] == "setstripe"]
    assert call[:5] == ["setstripe", "-S", "4194304", "-c", "4"]
    assert Path(call[5]).name.startswith(".a.h5md.parts.mdio-")
    with mdio.open(out) as layout:
        assert layout.manifest["stripe"]["asked"] == {"stripe_nbytes": 4 << 20, "stripe_count": 4}
    assert mdio.verify(out, adk["xtc"]).ok
