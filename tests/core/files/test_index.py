"""The stored frame index: valid, stale, damaged, unwritable, and in a race."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from suites.permissions import folder_of_ordinary_user

from mdio.core.errors import SourceError
from mdio.core.files.index import FrameIndex, index_paths, load_index

FRAME = 100


class Scanner:
    """Finds frames of 100 bytes, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, path: Path) -> FrameIndex:
        self.calls += 1
        nbytes = path.stat().st_size
        return FrameIndex(np.arange(0, nbytes, FRAME), nbytes, 7)


def make_file(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "a.bin"
    path.write_bytes(np.random.default_rng(0).bytes(300 * FRAME))
    return path


@pytest.fixture
def file(tmp_path):
    return make_file(tmp_path / "data")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("MDIO_CACHE_DIR", str(folder))
    return folder


def beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.mdio-index")


def assert_index(index: FrameIndex, path: Path) -> None:
    nbytes = path.stat().st_size
    np.testing.assert_array_equal(index.offsets, np.arange(0, nbytes, FRAME))
    assert index.offsets.dtype == np.int64
    assert (index.end, index.n_atoms, index.n_frames) == (nbytes, 7, nbytes // FRAME)
    np.testing.assert_array_equal(index.frame_nbytes, [FRAME] * (nbytes // FRAME))


def test_the_scan_is_done_once(file):
    scan = Scanner()
    for _ in range(3):
        assert_index(load_index(file, scan), file)
    assert scan.calls == 1
    assert sorted(p.name for p in file.parent.iterdir()) == [".a.bin.mdio-index", "a.bin"]


def test_a_file_that_grew_is_scanned_again(file):
    scan = Scanner()
    load_index(file, scan)
    with file.open("ab") as stream:
        stream.write(bytes(FRAME))
    assert_index(load_index(file, scan), file)
    assert_index(load_index(file, scan), file)
    assert scan.calls == 2


@pytest.mark.parametrize("where", [0, -1], ids=["head", "tail"])
def test_other_contents_of_the_same_size_and_time_are_seen(file, where):
    scan = Scanner()
    load_index(file, scan)
    status = file.stat()
    raw = bytearray(file.read_bytes())
    raw[where] ^= 1
    file.write_bytes(raw)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    load_index(file, scan)
    assert scan.calls == 2


def test_a_touched_file_is_scanned_again(file):
    scan = Scanner()
    load_index(file, scan)
    os.utime(file, ns=(0, 12345))
    load_index(file, scan)
    assert scan.calls == 2


def test_any_damage_to_the_index_is_repaired(file):
    scan = Scanner()
    load_index(file, scan)
    good = beside(file).read_bytes()
    random = np.random.default_rng(1)
    positions = [*range(56), *random.integers(56, len(good), 30).tolist()]
    for n_before, position in enumerate(positions, start=1):
        bad = bytearray(good)
        bad[position] ^= 1 << int(random.integers(8))
        beside(file).write_bytes(bad)
        assert_index(load_index(file, scan), file)
        assert scan.calls == 1 + n_before
        assert beside(file).read_bytes() == good
    for nbytes in (0, 7, 56, len(good) - 1):
        beside(file).write_bytes(good[:nbytes])
        assert_index(load_index(file, scan), file)
    beside(file).write_bytes(good + b"\0")
    assert_index(load_index(file, scan), file)
    assert scan.calls == 1 + len(positions) + 5


def test_another_number_of_atoms_than_known_is_scanned_again(file):
    scan = Scanner()
    load_index(file, scan)
    load_index(file, scan, n_atoms=7)
    assert scan.calls == 1
    load_index(file, scan, n_atoms=8)
    assert scan.calls == 2


def test_the_cache_folder_takes_what_cannot_lie_beside(file, cache_folder):
    beside(file).mkdir()  # nothing can be renamed onto a folder
    scan = Scanner()
    for _ in range(2):
        assert_index(load_index(file, scan), file)
    assert scan.calls == 1
    (stored,) = cache_folder.iterdir()
    assert stored.suffix == ".mdio-index"
    assert [p.name for p in file.parent.iterdir() if p.name.startswith(".mdio")] == []


def test_links_share_an_index_in_the_cache(file, tmp_path, cache_folder):
    scan = Scanner()
    for number in range(2):
        link = tmp_path / f"link{number}.bin"
        link.symlink_to(file)
        beside(link).mkdir()
        load_index(link, scan)
    assert scan.calls == 1


def test_a_read_only_folder(monkeypatch):
    scan = Scanner()
    with folder_of_ordinary_user() as folder:
        monkeypatch.setenv("MDIO_CACHE_DIR", str(folder / "cache"))
        file = make_file(folder / "data")
        file.parent.chmod(0o500)
        for _ in range(2):
            assert_index(load_index(file, scan), file)
        assert len(list((folder / "cache").iterdir())) == 1
        assert list(file.parent.iterdir()) == [file]
    assert scan.calls == 1


def test_reading_goes_on_if_nothing_can_be_stored(file, tmp_path, monkeypatch):
    beside(file).mkdir()
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("MDIO_CACHE_DIR", str(tmp_path / "no-folder" / "mdio"))
    scan = Scanner()
    for _ in range(2):
        assert_index(load_index(file, scan), file)
    assert scan.calls == 2


def _on_a_full_disk(path: Path, queue) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    index = load_index(path, Scanner())
    queue.put((index.n_frames, sorted(p.name for p in path.parent.iterdir())))


def test_reading_goes_on_if_the_disk_is_full(file):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_on_a_full_disk, args=(file, queue))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == (300, ["a.bin"])


def test_where_the_cache_is(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folders = [list(index_paths(file))[1].parent]
    monkeypatch.delenv("MDIO_CACHE_DIR")
    folders.append(list(index_paths(file))[1].parent)
    monkeypatch.delenv("XDG_CACHE_HOME")
    folders.append(list(index_paths(file))[1].parent)
    assert folders == [tmp_path / "cache", tmp_path / "xdg/mdio", tmp_path / "home/.cache/mdio"]


def test_no_home(file, monkeypatch):
    for name in ("MDIO_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    beside(file).mkdir()
    assert_index(load_index(file, Scanner()), file)


def test_a_file_that_grows_during_the_scan(file):
    def scan(path: Path) -> FrameIndex:
        with path.open("ab") as stream:
            stream.write(bytes(FRAME))
        return Scanner()(path)

    assert load_index(file, scan).n_frames == 301
    assert not beside(file).exists()


def test_missing_files_and_failed_scans(file, tmp_path):
    with pytest.raises(SourceError, match=r"none\.bin: no such file"):
        load_index(tmp_path / "none.bin", Scanner())

    def fail(path: Path) -> FrameIndex:
        raise SourceError(f"{path}: frame 3 is truncated")

    with pytest.raises(SourceError, match="frame 3"):
        load_index(file, fail)
    assert not beside(file).exists()


def _open_together(path: Path, barrier, queue) -> None:
    barrier.wait(60)
    scan = Scanner()
    n_frames = {load_index(path, scan).n_frames for _ in range(50)}
    queue.put((n_frames, scan.calls))


@pytest.mark.parametrize("damaged", [False, True])
def test_many_processes_at_once(file, damaged):
    if damaged:
        beside(file).write_bytes(b"MDIOIDX1" + bytes(200))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    barrier = context.Barrier(8)
    arguments = (file, barrier, queue)
    children = [context.Process(target=_open_together, args=arguments) for _ in range(8)]
    for child in children:
        child.start()
    found = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert [n_frames for n_frames, _ in found] == [{300}] * 8
    assert all(calls <= 1 for _, calls in found)
    assert sorted(p.name for p in file.parent.iterdir()) == [".a.bin.mdio-index", "a.bin"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_index_of_another_user_is_not_believed(file, cache_folder):
    """It could leave out frames; one of the user whose file it is could as well change that."""
    half = FrameIndex(np.arange(0, 300 * FRAME, 2 * FRAME), 300 * FRAME, 7)
    assert_index(load_index(file, Scanner()), file)
    load_index(file, lambda _: half, n_atoms=7)
    beside(file).unlink()
    load_index(file, lambda _: half)
    assert load_index(file, Scanner()).n_frames == 150
    os.chown(beside(file), 65534, -1)
    scan = Scanner()
    for _ in range(2):  # the second time it lies in this user's cache
        assert_index(load_index(file, scan), file)
    assert scan.calls == 1 and beside(file).stat().st_uid == 65534
    os.chown(file, 65534, -1)
    assert load_index(file, scan).n_frames == 150
