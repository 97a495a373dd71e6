"""Verification of an output: its checksums, and its frames against the source's.

Runs of units are checked, and runs of blocks compared with the source, in any process.
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
    by_contents,
    find_in_output,
    in_recorded_order,
    n_left_out,
    open_damaged,
    recorded_files,
    source_open_options,
    source_view,
    with_own_frames,
)
from mdio.converters.options import Progress
from mdio.converters.selection import open_with_topology
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.fingerprint import contents_of, fingerprint
from mdio.core.files.store import AnyPath, Paths, path_list, to_path
from mdio.core.frames import FrameBlock
from mdio.core.words import MAX_RUNS, frames_text, runs_text
from mdio.layouts.base import Layout, container_format
from mdio.layouts.manifest import has_source_integers
from mdio.layouts.registry import layout_class, open_layout
from mdio.layouts.units import UnitFilter, add_repair_hint, add_unit_name
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.view import ViewLayout
from mdio.parallel.executors import Executor, choose_executor, results_of

Bools = NDArray[np.bool_]
Problem = tuple[Bools, str]
"""Which frames of a block differ, (F,) bool, and in what."""


def compare_blocks(
    block: FrameBlock,
    source_block: FrameBlock,
    allowed: Mapping[str, float],
    *,
    columns: Sequence[str],
    rounded: Sequence[str],
    rounded_source: bool = False,
    is_other: bool = False,
) -> tuple[float, list[Problem]]:
    """Return the largest difference of a coordinate (angstrom), and a list of problems.

    `block`, `source_block`: the same frames and atoms, of the output and of its source. `allowed`:
    by how much each field may differ besides rounding; 0 for those that it lacks. `columns`: those
    of box, time and step that the output keeps exactly. `rounded`: of which arrays its format
    rounds float32. `is_other`: whether the source is another file than the output was made of, so
    that boxes and times may differ by the rounding of float32, and with `rounded_source` arrays.
    """
    largest = 0.0
    problems: list[Problem] = []
    for name, array in block.present().items():
        other = getattr(source_block, name)
        if other is None:
            problems.append((np.ones(block.n_frames, bool), f"the source has no {name}"))
            continue
        tolerance = allowed.get(name, 0.0)
        worst, differing = _difference(
            array, other, tolerance, rounded=rounded_source or name in rounded
        )
        if name == "positions":
            largest = worst
        if differing.any():
            unit = " angstrom" if name == "positions" else ""
            difference = f" by up to {worst:g}{unit}, {tolerance:g} is allowed"
            problems.append((differing, f"{name} differ{difference if tolerance or unit else ''}"))
    for name in columns:
        array_of_output, other = getattr(block, name), getattr(source_block, name)
        may_round = is_other and name != "step"
        dtype = np.float32 if may_round else array_of_output.dtype
        compared = array_of_output.astype(dtype, copy=False), other.astype(dtype, copy=False)
        differing = _difference(compared[0], compared[1], 0.0, rounded=may_round)[1]
        if differing.any():
            worst = np.abs(array_of_output.astype(np.float64) - other).max(initial=0.0)
            problems.append((differing, f"{name} differs by up to {worst:g}"))
    return largest, problems


def _difference(
    values: NDArray[np.float32],
    source_values: NDArray[np.float32],
    allowed: float,
    *,
    rounded: bool,
) -> tuple[float, Bools]:
    """Return the largest difference, and for each frame whether any exceeds the allowed one.

    Formats with units of their own may round float32 at every step to these and back.
    """
    if np.array_equal(values, source_values, equal_nan=True):
        return 0.0, np.zeros(len(values), bool)
    differing = np.zeros(values.shape, bool)
    finite = np.isfinite(values) & np.isfinite(source_values)
    special, source_special = values[~finite], source_values[~finite]
    differing[~finite] = (special != source_special) & ~(
        np.isnan(special) & np.isnan(source_special)
    )
    diff = np.abs(values[finite].astype(np.float64) - source_values[finite])
    slack: Any = 0.0
    if allowed or rounded:
        slack = np.spacing(np.maximum(np.abs(values[finite]), np.abs(source_values[finite])))
        slack = allowed + slack * (3 if rounded else 1)
    differing[finite] = diff > slack
    return float(diff.max(initial=0.0)), _in_frames(differing)


def _in_frames(differing: Bools) -> Bools:
    """Return for each frame, (F,) bool, whether any of its values differs."""
    return np.asarray(differing.any(axis=tuple(range(1, differing.ndim))))


def compare_native_columns(
    block: FrameBlock,
    source_block: FrameBlock,
    times: NDArray[np.float64] | None,
    slack_ps: float = 0.0,
    *,
    has_steps: bool,
) -> list[Problem]:
    """Return by how much boxes, times, and steps if they are stored, differ beyond rounding.

    Native formats keep boxes as float32 vectors, and times as float32; boxes that one of the two
    lacks, or that are open along an axis, are not compared.

    `times`: those that frames should have, ps; None = they are not compared. `slack_ps`: how far
    they may be off besides.
    """
    problems: list[Problem] = []
    has_box = (block.box[:, :3] > 0).all(axis=1) & (source_block.box[:, :3] > 0).all(axis=1)
    close = np.isclose(block.box, source_block.box, rtol=BOX_ROUNDING, atol=BOX_ROUNDING)
    differing = has_box & _in_frames(~close)
    if differing.any():
        boxes = block.box[has_box].astype(np.float64)
        worst = np.abs(boxes - source_block.box[has_box]).max(initial=0.0)
        problems.append((differing, f"box differs by up to {worst:g}"))
    if times is not None:
        apart = np.abs(block.time - times)
        differing = apart > TIME_ROUNDING * np.spacing(np.abs(times).astype(np.float32)) + slack_ps
        if differing.any():
            problems.append((differing, f"time differs by up to {np.nanmax(apart):g}"))
    steps_apart = np.abs(block.step - source_block.step)
    if has_steps and steps_apart.any():
        problems.append((steps_apart > 0, f"step differs by up to {steps_apart.max():g}"))
    return problems


COLUMNS = "box", "time", "step"
BOX_ROUNDING = 1e-4
"""Relative, and in angstrom and degrees: lengths and angles go through vectors in nm."""
TIME_ROUNDING = 4
"""Neighbouring float32 numbers that a time may be off."""
UNRECORDED = (
    "a native file does not record --pbc, --center, --fit or --timestep: if it was made with them, "
    "compare it with a source that was treated alike"
)
UNRECORDED_CHOICE = (
    "; a native file does not say which ones it should have: if it was made with --select, --step "
    "or the like, convert the source so again, and compare it with that"
)
OUT_OF_DAMAGE = "take the file from its source again, or convert it with --salvage"
EVEN = 1e-2
"""How much of what a counted time may be off is its rounding."""
BLOCK_NBYTES = 16 << 20
"""Decoded bytes compared at a time."""
Item = tuple[int, int, int]
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
    """How far times of a file that counts them are off, if the source's are not even."""
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

    def add(self, problem: str) -> None:
        """Add a problem."""
        self.ok = False
        self.bad.append(problem)

    def merge(self, other: VerifyResult) -> None:
        """Add the result of another worker."""
        self.ok &= other.ok
        self.has_checksums &= other.has_checksums
        self.chunks_checked += other.chunks_checked
        self.frames_compared += other.frames_compared
        self.max_abs_diff_angstrom = max(self.max_abs_diff_angstrom, other.max_abs_diff_angstrom)
        self.times_off_ps = max(self.times_off_ps, other.times_off_ps)
        fields = (*self.fields_left_out, *other.fields_left_out)
        self.fields_left_out = tuple(dict.fromkeys(fields))
        self.bad += other.bad


