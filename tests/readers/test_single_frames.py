"""Single frames fetched in any order: what that reads, and that nothing else changes with it.

The oracle is MDAnalysis' own XTC reader; bytes and calls are counted at the system's door.
"""

import os
import shutil
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.coordinates.XTC import XTCWriter
from numpy.testing import assert_array_equal
from suites.outputs import as_options

import mdio
from mdio.core.errors import FrameReadError
from mdio.core.files import reading
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.zarr import own as zarr_own
from mdio.layouts.zarr import tree as zarr_tree
from mdio.layouts.zarr.folder import Folder
from mdio.readers import frames

FRAME_NBYTES = 12 * 3341
PLAIN = ["h5md", "zarr"]
COMPRESSED = ["gzip.h5md", "zstd.zarr"]
CHUNK_FRAMES = 7
SHUFFLED = [97, 3, 50, 20, 81, 7, 34, 90, 14, 61]
"""No two that follow one another are near."""


@pytest.fixture(scope="module")
def paths(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    options = {
        "h5md": {},
        "zarr": {"precision": "none"},
        "gzip.h5md": {"compression": "gzip:1"},
        "zstd.zarr": {"compression": "zstd", "precision": "none"},
    }
    for suffix, wanted in options.items():
        mdio.convert(
            adk["xtc"],
            folder / f"adk.{suffix}",
            storage=mdio.Storage(chunk_frames=CHUNK_FRAMES),
            **wanted,
        )
    return {suffix: folder / f"adk.{suffix}" for suffix in options}


@pytest.fixture(scope="module")
def reference(adk):
    return mda.Universe(str(adk["psf"]), str(adk["xtc"])).trajectory.timeseries()


def open_reader(path, n_atoms=3341):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe.empty(n_atoms)
        u.load_new(str(path), format="MDIO")
    return u.trajectory


INDEX_NBYTES = 132
"""What is read of a shard besides frames, once."""


class Traffic:
    """What goes through `os.preadv`, `os.open` and the kernel that reads rows; only frames."""

    def __init__(self, monkeypatch):
        self.sizes, self.opened = [], []
        preadv, opened = os.preadv, os.open
        monkeypatch.setattr(os, "preadv", lambda *a: self._note(preadv, *a))
        read_rows = reading.read_rows
        monkeypatch.setattr(
            reading,
            "read_rows",
            lambda fd, at, rows, *of: self._rows_by_file(read_rows, fd, at, rows, *of),
        )
        monkeypatch.setattr(
            os, "open", lambda path, *a, **k: self.opened.append(path) or opened(path, *a, **k)
        )

    def _rows_by_file(self, real, fd, at, rows, *of):
        self.sizes.append(rows.nbytes)
        return real(fd, at, rows, *of)

    def _note(self, real, fd, buffers, offset, *nowait):
        if nowait:  # whether the disk is the machine's own is asked with one byte
            return real(fd, buffers, offset, *nowait)
        nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        if nbytes != INDEX_NBYTES:
            self.sizes.append(nbytes)
        return real(fd, buffers, offset)


@pytest.mark.parametrize("kind", PLAIN)
def test_a_jump_is_one_call_for_the_bytes_of_one_frame(paths, reference, monkeypatch, kind):
    trajectory = open_reader(paths[kind])
    traffic = Traffic(monkeypatch)
    for frame in SHUFFLED:
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert traffic.sizes == [FRAME_NBYTES] * len(SHUFFLED)
    assert len(traffic.opened) == len(set(traffic.opened))
    assert all("position/value/c." in str(path) for path in traffic.opened)  # each shard once
    assert not (traffic.opened and kind == "h5md")


@pytest.mark.parametrize("kind", PLAIN)
def test_two_near_frames_now_and_then_do_not_read_a_run(paths, reference, monkeypatch, kind):
    trajectory = open_reader(paths[kind])
    traffic = Traffic(monkeypatch)
    frames = [40, 42, 90, 89, 10, 14, 60, 61, 3, 2]
    for frame in frames:
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert traffic.sizes == [FRAME_NBYTES] * len(frames)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("direction", [1, -1])
def test_a_second_step_on_reads_whole_chunks(paths, reference, monkeypatch, kind, direction):
    trajectory = open_reader(paths[kind])
    traffic = Traffic(monkeypatch)
    frames = range(50, 50 + 20 * direction, direction)
    for frame in frames:
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert traffic.sizes[:2] == [FRAME_NBYTES] * 2
    assert len(traffic.sizes) <= 2 + 98 // CHUNK_FRAMES
    assert all(size >= CHUNK_FRAMES * FRAME_NBYTES for size in traffic.sizes[2:])


@pytest.mark.parametrize("kind", PLAIN)
def test_going_through_from_the_start_reads_one_frame_twice(paths, monkeypatch, kind):
    trajectory = open_reader(paths[kind])
    traffic = Traffic(monkeypatch)
    for _ in trajectory:
        pass
    # The first, which all get who open and rewind, and the same again at the end, for a rewind.
    alone = [size for size in traffic.sizes if size == FRAME_NBYTES]
    assert len(alone) <= 2
    assert sum(traffic.sizes) <= (98 + 2) * FRAME_NBYTES + 4 * 14


@pytest.mark.parametrize("kind", COMPRESSED)
def test_jumps_into_one_chunk_decode_it_once(paths, reference, monkeypatch, kind):
    trajectory = open_reader(paths[kind])
    traffic = Traffic(monkeypatch)
    first = 6 * CHUNK_FRAMES
    for frame in (first + 6, first, first + 3, first + 5, first + 5):
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert len(traffic.sizes) == 1
    trajectory[first - 30]
    assert len(traffic.sizes) == 2


@pytest.mark.parametrize("compression", ["bitpack", "rigid", "rigid-seek"])
def test_a_frame_of_packed_integers_is_decoded_alone(
    adk, tmp_path, reference, monkeypatch, compression
):
    """Until a second one of its chunk is wanted: then all are, once."""
    out = tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], out, compression=compression, storage=mdio.Storage(chunk_frames=49))
    decoded = []
    real = zarr_own.decode_chunk

    def noted(data, shape, out, atoms, first, last):
        decoded.append(range(first, last))
        real(data, shape, out, atoms, first, last)

    monkeypatch.setattr(zarr_own, "decode_chunk", noted)
    trajectory = open_reader(out)
    decoded.clear()
    for frame in [97, 3, 60, 20]:
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert decoded == [range(48, 49), range(3, 4), range(11, 12), range(20, 21)]
    decoded.clear()
    for frame in [40, 0, 30, 8, 46]:
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert decoded == [range(49)]
    with mdio.open(out) as layout:
        decoded.clear()
        for frame in range(98):
            assert_array_equal(layout.read(frame, frame + 1).positions[0], reference[frame])
        assert sum(map(len, decoded)) == 98 + 2  # the first of each chunk twice
        decoded.clear()
        for start, stop in [(0, 40), (40, 80), (80, 98)]:
            assert_array_equal(layout.read(start, stop).positions, reference[start:stop])
        assert decoded == [range(49), range(49)]
        some = np.array([3, 1000, 17])
        assert_array_equal(layout.read(5, 6, atoms=some).positions[0], reference[5][some])


