"""XTC: finding, decoding and encoding frames, with the native module or without it.

Positions come out bit-identical to those of MDAnalysis' XTCReader: xdrfile multiplies each integer
by the float32 1/precision, MDAnalysis multiplies the product by the float32 10. Encoded bytes are
those that xdrfile writes for the same numbers.

``MDIO_PURE_PYTHON=1`` in the environment turns the native side off.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core import xtc_fallback
from mdio.core.errors import FrameRangeError, OutputError, SourceError
from mdio.core.index import FrameIndex
from mdio.core.xtc_header import HEADER_NBYTES, XTCHeader, parse_header

__all__ = ["NATIVE", "XTCFrames", "encode", "scan"]

RUN_NBYTES = 4 << 20
"""Compressed bytes that are read at once: enough for one call to cost nothing, and they stay in
cache until they are decoded."""


def _choose() -> tuple[Any, bool]:
    if os.environ.get("MDIO_PURE_PYTHON", "0") not in ("", "0"):
        return xtc_fallback, False
    try:
        return import_module("mdio._xtc"), True
    except ImportError:  # installed without a compiler
        return xtc_fallback, False


_kernels, NATIVE = _choose()


def scan(path: Path) -> FrameIndex:
    """Find the frames of an XTC file by a walk over their headers.

    Raises
    ------
    SourceError
        It cannot be read, is empty, ends within a frame, holds something else than frames, or its
        frames differ in their numbers of atoms; the message names frame and byte.
    """
    fd = _open(path)
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes == 0:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        offsets, n_atoms = _kernels.scan(fd, nbytes)
    except (OSError, ValueError) as error:
        raise _source_error(path, error) from error
    finally:
        os.close(fd)
    return FrameIndex(offsets=offsets, nbytes=nbytes, n_atoms=n_atoms)


class XTCFrames:
    """The frames of one open XTC file; not for several threads at once.

    Parameters
    ----------
    path
        The file.
    index
        Its frames, from `scan`.

    Raises
    ------
    SourceError
        The file cannot be opened.
    """

    def __init__(self, path: Path, index: FrameIndex) -> None:
        self.path = path
        self.n_atoms = index.n_atoms
        self._edges = np.append(index.offsets, np.int64(index.nbytes))
        self._buffer = np.empty(0, np.uint8)
        self._fd = -1  # for `close` where the file cannot be opened
        self._fd = _open(path)

    def header(self, frame: int) -> XTCHeader:
        """Return the header of one frame; raises FrameRangeError or SourceError."""
        self._check_range(frame, frame + 1)
        offset = int(self._edges[frame])
        try:
            return parse_header(os.pread(self._fd, HEADER_NBYTES, offset))
        except (OSError, ValueError) as error:
            named = ValueError(f"frame {frame} at byte {offset}: {error}")
            raise _source_error(self.path, named) from error

    def read(
        self,
        start: int,
        stop: int,
        positions: NDArray[np.float32],
        vectors: NDArray[np.float32],
        time: NDArray[np.float64],
        step: NDArray[np.int64],
        atoms: NDArray[np.int64] | None = None,
        n_threads: int = 1,
    ) -> None:
        """Read a run of F = ``stop - start`` frames into the caller's arrays.

        Parameters
        ----------
        start, stop
            First frame, and one beyond the last.
        positions : (F, k, 3) float32
            Filled with coordinates, angstrom. Frames are contiguous, with any stride between them.
            With k = 0 only headers are read.
        vectors : (F, 3, 3) float32
            Filled with box vectors, nm, as they are in the file; C-contiguous, as are the others.
        time : (F,) float64
            Filled, ps.
        step : (F,) int64
            Filled.
        atoms : (k,) int64, optional
            Which atoms, in which order; all by default. Decoding ends after the last of them.
        n_threads
            Threads that decode, each its own frames (the native module only).

        Raises
        ------
        FrameRangeError
            Frames or atoms that are not there.
        ValueError
            Arrays of other shapes.
        SourceError
            The bytes are not what the index says, or do not decode.
        """
        self._check_range(start, stop)
        n_wanted = self.n_atoms if atoms is None else len(atoms)
        n_frames = stop - start
        _check_array(positions[:1], (min(n_frames, 1), n_wanted, 3), np.float32)
        _check_array(positions, (n_frames, n_wanted, 3), np.float32, contiguous=False)
        _check_array(vectors, (n_frames, 3, 3), np.float32)
        _check_array(time, (n_frames,), np.float64)
        _check_array(step, (n_frames,), np.int64)
        if atoms is not None and n_wanted and not 0 <= atoms.min() <= atoms.max() < self.n_atoms:
            raise FrameRangeError(
                f"{self.path}: atoms {atoms.min()} to {atoms.max()} asked for, "
                f"but there are 0 to {self.n_atoms - 1}"
            )
        edges = self._edges[start : stop + 1]
        try:
            if n_wanted == 0 or not NATIVE:
                _kernels.read_headers(self._fd, start, edges, self.n_atoms, vectors, time, step)
                if n_wanted:
                    xtc_fallback.read_positions(
                        self.path, start, edges, self.n_atoms, positions, atoms
                    )
            else:
                self._decode(start, edges, positions, vectors, time, step, atoms, n_threads)
        except (OSError, ValueError) as error:
            raise _source_error(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _check_range(self, start: int, stop: int) -> None:
        n_frames = len(self._edges) - 1
        if not 0 <= start <= stop <= n_frames:
            raise FrameRangeError(
                f"{self.path}: frames {start}:{stop} asked for, but it has {n_frames} frames"
            )

    def _decode(
        self,
        start: int,
        edges: NDArray[np.int64],
        positions: NDArray[np.float32],
        vectors: NDArray[np.float32],
        time: NDArray[np.float64],
        step: NDArray[np.int64],
        atoms: NDArray[np.int64] | None,
        n_threads: int,
    ) -> None:
        """Read and decode with the native module, some MiB at a time."""
        targets = None
        if atoms is not None:
            atoms = np.ascontiguousarray(atoms, np.int64)
            if (atoms[1:] < atoms[:-1]).any():
                targets = np.argsort(atoms, kind="stable")
                atoms = atoms[targets]
        first, n_frames = 0, len(edges) - 1
        while first < n_frames:
            last = int(np.searchsorted(edges, edges[first] + RUN_NBYTES, side="right")) - 1
            last = min(max(last, first + 1), n_frames)
            run = slice(first, last)
            data = self._read_run(int(edges[first]), int(edges[last] - edges[first]))
            _kernels.decode(
                data,
                start + first,
                np.ascontiguousarray(edges[first : last + 1]),
                self.n_atoms,
                positions[run],
                vectors[run],
                time[run],
                step[run],
                atoms,
                targets,
                n_threads,
            )
            first = last

    def _read_run(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the buffer with `nbytes` of the file and the padding that the decoder wants."""
        room = nbytes + _kernels.PADDING
        if self._buffer.size < room:
            self._buffer = np.zeros(room, np.uint8)
        view = memoryview(self._buffer)[:nbytes]
        done = 0
        while done < nbytes:
            got = os.preadv(self._fd, [view[done:]], offset + done)
            if got == 0:
                raise ValueError(
                    f"it ends at byte {offset + done}, but had {self._edges[-1]} bytes when it "
                    "was indexed"
                )
            done += got
        return self._buffer[:room]


