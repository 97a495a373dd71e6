"""Whatever layout, and whatever was said of the reads to come, frames are the same."""

import itertools
import struct

import google_crc32c
import numpy as np
import pytest

import mdio
from mdio.converters.strategies.write_tasks import WriteTaskWorker
from mdio.core.files import in_flight
from mdio.core.files.reading import OpenFile
from mdio.layouts import plan
from mdio.layouts.h5md import disk as seal

KINDS = ["xtc", "trr", "dcd", "ncdf", "h5md", "zarr", "segments"]
RUNS = [(at, min(at + 5, 23)) for at in range(0, 23, 5)]


@pytest.fixture(scope="module")
def outputs(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    for kind in KINDS:
        mdio.convert(adk["xtc"], folder / f"a.{kind}", stop=23)
    return folder


@pytest.fixture
def requested(monkeypatch):
    """Storage of which every read has to be waited for; the requests that were made ahead."""
    made = []
    read = in_flight.read

    def note(fd, buffer, offset):
        made.append(buffer.nbytes)
        return read(fd, buffer, offset)

    monkeypatch.setattr(in_flight, "is_local", lambda *_: False)
    monkeypatch.setattr(in_flight, "n_waits", itertools.count().__next__)
    monkeypatch.setattr(in_flight, "CACHED_NBYTES_PER_S", float("inf"))
    monkeypatch.setattr(in_flight, "read", note)
    return made


@pytest.mark.parametrize("atoms", [None, np.arange(100, 300)], ids=["all", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_expected_reads_give_the_same(outputs, requested, kind, atoms):
    with mdio.open(outputs / f"a.{kind}") as plain, mdio.open(outputs / f"a.{kind}") as layout:
        layout.prefetch(RUNS, atoms)
        for start, stop in RUNS:
            mine, theirs = layout.read(start, stop, atoms), plain.read(start, stop, atoms)
            for name in ("positions", "box", "time", "step"):
                assert np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=True)
    assert sum(requested) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_other_reads_than_expected(outputs, requested, kind):
    with mdio.open(outputs / f"a.{kind}") as plain, mdio.open(outputs / f"a.{kind}") as layout:
        layout.prefetch(RUNS)
        for start, stop in ((20, 23), (3, 9), (0, 1)):
            mine, theirs = layout.read(start, stop), plain.read(start, stop)
            assert np.array_equal(mine.positions, theirs.positions)
    assert requested


def test_an_analysis_and_a_universe_over_such_storage(adk, outputs, requested):
    import MDAnalysis as mda

    for kind in KINDS:
        universe = mda.Universe(adk["psf"], str(outputs / f"a.{kind}"), format="MDIO")
        found = [float(ts.positions.sum()) for ts in universe.trajectory]
        universe.trajectory.close()
        result = mdio.analyze(
            outputs / f"a.{kind}", kernel=lambda block: block.positions.sum(axis=(1, 2))
        )
        assert np.allclose(found, result.values, rtol=1e-4)
    assert requested


@pytest.mark.parametrize("kind", ["h5md", "zarr"])
def test_a_conversion_asks_for_what_comes_while_it_writes(
    adk, outputs, requested, kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1)
    monkeypatch.setattr(plan, "MAX_PIECE_NBYTES", 1)
    asked = []
    call = WriteTaskWorker.__call__

    def noted(worker, piece):
        found = call(worker, piece)
        asked.append(sum(requested))
        return found

    monkeypatch.setattr(WriteTaskWorker, "__call__", noted)
    source = outputs / "a.dcd"
    mdio.convert(
        source,
        tmp_path / f"b.{kind}",
        stop=20,
        storage=mdio.Storage(chunk_frames=4),
        precision="none",
    )
    with mdio.open(source) as one, mdio.open(tmp_path / f"b.{kind}") as other:
        assert np.array_equal(one.read(0, 20).positions, other.read(0, 20).positions)
        frames_nbytes = 20 * one.info.frame_nbytes
    # All was under way before the first of 5 pieces was made, and nothing twice.
    assert len(asked) == 5 and len(set(asked)) == 1
    assert frames_nbytes <= asked[0] < 1.1 * frames_nbytes + 8192


def test_gaps_between_chunks_are_asked_for_together(requested, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(data := np.random.default_rng(4).bytes(16 << 17))
    offsets, sizes = np.arange(16) << 17, np.full(16, 100_000)
    between = b"".join(data[at + 100_000 : at + (1 << 17)] for at in offsets)
    with OpenFile(path) as file:
        made = seal.make_seal(file, [(offsets, sizes)])
    assert struct.unpack("<8sQI", made[:-4])[1:] == (len(data), google_crc32c.value(between))
    assert len(requested) == 16


@pytest.mark.parametrize("kind", ["xtc", "trr", "dcd", "ncdf"])
def test_ranges_of_native_files_are_all_of_their_frames(outputs, kind):
    path = outputs / f"a.{kind}"
    with mdio.open(path) as layout:
        parts = [list(layout.byte_ranges(*run, None)) for run in ((0, 1), (1, 7), (7, 23))]
        whole = list(layout.byte_ranges(0, 23, None))
    ranges = [one for part in parts for one in part]
    assert len(ranges) == 3 and len(whole) == 1
    ends = [one.offset + one.nbytes for one in ranges]
    assert [one.offset for one in ranges[1:]] == ends[:-1]  # none is left out, none is there twice
    assert ends[-1] == whole[0].offset + whole[0].nbytes == path.stat().st_size
    assert ranges[0].offset == whole[0].offset < 4096  # behind the header, if there is one
