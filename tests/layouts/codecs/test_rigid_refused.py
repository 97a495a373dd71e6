"""Chunks made by hand, each wrong in one thing: refused for that, by what reads no byte outside.

Behind the bytes that are given lie others, which would pass where a check is missing.
"""

import numpy as np
import pytest
from suites.kernel_sides import WIDE_SIDES as SIDES
from suites.kernel_sides import kernels_of

from mdio.core.kernels import decode_rigid

FREE, TIME, SWING, SPHERE, CIRCLE = range(5)
TABLES = {FREE: [12], TIME: [12], SWING: [12] * 2, SPHERE: [12] + [10] * 12, CIRCLE: [10] * 25}
"""Bits of the frequencies, of each kind's tables."""
N_ATOMS, LANES, LOWEST = 3, 8, 1 << 16
NATIVE = [side for side in SIDES if side != "numpy"]


def table(bits: int = 12, first: int = 127, last: int = 127, counts=None, escaped: int = 1):
    """Return frequencies as they are stored: all but one symbol are 127."""
    small = [*([(1 << bits) - 1] if counts is None else counts), escaped]
    return bytes([first, last]) + b"".join(
        bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in small
    )


def a_class(kind=FREE, shift=255, raw=(0, 0, 0), widths=(0, 0, 0), tables=None) -> bytes:
    """Return a class of atoms at a square distance of 100."""
    made = bytes([kind, shift, *raw]) + np.array([100, 100], "<u4").tobytes()
    made += b"".join(bytes([7, 0, 0, 0, width]) for width in widths)
    return made + (b"".join(map(table, TABLES.get(kind, [12]))) if tables is None else tables)


def described(
    *classes, lanes=LANES, cut=b"", numbers=(0, 0, 0), backs=(0, 1, 2), rest=b""
) -> bytes:
    head = bytes([lanes, len(classes)]) + cut
    return head + b"".join(classes) + bytes(numbers) + bytes(backs) + rest


