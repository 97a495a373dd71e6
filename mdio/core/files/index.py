"""Offsets of the frames of a file: found once by a scan, then stored.

Formats with frames of unequal size (XTC, TRR) are scanned once. The index lies beside the file as
``.NAME.mdio-index``, or in a cache folder if that cannot be written. There are no locks: every
process that finds no valid index scans the file and stores the result by a rename, which is atomic;
all find the same. An index that cannot be stored (full disk, read-only folder, no home) is used all
the same.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.checks import is_own, open_regular
from mdio.core.files.reading import OpenFile
from mdio.core.files.store import store_at
from mdio.core.files.writing import INDEX_ENDING, write_atomically
from mdio.core.frames import LostBytes

MAGIC = b"MDIOIDX1"
"""First bytes of a stored index; the last character is the version of the format."""
HEADER = struct.Struct("<8sI")
"""Beginning of every file stored beside a trajectory: magic, and zlib's crc32 of the rest."""
IDENTITY = struct.Struct("<IQq")
"""Next: zlib's crc32 of the trajectory's ends, its size, mtime in ns."""
COUNTS = struct.Struct("<QQ")
"""Next, in an index: numbers of atoms and of frames; then the offsets as int64."""
END_NBYTES = 4096
"""Bytes of the head and of the tail of the file that an index is checked against."""

