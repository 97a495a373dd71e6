"""How frames of several files become one trajectory: in the order of their times, none twice.

Files are joined one behind the other (`join`), or the frames of one are put among those of another,
matched one by one, by time or by step (`merge`). Frames that both have, with the same contents,
show that both are of one trajectory there; between two of them whatever only one of them has is of
it too. Where contents differ, or frames of both alternate without a common one, they are of two
branches, as after a restart: then the continuation wins if it goes on to the end, and otherwise the
user decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.words import frames_text, plural
from mdio.layouts.views import KEEP_ALL, check_overlap

RUN_FRAMES = 65536
"""Frames whose times are read at a time."""
ROUNDING = 1e-6
"""Files keep times in single precision as a rule: relative."""
GAP = 1.5
"""From so many intervals on, the time between two files is told to be a gap."""

ReadTimes = Callable[[int, int, int], FrameBlock]
"""Gives times and steps of frames ``start:stop`` of a file, by its number."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Which frames of which files follow each other.

    Attributes: `parts`: (number of the file as given, first frame, one beyond the last), in order.
    `notes`: what was dropped, put into another order or is missing, a sentence each. `changes`:
    whether this is anything else than all frames of all files as given.
    """

    parts: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...] = ()
    changes: bool = False


def join(
    infos: Sequence[TrajectoryInfo],
    timed: Sequence[bool],
    read: ReadTimes,
    overlap: str | None,
    steps_ps: Sequence[float | None] = (),
    stepped: Sequence[bool] = (),
) -> Joining:
    """Decide which frames of which files follow each other.

    Times alone are read, and only of frames that may be there twice. Where formats hold none, but
    number integration steps, these take their place.

    `infos`: of each file, in the order given. `timed`: whether the times of each are its own; if
    not, frames are but counted, and files are joined in the order given. `read`: gives times and
    steps. `overlap`: one of `OVERLAPS`; None = the default, which takes a file that is given more
    than once to be meant so, and joins all as given. `steps_ps`: of files whose times follow from
    counted integration steps (DCD), the length of a step: where it changes, as many steps are
    another time, and times of two files are compared only if that is asked for. `stepped`: whether
    files that have no times of their own number steps.
    Raises PlanError: an `overlap` that is none. SourceError: frames are there twice, and must not
    be or cannot be told apart.
    """
    check_overlap(overlap)
    given = [number for number, info in enumerate(infos) if info.n_frames]
    everything = Joining(tuple((n, 0, infos[n].n_frames) for n in range(len(infos))))
    if overlap == KEEP_ALL or len(given) < 2:
        return everything
    by_steps = bool(stepped) and all(stepped[n] for n in given)
    if not by_steps and not all(timed[n] for n in given):
        without = next(infos[n] for n in given if not timed[n])
        if overlap is not None:
            raise SourceError(
                f"{without.path}: its format holds no times by which --overlap {overlap} could be "
                f"followed; give --overlap {KEEP_ALL} to join files in the order given"
            )
        return replace(everything, notes=_times_that_start_again(infos, given))
    if by_steps:
        infos, read = _by_steps(infos, given, read)
    paths = [info.path for info in infos]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if overlap is None and twice:
        note = f"{twice[0]}: given more than once, so all frames of all files are joined as given"
        return replace(everything, notes=(note,))
    unit = "steps" if by_steps else "ps"
    for number in given:
        info = infos[number]
        if not info.time_first_ps <= info.time_last_ps:  # NaN too
            if overlap is None:
                return everything
            raise SourceError(
                f"{info.path}: its times go from {info.time_first_ps:g} to "
                f"{info.time_last_ps:g} {unit}, so that it cannot be joined by time; "
                f"give --overlap {KEEP_ALL} to join files in the order given"
            )
    return _Joiner(infos, read, overlap, dict(enumerate(steps_ps)), unit).join(given)


def _times_that_start_again(
    infos: Sequence[TrajectoryInfo], given: Sequence[int]
) -> tuple[str, ...]:
    """Say where frames that are but counted are not told from those of the file before."""
    return tuple(
        f"{infos[following].path}: joined behind {infos[number].path} as given, since there are no "
        f"times by which to join them: times start again at {infos[following].time_first_ps:g} ps"
        for number, following in pairwise(given)
        if infos[following].time_first_ps <= infos[number].time_last_ps
    )


def _by_steps(
    infos: Sequence[TrajectoryInfo], given: Sequence[int], read: ReadTimes
) -> tuple[Sequence[TrajectoryInfo], ReadTimes]:
    """Return what is known of files, and what reads of them, with steps in the place of times."""

    def read_steps(number: int, start: int, stop: int) -> FrameBlock:
        block = read(number, start, stop)
        return replace(block, time=block.step.astype(float))

    known = list(infos)
    for number in given:
        last = infos[number].n_frames - 1
        first, second, end = (
            float(read(number, at, at + 1).step[0]) for at in (0, min(1, last), last)
        )
        known[number] = infos[number].replace(
            time_first_ps=first, time_last_ps=end, dt_ps=second - first
        )
    return known, read_steps


class _Joiner:
    def __init__(
        self,
        infos: Sequence[TrajectoryInfo],
        read: ReadTimes,
        overlap: str | None,
        steps_ps: Mapping[int, float | None],
        unit: str,
    ) -> None:
        self.unit = unit
        self.infos, self.read, self.overlap, self.steps_ps = infos, read, overlap, steps_ps
        self.notes: list[str] = []

    def join(self, given: Sequence[int]) -> Joining:
        infos = self.infos
        order = sorted(given, key=lambda n: (infos[n].time_first_ps, infos[n].time_last_ps))
        for earlier, later in pairwise(order):
            self._compare(earlier, later)
        if order != list(given):
            names = ", ".join(infos[n].path for n in order)
            self.notes.append(f"files were put into the order of their times: {names}")
        kept = {n: (0, infos[n].n_frames) for n in order}
        if self.overlap == "keep-first":
            self._drop_beginnings(order, kept)
        else:
            self._drop_ends(order, kept)
        parts = tuple((n, *kept[n]) for n in order if kept[n][0] < kept[n][1])
        self._tell_gaps(parts)
        everything = tuple((n, 0, infos[n].n_frames) for n in given)
        return Joining(parts, tuple(self.notes), changes=parts != everything)

    def _slack(self, time_ps: float, *infos: TrajectoryInfo) -> float:
        """Return how far apart times may be that mean the same; steps are whole numbers."""
        if self.unit == "steps":
            return 0.5
        rounding = ROUNDING * abs(time_ps)
        return min([rounding, *(abs(info.dt_ps) / 4 for info in infos if info.n_frames > 1)])

    def _compare(self, number: int, following: int) -> None:
        """Refuse an overlap of two files, which follow each other, that nobody can decide on."""
        earlier, later = self.infos[number], self.infos[following]
        begin, slack = later.time_first_ps, self._slack(later.time_first_ps, earlier, later)
        if earlier.time_last_ps < begin - slack:
            return
        unit = self.unit
        both = (
            f"{earlier.path} ({earlier.time_first_ps:g} to {earlier.time_last_ps:g} {unit}) and "
            f"{later.path} ({begin:g} to {later.time_last_ps:g} {self.unit})"
        )
        if self.overlap == "error":
            raise SourceError(
                f"{both} overlap in time; give --overlap keep-last or keep-first to keep the "
                f"frames of one of them, or {KEEP_ALL} to join the files as they are"
            )
        if self.overlap is not None:
            return
        steps = self.steps_ps.get(number), self.steps_ps.get(following)
        if None not in steps and not math.isclose(
            *cast("tuple[float, float]", steps), rel_tol=1e-5
        ):
            raise SourceError(
                f"{both} count integration steps of {steps[0]:g} and {steps[1]:g} ps from the "
                "beginning of the simulation, so that their times do not tell whether they "
                f"overlap: give --overlap {KEEP_ALL} if each goes on where the former ends, or "
                "keep-last, keep-first to go by these times"
            )
        if abs(begin - earlier.time_first_ps) <= slack:
            raise SourceError(
                f"{both} begin at the same time, as replicas do: they are not parts of one "
                f"trajectory. Convert each by itself, or give --overlap {KEEP_ALL} to join them "
                "as they are (or keep-last, keep-first to keep the frames of one of them)"
            )
        if later.time_last_ps < earlier.time_last_ps - slack:
            raise SourceError(
                f"{both} overlap in time, and the second ends before the first. Give --overlap "
                "keep-last to go on with the second all the same, keep-first to keep the first, "
                f"or {KEEP_ALL} to join the files as they are"
            )

    def _drop_ends(self, order: Sequence[int], kept: dict[int, tuple[int, int]]) -> None:
        """Let each file end before any later one begins."""
        begin, winner = math.inf, order[-1]
        for number in reversed(order):
            info = self.infos[number]
            if begin < math.inf:
                stop = self._end_before(number, winner)
                kept[number] = (0, stop)
                self._tell_dropped(number, stop, info.n_frames, winner)
            begin, winner = info.time_first_ps, number

    def _end_before(self, number: int, winner: int) -> int:
        info = self.infos[number]
        begin_ps = self.infos[winner].time_first_ps
        slack = self._slack(begin_ps, info, self.infos[winner])
        if info.time_last_ps < begin_ps - slack:
            return info.n_frames
        begin_step = int(self.read(winner, 0, 1).step[0])
        for stop in range(info.n_frames, 0, -RUN_FRAMES):
            start = max(0, stop - RUN_FRAMES)
            block = self.read(number, start, stop)
            before = block.time < begin_ps - slack
            same = np.abs(block.time - begin_ps) <= slack
            if (
                np.count_nonzero(same) > 1
            ):  # times are too coarse to tell these apart; steps are not
                before |= same & (block.step < begin_step)
            if before.any():
                return start + int(np.flatnonzero(before)[-1]) + 1
        return 0

    def _drop_beginnings(self, order: Sequence[int], kept: dict[int, tuple[int, int]]) -> None:
        """Let each file begin after all former ones have ended."""
        last = order[0]
        for number in order[1:]:
            info = self.infos[number]
            start = self._begin_after(number, last)
            kept[number] = (start, info.n_frames)
            self._tell_dropped(number, 0, start, last)
            if start < info.n_frames:
                last = number

    def _begin_after(self, number: int, last: int) -> int:
        info, former = self.infos[number], self.infos[last]
        end_ps = former.time_last_ps
        slack = self._slack(end_ps, info, former)
        if info.time_first_ps > end_ps + slack:
            return 0
        end_step = int(self.read(last, former.n_frames - 1, former.n_frames).step[0])
        for start in range(0, info.n_frames, RUN_FRAMES):
            block = self.read(number, start, min(start + RUN_FRAMES, info.n_frames))
            after = block.time > end_ps + slack
            same = np.abs(block.time - end_ps) <= slack
            if np.count_nonzero(same) > 1:
                after |= same & (block.step > end_step)
            if after.any():
                return start + int(np.argmax(after))
        return info.n_frames

    def _tell_dropped(self, number: int, start: int, stop: int, winner: int) -> None:
        if start == stop:
            return
        block = self.read(number, start, start + 1), self.read(number, stop - 1, stop)
        times = f"{block[0].time[0]:g} to {block[1].time[0]:g} {self.unit}"
        frames = frames_text(start, stop)
        self.notes.append(
            f"{self.infos[number].path}: {frames} ({times}) dropped, since "
            f"{self.infos[winner].path} has these times too"
        )

    def _tell_gaps(self, parts: Sequence[tuple[int, int, int]]) -> None:
        for (number, _, stop), (following, start, _) in pairwise(parts):
            end_ps = float(self.read(number, stop - 1, stop).time[0])
            begin_ps = float(self.read(following, start, start + 1).time[0])
            intervals = [
                info.dt_ps
                for info in (self.infos[number], self.infos[following])
                if info.n_frames > 1
            ]
            if intervals and begin_ps - end_ps > GAP * max(intervals):
                self.notes.append(
                    f"no frames between {end_ps:g} {self.unit}, where "
                    f"{self.infos[number].path} ends, and "
                    f"{begin_ps:g} {self.unit}, where {self.infos[following].path} begins"
                )


Numbers = NDArray[np.int64]
Same = Callable[[Numbers, Numbers], NDArray[np.bool_]]
"""Tells which frames of the first have the contents of those of the second."""


@dataclass(frozen=True)
class Frames:
    """What tells frames of a trajectory apart.

    Attributes: `path`: for messages. `time` (ps), `step`: of each frame. `timed`, `stepped`:
    whether these are its own, and not made up.
    """

    path: str
    time: NDArray[np.float64]
    step: Numbers
    timed: bool
    stepped: bool


@dataclass(frozen=True)
class Merged:
    """The frames of the result, in order.

    Attributes: `there`, `here`: the frame that it is of the former, and of what was added to it; -1
    = of none. `added`: whether it is taken from the latter. `unit`: of that by which frames were
    told apart: ps or steps. `equal`: whether both have it. `notes`: what was replaced or dropped.
    """

    there: Numbers
    here: Numbers
    added: NDArray[np.bool_]
    unit: str
    equal: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


def merge(old: Frames, new: Frames, same: Same, overlap: str | None) -> Merged:
    """Put frames of `new` among those of `old`.

    `overlap`: what is done with frames that differ: one of `OVERLAPS` but ``keep-all``; None =
    those of `new` are taken where it goes on to the end, or where it has other contents for single
    frames; an error where that would drop frames for which it has none.
    Raises SourceError: it cannot be told what is meant; or frames are there twice, and must not be.
    """
    return _Merger(old, new, same, overlap).merge()


def keys_of(old: Frames, new: Frames) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Return by what frames of both are told apart, and its unit.

    Raises SourceError: neither times nor steps tell.
    """
    both = old, new
    if all(one.timed and _ascends(one.time) for one in both):
        return old.time, new.time, "ps"
    if all((one.timed or one.stepped) and _ascends(one.step) for one in both):
        return old.step.astype(float), new.step.astype(float), "steps"
    for one in both:
        if one.timed and not _ascends(one.time):
            at = int(np.argmax(~(np.diff(one.time) > 0)))
            raise SourceError(
                f"{one.path}: its times do not ascend (frame {at + 1} at {one.time[at + 1]:g} ps "
                f"follows {one.time[at]:g} ps), so that frames cannot be matched; give --overlap "
                f"{KEEP_ALL} to add all frames behind those that are there"
            )
    without = next(one for one in both if not one.timed)
    raise SourceError(
        f"{without.path}: has no times or steps of its own by which frames could be matched; give "
        f"--overlap {KEEP_ALL} to add all frames behind those that are there"
    )