class Checks:
    """Checks runs of units, and compares runs of blocks of frames, in any process."""

    def __init__(
        self,
        out: str | PathLike[str],
        against: Paths | None,
        overlap: str | None,
        top: str | PathLike[str] | None,
        view: ViewLayout | None,
        wanted: UnitFilter,
        progress: Progress | None,
    ) -> None:
        self.wanted = wanted
        self.progress = progress
        self.of_opening = result = VerifyResult()
        """The result of opening, before units are checked."""
        self.source = view
        """What the output should hold."""
        self.source_alone: ViewLayout | None = None
        """The part of it that the files of `against` have."""
        self.own_frames = np.empty(0, np.int64)
        """Frames that only the output itself has: they are compared with none."""
        self.block_frames = 0
        self.compared = list[tuple[Layout, ViewLayout]]()
        """Frames of the output and those of the source; then those of further files."""
        self.further = list[Layout]()
        layout = open_damaged(out)
        result.has_checksums = layout.manifest is not None
        self.layouts = [layout]
        self.names = [""]
        try:
            self.frame_nbytes = layout.info.frame_nbytes
            for loss in layout.info.lost:
                result.add(str(loss))
            self.reported = set[str]()
            """Names of units whose damage opening has found."""
            for stretch in layout.stretches:
                result.add(f"{stretch}; {OUT_OF_DAMAGE}")
                self.reported.add(frames_text(stretch.frame, stretch.frame + 1))
            # Groups are units of mdio's outputs; in foreign files each is checked by itself.
            for group in layout.info.groups if layout.manifest is None else ():
                try:
                    self.layouts.append(open_layout(out, group=group))
                    _ = self.layouts[-1].info
                except (SourceError, CorruptLayoutError) as error:
                    self.layouts.pop()
                    result.add(f"group {group}: {error}")
                else:
                    self.names.append(f"group {group}, ")
            self.n_units = [_n_units(opened) for opened in self.layouts]
            result.units = sum(self.n_units)
            if view is None and against is not None:
                source_files = path_list(against)
                files = in_recorded_order(layout, source_files)
                options = source_open_options(layout)
                if overlap is not None:
                    options["overlap"] = overlap
                source = open_with_topology(files, top, **options)
                self.source_alone, _ = source_view(layout, source, top)
                for file in source_files:
                    if file not in files:
                        self.further.append(open_with_topology(file, top, **options))
                result.frames_left_out = n_left_out(layout)
                self.source = with_own_frames(layout, self.source_alone)
            if self.source is not None:
                self._compare_shapes(layout, self.source)
            if view is None and against is not None:
                for matched in find_in_output(layout, source, self.further, top):
                    if isinstance(matched, str):
                        result.add(matched)
                    elif self.compared:
                        self.compared.append(matched)
        except BaseException:
            self.close()
            raise

    def _compare_shapes(self, layout: Layout, source: ViewLayout) -> None:
        """Compare numbers of frames and atoms, and set the allowed difference of coordinates."""
        info, expected, result = layout.info, source.info, self.of_opening
        if (info.n_frames, info.n_atoms) != (expected.n_frames, expected.n_atoms):
            result.add(
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
        self.compared = [(layout, source)]
        if source is not self.source_alone:
            runs = source.joined_layouts
            is_own = [member.path == layout.path for member, *_ in runs]
            counts = [stop - start for _, start, stop in runs]
            self.own_frames = np.flatnonzero(np.repeat(is_own, counts))
        if self.source_alone is not None:
            result.frames_by_program = len(self.own_frames)

    def items(self, n_pieces: int) -> Iterator[Item]:
        """Yield the work, for each layout and the comparison cut into `n_pieces` at most."""
        n_blocks = [
            math.ceil(output.info.n_frames / self.block_frames) for output, _ in self.compared
        ]
        numbers = (*enumerate(self.n_units), *((-1 - n, count) for n, count in enumerate(n_blocks)))
        for number, n_units in numbers:
            n_cuts = min(n_pieces, n_units)
            cuts = [n_units * k // n_cuts for k in range(n_cuts + 1)] if n_cuts else []
            yield from ((number, first, last) for first, last in pairwise(cuts))

    def __call__(self, item: Item) -> VerifyResult:
        """Return the result of one piece."""
        number, first, last = item
        result = VerifyResult()
        if number < 0:
            self._compare(-1 - number, range(first, last), result)
        else:
            try:
                self._check(number, range(first, last), result)
            except (SourceError, CorruptLayoutError) as error:
                if number == 0:
                    raise
                result.add(f"{self.names[number][:-2]}: {error}")
        return result

    def _check(self, number: int, units: range, result: VerifyResult) -> None:
        n_before = sum(self.n_units[:number])
        prefix = self.names[number]
        layout = self.layouts[number]
        for name, problem in layout.check(
            lambda unit: unit in units and self.wanted(n_before + unit)
        ):
            result.chunks_checked += 1
            if problem is not None and not (number == 0 and name in self.reported):
                damage = CorruptLayoutError(problem)
                damage = add_repair_hint(layout.path, layout.manifest, damage) or damage
                result.add(prefix + add_unit_name(name, str(damage)))
            if self.progress is not None:
                self.progress(0, 0)

    @cached_property
    def _rounding(self) -> dict[str, bool]:
        """By the names of `compare_blocks`, what rounds in the source, if it has other files.

        Boxes go through vectors and back in each file, and native ones keep times as float32. Atoms
        are moved by boxes, and some formats have units of their own.
        """
        layout, view = self.layouts[0], self.source_alone
        source = (layout.manifest or {}).get("source", {})
        recorded = source.get("files") or [source]
        files = [] if view is None else list(view.source.files())
        is_other = "crc32c_tail" in recorded[0] and bool(files)
        if is_other:
            fingerprints = [fingerprint(file.path) for file in files]
            is_other = [*map(contents_of, recorded)] != [*map(contents_of, fingerprints)]
        is_moved = source.get("transformed") is not None
        rounds = is_moved or any(file.facts.rounds for file in files)
        return {"rounded_source": is_other and rounds, "is_other": is_other}

    @cached_property
    def _has_steps(self) -> bool:
        """Whether the source has steps that the output should have.

        A file that only counts them numbers the frames of each part anew, so that the whole and its
        parts differ.
        """
        layout, view = self.layouts[0], self.source_alone
        is_made_of_it = layout.manifest is not None and not self._rounding["is_other"]
        files = [] if view is None or is_made_of_it else view.source.files()
        return not any(file.stored_times.counts_steps for file in files)

    def _even_times(self, start: int, stop: int) -> tuple[NDArray[np.float64] | None, float]:
        """Return the times of frames in a file that counts them, and how far they may be off.

        None where the source's do not ascend, and in segments, which are counted each by itself.
        """
        assert self.source is not None
        info = self.source.info
        span_ps = info.time_last_ps - info.time_first_ps
        if self.layouts[0].manifest is not None or not np.isfinite(span_ps):
            return None, 0.0
        if info.n_frames > 1 and span_ps <= 0:
            return None, 0.0
        dt_ps = span_ps / (info.n_frames - 1) if info.n_frames > 1 else 1.0
        times = info.time_first_ps + dt_ps * np.arange(start, stop)
        return times.astype(np.float64), dt_ps / 4

    def _n_others(self, start: int, stop: int) -> int:
        """Return how many of these frames are compared."""
        return stop - start - int(np.diff(np.searchsorted(self.own_frames, [start, stop]))[0])

    def _compare(self, number: int, blocks: range, result: VerifyResult) -> None:
        """Compare blocks with the source (`number` 0), or those that a further file has, too."""
        layout, (output, source) = self.layouts[0], self.compared[number]
        n_frames = output.info.n_frames
        is_further = number > 0
        container = container_format(layout)
        native = (layout if container is None else layout_class(container)).facts
        starts = [
            start
            for start in (block * self.block_frames for block in blocks if self.wanted(block))
            if is_further or self._n_others(start, min(start + self.block_frames, n_frames))
        ]
        for opened in (output, source):
            opened.prefetch((block, min(block + self.block_frames, n_frames)) for block in starts)
        for start in starts:
            stop = min(start + self.block_frames, n_frames)
            try:
                own_block, source_block = output.read(start, stop), source.read(start, stop)
            except OSError as error:
                result.add(f"{frames_text(start, stop)}: {error}")
                continue
            allowed = {name: step / 2 for name, step in layout.info.field_precisions.items()}
            allowed["positions"] = self.of_opening.allowed_diff_angstrom or 0.0
            # Steps, and where boxes are rounded, depend on the format of a further file.
            columns = COLUMNS if layout.facts.keeps_columns and not is_further else ()
            rounding = dict.fromkeys(self._rounding, True) if is_further else self._rounding
            worst, problems = compare_blocks(
                own_block,
                source_block,
                allowed,
                columns=columns if self._has_steps else columns[:-1],
                rounded=native.rounds,
                **rounding,
            )
            if is_further:
                for differing, problem in problems:
                    frames = _frames_text(
                        np.asarray(source.frames)[start + np.flatnonzero(differing)]
                    )
                    result.add(
                        f"{source.path}: {frames} are not those that {layout.path} has at these "
                        f"times: {problem}; give the files that it was made from"
                    )
                continue
            result.max_abs_diff_angstrom = max(result.max_abs_diff_angstrom, worst)
            if native.is_copied and not columns:
                clock: tuple[NDArray[np.float64] | None, float] = source_block.time, 0.0
                if layout.stored_times.step_ps is not None:
                    clock = self._even_times(start, stop)
                    if clock[0] is not None:
                        off_ps = float(np.abs(clock[0] - source_block.time).max(initial=0.0))
                        if off_ps > EVEN * clock[1]:
                            result.times_off_ps = max(result.times_off_ps, off_ps)
                problems += compare_native_columns(
                    own_block,
                    source_block,
                    *clock,
                    has_steps=self._has_steps and not native.counts_steps,
                )
            if problems and result.ok and layout.manifest is None:
                problems[0] = problems[0][0], f"{problems[0][1]}; {UNRECORDED}"
            for differing, problem in problems:
                result.add(f"{_frames_text(start + np.flatnonzero(differing))}: {problem}")
            result.frames_compared += self._n_others(start, stop)
            if self.progress is not None:
                self.progress(stop - start, own_block.nbytes)

    def close(self) -> None:
        """Close all layouts."""
        compared = (layout for pair in self.compared[1:] for layout in pair)
        source = [] if self.source is None else [self.source]
        for opened in (*self.layouts, *source, *compared, *self.further):
            opened.close()


def _frames_text(frames: NDArray[np.int64]) -> str:
    """Return the numbers of frames, which ascend, in words: ``3 frames (4, 7, 12)``."""
    parts = np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1)
    if len(parts) == 1:
        return frames_text(frames[0], frames[-1] + 1)
    runs = [(part[0], part[-1] + 1, 1) for part in parts]
    return f"{len(frames):,} frames ({runs_text(runs, MAX_RUNS)})"


def _n_units(layout: Layout) -> int:
    """Return the number of units, without reading any."""
    numbers: list[int] = []

    def counted(number: int) -> bool:
        numbers.append(number)
        return False

    for _ in layout.check(counted):
        pass
    return len(numbers)


PIECES_PER_WORKER = 4
"""Runs of units for each worker, so that none waits long for the last."""


def everything(number: int) -> bool:  # noqa: ARG001
    """Return True: every unit is checked."""
    return True


def every_nth(part: int, n_parts: int) -> UnitFilter:
    """Return a choice of one unit in `n_parts`; parts 1 to `n_parts` together are all units."""
    return partial(_is_nth, part, n_parts)


def sample(share: float) -> UnitFilter:
    """Return a choice of this share of the units, evenly spread, including the first."""
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
        The source (or several files): frames and atoms are taken as the manifest of `out` says. Of
        an ensemble, the sources of all its trajectories, in any order.
    overlap
        How several files of `against` are joined, as for `mdio.convert`; None = as the manifest of
        `out` says, if it has one.
    top
        Topology, needed only where the conversion used ``--pbc``, ``--center`` or ``--fit-select``.
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
    >>> found = mdio.verify("adk.h5md", DCD)
    >>> found.ok, found.frames_compared, found.max_abs_diff_angstrom
    (True, 98, 0.0)
    """
    first: Any = None
    with suppress(Exception):  # a function for something else
        first = wanted(0)
    if first not in (True, False):
        raise PlanError(
            f"wanted is {wanted!r}; give a function of a unit's number that returns True or False, "
            "such as mdio.converters.verify.sample(0.1)"
        )
    chosen = choose_executor(executor, workers)
    chosen.agree("verify", out)
    if members := chosen.from_owner(partial(ensemble_members, out)):
        return _verify_members(members, against, overlap, top, wanted, chosen, progress)
    is_serial = chosen.shares_memory
    worker_progress = progress if is_serial else None
    checks = chosen.from_owner(
        lambda: Checks(out, against, overlap, top, view, wanted, worker_progress)
    )
    try:
        parts = {}
        items = checks.items(1 if is_serial else PIECES_PER_WORKER * chosen.n_workers)
        for number, part in results_of(chosen, checks, items, _describe):
            parts[number] = part
            if progress is not None and not is_serial:
                progress(part.frames_compared, part.frames_compared * checks.frame_nbytes)
        result = checks.of_opening
        for number in sorted(parts):
            result.merge(parts[number])
        result.bad = [_named_as_given(problem, to_path(out)) for problem in result.bad]
        return chosen.from_owner(lambda: result)
    finally:
        checks.close()


def _named_as_given(problem: str, out: Path) -> str:
    """Return `problem` with `out` as it was given: other processes name it absolutely."""
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
    path_of = executor.from_owner(
        lambda: by_contents([] if against is None else path_list(against))
    )
    for label, out in outs.items():
        files = executor.from_owner(partial(_files_of, out, path_of)) if path_of else []
        member_result = verify(
            out,
            files or None,
            overlap=overlap,
            top=top,
            wanted=wanted,
            executor=executor,
            progress=progress,
        )
        if path_of and not files:
            member_result.add(
                "its source is not among those that are given, or has changed since; to see where, "
                f"compare {out} alone"
            )
        member_result.bad = [f"{label}: {problem}" for problem in member_result.bad]
        result.units += member_result.units
        if (allowed := member_result.allowed_diff_angstrom) is not None:
            result.allowed_diff_angstrom = max(result.allowed_diff_angstrom or 0.0, allowed)
        result.merge(member_result)
    return result


def _files_of(out: Path, path_of: dict[str, AnyPath]) -> list[AnyPath]:
    with open_damaged(out) as layout:
        return recorded_files(layout, path_of)


def _describe(item: Item) -> str:
    number, first, last = item
    return f"{'blocks' if number < 0 else 'units'} {first} to {last - 1}"
