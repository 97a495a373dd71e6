"""Compressed files that are gone on with: nothing is lost on the way, and one copy is kept."""

import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

import mdio
from mdio.core.files.journal import find_unfinished

STORAGE = mdio.Storage(compression="gzip:1", chunk_frames=4)
ENDED = """
import os, sys
import mdio
from mdio.core.files.journal import Journal
from mdio.layouts import plan
from mdio.layouts.h5md.writer import EarlierRunChunks

plan.MIN_PIECE_NBYTES, plan.MIN_PIECES = 1, 16
source, out, owner, name, after, number = sys.argv[1:]
owner = {"Journal": Journal, "EarlierRunChunks": EarlierRunChunks}[owner]
wrapped, count = getattr(owner, name), 0

def counted(*words, **options):
    global count
    count += 1
    if count > int(after):
        os.kill(os.getpid(), int(number))
    return wrapped(*words, **options)

setattr(owner, name, counted)
storage = mdio.Storage(compression="gzip:1", chunk_frames=4)
mdio.convert(source, out, storage=storage, resume=True)
"""
N_FIRST = 5
"""Pieces of the first run."""


def end(adk, out, owner, name, after, number=signal.SIGTERM):
    """Go on with a conversion, end it at a call after so many, and return what is left."""
    words = map(str, (adk["dcd"], out, owner, name, after, int(number)))
    done = subprocess.run([sys.executable, "-c", ENDED, *words], check=False)
    assert done.returncode == (128 + number if number == signal.SIGTERM else -number)
    [journal] = out.parent.glob(".*.journal")
    return find_unfinished(journal.with_suffix(".tmp"))


def finish(adk, out):
    """Go on to the end; return the frames that were taken from earlier runs."""
    notes = mdio.convert(adk["dcd"], out, storage=STORAGE, resume=True).plan.notes
    assert mdio.verify(out, adk["dcd"]).ok
    with h5py.File(out) as file, mdio.open(adk["dcd"]) as source:
        positions = file["particles/trajectory/position/value"][:]
        np.testing.assert_array_equal(positions, source.read(0, 98).positions)
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    [note] = [note for note in notes if "taken from an earlier run" in note]
    return int(note.partition(" of ")[0])


def test_one_copy_is_left_by_each_of_many_interrupted_runs(adk, tmp_path):
    out, n_stored = tmp_path / "a.h5md", 0
    for n_runs in range(1, 4):
        n_moved = n_stored // 4
        kept = end(adk, out, "Journal", "add", n_moved + N_FIRST)
        assert kept.n_frames == 4 * N_FIRST * n_runs
        [temporary] = tmp_path.glob(".*.tmp")
        assert temporary == kept.temporary
        n_stored = kept.n_frames
    assert finish(adk, out) == n_stored


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        pytest.param("EarlierRunChunks", "__init__", 0, id="nothing copied"),
        # All are read to compare them, then again.
        pytest.param("EarlierRunChunks", "read", N_FIRST + 2, id="some copied"),
        pytest.param("Journal", "add", 2, id="some in the journal"),
        pytest.param("EarlierRunChunks", "replace", 0, id="all in the journal"),
        pytest.param("Journal", "add", N_FIRST, id="in place"),
    ],
)
def test_what_is_kept_stays_wherever_the_copying_is_interrupted(
    adk, tmp_path, owner, name, after, number
):
    out = tmp_path / "a.h5md"
    assert end(adk, out, "Journal", "add", N_FIRST).n_frames == 4 * N_FIRST
    for _ in range(2):
        assert end(adk, out, owner, name, after, number).n_frames == 4 * N_FIRST
    if number == signal.SIGTERM and owner == "EarlierRunChunks" and name != "replace":
        assert len(list(tmp_path.glob(".*.tmp"))) == 1
    assert finish(adk, out) == 4 * N_FIRST
