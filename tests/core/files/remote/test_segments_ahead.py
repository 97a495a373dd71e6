"""Segments in a store, read as they are or through references: opened many at once, each once."""

import threading
from collections import Counter

import numpy as np
import pytest
from suites.native_files import CELLS, made_up, write_dcd
from suites.outputs import as_options

import mdio
from mdio.core.files.remote import objects
from mdio.layouts.views.view import ViewLayout

N_FRAMES, N_SEGMENTS = 120, 40


@pytest.fixture(scope="module", params=["dcd", "xtc"])
def segments(served, request):
    """Forty of three frames on the web server: their name, and their positions."""
    name = f"many.{request.param}.segments"
    write_dcd(served / "many.dcd", made_up(N_FRAMES, 50), np.resize(CELLS, (N_FRAMES, 6)))
    options = {"segments": N_SEGMENTS, "container": request.param, "force": True}
    mdio.convert(served / "many.dcd", served / name, **as_options(options))
    with mdio.open(served / name) as layout:
        return name, layout.read(0, N_FRAMES).positions


@pytest.fixture(params=["segments", "references", "some of references"])
def source(web, segments, request, tmp_path):
    """What is opened: they themselves, references to them, or a view of references."""
    url = f"{web.url}/{segments[0]}"
    if request.param == "segments":
        return mdio.open(url)
    mdio.convert(url, tmp_path / "many.refs")
    objects._answers.clear()
    layout = mdio.open(tmp_path / "many.refs")
    return (
        layout
        if request.param == "references"
        else ViewLayout("some", source=layout, frames=range(N_FRAMES))
    )


@pytest.fixture
def opened(monkeypatch):
    """The names of segments that were asked for; nobody is answered before eight are."""
    seen, eight, get = [], threading.Barrier(8), objects.get

    def waits(path, wanted):
        if path.name.startswith("seg-") and not path.name.startswith("seg-000000"):
            seen.append(path.name)
            if len(seen) <= 8:
                eight.wait(10)
        return get(path, wanted)

    monkeypatch.setattr(objects, "get", waits)
    yield seen
    assert not eight.broken


def at_once(layout):
    return layout.read(0, N_FRAMES).positions


def as_expected(layout):
    runs = [(at, at + 5) for at in range(0, N_FRAMES, 5)]
    layout.prefetch(runs)
    return np.concatenate([layout.read(*run).positions for run in runs])


def far_apart(layout):
    runs = [(at, at + 1) for at in range(0, N_FRAMES, 3)]
    layout.prefetch(runs)
    return np.concatenate([layout.read(*run).positions for run in runs])


@pytest.mark.parametrize(("how", "step"), [(at_once, 1), (as_expected, 1), (far_apart, 3)])
def test_are_asked_for_many_at_once(source, segments, opened, how, step):
    with source as layout:
        _ = layout.info
        opened.clear()
        found = how(layout)
    assert np.array_equal(found, segments[1][::step])
    assert max(Counter(opened).values()) == 1  # small ones come whole as they are opened


def test_nothing_is_kept_of_what_nobody_reads(source, segments):
    with source as layout:
        layout.prefetch([(0, N_FRAMES)])
        assert np.array_equal(layout.read(0, 6).positions, segments[1][:6])
        assert [name for name in objects._prefetched if "seg-" in name]
        layout.prefetch(())
        assert not [name for name in objects._prefetched if "seg-" in name]


def test_runs_without_frames_are_none(source, segments):
    runs = [(0, 0), (0, 4), (4, 4), (9, 9), (10, 20), (20, 20)]
    with source as layout:
        layout.prefetch(runs)
        found = [layout.read(*run).positions for run in runs]
        layout.prefetch([(5, 5)])
    assert np.array_equal(np.concatenate(found), segments[1][[*range(4), *range(10, 20)]])
