"""What belongs to the caller of a reader and what to the reader: nothing is copied, nothing shared.

The oracle is MDAnalysis' own XTC reader, asked for the same frames in the same order.
"""

import gc
import os
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from suites.outputs import as_options

import mdio
from mdio.readers import frames

KINDS = ["xtc", "h5md", "zarr", "gzip.h5md", "step.zarr", "segments"]


@pytest.fixture(scope="module")
def paths(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    options = {
        "h5md": {"chunk_frames": 7},
        "zarr": {"chunk_frames": 7, "precision": "none"},
        "gzip.h5md": {"chunk_frames": 7, "compression": "gzip:1"},
        "step.zarr": {"precision": "auto"},
        "segments": {"segments": 3},
    }
    for suffix, wanted in options.items():
        mdio.convert(adk["xtc"], folder / f"adk.{suffix}", **as_options(wanted))
    return {"xtc": adk["xtc"], **{suffix: folder / f"adk.{suffix}" for suffix in options}}


def universe(path, n_atoms=3341):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe.empty(n_atoms)
        u.load_new(str(path), format="MDIO")
    return u


@pytest.fixture(params=KINDS)
def trajectory(request, paths):
    return universe(paths[request.param]).trajectory


@pytest.fixture(scope="module")
def reference(adk):
    u = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    return u.trajectory.timeseries()


def test_what_was_changed_in_place_is_read_anew(trajectory, reference):
    for frame in (0, 0, 1, 2, 3, 2, 3, 3, 50, 51, 51, 50, 20, 20, 97, 97, 0):
        ts = trajectory[frame]
        assert_array_equal(ts.positions, reference[frame])
        ts.positions *= 2
        ts.positions[5] = np.nan
    for _ in range(2):
        for ts in trajectory:
            assert_array_equal(ts.positions, reference[ts.frame])
            ts.positions += 1


def test_a_kept_array_shows_the_present_frame_as_with_other_readers(trajectory, reference):
    kept = trajectory[3].positions
    part = kept[10:20, 1]
    for frame in (4, 5, 60, 3, 3, 97):
        ts = trajectory[frame]
        assert ts.positions is kept
        assert_array_equal(part, reference[frame][10:20, 1])


def test_a_kept_view_alone_shows_the_present_frame(trajectory, reference):
    part = trajectory[3].positions[10:20]
    for frame in (4, 5, 60):
        trajectory[frame]
        assert_array_equal(part, reference[frame][10:20])


def test_copies_of_a_timestep_stay(trajectory, reference):
    copies = [ts.copy() for ts in trajectory]
    for frame, copy in enumerate(copies):
        assert_array_equal(copy.positions, reference[frame])


def test_setting_positions_is_forgotten_with_the_frame(trajectory, reference):
    trajectory[7].positions = np.zeros((3341, 3), np.float32)
    trajectory[8]
    assert_array_equal(trajectory[7].positions, reference[7])


def test_another_timestep_is_filled_not_given(trajectory, reference):
    other = trajectory.ts.copy()
    mine = other.positions
    trajectory._read_next_timestep(other)
    assert other.positions is mine
    assert_array_equal(mine, reference[1])
    assert_array_equal(trajectory.ts.positions, reference[0])


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_order_with_changes_and_kept_arrays(trajectory, reference, data):
    frames = data.draw(
        st.lists(st.one_of(st.integers(0, 97), st.integers(20, 24)), min_size=1, max_size=30)
    )
    kept = None
    for frame in frames:
        ts = trajectory[frame]
        assert_array_equal(ts.positions, reference[frame])
        action = data.draw(st.sampled_from(["none", "change", "keep", "leave"]))
        if action == "change":
            ts.positions[...] = -1.0
        elif action == "keep":
            kept = ts.positions[::3]
        elif action == "leave":
            kept = None
        if kept is not None:
            assert_array_equal(kept, ts.positions[::3])


def test_memory_is_used_again_and_bounded(paths, monkeypatch):
    made = []
    real = frames._BufferMemory.__init__

    def counting(self, *args):
        made.append(args)
        real(self, *args)

    monkeypatch.setattr(frames._BufferMemory, "__init__", counting)
    trajectory = universe(paths["zarr"]).trajectory
    for _ in trajectory:
        pass
    first = len(made)
    for _ in range(3):
        for _ in trajectory:
            pass
    assert len(made) == first <= 4
    kept = [trajectory[frame].positions for frame in range(0, 98, 9)]
    assert len({id(array) for array in kept}) == 1
    assert len(trajectory._cache._run_buffers._buffers) <= 2
    del kept
    gc.collect()
    for _ in trajectory:
        pass
    assert len(made) <= first + 2


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("kind", ["zarr", "h5md", "xtc"])
def test_runs_are_read_into_one_place(paths, reference, monkeypatch, kind, direction):
    """Also while the caller still looks at the last frame of the run before."""
    monkeypatch.setattr(frames, "RUN_NBYTES", 14 * 12 * 3341)
    trajectory = universe(paths[kind]).trajectory
    places = set()
    real = trajectory.layout.read

    def read(start, stop, out):
        shown = trajectory.ts.frame, trajectory.ts.positions.copy()
        found = real(start, stop, out=out)
        if stop - start > 1:
            places.add(out.positions.ctypes.data)
        assert_array_equal(trajectory.ts.positions, shown[1])
        assert_array_equal(shown[1], reference[shown[0]])
        return found

    trajectory.layout.read = read
    for ts in trajectory[::direction]:
        assert_array_equal(ts.positions, reference[ts.frame])
    assert len(places) == 1


def test_pairs_of_frames_cost_one_more_read_at_most(paths, reference):
    trajectory = universe(paths["step.zarr"]).trajectory
    reads = []
    real = trajectory._cache._read
    trajectory._cache._read = lambda start, stop: reads.append((start, stop)) or real(start, stop)
    for frame in range(97):
        assert_array_equal(trajectory[frame].positions, reference[frame])
        assert_array_equal(trajectory[frame + 1].positions, reference[frame + 1])
    n_chunks = -(-98 // trajectory.layout.info.chunk_frames)
    assert len(reads) <= n_chunks + 2


def test_velocities_and_forces_too(tmp_path):
    from MDAnalysisTests.datafiles import COORDINATES_TRR

    mdio.convert(COORDINATES_TRR, tmp_path / "a.zarr")
    trajectory = universe(tmp_path / "a.zarr", 5).trajectory
    theirs = mda.coordinates.TRR.TRRReader(COORDINATES_TRR)
    kept = None
    for frame in (0, 1, 1, 2, 3, 4, 0, 2):
        ts, other = trajectory[frame], theirs[frame]
        assert_array_equal(ts.velocities, other.velocities)
        assert_array_equal(ts.forces, other.forces)
        if frame == 3:
            kept = ts.velocities
        if kept is not None:
            assert ts.velocities is kept
        ts.velocities[:] = 0
        ts.forces[:] = 0


def test_a_frame_knows_its_own_views():
    rows = [*map(frames._OwningArray((3, 4, 3), np.float32).row, range(3))]
    assert all(type(row) is np.ndarray and row.flags.writeable for row in rows)
    part = rows[1][1:3][:, 0]
    assert part.base is rows[1]


@pytest.mark.parametrize("kind", ["h5md", "zarr"])
def test_runs_of_raw_chunks_are_read_to_where_copying_is_fast(adk, tmp_path, monkeypatch, kind):
    """Processors of AMD copy slowly to 1 to 31 bytes above the source, modulo a page."""
    out = tmp_path / f"adk.{kind}"
    mdio.convert(adk["xtc"], out, precision="none", compression="none")
    distances = []
    preadv = os.preadv

    def recorded(descriptor, buffers, offset, *flags):
        address = np.frombuffer(buffers[0], np.uint8).ctypes.data
        if len(np.frombuffer(buffers[0], np.uint8)) >= 1 << 16:
            distances.append((address - offset) % 4096)
        return preadv(descriptor, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", recorded)
    for _ in range(2):
        for _ in universe(out).trajectory:
            pass
    assert 256 in distances  # of a chunk at a page of its file
    assert not [distance for distance in distances if 0 < distance < 32]
