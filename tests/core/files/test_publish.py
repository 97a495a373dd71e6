"""Outputs appear whole or not at all."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from suites.permissions import folder_of_ordinary_user

from mdio.core.errors import OutputError
from mdio.core.files import locks, writing
from mdio.core.files.journal import Journal
from mdio.core.files.locks import temporary_for
from mdio.core.files.publish import publish

pytestmark = pytest.mark.usefixtures("ending_signals")


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


def make_folder(path: Path, text: str) -> None:
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps({"format": "mdio", "uuid": text}))
    (path / "000").mkdir()
    (path / "000" / "data").write_text(text)


def test_file_appears_only_in_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a.xtc"
    with publish(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.xtc.mdio-") and temporary.name.endswith(".tmp")
        assert str(os.getpid()) in temporary.name
        temporary.write_bytes(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert entries(tmp_path) == ["a.xtc"]


def test_relative_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with publish("a.xtc") as temporary:
        temporary.write_bytes(b"new")
    assert entries(tmp_path) == ["a.xtc"]


@pytest.mark.parametrize("was", ["file", "folder"])
@pytest.mark.parametrize("becomes", ["file", "folder"])
def test_force_replaces(tmp_path: Path, was: str, becomes: str) -> None:
    target = tmp_path / "a.out"
    if was == "file":
        target.write_text("old")
    else:
        make_folder(target, "old")
    with publish(target, force=True) as temporary:
        if becomes == "file":
            temporary.write_text("new")
        else:
            make_folder(temporary, "new")
        inside = target if was == "file" else target / "000" / "data"
        assert inside.read_text() == "old"
    inside = target if becomes == "file" else target / "000" / "data"
    assert inside.read_text() == "new"
    assert entries(tmp_path) == ["a.out"]


def test_existing_target_is_refused_before_any_work(tmp_path: Path) -> None:
    target = tmp_path / "a.xtc"
    target.write_text("old")
    with pytest.raises(OutputError, match=r"exists already.*--force"), publish(target):
        raise AssertionError("the block was entered")
    assert target.read_text() == "old"


def test_force_is_offered_only_where_it_replaces(tmp_path: Path) -> None:
    target = tmp_path / "notes.zarr"
    target.mkdir()
    (target / "notes.txt").touch()
    for force, said in ((False, "exists already; choose another name$"), (True, "not replaced")):
        with pytest.raises(OutputError, match=said), publish(target, force=force):
            raise AssertionError("the block was entered")


def test_target_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "a.xtc"
    with pytest.raises(OutputError, match="appeared"), publish(target) as temporary:
        temporary.write_text("mine")
        target.write_text("theirs")
    assert target.read_text() == "theirs"
    assert entries(tmp_path) == ["a.xtc"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("folder", [False, True])
def test_failure_leaves_what_was_there(
    tmp_path: Path, kind: type[BaseException], folder: bool
) -> None:
    target = tmp_path / "a.out"
    make_folder(target, "old")
    with pytest.raises(kind), publish(target, force=True) as temporary:
        if folder:
            make_folder(temporary, "new")
        else:
            temporary.write_text("new")
        raise kind
    assert (target / "000" / "data").read_text() == "old"
    assert entries(tmp_path) == ["a.out"]


def test_nothing_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError), publish(tmp_path / "a.xtc"):
        pass
    assert entries(tmp_path) == []


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"), publish(tmp_path / "no" / "a.xtc"):
        pass


def test_read_only_folder() -> None:
    with folder_of_ordinary_user() as folder:
        folder.chmod(0o500)
        with pytest.raises(OutputError, match="not writable"), publish(folder / "a.xtc"):
            pass
        folder.chmod(0o700)
        with publish(folder / "a.xtc") as temporary:
            temporary.write_text("new")


def test_unwritable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="not writable"), publish(tmp_path / "a.xtc"):
        pass


def test_source_is_never_replaced(tmp_path: Path) -> None:
    source = tmp_path / "a.segments"
    make_folder(source, "frames")
    link = tmp_path / "link.segments"
    link.symlink_to(source)
    for target in (source, link, source / "000" / "x.xtc", tmp_path):
        for given in (source, link):
            with (
                pytest.raises(OutputError, match="is the source"),
                publish(target, force=True, sources=[given]),
            ):
                pass
    assert (source / "000" / "data").read_text() == "frames"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thesis.tex", "years"),
        ("manifest.json", '{"name": "a web application", "uuid": "1"}'),
        ("manifest.json", "[]"),
        ("zarr.json", '{"zarr_format": 3, "node_type": "group", "attributes": {"mdio": 1}}'),
        (".zgroup", '{"zarr_format": 2}'),
        ("parts.json", '{"parts": ["screws"]}'),
    ],
)
def test_force_does_not_take_a_folder_of_something_else(
    tmp_path: Path, name: str, text: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years")
    (home / name).write_text(text)
    with pytest.raises(OutputError, match="not an output of mdio"), publish(home, force=True):
        pass
    assert (home / name).read_text() == text


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    os.mkfifo(tmp_path / "home" / "manifest.json")
    with pytest.raises(OutputError, match="not an output"), publish(tmp_path / "home", force=True):
        pass


@pytest.mark.parametrize("force", [False, True])
def test_a_link_to_itself(tmp_path: Path, force: bool) -> None:
    loop = tmp_path / "a.xtc"
    loop.symlink_to(loop)
    with pytest.raises(OutputError, match="leads back to itself"), publish(loop, force=force):
        pass


def test_what_is_written_is_looked_at_before_it_is_renamed(tmp_path: Path) -> None:
    target = tmp_path / "a.segments"
    make_folder(target, "old")

    def check(path: Path) -> None:
        assert path == temporary and (path / "000" / "data").read_text() == "new"
        assert (target / "000" / "data").read_text() == "old"
        raise OutputError("half of it is missing")

    with (
        pytest.raises(OutputError, match="half"),
        publish(target, force=True, check=check) as temporary,
    ):
        make_folder(temporary, "new")
    assert (target / "000" / "data").read_text() == "old"
    assert entries(tmp_path) == ["a.segments"]


def test_devices_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="neither a file"), publish(tmp_path / "pipe", force=True):
        pass


def test_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="too long"), publish(tmp_path / ("a" * 250)):
        pass
    room = 255 - locks.longest_name_nbytes(tmp_path / "a")
    for n in (room + 2, room + 5):
        with pytest.raises(OutputError, match="too long by"), publish(tmp_path / ("a" * n)):
            pytest.fail("it is told before any work is done")
    target = tmp_path / ("a" * (room + 1))
    with publish(target) as temporary, Journal(temporary, {}):
        temporary.write_text("new")
    assert target.read_text() == "new"


@pytest.mark.parametrize("folder", [True, False])
def test_who_had_the_former_output_has_the_new_one(tmp_path: Path, folder: bool) -> None:
    target, top = tmp_path / "a.out", tmp_path / "a.top.pdb"
    for companions in ([], [top]):
        with publish(target, force=True, companions=[top]) as temporary:
            make_folder(temporary, "old") if folder else temporary.write_text("old")
            temporary_for(top, temporary).write_text("old")
        target.chmod(0o750 if folder else 0o640)
        top.chmod(0o600)
        with publish(target, force=True, companions=companions) as temporary:
            make_folder(temporary, "new") if folder else temporary.write_text("new")
            if companions:
                temporary_for(top, temporary).write_text("new")
        assert stat.S_IMODE(target.stat().st_mode) == (0o750 if folder else 0o640)
        assert stat.S_IMODE(top.stat().st_mode) == 0o600
        assert entries(tmp_path) == ["a.out", "a.top.pdb"]


def test_folders_that_are_read_only_are_replaced() -> None:
    with folder_of_ordinary_user() as folder:
        target = folder / "a.zarr"
        make_folder(target, "old")
        for path in (target / "000" / "data", target / "000", target):
            path.chmod(0o444 if path.is_file() else 0o555)
        with publish(target, force=True) as temporary:
            make_folder(temporary, "new")
        assert entries(folder) == ["a.zarr"]
        assert (target / "000" / "data").read_text() == "new"
        target.chmod(0o700)


def test_full_disk_becomes_an_output_error(tmp_path: Path) -> None:
    target = tmp_path / "a.xtc"
    message = r"a\.xtc: the disk is full"
    with pytest.raises(OutputError, match=message), publish(target) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert entries(tmp_path) == []


def test_companions_come_with_the_target(tmp_path: Path) -> None:
    target, top, other = (tmp_path / name for name in ("a.zarr", "a.top.pdb", "a.csv"))
    with publish(target, companions=[top, other]) as temporary:
        make_folder(temporary, "new")
        temporary_for(top, temporary).write_text("atoms")
        assert not top.exists()
    assert entries(tmp_path) == ["a.top.pdb", "a.zarr"]
    message = r"a\.top\.pdb: it exists"
    with pytest.raises(OutputError, match=message), publish(tmp_path / "b", companions=[top]):
        pass
    with pytest.raises(ValueError), publish(target, companions=[top], force=True) as temporary:
        temporary_for(top, temporary).write_text("other atoms")
        raise ValueError
    assert top.read_text() == "atoms"
    assert entries(tmp_path) == ["a.top.pdb", "a.zarr"]


def test_forked_child_does_not_tear_down_its_parents_work(tmp_path: Path) -> None:
    code = """
