"""Verifies an output: its checksums, and its frames against the source's.

Workers check runs of units, and compare runs of blocks with the source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.opening import (
    add_writer_frames,
    count_excluded_frames,
    describe_missing_frames,
    open_again,
    open_or_salvage,
    paths_by_contents,
    recorded_files,
    sort_as_recorded,
    source_open_options,
    source_view,
)
from mdio.converters.options import Progress
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.fingerprint import content_of, fingerprint
from mdio.core.files.store import AnyPath, Paths, path_list, to_path
from mdio.core.frames import FrameBlock
from mdio.core.words import MAX_RUNS, frames_text, runs_text
from mdio.layouts.base import Layout, container_format
from mdio.layouts.manifest import has_source_integers, runs_from_indices
from mdio.layouts.registry import layout_class, open_layout
from mdio.layouts.units import UnitFilter, add_repair_hint, add_unit_name
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.view import ViewLayout
from mdio.parallel.executors import Executor, choose_executor, results_of

Bools = NDArray[np.bool_]
Problem = tuple[Bools, str]
"""A mask of the frames of a block that differ, (F,), and a text that says how."""


def compare_blocks(
    block: FrameBlock,
    source_block: FrameBlock,
    tolerances: Mapping[str, float],
    *,
    columns: Sequence[str],
    rounded: Sequence[str],
    rounded_source: bool = False,
    is_other_file: bool = False,
) -> tuple[float, list[Problem]]:
    """Return the largest difference of a coordinate (angstrom), and a list of problems.

    `block`, `source_block`: the same frames and atoms, of the output and of its source.
    `tolerances`: by how much each field may differ besides rounding; by default 0. `columns`: those
    of box, time and step that the output keeps exactly. `rounded`: fields whose float32 the format
    rounds. `is_other_file`: whether the source is another file than the output was made of, so that
    boxes and times may differ by the rounding of float32; and with `rounded_source` all fields.
    """
    largest_difference = 0.0
    problems: list[Problem] = []
    for name, values in block.present().items():
        source_values = getattr(source_block, name)
        if source_values is None:
            problems.append((np.ones(block.n_frames, bool), f"the source has no {name}"))
            continue
        tolerance = tolerances.get(name, 0.0)
        difference, differs = _compare(
            values, source_values, tolerance, rounded=rounded_source or name in rounded
        )
        if name == "positions":
            largest_difference = difference
        if differs.any():
            unit = " angstrom" if name == "positions" else ""
            text = f" by up to {difference:g}{unit}, {tolerance:g} is allowed"
            problems.append((differs, f"{name} differ{text if tolerance or unit else ''}"))
    for name in columns:
        values, source_values = getattr(block, name), getattr(source_block, name)
        may_round = is_other_file and name != "step"
        dtype = np.float32 if may_round else values.dtype
        _, differs = _compare(
            values.astype(dtype, copy=False),
            source_values.astype(dtype, copy=False),
            0.0,
            rounded=may_round,
        )
        if differs.any():
            difference = np.abs(values.astype(np.float64) - source_values).max(initial=0.0)
            problems.append((differs, f"{name} differs by up to {difference:g}"))
    return largest_difference, problems


def _compare(
    values: NDArray[np.float32],
    source_values: NDArray[np.float32],
    tolerance: float,
    *,
    rounded: bool,
) -> tuple[float, Bools]:
    """Return the largest difference, and for each frame whether any value differs too much.

    Formats with units of their own may round float32 at every step to these and back.
    """
    are_equal = partial(np.array_equal, values, source_values)
    if are_equal() or are_equal(equal_nan=True):  # the latter takes seven times as long
        return 0.0, np.zeros(len(values), bool)
    differs = np.zeros(values.shape, bool)
    finite = np.isfinite(values) & np.isfinite(source_values)
    not_finite, source_not_finite = values[~finite], source_values[~finite]
    differs[~finite] = (not_finite != source_not_finite) & ~(
        np.isnan(not_finite) & np.isnan(source_not_finite)
    )
    differences = np.abs(values[finite].astype(np.float64) - source_values[finite])
    limit: Any = 0.0
    if tolerance or rounded:
        spacing = np.spacing(np.maximum(np.abs(values[finite]), np.abs(source_values[finite])))
        limit = tolerance + spacing * (3 if rounded else 1)
    differs[finite] = differences > limit
    return float(differences.max(initial=0.0)), _any_in_frame(differs)


def _any_in_frame(differs: Bools) -> Bools:
    """Return whether any value of each frame differs, (F,) bool."""
    return np.asarray(differs.any(axis=tuple(range(1, differs.ndim))))


def compare_native_columns(
    block: FrameBlock,
    source_block: FrameBlock,
    times: NDArray[np.float64] | None,
    tolerance_ps: float = 0.0,
    *,
    has_steps: bool,
) -> list[Problem]:
    """Return problems of boxes, times, and steps if they are stored: differences beyond rounding.

    Native formats keep boxes as float32 vectors, and times as float32; boxes that one of the two
    lacks, or that are open along an axis, are not compared.

    `times`: those that frames should have, ps; None = they are not compared. `tolerance_ps`: by how
    much they may differ besides.
    """
    problems: list[Problem] = []
    has_box = (block.box[:, :3] > 0).all(axis=1) & (source_block.box[:, :3] > 0).all(axis=1)
    is_close = np.isclose(block.box, source_block.box, rtol=BOX_ROUNDING, atol=BOX_ROUNDING)
    differs = has_box & _any_in_frame(~is_close)
    if differs.any():
        boxes = block.box[has_box].astype(np.float64)
        difference = np.abs(boxes - source_block.box[has_box]).max(initial=0.0)
        problems.append((differs, f"box differs by up to {difference:g}"))
    if times is not None:
        differences = np.abs(block.time - times)
        spacing = np.spacing(np.abs(times).astype(np.float32))
        differs = differences > TIME_ROUNDING * spacing + tolerance_ps
        if differs.any():
            problems.append((differs, f"time differs by up to {np.nanmax(differences):g}"))
    step_differences = np.abs(block.step - source_block.step)
    if has_steps and step_differences.any():
        text = f"step differs by up to {step_differences.max():g}"
        problems.append((step_differences > 0, text))
    return problems


COLUMNS = "box", "time", "step"
BOX_ROUNDING = 1e-4
"""Relative, and in angstrom and degrees: lengths and angles go through vectors in nm."""
TIME_ROUNDING = 4
"""By how many neighbouring float32 numbers a time may differ."""
UNRECORDED_OPTIONS = (
    "a native file does not record --pbc, --center, --fit or --timestep: if it was made with them, "
    "compare it with a source that was treated alike"
)
UNRECORDED_CHOICE = (
    "; a native file does not say which ones it should have: if it was made with --select, --step "
    "or the like, convert the source so again, and compare it with that"
)
DAMAGE_ADVICE = "take the file from its source again, or convert it with --salvage"
ROUNDING_SHARE = 1e-2
"""Share of the tolerance of evenly spaced times that counts as rounding; more is reported."""
BLOCK_NBYTES = 16 << 20
"""Decoded bytes compared at a time."""
WorkItem = tuple[int, int, int]
"""Number of a layout (-1: compare with the source), first unit or block, one beyond the last."""


@dataclass
class VerifyResult:
    """The result of `verify`."""

    ok: bool = True
    chunks_checked: int = 0
    frames_compared: int = 0
    frames_by_program: int = 0
    """Frames that a program wrote: the source lacks them, so that only checksums are checked."""
    frames_left_out: int = 0
    """Frames of the source that the output was made without, by choice."""
    fields_left_out: tuple[str, ...] = ()
    """Velocities and forces that the source has and the output lacks."""
    times_off_ps: float = 0.0
    """Largest error of times in a format that holds evenly spaced ones only, such as DCD."""
    units: int = 0
    """How many units there are; with a part or a sample fewer are checked."""
    max_abs_diff_angstrom: float = 0.0
    """Largest difference of a coordinate; 0.0 too where nothing was compared."""
    allowed_diff_angstrom: float | None = None
    """Difference that the output's precision allows, besides float32 rounding where a format has
    units of its own (three units in the last place); None if nothing was compared."""
    bad: list[str] = field(default_factory=list)
    """Problems, one line each."""
    has_checksums: bool = True
    """Whether mdio's checksums were there to compare with; not in native files."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without `has_checksums`; numbers of special frames if any are."""
        values = asdict(self)
        del values["has_checksums"]
        for name in ("frames_by_program", "frames_left_out", "fields_left_out", "times_off_ps"):
            if not values[name]:
                del values[name]
        return values

    def add_problem(self, problem: str) -> None:
        """Add a problem."""
        self.ok = False
        self.bad.append(problem)

    def merge(self, other: VerifyResult) -> None:
        """Add the result of another worker."""
        self.ok &= other.ok
        self.has_checksums &= other.has_checksums
        self.units += other.units
        self.chunks_checked += other.chunks_checked
        self.frames_compared += other.frames_compared
        self.max_abs_diff_angstrom = max(self.max_abs_diff_angstrom, other.max_abs_diff_angstrom)
        if (allowed := other.allowed_diff_angstrom) is not None:
            self.allowed_diff_angstrom = max(self.allowed_diff_angstrom or 0.0, allowed)
        self.times_off_ps = max(self.times_off_ps, other.times_off_ps)
        fields = (*self.fields_left_out, *other.fields_left_out)
        self.fields_left_out = tuple(dict.fromkeys(fields))
        self.bad += other.bad


