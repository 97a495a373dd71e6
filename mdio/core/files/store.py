"""Storage of files and objects: a disk, or a store of objects, and its operations.

`store_at` returns the storage of a path. Both kinds have the same methods (open, list, link,
prefetch) and attributes (what is possible there), so no other code needs to know which kind it is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MdioError, PlanError
from mdio.core.files.checks import check_regular, open_regular
from mdio.core.files.remote import objects
from mdio.core.files.remote.objects import URL, ObjectFile, RemoteObject, local_copy
from mdio.core.files.remote.outputs import make_placeholder
from mdio.core.files.remote.paths import MANIFESTS, RemotePath

if TYPE_CHECKING:
    from mdio.core.files.remote.uploading import Upload

AnyPath = str | os.PathLike[str]
Paths = AnyPath | Sequence[AnyPath]
"""One path or several."""


def path_list(paths: Paths) -> list[AnyPath]:
    """Return one path or several as a list; raises PlanError for none, and for anything else."""
    if isinstance(paths, Mapping):
        raise PlanError(
            f"trajectories by label ({', '.join(map(str, paths))}) where one was expected; give "
            "each by itself, or put all into one output with mdio.convert_ensemble and give that"
        )
    # A reader of MDAnalysis would otherwise read all its frames.
    if hasattr(getattr(getattr(paths, "universe", paths), "trajectory", paths), "n_frames"):
        raise PlanError(
            f"{paths!r} is not a path; give that of its trajectory, which is in universe.trajectory"
            ".filename, and the Universe as top="
        )
    path_items: list[Any] = [paths]
    is_single = isinstance(paths, str | bytes | os.PathLike) or hasattr(paths, "readline")
    if isinstance(paths, Iterable) and not is_single:
        path_items = list(paths)
    path_items = [os.fsdecode(path) if isinstance(path, bytes) else path for path in path_items]
    if not path_items:
        raise PlanError("no trajectory is given; give at least one")
    for path in path_items:
        if not isinstance(path, str | os.PathLike):
            raise PlanError(
                f"{path!r} is not a path; give the path of a trajectory, or several in a list"
            )
    return path_items


MOUNTS = "/proc/self/mountinfo"
"""The kernel's table of mounts (proc(5)), which, unlike statfs, touches no file system."""
ANY_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
COPY_ADVICE = "copy it here, and copy it back afterwards"


def mounts() -> list[tuple[int, str, str]]:
    """Return device (``st_dev``), mount point (ending with a slash) and type of each file system.

    An empty list where there is no table of mounts.
    """
    try:
        lines = Path(MOUNTS).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        fields_text, _, type_text = line.partition(" - ")
        fields = fields_text.split(" ")
        if len(fields) < 5 or not type_text:
            continue
        # Spaces, tabs, newlines and backslashes in a mount point are octal: \040.
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        device = os.makedev(*map(int, fields[2].split(":")))
        entries.append((device, f"{point.rstrip('/')}/", type_text.split(" ")[0]))
    return entries


