"""Reading through references: the source, if it still is what they point into."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

from mdio.core.blocks import Spans
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.fingerprint import NAMES, fingerprint, head_of
from mdio.core.files.in_flight import ByteRange
from mdio.core.files.regular import read_regular
from mdio.core.files.remote.paths import path_of
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.topology.topology import Topology
from mdio.layouts.base import AtomIndices, Layout
from mdio.layouts.manifest import check_manifest, count_of_runs, indices_from_runs
from mdio.layouts.registry import open_layout
from mdio.layouts.units import Unit
from mdio.layouts.views.view import ViewLayout

OURS = {"fields", "verify", "layout", "cache", "cache_size", "path"}
"""What is said where references are opened, and not by them."""
MOST_REFERENCES = 16
"""That refer to one another."""
_through: ContextVar[tuple[str, ...]] = ContextVar("_through", default=())
"""The references that are being opened, each for the one before."""
BEGIN = b'{"version":1,"mdio":'
"""Of what mdio writes; kerchunk's readers skip the second key."""


class RefsLayout(Layout):
    """A file of references in kerchunk's format, as mdio writes them.

    Its frames are read from the source, as without it: by mdio's own readers, which verify more
    than references can.
    """

    name = "refs"
    suffixes: ClassVar[tuple[str, ...]] = (".refs",)
    reads_remote = True
    keeps_columns = True
    _source: Layout
    _manifest: dict[str, Any]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins as mdio's do, or is called ``.refs`` and begins as JSON."""
        head = head_of(path)
        return head.startswith(BEGIN) or (path.suffix in cls.suffixes and head.startswith(b"{"))

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What mdio wrote of their making."""
        _ = self.info
        return self._manifest

    @property
    def decodes(self) -> bool:
        """Whether the source does."""
        _ = self.info
        return self._source.decodes

    def _open(self) -> TrajectoryInfo:
        through = _through.get()
        here = str(self.path.resolve())
        if here in through or len(through) >= MOST_REFERENCES:
            raise CorruptLayoutError(
                f"{self.path}: refers to itself, through {len(through)} files of references; make "
                "them again from the trajectory"
            )
        reset = _through.set((*through, here))
        try:
            return self._open_source()
        finally:
            _through.reset(reset)

    def _open_source(self) -> TrajectoryInfo:
        self._manifest = manifest = self._read_manifest()
        known = manifest["source"]
        source = path_of(known["path"])
        found = fingerprint(source)
        changed = [name for name in ("nbytes", "crc32c_head", "crc32c_tail") if name in known]
        changed = [name for name in changed if found[name] != known[name]]
        if changed:
            raise SourceError(
                f"{self.path}: points into {source}, which is not what it was (its "
                f"{NAMES[changed[0]]} was {known[changed[0]]}, now it is {found[changed[0]]}); "
                "make the references again"
            )
        opened = known.get("opened") or {}
        whole = open_layout(source, fields=self.fields, verify=self.verify, **opened)
        last = max((stop for _, stop, _ in manifest["frames"]), default=0)
        if count_of_runs(manifest["frames"]) != manifest["n_frames"] or last > whole.info.n_frames:
            whole.close()
            raise SourceError(
                f"{self.path}: tells of {manifest['n_frames']} frames and refers to others of the "
                f"{whole.info.n_frames} of {source}; make the references again"
            )
        frames = indices_from_runs(manifest["frames"])
        self._source = ViewLayout(source, source=whole, frames=_range_of(frames))
        info = self._source.info
        if (info.n_frames, info.n_atoms) != (manifest["n_frames"], manifest["n_atoms"]):
            self._source.close()
            raise SourceError(
                f"{self.path}: tells of {manifest['n_frames']} frames of {manifest['n_atoms']} "
                f"atoms, and {source} has {info.n_frames} of {info.n_atoms}; make them again"
            )
        return info.replace(layout=self.name, path=str(self.path), source=known)

    def _read_manifest(self) -> dict[str, Any]:
        try:
            found = json.loads(read_regular(self.path))
        except FileNotFoundError as error:
            raise SourceError(f"{self.path}: no such file") from error
        except (OSError, ValueError, RecursionError) as error:
            raise CorruptLayoutError(
                f"{self.path}: not JSON, or cut ({error}); make the references again"
            ) from error
        manifest = found.get("mdio") if isinstance(found, dict) else None
        manifest = check_manifest(manifest, self.path)
        path, opened = manifest["source"].get("path"), manifest["source"].get("opened", {})
        fitting = isinstance(path, str) and path and "\0" not in path and isinstance(opened, dict)
        if not fitting or not all(isinstance(key, str) for key in opened) or OURS & opened.keys():
            raise CorruptLayoutError(
                f"{self.path}: says of its source {str(manifest['source'])[:80]!r}, expected a "
                "path, and how it was opened; make the references again"
            )
        return manifest

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        self._source.read(start, stop, atoms=atoms, out=block)

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield what reading takes of the source."""
        _ = self.info
        yield from self._source.byte_ranges(start, stop, atoms)

    @property
    def in_store(self) -> bool:
        """Whether the source lies in a store."""
        _ = self.info
        return self._source.in_store

    def look_ahead(self, runs: Spans, atoms: AtomIndices | None) -> None:
        """Have the source ask for objects; see `Layout.look_ahead`."""
        _ = self.info
        self._source._is_led = bool(runs)  # by this, and not by each of its reads
        self._source.look_ahead(runs, atoms)

    def units(self) -> Iterator[Unit]:
        """Yield what there is to check of the source."""
        _ = self.info
        yield from self._source.units()

    def topology(self) -> Topology | None:
        """Return what the source has."""
        _ = self.info
        return self._source.topology()

    def _close(self) -> None:
        self._source.close()


def _range_of(frames: Any) -> Any:
    """Return frame numbers as a range, if they are neighbours."""
    first, n_frames = int(frames[0]), len(frames)
    neighbours = (frames[1:] - frames[:-1] == 1).all()
    return range(first, first + n_frames) if neighbours else frames
