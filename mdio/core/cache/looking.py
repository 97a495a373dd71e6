"""What is in a cache folder, all nodes' that lie below it: its contents, eviction, a check."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mdio.core.cache.folder import NODE_PREFIX, Cache, CacheFolder, Stored
from mdio.core.cache.source import RECORD, record_in
from mdio.core.cache.unit import DamagedUnitError, open_unit
from mdio.core.errors import SourceError


def folders_of(folder: str | os.PathLike[str]) -> list[tuple[str | None, CacheFolder]]:
    """Return the folders of a cache, with the names of their nodes where there are several.

    Raises SourceError: there is no such folder.
    """
    root = Cache(os.fspath(folder)).root
    if not root.is_dir():
        raise SourceError(f"{root}: no such folder; nothing has been kept there yet")
    nodes = sorted(root.glob(f"{NODE_PREFIX}*"))
    below = [(path.name.removeprefix(NODE_PREFIX), CacheFolder(path)) for path in nodes]
    return [(None, CacheFolder(root)), *below]


def cached_trajectories(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield what is kept of each trajectory, on each node.

    Yields dict: ``path``; ``label``, the stored group if it is one; ``node``, None for all;
    ``units``, ``units_cached`` and ``nbytes``.
    """
    for node, one in folders_of(folder):
        for home in one.homes():
            record = record_in(home)
            files = list(one.files([home]))
            yield {
                "path": record.get("path", str(home)),
                "label": record.get("label", ""),
                "node": node,
                "units": record.get("units", 0),
                "units_cached": len({_number(file) for file in files if file.is_unit}),
                "nbytes": sum(file.nbytes for file in files),
            }


def _number(file: Stored) -> str:
    return file.path.stem.split("-")[1]


def evict_units(
    folder: str | os.PathLike[str], keep_nbytes: int = 0, path: str | None = None
) -> tuple[int, int]:
    """Remove what was not used for the longest time; return how many files, and their bytes.

    `folder`: the cache. `keep_nbytes`: what each node may keep. `path`: of this trajectory alone.
    """
    n_files = nbytes = 0
    for _, one in folders_of(folder):
        homes = [
            home
            for home in one.homes(every=True)
            if path is None or record_in(home).get("path") == os.path.realpath(path)
        ]
        every = [file for file in one.files(homes) if file.path.name != RECORD]
        files = sorted(every, key=lambda file: file.used_ns)
        held = sum(file.nbytes for file in files)
        for file in files:
            if held <= keep_nbytes:
                break
            file.remove()
            held -= file.nbytes
            n_files, nbytes = n_files + 1, nbytes + file.nbytes
        for home in homes:
            if not any(file.path.name != RECORD for file in one.files([home])):
                with suppress(OSError):  # something of others is in it
                    (home / RECORD).unlink(missing_ok=True)
                    home.rmdir()
    return n_files, nbytes


def verify_units(folder: str | os.PathLike[str]) -> Iterator[tuple[Path, str | None]]:
    """Read all units and compare them with their checksums; yield files and what is wrong."""
    for _, one in folders_of(folder):
        for file in one.files(list(one.homes())):
            if file.path.suffix != ".unit":
                continue
            problem = None
            try:
                unit = open_unit(file.path)
                if unit is not None:
                    unit.check()
                    unit.close()
            except (DamagedUnitError, OSError) as error:
                problem = str(error)
            yield file.path, problem