NETWORK_TYPES = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "store",
    "wekafs",
}
"""Types of network file systems in the table of mounts; ``store``: of objects."""
LOCAL_FUSE_TYPES = {"fuse", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuseblk"}


def is_network(file_system: str) -> bool:
    """Return whether a file system of this type lies behind a network.

    All FUSE file systems (MooseFS, sshfs, CephFS' own, ...) do, except a few.
    """
    return file_system in NETWORK_TYPES or (
        file_system.startswith("fuse") and file_system not in LOCAL_FUSE_TYPES
    )


@cache
def network_devices() -> frozenset[int]:
    """Return the devices (``st_dev``) whose files come over a network, as they are mounted now."""
    return frozenset(device for device, _, type_name in mounts() if is_network(type_name))


class Disk:
    """A file system: files are opened by their names, and written in place."""

    opening_waits: ClassVar[bool] = False
    """Whether opening a file takes a request, so that the next ones should be prefetched, and none
    opened unnecessarily."""
    has_folders: ClassVar[bool] = True
    """Whether there are folders, which exist before their files, and can be listed and opened."""
    holds_ensembles: ClassVar[bool] = True
    """Whether several trajectories can be written side by side into one output."""
    built_in_place: ClassVar[bool] = True
    """Whether outputs are built there, where all processes that share it can write; otherwise they
    are built on the owner's machine, and sent."""
    keeps_times: ClassVar[bool] = True
    """Whether an unchanged modification time means unchanged content; not for sent copies."""
    may_grow: ClassVar[bool] = True
    """Whether files may grow; otherwise they are only replaced as a whole."""
    in_page_cache: ClassVar[bool] = True
    """Whether the system keeps bytes in memory that were read."""
    has_conditional_writes: ClassVar[bool] = False
    """Whether requests have conditions, so that only an object of a known state is replaced."""

    def open(self, path: Path, last_nbytes: int = 0) -> tuple[int, RemoteObject | None]:  # noqa: ARG002
        """Return a descriptor, or -1 and an object; `last_nbytes`: see `RemoteObject`."""
        return open_regular(path), None

    def source_for_library(self, path: Path) -> Path | ObjectFile:
        """Return a path or file object for a library; raises OSError for pipes, which block."""
        check_regular(path)
        return path

    def as_local_file(self, path: Path) -> AbstractContextManager[Path]:
        """Yield the path of a local file with the same contents."""
        return nullcontext(path)

    def check_regular(self, path: Path) -> None:
        """Raise OSError unless `path` is a file or a folder."""
        check_regular(path)

    def sizes(self, folder: Path) -> dict[str, int]:
        """Return the names of all files below `folder`, relative to it, and their bytes."""
        sizes = {}
        for parent, _, names in os.walk(folder, followlinks=True):
            for name in names:
                file = Path(parent, name)
                with suppress(FileNotFoundError):  # a broken link
                    if stat.S_ISREG((status := file.stat()).st_mode):
                        sizes[str(file)[len(str(folder)) + 1 :]] = status.st_size
        return sizes

    def link(self, source: Path, target: Path, nbytes: int | None = None) -> None:  # noqa: ARG002
        """Link or copy a file that is never written again to `target`, replacing a file there.

        `nbytes`: size of the source, if known.
        """
        import shutil  # reading needs none

        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)

    def bytes_to_link(self, path: Path) -> NDArray[np.uint8]:
        """Return the bytes of a file that is given to `link`."""
        return np.memmap(path, np.uint8, "r")

    def prefetch(self, paths: Iterable[Path], last_nbytes: int) -> None:
        """Prefetch the ends of files that are opened next; see `objects.prefetch`."""

    def prefetch_end(self, path: Path) -> None:
        """Fetch the end of a file for a library that opens it; see `objects.prefetch_end`."""

    def forget_end(self, path: Path) -> None:
        """Drop the bytes that `prefetch_end` kept, when the library has opened the file."""

    def upload(self, target: Path, **options: Any) -> Upload | None:  # noqa: ARG002
        """Return the upload of an output to `target`; None if outputs are built in place."""
        return None

    def file_system(self, path: AnyPath) -> str:
        """See `file_system_type`."""
        folder = f"{os.path.realpath(path).rstrip('/')}/"
        type_name, depth = "unknown", -1
        for _, point, kind in mounts():
            # A later mount on the same point hides the earlier one.
            if folder.startswith(point) and len(point) >= depth:
                type_name, depth = kind, len(point)
        return type_name

    def url(self, path: Path) -> str:
        """Return the URL of `path`, without escapes."""
        return f"file://{path.absolute()}"

    def missing_text(self, path: Path) -> str:  # noqa: ARG002
        """Return a message that nothing exists at `path`."""
        return "no such file or folder"


