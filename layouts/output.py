"""What passes between the owner of an output and the workers that fill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels.checks import buffer

__all__ = ["OutputMeta", "Receipt", "Stored"]

AtomIndices = NDArray[np.int64]


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
    source_precision: float | None = None
    """Step (angstrom) of the integers an XTC source holds; None for other sources."""
    striping: Mapping[str, Any] | None = None
    """What was asked of the file system, and what was applied."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One encoded piece of output and where it belongs."""

    key: str
    """Where; each writer makes and understands its own keys."""
    data: bytes | bytearray | memoryview | NDArray[Any] | list[NDArray[np.uint8]]
    """The bytes as they lie on disk: any C-contiguous buffer, or several that follow each other
    (where every worker stores for itself: nothing then needs to be in one piece)."""
    crcs: Sequence[int]
    """crc32c of the decoded little-endian bytes of each chunk in it, in order of chunk."""

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
class Receipt:
    """What the owner of an output needs to know of a piece that has been stored."""

    start: int
    stop: int
    crcs: Mapping[str, Sequence[int]]
    """`Stored.crcs` of each key."""
    nbytes: int
    """Bytes that were stored."""
    box: NDArray[np.float32]
    time: NDArray[np.float64]
    step: NDArray[np.int64]
