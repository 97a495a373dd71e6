"""Integers by what stays the same: exact, the same from every side, and safe on any bytes."""

from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF, XTC
from scipy.spatial.transform import Rotation
from suites.kernel_sides import WIDE_SIDES as SIDES
from suites.kernel_sides import kernels_of

from mdio.core.kernels import decode_rigid, encode_rigid
from mdio.layouts.codecs import quantised
from mdio.layouts.codecs.quantised import QuantisedFormat, decode_chunk, encode_chunk

QUICK = settings(max_examples=40)
GOLDEN = Path(__file__).parents[2] / "golden/quantised"
RIGID = QuantisedFormat(0.01, compressor="rigid")
SEEK = QuantisedFormat(0.01, compressor="rigid-seek")
CUTS = [(0, 0), (1, 1), (2, 0), (3, 64), (16, 2048), (0, 1024)]
"""Frames between those that need none before, and atoms that have words of their own."""
WATER = np.array([[0, 0, 0], [0.7570, 0.5859, 0], [-0.7570, 0.5859, 0], [0, 0.15, 0]])


def waters(n: int, n_frames: int, n_sites: int, turn: float, seed: int = 0) -> np.ndarray:
    """Return molecules that tumble, diffuse and leave the box on one side for the other."""
    random = np.random.default_rng(seed)
    steps = Rotation.from_rotvec(random.normal(0, turn, (n_frames * n, 3)))
    turns, made = Rotation.random(n, random_state=seed), np.empty((n_frames, n, n_sites, 3))
    centres = random.uniform(0, 20, (1, n, 3)) + random.normal(0, 0.5, (n_frames, n, 3)).cumsum(0)
    for frame in range(n_frames):
        turns = steps[frame * n : (frame + 1) * n] * turns
        for site in range(n_sites):
            made[frame, :, site] = turns.apply(WATER[site])
    made += (centres % 20)[:, :, None]
    return made.reshape(n_frames, -1, 3)


def chain(n: int, n_frames: int, seed: int = 0) -> np.ndarray:
    """Return a chain whose bonds keep their length, and turn slowly."""
    random = np.random.default_rng(seed)
    bonds = random.normal(0, 1, (1, n, 3)) + random.normal(0, 0.1, (n_frames, n, 3)).cumsum(0)
    bonds *= 1.5 / np.linalg.norm(bonds, axis=2, keepdims=True)
    return np.cumsum(bonds, axis=1)


def system(n_frames: int, seed: int = 0) -> np.ndarray:
    parts = [chain(300, n_frames, seed), waters(700, n_frames, 3, 0.6, seed)]
    return np.concatenate([*parts, waters(300, n_frames, 4, 0.05, seed)], 1).astype(np.float32)


def solvents(n_frames: int) -> np.ndarray:
    """Return waters with other atoms between them; the later ones are taken as the first."""
    ions = np.random.default_rng(3).normal(0, 3, (n_frames, 7, 3)).cumsum(0)
    parts = [waters(1500, n_frames, 3, 0.1, 1), ions, waters(900, n_frames, 4, 0.1, 2)]
    parts += [chain(100, n_frames), waters(1800, n_frames, 3, 0.1, 4)]
    return np.concatenate(parts, 1).astype(np.float32)


def integers_of(positions: np.ndarray) -> np.ndarray:
    return np.rint(positions.astype(np.float64) / 0.01).astype(np.int32)


def expected(positions: np.ndarray) -> np.ndarray:
    return (integers_of(positions) * np.float64(0.01)).astype(np.float32)


def decoded(data: bytes, shape: tuple[int, ...], *part) -> np.ndarray:
    atoms, first, last = part or (None, 0, shape[0])
    n_out = shape[1] if atoms is None else len(atoms)
    out = np.full((last - first + 1, n_out, 3), -7, np.float32)
    decode_chunk(memoryview(data), shape[:2], out[:-1], atoms, first, last)
    assert np.all(out[-1] == -7)
    return out[:-1]


@pytest.mark.parametrize("n_frames", [1, 2, 3, 17])
def test_all_sides_give_the_integers_back(n_frames, monkeypatch):
    x = system(n_frames)
    data = encode_chunk(x, RIGID)
    assert data[4] == (9 if n_frames > 1 else data[4])
    for side in SIDES:
        with kernels_of(side, monkeypatch):
            assert decoded(data, x.shape).tobytes() == expected(x).tobytes()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("cut", CUTS)
