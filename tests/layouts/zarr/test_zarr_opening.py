"""Which files opening a tree looks at: over a network each takes a request, or several."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suites.outputs import as_options

import mdio
from mdio.core.files import store
from mdio.core.files.store import network_devices
from mdio.layouts.zarr import folder

GOLDEN = Path(__file__).resolve().parents[2] / "golden/zarr"

OPENED = """
import os, sys
names = []
sys.addaudithook(lambda event, args: names.append(str(args[0])) if event == "open" else None)
import mdio
from mdio.layouts.zarr import folder
path, over_network = sys.argv[1], sys.argv[2] == "True"
devices = frozenset([os.stat(path).st_dev] if over_network else [])
folder.network_devices = lambda: devices
with mdio.open(path) as layout:
    n_frames = layout.info.n_frames
    print(*[name for name in names if name.endswith("zarr.json")])
    layout.read(n_frames - 1, n_frames)
"""


def opened(path, *, over_network):
    """Return the metadata that a process opens, as the interpreter notes it."""
    words = [sys.executable, "-c", OPENED, str(path), str(over_network)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture(scope="module")
def tree(adk, tmp_path_factory):
    path = tmp_path_factory.mktemp("tree") / "adk.zarr"
    options = {"groups": {"ca": "name CA"}, "top": adk["psf"], "chunk_frames": 10}
    mdio.convert(adk["xtc"], path, **as_options(options))
    return path


def test_over_a_network_the_root_alone_is_read(tree):
    assert len(opened(tree, over_network=False)) == 10
    assert opened(tree, over_network=True) == ["zarr.json"]


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_outputs_of_older_versions_are_read_as_they_are(path):
    assert opened(path, over_network=True) == opened(path, over_network=False)


def test_verify_looks_at_the_others_all_the_same(tree, tmp_path, monkeypatch):
    damaged = shutil.copytree(tree, tmp_path / "d.zarr")
    node = damaged / "mdio/box/zarr.json"
    node.write_bytes(node.read_bytes().replace(b"float32", b"float64"))
    devices = frozenset([damaged.stat().st_dev])
    monkeypatch.setattr(folder, "network_devices", lambda: devices)
    with mdio.open(damaged) as layout, mdio.open(tree) as whole:
        assert (layout.read(3, 5).box == whole.read(3, 5).box).all()
    result = mdio.verify(damaged)
    assert not result.ok
    assert any("mdio/box/zarr.json" in str(one) for one in result.bad)


def test_which_devices_lie_behind_a_network(tmp_path, monkeypatch):
    (tmp_path / "mountinfo").write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 1 0:45 / /home rw - nfs4 server:/home rw\n"
        "24 1 0:46 / /scratch rw - lustre mds@tcp:/scratch rw\n"
        "25 1 0:47 / /tmp rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(store, "MOUNTS", str(tmp_path / "mountinfo"))
    assert network_devices.__wrapped__() == {os.makedev(0, 45), os.makedev(0, 46)}
