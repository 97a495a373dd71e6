"""The kernels against NumPy, google_crc32c and HDF5; native code and its twin, bit for bit."""

import itertools
import threading
import time

import google_crc32c
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from suites.kernel_sides import (
    N_ATOMS,
    SIDES,
    in_raw_buffer,
    kernels_of,
    random_positions,
    same_bits,
)

from mdio.core import kernels


@pytest.fixture(params=SIDES, autouse=True)
def side(request, monkeypatch):
    """Runs every test of this file with every implementation."""
    with kernels_of(request.param, monkeypatch) as chosen:
        yield chosen


# --- checksums


@pytest.mark.parametrize(
    "nbytes", [0, 1, 7, 8, 9, 255, 767, 768, 769, 1543, 24575, 24576, 24577, 25344, 100_003]
)
@pytest.mark.parametrize("offset", [0, 1])
def test_crc32c(nbytes, offset):
    data = np.random.default_rng(nbytes).bytes(nbytes + offset)[offset:]
    padded = memoryview(b"x" * offset + data)[offset:]
    assert kernels.crc32c(padded) == google_crc32c.value(data)
    assert kernels.crc32c(padded[5:], google_crc32c.value(data[:5])) == google_crc32c.value(data)


@pytest.mark.parametrize(
    "nbytes", [0, 1, 255, 256, 511, 512, 513, 767, 768, 5000, 31_743, 31_744, 70_001]
)
@pytest.mark.parametrize("offset", [0, 1, 13])
def test_crc32c_by_every_set_of_instructions(nbytes, offset):
    native = pytest.importorskip("mdio._kernels")
    data = np.random.default_rng(nbytes).integers(0, 256, offset + nbytes, np.uint8)
    start = google_crc32c.value(data[:offset].tobytes())
    expected = google_crc32c.value(data.tobytes())
    assert set(native._crc32c_all_ways(data[offset:], start)) == {expected}


def test_crc32c_check_value():
    assert kernels.crc32c(b"123456789") == 0xE3069283  # RFC 3720 and the CRC catalogues
    assert kernels.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8", "u1", "i4", "?", "S5"])
def test_crc32c_of_arrays(dtype):
    array = np.zeros((3, 5, 2), dtype)
    array[1] = 1
    assert kernels.crc32c(array) == google_crc32c.value(array.tobytes())
    with pytest.raises(ValueError, match="C-contiguous"):
        kernels.crc32c(array[:, ::2])
    assert kernels.crc32c(bytearray(b"abc")) == google_crc32c.value(b"abc")


@pytest.mark.parametrize("lengths", [[], [1000], [3, 0, 700, 1, 0]])
@pytest.mark.parametrize("begin", [0, 1 << 40])
def test_crc32c_spans(lengths, begin):
    """A table of edges is cut at any place, so they need not begin with zero."""
    data = np.random.default_rng(1).bytes(1000)
    edges = np.cumsum([0, *lengths])
    expected = [google_crc32c.value(data[a:b]) for a, b in itertools.pairwise(edges)]
    found = kernels.crc32c_spans(data, edges + begin)
    assert found.dtype == np.uint32
    assert found.tolist() == expected
    wide = np.repeat(edges, 2)
    assert kernels.crc32c_spans(data, wide[::2]).tolist() == expected


@pytest.mark.parametrize("lengths", [[], [0], [40, 0, 1, 40], [100_000, 3_000_001], [7] * 500])
def test_crc32c_joined(lengths):
    data = np.random.default_rng(2).bytes(sum(lengths))
    edges = np.cumsum([0, *lengths]) + 12
    sums = kernels.crc32c_spans(data, edges)
    assert kernels.crc32c_joined(sums, edges) == google_crc32c.value(data)
    with pytest.raises(IndexError, match="an edge more"):
        kernels.crc32c_joined(sums, edges[1:])


# --- moving coordinates


