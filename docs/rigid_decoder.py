"""A decoder of `rigid`, from rigid.md alone: plain Python, without any library, and slow.

``integers(description, data, n_frames, n_atoms)`` returns for each frame a list of ``[x, y, z]``.
"""

from __future__ import annotations

import math
import struct
from typing import Any

FREE, TIME, SWING, SPHERE, CIRCLE = range(5)
TABLES = {  # of each number: the first table, how many, the bits of their frequencies
    FREE: ((0, 1, 12),) * 3,
    TIME: ((0, 1, 12),) * 3,
    SWING: ((0, 1, 12), (0, 1, 12), (1, 1, 12)),
    SPHERE: ((0, 1, 12), (1, 8, 10), (9, 4, 10)),
    CIRCLE: ((0, 3, 10), (3, 6, 10), (9, 16, 10)),
}
Vector = list[int]


class Bytes:
    """Bytes that are taken one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = bytes(data), 0

    def take(self, n: int) -> bytes:
        """Return the next `n`; raises ValueError."""
        self.at += n
        if self.at > len(self.data):
            raise ValueError("a chunk ends too early")
        return self.data[self.at - n : self.at]

    def number(self, form: str) -> int:
        """Return a number as `struct` has it."""
        return int(struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0])

    def seven(self, most: int) -> int:
        """Return a number of seven bits a byte."""
        value = 0
        for k in range(most):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * k
            if byte < 128:
                break
        return value


def f32(x: float) -> float:
    """Round to float32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def int32(x: int) -> int:
    """Wrap around."""
    return (x + 2**31) % 2**32 - 2**31


def times(a: float, b: float) -> float:
    """Return a float32 product."""
    return f32(a * b)


def over(a: float, b: float) -> float:
    """Return a float32 quotient."""
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)
    return f32(a / b)


def whole(x: float) -> int:
    """Cut towards zero, within 2**20; NaN is -2**20."""
    return int(min(x, 2.0**20)) if x > -(2.0**20) else -(2**20)


def floor(x: float) -> int:
    """Round down, within the same."""
    return whole(x) - (1 if whole(x) > x else 0)


def context(x: float, n: int) -> int:
    """Return which of `n`."""
    return int(min(x, n - 1)) if x > 0 else 0


def root(x: float) -> float:
    """Return a float32 root, 0 of what has none."""
    return f32(math.sqrt(x)) if x > 0 else 0.0


def quarter(x: float, n: int) -> int:
    """Return in which quarter behind `n` it lies."""
    return context(times(f32(x - f32(n)), 4.0), 4)


def third(square: float, a: int, b: int) -> float:
    """Return the third side of a box with this square of its diagonal."""
    fa, fb = f32(a), f32(b)
    return root(f32(f32(square - times(fa, fa)) - times(fb, fb)))


def longest(v: Vector) -> int:
    """Return which axis is the longest; the first one of several."""
    sizes = [abs(x) for x in v]
    return sizes.index(max(sizes))


def turned(axis: int, v: Vector) -> Vector:
    """Return the axes from `axis` on."""
    return v[axis:] + v[:axis]


