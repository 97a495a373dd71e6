"""Shapes of chunks: how many frames and atoms of an array belong together. Pure arithmetic.

A chunk wants to fill whole stripes of the file system, be large enough to be worth a request and
small enough not to make readers fetch what they do not need. Chunks are stored whole, so the last
one, which reaches beyond the trajectory, costs as much as the others: for few chunks that matters
as much as the empty ends of stripes, and both count as padding.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from mdio.core.errors import PlanError

Pattern = Literal["frames", "blocks", "selection", "timeseries"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
"""How outputs may be read: single frames in any order (chunks hold about 64 KiB), runs of whole
frames (these, and fill stripes), the same few neighbouring atoms of all frames (many frames of a
part of the atoms), all frames of each atom (as many frames as memory lets, of few atoms)."""

MIB = 1 << 20
MAX_PADDING = 0.15
"""Most of what is stored that may be padding."""
GOOD_PADDING = 0.05
"""Padding that is not worth larger chunks to save."""
SEARCH_STRIPES = 16
"""Numbers of stripes a chunk that are tried."""
MAX_CHUNK_NBYTES = 16 * MIB
"""Chunks are not made larger than this only to fill their stripes better; frames that are larger
are cut into chunks of atoms."""
SPLIT_NBYTES = 4 * MIB
"""What chunks of such frames have, about."""
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


def plan_padding(
    shape: tuple[int, int], chunk: tuple[int, int], stripe_nbytes: int, item_nbytes: int = 12
) -> float:
    """Return which share of what is stored is padding if chunks begin on stripe boundaries.

    `shape`, `chunk`: (frames, atoms) of the array and of a chunk. `stripe_nbytes`: stripe size; 1 =
    chunks lie close to each other. `item_nbytes`: bytes of one atom in one frame.
    """
    n_chunks = math.ceil(shape[0] / chunk[0]) * math.ceil(shape[1] / chunk[1])
    used = math.ceil(item_nbytes * chunk[0] * chunk[1] / stripe_nbytes) * stripe_nbytes
    return 1 - item_nbytes * shape[0] * shape[1] / (n_chunks * used)


def fit_parts(wanted: int, total: int) -> int:
    """Return a length of at most `wanted` that cuts `total` into parts of which the last is full.

    Full but for 15% of all parts together. Equal parts differ by one at most, which is more than
    15% only where they are shorter than seven: then shorter ones will do, and 1 does always.
    """
    length = math.ceil(total / math.ceil(total / min(wanted, total)))
    while math.ceil(total / length) * length * (1 - MAX_PADDING) > total:
        length -= 1
    return length


def plan_chunks(frame_nbytes: int, n_frames: int, stripe_nbytes: int) -> tuple[int, float]:
    """Choose how many whole frames make a chunk that fits the stripes.

    The smallest number of stripes that make 1 MiB or more and that whole frames fill to 95%, the
    unused end of the last chunk counted as empty; if none does, to 85%.

    `frame_nbytes`: bytes of one frame in one array. `n_frames`: frames there are: a chunk never
    holds more. `stripe_nbytes`: stripe size.
    Returns `chunk_frames` (int). `padding` (float): share of what is stored that is padding if
    chunks begin on stripe boundaries; at most 0.15. 0 where that is not worth while, since no chunk
    of up to 16 MiB fits or the whole trajectory is smaller than a stripe: such chunks lie close to
    each other.
    """
    if frame_nbytes * n_frames <= stripe_nbytes:
        return fit_parts(max(MIB // frame_nbytes, 1), n_frames), 0.0
    smallest = max(1, math.ceil(MIB / stripe_nbytes))
    largest = max(smallest, MAX_CHUNK_NBYTES // stripe_nbytes)
    found = []
    for n_stripes in range(smallest, min(smallest + SEARCH_STRIPES, largest + 1)):
        frames = min(n_stripes * stripe_nbytes // frame_nbytes, n_frames)
        if frames > 0:
            shape, chunk = (n_frames, 1), (frames, 1)
            found.append((frames, plan_padding(shape, chunk, stripe_nbytes, frame_nbytes)))
    best = _first_good(found)
    if best is not None:
        return best
    return fit_parts(max(max(stripe_nbytes, MIB) // frame_nbytes, 1), n_frames), 0.0


def _first_good(found: list[tuple[int, float]]) -> tuple[int, float] | None:
    """Return the first (length, padding) of little padding, or else of padding that will do."""
    for limit in (GOOD_PADDING, MAX_PADDING):
        for length, padding in found:
            if padding <= limit:
                return length, padding
    return None


def split_atoms(n_atoms: int, stripe_nbytes: int) -> int:
    """Return how many atoms of one large frame make a chunk: about 4 MiB, and whole stripes."""
    target = math.ceil(SPLIT_NBYTES / stripe_nbytes) * stripe_nbytes
    ideal = max(1, round(12 * n_atoms / target))
    near = sorted(range(math.ceil(0.6 * ideal), 2 * ideal + 1), key=lambda n: abs(n - ideal))
    found = [
        (atoms, plan_padding((1, n_atoms), (1, atoms), stripe_nbytes))
        for atoms in (math.ceil(n_atoms / n_parts) for n_parts in near[:SEARCH_STRIPES])
    ]
    best = _first_good(found)
    return fit_parts(math.ceil(n_atoms / ideal), n_atoms) if best is None else best[0]


def tall_chunks(n_atoms: int, n_frames: int, frames: int, chunk_nbytes: int) -> tuple[int, int]:
    """Return (frames, atoms) of chunks that hold many frames of some of the atoms.

    `n_atoms`, `n_frames`: of the array. `frames`: wanted frames of a chunk. `chunk_nbytes`: about
    what a chunk should have, decoded.
    """
    chunk_frames = fit_parts(frames, n_frames)
    n_parts = math.ceil(12 * chunk_frames * n_atoms / chunk_nbytes)
    return chunk_frames, fit_parts(math.ceil(n_atoms / n_parts), n_atoms)


def group_frames(n_atoms: int, n_frames: int, chunk_frames: int, n_chunks: int, limit: int) -> int:
    """Return the frames of a group's chunks: 1, 2, 4, ... chunks of the full system.

    At most a piece and at most `limit` bytes, and no longer than the frames there are fill well.
    """
    frames = chunk_frames
    while frames < chunk_frames * n_chunks and 24 * n_atoms * frames <= limit:
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
    pattern: Pattern,
    stripe_nbytes: int,
    asked: tuple[int | None, int | None],
) -> tuple[int, int]:
    """Choose the frames and atoms of a chunk of the full system.

    `shape`: (frames, atoms) of the array. `block_nbytes`: decoded bytes of a frame of all arrays.
    `quantised`: whether it holds differenced integers. `pattern`: how it will be read.
    `stripe_nbytes`: stripe size. `asked`: what the user wants of them.
    Raises PlanError: more bytes than a chunk of HDF5 has.
    """
    n_frames, n_atoms = shape
    frame_nbytes = 12 * n_atoms
    stripe = stripe_nbytes
    most = max(1, MAX_BLOCK_NBYTES // block_nbytes)
    if pattern == "timeseries":
        frames, atoms = tall_chunks(n_atoms, n_frames, most, SERIES_NBYTES)
    elif quantised:
        # Chunks of one frame could not be differenced; two already gain most of it.
        few = max(2, min(FEW_FRAMES, most))
        many = max(few, min(QUANTISED_NBYTES // frame_nbytes, most, QUANTISED_FRAMES))
        wanted = few if pattern == "frames" else many
        nbytes = MIB if pattern == "selection" else 4 * MIB
        frames, atoms = tall_chunks(n_atoms, n_frames, wanted, nbytes)
    elif frame_nbytes > max(MAX_CHUNK_NBYTES, stripe):
        frames, atoms = 1, split_atoms(n_atoms, stripe)
    elif pattern == "selection":
        wanted = max(MAX_CHUNK_NBYTES // frame_nbytes, 1)
        frames, atoms = tall_chunks(n_atoms, n_frames, wanted, max(stripe, MIB))
    elif pattern == "frames":
        frames, atoms = fit_parts(max(RANDOM_NBYTES // frame_nbytes, 1), n_frames), n_atoms
    else:
        frames, atoms = plan_chunks(frame_nbytes, n_frames, stripe)[0], n_atoms
    chunk_frames, chunk_atoms = asked
    if chunk_atoms is not None:
        atoms = min(chunk_atoms, n_atoms)
        if chunk_frames is None and not quantised:
            frames = min(plan_chunks(12 * atoms, n_frames, stripe)[0], most)
    if chunk_frames is not None:
        frames = min(chunk_frames, n_frames)
    if 12 * frames * atoms > LARGEST_CHUNK_NBYTES:
        raise PlanError(
            f"a chunk of {frames} frames of {atoms} atoms would have {12 * frames * atoms} bytes, "
            f"but HDF5 takes at most {LARGEST_CHUNK_NBYTES}; give a smaller --chunk-frames"
        )
    return frames, atoms
