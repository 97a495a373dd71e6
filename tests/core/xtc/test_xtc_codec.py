"""The XTC codec against libmdaxdr on frames of every kind: decoding, selections, encoding."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.formats.libmdaxdr import XTCFile
from numpy.testing import assert_allclose
from suites.xtc_cases import (
    SIDES,
    VECTORS_NM,
    assert_same,
    chain,
    empty_arrays,
    expected,
    gas,
    mixture,
    read,
    use_side,
    water,
    write,
)

from mdio.core.errors import OutputError
from mdio.core.xtc import HEADER_NBYTES, encode, parse_header, scan
from mdio.layouts.native.file import PositionalFile
from mdio.layouts.native.xtc import read_frames

KINDS = {
    "chain": chain,
    "wide chain": lambda n, rng: chain(n, rng, step_nm=3.0),
    "still": lambda n, rng: np.repeat(chain(1, rng), n, axis=0),
    "water": lambda n, rng: water(n // 3 + 1, rng)[:n],
    "gas": gas,
    "huge gas": lambda n, rng: gas(n, rng, box_nm=40.0),
    "far away": lambda n, rng: chain(n, rng) - np.float32(1500),
    "plane": lambda n, rng: gas(n, rng) * np.array([1, 0, 1], np.float32),
    "line": lambda n, rng: gas(n, rng) * np.array([0, 0, 1], np.float32),
    "mixture": lambda n, rng: mixture(n + 12, rng)[:n],
    "jumps": lambda n, rng: chain(n, rng) * np.where(np.arange(n) % 37 < 20, 1, 40)[:, None],
}
NO_ROOM = r"XTC cannot hold these coordinates \(frame 0"
COUNTS = [1, 2, 8, 9, 10, 11, 19, 100, 511, 512, 513, 1500]


def frames_angstrom(kind: str, n_atoms: int, n_frames: int = 3) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(f"{kind} {n_atoms}".encode()))
    frames = [KINDS[kind](n_atoms, rng) for _ in range(n_frames)]
    return np.array(frames, np.float32) * np.float32(10)


def to_nm(angstrom: np.ndarray) -> np.ndarray:
    """Convert as MDAnalysis does, but floats, of few atoms, so that they come back to the bit."""
    return angstrom / np.float32(10) if angstrom.shape[-2] < 10 else angstrom * np.float32(0.1)


@pytest.fixture(params=SIDES)
def side(request):
    with use_side(request.param):
        yield request.param


@pytest.mark.parametrize("precision", [10, 100, 1000, 5000, 30000, 100000])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_and_encoding_match_xdrfile(tmp_path, kind, precision, side):
    for n_atoms in COUNTS if precision == 1000 else (10, 1500):
        angstrom = frames_angstrom(kind, n_atoms)
        path = write(tmp_path / f"{n_atoms}.xtc", to_nm(angstrom), precision)
        wanted = expected(path)
        assert_same(read(path), wanted)
        atoms = np.unique(np.random.default_rng(n_atoms).integers(0, n_atoms, 7))
        assert_same(read(path, atoms), wanted, atoms)
        header = (wanted["vectors"], wanted["time"], wanted["step"])
        assert encode(angstrom, *header, precision) == path.read_bytes()


def test_a_large_frame(tmp_path):
    rng = np.random.default_rng(5)
    angstrom = mixture(200_000, rng)[None] * np.float32(10)
    path = write(tmp_path / "a.xtc", to_nm(angstrom))
    wanted = expected(path)
    assert_same(read(path), wanted)
    for atoms in (np.arange(20_000), np.sort(rng.integers(0, 200_000, 999))):
        assert_same(read(path, atoms), wanted, atoms)
    header = (wanted["vectors"], wanted["time"], wanted["step"])
    assert encode(angstrom, *header) == path.read_bytes()


@settings(max_examples=60)
@given(data=st.data())
def test_any_run_of_coordinates(tmp_path_factory, data):
    """Runs of atoms at any distance of each other, which make sizes go up and down."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    pieces = data.draw(
        st.lists(st.tuples(st.integers(1, 40), st.floats(-4, 2)), min_size=1, max_size=30),
        label="(atoms, log10 of the distance in nm)",
    )
    precision = data.draw(st.sampled_from([1, 10, 100, 1000, 2500.5, 1e4, 1e5]), label="precision")
    steps = np.concatenate([rng.normal(0, 10.0**log, (n, 3)) for n, log in pieces])
    angstrom = np.cumsum(steps, axis=0, dtype=np.float32)[None] * np.float32(10)
    path = write(tmp_path_factory.mktemp("any") / "a.xtc", to_nm(angstrom), precision)
    wanted = expected(path)
    header = (wanted["vectors"], wanted["time"], wanted["step"])
    for side in SIDES:
        with use_side(side):
            assert_same(read(path), wanted)
            assert encode(angstrom, *header, precision) == path.read_bytes()


