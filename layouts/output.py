"""What passes between the owner of an output and the workers that fill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels.checks import buffer
from mdio.core.topology.topology import Topology
from mdio.core.words import plural

AtomIndices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Coordinates that are NaN or infinite."""

    coordinates: int
    frames: int
    """In how many frames they are."""
    first_frame: int

    @classmethod
    def among(cls, positions: NDArray[np.float32], first: int) -> NotFinite | None:
        """Return how many of (F, N, 3) are; `first` is the number of the first frame."""
        # Two passes over what is in the processor's cache: NaN goes through both, infinity is one
        # end.
        low, high = positions.min(initial=0), positions.max(initial=0)
        if np.isfinite(low) and np.isfinite(high):
            return None
        counts = (~np.isfinite(positions)).sum(axis=(1, 2))
        frames = np.flatnonzero(counts)
        return cls(int(counts.sum()), len(frames), first + int(frames[0]))

    def __str__(self) -> str:
        return (
            f"positions are kept as they are, and of them {plural(self.coordinates, 'coordinate')} "
            f"in {plural(self.frames, 'frame')} (the first is frame {self.first_frame}) "
            f"{'is' if self.coordinates == 1 else 'are'} NaN or infinite"
        )

    def __add__(self, other: NotFinite) -> NotFinite:
        first = min(self.first_frame, other.first_frame)
        return NotFinite(self.coordinates + other.coordinates, self.frames + other.frames, first)


@dataclass(frozen=True, slots=True)
class OutputMeta:
    """What an output says of itself besides its frames; becomes its manifest."""

    uuid: str
    created: str
    """ISO 8601, UTC."""
    source: Mapping[str, Any]
    """Fingerprint of the source: path, nbytes, mtime_ns, crc32c of head and tail, layout."""
    dt_ps: float
    frames: Sequence[Sequence[int]]
    """The source's frames that are kept, as runs of (start, stop, step)."""
    atoms: AtomIndices | None = None
    """The source's atoms that are kept (``--select``); None = all."""
    groups: Mapping[str, AtomIndices] | None = None
    """Atoms of each stored group, as indices into the atoms that are kept."""
    topology: Topology | None = None
    """Of the atoms that are kept."""
    frame_data: Mapping[str, NDArray[Any]] | None = None
    """Numbers of each frame that is kept; see `Layout.frame_data`."""
    striping: Mapping[str, Any] | None = None
    """What was asked of the file system, and what was applied."""
    not_finite: NotFinite | None = None
    """What of the positions is; None = nothing."""
    repaired: Sequence[Mapping[str, Any]] = ()
    """When it was repaired, and what was written again."""
    appended_to: str | None = None
    """The uuid of the output whose place this one takes, with all or most of its frames."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One encoded piece of output and where it belongs."""

    key: str
    """Where; each writer makes and understands its own keys."""
    data: bytes | bytearray | memoryview | NDArray[Any] | list[NDArray[np.uint8]]
    """The bytes as they lie on disk: any C-contiguous buffer, or several that follow each other
    (where every worker stores for itself: nothing then needs to be in one piece)."""
    crcs: Sequence[int]
    """crc32c of the decoded little-endian bytes of each chunk in it, in order of chunk."""
    file: Path | None = None
    """A file that holds these bytes already and is never written again."""

    @property
    def parts(self) -> list[memoryview]:
        """The bytes in their order, flat; one part where they are in one piece."""
        parts = self.data if isinstance(self.data, list) else [self.data]
        return [buffer(part) for part in parts]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """What the owner of an output needs to know of a piece that has been stored."""

    start: int
    stop: int
    crcs: Mapping[str, Sequence[int]]
    """`EncodedChunk.crcs` of each key."""
    nbytes: int
    """Bytes that were stored."""
    box: NDArray[np.float32]
    time: NDArray[np.float64]
    step: NDArray[np.int64]
    not_finite: NotFinite | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else its writer needs to know of it: numbers that a journal can hold."""