def words_of(n_symbols: int, frequency: int = 4095, begin: int = 0, state: int = LOWEST) -> bytes:
    """Return the states of lanes that give some equal symbols of one table, without a word."""
    for _ in range(n_symbols):
        state = (state // frequency << 12) + state % frequency + begin
    return np.full(LANES, state, "<u4").tobytes()


WORDS = words_of(3)
WORDS = WORDS[: 4 * N_ATOMS] + words_of(0)[4 * N_ATOMS :]  # other lanes have no atom


def frames(*parts, sizes=None) -> bytes:
    """Return frames of (low bits, words, escaped)."""
    sizes = [(len(words), len(escaped)) for _, words, escaped in parts] if sizes is None else sizes
    return np.array(sizes, "<u4").tobytes() + b"".join(b"".join(part) for part in parts)


def decoded(description: bytes, data: bytes, n_frames=2, n_atoms=N_ATOMS, behind=0, atoms=None):
    """Return the integers; behind both parts lie bytes that are not to be read."""

    def given(part: bytes):
        room = np.full(len(part) + 4096, behind, np.uint8)
        room[: len(part)] = np.frombuffer(part, np.uint8)
        return room[: len(part)]

    n_out = n_atoms if atoms is None else len(atoms)
    out = np.full((n_frames, n_out, 3), -7, np.float32)
    atoms = None if atoms is None else np.array(atoms)
    decode_rigid(given(description), given(data), (n_frames, n_atoms), 1.0, out, atoms, xtc=False)
    return out


def refused(side, message, description, data, **options):
    """NumPy has words of its own, and is asked for all atoms whatever is wanted."""
    with pytest.raises(ValueError, match=message if side != "numpy" else None):
        decoded(description, data, **options)


GOOD = frames((b"", WORDS, b""), (b"", WORDS, b""))
PLAIN = described(a_class())


@pytest.mark.parametrize("side", SIDES)
def test_what_is_right_is_read(side, monkeypatch):
    """Of TIME the first frame has seven, which takes no bits."""
    with kernels_of(side, monkeypatch):
        assert np.all(decoded(PLAIN, GOOD) == 0)
        moved = frames((b"", words_of(0), b""), (b"", WORDS, b""))
        found = decoded(described(a_class(TIME), backs=(0, 1, 1)), moved)
        assert np.array_equal(found, [np.repeat([[7], [14], [21]], 3, axis=1)] * 2)
        low = (b"\x24" * 3, WORDS, b"")  # of two bits: 0, 1, 2
        found = decoded(described(a_class(raw=(2, 2, 2)), backs=(0, 0, 0)), frames(low, low))
        assert np.array_equal(found, [np.repeat([[0], [1], [2]], 3, axis=1)] * 2)


CLASS_FAULTS = {
    "no known kind": a_class(kind=5),
    "lengths of a class are out of range": a_class(SWING, shift=17),
    "numbers of a class have too many bits": a_class(raw=(0, 0, 17)),
    "vectors of the first frame have too many bits": a_class(TIME, widths=(0, 33, 0)),
    "symbols of a chunk are out of range": a_class(tables=table(first=128, counts=[])),
    "symbols .* are out of range": a_class(tables=table(first=0, last=255, counts=[1] * 256)),
    "frequency of a symbol is out of range": a_class(tables=table(counts=[4096], escaped=0)),
    "frequencies of symbols do not sum up": a_class(tables=table(escaped=2)),
    "frequencies .* do not sum": a_class(tables=table(counts=[4094])),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("message", CLASS_FAULTS)
def test_classes_that_cannot_be(side, message, monkeypatch):
    with kernels_of(side, monkeypatch):
        refused(side, message, described(CLASS_FAULTS[message]), GOOD)
        after = described(a_class(), CLASS_FAULTS[message])
        refused(side, message, after, GOOD)


ON_CIRCLE = (a_class(SPHERE), a_class(CIRCLE))
DESCRIPTION_FAULTS = {
    "8 or 32 lanes": described(a_class(), lanes=16),
    "8 or 32 lanes$": described(a_class(), lanes=128 + 31, cut=bytes(3)),
    "too many classes": described(*[a_class()] * 65),
    "too long": described(a_class(), rest=b"\0"),
    "an atom is of no class": described(a_class(), numbers=(0, 1, 0)),
    "parent is before the first": described(a_class(), backs=(0, 1, 3)),
    "parent .* before the first": described(a_class(), backs=(1, 0, 0)),
    "second one does not": described(*ON_CIRCLE, numbers=(0, 0, 1), rest=bytes([0, 0, 3])),
    "second one does": described(*ON_CIRCLE, numbers=(0, 0, 1), rest=bytes([0, 0, 0])),
    "second one": described(*ON_CIRCLE, numbers=(0, 1, 1), rest=bytes([0, 1, 1])),
    "second": described(*ON_CIRCLE[::-1], numbers=(1, 1, 0), rest=bytes([0, 0, 2])),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("message", DESCRIPTION_FAULTS)
def test_descriptions_that_cannot_be(side, message, monkeypatch):
    with kernels_of(side, monkeypatch):
        refused(side, message, DESCRIPTION_FAULTS[message], GOOD)


@pytest.mark.parametrize("side", SIDES)
def test_parents_of_many_atoms(side, monkeypatch):
    """The last atom whose parent may be before the first, since 255 lie between them at most."""
    with kernels_of(side, monkeypatch):
        description = described(a_class(), numbers=[0] * 300, backs=[0] * 254 + [255] + [0] * 45)
        refused(side, "parent is before the first", description, GOOD, n_atoms=300)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("behind", [0, 255])
def test_descriptions_that_end_early(side, behind, monkeypatch):
    """Whatever lies behind them: none of it is read."""
    whole = described(*ON_CIRCLE, a_class(SWING, shift=3), numbers=(0, 0, 1), rest=bytes(6))
    with kernels_of(side, monkeypatch):
        for cut in (*range(30), *range(len(whole) - 40, len(whole))):
            message = "description of a chunk ends too early"
            refused(side, message, whole[:cut], GOOD, behind=behind)


ESCAPED = words_of(1, 1, 4095, int(np.frombuffer(words_of(2), "<u4")[0]))[:4] + WORDS[4:]
"""An atom is escaped: its first symbol is 255."""
SHORT = np.array([3 << 16 | 4095], "<u4").tobytes() + WORDS[4:]
ZEROS = bytes(3)
FRAME_FAULTS = {
    "sizes of the frames are not all there": GOOD[:15],
    "a frame ends too early": GOOD[:-1],
    "frame ends too early": frames((b"", WORDS, b""), (b"", WORDS, b""), sizes=[(32, 0), (33, 0)]),
    "ends too early": frames((b"", WORDS, b""), (b"", WORDS, b""), sizes=[(32, 0), (32, 1)]),
    "bytes behind the last frame": GOOD + b"\0",
    "a frame ends": frames((b"", WORDS, b""), (b"", WORDS[:31], b"")),
    "do not end where they should": frames((b"", WORDS + ZEROS[:2], b""), (b"", WORDS, b"")),
    "not end where they": frames((b"", WORDS, b"\0"), (b"", WORDS, b"")),
    "not end where": frames(
        (b"", words_of(3, state=LOWEST + 1)[:4] + WORDS[4:], b""), (b"", WORDS, b"")
    ),
    "frame ends": frames((b"", WORDS, b""), (b"", ESCAPED, ZEROS[:2])),
    "words of a frame end too early": frames((b"", WORDS, b""), (b"", SHORT, b"")),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("message", FRAME_FAULTS)
def test_frames_that_cannot_be(side, message, monkeypatch):
    with kernels_of(side, monkeypatch):
        refused(side, message, PLAIN, FRAME_FAULTS[message])
        escaped = frames((b"", WORDS, b""), (b"", ESCAPED, ZEROS))
        assert np.all(decoded(PLAIN, escaped) == 0)


@pytest.mark.parametrize("side", NATIVE)
def test_sections_of_no_atoms_that_are_wanted_are_left_alone(side, monkeypatch):
    """A section of one class, then one of another: the states of the second are cut short."""
    cut = bytes([0, 1, 0])
    description = described(
        a_class(), a_class(), lanes=128 + LANES, cut=cut, numbers=(0, 1, 1), backs=(0, 0, 0)
    )
    one, two = WORDS[:4] + words_of(0)[4:], WORDS[:8] + words_of(0)[8:]
    good = [(b"", one, b""), (b"", two, b"")] * 2
    bad = [*good[:3], (b"", two[:5], b"")]
    with kernels_of(side, monkeypatch):
        assert np.all(decoded(description, frames(*good)) == 0)
        assert np.all(decoded(description, frames(*bad), atoms=[0]) == 0)
        with pytest.raises(ValueError, match="a frame ends too early"):
            decoded(description, frames(*bad), atoms=[2])
