"""The base of h5md and zarr: a layout with one backend for outputs of mdio, one for others."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mdio.core.blocks import FrameRuns
from mdio.core.errors import CorruptLayoutError
from mdio.core.files.in_flight import ByteRange, Opening
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.layouts.base import Layout
from mdio.layouts.units import Unit

if TYPE_CHECKING:
    from mdio.layouts.chunked.own import OwnOutput
    from mdio.layouts.foreign.tree import ForeignTrajectory
    from mdio.layouts.tables import Tables
    from mdio.layouts.writer import EncodedChunk

    Backend: TypeAlias = OwnOutput[Any] | ForeignTrajectory


class BackendLayout(Layout):
    """A layout whose `_open_from_scratch` sets `_backend`, which does the reading.

    Only backends of mdio's outputs have `units`, `encoded_chunks`, `plan_fields`, `byte_ranges` and
    `openings`. Those that pickle have `reopen`, which opens their file in another process, and
    returns whether it is still the same file.
    """

    _backend: Backend | None = None

    @abstractmethod
    def _open_from_scratch(self) -> TrajectoryInfo:
        """Open it, and set `_backend`."""

    def _open(self) -> TrajectoryInfo:
        info: TrajectoryInfo | None = None
        if self._shared_metadata is not None:
            # Copied, since open files of the original must not be shared.
            info, backend = copy.deepcopy(self._shared_metadata)
            if backend.reopen():
                self._backend = backend
            else:
                backend.close()
                info = None
        if info is None:
            info = self._open_from_scratch()
        assert self._backend is not None
        self._has_steps = getattr(self._backend, "has_steps", True)
        # A call in between would take a third of the time of a small read.
        self._read_into = self._backend.read_into  # type: ignore[method-assign]
        return info

    def with_metadata(self) -> Layout:
        """Return a layout that pickles with the tables of an output of mdio.

        Otherwise all ranks of a large job would read the same few bytes.
        """
        if self._shared_metadata is not None or not hasattr(self.backend, "reopen"):
            return self
        return self._copy_with_metadata((self.info, self.backend))

    @property
    def backend(self) -> Backend:
        _ = self.info
        assert self._backend is not None
        return self._backend

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        return self.backend.manifest

    @property
    def notes(self) -> tuple[str, ...]:
        return (*super().notes, *getattr(self.backend, "notes", ()))

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        self.backend.read_into(start, stop, atoms, block)

    def _ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        ranges = getattr(self.backend, "byte_ranges", None)
        if ranges is not None:
            yield from ranges(start, stop, atoms, self.fields)

    def _openings(self, runs: FrameRuns, atoms: AtomIndices | None) -> Iterator[Opening]:
        openings = getattr(self.backend, "openings", None)
        if openings is not None:
            yield from openings(runs, atoms, self.fields)

    def _group_for_cache(self, atoms: AtomIndices | None) -> tuple[str, AtomIndices | None]:
        """Return name and fields of the stored group that has `atoms`, and its atoms."""
        backend: Any = self.backend
        if self.manifest is None:
            return "", None
        group, _ = backend.stored_group(atoms)
        fields = [field for field in self.fields if (group, field) in backend.arrays]
        group_atoms = None if group == backend.group else backend.groups.atoms_of(group)
        return f"{group}: {', '.join(fields)}", group_atoms

    def tables(self) -> Tables:
        from mdio.layouts.tables import Tables  # only references need it

        positions = getattr(self.backend, "positions", None)
        return super().tables() if positions is None else Tables(positions=positions)

    def topology(self) -> Topology | None:
        topology: Topology | None = getattr(self.backend, "topology", super().topology)()
        return topology

    def units(self) -> Iterator[Unit]:
        yield from getattr(self.backend, "units", super().units)()

    def _close(self) -> None:
        self.__dict__.pop("_read_into", None)
        if self._backend is not None:
            self._backend.close()
            self._backend = None


def plan_fields(layout: Layout) -> dict[str, Any]:
    """Return values of `LayoutPlan` fields for an output that is cut into chunks as this one."""
    get_fields = getattr(_backend_of(layout), "plan_fields", dict)
    return cast(dict[str, Any], get_fields())


def read_encoded_chunks(layout: Layout, start: int, stop: int) -> list[EncodedChunk]:
    """Return the stored chunks of the frames of a piece; raises CorruptLayoutError."""
    read_chunks = getattr(_backend_of(layout), "encoded_chunks", None)
    if read_chunks is None:
        raise CorruptLayoutError(
            f"{layout.path}: {layout.name} does not keep checksums of what it stores"
        )
    return cast("list[EncodedChunk]", read_chunks(start, stop))


def _backend_of(layout: Layout) -> Any:
    return getattr(layout, "backend", layout)