class Verifier:
    """Checks runs of units, and compares runs of blocks with the source, in any process."""

    def __init__(
        self,
        out: str | PathLike[str],
        against: Paths | None,
        overlap: str | None,
        top: str | PathLike[str] | None,
        view: ViewLayout | None,
        unit_filter: UnitFilter,
        progress: Progress | None,
    ) -> None:
        self.unit_filter = unit_filter
        self.progress = progress
        self.opening_result = result = VerifyResult()
        """Problems that opening has found, before units are checked."""
        self.source = view
        """The frames that the output should hold."""
        self.files_view: ViewLayout | None = None
        """The frames of `source` that are in the files of `against`."""
        self.own_frames = np.empty(0, np.int64)
        """Frames that only the output itself has, and that are not compared."""
        self.block_frames = 0
        """Frames that are compared at a time; 0 = none are."""
        layout = open_or_salvage(out)
        result.has_checksums = layout.manifest is not None
        self.layouts = [layout]
        self.prefixes = [""]
        """For each layout, the beginning of messages on it."""
        try:
            self.frame_nbytes = layout.info.frame_nbytes
            for loss in layout.info.lost:
                result.add_problem(str(loss))
            self.damaged_units = set[str]()
            """Names of units whose damage was found by opening."""
            for stretch in layout.unreadable_stretches:
                result.add_problem(f"{stretch}; {DAMAGE_ADVICE}")
                self.damaged_units.add(frames_text(stretch.frame, stretch.frame + 1))
            # Groups are units of mdio's outputs; in foreign files each is checked by itself.
            for group in layout.info.groups if layout.manifest is None else ():
                try:
                    self.layouts.append(open_layout(out, group=group))
                    _ = self.layouts[-1].info
                except (SourceError, CorruptLayoutError) as error:
                    self.layouts.pop()
                    result.add_problem(f"group {group}: {error}")
                else:
                    self.prefixes.append(f"group {group}, ")
            self.n_units = [_count_units(opened) for opened in self.layouts]
            result.units = sum(self.n_units)
            if view is None and against is not None:
                source_files = path_list(against)
                files = sort_as_recorded(layout, source_files)
                options = source_open_options(layout)
                if overlap is not None:
                    options["overlap"] = overlap
                source = open_again(
                    files, top, (layout.manifest or {}).get("source", {}), **options
                )
                self.files_view, _ = source_view(layout, source, top)
                recorded = paths_by_contents(files)
                for file in source_files:
                    if file not in files and not recorded.keys() & paths_by_contents([file]).keys():
                        result.add_problem(
                            f"{file}: {layout.path} was made from the other files; leave it out, "
                            f"or add its frames (mdio append {file} {layout.path})"
                        )
                result.frames_left_out = count_excluded_frames(layout)
                self.source = add_writer_frames(layout, self.files_view)
            if self.source is not None:
                self._check_shapes(layout, self.source)
            if view is None and against is not None:
                for problem in describe_missing_frames(layout, source):
                    result.add_problem(problem)
        except BaseException:
            self.close()
            raise

    def _check_shapes(self, layout: Layout, source: ViewLayout) -> None:
        """Compare numbers of frames and atoms, and set the allowed difference of coordinates."""
        info, expected, result = layout.info, source.info, self.opening_result
        if (info.n_frames, info.n_atoms) != (expected.n_frames, expected.n_atoms):
            result.add_problem(
                f"{layout.path} has {info.n_frames} frames of {info.n_atoms} atoms, "
                f"its source {expected.n_frames} of {expected.n_atoms}"
                + ("" if layout.manifest else UNRECORDED_CHOICE)
            )
            return
        same_step = info.xtc_integers and info.precision == expected.precision
        is_exact = info.precision is None or has_source_integers(layout.manifest or {}) or same_step
        result.allowed_diff_angstrom = 0.0 if is_exact else (info.precision or 0.0) / 2
        result.fields_left_out = tuple(name for name in expected.fields if name not in info.fields)
        self.block_frames = max(1, BLOCK_NBYTES // max(1, info.frame_nbytes))
        if source is not self.files_view:
            runs = source.joined_layouts
            is_own = [member.path == layout.path for member, *_ in runs]
            counts = [stop - start for _, start, stop in runs]
            self.own_frames = np.flatnonzero(np.repeat(is_own, counts))
        if self.files_view is not None:
            result.frames_by_program = len(self.own_frames)

    def work_items(self, max_items: int) -> Iterator[WorkItem]:
        """Yield the work, for each layout and the comparison cut into `max_items` at most."""
        n_blocks = 0
        if self.block_frames:
            n_blocks = math.ceil(self.layouts[0].info.n_frames / self.block_frames)
        for number, count in (*enumerate(self.n_units), (-1, n_blocks)):
            n_runs = min(max_items, count)
            edges = [count * k // n_runs for k in range(n_runs + 1)] if n_runs else []
            yield from ((number, first, stop) for first, stop in pairwise(edges))

    def __call__(self, item: WorkItem) -> VerifyResult:
        """Return the result of one piece."""
        number, first, stop = item
        result = VerifyResult()
        if number < 0:
            self._compare(range(first, stop), result)
        else:
            try:
                self._check_units(number, range(first, stop), result)
            except (SourceError, CorruptLayoutError) as error:
                if number == 0:
                    raise
                result.add_problem(f"{self.prefixes[number].removesuffix(', ')}: {error}")
        return result

    def _check_units(self, number: int, units: range, result: VerifyResult) -> None:
        n_before = sum(self.n_units[:number])
        prefix, layout = self.prefixes[number], self.layouts[number]
        for name, problem in layout.check(
            lambda unit: unit in units and self.unit_filter(n_before + unit)
        ):
            result.chunks_checked += 1
            if problem is not None and not (number == 0 and name in self.damaged_units):
                damage = CorruptLayoutError(problem)
                damage = add_repair_hint(layout.path, layout.manifest, damage) or damage
                result.add_problem(prefix + add_unit_name(name, str(damage)))
            if self.progress is not None:
                self.progress(0, 0)

    @cached_property
    def _rounding(self) -> dict[str, bool]:
        """Arguments of `compare_blocks` on the rounding of the source, if it has other files.

        Boxes go through vectors and back in each file, and native ones keep times as float32. Atoms
        are moved by boxes, and some formats have units of their own.
        """
        layout, view = self.layouts[0], self.files_view
        source = (layout.manifest or {}).get("source", {})
        file_records = source.get("files") or [source]
        files = [] if view is None else list(view.source.file_layouts())
        is_other_file = "crc32c_tail" in file_records[0] and bool(files)
        if is_other_file:
            fingerprints = [fingerprint(file.path) for file in files]
            is_other_file = [*map(content_of, file_records)] != [*map(content_of, fingerprints)]
        is_moved = source.get("transformed") is not None
        rounds = is_moved or any(file.facts.rounded_fields for file in files)
        return {"rounded_source": is_other_file and rounds, "is_other_file": is_other_file}

    @cached_property
    def _has_steps(self) -> bool:
        """Whether the source has steps that the output should have.

        A format that has frame numbers instead begins with 0 in each file, so that the numbers in
        one file and in several with the same frames differ.
        """
        layout, view = self.layouts[0], self.files_view
        is_from_source = layout.manifest is not None and not self._rounding["is_other_file"]
        files = [] if view is None or is_from_source else view.source.file_layouts()
        return not any(file.stored_times.step_is_frame_number for file in files)

    def _even_times(self, start: int, stop: int) -> tuple[NDArray[np.float64] | None, float]:
        """Return even times between the source's first and last, and the error that is allowed.

        None where the source's do not ascend, and for segments, each of which has its own spacing.
        """
        assert self.source is not None
        info = self.source.info
        duration_ps = info.time_last_ps - info.time_first_ps
        if self.layouts[0].manifest is not None or not np.isfinite(duration_ps):
            return None, 0.0
        if info.n_frames > 1 and duration_ps <= 0:
            return None, 0.0
        dt_ps = duration_ps / (info.n_frames - 1) if info.n_frames > 1 else 1.0
        times = info.time_first_ps + dt_ps * np.arange(start, stop)
        return times.astype(np.float64), dt_ps / 4

    def _n_compared(self, start: int, stop: int) -> int:
        """Return how many of these frames are compared."""
        return stop - start - int(np.diff(np.searchsorted(self.own_frames, [start, stop]))[0])

    def _compare(self, blocks: range, result: VerifyResult) -> None:
        layout, source = self.layouts[0], self.source
        assert source is not None
        n_frames = layout.info.n_frames
        container = container_format(layout)
        native = (layout if container is None else layout_class(container)).facts
        starts = [
            start
            for start in (block * self.block_frames for block in blocks if self.unit_filter(block))
            if self._n_compared(start, min(start + self.block_frames, n_frames))
        ]
        for opened in (layout, source):
            opened.prefetch((block, min(block + self.block_frames, n_frames)) for block in starts)
        for start in starts:
            stop = min(start + self.block_frames, n_frames)
            try:
                block, source_block = layout.read(start, stop), source.read(start, stop)
            except OSError as error:
                result.add_problem(f"{frames_text(start, stop)}: {error}")
                continue
            tolerances = {name: step / 2 for name, step in layout.info.field_precisions.items()}
            tolerances["positions"] = self.opening_result.allowed_diff_angstrom or 0.0
            columns = COLUMNS if layout.facts.stores_columns_exactly else ()
            difference, problems = compare_blocks(
                block,
                source_block,
                tolerances,
                columns=columns if self._has_steps else columns[:-1],
                rounded=native.rounded_fields,
                **self._rounding,
            )
            result.max_abs_diff_angstrom = max(result.max_abs_diff_angstrom, difference)
            if native.can_copy_frames and not columns:
                times: NDArray[np.float64] | None = source_block.time
                tolerance_ps = 0.0
                if layout.stored_times.step_ps is not None:
                    times, tolerance_ps = self._even_times(start, stop)
                    if times is not None:
                        error_ps = float(np.abs(times - source_block.time).max(initial=0.0))
                        if error_ps > ROUNDING_SHARE * tolerance_ps:
                            result.times_off_ps = max(result.times_off_ps, error_ps)
                problems += compare_native_columns(
                    block,
                    source_block,
                    times,
                    tolerance_ps,
                    has_steps=self._has_steps and not native.step_is_frame_number,
                )
            if problems and result.ok and layout.manifest is None:
                differs, problem = problems[0]
                problems[0] = differs, f"{problem}; {UNRECORDED_OPTIONS}"
            for differs, problem in problems:
                result.add_problem(f"{_frames_text(start + np.flatnonzero(differs))}: {problem}")
            result.frames_compared += self._n_compared(start, stop)
            if self.progress is not None:
                self.progress(stop - start, block.nbytes)

    def close(self) -> None:
        """Close all layouts."""
        for layout in filter(None, (*self.layouts, self.source)):
            layout.close()


def _frames_text(frames: NDArray[np.int64]) -> str:
    """Return the numbers of frames, which ascend, in words: ``3 frames (4, 7, 12)``."""
    if frames[-1] - frames[0] == len(frames) - 1:
        return frames_text(frames[0], frames[-1] + 1)
    return f"{len(frames):,} frames ({runs_text(runs_from_indices(frames), MAX_RUNS)})"


def _count_units(layout: Layout) -> int:
    """Return the number of units, without reading any."""
    numbers: list[int] = []

    def skip(number: int) -> bool:
        numbers.append(number)
        return False

    for _ in layout.check(skip):
        pass
    return len(numbers)


ITEMS_PER_WORKER = 4
"""Runs of units for each worker, so that none waits long for the last."""


def everything(number: int) -> bool:  # noqa: ARG001
    """Return True: every unit is checked."""
    return True


def every_nth(part: int, n_parts: int) -> UnitFilter:
    """Return a filter that selects one unit in `n_parts`; parts 1 to `n_parts` are all units."""
    return partial(_is_nth, part, n_parts)


def sample(share: float) -> UnitFilter:
    """Return a filter that selects this share of the units, evenly spread, with the first."""
    return partial(_is_sampled, share)


# Not lambdas: they are pickled.
def _is_nth(part: int, n_parts: int, number: int) -> bool:
    return number % n_parts == part - 1


def _is_sampled(share: float, number: int) -> bool:
    return math.ceil(number * share) < math.ceil((number + 1) * share)


def verify(
    out: str | PathLike[str],
    against: Paths | None = None,
    *,
    overlap: str | None = None,
    top: str | PathLike[str] | None = None,
    view: ViewLayout | None = None,
    wanted: UnitFilter = everything,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> VerifyResult:
    """Recompute an output's checksums; compare every frame with its source if that is given.

    Parameters
    ----------
    out
        A trajectory of any layout, or an ensemble. Native files have no checksums: each frame is
        decoded.
    against
        The source (or several files), whose frames and atoms are chosen by the manifest of `out`.
        For an ensemble, the sources of all its trajectories, in any order.
    overlap
        How several files of `against` are joined, as for `mdio.convert`; None = as the manifest of
        `out` says, if it has one.
    top
        Topology, needed only where the conversion used ``--pbc``, ``--center`` or ``--fit-select``
        and `out` holds none of all atoms.
    view
        Instead of `against`: just the frames and atoms that `out` should hold. Those that it reads
        from `out` itself are not compared.
    wanted
        Returns for the number of a unit (a chunk, a segment, a file of numbers; with a source, also
        a block of frames) whether it is checked: ``mdio.converters.verify.every_nth(1, 10)`` or
        ``sample(0.1)`` of that module. All are by default.
    workers
        Worker processes; by default, all is done in this one.
    executor
        Instead of `workers`: shares the work, in runs of units; under MPI every rank calls this and
        gets the result.
    progress
        Called with (frames, decoded bytes) done since the last call.

    Returns
    -------
    VerifyResult
        `ok` and what is `bad`; damage found is a result, not an exception.

    Raises
    ------
    SourceError, CorruptLayoutError, UnknownLayoutError
        `out` or `against` cannot be opened at all.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> _ = mdio.convert(DCD, "adk.h5md")
    >>> result = mdio.verify("adk.h5md", DCD)
    >>> result.ok, result.frames_compared, result.max_abs_diff_angstrom
    (True, 98, 0.0)
    """
    is_wanted: Any = None
    with suppress(Exception):  # a function for something else
        is_wanted = wanted(0)
    if is_wanted not in (True, False):
        raise PlanError(
            f"wanted is {wanted!r}; give a function of a unit's number that returns True or False, "
            "such as mdio.converters.verify.sample(0.1)"
        )
    executor = choose_executor(executor, workers)
    executor.agree("verify", out)
    if members := executor.from_owner(partial(ensemble_members, out)):
        return _verify_members(members, against, overlap, top, wanted, executor, progress)
    is_serial = executor.shares_memory
    worker_progress = progress if is_serial else None
    verifier = executor.from_owner(
        lambda: Verifier(out, against, overlap, top, view, wanted, worker_progress)
    )
    try:
        results = {}
        work_items = verifier.work_items(1 if is_serial else ITEMS_PER_WORKER * executor.n_workers)
        for number, item_result in results_of(executor, verifier, work_items, _describe_item):
            results[number] = item_result
            if progress is not None and not is_serial:
                progress(
                    item_result.frames_compared, item_result.frames_compared * verifier.frame_nbytes
                )
        result = verifier.opening_result
        for number in sorted(results):
            result.merge(results[number])
        result.bad = [_with_user_path(problem, to_path(out)) for problem in result.bad]
        return executor.from_owner(lambda: result)
    finally:
        verifier.close()


def _with_user_path(problem: str, out: Path) -> str:
    """Return `problem` with the path `out` as the user wrote it: workers have it absolute."""
    return re.sub(rf"{re.escape(str(out.absolute()))}(?![\w.-])", lambda _: str(out), problem)


def _verify_members(
    outs: dict[str, Path],
    against: Paths | None,
    overlap: str | None,
    top: str | PathLike[str] | None,
    wanted: UnitFilter,
    executor: Executor,
    progress: Progress | None,
) -> VerifyResult:
    """Verify the trajectories of an ensemble, each with those files that it was made from."""
    result = VerifyResult()
    path_by_content = executor.from_owner(
        lambda: paths_by_contents([] if against is None else path_list(against))
    )
    for label, out in outs.items():
        files = (
            executor.from_owner(partial(_files_of, out, path_by_content)) if path_by_content else []
        )
        member_result = verify(
            out,
            files or None,
            overlap=overlap,
            top=top,
            wanted=wanted,
            executor=executor,
            progress=progress,
        )
        if path_by_content and not files:
            member_result.add_problem(
                "its source is not among those that are given, or has changed since; to see where, "
                f"compare {out} alone"
            )
        member_result.bad = [f"{label}: {problem}" for problem in member_result.bad]
        result.merge(member_result)
    return result


def _files_of(out: Path, path_by_content: dict[str, AnyPath]) -> list[AnyPath]:
    with open_or_salvage(out) as layout:
        return recorded_files(layout, path_by_content)


def _describe_item(item: WorkItem) -> str:
    number, first, stop = item
    return f"{'blocks' if number < 0 else 'units'} {first} to {stop - 1}"