class Chunk:
    """What the description says, and the vectors of the last frame."""

    def __init__(self, description: bytes, n_atoms: int) -> None:
        d = Bytes(description)
        lanes, n_classes = d.take(2)
        self.lanes, self.cut = lanes & 127, lanes >= 128
        self.key_every, self.least = (d.number("B"), d.number("H")) if self.cut else (0, 0)
        self.classes = [self._class(d) for _ in range(n_classes)]
        self.of, self.back = d.take(n_atoms), d.take(n_atoms)
        kinds = {c["kind"] for c in self.classes}
        own = any(c["kind"] >= SWING and c["shift"] != 255 for c in self.classes)
        self.second = d.take(n_atoms if CIRCLE in kinds else 0)
        self.length = d.take(n_atoms if own else 0)
        if d.at != len(description):
            raise ValueError("a description is too long")
        for i in range(n_atoms):
            self.classes[self.of[i]]["atoms"].append(i)
        self.sections: list[list[tuple[dict[str, Any], list[int], int]]] = [[]]
        n_last = 0
        for c in self.classes:
            for begin in range(0, len(c["atoms"]), 1024):
                if self.least and n_last >= self.least:
                    self.sections.append([])
                    n_last = 0
                self.sections[-1].append((c, c["atoms"][begin : begin + 1024], begin))
                n_last += len(self.sections[-1][-1][1])
        self.vectors: list[Vector] = [[0, 0, 0] for _ in range(n_atoms)]

    def _class(self, d: Bytes) -> dict[str, Any]:
        kind, shift, *raw = d.take(5)
        c: dict[str, Any] = {"kind": kind, "shift": shift, "raw": raw, "atoms": []}
        c["square"], c["other"] = d.number("I"), d.number("I")
        c["axes"] = [(d.number("i"), d.number("B")) for _ in range(3)]
        c["tables"] = []
        for first, count, bits in TABLES[kind]:
            while len(c["tables"]) < first + count:
                low, high = d.take(2)
                counts = {s: d.seven(2) for s in range(low, high + 1)}
                counts[255] = d.seven(2)
                table = [(s, n, k) for s, n in counts.items() for k in range(n)]
                if len(table) != 1 << bits:
                    raise ValueError("the frequencies of symbols do not sum up")
                c["tables"].append(table)
        return c

    def square(self, c: dict[str, Any], atom: int) -> float:
        """Return the square of an atom's length."""
        if c["shift"] == 255:
            return f32(c["square"])
        length = (c["square"] & 0xFFFF) + (self.length[atom] << c["shift"])
        return f32(length * length // 256)

    def frame(self, number: int, d: Bytes, sizes: list[tuple[int, int]]) -> None:
        """Read the vectors of a frame."""
        key = number % self.key_every == 0 if self.key_every else number == 0
        for c in self.classes:
            plain = key and c["kind"] in (TIME, SWING)
            widths = [w for _, w in c["axes"]] if plain else c["raw"]
            c["low"] = []
            for width in widths:
                n = len(c["atoms"])
                bits = int.from_bytes(d.take((n * width + 7) // 8), "little")
                c["low"].append([bits >> i * width & (1 << width) - 1 for i in range(n)])
            if plain:
                for at, atom in enumerate(c["atoms"]):
                    added = (c["low"][k][at] + c["axes"][k][0] for k in range(3))
                    self.vectors[atom] = [int32(x) for x in added]
        for blocks, (n_words, n_escaped) in zip(self.sections, sizes, strict=True):
            words, escaped = Bytes(d.take(n_words)), Bytes(d.take(n_escaped))
            coded = [b for b in blocks if not (key and b[0]["kind"] in (TIME, SWING))]
            if self.cut and not coded:
                continue
            states = [words.number("I") for _ in range(self.lanes)]
            for block in coded:
                self._block(*block, states, words, escaped)
            if any(x != 1 << 16 for x in states) or words.at != n_words or escaped.at != n_escaped:
                raise ValueError("the words of a frame do not end where they should")

    def _block(
        self,
        c: dict[str, Any],
        atoms: list[int],
        begin: int,
        states: list[int],
        words: Bytes,
        escaped: Bytes,
    ) -> None:
        atom_states: list[dict[str, Any]] = [{} for _ in atoms]
        for stream in range(3):
            first, _, bits = TABLES[c["kind"]][stream]
            for i, (atom, t) in enumerate(zip(atoms, atom_states, strict=True)):
                which = self._context(c, atom, t, stream)
                lane = i % self.lanes
                x = states[lane]
                symbol, n, bias = c["tables"][first + which][x & (1 << bits) - 1]
                x = n * (x >> bits) + bias
                if x < 1 << 16:
                    x = x << 16 | words.number("H")
                states[lane] = x
                t[stream] = symbol
                low = c["low"][stream][begin + i]
                t["n", stream] = int32((symbol - 127 << c["raw"][stream]) + low)
        for atom, t in zip(atoms, atom_states, strict=True):
            self.vectors[atom] = [int32(x) for x in self._vector(c, atom, t)]
            if t[0] == 255:
                folded = [escaped.seven(5) for _ in range(3)]
                self.vectors[atom] = [int32(x >> 1 ^ -(x & 1)) for x in folded]

    def _context(self, c: dict[str, Any], atom: int, t: dict[Any, Any], stream: int) -> int:
        """Return the table that decodes the next number of an atom; `t`: what is decoded of it."""
        if c["kind"] < SPHERE or (c["kind"] == SPHERE and stream == 0):
            return 0
        square = self.square(c, atom)
        if c["kind"] == SPHERE and stream == 1:
            a = f32(t["n", 0])
            return context(over(times(times(a, a), 16.0), square), 8)
        if c["kind"] == SPHERE:
            side = third(square, t["n", 0], t["n", 1])
            t["side"] = whole(side)
            return quarter(side, t["side"])
        second = self.vectors[atom - self.second[atom]]
        if stream == 0:
            return longest(second)
        t["axis"] = min(t[0] >> 1 & 3, 2)
        x, y, z = (f32(u) for u in turned(t["axis"], second))
        whole_square = f32(f32(times(x, x) + times(y, y)) + times(z, z))
        apart = f32(square - f32(c["other"]))
        product = times(f32(whole_square + apart), 0.5)
        if stream == 1:
            t["centre"] = whole(over(times(product, x), whole_square))
            return context(over(times(times(x, x), 6.0), whole_square), 6)
        t["v"] = int32(t["centre"] + t["n", 1])
        v = f32(t["v"])
        across, q = f32(times(y, y) + times(z, z)), f32(product - times(x, v))
        side = root(f32(times(across, f32(square - times(v, v))) - times(q, q)))
        side = -side if t[0] & 1 else side
        one = over(f32(times(q, y) - times(side, z)), across)
        other = over(f32(times(q, z) + times(side, y)), across)
        t["two"] = floor(one), floor(other)
        return 4 * quarter(one, t["two"][0]) + quarter(other, t["two"][1])

    def _vector(self, c: dict[str, Any], atom: int, t: dict[Any, Any]) -> Vector:
        kind, a, b = c["kind"], t["n", 0], t["n", 1]
        before = self.vectors[atom]
        if kind == FREE:
            return [a, b, t["n", 2]]
        if kind == TIME:
            return [before[0] + a, before[1] + b, before[2] + t["n", 2]]
        if kind == SWING:
            axis = longest(before)
            first, second, last = turned(axis, before)
            p, q = int32(second + a), int32(last + b)
            side = whole(third(self.square(c, atom), p, q)) + t["n", 2]
            return turned(-axis % 3, [-side if first < 0 else side, p, q])
        if kind == SPHERE:
            side = t["side"] + (t[2] >> 3) - 14
            return turned(-min(t[2] >> 1 & 3, 2) % 3, [-side if t[2] & 1 else side, a, b])
        one, other = t["two"]
        off = [one + (t[2] >> 3) - 3, other + (t[2] & 7) - 3]
        return turned(-t["axis"] % 3, [t["v"], *off])


def integers(description: bytes, data: bytes, n_frames: int, n_atoms: int) -> list[list[Vector]]:
    """Return the integers of all frames; raises ValueError."""
    chunk, d = Chunk(description, n_atoms), Bytes(data)
    n_sections = len(chunk.sections)
    sizes = [(d.number("I"), d.number("I")) for _ in range(n_frames * n_sections)]
    frames = []
    for number in range(n_frames):
        chunk.frame(number, d, sizes[number * n_sections : (number + 1) * n_sections])
        rows: list[Vector] = []
        for atom, back in enumerate(chunk.back):
            parent = rows[atom - back] if back else [0, 0, 0]
            added = zip(parent, chunk.vectors[atom], strict=True)
            rows.append([int32(x + y) for x, y in added])
        frames.append(rows)
    if d.at != len(data):
        raise ValueError("there are bytes behind the last frame")
    return frames
