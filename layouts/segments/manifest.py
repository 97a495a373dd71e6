"""The manifest of a folder of segments: read and checked, and known again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.marks import manifest_in
from mdio.core.files.regular import read_regular
from mdio.layouts.manifest import check_manifest
from mdio.layouts.segments.files import MANIFEST


def read_manifest(path: Path, layout: str) -> dict[str, Any]:
    """Return the manifest of a folder of segments; raises CorruptLayoutError."""
    where = path / MANIFEST
    try:
        manifest = json.loads(read_regular(where))
    except FileNotFoundError as error:
        raise CorruptLayoutError(
            f"{path}: it has no {MANIFEST}, so it was not finished or is not a folder of "
            "segments; split or convert the source again"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptLayoutError(
            f"{where}: it cannot be read ({error}); split or convert the source again"
        ) from error
    from mdio.layouts.native.encoder import CONTAINERS  # other folders are looked at, too

    manifest = check_manifest(manifest, path)
    container, fields = manifest.get("container"), manifest.get("fields")
    if manifest["layout"] != layout or container not in CONTAINERS or not isinstance(fields, list):
        raise CorruptLayoutError(
            f"{where}: it describes the layout {manifest['layout']!r} with {fields!r} in files "
            f"of format {container!r}, expected {layout!r} with one of "
            f"{', '.join(CONTAINERS)}; split or convert the source again"
        )
    return manifest


def written_by_mdio(folder: Path) -> bool:
    """Return whether a folder has segments that mdio wrote; False for whatever else is there."""
    found = manifest_in(folder)
    return found is not None and found.get("layout") == "segments"


def state_of(path: Path) -> tuple[int, ...] | None:
    """Return what differs between a file and one that has taken its name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
