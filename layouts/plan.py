"""Plans of outputs: chunk, shard and stripe arithmetic. Pure: no disk, no clock.

The unit that file systems like is the stripe (Lustre's default is 1 MiB), the unit that readers
fetch is the chunk, and the unit that one worker makes and writes is the piece (a Zarr shard, a run
of HDF5 chunks, a segment). A piece is a whole number of chunks, of the full system and of each
group alike, so that pieces never share a chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from mdio.core.errors import PlanError
from mdio.core.frames import TrajectoryInfo

__all__ = ["ArrayPlan", "LayoutPlan", "WriteOptions", "plan_chunks", "plan_pieces"]

MIB = 1 << 20
DEFAULT_STRIPE_NBYTES = MIB
MIN_PIECE_NBYTES, MAX_PIECE_NBYTES = 4 * MIB, 32 * MIB
"""Decoded bytes of a piece: large enough to be one good write, small enough that a few of them fit
in a worker, and that there are pieces enough for every worker (24 where sizes allow)."""
MAX_PADDING = 0.15
"""Most of a chunk's stripes that may lie empty."""
SEARCH_STRIPES = 16
"""Chunks of more stripes than this are not tried only to save padding."""
QUANTISED_FRAMES = 64
"""Frames a chunk of differenced integers holds at most: beyond, size gains little."""
QUANTISED_NBYTES = 32 * MIB
"""Decoded bytes of all chunks over one run of frames, which a reader of whole frames holds."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What the user asked of an output."""

    compression: str | None = None
    """``NAME`` or ``NAME:LEVEL``; None = none."""
    precision: float | Literal["auto"] | None = None
    """Step in angstrom, ``auto`` = the integers an XTC source holds, None = lossless floats."""
    chunk_frames: int | None = None
    chunk_atoms: int | None = None
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    stripe_count: int | None = None
    segments: int | None = None
    container: str | None = None
    """Format of the segments: xtc, trr, dcd or ncdf; None = that of the source."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of atoms of each group to store besides the full system."""


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """One chunked array of per-atom numbers: a field of the full system or of a group."""

    group: str
    """``trajectory`` for the full system."""
    field: str
    """positions, velocities or forces."""
    n_atoms: int
    chunk_frames: int
    chunk_atoms: int

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of one whole chunk."""
        return 12 * self.chunk_frames * self.chunk_atoms

    @property
    def n_atom_chunks(self) -> int:
        """Chunks along the atoms."""
        return math.ceil(self.n_atoms / self.chunk_atoms)


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """What will be written: what ``--dry-run`` prints, the advisor reads and the tests check."""

    layout: str
    n_frames: int
    n_atoms: int
    piece_frames: int
    """Frames that one worker encodes and stores at a time (the last piece may have fewer)."""
    arrays: tuple[ArrayPlan, ...] = ()
    """Chunked arrays; empty for native files and segments."""
    compression: str | None = None
    precision: float | None = None
    """Step in angstrom of quantised positions; None = float32 in full."""
    precision_source: Literal["asked", "xtc", None] = None
    """``xtc``: the step is that of the integers in the XTC source, and nothing is lost."""
    container: str | None = None
    """Format of the segments."""
    segment_frames: tuple[int, ...] = ()
    """Frames of each segment."""
    fields: tuple[str, ...] = ("positions",)
    """Per-atom arrays of native files and segments."""
    has_box: bool = True
    """Whether native files and segments hold unit cells, where their format leaves the choice."""
    notes: tuple[str, ...] = ()
    """What the user should know of the output: what its format cannot hold."""
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    stripe_count: int | None = None
    alignment_nbytes: int = 1
    """Uncompressed HDF5 chunks begin at multiples of this."""
    padding: float = 0.0
    """Share of the stripes of a chunk of the full system that lies empty."""
    n_files: int = 1
    nbytes: int = 0
    """Bytes of the output, exact but for headers if uncompressed; an upper estimate otherwise."""

    def pieces(self) -> list[tuple[int, int]]:
        """Return the (start, stop) frames of all pieces in order."""
        edges = itertools.accumulate(self.segment_frames or (self.n_frames,), initial=0)
        return [
            (start, min(start + self.piece_frames, stop))
            for begin, stop in itertools.pairwise(edges)
            for start in range(begin, stop, self.piece_frames)
        ]

    @property
    def n_writes(self) -> int:
        """Number of large writes."""
        per_piece = len(self.arrays) if self.layout == "zarr" else 1
        return per_piece * len(self.pieces())

    def array(self, group: str, field_name: str) -> ArrayPlan:
        """Return the plan of one array."""
        for array in self.arrays:
            if (array.group, array.field) == (group, field_name):
                return array
        raise KeyError((group, field_name))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, with what follows from it."""
        plan = asdict(self)
        plan["n_pieces"] = len(self.pieces())
        plan["n_writes"] = self.n_writes
        for row, array in zip(plan["arrays"], self.arrays, strict=True):
            row["chunk_nbytes"] = array.chunk_nbytes
        return plan

    def replace(self, **changes: Any) -> LayoutPlan:
        """Return a copy with `changes`."""
        return replace(self, **changes)


