"""Joining files to one trajectory: frames in the order of their times, without duplicates.

`join` concatenates files. `merge` inserts the frames of one trajectory into another, matched frame
by frame, by time or by step. Common frames with equal contents show that both belong to one
trajectory; so do frames between two common ones that only one of them has. Where contents differ,
or where frames alternate without a common one, the two are branches, as after a restart: the
continuation is kept if it lasts to the end, otherwise the user decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.words import frames_text, number_text, plural
from mdio.layouts.base import StoredTimes
from mdio.layouts.views import KEEP_ALL

RUN_FRAMES = 65536
"""Frames whose times are read at a time."""
TIME_ROUNDING = 1e-6
"""Relative rounding error of times, which most files store in single precision."""
GAP = 1.5
"""A note reports a gap between two files that is longer than this many intervals of frames."""

ReadTimes = Callable[[int, int, int], FrameBlock]
"""Takes the number of a file, start and stop; returns times and steps of these frames."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Which frames of which files follow each other.

    Attributes: `parts`: (number of the input file, start, stop), in order.
    `notes`: a sentence for everything that was dropped, reordered or is missing. `changes`: whether
    the result differs from all frames of all files in input order.
    """

    parts: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...] = ()
    changes: bool = False


def parts_of(file: NDArray[np.int64], frame: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return the `Joining.parts` of frames: `frame`, numbered in its `file`, for each of them."""
    breaks = np.flatnonzero((np.diff(file) != 0) | (np.diff(frame) != 1)) + 1
    edges = pairwise([0, *breaks.tolist(), len(frame)])
    return [(int(file[a]), int(frame[a]), int(frame[b - 1]) + 1) for a, b in edges]


def join(
    infos: Sequence[TrajectoryInfo],
    stored: Sequence[StoredTimes],
    read: ReadTimes,
    overlap: str | None,
) -> Joining:
    """Decide which frames of which files follow each other; raises SourceError.

    Only times are read, and only of frames that may be duplicates; steps for formats that number
    integration steps but have no times. If a file has neither, files are joined in input order.

    `infos`, `stored`: of each file, in input order. `overlap`: one of `OVERLAPS`; None is the
    default, which joins all frames in input order if a file is given more than once. Where the
    length of an integration step changes, times of two files that follow from step numbers (DCD)
    are comparable only if the user says so.
    """
    numbers = [number for number, info in enumerate(infos) if info.n_frames]
    all_frames = Joining(tuple((n, 0, infos[n].n_frames) for n in range(len(infos))))
    if overlap == KEEP_ALL or len(numbers) < 2:
        return all_frames
    by_steps = all(stored[n].has_steps and not stored[n].has_times for n in numbers)
    if not by_steps and not all(stored[n].has_times for n in numbers):
        without_times = next(infos[n] for n in numbers if not stored[n].has_times)
        if overlap is not None:
            raise SourceError(
                f"{without_times.path}: its format holds no times by which --overlap {overlap} "
                f"could be followed; give --overlap {KEEP_ALL} to join files in the order given"
            )
        return replace(all_frames, notes=_restarted_times(infos, numbers))
    if by_steps:
        infos, read = _use_steps_as_times(infos, numbers, read)
    paths = [info.path for info in infos]
    duplicates = [path for path, count in Counter(paths).items() if count > 1]
    if overlap is None and duplicates:
        note = (
            f"{duplicates[0]}: given more than once, so all frames of all files are joined as given"
        )
        return replace(all_frames, notes=(note,))
    unit = "steps" if by_steps else "ps"
    for number in numbers:
        info = infos[number]
        if not info.time_first_ps <= info.time_last_ps:  # NaN too
            if overlap is None:
                return all_frames
            raise SourceError(
                f"{info.path}: its times go from {info.time_first_ps:g} to "
                f"{info.time_last_ps:g} {unit}, so that it cannot be joined by time; "
                f"give --overlap {KEEP_ALL} to join files in the order given"
            )
    return _Joiner(infos, stored, read, overlap, unit).join(numbers)


