"""What h5md and zarr share: layouts that mdio or others wrote, each read in its own way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from mdio.core.files.requests import ByteRange
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.base import AtomIndices, Layout
from mdio.layouts.output import EncodedChunk, Unit

__all__ = ["Backend", "BackendLayout"]


class Backend(Protocol):
    """An opened file or tree, of mdio or of others.

    It may also have `units`, `stored` and `made_as`, as `Layout` has, and `byte_ranges`, which gets
    the fields, too.
    """

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        """What mdio wrote of its making; None for what others wrote."""

    def info(self, layout: str) -> TrajectoryInfo:
        """Return what is in it; `layout` is the name of the layout."""

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill `block`; see `Layout.read`."""

    def close(self) -> None:
        """Close files."""


class BackendLayout(Layout):
    """A layout whose `_open` sets `_backend`, which then does the work."""

    _backend: Backend | None = None

    @property
    def contents(self) -> Backend:
        """What does the work; opens it if need be."""
        _ = self.info
        assert self._backend is not None
        return self._backend

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        """What mdio wrote of this output's making; None for what others wrote."""
        return self.contents.manifest

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        self.contents.read_into(start, stop, atoms, block)

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield what reading takes; see `Layout.byte_ranges`."""
        ranges = getattr(self.contents, "byte_ranges", None)
        if ranges is not None:
            yield from ranges(start, stop, atoms, self.fields)

    def units(self) -> Iterator[Unit]:
        """Yield all that there is to check, those of the groups too; see `Layout.units`."""
        yield from getattr(self.contents, "units", super().units)()

    def stored(self, start: int, stop: int) -> list[EncodedChunk]:
        """Return what lies on disk of a piece; see `Layout.stored`."""
        found: list[EncodedChunk] = getattr(self.contents, "stored", super().stored)(start, stop)
        return found

    def made_as(self) -> dict[str, Any]:
        """Return how arrays are cut; see `Layout.made_as`."""
        found: dict[str, Any] = getattr(self.contents, "made_as", super().made_as)()
        return found

    @property
    def decodes(self) -> bool:
        """Our own are decoded here; libraries have locks and threads of their own."""
        return self.manifest is not None

    def _close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None
