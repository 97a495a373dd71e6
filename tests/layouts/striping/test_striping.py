"""Outputs on Lustre: what ``mdio convert`` asks of it, through the command line."""

import json
import os
from pathlib import Path

import h5py
import pytest
from suites.fake_lfs import FakeLfs

import mdio
from mdio.cli.main import main
from mdio.converters import storage as striping
from mdio.core.files.store import is_network
from mdio.layouts.striping import file_systems
from mdio.layouts.striping.file_systems import STRIPING_MODULES

FOUND = "stripe_count: 4 stripe_size: 4194304 pattern: raid0 stripe_offset: -1\n"
ASK = ("--stripe-size", "4M", "--stripe-count", "4")


@pytest.fixture
def lfs(tmp_path_factory, monkeypatch):
    fake = FakeLfs(tmp_path_factory.mktemp("lfs") / "bin")
    fake.answer(setstripe={"makes": True}, getstripe={"out": FOUND})
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    return fake


@pytest.fixture
def on_lustre(monkeypatch):
    monkeypatch.setattr(file_systems, "file_system_type", lambda path: "lustre")


def convert(adk, out, *words):
    return main(["convert", str(adk["xtc"]), str(out), "--quiet", *map(str, words)])


def manifest(out):
    with mdio.open(out) as layout:
        return layout.manifest


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("a.h5md", ()),
        ("a.h5md", ("--compression", "gzip:1")),
        ("a.zarr", ()),
        ("a.segments", ("--segments", 3)),
        ("a.segments", ("--segments", 3, "--container", "dcd")),
    ],
)
def test_stripes_are_asked_for_before_anything_is_written(adk, tmp_path, lfs, name, more):
    out = tmp_path / name
    assert convert(adk, out, *ASK, *more) == 0
    first = lfs.calls[0]
    assert first[:5] == ["setstripe", "-S", "4194304", "-c", "4"]
    temporary = Path(first[5])
    assert temporary.parent == tmp_path and temporary.name.startswith(f".{name}.mdio-")
    assert not temporary.exists()
    stripe = manifest(out)["stripe"]
    assert stripe["asked"] == {"stripe_nbytes": 4 << 20, "stripe_count": 4}
    assert stripe["applied"]["stripe_count"] == 4 and stripe["reason"] is None
    assert (stripe["stripe_nbytes"], stripe["stripe_count"]) == (4 << 20, 4)
    assert mdio.verify(out).ok


@pytest.mark.parametrize("suffix", ["xtc", "trr", "dcd", "ncdf"])
def test_native_files(adk, tmp_path, lfs, suffix):
    out = tmp_path / f"a.{suffix}"
    assert convert(adk, out, *ASK) == 0
    assert [call[0] for call in lfs.calls[:2]] == ["setstripe", "getstripe"]
    assert mdio.open(out).info.n_frames == mdio.open(adk["xtc"]).info.n_frames


def test_the_file_that_lfs_makes_is_the_one_that_is_written(adk, tmp_path, lfs, monkeypatch):
    seen = []
    ask = striping.set_stripe

    def note(path, *args):
        record = ask(path, *args)
        seen.append(path.stat().st_ino)
        return record

    monkeypatch.setattr(striping, "set_stripe", note)
    for name in ("a.h5md", "a.dcd", "a.zarr", "a.segments"):
        assert convert(adk, tmp_path / name, *ASK) == 0
        assert (tmp_path / name).stat().st_ino == seen.pop()


def test_progressive(adk, tmp_path, lfs):
    out = tmp_path / "a.h5md"
    assert convert(adk, out, "--progressive", "64M:1,1G:4,-1:16", "--stripe-size", "1M") == 0
    assert lfs.calls[0][:-1] == [
        *("setstripe", "-E", "67108864", "-S", "1048576", "-c", "1"),
        *("-E", "1073741824", "-S", "1048576", "-c", "4", "-E", "-1", "-S", "1048576", "-c", "16"),
    ]
    assert manifest(out)["stripe"]["asked"]["progressive"] == [[64 << 20, 1], [1 << 30, 4]]


@pytest.mark.parametrize("text", ["1G:1", "1G", "-1:4", "2G:1,1G:2,-1:4", "1G:x,-1:2", "-1:2,-1:2"])
def test_progressive_that_is_none(adk, tmp_path, text, capsys):
    with pytest.raises(SystemExit) as left:
        convert(adk, tmp_path / "a.h5md", f"--progressive={text}")
    assert left.value.code == 2
    assert "--progressive" in capsys.readouterr().err


def test_nothing_is_asked_where_nothing_is_wanted(adk, tmp_path, lfs):
    out = tmp_path / "a.h5md"
    assert convert(adk, out) == 0
    assert lfs.calls == []
    assert "asked" not in manifest(out)["stripe"]


def test_on_lustre_the_folder_says_what_to_plan_for(adk, tmp_path, lfs, on_lustre):
    out = tmp_path / "a.h5md"
    assert convert(adk, out) == 0
    assert {call[0] for call in lfs.calls} == {"getstripe"}  # its default layout stays
    stripe = manifest(out)["stripe"]
    assert stripe["stripe_nbytes"] == 4 << 20
    assert (stripe["asked"], stripe["applied"]["stripe_count"]) == ({}, 4)
    assert stripe["file_system"] == "lustre"


@pytest.mark.parametrize("name", ["a.h5md", "a.zarr", "a.segments", "a.dcd"])
@pytest.mark.parametrize("code", [1, None])
def test_lustre_that_refuses_or_is_not_there(adk, tmp_path, lfs, monkeypatch, name, code):
    out = tmp_path / name
    if code is None:
        monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    else:
        lfs.answer(setstripe={"makes": True, "code": 1, "err": "not on a mounted Lustre"})
    assert convert(adk, out, *ASK) == 0
    assert mdio.open(out).info.n_frames == mdio.open(adk["xtc"]).info.n_frames
    if name != "a.dcd":
        stripe = manifest(out)["stripe"]
        assert stripe["applied"] is None
        assert ("there is no lfs" if code is None else "mounted Lustre") in stripe["reason"]


def test_alignment_follows_the_stripe(adk, tmp_path, lfs):
    out = tmp_path / "a.h5md"
    words = ("--stripe-size", "1M", "--chunk-frames", "26")
    assert convert(adk, out, *words) == 0
    with h5py.File(out) as file:
        offsets = file["mdio/arrays/trajectory/position/offset"][()]
    assert not (offsets % (1 << 20)).any()


def test_info_shows_the_stripes_of_a_source(adk, lfs, on_lustre, capsys):
    assert main(["info", str(adk["xtc"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["striping"]["stripe_nbytes"] == 4 << 20
    assert main(["info", str(adk["xtc"])]) == 0
    assert "-S 4194304 -c 4" in capsys.readouterr().out


def test_info_without_lustre(adk, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["info", str(adk["xtc"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["striping"] is None


def test_every_file_system_that_stripes_is_one_of_the_network():
    assert all(is_network(kind) for kind in STRIPING_MODULES)
