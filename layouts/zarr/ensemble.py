"""Ensembles in Zarr: each trajectory is a whole tree in a group of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from mdio.core.files.marks import manifest_in
from mdio.core.files.publish import flush_tree
from mdio.layouts.chunked.ensembles import Ensemble, check_members, labels_in
from mdio.layouts.zarr.metadata import METADATA, group_metadata
from mdio.layouts.zarr.series import write_file


class ZarrEnsemble(Ensemble):
    """Makes one tree of several."""

    def create(self) -> None:
        """Make the root."""
        self.path.mkdir()

    def member(self, label: str, *, final: bool = False) -> Path:
        """Return the folder of a group."""
        return (self.target if final else self.path) / label

    def seal(self, labels: Sequence[str]) -> None:
        """Write the root's metadata over the groups that are there; raises OutputError."""
        root = group_metadata({"mdio": self.manifest(labels)})
        write_file(self.path / METADATA, json.dumps(root).encode())
        flush_tree(self.path / METADATA)


def members_in(path: Path) -> dict[str, Path]:
    """Return the groups of the ensemble that is at `path`, in order; none if it is something else.

    Raises CorruptLayoutError: a group is missing.
    """
    labels: Sequence[str] = ()
    with suppress(OSError):
        status = (path / METADATA).stat()
        labels = _labels(path, status.st_ino, status.st_mtime_ns, status.st_size)
    members = {label: path / label for label in labels}
    check_members(path, members, METADATA)
    return members


@lru_cache(maxsize=64)
def _labels(path: Path, *_: int) -> Sequence[str]:
    """Return what the root names; read once as long as it is the same file: all who open ask."""
    return labels_in(manifest_in(path) or {})
