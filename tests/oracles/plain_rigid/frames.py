"""The frames of a rigid chunk, class after class; all arithmetic as ``rigid_math.h`` has it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracles.plain_rigid.description import (
    BLOCK,
    CIRCLE,
    CUT,
    ESCAPE,
    FREE,
    MIDDLE,
    SPHERE,
    SWING,
    TIME,
    Class,
    Cursor,
    class_of,
)
from oracles.plain_rigid.words import Section

from mdio.core.kernels.checks import Int32s

Bytes = NDArray[np.uint8]
Array = NDArray[Any]
MOST = np.float32(1 << 20)


def _numbers(rows: Bytes, n: int, width: int) -> Array:
    """Return `n` integers of some bits of each row, the lowest bit first."""
    bits = np.unpackbits(rows, axis=1, bitorder="little")[:, : n * width]
    weights = np.int64(1) << np.arange(width)
    return bits.reshape(len(rows), n, width) @ weights if width else np.zeros((len(rows), n), int)


def _one_of(axis: Array, x: Array, y: Array, z: Array) -> Array:
    return np.where(axis == 0, x, np.where(axis == 1, y, z))


def _longest(v: Array) -> Array:
    a, b, c = np.abs(np.moveaxis(v, -1, 0))
    return np.where((a >= b) & (a >= c), 0, np.where(b >= c, 1, 2))


def _turned(axis: Array, v: Array, *, back: bool = False) -> Array:
    x, y, z = np.moveaxis(v, -1, 0)
    others = ((y, x, z), (z, y, x)) if back else ((y, z, x), (z, x, y))
    first = (x, z, y) if back else (x, y, z)
    return np.stack([_one_of(axis, *axes) for axes in (first, *others)], axis=-1)


def _whole(x: Array) -> Int32s:
    up = np.where(x > -MOST, x, -MOST)
    return np.where(up < MOST, up, MOST).astype(np.int32)


def _context(x: Array, n: int) -> Array:
    return np.minimum(np.where(x > 0, x, 0), n - 1).astype(np.int32)


def _root(x: Array) -> Array:
    return np.sqrt(np.where(x > 0, x, np.float32(0)))


def _third(square: Array, a: Int32s, b: Int32s) -> Array:
    fa, fb = a.astype(np.float32), b.astype(np.float32)
    return _root((square - fa * fa) - fb * fb)


def _fraction(x: Array, floor: Int32s) -> Array:
    return _context((x - floor.astype(np.float32)) * np.float32(4), 4)


class Chunk:
    """All frames of a chunk, class after class."""

    def __init__(self, description: Bytes, data: Bytes, n_frames: int, n_atoms: int) -> None:
        source = Cursor(description)
        lanes, n_classes = source.take(2).tolist()
        self.cut, self.lanes = lanes >= CUT, lanes % CUT
        if self.lanes not in (8, 32) or n_classes > 64:
            raise ValueError("a rigid chunk has 8 or 32 lanes and at most 64 classes")
        key_every, low, high = source.take(3).tolist() if self.cut else (0, 0, 0)
        frames = np.arange(n_frames)
        self.key = frames % key_every == 0 if key_every else frames == 0
        self.classes = [class_of(source) for _ in range(n_classes)]
        self.number, self.back = source.take(n_atoms), source.take(n_atoms).astype(np.int64)
        has_lengths = any(c.kind >= SWING and c.shift != 255 for c in self.classes)
        has_seconds = any(c.kind == CIRCLE for c in self.classes)
        self.second = np.arange(n_atoms) - (source.take(n_atoms) if has_seconds else 0)
        self.lengths = source.take(n_atoms if has_lengths else 0).astype(np.int64)
        if source.data.size or (n_atoms and self.number.max() >= n_classes):
            raise ValueError("a description of atoms does not fit its classes")
        mine = np.flatnonzero([self.classes[n].kind == CIRCLE for n in self.number.tolist()])
        others = self.second[mine]
        if np.any(others < 0) or np.any(self.number[others] >= self.number[mine]):
            raise ValueError("an atom's second one does not come before it")
        if np.any(self.back > np.arange(n_atoms)):
            raise ValueError("an atom's parent is before the first")
        self._place_blocks(low + 256 * high)
        self._cut(data, n_frames)
        self.vectors = np.zeros((n_frames, n_atoms, 3), np.int32)

    def _place_blocks(self, least: int) -> None:
        """Find which section each block is of, and which sections have no words in key frames."""
        self.section_of: dict[tuple[int, int], int] = {}
        self.silent, n_last = [self.cut], 0
        for number, n in enumerate(np.bincount(self.number, minlength=len(self.classes)).tolist()):
            for begin in range(0, n, BLOCK):
                if least and n_last >= least:
                    self.silent.append(True)
                    n_last = 0
                n_last += min(BLOCK, n - begin)
                self.silent[-1] &= self.classes[number].temporal
                self.section_of[number, begin] = len(self.silent) - 1

    def _cut(self, data: Bytes, n_frames: int) -> None:
        """Find the low bits, the words and the escaped vectors of each frame."""
        source, n_sections = Cursor(data), len(self.silent)
        sizes = source.take(8 * n_frames * n_sections).view("<u4").reshape(n_frames, n_sections, 2)
        counts = np.bincount(self.number, minlength=len(self.classes)).tolist()
        self.low: list[list[Bytes]] = []
        words: list[list[Bytes]] = [[] for _ in self.silent]
        self.escaped: list[list[Cursor]] = [[] for _ in self.silent]
        for frame, key in enumerate(self.key.tolist()):
            self.low.append(
                [
                    source.take(-(-n * width // 8))
                    for n, c in zip(counts, self.classes, strict=True)
                    for width in (c.widths if key and c.temporal else c.raw)
                ]
            )
            for section, (n_words, n_escaped) in enumerate(sizes[frame].tolist()):
                words[section].append(source.take(n_words))
                self.escaped[section].append(Cursor(source.take(n_escaped)))
        if source.data.size:
            raise ValueError("the frames of a rigid chunk do not fit its size")
        self.sections = [
            Section(words, self.key & silent, self.lanes)
            for words, silent in zip(words, self.silent, strict=True)
        ]
        for part, cursors in zip(self.sections, self.escaped, strict=True):
            if any(cursors[frame].data.size for frame in np.flatnonzero(part.silent)):
                raise ValueError("a section has vectors without need")

    def decode_class(self, number: int) -> None:
        """Fill the vectors of a class."""
        c, atoms = self.classes[number], np.flatnonzero(self.number == number)
        told = np.flatnonzero(~(self.key & c.temporal))
        u = np.zeros((len(self.key), atoms.size, 3), np.int32)
        raws = [np.zeros((len(u), atoms.size), np.int32) for _ in range(3)]
        for s, width in enumerate(c.raw):
            rows = [self.low[frame][3 * number + s] for frame in told]
            if rows:
                raws[s][told] = _numbers(np.array(rows), atoms.size, width)
        for frame in np.flatnonzero(self.key & c.temporal).tolist():
            for axis, row in enumerate(self.low[frame][3 * number : 3 * number + 3]):
                value = _numbers(row[None], atoms.size, c.widths[axis])[0] + c.lowest[axis]
                u[frame, :, axis] = value.astype(np.uint32).view(np.int32)
        square = np.full(atoms.size, np.float32(c.length))
        if c.kind >= SWING and c.shift != 255:
            lengths = (c.length & 0xFFFF) + (self.lengths[atoms] << c.shift)
            square = (lengths * lengths // 256).astype(np.float32)
        for begin in range(0, atoms.size, BLOCK):
            part = slice(begin, begin + BLOCK)
            raw_parts = [raw[:, part] for raw in raws]
            section = self.section_of[number, begin]
            self._block(c, atoms[part], u[:, part], raw_parts, square[part], section, told)
        self.vectors[:, atoms] = u

    def _block(
        self,
        c: Class,
        atoms: Array,
        u: Int32s,
        raw: list[Array],
        square: Array,
        number_of_section: int,
        rows: Array,
    ) -> None:
        """Fill `u`, the vectors of up to `BLOCK` atoms of a class, in the frames `rows`."""
        n, contexts, plane = atoms.size, None, None
        section, escaped = self.sections[number_of_section], self.escaped[number_of_section]
        if c.kind == CIRCLE:
            seconds = self.vectors[:, self.second[atoms]]
            contexts = _longest(seconds)
        symbols = [section.symbols(c, 0, contexts, n, rows)]

        def number(stream: int) -> Int32s:
            high = (symbols[stream] - MIDDLE).astype(np.int32) << np.int32(c.raw[stream])
            return high + raw[stream]

        sides = thirds = np.zeros(0, np.int32)
        if c.kind == SPHERE:
            a = number(0).astype(np.float32)
            contexts = _context(a * a * np.float32(16) / square, 8)
        elif c.kind == CIRCLE:
            axis = np.minimum(symbols[0] >> 1 & 3, 2)
            x, y, z = np.moveaxis(_turned(axis, seconds).astype(np.float32), -1, 0)
            plane = (x * x + y * y) + z * z
            product = (plane + (square - np.float32(c.other))) * np.float32(0.5)
            contexts = _context(x * x * np.float32(6) / plane, 6)
        symbols.append(section.symbols(c, 1, contexts, n, rows))
        if c.kind == SPHERE:
            side = _third(square, number(0), number(1))
            sides = _whole(side)
            contexts = _fraction(side, sides)
        elif c.kind == CIRCLE:
            v = _whole(product * x / plane) + number(1)
            fv = v.astype(np.float32)
            across, q = y * y + z * z, product - x * fv
            s = _root(across * (square - fv * fv) - q * q)
            s = np.where(symbols[0] & 1, -s, s)
            found = ((q * y - s * z) / across, (q * z + s * y) / across)
            floors = [_whole(f) - (_whole(f).astype(np.float32) > f) for f in found]
            sides, thirds = (floor.astype(np.int32) for floor in floors)
            contexts = 4 * _fraction(found[0], sides) + _fraction(found[1], thirds)
        symbols.append(section.symbols(c, 2, contexts, n, rows))
        how = symbols[2].astype(np.int32)
        if c.kind == SPHERE:
            sides = sides + (how >> 3) - np.int32(14)
            m = np.where(how & 1, -sides, sides)
            axis = np.minimum(how >> 1 & 3, 2)
            u[...] = _turned(axis, np.stack([m, number(0), number(1)], -1), back=True)
        elif c.kind == CIRCLE:
            off = [sides + (how >> 3) - np.int32(3), thirds + (how & 7) - np.int32(3)]
            u[...] = _turned(axis, np.stack([v, *off], -1), back=True)
        told = np.stack([number(s) for s in range(3)], -1)
        for frame in rows.tolist():
            if c.kind == FREE:
                u[frame] = told[frame]
            elif c.kind == TIME:
                u[frame] = u[frame - 1] + told[frame]
            elif c.kind == SWING:
                axis = _longest(u[frame - 1])
                before = _turned(axis, u[frame - 1])
                p, q = (before[:, s] + told[frame, :, s - 1] for s in (1, 2))
                far = _whole(_third(square, p, q)) + told[frame, :, 2]
                m = np.where(before[:, 0] < 0, -far, far)
                u[frame] = _turned(axis, np.stack([m, p, q], -1), back=True)
            for at in np.flatnonzero(symbols[0][frame] == ESCAPE).tolist():
                folded = [escaped[frame].small(5) & 0xFFFFFFFFF for _ in range(3)]
                values = [(x >> 1 ^ -(x & 1)) & 0xFFFFFFFF for x in folded]
                u[frame, at] = np.array(values, np.uint32).view(np.int32)

    def finish(self) -> None:
        """Check that all has been used up."""
        left = any(cursor.data.size for cursors in self.escaped for cursor in cursors)
        if left or not all(section.ended() for section in self.sections):
            raise ValueError("the words of a frame do not end where they should")
