"""XTC: finding, decoding and encoding frames, with compiled functions.

Positions come out bit-identical to those of MDAnalysis' XTCReader: xdrfile multiplies each integer
by the float32 1/precision, MDAnalysis multiplies the product by the float32 10. Encoded bytes are
those that xdrfile writes for the same numbers.

A frame begins with a header, big-endian, four bytes a number: magic, atoms, step, time (ps), nine
box components (nm), atoms again. Then, for up to nine atoms, the coordinates as floats (nm); for
more, precision, the lowest and highest integer of each axis, the index of the first small size, the
number of bytes (eight bytes long where the magic is 2023) and the compressed coordinates, padded to
four bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.errors import CorruptLayoutError, OutputError, SourceError
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.files.store import require_disk
from mdio.core.kernels.backend import import_compiled

if TYPE_CHECKING:
    from mdio import _xtc

    kernels = _xtc
else:
    kernels = import_compiled("mdio._xtc")


@contextmanager
def source_errors(path: Path) -> Iterator[None]:
    """Turn the errors of `kernels` and of the operating system into SourceError."""
    try:
        yield
    except (SourceError, CorruptLayoutError):
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error
    except NotImplementedError as error:
        raise SourceError(f"{path}: {error}") from error
    except ValueError as error:
        raise SourceError(
            f"{path}: {error}; the file is damaged or still being written: take it from its "
            "source again, or convert it with --salvage, which leaves out what cannot be read"
        ) from error


MAGICS = (1995, 2023)
"""First number of a frame; 2023 is that of GROMACS 2023 for more than 298,261,617 atoms."""
HEADER_NBYTES = 96
"""The longest header; that of an uncompressed frame has 56 bytes, the usual one 92."""
MAX_UNCOMPRESSED_ATOMS = 9
"""Frames of up to this many atoms hold plain floats."""


class XTCHeader(NamedTuple):
    """The header of one frame."""

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
    """Read a frame's header from `raw`, the first `HEADER_NBYTES` bytes of the frame.

    `frame`, `offset`: its number and its place in the file, for messages. `n_atoms`: 0 for any.
    Raises ValueError: this cannot be the header of a frame; the message says what was found.
    """
    return XTCHeader(*kernels.parse_header(raw, frame, offset, n_atoms))


def decode(
    data: NDArray[np.uint8],
    first: int,
    edges: NDArray[np.int64],
    n_atoms: int,
    positions: NDArray[np.float32],
    vectors: NDArray[np.float32],
    time: NDArray[np.float64],
    step: NDArray[np.int64],
    atoms: NDArray[np.int64] | None = None,
    n_threads: int = 1,
) -> None:
    """Decode a run of F frames into the caller's arrays.

    `data`, (n,) uint8: the frames and `kernels.PADDING` bytes. `first`: number of the first frame,
    for messages. `edges`, (F + 1,) int64: where each begins in the file, and where the last one
    ends. `positions`, (F, k, 3) float32: angstrom; frames are contiguous, with any stride between
    them. `vectors`, (F, 3, 3) float32: nm, as they are in the file; C-contiguous, as are `time`,
    (F,) float64, ps, and `step`, (F,) int64. `atoms`, (k,) int64: which, in which order; all by
    default. Decoding ends after the last of them. `n_threads`: threads that decode, each its own
    frames.
    Raises ValueError: the bytes are not what `edges` say, or do not decode.
    """
    targets = None
    if atoms is not None:
        atoms = np.ascontiguousarray(atoms, np.int64)
        if (atoms[1:] < atoms[:-1]).any():
            targets = np.argsort(atoms, kind="stable")
            atoms = atoms[targets]
    edges = np.ascontiguousarray(edges)
    outputs = positions, vectors, time, step
    kernels.decode(data, first, edges, n_atoms, *outputs, atoms, targets, n_threads)


CUT_MESSAGE = re.compile(r"frame (\d+) at byte (\d+): .*the file ends after")
"""Message of `kernels.scan` for a file that ends within a frame."""


def scan(path: Path) -> FrameIndex:
    """Find the frames of an XTC file by a walk over their headers; the last may be cut.

    Raises SourceError: it cannot be read, is empty, ends within its first frame, holds something
    else than frames, or its frames differ in their numbers of atoms; the message names frame and
    byte.
    """
    require_disk(
        path,
        "its frames do not follow one another from its beginning to its end; copy it here, and "
        "mdio info says where",
        SourceError,
    )
    with OpenFile(path) as file, source_errors(path):
        fd, nbytes = file.fileno(), file.nbytes
        if nbytes == 0:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        end = nbytes
        try:
            offsets, n_atoms = kernels.scan(fd, nbytes)
        except ValueError as error:
            cut_match = CUT_MESSAGE.match(str(error))
            if cut_match is None or cut_match[1] == "0":
                raise
            end = int(cut_match[2])
            offsets, n_atoms = kernels.scan(fd, end)
    return FrameIndex(offsets, end, n_atoms, nbytes - end)


def read_header(path: Path) -> XTCHeader:
    """Return the header of the first frame.

    Raises SourceError: the file cannot be read, is empty or does not begin with a frame.
    """
    with OpenFile(path) as file, source_errors(path):
        raw = file.peek(0, HEADER_NBYTES)
        if not raw:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        return parse_header(raw, 0, 0)


def encode(
    positions: ArrayLike,
    vectors: ArrayLike,
    time: ArrayLike,
    step: ArrayLike,
    precision: float = 1000.0,
) -> bytes:
    """Return frames as XTC: what xdrfile writes for the same numbers.

    `positions`, (F, A, 3) float32: angstrom; multiplied by the float32 0.1, as MDAnalysis'
    XTCWriter does, but floats, of few atoms, are divided by what reading multiplies with, so that
    those read from an XTC are read again to the bit. `vectors`, (F, 3, 3) float32: nm. `time`,
    (F,): ps; stored as float32. `step`, (F,): stored as 32-bit integers. `precision`: integer steps
    a nm; a step in angstrom is 10 / precision.
    Raises OutputError: a coordinate or a step does not fit the format. ValueError: arrays whose
    shapes do not fit together, or a precision that is not positive.
    """
    x_nm = np.array(positions, np.float32)
    cells = np.ascontiguousarray(vectors, np.float32)
    times = np.ascontiguousarray(time, np.float32)
    steps = np.asarray(step, np.int64)
    n_frames = len(x_nm)
    if (x_nm.shape[2:], cells.shape, times.shape, steps.shape) != (
        (3,),
        (n_frames, 3, 3),
        (n_frames,),
        (n_frames,),
    ) or (n_frames and not x_nm.shape[1]):
        raise ValueError(f"positions of {x_nm.shape} do not agree with boxes, times or steps given")
    if x_nm.shape[1] <= MAX_UNCOMPRESSED_ATOMS:
        x_nm /= np.float32(10)
    else:
        x_nm *= np.float32(0.1)
    precision = float(np.float32(precision))
    if not 0 < precision < np.inf:
        raise ValueError(f"precision is {precision}; it must be a positive number of steps a nm")
    if steps.size and not -(2**31) <= steps.min() <= steps.max() < 2**31:
        raise OutputError(
            f"steps of {steps.min()} to {steps.max()} do not fit XTC's 32-bit step; write h5md"
        )
    try:
        return bytes(kernels.encode(x_nm, cells, times, steps.astype(np.int32), precision))
    except ValueError as error:
        advice = "write another layout"
        if np.isfinite(x_nm).all():
            advice = f"lower the precision of {precision:g} steps a nm, or {advice}"
        raise OutputError(f"XTC cannot hold these coordinates ({error}); {advice}") from error
