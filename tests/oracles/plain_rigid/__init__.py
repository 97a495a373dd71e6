"""Chunks by what stays the same, read in plain NumPy; ``mdio/native/kernels`` writes them.

Each atom is a vector from an atom before it, its parent, or from the origin. Atoms whose vectors
are told alike make a class. Classes are of five kinds, and tell a vector by three numbers:

====== ======================================================================================
kind   numbers
====== ======================================================================================
FREE   the vector
TIME   how it differs from that of the frame before
SWING  of the axes after the longest of the frame before, how they differ from that frame's; how
       much the third side is off what the length makes it
SPHERE the axes after the longest; which that is, its sign, and how much it is off
CIRCLE an axis and a side of the circle that the distances to the parent and to a second atom
       leave; where on that axis; how much the other two axes are off
====== ======================================================================================

The description has the lanes of the entropy coder (8 or 32), the number of classes, each class,
and then a byte for each atom: its class, how many atoms before it its parent is (0: the origin),
and if any class needs them its second atom and its length. A class has its kind; the shift of its
atoms' lengths (255: all have the same); the low bits of each of the three numbers that are stored
as they are; the square of the length (or 16 times the shortest length) and of the second distance
(uint32); the lowest of each axis in the first frame (int32) and its bits; and the frequencies of
symbols, of each table the first and the last symbol, and 7 bits at a time those from first to last
and that of symbol 255. TIME and SWING lie in the first frame as they are, in so many bits.

The data have for each frame the bytes of its words and of its escaped vectors (uint32), and then
for each frame the low bits, in the order of classes and numbers; the states of the lanes and the
words of 16 bits; escaped vectors. Symbols are what is left above the low bits, plus 127: of each
class 1,024 atoms at a time, all first numbers, then all second and third ones. Symbol 255 of a
first number says that the vector is escaped: three folded integers, 7 bits at a time.

Where 128 is added to the lanes (`rigid-seek`), the number of classes is followed by how many frames
there are from one key frame to the next (a byte; 0: only the first is one), and the least atoms of
a section (uint16; 0: there is one section). In key frames TIME and SWING lie as in the first. The
blocks of 1,024 atoms come in the order of classes; once a section has its least, the next block
begins another. Each section has states, words and escaped vectors of its own: there are two sizes
for each section of each frame, and behind a frame's low bits its sections. In a key frame a section
of TIME and SWING alone is empty.

All arithmetic is of float32, one operation at a time, as ``rigid_math.h`` has it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from oracles.plain_rigid.frames import Chunk

from mdio.core.kernels.checks import Int32s

Bytes = NDArray[np.uint8]


def decode(description: Bytes, data: Bytes, n_frames: int, n_atoms: int) -> Int32s:
    """Return the integers of all frames, (F, A, 3); raises ValueError."""
    with np.errstate(all="ignore"):
        chunk = Chunk(description, data, n_frames, n_atoms)
        for number in range(len(chunk.classes)):
            chunk.decode_class(number)
        chunk.finish()
    x, back = chunk.vectors, chunk.back
    for atom in np.flatnonzero(back).tolist():
        x[:, atom] += x[:, atom - back[atom]]
    return x
