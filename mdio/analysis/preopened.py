"""Trajectories of many files that a worker knows without opening them all.

A chain of M files that each of N workers opens whole costs N x M opens, which is what limited
MDAnalysis' ChainReader to fewer ranks than plain segments in the study of Khoshlessan et al. Here
the process that plans the work has opened everything once; what it found travels with the layout,
and a worker opens just the files that its blocks lie in, when it comes to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.segments.files import segments_of
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.layouts.views.chain import ChainLayout
from mdio.layouts.views.joining import Joining

__all__ = ["known"]


def known(layout: Layout) -> Layout:
    """Return a layout that reads as `layout` does and pickles with what is known of it.

    Parameters
    ----------
    layout
        It is opened if it is not open yet. Layouts of one file, or whose opening reads one small
        file, are returned as they are.
    """
    if isinstance(layout, _KnownChain | _KnownSegments):
        return layout
    if isinstance(layout, ChainLayout):
        info, edges = layout.info, layout.boundaries()
        members = tuple(_known_member(member) for member in layout.members)
        parts = tuple((n, start, stop) for n, (_, start, stop) in enumerate(layout.kept))
        joining = Joining(parts, layout.notes)
        return _KnownChain(members, info, layout._infos, joining, edges)
    if isinstance(layout, SegmentsLayout):
        info = layout.info
        options = {**layout.options, "verify": layout.verify, "uuid": layout.uuid}
        return _KnownSegments(
            str(layout.path), layout.fields, options, info, layout.manifest, layout._seen
        )
    return layout


def _known_member(member: Layout) -> Layout:
    if not isinstance(member, SegmentsLayout):
        return member
    made = known(member)
    if made is not member:
        member.close()  # a chain of many leaves few of them open
    return made


class _KnownChain(ChainLayout):
    """A chain whose members have been opened before, elsewhere."""

    def __init__(
        self,
        members: tuple[Layout, ...],
        info: TrajectoryInfo,
        infos: list[TrajectoryInfo],
        joining: Joining,
        edges: NDArray[np.int64],
    ) -> None:
        super().__init__(members, fields=members[0].fields)
        self._state = members, info, infos, joining, edges
        self._joining = joining

    def _join(self) -> TrajectoryInfo:
        _, info, self._infos, *_ = self._state
        self._set_edges()
        return info

    def boundaries(self) -> NDArray[np.int64]:
        """Return where the members, and the pieces of each, begin."""
        return self._state[-1]

    def __reduce__(self) -> tuple[Any, ...]:
        return _KnownChain, self._state


class _KnownSegments(SegmentsLayout):
    """A folder of segments whose manifest has been read before, elsewhere."""

    def __init__(
        self,
        path: str,
        fields: tuple[str, ...],
        options: dict[str, Any],
        info: TrajectoryInfo,
        manifest: Mapping[str, Any],
        seen: tuple[int, ...] | None,
    ) -> None:
        super().__init__(path, fields=fields, **options)
        self._state = path, fields, options, info, manifest, seen

    def _open(self) -> TrajectoryInfo:
        *_, info, manifest, self._seen = self._state
        self._manifest = dict(manifest)
        self._segments = segments_of(self._manifest, self.path)
        starts = [segment.first_frame for segment in self._segments]
        self._starts = np.array(starts, np.int64)
        self._current = None
        return info

    def __reduce__(self) -> tuple[Any, ...]:
        return _KnownSegments, self._state
