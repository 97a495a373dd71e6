"""The options of a conversion, and its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from mdio.converters import selection
from mdio.core.errors import PlanError, SourceError
from mdio.core.files.store import to_path
from mdio.core.options import (
    allowed_with,
    check_types,
    declared_fields,
    non_defaults,
    option,
    spell_option,
)
from mdio.core.words import without_passwords
from mdio.layouts.base import atoms_to_array
from mdio.layouts.manifest import indices_from_runs, runs_from_indices
from mdio.layouts.plan import MIN_PRECISION, PATTERNS, LayoutPlan, Pattern, StorageOptions
from mdio.layouts.registry import open_layout, writable_layouts
from mdio.layouts.views.options import FrameOptions, ReadOptions

Progress = Callable[[int, int], None]
"""Called with frames and bytes (decoded) done since the last call."""


@dataclass(frozen=True, kw_only=True)
class Sources(ReadOptions):
    """Options of reading the source, and values that its files lack."""

    top: selection.AnyTopology | None = option(
        "topology, for selections", "-s --top FILE", named=True, append=True
    )
    source_options: Mapping[str, Any] = option(
        "options of `mdio.open`: format; dt, the ps between frames; length_unit",
        default=dict,
        keys=("dt", "format", "group", "length_unit", "n_atoms"),
    )
    salvage: bool = option(
        "convert the complete frames of a truncated source", "--salvage", False, append=True
    )


@dataclass(frozen=True, kw_only=True)
class Selection(FrameOptions):
    """Frames and atoms that are kept, and what is done to them.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import XTC
    >>> mdio.convert(XTC, "few.zarr", selection=mdio.Selection(dt_ps=500, end_ps=600)).n_frames
    2
    """

    select: selection.AtomSelection | None = option(
        "keep these atoms only", "--select SEL", named=True
    )
    groups: Mapping[str, selection.AtomSelection] = option(
        "store these atoms a second time, on their own, for analyses that need no others (zarr, "
        "h5md)",
        "--group NAME=SEL",
        dict,
        kind="group",
        named=True,
    )

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Mapping):
            raise PlanError(
                f"groups are {self.groups!r}; give a dict of names and selections, such as "
                '{"ca": "name CA"}'
            )
        groups = {name: _selection_as_array(value) for name, value in self.groups.items()}
        object.__setattr__(self, "groups", groups)
        for name in ("select", "center", "fit_select"):
            object.__setattr__(self, name, _selection_as_array(getattr(self, name)))


def _selection_as_array(value: Any) -> Any:
    """Return a choice of atoms as an array; None, texts and mappings as they are."""
    return value if isinstance(value, str | Mapping | None) else atoms_to_array(value)


@dataclass(frozen=True, kw_only=True)
class Storage(StorageOptions):
    """Options of storing the output.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import XTC
    >>> mdio.convert(XTC, "md.segments", storage=mdio.Storage(segments=5)).plan.segment_frames
    (2, 2, 2, 2, 2)
    """

    to: str | None = option(
        "layout, whatever the suffix of OUT",
        "--to",
        choices=writable_layouts,
        by_name=True,
        append=True,
    )
    topology: bool = option(
        "do not store the topology, neither in the output nor next to it", "--no-topology", True
    )
    compression: str | None = option(
        "lossless: none, gzip, in zarr also lz4 and zstd; for the integers of an XTC bitpack (the "
        "fastest), rigid (the smallest: about two thirds of the XTC, slower to read) or rigid-seek "
        "(rigid for frames and atoms read at random); fast is bitpack, and lz4 for floats. In h5md "
        "bitpack and rigid need a filter where other programs read them. auto, the default in "
        "zarr: for integers rigid where bitpack would need more than 0.9 of the XTC or OUT is on a "
        "network file system; for floats lz4 on a network file system, else none",
        "--compression NAME[:LEVEL]",
        kind="compression",
        named=True,
    )
    pattern: Pattern | None = option(
        "h5md, zarr: how it will be read: single frames in any order, blocks of whole frames "
        "(default), the same selection of neighbouring atoms, time series of each atom",
        "--for",
        choices=PATTERNS,
        layout_specific=True,
    )
    stripe_nbytes: int | None = option(
        "stripe that chunks should fit, and Lustre is asked for (default: what the folder of OUT "
        "has on Lustre, else 1M)",
        "--stripe-size SIZE",
        kind="nbytes",
    )
    progressive: Sequence[tuple[int, int]] = option(
        "stripes that grow with the file on Lustre: 1G:1,-1:8 is one up to 1 GiB, then eight",
        "--progressive END:N,...,-1:N",
        (),
        kind="stripes",
        alone="stripes",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            isinstance(self.precision, float | int | np.floating)
            and 0 < self.precision < MIN_PRECISION
        ):
            raise PlanError(
                f"--precision is {self.precision:g}: float32 holds no such steps; give "
                f"{MIN_PRECISION:g} angstrom or more, or none for unrounded floats"
            )


@dataclass(frozen=True, kw_only=True)
class Running:
    """Options of running a conversion, which do not change the output."""

    direct: str = option(
        "on: large writes go past the page cache (auto: on a disk of this machine, if OUT is "
        "larger than 1 GiB and the disk takes 1 GB/s, or larger than a quarter of the memory that "
        "is available)",
        "--direct",
        "auto",
        choices=("on", "off", "auto"),
    )
    mpio: Literal["independent", "collective"] | None = option(
        "with --mpi: write h5md through parallel HDF5, each rank by itself or in collective writes",
        "--mpio",
        values={"independent": "--mpio", "collective": "--collective"},
        alone="mpio",
        layout_specific=True,
        follow=False,
    )
    hints: Sequence[str] = option(
        "for MPI-IO (cb_nodes=8, romio_cb_write=enable); with --mpio and --collective",
        "--hint KEY=VALUE",
        (),
        kind="several",
    )
    append: bool = option(
        "with --follow: continue an existing OUT (without --follow, mdio append does)",
        "--append",
        False,
        append=True,
    )
    compare_all: bool = option(
        "with append: compare all frames that both have, of large unchanged sources too",
        default=False,
        append=True,
    )
    source_grows: bool = option(
        "the source is being written: a frame that is not whole yet is left out, and not "
        "reported as lost",
        default=False,
        append=True,
    )


OPTIONS = (Sources, Selection, Storage, Running)
OPTION_OBJECTS: Mapping[str, type] = MappingProxyType({"selection": Selection, "storage": Storage})
"""Parts that functions take as one object."""


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """All options of a conversion besides source and output."""

    sources: Sources = field(default_factory=Sources)
    selection: Selection = field(default_factory=Selection)
    storage: Storage = field(default_factory=Storage)
    running: Running = field(default_factory=Running)

    @classmethod
    def of(
        cls, *, selection: Selection | None = None, storage: Storage | None = None, **options: Any
    ) -> ConversionOptions:
        """Return the options of a conversion, given as parts and by name."""
        parts = cls(selection=selection or Selection(), storage=storage or Storage())
        parts = parts.replaced(**options)
        for part in vars(parts).values():
            check_types(part)
        return parts

    def keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `mdio.convert`."""
        keyword_options = (*non_defaults(self.sources), *non_defaults(self.running))
        parts = {name: getattr(self, name) for name in OPTION_OBJECTS}
        parts = {name: part for name, part in parts.items() if any(non_defaults(part))}
        return {declaration.name: value for declaration, value in keyword_options} | parts

    def replaced(self, **options: Any) -> ConversionOptions:
        """Return a copy with these options replaced."""
        parts = {
            name: replace(
                part, **{key: options[key] for key in declared_fields(part) if key in options}
            )
            for name, part in vars(self).items()
        }
        return ConversionOptions(**parts)

    def changed(self) -> list[tuple[Field[Any], Any]]:
        """Return the options that differ from their defaults, and their values."""
        return [pair for part in vars(self).values() for pair in non_defaults(part)]

    def refused_options(self, mode: str) -> list[str]:
        """Return the given options, as users spell them, that `mode` (append, follow) refuses."""
        return [
            spell_option(declaration, value)
            for declaration, value in self.changed()
            if not allowed_with(declaration, mode)
        ]

    def recipe(self) -> dict[str, Any]:
        """Return changed options of sources, selection and storage by name, as plain values."""
        omitted = {declaration.name for declaration in fields(Running)} | {"verify"}
        omitted |= {"stop", "expected_frames"} if self.running.source_grows else set()
        changed = {declaration.name: value for declaration, value in self.changed()}
        values = {
            name: _to_json(
                to_path(value) if name in PATH_OPTIONS and isinstance(value, str) else value
            )
            for name, value in changed.items()
            if name not in omitted
        }
        return {name: value for name, value in values.items() if value is not None}