def test_velocities_and_forces_are_a_call_each(tmp_path, monkeypatch):
    from MDAnalysisTests.datafiles import COORDINATES_TRR

    theirs = mda.coordinates.TRR.TRRReader(COORDINATES_TRR)
    for name in ("a.zarr", "a.h5md"):
        mdio.convert([COORDINATES_TRR] * 4, tmp_path / name, storage=mdio.Storage(chunk_frames=5))
        trajectory = open_reader(tmp_path / name, 5)
        with monkeypatch.context() as patch:
            traffic = Traffic(patch)
            for frame in (17, 3, 11):
                ts, other = trajectory[frame], theirs[frame % 5]
                assert_array_equal(ts.positions, other.positions)
                assert_array_equal(ts.velocities, other.velocities)
                assert_array_equal(ts.forces, other.forces)
            assert traffic.sizes == [12 * 5] * 9


@pytest.mark.parametrize("kind", PLAIN)
def test_a_file_cut_while_it_is_open_is_an_error_of_that_frame(paths, tmp_path, kind):
    path = tmp_path / f"cut.{kind}"
    (shutil.copytree if kind == "zarr" else shutil.copy)(paths[kind], path)
    trajectory = open_reader(path)
    trajectory[70]  # of a chunk in the same shard as the next
    data = [path] if kind == "h5md" else list(path.glob("particles/*/position/value/c.*"))
    for file in data:
        os.truncate(file, 100)
    with pytest.raises(FrameReadError, match=r"^frame 76: .*(c\.\d\.0\.0|cut\.h5md): .*truncated"):
        trajectory[76]
    assert trajectory.ts.frame == 70


