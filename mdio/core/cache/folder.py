"""The folder that holds a node's units: its size, its eviction, and what is said about it.

Processes of a node share it without locks: a file appears by being renamed, and whoever finds it
gone reads from the source. Only names of ours are ever removed. Times are compared with times of
the same disk alone, so clocks of other machines do not matter.

A cache is one user's alone: whoever could write there could give others wrong frames, and whoever
could read there would see trajectories that are closed to him.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path

from mdio.core.errors import PlanError
from mdio.core.words import human_nbytes

VERSION = 1
HOMES = re.compile(r"v(\d+)-[0-9a-f]{16}")
"""Folders of one trajectory each: the version of the format, and a hash of what is in it."""
OURS = re.compile(r".*\.unit|\.mdio-cache-[0-9a-f]+|source\.json")
TEMPORARY = ".mdio-cache-"
STALE_NS = 3600 * 10**9
"""Files that have been on their way for so long come no more."""
USER_PREFIX = "uid-"
"""Begins the folders of users in one in which others may write."""
NODE_PREFIX = "node-"
"""Begins the folders of nodes that share a disk and are told apart by ``MDIO_NODE``."""
LEFT_FREE, LEFT_FREE_NBYTES = 0.1, 8 << 30
"""Without a size, so much of the disk stays free, at most so many bytes."""
KEPT_AFTER = 0.9
"""Eviction goes on until so much of the allowed size is left, so that it is seldom needed."""


def is_private(status: os.stat_result) -> bool:
    """Return whether something is this user's (or root's), and nobody else may write there."""
    is_own = status.st_uid in (os.geteuid(), 0)
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _own_place(path: Path) -> Path:
    """Return `path` if it is this user's alone, or not there yet; else a folder in it."""
    try:
        return path if is_private(path.stat()) else path / f"{USER_PREFIX}{os.geteuid()}"
    except OSError:
        return path


def node_name() -> str | None:
    """Return what ``MDIO_NODE`` calls this node; None if it is not set."""
    return os.environ.get("MDIO_NODE") or None


@dataclass(frozen=True, slots=True)
class Cache:
    """Where each node keeps units of trajectories, and how much of them.

    `folder`: on a disk of each node. Variables (``$TMPDIR``) mean those of the process that reads,
    and ``{local}`` the folder of a Dask worker, elsewhere that of temporary files. Where it is
    another user's, or others may write there, ``uid-NUMBER`` in it. Where ``MDIO_NODE`` is set,
    ``node-NAME`` below that. `max_nbytes`: bytes of all files in it; by
    default, all but a tenth of the disk, or 8 GiB where that is less.
    """

    folder: str
    max_nbytes: int | None = None

    @classmethod
    def of(
        cls, given: Cache | str | PathLike[str] | None, max_nbytes: int | None = None
    ) -> Cache | None:
        """Return what a caller asks for by a folder, or already has.

        Raises PlanError: a size that is not positive, or without a folder.
        """
        if max_nbytes is not None and (given is None or max_nbytes < 1):
            raise PlanError(f"a cache of {max_nbytes} bytes: give a folder, and a positive size")
        if given is None or isinstance(given, Cache):
            return given
        return cls(os.fspath(given), max_nbytes)

    @property
    def root(self) -> Path:
        """The folder as this process sees it."""
        path = Path(os.path.expandvars(self.folder.replace("{local}", _local_folder()))).absolute()
        path = _own_place(path)
        name = node_name()
        return path if name is None else path / (NODE_PREFIX + re.sub(r"[^\w.-]", "_", name))

    def open(self) -> CacheFolder:
        """Return the folder; the same for all callers of a process."""
        return _opened(self.root, self.max_nbytes)


def _local_folder() -> str:
    """Return the local folder of the Dask worker that runs this, or that of temporary files."""
    import sys

    if "distributed" in sys.modules:
        with suppress(ImportError, ValueError):  # this is no worker
            from distributed import get_worker

            return str(Path(get_worker().local_directory).parent)
    return tempfile.gettempdir()


@lru_cache(maxsize=64)
def _opened(root: Path, max_nbytes: int | None) -> CacheFolder:
    return CacheFolder(root, max_nbytes)


@dataclass(frozen=True, slots=True)
class Stored:
    """One file of a cache."""

    path: Path
    nbytes: int
    used_ns: int
    """When it was last used."""

    @property
    def is_unit(self) -> bool:
        """Whether it holds frames; others are small tables and notes."""
        return self.path.suffix == ".unit" and "-t" not in self.path.stem

    @property
    def is_temporary(self) -> bool:
        """Whether it is being written, or was."""
        return self.path.name.startswith(TEMPORARY)

    def remove(self) -> None:
        """Remove it; harmless if another process has."""
        with suppress(OSError):
            self.path.unlink()


