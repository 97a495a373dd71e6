"""What one can ask of a conversion, and what one hears of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any, Literal

from mdio.converters.selection import Selection
from mdio.layouts.plan import LayoutPlan

__all__ = ["ConversionOptions", "ConvertResult", "Progress"]

Progress = Callable[[int, int], None]
"""Called with frames and bytes (decoded) done since the last call."""


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """Everything one can ask of a conversion besides source and output."""

    to: str | None = None
    """Layout; by default what the output's suffix says."""
    top: str | PathLike[str] | None = None
    """Topology, for selections and to check the number of atoms."""
    select: Selection | None = None
    """Atoms to keep."""
    groups: Mapping[str, Selection] = field(default_factory=dict)
    """Atom groups to store besides, by name."""
    overlap: str | None = None
    """What is done with frames whose times several files have: one of
    `mdio.layouts.views.joining.OVERLAPS`; None = ``keep-last``, but an error for what looks like
    replicas."""
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    begin_ps: float | None = None
    end_ps: float | None = None
    dt_ps: float | None = None
    precision: float | Literal["auto", "none"] | None = None
    """Step of stored positions, angstrom; ``auto`` = the integers that an XTC source holds;
    ``none`` = floats in full; None = what loses nothing and takes fewest bytes: integers of an XTC
    in Zarr, else floats."""
    compression: str | None = None
    """``NAME[:LEVEL]``; ``none``; ``auto`` = in Zarr, floats are compressed where the output lies
    on a network and that pays; None = the same, without a word where it does not."""
    pbc: str | None = None
    center: str | None = None
    chunk_frames: int | None = None
    chunk_atoms: int | None = None
    contiguous: bool = False
    """Each array of an h5md file in one piece, without chunks."""
    container: str | None = None
    segments: int | None = None
    stripe_nbytes: int | None = None
    """None = that of the target's folder on Lustre, else 1 MiB."""
    stripe_count: int | None = None
    progressive: Sequence[tuple[int, int]] = ()
    """(end in bytes, stripe count) of the components of a progressive layout before the last."""
    mpio: Literal["independent", "collective"] | None = None
    """Write h5md through parallel HDF5, on the ranks of an `MPIExecutor`; None = without."""
    per_rank: bool = False
    """One h5md file for each rank or worker, joined by virtual datasets in the output."""
    salvage: bool = False
    """Take all whole frames of a source that ends within a frame."""
    hints: Sequence[str] = ()
    """``KEY=VALUE`` for MPI-IO."""
    verify: bool = True
    """Whether what is read is compared with the checksums that the source holds."""


@dataclass(frozen=True)
class ConvertResult:
    """What a conversion has done."""

    out: str
    layout: str
    n_frames: int
    n_atoms: int
    nbytes_in: int
    nbytes_out: int
    seconds: float
    """From the first byte read to the published output; imports and topology are not counted."""
    workers: int
    plan: LayoutPlan
    copied: bool = False
    """Whether frames were copied as bytes, without decoding them."""
    topologies: tuple[str, ...] = ()
    """Topology files written beside the output."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(replace(self)), "plan": self.plan.to_json()}
