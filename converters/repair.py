"""Writes damaged units of an output again from its source, or finds which frames are lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mdio.converters.convert import plan_conversion
from mdio.converters.opening import (
    open_again,
    sort_as_recorded,
    source_open_options,
    source_view,
)
from mdio.converters.options import ConversionOptions, Progress
from mdio.converters.selection import can_read
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import CHECKSUM_KEYS, RepairedOutput
from mdio.converters.strategies.resuming import STRIPE_KEYS
from mdio.core.errors import CorruptLayoutError, MdioError, SourceError
from mdio.core.files.locks import State, state_at
from mdio.core.files.publish import link_target, recover
from mdio.core.files.store import AnyPath, Paths
from mdio.layouts.backend import plan_fields
from mdio.layouts.base import Layout
from mdio.layouts.continuation import storage_options_of
from mdio.layouts.manifest import (
    FULL_SYSTEM,
    has_source_integers,
    indices_from_runs,
    runs_from_indices,
)
from mdio.layouts.registry import open_layout, writer_class
from mdio.layouts.units import CONVERT_AGAIN, add_unit_name, check_units
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import NotFinite, OutputMeta
from mdio.parallel.executors import Executor, pool_or_serial

ADVICE = re.compile(f"[;:,] ((put it back|read the segments [^;]*), or )?{CONVERT_AGAIN.pattern}")
"""Advice at the end of messages on damage, which `repair` cuts off: it follows or repeats it."""


@dataclass
class RepairResult:
    """The result of `repair`."""

    out: str
    n_frames: int
    units: int
    """Number of units."""
    bad: list[str] = field(default_factory=list)
    """Problems, one line each."""
    lost_frames: dict[str, list[list[int]]] = field(default_factory=dict)
    """Frames that cannot be read, as runs (start, stop, step), by group; ``trajectory`` is the
    full system. Not looked for where a source is given."""
    repaired: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def repair(
    out: AnyPath,
    against: Paths | None = None,
    *,
    top: AnyPath | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> RepairResult:
    """Write what is damaged or missing in an output again, from the source that it was made from.

    All of the output is checked. What is whole is linked or copied as it lies on disk (shards in a
    store stay where they are), the rest is converted again, with the frames, atoms and options that
    the manifest records; then the repaired output replaces the damaged one in one step. It
    keeps its uuid, and its manifest notes the repair.

    Parameters
    ----------
    out
        An output of mdio (zarr, h5md, segments) that can still be opened.
    against
        Its source, or several files; without it, nothing is written.
    top
        Topology, needed only where the conversion used ``--pbc``, ``--center`` or ``--fit-select``
        and `out` holds none of all atoms, or the source does not store the number of its atoms.
    workers, executor
        As for `mdio.convert`.
    force
        In a store: remove the objects of an interrupted run.
    progress
        Called with (frames, decoded bytes) done since the last call.

    Returns
    -------
    RepairResult
        What was `bad`, whether it was `repaired`, and without a source what is lost.

    Raises
    ------
    CorruptLayoutError
        Too little is left of it to be opened.
    SourceError
        It is no output of mdio, or the source does not give the same checksums; nothing is changed.
    OutputError
        The repaired output cannot be written.

    Examples
    --------
    >>> import mdio, pathlib, tempfile
    >>> from MDAnalysisTests.datafiles import DCD
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "adk.zarr"
    >>> _ = mdio.convert(DCD, out)
    >>> next(out.glob("particles/trajectory/position/value/c.*")).unlink()
    >>> mdio.repair(out, DCD).repaired, mdio.verify(out, DCD).ok
    (True, True)
    """
    out = link_target(out)
    if against is not None:
        recover(out)
    former_state = state_at(out)
    result, bad_units = _check_units(out)
    if not result.bad:
        return result
    if against is None:
        _find_lost_frames(out, result)
        return result
    with pool_or_serial(executor, workers) as pool:
        conversion = _plan_repair(out, former_state, against, top, bad_units, pool)
        try:
            conversion.run(pool, force=force, progress=progress)
        except CorruptLayoutError as error:
            if str(out) not in str(error):
                raise
            raise SourceError(
                f"{out}: frames that a program wrote are damaged, which no source has, so nothing "
                f"was changed ({error}); mdio repair {out} alone lists what is lost"
            ) from error
        except ValueError as error:
            if isinstance(error, MdioError) or not conversion.plan.segment_frames:
                raise
            raise SourceError(
                f"{out}: some segments were copied byte by byte and some encoded, which cannot be "
                f"repaired ({error}); nothing was changed: convert its sources again, or put the "
                "damaged segment back"
            ) from error
    result.repaired = True
    return result


def _check_units(out: AnyPath) -> tuple[RepairResult, list[str]]:
    """Check all units; return the result, and the names of the damaged units."""
    result = RepairResult(str(out), 0, 0)
    problems: list[tuple[str, str]] = []
    try:
        with open_layout(out) as layout:
            _ = layout.info
    except CorruptLayoutError as error:
        problems.append(("manifest and columns", str(error)))
    with open_layout(out, verify=not problems) as layout:
        if layout.manifest is None:
            raise SourceError(
                f"{out}: not an output of mdio, so it has no checksums; take the file from its "
                "source again"
            )
        result.n_frames = layout.info.n_frames
        for name, problem in layout.check():
            result.units += 1
            if problem is not None:
                problems.append((name, problem))
    result.bad += [ADVICE.sub("", add_unit_name(name, problem)) for name, problem in problems]
    return result, [name for name, _ in problems]


def _find_lost_frames(out: Path, result: RepairResult) -> None:
    """Set the result's `lost_frames`, by reading every frame of every group."""
    with open_layout(out, verify=False) as layout:
        groups = [FULL_SYSTEM, *layout.info.groups]
    for group in groups:
        lost_frames: list[int] = []
        edges = np.array([0, result.n_frames])
        with open_layout(out, **({} if group == FULL_SYSTEM else {"group": group})) as layout:
            with suppress(CorruptLayoutError):
                edges = layout.boundaries()
            for start, stop in pairwise(edges.tolist()):
                if not (
                    can_read(partial(layout.read, start, stop)) or _is_intact(out, start, stop)
                ):
                    lost_frames += [
                        frame
                        for frame in range(start, stop)
                        if not can_read(partial(layout.read, frame, frame + 1))
                    ]
        if lost_frames:
            result.lost_frames[group] = runs_from_indices(lost_frames)