def _restarted_times(infos: Sequence[TrajectoryInfo], numbers: Sequence[int]) -> tuple[str, ...]:
    """Return a note for each file without times whose numbering starts again."""
    return tuple(
        f"{infos[following].path}: joined after {infos[number].path} as given, since there are no "
        "times by which to join them: times start again at "
        f"{number_text(infos[following].time_first_ps)} ps"
        for number, following in pairwise(numbers)
        if infos[following].time_first_ps <= infos[number].time_last_ps
    )


def _use_steps_as_times(
    infos: Sequence[TrajectoryInfo], numbers: Sequence[int], read: ReadTimes
) -> tuple[Sequence[TrajectoryInfo], ReadTimes]:
    """Return `infos` and `read` with steps instead of times."""

    def read_steps(number: int, start: int, stop: int) -> FrameBlock:
        block = read(number, start, stop)
        return replace(block, time=block.step.astype(float))

    step_infos = list(infos)
    for number in numbers:
        last = infos[number].n_frames - 1
        first, second, end = (
            float(read(number, frame, frame + 1).step[0]) for frame in (0, min(1, last), last)
        )
        step_infos[number] = infos[number].replace(
            time_first_ps=first, time_last_ps=end, dt_ps=second - first
        )
    return step_infos, read_steps


