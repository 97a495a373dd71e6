"""Ensembles: trajectories of one system side by side, each a whole tree in a group of its own.

The root has a manifest of its own kind, which names the groups in order; a group is opened, read
and verified as any other tree.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.marks import manifest_in
from mdio.core.files.publish import flush_tree
from mdio.layouts.zarr.metadata import METADATA, group_metadata
from mdio.layouts.zarr.series import write_file


def seal(folder: Path, labels: Sequence[str]) -> None:
    """Write the root's metadata over the groups that are there; raises OutputError."""
    manifest = {
        "format": "mdio",
        "format_version": 1,
        "layout": "ensemble",
        "uuid": str(uuid.uuid4()),
        "members": list(labels),
    }
    write_file(folder / METADATA, json.dumps(group_metadata({"mdio": manifest})).encode())
    flush_tree(folder / METADATA)


def members_in(path: Path) -> tuple[str, ...]:
    """Return the groups of the ensemble that is at `path`, in order; none if it is something else.

    Raises CorruptLayoutError: a group is missing.
    """
    manifest = manifest_in(path) or {}
    members = manifest.get("members") if manifest.get("layout") == "ensemble" else None
    labels = tuple(map(str, members)) if isinstance(members, list) else ()
    for label in labels:
        if Path(label).name != label or not (path / label / METADATA).exists():
            raise CorruptLayoutError(
                f"{path}: the trajectory {label!r} of the ensemble is missing; convert it again"
            )
    return labels
