"""Blocks of frames, which all parts of mdio exchange, and information on trajectories."""

from __future__ import annotations

import binascii
import math
import sys
import threading
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.words import number_text, plural, times_text

FloatArray = NDArray[np.float32]
Number = TypeVar("Number", bound=np.generic)

AtomIndices = NDArray[np.int64]
"""Numbers of atoms, from 0; None, where allowed, means all."""

FIELDS = ("positions", "velocities", "forces")
"""The per-atom arrays of a block, in the order in which everything loops over them."""

H5MD_NAMES = {"positions": "position", "velocities": "velocity", "forces": "force"}
"""Names of `FIELDS` in H5MD."""

PAGE_NBYTES, OFFSET_IN_PAGE = 4096, 256
"""Bytes of a page of memory, and where in it a large array begins."""
MIN_ALIGNED_NBYTES = 64 << 10
"""Smaller arrays may begin anywhere."""


def uninitialised_array(
    shape: tuple[int, ...], dtype: type[Number] | np.dtype[Number]
) -> NDArray[Number]:
    """Return an uninitialised array to read a file into; a large one begins where copying is fast.

    The kernel copies from the page cache with ``rep movsb``, and so does ``memcpy``. On AMD's Zen
    that takes four times as long, in the nearer caches fifteen times, where the target's address is
    1 to 31 bytes above the source's, modulo 4096 (measured on an EPYC; also glibc's bug 30994).
    Large arrays of `np.empty` have such addresses: they begin at byte 16 of a page.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes < MIN_ALIGNED_NBYTES:
        return np.empty(shape, dtype)
    memory = np.empty(nbytes + PAGE_NBYTES, np.uint8)
    begin = (OFFSET_IN_PAGE - memory.ctypes.data) % PAGE_NBYTES
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


MAX_SCRATCH_NBYTES = 64 << 20
"""Larger buffers are not reused."""


class Scratch(threading.local):
    """Reused buffers of each thread, by purpose, since new pages of memory cost time."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def buffer(self, purpose: str, nbytes: int) -> NDArray[np.uint8]:
        """Return a buffer of `nbytes`, valid until the next call for the same purpose."""
        if nbytes > MAX_SCRATCH_NBYTES:
            return uninitialised_array((nbytes,), np.uint8)
        buffer = self._buffers.get(purpose)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._buffers[purpose] = uninitialised_array((nbytes,), np.uint8)
        return buffer[:nbytes]


