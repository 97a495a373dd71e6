"""Plans of outputs: chunk, shard and stripe arithmetic. Pure: no disk, no clock.

File systems transfer whole stripes best (Lustre's default is 1 MiB), readers read whole chunks, and
one worker makes and writes a whole piece (a Zarr shard, a run of HDF5 chunks, a segment). A piece
is a whole number of chunks, of the full system and of each group, so that pieces never share one.

A chunk should fill whole stripes, be worth a request, and hold little that readers do not need.
Chunks are stored whole, also the last one, which reaches beyond the trajectory: this counts as
padding, as the empty ends of stripes do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from mdio.core.errors import PlanError
from mdio.core.files.writing import Direct
from mdio.core.frames import TrajectoryInfo
from mdio.core.options import option
from mdio.core.units import FIELD_UNITS

Pattern = Literal["frames", "blocks", "selection", "timeseries"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
"""Ways to read an output, each with its own chunks: ``frames``, single ones in any order (about 64
KiB); ``blocks``, runs of whole frames (whole frames that fill stripes); ``selection``, the same few
neighbouring atoms of all frames (many frames of some atoms); ``timeseries``, all frames of each
atom (as many frames as fit into memory, of few atoms)."""

MIB = 1 << 20
MAX_PADDING = 0.15
"""Largest share of padding in an output."""
GOOD_PADDING = 0.05
"""Share of padding up to which a size is taken at once, without trying larger chunks."""
MAX_CANDIDATES = 16
"""How many chunk sizes are tried."""
MAX_CHUNK_NBYTES = 16 * MIB
"""Chunks are not made larger than this to fill stripes; larger frames are cut along the atoms."""
SPLIT_CHUNK_NBYTES = 4 * MIB
"""Approximate bytes of a chunk where frames are cut along the atoms."""
MAX_BLOCK_NBYTES = 64 * MIB
"""Most decoded bytes of the chunks of a run of frames, unless the user asks for more, or one frame
(two, if they are differenced) or one stripe of each field has more."""
MAX_QUANTISED_FRAMES = 64
"""Frames in a chunk of differenced integers: more frames hardly compress better."""
SEEK_CODEC = "rigid-seek"
"""The codec for reading single frames."""
COMPRESSION_NOTE = "compression: "
"""Beginning of notes on compression, which ``--quiet`` leaves out."""
MAX_SEEK_FRAMES = 16
"""Frames in a chunk of that codec: with more, too much would be read for a single frame."""
MAX_QUANTISED_NBYTES = 32 * MIB
"""Decoded bytes of all quantised chunks over one run of frames, which a reader holds at once."""
FEW_FRAMES = 4
"""Frames in a differenced chunk where frames are large, or read one at a time."""
RANDOM_NBYTES, SERIES_NBYTES = 1 << 16, 1 << 18
"""Approximate bytes of a chunk if single frames, or atoms, are read: more would be wasted."""
MAX_HDF5_CHUNK_NBYTES = (1 << 32) - 1
"""Largest chunk that HDF5 can store."""


def plan_padding(
    shape: tuple[int, int], chunk: tuple[int, int], stripe_nbytes: int, item_nbytes: int = 12
) -> float:
    """Return the share of padding in an output whose chunks begin on stripe boundaries.

    `shape`, `chunk`: (frames, atoms). `stripe_nbytes`: 1 if chunks follow each other without gaps.
    `item_nbytes`: bytes of one atom in one frame.
    """
    n_chunks = math.ceil(shape[0] / chunk[0]) * math.ceil(shape[1] / chunk[1])
    stored_nbytes = math.ceil(item_nbytes * chunk[0] * chunk[1] / stripe_nbytes) * stripe_nbytes
    return 1 - item_nbytes * shape[0] * shape[1] / (n_chunks * stored_nbytes)


def fit_parts(max_length: int, total: int) -> int:
    """Return a length of at most `max_length` that cuts `total` into parts with little padding.

    The last part may be shorter than the others, by at most 15% of the length of all parts.
    """
    length = math.ceil(total / math.ceil(total / min(max_length, total)))
    while math.ceil(total / length) * length * (1 - MAX_PADDING) > total:
        length -= 1
    return length


def plan_chunks(frame_nbytes: int, n_frames: int, stripe_nbytes: int) -> tuple[int, float]:
    """Choose how many whole frames make a chunk that fits the stripes.

    A chunk takes the smallest number of stripes of 1 MiB or more together that whole frames fill to
    95%, or else to 85%; the unused end of the last chunk counts as empty. `frame_nbytes`: of one
    array. Returns frames, and the share of padding if chunks begin on stripe boundaries, at most
    0.15; 0 where they are not aligned, since no chunk of up to 16 MiB fits or the trajectory is
    smaller than a stripe.
    """
    if frame_nbytes * n_frames <= stripe_nbytes:
        return fit_parts(max(MIB // frame_nbytes, 1), n_frames), 0.0
    smallest = max(1, math.ceil(MIB / stripe_nbytes))
    largest = max(smallest, MAX_CHUNK_NBYTES // stripe_nbytes)
    candidates = []
    for n_stripes in range(smallest, min(smallest + MAX_CANDIDATES, largest + 1)):
        frames = min(n_stripes * stripe_nbytes // frame_nbytes, n_frames)
        if frames > 0:
            shape, chunk = (n_frames, 1), (frames, 1)
            candidates.append((frames, plan_padding(shape, chunk, stripe_nbytes, frame_nbytes)))
    best = _best_candidate(candidates)
    if best is not None:
        return best
    return fit_parts(max(max(stripe_nbytes, MIB) // frame_nbytes, 1), n_frames), 0.0


def _best_candidate(candidates: list[tuple[int, float]]) -> tuple[int, float] | None:
    """Return the first (length, padding) with `GOOD_PADDING`, or else with `MAX_PADDING`."""
    for limit in (GOOD_PADDING, MAX_PADDING):
        for length, padding in candidates:
            if padding <= limit:
                return length, padding
    return None


def split_atoms(n_atoms: int, stripe_nbytes: int) -> int:
    """Return the atoms in a chunk of one large frame: about 4 MiB, in whole stripes."""
    target_nbytes = math.ceil(SPLIT_CHUNK_NBYTES / stripe_nbytes) * stripe_nbytes
    n_ideal_parts = max(1, round(12 * n_atoms / target_nbytes))
    counts = sorted(
        range(math.ceil(0.6 * n_ideal_parts), 2 * n_ideal_parts + 1),
        key=lambda n: abs(n - n_ideal_parts),
    )
    candidates = [
        (atoms, plan_padding((1, n_atoms), (1, atoms), stripe_nbytes))
        for atoms in (math.ceil(n_atoms / n_parts) for n_parts in counts[:MAX_CANDIDATES])
    ]
    best = _best_candidate(candidates)
    return fit_parts(math.ceil(n_atoms / n_ideal_parts), n_atoms) if best is None else best[0]


def long_chunks(n_atoms: int, n_frames: int, max_frames: int, chunk_nbytes: int) -> tuple[int, int]:
    """Return (frames, atoms) of chunks that hold many frames of some of the atoms."""
    chunk_frames = fit_parts(max_frames, n_frames)
    n_parts = math.ceil(12 * chunk_frames * n_atoms / chunk_nbytes)
    return chunk_frames, fit_parts(math.ceil(n_atoms / n_parts), n_atoms)


def group_frames(
    n_atoms: int, n_frames: int, chunk_frames: int, n_chunks: int, max_nbytes: int
) -> int:
    """Return the frames of a group's chunks: those of 1, 2, 4, ... chunks of the full system.

    As many as fit a piece, `max_nbytes` bytes, and the trajectory without too much padding.
    """
    frames = chunk_frames
    while frames < chunk_frames * n_chunks and 24 * n_atoms * frames <= max_nbytes:
        stored = math.ceil(n_frames / (2 * frames)) * 2 * frames
        if stored * (1 - MAX_PADDING) > n_frames:
            break
        frames *= 2
    return frames


def plan_shape(
    shape: tuple[int, int],
    block_nbytes: int,
    *,
    quantised: bool,
    seeks: bool,
    pattern: Pattern,
    stripe_nbytes: int,
    requested: tuple[int | None, int | None],
) -> tuple[int, int]:
    """Choose the frames and atoms of a chunk of the full system; raises PlanError.

    `shape`: (frames, atoms) of the array. `block_nbytes`: decoded bytes of a frame of all arrays.
    `quantised`: whether it holds differenced integers. `seeks`: whether these are for
    reading single frames. `requested`: frames and atoms that the user asked for.
    """
    n_frames, n_atoms = shape
    frame_nbytes = 12 * n_atoms
    max_frames = max(1, MAX_BLOCK_NBYTES // block_nbytes)
    if pattern == "timeseries":
        frames, atoms = long_chunks(n_atoms, n_frames, max_frames, SERIES_NBYTES)
    elif quantised:
        # One frame has nothing to be differenced with; two save most of what can be saved.
        few_frames = max(2, min(FEW_FRAMES, max_frames))
        limit = MAX_SEEK_FRAMES if seeks and pattern == "blocks" else MAX_QUANTISED_FRAMES
        many_frames = max(few_frames, min(MAX_QUANTISED_NBYTES // frame_nbytes, max_frames, limit))
        nbytes = MIB if pattern == "selection" else 4 * MIB
        frames, atoms = long_chunks(
            n_atoms, n_frames, few_frames if pattern == "frames" else many_frames, nbytes
        )
    elif frame_nbytes > max(MAX_CHUNK_NBYTES, stripe_nbytes):
        frames, atoms = 1, split_atoms(n_atoms, stripe_nbytes)
    elif pattern == "selection":
        n_fitting = max(MAX_CHUNK_NBYTES // frame_nbytes, 1)
        frames, atoms = long_chunks(n_atoms, n_frames, n_fitting, max(stripe_nbytes, MIB))
    elif pattern == "frames":
        frames, atoms = fit_parts(max(RANDOM_NBYTES // frame_nbytes, 1), n_frames), n_atoms
    else:
        frames, atoms = plan_chunks(frame_nbytes, n_frames, stripe_nbytes)[0], n_atoms
    chunk_frames, chunk_atoms = requested
    if chunk_atoms is not None:
        atoms = min(chunk_atoms, n_atoms)
        if chunk_frames is None and not quantised:
            frames = min(plan_chunks(12 * atoms, n_frames, stripe_nbytes)[0], max_frames)
    if chunk_frames is not None:
        frames = min(chunk_frames, n_frames)
    if 12 * frames * atoms > MAX_HDF5_CHUNK_NBYTES:
        raise PlanError(
            f"a chunk of {frames} frames of {atoms} atoms would have {12 * frames * atoms} bytes, "
            f"but HDF5 takes at most {MAX_HDF5_CHUNK_NBYTES}; give a smaller --chunk-frames"
        )
    return frames, atoms


DEFAULT_STRIPE_NBYTES = MIB
MIN_PIECE_NBYTES, MAX_PIECE_NBYTES = 8 * MIB, 32 * MIB
"""Decoded bytes of a piece: large enough to be written and read fast (the page cache gives files of
20 MB 1.15 times as fast as files of 10 MB), small enough that a worker can hold a few of them."""
MIN_PIECES = 8
"""Pieces for the workers, where sizes allow."""


MIN_PRECISION = 1e-6
"""Smallest step in angstrom: float32 tells positions of 8 angstrom and more less far apart."""


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """A user's options for how an output is stored, which are passed unchanged to its plan."""

    precision: float | Literal["auto", "none"] | None = option(
        "round positions to this step in angstrom; auto keeps the integers of an XTC source, bit "
        "for bit; none stores unrounded floats, which any program reads (default: auto in zarr, "
        "none elsewhere)",
        "--precision A|auto|none",
        kind="precision",
        named=True,
    )
    precision_velocities: float | None = option(
        f"round velocities to this step in {FIELD_UNITS['velocities']} (default: unrounded floats)",
        "--precision-velocities STEP",
        kind="step",
    )
    precision_forces: float | None = option(
        f"round forces to this step in {FIELD_UNITS['forces']} (default: unrounded floats)",
        "--precision-forces STEP",
        kind="step",
    )
    chunk_frames: int | None = option(
        "frames in a chunk; auto: as fits the stripes",
        "--chunk-frames N|auto",
        kind="auto",
        layout_specific=True,
    )
    chunk_atoms: int | None = option(
        "atoms in a chunk; auto: as fits the stripes",
        "--chunk-atoms N|auto",
        kind="auto",
        layout_specific=True,
    )
    contiguous: bool = option(
        "h5md: each array in one piece, without chunks (--chunk-frames is then how many frames "
        "share a checksum)",
        "--contiguous",
        False,
        layout_specific=True,
    )
    flavour: str | None = option(
        "h5md: in the units and under the names that GROMACS 2026 reads",
        "--flavour",
        choices=("gromacs",),
    )
    container: str | None = option(
        "format of the segments (default: that of the source)",
        "--container",
        choices=("xtc", "trr", "dcd", "ncdf"),
        layout_specific=True,
    )
    segments: int | None = option(
        "number of segments", "--segments N", layout_specific=True, follow=False
    )
    stripe_count: int | None = option(
        "stripes, -1 for all targets", "--stripe-count N", kind="int", alone="stripes"
    )
    expected_frames: int | None = option(
        "number of frames for which chunks are planned, if frames will be added later"
    )

    def __post_init__(self) -> None:
        if isinstance(self.precision, str) and self.precision not in ("auto", "none"):
            raise PlanError(
                f"--precision is {self.precision!r}; give a step in angstrom (0.01), auto or none"
            )

    @property
    def field_precisions(self) -> dict[str, float]:
        """Rounding steps requested for velocities and forces, by field."""
        steps = {"velocities": self.precision_velocities, "forces": self.precision_forces}
        return {name: step for name, step in steps.items() if step is not None}

    def refuse_rounding(self, reason: str) -> None:
        """Raise PlanError if velocities or forces are to be rounded, which `reason` rules out."""
        for name in self.field_precisions:
            raise PlanError(
                f"--precision-{name} does not go together with {reason}; leave it out, or write "
                "zarr or h5md"
            )


