"""The contract of a kernel, a computation for each frame; all kernels by name."""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from inspect import signature
from numbers import Real
from pathlib import Path
from reprlib import repr as short_repr
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.reducers import Reducer, Stack, check_reducer
from mdio.analysis.system import System
from mdio.core.blocks import block_name
from mdio.core.errors import BlockError, PlanError, error_text
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock, absent_frames, is_masked
from mdio.core.options import call_factory
from mdio.core.signals import raise_received_signal
from mdio.core.words import did_you_mean, list_text
from mdio.layouts.base import atoms_to_array
from mdio.layouts.registry import load_class

if TYPE_CHECKING:
    from mdio.layouts.cut_molecules import CutMoleculeFinder, NoCellFinder, NoPositionsFinder


BlockFunction = Callable[[FrameBlock], NDArray[Any]]
"""Takes the frames of a block, and returns an array with one row per frame."""


def field_names(fields: Any) -> tuple[str, ...]:
    """Return names of per-atom arrays as a tuple; a text may have several, with commas."""
    names = fields.split(",") if isinstance(fields, str) else fields
    if not isinstance(names, Collection) or not names or not {*names} <= {*FIELDS}:
        raise PlanError(f"the fields are {fields!r}; choose from {', '.join(FIELDS)}")
    return tuple(names)


def _plain_names(
    attribute: str, names: Any, types: tuple[type, ...], expected: str
) -> Sequence[Any]:
    """Return the names of columns or rows, any iterable with an order, as a tuple; () for None.

    A list stays one, with which users compare it.
    """
    if names is None:
        return ()
    is_unordered = isinstance(names, str | bytes | set | frozenset | Mapping)
    if is_unordered or not isinstance(names, Iterable):
        raise PlanError(f"{attribute} is {short_repr(names)}; give a list of {expected}")
    name_list = [*names]
    if not all(issubclass(name_type, types) for name_type in {*map(type, name_list)}):
        invalid = next(name for name in name_list if not isinstance(name, types))
        raise PlanError(f"{attribute} has {short_repr(invalid)} in it; give a list of {expected}")
    if str in types:
        name_list = [*map(str, name_list)]
    return name_list if isinstance(names, list) else tuple(name_list)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel prepared for its system, as it is sent to the workers.

    Parameters
    ----------
    function
        Called with blocks of just `atoms`; pickles.
    atoms
        Indices into the layout's atoms, the only ones that are read; None = all.
    reducer
        How rows become the result; by default one row per frame.
    fields
        Per-atom arrays that it reads, besides those that its kernel's `fields` names.
    labels
        Names of the columns of its rows, where they have any; here and below any iterable with an
        order, such as a list or an array. Names are texts or numbers; None is none.
    quantity
        What all columns are, with the unit as in labels (``distance_angstrom``), if they do not say
        so. Summaries give a circular mean where it, or the label, ends in ``_degrees`` or
        ``_radians``.
    row_labels
        Names of the rows of the result, where these are not frames. Labels that fit these rows, and
        not the columns, as where a mean over frames is left of each column, name them as well.
    row_residues
        Numbers of the residues of these rows, where they are atoms.

    Examples
    --------
    >>> import mdio
    >>> mdio.Prepared(len, atoms=[2, 0]).atoms.tolist()
    [2, 0]
    """

    function: BlockFunction
    atoms: AtomIndices | None = None
    reducer: Reducer = field(default_factory=Stack)
    fields: tuple[str, ...] = ("positions",)
    labels: Sequence[str] = ()
    quantity: str = ""
    row_labels: Sequence[str] = ()
    row_residues: Sequence[int] = ()
    fills: bool = False
    """Whether the function also takes ``out``, rows to fill and return instead of new ones."""
    is_direct: bool = False
    """Whether no periodic images are taken, though the kernel can, so that molecules have to be
    whole."""
    doubt_finder: CutMoleculeFinder | NoCellFinder | NoPositionsFinder | None = None
    """Finds frames whose values are in doubt: the box cuts molecules there, or there is none, or
    there are no positions."""
    quiet: bool = False
    """Whether the notes of a `SeriesKernel` are left out, since they would be wrong."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise PlanError(
                f"the function is {self.function!r}; give one that takes a FrameBlock and returns "
                "an array with one row per frame"
            )
        check_reducer(self.reducer)
        object.__setattr__(self, "fields", field_names(self.fields))
        for attribute, types, expected in (
            ("labels", (str, Real), "texts or numbers, one for each column"),
            ("row_labels", (str, Real), "texts or numbers, one for each row of the result"),
            ("row_residues", (Real,), "numbers, one for each row of the result"),
        ):
            names = _plain_names(attribute, getattr(self, attribute), types, expected)
            object.__setattr__(self, attribute, names)
        if not isinstance(self.quantity, str | None):
            raise PlanError(
                f"the quantity is {self.quantity!r}; give a text with the unit, such as "
                "'distance_angstrom'"
            )
        object.__setattr__(self, "quantity", str(self.quantity or ""))
        if self.atoms is not None:  # a list is as good
            atoms = atoms_to_array(self.atoms)
            if atoms.size and atoms.dtype.kind not in "iu":
                raise PlanError(f"atoms are {self.atoms!r}; give indices or a mask")
            object.__setattr__(self, "atoms", atoms.astype(np.int64, copy=False))


