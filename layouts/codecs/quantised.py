"""The bytes of a chunk of rounded positions: integers, their differences, compressed.

A chunk describes itself; numbers are little-endian:

====== ==== ===========================================================================
offset size what
====== ==== ===========================================================================
0      4    ``mdq1``
4      1    mode: 0 floats; 1 and 2 differences from frame to frame, 3 and 4 from atom to
            atom; 5 to 8 as 1 to 4, but bit-packed; 9 and 10 vectors between atoms (rigid). In
            odd modes integers are multiples of a step, in even ones (from 2) those of an XTC
5      1    bytes of a stored difference: 2 or 4; 4 in mode 0, 0 in modes 5 to 8; in modes 9
            and 10 the number of zeros that pad the first part, 0 to 7
6      2    zero
8      4    frames F
12     4    atoms A
16     8    float64: step in angstrom (odd modes), precision per nm (even ones), zero (0)
24     4    bytes of the first part
28     4    bytes of the second part
32          the two parts, each a Blosc 1 buffer, except the second of modes 5 to 10; the first
            is empty in modes 5 and 6, the second in mode 0, and in modes 1 and 2 if F is 1
====== ==== ===========================================================================

In modes 1 and 2 the first part holds the first frame, the second the differences of each other
frame from the one before; they suit frames that are close in time. In modes 3 and 4 the first part
has a byte for each atom, the second the differences of each atom from one of the four before it,
with the atoms sorted; `mdio.core.kernels.packed` says how. Which of the two takes fewer bits is
estimated for each chunk. In mode 0 the first part holds all frames.

Integers are folded (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), so that small ones of either sign
have leading zeros. In modes 1 to 4 they take two bytes if all differences are small enough. Each
Blosc part is shuffled as one block and padded with zeros to a multiple of 8 numbers, since Blosc
would leave an incomplete block unshuffled.

In modes 5 to 8 the second part holds rows of numbers, each group of them with as many bits as it
needs; `mdio.core.kernels.packed` says how. A row is a frame: in modes 5 and 6 the first frame as
differences of each atom from the one before, the others as differences from the frame before. Rows
are read several times faster than an entropy coder's output, and are about a tenth larger.

In modes 9 and 10 the first part describes the chunk, and the second holds its frames; see
``docs/rigid.md``. They take two thirds to four fifths of the bytes of an XTC. A chunk of one frame
is bit-packed instead.

The first parts of modes 5 to 10 are compressed by LZ4, which takes little code to read: HDF5's
filter (`packaging/hdf5-filter`) has no Blosc. Older ones are compressed by Zstandard, and so are
those of `rigid` outside of HDF5.

A chunk with a number that is not finite or beyond the integers' range, or (XTC) that would not be
restored bit for bit, is written in mode 0; so is one that would be larger than floats when
bit-packed.

Memory is kept from chunk to chunk: the system would clear fresh memory page by page, which can take
several times as long as decoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.frames import Scratch
from mdio.core.kernels import (
    choose_neighbours,
    decode_rigid,
    difference_first,
    difference_neighbours,
    encode_rigid,
    pack,
    packed_limit,
    sum_neighbours,
    sum_packed,
)

BLOSC_HEADER = struct.Struct("<4BIII")
BITS, BYTES = 2, 1
"""Blosc's numbers of its two shuffles."""
SHUFFLES = {"zstd": BITS, "lz4": BYTES}
"""Bit planes suit an entropy coder; LZ4 has none: shuffled bytes are smaller and faster with it."""

Packing = tuple[str, int, int]
"""Compressor, level and shuffle of a Blosc buffer."""
DEFAULT_PACKING: Packing = ("lz4hc", 5, 0)
"""For the neighbours of atoms, whose bytes form runs unshuffled, and for chunks of floats."""
DESCRIPTION_PACKING: Packing = ("zstd", 2, 0)
"""For the description of a rigid chunk; smaller than `FAST_DESCRIPTION_PACKING`. Level 3 would make
chunks of ten frames 0.02 to 0.26% smaller, and take 2 to 7% longer to write."""
FAST_DESCRIPTION_PACKING: Packing = ("lz4hc", 1, 0)
"""For descriptions that HDF5's filter reads, or that are decoded for single frames or few atoms.
Higher levels would take up to a fifth of the time of writing a chunk."""


def compress(numbers: NDArray[Any], packing: Packing = DEFAULT_PACKING) -> bytes:
    """Return a Blosc buffer; floats are shuffled by bytes."""
    from numcodecs import blosc  # 0.1 s to import

    name, level, shuffle = packing
    data = np.ascontiguousarray(numbers).reshape(-1)
    if data.size % 8:
        data = np.append(data, np.zeros(-data.size % 8, data.dtype))
    compressed: bytes = blosc.compress(
        data,
        name.encode(),
        level,
        shuffle=BYTES if numbers.dtype.kind == "f" else shuffle,
        blocksize=data.nbytes,
        typesize=numbers.dtype.itemsize,
    )
    return compressed


FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]

