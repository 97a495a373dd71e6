"""Bit-packed integers: as documented, the same from every side, and safe on any bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suites.kernel_sides import SIDES, kernels_of

from mdio.core.kernels import (
    backend,
    difference_first,
    difference_neighbours,
    pack,
    packed_limit,
    sum_neighbours,
    sum_packed,
)
from mdio.layouts.codecs.quantised import QuantisedFormat, decode_chunk, encode_chunk

QUICK = settings(max_examples=60)
BEHIND = 16


@st.composite
def integers(draw) -> np.ndarray:
    """Draw (F, A, 3) differences whose sums are below 2**30; groups of many widths."""
    n_frames, n_atoms = draw(st.integers(1, 100)), draw(st.integers(1, 200))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    most = 2.0 ** random.uniform(0, 30, (n_frames, n_atoms, 3))
    if draw(st.booleans()):
        most = 2.0 ** np.repeat(random.uniform(0, 30, (n_frames, -(-n_atoms // 40))), 40, axis=1)
        most = most[:, :n_atoms, None]
    values = (random.uniform(-1, 1, (n_frames, n_atoms, 3)) * most).astype(np.int32)
    for _ in range(draw(st.integers(0, 3))):
        place = tuple(int(random.integers(n)) for n in values.shape)
        values[place] = draw(st.sampled_from([0, 2**30 - 1, 1 - 2**30]))
    return np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))


def packed_of(deltas: np.ndarray) -> np.ndarray:
    """Return the packed bytes, however large."""
    room = np.full(packed_limit(len(deltas), deltas[0].size), 0xAA, np.uint8)
    return room[: backend.module.pack(deltas, room)]


def packed_frames(deltas: np.ndarray) -> np.ndarray:
    """Do as `packed_of`, the first frame differenced along the atoms."""
    ready = deltas.copy()
    ready[0] = np.diff(deltas[0], axis=0, prepend=np.zeros_like(deltas[0, :1]))
    made = deltas.copy()
    difference_first(made)
    assert np.array_equal(made, ready)
    return packed_of(ready)


def by_the_book(deltas: np.ndarray) -> bytes:
    """Pack as the documentation says, with Python's integers."""
    widths, groups = b"", b""
    for row in deltas.reshape(len(deltas), -1).tolist():
        folded = [2 * n if n >= 0 else -2 * n - 1 for n in row]
        for begin in range(0, len(folded), 32):
            group = folded[begin : begin + 32]
            width = max(n.bit_length() for n in group)
            number = sum(n << width * place for place, n in enumerate(group))
            widths += bytes([width])
            groups += number.to_bytes(-(-len(group) // 8) * width, "little")
    return widths + groups + bytes(BEHIND)


def floats(values: np.ndarray, *, xtc: bool) -> np.ndarray:
    if xtc:
        return values.astype(np.float32) * (np.float32(1) / np.float32(1000)) * np.float32(10)
    return (values * np.float64(0.01)).astype(np.float32)


@QUICK
@given(integers())
def test_every_side_packs_as_documented(deltas):
    expected = by_the_book(deltas)
    for side in SIDES:
        with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
            assert packed_of(deltas).tobytes() == expected


@pytest.mark.parametrize("width", range(33))
def test_every_width(width):
    """Among them those that span five bytes, and groups of eights at the end of a row."""
    random = np.random.default_rng(width)
    for n_atoms in (1, 3, 5, 8, 11, 200):
        shape = (3, n_atoms, 3)
        folded = random.integers(0, 2**width, shape, np.uint64).astype(np.uint32)
        folded.reshape(3, -1)[:, -1] = 2**width - 1
        deltas = ((folded >> 1) ^ -(folded & 1)).view(np.int32)
        frames = deltas.copy()
        frames[0] = np.cumsum(deltas[0], axis=0, dtype=np.int32)
        sums = np.cumsum(frames, axis=0, dtype=np.int32)
        expected = by_the_book(deltas)
        for side in SIDES:
            with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
                packed = packed_of(deltas)
                assert packed.tobytes() == expected
                out = np.full(shape, -7, np.float32)
                sum_packed(packed, shape[:2], 0.01, out, xtc=False)
            assert np.array_equal(out, floats(sums, xtc=False))


@pytest.mark.parametrize("xtc", [False, True])
@pytest.mark.parametrize("side", SIDES)
@QUICK
@given(integers(), st.data())
def test_any_frames_of_any_atoms(side, xtc, deltas, data):
    n_frames, n_atoms = deltas.shape[:2]
    first = data.draw(st.integers(0, n_frames))
    last = data.draw(st.integers(first, n_frames))
    atoms = data.draw(st.none() | st.lists(st.integers(0, n_atoms - 1), max_size=9))
    picked = slice(None) if atoms is None else np.array(atoms, np.int64)
    wanted = None if atoms is None else picked
    kept = np.frombuffer(data.draw(st.binary(min_size=n_atoms, max_size=n_atoms)), np.uint8)
    differences = deltas.copy()
    difference_neighbours(differences, kept)
    sums = np.cumsum(deltas, axis=0, dtype=np.int32)[first:last, picked]
    scale = 1000.0 if xtc else 0.01
    with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
        out = np.full((last - first + 1, sums.shape[1], 3), -7, np.float32)
        part = (scale, out[:-1], wanted, first, last)
        sum_packed(packed_frames(deltas), deltas.shape[:2], *part, xtc=xtc)
        assert np.array_equal(out[:-1], floats(sums, xtc=xtc))
        assert np.all(out[-1] == -7)
        out[...] = -7
        sum_packed(packed_of(differences), differences.shape[:2], *part, xtc=xtc, neighbours=kept)
        assert np.array_equal(out[:-1], floats(sums, xtc=xtc))
        assert np.all(out[-1] == -7)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("n_atoms", [1365, 1366, 3000])
def test_more_atoms_than_are_worked_through_at_a_time(side, n_atoms, monkeypatch):
    random = np.random.default_rng(n_atoms)
    deltas = random.integers(-300, 300, (7, n_atoms, 3)).astype(np.int32)
    kept = random.integers(0, 256, n_atoms).astype(np.uint8)
    differences = deltas.copy()
    difference_neighbours(differences, kept)
    expected = floats(np.cumsum(deltas, axis=0, dtype=np.int32), xtc=False)
    few = np.array([n_atoms - 1, 0, 700, 700, 3])
    with kernels_of(side, monkeypatch):
        for atoms in (None, few):
            picked = slice(None) if atoms is None else atoms
            out = np.full(expected[:, picked].shape, -7, np.float32)
            sum_packed(packed_frames(deltas), (7, n_atoms), 0.01, out, atoms, xtc=False)
            assert np.array_equal(out, expected[:, picked])
            out[...] = -7
            packed = packed_of(differences)
            sum_packed(packed, (7, n_atoms), 0.01, out, atoms, xtc=False, neighbours=kept)
            assert np.array_equal(out, expected[:, picked])
            again = np.full_like(out, -7)
            sum_neighbours(differences, kept, 0.01, again, atoms, xtc=False)
            assert np.array_equal(again, out)


@pytest.mark.parametrize("side", SIDES)
def test_bytes_that_do_not_fit_together_are_refused(side, monkeypatch):
    """Whichever frames and atoms are wanted; with the other numbers there are some results."""
    random = np.random.default_rng(3)
    deltas = random.integers(-90, 90, (4, 12, 3)).astype(np.int32)
    good = packed_of(deltas)
    kept = np.arange(12, dtype=np.uint8)
    out = np.empty((1, 1, 3), np.float32)
    some = (1.0, out, np.array([2]), 1, 2)
    with kernels_of(side, monkeypatch):

        def refused(data: np.ndarray, shape: tuple[int, int] = (4, 12)) -> bool:
            found = []
            for undo in (
                lambda: sum_packed(data, shape, *some, xtc=False),
                lambda: sum_packed(data, shape, *some, xtc=True, neighbours=kept[: shape[1]]),
            ):
                try:
                    undo()
                    found.append(False)
                except ValueError:
                    found.append(True)
            assert found[0] == found[1]
            return found[0]

        assert not refused(good)
        for length in range(good.size):
            assert refused(good[:length].copy())
        assert refused(np.append(good, np.uint8(0)))
        for at in range(8):
            for width in (0, 33, 64, 255):
                bad = good.copy()
                bad[at] = width
                assert refused(bad)
        assert refused(good, (3, 12)) and refused(good, (5, 12)) and refused(good, (4, 10))
        assert refused(good, (2**31, 12)) and refused(np.empty(0, np.uint8))
        moved = good.copy()
        moved[[0, 2]] += np.array([255, 1], np.uint8)  # one bit from a group to another
        assert not refused(moved)


def test_chunks_that_would_grow_stay_floats():
    random = np.random.default_rng(0)
    wild = random.integers(-(2**30) + 1, 2**30, (5, 64, 3)).astype(np.float32)
    for rule in ("step", "xtc"):
        data = encode_chunk(wild, QuantisedFormat(1.0, rule))
        out = np.empty_like(wild)
        decode_chunk(memoryview(data), (5, 64), out)
        assert data[4] == 0
        assert out.tobytes() == wild.tobytes()
    calm = random.integers(-(2**13), 2**13, (5, 64, 3)).astype(np.float32)
    assert encode_chunk(calm, QuantisedFormat(1.0))[4] in (5, 7)


@pytest.mark.parametrize("mode", [5, 7])
def test_headers_of_packed_chunks_are_checked(mode):
    random = np.random.default_rng(1)
    positions = random.normal(0, 0.1, (4, 30, 3)).cumsum(axis=0 if mode == 5 else 1)
    positions += random.normal(0, 300, (1, 30, 1) if mode == 5 else (4, 1, 3))
    data = encode_chunk(positions.astype(np.float32), QuantisedFormat(0.01))
    assert data[4] == mode
    out = np.empty((4, 30, 3), np.float32)
    for at, value in ((4, 9), (5, 2), (4, mode - 4), (8, 5), (23, 0xFF)):
        bad = bytearray(data)
        bad[at] = value
        with pytest.raises(ValueError):
            decode_chunk(memoryview(bad), (4, 30), out)


def test_refused():
    deltas = np.zeros((2, 3, 3), np.int32)
    room = np.empty(packed_limit(2, 9), np.uint8)
    out, kept = np.empty((2, 3, 3), np.float32), np.zeros(3, np.uint8)
    packed = pack(deltas, room)
    assert packed is not None and packed.tolist() == [0] * (2 + BEHIND)
    with pytest.raises(TypeError):
        pack(deltas.astype(np.int64), room)
    with pytest.raises(TypeError):
        pack(deltas, room.view(np.int8))
    with pytest.raises(ValueError):
        pack(deltas, room[1:])
    with pytest.raises(ValueError):
        pack(deltas[:0], room)
    with pytest.raises(TypeError):
        sum_packed(packed.view(np.int8), (2, 3), 1.0, out, xtc=False)
    with pytest.raises(ValueError):
        sum_packed(packed, (2, 3), 1.0, out[:1], xtc=False)
    with pytest.raises(IndexError):
        sum_packed(packed, (2, 3), 1.0, out, None, 1, 3, xtc=False)
    with pytest.raises(IndexError):
        sum_packed(packed, (2, 3), 1.0, out, np.array([3, 0]), xtc=False)
    with pytest.raises(ValueError):
        sum_packed(packed, (2, 3), np.nan, out, xtc=False)
    with pytest.raises(TypeError):
        sum_packed(packed, (2, 3), 1.0, out, xtc=False, neighbours=kept.astype(np.int8))
