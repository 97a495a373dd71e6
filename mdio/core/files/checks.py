"""Checks before files are opened, trusted or replaced: type, owner, whether mdio wrote them.

Opening a pipe or a device under the name of a file could wait or read for ever. A lock or journal,
which says what to remove, rename or skip, could come from anyone who may write into the folder.
Outputs of mdio are recognised by small files in them, without opening them as trajectories.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.kernels import crc32c

NOT_REGULAR = "neither a file nor a folder: a pipe, a socket or a device"
MAX_SMALL_FILE_NBYTES = 256 << 20
"""No manifest, table or record is longer."""


def open_descriptor(path: str | Path, flags: int, dir_fd: int | None = None) -> int:
    """Return a descriptor as `os.open` does, raising the limit on open files if need be.

    Hundreds of trajectories may be open at once, and most shells set a low limit (1,024).
    """
    while True:
        try:
            return os.open(path, flags, 0o666, dir_fd=dir_fd)
        except OSError as error:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            new_soft = 2 * soft if hard == resource.RLIM_INFINITY else min(2 * soft, hard)
            if error.errno != errno.EMFILE or new_soft <= soft:
                raise
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft, hard))
            except (OSError, ValueError):
                raise error from None


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file; `flags` as for `os.open`.

    Raises OSError: it cannot be opened, or is not a regular file.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for a writer; for files it changes nothing.
        fd = open_descriptor(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, a socket
            raise _not_regular(path) from None
        if error.errno != errno.EWOULDBLOCK or not stat.S_ISREG(path.stat().st_mode):
            raise
        fd = os.open(path, flags | os.O_CLOEXEC)  # another process holds a lease
    file_mode = os.fstat(fd).st_mode
    if stat.S_ISREG(file_mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(file_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def check_regular(path: Path) -> None:
    """Raise OSError unless `path` is a file or a folder: libraries would wait for a pipe."""
    file_mode = path.stat().st_mode
    if not stat.S_ISREG(file_mode) and not stat.S_ISDIR(file_mode):
        raise _not_regular(path)


def read_regular(path: Path) -> bytes:
    """Return the bytes of a file, or of an object of a store.

    Raises OSError: it cannot be read, is not a regular file, or has more than
    `MAX_SMALL_FILE_NBYTES`.
    """
    if type(path).read_bytes is not Path.read_bytes:  # an object of a store
        return path.read_bytes()
    with open(open_regular(path), "rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > MAX_SMALL_FILE_NBYTES:
            raise OSError(
                errno.EFBIG,
                f"{nbytes:,} bytes, where at most {MAX_SMALL_FILE_NBYTES:,} were expected",
                str(path),
            )
        return file.read(nbytes)


def first_bytes(path: Path, nbytes: int) -> bytes:
    """Return the first bytes of a file, or of an object of a store.

    Raises OSError: it cannot be read, or is not a regular file.
    """
    is_object = type(path).open is not Path.open
    with path.open("rb") if is_object else open(open_regular(path), "rb") as file:
        return file.read(nbytes)


def try_lock(fd: int) -> bool | None:
    """Lock an open file or folder; False if another process holds it, None if unsupported."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_own(status: os.stat_result, folder: Path) -> bool:
    """Return whether a file in `folder` with this `status` belongs to this user, or to root."""
    return status.st_uid in (os.geteuid(), 0) or status.st_uid == _default_owner(
        folder, status.st_dev
    )


def is_trusted_record(status: os.stat_result, folder: Path) -> bool:
    """Return whether a lock or journal may be trusted: regular, own, and with one name only."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and is_own(status, folder)


@lru_cache(maxsize=16)
def _default_owner(folder: Path, _device: int) -> int | None:
    """Return the owner of new files; file servers may give them to another user."""
    import tempfile  # seldom needed, and slow to import

    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid
    return None


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, NOT_REGULAR, str(path))


ENSEMBLE_MANIFEST = "ensemble.json"
OUTPUT_MARKERS = ("manifest.json", "zarr.json", ENSEMBLE_MANIFEST)
"""Files by which a folder is known to be an output of mdio."""
UUID_SUFFIX = r"-[0-9a-f]{8}"
"""Suffix of the name of a folder of parts, which the plain name may lack."""
FORMAT = "mdio"
CHECKSUM_KEY = "manifest_crc32c"
MAX_IDENTITY_NBYTES = 16 << 20
"""Files up to this size, mostly topologies, are identified by their bytes."""


def manifest_in(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of mdio in a folder; None if there is none (never raises)."""
    segments_manifest = read_json(folder / "manifest.json")
    attributes = read_json(folder / "zarr.json").get("attributes")
    zarr_manifest = attributes.get(FORMAT) if isinstance(attributes, dict) else None
    ensemble_manifest = read_json(folder / ENSEMBLE_MANIFEST)
    for manifest in (segments_manifest, zarr_manifest, ensemble_manifest):
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            return manifest if isinstance(manifest.get("uuid"), str) else None
    return None


