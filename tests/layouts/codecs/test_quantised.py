"""Chunks of quantised positions: bounds kept, XTC's floats given back, damage noticed."""

import struct
import warnings
from concurrent.futures import ThreadPoolExecutor

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from MDAnalysis.coordinates.XTC import XTCReader
from MDAnalysis.lib.formats.libmdaxdr import XTCFile
from MDAnalysisTests.datafiles import DCD, PSF
from suites.kernel_sides import NUMPY, SIDES, kernels_of

from mdio.core.frames import MAX_SCRATCH_NBYTES, Scratch
from mdio.layouts.codecs.quantised import (
    HEADER,
    QuantisedFormat,
    decode_chunk,
    encode_chunk,
)

QUICK = settings(max_examples=80)
COMPRESSORS = ("bitpack", "rigid", "zstd", "lz4")


@pytest.fixture(scope="module")
def adk() -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(PSF, DCD).trajectory.timeseries(order="fac")


def roundtrip(positions: np.ndarray, form: QuantisedFormat, **part) -> np.ndarray:
    data = encode_chunk(positions, form)
    n_frames, n_atoms = positions.shape[:2]
    first, last = part.get("first", 0), part.get("end", n_frames)
    atoms = part.get("atoms")
    out = np.full((last - first, n_atoms if atoms is None else len(atoms), 3), -7, np.float32)
    decode_chunk(memoryview(data), (n_frames, n_atoms), out, **part)
    return out


def mode_of(data: bytes) -> int:
    """Return 0 floats, 1 integers of a step, 2 those of an XTC, whatever they are compared with."""
    return data[4] and (data[4] - 1) % 2 + 1


def bound(positions: np.ndarray, step: float) -> np.ndarray:
    """Half a step, and the rounding of the result to float32."""
    exact = positions.astype(np.float64)
    return step / 2 * (1 + 1e-9) + (np.abs(exact) + step) * 2.0**-24


chunks = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 12), st.just(3)),
    elements=st.floats(-1e4, 1e4, width=32),
)


@QUICK
@given(chunks, st.sampled_from([1.0, 0.1, 0.01, 0.001, 1 / 3]), st.sampled_from(COMPRESSORS))
def test_the_error_is_at_most_half_a_step(positions, step, compressor):
    form = QuantisedFormat(step, compressor=compressor)
    back = roundtrip(positions, form).astype(np.float64)
    assert np.all(np.abs(back - positions.astype(np.float64)) <= bound(positions, step))


@QUICK
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 5), st.just(3)),
        elements=st.floats(width=32),
    ),
    st.sampled_from(["step", "xtc"]),
    st.sampled_from(COMPRESSORS),
)
def test_any_floats_are_kept_within_the_bound_or_as_they_are(positions, rule, compressor):
    form = QuantisedFormat(0.01, rule, compressor)
    data = encode_chunk(positions, form)
    back = roundtrip(positions, form)
    if mode_of(data) != 1:
        assert back.tobytes() == positions.tobytes()
    else:
        error = np.abs(back.astype(np.float64) - positions.astype(np.float64))
        assert np.all(error <= bound(positions, 0.01))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 2.0**30])
def test_a_chunk_with_a_number_that_fits_no_integer_is_kept_as_it_is(adk, bad):
    positions = adk[:5, :100].copy()
    positions[3, 50, 1] = bad
    for rule in ("step", "xtc"):
        form = QuantisedFormat(0.01, rule)
        assert mode_of(encode_chunk(positions, form)) == 0
        assert roundtrip(positions, form).tobytes() == positions.tobytes()


def test_large_jumps_take_wider_integers(adk):
    positions = adk[:6, :200].copy()
    form = QuantisedFormat(0.01, compressor="zstd")
    narrow = encode_chunk(positions, form)
    positions[3] += 5000
    wide = encode_chunk(positions, form)
    assert (narrow[5], wide[5]) == (2, 4)
    error = np.abs(roundtrip(positions, form).astype(np.float64) - positions)
    assert np.all(error <= bound(positions, 0.01))