@pytest.mark.parametrize("kind", PLAIN)
def test_a_last_chunk_of_one_frame_is_verified(adk, tmp_path, kind):
    path = tmp_path / f"adk.{kind}"
    mdio.convert(adk["xtc"], path, storage=mdio.Storage(chunk_frames=97), precision="none")
    last = mda.Universe(str(adk["psf"]), str(adk["xtc"])).trajectory[97].positions.tobytes()
    files = [path] if kind == "h5md" else path.glob("particles/*/position/value/c.*")
    file = next(file for file in files if last in file.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(last) + 100] ^= 1
    file.write_bytes(data)
    trajectory = open_reader(path)
    trajectory[96]
    with pytest.raises(FrameReadError, match="frame 97: "):
        trajectory[97]


def test_boxes_come_and_go_as_in_the_source(tmp_path):
    """A frame without a box has none, whatever the frame before had."""
    u = mda.Universe.empty(5, trajectory=True)
    with XTCWriter(str(tmp_path / "a.xtc"), 5) as writer:
        for frame in range(9):
            u.atoms.positions = np.full((5, 3), frame, np.float32)
            u.dimensions = None if frame % 3 == 1 else [10 + frame, 10, 10, 90, 80, 90]
            writer.write(u.atoms)
    theirs = mda.coordinates.XTC.XTCReader(str(tmp_path / "a.xtc"))
    for name in ("a.zarr", "a.h5md"):
        mdio.convert(tmp_path / "a.xtc", tmp_path / name, storage=mdio.Storage(chunk_frames=4))
        trajectory = open_reader(tmp_path / name, 5)
        kept = None
        for frame in [*range(9), 3, 4, 3, 7, 7, 0, 1]:
            ours, other = trajectory[frame].dimensions, theirs[frame].dimensions
            assert (ours is None) == (other is None) == (frame % 3 == 1)
            if ours is not None:
                assert_array_equal(ours, other)
                ours *= 2  # what users do to it is forgotten with the frame
                kept = ours if kept is None else kept
        assert kept is trajectory[3].dimensions


@pytest.mark.parametrize("kept_files", [1, 3, 100])
def test_numbers_of_a_long_trajectory_are_read_once_while_they_fit(
    adk, tmp_path, monkeypatch, kept_files
):
    monkeypatch.setattr(zarr_tree, "COLUMN_FILE_FRAMES", 10)
    options = {"chunk_frames": CHUNK_FRAMES, "precision": "none"}
    mdio.convert(adk["xtc"], tmp_path / "a.zarr", **as_options(options))
    assert len(list((tmp_path / "a.zarr/mdio/box").glob("c.*"))) == 10
    monkeypatch.setattr(zarr_own, "MAX_CACHED_NBYTES", kept_files * 10 * 6 * 4)
    n_read = []
    real = Folder.read
    monkeypatch.setattr(Folder, "read", lambda *a: n_read.append(a[1]) or real(*a))
    theirs = mda.Universe(str(adk["psf"]), str(adk["xtc"])).trajectory
    trajectory = open_reader(tmp_path / "a.zarr")
    for frame in [*SHUFFLED, 40, 70] * 3:
        ours, other = trajectory[frame], theirs[frame]
        assert_array_equal(ours.dimensions, other.dimensions)
        assert (ours.time, ours.data["step"]) == (other.time, other.data["step"])
    boxes = [name for name in map(str, n_read) if "mdio/box/c." in name]
    if kept_files == 100:
        assert len(boxes) == len(set(boxes)) == 10
    else:
        assert len(boxes) > 10
    box = trajectory.layout.backend._columns["box"]
    assert len(box._rows_by_file) <= kept_files