class ObjectStore(Disk):
    """A store of objects, or a web server: read by requests; outputs are sent there."""

    opening_waits = True
    has_folders = holds_ensembles = built_in_place = keeps_times = may_grow = in_page_cache = False
    has_conditional_writes = True
    as_local_file = staticmethod(local_copy)
    prefetch = staticmethod(objects.prefetch)
    prefetch_end = staticmethod(objects.prefetch_end)
    forget_end = staticmethod(objects.forget_end)

    def open(self, path: Path, last_nbytes: int = 0) -> tuple[int, RemoteObject | None]:
        return -1, RemoteObject(path, last_nbytes)

    def source_for_library(self, path: Path) -> ObjectFile:
        return ObjectFile(RemoteObject(path))

    def check_regular(self, path: Path) -> None:
        """Do nothing: a store has objects only."""

    def sizes(self, folder: Path) -> dict[str, int]:
        """See the base class; one request."""
        from mdio.core.files.remote.outputs import names_below

        return names_below(RemotePath(folder))

    def link(self, source: Path, target: Path, nbytes: int | None = None) -> None:
        """Create a placeholder at `target` for the object, which stays in the store."""
        target.unlink(missing_ok=True)
        make_placeholder(target, source.stat().st_size if nbytes is None else nbytes)

    def bytes_to_link(self, path: Path) -> NDArray[np.uint8]:  # noqa: ARG002
        """Return no bytes: the object stays in the store."""
        return np.empty(0, np.uint8)

    def upload(self, target: Path, **options: Any) -> Upload:
        """See the base class; `options`: of `Upload`."""
        from mdio.core.files.remote.uploading import Upload

        return Upload(RemotePath(target), **options)

    def file_system(self, path: AnyPath) -> str:  # noqa: ARG002
        return "store"

    def url(self, path: Path) -> str:
        return path.as_uri()

    def missing_text(self, path: Path) -> str:  # noqa: ARG002
        return f"no such object, and no {' or '.join(MANIFESTS)} below it; check the URL"


def is_remote(path: object) -> bool:
    """Return whether a path is a URL that is read by requests."""
    return isinstance(path, str | os.PathLike) and URL.match(os.fsdecode(path)) is not None


def is_stream(path: object) -> bool:
    """Return whether a path is the address of a running simulation that sends frames."""
    return isinstance(path, str) and path.lower().startswith("imd://")


def to_path(path: str | os.PathLike[str]) -> Path:
    """Return a path, or a `RemotePath` of a URL.

    Raises PlanError: a URL with a user, password or query, which would be written into manifests;
    or one of a kind that mdio does not read.
    """
    if isinstance(path, Path):
        return path
    if not isinstance(path, str | bytes | os.PathLike):
        raise PlanError(f"{path!r} is not a path; give that of a file or folder")
    text = os.fsdecode(path)
    host = URL.match(text)
    if host is None:
        if is_stream(text):
            raise PlanError(
                f"{text}: frames of a running simulation, which come once and in order; record "
                "them with mdio convert imd://HOST:PORT OUT -s TOP (in Python mdio.record), and "
                "read OUT, which can be done while it grows"
            )
        if ANY_URL.match(text) and not os.path.lexists(text):
            raise PlanError(
                f"{text}: not a URL that mdio reads; those begin with s3://, gs://, az://, "
                "https:// or http://, and files are given by their paths"
            )
        return Path(text)
    if "@" in host[2] or "?" in text or "#" in text or not host[2]:
        public = re.sub(r"//[^/]*@", "//", re.split(r"[?#]", text)[0])
        raise PlanError(
            f"{public}: give store, bucket (or host) and name, as s3://bucket/name, without user, "
            "password, query or fragment: credentials belong in the environment "
            "(AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ...), where they stay"
        )
    if not text[host.end() :].strip("/"):
        raise PlanError(f"{text}: a bucket or host alone; name an object, as {host[0]}/md.zarr")
    return RemotePath(text)


_DISK, _OBJECTS = Disk(), ObjectStore()


def store_at(path: AnyPath) -> Disk:
    """Return the storage of `path`: a disk, or a store for a URL."""
    if isinstance(path, Path):
        return _OBJECTS if isinstance(path, RemotePath) else _DISK
    return _OBJECTS if is_remote(path) else _DISK


def require_disk(path: AnyPath, reason: str, error: type[MdioError] = PlanError) -> None:
    """Raise `error` with `reason` where programs cannot open `path` by its name."""
    if not store_at(path).has_folders:
        raise error(f"{path}: {reason}")


def file_system_type(path: AnyPath) -> str:
    """Return the type of the file system on which `path` lies, or will lie.

    ``lustre``, ``nfs4``, ``ext4``, ``xfs``, ``tmpfs``, ``overlay``, ``beegfs``, ``gpfs``, ...;
    ``unknown`` where there is no table of mounts; ``store`` for a URL.
    """
    return store_at(path).file_system(path)