class Kernel(ABC):
    """A computation: its parameters, without any data of the trajectory.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> class FirstX(mdio.Kernel):
    ...     def prepare(self, system):
    ...         return mdio.Prepared(lambda block: block.positions[:, 0, 0], atoms=[0])
    >>> mdio.analyze(DCD, kernel=FirstX()).values.shape
    (98,)
    """

    fields: tuple[str, ...] = ("positions",)
    """Per-atom arrays that it reads, such as ``("velocities",)``; positions are always there."""
    needs_whole: ClassVar[bool] = False
    """Whether molecules that the box cuts make its values wrong."""

    @abstractmethod
    def prepare(self, system: System) -> Prepared:
        """Find the atoms, the reference and whatever else all frames share.

        Raises
        ------
        PlanError, SourceError
            A selection or topology that does not fit.
        """


def prepared_for(system: System, kernel: Kernel) -> Prepared:
    """Return a kernel prepared for its system, with the fields that either of them names."""
    prepared = kernel.prepare(system)
    if not isinstance(prepared, Prepared):
        raise TypeError(f"it returned {prepared!r}, which is no Prepared")
    fields = {*prepared.fields, *field_names(kernel.fields)}
    return replace(prepared, fields=tuple(name for name in FIELDS if name in fields))


class SeriesKernel(Kernel):
    """A kernel that gets all frames of some atoms at a time, and adds up their results.

    `prepare` chooses the atoms and names the columns.
    """

    @abstractmethod
    def sums(self, block: FrameBlock) -> NDArray[np.float64]:
        """Return numbers that add up over batches of atoms; `block` has all frames of one."""

    @abstractmethod
    def rows(
        self, sums: NDArray[np.float64], time: NDArray[np.float64], n_atoms: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[Any]]:
        """Return lags in frames, the same in ps, and their values, from the sums over all atoms.

        `time`: of all frames, ps.
        """

    def notes(self, block: FrameBlock) -> tuple[str, ...]:  # noqa: ARG002
        """Return notes for the user on the frames of a batch."""
        return ()


@dataclass(frozen=True)
class UserKernel(Kernel):
    """A user's own function over blocks of frames.

    Parameters
    ----------
    function
        Takes a `FrameBlock`, returns an array with one row per frame. The block's arrays are used
        again for the next block: what is returned is copied if it is a view of them, what the
        function keeps beyond the call it must copy itself.
    select
        The atoms that the block has: a selection of MDAnalysis, an AtomGroup or indices; all by
        default.
    fields
        Which per-atom arrays the block has, where the trajectory has them: ``"velocities"``, or
        several. Velocities and forces are None otherwise; positions are always there.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import TRR
    >>> speeds = mdio.UserKernel(lambda block: block.velocities[:, 0], fields="velocities")
    >>> mdio.analyze(TRR, kernel=speeds).values.shape
    (10, 3)
    """

    function: BlockFunction
    select: str | None = None
    fields: tuple[str, ...] = ("positions",)

    def __post_init__(self) -> None:
        check_takes(
            self.function,
            1,
            "a function over blocks is called as f(block); for one with options, derive a class "
            "from mdio.Kernel, or give its other arguments with functools.partial",
        )
        object.__setattr__(self, "fields", field_names(self.fields))

    def prepare(self, system: System) -> Prepared:
        return Prepared(self.function, system.select(self.select), fields=self.fields)


