"""Objects in stores and on web servers, read by ranges of bytes.

A URL (``s3://``, ``gs://``, ``az://``, ``https://``, ``http://``) is a `RemotePath`, which has the
methods of a path (``exists``, ``stat``), so that formats need not know where their bytes lie;
`mdio.core.files.reading.OpenFile` reads them. obstore makes the requests; it takes credentials,
region and endpoint from the environment, so that they are in no URL, pickle or message.

An object keeps the state that it had when it was opened (ETag, size and time of change): reading
it after it was replaced is an error.
"""

from __future__ import annotations

import os
import stat
from pathlib import PosixPath
from typing import Any

from mdio.core.errors import PlanError, SourceError
from mdio.core.files.remote.objects import ObjectFile, RemoteObject, find

MANIFESTS = ("zarr.json", "manifest.json", ".zgroup", ".zmetadata")


class RemotePath(PosixPath):
    """A URL as a path."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self),))

    def __fspath__(self) -> str:
        return str(self)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return size, time and identity (as the inode) of an object, or of a folder's manifest."""
        folder_first = self.suffix.lower() in (".zarr", ".zarrmd", ".segments")
        answer = None if folder_first else find(self)
        file_type = stat.S_IFREG
        if answer is None and not self.name.startswith(".") and self.name not in MANIFESTS:
            file_type = stat.S_IFDIR
            names = sorted(
                MANIFESTS,
                key=lambda name: (self.suffix == ".segments") != (name == "manifest.json"),
            )
            answer = next(filter(None, (find(self / name) for name in names)), None)
        if answer is None and folder_first:
            file_type, answer = stat.S_IFREG, find(self)
        if answer is None:
            raise FileNotFoundError(2, "no such object", str(self))
        return answer.state.status(file_type)

    lstat = stat

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether an object of this name, or a folder with a manifest, exists."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether there is an object of this name."""
        return self.exists() and stat.S_ISREG(self.stat().st_mode)

    def is_object(self) -> bool:
        """Return whether there is an object of this name, with one request."""
        return find(self) is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Return whether this is the folder of an output."""
        return self.exists() and stat.S_ISDIR(self.stat().st_mode)

    def is_symlink(self) -> bool:
        """Return False."""
        return False

    def is_absolute(self) -> bool:
        """Return True."""
        return True

    def absolute(self) -> RemotePath:
        """Return the path itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002
        """Return the path itself."""
        return self

    def as_uri(self) -> str:
        """Return the URL."""
        return str(self)

    def iterdir(self) -> Any:
        """Raise SourceError: folders are known by their manifests, and never listed."""
        raise SourceError(f"{self}: folders of stores are not listed; copy it here")

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Return a file object that reads bytes; raises PlanError for any other mode."""
        if mode != "rb":
            raise PlanError(f"{self}: objects of stores are opened to read bytes, not as {mode!r}")
        return ObjectFile(RemoteObject(self))

    def read_bytes(self) -> bytes:
        """Return all bytes of an object."""
        with self.open("rb") as file:
            return bytes(file.read())
