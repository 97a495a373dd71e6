"""Ensembles in Zarr: each trajectory is a whole tree in a group of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mdio.core.files.publish import flush_tree
from mdio.layouts.chunked.ensembles import Ensemble
from mdio.layouts.zarr.array import write_file
from mdio.layouts.zarr.tree import METADATA, group_metadata


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