PREFETCH_NBYTES = 1 << 20
"""An index beside an object is fetched by one request up to this size: of 131,000 frames."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndex:
    """The frames of one file.

    Attributes: `offsets`, (F,) int64: byte at which each frame begins, ascending. `end` (int): byte
    at which the last whole frame ends, usually the size of the file when it was scanned. `n_atoms`
    (int): atoms of the first frame. `lost_nbytes` (int): bytes after the last whole frame, of one
    that is not whole.
    """

    offsets: NDArray[np.int64]
    end: int
    n_atoms: int
    lost_nbytes: int = 0

    @property
    def n_frames(self) -> int:
        """Number of frames F."""
        return int(self.offsets.size)

    @property
    def frame_nbytes(self) -> NDArray[np.int64]:
        """Bytes from the beginning of each frame to that of the next, (F,) int64."""
        return np.diff(self.offsets, append=np.int64(self.end))

    def lost(self, path: Path) -> tuple[LostBytes, ...]:
        """Return the bytes of the file `path` that belong to no whole frame."""
        if not self.lost_nbytes:
            return ()
        # Less than two frames: one is cut. More: damage, or frames of another system.
        is_cut = self.lost_nbytes < 2 * int(self.frame_nbytes.max(initial=0))
        return (LostBytes(str(path), self.n_frames, self.end, self.lost_nbytes, is_cut),)


@dataclass(frozen=True, slots=True)
class Identity:
    """The state of a file, which must be unchanged for stored metadata to be used."""

    nbytes: int
    mtime_ns: int
    crc: int

    def matches(self, stored: Identity, path: Path) -> bool:
        """Return whether metadata stored at `path` under another identity are of this same file.

        In a store, times are not compared: metadata were stored before the file was sent.
        """
        if not store_at(path).keeps_times:
            return (stored.nbytes, stored.crc) == (self.nbytes, self.crc)
        return stored == self

    @classmethod
    def of(cls, path: Path, nbytes: int | None = None) -> Identity:
        """Return the identity of a file, or of its first `nbytes`."""
        with OpenFile(path) as file:
            status = file.status()
            size = status.st_size if nbytes is None else nbytes
            head = file.peek(0, min(END_NBYTES, size))
            tail_offset = max(0, size - END_NBYTES)
            tail = file.peek(tail_offset, size - tail_offset)
        # Times beyond the year 2262 need more than the 64 bits in which they are stored.
        mtime_ns = (status.st_mtime_ns + (1 << 63)) % (1 << 64) - (1 << 63)
        return cls(size, mtime_ns, zlib.crc32(tail, zlib.crc32(head)))


def load_index(
    path: Path,
    scan: Callable[[Path], FrameIndex],
    n_atoms: int | None = None,
    extend: Callable[[Path, FrameIndex], FrameIndex | None] | None = None,
) -> FrameIndex:
    """Return the frame index of `path`: a stored one that is still valid, or a new one.

    An index is valid while the size, the modification time and the first and last 4 KiB of the file
    are unchanged; one that is stale (the file has grown) or damaged is replaced. Offsets stored by
    MDAnalysis (``.NAME_offsets.npz``) are used as MDAnalysis does: if size and ctime are the same.
    `scan`: reads the file and returns its index; called only if no valid one is stored. `n_atoms`:
    an index with another number of atoms is not used. `extend`: returns an index with the frames
    that a file has gained since its first and last 4 KiB were these; None: scan.
    Raises SourceError: the file cannot be read; and what `scan` raises.
    """
    store = store_at(path)
    store.prefetch([next(index_paths(path))], PREFETCH_NBYTES)
    identity = Identity.of(path)
    index: FrameIndex | None = None
    for index_path, stored_identity, body in load_metadata(path, MAGIC):
        stored_index = _decode_index(body, stored_identity.nbytes)
        if stored_index is None or n_atoms not in (None, stored_index.n_atoms):
            continue
        if identity.matches(stored_identity, index_path):
            return stored_index
        old_nbytes = stored_identity.nbytes
        has_grown = store.may_grow and old_nbytes < identity.nbytes
        if has_grown and extend and stored_identity.crc == Identity.of(path, old_nbytes).crc:
            index = extend(path, stored_index)
    if index is None:
        index = _load_mdanalysis_index(path)
    if index is None or n_atoms not in (None, index.n_atoms):
        index = scan(path)
    # The file may end within a frame, or grow while it is scanned.
    if index.end != identity.nbytes:
        if extend is None:
            return index
        identity = Identity.of(path, index.end)
    store_index(path, index, identity)
    return index


def store_index(path: Path, index: FrameIndex, identity: Identity | None = None) -> None:
    """Store the index of a file, for `load_index`.

    `identity`: of the file when its frames were found; None = the present one.
    """
    offsets = np.ascontiguousarray(index.offsets, "<i8").tobytes()
    body = COUNTS.pack(index.n_atoms, index.n_frames) + offsets
    save_metadata(path, identity or Identity.of(path), MAGIC, body)


def index_paths(path: Path, ending: str = INDEX_ENDING) -> Iterator[Path]:
    """Yield possible paths of the index of `path`: beside it, and in the cache folder (if any).

    That is ``$MDIO_CACHE_DIR``, else ``$XDG_CACHE_HOME/mdio``, else ``~/.cache/mdio``; the name
    there is a hash of the resolved path. `ending`: of the name; others are for other metadata.
    """
    yield path.with_name(f".{path.name}{ending}")
    folder = os.environ.get("MDIO_CACHE_DIR")
    if not folder and (base := os.environ.get("XDG_CACHE_HOME")):
        folder = str(Path(base, "mdio"))
    if not folder:
        try:
            folder = str(Path.home() / ".cache" / "mdio")
        except RuntimeError:  # no home folder
            return
    import hashlib  # slow to import, and few indexes lie there

    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    yield Path(folder, f"{key}{ending}")


def _is_trusted(index_path: Path, path: Path) -> bool:
    """Return whether an index is of this user, or of the owner of the file."""
    try:
        status = index_path.stat()
        return is_own(status, index_path.parent) or status.st_uid == path.stat().st_uid
    except OSError:
        return True


def load_metadata(
    path: Path, magic: bytes, ending: str = INDEX_ENDING
) -> Iterator[tuple[Path, Identity, memoryview]]:
    """Yield metadata stored about a file: their path, identity of the file then, and bytes.

    Damaged ones, and those of other users, are left out.
    """
    for meta_path in index_paths(path, ending):
        data = b""
        with suppress(OSError, ValueError):
            if _is_trusted(meta_path, path) and meta_path.is_file():  # reading a pipe would wait
                with OpenFile(meta_path) as file:
                    data = file.peek(0, file.nbytes)
        if len(data) < HEADER.size + IDENTITY.size:
            continue
        payload = memoryview(data)[HEADER.size :]
        if HEADER.unpack_from(data) == (magic, zlib.crc32(payload)):
            ends_crc, nbytes, mtime_ns = IDENTITY.unpack_from(payload)
            yield meta_path, Identity(nbytes, mtime_ns, ends_crc), payload[IDENTITY.size :]


def _decode_index(body: memoryview, nbytes: int) -> FrameIndex | None:
    """Return the index in the stored bytes `body`, of a file of `nbytes`; None if it is invalid."""
    if len(body) < COUNTS.size:
        return None
    n_atoms, n_frames = COUNTS.unpack_from(body)
    if len(body) != COUNTS.size + 8 * n_frames:
        return None
    offsets = np.frombuffer(body, "<i8", offset=COUNTS.size).astype(np.int64)
    return FrameIndex(offsets, nbytes, n_atoms) if _is_plausible(offsets, nbytes) else None


def save_metadata(
    path: Path, identity: Identity, magic: bytes, body: bytes, ending: str = INDEX_ENDING
) -> None:
    """Store metadata of a file for `load_metadata`, if that is possible."""
    payload = IDENTITY.pack(identity.crc, identity.nbytes, identity.mtime_ns) + body
    data = HEADER.pack(magic, zlib.crc32(payload)) + payload
    for number, meta_path in enumerate(index_paths(path, ending)):
        if not store_at(meta_path).built_in_place or not _is_trusted(meta_path, path):
            continue  # another user's file stays, and is not read
        try:
            if number:  # the cache folder
                meta_path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(meta_path, data, prefix=".mdio-index-")
        except OSError:
            continue
        return


def _load_mdanalysis_index(path: Path) -> FrameIndex | None:
    """Return the offsets that MDAnalysis stored, if they are valid by its own conditions."""
    offsets_path = path.with_name(f".{path.name}_offsets.npz")
    if not store_at(path).keeps_times:
        return None
    try:
        if not offsets_path.is_file() or not _is_trusted(offsets_path, path):
            return None
        status = path.stat()
        # Opened here, since NumPy does not close a file that it cannot read.
        with (
            open(open_regular(offsets_path), "rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            if float(archive["ctime"]) != status.st_ctime or int(archive["size"]) != status.st_size:
                return None
            offsets = np.asarray(archive["offsets"]).astype(np.int64, casting="safe")
            n_atoms = int(archive["n_atoms"])
    except Exception:  # a damaged file of another program may raise anything: scan the trajectory
        return None
    if n_atoms < 1 or not _is_plausible(offsets, status.st_size):
        return None
    return FrameIndex(offsets, status.st_size, n_atoms)


def _is_plausible(offsets: NDArray[np.int64], nbytes: int) -> bool:
    if offsets.ndim != 1 or not offsets.size:
        return False
    return bool(offsets[0] == 0 and offsets[-1] < nbytes and (np.diff(offsets) > 0).all())