def with_checksum(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return `manifest` with its own checksum, ``manifest_crc32c``: that of the rest.

    The rest is written as JSON with sorted keys and without spaces, whatever the manifest's file
    has.
    """
    other_values = {key: value for key, value in manifest.items() if key != CHECKSUM_KEY}
    # JSON turns all keys into strings, so that they are sorted as strings.
    text = json.dumps(json.loads(json.dumps(other_values)), sort_keys=True, separators=(",", ":"))
    return other_values | {CHECKSUM_KEY: crc32c(text.encode())}


OWN_NAMES = {
    "segments": r"manifest\.json|\d+",
    "zarr": r"zarr\.json|h5md|mdio|particles",
    "ensemble": r"zarr\.json|ensemble\.json",
}
"""Patterns of the names in an output's folder, by layout, without those of trajectories."""


def check_no_foreign_files(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise OutputError if an output's folder holds what mdio did not write, which would be lost.

    `names`: what it holds; by default, it is listed. Hidden files do not count, nor do folders of
    other packages' layouts.
    """
    manifest = manifest_in(folder) or {}
    own_names = OWN_NAMES.get(str(manifest.get("layout")))
    if own_names is None:
        return
    members = manifest.get("members")
    labels = {*map(str, members)} if isinstance(members, list) else set()
    foreign_names = sorted(
        name
        for name in ([path.name for path in folder.iterdir()] if names is None else names)
        if not (
            name.startswith(".")
            or re.fullmatch(own_names, name)
            or name.partition(".")[0] in labels  # a trajectory, or a topology of it
        )
    )
    if foreign_names:
        and_others = " and others" if foreign_names[3:] else ""
        raise OutputError(
            f"{folder}: holds {', '.join(foreign_names[:3])}{and_others}, which is not a part of "
            "the output and would be lost when that is replaced; move it elsewhere"
        )


def parts_folder(target: Path) -> Path:
    """Return the folder beside `target` for the files that it refers to, by its plain name."""
    return target.with_name(f"{target.name}.parts")


def own_parts_folder(target: Path, name: object) -> Path | None:
    """Return the folder of parts of `target` that has this name; None for any other name."""
    default_path = parts_folder(target)
    pattern = f"{re.escape(default_path.name)}({UUID_SUFFIX})?"
    match = isinstance(name, str) and re.fullmatch(pattern, name)
    return default_path.with_name(str(name)) if match else None


def belongs_to_output(target: str, name: object) -> bool:
    """Return whether `name` is that of the output `target`, or of a topology beside it."""
    if not isinstance(name, str):
        return False
    stems = "|".join(map(re.escape, {target, Path(target).stem}))
    topology = rf"({stems})(\.[^/]+)?\.(pdb|gro)"
    return name == target or re.fullmatch(topology, name, re.DOTALL) is not None


def is_built_for(target: str, name: str) -> bool:
    """Return whether `name` is the final name of a temporary of the output `target`.

    Chunks of earlier runs are copied into the files ``TARGET.2`` and so on.
    """
    return (
        belongs_to_output(target, name)
        or re.fullmatch(rf"{re.escape(target)}\.(\d+|new)", name) is not None
    )


def file_beside_parts(path: Path, folder: str) -> Path:
    """Return the file beside which its parts, `folder`, lie: `path`, or the target of a link."""
    lies_at_target = path.is_symlink() and not path.with_name(folder).is_dir()
    return path.resolve() if lies_at_target else path


def read_identity(path: Path) -> int | str:
    """Return the identity of a file or folder, which a rename or a power cut does not change.

    Size and checksum of a small file; the inode of anything else, which a copy of the disk does not
    keep.
    """
    status = path.lstat()
    is_small = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_IDENTITY_NBYTES
    return f"{status.st_size}-{crc32c(read_regular(path)):08x}" if is_small else status.st_ino


def is_identical(path: Path, identity: int | str) -> bool:
    """Return whether `path` exists and has this identity."""
    if not os.path.lexists(path):
        return False
    if isinstance(identity, int):
        return path.lstat().st_ino == identity
    return read_identity(path) == identity


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one for anything else."""
    with suppress(OSError, ValueError, RecursionError):
        value = json.loads(read_regular(path))
        return value if isinstance(value, dict) else {}
    return {}
