"""Damaged and hostile XTC files: errors that name frame and byte, never a crash."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from suites.xtc_cases import (
    SIDES,
    assert_same,
    chain,
    empty_arrays,
    expected,
    mixture,
    read,
    use_side,
    write,
)

from mdio.core.errors import SourceError
from mdio.core.files.index import FrameIndex
from mdio.core.xtc import parse_header, scan
from mdio.layouts.native.file import PositionalFile
from mdio.layouts.native.xtc import XTCLayout, read_frames

N_ATOMS = 24
SIZES = (8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 101, 128, 161, 203, 256)
"""The small sizes from index 9 on."""


@pytest.fixture(params=SIDES)
def side(request):
    with use_side(request.param):
        yield request.param


@pytest.fixture
def small(tmp_path):
    """A file of three frames of few atoms, and its bytes."""
    frames = np.array([chain(N_ATOMS, np.random.default_rng(seed)) for seed in range(3)])
    path = write(tmp_path / "a.xtc", frames)
    return path, path.read_bytes()


def test_truncation_at_every_byte(small, side):
    path, raw = small
    edges = [*scan(path).offsets.tolist(), len(raw)]
    wanted = expected(path)
    for nbytes in range(1, len(raw)):
        path.write_bytes(raw[:nbytes])
        if nbytes in edges:
            n_frames = edges.index(nbytes)
            assert_same(read(path), {name: array[:n_frames] for name, array in wanted.items()})
            continue
        frame = sum(edge < nbytes for edge in edges[1:])
        if frame == 0:
            with pytest.raises(SourceError, match="frame 0 at byte 0: "):
                read(path)
            continue
        assert_same(read(path), {name: array[:frame] for name, array in wanted.items()})
        assert scan(path).lost_nbytes == nbytes - edges[frame]


@pytest.mark.parametrize(
    ("n_atoms", "magic", "whole"), [(9, 1995, 56), (24, 1995, 92), (24, 2023, 96)]
)
def test_a_header_is_not_read_beyond_its_end(tmp_path, n_atoms, magic, whole):
    raw = write(tmp_path / "a.xtc", np.zeros((1, n_atoms, 3), np.float32)).read_bytes()
    if magic == 2023:  # with the size of what follows in 64 bits
        raw = struct.pack(">i", magic) + raw[4:88] + bytes(4) + raw[88:]
    for nbytes in range(whole):
        with pytest.raises(ValueError, match=f"the file ends after {nbytes} bytes of the frame's"):
            parse_header(raw[:nbytes], 0, 0)
    assert parse_header(raw[:whole], 0, 0).n_atoms == n_atoms


def set_int(raw: bytes, offset: int, value: int) -> bytes:
    return raw[:offset] + struct.pack(">i", value) + raw[offset + 4 :]


@pytest.mark.parametrize(
    ("offset", "values", "message"),
    [
        (0, (0, 1994, -1995, 1993, 2**31 - 1), "begins with"),
        (4, (0, -1, 1, 23, 25, 2**31 - 1), "header claims"),
        (52, (0, -1, 23, 25, 2**31 - 1), "atoms first and then"),
        (56, (0, 0x7FC00000, 0x7F800000, -1), "precision"),
        (60, (2**31 - 1,), "highest coordinate is below"),
        (64, (-(2**31),), "span more than 31 bits"),
        (84, (0, 8, 74, -1, 2**31 - 1), "index of the small size"),
        (88, (0, 5, -1, 13 * N_ATOMS + 1, 2**31 - 1), "header claims .* bytes"),
        (88, (200, 13 * N_ATOMS), "begins with|the file ends"),
    ],
)
@pytest.mark.parametrize("frame", [0, 1, 2])
def test_lying_headers(small, side, frame, offset, values, message):
    path, raw = small
    index = scan(path)
    for value in values:
        path.write_bytes(set_int(raw, int(index.offsets[frame]) + offset, value))
        try:
            found = scan(path)
        except SourceError as error:
            assert re.search(rf"a\.xtc: frame .*({message})", str(error))
        else:  # a length beyond the end of the file is what a cut one looks like
            assert found.lost_nbytes and found.n_frames == frame > 0 and "ends" in message
        with PositionalFile(path) as file:
            for n_atoms in (0, N_ATOMS):
                atoms = np.arange(n_atoms)
                with pytest.raises(SourceError, match=rf"a\.xtc: frame {frame} at byte "):
                    read_frames(file, index, 0, 3, **empty_arrays(3, n_atoms), atoms=atoms)


def test_many_claimed_atoms_cost_no_memory(tmp_path, side):
    path = tmp_path / "a.xtc"
    header = struct.pack(
        ">iiif9fif3i3ii", 1995, 2**31 - 1, 0, 0, *[0] * 9, 2**31 - 1, 1000, *[0] * 6, 9
    )
    for nbytes in (0, 1, 2**29, 2**31 - 1):
        path.write_bytes(header + struct.pack(">I", nbytes) + bytes(500))
        with pytest.raises(SourceError, match="frame 0 at byte 0"):
            _ = XTCLayout(path).info


class Bits:
    """Writes the stream of bits of a frame, by hand."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, value: int, n_bits: int) -> Bits:
        self.text += f"{value:0{n_bits}b}"
        return self

    def number(self, value: int, n_bits: int) -> Bits:
        """Append a number whose least significant byte comes first."""
        while n_bits > 8:
            self.put(value & 255, 8)
            value >>= 8
            n_bits -= 8
        return self.put(value, n_bits)

    def frame(self, n_atoms: int, small: int, highest: tuple[int, int, int]) -> bytes:
        text = self.text + "0" * (-len(self.text) % 8)
        data = int(text, 2).to_bytes(len(text) // 8, "big")
        header = struct.pack(
            ">iiif9fif3i3iii",
            1995,
            n_atoms,
            0,
            0,
            *[0] * 9,
            n_atoms,
            1000,
            0,
            0,
            0,
            *highest,
            small,
            len(data),
        )
        return header + data + bytes(-len(data) % 4)


def read_bytes(path: Path, raw: bytes) -> np.ndarray:
    path.write_bytes(raw)
    return read(path)["positions"][0]


def test_a_stream_made_by_hand(tmp_path, side):
    """Ten atoms in boxes of 100 steps: one of itself, a run of eight, one whose run is off."""
    bits = Bits().number((5 * 101 + 6) * 101 + 7, 20).put(1, 1).put(1, 5)
    bits.number((50 * 101 + 51) * 101 + 52, 20).put(1, 1).put(3 * 7 + 1, 5)
    for k in range(7):
        bits.number(((4 + k % 2) * 8 + 4) * 8 + 3, 9)
    bits.number((9 * 101 + 9) * 101 + 9, 20).put(1, 1).put(1, 5)
    got = read_bytes(tmp_path / "a.xtc", bits.frame(10, 9, (100, 100, 100)))
    integers = np.array(
        [
            [5, 6, 7],
            [50, 51, 51],
            [50, 51, 52],
            [51, 51, 50],
            [51, 51, 49],
            [52, 51, 48],
            [52, 51, 47],
            [53, 51, 46],
            [53, 51, 45],
            [9, 9, 9],
        ]
    )
    np.testing.assert_allclose(got, integers * 0.01, atol=1e-5)


@pytest.fixture
def native():
    with use_side("native"):
        yield


def hostile(first_run: int, small: int = 9, n_atoms: int = 10) -> bytes:
    bits = Bits()
    for i in range(n_atoms):
        bits.number(0, 20).put(1, 1).put(first_run if i == 0 else 1, 5)
    return bits.frame(n_atoms, small, (100, 100, 100))


@pytest.mark.parametrize(
    ("run", "small", "message"),
    [
        (0, 9, "small size leaves its range"),
        (2, 73, "small size leaves its range"),
        (31, 9, "run is too long"),
        (28, 9, "run is too long"),
        (4, 73, "run has no size"),
    ],
)
def test_impossible_runs(tmp_path, native, run, small, message):
    with pytest.raises(SourceError, match=f"frame 0 at byte 0: .*{message}"):
        read_bytes(tmp_path / "a.xtc", hostile(run, small))


def test_a_run_beyond_the_last_atom(tmp_path, native):
    bits = Bits()
    for i in range(10):
        bits.number(0, 20).put(1, 1).put(3 * 4 + 1 if i == 9 else 1, 5)
    bits.put(0, 40)
    with pytest.raises(SourceError, match="run goes beyond the last atom"):
        read_bytes(tmp_path / "a.xtc", bits.frame(10, 9, (100, 100, 100)))


def test_bits_that_end_early(tmp_path, native):
    bits = Bits()
    for _ in range(9):
        bits.number(0, 20).put(1, 1).put(1, 5)
    with pytest.raises(SourceError, match="bits end early"):
        read_bytes(tmp_path / "a.xtc", bits.frame(10, 9, (100, 100, 100)))


@pytest.mark.parametrize(
    ("n_spare", "is_right"), [(0, True), (32, True), (40, False), (900, False)]
)
def test_bits_behind_the_last_atom(tmp_path, native, n_spare, is_right):
    """Some may be there: a writer may count what it pads with."""
    bits = Bits()
    for _ in range(40):
        bits.number(0, 20).put(1, 1).put(1, 5)
    path = tmp_path / "a.xtc"
    bits.put(0, n_spare)
    if is_right:
        assert not read_bytes(path, bits.frame(40, 9, (100, 100, 100))).any()
        return
    with pytest.raises(SourceError, match=r"do not decode \(bits are left over\)"):
        read_bytes(path, bits.frame(40, 9, (100, 100, 100)))


def test_a_frame_whose_end_is_zero(tmp_path, native):
    """As a page that was never written: water decodes all the same, to fewer bits."""
    nm = np.random.default_rng(3).uniform(0, 6, (4000, 1, 3)) + np.linspace(0, 0.1, 3)[:, None]
    path = write(tmp_path / "a.xtc", np.array([nm.reshape(-1, 3).astype(np.float32)] * 3))
    raw = bytearray(path.read_bytes())
    edges = [*scan(path).offsets.tolist(), len(raw)]
    raw[edges[2] - 12_000 : edges[2]] = bytes(12_000)
    with pytest.raises(SourceError, match=r"frame 1 .*\(bits are left over\)"):
        read_bytes(path, bytes(raw))


def test_random_damage_gives_an_error_or_numbers(tmp_path, native):
    rng = np.random.default_rng(9)
    path = write(tmp_path / "a.xtc", np.array([mixture(700, rng)]))
    raw, index = path.read_bytes(), scan(path)
    n_errors = 0
    for _ in range(400):
        damaged = bytearray(raw)
        for place in rng.integers(0, len(raw), rng.integers(1, 6)):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        with PositionalFile(path) as file:
            arrays = empty_arrays(1, 700)
            guarded = np.full((1, 720, 3), -7, np.float32)
            arrays["positions"] = guarded[:, 10:710]
            try:
                read_frames(file, index, 0, 1, **arrays)
            except SourceError as error:
                assert str(error).startswith(f"{path}: frame 0 at byte 0: ")
                n_errors += 1
        assert (guarded[:, :10] == -7).all()
        assert (guarded[:, 710:] == -7).all()
    assert n_errors > 80


@pytest.mark.parametrize("offsets", [[0, 0], [0, 40], [4], [0, 280, 281]])
def test_an_index_that_lies(small, native, offsets):
    path, raw = small
    index = FrameIndex(np.array(offsets, np.int64), len(raw), N_ATOMS)
    n_frames = len(offsets)
    for n_atoms in (0, N_ATOMS):
        with (
            PositionalFile(path) as file,
            pytest.raises(SourceError, match=r"frame \d at byte"),
        ):
            arrays = empty_arrays(n_frames, n_atoms)
            read_frames(file, index, 0, n_frames, **arrays, atoms=np.arange(n_atoms))


def test_the_first_bad_frame_is_named_whatever_the_thread(tmp_path, native):
    rng = np.random.default_rng(10)
    path = write(tmp_path / "a.xtc", np.array([mixture(500, rng) for _ in range(30)]))
    index = scan(path)
    raw = bytearray(path.read_bytes())
    for frame in (29, 17, 11):
        raw[index.offsets[frame] + 84 : index.offsets[frame] + 88] = bytes(4)
    path.write_bytes(raw)
    for n_threads in (1, 2, 5):
        with PositionalFile(path) as file, pytest.raises(SourceError, match="frame 11 at byte"):
            read_frames(file, index, 0, 30, **empty_arrays(30, 500), n_threads=n_threads)
