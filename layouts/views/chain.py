"""Several files read as one trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import runs_of_parts
from mdio.core.errors import SourceError
from mdio.core.files.reading import Handles
from mdio.core.files.store import AnyPath
from mdio.core.frames import (
    FIELDS,
    AtomIndices,
    Flaws,
    FrameBlock,
    FrameData,
    Rounding,
    Stretch,
    TrajectoryInfo,
    concatenate_columns,
)
from mdio.core.topology import Topology
from mdio.layouts.base import (
    FormatFacts,
    Layout,
    Timing,
    chunk_boundaries,
    fill_absent,
    sparse_fields,
)
from mdio.layouts.registry import open_layout
from mdio.layouts.views import KEEP_ALL, check_overlap
from mdio.layouts.views.joining import Joining, join

MAX_OPEN = 4  # members that are open at the same time, since file handles are limited


class ChainLayout(Layout):
    """Files or folders joined as one trajectory.

    Times and steps are those in each file. It has velocities and forces if any member has them,
    NaN in the frames of the others. Once it is open, `members` are those whose frames are read, in
    this order, and `notes` says what was dropped or put into another order.

    ``info.layout`` is ``chain``, and ``info.path`` that of the first member; compression and
    precision are given if all members share them. Messages about bytes name the member.

    `members`: layouts, or paths for `open_layout`. `overlap`: what is done with frames whose times
    several members have: one of `mdio.layouts.views.OVERLAPS`. Except with ``keep-all``, members
    are put into the order of their times; None is ``keep-last``, but an error if members look like
    replicas. `fields`, `options`: passed on to `open_layout`.
    Raises ValueError, PlanError: there are no members, or `overlap` is unknown. SourceError, when
    opened: a member cannot be read, has another number of atoms than the first, or times that
    others have, too.
    """

    name = "chain"
    facts = FormatFacts(
        options=None,
    )
    members: tuple[Layout, ...] = ()
    _step_notes: tuple[str, ...] = ()
    # `_opened_state` is info, infos of the members, joining, boundaries.

    def __init__(
        self,
        members: Iterable[Layout | AnyPath],
        *,
        overlap: str | None = KEEP_ALL,
        fields: Sequence[str] = FIELDS,
        **options: Any,
    ) -> None:
        if overlap != KEEP_ALL:
            check_overlap(overlap)
        self.overlap = overlap
        self.members = tuple(
            member if isinstance(member, Layout) else open_layout(member, fields=fields, **options)
            for member in members
        )
        if not self.members:
            raise ValueError("a chain needs one trajectory at least")
        options.pop("cache", None)  # the members have it
        super().__init__(self.members[0].path, fields=fields, **options)
        self._all_members = self.members
        self._joining: Joining | None = None
        self._infos: list[TrajectoryInfo] = []
        self._member_boundaries: dict[int, NDArray[np.int64]] = {}
        self._open_members = Handles[Layout, Layout](lambda member: member, MAX_OPEN)
        self._edges = np.zeros(1, np.int64)
        self._starts: list[int] = []

    @classmethod
    def sniff(cls, path: Path) -> bool:  # noqa: ARG003
        """Return False: no path is a chain."""
        return False

    def _open(self) -> TrajectoryInfo:
        try:
            return self._join()
        except BaseException:
            self._close()
            raise

    def _join(self) -> TrajectoryInfo:
        if self._opened_state is not None:
            self._infos = self._opened_state[1]
            self._set_edges()
            return cast(TrajectoryInfo, self._opened_state[0])
        timings = self._inspect_members()
        first = self._infos[0]
        for info in self._infos:
            if info.n_atoms != first.n_atoms:
                raise SourceError(
                    f"{info.path}: has {info.n_atoms} atoms, but {first.path}, which it is to "
                    f"follow, has {first.n_atoms}; join trajectories of the same atoms"
                )
        if self._joining is None:
            self._joining = join(
                self._infos,
                [timing.has_times for timing in timings],
                self._read_times,
                self.overlap,
                [timing.step_ps for timing in timings],
                [timing.has_steps for timing in timings],
            )
        self._step_notes = self._notes_on_steps(self._joining, timings)
        self._select_members()
        return self._describe()

    def _notes_on_steps(self, joining: Joining, timings: list[Timing]) -> tuple[str, ...]:
        """Return a note if frames of a file are numbered, and not as the steps beside them."""
        for (number, start, stop), (following, first, end) in pairwise(joining.parts):
            if timings[number].counts_steps == timings[following].counts_steps:
                continue
            before = self._read_times(number, max(start, stop - 2), stop)
            after = self._read_times(following, first, min(first + 2, end))
            intervals = np.diff(np.concatenate([before.step, after.step]))
            if len(intervals) > 1 and (intervals == intervals[0]).all():
                continue
            ends = sorted((number, following), key=lambda n: not timings[n].counts_steps)
            counted, other = (self.members[n].path for n in ends)
            advice = "; go by the times" if after.time[0] > before.time[-1] else ""
            return (
                f"steps do not go on from file to file: {counted} holds none, so its frames are "
                f"numbered, and not as the steps in {other} go on{advice}",
            )
        return ()

    def _inspect_members(self) -> list[Timing]:
        """Open each member once, for all that is needed of it except frames; return its timing."""
        self.members = self._all_members
        self._infos, self._member_boundaries, timings = [], {}, []
        for number in range(len(self.members)):
            member = self._open_member(number)
            self._infos.append(member.info)
            timings.append(member.timing)
            if type(member).boundaries is not Layout.boundaries:
                self._member_boundaries[number] = member.boundaries()
        return timings

    def _read_times(self, number: int, start: int, stop: int) -> FrameBlock:
        return self._open_member(number).read(start, stop, atoms=[])

    def _time_ps(self, number: int, frame: int) -> float:
        return float(self._read_times(number, frame, frame + 1).time[0])

    def _select_members(self) -> None:
        """Select the members of the joining, their infos and boundaries, in its order."""
        assert self._joining is not None
        numbers = [number for number, *_ in self._joining.parts]
        boundaries = self._member_boundaries
        self._member_boundaries = {
            place: boundaries[n] for place, n in enumerate(numbers) if n in boundaries
        }
        self._infos = [self._infos[number] for number in numbers]
        self.members = tuple(self._all_members[number] for number in numbers)
        for member in {*self._all_members} - {*self.members}:
            member.close()
        self._set_edges()

    def _set_edges(self) -> None:
        assert self._joining is not None
        self._starts = [start for _, start, _ in self._joining.parts]
        counts = [stop - start for _, start, stop in self._joining.parts]
        self._edges = np.cumsum([0, *counts], dtype=np.int64)

    def _describe(self) -> TrajectoryInfo:
        infos = self._infos
        first, last = infos[0], infos[-1]
        start, stop = self._member_runs[0][1], self._member_runs[-1][2]
        time_first_ps, time_last_ps, dt_ps = first.time_first_ps, last.time_last_ps, first.dt_ps
        if start:
            time_first_ps = self._time_ps(0, start)
        if stop < last.n_frames:
            time_last_ps = self._time_ps(len(infos) - 1, stop - 1)
        if self._member_runs[0][2] - start == 1 and len(infos) > 1:
            dt_ps = self._time_ps(1, self._member_runs[1][1]) - time_first_ps
        distinct = list({id(info): info for info in infos}.values())
        share_encoding = len({(info.compression, info.precision) for info in infos}) == 1
        steps = first.field_precisions
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=int(self._edges[-1]),
            n_atoms=first.n_atoms,
            dt_ps=dt_ps,
            time_first_ps=time_first_ps,
            time_last_ps=time_last_ps,
            has_velocities=any(info.has_velocities for info in infos),
            has_forces=any(info.has_forces for info in infos),
            has_box=first.has_box,
            sparse=sparse_fields(infos),
            compression=first.compression if share_encoding else None,
            precision=first.precision if share_encoding else None,
            rounding=Rounding(
                steps if all(info.field_precisions == steps for info in infos) else {},
                all(info.xtc_integers for info in infos),
            ),
            nbytes=sum(info.nbytes for info in distinct),
            flaws=Flaws(
                lost=tuple(
                    replace(loss, first=int(self._edges[infos.index(info)]))
                    for info in distinct
                    for loss in info.lost
                ),
                made_up=tuple(dict.fromkeys(text for info in infos for text in info.made_up)),
            ),
        )

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Stretches of its members, with frames numbered as in the chain."""
        return tuple(
            replace(stretch, frame=int(edge) + stretch.frame - start)
            for (member, start, stop), edge in zip(self.member_runs, self._edges, strict=False)
            for stretch in member.stretches
            if start <= stretch.frame < stop
        )

    def files(self) -> Iterator[Layout]:
        """Yield the files of all members."""
        for member in self.members:
            yield from member.files()

    def preopened(self) -> Layout:
        """Return a chain that is pickled with the infos and boundaries of its members.

        A worker then opens only the files of its blocks.
        """
        if self._opened_state is not None:
            return self
        info, edges = self.info, self.boundaries()
        parts = tuple((n, start, stop) for n, (_, start, stop) in enumerate(self.member_runs))
        preopened = {member: _preopened(member) for member in {*self.members}}
        members = tuple(preopened[member] for member in self.members)
        assert self._joining is not None
        joining = replace(self._joining, parts=parts)
        state = info, self._infos, joining, edges
        return _chain(members, {"fields": members[0].fields}, joining, state)

    @property
    def member_runs(self) -> list[tuple[Layout, int, int]]:
        """Members in order, each with the run of its frames that is read: start and stop."""
        _ = self.info
        return self._member_runs

    @property
    def _member_runs(self) -> list[tuple[Layout, int, int]]:
        assert self._joining is not None
        parts = zip(self.members, self._joining.parts, strict=True)
        return [(member, start, stop) for member, (_, start, stop) in parts]

    @property
    def joined(self) -> dict[str, Any] | None:
        """How files were joined, for `open_source` to repeat it; None for all frames in order."""
        joining = self._joining
        if joining is None or not joining.changes:
            return None
        return {"overlap": self.overlap, "parts": [list(part) for part in joining.parts]}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was dropped, reordered or is missing; opens the chain if it is not open."""
        if self._joining is None:
            _ = self.info
        assert self._joining is not None
        return (*self._joining.notes, *self._step_notes, *super().notes)

    def topology(self) -> Topology | None:
        """Return the topology of the first member."""
        return self.members[0].topology()

    def frame_data(self) -> FrameData:
        """Return the data of all members; see `Layout.frame_data`."""
        _ = self.info
        return concatenate_columns(
            [
                {name: values[start:stop] for name, values in member.frame_data().items()}
                for member, start, stop in self.member_runs
            ]
        )

    def _close(self) -> None:
        self._open_members.close()

    def _open_member(self, number: int) -> Layout:
        """Return an open member; close the least recently used one if too many are open."""
        return self._open_members[self.members[number]]

    def boundaries(self) -> NDArray[np.int64]:
        """Return where the members, and the chunks or files of each, begin."""
        if self._opened_state is not None:
            return np.asarray(self._opened_state[-1])
        _ = self.info
        edges = []
        for number, info in enumerate(self._infos):
            boundaries = self._member_boundaries.get(number)
            boundaries = chunk_boundaries(info) if boundaries is None else boundaries
            start, count = self._starts[number], self._edges[number + 1] - self._edges[number]
            boundaries = (
                boundaries[slice(*np.searchsorted(boundaries, [start + 1, start + count]))] - start
            )
            edges.append(np.concatenate([[0] if count else [], boundaries]) + self._edges[number])
        return np.concatenate([*edges, self._edges[-1:]]).astype(np.int64)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (number of the member, start, stop of its frames) of a run of frames."""
        for number, first, last in runs_of_parts(self._edges, start, stop):
            yield number, first + self._starts[number], last + self._starts[number]

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for number, first, last in self._pieces(start, stop):
            self._read_member(number, first, last, atoms, block.frames(slice(0, last - first)))
            block = block.frames(slice(last - first, None))

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        return self.members

    def _members_of(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:
        for number, first, last in self._pieces(start, stop):
            if first < last and self._open_member(number).info:
                yield self._open_member(number), first, last

    def _read_member(
        self, number: int, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        fill_absent(block, self._infos[number])
        if start < stop:  # a member may have no frames
            self._open_member(number).read(start, stop, atoms=atoms, out=block)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened_state is not None:
            options: dict[str, Any] = {"fields": self.members[0].fields}
            return (_chain, (self.members, options, self._joining, self._opened_state))
        options = {**self.options, "overlap": self.overlap, "fields": self.fields}
        return (_chain, (self._all_members, options, self._joining))

    def __repr__(self) -> str:
        n_others = len(self.members) - 1
        suffix = f" and {n_others:,} more" if n_others else ""
        return self._summary(f"{str(self.members[0].path)!r}{suffix}")


def chain_parts(members: Sequence[Layout], joining: Joining) -> ChainLayout:
    """Return a chain of the frames of an earlier `joining`."""
    return _chain(tuple(members), {"overlap": KEEP_ALL}, joining)


def _chain(
    members: tuple[Layout, ...],
    options: dict[str, Any],
    joining: Joining | None,
    state: tuple[Any, ...] | None = None,
) -> ChainLayout:
    chain = ChainLayout(members, **options)
    chain._joining = joining  # the same for all processes
    chain._opened_state = state
    return chain


def _preopened(member: Layout) -> Layout:
    preopened: Layout = member.preopened()
    if preopened is not member:
        member.close()  # file handles are limited
    return preopened
