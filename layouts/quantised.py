"""The bytes of a chunk of quantised positions: integers, differenced, packed.

A chunk tells by itself how it is to be read; numbers are little-endian:

====== ==== ===========================================================================
offset size what
====== ==== ===========================================================================
0      4    ``mdq1``
4      1    mode: 0 floats as they are; differences along the frames of 1 integers of a
            step, 2 the integers of an XTC; along the atoms of 3 integers of a step, 4 the
            integers of an XTC
5      1    bytes of a stored difference: 2 or 4; 4 in mode 0
6      2    zero
8      4    frames F
12     4    atoms A
16     8    float64: step in angstrom (modes 1, 3), precision per nm (2, 4), zero (0)
24     4    bytes of the first part
28     4    bytes of the second part
32          the two parts, each a Blosc 1 buffer; the second is empty in mode 0, and in modes
            1 and 2 if F is 1
====== ==== ===========================================================================

In modes 1 and 2 the first part holds the first frame, the second the differences of each other
frame to the one before; they suit frames that are close in time. In modes 3 and 4 the first part
has a byte for each atom, the second the differences of each atom to one of the four before it, the
atoms sorted; `mdio.core.kernel_neighbours` says how. Which takes fewer bits is estimated for each
chunk. In mode 0 the first part holds all frames.

Integers are folded (0, -1, 1, -2, ... become 0, 1, 2, 3, ...), so that small ones have leading
zeros whatever their sign, and take two bytes where all differences allow. Each part is shuffled as
one block and filled up with zeros to a multiple of 8 numbers, without which Blosc leaves the last
block unshuffled.

A chunk with a number that is not finite or beyond the integers' range, or (XTC) that would not come
back bit for bit, is written in mode 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.kernel_neighbours import choose_neighbours, difference_neighbours, sum_neighbours
from mdio.layouts.scratch import Scratch

__all__ = ["QuantisedFormat", "decode_chunk", "encode_chunk"]

FloatArray = NDArray[np.float32]
Folded = NDArray[np.uint16] | NDArray[np.uint32]

MAGIC = b"mdq1"
HEADER = struct.Struct("<4sBBHIIdII")
RAW, STEP, XTC = 0, 1, 2
ALONG_ATOMS = 2
"""Added to the mode."""
BLOSC_HEADER = struct.Struct("<4BIII")
BITS, BYTES = 2, 1
"""Blosc's numbers of its two shuffles."""
SHUFFLES = {"zstd": BITS, "lz4": BYTES}
"""Planes of bits suit an entropy coder; LZ4 has none and does better, and faster, on bytes."""


@dataclass(frozen=True, slots=True)
class QuantisedFormat:
    """How positions become integers, and what packs these."""

    step: float
    """Step of the integers, angstrom."""
    rule: Literal["step", "xtc"] = "step"
    """``xtc``: the integers an XTC of this step holds, or else the floats; nothing is lost."""
    compressor: Literal["zstd", "lz4"] = "zstd"
    level: int = 1

    @property
    def precision_per_nm(self) -> float:
        """The step as XTC states it."""
        return float(np.float32(10 / self.step))


_scratch = Scratch()


def _pack(numbers: Folded | FloatArray | NDArray[np.uint8], form: QuantisedFormat) -> bytes:
    from numcodecs import blosc  # 0.1 s to import

    data = np.ascontiguousarray(numbers).reshape(-1)
    if data.size % 8:
        data = np.append(data, np.zeros(-data.size % 8, data.dtype))
    shuffle = BYTES if numbers.dtype.kind == "f" else SHUFFLES[form.compressor]
    packed: bytes = blosc.compress(
        data,
        form.compressor.encode(),
        form.level,
        shuffle=shuffle,
        blocksize=data.nbytes,
        typesize=numbers.dtype.itemsize,
    )
    return packed


def _unpack(data: memoryview, itemsize: int, count: int, part: str) -> NDArray[np.uint8]:
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
    """Return memory for the integers of a chunk, valid until the next is decoded."""
    room = _scratch.room("integers", 12 * n_frames * n_atoms)
    return room.view(np.int32).reshape(n_frames, n_atoms, 3)


