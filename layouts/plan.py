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
from mdio.layouts.chunk_shapes import (
    MAX_CHUNK_NBYTES,
    MAX_PADDING,
    MIB,
    Pattern,
    fit_parts,
    group_frames,
    plan_chunks,
    plan_padding,
    split_atoms,
    tall_chunks,
)

__all__ = [
    "MAX_PADDING",
    "ArrayPlan",
    "LayoutPlan",
    "StoredAs",
    "WriteOptions",
    "plan_chunks",
    "plan_pieces",
]

DEFAULT_STRIPE_NBYTES = MIB
MIN_PIECE_NBYTES, MAX_PIECE_NBYTES = 4 * MIB, 32 * MIB
"""Decoded bytes of a piece: large enough to be one good write, small enough that a few of them fit
in a worker, and that there are pieces enough for every worker (16 where sizes allow)."""
MAX_BLOCK_NBYTES = 64 * MIB
"""Decoded bytes of a piece that no plan exceeds on its own, unless a single frame does (two, if
they are differenced) or one stripe of each field."""
QUANTISED_FRAMES = 64
"""Frames a chunk of differenced integers holds at most: beyond, size gains little."""
QUANTISED_NBYTES = 32 * MIB
"""Decoded bytes of all chunks over one run of frames, which a reader of whole frames holds."""
FEW_FRAMES = 4
"""Frames of differenced chunks where frames are large, or read one at a time."""
RANDOM_NBYTES, SERIES_NBYTES = 1 << 16, 1 << 18
"""What a chunk has, about, if frames are read one at a time, or atoms: more would be in vain."""
LARGEST_CHUNK_NBYTES = (1 << 32) - 1
"""Chunks of HDF5 cannot be larger."""


