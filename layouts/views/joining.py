"""How files become one trajectory: in the order of their times, and no frame twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.words import frames_text
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