def plan_chunks(frame_nbytes: int, n_frames: int, stripe_nbytes: int) -> tuple[int, float]:
    """Choose how many whole frames make a chunk that fits the stripes.

    Parameters
    ----------
    frame_nbytes
        Bytes of one frame in one array.
    n_frames
        Frames there are: a chunk never holds more.
    stripe_nbytes
        Stripe size.

    Returns
    -------
    chunk_frames : int
    padding : float
        Share of the chunk's stripes that stays empty; at most 15% unless no chunk of up to 16
        stripes can do that, or the whole trajectory is smaller than its stripes (then 0: no
        alignment is worth while, and nothing is padded).
    """
    if frame_nbytes * n_frames <= stripe_nbytes:
        return n_frames, 0.0
    best = (math.inf, 1)
    n_stripes = 0
    smallest = max(1, math.ceil(MIB / stripe_nbytes))
    for n_stripes in range(smallest, smallest + SEARCH_STRIPES):
        chunk_frames = min(n_stripes * stripe_nbytes // frame_nbytes, n_frames)
        if chunk_frames == 0:
            continue
        chunk_nbytes = chunk_frames * frame_nbytes
        used = math.ceil(chunk_nbytes / stripe_nbytes) * stripe_nbytes
        padding = 1 - chunk_nbytes / used
        best = min(best, (padding, chunk_frames))
        if padding <= MAX_PADDING:
            return chunk_frames, padding
    if best[0] == math.inf:  # one frame is larger than all these stripes
        return 1, 1 - frame_nbytes / (math.ceil(frame_nbytes / stripe_nbytes) * stripe_nbytes)
    return best[1], best[0]


def _plan_shape(info: TrajectoryInfo, options: WriteOptions, quantised: bool) -> tuple[int, int]:
    """Choose (chunk_frames, chunk_atoms) of the full system."""
    n_frames, n_atoms = info.n_frames, info.n_atoms
    frame_nbytes = 12 * n_atoms
    stripe = options.stripe_nbytes
    if quantised:
        frames = min(max(QUANTISED_NBYTES // frame_nbytes, 4), QUANTISED_FRAMES, n_frames)
        n_parts = math.ceil(frames * frame_nbytes / (4 * MIB))
        atoms = math.ceil(n_atoms / n_parts)
    elif frame_nbytes > SEARCH_STRIPES * max(stripe, MIB):
        frames = 1
        atoms = min(n_atoms, math.ceil(4 * MIB / stripe) * stripe // 12)
    else:
        frames, atoms = plan_chunks(frame_nbytes, n_frames, stripe)[0], n_atoms
    if options.chunk_atoms is not None:
        atoms = min(options.chunk_atoms, n_atoms)
        if options.chunk_frames is None and not quantised:
            frames = plan_chunks(12 * atoms, n_frames, stripe)[0]
    if options.chunk_frames is not None:
        frames = min(options.chunk_frames, n_frames)
    return frames, atoms


def plan_pieces(info: TrajectoryInfo, options: WriteOptions, *, quantised: bool) -> LayoutPlan:
    """Plan the chunked arrays that h5md and zarr share; the layout's own file fills in the rest.

    Parameters
    ----------
    info
        The frames and atoms that will be written (after selection).
    options
        What was asked.
    quantised
        Whether positions are stored as differenced integers, which want many frames a chunk.

    Returns
    -------
    LayoutPlan
        With `layout`, `n_files` and precision left to the caller.

    Raises
    ------
    PlanError
        Sizes that are not positive, no frames, no atoms.
    """
    for label, value in (
        ("--chunk-frames", options.chunk_frames),
        ("--chunk-atoms", options.chunk_atoms),
        ("--stripe-size", options.stripe_nbytes),
        ("--stripe-count", options.stripe_count),
    ):
        if value is not None and value < 1 and not (label == "--stripe-count" and value == -1):
            raise PlanError(f"{label} is {value}; give a positive number")
    if info.n_frames < 1 or info.n_atoms < 1:
        raise PlanError(
            f"{info.path}: {info.n_frames} frames of {info.n_atoms} atoms: nothing to write"
        )
    chunk_frames, chunk_atoms = _plan_shape(info, options, quantised)
    total_nbytes = info.frame_nbytes * info.n_frames
    piece_nbytes = min(max(total_nbytes // 24, MIN_PIECE_NBYTES), MAX_PIECE_NBYTES)
    # A power of two of chunks, so that groups can have 1, 2, 4, ... times as many frames a chunk.
    wanted = max(1, min(piece_nbytes // info.frame_nbytes, info.n_frames) // chunk_frames)
    n_chunks = 1 << (wanted.bit_length() - 1)
    fields = ["positions"]
    fields += ["velocities"] * info.has_velocities + ["forces"] * info.has_forces
    arrays = []
    for group, n_atoms in (("trajectory", info.n_atoms), *options.groups.items()):
        frames, atoms = chunk_frames, min(chunk_atoms, n_atoms)
        if group != "trajectory":
            target = max(options.stripe_nbytes, MIB)
            room = max(1, min(n_chunks, target // (12 * n_atoms * chunk_frames)))
            frames = chunk_frames << (room.bit_length() - 1)
        arrays += [ArrayPlan(group, name, n_atoms, frames, atoms) for name in fields]
    chunk_nbytes = 12 * chunk_frames * chunk_atoms
    stripe = options.stripe_nbytes
    padding = 1 - chunk_nbytes / (math.ceil(chunk_nbytes / stripe) * stripe)
    aligned = padding <= MAX_PADDING
    return LayoutPlan(
        layout="",
        n_frames=info.n_frames,
        n_atoms=info.n_atoms,
        piece_frames=chunk_frames * n_chunks,
        arrays=tuple(arrays),
        compression=options.compression,
        stripe_nbytes=stripe,
        stripe_count=options.stripe_count,
        alignment_nbytes=stripe if aligned else 1,
        padding=padding if aligned else 0.0,
        nbytes=sum(
            12 * a.n_atoms * a.chunk_frames * math.ceil(info.n_frames / a.chunk_frames)
            for a in arrays
        ),
    )
