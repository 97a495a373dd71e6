"""What a rigid chunk says of itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Array = NDArray[Any]
FREE, TIME, SWING, SPHERE, CIRCLE = range(5)
ESCAPE, MIDDLE, LOWEST, BLOCK, CUT = 255, 127, 1 << 16, 1024, 128
PLAIN, OWN_THIRD = ((0, 1, 12),) * 3, ((0, 1, 12), (0, 1, 12), (1, 1, 12))
ON_SPHERE, ON_CIRCLE = ((0, 1, 12), (1, 8, 10), (9, 4, 10)), ((0, 3, 10), (3, 6, 10), (9, 16, 10))
USES = (PLAIN, PLAIN, OWN_THIRD, ON_SPHERE, ON_CIRCLE)
"""Of each kind and number: the first table, how many there are, bits of their frequencies."""


@dataclass
class Cursor:
    """Bytes that are read one after the other."""

    data: Bytes

    def take(self, n: int) -> Bytes:
        """Return the next bytes; raises ValueError."""
        if n > self.data.size:
            raise ValueError("a rigid chunk ends too early")
        taken, self.data = self.data[:n], self.data[n:]
        return taken

    def small(self, most: int) -> int:
        """Return a number of 7 bits a byte, of `most` bytes."""
        value = 0
        for at in range(most):
            byte = int(self.take(1)[0])
            last = at == most - 1 and most == 2
            value |= (byte if last else byte & 127) << 7 * at
            if byte < 128:
                break
        return value


@dataclass
class Class:
    """Atoms that are told alike."""

    kind: int
    shift: int
    raw: tuple[int, int, int]
    length: int
    other: int
    lowest: list[int]
    widths: list[int]
    tables: list[Array] = field(default_factory=list)

    @property
    def temporal(self) -> bool:
        """Whether vectors are told from those of the frame before."""
        return self.kind in (TIME, SWING)


def _table(source: Cursor, bits: int) -> Array:
    """Return (symbol, frequency, bias) of each slot."""
    first, last = source.take(2).tolist()
    if first > last or last >= ESCAPE:
        raise ValueError("symbols of a chunk are out of range")
    counts = np.zeros(256, np.int64)
    counts[first : last + 1] = [source.small(2) for _ in range(first, last + 1)]
    counts[ESCAPE] = source.small(2)
    if counts.max() >= 1 << 12 or counts.sum() != 1 << bits:
        raise ValueError("the frequencies of symbols do not sum up")
    symbols = np.repeat(np.arange(256), counts)
    bias = np.arange(1 << bits) - (np.cumsum(counts) - counts)[symbols]
    return np.stack([symbols, counts[symbols], bias])


def class_of(source: Cursor) -> Class:
    """Return the next class; raises ValueError."""
    kind, shift, *raw = source.take(5).tolist()
    length, other = struct.unpack("<II", source.take(8).data)
    axes = [struct.unpack("<iB", source.take(5).data) for _ in range(3)]
    made = Class(
        kind, shift, (raw[0], raw[1], raw[2]), length, other, *map(list, zip(*axes, strict=True))
    )
    if kind >= len(USES) or (shift > 16 and shift != 255) or max(raw) > 16 or max(made.widths) > 32:
        raise ValueError("a class of atoms is out of range")
    bits = {first + n: bits for first, count, bits in USES[kind] for n in range(count)}
    made.tables = [_table(source, bits[n]) for n in range(len(bits))]
    return made