def test_any_frames_of_any_atoms_beside_bit_packing(side, cut, monkeypatch):
    x = system(9)
    x[4, ::50] += 700
    monkeypatch.setitem(quantised.RIGID_INTERVALS, "rigid", cut)
    rigid, packed = encode_chunk(x, RIGID), encode_chunk(x, QuantisedFormat(0.01))
    few = np.array([0, 3599, 301, 300, 302, 302])
    with kernels_of(side, monkeypatch):
        chained = np.array([299, 7])  # classes behind those of the chain are left out
        parts = ((None, 3, 4), (few, 0, 9), (few, 8, 9), (few[:0], 2, 5), (None, 4, 4))
        waters = np.array([3500, 2399])  # more atoms are told from theirs than are asked for
        parts += ((waters, 1, 9), (waters[:1], 5, 6), (np.arange(0, 3600, 7), 3, 8))
        singles = ((None, frame, frame + 1) for frame in range(9))
        for part in (*parts, *singles, (None, 1, 8), (few, 3, 6), (chained, 0, 9), (chained, 6, 8)):
            assert np.array_equal(decoded(rigid, x.shape, *part), decoded(packed, x.shape, *part))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("cut", [(16, 2048), (0, 1024), (2, 3000)])
def test_few_atoms_of_many_sections(side, cut, monkeypatch):
    """Sections hold several blocks, and the second atoms of these lie in other sections."""
    x = waters(6000, 3, 3, 0.3).astype(np.float32)
    monkeypatch.setitem(quantised.RIGID_INTERVALS, "rigid-seek", cut)
    data, right = encode_chunk(x, SEEK), expected(x)
    with kernels_of(side, monkeypatch):
        molecules = (0, 1023, 1024, 2047, 2048, 3071, 3072, 4500, 5119, 5120, 5999)
        for molecule in molecules if side != "numpy" else molecules[1::4]:  # which takes long
            for site in (1, 2):
                atoms = np.array([3 * molecule + site])
                assert np.array_equal(decoded(data, x.shape, atoms, 0, 3), right[:, atoms])
                assert np.array_equal(decoded(data, x.shape, atoms, 2, 3), right[2:, atoms])


@st.composite
def wild(draw) -> np.ndarray:
    """Draw (F, A, 3) whole floats below 2**30 that may have any likeness, or none."""
    n_frames, n_atoms = draw(st.integers(2, 12)), draw(st.integers(1, 90))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = 2.0 ** draw(st.integers(0, 30))
    values = random.uniform(-1, 1, (n_frames, n_atoms, 3))
    if draw(st.booleans()):
        values = values[:1] + random.uniform(-1, 1, values.shape) * 2.0 ** -draw(st.integers(2, 25))
    if draw(st.booleans()):
        values = np.repeat(values, 3, axis=1) + random.uniform(-1, 1, (1, 3 * n_atoms, 3)) / 64
    most = 2**30 - 64  # the next float32 is 2**30
    values = np.clip(np.trunc(values * size), -most, most).astype(np.float32)
    for _ in range(draw(st.integers(0, 3))):
        place = tuple(int(random.integers(n)) for n in values.shape)
        values[place] = draw(st.sampled_from([0, most, -most]))
    return values


@QUICK
@given(wild(), st.sampled_from(CUTS))
def test_integers_of_any_kind(values, cut):
    made = encode_rigid(values, 1.0, *cut, xtc=False)
    assert made is not None
    description, data = np.frombuffer(made[0], np.uint8), made[1].copy()  # others follow
    for side in SIDES:
        with pytest.MonkeyPatch.context() as patch, kernels_of(side, patch):
            again = encode_rigid(values, 1.0, *cut, xtc=False)
            assert again is None or (again[0] == made[0] and np.array_equal(again[1], data))
            out = np.empty(values.shape, np.float32)
            decode_rigid(description, data, values.shape[:2], 1.0, out, xtc=False)
        assert np.array_equal(out, values)


@pytest.mark.parametrize("frame", range(0, 30, 3))
def test_of_what_has_no_integers(frame):
    """In frames that are looked at first, and in others."""
    for wrong in (np.nan, np.inf, 2.0**30):
        values = np.ones((30, 40, 3), np.float32)
        values[frame, 17, 1] = wrong
        assert encode_rigid(values, 1.0, xtc=False) is None
        chunk = encode_chunk(values, QuantisedFormat(1.0, compressor="rigid"))
        assert np.array_equal(decoded(chunk, values.shape), values, equal_nan=True)


