"""One at a time changes what has a name; who is dead is in nobody's way."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from mdio.core.errors import OutputError
from mdio.core.files import locks
from mdio.core.files.locks import change_lock, host_name, process_identity, state_at
from mdio.core.files.publish import publish


def dead_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        return process_identity(child.pid)


def lock_of(path):
    return path.with_name(f".{path.name}.mdio-turn")


def test_one_at_a_time(tmp_path):
    target, order = tmp_path / "a", []

    def work():
        with change_lock(target):
            order.append("begin")
            time.sleep(0.01)
            order.append("end")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["begin", "end"] * 8
    assert not list(tmp_path.iterdir())


def test_a_dead_one_of_this_machine_is_in_nobodys_way(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "MAX_WAIT_S", 0)
    target = tmp_path / "a"
    said = {"host": host_name(), **dead_process()}
    for text in (json.dumps(said), json.dumps(said | {"boot": "another"})):
        lock_of(target).write_text(text)
        with change_lock(target):
            assert str(os.getpid()) in lock_of(target).read_text()
        assert not list(tmp_path.iterdir())
    lock_of(target).write_text(json.dumps(said))
    with publish(target) as temporary:
        temporary.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("said", [{"host": "elsewhere", "pid": 1}, {}, [], None])
def test_one_that_nobody_knows_of_is_waited_for_but_not_for_ever(tmp_path, monkeypatch, said):
    target = tmp_path / "a"
    lock_of(target).write_text("" if said is None else json.dumps(said))
    monkeypatch.setattr(locks, "MAX_WAIT_S", 0)
    with (
        pytest.raises(OutputError, match=r"remove .*mdio-turn, and run this again"),
        change_lock(target),
    ):
        raise AssertionError
    assert lock_of(target).exists()
    monkeypatch.setattr(locks, "STALE_S", -1)
    with change_lock(target):
        pass
    assert not list(tmp_path.iterdir())


def test_a_live_one_is_waited_for(tmp_path, monkeypatch):
    target = tmp_path / "a"
    monkeypatch.setattr(locks, "MAX_WAIT_S", 0)
    with change_lock(target), pytest.raises(OutputError, match=f"process {os.getpid()} on "):
        change_lock(target).__enter__()
    assert not list(tmp_path.iterdir())


def test_a_state_is_that_of_what_is_there(tmp_path):
    path = tmp_path / "a"
    seen = {state_at(path)}
    assert seen == {None}
    path.write_text("one")
    seen.add(state_at(path))
    (tmp_path / "b").write_text("one")
    (tmp_path / "b").rename(path)
    seen.add(state_at(path))
    path.unlink()
    path.mkdir()
    seen.add(state_at(path))
    (path / "zarr.json").write_text("{}")
    seen.add(state_at(path))
    (path / "more").write_text("an index, say")
    assert state_at(path) in seen
    (path / "zarr.json").write_text("[]")
    seen.add(state_at(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    seen.add(state_at(link))
    assert len(seen) == 7


def test_what_another_run_has_made_stays(tmp_path):
    target = tmp_path / "a"
    for there in (False, True):
        changed = pytest.raises(OutputError, match="another run has changed it meanwhile")
        with changed, publish(target, force=True) as mine:
            mine.write_text("mine")
            with publish(target, force=True) as theirs:
                theirs.write_text(f"theirs {there}")
        assert target.read_text() == f"theirs {there}"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
