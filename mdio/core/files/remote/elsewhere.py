"""Objects of an output that lie in another folder, which its manifest tells, or stay there.

A store renames nothing. Where an output takes the place of a former one, its manifest alone changes
in one step: it says first that objects lie in the folder in which they were sent, until they have
been copied to their names, and then no more. Before, in that folder, it says of objects of the
former output that they are above it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mdio.core.files.marks import MARK, seal
from mdio.core.files.remote.objects import look
from mdio.core.files.remote.paths import RemotePath

KEY = "elsewhere"
STAGE = "mdio-new-"
"""How the folder begins in which an output is whole that is to replace another one."""
ABOVE = ".."
KEPT_NS, SENT_NS = 0, 10**9
"""When files were changed that stand for objects: no others are as old."""


class Elsewhere:
    """Where the objects of an output lie, as its `manifest` says."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        found = manifest.get(KEY)
        entry = found if isinstance(found, dict) else {}
        name, names = str(entry.get("folder", "")), entry.get("names")
        self.folder = folder
        self._other: Path | None = None
        if name == ABOVE and folder.name.startswith(STAGE):
            self._other = folder.parent
        elif name.startswith(STAGE) and "/" not in name:
            self._other = folder / name
        self._names = frozenset(map(str, names)) if isinstance(names, list) else None

    def place(self, name: str) -> Path:
        """Return where an object is: at its name, if it has been copied there by now."""
        if self._other is None or (self._names is not None and name not in self._names):
            return self.folder / name
        there = self._other / name
        if isinstance(there, RemotePath) and look(there) is None:
            return self.folder / name
        return there


def stand_in(target: Path, nbytes: int, *, sent: bool = False) -> None:
    """Make a file, as long and without contents, for an object.

    It stays where it is in the former output, or was `sent` for the new one.
    """
    with target.open("wb") as file:
        file.truncate(nbytes)
    os.utime(target, ns=(0, SENT_NS if sent else KEPT_NS))


def is_kept(status: os.stat_result) -> bool:
    """Return whether a file stands for an object of the former output."""
    return status.st_mtime_ns == KEPT_NS


def was_sent(file: Path) -> bool:
    """Return whether a file stands for an object that was sent."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns == SENT_NS
    return False


def noted(text: bytes) -> Any:
    """Return what a manifest says under `KEY`; None if nothing."""
    return _manifest(json.loads(text)).get(KEY)


def noting(text: bytes, folder: str = "", names: Collection[str] | None = None) -> bytes:
    """Return a manifest that says that `names` (None = all) are in `folder`; or nothing of it."""
    node = json.loads(text)
    manifest = _manifest(node)
    manifest.pop(KEY, None)
    if folder:
        manifest[KEY] = {"folder": folder, "names": None if names is None else sorted(names)}
    sealed = seal(manifest)
    manifest.clear()
    manifest.update(sealed)
    return json.dumps(node).encode()


def _manifest(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = node["attributes"][MARK] if "attributes" in node else node
    return found
