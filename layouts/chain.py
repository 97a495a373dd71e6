"""Several files read as one trajectory, and the one function that opens a trajectory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.frames import FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.base import AtomIndices, Layout, boundaries_of
from mdio.layouts.registry import open_layout

__all__ = ["ChainLayout", "open_source"]

MAX_OPEN = 4
"""Members that are open at the same time: many small files would run out of handles."""

AnyPath = str | PathLike[str]


class ChainLayout(Layout):
    """Files or folders joined in the order given, as one trajectory.

    Times and steps are those in each file. Velocities and forces are there if any member has them,
    and NaN in the frames of the others.

    ``info.layout`` is ``chain``, and ``info.path`` that of the first member; compression and
    precision are kept where all members share them. Messages about bytes name the member.

    Parameters
    ----------
    members
        Layouts, or paths for `open_layout`.
    fields, **options
        As for `open_layout`; passed on to it.

    Raises
    ------
    ValueError
        There are no members.
    SourceError
        When opened: a member cannot be read, or has another number of atoms than the first.
    """

    name = "chain"
    known_options = None

    def __init__(
        self,
        members: Iterable[Layout | AnyPath],
        *,
        fields: Sequence[str] = FIELDS,
        **options: Any,
    ) -> None:
        self.members = tuple(
            member if isinstance(member, Layout) else open_layout(member, fields=fields, **options)
            for member in members
        )
        if not self.members:
            raise ValueError("a chain needs one trajectory at least")
        super().__init__(self.members[0].path, fields=fields, **options)
        self._infos: list[TrajectoryInfo] = []
        self._own_boundaries: dict[int, NDArray[np.int64]] = {}
        self._opened: OrderedDict[int, Layout] = OrderedDict()
        self._edges = np.zeros(1, np.int64)

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
        self._learn()
        first = self._infos[0]
        for info in self._infos:
            if info.n_atoms != first.n_atoms:
                raise SourceError(
                    f"{info.path}: has {info.n_atoms} atoms, but {first.path}, which it is to "
                    f"follow, has {first.n_atoms}; join trajectories of the same atoms"
                )
        self._edges = np.cumsum([0, *(info.n_frames for info in self._infos)], dtype=np.int64)
        dt_ps = first.dt_ps
        if first.n_frames == 1 and len(self._infos) > 1:
            dt_ps = self._infos[1].time_first_ps - first.time_first_ps
        alike = all(
            (info.compression, info.precision) == (first.compression, first.precision)
            for info in self._infos
        )
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=int(self._edges[-1]),
            n_atoms=first.n_atoms,
            dt_ps=dt_ps,
            time_first_ps=first.time_first_ps,
            time_last_ps=self._infos[-1].time_last_ps,
            has_velocities=any(info.has_velocities for info in self._infos),
            has_forces=any(info.has_forces for info in self._infos),
            has_box=first.has_box,
            compression=first.compression if alike else None,
            precision=first.precision if alike else None,
            nbytes=sum(info.nbytes for info in self._infos),
        )

    def _learn(self) -> None:
        """Ask each member, while it is open, for all that will be asked of it but frames."""
        self._infos, self._own_boundaries = [], {}
        for number in range(len(self.members)):
            member = self._use(number)
            self._infos.append(member.info)
            if type(member).boundaries is not Layout.boundaries:
                self._own_boundaries[number] = member.boundaries()

    def _close(self) -> None:
        while self._opened:
            self._opened.popitem()[1].close()

    def _use(self, number: int) -> Layout:
        """Return a member, and close the one that was used longest ago if too many are open."""
        member = self._opened[number] = self._opened.pop(number, self.members[number])
        if len(self._opened) > MAX_OPEN:
            self._opened.popitem(last=False)[1].close()
        return member

    def boundaries(self) -> NDArray[np.int64]:
        """Return where the members, and the pieces of each, begin."""
        _ = self.info
        edges = []
        for number, info in enumerate(self._infos):
            own = self._own_boundaries.get(number)
            edges.append((boundaries_of(info) if own is None else own)[:-1] + self._edges[number])
        return np.concatenate([*edges, self._edges[-1:]])

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        number = int(np.searchsorted(self._edges, start, side="right")) - 1
        while start < stop:
            first = int(self._edges[number])
            end = min(stop, int(self._edges[number + 1]))
            self._read_member(
                number, start - first, end - first, atoms, block.frames(slice(0, end - start))
            )
            block = block.frames(slice(end - start, None))
            start, number = end, number + 1

    def _read_member(
        self, number: int, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        info = self._infos[number]
        if block.velocities is not None and not info.has_velocities:
            block.velocities[...] = np.nan
            block.velocities = None
        if block.forces is not None and not info.has_forces:
            block.forces[...] = np.nan
            block.forces = None
        if start < stop:  # a member may have no frames
            self._use(number).read(start, stop, atoms=atoms, out=block)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_chain, (self.members, self.fields, self.options))

    def __repr__(self) -> str:
        return f"ChainLayout({[str(member.path) for member in self.members]!r})"


def _chain(
    members: tuple[Layout, ...], fields: tuple[str, ...], options: dict[str, Any]
) -> ChainLayout:
    return ChainLayout(members, fields=fields, **options)


def open_source(paths: AnyPath | Sequence[AnyPath], **options: Any) -> Layout:
    """Open one trajectory, or several files in order as one.

    Parameters
    ----------
    paths
        A file or folder of any layout, or a sequence of them.
    **options
        As for `mdio.layouts.registry.open_layout`, for each of them.

    Returns
    -------
    Layout
        Opened on first use.

    Raises
    ------
    SourceError
        Nothing is there, or it is empty.
    UnknownLayoutError
        No layout reads it.
    ValueError
        An empty sequence.
    """
    if isinstance(paths, str | PathLike):
        return open_layout(paths, **options)
    return open_layout(paths[0], **options) if len(paths) == 1 else ChainLayout(paths, **options)
