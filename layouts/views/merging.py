"""How frames are put among those of a trajectory: matched one by one, by time or by step.

Frames that both have, with the same contents, show that both are of one trajectory there; between
two of them whatever only one of them has is of it too. Where contents differ, or frames of both
alternate without a common one, they are of two branches, as after a restart: then the continuation
wins if it goes on to the end, and otherwise the user decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.words import plural
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.joining import GAP, ROUNDING

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