def test_a_step_at_the_edge_of_two_bytes():
    positions = np.zeros((4, 1, 3), np.float32)
    for jump, itemsize in ((32767, 2), (-32768, 2), (32768, 4), (-32769, 4)):
        positions[1:, 0, 0] = jump
        form = QuantisedFormat(1.0, compressor="zstd")
        assert encode_chunk(positions, form)[5] == itemsize
        assert np.array_equal(roundtrip(positions, form), positions)


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("precision", [100, 1000, 10000, 333])
def test_the_floats_of_an_xtc_come_back_bit_for_bit(adk, tmp_path, precision, compressor):
    path = tmp_path / "adk.xtc"
    nm = (adk / 10).astype(np.float32)
    with XTCFile(str(path), "w") as file:
        for frame in range(20):
            file.write(nm[frame], np.eye(3, dtype="f4") * 9, frame, frame, precision)
    reader = XTCReader(str(path), refresh_offsets=True)
    positions = np.array([ts.positions.copy() for ts in reader])
    reader.close()
    form = QuantisedFormat(10 / precision, "xtc", compressor)
    data = encode_chunk(positions, form)
    assert mode_of(data) == 2
    assert roundtrip(positions, form).tobytes() == positions.tobytes()


@QUICK
@given(
    hnp.arrays(
        np.int32,
        st.tuples(st.integers(1, 6), st.integers(1, 9), st.just(3)),
        elements=st.integers(-(2**22), 2**22),
    ),
    st.sampled_from([100.0, 1000.0, 10000.0]),
    st.sampled_from(COMPRESSORS),
)
def test_any_integers_of_an_xtc_come_back(integers, precision, compressor):
    # The arithmetic of xdrfile (a float32 reciprocal) and of MDAnalysis (times 10).
    inverse = np.float32(1) / np.float32(precision)
    positions = (integers.astype(np.float32) * inverse) * np.float32(10)
    form = QuantisedFormat(10 / precision, "xtc", compressor)
    assert mode_of(encode_chunk(positions, form)) == 2
    assert roundtrip(positions, form).tobytes() == positions.tobytes()


def test_floats_that_no_xtc_holds_stay_floats(adk):
    form = QuantisedFormat(0.01, "xtc")
    assert mode_of(encode_chunk(adk[:4], form)) == 0
    assert roundtrip(adk[:4], form).tobytes() == adk[:4].tobytes()


@QUICK
@given(st.data())
def test_any_frames_of_any_atoms(adk, data):
    positions = adk[:12, :40]
    atoms = data.draw(st.none() | st.lists(st.integers(0, 39), min_size=1, max_size=8))
    first = data.draw(st.integers(0, 11))
    last = data.draw(st.integers(first + 1, 12))
    rule = data.draw(st.sampled_from(["step", "xtc"]))  # xtc: these are stored as floats
    form = QuantisedFormat(0.01, rule, data.draw(st.sampled_from(COMPRESSORS)))
    whole = roundtrip(positions, form)
    picked = None if atoms is None else np.array(atoms, np.int64)
    part = roundtrip(positions, form, first=first, end=last, atoms=picked)
    assert np.array_equal(part, whole[first:last] if picked is None else whole[first:last, picked])


def test_it_is_smaller_than_the_same_xtc(adk, tmp_path):
    path = tmp_path / "adk.xtc"
    with XTCFile(str(path), "w") as file:
        for frame in range(64):
            file.write((adk[frame] / 10).astype("f4"), np.eye(3, dtype="f4"), frame, frame, 1000)
    xtc = path.stat().st_size
    for name, share in (("zstd", 0.75), ("bitpack", 0.8), ("lz4", 0.85)):
        assert len(encode_chunk(adk[:64], QuantisedFormat(0.01, compressor=name))) < share * xtc


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_byte_matters_or_is_noticed_or_is_harmless(adk, compressor):
    """Damage gives ValueError or other numbers, never a crash, and never another size."""
    positions = adk[:4, :10]
    data = encode_chunk(positions, QuantisedFormat(0.01, compressor=compressor))
    out = np.empty_like(positions)
    for at in range(len(data)):
        for bit in (0, 4, 7):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                decode_chunk(memoryview(damaged), (4, 10), out)
            except ValueError:
                continue
            assert out.shape == positions.shape


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("length", [0, 1, 31, 32, 40, -1])
def test_truncated_chunks_are_refused(adk, length, compressor):
    data = encode_chunk(adk[:4, :10], QuantisedFormat(0.01, compressor=compressor))
    with pytest.raises(ValueError):
        decode_chunk(memoryview(data[:length]), (4, 10), np.empty((4, 10, 3), np.float32))


@pytest.mark.parametrize("shape", [(2**31, 10), (4, 2**31)])
def test_lying_numbers_allocate_nothing(adk, shape):
    data = bytearray(encode_chunk(adk[:4, :10], QuantisedFormat(0.01)))
    struct.pack_into("<II", data, 8, *(n & 0xFFFFFFFF for n in shape))
    with pytest.raises(ValueError, match="frames of"):
        decode_chunk(memoryview(data), (4, 10), np.empty((4, 10, 3), np.float32))