@pytest.mark.parametrize("n_atoms", N_ATOMS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
def test_planar_to_xyz(n_atoms, dtype):
    """As in a DCD file: three records a frame, each between two markers of 4 bytes."""
    positions = random_positions(3, n_atoms)
    record = 4 * n_atoms + 8
    raw = np.zeros(1 + 3 * 3 * record, np.uint8)
    planar = np.ndarray((3, 3, n_atoms), dtype, raw, 5, (3 * record, record, 4))
    planar[...] = positions.transpose(0, 2, 1)
    out = np.empty_like(positions)
    kernels.planar_to_xyz(planar, out)
    same_bits(out, positions)
    if n_atoms:
        atoms = np.array([n_atoms - 1, 0, n_atoms // 2, 0])
        wide = np.zeros((3, 9, 3), np.float32)
        kernels.planar_to_xyz(planar, wide[:, 2:6], atoms)
        same_bits(wide[:, 2:6], positions[:, atoms])
        assert not wide[:, :2].any()
        assert not wide[:, 6:].any()


@pytest.mark.parametrize("n_atoms", N_ATOMS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
@pytest.mark.parametrize("scale", [None, 10, 0.1])
@pytest.mark.parametrize("picked", [False, True])
def test_swap_to_native(n_atoms, dtype, scale, picked):
    positions = random_positions(4, n_atoms)
    src = in_raw_buffer(positions.astype(dtype), gap=17, offset=3)
    atoms = np.arange(n_atoms)[::-2].copy() if picked else None
    expected = positions if atoms is None else positions[:, atoms].copy()
    out = np.empty(expected.shape, np.float32)
    kernels.swap_to_native(src, out, atoms, scale)
    same_bits(out, expected * np.float32(1 if scale is None else scale))


def test_bits_of_nan_survive():
    bits = np.array([0x7F800001, 0xFFC12345, 0x80000000], np.uint32)  # signalling NaN, NaN, -0
    src = bits.view(np.float32).reshape(1, 1, 3)
    out = np.empty_like(src)
    kernels.swap_to_native(src.byteswap().view(">f4"), out)
    same_bits(out, src)
    kernels.planar_to_xyz(src.reshape(1, 3, 1), out)
    same_bits(out, src)
    kernels.gather_atoms(src, np.array([0]), out)
    same_bits(out, src)


@pytest.mark.parametrize("n_atoms", N_ATOMS[1:])
@pytest.mark.parametrize("n_picked", [0, 1, 13])
def test_gather_atoms(n_atoms, n_picked):
    src = in_raw_buffer(random_positions(5, n_atoms), gap=8)
    atoms = np.random.default_rng(2).integers(0, n_atoms, n_picked)
    out = np.empty((5, n_picked, 3), np.float32)
    kernels.gather_atoms(src, atoms, out)
    same_bits(out, np.take(src, atoms, axis=1))


# --- shuffle


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 12])
@pytest.mark.parametrize("n_items", [1, 2, 31, 32, 33, 100, 5000])
def test_shuffle_is_that_of_hdf5(itemsize, n_items, tmp_path):
    items = np.frombuffer(np.random.default_rng(5).bytes(itemsize * n_items), f"V{itemsize}")
    with h5py.File(tmp_path / "shuffled.h5", "w") as file:
        stored = file.create_dataset("x", data=items, chunks=(n_items,), shuffle=True)
        _, expected = stored.id.read_direct_chunk((0,))
    shuffled = kernels.shuffle(items, itemsize)
    assert shuffled == expected
    out = np.empty_like(items)
    kernels.unshuffle(shuffled, itemsize, out)
    assert out.tobytes() == items.tobytes()


@given(data=st.binary(max_size=400), itemsize=st.integers(1, 40))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shuffle_round_trip(data, itemsize):
    shuffled = kernels.shuffle(data, itemsize)
    n_whole = len(data) // itemsize * itemsize
    planes = [data[byte:n_whole:itemsize] for byte in range(itemsize)]
    assert shuffled == b"".join(planes) + data[n_whole:]
    out = bytearray(len(data))
    kernels.unshuffle(shuffled, itemsize, out)
    assert out == data


# --- what is refused, before any pointer is followed

GOOD = np.zeros((2, 5, 3), np.float32)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda: kernels.swap_to_native(GOOD.astype("f8"), GOOD.copy())),
        (TypeError, lambda: kernels.gather_atoms(GOOD.astype(">f4"), np.array([0]), GOOD[:, :1])),
        (TypeError, lambda: kernels.gather_atoms(GOOD, np.array([0], "i4"), GOOD[:, :1].copy())),
        (TypeError, lambda: kernels.quantise(GOOD.astype("f8"), 0.1)),
        (TypeError, lambda: kernels.dequantise(GOOD, 0.1, GOOD.copy())),
        (TypeError, lambda: kernels.rmsd(GOOD.astype("f8"), GOOD[0].astype("f8"))),
        (ValueError, lambda: kernels.swap_to_native(GOOD[:, ::2], GOOD[:, :3].copy())),
        (ValueError, lambda: kernels.swap_to_native(GOOD, GOOD[:, :4].copy())),
        (ValueError, lambda: kernels.swap_to_native(GOOD[0], GOOD.copy())),
        (ValueError, lambda: kernels.swap_to_native(GOOD, np.zeros((2, 10, 3), "f4")[:, ::2])),
        (ValueError, lambda: kernels.planar_to_xyz(GOOD, GOOD.copy())),
        (ValueError, lambda: kernels.planar_to_xyz(GOOD.transpose(0, 2, 1), GOOD.copy())),
        (ValueError, lambda: kernels.quantise(GOOD, 0.0)),
        (ValueError, lambda: kernels.quantise(GOOD, np.nan, xtc=True)),
        (IndexError, lambda: kernels.crc32c_spans(b"abc", np.empty(0, "i8"))),
        (ValueError, lambda: kernels.crc32c_spans(memoryview(b"abcd")[::2], np.arange(2))),
        (IndexError, lambda: kernels.crc32c_spans(b"abc", np.array([0, 4]))),
        (IndexError, lambda: kernels.crc32c_spans(b"abc", np.array([0, 2, 1]))),
        (IndexError, lambda: kernels.crc32c_spans(b"abc", np.array([2, 1, 3]))),
        (ValueError, lambda: kernels.shuffle(b"abc", 0)),
        (ValueError, lambda: kernels.unshuffle(b"abcd", 4, bytearray(3))),
        (ValueError, lambda: kernels.unshuffle(b"abcd", 4, memoryview(b"1234"))),
        (IndexError, lambda: kernels.gather_atoms(GOOD, np.array([5]), GOOD[:, :1].copy())),
        (IndexError, lambda: kernels.gather_atoms(GOOD, np.array([-1]), GOOD[:, :1].copy())),
        (
            IndexError,
            lambda: kernels.dequantise(GOOD.view("i4"), 1, GOOD.copy(), None, 1, 3),
        ),
    ],
)
def test_refused(error, call):
    with pytest.raises(error):
        call()


def test_read_only_output():
    out = GOOD.copy()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.swap_to_native(GOOD, out)


@pytest.mark.parametrize("side", [side for side in SIDES if side != "numpy"], indirect=True)
def test_gil_is_released():
    """Another thread gets on while a kernel runs; with the GIL held it would not get one turn."""
    assert any(_another_thread_gets_on() for _ in range(5))  # none but on a machine at full load


def _another_thread_gets_on():
    frame = random_positions(1, 200)
    frames = np.broadcast_to(frame, (300_000, 200, 3))  # no memory, yet much work
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.perf_counter()
    kernels.rmsd(frames, frame[0])
    seconds = time.perf_counter() - begun
    done.set()
    thread.join()
    # At both ends Python runs, and may give the other thread its turn.
    return any(0.2 < (moment - begun) / seconds < 0.7 for moment in ticks)