def import_callable(address: str) -> Callable[..., Any]:
    """Import the function or class that ``module:name`` names, also from the working folder.

    The folder comes last on the path of imports, so that no file in it takes the place of a
    library. It stays there: workers that are started later import the module themselves.
    """
    module_name, _, name = address.partition(":")
    module_name = module_name.removesuffix(".py")  # as people name a file
    if not all(part.isidentifier() for part in module_name.split(".")) or not name:
        parts = Path(module_name).parts  # of a path, as one completes it in a shell
        is_path = bool(parts and name) and all(part.isidentifier() for part in parts)
        example = f"{'.'.join(parts)}:{name}" if is_path else "mykernels:end_to_end"
        raise PlanError(f"{address}: a module and a function in it are expected, as in {example}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = import_module(module_name)
    except SystemExit as error:
        raise_received_signal()
        raise PlanError(
            f"{address}: importing it called sys.exit({error.code!r}); put what the module does as "
            "a program under: if __name__ == '__main__'"
        ) from error
    except Exception as error:  # importing runs the user's own code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise PlanError(f"{address}: importing it failed: {error_text(error)}") from error
        raise PlanError(
            f"{address}: cannot import {module_name!r} ({error}); put {module_name}.py into "
            "this folder or on PYTHONPATH"
        ) from error
    value = getattr(module, name, None)
    if value is None:
        raise PlanError(f"{address}: {_missing_function(module, name)}")
    if not callable(value):
        raise PlanError(f"{address}: {name!r} is not a function")
    module_path = Path(folder, *module_name.split(".")).with_suffix(".py")
    imported = Path(getattr(module, "__file__", None) or module_path)
    if module_path.is_file() and imported.is_file() and not module_path.samefile(imported):
        warnings.warn(
            f"{address} is in {imported}, and not in {module_path}: give the file another name",
            stacklevel=2,
        )
    function: Callable[..., Any] = value
    return function


def _missing_function(module: ModuleType, name: str) -> str:
    """Return a message on a function that a module lacks, with those that it has."""
    path = getattr(module, "__file__", None)
    names = [
        attribute
        for attribute, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and callable(value)
    ]
    message = f"no function {name!r} in {path or 'the built-in module ' + module.__name__}"
    depth = module.__name__.count(".") + hasattr(module, "__path__")
    if path is not None and Path(path).parents[depth] == Path.cwd():
        return f"{message}{did_you_mean(name, names)}; it has {', '.join(names) or 'none'}"
    return f"{message}; if you mean a file in this folder, rename it: a library has the same name"


def runs_of_boxes(
    box: NDArray[np.float32],
) -> Iterator[tuple[int, int, NDArray[np.float32] | None]]:
    """Yield runs of frames with equal boxes, (start, stop, box); None is no box."""
    changes = np.flatnonzero((box[1:] != box[:-1]).any(axis=1)) + 1
    for start, stop in itertools.pairwise([0, *changes.tolist(), len(box)]):
        yield start, stop, box[start] if box[start].any() else None


def kernel_name(function: BlockFunction) -> str:
    """Return the name of a kernel's function, for messages."""
    wrapped_function = function.func if isinstance(function, partial) else function
    return str(getattr(wrapped_function, "__name__", type(wrapped_function).__name__))


def check_takes(function: Callable[..., Any], n_arguments: int, call: str) -> None:
    """Raise PlanError if a function does not take `n_arguments`; `call` shows how it is called."""
    try:
        parameters = signature(function, follow_wrapped=False)
    except ValueError:  # some builtins have none
        return
    try:
        parameters.bind(*range(n_arguments))
    except TypeError as error:
        raise PlanError(f"{kernel_name(function)} takes {parameters}; {call}") from error


def check_rows(
    rows: Any, run: range, function: BlockFunction, label: str | None = None
) -> NDArray[Any]:
    """Return `rows` as an array if there is one for each frame of `run`; `label`: for messages."""
    if is_masked(rows):
        raise BlockError(
            f"{label or block_name(run)}: {kernel_name(function)} returned an array with masked "
            "values, whose mask would be lost; return rows.filled(np.nan)"
        )
    try:
        array = np.asarray(rows)
    except ValueError as error:  # lists of different lengths
        raise BlockError(
            f"{label or block_name(run)}: {kernel_name(function)} returned a "
            f"{type(rows).__name__} that makes no array ({str(error).partition('.')[0]}); expected "
            "rows of one length"
        ) from None
    if array.ndim < 1 or len(array) != len(run) or array.dtype == object:
        description = f"an array of shape {array.shape}"
        if array.dtype == object:
            kind = f"{type(rows).__name__}, which is not an array of numbers,"
            description = "None" if rows is None else kind
        raise BlockError(
            f"{label or block_name(run)}: {kernel_name(function)} returned {description} for "
            f"{len(run)} frames; expected one row per frame, that is shape ({len(run)}, ...), such "
            "as block.positions[:, 0]"
        )
    return array


def check_positions(block: FrameBlock) -> None:
    """Raise ValueError if a frame lacks positions, where its atoms would count as far away."""
    if absent_frames(block.positions).any():
        raise ValueError(
            "a frame has no positions; choose frames that have them (--step, --dt, in Python: "
            "frames=)"
        )


def check_switch(name: str, value: Any) -> None:
    """Raise PlanError if the option `name` is neither True nor False: any text would be true."""
    if value not in (True, False):
        raise PlanError(f"{name} is {value!r}; give True or False")


KERNELS = {
    "rmsd": "geometry:RMSD",
    "dihedrals": "dihedrals:Dihedrals",
    "pairs": "geometry:Pairs",
    "rgyr": "geometry:RadiusOfGyration",
    "rmsf": "geometry:RMSF",
    "msd": "correlations:MSD",
    "vacf": "correlations:VACF",
    "reference-distances": "geometry:ReferenceDistances",
}
"""Classes in this folder by their names on the command line, imported when they are needed."""


def load_kernel(name: str) -> type[Kernel]:
    """Import the class of one of `KERNELS`."""
    return cast(type[Kernel], load_class(f"mdio.analysis.kernels.{KERNELS[name]}"))


def describe_kernels(**_: Any) -> dict[str, str]:
    """Return a description of each of `KERNELS`, for the completion of shells."""
    descriptions = {name: load_kernel(name).__doc__ or "" for name in KERNELS}
    return {name: re.split("[:\n]", text)[0] for name, text in descriptions.items()}


@cache
def other_kernels() -> tuple[Mapping[str, Callable[..., Kernel]], Mapping[str, str]]:
    """Return kernels of other distributions by name, and why others cannot be used."""
    from mdio.core.plug_ins import find_plug_ins  # seldom needed

    problems: dict[str, str] = {}
    to_kernel = partial(partial, UserKernel)
    kernels = find_plug_ins("mdio.kernels", Kernel, KERNELS, to_kernel, problems)  # type: ignore[type-abstract]
    return kernels, problems


FORMER_NAMES = {"distances": "reference-distances"}
"""Former names of kernels, which are accepted with a warning, and the present ones."""


def find_kernel(name: str) -> Callable[..., Kernel]:
    """Return the class that the command line calls `name`, or one at ``module:Class``.

    A function, ``module:function``, becomes a `UserKernel`.
    """
    if ":" in name:
        imported: Any = import_callable(name)
        if isinstance(imported, type):
            if issubclass(imported, Kernel):
                return imported
            advice = "derive it from mdio.Kernel, or name a function"
            if hasattr(imported, "reduce"):
                advice = f"programs with map and reduce run by mdio mapreduce {name}"
            raise PlanError(f"{name}: the class {imported.__name__} is no kernel; {advice}")
        UserKernel(imported)  # refuses one with other arguments, before they pass for options
        return partial(UserKernel, imported)
    if name in FORMER_NAMES:
        former_name, name = name, FORMER_NAMES[name]
        warnings.warn(
            f"the kernel {former_name!r} is called {name!r} now: mean distances to the atoms of "
            "the reference frame; distances within a frame are 'pairs'",
            DeprecationWarning,
            stacklevel=2,
        )
    if name in KERNELS:
        return load_kernel(name)
    other_names, problems = other_kernels()
    if name in other_names:
        return other_names[name]
    if name in problems:
        raise PlanError(f"there is no kernel {name!r}: {problems[name]}")
    all_names = [*KERNELS, *other_names]
    names = ", ".join(all_names)
    if Path(name).suffix == ".py" and Path(name).exists():
        raise PlanError(f"{name}: which function in it? write {Path(name).stem}:FUNCTION")
    if Path(name).exists():
        raise PlanError(
            f"{name} is a file, not a kernel; name the kernel first, one of {names}, or "
            "module:function"
        )
    raise PlanError(
        f"there is no kernel {name!r}{did_you_mean(name, all_names)}; choose one of {names}, or "
        "name your own as module:function; analyses of MDAnalysis and its kits run on "
        "mda.Universe(TOP, FILE, format='MDIO') (docs/howto.md)"
    )


def kernel_options(arguments: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the options that a kernel, ``arguments["kernel"]``, is made with."""
    kernel = arguments.get("kernel")
    if isinstance(kernel, str):
        return signature(find_kernel(kernel)).parameters
    if isinstance(kernel, Kernel | type):
        return signature(kernel if isinstance(kernel, type) else type(kernel)).parameters
    return ("fields",)


def make_kernel(kernel: Kernel | BlockFunction | str, select: Any = None, **options: Any) -> Kernel:
    """Return `kernel`, or make one of a name or a function, a selection of atoms and `options`."""
    if select is not None:
        options["select"] = select
    if isinstance(kernel, str):
        return call_factory(find_kernel(kernel), kernel, options)
    if isinstance(kernel, Kernel):
        if options:
            text = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise PlanError(
                f"a kernel brings its own options; write {type(kernel).__name__}({text}) and leave "
                f"out {list_text([f'{name}=' for name in options])}"
            )
        return kernel
    if isinstance(kernel, type):
        raise PlanError(
            f"the kernel is the class {kernel.__name__}; call it: kernel={kernel.__name__}(...)"
        )
    if not callable(kernel):
        raise PlanError(
            f"the kernel is {kernel!r}; give a kernel of mdio or its name, or a function that "
            "takes a FrameBlock and returns an array with one row per frame"
        )
    return UserKernel(kernel, **options)
