"""Lustre's striping, against a recording ``lfs`` that answers as several versions of Lustre do."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suites.fake_lfs import FakeLfs
from suites.lustre_answers import FILE_2_5, FOLDER_2_12, MIB, PROGRESSIVE, SAMPLES

from mdio.core.errors import PlanError
from mdio.core.files import store
from mdio.core.files.store import file_system_type
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.plan import WriteOptions, plan_arrays
from mdio.layouts.striping import stripes
from mdio.layouts.striping.file_systems import set_stripe
from mdio.layouts.striping.lustre import get_stripe, mpi_io_hints, parse_getstripe


@pytest.mark.parametrize("name", SAMPLES)
def test_getstripe_of_every_version(name):
    printed, expected = SAMPLES[name]
    assert parse_getstripe(printed) == expected


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "/scratch/run has no stripe info\n",
        "stripe_count: many stripe_size: 1048576\n",
        "lmm_stripe_count: 4\n",
        "stripe_count: 0 stripe_size: 0 pattern: 0 stripe_offset: -1\n",
        "stripe_count: -7 stripe_size: 1048576\n",
        "lmm_stripe_count: 1\nlmm_stripe_size: -1\n",
        "lcme_extent.e_start: 0\nlcme_extent.e_end: EOF\n",
        "%PDF-1.4 \x00\x01",
    ],
)
def test_text_that_gives_no_striping(printed):
    assert parse_getstripe(printed) is None


@given(st.text() | st.sampled_from(list(SAMPLES)).map(lambda name: SAMPLES[name][0][7:-30]))
def test_no_text_raises(printed):
    parse_getstripe(printed)


@pytest.fixture
def lfs(tmp_path, monkeypatch):
    fake = FakeLfs(tmp_path / "fake-bin")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    return fake


def test_a_file_is_made_with_its_stripes(lfs, tmp_path):
    out = tmp_path / "out.h5md"
    lfs.answer(setstripe={"makes": True}, getstripe={"out": FILE_2_5})
    record = set_stripe(out, 2 * MIB, 4)
    assert lfs.calls == [
        ["setstripe", "-S", "2097152", "-c", "4", str(out)],
        ["getstripe", str(out)],
    ]
    assert record["asked"] == {"stripe_nbytes": 2 * MIB, "stripe_count": 4}
    assert record["applied"] == {
        "stripe_nbytes": 2 * MIB,
        "stripe_count": 4,
        "layout": "-S 2097152 -c 4",
        "pool": None,
    }
    assert record["reason"] is None
    assert out.stat().st_size == 0
    assert json.loads(json.dumps(record)) == record


def test_a_folder_is_asked_about_alone(lfs, tmp_path):
    lfs.answer(getstripe={"out": FOLDER_2_12})
    record = set_stripe(tmp_path, 4 * MIB, -1)
    assert lfs.calls[1] == ["getstripe", "-d", str(tmp_path)]
    assert record["applied"]["stripe_count"] == -1
    assert record["reason"] is None


def test_without_a_count_the_file_system_chooses(lfs, tmp_path):
    lfs.answer(getstripe={"out": FILE_2_5})
    record = set_stripe(tmp_path / "out", 2 * MIB)
    assert lfs.calls[0] == ["setstripe", "-S", "2097152", str(tmp_path / "out")]
    assert record["reason"] is None
    assert record["applied"]["stripe_count"] == 4


def test_a_progressive_layout(lfs, tmp_path):
    lfs.answer(getstripe={"out": PROGRESSIVE})
    record = set_stripe(tmp_path / "out", 4 * MIB, 8, progressive=[(256 * MIB, 1)])
    words = " ".join(lfs.calls[0])
    assert words == f"setstripe -E 268435456 -S 4194304 -c 1 -E -1 -S 4194304 -c 8 {tmp_path}/out"
    assert record["asked"]["progressive"] == [[256 * MIB, 1]]
    assert record["reason"] is None


def test_fewer_targets_than_asked(lfs, tmp_path):
    lfs.answer(getstripe={"out": FILE_2_5})
    record = set_stripe(tmp_path / "out", 2 * MIB, 96)
    assert record["applied"]["stripe_count"] == 4
    assert record["reason"] == "the stripe count is 4, not 96"


def test_another_size_than_asked(lfs, tmp_path):
    lfs.answer(getstripe={"out": FILE_2_5})
    assert set_stripe(tmp_path / "out", MIB, 4)["reason"] == (
        "the stripe size is 2097152, not 1048576"
    )


def test_a_refusal_is_a_record(lfs, tmp_path):
    complaint = "error: setstripe: create stripe file 'out' failed:\n  Invalid argument\n"
    lfs.answer(setstripe={"code": 22, "err": complaint, "makes": True})
    record = set_stripe(tmp_path / "out", 1000, 4)
    assert record["applied"] is None
    assert record["reason"] == (
        "lfs setstripe failed with exit code 22: "
        "error: setstripe: create stripe file 'out' failed: Invalid argument"
    )
    assert not (tmp_path / "out").exists(), "a file with the wrong layout was left"


def test_a_refusal_spares_the_file_that_was_there(lfs, tmp_path):
    (tmp_path / "out").touch()
    lfs.answer(setstripe={"code": 17, "err": "stripe already set"})
    assert "stripe already set" in set_stripe(tmp_path / "out", MIB, 4)["reason"]
    assert (tmp_path / "out").exists()


def test_a_hanging_lfs_is_given_up(lfs, tmp_path, monkeypatch):
    monkeypatch.setattr(stripes, "TIMEOUT_S", 0.4)
    lfs.answer(setstripe={"sleep": 200}, getstripe={"sleep": 200})
    start = time.monotonic()
    record = set_stripe(tmp_path / "out", MIB, 4)
    assert get_stripe(tmp_path) is None
    assert time.monotonic() - start < 60
    assert record["applied"] is None
    assert record["reason"] == "lfs setstripe did not answer within 0.4 s"


@pytest.mark.parametrize("out", ["", "no stripe info", "\xff\xfe\x00 lmm_stripe_count: x"])
def test_odd_output_is_a_record(lfs, tmp_path, out):
    lfs.answer(getstripe={"out": out})
    record = set_stripe(tmp_path / "out", MIB, 4)
    assert record["applied"] is None
    assert "does not show them" in record["reason"]


def test_no_lfs_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    record = set_stripe(tmp_path / "out", MIB, 4)
    assert record["applied"] is None
    assert record["reason"] == "there is no lfs command here"
    assert get_stripe(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_an_lfs_that_cannot_be_run(tmp_path, monkeypatch):
    (tmp_path / "lfs").write_bytes(b"\x7fELF not really")
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "lfs cannot be run" in set_stripe(tmp_path / "out", MIB)["reason"]


def test_get_stripe_of_a_file(lfs, tmp_path):
    source = tmp_path / "adk.xtc"
    source.touch()
    lfs.answer(getstripe={"out": PROGRESSIVE})
    assert get_stripe(source) == SAMPLES["progressive"][1]
    assert lfs.calls == [["getstripe", str(source)]]


def test_file_system_types_are_those_of_findmnt(tmp_path):
    for path in (tmp_path, Path("/proc/self/status"), Path("/dev/null")):
        expected = subprocess.run(
            ["findmnt", "-no", "FSTYPE", "-T", path], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert file_system_type(path) == expected.splitlines()[-1]


def test_file_system_of_mounts_that_are_not_here(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(store, "MOUNTS", str(table))
    table.write_text(
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 21 0:40 / /scratch rw shared:9 master:2 - lustre 10.0.0.1@o2ib:/work rw,flock\n"
        "31 21 0:41 / /home rw - nfs4 server:/home rw\n"
        "32 31 0:42 / /home/my\\040data rw - gpfs gpfs0 rw\n"
        "33 21 0:43 / /mnt rw - beegfs beegfs_nodev rw\n"
        "34 21 0:44 / /mnt rw - xfs /dev/sdb rw\n"
        "a line that is none\n"
    )
    for path, expected in {
        "/scratch/run/not/yet/there": "lustre",
        "/scratchy": "ext4",
        "/home/me": "nfs4",
        "/home/my data/x": "gpfs",
        "/mnt/x": "xfs",
    }.items():
        assert file_system_type(path) == expected
    monkeypatch.setattr(store, "MOUNTS", str(tmp_path / "none"))
    assert file_system_type("/") == "unknown"


def info(n_frames=4000, n_atoms=3341):
    return TrajectoryInfo("xtc", "a.xtc", n_frames, n_atoms, 1.0, 0.0, 1.0 * n_frames)


def test_hints_follow_the_plan():
    plan = plan_arrays(info(), WriteOptions(stripe_nbytes=4 * MIB, stripe_count=8), quantised=False)
    assert plan.stripes.alignment_nbytes == 4 * MIB
    assert mpi_io_hints(plan) == {
        "striping_unit": "4194304",
        "striping_factor": "8",
        "cb_nodes": "8",
        "romio_cb_write": "disable",
        "romio_cb_read": "automatic",
        "romio_ds_write": "disable",
        "romio_ds_read": "automatic",
    }


@pytest.mark.parametrize("count", [None, -1])
def test_hints_without_a_number_of_targets(count):
    plan = plan_arrays(info(), WriteOptions(stripe_count=count), quantised=False)
    assert {"striping_factor", "cb_nodes"}.isdisjoint(mpi_io_hints(plan))


def test_compressed_chunks_lie_anywhere_so_they_are_gathered():
    plan = plan_arrays(info(), WriteOptions(compression="gzip:1"), quantised=False)
    assert mpi_io_hints(plan)["romio_cb_write"] == "enable"


def test_hints_from_the_command_line_win():
    plan = plan_arrays(info(), WriteOptions(stripe_count=8), quantised=False)
    hints = mpi_io_hints(plan, ["cb_nodes=2", "cb_config_list=*:4", "note=a=b"])
    assert (hints["cb_nodes"], hints["cb_config_list"], hints["note"]) == ("2", "*:4", "a=b")


@pytest.mark.parametrize("text", ["cb_nodes", "=8", "cb_nodes=", ""])
def test_hints_of_the_wrong_shape(text):
    plan = plan_arrays(info(), WriteOptions(), quantised=False)
    with pytest.raises(PlanError, match="KEY=VALUE"):
        mpi_io_hints(plan, [text])