@pytest.fixture
def mixed(tmp_path):
    """A file of 40 frames, what is in it, and its number of atoms."""
    rng = np.random.default_rng(6)
    path = write(tmp_path / "mixed.xtc", np.array([mixture(2000, rng) for _ in range(40)]))
    return path, expected(path), 2000


@pytest.mark.parametrize(
    "atoms",
    [[0], [1999], [511, 512], [3, 3, 3], [1999, 0, 700, 0, 5], range(1999, -1, -1), range(2000)],
    ids=["first", "last", "edge", "same", "mixed", "backwards", "all"],
)
def test_selections(mixed, atoms, side):
    path, wanted, _ = mixed
    atoms = np.array(atoms, np.int64)
    assert_same(read(path, atoms), wanted, atoms)


def test_no_atoms_means_headers_only(mixed, side):
    path, wanted, _ = mixed
    none = np.empty(0, np.int64)
    assert_same(read(path, none), wanted, none)


@pytest.mark.parametrize("n_threads", [2, 3, 7, 100])
def test_threads(mixed, n_threads):
    path, wanted, _ = mixed
    atoms = np.array([1500, 2, 3])
    assert_same(read(path, n_threads=n_threads), wanted)
    assert_same(read(path, atoms, n_threads=n_threads), wanted, atoms)


def test_runs_longer_than_the_buffer(mixed, monkeypatch):
    path, wanted, _ = mixed
    for nbytes in (1, 20_000, 31_234):
        monkeypatch.setattr("mdio.layouts.native.xtc.BATCH_NBYTES", nbytes)
        assert_same(read(path), wanted)


def test_frames_may_be_apart_in_memory_and_nothing_else_is_written(mixed, side):
    path, wanted, n_atoms = mixed
    wide = np.full((12, n_atoms + 5, 3), -7, np.float32)
    arrays = empty_arrays(10, n_atoms) | {"positions": wide[1:11, 2:-3]}
    with PositionalFile(path) as file:
        read_frames(file, scan(path), 20, 30, **arrays)
    assert_same(arrays, {name: array[20:30] for name, array in wanted.items()})
    wide[1:11, 2:-3] = -7
    assert (wide == -7).all()


def test_a_64_bit_byte_count(tmp_path):
    """Frames with GROMACS 2023's magic number, alone and among others."""
    path = write(tmp_path / "a.xtc", to_nm(frames_angstrom("mixture", 300)))
    wanted = expected(path)
    raw, offsets = path.read_bytes(), [*scan(path).offsets, path.stat().st_size]
    frames = [bytearray(raw[a:b]) for a, b in pairwise(offsets)]
    for i in (0, 2):
        frames[i][88:88] = bytes(4)
        frames[i][:4] = struct.pack(">i", 2023)
    path.write_bytes(b"".join(frames))
    with use_side("native"):
        assert_same(read(path), wanted)
        with PositionalFile(path) as file:
            offsets = scan(path).offsets.tolist()
            headers = list(file.headers(offsets, HEADER_NBYTES))
        magics = [
            parse_header(*args).magic for args in zip(headers, range(3), offsets, strict=True)
        ]
        assert magics == [2023, 1995, 2023]


