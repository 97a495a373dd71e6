"""Checks of files to open, trust or replace: regular ones, the user's own, outputs of mdio.

A pipe or a device under the name of a file would be waited for, or read without an end. A record
that says what to remove, to move or to believe could have been put there by anyone who may write
into the folder. Outputs of mdio are recognised by marks of their own, without opening them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mdio.core.kernels import crc32c

NOT_REGULAR = "neither a file nor a folder: a pipe, a socket or a device"
RECORD_NBYTES = 256 << 20
"""No manifest, table or note is longer."""


def open_descriptor(
    path: str | Path, flags: int, mode: int = 0o666, dir_fd: int | None = None
) -> int:
    """Return a descriptor as `os.open` does, if need be of more files than the process began with.

    Hundreds of trajectories may be open at once, and the limit of most shells is low (1,024), with
    a higher one that every process may set for itself.
    """
    while True:
        try:
            return os.open(path, flags, mode, dir_fd=dir_fd)
        except OSError as error:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            most = 2 * soft if hard == resource.RLIM_INFINITY else min(2 * soft, hard)
            if error.errno != errno.EMFILE or most <= soft:
                raise
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            except (OSError, ValueError):
                raise error from None


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Return a descriptor of a file; `flags` and `mode` as `os.open` has them.

    Raises OSError: it cannot be opened, or is no regular file.
    """
    try:
        # Opening a pipe would wait for a writer; files do not care.
        fd = open_descriptor(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, a socket
            raise _not_regular(path) from None
        if error.errno != errno.EWOULDBLOCK or not stat.S_ISREG(path.stat().st_mode):
            raise
        fd = os.open(path, flags | os.O_CLOEXEC, mode)  # a file server has lent it to somebody
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def check_regular(path: Path) -> None:
    """Raise OSError for what is there and neither a file nor a folder: libraries would wait."""
    kind = path.stat().st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise _not_regular(path)


def read_regular(path: Path, most: int = RECORD_NBYTES) -> bytes:
    """Return the bytes of a file, or of an object of a store.

    Raises OSError: it cannot be read, is no regular file, or is longer than `most` bytes.
    """
    if type(path).read_bytes is not Path.read_bytes:  # an object
        return path.read_bytes()
    with open(open_regular(path), "rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > most:
            raise OSError(
                errno.EFBIG, f"{nbytes:,} bytes, where at most {most:,} were expected", str(path)
            )
        return file.read(nbytes)


def first_bytes(path: Path, nbytes: int) -> bytes:
    """Return the first bytes of a file, or of an object of a store.

    Raises OSError: it cannot be read, or is no regular file.
    """
    is_object = type(path).open is not Path.open
    with path.open("rb") if is_object else open(open_regular(path), "rb") as file:
        return file.read(nbytes)


def try_lock(fd: int) -> bool | None:
    """Lock an open file or folder; False if another has it, None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_own(status: os.stat_result, folder: Path) -> bool:
    """Return whether what lies in `folder`, of this state, belongs to this user, or to root."""
    return status.st_uid in (os.geteuid(), 0) or status.st_uid == _default_owner(
        folder, status.st_dev
    )


def is_own_record(status: os.stat_result, folder: Path) -> bool:
    """Return whether a file may be obeyed: regular, the user's own, under one name only."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and is_own(status, folder)


@lru_cache(maxsize=16)
def _default_owner(folder: Path, _device: int) -> int | None:
    """Return to whom new files belong; file servers may give them to another user."""
    import tempfile  # seldom asked for, and it takes long

    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid
    return None


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, NOT_REGULAR, str(path))


PARTS_MARKER = "parts.json"
TELL_OUTPUTS = ("manifest.json", "zarr.json", PARTS_MARKER)
"""Files by which a folder is known to be an output of mdio."""
"""What a folder of parts holds besides them."""
ANOTHER = r"-[0-9a-f]{8}"
"""Suffix of the folder's name where a former output had the plain one."""
MARK = "mdio"
SEAL = "manifest_crc32c"
SMALL_NBYTES = 16 << 20
"""Files up to this size are read to be known again: topologies, mostly."""


def manifest_in(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of mdio in a folder; None for folders of others (never raises)."""
    segments = _read(folder / "manifest.json")
    attributes = _read(folder / "zarr.json").get("attributes")
    zarr = attributes.get(MARK) if isinstance(attributes, dict) else None
    for manifest in (segments, zarr):
        if isinstance(manifest, dict) and manifest.get("format") == MARK:
            return manifest if isinstance(manifest.get("uuid"), str) else None
    return None


def seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return `manifest` with its own checksum, ``manifest_crc32c``, in the place of any other.

    It is the crc32c of the rest as JSON with sorted keys and without spaces, so that it does not
    depend on how the manifest is written.
    """
    unsealed = {key: value for key, value in manifest.items() if key != SEAL}
    # Through JSON once: keys are strings only then, and are sorted as strings.
    plain = json.loads(json.dumps(unsealed))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return unsealed | {SEAL: crc32c(text.encode())}


def is_output(folder: Path) -> bool:
    """Return whether mdio wrote a folder: segments, a Zarr tree, or parts of a file."""
    if manifest_in(folder) is not None:
        return True
    marker = _read(folder / PARTS_MARKER)
    return all(isinstance(marker.get(key), str) for key in ("uuid", "file"))


def parts_folder(target: Path) -> Path:
    """Return the folder beside `target` for files that it refers to, as it is called at first."""
    return target.with_name(f"{target.name}.parts")


def new_parts_folder(target: Path, uuid: str) -> Path:
    """Return a name for the folder of parts of a new output, this `uuid`.

    A former one keeps its own until the file that refers to it is replaced, in one step.
    """
    first = parts_folder(target)
    second = first.with_name(f"{first.name}-{uuid[:8]}")
    # One that is repaired keeps its uuid, and perhaps its folder has the other name.
    return second if os.path.lexists(target) and not os.path.lexists(second) else first


def own_parts_folder(target: Path, name: object) -> Path | None:
    """Return the folder of parts of `target` that has this name; None if it is none of its own."""
    first = parts_folder(target)
    match = isinstance(name, str) and re.fullmatch(f"{re.escape(first.name)}({ANOTHER})?", name)
    return first.with_name(str(name)) if match else None


def belongs_to_output(goal: str, name: object) -> bool:
    """Return whether `name` is that of the output `goal`, its parts, or a topology beside it."""
    if not isinstance(name, str):
        return False
    begin = "|".join(map(re.escape, {goal, Path(goal).stem}))
    topology = rf"({begin})(\.[^/]+)?\.(pdb|gro)"
    return (
        name == goal
        or own_parts_folder(Path(goal), name) is not None
        or re.fullmatch(topology, name, re.DOTALL) is not None
    )


def is_built_for(goal: str, name: str) -> bool:
    """Return whether what is built as `name` is for the output `goal`.

    Of a file whose chunks are copied from those of former runs, these are ``NAME.1`` and so on.
    """
    return (
        belongs_to_output(goal, name)
        or re.fullmatch(rf"{re.escape(goal)}\.(\d+|new)", name) is not None
    )


def parts_owner(path: Path, folder: str) -> Path:
    """Return `path`, or what it leads to, if that is what `folder`, its parts, lies beside."""
    led = path.is_symlink() and not path.with_name(folder).is_dir()
    return path.resolve() if led else path


def mark_parts(built: Path, uuid: str, target: Path, name: str) -> None:
    """Write into a folder that is `built` that it holds parts of `target`, and its `name` to be."""
    marker = {"uuid": uuid, "file": target.name, "folder": name}
    (built / PARTS_MARKER).write_text(json.dumps(marker))


def final_parts_folder(built: Path, target: Path) -> Path:
    """Return the final path of a folder of parts that was built."""
    return own_parts_folder(target, _read(built / PARTS_MARKER).get("folder")) or parts_folder(
        target
    )


def read_identity(path: Path) -> int | str:
    """Return by what something is known again under another name, also after a power cut.

    A small file by its bytes, a folder of parts by those of its marker; others, folders too, by the
    number that the file system gives them, which a copy of the disk does not keep.
    """
    marker = path / PARTS_MARKER
    if not path.is_symlink() and "uuid" in _read(marker):
        path = marker
    status = path.lstat()
    small = stat.S_ISREG(status.st_mode) and status.st_size <= SMALL_NBYTES
    return f"{status.st_size}-{crc32c(read_regular(path)):08x}" if small else status.st_ino


def is_identical(path: Path, known: int | str) -> bool:
    """Return whether `known` is the identity of what is there, if anything is."""
    if not os.path.lexists(path):
        return False
    return path.lstat().st_ino == known if isinstance(known, int) else read_identity(path) == known


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one for anything else."""
    try:
        record = json.loads(read_regular(path))
        return record if isinstance(record, dict) else {}
    except (OSError, ValueError, RecursionError):
        pass
    return {}