@dataclass(slots=True)
class FrameBlock:
    """A run of frames, in MDAnalysis' units.

    Attributes
    ----------
    positions : (F, A, 3) float32
        Coordinates, angstrom.
    box : (F, 6) float32
        Unit cell: three lengths in angstrom, three angles in degrees; a row of zeros = no box.
    time : (F,) float64
        ps.
    step : (F,) int64
        Integration step as the source gives it.
    velocities : (F, A, 3) float32, optional
        angstrom/ps.
    forces : (F, A, 3) float32, optional
        kJ/(mol angstrom).

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> block = mdio.open(DCD).read(0, 10)
    >>> block.positions.shape
    (10, 3341, 3)
    >>> block.n_frames
    10
    """

    positions: FloatArray
    box: FloatArray
    time: NDArray[np.float64]
    step: NDArray[np.int64]
    velocities: FloatArray | None = None
    forces: FloatArray | None = None

    @classmethod
    def empty(
        cls, n_frames: int, n_atoms: int, *, velocities: bool = False, forces: bool = False
    ) -> FrameBlock:
        """Return a block of that shape for `Layout.read` to fill.

        The per-atom arrays are uninitialised; box, time and step are zeros.
        """
        shape = (n_frames, n_atoms, 3)
        return cls(
            positions=uninitialised_array(shape, np.float32),
            box=np.zeros((n_frames, 6), np.float32),
            time=np.zeros(n_frames, np.float64),
            step=np.zeros(n_frames, np.int64),
            velocities=uninitialised_array(shape, np.float32) if velocities else None,
            forces=uninitialised_array(shape, np.float32) if forces else None,
        )

    def __eq__(self, other: object) -> bool:
        """Return whether all arrays are equal; NaN equals NaN."""
        if not isinstance(other, FrameBlock):
            return NotImplemented
        own_arrays, other_arrays = self.arrays(), other.arrays()
        return own_arrays.keys() == other_arrays.keys() and all(
            np.array_equal(own_arrays[name], other_arrays[name], equal_nan=True)
            for name in own_arrays
        )

    def __repr__(self) -> str:
        parts = [f"{plural(self.n_frames, 'frame')} of {plural(self.n_atoms, 'atom')}"]
        if self.n_frames:
            parts.append(" to ".join(map(number_text, self.time[[0, -1]])) + " ps")
        return f"<FrameBlock: {', '.join([*parts, *list(self.present())[1:]])}>"

    @property
    def n_frames(self) -> int:
        """Number of frames F."""
        return int(self.positions.shape[0])

    @property
    def n_atoms(self) -> int:
        """Number of atoms A."""
        return int(self.positions.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes held by all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {"box": self.box, "time": self.time, "step": self.step, **self.present()}

    def present(self) -> dict[str, FloatArray]:
        """Return the per-atom arrays that this block has, by name of field."""
        arrays = {"positions": self.positions}
        if self.velocities is not None:
            arrays["velocities"] = self.velocities
        if self.forces is not None:
            arrays["forces"] = self.forces
        return arrays

    def frames(self, index: slice | NDArray[np.int64]) -> FrameBlock:
        """Return the frames that `index` picks (views for a slice, copies for an array)."""
        return FrameBlock(**{name: array[index] for name, array in self.arrays().items()})

    def assign(self, other: FrameBlock) -> None:
        """Copy the arrays of `other`, a block of the same shape, into the arrays of this one."""
        for name, array in self.arrays().items():
            array[...] = getattr(other, name)

    def take(self, atoms: ArrayLike) -> FrameBlock:
        """Return the same frames with only `atoms`, indices or a mask, copied."""
        indices = np.asarray(atoms)
        indices = np.flatnonzero(indices) if indices.dtype == bool else indices
        arrays = {name: np.take(array, indices, axis=1) for name, array in self.present().items()}
        return FrameBlock(box=self.box, time=self.time, step=self.step, **arrays)

    @classmethod
    def concatenate(cls, blocks: Sequence[FrameBlock]) -> FrameBlock:
        """Return all frames of `blocks`, one at least, in order.

        Raises ValueError: they have other atoms or fields than the first one.
        """
        kinds = {(block.n_atoms, *block.present()) for block in blocks}
        if len(kinds) != 1:
            raise ValueError(f"blocks of {sorted(kinds)}; give some of the same atoms and fields")
        names = blocks[0].arrays()
        return cls(**{name: np.concatenate([getattr(b, name) for b in blocks]) for name in names})


def notes_on_times(
    time: NDArray[np.float64],
    frame: NDArray[np.int64] | None = None,
    *,
    n_files: int = 1,
    lacks_first_frame: bool = False,
    lacks_frames: bool = False,
) -> tuple[str, ...]:
    """Return a note where times, (F,) in ps, repeat or go back; none if they are all the same.

    `frame`: numbers of the frames; by default from 0. `n_files`: how many files they are from.
    `lacks_first_frame`: whether the trajectory's first frame is not among them. `lacks_frames`:
    whether others are not, so that more times than these may go back.
    """
    intervals_ps = np.diff(time)
    unordered = np.flatnonzero(intervals_ps <= 0) + 1
    if not len(unordered) or not intervals_ps.any():
        return ()
    first = int(unordered[0])
    number = first if frame is None else int(frame[first])
    n_unordered = len(unordered)
    count_text = f" ({plural(n_unordered, 'such frame')})" if n_unordered > 1 else ""
    if lacks_frames:
        count_text = f" (at least {plural(n_unordered, 'such frame')})"
    advice = (
        "; if its source is several runs put into one file, give their files one by one, which are "
        "joined by their times, each frame once"
    )
    if not lacks_first_frame and (time[unordered] == time[0]).any():
        advice = (
            f"; runs that all begin at {number_text(time[0])} ps cannot be told apart by their "
            "times: write their frames with mdio.Writer, which gives them new ones "
            "(docs/continuing.md)"
        )
    return (
        f"times do not ascend: frame {number} lies at {number_text(time[first])} ps, after one at "
        f"{number_text(time[first - 1])} ps{count_text}{advice if n_files == 1 else ''}",
    )


def float32_spacing(time_ps: float) -> float:
    """Return the difference of neighbouring float32 near a time: files round times to these.

    Beyond the range of float32, that of the largest ones.
    """
    return float(np.spacing(np.float32(min(abs(time_ps), 2.0**127))))


def is_masked(values: Any) -> bool:
    """Return whether an array has masked values, without importing ``numpy.ma``."""
    return "numpy.ma" in sys.modules and bool(np.ma.is_masked(values))


def absent_frames(values: FloatArray) -> NDArray[np.bool_]:
    """Return a mask, (F,) bool, of the frames of a per-atom array that are all NaN."""
    is_absent = np.isnan(values[:, 0, 0]) if values.shape[1] else np.zeros(len(values), bool)
    for frame in np.flatnonzero(is_absent):
        is_absent[frame] = np.isnan(values[frame]).all()
    return is_absent


def field_runs(
    block: FrameBlock, fields: Sequence[str]
) -> list[tuple[tuple[int, int], tuple[str, ...]]]:
    """Return runs (first, end) of frames that have the same ones of `fields`, and these fields."""
    present = np.array([~absent_frames(getattr(block, name)) for name in fields])
    changes = (present[:, 1:] != present[:, :-1]).any(axis=0)
    edges = [0, *(np.flatnonzero(changes) + 1), block.n_frames]
    return [
        (
            (int(a), int(b)),
            tuple(name for name, is_there in zip(fields, present[:, a], strict=True) if is_there),
        )
        for a, b in pairwise(edges)
    ]


@dataclass(frozen=True, slots=True)
class LostBytes:
    """A run of bytes of a file that holds no whole frame."""

    path: str
    frame: int
    """Number of whole frames before it in the file."""
    offset: int
    nbytes: int
    at_end: bool = True
    """Whether it is a frame that the end of the file cuts; otherwise frames may follow in it."""
    first: int = 0
    """Number in the trajectory of the file's first frame, where files are joined."""

    def __str__(self) -> str:
        """Return a sentence for messages, the same for every format."""
        before = f"{plural(self.frame, 'whole frame')} before it"
        if self.at_end:
            return f"{self.path}: ends within frame {self.frame} (byte {self.offset}), {before}"
        return (
            f"{self.path}: bytes {self.offset} to {self.offset + self.nbytes - 1} hold no whole "
            f"frame, {before}"
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Unreadable bytes between whole frames, which count as one frame."""

    path: str
    frame: int
    """The number of this frame."""
    offset: int
    nbytes: int
    after_ps: float
    before_ps: float
    """Times of the whole frames around them."""
    about: int
    """Estimated number of frames, by size and times; a key of the manifest."""

    def __str__(self) -> str:
        """Return a sentence for messages."""
        count_text = shift_text = ""
        if self.about > 1:
            count_text = f", about {self.about:,} by its size and times"
            n_missing = self.about - 1
            shift_text = f", and those after it had numbers higher by about {n_missing:,}"
        return (
            f"{self.path}: at least 1 frame ({self.nbytes:,} bytes, {number_text(self.after_ps)} "
            f"to {number_text(self.before_ps)} ps) cannot be read{count_text}; it counts as frame "
            f"{self.frame}{shift_text}"
        )


class Rounding(NamedTuple):
    """How numbers were rounded, in addition to the `precision` of positions."""

    field_precisions: Mapping[str, float] = {}
    """Steps of velocities (angstrom/ps) and forces (kJ/(mol angstrom)) where they were rounded."""
    xtc_integers: bool = False
    """Whether positions are multiples of a step, made from integers as XTC does; the step is
    `precision`, or None where joined files differ in it."""


class Flaws(NamedTuple):
    """Parts of a trajectory that are missing or made up."""

    lost: tuple[LostBytes, ...] = ()
    """Bytes of a native file that are no whole frame, such as a cut end. `n_frames` counts whole
    frames only."""
    made_up: tuple[str, ...] = ()
    """Notes on values that mdio supplies, since the format, and that of the source, lack them, and
    on cells that are not what was simulated; outputs keep them."""


NOT_ROUNDED, NO_FLAWS = Rounding(), Flaws()


@dataclass(frozen=True, slots=True)
class TrajectoryInfo:
    """The information on a trajectory that is known without reading its frames.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> info = mdio.open(DCD).info
    >>> info.layout, info.n_frames, info.n_atoms
    ('dcd', 98, 3341)
    """

    layout: str
    """Name of the layout that reads it."""
    path: str
    """The file or folder."""
    n_frames: int
    n_atoms: int
    dt_ps: float
    """Time between the first two frames; 1.0 where there is only one (as in MDAnalysis)."""
    time_first_ps: float
    time_last_ps: float
    has_velocities: bool = False
    has_forces: bool = False
    has_box: bool = False
    """Whether the first frame has a unit cell."""
    sparse: tuple[str, ...] = ()
    """Per-atom fields that some frames lack; all their values are NaN in these frames."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Stored atom groups, without the full system, and their numbers of atoms."""
    chunk_frames: int | None = None
    """Frames in the smallest unit that is read whole; None where any frame is read alone."""
    chunk_atoms: int | None = None
    compression: str | None = None
    """``NAME:LEVEL`` or the format's own (``xtc``); None where nothing is compressed."""
    precision: float | None = None
    """Step of the stored coordinates in angstrom; None where float32 are kept in full."""
    rounding: Rounding = NOT_ROUNDED
    nbytes: int = 0
    """Bytes on disk."""
    source: Mapping[str, Any] | None = None
    """Fingerprint of its source; None for native files."""
    flaws: Flaws = NO_FLAWS

    @classmethod
    def of_block(cls, block: FrameBlock, layout: str, path: str, **values: Any) -> TrajectoryInfo:
        """Return the information on a trajectory of the frames of a block, one at least."""
        times = block.time[[0, min(1, block.n_frames - 1), -1]].tolist()
        has_fields = {f"has_{name}": getattr(block, name) is not None for name in FIELDS[1:]}
        return cls(
            layout=layout,
            path=path,
            n_frames=block.n_frames,
            n_atoms=block.n_atoms,
            dt_ps=times[1] - times[0] if block.n_frames > 1 else 1.0,
            time_first_ps=times[0],
            time_last_ps=times[2],
            has_box=bool(block.box[0].any()),
            **(has_fields | values),
        )

    @property
    def field_precisions(self) -> Mapping[str, float]:
        """Steps of velocities and forces where they were rounded; see `Rounding`."""
        return self.rounding.field_precisions

    @property
    def xtc_integers(self) -> bool:
        """Whether positions are integers of a step; see `Rounding`."""
        return self.rounding.xtc_integers

    @property
    def lost(self) -> tuple[LostBytes, ...]:
        """Bytes of a native file that are no whole frame; see `Flaws`."""
        return self.flaws.lost

    @property
    def made_up(self) -> tuple[str, ...]:
        """Notes on values that are missing from the format; see `Flaws`."""
        return self.flaws.made_up

    @property
    def times(self) -> str:
        """Times of the frames, for people: ``0 to 98 ps, every 1 ps``."""
        return times_text(self.n_frames, self.time_first_ps, self.time_last_ps, self.dt_ps)

    def replace(self, **changes: Any) -> TrajectoryInfo:
        """Return a copy with `changes`."""
        return replace(self, **changes)

    @property
    def nbytes_per_atom(self) -> float | None:
        """Bytes on disk per atom and frame; None where they are not known."""
        n_positions = self.n_frames * self.n_atoms
        return self.nbytes / n_positions if self.nbytes and n_positions else None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the arrays per atom: positions, and those of velocities and forces it has."""
        return ("positions", *(name for name in FIELDS[1:] if getattr(self, f"has_{name}")))

    @property
    def frame_nbytes(self) -> int:
        """Decoded bytes of one frame's per-atom arrays."""
        return 12 * self.n_atoms * (1 + self.has_velocities + self.has_forces)


FrameData = dict[str, NDArray[Any]]
"""Columns by name, (F,) or (F, k): integers or floats of each frame."""
MAX_COLUMN_VALUES = 64
"""Most values of a frame in one column."""


def columns_to_json(data: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return columns as plain values: little-endian numbers, compressed by zlib, in base64."""
    encoded = {}
    for name, values in data.items():
        array = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        text = b64encode(zlib.compress(array.tobytes())).decode()
        encoded[name] = {"dtype": array.dtype.str, "shape": list(values.shape), "zlib": text}
    return encoded


def columns_from_json(encoded: Any, n_frames: int, path: Any) -> FrameData:
    """Return the columns that `columns_to_json` encoded; raises CorruptLayoutError."""
    try:
        columns = dict(encoded or {}).items()
        return {str(name): _decode_column(column, n_frames) for name, column in columns}
    except (TypeError, KeyError, ValueError, binascii.Error, zlib.error) as error:
        raise CorruptLayoutError(
            f"{path}: its manifest has columns of frames that cannot be read "
            f"({' '.join(str(error).split())}); convert the source again"
        ) from error


def _decode_column(column: Mapping[str, Any], n_frames: int) -> NDArray[Any]:
    dtype, shape = np.dtype(column["dtype"]), tuple(map(int, column["shape"]))
    n_values = int(np.prod(shape[1:], dtype=np.int64))
    if dtype.kind not in "fiu" or shape[:1] != (n_frames,) or not 0 < n_values <= MAX_COLUMN_VALUES:
        raise ValueError(f"{dtype} of shape {shape} for {n_frames} frames")
    nbytes = dtype.itemsize * n_frames * n_values
    raw = zlib.decompressobj().decompress(b64decode(column["zlib"]), nbytes)
    return np.frombuffer(raw, dtype).reshape(shape)


def concatenate_columns(parts: Sequence[FrameData]) -> FrameData:
    """Return the columns that all parts have in the same shape, concatenated."""
    if not parts:
        return {}
    first, *others = parts
    names = [
        name
        for name, values in first.items()
        if all(name in part and part[name].shape[1:] == values.shape[1:] for part in others)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def describe_columns(data: Mapping[str, NDArray[Any]]) -> str:
    """Return the names of columns, each with its minimum and maximum, as text."""
    extremes = ((name, values.min(), values.max()) for name, values in data.items())
    return ", ".join(
        f"{name} {low:g}" + ("" if low == high else f" to {high:g}") for name, low, high in extremes
    )
