"""The units of one trajectory in a node's cache, and whether they are still those of the source."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.cache.folder import TEMPORARY, Cache, is_private
from mdio.core.cache.unit import DamagedUnitError, HeldUnit, SourceRange, open_unit, write_unit
from mdio.core.errors import SourceError
from mdio.core.files.direct import write_whole
from mdio.core.files.fingerprint import COUNTS_NBYTES, file_state
from mdio.core.files.regular import read_regular

RECORD = "source.json"
REPLACED = "replaced"
"""In place of a generation: another file has the name of the one that is open."""


def record_in(home: Path) -> dict[str, Any]:
    """Return what is noted of the trajectory whose units a folder has; empty if nothing is."""
    try:
        if not is_private((home / RECORD).stat()):
            return {}
        found = json.loads(read_regular(home / RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()


class CachedSource:
    """The units of a trajectory in a cache folder.

    An output of mdio is known by its uuid. A file is known by its size, inode, times of
    modification and change, and the checksums of both its ends; it may grow at its end. Units carry
    a generation in their names, which is another one once the source has been replaced.

    `cache`: the folder. `path`: the trajectory. `label`: what of it is read, where that is a part
    (a stored group of atoms). `uuid`: of an output of mdio. `n_units`: how many units there are,
    for those who look at the folder later. `opened`: what the system says of the file that is open,
    which may have another name by now.
    """

    def __init__(
        self,
        cache: Cache,
        path: Path,
        label: str = "",
        uuid: str | None = None,
        n_units: int = 0,
        opened: os.stat_result | None = None,
    ) -> None:
        self.folder = cache.open()
        self.path = Path(os.path.realpath(path))
        self.label = label
        self.uuid = uuid
        self.n_units = n_units
        self._opened = opened
        self._now: dict[str, Any] = {}
        self.notes: list[str] = []
        """What the user should know, each once."""
        self.home = self.folder.home(_digest(self.path, label)[:16])
        if self.folder.foreign_versions:
            self.note(
                f"{self.folder.root}: {self.folder.foreign_versions} of the trajectories there "
                "were kept by another version of mdio and are not used; mdio cache evict "
                "removes them"
            )

    def note(self, text: str) -> None:
        """Tell the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def generation(self) -> str:
        """Hash of what the source is; the same while it is the same or grows.

        Raises SourceError: it is not there.
        """
        known = record_in(self.home)
        identity, generation = self._identity(known)
        self._now = identity
        if generation == REPLACED:
            return generation
        record = {
            "path": str(self.path),
            "label": self.label,
            "identity": identity,
            "generation": generation,
            "units": self.n_units or known.get("units", 0),
        }
        if record != known:
            try:
                self.folder.make_home(self.home)
                data = json.dumps(record).encode()
                write_whole(self.home / RECORD, data, prefix=TEMPORARY, mode=0o600)
            except OSError as error:
                self.note(self.folder.fail(error))
            for one in self.folder.files([self.home]):
                if one.path.suffix == ".unit" and not one.path.name.startswith(generation):
                    one.remove()
        return generation

    def _identity(self, known: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return what the source is now, and its generation."""
        before = known.get("identity") if isinstance(known.get("identity"), dict) else None
        if self.uuid is not None:
            return {"uuid": self.uuid}, _digest(self.uuid)[:12]
        try:
            status = self._opened or self.path.stat()
            now: dict[str, Any] = self._state(status)
            if before is not None:
                if all(before.get(name) == value for name, value in now.items()):
                    return before, str(known["generation"])
                if self._has_grown(before, now):
                    return now | self._ends(None), str(known["generation"])
            now |= self._ends(None)
            if self.path.stat().st_ino != status.st_ino:
                return now, REPLACED
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read ({error.strerror})") from error
        return now, _digest(sorted(now.items()))[:12]

    @staticmethod
    def _state(status: os.stat_result) -> dict[str, int]:
        return {
            "nbytes": status.st_size,
            "inode": status.st_ino,
            "mtime_ns": status.st_mtime_ns,
            "ctime_ns": status.st_ctime_ns,
        }

    def _ends(self, nbytes: int | None) -> dict[str, int]:
        state = file_state(self.path, nbytes, COUNTS_NBYTES)
        return {name: state[name] for name in ("crc32c_head", "crc32c_tail")}

    def _has_grown(self, before: dict[str, Any], now: dict[str, int]) -> bool:
        """Return whether more was appended to the very file that there was."""
        nbytes = before.get("nbytes")
        if not isinstance(nbytes, int) or not 0 < nbytes < now["nbytes"]:
            return False
        ends = self._ends(nbytes)
        return all(before.get(name) == ends[name] for name in ends) and (
            before.get("inode") == now["inode"]
        )

    def is_same(self) -> bool:
        """Return whether the source is what it was when its generation was found, or has grown."""
        if self.uuid is not None:
            return True
        before = self._now
        with suppress(OSError):
            now = self._state(self.path.stat())
            return now["inode"] == before["inode"] and (
                now["nbytes"] > before["nbytes"]
                or all(now[name] == before[name] for name in ("nbytes", "mtime_ns"))
            )
        return False

    def name(self, number: int, stop: int) -> str:
        """Return the name of a unit, of which `stop` is the frame behind its last."""
        return f"{self.generation}-{number}-{stop}"

    def held(self, numbers: Sequence[int], stops: Sequence[int]) -> NDArray[np.bool_]:
        """Return which of some units are there, by a look at names."""
        prefix = f"{self.generation}-"
        try:
            with os.scandir(self.home) as entries:
                names = {one.name for one in entries if one.name.startswith(prefix)}
        except OSError:
            return np.zeros(len(numbers), bool)
        pairs = zip(numbers, stops, strict=True)
        return np.array([f"{self.name(n, stop)}.unit" in names for n, stop in pairs], bool)

    def take(self, name: str) -> HeldUnit | None:
        """Return what is kept under a name; None if that is nothing, or damaged."""
        try:
            found = open_unit(self.home / f"{name}.unit")
        except DamagedUnitError as damage:
            self.drop(name, damage)
            return None
        if found is not None:
            with suppress(OSError):
                found.touch()
        return found

    def drop(self, name: str, damage: DamagedUnitError) -> None:
        """Remove what is damaged, and say so once."""
        with suppress(OSError):
            (self.home / f"{name}.unit").unlink()
        self.note(
            f"{self.home}: a unit of {self.path} is damaged ({damage}), and is read from the "
            "source again; more than one, and the disk wants looking at"
        )

    def put(self, name: str, ranges: Sequence[SourceRange], data: NDArray[np.uint8]) -> None:
        """Keep bytes that were read from the source, if there is room."""
        folder = self.folder
        if folder.problem is not None:
            self.note(folder.problem)
            return
        if self.generation == REPLACED or not self.is_same():
            return
        try:
            folder.make_home(self.home)
            if folder.make_room(data.nbytes + (64 << 10), self.home):
                write_unit(self.home / f"{name}.unit", ranges, data)
            else:
                self.note(folder.too_small())
        except OSError as error:
            self.note(folder.fail(error))
