"""The bytes of a chunk of quantised positions: integers, differenced, packed.

A chunk describes itself; numbers are little-endian:

====== ==== ===========================================================================
offset size what
====== ==== ===========================================================================
0      4    ``mdq1``
4      1    mode: 0 floats as they are; differences along the frames of 1 integers of a
            step, 2 the integers of an XTC; along the atoms of 3 integers of a step, 4 the
            integers of an XTC; 5 to 8 as 1 to 4, but bit-packed; by what stays the same of 9
            integers of a step, 10 the integers of an XTC
5      1    bytes of a stored difference: 2 or 4; 4 in mode 0, 0 in modes 5 to 8; in modes 9
            and 10 how many zeros fill up the first part, 0 to 7
6      2    zero
8      4    frames F
12     4    atoms A
16     8    float64: step in angstrom (odd modes), precision per nm (even ones), zero (0)
24     4    bytes of the first part
28     4    bytes of the second part
32          the two parts, each a Blosc 1 buffer, but the second of modes 5 to 10; the first
            is empty in modes 5 and 6, the second in mode 0, and in modes 1 and 2 if F is 1
====== ==== ===========================================================================

In modes 1 and 2 the first part holds the first frame, the second the differences of each other
frame to the one before; they suit frames that are close in time. In modes 3 and 4 the first part
has a byte for each atom, the second the differences of each atom to one of the four before it, the
atoms sorted; `mdio.core.kernels.packed` says how. Which takes fewer bits is estimated for each
chunk. In mode 0 the first part holds all frames.

Integers are folded (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), so that small ones have leading
zeros for either sign. In modes 1 to 4 they take two bytes where all differences allow. Each
Blosc part is shuffled as one block and filled up with zeros to a multiple of 8 numbers, without
which Blosc leaves the last block unshuffled.

In modes 5 to 8 the second part holds rows of numbers, each group of them with just as many bits as
it needs; `mdio.core.kernels.packed` says how. A row is a frame: in modes 5 and 6 the first frame as
differences of each atom to the one before, the others as those to the frame before. It is read
several times faster than an entropy coder's output, and about a tenth larger.

In modes 9 and 10 the first part describes the chunk, and the second holds its frames; see
``docs/rigid.md``. They take two thirds to four fifths of the room of an XTC. What has
one frame is bit-packed instead.

First parts beside bit-packed or entropy-coded numbers are written by LZ4, for which little code is
needed: HDF5's filter (`packaging/hdf5-filter`) has no Blosc. Older ones are Zstandard's, and those
of `rigid` outside of HDF5.

A chunk with a number that is not finite or beyond the integers' range, or (XTC) that would not come
back bit for bit, is written in mode 0; so is one that would be larger than floats when bit-packed.

How the parts of a quantised chunk become Blosc buffers.

Memory that is kept from chunk to chunk.

Fresh memory for every chunk would be cleared by the system first, a page at a time, which can take
several times as long as decoding it.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
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

MAX_KEPT_NBYTES = 32 << 20
"""Larger buffers are allocated each time."""


class Scratch(threading.local):
    """Rooms for some purposes, for each thread its own."""

    def __init__(self) -> None:
        self._rooms: dict[str, NDArray[np.uint8]] = {}

    def room(self, purpose: str, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes`, valid until they are asked for again for the same purpose."""
        if nbytes > MAX_KEPT_NBYTES:
            return np.empty(nbytes, np.uint8)
        room = self._rooms.get(purpose)
        if room is None or room.nbytes < nbytes:
            room = self._rooms[purpose] = np.empty(nbytes, np.uint8)
        return room[:nbytes]


BLOSC_HEADER = struct.Struct("<4BIII")
BITS, BYTES = 2, 1
"""Blosc's numbers of its two shuffles."""
SHUFFLES = {"zstd": BITS, "lz4": BYTES}
"""Planes of bits suit an entropy coder; LZ4 has none and does better, and faster, on bytes."""

Packing = tuple[str, int, int]
"""Compressor, level and shuffle of a Blosc buffer."""
KEPT: Packing = ("lz4hc", 5, 0)
"""Of what is kept of atoms, whose runs are found as they lie."""
DESCRIBED: Packing = ("zstd", 2, 0)
"""Of what a rigid chunk says of its atoms: fewer bytes than ... Level 3 makes chunks of ten frames
0.02 to 0.26% smaller, and writing them takes 2 to 7% longer."""
DESCRIBED_FAST: Packing = ("lz4hc", 1, 0)
"""... this, which one frame or a few atoms at random do not wait for, and HDF5's filter reads.
Higher levels take up to a fifth of writing a chunk."""


