"""The folder of a tree, held open while it is read.

Files are opened relative to it. So all that is read is of the tree that was opened, also after
another one has been put under its name: of the old one files can be missing by then, but none of
the new one comes in their place.
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
from mdio.core.files.marks import open_descriptor
from mdio.core.files.reading import Closing, OpenFile
from mdio.core.files.remote.objects import HEAD_NBYTES, find, forget
from mdio.core.files.remote.places import Redirect
from mdio.core.files.store import network_devices, store_at

FLAGS = os.O_RDONLY | os.O_CLOEXEC
NO_WAITING = os.O_NONBLOCK
"""Opening a pipe would wait for a writer; files of data do not care."""


class Folder(Closing):
    """A folder whose files are read.

    `path`: for opening it, and for messages. Attributes: `opening_waits`: whether each file that is
    opened has to be waited for on a network, as objects have (`Disk.opening_waits`).
    Raises SourceError, CorruptLayoutError: it is not there, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._which = -1
        self._object = None if store_at(path).has_folders else path
        self.opening_waits = self._object is not None
        self._elsewhere: Redirect | None = None
        try:
            if self._object is not None:
                self._which = self._object.stat().st_ino
                return
            self._fd = open_descriptor(path, FLAGS | os.O_DIRECTORY)
            status = os.fstat(self._fd)
            self._which = status.st_ino
            self.opening_waits = status.st_dev in network_devices()
        except FileNotFoundError as error:
            raise SourceError(f"{path}: no such folder") from error
        except OSError as error:
            raise _not_opened(path, error) from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open folder behind."""
        return self.__dict__ | {"_fd": None, "path": self.path.absolute()}

    def learn(self, manifest: Mapping[str, Any]) -> None:
        """Take note of what a manifest says of where files are."""
        if self._object is not None:
            self._elsewhere = Redirect(self.path, manifest)

    def place(self, name: str) -> Path:
        """Return where a file is, by its name in the folder."""
        return self.path / name if self._elsewhere is None else self._elsewhere.place(name)

    def open_again(self) -> bool:
        """Open it in another process; return whether it is the folder that it was."""
        if self._object is not None:
            return not self.replaced()
        try:
            self._fd = open_descriptor(self.path, FLAGS | os.O_DIRECTORY)
        except OSError:
            return False
        return os.fstat(self._fd).st_ino == self._which

    def stat(self, name: str) -> os.stat_result:
        """Return the state of a file of the folder; raises OSError. Objects have none."""
        if self._object is not None:
            raise FileNotFoundError(name)
        return os.stat(name, dir_fd=self._fd)

    def open(self, name: str) -> int:
        """Return a descriptor of a file; -1 of an object, which has none.

        `name`: relative to the folder.
        Raises FileNotFoundError: it is not there. CorruptLayoutError: it is no file of data, or
        cannot be opened. SourceError: the process, or the machine, has too many files open.
        """
        path = self.path / name
        if self._object is not None:
            return -1
        if self._fd is None:
            raise SourceError(f"{path}: its tree has been closed; open it again")
        try:
            fd = open_descriptor(name, FLAGS | NO_WAITING, dir_fd=self._fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _not_opened(path, error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CorruptLayoutError(
                f"{path}: a file of data was expected, and it is none; convert the source again"
            )
        return fd

    def read(self, name: str, most: int) -> bytes:
        """Return the first `most` bytes of a file; raises what `open` does."""
        if self._object is not None:
            whole = self.place(name)
            try:
                here = find(whole, (0, max(most, HEAD_NBYTES)))  # all of it with one request
            except OSError as error:
                raise _not_opened(whole, error) from error
            if here is None:
                raise FileNotFoundError(whole)
            if not here.begin and len(here.data) >= min(most, here.state.nbytes):
                return bytes(here.data[:most])
            with OpenFile(whole, CorruptLayoutError) as opened:
                return opened.peek(0, most)
        # Unbuffered, and not beyond the end: one request, where a buffer would make two.
        with open(self.open(name), "rb", buffering=0) as file:
            try:
                n_wanted = min(most, os.fstat(file.fileno()).st_size)
                data = file.read(n_wanted)
                while len(data) < n_wanted and (more := file.read(n_wanted - len(data))):
                    data += more
                return data
            except OSError as error:
                raise CorruptLayoutError(
                    f"{self.path / name}: cannot be read ({error.strerror})"
                ) from error

    def replaced(self) -> bool:
        """Return whether something else has the folder's name by now."""
        try:
            return self.path.stat().st_ino != self._which
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the folder; files that are open stay so."""
        if self._object is not None:
            forget(self._object, below=True)
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # of a mount that is gone
                self._which = os.fstat(fd).st_ino  # what was found in it may travel later
                os.close(fd)


def _not_opened(path: Path, error: OSError) -> SourceError | CorruptLayoutError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return SourceError(
            f"{path}: cannot be opened, since too many files are open already (this process may "
            f"have {limit}); close layouts and Universes that are done with, or raise the limit "
            "with ulimit -n"
        )
    return CorruptLayoutError(f"{path}: cannot be opened ({error.strerror})")
