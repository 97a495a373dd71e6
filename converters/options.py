"""The options of a conversion, and its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from os import PathLike
from typing import Any, Literal, ParamSpec, TypeVar

from mdio.converters.selection import Selection
from mdio.core.errors import OptionError, PlanError
from mdio.core.words import did_you_mean
from mdio.layouts.chunk_shapes import Pattern
from mdio.layouts.plan import LayoutPlan, StoredAs
from mdio.layouts.registry import layout_class

P = ParamSpec("P")
R = TypeVar("R")

Progress = Callable[[int, int], None]
"""Called with frames and bytes (decoded) done since the last call."""


@dataclass(frozen=True, kw_only=True)
class ConversionOptions(StoredAs):
    """All options of a conversion besides source and output."""

    to: str | None = None
    """Layout; by default what the output's suffix says."""
    top: str | PathLike[str] | None = None
    """Topology, for selections and to check the number of atoms."""
    topology: bool = True
    """Whether outputs that can hold one get the topology that was given, or that the source has."""
    select: Selection | None = None
    """Atoms to keep."""
    groups: Mapping[str, Selection] = field(default_factory=dict)
    """Atom groups to store beside the full system, by name."""
    overlap: str | None = None
    """Which of the frames with equal times in several files to keep: one of
    `mdio.layouts.views.OVERLAPS`; None = ``keep-last``, but an error for what looks like
    replicas."""
    source_options: Mapping[str, Any] = field(default_factory=dict)
    """What the source does not say of itself, as options of `mdio.open`: ``format``, ``dt`` (ps
    between frames), ``length_unit``."""
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    """Frames to keep, by number, as in a Python slice."""
    begin_ps: float | None = None
    end_ps: float | None = None
    """First and last time to keep."""
    dt_ps: float | None = None
    """Time between the frames to keep."""
    compression: str | None = None
    """``NAME[:LEVEL]``; ``none``; ``auto`` = in Zarr, floats are compressed where the output lies
    on a network and that pays; None = the same, without a word where it does not."""
    pbc: str | None = None
    """``whole`` molecules; ``mol``: these in the cell by their centres; ``cluster``: those of
    `center` (else of `select`) brought together; ``atom``: each atom in the cell; ``nojump``: atoms
    go on where they leave the cell (``unwrap``, ``wrap``: old names of ``whole``, ``atom``)."""
    center: str | None = None
    """Selection of atoms to move to the middle of the cell, before molecules are put into it."""
    pattern: Pattern | None = None
    """How an h5md or zarr output will be read, for which its chunks are planned; one of
    `mdio.layouts.plan.PATTERNS`, None = ``blocks``."""
    stripe_nbytes: int | None = None
    """Stripe size to plan for and to ask of the file system; None = that of the output's folder on
    Lustre, else 1 MiB."""
    progressive: Sequence[tuple[int, int]] = ()
    """(end in bytes, stripe count) of the components of a progressive layout before the last."""
    mpio: Literal["independent", "collective"] | None = None
    """Write h5md through parallel HDF5, on the ranks of an `MPIExecutor`; None = without."""
    direct: str = "auto"
    """``on`` = large writes go past the page cache, where the file system lets them; ``off``;
    ``auto`` = they do if the output is on a disk of this machine and larger than a quarter of the
    memory that is available."""
    salvage: bool = False
    """Convert the complete frames of a source that ends within a frame."""
    append: bool = False
    """Add frames to the output, which is there; see `mdio.converters.append`."""
    compare_all: bool = False
    """With `append`: compare all frames that both have, of large unchanged sources too."""
    growing: bool = False
    """The source is being written: what is not whole yet is neither taken nor missed."""
    hints: Sequence[str] = ()
    """``KEY=VALUE`` for MPI-IO."""
    verify: bool = True
    """Whether what is read is compared with the checksums that the source holds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.groups, Mapping):
            raise PlanError(
                f"groups are {self.groups!r}; give a dict of names and selections, such as "
                '{"ca": "name CA"}'
            )


SAID_OF_SOURCES = ("dt", "format", "group", "length_unit", "n_atoms")
"""What may be given of files that do not say it themselves, or say more than one thing."""


def takes_options(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function whose ``**options`` are fields of `ConversionOptions` say so, and check them.

    Its signature has each of them by name. A name that is none of them is an OptionError.
    """
    own = inspect.signature(function)
    fields = inspect.signature(ConversionOptions).parameters
    taken = {n: one for n, one in own.parameters.items() if one.kind is not one.VAR_KEYWORD}
    known = {**taken, **{name: one for name, one in fields.items() if name not in taken}}

    @wraps(function)
    def checked(*args: P.args, **words: P.kwargs) -> R:
        for name in words.keys() - known.keys():
            meant = did_you_mean(name, known) or f"; it has {', '.join(sorted(known))}"
            if name in SAID_OF_SOURCES:
                meant = f"; it describes the source: source_options={{{name!r}: ...}}"
            raise OptionError(f"{function.__name__} has no option {name!r}{meant}")
        return function(*args, **words)

    vars(checked)["__signature__"] = own.replace(parameters=list(known.values()))
    return checked


def check_flavour(options: ConversionOptions, layout: str) -> None:
    """Refuse a flavour where there is none; raises PlanError."""
    known = layout_class(layout).flavours
    if options.flavour not in known:
        raise PlanError(
            f"--flavour {options.flavour}: {layout} is written as {' or '.join(known) or 'it is'} "
            "only; GROMACS' is one of .h5md"
        )
    if options.mpio is not None:
        raise PlanError(
            f"--flavour {options.flavour} is written without parallel HDF5; leave out --mpio and "
            "--collective"
        )


@dataclass(frozen=True)
class ConvertResult:
    """What a conversion did."""

    out: str
    layout: str
    n_frames: int
    n_atoms: int
    nbytes_in: int
    nbytes_out: int
    seconds: float
    """From the first byte read to the published output; imports and topology are not counted."""
    workers: int
    plan: LayoutPlan = field(repr=False)
    copied: bool = False
    """Whether frames were copied as bytes, without decoding them."""
    topologies: tuple[str, ...] = ()
    """Topology files written beside the output."""
    found_complete: bool = False
    """Whether the same conversion had made the output before: nothing was written."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        notes = list(self.plan.notes)
        return {**asdict(self), "plan": self.plan.to_json(), "notes": notes}