def test_more_atoms_than_a_block_and_lanes_of_both_widths(monkeypatch):
    for n in (340, 341, 1025, 2100):  # around blocks of 1,024, and 8 or 32 lanes
        x = waters(n, 4, 3, 0.3).astype(np.float32)
        data = encode_chunk(x, RIGID)
        for side in SIDES:
            with kernels_of(side, monkeypatch):
                assert np.array_equal(decoded(data, x.shape), expected(x))


def written_by_all_processors(x, form, monkeypatch):
    """Return the chunk, which has to be the same for all, and to give the numbers back."""
    made = set()
    for side in [side for side in SIDES if side != "numpy"]:
        with kernels_of(side, monkeypatch):
            data = encode_chunk(x, form)
            assert np.array_equal(decoded(data, x.shape), expected(x))
            made.add(data)
    assert len(made) == 1
    return data


@pytest.mark.parametrize("form", [RIGID, SEEK])
@pytest.mark.parametrize("n_frames", [2, 13, 34])
def test_all_processors_write_the_same_bytes(n_frames, form, monkeypatch):
    """Of 32 lanes, classes of every kind, and atoms that cannot be told by theirs."""
    x = system(n_frames)
    x[n_frames // 2, ::50] += 700
    written_by_all_processors(x, form, monkeypatch)


@pytest.mark.parametrize("n_frames", [2, 10, 14])
def test_solvent_that_other_atoms_interrupt(n_frames, monkeypatch):
    x = solvents(n_frames)
    data = written_by_all_processors(x, RIGID, monkeypatch)
    with kernels_of("numpy", monkeypatch):
        assert np.array_equal(decoded(data, x.shape), expected(x))


def test_molecules_of_solvent_are_described_alike():
    x = waters(4000, 10, 3, 0.05).astype(np.float32)
    nbytes_of_description = int.from_bytes(encode_chunk(x, RIGID)[24:28], "little")
    assert nbytes_of_description < 4000


def test_molecules_that_a_side_of_the_box_cuts():
    """They do not change the lengths that the others have."""
    whole = waters(2000, 10, 3, 0.6)
    cut = whole.copy()
    cut[6:] %= 20
    small, large = (len(encode_chunk(x.astype(np.float32), RIGID)) for x in (whole, cut))
    assert small < large < 1.2 * small


def outcome(data: bytes, shape: tuple[int, ...]) -> bytes | None:
    try:
        return decoded(data, shape).tobytes()
    except ValueError:
        return None


def test_damage_is_refused_or_gives_the_same_everywhere(monkeypatch):
    """Checksums of trees find what gives other numbers."""
    x = np.concatenate([chain(20, 4), waters(90, 4, 3, 0.5)], 1).astype(np.float32)
    files = [(GOLDEN / name).read_bytes() for name in ("v1-step-rigid.mdq1", "v2-step-rigid.mdq1")]
    for data, shape in (
        (encode_chunk(x, RIGID), x.shape),
        *((data, (6, 230, 3)) for data in files),
    ):
        assert outcome(data, shape) is not None
        random = np.random.default_rng(5)
        for _ in range(60):
            bad = bytearray(data)
            at = int(random.integers(32, len(bad)))
            bad[at] ^= 1 << int(random.integers(8))
            if random.random() < 0.3:
                del bad[at:]
            found = set()
            for side in SIDES:
                with kernels_of(side, monkeypatch):
                    found.add(outcome(bytes(bad), shape))
            assert len(found) == 1


def resized(data: bytes, piece: int, n_words: int, n_escaped: int, at: int | None = None) -> bytes:
    """Return a chunk with other sizes of words and escaped numbers of a piece, and a byte more."""
    begin = 32 + int.from_bytes(data[24:28], "little")
    bad = bytearray(data)
    bad[begin + 8 * piece : begin + 8 * piece + 8] = np.array([n_words, n_escaped], "<u4").tobytes()
    if at is not None:
        bad.insert(begin + at, 0)
        bad[28:32] = (len(bad) - begin).to_bytes(4, "little")
    return bytes(bad)


@pytest.mark.parametrize("side", SIDES)
def test_words_that_reach_into_what_follows_are_refused(side, monkeypatch):
    """Also where the last words of a frame are not decoded, since few atoms are wanted."""
    x = system(2)
    data, some = encode_chunk(x, RIGID), (np.array([0, 5]), 0, 1)
    begin = 32 + int.from_bytes(data[24:28], "little")
    n_words, n_escaped = np.frombuffer(data, "<u4", 2, begin).tolist()
    with kernels_of(side, monkeypatch):
        assert np.array_equal(decoded(data, x.shape, *some), expected(x)[:1, [0, 5]])
        short = 130  # the states of 32 lanes, and a word
        bad = resized(data, 0, short, n_escaped + n_words - short)
        with pytest.raises(ValueError, match=r"words of a frame (do not )?end"):
            decoded(bad, x.shape, *some)


@pytest.mark.parametrize("side", SIDES)
def test_words_where_none_are_needed_are_refused(side, monkeypatch):
    """The first section of a key frame has none; wherever such a byte may lie."""
    data = (GOLDEN / "v2-step-rigid.mdq1").read_bytes()
    n_pieces, n_bytes = 18, int.from_bytes(data[28:32], "little")
    with kernels_of(side, monkeypatch):
        for at in range(8 * n_pieces, n_bytes, 7):
            assert outcome(resized(data, 0, 1, 0, at), (6, 230)) is None


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_descriptions_that_do_not_fit_are_refused(version, monkeypatch):
    """Any byte of a description changed: refused, or the same numbers from all sides."""
    data = (GOLDEN / f"{version}-step-rigid.mdq1").read_bytes()
    from numcodecs import blosc

    size = int.from_bytes(data[24:28], "little")
    described = np.frombuffer(blosc.decompress(data[32 : 32 + size]), np.uint8)
    described = described[: described.size - data[5]]
    body, shape = np.frombuffer(data[32 + size :], np.uint8), (6, 230)

    def result(description, body):
        out = np.zeros((*shape, 3), np.float32)
        try:
            decode_rigid(description, body, shape, 0.01, out, xtc=False)
        except ValueError:
            return None
        return out.tobytes()

    whole = result(described, body)
    assert whole is not None
    random, n_refused = np.random.default_rng(1), 0
    for at in [0, 1, 2, 3, 4, *random.integers(0, described.size, 100).tolist()]:
        bad = described.copy()
        bad[at] = random.choice([0, 255, int(bad[at]) + 1 & 255])
        found = set()
        for side in SIDES:
            with kernels_of(side, monkeypatch):
                found.add(result(bad, body))
        assert len(found) == 1
        n_refused += found == {None}
    assert n_refused > 50
    for cut in (0, 1, 2, 20, described.size - 1):
        assert result(described[:cut].copy(), body) is None
    for cut in (0, 7, 48, 200, body.size - 1):
        assert result(described, body[:cut].copy()) is None
    assert result(np.append(described, np.uint8(0)), body) is None
    assert result(described, np.append(body, np.uint8(0))) is None


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("rule", ["step", "xtc"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_golden_chunks(side, rule, version, monkeypatch):
    """Written by the version that brought this codec, and by that with key frames and sections."""
    data = (GOLDEN / f"{version}-{rule}-rigid.mdq1").read_bytes()
    integers = np.load(GOLDEN / "v1-rigid-integers.npy")
    floats = (integers * np.float64(0.01)).astype(np.float32)
    if rule == "xtc":
        floats = integers.astype(np.float32) * (np.float32(1) / np.float32(1000)) * np.float32(10)
    assert data[4] == (10 if rule == "xtc" else 9)
    with kernels_of(side, monkeypatch):
        assert decoded(data, integers.shape).tobytes() == floats.tobytes()
        last = decoded(data, integers.shape, np.array([229, 3]), 5, 6)
    assert last.tobytes() == floats[5:, [229, 3]].tobytes()


def test_as_small_as_promised(tmp_path):
    """Beside the XTC of the same frames."""
    mode, room = 10, 1.0
    for top, trajectory, most in ((PSF, DCD, 0.62), (None, XTC, 0.74)):
        path = Path(trajectory)
        universe = mda.Universe(*([top, trajectory] if top else [trajectory]))
        if top:
            path = tmp_path / "adk.xtc"
            universe.atoms.write(str(path), frames="all")
        x = mda.Universe(str(path), to_guess=()).trajectory.timeseries(order="fac")
        data = encode_chunk(
            np.ascontiguousarray(x, np.float32), QuantisedFormat(0.01, "xtc", "rigid")
        )
        assert data[4] in {mode, mode + 2 * (mode == 6)}
        assert len(data) < room * most * path.stat().st_size


@pytest.mark.parametrize("cut", [(256, 0), (-1, 0), (0, 4097), (0, -1)])
def test_cuts_are_checked(cut):
    with pytest.raises(ValueError, match="at most 255 and 4096"):
        encode_rigid(np.zeros((2, 1, 3), np.float32), 1.0, *cut, xtc=False)
