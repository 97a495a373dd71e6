"""Converts trajectories of one system into one output, side by side, and back into files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any

from mdio._version import __version__
from mdio.converters.convert import convert
from mdio.converters.options import (
    OPTION_OBJECTS,
    OPTIONS,
    ConversionOptions,
    ConvertResult,
    Progress,
)
from mdio.converters.selection import ParsedTopology
from mdio.core.errors import PlanError, SourceError
from mdio.core.files.fingerprint import fingerprint
from mdio.core.files.journal import MEMBERS_KEY, Journal, Record
from mdio.core.files.publish import publish
from mdio.core.files.store import AnyPath, Paths, path_list, require_disk, to_path
from mdio.core.options import takes_options
from mdio.core.signals import raise_received_signal
from mdio.layouts.chunked.own import EnsembleWriter
from mdio.layouts.registry import layout_name_for_output, load_class, refuse_parts, writer_class
from mdio.layouts.views.opening import check_labels, ensemble_members
from mdio.parallel.executors import (
    REPLICAS_PER_WORKER,
    Executor,
    Serial,
    choose_executor,
    has_enough_replicas,
    results_of,
)

MAX_FILES_WITHOUT_NOTE = 1000
"""Files of an output above which a note recommends a layout with fewer."""


@takes_options(*OPTIONS, objects=OPTION_OBJECTS)
def convert_ensemble(
    sources: Mapping[str, Paths],
    out: AnyPath,
    *,
    executor: Executor | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, ConvertResult]:
    """Convert several trajectories of one system into one output, each in its own group.

    Parameters
    ----------
    sources
        By label, as for `mdio.convert`. Each has frames, times and steps of its own.
    out
        Folder of the output, ``NAME.zarr`` or ``NAME.h5md``. ``NAME.zarr/LABEL`` and
        ``NAME.h5md/LABEL.h5md`` are whole outputs by themselves.
    executor, force, progress
        As for `mdio.convert`.
    resume
        As for `mdio.convert`: whole trajectories, and frames of others, that an earlier run has
        stored are kept.
    **options
        As for `mdio.convert`, the same for all.

    Returns
    -------
    dict
        What was done, by label.

    Raises
    ------
    PlanError
        Labels that cannot be names of groups, or another layout.
    SourceError
        A source is missing, damaged, or has another number of atoms than the first.
    OutputError
        The output exists already or cannot be written.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> _ = mdio.convert_ensemble({"a": DCD, "b": DCD}, "both.zarr", top=PSF, step=10)
    >>> mdio.open("both.zarr", group="b").info.n_frames
    10
    >>> mdio.analyze("both.zarr", kernel=mdio.RMSD("name CA")).label[[0, -1]].tolist()
    ['a', 'b']
    """
    executor = choose_executor(executor, None)
    require_disk(out, "ensembles are written to disk; convert each trajectory by itself")
    conversion_options = ConversionOptions.of(**options)
    if conversion_options.running.append:
        raise PlanError(f"{out}: nothing is added to an ensemble; append to its trajectories")
    layout = layout_name_for_output(out, conversion_options.storage.to)
    class_address = writer_class(layout).facts.ensemble
    if class_address is None:
        raise PlanError(
            f"{out}: {layout} cannot hold an ensemble; name the output NAME.zarr or NAME.h5md"
        )
    if not isinstance(sources, Mapping) or not sources:
        raise PlanError(f"the trajectories are {sources!r}; give a dict of labels and paths")
    check_labels(list(sources))
    files = {label: path_list(paths) for label, paths in sources.items()}
    ensemble_class: type[EnsembleWriter] = load_class(class_address)
    keywords = conversion_options.replaced(to=layout).keywords()
    if resume and not force:
        existing = executor.from_owner(partial(ensemble_members, out))
        if list(existing) == list(sources):  # each is complete, or refused: its name is taken
            members = [(label, paths, existing[label]) for label, paths in sources.items()]
            return _convert_each(members, keywords | {"resume": True}, executor, progress)
        if existing:
            raise PlanError(
                f"{out}: holds the trajectories {', '.join(existing)}, but {', '.join(sources)} "
                "are given; give those (trajectories are not added to an ensemble), choose another "
                "name, or use --force"
            )
    stack = ExitStack()
    n_atoms: dict[str, int] = {}
    ensemble: EnsembleWriter
    journal: Journal

    def begin() -> tuple[list[Member], str]:
        nonlocal ensemble, journal
        identity = _identity(files, conversion_options, layout)
        if force:
            refuse_parts(Path(out))
        temporary = stack.enter_context(
            publish(
                out,
                force=force,
                sources=[*chain(*files.values())],
                identity=identity,
                resume=resume,
            )
        )
        continues = temporary.exists()
        ensemble = ensemble_class(temporary, Path(out))
        members = [(label, paths, ensemble.member_path(label)) for label, paths in sources.items()]
        first_record = {
            "of": identity,
            "n_frames": 0,
            "uuid": ensemble.uuid,
            MEMBERS_KEY: [path.name for *_, path in members],
        }
        journal = stack.enter_context(Journal(temporary, first_record))
        ensemble.uuid = journal.values["uuid"]
        if not continues:
            ensemble.create()
        # Force replaces what a lost worker has left of a trajectory.
        return members, "resume" if continues else "force"

    def on_converted(label: str, result: ConvertResult) -> None:
        first, n_first = next(iter(n_atoms.items()), (label, result.n_atoms))
        if result.n_atoms != n_first:
            raise SourceError(
                f"{label}: {result.n_atoms} atoms, but {first} has {n_first}; an ensemble is of "
                "one system"
            )
        # These records are not read: by them other machines see that this run is alive.
        journal.add(Record(len(n_atoms), result.n_frames, {"label": label}), ())
        n_atoms[label] = result.n_atoms

    def end() -> dict[str, ConvertResult]:
        journal.close()
        ensemble.write_manifest(list(sources))
        final_paths = {label: ensemble.member_path(label, final=True) for label in sources}
        stack.close()
        n_files, notes = sum(len(names) for *_, names in os.walk(out)), []
        if n_files > max(MAX_FILES_WITHOUT_NOTE, len(sources) + 1):
            h5md = Path(out).with_suffix(".h5md")
            notes = [
                f"files: {out} has {n_files:,}; where their number is limited, {h5md} would have "
                f"{len(sources) + 1:,} (add --compression small)"
            ]
        return {
            label: _with_final_name(results[label], path, notes)
            for label, path in final_paths.items()
        }

    with stack:
        members, mode = executor.from_owner(begin)
        results = _convert_each(members, keywords | {mode: True}, executor, progress, on_converted)
        return executor.from_owner(end)


def _with_final_name(result: ConvertResult, path: Path, notes: Sequence[str]) -> ConvertResult:
    """Return the result of a conversion with the final `path` of its output, and more notes."""
    topologies = tuple(str(path.with_name(Path(top).name)) for top in result.topologies)
    plan = result.plan.replace(notes=(*result.notes, *notes))
    return replace(result, out=str(path), topologies=topologies, plan=plan)


def _identity(
    files: Mapping[str, Sequence[AnyPath]], options: ConversionOptions, layout: str
) -> dict[str, Any]:
    """Return plain values that must be equal for an ensemble to be resumed."""
    top = options.sources.top
    reference = (options.selection.transformation(None) or {}).get("fit_reference")
    values = {
        "version of mdio": __version__,
        "layout": layout,
        "sources": {
            label: [fingerprint(to_path(path)) for path in paths] for label, paths in files.items()
        },
        "topology": fingerprint(Path(top)) if isinstance(top, str | PathLike) else None,
        "reference": fingerprint(Path(reference)) if isinstance(reference, str) else None,
        "options": options.recipe(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


Member = tuple[str, Paths, Path]
"""Label, sources and output."""


@dataclass(frozen=True, slots=True)
class MemberWork:
    """Converts trajectories serially, each by itself, with the same options."""

    options: dict[str, Any]

    def __call__(self, member: Member) -> tuple[ConvertResult, int, int]:
        """Return the result, frames and decoded bytes."""
        _, paths, out = member
        progress_calls: list[tuple[int, int]] = []
        result = convert(
            paths, out, progress=lambda *counts: progress_calls.append(counts), **self.options
        )
        return (
            result,
            sum(n_frames for n_frames, _ in progress_calls),
            sum(nbytes for _, nbytes in progress_calls),
        )


def _convert_each(
    members: Sequence[Member],
    options: dict[str, Any],
    executor: Executor,
    progress: Progress | None,
    on_converted: Callable[[str, ConvertResult], None] | None = None,
) -> dict[str, ConvertResult]:
    """Convert trajectories, and return the results by label.

    Many trajectories are converted each by one worker; few, and those that parallel HDF5 writes,
    one after the other by all workers. Before processes share the work, the first trajectory is
    converted here, so that forked workers begin with the modules that this imports.

    `on_converted`: called by the owner with each label and result.
    """
    results: dict[str, ConvertResult] = {}
    top = options.get("top")
    if isinstance(top, str | PathLike):
        options = {**options, "top": ParsedTopology(top)}
    uses_mpi, n_members = executor.ranks is not None, len(members)
    one_worker_per_member = uses_mpi and n_members >= REPLICAS_PER_WORKER * executor.n_workers
    one_worker_per_member = one_worker_per_member or has_enough_replicas(executor, n_members, [top])
    one_worker_per_member = one_worker_per_member and options.get("mpio") is None
    n_sequential = n_members if not one_worker_per_member else 0 if uses_mpi else 1
    sequential_executor = Serial() if one_worker_per_member else executor
    for label, paths, out in members[:n_sequential]:
        result = convert(paths, out, executor=sequential_executor, progress=progress, **options)
        results[label] = result
        if on_converted is not None:
            executor.from_owner(partial(on_converted, label, result))
    remaining = members[n_sequential:]
    if not remaining:
        return results
    outcomes: Any = results_of(executor, MemberWork(options), remaining, itemgetter(0))
    with closing(outcomes):  # ends workers before what they write is removed
        for number, (result, n_frames, nbytes) in outcomes:
            raise_received_signal()
            if executor.is_owner:
                if progress is not None:
                    progress(n_frames, nbytes)
                if on_converted is not None:
                    on_converted(remaining[number][0], result)
            results[remaining[number][0]] = result
    return executor.from_owner(lambda: results)


@takes_options(*OPTIONS, objects=OPTION_OBJECTS)
def convert_members(
    source: AnyPath,
    out: str,
    *,
    executor: Executor | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, ConvertResult]:
    """Convert each trajectory of an ensemble into its own output.

    Parameters
    ----------
    source
        The ensemble.
    out
        Names of the outputs, in which ``{label}`` stands for the label: ``back/{label}.xtc``.
    executor, force, resume, progress, **options
        As for `mdio.convert`.

    Raises
    ------
    PlanError
        `source` is no ensemble, or `out` has no place for the label; and as `mdio.convert`.
    """
    members = ensemble_members(source)
    if not members or "{label}" not in out:
        raise PlanError(
            f"{source} -> {out}: give an ensemble, and names with a place for its labels, such as "
            "'back/{label}.xtc'"
        )
    conversions = [
        (label, path, to_path(out.replace("{label}", label))) for label, path in members.items()
    ]
    options |= {"force": force, "resume": resume}
    results = _convert_each(conversions, options, choose_executor(executor, None), progress)
    return {label: results[label] for label in members}