@dataclass(slots=True)
class _Joiner:
    """Joins files by their times; collects notes on the frames that it drops."""

    infos: Sequence[TrajectoryInfo]
    stored: Sequence[StoredTimes]
    read: ReadTimes
    overlap: str | None
    unit: str
    notes: list[str] = field(default_factory=list)

    def join(self, numbers: Sequence[int]) -> Joining:
        infos = self.infos
        order = sorted(numbers, key=lambda n: (infos[n].time_first_ps, infos[n].time_last_ps))
        for earlier, later in pairwise(order):
            self._compare(earlier, later)
        if order != list(numbers):
            names = ", ".join(infos[n].path for n in order)
            self.notes.append(f"files were put into the order of their times: {names}")
        runs = {n: (0, infos[n].n_frames) for n in order}
        if self.overlap == "keep-first":
            self._drop_beginnings(order, runs)
        else:
            self._drop_ends(order, runs)
        parts = tuple((n, *runs[n]) for n in order if runs[n][0] < runs[n][1])
        self._note_gaps(parts)
        all_frames = tuple((n, 0, infos[n].n_frames) for n in numbers)
        return Joining(parts, tuple(self.notes), changes=parts != all_frames)

    def _tolerance(self, time_ps: float, *infos: TrajectoryInfo) -> float:
        """Return the largest difference of two times that count as equal."""
        if self.unit == "steps":
            return 0.5
        rounding = TIME_ROUNDING * abs(time_ps)
        return min([rounding, *(abs(info.dt_ps) / 4 for info in infos if info.n_frames > 1)])

    def _compare(self, number: int, following: int) -> None:
        """Raise SourceError if two neighbouring files overlap and `overlap` does not decide."""
        earlier, later = self.infos[number], self.infos[following]
        begin, tolerance = later.time_first_ps, self._tolerance(later.time_first_ps, earlier, later)
        if earlier.time_last_ps < begin - tolerance:
            return
        texts = " and ".join(
            f"{info.path} ({number_text(info.time_first_ps)} to "
            f"{number_text(info.time_last_ps)} {self.unit})"
            for info in (earlier, later)
        )
        if self.overlap == "error":
            raise SourceError(
                f"{texts} overlap in time; give --overlap keep-last or keep-first to keep the "
                f"frames of one of them, or {KEEP_ALL} to join the files as they are"
            )
        if self.overlap is not None:
            return
        step, following_step = (self.stored[n].step_ps for n in (number, following))
        offset_ps = begin - earlier.time_first_ps
        # A run that counts from its own beginning may have stored its first frame or not.
        is_next = tolerance < offset_ps <= abs(earlier.dt_ps) + tolerance
        if (
            step is not None
            and following_step is not None
            and (is_next or not math.isclose(step, following_step, rel_tol=1e-5))
        ):
            raise SourceError(
                f"{texts} count integration steps of {number_text(step)} and "
                f"{number_text(following_step)} ps from the beginning of the simulation, or each "
                "from that of its own run, so that their times do not show whether they overlap: "
                f"give --overlap {KEEP_ALL} if each continues the one before, or keep-last, "
                "keep-first to trust these times"
            )
        if abs(offset_ps) <= tolerance:
            raise SourceError(
                f"{texts} begin at the same time, as replicas do: they are not parts of one "
                "trajectory. Store them as an ensemble with mdio convert --ensemble (in Python: "
                "mdio.convert_ensemble), convert each by itself, or give --overlap "
                f"{KEEP_ALL} to join them as they are (or keep-last, keep-first to keep the "
                "frames of one of them)"
            )
        if later.time_last_ps < earlier.time_last_ps - tolerance:
            raise SourceError(
                f"{texts} overlap in time, and the second ends before the first. Give --overlap "
                "keep-last to continue with the second all the same, keep-first to keep the first, "
                f"or {KEEP_ALL} to join the files as they are"
            )

    def _drop_ends(self, order: Sequence[int], runs: dict[int, tuple[int, int]]) -> None:
        """Drop frames at the end of each file from where the next one begins."""
        begin, preferred = math.inf, order[-1]
        for number in reversed(order):
            info = self.infos[number]
            if begin < math.inf:
                stop = self._stop_before(number, preferred)
                runs[number] = (0, stop)
                self._note_dropped(number, stop, info.n_frames, preferred)
            begin, preferred = info.time_first_ps, number

    def _stop_before(self, number: int, preferred: int) -> int:
        info = self.infos[number]
        begin_ps = self.infos[preferred].time_first_ps
        tolerance = self._tolerance(begin_ps, info, self.infos[preferred])
        if info.time_last_ps < begin_ps - tolerance:
            return info.n_frames
        begin_step = int(self.read(preferred, 0, 1).step[0])
        for stop in range(info.n_frames, 0, -RUN_FRAMES):
            start = max(0, stop - RUN_FRAMES)
            block = self.read(number, start, stop)
            is_before = block.time < begin_ps - tolerance
            is_same = np.abs(block.time - begin_ps) <= tolerance
            if np.count_nonzero(is_same) > 1:  # times are too coarse; steps are not
                is_before |= is_same & (block.step < begin_step)
            if is_before.any():
                return start + int(np.flatnonzero(is_before)[-1]) + 1
        return 0

    def _drop_beginnings(self, order: Sequence[int], runs: dict[int, tuple[int, int]]) -> None:
        """Drop frames at the beginning of each file up to where the earlier ones end."""
        last = order[0]
        for number in order[1:]:
            info = self.infos[number]
            start = self._start_after(number, last)
            runs[number] = (start, info.n_frames)
            self._note_dropped(number, 0, start, last)
            if start < info.n_frames:
                last = number

    def _start_after(self, number: int, last: int) -> int:
        info, earlier = self.infos[number], self.infos[last]
        end_ps = earlier.time_last_ps
        tolerance = self._tolerance(end_ps, info, earlier)
        if info.time_first_ps > end_ps + tolerance:
            return 0
        end_step = int(self.read(last, earlier.n_frames - 1, earlier.n_frames).step[0])
        for start in range(0, info.n_frames, RUN_FRAMES):
            block = self.read(number, start, min(start + RUN_FRAMES, info.n_frames))
            is_after = block.time > end_ps + tolerance
            is_same = np.abs(block.time - end_ps) <= tolerance
            if np.count_nonzero(is_same) > 1:
                is_after |= is_same & (block.step > end_step)
            if is_after.any():
                return start + int(np.argmax(is_after))
        return info.n_frames

    def _note_dropped(self, number: int, start: int, stop: int, preferred: int) -> None:
        if start == stop:
            return
        first_ps = self.read(number, start, start + 1).time[0]
        last_ps = self.read(number, stop - 1, stop).time[0]
        preferred_info = self.infos[preferred]
        has_all = last_ps <= preferred_info.time_last_ps + self._tolerance(last_ps, preferred_info)
        continuation = f"continues from {number_text(preferred_info.time_first_ps)} {self.unit} on"
        self.notes.append(
            f"{self.infos[number].path}: {frames_text(start, stop)} ({number_text(first_ps)} to "
            f"{number_text(last_ps)} {self.unit}) dropped, since {preferred_info.path} "
            f"{'covers these times' if has_all else continuation}"
        )

    def _note_gaps(self, parts: Sequence[tuple[int, int, int]]) -> None:
        for (number, _, stop), (following, start, _) in pairwise(parts):
            end_ps = float(self.read(number, stop - 1, stop).time[0])
            begin_ps = float(self.read(following, start, start + 1).time[0])
            intervals = [
                info.dt_ps
                for info in (self.infos[number], self.infos[following])
                if info.n_frames > 1
            ]
            if intervals and begin_ps - end_ps > GAP * max(intervals):
                ends = (end_ps, self.infos[number].path), (begin_ps, self.infos[following].path)
                self.notes.append(note_on_gap(*ends, self.unit))