def test_wrong_requests(mixed, side):
    path, _, n_atoms = mixed
    index = scan(path)
    with PositionalFile(path) as file:
        for atoms in ([n_atoms], [-1, 3]):
            with pytest.raises(IndexError, match="atom indices must be from 0 to"):
                arrays = empty_arrays(1, len(atoms))
                read_frames(file, index, 0, 1, **arrays, atoms=np.array(atoms))
        for name, wrong, error, message in (
            ("positions", np.empty((1, n_atoms, 3)), TypeError, "must be float32"),
            ("positions", np.empty((1, n_atoms - 1, 3), np.float32), ValueError, "must be"),
            (
                "positions",
                np.empty((1, n_atoms, 6), np.float32)[:, :, ::2],
                ValueError,
                "contiguous",
            ),
            ("vectors", np.empty((2, 3, 3), np.float32), ValueError, "must be"),
            ("time", np.empty(1, np.float32), TypeError, "must be native float64"),
            ("step", np.empty(1, np.int32), TypeError, "must be native int64"),
        ):
            with pytest.raises(error, match=message):
                read_frames(file, index, 0, 1, **(empty_arrays(1, n_atoms) | {name: wrong}))


def encode_one(angstrom: np.ndarray, precision: float = 1000.0, step: int = 0) -> bytes:
    return encode(angstrom[None].astype(np.float32), VECTORS_NM[None], [0.0], [step], precision)


@pytest.mark.parametrize("value", [2.2e7, -2.2e7, 1e30, np.inf, -np.inf, np.nan])
def test_coordinates_beyond_the_integers_are_refused(value, side):
    angstrom = np.zeros((20, 3), np.float32)
    angstrom[7, 1] = value
    with pytest.raises(OutputError, match=NO_ROOM):
        encode_one(angstrom)


def test_atoms_farther_apart_than_any_small_size(tmp_path):
    """Beyond the last small size xdrfile reads past its table; here that size is the last one."""
    angstrom = gas(12, np.random.default_rng(8), box_nm=2000)[None] * np.float32(10)
    path = tmp_path / "a.xtc"
    with use_side("native"):
        path.write_bytes(encode(angstrom, VECTORS_NM[None], [0.0], [0], 1e5))
    assert struct.unpack_from(">i", path.read_bytes(), 84) == (72,)
    wanted = expected(path)
    assert_same(read(path), wanted)
    assert_allclose(wanted["positions"], angstrom, rtol=1e-6)


def test_a_span_beyond_31_bits_is_refused(side):
    angstrom = np.zeros((20, 3), np.float32)
    angstrom[3, 2], angstrom[9, 2] = -1.2e7, 1.2e7
    with pytest.raises(OutputError, match=NO_ROOM):
        encode_one(angstrom)
    angstrom[3, 2] = -0.9e7
    assert encode_one(angstrom)


def test_wrong_arrays_for_encoding(side):
    ones = np.ones((20, 3), np.float32)
    for precision in (0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match="precision"):
            encode_one(ones, precision)
    with pytest.raises(ValueError, match="do not agree with"):
        encode(ones, VECTORS_NM, [0.0], [0])
    with pytest.raises(ValueError, match="do not agree with"):
        encode(ones[None], VECTORS_NM[None], [0.0, 1.0], [0])
    with pytest.raises(OutputError, match="32-bit step"):
        encode_one(ones, step=2**31)


def test_no_frames_are_no_bytes(side):
    empty = np.empty((0, 20, 3), np.float32)
    assert encode(empty, np.empty((0, 3, 3)), [], []) == b""


def test_libmdaxdr_reads_what_is_encoded(tmp_path, side):
    angstrom = frames_angstrom("mixture", 800)
    path = tmp_path / "a.xtc"
    boxes = np.repeat(VECTORS_NM[None], 3, axis=0)
    path.write_bytes(encode(angstrom, boxes, [1, 2, 3], [-5, 0, 5], 1000))
    with XTCFile(str(path)) as file:
        for i, frame in enumerate(file):
            assert (frame.step, frame.time, frame.prec) == (5 * i - 5, i + 1, 1000)
            assert frame.box.tobytes() == VECTORS_NM.tobytes()
            assert np.abs(frame.x * 10 - angstrom[i]).max() <= 0.00501
