"""Reading ahead in a thread: the same frames, the same errors, and no thread left behind."""

import multiprocessing
import os
import pickle
import shutil
import threading
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import mdio
from mdio.core.errors import FrameReadError
from mdio.readers import frames as cache_module

N_FRAMES = 294


@pytest.fixture(autouse=True)
def asked_for(monkeypatch):
    monkeypatch.setenv("MDIO_READ_AHEAD", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(cache_module, "RUN_NBYTES", 10 * 40_092)
    yield
    assert not threads()


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("mdio")]


@pytest.fixture(scope="module")
def paths(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead")
    xtc = folder / "adk.xtc"
    xtc.write_bytes(adk["xtc"].read_bytes() * 3)
    mdio.convert(xtc, folder / "adk.zarr", precision="auto", storage=mdio.Storage(chunk_frames=10))
    mdio.convert(
        xtc, folder / "adk.h5md", compression="gzip:1", storage=mdio.Storage(chunk_frames=10)
    )
    mdio.convert(
        xtc, folder / "plain.zarr", precision="none", storage=mdio.Storage(chunk_frames=10)
    )
    names = ("adk.xtc", "adk.zarr", "adk.h5md", "plain.zarr")
    return {name: folder / name for name in names}


@pytest.fixture(scope="module")
def reference(adk):
    u = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    return np.concatenate([u.trajectory.timeseries()] * 3)


def open_reader(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe.empty(3341)
        u.load_new(str(path), format="MDIO")
    return u.trajectory


@pytest.fixture(params=["adk.xtc", "adk.zarr", "adk.h5md"])
def trajectory(request, paths):
    with open_reader(paths[request.param]) as found:
        yield found


def reads_of(trajectory):
    """Return a list that gets (start, stop, whether in a thread of ours) of each read."""
    layout, reads = trajectory._layout, []
    real = layout.read

    def read(start, stop, **kwargs):
        reads.append((start, stop, threading.current_thread() is not threading.main_thread()))
        return real(start, stop, **kwargs)

    layout.read = read
    return reads


def test_the_same_frames_and_most_of_them_ahead(trajectory, reference):
    reads = reads_of(trajectory)
    for _ in range(2):
        for ts in trajectory:
            assert_array_equal(ts.positions, reference[ts.frame])
            ts.positions += 1
    ahead = [read for read in reads if read[2]]
    assert sum(stop - start for start, stop, _ in ahead) > 1.7 * N_FRAMES
    assert len(reads) < 2 * (N_FRAMES // 10 + 5)


@pytest.mark.parametrize("frames", [[5, 90, 200, 31, 7], range(293, -1, -1), range(0, 294, 40)])
def test_jumps_and_going_back_start_no_thread(trajectory, reference, frames):
    reads = reads_of(trajectory)
    for frame in frames:
        assert_array_equal(trajectory[frame].positions, reference[frame])
    assert not any(in_thread for *_, in_thread in reads)


def test_jumping_out_of_what_is_read_ahead(trajectory, reference):
    for start in (0, 150, 3):
        for frame in [*range(start, start + 40), 280, 281, 1]:
            assert_array_equal(trajectory[frame].positions, reference[frame])


def test_steps_and_bulk_reads_in_between(trajectory, reference):
    for ts in trajectory[::3]:
        assert_array_equal(ts.positions, reference[ts.frame])
        if ts.frame == 60:
            assert_array_equal(trajectory.timeseries(start=2, stop=9), reference[2:9])


def test_kept_arrays_show_the_present_frame(trajectory, reference):
    kept = trajectory[0].positions
    for frame in range(100):
        assert trajectory[frame].positions is kept
        assert_array_equal(kept, reference[frame])


@pytest.mark.parametrize("why", ["plain", "one core", "off", "not asked"])
def test_where_it_cannot_help_there_is_none(paths, monkeypatch, why):
    if why == "one core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    elif why == "off":
        monkeypatch.setenv("MDIO_READ_AHEAD", "0")
    elif why == "not asked":
        monkeypatch.delenv("MDIO_READ_AHEAD")
    with open_reader(paths["plain.zarr" if why == "plain" else "adk.zarr"]) as trajectory:
        reads = reads_of(trajectory)
        for _ in trajectory:
            pass
        assert not any(in_thread for *_, in_thread in reads)


def test_damage_is_met_at_its_frame(paths, tmp_path, reference):
    path = tmp_path / "damaged.zarr"
    shutil.copytree(paths["adk.zarr"], path)
    with mdio.open(path) as layout:
        shard, offset, _ = layout.backend.arrays["trajectory", "positions"].locate(5, 0)
        data = bytearray(shard.path.read_bytes())
    data[offset + 100] ^= 1
    shard.path.write_bytes(data)
    seen = []
    with open_reader(path) as trajectory:
        with pytest.raises(FrameReadError, match=r"frame 50: .*checksum"):
            for ts in trajectory:
                assert_array_equal(ts.positions, reference[ts.frame])
                seen.append(ts.frame)
        assert seen == list(range(50))
        assert_array_equal(trajectory[60].positions, reference[60])


def test_nothing_runs_after_an_iteration_or_a_close(trajectory):
    for _ in trajectory:
        pass
    assert not threads()
    for frame in range(60):
        trajectory[frame]
    assert len(threads()) == 1
    trajectory.close()
    assert not threads()


def test_who_asks_for_the_layout_has_it_alone(trajectory):
    for frame in range(60):
        trajectory[frame]
    reads = reads_of(trajectory)
    assert trajectory.layout is trajectory._layout
    assert not threads()
    for frame in range(60, 200):
        trajectory[frame]
    assert not any(in_thread for *_, in_thread in reads)


def test_a_fork_ends_the_thread_first(trajectory, reference):
    for frame in range(60):
        trajectory[frame]
    assert threads()
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(0,))
    child.start()
    assert not threads()
    child.join()
    assert child.exitcode == 0
    for frame in range(60, 120):
        assert_array_equal(trajectory[frame].positions, reference[frame])


def test_a_forked_child_goes_on_from_there(trajectory, reference):
    for frame in range(60):
        trajectory[frame]
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        same = all(
            np.array_equal(trajectory[frame].positions, reference[frame])
            for frame in range(60, 110)
        )
        os.write(write_end, b"same" if same else b"other")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read_end, 10) == b"same"
    os.close(read_end)
    os.close(write_end)
    assert_array_equal(trajectory[60].positions, reference[60])


def test_pickled_while_reading_ahead(trajectory, reference):
    for frame in range(60):
        trajectory[frame]
    other = pickle.loads(pickle.dumps(trajectory))
    for frame in (60, 61, 150):
        assert_array_equal(other[frame].positions, reference[frame])
        assert_array_equal(trajectory[frame].positions, reference[frame])
    other.close()
