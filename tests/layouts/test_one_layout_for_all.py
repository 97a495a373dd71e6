"""A layout that is shared: by threads, by working folders, and with blocks of other layouts."""

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mdio
from mdio.core.errors import SourceError
from mdio.core.frames import FrameBlock

KINDS = ("xtc", "trr", "dcd", "ncdf", "zarr", "h5md", "segments")


def write(folder, kind, number, n_frames=20):
    """Write frames of 50 atoms, all at (number, number, number)."""
    path = folder / f"md.{kind}"
    with mdio.Writer(folder / "source.zarr") as writer:
        box = np.tile([90, 90, 90, 90, 90, 90], (n_frames, 1))
        positions = np.full((n_frames, 50, 3), number)
        writer.write_block(positions, time=np.arange(n_frames), box=box)
    if kind == "segments":
        mdio.convert(folder / "source.zarr", folder / "flat.xtc")
        mdio.split(folder / "flat.xtc", path, 4)
    else:
        mdio.convert(folder / "source.zarr", path)
    return path


@pytest.mark.parametrize("kind", ["xtc", "segments", "refs"])
def test_threads_read_it_in_turn(adk, tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    mdio.convert(adk["dcd"], tmp_path / "a.xtc")
    if kind == "segments":
        mdio.split(tmp_path / "a.xtc", path, 4)
    elif kind == "refs":
        mdio.convert(tmp_path / "a.xtc", path)
    layout, expected = mdio.open(path), mdio.open(path).read(0, 98).positions

    def read(seed):
        random = np.random.default_rng(seed)
        for _ in range(20):
            start = int(random.integers(0, 95))
            atoms = random.choice(3341, 5)
            block = layout.read(start, start + 3, atoms=atoms)
            np.testing.assert_array_equal(block.positions, expected[start : start + 3, atoms])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(12)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_reads_it_while_another_thread_does(tmp_path, kind):
    layout = mdio.open(write(tmp_path, kind, 3))
    layout.read(0, 1)
    begun, done = threading.Event(), threading.Event()

    def hold():
        with layout._lock:
            begun.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    child = multiprocessing.get_context("fork").Process(target=layout.read, args=(2, 5))
    child.start()
    child.join(20)
    done.set()
    thread.join()
    child.kill()
    assert child.exitcode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_relative_path_is_one_in_the_folder_where_it_was_opened(tmp_path, monkeypatch, kind):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number), kind, number)
    monkeypatch.chdir(tmp_path / "1")
    later, earlier, joined = (mdio.open(f"md.{kind}") for _ in range(3))
    earlier.read(0, 1)
    os.chdir(tmp_path / "2")
    values = [
        layout.read(frame, frame + 1).positions[0, 0, 0]
        for layout in (later, earlier, joined, pickle.loads(pickle.dumps(earlier)))
        for frame in (0, 19)
    ]
    os.chdir(tmp_path)
    values.append(earlier.read(10, 11).positions[0, 0, 0])
    earlier.close()
    values.append(earlier.read(5, 6).positions[0, 0, 0])
    np.testing.assert_allclose(values, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_cannot_be_filled(tmp_path, kind):
    layout = mdio.open(write(tmp_path, kind, 3))
    block = layout.read(0, 2)
    block.positions = block.positions.astype(np.float64)
    with pytest.raises(TypeError, match="float64"):
        layout.read(0, 2, out=block)
    block = layout.read(0, 2)
    block.positions[:] = 7
    block.positions.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        layout.read(0, 2, out=block)
    assert (block.positions == 7).all()


@pytest.mark.parametrize("kind", ["xtc", "dcd", "zarr", "h5md", "segments"])
def test_velocities_of_another_trajectory_do_not_stay(adk, tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    mdio.convert(adk["dcd"], path, stop=3)
    block = FrameBlock.empty(2, 3341, velocities=True)
    with pytest.raises(SourceError, match="no velocities"):
        mdio.open(path).read(0, 2, out=block)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_frames_as_small_integers_of_numpy(tmp_path, kind):
    layout = mdio.open(write(tmp_path, kind, 3))
    time = layout.read(np.int8(17), np.uint8(19)).time
    np.testing.assert_allclose(time, [17, 18], rtol=1e-6)