def encode_chunk(positions: FloatArray, form: QuantisedFormat) -> bytes:
    """Turn the positions of a chunk into bytes.

    Parameters
    ----------
    positions : (F, A, 3) float32
        angstrom, F and A at least 1.
    form
        How.
    """
    n_frames, n_atoms = positions.shape[:2]
    if form.rule == "xtc":
        mode, scale = XTC, form.precision_per_nm
        deltas = kernels.quantise_xtc(positions, scale)
    else:
        mode, scale = STEP, form.step
        deltas = kernels.quantise_deltas(positions, scale)
    if deltas is None:
        parts = [_pack(positions, form), b""]
        mode, itemsize, scale = RAW, 4, 0.0
    elif (kept := choose_neighbours(deltas)) is not None:
        mode += ALONG_ATOMS
        difference_neighbours(deltas, kept)
        rest = kernels.fold(deltas)
        itemsize = rest.itemsize
        parts = [_pack(kept, QuantisedFormat(form.step)), _pack(rest, form)]
    else:
        head = kernels.fold(deltas[0]).astype(np.uint32)
        rest = kernels.fold(deltas[1:])
        itemsize = rest.itemsize
        parts = [_pack(head, form), _pack(rest, form) if n_frames > 1 else b""]
    sizes = [len(part) for part in parts]
    header = HEADER.pack(MAGIC, mode, itemsize, 0, n_frames, n_atoms, scale, *sizes)
    return header + b"".join(parts)


def decode_chunk(
    data: memoryview,
    shape: tuple[int, int],
    out: FloatArray,
    atoms: NDArray[np.int64] | None = None,
    first: int = 0,
    last: int | None = None,
) -> None:
    """Turn bytes back into positions.

    Parameters
    ----------
    data
        What `encode_chunk` made.
    shape : (F, A)
        Frames and atoms that the chunk should hold; nothing is allocated for other numbers.
    out : (last - first, k, 3) float32
        Filled; each frame contiguous.
    atoms : (k,) int64, optional
        Which atoms; all by default.
    first, last
        Which frames; all by default.

    Raises
    ------
    ValueError
        The bytes are no such chunk.
    """
    last = shape[0] if last is None else last
    if len(data) < HEADER.size:
        raise ValueError(f"{len(data)} bytes, too few for a quantised chunk")
    magic, mode, itemsize, _, n_frames, n_atoms, scale, *sizes = HEADER.unpack_from(data)
    if magic != MAGIC or mode > XTC + ALONG_ATOMS or itemsize not in (2, 4):
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
        floats = _unpack(head, 4, 3 * n_frames * n_atoms, "head").view("<f4")
        frames = floats.reshape(n_frames, n_atoms, 3)[first:last]
        out[...] = frames if atoms is None else frames[:, atoms]
        return
    if mode > XTC:
        kept = _unpack(head, 1, n_atoms, "head")
        numbers = _unpack(rest, itemsize, 3 * n_atoms * n_frames, "rest").view(f"<u{itemsize}")
        differences = _integers(last - first, n_atoms)
        kernels.unfold(numbers[3 * n_atoms * first : 3 * n_atoms * last], differences)
        sum_neighbours(differences, kept, scale, out, atoms, xtc=mode == XTC + ALONG_ATOMS)
        return
    deltas = _integers(last, n_atoms)
    if last:
        kernels.unfold(_unpack(head, 4, 3 * n_atoms, "head").view("<u4"), deltas[0])
    if last > 1:
        n_numbers = 3 * n_atoms * (n_frames - 1)
        numbers = _unpack(rest, itemsize, n_numbers, "rest").view(f"<u{itemsize}")
        kernels.unfold(numbers[: 3 * n_atoms * (last - 1)], deltas[1:])
    undo = kernels.dequantise_xtc if mode == XTC else kernels.dequantise_deltas
    undo(deltas, scale, out, atoms, first, last)
