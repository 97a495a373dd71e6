"""Every layout through a cache: the same frames, and none from the source the second time."""

import os
import pickle
import shutil
from pathlib import Path
from unittest.mock import Mock

import MDAnalysis as mda
import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.core.cache import Cache, verify_units
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files import store
from mdio.core.files.reading import reads
from mdio.layouts import caching
from mdio.layouts.base import cache_notes
from mdio.layouts.caching import cache_unit_edges, cache_units

KINDS = ["dcd", "xtc", "trr", "ncdf", "zarr", "plain.zarr", "h5md", "zip.h5md", "segments", "chain"]
NAMES = ("positions", "velocities", "forces", "box", "time", "step")


@pytest.fixture(scope="module")
def sources(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    found = {name: shutil.copy(adk[name], folder) for name in ("dcd", "xtc", "trr", "ncdf")}
    groups = {"ca": "name CA"}
    more = {
        "zarr": {"groups": groups},
        "plain.zarr": {"precision": "none", "chunk_frames": 5},
        "h5md": {"groups": groups, "chunk_frames": 7},
        "zip.h5md": {"compression": "gzip", "chunk_frames": 10},
    }
    for name, options in more.items():
        found[name] = folder / f"b.{name}"
        mdio.convert(found["xtc"], found[name], top=adk["psf"], **as_options(options))
    found["segments"] = folder / "a.segments"
    mdio.split(found["xtc"], found["segments"], 5)
    found["chain"] = [folder / "one.dcd", folder / "two.dcd"]
    u = mda.Universe(adk["psf"], adk["dcd"])
    for path, frames in zip(found["chain"], [slice(0, 40), slice(40, 98)], strict=True):
        with mda.Writer(str(path), len(u.atoms)) as writer:
            for _ in u.trajectory[frames]:
                writer.write(u.atoms)
    return found


def taken(read):
    before = reads.nbytes_source, reads.nbytes_cache
    result = read()
    return result, reads.nbytes_source - before[0], reads.nbytes_cache - before[1]


def same(a, b):
    for name in NAMES:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        assert x is None or np.array_equal(x, y, equal_nan=True), name


def opened(source, cache, **options):
    return mdio.open(source, overlap="keep-all" if isinstance(source, list) else None, cache=cache)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_pass_takes_nothing_from_the_source(sources, kind, tmp_path):
    source = sources[kind]
    expected = opened(source, None).read(0, 98)
    for turn in range(2):
        with opened(source, tmp_path / "c") as layout:
            runs = [(at, min(at + 9, 98)) for at in range(0, 98, 9)]
            _ = layout.info
            layout.prefetch(runs)
            all_from_cache = 0
            for start, stop in runs:
                got, from_source, from_cache = taken(lambda: layout.read(start, stop))  # noqa: B023
                same(got, expected.frames(slice(start, stop)))
                assert turn == 0 or from_source == 0
                all_from_cache += from_cache
            assert turn == 0 or all_from_cache > 50_000
            some, from_source, _ = taken(lambda: layout.read(11, 60, atoms=[7, 3, 3000]))
            same_positions = expected.positions[11:60][:, [7, 3, 3000]]
            assert np.array_equal(some.positions, same_positions)
            opens_again = kind == "segments" and turn == 0  # one that was opened without a cache
            assert from_source <= 1024 * opens_again or kind in ("zarr", "h5md")
            again = pickle.loads(pickle.dumps(layout))
            assert again.info.n_frames == 98
            assert taken(lambda: again.read(90, 98))[1] == 0  # noqa: B023
            assert cache_notes(layout) == ()


@pytest.mark.parametrize("kind", ["zarr", "h5md"])
def test_a_stored_group_is_kept_by_itself(sources, kind, tmp_path):
    atoms = opened(sources["zarr"], None).backend.groups.atoms_of("ca")
    cache = tmp_path / "c"
    with opened(sources[kind], cache) as layout:
        expected = opened(sources[kind], None).read(0, 98, atoms=atoms[3:9])
        got, from_source, _ = taken(lambda: layout.read(0, 98, atoms=atoms[3:9]))
        assert np.array_equal(got.positions, expected.positions)
        assert from_source < 98 * 3341 * 2
    with mdio.open(sources[kind], group="ca", cache=cache) as layout:
        assert layout.info.n_atoms == len(atoms)
        assert taken(lambda: layout.read(0, 98))[1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_units_cover_each_frame_once(sources, kind, tmp_path):
    with opened(sources[kind], tmp_path / "c") as layout:
        _ = layout.info
        units = cache_units(layout, None)
        assert units.edges[0] == 0
        assert units.edges[-1] == 98
        assert (np.diff(units.edges) > 0).all()
        cache = Cache(str(tmp_path / "c"))
        assert not units.cached(cache).any()
        layout.read(0, 98)
        assert units.cached(cache).all()
        assert pickle.loads(pickle.dumps(units)).cached(cache).all()


def test_the_folder_is_listed_a_few_times_however_many_units_there_are(
    sources, tmp_path, monkeypatch
):
    monkeypatch.setattr(caching, "MIN_UNIT_NBYTES", 1)
    arguments = {"kernel": "rmsd", "cache": tmp_path / "c"}
    mdio.analyze(sources["xtc"], **arguments)
    assert len(list((tmp_path / "c").rglob("*.unit"))) >= 98
    scan = Mock(wraps=os.scandir)
    monkeypatch.setattr(os, "scandir", scan)
    mdio.analyze(sources["xtc"], **arguments)
    assert scan.call_count < 10


def test_edges_stay_when_frames_are_added(sources):
    class Longer:
        def __init__(self, n_frames):
            self.info = opened(sources["dcd"], None).info
            self.n_frames = n_frames

        def boundaries(self):
            return np.arange(self.n_frames + 1)

    long, short = cache_unit_edges(Longer(200_000), 3341), cache_unit_edges(Longer(77_777), 3341)
    assert (long[: len(short) - 1] == short[:-1]).all()
    assert (np.diff(long) * 3341 * 12 <= 16 << 20).all()
    assert len(cache_unit_edges(Longer(98), 3341)) > 10


def damage(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 64
    path.write_bytes(raw)


@pytest.mark.parametrize("kind", ["dcd", "zarr", "segments"])
def test_damage_on_the_disk_of_the_node_is_read_again_and_told_once(sources, kind, tmp_path):
    cache = tmp_path / "c"
    expected = opened(sources[kind], None).read(0, 98)
    opened(sources[kind], cache).read(0, 98)
    units = [path for path in cache.rglob("*.unit") if "-t" not in path.name]
    for path in units:
        damage(path)
    with opened(sources[kind], cache) as layout:
        for start in range(0, 98, 7):
            same(layout.read(start, min(start + 7, 98)), expected.frames(slice(start, start + 7)))
        assert len(cache_notes(layout)) == 1
        assert "damaged" in cache_notes(layout)[0]
    with opened(sources[kind], cache) as layout:
        layout.read(0, 98)
    assert not [problem for _, problem in verify_units(cache) if problem]
    with opened(sources[kind], cache) as layout:
        _ = layout.info  # opening looks at the source, frames do not
        assert taken(lambda: layout.read(0, 98))[1] == 0


def test_units_of_a_damaged_source_do_not_outlive_its_repair(sources, tmp_path):
    path = tmp_path / "a.zarr"
    shutil.copytree(sources["plain.zarr"], path)
    shard = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    sound = shard.read_bytes()
    damage(shard)
    with pytest.raises(CorruptLayoutError):
        opened(path, tmp_path / "c").read(0, 98)
    shard.write_bytes(sound)
    same(opened(path, tmp_path / "c").read(0, 98), opened(path, None).read(0, 98))


def test_a_source_that_was_replaced_is_never_served(sources, tmp_path):
    path = tmp_path / "md.dcd"
    shutil.copy(sources["dcd"], path)
    first = opened(path, tmp_path / "c")
    before = first.read(0, 98)
    original = path.read_bytes()
    raw = bytearray(original)
    status = path.stat()
    raw[len(raw) // 2] ^= 1
    for write in (path.write_bytes, (tmp_path / "new").write_bytes):
        write(raw)
        if (tmp_path / "new").exists():
            (tmp_path / "new").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        after = opened(path, tmp_path / "c").read(0, 98)
        same(after, opened(path, None).read(0, 98))
        assert not np.array_equal(after.positions, before.positions)
        path.write_bytes(original)
        same(opened(path, tmp_path / "c").read(0, 98), before)


def test_a_damaged_frame_fails_as_it_does_without_a_cache(sources, tmp_path):
    path = tmp_path / "cut.trr"
    raw = Path(sources["trr"]).read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    plain, cached = opened(path, None), opened(path, tmp_path / "c")
    n_frames = plain.info.n_frames
    same(cached.read(0, n_frames), plain.read(0, n_frames))
    assert cached.notes == plain.notes
    path.unlink()
    with pytest.raises(SourceError):
        opened(path, tmp_path / "c").read(0, 1)


def test_notes_of_what_cannot_be_kept_and_of_a_folder_on_the_network(
    sources, tmp_path, adk, monkeypatch
):
    monkeypatch.setattr(store, "file_system_type", lambda _: "nfs4")
    u = mda.Universe(adk["psf"], adk["dcd"])
    with mda.Writer(str(tmp_path / "a.lammpsdump.xyz"), len(u.atoms)) as writer:
        writer.write(u.atoms)
    with mdio.open(tmp_path / "a.lammpsdump.xyz", cache=tmp_path / "c") as layout:
        layout.read(0, 1)
        assert len(cache_notes(layout)) == 2
        assert "only MDAnalysis" in cache_notes(layout)[0]
        assert "(nfs4)" in cache_notes(layout)[1]
    assert not list((tmp_path / "c").rglob("*.unit"))


@pytest.mark.parametrize("where", ["a file", "below a file"])
def test_a_folder_that_cannot_be_is_told_once(sources, tmp_path, where):
    (tmp_path / "c").write_text("")
    folder = tmp_path / "c" if where == "a file" else tmp_path / "c" / "d"
    with opened(sources["xtc"], folder) as layout:
        same(layout.read(0, 98), opened(sources["xtc"], None).read(0, 98))
        assert len(cache_notes(layout)) == 1
        assert "cannot write to this cache" in cache_notes(layout)[0]


def test_a_universe(sources, adk, tmp_path):
    expected = mda.Universe(adk["psf"], str(sources["xtc"])).trajectory.timeseries()
    for turn in range(2):
        u, from_source, _ = taken(
            lambda: mda.Universe(
                adk["psf"], str(sources["xtc"]), format="MDIO", cache=tmp_path / "c"
            )
        )
        found, from_source, _ = taken(lambda: [ts.positions.copy() for ts in u.trajectory])  # noqa: B023
        assert np.array_equal(found, expected)
        assert turn == 0 or from_source == 0
        assert np.array_equal(u.copy().trajectory[50].positions, expected[50])
    (tmp_path / "d").write_text("")
    with pytest.warns(UserWarning, match="cannot write to this cache"):
        mda.Universe(adk["psf"], str(sources["xtc"]), format="MDIO", cache=tmp_path / "d")
