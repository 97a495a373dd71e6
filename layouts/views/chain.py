"""Several files read as one trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import runs_in_parts
from mdio.core.errors import SourceError
from mdio.core.files.reading import HandleCache
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
    StoredTimes,
    chunk_boundaries,
    fill_absent,
    sparse_fields,
)
from mdio.layouts.foreign.universe import note_on_reference_names, stored_topology
from mdio.layouts.registry import open_layout
from mdio.layouts.views import KEEP_ALL, check_overlap
from mdio.layouts.views.joining import Joining, join

MAX_OPEN, MAX_OPEN_OF_CHUNKS = 16, 4
"""Sources that are open at the same time; fewer if they may keep a decoded chunk in memory."""


class ChainLayout(Layout):
    """Files or folders joined as one trajectory.

    Times and steps are those in each file. It has velocities and forces if any source has them, NaN
    in the frames of the others. ``info.path`` is that of the first source; compression and
    precision are given if all share them. Once it is open, `sources` are those whose frames are
    read, in this order, and `notes` says what was dropped or put into another order.

    `sources`: layouts, or paths for `open_layout`, which takes `fields` and `options`. `overlap`:
    what is done with frames whose times several sources have: one of `mdio.layouts.views.OVERLAPS`.
    Except with ``keep-all``, sources are put into the order of their times; None is ``keep-last``,
    but an error if sources look like replicas.
    Opening it raises SourceError: a source cannot be read, or has another number of atoms than the
    first, or sources look like replicas; PlanError: they have their atoms in different orders.
    """

    name = "chain"
    facts = FormatFacts(options=None)
    sources: tuple[Layout, ...] = ()
    _step_notes: tuple[str, ...] = ()
    _name_notes: tuple[str, ...] = ()
    # `_shared_metadata`: info, infos of the sources, joining, boundaries.

    def __init__(
        self,
        sources: Iterable[Layout | AnyPath],
        *,
        overlap: str | None = KEEP_ALL,
        fields: Sequence[str] = FIELDS,
        **options: Any,
    ) -> None:
        check_overlap(overlap)
        self.overlap = overlap
        self.sources = tuple(
            source if isinstance(source, Layout) else open_layout(source, fields=fields, **options)
            for source in sources
        )
        if not self.sources:
            raise ValueError("a chain needs one trajectory at least")
        options.pop("cache", None)  # the sources have it
        super().__init__(self.sources[0].path, fields=fields, **options)
        self._all_sources = self.sources
        self._joining: Joining | None = None
        self._infos: list[TrajectoryInfo] = []
        self._source_boundaries: dict[int, NDArray[np.int64]] = {}
        are_native = all(source.facts.can_copy_frames for source in self.sources)
        max_open = MAX_OPEN if are_native else MAX_OPEN_OF_CHUNKS
        self._open_sources = HandleCache[Layout, Layout](lambda source: source, max_open)
        self._edges = np.zeros(1, np.int64)
        """Frame of the chain at which each part begins, and the number of frames."""
        self._starts: list[int] = []
        """Frame of its source at which each part begins."""

    def _open(self) -> TrajectoryInfo:
        try:
            return self._join()
        except BaseException:
            self._close()
            raise

    def _join(self) -> TrajectoryInfo:
        if self._shared_metadata is not None:
            self._infos = self._shared_metadata[1]
            self._set_edges()
            return cast(TrajectoryInfo, self._shared_metadata[0])
        stored_times = self._inspect_sources()
        first = self._infos[0]
        for info in self._infos:
            if info.n_atoms != first.n_atoms:
                raise SourceError(
                    f"{info.path}: has {info.n_atoms} atoms, but {first.path} has "
                    f"{first.n_atoms}; join trajectories of the same atoms"
                )
        if self._joining is None:
            self._joining = join(self._infos, stored_times, self._read_times, self.overlap)
        self._step_notes = self._notes_on_steps(self._joining, stored_times)
        self._select_sources()
        return self._read_properties()

    def _notes_on_steps(self, joining: Joining, stored_times: list[StoredTimes]) -> tuple[str, ...]:
        """Return a note if frame numbers, where a file holds no steps, do not fit a neighbour's."""
        parts = [(number, start, stop) for number, start, stop in joining.parts if start < stop]
        for (number, start, stop), (next_number, next_start, next_stop) in pairwise(parts):
            if (
                stored_times[number].step_is_frame_number
                == stored_times[next_number].step_is_frame_number
            ):
                continue
            times_before = self._read_times(number, max(start, stop - 2), stop)
            times_after = self._read_times(next_number, next_start, min(next_start + 2, next_stop))
            intervals = np.diff(np.concatenate([times_before.step, times_after.step]))
            if len(intervals) > 1 and (intervals == intervals[0]).all():
                continue
            without_steps, with_steps = sorted(
                (number, next_number), key=lambda n: not stored_times[n].step_is_frame_number
            )
            advice = "; go by the times" if times_after.time[0] > times_before.time[-1] else ""
            return (
                f"steps do not go on from file to file: {self.sources[without_steps].path} "
                "holds none, so its frames are numbered, which does not fit the steps in "
                f"{self.sources[with_steps].path}{advice}",
            )
        return ()

    def _inspect_sources(self) -> list[StoredTimes]:
        """Open each source once, for all but its frames; return which times each stores."""
        self.sources, self._name_notes = self._all_sources, ()
        self._infos, self._source_boundaries, stored_times = [], {}, []
        first: Topology | None = None
        for number in range(len(self.sources)):
            source = self._open_source(number)
            self._infos.append(source.info)
            stored_times.append(source.stored_times)
            # Topologies in text formats are not compared: parsing them takes long.
            topology = stored_topology(source) if _begins_with_output(source) else None
            if first is None or topology is None:
                first = first or topology
            elif topology.n_atoms == first.n_atoms:
                self._name_notes += note_on_reference_names(first, topology, source.path, "joined")
            if type(source).boundaries is not Layout.boundaries:
                self._source_boundaries[number] = source.boundaries()
        self._has_steps = all(stored.has_steps for stored in stored_times)
        return stored_times

    def _read_times(self, number: int, start: int, stop: int) -> FrameBlock:
        """Read columns of a source; with ``salvage``, the times of unreadable frames are NaN."""
        source = self._open_source(number)
        try:
            return source.read(start, stop, atoms=[])
        except SourceError:
            if not source.options.get("salvage"):
                raise
        block = FrameBlock.empty(stop - start, 0)
        block.time[:] = np.nan
        for row in range(stop - start):
            with suppress(SourceError):
                frame = start + row
                source.read(frame, frame + 1, [], block.frames(slice(row, row + 1)))
        return block

    def _time_ps(self, number: int, frame: int) -> float:
        return float(self._read_times(number, frame, frame + 1).time[0])

    def _select_sources(self) -> None:
        """Select the sources of the joining, their infos and boundaries, in its order."""
        assert self._joining is not None
        numbers = [number for number, *_ in self._joining.parts]
        boundaries = self._source_boundaries
        self._source_boundaries = {
            position: boundaries[n] for position, n in enumerate(numbers) if n in boundaries
        }
        self._infos = [self._infos[number] for number in numbers]
        self.sources = tuple(self._all_sources[number] for number in numbers)
        for source in {*self._all_sources} - {*self.sources}:
            source.close()
        self._set_edges()

    def _set_edges(self) -> None:
        assert self._joining is not None
        self._starts = [start for _, start, _ in self._joining.parts]
        counts = [stop - start for _, start, stop in self._joining.parts]
        self._edges = np.cumsum([0, *counts], dtype=np.int64)

    def _read_properties(self) -> TrajectoryInfo:
        assert self._joining is not None
        infos, parts = self._infos, self._joining.parts
        first, last = infos[0], infos[-1]
        start, stop = parts[0][1], parts[-1][2]
        time_first_ps, time_last_ps, dt_ps = first.time_first_ps, last.time_last_ps, first.dt_ps
        if start:
            time_first_ps = self._time_ps(0, start)
        if stop < last.n_frames:
            time_last_ps = self._time_ps(len(infos) - 1, stop - 1)
        if parts[0][2] - start == 1 and len(infos) > 1:
            dt_ps = self._time_ps(1, parts[1][1]) - time_first_ps
        distinct_infos = list({id(info): info for info in infos}.values())
        has_xtc_integers = all(info.xtc_integers for info in infos)
        same_precision = len({info.precision for info in infos}) == 1
        same_encoding = same_precision and len({info.compression for info in infos}) == 1
        same_integers = same_encoding or (same_precision and has_xtc_integers)
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
            compression=first.compression if same_encoding else None,
            precision=first.precision if same_integers else None,
            rounding=Rounding(
                steps if all(info.field_precisions == steps for info in infos) else {},
                has_xtc_integers,
            ),
            nbytes=sum(info.nbytes for info in distinct_infos),
            flaws=Flaws(
                lost=tuple(
                    replace(loss, first=int(self._edges[infos.index(info)]))
                    for info in distinct_infos
                    for loss in info.lost
                ),
                made_up=tuple(dict.fromkeys(text for info in infos for text in info.made_up)),
            ),
        )

    @property
    def unreadable_stretches(self) -> tuple[Stretch, ...]:
        """Stretches of its sources, with frames numbered as in the chain."""
        return tuple(
            replace(stretch, frame=int(edge) + stretch.frame - start)
            for (source, start, stop), edge in zip(self.joined_layouts, self._edges, strict=False)
            for stretch in self._open_sources[source].unreadable_stretches
            if start <= stretch.frame < stop
        )

    def file_layouts(self) -> Iterator[Layout]:
        for source in self.sources:
            yield from source.file_layouts()

    def with_metadata(self) -> Layout:
        """Return a chain that is pickled with the infos and boundaries of its sources.

        A worker then opens only the files of its blocks.
        """
        if self._shared_metadata is not None:
            return self
        info, edges = self.info, self.boundaries()
        parts = tuple((n, start, stop) for n, (_, start, stop) in enumerate(self.joined_layouts))
        copies = {source: _with_metadata(source) for source in {*self.sources}}
        sources = tuple(copies[source] for source in self.sources)
        assert self._joining is not None
        joining = replace(self._joining, parts=parts)
        metadata = info, self._infos, joining, edges
        return _chain(sources, {"fields": sources[0].fields}, joining, metadata)

    @property
    def joined_layouts(self) -> list[tuple[Layout, int, int]]:
        _ = self.info
        assert self._joining is not None
        parts = zip(self.sources, self._joining.parts, strict=True)
        return [(source, start, stop) for source, (_, start, stop) in parts]

    @property
    def joined(self) -> dict[str, Any] | None:
        """How files were joined, for `open_source` to repeat it; None for all frames in order."""
        joining = self._joining
        if joining is None or not joining.changes:
            return None
        return {"overlap": self.overlap, "parts": [list(part) for part in joining.parts]}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on dropped, reordered and missing frames; opens the chain if it is not open."""
        notes = super().notes
        assert self._joining is not None
        return (*self._joining.notes, *self._step_notes, *self._name_notes, *notes)

    def topology(self) -> Topology | None:
        return self.sources[0].topology()

    def frame_data(self) -> FrameData:
        _ = self.info
        return concatenate_columns(
            [
                {name: values[start:stop] for name, values in data.items()}
                for source, start, stop in self.joined_layouts
                for data in [self._open_sources[source].frame_data()]
            ]
        )

    def _close(self) -> None:
        self._open_sources.close()

    def _open_source(self, number: int) -> Layout:
        """Return an open source; close the least recently used one if too many are open."""
        return self._open_sources[self.sources[number]]

    def boundaries(self) -> NDArray[np.int64]:
        if self._shared_metadata is not None:
            return np.asarray(self._shared_metadata[-1])
        _ = self.info
        edges = []
        for number, info in enumerate(self._infos):
            boundaries = self._source_boundaries.get(number)
            boundaries = chunk_boundaries(info) if boundaries is None else boundaries
            start, count = self._starts[number], self._edges[number + 1] - self._edges[number]
            boundaries = (
                boundaries[slice(*np.searchsorted(boundaries, [start + 1, start + count]))] - start
            )
            edges.append(np.concatenate([[0] if count else [], boundaries]) + self._edges[number])
        return np.concatenate([*edges, self._edges[-1:]]).astype(np.int64)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (number of the source, start, stop of its frames) of a run of frames."""
        for number, first, end in runs_in_parts(self._edges, start, stop):
            yield number, first + self._starts[number], end + self._starts[number]

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for number, first, end in self._parts(start, stop):
            self._read_source(number, first, end, atoms, block.frames(slice(0, end - first)))
            block = block.frames(slice(end - first, None))

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        return self.sources

    def _inner_runs(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:
        for number, first, end in self._parts(start, stop):
            if first < end and self._open_source(number).info:
                yield self._open_source(number), first, end

    def _read_source(
        self, number: int, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        fill_absent(block, self._infos[number])
        if start < stop:  # a source may have no frames
            self._open_source(number).read(start, stop, atoms=atoms, out=block)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._shared_metadata is not None:
            options: dict[str, Any] = {"fields": self.sources[0].fields}
            return (_chain, (self.sources, options, self._joining, self._shared_metadata))
        options = {**self.options, "overlap": self.overlap, "fields": self.fields}
        return (_chain, (self._all_sources, options, self._joining))

    def __repr__(self) -> str:
        n_others = len(self.sources) - 1
        suffix = f" and {n_others:,} more" if n_others else ""
        return self._summary(f"{str(self.sources[0].path)!r}{suffix}")


def chain_joined(sources: Sequence[Layout], joining: Joining) -> ChainLayout:
    """Return a chain of the frames that `joining` lists."""
    return _chain(tuple(sources), {"overlap": KEEP_ALL}, joining)


def _chain(
    sources: tuple[Layout, ...],
    options: dict[str, Any],
    joining: Joining | None,
    metadata: tuple[Any, ...] | None = None,
) -> ChainLayout:
    chain = ChainLayout(sources, **options)
    chain._joining = joining  # the same for all processes
    chain._shared_metadata = metadata
    return chain


def _begins_with_output(layout: Layout) -> bool:
    """Return whether the first file of a layout, or of a view of it, is an output of mdio."""
    return layout.manifest is not None or any(map(_begins_with_output, layout._inner_layouts[:1]))


def _with_metadata(source: Layout) -> Layout:
    copy: Layout = source.with_metadata()
    if copy is not source:
        source.close()  # file handles are limited
    return copy