def test_room_that_is_in_use_is_not_given_out():
    info = TrajectoryInfo("zarr", "a", 10, 4, 1.0, 0.0, 9.0)
    buffers = frames.BufferPool(info, ("positions",))
    room = buffers.take(3)
    other = buffers.take(3)
    assert other is not room
    assert not np.shares_memory(other.block.positions, room.block.positions)
    assert not np.shares_memory(other.block.box, room.block.box)
    row = room.arrays["positions"].row(0)
    del room
    third = buffers.take(3)
    assert not np.shares_memory(third.block.positions, row)
    del third, row, other
    again = buffers.take(2)  # in one of the two that are kept
    assert len(buffers._buffers) == 2
    assert any(
        np.shares_memory(again.block.positions, b._buffer.block.positions) for b in buffers._buffers
    )
    assert again.block.n_frames == len(again.block.box) == len(again.block.time) == 2


def test_chunks_wider_than_a_group_are_read_row_by_row(adk, tmp_path):
    """Chunks of as many atoms as the full system wants are more than a small group has."""
    for name in ("a.zarr", "a.h5md"):
        mdio.convert(
            adk["xtc"],
            tmp_path / name,
            top=adk["psf"],
            groups={"ca": "name CA"},
            storage=mdio.Storage(chunk_atoms=1000, chunk_frames=CHUNK_FRAMES),
            precision="none",
        )
        u = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
        ca = u.select_atoms("name CA")
        with mdio.open(tmp_path / name, group="ca") as layout:
            for start, stop in ((0, 98), (3, 4), (10, 30)):
                found = layout.read(start, stop).positions
                assert_array_equal(found, u.trajectory.timeseries(ca)[start:stop])


@pytest.mark.parametrize("chunk_frames", [9, 8, 7, 4])
def test_large_raw_chunks_are_read_in_parts(tmp_path, monkeypatch, chunk_frames):
    """Of three frames, over the edges of chunks, too; damage behind an edge does not spread."""
    out = tmp_path / "a.h5md"
    positions = np.random.default_rng(0).random((3 * chunk_frames, 1000, 3), np.float32)
    with mdio.Writer(out, storage=mdio.Storage(chunk_frames=chunk_frames)) as writer:
        writer.write_block(positions)
    monkeypatch.setattr("mdio.readers.frames.RUN_NBYTES", 3 * positions[0].nbytes)
    u = mda.Universe.empty(1000)
    u.load_new(str(out))
    read, runs = type(u.trajectory._layout).read, []

    def noted(layout, start, stop, **more):
        runs.append((start, stop))
        return read(layout, start, stop, **more)

    monkeypatch.setattr(type(u.trajectory._layout), "read", noted)
    for ts, expected in zip(u.trajectory, positions, strict=True):
        assert np.array_equal(ts.positions, expected)
    assert max(stop - start for start, stop in runs) == 3
    damaged = bytearray(out.read_bytes())
    damaged[damaged.find(positions[chunk_frames].tobytes()) + 100] ^= 1
    out.write_bytes(damaged)
    u.load_new(str(out))
    for frame in range(chunk_frames):
        assert np.array_equal(u.trajectory[frame].positions, positions[frame])
    with pytest.raises(FrameReadError, match=r"a\.h5md"):
        u.trajectory[chunk_frames]