def _ascends(values: NDArray[np.number]) -> bool:
    return bool(np.all(np.diff(values) > 0) and np.all(np.isfinite(values)))


def are_counted(old: Frames, new: Frames) -> bool:
    """Return whether frames have neither times nor steps of their own, of one of the two at least.

    They have but numbers then, which say nothing of those of another file.
    """
    return not all(one.timed for one in (old, new)) and not all(
        one.timed or one.stepped for one in (old, new)
    )


def continued(old: Frames, new: Frames, same: Same) -> Merged:
    """Put frames that are but counted behind others; not those that are there already.

    They are if the frames of a file that was added before are theirs: one that has grown.
    Raises SourceError: it begins as the other does, and goes on in another way.
    """
    n_old, n_new = len(old.time), len(new.time)
    begin, n_equal = n_old, 0
    for at in np.flatnonzero(old.time == new.time[0]).tolist():
        here = np.arange(min(n_old - at, n_new))
        if not same(here[:1] + at, here[:1]).all():
            continue
        equal = same(here + at, here)
        if not equal.all() or at + len(here) < n_old < at + n_new:
            other = len(here) if equal.all() else int(np.argmin(equal))
            raise SourceError(
                f"{new.path}: begins as frame {at} of {old.path} does, but its frame {other} is "
                "not the one that follows there, and there are no times or steps that tell frames "
                f"apart; give --overlap {KEEP_ALL} to add all frames behind those that are there"
            )
        begin, n_equal = at, len(here)
        break
    n_frames = n_old + n_new - n_equal
    numbers = np.arange(n_frames)
    there = np.where(numbers < n_old, numbers, -1)
    here = np.where((numbers >= begin) & (numbers < begin + n_new), numbers - begin, -1)
    notes: tuple[str, ...] = ()
    if not n_equal:
        notes = (
            f"{new.path}: added behind the frames of {old.path}, since there are no times by which "
            f"to join them: times start again at {new.time[0]:g} ps",
        )
    return Merged(there, here, there < 0, "frames", (there >= 0) & (here >= 0), notes)