def encode(
    positions: ArrayLike,
    vectors: ArrayLike,
    time: ArrayLike,
    step: ArrayLike,
    precision: float = 1000.0,
) -> bytes:
    """Return frames as XTC.

    Parameters
    ----------
    positions : (F, A, 3) float32
        Coordinates, angstrom; multiplied by the float32 0.1, as MDAnalysis' XTCWriter does.
    vectors : (F, 3, 3) float32
        Box vectors, nm.
    time : (F,) float
        ps; stored as float32.
    step : (F,) int
        Stored as 32-bit integers.
    precision
        Integer steps a nm; a step in angstrom is 10 / precision.

    Returns
    -------
    bytes
        What xdrfile writes for the same numbers.

    Raises
    ------
    OutputError
        A coordinate or a step does not fit the 32-bit integers of the format.
    ValueError
        Arrays whose shapes do not fit together, or a precision that is not positive.
    """
    x = np.asarray(positions, np.float32) * np.float32(0.1)
    boxes = np.ascontiguousarray(vectors, np.float32)
    times = np.ascontiguousarray(time, np.float32)
    steps = np.asarray(step, np.int64)
    n_frames = len(x)
    if (x.shape[2:], boxes.shape, times.shape, steps.shape) != (
        (3,),
        (n_frames, 3, 3),
        (n_frames,),
        (n_frames,),
    ) or (n_frames and not x.shape[1]):
        raise ValueError(f"positions of {x.shape} do not go with boxes, times or steps given")
    precision = float(np.float32(precision))
    if not 0 < precision < np.inf:
        raise ValueError(f"precision is {precision}; it must be a positive number of steps a nm")
    if steps.size and not -(2**31) <= steps.min() <= steps.max() < 2**31:
        raise OutputError(f"steps up to {steps.max()} do not fit XTC's 32-bit step; write h5md")
    try:
        return bytes(_kernels.encode(x, boxes, times, steps.astype(np.int32), precision))
    except ValueError as error:
        raise OutputError(
            f"XTC cannot hold these coordinates ({error}); "
            f"lower the precision of {precision:g} steps a nm, or write another layout"
        ) from error


def _check_array(
    array: NDArray[Any], shape: tuple[int, ...], dtype: type, *, contiguous: bool = True
) -> None:
    if (
        array.shape != shape
        or array.dtype != dtype
        or (contiguous and not array.flags.c_contiguous)
        or not array.flags.writeable
    ):
        raise ValueError(
            f"an array of {array.shape} {array.dtype} was given; "
            f"a writable, contiguous one of {shape} {dtype.__name__} is needed"
        )


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened ({error.strerror})") from error


def _source_error(path: Path, error: Exception) -> SourceError:
    if isinstance(error, SourceError):
        return error
    if isinstance(error, OSError):
        return SourceError(f"{path}: cannot be read ({error.strerror})")
    return SourceError(
        f"{path}: {error}; the file is damaged or still being written: take it from its source "
        "again, or cut it at that byte to keep the frames before"
    )