MAGIC = b"mdq1"
HEADER = struct.Struct("<4sBBHIIdII")
FLOATS, STEP, XTC = 0, 1, 2
ALONG_ATOMS, BITPACKED, RIGID = 2, 4, 8
"""Numbers that are added to the mode."""
PACKING_CODECS = ("bitpack", "rigid", "rigid-seek")
"""Compressors without a level."""
RIGID_INTERVALS = {"rigid": (0, 0), "rigid-seek": (16, 2048)}
"""Frames from one that is decoded without earlier ones to the next, and atoms that are decoded
together; 0: all."""
DESCRIPTION_NBYTES = 1 << 20
"""Most bytes of a rigid chunk's description, besides 4 for each atom."""
RULES = ("step", "xtc")


@dataclass(frozen=True, slots=True)
class QuantisedFormat:
    """How positions are rounded to integers, and how these are compressed."""

    step: float
    """Step of the integers, angstrom."""
    rule: Literal["step", "xtc"] = "step"
    """``xtc``: the integers of an XTC with this step, or floats if these would lose anything."""
    compressor: Literal["bitpack", "rigid", "rigid-seek", "zstd", "lz4"] = "bitpack"
    level: int = 1

    @property
    def compression(self) -> str:
        """The compressor as an option, with its level."""
        return self.compressor + ("" if self.compressor in PACKING_CODECS else f":{self.level}")

    @property
    def packing(self) -> Packing:
        """How Blosc compresses integers (zstd and lz4), or floats."""
        if self.compressor in PACKING_CODECS:
            return DEFAULT_PACKING
        return self.compressor, self.level, SHUFFLES[self.compressor]


_scratch = Scratch()