PATH_OPTIONS = ("top", "fit_reference")
"""Options that are paths of files, absolute in a recipe, which is valid in any folder."""


def _to_json(value: Any) -> Any:
    """Return the value of an option as JSON holds it; the inverse is `_from_json`."""
    if isinstance(value, Mapping):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, np.ndarray):
        return {"runs": runs_from_indices(value)}
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "atoms"):  # a Universe, perhaps not read from a file
        value = to_path(value.filename) if isinstance(value.filename, str | PathLike) else None
    if isinstance(value, PathLike):
        value = to_path(value).absolute()
        return without_passwords(str(value))
    return value


def read_recipe(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the options by name that an output was made with, or that a file of JSON has.

    The file: a JSON object of these options, or what ``mdio convert --dry-run --json`` prints.
    """
    if str(path).endswith(".json"):
        try:
            values = json.loads(to_path(path).read_text())
        except (OSError, ValueError) as error:
            raise SourceError(f"{path}: no recipe as JSON ({error})") from error
    else:
        with open_layout(path) as layout:
            values = layout.manifest
    if not isinstance(values, dict):
        raise SourceError(
            f"{path}: not an output of mdio, and only these have recipes; give one, or a file "
            "NAME.json of mdio convert --dry-run --json"
        )
    recipe = values.get("recipe", {} if "format" in values or "plan" in values else values)
    if not isinstance(recipe, dict):
        raise SourceError(f"{path}: its recipe is {recipe!r}, not options by name; give another")
    for name in recipe.keys() - declared_fields(Sources, Selection, Storage).keys():
        raise PlanError(
            f"{path}: its recipe has {name!r}, which this version of mdio does not have"
        )
    try:
        return {name: _from_json(value) for name, value in recipe.items()}
    except (TypeError, ValueError, ArithmeticError) as error:
        raise SourceError(
            f"{path}: its recipe has runs that are not [start, stop, step] ({error}); mend it"
        ) from error


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"runs"} and isinstance(value["runs"], list):  # and no group of that name
        return indices_from_runs(value["runs"])
    return {name: _from_json(item) for name, item in value.items()}


@dataclass(frozen=True)
class ConvertResult:
    """The result of a conversion."""

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
    resumed_frames: int = 0
    """Frames that an earlier run had stored."""
    found_complete: bool = False
    """Whether the same conversion had made the output before: nothing was written."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the conversion, which are those of its plan."""
        return self.plan.notes

    def __str__(self) -> str:
        """Return the fields and, in lines of their own, the notes."""
        return "\n".join([repr(self), *(f"note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "plan": self.plan.to_json(), "notes": list(self.notes)}
