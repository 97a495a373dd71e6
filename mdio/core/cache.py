"""Caches: units of trajectories on a node's own disk, and checks whether they are stale.

Processes of a node share a cache without locks: a file appears by a rename, and a process that does
not find it reads from the source. Only files of mdio are ever removed. Times are compared only with
times of the same disk, so clocks of other machines do not matter.

A cache belongs to one user: anyone who could write there could give others wrong frames, and anyone
who could read there would see trajectories that are not readable for them.

The file of a unit holds ranges of bytes of a source's files, with checksums. It consists of
``MDIOUNIT``, the bytes of the header (uint32), the crc32c of all that follows up to the data
(uint32), the header (JSON: ``name``; ``ranges``, a list of [file, offset, bytes], ``file`` relative
to the trajectory and empty for itself; ``nbytes``), the crc32c of each span of 64 KiB of the data
(uint32), and the data, one range after the other. Little-endian.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError, SourceError
from mdio.core.files.checks import open_regular, read_json
from mdio.core.files.fingerprint import FRAME_COUNT_NBYTES, file_state
from mdio.core.files.reading import reads
from mdio.core.files.remote.objects import copy_into
from mdio.core.files.writing import write_atomically
from mdio.core.kernels import crc32c, crc32c_spans
from mdio.core.words import human_nbytes

VERSION = 1
TRAJECTORY_FOLDER = re.compile(rf"v{VERSION}-[0-9a-f]{{16}}")
"""Name of a trajectory's folder: the version of the format, and a hash of path and label."""
CACHE_FILE = re.compile(r".*\.unit|\.mdio-cache-[0-9a-f]+|source\.json")
"""Names of the files that mdio stores there; no others are removed."""
TEMPORARY = ".mdio-cache-"
"""Prefix of a file that is being written."""
ABANDONED_NS = 3600 * 10**9
"""Age at which a temporary file counts as abandoned."""
USER_PREFIX = "uid-"
"""Prefix of the name of a user's folder inside one in which others may write."""
NODE_PREFIX = "node-"
"""Prefix of the folder of a node, named in ``MDIO_NODE``, on a disk that several nodes share."""
FREE_SHARE, MAX_FREE_NBYTES = 0.1, 8 << 30
"""Without a limit, this share of the disk stays free, but at most this many bytes."""
EVICT_TO_SHARE = 0.9
"""Eviction continues until the cache has this share of its limit, so that it is rare."""


def is_private(status: os.stat_result) -> bool:
    """Return whether a file or folder is this user's (or root's) and not writable by others."""
    is_own = status.st_uid in (os.geteuid(), 0)
    return is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _private_folder(path: Path) -> Path:
    """Return `path` if it is private or does not exist yet; else this user's folder in it."""
    try:
        return path if is_private(path.stat()) else path / f"{USER_PREFIX}{os.geteuid()}"
    except OSError:
        return path


def node_name() -> str | None:
    """Return the name of this node in ``MDIO_NODE``; None if it is not set."""
    return os.environ.get("MDIO_NODE") or None


@dataclass(frozen=True, slots=True)
class Cache:
    """Where each node keeps units of trajectories, and how many bytes of them.

    `folder`: on a disk of each node. Variables (``$TMPDIR``) are those of the process that reads;
    ``{local}`` is the folder of a Dask worker, elsewhere that of temporary files. If the folder is
    another user's, or others may write there, ``uid-NUMBER`` in it is used; if ``MDIO_NODE`` is
    set, ``node-NAME`` below that. `max_nbytes`: limit of all files in it; by default, a tenth of
    the disk stays free, or 8 GiB if that is less.
    """

    folder: str
    max_nbytes: int | None = None

    @classmethod
    def from_option(
        cls, cache: Cache | str | PathLike[str] | None, max_nbytes: int | None = None
    ) -> Cache | None:
        """Return the `Cache` of an option: a folder, a `Cache` or None; raises PlanError."""
        if max_nbytes is not None and (cache is None or max_nbytes < 1):
            raise PlanError(f"a cache of {max_nbytes} bytes: give a folder, and a positive size")
        if cache is None or isinstance(cache, Cache):
            return cache
        if not isinstance(cache, str | PathLike):
            raise PlanError(f"the cache is {cache!r}; give the path of a folder")
        return cls(os.fspath(cache), max_nbytes)

    @property
    def root(self) -> Path:
        """The folder as this process sees it."""
        folder = os.path.expandvars(self.folder.replace("{local}", _local_folder()))
        if unset := re.search(r"\$(\w+|\{.*?\})", folder):
            raise PlanError(
                f"the cache {self.folder}: {unset[0]} is not set here; set it, or name it"
            )
        if not folder:  # a variable that is set, but empty
            raise PlanError(f"the cache {self.folder!r} names no folder; give one")
        path = _private_folder(Path(folder).absolute())
        name = node_name()
        return path if name is None else path / (NODE_PREFIX + re.sub(r"[^\w.-]", "_", name))

    def open(self) -> CacheFolder:
        """Return the folder; all callers of a process get the same object."""
        return _folder_at(self.root, self.max_nbytes)


