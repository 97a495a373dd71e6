"""The kernels against NumPy, google_crc32c and HDF5; native code and its twin, bit for bit."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import google_crc32c
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.formats.libmdaxdr import XTCFile
from MDAnalysisTests.datafiles import XTC

from mdio.core import kernels, kernels_numpy

SIDES = ["numpy", *(["native", "plain"] if kernels.NATIVE else [])]
"""plain: native code without the instructions of newer processors."""

N_ATOMS = [0, 1, 2, 3, 4, 5, 7, 8, 31, 214, 1365, 1366, 3000]


@pytest.fixture(params=SIDES, autouse=True)
def side(request, monkeypatch):
    """Runs every test of this file with every implementation."""
    with implementation(request.param) as chosen:
        monkeypatch.setattr(kernels, "_kernels", chosen)
        yield request.param


@contextmanager
def implementation(side):
    if side == "numpy":
        yield kernels_numpy
        return
    native = importlib.import_module("mdio._kernels")
    native._plain_only(side == "plain")
    yield native
    native._plain_only(False)


def random_positions(n_frames, n_atoms, seed=0):
    return np.random.default_rng(seed).normal(0, 30, (n_frames, n_atoms, 3)).astype(np.float32)


def in_raw_buffer(array, gap=0, offset=0):
    """Return a view with the same numbers, its frames `gap` bytes apart, unaligned by `offset`."""
    n_frames = len(array)
    frame_nbytes = array[0].nbytes if n_frames else 0
    raw = np.full(offset + n_frames * (frame_nbytes + gap), 0xAB, np.uint8)
    view = np.ndarray(
        array.shape, array.dtype, raw, offset, (frame_nbytes + gap, *array.strides[1:])
    )
    view[...] = array
    return view


def same_bits(one, other):
    np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))


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


@pytest.mark.parametrize("nbytes_each", [1, 7, 100, 1000, 5000])
def test_crc32c_many(nbytes_each):
    data = np.random.default_rng(1).bytes(1000)
    pieces = [data[i : i + nbytes_each] for i in range(0, 1000, nbytes_each)]
    expected = [google_crc32c.value(piece) for piece in pieces]
    assert kernels.crc32c_many(data, nbytes_each) == expected
    assert kernels.crc32c_many(b"", nbytes_each) == []


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
    swapped = np.empty_like(positions)
    kernels.planar_to_xyz(planar.view(planar.dtype.newbyteorder()), swapped, swap=True)
    same_bits(swapped, positions)
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


# --- integers


@pytest.mark.parametrize("n_atoms", N_ATOMS)
@pytest.mark.parametrize("step", [0.01, 0.001, 1 / 3])
def test_quantise_deltas(n_atoms, step):
    positions = in_raw_buffer(random_positions(6, n_atoms), gap=4)
    integers = np.rint(positions.astype(np.float64) / step).astype(np.int32)
    deltas = kernels.quantise_deltas(positions, step)
    assert deltas.dtype == np.int32
    np.testing.assert_array_equal(
        deltas, np.diff(integers, axis=0, prepend=np.zeros_like(integers[:1]))
    )
    out = np.empty_like(positions, order="C")
    kernels.dequantise_deltas(deltas, step, out)
    same_bits(out, (integers.astype(np.float64) * step).astype(np.float32))
    atoms = np.arange(n_atoms)[::-3].copy()
    some = np.zeros((3, atoms.size + 2, 3), np.float32)
    kernels.dequantise_deltas(deltas, step, some[:, 1:-1], atoms, 2, 5)
    same_bits(some[:, 1:-1], out[2:5][:, atoms])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**30, -(2.0**30), 3e38])
@pytest.mark.parametrize("n_atoms", [1, 9, 2000])
def test_what_cannot_be_an_integer(bad, n_atoms):
    positions = random_positions(3, n_atoms)
    positions[1, -1, 2] = bad
    assert kernels.quantise_deltas(positions, 1.0) is None
    assert kernels.quantise_xtc(positions, 10.0) is None


def test_extreme_integers():
    """The largest ones, and sums that wrap around on the way."""
    top = np.nextafter(np.float32(2**30), np.float32(0))
    positions = np.array([top, -top, top, 0.5, 1.5, -2.5], np.float32).reshape(6, 1, 1) * np.ones(3)
    positions = positions.astype(np.float32)
    deltas = kernels.quantise_deltas(positions, 1.0)
    out = np.empty_like(positions)
    kernels.dequantise_deltas(deltas, 1.0, out)
    np.testing.assert_array_equal(out, np.rint(positions))
    wrapped = np.full((4, 1, 3), 2**31 - 1, np.int32)
    kernels.dequantise_deltas(wrapped, 1.0, out[:4])
    sums = (np.arange(1, 5) * (2**31 - 1) + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(out[:4, 0, 0], sums.astype(np.float32))


def test_real_xtc():
    """The integers are those of the file: they decode to what MDAnalysis reads, bit for bit."""
    with XTCFile(XTC) as file:
        frames = [(frame.x, frame.prec) for frame in file]
    nm = np.array([x for x, _ in frames])
    positions = nm * np.float32(10)  # what XTCReader does
    deltas = kernels.quantise_xtc(positions, frames[0][1])
    integers = np.rint(nm.astype(np.float64) * 1000).astype(np.int32)
    np.testing.assert_array_equal(np.cumsum(deltas, axis=0), integers)
    out = np.empty_like(positions)
    kernels.dequantise_xtc(deltas, frames[0][1], out)
    same_bits(out, positions)
    positions[-1, -1, -1] = np.nextafter(positions[-1, -1, -1], np.float32(0))
    assert kernels.quantise_xtc(positions, frames[0][1]) is None


def xtc_positions(integers, precision):
    inverse = np.float32(1.0 / precision)
    return (integers.astype(np.float32) * inverse) * np.float32(10)


@pytest.mark.parametrize("precision", [1.0, 100.0, 1000.0, 12345.678, 1e6])
@pytest.mark.parametrize("largest", [10, 10**4, 2**24, 2**29])
def test_xtc_of_any_precision(precision, largest):
    integers = np.random.default_rng(4).integers(-largest, largest, (3, 1500, 3))
    positions = xtc_positions(integers, np.float32(precision))
    deltas = kernels.quantise_xtc(positions, precision)
    if deltas is None:  # allowed only where float32 tells neighbouring integers no longer apart
        assert largest > 2**24, "within float32's integers all must be found"
        return
    out = np.empty_like(positions)
    kernels.dequantise_xtc(deltas, precision, out)
    same_bits(out, positions)
    atoms = np.array([1499, 3, 0])
    kernels.dequantise_xtc(deltas, precision, out[:1, :3], atoms, 2)
    same_bits(out[:1, :3], positions[2:, atoms])


def test_minus_zero_is_no_xtc():
    assert kernels.quantise_xtc(np.full((1, 1, 3), -0.0, np.float32), 1000) is None


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
        (TypeError, lambda: kernels.quantise_deltas(GOOD.astype("f8"), 0.1)),
        (TypeError, lambda: kernels.dequantise_deltas(GOOD, 0.1, GOOD.copy())),
        (TypeError, lambda: kernels.rmsd(GOOD.astype("f8"), GOOD[0].astype("f8"))),
        (ValueError, lambda: kernels.swap_to_native(GOOD[:, ::2], GOOD[:, :3].copy())),
        (ValueError, lambda: kernels.swap_to_native(GOOD, GOOD[:, :4].copy())),
        (ValueError, lambda: kernels.swap_to_native(GOOD[0], GOOD.copy())),
        (ValueError, lambda: kernels.swap_to_native(GOOD, np.zeros((2, 10, 3), "f4")[:, ::2])),
        (ValueError, lambda: kernels.planar_to_xyz(GOOD, GOOD.copy())),
        (ValueError, lambda: kernels.planar_to_xyz(GOOD.transpose(0, 2, 1), GOOD.copy())),
        (ValueError, lambda: kernels.quantise_deltas(GOOD, 0.0)),
        (ValueError, lambda: kernels.quantise_xtc(GOOD, np.nan)),
        (ValueError, lambda: kernels.crc32c_many(b"abc", 0)),
        (ValueError, lambda: kernels.shuffle(b"abc", 0)),
        (ValueError, lambda: kernels.unshuffle(b"abcd", 4, bytearray(3))),
        (ValueError, lambda: kernels.unshuffle(b"abcd", 4, memoryview(b"1234"))),
        (IndexError, lambda: kernels.gather_atoms(GOOD, np.array([5]), GOOD[:, :1].copy())),
        (IndexError, lambda: kernels.gather_atoms(GOOD, np.array([-1]), GOOD[:, :1].copy())),
        (
            IndexError,
            lambda: kernels.dequantise_deltas(GOOD.view("i4"), 1, GOOD.copy(), None, 1, 3),
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


# --- which side runs


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_pure_python_is_a_switch(value):
    code = (
        "from mdio.core import kernels as k; import sys;"
        "print(k.NATIVE, k.crc32c(b'123456789') == 0xE3069283, 'MDAnalysis' in sys.modules)"
    )
    environment = {**os.environ, "MDIO_PURE_PYTHON": value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    native = importlib.util.find_spec("mdio._kernels") is not None and value != "1"
    assert done.stdout.split() == [str(native), "True", "False"]


def test_gil_is_released(side):
    """Another thread gets on while a kernel runs; with the GIL held it would not get one turn."""
    if side != "native":
        pytest.skip("only native kernels let go of it")
    data = np.zeros(200_000_000, np.uint8)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    before = time.perf_counter()
    kernels.crc32c(data)
    after = time.perf_counter()
    done.set()
    thread.join()
    assert sum(before < moment < after for moment in ticks) >= 3