def decompress(data: memoryview, out: Bytes) -> None:
    """Fill `out` from a Blosc buffer; raises ValueError if it is none of that size."""
    if len(data) < BLOSC_HEADER.size:
        raise ValueError(f"a part of {len(data)} bytes")
    *_, n_decoded, _, n_encoded = BLOSC_HEADER.unpack_from(data)
    if (n_decoded, n_encoded) != (out.nbytes, len(data)):
        raise ValueError(
            f"a part of {n_encoded} bytes for {n_decoded}, expected {len(data)} for {out.nbytes}"
        )
    from numcodecs import blosc

    try:
        blosc.decompress(data, out)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _decompress(data: memoryview, itemsize: int, count: int, part: str) -> Bytes:
    """Return `count` numbers, as bytes, valid until the next part of this name."""
    out = _scratch.buffer(part, -(-count // 8) * 8 * itemsize)
    decompress(data, out)
    return out[: count * itemsize]


def _integer_buffer(n_frames: int, n_atoms: int) -> NDArray[np.int32]:
    """Return memory for the integers of a chunk, valid until the next call."""
    buffer = _scratch.buffer("integers", 12 * n_frames * n_atoms)
    return buffer.view(np.int32).reshape(n_frames, n_atoms, 3)


def encode_chunk(
    positions: FloatArray, quantised_format: QuantisedFormat, *, for_filter: bool = False
) -> bytes:
    """Encode the positions of a chunk.

    `positions`, (F, A, 3) float32: angstrom, F and A at least 1. `for_filter`: whether HDF5's
    filter must be able to decode it.
    """
    n_frames, n_atoms = positions.shape[:2]
    is_xtc = quantised_format.rule != "step"
    # XTC states a step as its reciprocal, per nm.
    mode, scale = (
        (XTC, float(np.float32(10 / quantised_format.step)))
        if is_xtc
        else (STEP, quantised_format.step)
    )
    first_part = b""
    second_part: bytes | memoryview = b""
    itemsize = 0
    rigid = deltas = None
    if quantised_format.compressor in RIGID_INTERVALS:
        rigid = encode_rigid(
            positions, scale, *RIGID_INTERVALS[quantised_format.compressor], xtc=is_xtc
        )
    if rigid is None or rigid[1].nbytes > positions.nbytes:
        rigid = None
        deltas = kernels.quantise(positions, scale, _integer_buffer(n_frames, n_atoms), xtc=is_xtc)
    if rigid is not None:
        mode += RIGID
        itemsize = -len(rigid[0]) % 8
        is_small = quantised_format.compressor == "rigid" and not for_filter
        packing = DESCRIPTION_PACKING if is_small else FAST_DESCRIPTION_PACKING
        first_part = compress(np.frombuffer(rigid[0], np.uint8), packing)
        second_part = rigid[1].data
    elif deltas is not None:
        neighbours = choose_neighbours(deltas)
        if neighbours is not None:
            mode += ALONG_ATOMS
            difference_neighbours(deltas, neighbours)
            first_part = compress(neighbours)
        if quantised_format.compressor in PACKING_CODECS:
            mode += BITPACKED
            if neighbours is None:
                difference_first(deltas)
            max_nbytes = packed_limit(n_frames, 3 * n_atoms)
            packed = pack(deltas, _scratch.buffer("packed", max_nbytes))
            deltas = None if packed is None else deltas
            second_part = b"" if packed is None else packed.data
        elif neighbours is not None:
            folded = kernels.fold(deltas)
            itemsize = folded.itemsize
            second_part = compress(folded, quantised_format.packing)
        else:
            folded = kernels.fold(deltas[1:])
            first_part = compress(
                kernels.fold(deltas[0]).astype(np.uint32), quantised_format.packing
            )
            itemsize = folded.itemsize
            second_part = compress(folded, quantised_format.packing) if n_frames > 1 else b""
    if rigid is None and deltas is None:
        mode, itemsize, scale = FLOATS, 4, 0.0
        first_part, second_part = compress(positions, quantised_format.packing), b""
    sizes = (len(first_part), len(second_part))
    header = HEADER.pack(MAGIC, mode, itemsize, 0, n_frames, n_atoms, scale, *sizes)
    return b"".join((header, first_part, second_part))


def shape_of(data: memoryview) -> tuple[int, int]:
    """Return the numbers of frames and atoms in a chunk's header; raises ValueError."""
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, too few for a quantised chunk")
    n_frames, n_atoms = HEADER.unpack_from(data)[4:6]
    return n_frames, n_atoms


def decode_chunk(
    data: memoryview,
    shape: tuple[int, int],
    out: FloatArray,
    atoms: NDArray[np.int64] | None = None,
    first: int = 0,
    end: int | None = None,
) -> None:
    """Decode positions of a chunk; raises ValueError: the bytes are not such a chunk.

    `shape`, (F, A): expected frames and atoms; nothing is allocated for a chunk of others. `out`,
    (end - first, k, 3) float32: is filled; each frame must be contiguous. `atoms`, (k,) int64, and
    frames ``first:end``: all by default.
    """
    end = shape[0] if end is None else end
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, too few for a quantised chunk")
    magic, mode, itemsize, _, n_frames, n_atoms, scale, *sizes = HEADER.unpack_from(data)
    is_bitpacked, is_rigid = mode > XTC + ALONG_ATOMS, mode > RIGID
    itemsizes = range(8) if is_rigid else (0,) if is_bitpacked else (2, 4)
    if magic != MAGIC or mode > XTC + RIGID or itemsize not in itemsizes:
        raise ValueError("it does not begin with the header of a quantised chunk")
    if (n_frames, n_atoms) != shape:
        raise ValueError(f"it holds {n_frames} frames of {n_atoms} atoms, expected {shape}")
    if HEADER.size + sum(sizes) != len(data):
        raise ValueError(f"{len(data)} bytes, expected {HEADER.size + sum(sizes)}")
    if mode != FLOATS and not 0 < scale < np.inf:
        raise ValueError(f"its integers have a step of {scale}")
    first_part = data[HEADER.size : HEADER.size + sizes[0]]
    second_part = data[HEADER.size + sizes[0] :]
    if mode == FLOATS:
        floats = _decompress(first_part, 4, 3 * n_frames * n_atoms, "first part").view("<f4")
        frames = floats.reshape(n_frames, n_atoms, 3)[first:end]
        out[...] = frames if atoms is None else frames[:, atoms]
        return
    along_atoms = (mode - 1) & ALONG_ATOMS
    xtc = mode % 2 == 0
    if is_rigid:
        description_nbytes = -1
        if len(first_part) >= BLOSC_HEADER.size:
            description_nbytes = BLOSC_HEADER.unpack_from(first_part)[4] - itemsize
        if not 0 < description_nbytes <= 4 * n_atoms + DESCRIPTION_NBYTES:
            raise ValueError(f"its description has {description_nbytes} bytes")
        description = _decompress(first_part, 1, description_nbytes, "first part")
        bits = np.frombuffer(second_part, np.uint8)
        decode_rigid(description, bits, shape, scale, out, atoms, first, end, xtc=xtc)
        return
    if is_bitpacked:
        bits = np.frombuffer(second_part, np.uint8)
        neighbours = _decompress(first_part, 1, n_atoms, "first part") if along_atoms else None
        sum_packed(bits, shape, scale, out, atoms, first, end, xtc=xtc, neighbours=neighbours)
        return
    if along_atoms:
        neighbours = _decompress(first_part, 1, n_atoms, "first part")
        n_numbers = 3 * n_atoms * n_frames
        raw = _decompress(second_part, itemsize, n_numbers, "second part")
        numbers = raw.view(f"<u{itemsize}")
        differences = _integer_buffer(end - first, n_atoms)
        kernels.unfold(numbers[3 * n_atoms * first : 3 * n_atoms * end], differences)
        sum_neighbours(differences, neighbours, scale, out, atoms, xtc=xtc)
        return
    deltas = _integer_buffer(end, n_atoms)
    if end:
        kernels.unfold(_decompress(first_part, 4, 3 * n_atoms, "first part").view("<u4"), deltas[0])
    if end > 1:
        n_numbers = 3 * n_atoms * (n_frames - 1)
        numbers = _decompress(second_part, itemsize, n_numbers, "second part").view(f"<u{itemsize}")
        kernels.unfold(numbers[: 3 * n_atoms * (end - 1)], deltas[1:])
    kernels.dequantise(deltas, scale, out, atoms, first, end, xtc=xtc)