def _local_folder() -> str:
    """Return the local folder of the Dask worker that runs this, or that of temporary files."""
    import sys

    if "distributed" in sys.modules:
        with suppress(ImportError, ValueError):  # not in a worker
            from distributed import get_worker

            return str(Path(get_worker().local_directory).parent)
    return tempfile.gettempdir()


@lru_cache(maxsize=64)
def _folder_at(root: Path, max_nbytes: int | None) -> CacheFolder:
    return CacheFolder(root, max_nbytes)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """One file of a cache."""

    path: Path
    nbytes: int
    used_ns: int
    """When it was last used."""

    def remove(self) -> None:
        """Remove it, unless another process has done so."""
        with suppress(OSError):
            self.path.unlink()


def _free_nbytes_to_keep(total_nbytes: int) -> int:
    """Return how much of a disk of this size stays free where no limit is set."""
    return min(int(FREE_SHARE * total_nbytes), MAX_FREE_NBYTES)


class CacheFolder:
    """A node's cache folder, in one process.

    `root`: the folder; it is made when something is stored. `max_nbytes`: as in `Cache`.
    """

    def __init__(self, root: Path, max_nbytes: int | None = None) -> None:
        self.root = root
        self.max_nbytes = max_nbytes
        self.problem: str | None = None
        """Why nothing more is stored; None if units are stored."""
        self._reserved_nbytes = 0
        """Bytes that may be stored before sizes are summed again."""

    def create_folder(self, folder: Path) -> None:
        """Create the folder of a trajectory, private to this user; raises OSError."""
        for path in (*reversed([self.root, *self.root.parents]), folder):
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)
        for path in (self.root, folder):
            status = path.stat()
            if not is_private(status):
                raise PermissionError(errno.EPERM, "others may write there", str(path))
            if path == folder and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                folder.chmod(0o700)  # older versions let all users read

    def trajectory_folders(self) -> list[Path]:
        """Return the folders of trajectories."""
        with suppress(OSError):
            paths = sorted(self.root.iterdir())
            return [p for p in paths if TRAJECTORY_FOLDER.fullmatch(p.name) and p.is_dir()]
        return []

    def files(self, folders: list[Path] | None = None) -> Iterator[CachedFile]:
        """Yield all files of the cache, or those in the `folders` of some trajectories."""
        for folder in self.trajectory_folders() if folders is None else folders:
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if CACHE_FILE.fullmatch(entry.name):
                        with suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            yield CachedFile(Path(entry.path), status.st_size, status.st_mtime_ns)

    def limit_nbytes(self, used_nbytes: int) -> int:
        """Return the limit of bytes for all files, given that they take `used_nbytes` now."""
        if self.max_nbytes is not None:
            return self.max_nbytes
        usage = shutil.disk_usage(self.root)
        return max(0, used_nbytes + usage.free - _free_nbytes_to_keep(usage.total))

    def make_room(self, nbytes: int, folder: Path) -> bool:
        """Evict the least recently used units until `nbytes` fit; False if they cannot.

        Units in `folder`, of the trajectory being read, stay: if it is larger than the cache, its
        later units would otherwise evict its earlier ones. Sizes are not summed each time: a
        process reserves a share of the free space, as if there were one process for each core.
        """
        if self._reserved_nbytes >= nbytes:
            self._reserved_nbytes -= nbytes
            return True
        files = sorted(self.files(), key=lambda file: file.used_ns)
        for file in files:  # of killed processes
            is_temporary = file.path.name.startswith(TEMPORARY)
            if is_temporary and file.used_ns < files[-1].used_ns - ABANDONED_NS:
                file.remove()
        used_nbytes = sum(file.nbytes for file in files)
        limit = self.limit_nbytes(used_nbytes)
        if used_nbytes + nbytes > limit:
            for file in files:
                if used_nbytes + nbytes <= EVICT_TO_SHARE * limit:
                    break
                if file.path.suffix == ".unit" and file.path.parent != folder:
                    file.remove()
                    used_nbytes -= file.nbytes
        if used_nbytes + nbytes > limit:
            return False
        self._reserved_nbytes = max(0, (limit - used_nbytes - nbytes) // (os.cpu_count() or 1))
        return True

    def disable(self, error: OSError) -> str:
        """Store nothing from now on; return a warning."""
        self.problem = (
            f"{self.root}: cannot write to this cache ({error.strerror or error}), so the rest is "
            "read from the source; free some space or choose another folder"
        )
        return self.problem

    def too_small_warning(self, path: Path) -> str:
        """Return a warning that the units of the trajectory at `path` do not fit."""
        if self.max_nbytes is None:
            kept_free = human_nbytes(_free_nbytes_to_keep(shutil.disk_usage(self.root).total))
            limit_text, advice = f"{kept_free} of its disk stay free", "free space there"
        else:
            limit_text = f"it may take {human_nbytes(self.max_nbytes)} (--cache-size)"
            advice = "give a larger --cache-size (cache_size= in Python)"
        return (
            f"{self.root}: the cache is full: {limit_text}, and {path} alone needs more; what does "
            f"not fit is read from the source in every pass: {advice}"
        )


MAGIC = b"MDIOUNIT"
PREFIX = struct.Struct("<8sII")
"""`MAGIC`, bytes of the header, and the crc32c of header and checksums."""
SPAN_NBYTES = 64 << 10
"""Bytes of a unit that have their own checksum."""

SourceRange = tuple[str, int, int]
"""File, relative to the trajectory; offset; bytes."""
Bytes = NDArray[np.uint8]


class DamagedUnitError(Exception):
    """The bytes of a unit differ from those that were stored."""


def _span_edges(begin: int, end: int) -> NDArray[np.int64]:
    return np.append(np.arange(begin, end, SPAN_NBYTES), np.int64(end))


class CachedUnit:
    """A unit that is read from: its file, or its bytes in memory.

    `ranges`: where its bytes lie in the source. `data`: its bytes, if they have just been read.
    """

    def __init__(self, ranges: Sequence[SourceRange], data: Bytes | None = None) -> None:
        self._data = data
        self._fd = -1
        self._begin = 0
        self._checksums: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._buffer = np.empty(0, np.uint8)
        self._ranges: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        """By file: where each range begins, ascending; and its end, and its offset in this unit."""
        offsets_in_unit, unit_offset = [], 0
        for file, offset, nbytes in ranges:
            offsets_in_unit.append((file, offset, offset + nbytes, unit_offset))
            unit_offset += nbytes
        self.nbytes = unit_offset
        for file, offset, end, unit_offset in sorted(offsets_in_unit):
            starts, ends = self._ranges.setdefault(file, ([], []))
            starts.append(offset)
            ends.append((end, unit_offset))

    @classmethod
    def of_file(cls, fd: int, name: str) -> CachedUnit:
        """Return the unit in an open file, which its `close` closes.

        Raises DamagedUnitError: the file is not as it was written, under `name`.
        """
        head = os.pread(fd, PREFIX.size, 0)
        if len(head) < PREFIX.size or not head.startswith(MAGIC):
            raise DamagedUnitError("it is not a unit of a cache")
        _, header_nbytes, crc = PREFIX.unpack(head)
        size = os.fstat(fd).st_size
        raw = os.pread(fd, min(header_nbytes, size), PREFIX.size)
        try:
            header: dict[str, Any] = json.loads(raw)
            nbytes = int(header["nbytes"])
            n_spans = -(-nbytes // SPAN_NBYTES)
            checksums = os.pread(fd, min(4 * n_spans, size), PREFIX.size + header_nbytes)
            begin = PREFIX.size + header_nbytes + 4 * n_spans
            if crc32c(checksums, crc32c(raw)) != crc or header["name"] != name:
                raise DamagedUnitError("its header has changed")
            if size != begin + nbytes:
                raise DamagedUnitError("it has been cut")
            unit = cls([(str(f), int(o), int(n)) for f, o, n in header["ranges"]])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedUnitError("its header cannot be read") from error
        unit._fd, unit._begin = fd, begin
        unit._checksums = np.frombuffer(checksums, "<u4")
        return unit

    def read_into(self, file: str, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with bytes of a file; return how many, 0 if it has none.

        Raises DamagedUnitError: they differ from those that were stored.
        """
        starts, ends = self._ranges.get(file, ([], []))
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= ends[index][0]:
            return 0
        end, unit_offset = ends[index]
        begin = unit_offset + offset - starts[index]
        nbytes: int = min(sum(buffer.nbytes for buffer in buffers), end - offset)
        if self._data is not None:
            copy_into(self._data[begin : begin + nbytes], buffers, 0)
            return nbytes
        reads.nbytes_cache += nbytes
        first = begin // SPAN_NBYTES * SPAN_NBYTES
        last = min(-(-(begin + nbytes) // SPAN_NBYTES) * SPAN_NBYTES, self.nbytes)
        copy_into(self._read(first, last)[begin - first : begin - first + nbytes], buffers, 0)
        return nbytes

    def _read(self, first: int, end: int) -> Bytes:
        """Return the bytes of whole spans, `first` to `end`; raises if checksums differ."""
        if self._buffer.size < end - first:
            self._buffer = np.empty(end - first, np.uint8)
        data = self._buffer[: end - first]
        n_done = 0
        while n_done < len(data):
            n_read = os.preadv(self._fd, [data.data[n_done:]], self._begin + first + n_done)
            if not n_read:
                raise DamagedUnitError("it has been cut")
            n_done += n_read
        checksums = self._checksums[first // SPAN_NBYTES : -(-end // SPAN_NBYTES)]
        if crc32c_spans(data, _span_edges(first, end)).tobytes() != checksums.tobytes():
            raise DamagedUnitError("its bytes have changed")
        return data

    def check(self) -> None:
        """Read all bytes and compare their checksums; raises as `read_into` does."""
        for first in range(0, self.nbytes, 64 * SPAN_NBYTES):
            self._read(first, min(first + 64 * SPAN_NBYTES, self.nbytes))

    def close(self) -> None:
        """Close its file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def write_unit(path: Path, ranges: Sequence[SourceRange], data: Bytes) -> None:
    """Write a unit, completely or not at all; raises OSError."""
    header = {"name": path.stem, "ranges": ranges, "nbytes": data.nbytes}
    raw = json.dumps(header).encode()
    checksums = crc32c_spans(data, _span_edges(0, data.nbytes)).astype("<u4").tobytes()
    head = PREFIX.pack(MAGIC, len(raw), crc32c(checksums, crc32c(raw)))
    write_atomically(path, head, raw, checksums, data, prefix=TEMPORARY, mode=0o600)


def open_unit(path: Path) -> CachedUnit | None:
    """Open the unit in a file; None if that does not exist, cannot be opened, or is not private.

    Raises DamagedUnitError: it is not as it was written.
    """
    try:
        fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    if not is_private(os.fstat(fd)):
        os.close(fd)
        return None
    try:
        return CachedUnit.of_file(fd, path.stem)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise DamagedUnitError(f"it cannot be read ({error.strerror})") from error
        raise


SOURCE = "source.json"
"""The file that records whose units are in a folder, and how many units that trajectory has."""
REPLACED = "replaced"
"""The generation of a source whose name another file has by now."""


def read_source_record(folder: Path) -> dict[str, Any]:
    """Return the record of the trajectory whose units are in a folder; empty if there is none."""
    with suppress(OSError):
        if is_private((folder / SOURCE).stat()):
            return read_json(folder / SOURCE)
    return {}


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()


class CachedSource:
    """The units of a trajectory in a cache folder.

    An output of mdio is identified by its uuid; a file by size, inode, times of modification and
    change, and checksums of both ends; it may grow. Names of units contain a generation, which
    changes when the source is replaced.
    `group`: the stored group of atoms that is read, if any. `n_units`: number of units, recorded
    for `mdio cache`. `status`: status of the open file, whose name may have changed.
    """

    def __init__(
        self,
        cache: Cache,
        path: Path,
        group: str = "",
        uuid: str | None = None,
        n_units: int = 0,
        status: os.stat_result | None = None,
    ) -> None:
        self.folder = cache.open()
        self.path = Path(os.path.realpath(path))
        self.group = group
        self.uuid = uuid
        self.n_units = n_units
        self._status = status
        self._identity: dict[str, Any] = {}
        """The source's identity when `generation` was determined."""
        self.notes: list[str] = []
        """Notes for the user, each once."""
        self.units_folder = self.folder.root / f"v{VERSION}-{_digest(self.path, group)[:16]}"

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def generation(self) -> str:
        """Hash of the source's identity; unchanged while it is the same file or grows.

        Raises SourceError: it does not exist.
        """
        source_record = read_source_record(self.units_folder)
        identity, generation = self._identify(source_record)
        self._identity = identity
        if generation == REPLACED:
            return generation
        record = {
            "path": str(self.path),
            "label": self.group,
            "identity": identity,
            "generation": generation,
            "units": self.n_units or source_record.get("units", 0),
        }
        if record != source_record:
            try:
                self.folder.create_folder(self.units_folder)
                data = json.dumps(record).encode()
                write_atomically(self.units_folder / SOURCE, data, prefix=TEMPORARY, mode=0o600)
            except OSError as error:
                self.note(self.folder.disable(error))
            for file in self.folder.files([self.units_folder]):
                if file.path.suffix == ".unit" and not file.path.name.startswith(generation):
                    file.remove()
        return generation

    def _identify(self, record: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the present identity of the source, and its generation."""
        recorded_identity = (
            record.get("identity") if isinstance(record.get("identity"), dict) else None
        )
        if self.uuid is not None:
            return {"uuid": self.uuid}, _digest(self.uuid)[:12]
        try:
            status = self._status or self.path.stat()
            identity: dict[str, Any] = {
                "nbytes": status.st_size,
                "inode": status.st_ino,
                "mtime_ns": status.st_mtime_ns,
                "ctime_ns": status.st_ctime_ns,
            }
            if recorded_identity is not None:
                if all(recorded_identity.get(name) == value for name, value in identity.items()):
                    return recorded_identity, str(record["generation"])
                if self._has_grown(recorded_identity, identity):
                    return identity | self._end_checksums(None), str(record["generation"])
            identity |= self._end_checksums(None)
            if self.path.stat().st_ino != status.st_ino:
                return identity, REPLACED
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read ({error.strerror})") from error
        return identity, _digest(sorted(identity.items()))[:12]

    def _end_checksums(self, nbytes: int | None) -> dict[str, int]:
        """Return the checksums of both ends of the source, or of its first `nbytes`."""
        state = file_state(self.path, nbytes, FRAME_COUNT_NBYTES)
        return {name: state[name] for name in ("crc32c_head", "crc32c_tail")}

    def _has_grown(self, recorded_identity: dict[str, Any], identity: dict[str, int]) -> bool:
        """Return whether the file is the same, but longer."""
        nbytes = recorded_identity.get("nbytes")
        if not isinstance(nbytes, int) or not 0 < nbytes < identity["nbytes"]:
            return False
        checksums = self._end_checksums(nbytes)
        return all(recorded_identity.get(name) == checksums[name] for name in checksums) and (
            recorded_identity.get("inode") == identity["inode"]
        )

    def name(self, number: int, stop: int) -> str:
        """Return the name of a unit; `stop`: one beyond its last frame."""
        return f"{self.generation}-{number}-{stop}"

    def cached_mask(self, numbers: Sequence[int], stops: Sequence[int]) -> NDArray[np.bool_]:
        """Return which units have a file, a mask."""
        prefix = f"{self.generation}-"
        try:
            with os.scandir(self.units_folder) as entries:
                names = {entry.name for entry in entries if entry.name.startswith(prefix)}
        except OSError:
            return np.zeros(len(numbers), bool)
        pairs = zip(numbers, stops, strict=True)
        return np.array([f"{self.name(n, stop)}.unit" in names for n, stop in pairs], bool)

    def has(self, name: str) -> bool:
        """Return whether the unit of this name has a file (`cached_mask`: for all units)."""
        return (self.units_folder / f"{name}.unit").exists()

    def open_unit(self, name: str) -> CachedUnit | None:
        """Open the unit of this name; None if it is not stored, or damaged."""
        try:
            unit = open_unit(self.units_folder / f"{name}.unit")
        except DamagedUnitError as damage:
            self.remove_damaged(name, damage)
            return None
        if unit is not None:
            with suppress(OSError):
                os.utime(unit._fd)  # the time of last use
        return unit

    def remove_damaged(self, name: str, damage: DamagedUnitError) -> None:
        """Remove a damaged unit, and add a note."""
        with suppress(OSError):
            (self.units_folder / f"{name}.unit").unlink()
        self.note(
            f"{self.units_folder}: a unit of {self.path} is damaged ({damage}), and is read from "
            "the source again; if that happens more than once, check the disk"
        )

    def store(self, name: str, ranges: Sequence[SourceRange], data: NDArray[np.uint8]) -> None:
        """Store a unit that was read from the source, if it fits."""
        folder = self.folder
        if folder.problem is not None:
            self.note(folder.problem)
            return
        if self.generation == REPLACED:
            return
        try:
            if self.uuid is None and not _is_same_file(self._identity, self.path.stat()):
                return
        except OSError:
            return
        try:
            folder.create_folder(self.units_folder)
            if folder.make_room(data.nbytes + (64 << 10), self.units_folder):
                write_unit(self.units_folder / f"{name}.unit", ranges, data)
            else:
                self.note(folder.too_small_warning(self.path))
        except OSError as error:
            self.note(folder.disable(error))


def list_folders(folder: str | os.PathLike[str]) -> list[tuple[str | None, CacheFolder]]:
    """Return the folders of a cache, with the names of their nodes; None for one without a name.

    Raises SourceError: there is no such folder.
    """
    root = Cache(os.fspath(folder)).root
    if not root.is_dir():
        raise SourceError(f"{root}: no such folder; no units have been stored there yet")
    nodes = sorted(root.glob(f"{NODE_PREFIX}*"))
    node_folders = [(path.name.removeprefix(NODE_PREFIX), CacheFolder(path)) for path in nodes]
    return [(None, CacheFolder(root)), *node_folders]


def cached_trajectories(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield a summary of each trajectory in a cache, on each node.

    ``label`` is that of a stored group, else empty; ``node`` None if it has no name; ``is_stale``:
    the file is gone, or is another one (of outputs of mdio, only whether it is gone).
    """
    for node, cache in list_folders(folder):
        for units_folder in cache.trajectory_folders():
            record = read_source_record(units_folder)
            files = list(cache.files([units_folder]))
            # Those of frames, not of small tables.
            units = [f for f in files if f.path.suffix == ".unit" and "-t" not in f.path.stem]
            yield {
                "path": record.get("path", str(units_folder)),
                "label": record.get("label", ""),
                "node": node,
                "units": record.get("units", 0),
                "units_cached": len({unit.path.stem.split("-")[1] for unit in units}),
                "nbytes": sum(file.nbytes for file in files),
                "is_stale": _is_stale(record),
            }


def _is_stale(record: Mapping[str, Any]) -> bool:
    identity = record.get("identity", {})
    try:
        status = Path(str(record["path"])).stat()
    except (OSError, KeyError):
        return True
    return "uuid" not in identity and not _is_same_file(identity, status)


def _is_same_file(identity: Mapping[str, Any], status: os.stat_result) -> bool:
    """Return whether a file is the one that had this identity, which may have grown."""
    nbytes = identity.get("nbytes", 0)
    return status.st_ino == identity.get("inode") and (
        status.st_size > nbytes
        or (status.st_size, status.st_mtime_ns) == (nbytes, identity.get("mtime_ns"))
    )


def evict_units(
    folder: str | os.PathLike[str], keep_nbytes: int = 0, path: str | None = None
) -> tuple[int, int]:
    """Remove the least recently used files; return their number and bytes.

    `keep_nbytes`: how much each node may keep. `path`: evict units of this trajectory only.
    """
    n_files = nbytes = 0
    for _, cache in list_folders(folder):
        units_folders = [
            units_folder
            for units_folder in cache.trajectory_folders()
            if path is None
            or read_source_record(units_folder).get("path") == os.path.realpath(path)
        ]
        files = [file for file in cache.files(units_folders) if file.path.name != SOURCE]
        files.sort(key=lambda file: file.used_ns)
        used_nbytes = sum(file.nbytes for file in files)
        for file in files:
            if used_nbytes <= keep_nbytes:
                break
            file.remove()
            used_nbytes -= file.nbytes
            n_files, nbytes = n_files + 1, nbytes + file.nbytes
        for units_folder in units_folders:
            if not any(file.path.name != SOURCE for file in cache.files([units_folder])):
                with suppress(OSError):  # it has files that are not of mdio
                    (units_folder / SOURCE).unlink(missing_ok=True)
                    units_folder.rmdir()
    return n_files, nbytes


def verify_units(folder: str | os.PathLike[str]) -> Iterator[tuple[Path, str | None]]:
    """Read all units and compare checksums; yield each file and its problem, or None."""
    for _, cache in list_folders(folder):
        for file in cache.files():
            if file.path.suffix != ".unit":
                continue
            problem = None
            try:
                unit = open_unit(file.path)
                if unit is None:
                    problem = "it cannot be opened, or others may write to it: it is not used"
                else:
                    unit.check()
                    unit.close()
            except (DamagedUnitError, OSError) as error:
                problem = str(error)
            yield file.path, problem
