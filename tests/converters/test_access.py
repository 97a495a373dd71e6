"""Who may read and write an output may do so with the one that takes its place, in folders too."""

import os
import stat

import pytest
from suites.outputs import as_options

import mdio

GROUP = 65534 if os.geteuid() == 0 else None
"""Root gives files to any group; others keep their own."""


@pytest.fixture(autouse=True)
def narrow_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


def tree(out):
    beside = [out, *out.parent.glob(f"{out.name}.parts*")]
    return [one for path in beside for one in (path, *path.rglob("*"))]


def open_to_group(out):
    for path in tree(out):
        if GROUP is not None:
            os.chown(path, -1, GROUP)
        path.chmod(0o2770 if path.is_dir() else 0o660)


def check(out):
    for path in tree(out):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == (0o2770 if path.is_dir() else 0o660), path
        assert GROUP is None or status.st_gid == GROUP, path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.zarr", {"chunk_frames": 10}),
        ("a.h5md", {"chunk_frames": 10}),
        ("a.segments", {"segments": 5}),
    ],
)
def test_replaced_repaired_and_appended_to(adk, tmp_path, name, options):
    out = tmp_path / name
    mdio.convert(adk["xtc"], out, stop=40, **as_options(options))
    open_to_group(out)
    # Another number of chunks and segments: some files have no predecessor.
    more = options | ({"chunk_frames": 5} if "chunk_frames" in options else {"segments": 9})
    mdio.convert(adk["xtc"], out, stop=60, force=True, **as_options(more))
    check(out)
    files = [path for path in tree(out) if path.is_file() and path.suffix != ".json"]
    damaged = max(files, key=lambda one: one.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    mdio.repair(out, against=adk["xtc"])
    check(out)
    mdio.append(adk["xtc"], out)
    check(out)


def test_what_was_narrow_stays_narrow(adk, tmp_path):
    out = tmp_path / "a.zarr"
    os.umask(0o022)
    mdio.convert(adk["xtc"], out, stop=20)
    for path in tree(out):
        path.chmod(0o700 if path.is_dir() else 0o600)
    mdio.convert(adk["xtc"], out, force=True, storage=mdio.Storage(chunk_frames=7))
    for path in tree(out):
        assert not path.stat().st_mode & 0o077, path
