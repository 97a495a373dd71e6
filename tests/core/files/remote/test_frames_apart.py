"""What lies far apart in a store, as some atoms of frames: asked for many at once, each once."""

import threading
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from suites.native_files import CELLS, made_up, write_dcd

import mdio
from mdio.core.files.remote import objects
from mdio.core.xtc import HEADER_NBYTES, scan
from mdio.layouts.views.view import ViewLayout

N_FRAMES, N_ATOMS = 30, 24_000
SOME = np.arange(100, 400, 7)
DAMAGED = 12


@pytest.fixture(scope="module")
def large(served):
    """Frames of 288 kB, in native files on the web server; by name what mdio reads of them here."""
    frames = made_up(N_FRAMES, N_ATOMS)
    write_dcd(served / "large.dcd", frames, np.resize(CELLS, (N_FRAMES, 6)))
    for name in ("trr", "ncdf", "xtc"):
        mdio.convert(served / "large.dcd", served / f"large.{name}")
        assert (
            np.abs(mdio.open(served / f"large.{name}").read(0, 1).positions - frames[0]).max() < 1
        )
    names = ("dcd", "trr", "ncdf", "xtc")
    return {name: mdio.open(served / f"large.{name}").read(0, N_FRAMES) for name in names}


@pytest.fixture
def requests(monkeypatch):
    """A context in which the first eight requests for ranges have to be under way together."""
    get = objects.get

    @contextmanager
    def at_once(counts=lambda begin, end: True):
        seen, eight = [], threading.Barrier(8)

        def waits(path, wanted):
            if isinstance(wanted, tuple) and counts(*wanted):
                seen.append((path.name, wanted))
                if len(seen) <= 8:
                    eight.wait(10)  # nobody is answered before eight have asked
            return get(path, wanted)

        with monkeypatch.context() as patch:
            patch.setattr(objects, "get", waits)
            yield seen
        assert len(seen) >= 8
        assert not eight.broken
        assert max(Counter(seen).values()) == 1

    return at_once


def as_large_as_frames(begin, end):
    return 100_000 < end - begin < 1_000_000


def n_bytes(seen):
    return sum(end - begin for _, (begin, end) in seen)


@pytest.mark.parametrize("name", ["dcd", "trr", "ncdf"])
def test_some_atoms_of_large_frames(web, large, requests, name):
    with mdio.open(f"{web.url}/large.{name}") as layout:
        _ = layout.info
        with requests() as seen:
            found = layout.read(0, N_FRAMES, SOME)
    assert np.array_equal(found.positions, large[name].positions[:, SOME])
    assert np.array_equal(found.time, large[name].time)
    assert np.array_equal(found.box, large[name].box)
    assert n_bytes(seen) < 0.05 * large[name].positions.nbytes


@pytest.mark.parametrize("name", ["dcd", "trr", "ncdf", "xtc"])
def test_frames_without_atoms(web, large, requests, name):
    with mdio.open(f"{web.url}/large.{name}") as layout:
        _ = layout.info
        with requests() as seen:
            found = layout.read(0, N_FRAMES, [])
    for field in ("time", "box", "step"):
        assert np.array_equal(getattr(found, field), getattr(large[name], field))
    assert n_bytes(seen) < 10_000


def test_references_to_an_xtc(web, large, requests, tmp_path):
    offsets = scan(web.root / "large.xtc").offsets.tolist()
    looked_at_before = offsets[1], offsets[-1]
    with requests(
        lambda begin, end: end - begin == HEADER_NBYTES and begin not in looked_at_before
    ) as seen:
        mdio.convert(f"{web.url}/large.xtc", tmp_path / "large.refs")
    assert {begin for _, (begin, _) in seen} == set(offsets[2:-1])
    with mdio.open(tmp_path / "large.refs") as layout:
        assert np.array_equal(layout.read(0, N_FRAMES).positions, large["xtc"].positions)


@pytest.mark.parametrize("name", ["dcd", "xtc"])
def test_every_third_frame(web, large, requests, tmp_path, name):
    with requests(as_large_as_frames) as seen:
        mdio.convert(f"{web.url}/large.{name}", tmp_path / "some.dcd", step=3)
    with mdio.open(tmp_path / "some.dcd") as layout:
        assert np.array_equal(layout.read(0, 10).positions, large[name].positions[::3])
    assert len(seen) == N_FRAMES // 3


def test_every_second_of_frames_that_can_be_read(web, large, requests):
    kept = np.array([frame for frame in range(0, N_FRAMES, 2) if frame != DAMAGED])
    gaps = {"frames": kept, "unreadable": [[DAMAGED, DAMAGED + 1]]}
    with ViewLayout("some", source=mdio.open(f"{web.url}/large.dcd"), **gaps) as view:
        _ = view.info
        with requests(as_large_as_frames) as seen:
            view.prefetch([(0, 5), (5, len(kept))])
            found = np.concatenate([view.read(0, 5).positions, view.read(5, len(kept)).positions])
    assert np.array_equal(found, large["dcd"].positions[kept])
    assert len(seen) == len(kept)


def test_a_chunk_of_several_of_the_frames_comes_once(served):
    source = mdio.open(served / "adk.quantised.zarr")
    with ViewLayout(source.path, source=source, frames=range(0, 98, 3)) as view:
        _ = view.info
        asked = Counter(view.byte_ranges(0, 33, None))
        whole = Counter(source.byte_ranges(0, 98, None))
    assert asked == whole
