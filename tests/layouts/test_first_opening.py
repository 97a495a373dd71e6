"""What the first opening of an output reads: what it says of itself, once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suites.per_rank import convert

import mdio
from mdio.core.errors import CorruptLayoutError

COUNTING = """
import sys
import h5py
import mdio
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))

class Counted(h5py.File):  # HDF5 opens files by itself
    def __init__(self, name, *args, **more):
        opened.append(f"HDF5: {name}")
        super().__init__(name, *args, **more)

h5py.File = Counted
layout = mdio.open(sys.argv[1])
assert layout.read(0, 2).n_frames == 2
print(*opened, sep="\\n")
"""


def opened(path: Path) -> list[str]:
    """Return which files were opened for the first frames, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def of(names: list[str], *wanted: object) -> int:
    return sum(name in map(str, wanted) for name in names)


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    """The same trajectory in each of our layouts."""
    folder = tmp_path_factory.mktemp("made")
    mdio.convert(adk["dcd"], folder / "a.zarr")
    mdio.split(adk["dcd"], folder / "a.segments", 2)
    mdio.convert(adk["dcd"], folder / "a.h5md")
    parts = {"workers": 2, "per_rank": True, "chunk_frames": 13}
    convert(adk["dcd"], folder / "parts.h5md", **parts)
    return folder


def test_the_root_of_a_tree_is_read_once(made):
    names = opened(made / "a.zarr")
    assert of(names, made / "a.zarr" / "zarr.json", "zarr.json") == 1


def test_the_manifest_of_segments_is_read_once(made):
    names = opened(made / "a.segments")
    assert of(names, made / "a.segments" / "manifest.json") == 1


@pytest.mark.parametrize("name", ["a.h5md", "parts.h5md"])
def test_a_file_is_opened_once_for_its_seal_and_by_hdf5(made, name):
    names = opened(made / name)
    assert of(names, made / name) == 1
    assert of(names, f"HDF5: {made / name}") == 1


def test_of_parts_only_those_are_opened_that_are_read(made):
    folder = made / "parts.h5md.parts"
    names = opened(made / "parts.h5md")
    assert len(list(folder.glob("*.h5md"))) > 1
    assert [name for name in names if ".parts" in name and name.startswith("HDF5")] == [
        f"HDF5: {folder / '0000.h5md'}"
    ]


def test_what_was_read_of_a_root_is_used_once(made, tmp_path):
    """Who opens a tree again sees what is on the disk, though the file's state is the same."""
    tree = tmp_path / "a.zarr"
    shutil.copytree(made / "a.zarr", tree)
    root = tree / "zarr.json"
    status, node = root.stat(), json.loads(root.read_bytes())
    with mdio.open(tree) as layout:
        uuid = layout.manifest["uuid"]
    assert node["attributes"]["mdio"]["uuid"] == uuid
    root.write_bytes(root.read_bytes().replace(uuid.encode(), uuid[::-1].encode()))
    os.utime(root, ns=(status.st_atime_ns, status.st_mtime_ns))
    with mdio.open(tree) as layout, pytest.raises(CorruptLayoutError, match="checksum"):
        layout.info  # noqa: B018
