"""Units on disk, their eviction, and when a source is another one."""

import errno
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdio.core import cache as source_module
from mdio.core.cache import (
    Cache,
    CachedSource,
    CachedUnit,
    CacheFolder,
    DamagedUnitError,
    cached_trajectories,
    evict_units,
    open_unit,
    verify_units,
    write_unit,
)
from mdio.core.errors import PlanError, SourceError
from mdio.core.words import human_nbytes

RANGES = [["", 100, 70_000], ["b", 5, 10], ["", 90_000, 150_000]]


@pytest.fixture
def data():
    return np.random.default_rng(1).integers(0, 256, 220_010, dtype=np.uint8)


@pytest.fixture
def trajectory(tmp_path):
    path = tmp_path / "md.xtc"
    path.write_bytes(bytes(range(256)) * 1000)
    return path


def read(unit, file, offset, *sizes):
    rooms = [np.zeros(size, np.uint8) for size in sizes]
    n_read = unit.read_into(file, rooms, offset)
    return np.concatenate(rooms)[:n_read]


@pytest.mark.parametrize("from_disk", [True, False])
def test_ranges_of_a_unit(tmp_path, data, from_disk):
    write_unit(tmp_path / "a.unit", RANGES, data)
    unit = open_unit(tmp_path / "a.unit") if from_disk else CachedUnit(RANGES, data)
    assert (read(unit, "", 100, 70_000) == data[:70_000]).all()
    assert (read(unit, "", 65_000, 9, 1000, 80_000) == data[64_900:70_000]).all()
    assert (read(unit, "b", 7, 100) == data[70_002:70_010]).all()
    assert (read(unit, "", 239_999, 1) == data[-1:]).all()
    for file, offset in [("", 99), ("", 70_100), ("", 240_000), ("c", 5), ("b", 4)]:
        assert not read(unit, file, offset, 10).size
    unit.close()


