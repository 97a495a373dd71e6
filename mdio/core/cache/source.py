"""The units of one trajectory in a node's cache, and whether they are still those of the source.

The file of a unit: ranges of bytes of a source's files, with checksums of pieces.

``MDIOUNIT``, the bytes of the header (uint32), the crc32c of all that follows up to the data
(uint32), the header (JSON: ``name``; ``ranges``, a list of [file, offset, bytes], ``file`` relative
to the trajectory and empty for itself; ``nbytes``), the crc32c of each piece of 64 KiB of the data
(uint32), and the data, one range after the other. Little-endian.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.cache.folder import NODE_PREFIX, TEMPORARY, Cache, CacheFolder, Stored, is_private
from mdio.core.errors import SourceError
from mdio.core.files.direct import write_whole
from mdio.core.files.fingerprint import COUNTS_NBYTES, file_state
from mdio.core.files.in_flight import copy
from mdio.core.files.reading import reads
from mdio.core.files.regular import open_regular, read_regular
from mdio.core.kernels import crc32c, crc32c_pieces

MAGIC = b"MDIOUNIT"
HEAD = struct.Struct("<8sII")
PIECE_NBYTES = 64 << 10

SourceRange = tuple[str, int, int]
"""File, relative to the trajectory; offset; bytes."""
Bytes = NDArray[np.uint8]


class DamagedUnitError(Exception):
    """The bytes of a unit are not those that were stored."""


def _edges(begin: int, end: int) -> NDArray[np.int64]:
    return np.append(np.arange(begin, end, PIECE_NBYTES), np.int64(end))


class HeldUnit:
    """A unit that is read from: its file, or its bytes in memory.

    `ranges`: where its bytes lie in the source. `data`: they themselves, where they have just been
    read.
    """

    def __init__(self, ranges: Sequence[SourceRange], data: Bytes | None = None) -> None:
        self._data = data
        self._fd = -1
        self._begin = 0
        self._sums: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._room = np.empty(0, np.uint8)
        self._files: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
        placed, at = [], 0
        for file, offset, nbytes in ranges:
            placed.append((file, offset, offset + nbytes, at))
            at += nbytes
        self.nbytes = at
        for file, offset, end, begin in sorted(placed):
            starts, places = self._files.setdefault(file, ([], []))
            starts.append(offset)
            places.append((end, begin))

    @classmethod
    def of_file(cls, fd: int, name: str) -> HeldUnit:
        """Return the unit of an open file, which is closed with it.

        Raises DamagedUnitError: the file is not what was written under `name`. OSError: it cannot
        be read.
        """
        head = os.pread(fd, HEAD.size, 0)
        if len(head) < HEAD.size or not head.startswith(MAGIC):
            raise DamagedUnitError("no unit of a cache")
        _, header_nbytes, crc = HEAD.unpack(head)
        size = os.fstat(fd).st_size
        raw = os.pread(fd, min(header_nbytes, size), HEAD.size)
        try:
            header: dict[str, Any] = json.loads(raw)
            nbytes = int(header["nbytes"])
            n_pieces = -(-nbytes // PIECE_NBYTES)
            sums = os.pread(fd, min(4 * n_pieces, size), HEAD.size + header_nbytes)
            begin = HEAD.size + header_nbytes + 4 * n_pieces
            if crc32c(sums, crc32c(raw)) != crc or header["name"] != name:
                raise DamagedUnitError("its header has changed")
            if size != begin + nbytes:
                raise DamagedUnitError("it has been cut")
            found = cls([(str(f), int(o), int(n)) for f, o, n in header["ranges"]])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedUnitError("its header cannot be read") from error
        found._fd, found._begin, found._sums = fd, begin, np.frombuffer(sums, "<u4")
        return found

    def read_into(self, file: str, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with bytes of a file; 0 if they are not of this unit.

        Raises DamagedUnitError: they are not what was stored. OSError: they cannot be read.
        """
        known = self._files.get(file)
        number = -1 if known is None else bisect_right(known[0], offset) - 1
        if known is None or number < 0 or offset >= known[1][number][0]:
            return 0
        end, at = known[1][number]
        begin = at + offset - known[0][number]
        wanted: int = min(sum(buffer.nbytes for buffer in buffers), end - offset)
        if self._data is not None:
            copy(self._data[begin : begin + wanted], buffers, 0)
            return wanted
        reads.nbytes_cache += wanted
        first = begin // PIECE_NBYTES * PIECE_NBYTES
        last = min(-(-(begin + wanted) // PIECE_NBYTES) * PIECE_NBYTES, self.nbytes)
        copy(self._checked(first, last)[begin - first : begin - first + wanted], buffers, 0)
        return wanted

    def _checked(self, first: int, last: int) -> Bytes:
        """Return bytes between edges of pieces, compared with their checksums."""
        if self._room.size < last - first:
            self._room = np.empty(last - first, np.uint8)
        room = self._room[: last - first]
        done = 0
        while done < len(room):
            n_read = os.preadv(self._fd, [room.data[done:]], self._begin + first + done)
            if not n_read:
                raise DamagedUnitError("it has been cut")
            done += n_read
        sums = self._sums[first // PIECE_NBYTES : -(-last // PIECE_NBYTES)]
        if crc32c_pieces(room, _edges(first, last)).tobytes() != sums.tobytes():
            raise DamagedUnitError("its bytes have changed")
        return room

    def check(self) -> None:
        """Read and compare all of it; raises as `read_into`."""
        for first in range(0, self.nbytes, 64 * PIECE_NBYTES):
            self._checked(first, min(first + 64 * PIECE_NBYTES, self.nbytes))

    def touch(self) -> None:
        """Note that it is used."""
        os.utime(self._fd)

    def close(self) -> None:
        """Let go of its file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def write_unit(path: Path, ranges: Sequence[SourceRange], data: Bytes) -> None:
    """Write a unit; it is there whole or not at all. Raises OSError."""
    header = {"name": path.stem, "ranges": ranges, "nbytes": data.nbytes}
    raw = json.dumps(header).encode()
    sums = crc32c_pieces(data, _edges(0, data.nbytes)).astype("<u4").tobytes()
    head = HEAD.pack(MAGIC, len(raw), crc32c(sums, crc32c(raw)))
    write_whole(path, head, raw, sums, data, prefix=TEMPORARY, mode=0o600)


def open_unit(path: Path) -> HeldUnit | None:
    """Open the unit of a file; None if there is none, it cannot be opened, or others wrote it.

    Raises DamagedUnitError: it is not what was written.
    """
    try:
        fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    if not is_private(os.fstat(fd)):
        os.close(fd)
        return None
    try:
        return HeldUnit.of_file(fd, path.stem)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise DamagedUnitError(f"it cannot be read ({error.strerror})") from error
        raise


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