def note_on_gap(last: tuple[float, object], following: tuple[float, object], unit: str) -> str:
    """Return a note on two frames, each the time and the file, that have none between them."""
    ends = [f"{number_text(time)} {unit} ({path})" for time, path in (last, following)]
    return f"no frames between {ends[0]} and {ends[1]}"


Numbers = NDArray[np.int64]
SameContents = Callable[[Numbers, Numbers], NDArray[np.bool_]]
"""Takes old and new frame numbers; returns which pairs have the same contents."""


@dataclass(frozen=True)
class FrameKeys:
    """Times and steps of a trajectory, by which frames are matched.

    Attributes: `path`: for messages. `time` (ps), `step`: of each frame. `has_times`, `has_steps`:
    whether the file stores them.
    """

    path: str
    time: NDArray[np.float64]
    step: Numbers
    has_times: bool
    has_steps: bool

    @property
    def tells_times(self) -> bool:
        """Whether its times tell frames apart: a DCD with a step of 0 has the same in all."""
        return self.has_times and (len(self.time) < 2 or bool(np.ptp(self.time)))

    def of(self, unit: str) -> NDArray[np.float64]:
        """Return the times (``ps``), or the steps as floats (``steps``)."""
        return self.time if unit == "ps" else self.step.astype(float)


@dataclass(frozen=True)
class Merged:
    """The frames of the result, in order.

    Attributes: `old_frames`, `new_frames`: number of each frame in the old and in the new
    trajectory, or -1. `from_new`: whether it is taken from the new one. `unit`: of the keys: ps or
    steps. `equal`: whether both have it, with the same contents. `notes`: on frames that were
    replaced or dropped.
    """

    old_frames: Numbers
    new_frames: Numbers
    from_new: NDArray[np.bool_]
    unit: str
    equal: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


def merge(
    old: FrameKeys,
    new: FrameKeys,
    same_contents: SameContents,
    overlap: str | None,
    following: FrameKeys | None = None,
) -> Merged:
    """Insert frames of `new` into `old`; raises SourceError.

    `overlap`: which of two differing frames is kept: one of `OVERLAPS` except ``keep-all``; None
    keeps those of `new` if it lasts to the end, or if single frames differ, and raises if that
    would drop frames of `old` without a replacement. `following`: the file that is merged next, if
    it continues `new`: from its first frame on, its frames count, not those of `new`.
    """
    return _Merger(old, new, same_contents, overlap, following).merge()