@dataclass(frozen=True, kw_only=True)
class StoredAs:
    """What a user may ask of how an output is stored: it goes as it is to the layout's plan."""

    precision: float | Literal["auto", "none"] | None = None
    """Step of stored positions, angstrom; ``auto`` = the integers that an XTC source holds;
    ``none`` = floats in full; None = what loses nothing and takes fewest bytes: integers of an XTC
    in Zarr, else floats."""
    chunk_frames: int | None = None
    chunk_atoms: int | None = None
    """Frames and atoms in a chunk; None = planned for the stripes."""
    contiguous: bool = False
    """Each array of an h5md file in one piece, without chunks."""
    flavour: str | None = None
    """For h5md: ``gromacs``, as GROMACS 2026 reads it; None = mdio's own way."""
    container: str | None = None
    """Format of segments: xtc, trr, dcd or ncdf; None = that of the source."""
    segments: int | None = None
    stripe_count: int | None = None  # to ask for; -1 = one on each target
    expected_frames: int | None = None
    """For so many chunks are planned, where frames will be added; None = those that there are."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions(StoredAs):
    """What an output is planned by."""

    compression: str | None = None
    """``NAME`` or ``NAME:LEVEL``; None = none."""
    file_system: str | None = None
    """Type of that on which the output will lie, if it is to say whether floats are compressed."""
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of atoms of each group to store besides the full system."""
    topology_nbytes: int = 0
    """Of what is stored of the topology, if it is."""
    pattern: Pattern = "blocks"
    """How the output will be read."""


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
    contiguous: bool = False
    """Whether it lies in one piece: chunks are then runs of frames that have one checksum."""

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
    """Frames of each segment, or of each part of an h5md file."""
    fields: tuple[str, ...] = ("positions",)
    """Per-atom arrays of native files and segments."""
    sparse: tuple[str, ...] = ()
    """Those of the per-atom fields that some frames lack, and are NaN there."""
    has_box: bool = True
    """Whether native files and segments hold unit cells, where their format leaves the choice."""
    notes: tuple[str, ...] = ()
    """What the user should know of the output: what its format cannot hold."""
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    stripe_count: int | None = None
    alignment_nbytes: int = 1
    """Uncompressed HDF5 chunks begin at multiples of this."""
    padding: float = 0.0
    """Share of the stripes under the full system that lies empty, behind chunks and in the last;
    0 where chunks are not aligned."""
    flavour: str | None = None
    """As which program wants its files; None = mdio's own way."""
    topology_nbytes: int = 0
    n_files: int = 1
    writes_chunks: bool = False
    """Whether every chunk is a write of its own; else each array of a piece is one."""
    nbytes: int = 0
    """Bytes of the output, exact but for headers if uncompressed; an upper estimate otherwise."""
    source_density: float | None = None
    """Bytes on disk that the source has per atom and frame."""
    direct: bool | None = None
    """Whether large writes go past the page cache; None = others write, who do not know it."""
    by_owner: bool = False
    """Whether ranks hand what they encode to rank 0, which alone writes."""

    @property
    def keeps_integers(self) -> bool:
        """Whether positions stay the integers of the source, so that nothing is lost."""
        return self.precision_source not in (None, "asked")

    def write_tasks(self) -> list[tuple[int, int]]:
        """Return the (start, stop) frames of each piece that one worker writes, in order."""
        edges = itertools.accumulate(self.segment_frames or (self.n_frames,), initial=0)
        return [
            (start, min(start + self.piece_frames, stop))
            for begin, stop in itertools.pairwise(edges)
            for start in range(begin, stop, self.piece_frames)
        ]

    @property
    def n_writes(self) -> int:
        """Number of large writes: of shards, or of chunks where there are no shards."""
        if not self.writes_chunks:
            return max(1, len(self.arrays)) * len(self.write_tasks())
        return sum(
            math.ceil(n_frames / array.chunk_frames) * array.n_atom_chunks
            for n_frames in self.segment_frames or (self.n_frames,)
            for array in self.arrays
        )

    def array(self, group: str, field_name: str) -> ArrayPlan:
        """Return the plan of one array; raises KeyError."""
        return {(array.group, array.field): array for array in self.arrays}[group, field_name]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, with what follows from it."""
        plan = asdict(self)
        plan["n_pieces"] = len(self.write_tasks())
        plan["n_writes"] = self.n_writes
        for row, array in zip(plan["arrays"], self.arrays, strict=True):
            row["chunk_nbytes"] = array.chunk_nbytes
        return plan

    def replace(self, **changes: Any) -> LayoutPlan:
        """Return a copy with `changes`."""
        return replace(self, **changes)


def _plan_shape(info: TrajectoryInfo, options: WriteOptions, quantised: bool) -> tuple[int, int]:
    """Choose (chunk_frames, chunk_atoms) of the full system."""
    n_frames, n_atoms = info.n_frames, info.n_atoms
    frame_nbytes = 12 * n_atoms
    stripe = options.stripe_nbytes
    most = max(1, MAX_BLOCK_NBYTES // info.frame_nbytes)
    if options.pattern == "timeseries":
        frames, atoms = tall_chunks(n_atoms, n_frames, most, SERIES_NBYTES)
    elif quantised:
        # Chunks of one frame could not be differenced; two already gain most of it.
        few = max(2, min(FEW_FRAMES, most))
        many = max(few, min(QUANTISED_NBYTES // frame_nbytes, most, QUANTISED_FRAMES))
        wanted = few if options.pattern == "frames" else many
        nbytes = MIB if options.pattern == "selection" else 4 * MIB
        frames, atoms = tall_chunks(n_atoms, n_frames, wanted, nbytes)
    elif frame_nbytes > max(MAX_CHUNK_NBYTES, stripe):
        frames, atoms = 1, split_atoms(n_atoms, stripe)
    elif options.pattern == "selection":
        wanted = max(MAX_CHUNK_NBYTES // frame_nbytes, 1)
        frames, atoms = tall_chunks(n_atoms, n_frames, wanted, max(stripe, MIB))
    elif options.pattern == "frames":
        frames, atoms = fit_parts(max(RANDOM_NBYTES // frame_nbytes, 1), n_frames), n_atoms
    else:
        frames, atoms = plan_chunks(frame_nbytes, n_frames, stripe)[0], n_atoms
    if options.chunk_atoms is not None:
        atoms = min(options.chunk_atoms, n_atoms)
        if options.chunk_frames is None and not quantised:
            frames = min(plan_chunks(12 * atoms, n_frames, stripe)[0], most)
    if options.chunk_frames is not None:
        frames = min(options.chunk_frames, n_frames)
    if 12 * frames * atoms > LARGEST_CHUNK_NBYTES:
        raise PlanError(
            f"a chunk of {frames} frames of {atoms} atoms would have {12 * frames * atoms} bytes, "
            f"but HDF5 takes at most {LARGEST_CHUNK_NBYTES}; give a smaller --chunk-frames"
        )
    return frames, atoms


def plan_pieces(info: TrajectoryInfo, options: WriteOptions, *, quantised: bool) -> LayoutPlan:
    """Plan the chunked arrays that h5md and zarr share; the layout's own file fills in the rest.

    `info`: the frames and atoms that will be written (after selection). `options`: what was asked.
    `quantised`: whether positions are stored as differenced integers, which want many frames a
    chunk.
    Returns LayoutPlan: with `layout`, `n_files` and precision left to the caller.
    Raises PlanError: sizes that are not positive, no frames, no atoms.
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
    if (n_frames := options.expected_frames) is not None:
        long, rest = info.replace(n_frames=n_frames), replace(options, expected_frames=None)
        plan = plan_pieces(long, rest, quantised=quantised)
        return plan.replace(n_frames=info.n_frames, nbytes=plan.nbytes * info.n_frames // n_frames)
    chunk_frames, chunk_atoms = _plan_shape(info, options, quantised)
    total_nbytes = info.frame_nbytes * info.n_frames
    piece_nbytes = min(max(total_nbytes // 16, MIN_PIECE_NBYTES), MAX_PIECE_NBYTES)
    # A power of two of chunks, so that groups can have 1, 2, 4, ... times as many frames a chunk.
    wanted = max(1, min(piece_nbytes // info.frame_nbytes, info.n_frames) // chunk_frames)
    n_chunks = 1 << (wanted.bit_length() - 1)
    fields = ["positions"]
    fields += ["velocities"] * info.has_velocities + ["forces"] * info.has_forces
    arrays = []
    for group, n_atoms in (("trajectory", info.n_atoms), *options.groups.items()):
        frames, atoms = chunk_frames, chunk_atoms
        if group != "trajectory":
            limit = max(options.stripe_nbytes, MIB)
            frames = group_frames(n_atoms, info.n_frames, chunk_frames, n_chunks, limit)
            atoms = fit_parts(chunk_atoms, n_atoms)
        arrays += [ArrayPlan(group, name, n_atoms, frames, atoms) for name in fields]
    stripe = options.stripe_nbytes
    shape, chunk = (info.n_frames, info.n_atoms), (chunk_frames, chunk_atoms)
    padding = plan_padding(shape, chunk, stripe)
    aligned = 1 < stripe < 12 * info.n_frames * info.n_atoms and padding <= MAX_PADDING
    return LayoutPlan(
        layout="",
        n_frames=info.n_frames,
        n_atoms=info.n_atoms,
        sparse=info.sparse,
        piece_frames=chunk_frames * n_chunks,
        arrays=tuple(arrays),
        compression=options.compression,
        stripe_nbytes=stripe,
        stripe_count=options.stripe_count,
        topology_nbytes=options.topology_nbytes,
        alignment_nbytes=stripe if aligned else 1,
        padding=padding if aligned else 0.0,
        nbytes=options.topology_nbytes
        + sum(
            a.chunk_nbytes * a.n_atom_chunks * math.ceil(info.n_frames / a.chunk_frames)
            for a in arrays
        ),
    )