@given(st.data())
def test_any_damage_is_found(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("unit") / "a.unit"
    data = np.arange(70_000, dtype=np.uint32).view(np.uint8)
    write_unit(path, [["", 0, data.nbytes]], data)
    raw = bytearray(path.read_bytes())
    at = drawn.draw(st.integers(0, len(raw) - 1))
    if drawn.draw(st.booleans()):
        raw[at] ^= 1 << drawn.draw(st.integers(0, 7))
    else:
        del raw[at:]
    path.write_bytes(raw)
    with pytest.raises(DamagedUnitError):
        open_unit(path).check()


def test_a_unit_under_another_name(tmp_path, data):
    write_unit(tmp_path / "a.unit", RANGES, data)
    (tmp_path / "a.unit").rename(tmp_path / "b.unit")
    with pytest.raises(DamagedUnitError, match="header"):
        open_unit(tmp_path / "b.unit")


def kept(tmp_path, trajectory, **more):
    return CachedSource(Cache(str(tmp_path / "c")), trajectory, **more)


def test_a_source_that_grows_keeps_its_units_and_one_that_is_replaced_does_not(
    tmp_path, trajectory, data
):
    first = kept(tmp_path, trajectory)
    first.store(first.name(0, 5), RANGES, data)
    mask = kept(tmp_path, trajectory).cached_mask([0, 0, 1], [5, 6, 5])
    assert mask.tolist() == [True, False, False]
    with trajectory.open("ab") as file:
        file.write(b"more")
    grown = kept(tmp_path, trajectory)
    assert grown.generation == first.generation
    assert grown.cached_mask([0], [5]).all()
    raw = trajectory.read_bytes()
    status = trajectory.stat()
    trajectory.write_bytes(raw[:-1] + b"!")  # in place, as long, of the same time
    os.utime(trajectory, ns=(status.st_atime_ns, status.st_mtime_ns))
    other = kept(tmp_path, trajectory)
    assert not other.cached_mask([0], [5]).any()
    assert not list((tmp_path / "c").glob("*/*.unit"))
    trajectory.unlink()
    trajectory.write_bytes(raw + raw)
    assert kept(tmp_path, trajectory).generation != other.generation
    trajectory.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        _ = kept(tmp_path, trajectory).generation


def test_a_file_that_lost_its_name_while_it_was_open_is_not_mixed_with_the_next(
    tmp_path, trajectory
):
    with trajectory.open("rb") as file:
        opened = os.fstat(file.fileno())
        fresh = tmp_path / "fresh"
        fresh.write_bytes(trajectory.read_bytes() * 2)
        fresh.rename(trajectory)
        old = kept(tmp_path, trajectory, status=opened)
        assert old.generation != kept(tmp_path, trajectory).generation
        old.store(old.name(0, 1), [["", 0, 3]], np.zeros(3, np.uint8))
        assert not list((tmp_path / "c").glob("*/*.unit"))


def test_size_is_bounded_and_what_was_used_last_stays(tmp_path, data):
    cache = Cache(str(tmp_path / "c"), 10 * data.nbytes)
    for number in range(30):
        path = tmp_path / f"{number % 3}.xtc"
        if not path.exists():
            path.write_bytes(b"x" * 1000 * (number + 1))
        one = CachedSource(cache, path)
        one.store(one.name(number, 1), RANGES, data)
        files = list((tmp_path / "c").glob("*/*"))
        assert sum(file.stat().st_size for file in files) <= cache.max_nbytes
    units = [path for path in files if path.suffix == ".unit"]
    assert len(units) > 6
    oldest = min(units, key=lambda path: path.stat().st_mtime_ns)
    assert len([path for path in units if path.parent == one.units_folder]) > 1
    another = tmp_path / "another.xtc"
    another.write_bytes(b"y" * 99)
    last = CachedSource(cache, another)
    for number in range(4):
        last.store(last.name(number, 1), RANGES, data)
    assert not oldest.exists()


@pytest.mark.parametrize(
    ("total", "free", "limit"),
    [(10 << 30, 3 << 30, 2 << 30), (10 << 30, 1 << 20, 0), (1 << 50, 9 << 30, 1 << 30)],
)
def test_of_a_disk_a_tenth_stays_free_of_a_large_one_8_gib(
    tmp_path, monkeypatch, total, free, limit
):
    usage = SimpleNamespace(total=total, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert CacheFolder(tmp_path).limit_nbytes(0) == limit


def test_a_trajectory_does_not_push_out_itself(tmp_path, trajectory, data):
    cache = Cache(str(tmp_path / "c"), 4 * data.nbytes)
    one = CachedSource(cache, trajectory)
    for number in range(9):
        one.store(one.name(number, number), RANGES, data)
    assert one.cached_mask(range(9), range(9)).tolist() == [True] * 3 + [False] * 6
    assert len(one.notes) == 1
    assert f"is full: it may take {human_nbytes(4 * data.nbytes)}" in one.notes[0]
    assert (
        f"{trajectory} alone needs more" in one.notes[0] and "larger --cache-size" in one.notes[0]
    )


def test_what_stays_free_is_told(tmp_path, trajectory, data, monkeypatch):
    usage = SimpleNamespace(total=10 << 30, free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    one = CachedSource(Cache(str(tmp_path / "c")), trajectory)
    one.store(one.name(0, 1), RANGES, data)
    assert "1.0 GiB of its disk stay free" in one.notes[0] and "free space there" in one.notes[0]


def test_a_full_disk_is_told_once_and_nothing_fails(tmp_path, trajectory, data, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(source_module, "write_unit", full)
    one = kept(tmp_path / "full", trajectory)
    for number in range(3):
        one.store(one.name(number, 1), RANGES, data)
    assert len(one.notes) == 1
    assert "No space left" in one.notes[0]


def test_what_is_no_folder(tmp_path, trajectory, data):
    (tmp_path / "c").write_text("a file")
    one = kept(tmp_path, trajectory)
    one.store(one.name(0, 1), RANGES, data)
    assert not one.cached_mask([0], [1]).any()
    assert len(one.notes) == 1


def test_what_is_not_ours_stays(tmp_path, trajectory, data):
    one = kept(tmp_path, trajectory)
    one.store(one.name(0, 1), RANGES, data)
    (tmp_path / "c" / "notes.txt").write_text("mine")
    (one.units_folder / "mine.txt").write_text("mine")
    assert evict_units(tmp_path / "c")[0] == 1
    assert sorted(path.name for path in (tmp_path / "c").rglob("*") if path.is_file()) == [
        "mine.txt",
        "notes.txt",
    ]


def test_looking(tmp_path, trajectory, data, monkeypatch):
    with pytest.raises(SourceError, match="no such folder"):
        list(cached_trajectories(tmp_path / "c"))
    monkeypatch.setenv("MDIO_NODE", "n/1")
    one = kept(tmp_path, trajectory, n_units=7)
    for number in range(3):
        one.store(one.name(number, 1), RANGES, data)
    monkeypatch.delenv("MDIO_NODE")
    (found,) = cached_trajectories(tmp_path / "c")
    assert found.pop("nbytes") > 3 * data.nbytes
    assert found == {
        "path": str(trajectory),
        "label": "",
        "node": "n_1",
        "units": 7,
        "units_cached": 3,
        "is_stale": False,
    }
    with trajectory.open("ab") as file:
        file.write(b"more")  # it grows
    assert not next(cached_trajectories(tmp_path / "c"))["is_stale"]
    trajectory.write_bytes(trajectory.read_bytes()[:-5])
    assert next(cached_trajectories(tmp_path / "c"))["is_stale"]
    trajectory.unlink()
    assert next(cached_trajectories(tmp_path / "c"))["is_stale"]
    path = one.units_folder / f"{one.name(1, 1)}.unit"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    bad = [where for where, problem in verify_units(tmp_path / "c") if problem is not None]
    assert bad == [path]
    assert one.open_unit(path.stem) is not None  # its header is sound; its bytes are not
    evict_units(tmp_path / "c", keep_nbytes=data.nbytes)
    assert not list((tmp_path / "c").rglob("*.unit"))
    assert not one.units_folder.exists()


def test_a_folder_by_variables_and_a_size_without_a_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SCRATCH_HERE", str(tmp_path))
    assert Cache("$SCRATCH_HERE/c").root == tmp_path / "c"
    assert Cache("{local}/c").root.name == "c"
    for given_, size in [(None, 5), ("c", 0)]:
        with pytest.raises(PlanError, match="cache"):
            Cache.from_option(given_, size)
    assert Cache.from_option(None) is None
    assert CacheFolder(tmp_path).limit_nbytes(0) > 0
