"""Shapes of chunks: how many frames and atoms of an array belong together. Pure arithmetic.

A chunk wants to fill whole stripes of the file system, be large enough to be worth a request and
small enough not to make readers fetch what they do not need. Chunks are stored whole, so the last
one, which reaches beyond the trajectory, costs as much as the others: for few chunks that matters
as much as the empty ends of stripes, and both count as padding.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

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
