"""A cache is one user's alone: nothing of others is believed, and nothing is shown to them."""

import json
import os
import stat

import numpy as np
import pytest
from suites.small_adk import small_adk

import mdio
from mdio.core.cache import PREFIX, Cache, write_unit
from mdio.layouts.base import cache_notes

ANOTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(params=["dcd", "xtc", "trr", "ncdf"])
def trajectory(tmp_path, request):
    path = tmp_path / f"md.{request.param}"
    atoms = small_adk().atoms
    atoms.write(path, frames=atoms.universe.trajectory[:12])
    path.chmod(0o600)
    return path


def read(path, cache=None):
    with mdio.open(path, cache=cache) as layout:
        return layout.read(0, layout.info.n_frames).positions.copy()


def units_in(cache):
    return sorted(path for path in cache.rglob("*.unit"))


def forge(unit):
    """Write other numbers into a unit, with the right checksums."""
    data = unit.read_bytes()
    header = json.loads(data[PREFIX.size : PREFIX.size + PREFIX.unpack(data[: PREFIX.size])[1]])
    body = np.frombuffer(data[-header["nbytes"] :], np.uint8).copy()
    body[len(body) // 2 :: 97] ^= 1
    unit.unlink()
    write_unit(unit, header["ranges"], body)


@as_root
@pytest.mark.parametrize("whose", ["the unit", "its folder", "the cache", "all"])
def test_units_of_another_user_are_not_believed(tmp_path, trajectory, whose):
    cache = tmp_path / "cache"
    expected = read(trajectory, cache)
    assert np.array_equal(read(trajectory, cache), expected)
    for unit in units_in(cache):
        forge(unit)
        changed = {"the unit": [unit], "its folder": [unit.parent, unit], "the cache": [cache]}
        for path in changed.get(whose, [unit, unit.parent, cache]):
            os.chown(path, ANOTHER, -1)
    for _ in range(2):
        assert np.array_equal(read(trajectory, cache), expected)


@pytest.mark.parametrize("mode", [0o1777, 0o770, 0o757])
def test_a_folder_in_which_others_write_has_one_for_each_user(tmp_path, trajectory, mode):
    cache = tmp_path / "cache"
    expected = read(trajectory, cache)
    for unit in units_in(cache):
        forge(unit)
    cache.chmod(mode)
    for _ in range(2):
        assert np.array_equal(read(trajectory, cache), expected)
    own = cache / f"uid-{os.geteuid()}"
    assert Cache.from_option(cache).root == own and units_in(own)


def test_units_that_others_may_change_are_not_believed(tmp_path, trajectory):
    cache = tmp_path / "cache"
    expected = read(trajectory, cache)
    for unit in units_in(cache):
        forge(unit)
        unit.chmod(0o666)
    assert np.array_equal(read(trajectory, cache), expected)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0])
def test_nobody_else_reads_what_is_kept(tmp_path, trajectory, umask):
    cache = tmp_path / "new" / "cache"
    before = os.umask(umask)
    try:
        expected = read(trajectory, cache)
        assert np.array_equal(read(trajectory, cache), expected)
    finally:
        os.umask(before)
    for path in (cache, *cache.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    used = units_in(cache)
    assert used


def test_folders_of_older_versions_are_closed(tmp_path, trajectory):
    cache = tmp_path / "cache"
    read(trajectory, cache)
    (home,) = {unit.parent for unit in units_in(cache)}
    for unit in units_in(cache):
        unit.unlink()
    home.chmod(0o755)
    read(trajectory, cache)
    assert units_in(cache) and stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_folder_for_this_user_that_others_write(tmp_path, trajectory):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    (cache / f"uid-{os.geteuid()}").mkdir()
    (cache / f"uid-{os.geteuid()}").chmod(0o777)
    with mdio.open(trajectory, cache=cache) as layout:
        layout.read(0, 2)
        assert any("others may write there" in note for note in cache_notes(layout))
    assert not units_in(cache)
