"""How outputs replace former ones, and what is put right after processes that were killed."""

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from test_publish import dead_pid, entries, make_folder

from mdio.core.errors import OutputError
from mdio.core.files import locks, replacing
from mdio.core.files.checks import manifest_in
from mdio.core.files.locks import temporary_for
from mdio.core.files.publish import publish

HOST = locks.host_name()


def data_of(path: Path) -> str:
    return (path / "000" / "data" if path.is_dir() else path).read_text()


@contextlib.contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, nth: int, *, ever_after: bool = False, exchanges: bool = True
) -> Iterator[list[str]]:
    """Let the nth change of a name fail (from 0); yield the names that changed."""
    rename, changed = replacing.rename, []

    def fail(source: Path, target: Path, flags: int = 0) -> None:
        if flags == replacing.EXCHANGE and not exchanges:
            raise OSError(errno.EINVAL, "no exchange here")
        changed.append(source.name)
        if len(changed) - 1 == nth or (ever_after and len(changed) > nth):
            raise OSError(errno.EROFS, "broken disk", str(source))
        rename(source, target, flags)

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "rename", fail)
        yield changed


def make(target: Path, text: str, *, folder: bool) -> None:
    if folder:
        make_folder(target, text)
    else:
        target.write_text(text)


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("was", ["file", "folder"])
@pytest.mark.parametrize("becomes", ["file", "folder"])
def test_a_rename_that_fails_leaves_the_former_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, becomes: str, exchanges: bool
) -> None:
    target = tmp_path / "a.out"
    make(target, "old", folder=was == "folder")
    n_failed = 0
    while True:
        with failing(monkeypatch, n_failed, exchanges=exchanges) as changed:
            try:
                with publish(target, force=True) as temporary:
                    make(temporary, "new", folder=becomes == "folder")
            except OSError as error:
                assert "broken disk" in str(error)
                assert data_of(target) == "old"
                assert entries(tmp_path) == ["a.out"]
            else:
                break
        n_failed += 1
    assert len(changed) == n_failed == (1 if exchanges or was == becomes == "file" else 2)
    assert data_of(target) == "new"
    assert entries(tmp_path) == ["a.out"]


def test_a_folder_is_never_without_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.zarr"
    make_folder(target, "old")
    with (
        pytest.raises(OSError, match="broken disk"),
        failing(monkeypatch, 0, ever_after=True),
        publish(target, force=True) as temporary,
    ):
        make_folder(temporary, "new")
    assert data_of(target) == "old"


def test_what_cannot_be_put_back_comes_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, top = make_outputs(tmp_path)
    refused = Mock(side_effect=OSError(errno.EROFS, "broken disk"))
    for nth in range(1, 4):
        with (
            monkeypatch.context() as broken,
            pytest.raises(OutputError, match=r"a\.zarr\.mdio-.*\.old, and is restored"),
            failing(monkeypatch, nth, ever_after=True),
            publish(target, force=True, companions=[top]) as temporary,
        ):
            make_folder(temporary, "new")
            temporary_for(top, temporary).write_text("new")
            broken.setattr(replacing, "_link", refused)
        assert not target.exists()
        with pytest.raises(OutputError, match="exists already"), publish(target):
            pass
        assert (data_of(target), top.read_text()) == ("old", "old")
        assert entries(tmp_path) == ["a.top.pdb", "a.zarr"]


def make_outputs(folder: Path) -> tuple[Path, Path]:
    target, top = folder / "a.zarr", folder / "a.top.pdb"
    make_folder(target, "old")
    top.write_text("old")
    (target / "000" / "link").symlink_to("data")
    return target, top


def replace_both(target: Path, top: Path) -> None:
    with publish(target, force=True, companions=[top]) as temporary:
        make_folder(temporary, "new")
        temporary_for(top, temporary).write_text("new")


