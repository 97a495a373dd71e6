"""Many trajectories side by side: workers stay for all of them, and a note comes once."""

import functools
import subprocess
import sys

import numpy as np
import pytest
from MDAnalysisTests.datafiles import PSF

import mdio
from mdio.core.errors import BlockError
from mdio.core.words import notes_by_label
from mdio.parallel.pool import WorkerPool

N_REPLICAS = 12


@pytest.fixture(scope="module", params=["zarr", "h5md"])
def many(request, tmp_path_factory, adk):
    """Replicas of different lengths."""
    out = tmp_path_factory.mktemp("many") / f"all.{request.param}"
    folder = out.parent / "sources"
    folder.mkdir()
    for number in range(N_REPLICAS):
        mdio.convert(adk["xtc"], folder / f"r{number:02d}.xtc", start=number, stop=2 * number + 4)
    mdio.convert_ensemble({p.stem: p for p in sorted(folder.glob("*.xtc"))}, out, top=PSF)
    return out


@pytest.fixture
def n_started(monkeypatch):
    """Worker processes that have been started."""
    started = []
    start = WorkerPool._start

    @functools.wraps(start)
    def counted(pool):
        started.append(pool)
        return start(pool)

    monkeypatch.setattr(WorkerPool, "_start", counted)
    return started


def first_atom(block):
    return block.positions[:, 0]


class LastFrameFails:
    """Fails in the replica that has the last frames."""

    def __init__(self, last_ps):
        self.last_ps = last_ps

    def __call__(self, block):
        if block.time[-1] >= self.last_ps:
            raise ValueError("too late")
        return block.positions[:, 0]


@pytest.mark.parametrize("kernel", ["rmsd", "rmsf", "msd", first_atom])
def test_workers_stay_for_all_replicas(many, kernel, n_started):
    serial = mdio.analyze(many, kernel=kernel, select="name CA")
    seen = []
    spread = mdio.analyze(
        many, kernel=kernel, select="name CA", workers=2, progress=lambda *done: seen.append(done)
    )
    assert len(n_started) == 2
    for name in ("frame", "time", "values", "label"):
        np.testing.assert_array_equal(getattr(spread, name), getattr(serial, name))
    assert (spread.executor, spread.workers) == ("processes", 2)
    assert (spread.notes, spread.n_frames) == (serial.notes, serial.n_frames)
    assert sum(frames for frames, _ in seen) == sum(range(4, 4 + N_REPLICAS))


def test_an_error_names_the_replica(many):
    last_ps = mdio.analyze(many, kernel=first_atom).time.max()
    with pytest.raises(BlockError, match=r"^r11: block 0 .*too late"):
        mdio.analyze(many, kernel=LastFrameFails(last_ps), workers=2)


def test_a_note_that_all_have_comes_once(many):
    result = mdio.analyze(many, kernel=first_atom, select=None)
    told = [note for note in result.notes if "all 12 replicas: " in note]
    assert len(set(result.notes)) == len(result.notes) == len(told)


def test_convert_tells_a_note_once(many):
    sources = sorted(map(str, many.parent.joinpath("sources").glob("*.xtc")))
    out = many.with_name(f"again{many.suffix}")
    command = [sys.executable, "-m", "mdio.cli.main", "convert", "--ensemble", *sources, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    notes = [line for line in done.stdout.splitlines() if "note:" in line]
    assert len(notes) == len(set(notes)) <= 1
    assert all("all 12 replicas: " in note for note in notes)


def test_a_note_that_some_have_says_how_many():
    notes = {"a": ["x", "y"], "b": ["y"], "c": ["y", "z"], "d": ["z"]}
    assert notes_by_label(notes) == (
        "a: x",
        "3 of 4 replicas (a to c): y",
        "2 of 4 replicas (c to d): z",
    )