import os, sys
from mdio.core.files.publish import publish
with publish(sys.argv[1]) as temporary:
    temporary.write_text("new")
    child = os.fork()
    if child == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    target = tmp_path / "a.xtc"
    subprocess.run([sys.executable, "-c", code, str(target)], check=True, timeout=100)
    assert target.read_text() == "new"


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with publish(tmp_path / "a.xtc") as temporary:
        temporary.write_text("new")
    assert signal.getsignal(signal.SIGTERM) == before


def test_mtime_survives(tmp_path: Path) -> None:
    with publish(tmp_path / "a.segments") as temporary:
        make_folder(temporary, "new")
        before = (temporary / "000" / "data").stat().st_mtime_ns
        time.sleep(0.01)
    assert (tmp_path / "a.segments" / "000" / "data").stat().st_mtime_ns == before


def test_what_marks_an_output_is_removed_once_the_rest_is_gone_for_good(tmp_path, monkeypatch):
    """A power cut may keep what was not flushed: without a manifest it would be nobody's."""
    output, other = tmp_path / "a.zarr", tmp_path / "b"
    for folder in (output, other):
        (folder / "particles").mkdir(parents=True)
        (folder / "particles" / "c.0").touch()
        (folder / "notes").touch()
    (output / "zarr.json").touch()
    flushed = []
    monkeypatch.setattr(
        writing, "flush", lambda path: flushed.append((path, [one.name for one in path.iterdir()]))
    )
    writing.remove(output)
    writing.remove(other)
    assert flushed == [(output, ["zarr.json"])]
    assert not list(tmp_path.iterdir())
