"""Pipes and devices in place of files, and references that were made up: errors, at once."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from suites.per_rank import convert

import mdio
from mdio.core.errors import CorruptLayoutError, MdioError, SourceError
from mdio.core.files.checks import read_regular
from mdio.layouts.manifest import with_checksum


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    shutil.copyfile(adk["dcd"], folder / "md.dcd")
    shutil.copyfile(adk["psf"], folder / "md.psf")
    mdio.convert(folder / "md.dcd", folder / "md.segments", storage=mdio.Storage(segments=3))
    mdio.convert(folder / "md.dcd", folder / "md.zarr", storage=mdio.Storage(chunk_frames=20))
    convert(folder / "md.dcd", folder / "md.h5md", per_rank=True, workers=2)
    mdio.convert(folder / "md.dcd", folder / "md.refs")
    return folder


@pytest.fixture
def mine(made, tmp_path):
    shutil.copytree(made, tmp_path / "mine")
    refs = json.loads((tmp_path / "mine" / "md.refs").read_text())
    source = {"path": str(tmp_path / "mine" / "md.dcd")}
    refs["mdio"] = with_checksum(refs["mdio"] | {"source": source})
    (tmp_path / "mine" / "md.refs").write_text(json.dumps(refs, separators=(",", ":")))
    return tmp_path / "mine"


def odd(path, kind):
    """Put a pipe or an endless device in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


FILES = {
    "md.dcd": ["md.dcd", "md.refs"],
    "md.refs": ["md.refs"],
    "md.psf": [],
    "md.h5md": ["md.h5md"],
    "md.segments/manifest.json": ["md.segments"],
    "md.segments/.mdio-checksums": ["md.segments"],
    "md.segments/000/seg-000001.dcd": ["md.segments"],
    "md.zarr/zarr.json": ["md.zarr"],
    "md.zarr/particles/trajectory/position/value/zarr.json": ["md.zarr"],
    "part": ["md.h5md"],
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", FILES)
def test_nothing_waits_for_a_pipe_or_fills_memory(mine, name, kind):
    path = (
        max((mine / "md.h5md.parts").iterdir(), key=lambda one: one.stat().st_size)
        if name == "part"
        else mine / name
    )
    odd(path, kind)
    commands = [["verify", out] for out in FILES[name]]
    commands += [["convert", out, f"{out}.xtc", "-q"] for out in FILES[name]]
    commands += [["info", "md.dcd", "-s", "md.psf"]] * (name == "md.psf")
    commands += [["analyze", "rgyr", "md.dcd", "-s", "md.psf"]] * (name == "md.psf")
    limited = "import resource as r; r.setrlimit(r.RLIMIT_AS, (3 << 30, 3 << 30));"
    for words in commands:
        code = f"{limited} from mdio.cli.main import main; main()"
        whole = [sys.executable, "-c", code, *words]
        done = subprocess.run(whole, cwd=mine, capture_output=True, timeout=100, check=False)
        if words[0] != "info":
            assert done.returncode == 1, (words, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr and b"memory" not in done.stderr, done.stderr
        assert done.stderr.count(b"\n") <= 2, done.stderr


def test_what_is_longer_than_a_record(tmp_path):
    path = tmp_path / "manifest.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="at most"):
        read_regular(path)


def change(path, **changes):
    refs = json.loads(path.read_text())
    refs["mdio"] = with_checksum(refs["mdio"] | changes)
    path.write_text(json.dumps(refs, separators=(",", ":")))


@pytest.mark.parametrize(
    "source",
    [
        {"opened": {"verify": False}},
        {"opened": {"fields": 3}},
        {"opened": []},
        {"opened": [1]},
        {"opened": {"nothing": 1}},
        {"opened": "xtc"},
        {"path": 5},
        {"path": ""},
        {"path": "a\0b"},
        {"path": None},
        {"path": ["md.dcd"]},
        {"nbytes": "many"},
    ],
)
def test_what_references_say_of_their_source(mine, source):
    known = {"path": str(mine / "md.dcd")}
    change(mine / "md.refs", source={**known, **source})
    with pytest.raises(MdioError):
        mdio.open(mine / "md.refs").read(0, 1)


@pytest.mark.parametrize(
    ("frames", "n_frames"),
    [
        ([[0, 10**9, 1]], 98),
        ([[0, 10**9, 1]], 10**9),
        ([[0, 99, 1]], 99),
        ([[0, 98, 1]], 97),
        ([[0, 10**15, 10**13]], 100),
        ([[-5, 93, 1]], 98),
        ([[0, 98]], 98),
        ([[0, 98, 0]], 98),
        ([[0.0, 98, 1]], 98),
        ([], 98),
        ([["0", "98", "1"]], 98),
    ],
)
def test_frames_of_references(mine, frames, n_frames):
    change(mine / "md.refs", frames=frames, n_frames=n_frames)
    with pytest.raises((CorruptLayoutError, SourceError)):
        mdio.open(mine / "md.refs").read(0, 1)


def test_references_in_a_circle(mine):
    path, other = mine / "md.refs", mine / "other.refs"
    change(path, source={"path": str(path)})
    shutil.copyfile(path, other)
    with pytest.raises(CorruptLayoutError, match="refers to itself"):
        mdio.open(path).read(0, 1)
    change(path, source={"path": str(other)})
    with pytest.raises(CorruptLayoutError, match="refers to itself"):
        mdio.open(other).read(0, 1)


def test_references_to_references(mine):
    other = mine / "other.refs"
    shutil.copyfile(mine / "md.refs", other)
    change(other, source={"path": str(mine / "md.refs")})
    with mdio.open(other) as found, mdio.open(mine / "md.dcd") as expected:
        np.testing.assert_array_equal(found.read(3, 5).positions, expected.read(3, 5).positions)