class CacheFolder:
    """A node's folder as one process knows it.

    `root`: the folder; it is made when something is stored. `max_nbytes`: as `Cache` has it.
    """

    def __init__(self, root: Path, max_nbytes: int | None = None) -> None:
        self.root = root
        self.max_nbytes = max_nbytes
        self.problem: str | None = None
        """Why nothing is stored any more."""
        self._room = 0

    @cached_property
    def foreign_versions(self) -> int:
        """How many trajectories another version of mdio keeps there, in a format of its own."""
        with suppress(OSError):
            homes = [HOMES.fullmatch(path.name) for path in self.root.iterdir()]
            return sum(home is not None and int(home[1]) != VERSION for home in homes)
        return 0

    def home(self, key: str) -> Path:
        """Return the folder of what has this key, 16 hexadecimal digits."""
        return self.root / f"v{VERSION}-{key}"

    def make_home(self, home: Path) -> None:
        """Make the folder of a trajectory, for this user alone; raises OSError."""
        for folder in (*reversed([self.root, *self.root.parents]), home):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.root, home):
            status = folder.stat()
            if not is_private(status):
                raise PermissionError(errno.EPERM, "others may write there", str(folder))
            if folder == home and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                home.chmod(0o700)  # older versions let all read

    def homes(self, *, every: bool = False) -> Iterator[Path]:
        """Yield the folders of trajectories; with `every`, those of other versions too."""
        with suppress(OSError):
            for path in sorted(self.root.iterdir()):
                match = HOMES.fullmatch(path.name)
                if match and (every or int(match[1]) == VERSION) and path.is_dir():
                    yield path

    def files(self, homes: list[Path] | None = None) -> Iterator[Stored]:
        """Yield all files of ours, or those of some trajectories."""
        for home in self.homes(every=True) if homes is None else homes:
            with suppress(OSError), os.scandir(home) as entries:
                for entry in entries:
                    if OURS.fullmatch(entry.name):
                        with suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            yield Stored(Path(entry.path), status.st_size, status.st_mtime_ns)

    def limit(self, held_nbytes: int) -> int:
        """Return how many bytes all files may have, of which there are `held_nbytes` now."""
        if self.max_nbytes is not None:
            return self.max_nbytes
        usage = shutil.disk_usage(self.root)
        left_free = min(int(LEFT_FREE * usage.total), LEFT_FREE_NBYTES)
        return max(0, held_nbytes + usage.free - left_free)

    def make_room(self, nbytes: int, own: Path) -> bool:
        """Evict what was not used for the longest time until `nbytes` fit; False if they cannot.

        The units of the trajectory that is being read, `own`, stay: of one that is larger than the
        cache a part is then there in every pass, where its end would else push out its beginning.
        How much there is is looked up now and then; what was found free is shared by as many
        processes as there are cores.
        """
        if self._room >= nbytes:
            self._room -= nbytes
            return True
        files = sorted(self.files(), key=lambda one: one.used_ns)
        for one in files:  # what killed processes have left
            if one.is_temporary and one.used_ns < files[-1].used_ns - STALE_NS:
                one.remove()
        held = sum(one.nbytes for one in files)
        limit = self.limit(held)
        if held + nbytes > limit:
            held = self.evict([one for one in files if one.path.parent != own], held, limit, nbytes)
        if held + nbytes > limit:
            return False
        self._room = max(0, (limit - held - nbytes) // (os.cpu_count() or 1))
        return True

    def evict(self, files: list[Stored], held: int, limit: int, nbytes: int) -> int:
        """Remove files in their order until there is room, and return the bytes that are left."""
        for one in files:
            if held + nbytes <= KEPT_AFTER * limit:
                break
            if one.path.suffix == ".unit":
                one.remove()
                held -= one.nbytes
        return held

    def fail(self, error: OSError) -> str:
        """Store nothing from now on; return what to tell of it."""
        self.problem = (
            f"{self.root}: nothing can be kept there ({error.strerror or error}), so what is not "
            "there yet is read from the source; free some space or choose another folder"
        )
        return self.problem

    def too_small(self) -> str:
        """Return what to tell where units do not fit."""
        size = "" if self.max_nbytes is None else f" of {human_nbytes(self.max_nbytes)}"
        return (
            f"{self.root}: the cache{size} is full of units of this trajectory, or of others that "
            "cannot go; the rest is read from the source: give it more room"
        )
