"""The folder of a tree, held open while it is read.

Files are opened relative to it. So everything is read from the tree that was opened, even after
another one has taken its name: files of the old tree may be missing then, but files of the new one
are never read in their place.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.checks import open_descriptor
from mdio.core.files.reading import Closable, OpenFile
from mdio.core.files.remote.objects import HEAD_NBYTES, find, forget
from mdio.core.files.remote.outputs import Redirect
from mdio.core.files.store import network_devices, store_at

OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC
NONBLOCKING = os.O_NONBLOCK
"""Otherwise opening a pipe would wait for a writer; it has no effect on regular files."""


class Folder(Closable):
    """A folder, or a prefix of objects in a store, whose files are read.

    `path`: for opening it, and for messages. Attributes: `opening_waits`: whether opening a file
    waits for a network (`Disk.opening_waits`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._inode = -1
        self._store_path = None if store_at(path).has_folders else path
        self.opening_waits = self._store_path is not None
        self._redirect: Redirect | None = None
        try:
            if self._store_path is not None:
                self._inode = self._store_path.stat().st_ino
                return
            self._fd = open_descriptor(path, OPEN_FLAGS | os.O_DIRECTORY)
            status = os.fstat(self._fd)
            self._inode = status.st_ino
            self.opening_waits = status.st_dev in network_devices()
        except FileNotFoundError as error:
            raise SourceError(f"{path}: no such folder") from error
        except OSError as error:
            raise _opening_error(path, error) from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fd": None, "path": self.path.absolute()}

    def use_redirects(self, manifest: Mapping[str, Any]) -> None:
        """Look for files where `manifest` says that they are."""
        if self._store_path is not None:
            self._redirect = Redirect(self.path, manifest)

    def path_of(self, name: str) -> Path:
        return self.path / name if self._redirect is None else self._redirect.path_of(name)

    def reopen(self) -> bool:
        if self._store_path is not None:
            return not self.is_replaced()
        try:
            self._fd = open_descriptor(self.path, OPEN_FLAGS | os.O_DIRECTORY)
        except OSError:
            return False
        return os.fstat(self._fd).st_ino == self._inode

    def open(self, name: str) -> int:
        """Return a descriptor of a file; -1 for an object, which has none.

        `name`: relative to the folder.
        """
        path = self.path / name
        if self._store_path is not None:
            return -1
        if self._fd is None:
            raise SourceError(f"{path}: its tree has been closed; open it again")
        try:
            fd = open_descriptor(name, OPEN_FLAGS | NONBLOCKING, dir_fd=self._fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _opening_error(path, error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CorruptLayoutError(f"{path}: not a regular file; convert the source again")
        return fd

    def read(self, name: str, max_nbytes: int) -> bytes:
        """Return the first `max_nbytes` of a file; raises as `open` does."""
        if self._store_path is not None:
            path = self.path_of(name)
            try:
                head = find(path, (0, max(max_nbytes, HEAD_NBYTES)))  # all of it in one request
            except OSError as error:
                raise _opening_error(path, error) from error
            if head is None:
                raise FileNotFoundError(path)
            if not head.begin and len(head.data) >= min(max_nbytes, head.state.nbytes):
                return bytes(head.data[:max_nbytes])
            with OpenFile(path, CorruptLayoutError) as object_file:
                return object_file.peek(0, max_nbytes)
        # Unbuffered, and not beyond the end: one request, where a buffer would make two.
        with open(self.open(name), "rb", buffering=0) as file:
            try:
                n_expected = min(max_nbytes, os.fstat(file.fileno()).st_size)
                data = file.read(n_expected)
                while len(data) < n_expected and (more := file.read(n_expected - len(data))):
                    data += more
                return data
            except OSError as error:
                raise CorruptLayoutError(
                    f"{self.path / name}: cannot be read ({error.strerror})"
                ) from error

    def is_replaced(self) -> bool:
        """Return whether another folder or object has taken its name."""
        try:
            return self.path.stat().st_ino != self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close the folder; files opened in it stay open."""
        if self._store_path is not None:
            forget(self._store_path, below=True)
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # the mount may be gone
                self._inode = os.fstat(fd).st_ino  # for `reopen` in another process
                os.close(fd)


def _opening_error(path: Path, error: OSError) -> SourceError | CorruptLayoutError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return SourceError(
            f"{path}: cannot be opened, since too many files are open already (this process may "
            f"have {limit}); close layouts and Universes that are done with, or raise the limit "
            "with ulimit -n"
        )
    return CorruptLayoutError(f"{path}: cannot be opened ({error.strerror})")