def compress(numbers: NDArray[Any], packing: Packing = KEPT) -> bytes:
    """Return a Blosc buffer; floats are shuffled by bytes."""
    from numcodecs import blosc  # 0.1 s to import

    name, level, shuffle = packing
    data = np.ascontiguousarray(numbers).reshape(-1)
    if data.size % 8:
        data = np.append(data, np.zeros(-data.size % 8, data.dtype))
    packed: bytes = blosc.compress(
        data,
        name.encode(),
        level,
        shuffle=BYTES if numbers.dtype.kind == "f" else shuffle,
        blocksize=data.nbytes,
        typesize=numbers.dtype.itemsize,
    )
    return packed


FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]

MAGIC = b"mdq1"
HEADER = struct.Struct("<4sBBHIIdII")
RAW, STEP, XTC = 0, 1, 2
ALONG_ATOMS, PACKED, RIGID = 2, 4, 8
"""Added to the mode."""
WITHOUT_LEVEL = ("bitpack", "rigid", "rigid-seek")
"""Compressors that have none."""
RIGID_CUTS = {"rigid": (0, 0), "rigid-seek": (16, 2048)}
"""Frames between those that need none before, and atoms that are decoded together; 0: all."""
DESCRIPTION_NBYTES = 1 << 20
"""The most that a rigid chunk's description takes, but for 4 bytes an atom."""
RULES = ("step", "xtc")


@dataclass(frozen=True, slots=True)
class QuantisedFormat:
    """How positions become integers, and what packs these."""

    step: float
    """Step of the integers, angstrom."""
    rule: Literal["step", "xtc"] = "step"
    """``xtc``: the integers an XTC of this step holds, or else the floats; nothing is lost."""
    compressor: Literal["bitpack", "rigid", "rigid-seek", "zstd", "lz4"] = "bitpack"
    level: int = 1
    """Level of zstd and lz4."""

    @property
    def compression(self) -> str:
        """The compressor as an option, with its level."""
        return self.compressor + ("" if self.compressor in WITHOUT_LEVEL else f":{self.level}")

    @property
    def packing(self) -> Packing:
        """Blosc's codec for the integers, if any."""
        if self.compressor in WITHOUT_LEVEL:
            return KEPT
        return self.compressor, self.level, SHUFFLES[self.compressor]

    @property
    def precision_per_nm(self) -> float:
        """The step as XTC states it."""
        return float(np.float32(10 / self.step))


_scratch = Scratch()