class CodecShares(NamedTuple):
    """Size of an XTC's integers with each codec, as a share of the XTC, from a few frames."""

    bitpack: float
    rigid: float | None
    """None where it was not measured, since bitpack is small enough."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions(StorageOptions):
    """Everything on which the plan of an output depends, besides the source."""

    compression: str | None = None
    """``NAME`` or ``NAME:LEVEL``; None = none."""
    file_system: str | None = None
    """Type of the output's file system, if it is to decide the compression."""
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of atoms of each group to store besides the full system."""
    topology_nbytes: int = 0
    """Bytes of the stored topology; 0 without one."""
    pattern: Pattern = "blocks"
    """Way in which the output will be read."""
    codec_shares: Mapping[str, CodecShares] = field(default_factory=dict)
    """Sizes of the full system (``trajectory``) and each group, if they decide the codec."""


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """One chunked array of per-atom numbers: a field of the full system or of a group."""

    group: str
    """``trajectory`` for the full system."""
    field: str
    n_atoms: int
    chunk_frames: int
    chunk_atoms: int
    contiguous: bool = False
    """Whether the array is stored without chunks; a "chunk" is then a run of frames with a
    checksum."""
    compression: str | None = None

    @property
    def chunk_nbytes(self) -> int:
        return 12 * self.chunk_frames * self.chunk_atoms

    @property
    def n_atom_chunks(self) -> int:
        return math.ceil(self.n_atoms / self.chunk_atoms)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """Arrays of each frame in native files and segments."""

    fields: tuple[str, ...] = ("positions",)
    sparse: tuple[str, ...] = ()
    """Per-atom arrays that some frames lack; they are NaN there."""
    has_box: bool = True
    """Whether boxes are stored, in formats where they may be left out."""


@dataclass(frozen=True, slots=True)
class StripePlan:
    """Placement of arrays on the stripes of the file system."""

    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    stripe_count: int | None = None
    alignment_nbytes: int = 1
    """Uncompressed HDF5 chunks begin at multiples of this."""
    padding: float = 0.0
    """Share of the full system's stripes that is empty, after chunks and in the last one; 0 where
    chunks are not aligned."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How the output is written, which does not affect what it contains."""

    writes_chunks: bool = False
    """Whether each chunk is written by a call of its own, rather than each array of a piece."""
    direct: Direct | None = None
    """Whether large writes bypass the page cache; ``"auto"`` = if the disk proves fast; None = a
    library writes, which cannot."""
    by_owner: bool = False
    """Whether ranks send what they encode to rank 0, which writes all of it."""


