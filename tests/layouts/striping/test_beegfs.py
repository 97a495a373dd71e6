"""BeeGFS' stripes, against a recording ``beegfs-ctl``; and file systems that have none."""

import os
from pathlib import Path

import pytest
from suites.fake_lfs import FakeLfs

from mdio.layouts.striping import beegfs, file_systems
from mdio.layouts.striping.stripes import Striping

MIB = 1 << 20
FILE_7 = """Entry type: file
EntryID: 0-5D285750-1
Metadata node: node1 [ID: 1]
Stripe pattern details:
+ Type: RAID0
+ Chunksize: 512K
+ Number of storage targets: desired: 2; actual: 2
+ Storage targets:
  + 1 @ node1 [ID: 1]
  + 2 @ node2 [ID: 2]
"""
FOLDER_8 = """Entry type: directory
EntryID: root
Stripe pattern details:
+ Type: RAID0
+ Chunksize: 1M
+ Number of storage targets: desired: 4
+ Storage Pool: 1  (default)
"""


@pytest.fixture
def ctl(tmp_path, monkeypatch):
    monkeypatch.setattr(file_systems, "file_system_type", lambda path: "beegfs")
    fake = FakeLfs(tmp_path / "fake-bin", "beegfs-ctl")
    fake.answer(**{"--getentryinfo": {"out": FOLDER_8}})
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    return fake


@pytest.mark.parametrize(
    ("printed", "nbytes", "count"), [(FILE_7, 512 << 10, 2), (FOLDER_8, MIB, 4)]
)
def test_entry_info_of_versions(printed, nbytes, count):
    found = beegfs.parse_entry_info(printed)
    assert (found.stripe_nbytes, found.stripe_count) == (nbytes, count)


@pytest.mark.parametrize("printed", ["", "+ Chunksize: many", FILE_7.replace("storage", "other")])
def test_text_that_gives_no_striping(printed):
    assert beegfs.parse_entry_info(printed) is None


def test_a_file_gets_its_pattern_from_a_folder_of_its_own(ctl, tmp_path):
    path = tmp_path / "new"
    found = file_systems.set_stripe(path, MIB, 4)
    folder = f"{path}.stripes"
    assert ctl.calls[0] == ["--setpattern", "--chunksize=1048576", "--numtargets=4", folder]
    assert path.is_file() and not Path(folder).exists()
    assert found["reason"] is None and found["applied"]["stripe_count"] == 4


def test_a_folder_is_asked_itself(ctl, tmp_path):
    file_systems.set_stripe(tmp_path, 2 * MIB)
    assert ctl.calls[0] == ["--setpattern", "--chunksize=2097152", str(tmp_path)]


def test_users_that_may_not(ctl, tmp_path):
    ctl.answer(**{"--setpattern": {"code": 1, "err": "Only root may do this"}})
    found = file_systems.set_stripe(tmp_path / "new", MIB, 4)
    assert found["applied"] is None and "Only root may do this" in found["reason"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fake-bin"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [("fuse.mfsmount", "MooseFS keeps"), ("nfs4", "NFS does not tell")],
)
def test_file_systems_without_stripes_to_ask_for(tmp_path, monkeypatch, kind, words):
    monkeypatch.setattr(file_systems, "file_system_type", lambda path: kind)
    found = file_systems.set_stripe(tmp_path / "new", MIB, 4)
    assert words in found["reason"] and not (tmp_path / "new").exists()
    assert file_systems.get_stripe(tmp_path) is None and not file_systems.has_stripes(tmp_path)


def test_each_file_system_is_asked_its_own_way(ctl, tmp_path):
    assert isinstance(file_systems.get_stripe(tmp_path), Striping)
    assert ctl.calls == [["--getentryinfo", str(tmp_path)]]
