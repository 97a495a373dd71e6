"""CephFS' stripes: by extended attributes, which a fake keeps as the file system would."""

import errno
import os
from pathlib import Path

import pytest

import mdio
from mdio.layouts.striping import cephfs, file_systems
from mdio.layouts.striping.stripes import Striping

MIB = 1 << 20


class FakeCeph:
    """Keeps layouts by path; a file takes that of its folder, and none once it has bytes."""

    def __init__(self, monkeypatch) -> None:
        self.layouts = {}
        monkeypatch.setattr(os, "getxattr", self.get)
        monkeypatch.setattr(os, "setxattr", self.set)

    def get(self, path, name):
        kind = "dir" if Path(path).is_dir() else "file"
        if name != f"ceph.{kind}.layout" or str(path) not in self.layouts:
            raise OSError(errno.ENODATA, "No data available")
        return self.layouts[str(path)]

    def set(self, path, name, value):
        values = dict(word.split("=") for word in value.decode().split())
        if int(values["object_size"]) % int(values["stripe_unit"]):
            raise OSError(errno.EINVAL, "Invalid argument")
        if Path(path).is_file() and Path(path).stat().st_size:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        self.layouts[str(path)] = value + b" pool=data"


@pytest.fixture
def ceph(monkeypatch):
    monkeypatch.setattr(file_systems, "file_system_type", lambda path: "ceph")
    return FakeCeph(monkeypatch)


def test_a_new_file_is_made_empty_with_its_stripes(ceph, tmp_path):
    path = tmp_path / "new"
    found = file_systems.set_stripe(path, MIB, 4)
    assert path.stat().st_size == 0
    layout = "stripe_unit=1048576 stripe_count=4 object_size=67108864 pool=data"
    assert found["applied"] == {
        "stripe_nbytes": MIB,
        "stripe_count": 4,
        "layout": layout,
        "pool": "data",
    }
    assert found["reason"] is None
    assert cephfs.get_stripe(path) == Striping(MIB, 4, layout, "data")


def test_one_object_at_a_time_is_a_new_one_for_each_stripe(ceph, tmp_path):
    file_systems.set_stripe(tmp_path / "new", 4 * MIB)
    assert b"stripe_count=1 object_size=4194304" in ceph.layouts[str(tmp_path / "new")]


def test_a_folder_hands_its_stripes_down(ceph, tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert cephfs.get_stripe(inner) is None
    assert file_systems.set_stripe(tmp_path / "a", 2 * MIB, 3)["reason"] is None
    assert cephfs.get_stripe(inner).stripe_count == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((MIB, -1), "does not say how many servers"),
        ((MIB, 2, [(MIB, 1)]), "no progressive"),
        ((MIB, 2), "CephFS refuses stripe_unit=1048576"),
    ],
)
def test_what_is_refused_is_a_reason_and_leaves_no_file(ceph, tmp_path, monkeypatch, words, reason):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refuse)
    found = file_systems.set_stripe(tmp_path / "new", *words)
    assert found["applied"] is None and reason in found["reason"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", [b"", b"stripe_unit=many stripe_count=1", b"stripe_unit=0"])
def test_layouts_that_cannot_be_read(ceph, tmp_path, text):
    ceph.layouts[str(tmp_path)] = text
    assert cephfs._read_layout(tmp_path, "ceph.dir.layout") is None


@pytest.mark.parametrize("name", ["a.h5md", "a.zarr", "a.segments", "a.xtc"])
def test_outputs_fit_the_folders_stripes_and_say_so(adk, ceph, tmp_path, monkeypatch, name):
    ceph.layouts[str(tmp_path)] = b"stripe_unit=2097152 stripe_count=2 object_size=4194304"
    result = mdio.convert(adk["xtc"], tmp_path / name)
    assert result.plan.stripes.stripe_nbytes == 2 * MIB
    if name != "a.xtc":
        stripe = mdio.open(tmp_path / name).manifest["stripe"]
        assert stripe["applied"]["stripe_count"] == 2 and stripe["asked"] == {}


def test_stripes_are_asked_for(adk, ceph, tmp_path, monkeypatch):
    monkeypatch.setattr(file_systems, "file_system_type", lambda path: "fuse.ceph-fuse")
    mdio.convert(
        adk["xtc"], tmp_path / "a.h5md", storage=mdio.Storage(stripe_nbytes=MIB, stripe_count=4)
    )
    stripe = mdio.open(tmp_path / "a.h5md").manifest["stripe"]
    assert stripe["applied"]["stripe_count"] == 4 and stripe["reason"] is None
    assert mdio.verify(tmp_path / "a.h5md").ok