PARTS = {
    name: {declared.name for declared in fields(part)}
    for name, part in (("native", FieldPlan), ("stripes", StripePlan), ("writing", WritePlan))
}
"""Names of the fields of each part of a plan."""
JSON_NAMES = {"source_nbytes_per_atom": "source_density"}
"""Keys in JSON, by field, where they differ from its name."""


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """The plan of an output, which ``--dry-run`` prints."""

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
    """``asked``: the step was asked for; ``xtc``: it is that of the XTC source, which loses
    nothing."""
    field_precisions: Mapping[str, float] = field(default_factory=dict)
    """Steps of velocities (angstrom/ps) and forces (kJ/(mol angstrom)) where they are rounded."""
    container: str | None = None
    segment_frames: tuple[int, ...] = ()
    native: FieldPlan = field(default_factory=FieldPlan)
    stripes: StripePlan = field(default_factory=StripePlan)
    writing: WritePlan = field(default_factory=WritePlan)
    notes: tuple[str, ...] = ()
    """Notes for the user, such as what the format cannot hold."""
    flavour: str | None = None
    """Program whose flavour of the format is written; None = mdio's own."""
    topology_nbytes: int = 0
    n_files: int = 1
    nbytes: int = 0
    """Bytes of the output: exact except for headers if uncompressed, an upper estimate if not."""
    source_nbytes_per_atom: float | None = None
    """Bytes on disk of the source per atom and frame; ``source_density`` in JSON and journals."""

    @property
    def keeps_integers(self) -> bool:
        """Whether positions stay the integers of the source, so that nothing is lost."""
        return self.precision_source not in (None, "asked")

    @property
    def is_rounded(self) -> bool:
        """Whether any field is stored as multiples of a step."""
        return self.precision is not None or bool(self.field_precisions)

    def rounding_step(self, field_name: str) -> float | None:
        """Return the step of a field; None where float32 are stored in full."""
        steps = {"positions": self.precision, **self.field_precisions}
        return steps.get(field_name)

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
        if not self.writing.writes_chunks:
            return max(1, len(self.arrays)) * len(self.write_tasks())
        return sum(
            math.ceil(self.n_frames / array.chunk_frames) * array.n_atom_chunks
            for array in self.arrays
        )

    @property
    def array_keys(self) -> list[tuple[str, str]]:
        return [(array.group, array.field) for array in self.arrays]

    def array(self, group: str, field_name: str) -> ArrayPlan:
        return {(array.group, array.field): array for array in self.arrays}[group, field_name]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, with sizes and counts that follow from it."""
        plan = {JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}
        for part in PARTS:
            plan |= plan.pop(part)
        plan["n_pieces"] = len(self.write_tasks())
        plan["n_writes"] = self.n_writes
        for row, array in zip(plan["arrays"], self.arrays, strict=True):
            row["chunk_nbytes"] = array.chunk_nbytes
        return plan

    def remaining(self, n_stored: int) -> LayoutPlan:
        """Return the plan of the frames after the first `n_stored`, which are whole pieces."""
        n_frames = self.n_frames - n_stored
        ends = itertools.accumulate(self.segment_frames)
        sizes = zip(self.segment_frames, ends, strict=True)
        return self.replace(
            n_frames=n_frames,
            segment_frames=tuple(size for size, end in sizes if end > n_stored),
            nbytes=round(self.nbytes * n_frames / self.n_frames),
        )

    def replace(self, **changes: Any) -> LayoutPlan:
        """Return a copy with `changes` to its fields and to those of its parts."""
        for part, names in PARTS.items():
            if part_changes := {name: changes.pop(name) for name in names & changes.keys()}:
                changes[part] = replace(getattr(self, part), **part_changes)
        return replace(self, **changes)


def plan_arrays(info: TrajectoryInfo, options: WriteOptions, *, quantised: bool) -> LayoutPlan:
    """Plan the chunked arrays of h5md and zarr; the caller sets `layout`, `n_files` and precision.

    `quantised`: whether positions are stored as differenced integers, which compress best with many
    frames per chunk.
    """
    for flag, value in (
        ("--chunk-frames", options.chunk_frames),
        ("--chunk-atoms", options.chunk_atoms),
        ("--stripe-size", options.stripe_nbytes),
        ("--stripe-count", options.stripe_count),
    ):
        if value is not None and value < 1 and not (flag == "--stripe-count" and value == -1):
            raise PlanError(f"{flag} is {value}; give a positive number")
    if info.n_frames < 1 or info.n_atoms < 1:
        raise PlanError(
            f"{info.path}: {info.n_frames} frames of {info.n_atoms} atoms: nothing to write"
        )
    if (n_frames := options.expected_frames) is not None:
        expected_info = info.replace(n_frames=n_frames)
        options = replace(options, expected_frames=None)
        plan = plan_arrays(expected_info, options, quantised=quantised)
        return plan.replace(n_frames=info.n_frames, nbytes=plan.nbytes * info.n_frames // n_frames)
    for name, step in options.field_precisions.items():
        if name not in info.fields:
            raise PlanError(f"{info.path}: has no {name}; leave --precision-{name} out")
        if not 0 < step < math.inf:
            raise PlanError(f"--precision-{name} is {step}; give a positive step")
    stripe = options.stripe_nbytes
    chunk_frames, chunk_atoms = plan_shape(
        (info.n_frames, info.n_atoms),
        info.frame_nbytes,
        quantised=quantised,
        seeks=options.compression == SEEK_CODEC,
        pattern=options.pattern,
        stripe_nbytes=stripe,
        requested=(  # as Python's integers, since they may be NumPy's
            options.chunk_frames and int(options.chunk_frames),
            options.chunk_atoms and int(options.chunk_atoms),
        ),
    )
    total_nbytes = info.frame_nbytes * info.n_frames
    piece_nbytes = min(max(total_nbytes // MIN_PIECES, MIN_PIECE_NBYTES), MAX_PIECE_NBYTES)
    # A power of two of chunks, so that groups can have 1, 2, 4, ... times as many frames per chunk.
    max_chunks = max(1, min(piece_nbytes // info.frame_nbytes, info.n_frames) // chunk_frames)
    n_chunks = 1 << (max_chunks.bit_length() - 1)
    arrays = []
    for group, n_atoms in (("trajectory", info.n_atoms), *options.groups.items()):
        frames, atoms = chunk_frames, chunk_atoms
        if group != "trajectory":
            limit = max(options.stripe_nbytes, MIB)
            frames = group_frames(n_atoms, info.n_frames, chunk_frames, n_chunks, limit)
            atoms = fit_parts(chunk_atoms, n_atoms)
        arrays += [
            ArrayPlan(group, name, n_atoms, frames, atoms, options.contiguous)
            for name in info.fields
        ]
    shape, chunk = (info.n_frames, info.n_atoms), (chunk_frames, chunk_atoms)
    padding = plan_padding(shape, shape if options.contiguous else chunk, stripe)
    is_aligned = 1 < stripe < 12 * info.n_frames * info.n_atoms and padding <= MAX_PADDING
    return LayoutPlan(
        layout="",
        n_frames=info.n_frames,
        n_atoms=info.n_atoms,
        native=FieldPlan(sparse=info.sparse),
        piece_frames=chunk_frames * n_chunks,
        arrays=tuple(arrays),
        compression=options.compression,
        field_precisions=options.field_precisions,
        stripes=StripePlan(
            stripe,
            options.stripe_count,
            alignment_nbytes=stripe if is_aligned else 1,
            padding=padding if is_aligned else 0.0,
        ),
        topology_nbytes=options.topology_nbytes,
        nbytes=options.topology_nbytes
        + sum(
            a.chunk_nbytes * a.n_atom_chunks * math.ceil(info.n_frames / a.chunk_frames)
            for a in arrays
        ),
    )
