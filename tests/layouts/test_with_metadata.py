"""What one process found in opening an output is enough for others: they ask for no table again."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from suites.per_rank import convert

import mdio
from mdio.core.errors import CorruptLayoutError

OUTPUTS = {
    "a.h5md": {"groups": {"ca": np.arange(5, 3000, 15)}},
    "parts.h5md": {"per_rank": True, "workers": 2},
    "a.zarr": {"groups": {"ca": np.arange(5, 3000, 15)}},
    "raw.zarr": {"precision": "none"},
}


@pytest.fixture(scope="module", params=OUTPUTS)
def out(request, adk, tmp_path_factory):
    path = tmp_path_factory.mktemp("with_metadata") / request.param
    convert(adk["xtc"], path, **OUTPUTS[request.param])
    return path


@pytest.mark.parametrize("atoms", [None, [5, 20, 35], [0, 3000]])
def test_reads_the_same_and_asks_for_little(out, atoms, monkeypatch):
    with mdio.open(out) as layout:
        expected = layout.read(0, 98, atoms=atoms)
        pickled = pickle.dumps(layout.with_metadata())
    opened = []

    def watched(path, *args, **options):
        opened.append(Path(path).name)
        return real(path, *args, **options)

    with pickle.loads(pickled) as other:
        real = os.open
        monkeypatch.setattr(os, "open", watched)
        assert other.info.n_frames == 98
        assert opened == [out.name]
        found = other.read(0, 98, atoms=atoms)
        monkeypatch.undo()
    for name in ("positions", "box", "time", "step"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert not [name for name in opened if name in ("zarr.json", "c.0", "c.0.0")]
    assert mdio.verify(out).ok


def test_what_takes_its_place_is_told(adk, tmp_path):
    for name, options in OUTPUTS.items():
        path = tmp_path / name
        convert(adk["xtc"], path, **options)
        with mdio.open(path) as layout:
            pickled = pickle.dumps(layout.with_metadata())
        if (tmp_path / f"{name}.parts").is_dir():  # such files are not replaced with --force
            shutil.rmtree(tmp_path / f"{name}.parts")
            path.unlink()
        mdio.convert(adk["xtc"], path, stop=50, force=True)
        with pytest.raises(CorruptLayoutError, match="replaced"):
            pickle.loads(pickled).read(0, 3)
        with mdio.open(path) as layout:
            assert layout.info.n_frames == 50


def test_what_was_found_outlives_what_was_opened(adk, tmp_path, monkeypatch):
    mdio.convert(adk["xtc"], tmp_path / "a.zarr")
    with mdio.open(tmp_path / "a.zarr") as layout:
        _ = layout.info
        other = layout.with_metadata()
    opened, real = [], os.open
    copy = pickle.loads(pickle.dumps(other))
    monkeypatch.setattr(
        os, "open", lambda path, *a, **k: opened.append(path) or real(path, *a, **k)
    )
    assert copy.info.n_frames == 98 and len(opened) == 1


def test_times_and_boxes_travel_once(out):
    """However they were read: they are most of what ranks are sent."""
    with mdio.open(out) as layout:
        _ = layout.info
        before = len(pickle.dumps(layout.with_metadata()))
        layout.read(0, 98)
        assert len(pickle.dumps(layout.with_metadata())) - before < 1.5 * 98 * (8 + 8 + 24)


def test_a_layout_that_is_open_stays_so(out):
    with mdio.open(out) as layout:
        layout.read(0, 5)
        with layout.with_metadata() as other:
            assert np.array_equal(other.read(3, 9).positions, layout.read(3, 9).positions)
        assert layout.read(90, 98).n_frames == 8