def test_the_header_is_as_documented(adk):
    for compressor, mode, itemsize in (("bitpack", 5, 0), ("zstd", 1, 2)):
        data = encode_chunk(adk[:4, :10], QuantisedFormat(0.01, compressor=compressor))
        fields = struct.unpack_from("<4sBBHIIdII", data)
        assert fields[:7] == (b"mdq1", mode, itemsize, 0, 4, 10, 0.01)
    assert HEADER.size == 32
    assert 32 + fields[7] + fields[8] == len(data)


def test_the_native_kernels_and_numpy_make_the_same_bytes(adk, monkeypatch):
    from mdio.core.kernels import backend

    positions = adk[:9, :301]
    made = {}
    for name, module in (("native", backend.module), ("numpy", NUMPY)):
        monkeypatch.setattr(backend, "module", module)
        packed = [c for c in COMPRESSORS if c != "rigid"]  # that only native code makes
        forms = [QuantisedFormat(s, compressor=c) for s in (0.01, 1e-5) for c in packed]
        made[name] = [encode_chunk(positions, form) for form in forms]
        made[name] += [roundtrip(positions, form).tobytes() for form in forms]
    assert made["native"] == made["numpy"]


@pytest.mark.parametrize("side", SIDES)
@QUICK
@given(
    hnp.arrays(
        np.int32, st.integers(0, 70), elements=st.integers(-(2**31), 2**31 - 1) | st.integers(-9, 9)
    )
)
def test_folding(side, integers):
    """0, -1, 1, -2, ... become 0, 1, 2, 3, ... in two bytes where all fit, and back."""
    from mdio.core import kernels

    with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
        folded = kernels.fold(integers)
        back = np.full_like(integers, 77)
        kernels.unfold(folded, back)
    expected = [2 * n if n >= 0 else -2 * n - 1 for n in integers.tolist()]
    assert folded.tolist() == expected
    assert folded.dtype == (np.uint16 if max(expected, default=0) < 2**16 else np.uint32)
    assert np.array_equal(back, integers)


def test_folding_refuses_other_arrays():
    from mdio.core import kernels

    with pytest.raises(TypeError):
        kernels.fold(np.zeros(3, np.int64))
    with pytest.raises(TypeError):
        kernels.unfold(np.zeros(3, np.int32), np.zeros(3, np.int32))
    with pytest.raises(ValueError):
        kernels.unfold(np.zeros(3, np.uint16), np.zeros(4, np.int32))


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_one_frame(adk, compressor):
    back = roundtrip(adk[:1], QuantisedFormat(0.01, compressor=compressor))
    assert np.abs(back.astype(np.float64) - adk[:1]).max() <= 0.0051


def test_decoding_keeps_its_memory_but_not_that_of_large_chunks():
    scratch = Scratch()
    one = scratch.buffer("a", 100)
    assert np.shares_memory(one, scratch.buffer("a", 60))
    assert not np.shares_memory(one, scratch.buffer("b", 60))
    assert not np.shares_memory(one, scratch.buffer("a", 200))
    large = scratch.buffer("a", MAX_SCRATCH_NBYTES + 1)
    assert large.nbytes == MAX_SCRATCH_NBYTES + 1
    assert scratch.buffer("a", 100).base.nbytes == 200
    with ThreadPoolExecutor(1) as pool:
        assert not np.shares_memory(
            scratch.buffer("a", 9), pool.submit(scratch.buffer, "a", 9).result()
        )


def test_threads_decode_at_the_same_time():
    rng = np.random.default_rng(5)
    chunks = [rng.normal(0, 20, (30, 400, 3)).cumsum(0).astype(np.float32) for _ in range(8)]
    forms = [QuantisedFormat(0.01, compressor=c) for c in 2 * COMPRESSORS]
    encoded = [encode_chunk(chunk, form) for chunk, form in zip(chunks, forms, strict=True)]
    expected = []
    for chunk, data in zip(chunks, encoded, strict=True):
        expected.append(np.empty_like(chunk))
        decode_chunk(memoryview(data), (30, 400), expected[-1])

    def decode(number):
        out = np.empty((30, 400, 3), np.float32)
        decode_chunk(memoryview(encoded[number]), (30, 400), out)
        return np.array_equal(out, expected[number])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode, [n % 6 for n in range(120)]))
