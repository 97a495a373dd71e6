"""The header of an XTC frame, checked as far as it can be checked without its coordinates.

Big-endian, four bytes a number: magic, atoms, step, time (ps), nine box components (nm), atoms
again. Then, for up to nine atoms, the coordinates as floats (nm); for more, precision, the lowest
and highest integer of each axis, the index of the first small size, the number of bytes (eight
bytes long where the magic is 2023) and the compressed coordinates, padded to four bytes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

MAGICS = (1995, 2023)
"""First number of a frame; 2023 is that of GROMACS 2023 for more than 298,261,617 atoms."""
HEADER_NBYTES = 96
"""The longest header; that of an uncompressed frame has 56 bytes, the usual one 92."""
UNCOMPRESSED_ATOMS = 9
"""Frames of up to so many atoms hold plain floats."""

COMMON = struct.Struct(">iiif9fi")
PACKED = struct.Struct(">f3i3ii")


@dataclass(frozen=True, slots=True)
class XTCHeader:
    """What the header of one frame says."""

    magic: int
    n_atoms: int
    step: int
    time_ps: float
    vectors_nm: tuple[float, ...]
    """The nine components of the box vectors, row by row."""
    precision: float | None
    """Integer steps a nm; None where the coordinates are floats."""
    nbytes: int
    """Size of the whole frame with its header and padding."""


def parse_header(raw: bytes, frame: int, offset: int, n_atoms: int = 0) -> XTCHeader:
    """Read a frame's header.

    `raw`: the first `HEADER_NBYTES` bytes of the frame, fewer only if the file ends. `frame`,
    `offset`: its number and its place in the file, for messages. `n_atoms`: what it has to say; 0
    for any number.
    Returns XTCHeader.
    Raises ValueError: this cannot be the header of a frame; the message says what was found.
    """
    try:
        header = _parse(raw)
        if n_atoms and header.n_atoms != n_atoms:
            raise ValueError(f"it has {header.n_atoms} atoms, but the first one has {n_atoms}")
    except ValueError as error:
        raise ValueError(f"frame {frame} at byte {offset}: {error}") from None
    return header


def _parse(raw: bytes) -> XTCHeader:
    if len(raw) < COMMON.size:
        raise ValueError(f"the file ends after {len(raw)} bytes of the frame's header")
    magic, n_atoms, step, time_ps, *vectors, n_again = COMMON.unpack_from(raw)
    if magic not in MAGICS:
        raise ValueError(f"it begins with {magic}, but an XTC frame begins with 1995 or 2023")
    if n_atoms < 1:
        raise ValueError(f"its header claims {n_atoms} atoms")
    if n_again != n_atoms:
        raise ValueError(f"its header claims {n_atoms} atoms first and then {n_again}")
    box = tuple(vectors)
    if n_atoms <= UNCOMPRESSED_ATOMS:
        nbytes = COMMON.size + 12 * n_atoms
        return XTCHeader(magic, n_atoms, step, time_ps, box, None, nbytes)
    begin = COMMON.size + PACKED.size
    width = 4 if magic == MAGICS[0] else 8
    if len(raw) < begin + width:
        raise ValueError(f"the file ends after {len(raw)} bytes of the frame's header")
    precision, *edges, small = PACKED.unpack_from(raw, COMMON.size)
    packed = int.from_bytes(raw[begin : begin + width], "big")
    if not (math.isfinite(precision) and precision > 0):
        raise ValueError(f"its precision is {precision}")
    if any(high < low for low, high in zip(edges[:3], edges[3:], strict=True)):
        raise ValueError("its highest coordinate is below its lowest")
    if any(high - low >= 2**31 - 1 for low, high in zip(edges[:3], edges[3:], strict=True)):
        raise ValueError("its coordinates span more than 31 bits")
    if not 9 <= small <= 73:
        raise ValueError(f"its index of the small size is {small}, but it must be from 9 to 73")
    # An atom takes two bits at least, and 102 (3 x 32 + 6) at most.
    if not n_atoms <= 4 * packed <= 4 * 13 * n_atoms:
        raise ValueError(f"its header claims {packed} bytes for {n_atoms} atoms")
    nbytes = begin + width + (packed + 3) // 4 * 4
    return XTCHeader(magic, n_atoms, step, time_ps, box, precision, nbytes)