def matches(
    old: NDArray[np.float64], new: NDArray[np.float64], unit: str
) -> tuple[Numbers, Numbers]:
    """Return which of `old` are which of `new`, both ascending; times are rounded in files."""
    if not (len(old) and len(new)):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    slack = np.zeros(len(new))
    if unit == "ps":
        apart = min(np.diff(one).min(initial=np.inf) for one in (old, new))
        slack = np.minimum(ROUNDING * np.abs(new), apart / 4)
    at = np.searchsorted(old, new - slack).clip(max=len(old) - 1)
    here = np.flatnonzero(np.abs(old[at] - new) <= slack)
    return at[here].astype(np.int64), here.astype(np.int64)


class _Merger:
    def __init__(self, old: Frames, new: Frames, same: Same, overlap: str | None) -> None:
        self.old, self.new, self.overlap = old, new, overlap
        old_keys, new_keys, self.unit = keys_of(old, new)
        there, here = matches(old_keys, new_keys, self.unit)
        self.old_keys = old_keys
        self.n_matched = len(there)
        partner = np.full(len(old_keys), -1)
        partner[there] = here
        other = np.zeros(len(old_keys), bool)
        other[there] = ~same(there, here)
        alone = np.setdiff1d(np.arange(len(new_keys)), here)
        keys = np.concatenate([old_keys, new_keys[alone]])
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        none = np.full(len(alone), -1)
        self.there = np.concatenate([np.arange(len(old_keys)), none])[order].astype(np.int64)
        self.here = np.concatenate([partner, alone])[order].astype(np.int64)
        self.differs = np.concatenate([other, np.zeros(len(alone), bool)])[order]
        self.is_old = self.there >= 0
        self.is_new = self.here >= 0
        self.equal = self.is_old & self.is_new & ~self.differs
        self.gap = GAP * float(np.median(np.diff(old_keys))) if len(old_keys) > 1 else np.inf
        self.new_gap = GAP * float(np.median(np.diff(new_keys))) if len(new_keys) > 1 else np.inf
        self.added = ~self.is_old
        self.kept = np.ones(len(keys), bool)
        self.ignored = np.zeros(len(keys), bool)
        self.notes: list[str] = []

    def merge(self) -> Merged:
        if self.overlap == "error" and self.n_matched:
            raise self._refused(
                self.is_old & self.is_new, "are there already", "leave out --overlap error, or give"
            )
        zone = np.cumsum(self.equal)
        last = int(zone[-1]) if len(zone) else 0
        counts = [
            np.bincount(zone[which], minlength=last + 1) > 0
            for which in (self.differs, self.is_old & ~self.is_new, ~self.is_old)
        ]
        differ, only_old, only_new = counts
        numbers = np.arange(last + 1)
        unsure = differ | (only_old & only_new & ((numbers == 0) | (numbers == last)))
        for number in np.flatnonzero(unsure):
            begin, end = np.searchsorted(zone, [number, number + 1])
            begin += bool(self.equal[begin])
            if self._is_of_two_branches(slice(begin, end)):
                self._decide(slice(begin, end))
        self._tell(self.added & self.is_old, "replaced by those of", "which differ")
        gone = ~self.kept & self.is_old
        self._tell(gone, "dropped, since they are not of the branch of", "which goes on there")
        left = ~self.kept & ~self.is_old | self.ignored
        self._tell(left, "of", f"left out, since {self.old.path} has others there")
        kept = self.kept
        return Merged(
            self.there[kept],
            self.here[kept],
            self.added[kept],
            self.unit,
            self.equal[kept],
            tuple(self.notes),
        )

    def _is_of_two_branches(self, zone: slice) -> bool:
        """Return whether frames between two common ones cannot all be of one trajectory."""
        if self.differs[zone].any():
            return True
        is_new, keys = ~self.is_old[zone], self.keys[zone]
        turns = np.flatnonzero(np.diff(is_new)) + 1
        for first, end in pairwise(turns.tolist()):
            gap = self.gap if is_new[first] else self.new_gap
            if keys[end] - keys[first - 1] <= gap:
                return True
        return False

    def _decide(self, zone: slice) -> None:
        inside = np.arange(zone.start, zone.stop)
        new = inside[self.is_new[zone]]
        begin, end = int(new[0]), int(new[-1]) + 1
        between = inside[(inside >= begin) & (inside < end) & ~self.is_new[zone]]
        behind = inside[inside >= end]
        is_tail = zone.stop == len(self.keys)
        if len(behind):
            at = int(self.there[behind[0]])
            if self.old_keys[at] - self.old_keys[at - 1] > self.gap:
                behind = behind[:0]  # of a part of its own
        different = self.differs.copy()
        different[: zone.start] = different[zone.stop :] = False
        if self.overlap == "error":
            raise self._refused(different, "differ", "give")
        if self.overlap == "keep-first":
            old = inside[self.is_old[zone]]
            self.kept[old[0] : old[-1] + 1] &= self.is_old[old[0] : old[-1] + 1]
            self.ignored[zone] = self.differs[zone]
            return
        if self.overlap is None:
            if is_tail and zone.start == 0 and begin == 0:
                raise self._refused_as_replica()
            if len(between) and not is_tail:
                shown = np.zeros(len(self.keys), bool)
                shown[between] = True
                raise self._refused(
                    different,
                    f"differ, and between them it lacks {plural(len(between), 'frame')}",
                    "give",
                )
            if is_tail and len(behind):
                raise self._refused_since_it_ends(different, int(behind[-1]))
        self.added[zone] |= self.differs[zone]
        self.kept[between] = False
        if is_tail:
            self.kept[behind] = False

    def _span(self, which: NDArray[np.bool_]) -> str:
        keys = self.keys[which]
        unit = self.unit
        spanned = f"{keys[0]:g}" if len(keys) == 1 else f"{keys[0]:g} to {keys[-1]:g}"
        return f"at {spanned} {unit}" if unit == "ps" else f"at step {spanned}"

    def _tell(self, which: NDArray[np.bool_], what: str, why: str) -> None:
        if not which.any():
            return
        n_frames = plural(int(np.count_nonzero(which)), "frame")
        if what == "of":
            self.notes.append(f"{n_frames} {what} {self.new.path} ({self._span(which)}) {why}")
            return
        self.notes.append(
            f"{self.old.path}: {n_frames} ({self._span(which)}) {what} {self.new.path}, {why}"
        )

    def _refused(self, which: NDArray[np.bool_], what: str, then: str) -> SourceError:
        told = "its frames alternate with them"
        if which.any():
            n_frames = plural(int(np.count_nonzero(which)), "frame")
            told = f"{n_frames} ({self._span(which)}) {what}"
        return SourceError(
            f"{self.new.path}: beside the frames of {self.old.path}, {told}; {then} "
            f"{self._choices()}"
        )

    def _choices(self) -> str:
        return (
            f"--overlap keep-last to take those of {self.new.path}, keep-first to keep those that "
            f"are there, or {KEEP_ALL} to add all frames behind them"
        )

    def _refused_as_replica(self) -> SourceError:
        return SourceError(
            f"{self.old.path} and {self.new.path} begin at the same time, or the second earlier, "
            "and have no frame in common, as replicas do: they are not parts of one trajectory. "
            f"Convert each by itself, or give {self._choices()}"
        )

    def _refused_since_it_ends(self, different: NDArray[np.bool_], last: int) -> SourceError:
        n_frames = int(np.count_nonzero(different))
        what = (
            f"{plural(n_frames, 'frame')} ({self._span(different)}) differ"
            if n_frames
            else "its frames alternate with others"
        )
        end = self.new.time[-1] if self.unit == "ps" else self.new.step[-1]
        return SourceError(
            f"{self.new.path}: {what} from what {self.old.path} has there, which goes on to "
            f"{self.keys[last]:g} {self.unit}, while it ends at {end:g}; give {self._choices()}"
        )