def _decompress(data: memoryview, itemsize: int, count: int, part: str) -> Bytes:
    """Return `count` numbers of `itemsize` bytes, after Blosc's own header has been checked.

    They are valid until the next such `part` is unpacked.
    """
    nbytes = -(-count // 8) * 8 * itemsize
    if len(data) < BLOSC_HEADER.size:
        raise ValueError(f"a part of {len(data)} bytes")
    *_, n_decoded, _, n_encoded = BLOSC_HEADER.unpack_from(data)
    if (n_decoded, n_encoded) != (nbytes, len(data)):
        raise ValueError(
            f"a part of {n_encoded} bytes for {n_decoded}, expected {len(data)} for {nbytes}"
        )
    from numcodecs import blosc

    out = _scratch.room(part, nbytes)
    try:
        blosc.decompress(data, out)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return out[: count * itemsize]


def _integers(n_frames: int, n_atoms: int) -> NDArray[np.int32]:
    """Return memory for the integers of a chunk, valid until those of the next are needed."""
    room = _scratch.room("integers", 12 * n_frames * n_atoms)
    return room.view(np.int32).reshape(n_frames, n_atoms, 3)


def encode_chunk(
    positions: FloatArray, form: QuantisedFormat, *, for_filter: bool = False
) -> bytes:
    """Turn the positions of a chunk into bytes.

    `positions`, (F, A, 3) float32: angstrom, F and A at least 1. `form`: how. `for_filter`: whether
    HDF5's filter is to read it.
    """
    n_frames, n_atoms = positions.shape[:2]
    is_xtc = form.rule != "step"
    mode, scale = (XTC, form.precision_per_nm) if is_xtc else (STEP, form.step)
    head = b""
    rest: bytes | memoryview = b""
    itemsize = 0
    rigid = deltas = None
    if form.compressor in RIGID_CUTS:
        rigid = encode_rigid(positions, scale, *RIGID_CUTS[form.compressor], xtc=is_xtc)
    if rigid is None or rigid[1].nbytes > positions.nbytes:
        rigid = None
        deltas = kernels.quantise(positions, scale, _integers(n_frames, n_atoms), xtc=is_xtc)
    if rigid is not None:
        mode += RIGID
        itemsize = -len(rigid[0]) % 8
        is_small = form.compressor == "rigid" and not for_filter
        packing = DESCRIBED if is_small else DESCRIBED_FAST
        head, rest = compress(np.frombuffer(rigid[0], np.uint8), packing), rigid[1].data
    elif deltas is not None:
        differenced = choose_neighbours(deltas)
        if differenced is not None:
            mode += ALONG_ATOMS
            difference_neighbours(deltas, differenced)
            head = compress(differenced)
        if form.compressor in WITHOUT_LEVEL:
            mode += PACKED
            if differenced is None:
                difference_first(deltas)
            most = packed_limit(n_frames, 3 * n_atoms)
            packed = pack(deltas, _scratch.room("packed", most))
            deltas = None if packed is None else deltas
            rest = b"" if packed is None else packed.data
        elif differenced is not None:
            folded = kernels.fold(deltas)
            itemsize = folded.itemsize
            rest = compress(folded, form.packing)
        else:
            folded = kernels.fold(deltas[1:])
            head = compress(kernels.fold(deltas[0]).astype(np.uint32), form.packing)
            itemsize = folded.itemsize
            rest = compress(folded, form.packing) if n_frames > 1 else b""
    if rigid is None and deltas is None:
        mode, itemsize, scale = RAW, 4, 0.0
        head, rest = compress(positions, form.packing), b""
    sizes = (len(head), len(rest))
    header = HEADER.pack(MAGIC, mode, itemsize, 0, n_frames, n_atoms, scale, *sizes)
    return b"".join((header, head, rest))


def shape_of(data: memoryview) -> tuple[int, int]:
    """Return how many frames and atoms a chunk says it has; raises ValueError."""
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
    last: int | None = None,
) -> None:
    """Turn bytes back into positions.

    `data`: what `encode_chunk` made. `shape`, (F, A): frames and atoms that the chunk should hold;
    nothing is allocated for other numbers. `out`, (last - first, k, 3) float32: filled; each frame
    contiguous. `atoms`, (k,) int64, optional: which atoms; all by default. `first`, `last`: which
    frames; all by default.
    Raises ValueError: the bytes are no such chunk.
    """
    last = shape[0] if last is None else last
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, too few for a quantised chunk")
    magic, mode, itemsize, _, n_frames, n_atoms, scale, *sizes = HEADER.unpack_from(data)
    packed, rigid = mode > XTC + ALONG_ATOMS, mode > RIGID
    itemsizes = range(8) if rigid else (0,) if packed else (2, 4)
    if magic != MAGIC or mode > XTC + RIGID or itemsize not in itemsizes:
        raise ValueError("the header of a quantised chunk was expected, and is not there")
    if (n_frames, n_atoms) != shape:
        raise ValueError(f"it holds {n_frames} frames of {n_atoms} atoms, expected {shape}")
    if HEADER.size + sum(sizes) != len(data):
        raise ValueError(f"{len(data)} bytes, expected {HEADER.size + sum(sizes)}")
    if mode != RAW and not 0 < scale < np.inf:
        raise ValueError(f"its integers have a step of {scale}")
    head = data[HEADER.size : HEADER.size + sizes[0]]
    rest = data[HEADER.size + sizes[0] :]
    if mode == RAW:
        floats = _decompress(head, 4, 3 * n_frames * n_atoms, "head").view("<f4")
        frames = floats.reshape(n_frames, n_atoms, 3)[first:last]
        out[...] = frames if atoms is None else frames[:, atoms]
        return
    along_atoms = (mode - 1) & ALONG_ATOMS
    xtc = mode % 2 == 0
    if rigid:
        n_described = BLOSC_HEADER.unpack_from(head)[4] - itemsize if len(head) >= 16 else -1
        if not 0 < n_described <= 4 * n_atoms + DESCRIPTION_NBYTES:
            raise ValueError(f"its description has {n_described} bytes")
        described = _decompress(head, 1, n_described, "head")
        bits = np.frombuffer(rest, np.uint8)
        decode_rigid(described, bits, shape, scale, out, atoms, first, last, xtc=xtc)
        return
    if packed:
        bits = np.frombuffer(rest, np.uint8)
        differenced = _decompress(head, 1, n_atoms, "head") if along_atoms else None
        sum_packed(bits, shape, scale, out, atoms, first, last, xtc=xtc, kept=differenced)
        return
    if along_atoms:
        differenced = _decompress(head, 1, n_atoms, "head")
        numbers = _decompress(rest, itemsize, 3 * n_atoms * n_frames, "rest").view(f"<u{itemsize}")
        differences = _integers(last - first, n_atoms)
        kernels.unfold(numbers[3 * n_atoms * first : 3 * n_atoms * last], differences)
        sum_neighbours(differences, differenced, scale, out, atoms, xtc=xtc)
        return
    deltas = _integers(last, n_atoms)
    if last:
        kernels.unfold(_decompress(head, 4, 3 * n_atoms, "head").view("<u4"), deltas[0])
    if last > 1:
        n_numbers = 3 * n_atoms * (n_frames - 1)
        numbers = _decompress(rest, itemsize, n_numbers, "rest").view(f"<u{itemsize}")
        kernels.unfold(numbers[: 3 * n_atoms * (last - 1)], deltas[1:])
    kernels.dequantise(deltas, scale, out, atoms, first, last, xtc=xtc)