def die_after(n_links: int, link: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    remaining = itertools.count(n_links, -1)

    def link_and_die(source: Path, copy: Path) -> None:
        link(source, copy)
        if next(remaining) == 0:
            os._exit(9)

    return link_and_die


def test_where_no_rename_works_any_more_the_former_output_is_linked_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, top = make_outputs(tmp_path)
    mtime_ns = target.stat().st_mtime_ns
    for nth in range(1, 4):
        with (
            pytest.raises(OSError, match="broken disk"),
            failing(monkeypatch, nth, ever_after=True) as changed,
        ):
            replace_both(target, top)
        assert len(changed) > nth
        assert (data_of(target), top.read_text()) == ("old", "old")
        assert (target / "000" / "link").readlink() == Path("data")
        assert target.stat().st_mtime_ns == mtime_ns
        assert entries(tmp_path) == ["a.top.pdb", "a.zarr"]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_process_is_killed_while_it_links_the_former_output_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    for n_links in itertools.count():
        folder = tmp_path / str(n_links)
        folder.mkdir()
        target, top = make_outputs(folder)
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(replacing, "_link", die_after(n_links, replacing._link))
            with contextlib.suppress(OSError), failing(monkeypatch, nth, ever_after=True):
                replace_both(target, top)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        replacing.clean_up([target, top])
        assert (data_of(target), top.read_text()) == ("old", "old")
        assert manifest_in(target)["uuid"] == "old"
        assert (target / "000" / "link").readlink() == Path("data")
        replacing.clean_up([target, top], discard_unfinished=True)
        assert entries(folder) == ["a.top.pdb", "a.zarr"]
        if status == 0:
            break
    assert n_links > 1


def test_a_folder_of_others_that_appeared_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, top = make_outputs(tmp_path)
    refused = Mock(side_effect=OSError(errno.EROFS, "broken disk"))
    with (
        monkeypatch.context() as broken,
        pytest.raises(OutputError, match="is restored when"),
        failing(monkeypatch, 3, ever_after=True),
    ):
        broken.setattr(replacing, "_link", refused)
        replace_both(target, top)
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    replacing.clean_up([target, top])
    assert (target / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("had_top", [True, False])
def test_companions_and_output_are_replaced_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_top: bool
) -> None:
    target, top = tmp_path / "a.zarr", tmp_path / "a.top.pdb"
    make_folder(target, "old")
    if had_top:
        top.write_text("old")
    before = entries(tmp_path)
    n_failed = 0
    while True:
        with failing(monkeypatch, n_failed):
            try:
                with publish(target, force=True, companions=[top]) as temporary:
                    make_folder(temporary, "new")
                    temporary_for(top, temporary).write_text("new")
            except OSError:
                assert entries(tmp_path) == before
                assert data_of(target) == "old"
                assert not had_top or top.read_text() == "old"
            else:
                break
        n_failed += 1
    assert n_failed == 3 + had_top
    assert (data_of(target), top.read_text()) == ("new", "new")
    assert entries(tmp_path) == ["a.top.pdb", "a.zarr"]


KILLED = """
import os, sys
from pathlib import Path
from mdio.core.files import replacing
from mdio.core.files.checks import manifest_in
from mdio.core.files.publish import publish
from mdio.core.files.locks import temporary_for
rename, left = replacing.rename, [int(sys.argv[2])]
def once(*words):
    rename(*words)
    left[0] -= 1
    if not left[0]:
        os._exit(9)
replacing.rename = once
target = Path(sys.argv[1])
top = target.with_suffix(".top.pdb")
with publish(target, force=True, companions=[top]) as temporary:
    temporary.mkdir()
    (temporary / "000").mkdir()
    (temporary / "000" / "data").write_text("new")
    temporary_for(top, temporary).write_text("new")
"""


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_killed_between_steps(tmp_path: Path, nth: int) -> None:
    target, top = tmp_path / "a.zarr", tmp_path / "a.top.pdb"
    make_folder(target, "old")
    top.write_text("old")
    words = [sys.executable, "-c", KILLED, str(target), str(nth)]
    assert subprocess.run(words, check=False).returncode == 9
    assert target.exists() == (nth == 4)  # there is no output with a topology of another one
    with pytest.raises(OutputError, match="exists already"), publish(target):  # before any work
        raise AssertionError
    assert [data_of(path) for path in (target, top)] == ["new" if nth == 4 else "old"] * 2
    assert entries(tmp_path) == ["a.top.pdb", "a.zarr"]


def test_all_is_on_disk_before_anything_former_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, top = tmp_path / "a.zarr", tmp_path / "a.top.pdb"
    done: list[str] = []

    def note(what: str) -> None:
        function = getattr(replacing, what)

        def noted(path: Path, *more: object) -> None:
            done.append(f"{what} {path.name.split('.mdio-')[0].strip('.')}{path.suffix}")
            function(path, *more)

        monkeypatch.setattr(replacing, what, noted)

    make_folder(target, "old")
    top.write_text("old")
    for what in ("flush", "rename", "remove"):
        note(what)
    with publish(target, force=True) as temporary:
        make_folder(temporary, "new")
    here = f"flush {tmp_path.name}"
    assert done[:4] == [here, "rename a.zarr.tmp", here, "remove a.zarr.tmp"]
    done.clear()
    with publish(target, force=True, companions=[top]) as temporary:
        make_folder(temporary, "newer")
        temporary_for(top, temporary).write_text("newer")
    assert done == [
        here,
        *("rename a.zarr.zarr", here, "rename a.top.pdb.pdb", here),
        *("rename a.top.pdb.tmp", here, "rename a.zarr.tmp", here),
        *("remove a.zarr.old", "remove a.top.pdb.old", here),
    ]


# What is left by others.


def test_a_power_cut_keeps_temporaries_without_their_locks(tmp_path: Path) -> None:
    target = tmp_path / "a.xtc"
    dead = tmp_path / f".a.xtc.mdio-{HOST}-{dead_pid()}-0123abcd"
    make_folder(dead.with_name(f"{dead.name}.tmp"), "half")
    dead.with_name(f"{dead.name}.journal").write_text("not flushed")
    alive = tmp_path / f".a.xtc.mdio-{HOST}-{os.getppid()}-0123abcd.tmp"
    alive.write_text("someone is at work")
    elsewhere = tmp_path / f".a.xtc.mdio-not{HOST[:20]}-1-0123abcd.tmp"
    elsewhere.write_text("who knows")
    other = tmp_path / f".b.xtc.mdio-{HOST}-{dead_pid()}-0123abcd.tmp"
    other.write_text("not ours to touch")
    with publish(target, force=True) as temporary:
        temporary.write_text("new")
    assert {alive.name, elsewhere.name, other.name, "a.xtc"} == set(entries(tmp_path))


def test_a_lock_that_is_not_believed_is_no_missing_lock(tmp_path: Path) -> None:
    target = tmp_path / "a.zarr"
    dead = f".a.zarr.mdio-{HOST}-{dead_pid()}-0123abcd"
    make_folder(tmp_path / f"{dead}.tmp", "half")
    (tmp_path / f"{dead}.lock").touch()
    os.link(tmp_path / f"{dead}.lock", tmp_path / "copy")
    replacing.clean_up([target])
    assert entries(tmp_path) == sorted(["copy", f"{dead}.lock", f"{dead}.tmp"])


def test_a_process_that_waits_to_be_reaped_is_dead() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not locks.is_running(child)
    os.waitpid(child, 0)


def test_two_of_one_process_keep_apart(tmp_path: Path) -> None:
    """Containers share host names and process numbers, as threads do."""
    target = tmp_path / "a.xtc"
    barrier = threading.Barrier(2, timeout=60)
    failed = []

    def work(text: str) -> None:
        try:
            with publish(target, force=True) as temporary:
                barrier.wait()
                with temporary.open("x") as file:
                    file.write(text)
                barrier.wait()
                assert temporary.read_text() == text
        except OutputError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=work, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_text() in ("one", "two")
    assert len(failed) == 1 and "another run has changed it meanwhile" in failed[0]
    assert entries(tmp_path) == ["a.xtc"]


AT_WORK = """
import os, sys
from mdio.core.files import locks
if sys.argv[2] == "no locks":
    locks.try_lock = lambda fd: None
elif sys.argv[2] == "container":  # with the same name, and processes numbered as here
    os.getpid = lambda: int(sys.argv[3])
from mdio.core.files.checks import manifest_in
from mdio.core.files.publish import publish
with publish(sys.argv[1], force=True) as temporary:
    temporary.write_text("half")
    print("working", flush=True)
    sys.stdin.readline()
"""


def at_work(target: Path, how: str = "as usual") -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", AT_WORK, str(target), how, str(dead_pid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "working\n"
    return child


@pytest.mark.parametrize("how", ["as usual", "no locks", "container"])
def test_a_live_temporary_stays_and_a_dead_one_goes(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.xtc"
    target.write_text("old")
    if how == "no locks":
        monkeypatch.setattr(locks, "try_lock", lambda fd: None)
    live, dead = at_work(target, how), at_work(target, how)
    dead.kill()
    dead.communicate()
    with publish(target, force=True) as temporary:
        temporary.write_text("ours")
    left = [name for name in entries(tmp_path) if name.endswith(".tmp")]
    assert len(left) == 1 and (tmp_path / left[0]).read_text() == "half"
    assert "another run has changed it meanwhile" in live.communicate("\n")[1]
    assert target.read_text() == "ours"
    assert entries(tmp_path) == ["a.xtc"]


def test_without_locks_the_process_decides() -> None:
    here = locks.process_identity(os.getpid())
    assert not locks.is_process_gone(here)
    assert locks.is_process_gone({**here, "start": here["start"] + 1})  # its number, not it
    assert locks.is_process_gone({**here, "pid": dead_pid()})
    assert locks.is_process_gone({**here, "boot": "another"})
    assert not locks.is_process_gone({**here, "namespace": "another", "pid": dead_pid()})
    assert not locks.is_process_gone({})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_leave_the_former_output(
    tmp_path: Path, number: signal.Signals, ending_signals: None
) -> None:
    target = tmp_path / "a.xtc"
    target.write_text("old")
    child = at_work(target)
    child.send_signal(number)
    child.communicate(timeout=100)
    assert child.returncode != 0
    assert target.read_text() == "old"
    if number == signal.SIGKILL:
        kinds = [name.rpartition(".")[2] for name in entries(tmp_path)]
        assert sorted(kinds) == ["lock", "tmp", "xtc"]
        with publish(target, force=True) as temporary:
            temporary.write_text("new")
    assert entries(tmp_path) == ["a.xtc"]


def test_a_lock_alone_goes_too(tmp_path: Path) -> None:
    lock = tmp_path / f".a.xtc.mdio-{HOST}-1-0123abcd.lock"
    for text in ("", '{"pid": 1}\n{"goal": "a.x', json.dumps({"pid": 1}) + "\n"):
        lock.write_text(text)
        with publish(tmp_path / "a.xtc", force=True) as temporary:
            temporary.write_text("new")
        assert entries(tmp_path) == ["a.xtc"]


def test_the_frame_index_of_a_temporary_that_a_power_cut_took_goes(tmp_path: Path) -> None:
    with publish(tmp_path / "a[1].xtc") as temporary:
        temporary.write_text("frames")
        gone, live = temporary.with_name(temporary.name.replace("a[1]", "b")), temporary
        kept = [f".{live.name}.mdio-index", ".b.xtc.mdio-index", f".{gone.name}.mdio-index"]
        for name in kept:
            (tmp_path / name).write_text("offsets")
        lost = tmp_path / f"..a[1].xtc.mdio-{HOST}-1-00ff.tmp.mdio-index"
        lost.write_text("offsets")
        replacing.clean_up([tmp_path / "a[1].xtc"])
        assert not lost.exists()
        assert all((tmp_path / name).exists() for name in kept)