def choose_keys(
    old: FrameKeys, new: FrameKeys
) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Return the keys by which frames are matched (old, new), and their unit."""
    both_keys = old, new
    if all(keys.has_times and _ascends(keys.time) for keys in both_keys):
        return old.time, new.time, "ps"
    if all(keys.has_steps and _ascends(keys.step) for keys in both_keys):
        return old.step.astype(float), new.step.astype(float), "steps"
    for keys in both_keys:
        if keys.has_times and not _ascends(keys.time):
            frame = int(np.argmax(~(np.diff(keys.time) > 0)))
            raise SourceError(
                f"{keys.path}: its times do not ascend (frame {frame + 1} at "
                f"{number_text(keys.time[frame + 1])} ps follows {number_text(keys.time[frame])} "
                f"ps), so that frames cannot be matched; give --overlap {KEEP_ALL} to append all "
                "frames"
            )
    without_times = next(keys for keys in both_keys if not keys.has_times)
    raise SourceError(
        f"{without_times.path}: has no times or steps of its own by which frames could be matched; "
        f"give --overlap {KEEP_ALL} to append all frames"
    )


def _ascends(values: NDArray[np.number]) -> bool:
    return bool(np.all(np.diff(values) > 0) and np.all(np.isfinite(values)))


def are_times_missing(old: FrameKeys, new: FrameKeys) -> bool:
    """Return whether one of two files stores neither times that differ nor steps."""
    both_keys = old, new
    return not all(keys.tells_times for keys in both_keys) and not all(
        keys.has_steps for keys in both_keys
    )


def merge_by_contents(old: FrameKeys, new: FrameKeys, same_contents: SameContents) -> Merged:
    """Append frames of a file without times or steps, except those that `old` has already.

    `old` has them if `new` was appended before and has grown since.
    """
    n_old, n_new = len(old.time), len(new.time)
    begin, n_equal = n_old, 0
    for start in np.flatnonzero(old.time == new.time[0]).tolist():
        frames = np.arange(min(n_old - start, n_new))
        if not same_contents(frames[:1] + start, frames[:1]).all():
            continue
        equal = same_contents(frames + start, frames)
        if not equal.all() or start + len(frames) < n_old < start + n_new:
            differing = len(frames) if equal.all() else int(np.argmin(equal))
            raise SourceError(
                f"{new.path}: begins as frame {start} of {old.path} does, but its frame "
                f"{differing} is not the one that follows there, and there are no times or steps "
                f"that tell frames apart; give --overlap {KEEP_ALL} to append all frames"
            )
        begin, n_equal = start, len(frames)
        break
    numbers = np.arange(n_old + n_new - n_equal)
    old_frames = np.where(numbers < n_old, numbers, -1)
    new_frames = np.where((numbers >= begin) & (numbers < begin + n_new), numbers - begin, -1)
    notes: tuple[str, ...] = ()
    if not n_equal:
        notes = (
            f"{new.path}: added after the frames of {old.path}, since there are no times by which "
            f"to join them: times start again at {number_text(new.time[0])} ps",
        )
    equal = (old_frames >= 0) & (new_frames >= 0)
    return Merged(old_frames, new_frames, old_frames < 0, "frames", equal, notes)


def match_frames(
    old: NDArray[np.float64], new: NDArray[np.float64], unit: str
) -> tuple[Numbers, Numbers]:
    """Return the indices of equal keys in `old` and `new`, both ascending; times may be rounded."""
    if not (len(old) and len(new)):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    tolerance = np.zeros(len(new))
    if unit == "ps":
        spacing = min(np.diff(keys).min(initial=np.inf) for keys in (old, new))
        tolerance = np.minimum(TIME_ROUNDING * np.abs(new), spacing / 4)
    nearest = np.searchsorted(old, new - tolerance).clip(max=len(old) - 1)
    matches = np.flatnonzero(np.abs(old[nearest] - new) <= tolerance)
    return nearest[matches].astype(np.int64), matches.astype(np.int64)


class _Merger:
    """Merges two trajectories; its arrays have an element for each frame, in the order of keys."""

    def __init__(
        self,
        old: FrameKeys,
        new: FrameKeys,
        same_contents: SameContents,
        overlap: str | None,
        following: FrameKeys | None,
    ) -> None:
        self.old, self.new, self.overlap = old, new, overlap
        old_keys, new_keys, self.unit = choose_keys(old, new)
        self.following_begin = math.inf
        """Key from which on the frames of `following` count."""
        next_keys = np.empty(0) if following is None else following.of(self.unit)
        if len(next_keys) and next_keys[-1] >= new_keys[-1]:
            self.following_begin = float(next_keys[0] - TIME_ROUNDING * abs(next_keys[0]))
        old_matched, new_matched = match_frames(old_keys, new_keys, self.unit)
        self.old_keys = old_keys
        self.n_matched = len(old_matched)
        new_of_old = np.full(len(old_keys), -1)
        new_of_old[old_matched] = new_matched
        differs = np.zeros(len(old_keys), bool)
        differs[old_matched] = ~same_contents(old_matched, new_matched)
        unmatched = np.setdiff1d(np.arange(len(new_keys)), new_matched)
        keys = np.concatenate([old_keys, new_keys[unmatched]])
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        missing = np.full(len(unmatched), -1)
        self.old_frames = np.concatenate([np.arange(len(old_keys)), missing])[order].astype(
            np.int64
        )
        self.new_frames = np.concatenate([new_of_old, unmatched])[order].astype(np.int64)
        self.differs = np.concatenate([differs, np.zeros(len(unmatched), bool)])[order]
        self.is_old = self.old_frames >= 0
        self.is_new = self.new_frames >= 0
        self.equal = self.is_old & self.is_new & ~self.differs
        self.gap = GAP * float(np.median(np.diff(old_keys))) if len(old_keys) > 1 else np.inf
        self.new_gap = GAP * float(np.median(np.diff(new_keys))) if len(new_keys) > 1 else np.inf
        self.from_new = ~self.is_old
        self.is_kept = np.ones(len(keys), bool)
        self.is_left_out = np.zeros(len(keys), bool)
        """Whether the new frame, which differs, is left out for the old one."""
        self.notes: list[str] = []

    def merge(self) -> Merged:
        if self.overlap == "error" and self.n_matched:
            raise self._overlap_error(
                self.is_old & self.is_new, "are there already", "leave out --overlap error, or give"
            )
        sections = np.cumsum(self.equal)  # each begins with a common, equal frame
        last = int(sections[-1]) if len(sections) else 0
        differ, only_old, only_new = (
            np.bincount(sections[mask], minlength=last + 1) > 0
            for mask in (self.differs, self.is_old & ~self.is_new, ~self.is_old)
        )
        numbers = np.arange(last + 1)
        may_have_branches = differ | (only_old & only_new & ((numbers == 0) | (numbers == last)))
        for number in np.flatnonzero(may_have_branches):
            begin, end = np.searchsorted(sections, [number, number + 1])
            begin += bool(self.equal[begin])
            if self._has_two_branches(slice(begin, end)):
                self._choose_branch(slice(begin, end))
        is_dropped = ~self.is_kept & self.is_old
        for mask, change, reason in (
            (self.from_new & self.is_old, "replaced by those of", "which differ"),
            (is_dropped, "dropped, since they are not of the branch of", "which continues there"),
        ):
            if mask.any():
                self.notes.append(
                    f"{self.old.path}: {self._count(mask)} {change} {self.new.path}, {reason}"
                )
        is_ignored = ~self.is_kept & ~self.is_old | self.is_left_out
        if is_ignored.any():
            n_frames = plural(int(np.count_nonzero(is_ignored)), "frame")
            self.notes.append(
                f"{n_frames} of {self.new.path} ({self._describe_keys(is_ignored)}) left out, "
                f"since those of {self.old.path} are kept there"
            )
        return Merged(
            self.old_frames[self.is_kept],
            self.new_frames[self.is_kept],
            self.from_new[self.is_kept],
            self.unit,
            self.equal[self.is_kept],
            tuple(self.notes),
        )

    def _has_two_branches(self, section: slice) -> bool:
        """Return whether frames between two common ones cannot all belong to one trajectory."""
        if self.differs[section].any():
            return True
        is_only_new, keys = ~self.is_old[section], self.keys[section]
        boundaries = np.flatnonzero(np.diff(is_only_new)) + 1
        for first, end in pairwise(boundaries.tolist()):
            gap = self.gap if is_only_new[first] else self.new_gap
            if keys[end] - keys[first - 1] <= gap:
                return True
        return False

    def _choose_branch(self, section: slice) -> None:
        """Choose one of the two branches in a section; raise SourceError if the user has to."""
        indices = np.arange(section.start, section.stop)
        new = indices[self.is_new[section]]
        begin, end = int(new[0]), int(new[-1]) + 1
        old_between = indices[(indices >= begin) & (indices < end) & ~self.is_new[section]]
        old_after = indices[indices >= end]
        is_tail = section.stop == len(self.keys)
        if len(old_after):
            frame = int(self.old_frames[old_after[0]])
            if self.old_keys[frame] - self.old_keys[frame - 1] > self.gap:
                old_after = old_after[:0]  # after a gap: another part, which is kept
        differing = self.differs.copy()
        differing[: section.start] = differing[section.stop :] = False
        if self.overlap == "error":
            raise self._overlap_error(differing, "differ", "give")
        is_continued = is_tail and bool(self.keys[begin] >= self.following_begin)
        if self.overlap == "keep-first" or (self.overlap is None and is_continued):
            old = indices[self.is_old[section]]
            self.is_kept[old[0] : old[-1] + 1] &= self.is_old[old[0] : old[-1] + 1]
            self.is_left_out[section] = self.differs[section]
            return
        if self.overlap is None:
            # The second run may have left out its first frame.
            if is_tail and section.start <= begin <= 1 and not self.is_new[:begin].any():
                raise self._replica_error(len(old_after))
            if len(old_between) and not is_tail:
                raise self._overlap_error(
                    differing,
                    f"differ, and between them it lacks {plural(len(old_between), 'frame')}",
                    "give",
                )
            if is_tail and len(old_after):
                raise self._early_end_error(differing, old_after)
        self.from_new[section] |= self.differs[section]
        self.is_kept[old_between] = False
        if is_tail:
            self.is_kept[old_after] = False

    def _describe_keys(self, mask: NDArray[np.bool_]) -> str:
        keys = self.keys[mask]
        text = " to ".join(map(number_text, dict.fromkeys((keys[0], keys[-1]))))
        return f"at {text} {self.unit}" if self.unit == "ps" else f"at step {text}"

    def _count(self, mask: NDArray[np.bool_]) -> str:
        return f"{plural(int(np.count_nonzero(mask)), 'frame')} ({self._describe_keys(mask)})"

    def _overlap_error(self, mask: NDArray[np.bool_], problem: str, advice: str) -> SourceError:
        text = f"{self._count(mask)} {problem}" if mask.any() else "its frames alternate with them"
        return SourceError(
            f"{self.new.path}: beside the frames of {self.old.path}, {text}; {advice} "
            f"{self._options_text()}"
        )

    def _options_text(self, n_dropped: int = 0) -> str:
        dropped_text = f" and drop the {plural(n_dropped, 'frame')} after it" if n_dropped else ""
        return (
            f"--overlap keep-last to take those of {self.new.path}{dropped_text}, keep-first "
            f"to keep those of {self.old.path}, or {KEEP_ALL} to append all frames"
        )

    def _replica_error(self, n_behind: int) -> SourceError:
        key = "time" if self.unit == "ps" else "step"
        return SourceError(
            f"{self.old.path} and {self.new.path} begin at the same {key}, one frame apart or the "
            "second earlier, and have no frame in common, as replicas do: they are not parts of "
            f"one trajectory, unless the times of each start again (then give --overlap "
            f"{KEEP_ALL}). Convert each by itself, or give {self._options_text(n_behind)}"
        )

    def _early_end_error(self, differing: NDArray[np.bool_], frames_behind: Numbers) -> SourceError:
        problem = "its frames alternate with others"
        if differing.any():
            problem = f"{self._count(differing)} differ"
        end = self.new.time[-1] if self.unit == "ps" else self.new.step[-1]
        return SourceError(
            f"{self.new.path}: {problem} from what {self.old.path} has there, which continues to "
            f"{self.keys[frames_behind[-1]]:g} {self.unit}, while it ends at {end:g}; "
            f"give {self._options_text(len(frames_behind))}"
        )