def _is_intact(out: Path, start: int, stop: int) -> bool:
    """Return whether a unit of just these frames is intact, though they cannot be read."""
    with open_layout(out, verify=False) as layout:
        units = [
            unit for unit in layout.units() if unit.proves_frames and unit.frames == (start, stop)
        ]
        return any(problem is None for _, problem in check_units(units, None, opens_ahead=False))


def _plan_repair(
    out: Path,
    former_state: State | None,
    against: Paths,
    top: AnyPath | None,
    bad_units: Sequence[str],
    executor: Executor,
) -> Conversion:
    """Plan the conversion that made `out` once more; `bad_units`: names of its damaged units."""
    with open_layout(out, verify=False) as damaged:
        manifest, plan_values = dict(damaged.manifest or {}), plan_fields(damaged)
    if has_source_integers(manifest) and "arrays" in plan_values:
        plan_values["precision_source"] = manifest["precision_source"]
    if "parts" in manifest:
        raise SourceError(
            f"{out}: its frames lie in parts, which are no longer written; convert its source again"
        )
    if not set(CHECKSUM_KEYS) & manifest.keys():
        raise SourceError(
            f"{out}: made by mdio {manifest['mdio_version']}, which kept too few checksums to know "
            "what belongs there; convert its source again"
        )
    paths = sort_as_recorded(damaged, against)
    source = open_again(paths, top, manifest["source"], **source_open_options(damaged))
    try:
        view, joined_source = source_view(damaged, source, top)
        if has_source_integers(manifest) and not source.info.xtc_integers:
            raise SourceError(
                f"{source.path}: holds floats, but {out} the integers of an XTC; give that XTC"
            )
        meta = _repaired_meta(manifest, source, view, bad_units)
        with suppress(CorruptLayoutError):
            meta = replace(meta, frame_data=damaged.frame_data())
        with suppress(CorruptLayoutError):
            meta = replace(meta, topology=damaged.topology())
        return plan_conversion(
            joined_source,
            paths,
            out,
            manifest["layout"],
            _conversion_options(manifest, plan_values, view, top),
            executor,
            frames=view.frames,
            repaired=RepairedOutput(damaged, meta, manifest, plan_values),
            former_state=former_state,
        )
    except BaseException:
        source.close()
        raise


def _conversion_options(
    manifest: dict[str, Any], plan_values: dict[str, Any], view: ViewLayout, top: AnyPath | None
) -> ConversionOptions:
    atoms = np.arange(view.source.info.n_atoms) if view.atoms is None else view.atoms
    groups = {
        name: atoms[indices_from_runs(runs)] for name, runs in manifest["group_atoms"].items()
    }
    segments = manifest.get("segments")
    precision = manifest.get("precision")
    if has_source_integers(manifest) and "arrays" not in plan_values:
        precision = None  # segments take it from their source
    if manifest.get("precision_source", "unknown") is None:
        precision = None  # it was not requested: bytes were copied, or the format has no other
    packs_integers = writer_class(manifest["layout"]).facts.packs_integers
    if precision is None and packs_integers and not has_source_integers(manifest):
        precision = "none"  # or it would get the integers of an XTC
    return ConversionOptions.of(
        top=top,
        select=view.atoms,
        groups=groups,
        precision=precision,
        segments=len(segments) if segments else None,
        **storage_options_of(manifest, plan_values),
        **(manifest["source"].get("transformed") or {}),
    )


def _repaired_meta(
    manifest: dict[str, Any], source: Layout, view: ViewLayout, bad_units: Sequence[str]
) -> OutputMeta:
    """Return the metadata of the output, with a record of the repair."""
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "units": list(bad_units),
        "source": str(source.path),
    }
    striping = manifest["stripe"]
    not_finite = manifest.get("not_finite")
    return OutputMeta(
        uuid=manifest["uuid"],
        created=manifest["created"],
        source=manifest["source"],
        dt_ps=manifest["dt_ps"],
        frames=manifest["frames"],
        atoms=view.atoms,
        groups={name: indices_from_runs(runs) for name, runs in manifest["group_atoms"].items()},
        striping={key: value for key, value in striping.items() if key not in STRIPE_KEYS},
        not_finite=None if not_finite is None else NotFinite(**not_finite),
        repaired=[*manifest.get("repaired", []), record],
        recipe=manifest.get("recipe"),
    )
