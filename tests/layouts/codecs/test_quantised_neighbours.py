"""Positions differenced along the atoms: chosen where it is smaller, exact, any part readable."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from MDAnalysis.coordinates.XTC import XTCReader
from MDAnalysisTests.datafiles import XTC
from suites.kernel_sides import SIDES, kernels_of

from mdio.core import kernels
from mdio.core.kernels import choose_neighbours, difference_neighbours, sum_neighbours
from mdio.layouts.codecs import quantised
from mdio.layouts.codecs.quantised import QuantisedFormat, decode_chunk, encode_chunk

GOLDEN = Path(__file__).parents[2] / "golden" / "quantised"
QUICK = settings(max_examples=60)


BITPACKED = {"bitpack": 4, "zstd": 0, "lz4": 0}
"""What is added to the mode."""


@pytest.fixture(scope="module")
def water() -> np.ndarray:
    """Return 10 frames of a protein in water, 100 ps apart."""
    reader = XTCReader(XTC)
    positions = np.array([ts.positions.copy() for ts in reader])
    reader.close()
    return positions


def molecules(n_frames: int, n_molecules: int) -> np.ndarray:
    """Return molecules of four atoms, in each frame elsewhere: integers."""
    random = np.random.default_rng(5)
    centres = random.integers(-4000, 4000, (n_frames, n_molecules, 1, 3))
    atoms = centres + random.integers(-99, 99, (n_frames, n_molecules, 4, 3))
    return atoms.reshape(n_frames, -1, 3).astype(np.int32)


def differenced(deltas: np.ndarray, kept: np.ndarray) -> np.ndarray:
    differences = deltas.copy()
    difference_neighbours(differences, kept)
    return differences


def decoded(data: bytes, shape: tuple[int, int], **part) -> np.ndarray:
    first, last = part.get("first", 0), part.get("end", shape[0])
    n_atoms = shape[1] if part.get("atoms") is None else len(part["atoms"])
    out = np.full((last - first, n_atoms, 3), -7, np.float32)
    decode_chunk(memoryview(data), shape, out, **part)
    return out


def test_water_far_apart_in_time_is_smaller_than_its_xtc(water):
    """Bit for bit what MDAnalysis reads of the XTC, in fewer bytes than the XTC has."""
    positions = water[:5]
    cases = [("xtc", 4, "zstd", 0.97), ("step", 3, "zstd", 0.97)]
    cases += [("xtc", 8, "bitpack", 1.0), ("step", 7, "bitpack", 1.0)]
    for rule, mode, compressor, share in cases:
        data = encode_chunk(positions, QuantisedFormat(0.01, rule, compressor))
        assert data[4] == mode
        assert len(data) / 5 < share * Path(XTC).stat().st_size / 10
        back = decoded(data, positions.shape[:2])
        if rule == "xtc":
            assert back.tobytes() == positions.tobytes()
        assert np.abs(back - positions).max() < 0.005
    packed = encode_chunk(positions, QuantisedFormat(0.01, "xtc", "lz4", 5))
    assert decoded(packed, positions.shape[:2]).tobytes() == positions.tobytes()


def golden_positions() -> np.ndarray:
    """Return 3 frames of 8 molecules of 3 atoms, as an XTC holds them; the same on all machines."""
    frame, molecule, atom, axis = np.indices((3, 8, 3, 3))
    centres = (frame * 7919 + molecule * 104729 + axis * 1299709) % 5003
    integers = centres + atom * (37 + 11 * axis - 5 * molecule) - 2000
    inverse = np.float32(1) / np.float32(1000)
    return (integers.astype(np.float32) * inverse * np.float32(10)).reshape(3, 24, 3)


def golden_close_positions() -> np.ndarray:
    """Return 5 frames close in time, as an XTC holds them."""
    integers = np.rint(np.repeat(golden_positions()[:1], 5, axis=0).astype(np.float64) * 100)
    integers += np.indices(integers.shape).sum(axis=0) % 7 * np.arange(5)[:, None, None]
    inverse = np.float32(1) / np.float32(1000)
    return integers.astype(np.float32) * inverse * np.float32(10)


GOLDEN_MODES = {
    "v1-step-zstd": 3,
    "v1-xtc-zstd": 4,
    "v1-step-lz4": 3,
    "v1-close-step-bitpack": 5,
    "v1-close-xtc-bitpack": 6,
    "v1-step-bitpack": 7,
    "v1-xtc-bitpack": 8,
}


@pytest.mark.parametrize("name", GOLDEN_MODES)
def test_a_chunk_as_it_was_first_written_stays_readable(name):
    data = (GOLDEN / f"{name}.mdq1").read_bytes()
    assert data[4] == GOLDEN_MODES[name]
    expected = golden_close_positions() if "close" in name else golden_positions()
    found = decoded(data, expected.shape[:2])
    if "xtc" in name:
        assert found.tobytes() == expected.tobytes()
    assert np.abs(found - expected).max() < 1e-5


def test_frames_close_in_time_are_differenced_along_the_frames(water):
    moves = np.cumsum(np.random.default_rng(1).normal(0, 0.05, (8, 900, 3)), axis=0)
    positions = (water[:1, :900] + moves).astype(np.float32)
    for compressor, packed in BITPACKED.items():
        data = encode_chunk(positions, QuantisedFormat(0.01, compressor=compressor))
        assert data[4] == 1 + packed


@pytest.mark.parametrize("compressor", ["bitpack", "zstd"])
def test_it_is_chosen_where_it_is_smaller(water, monkeypatch, compressor):
    for positions in (water[:5, :8000], water[:5, -8000:], np.repeat(water[:1, :8000], 5, axis=0)):
        form = QuantisedFormat(0.01, compressor=compressor)
        chosen = encode_chunk(positions, form)
        with monkeypatch.context() as patch:
            patch.setattr(quantised, "choose_neighbours", lambda deltas: None)
            assert len(chosen) <= len(encode_chunk(positions, form))


integers = hnp.arrays(
    np.int32,
    st.tuples(st.integers(1, 6), st.integers(1, 12), st.just(3)),
    elements=st.integers(-(2**30) + 1, 2**30 - 1) | st.integers(-50, 50),
)


@pytest.mark.parametrize("side", SIDES)
@QUICK
@given(integers, st.data())
def test_any_integers_come_back_with_any_neighbours(side, values, data):
    n_frames, n_atoms = values.shape[:2]
    kept = np.array(
        data.draw(st.lists(st.integers(0, 255), min_size=n_atoms, max_size=n_atoms)), np.uint8
    )
    atoms = data.draw(st.none() | st.lists(st.integers(0, n_atoms - 1), max_size=5))
    picked = None if atoms is None else np.array(atoms, np.int64)
    deltas = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))
    for xtc, scale in ((False, 0.01), (True, 1000.0)):
        with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
            differences = differenced(deltas, kept)
            n_out = n_atoms if picked is None else picked.size
            out = np.full((n_frames, n_out, 3), -7, np.float32)
            sum_neighbours(differences, kept, scale, out, picked, xtc=xtc)
        wanted = values if picked is None else values[:, picked]
        if xtc:
            inverse = np.float32(1) / np.float32(1000)
            expected = wanted.astype(np.float32) * inverse * np.float32(10)
        else:
            expected = (wanted * np.float64(0.01)).astype(np.float32)
        assert np.array_equal(out, expected)


@QUICK
@given(integers)
def test_every_side_chooses_and_differences_alike(values):
    deltas = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))
    found = []
    for side in SIDES:
        with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
            kept = choose_neighbours(deltas)
            how = np.arange(values.shape[1], dtype=np.uint8) * 37
            found.append(
                (
                    None if kept is None else kept.tolist(),
                    differenced(deltas, how).tolist(),
                )
            )
    assert all(other == found[0] for other in found)


def test_every_side_chooses_alike_across_runs():
    """More atoms than native code works through at a time."""
    values = molecules(5, 700)
    deltas = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))
    found = []
    for side in SIDES:
        with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
            kept = choose_neighbours(deltas)
            assert kept is not None
            found.append((kept.tolist(), differenced(deltas, kept).tolist()))
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("compressor", BITPACKED)
@pytest.mark.parametrize("rule", ["step", "xtc"])
@QUICK
@given(st.data())
def test_any_frames_of_any_atoms(rule, compressor, data):
    values = molecules(6, 30)
    positions = values.astype(np.float32) * (np.float32(1) / np.float32(1000)) * np.float32(10)
    encoded = encode_chunk(positions, QuantisedFormat(0.01, rule, compressor))
    assert encoded[4] == (4 if rule == "xtc" else 3) + BITPACKED[compressor]
    atoms = data.draw(st.none() | st.lists(st.integers(0, 119), min_size=1, max_size=8))
    first = data.draw(st.integers(0, 5))
    last = data.draw(st.integers(first + 1, 6))
    picked = None if atoms is None else np.array(atoms, np.int64)
    part = decoded(encoded, (6, 120), first=first, end=last, atoms=picked)
    whole = decoded(encoded, (6, 120))
    assert np.array_equal(part, whole[first:last] if picked is None else whole[first:last, picked])
    assert np.abs(whole - positions).max() < 1e-4


@pytest.mark.parametrize("compressor", BITPACKED)
def test_damage_is_noticed_or_harmless(compressor):
    positions = molecules(3, 5).astype(np.float32) / 100
    data = encode_chunk(positions, QuantisedFormat(0.01, compressor=compressor))
    assert data[4] == 3 + BITPACKED[compressor]
    out = np.empty_like(positions)
    for at in range(len(data)):
        for bit in (0, 4, 7):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                decode_chunk(memoryview(damaged), (3, 20), out)
            except ValueError:
                continue
    for length in (31, 33, 60, len(data) - 1):
        with pytest.raises(ValueError):
            decode_chunk(memoryview(data[:length]), (3, 20), out)


def test_refused():
    deltas, kept = np.zeros((2, 3, 3), np.int32), np.zeros(3, np.uint8)
    out = np.empty((2, 3, 3), np.float32)
    with pytest.raises(TypeError):
        choose_neighbours(deltas.astype(np.int64))
    with pytest.raises(ValueError):
        choose_neighbours(deltas[0])
    with pytest.raises(ValueError):
        difference_neighbours(deltas, kept[:2])
    with pytest.raises(TypeError):
        sum_neighbours(deltas, kept.astype(np.int8), 1.0, out, xtc=False)
    with pytest.raises(IndexError):
        sum_neighbours(deltas, kept, 1.0, out[:, :1].copy(), np.array([3]), xtc=False)
    with pytest.raises(ValueError):
        sum_neighbours(deltas, kept, 0.0, out, xtc=True)
    assert choose_neighbours(np.empty((0, 3, 3), np.int32)) is None
    assert kernels.fold(differenced(deltas, kept)).dtype == np.uint16
