"""Several files read as one trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
    chunk_boundaries,
    fill_absent,
    sparse_fields,
)
from mdio.layouts.registry import open_layout
from mdio.layouts.views import KEEP_ALL, check_overlap
from mdio.layouts.views.joining import Joining, join

MAX_OPEN = 4  # members that are open at the same time: many would run out of handles


class ChainLayout(Layout):
    """Files or folders joined as one trajectory.

    Times and steps are those in each file. Velocities and forces are there if any member has them,
    and NaN in the frames of the others. Once it is open, `members` are those whose frames are read,
    in this order, and `notes` says what was dropped or put into another order.

    ``info.layout`` is ``chain``, and ``info.path`` that of the first member; compression and
    precision are kept where all members share them. Messages about bytes name the member.

    `members`: layouts, or paths for `open_layout`. `overlap`: what is done with frames whose times
    several members have: one of `mdio.layouts.views.OVERLAPS`. With all but ``keep-all``,
    members are put into the order of their times; None is ``keep-last``, but an error where members
    look like replicas. `fields`, `options`: as for `open_layout`; passed on to it.
    Raises ValueError, PlanError: there are no members, or an `overlap` that is none. SourceError:
    when opened: a member cannot be read, has another number of atoms than the first, or times that
    others have too.
    """

    name = "chain"
    facts = FormatFacts(
        options=None,
    )
    members: tuple[Layout, ...] = ()
    # What is `_opened_state`: info, those of members, joining, boundaries.

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
        options.pop("cache", None)  # each member's own
        super().__init__(self.members[0].path, fields=fields, **options)
        self._given = self.members
        self._joining: Joining | None = None
        self._infos: list[TrajectoryInfo] = []
        self._own_boundaries: dict[int, NDArray[np.int64]] = {}
        self._opened = Handles[Layout, Layout](lambda member: member, MAX_OPEN)
        self._edges = np.zeros(1, np.int64)
        self._starts: list[int] = []

    @classmethod
    def sniff(cls, path: Path) -> bool:  # noqa: ARG003
        """Return False: a chain is not something on disk."""
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
        timed, steps_ps, stepped = self._learn()
        first = self._infos[0]
        for info in self._infos:
            if info.n_atoms != first.n_atoms:
                raise SourceError(
                    f"{info.path}: has {info.n_atoms} atoms, but {first.path}, which it is to "
                    f"follow, has {first.n_atoms}; join trajectories of the same atoms"
                )
        if self._joining is None:
            self._joining = join(
                self._infos, timed, self._read_times, self.overlap, steps_ps, stepped
            )
        self._arrange()
        return self._describe()

    def _learn(self) -> tuple[list[bool], list[float | None], list[bool]]:
        """Ask each member, while it is open, for all that will be asked of it but frames.

        Returns whether the times of each are its own, where that matters, the lengths of the steps
        that they count, and whether they number steps where they have no times.
        """
        self.members = self._given
        self._infos, self._own_boundaries, timed, steps_ps, stepped = [], {}, [], [], []
        for number in range(len(self.members)):
            member = self._use(number)
            self._infos.append(member.info)
            timing = member.timing
            timed.append(self.overlap == KEEP_ALL or timing.has_times)
            steps_ps.append(timing.step_ps)
            stepped.append(self.overlap != KEEP_ALL and timing.has_steps)
            if type(member).boundaries is not Layout.boundaries:
                self._own_boundaries[number] = member.boundaries()
        return timed, steps_ps, stepped

    def _read_times(self, number: int, start: int, stop: int) -> FrameBlock:
        return self._use(number).read(start, stop, atoms=[])

    def _time_ps(self, number: int, frame: int) -> float:
        return float(self._read_times(number, frame, frame + 1).time[0])

    def _arrange(self) -> None:
        """Keep of the members, and of what is known of them, what was chosen, in its order."""
        assert self._joining is not None
        numbers = [number for number, *_ in self._joining.parts]
        own = self._own_boundaries
        self._own_boundaries = {place: own[n] for place, n in enumerate(numbers) if n in own}
        self._infos = [self._infos[number] for number in numbers]
        self.members = tuple(self._given[number] for number in numbers)
        for member in {*self._given} - {*self.members}:
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
        alike = len({(info.compression, info.precision) for info in infos}) == 1
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
            compression=first.compression if alike else None,
            precision=first.precision if alike else None,
            rounding=Rounding(
                steps if all(info.field_precisions == steps for info in infos) else {},
                all(info.xtc_integers for info in infos),
            ),
            nbytes=sum(info.nbytes for info in distinct),
            flaws=Flaws(
                lost=tuple(
                    replace(one, first=int(self._edges[infos.index(info)]))
                    for info in distinct
                    for one in info.lost
                ),
                made_up=tuple(dict.fromkeys(text for info in infos for text in info.made_up)),
            ),
        )

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Those of its members, by its own numbers of frames."""
        return tuple(
            replace(one, frame=int(edge) + one.frame - start)
            for (member, start, stop), edge in zip(self.member_runs, self._edges, strict=False)
            for one in member.stretches
            if start <= one.frame < stop
        )

    def files(self) -> Iterator[Layout]:
        """Yield the files of all members."""
        for member in self.members:
            yield from member.files()

    def preopened(self) -> Layout:
        """Return a chain that pickles with what is known of its members.

        A worker then opens just the files that its blocks lie in, not all of them.
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
        """The members whose frames are read, in order, and which: first, one beyond the last."""
        _ = self.info
        return self._member_runs

    @property
    def _member_runs(self) -> list[tuple[Layout, int, int]]:
        assert self._joining is not None
        parts = zip(self.members, self._joining.parts, strict=True)
        return [(member, start, stop) for member, (_, start, stop) in parts]

    @property
    def joined(self) -> dict[str, Any] | None:
        """How files were joined, for `open_source` to do it again; None if just as given."""
        joining = self._joining
        if joining is None or not joining.changes:
            return None
        return {"overlap": self.overlap, "parts": [list(part) for part in joining.parts]}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was dropped, put into another order or is missing; opens it if need be."""
        if self._joining is None:
            _ = self.info
        assert self._joining is not None
        return (*self._joining.notes, *super().notes)

    def topology(self) -> Topology | None:
        """Return the topology of the first member."""
        return self.members[0].topology()

    def frame_data(self) -> FrameData:
        """Return the data of all members; see `Layout.frame_data`."""
        _ = self.info
        parts = [(one.frame_data(), start, stop) for one, start, stop in self.member_runs]
        return concatenate_columns(
            [{name: v[a:b] for name, v in data.items()} for data, a, b in parts]
        )

    def _close(self) -> None:
        self._opened.close()

    def _use(self, number: int) -> Layout:
        """Return a member, and close the one that was used longest ago if too many are open."""
        return self._opened[self.members[number]]

    def boundaries(self) -> NDArray[np.int64]:
        """Return where the members, and the pieces of each, begin."""
        if self._opened_state is not None:
            return np.asarray(self._opened_state[-1])
        _ = self.info
        edges = []
        for number, info in enumerate(self._infos):
            own = self._own_boundaries.get(number)
            own = chunk_boundaries(info) if own is None else own
            start, count = self._starts[number], self._edges[number + 1] - self._edges[number]
            own = own[slice(*np.searchsorted(own, [start + 1, start + count]))] - start
            edges.append(np.concatenate([[0] if count else [], own]) + self._edges[number])
        return np.concatenate([*edges, self._edges[-1:]]).astype(np.int64)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (member, first of its frames, one beyond the last) of a run of frames."""
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
            if first < last and self._use(number).info:
                yield self._use(number), first, last

    def _read_member(
        self, number: int, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        fill_absent(block, self._infos[number])
        if start < stop:  # a member may have no frames
            self._use(number).read(start, stop, atoms=atoms, out=block)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened_state is not None:
            options: dict[str, Any] = {"fields": self.members[0].fields}
            return (_chain, (self.members, options, self._joining, self._opened_state))
        options = {**self.options, "overlap": self.overlap, "fields": self.fields}
        return (_chain, (self._given, options, self._joining))

    def __repr__(self) -> str:
        more = len(self.members) - 1
        return self._summary(f"{str(self.members[0].path)!r}" + f" and {more:,} more" * (more > 0))


def chain_parts(members: Sequence[Layout], joining: Joining) -> ChainLayout:
    """Return a chain of frames that were chosen before."""
    return _chain(tuple(members), {"overlap": KEEP_ALL}, joining)


def _chain(
    members: tuple[Layout, ...],
    options: dict[str, Any],
    joining: Joining | None,
    state: tuple[Any, ...] | None = None,
) -> ChainLayout:
    chain = ChainLayout(members, **options)
    chain._joining = joining  # decided once, for all processes
    chain._opened_state = state
    return chain


def _preopened(member: Layout) -> Layout:
    preopened: Layout = member.preopened()
    if preopened is not member:
        member.close()  # a chain of many leaves few of them open
    return preopened
