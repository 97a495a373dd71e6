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
from pathlib import Path
from types import TracebackType
from typing import Self

from mdio.core.errors import CorruptLayoutError, SourceError

__all__ = ["Folder"]

FLAGS = os.O_RDONLY | os.O_CLOEXEC
NO_WAITING = os.O_NONBLOCK
"""Opening a pipe would wait for a writer; files of data do not care."""


class Folder:
    """A folder whose files are read.

    Parameters
    ----------
    path
        For opening it, and for messages.

    Raises
    ------
    SourceError, CorruptLayoutError
        It is not there, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        try:
            self._fd = os.open(path, FLAGS | os.O_DIRECTORY)
        except FileNotFoundError as error:
            raise SourceError(f"{path}: no such folder") from error
        except OSError as error:
            raise _not_opened(path, error) from error

    def open(self, name: str) -> int:
        """Return a descriptor of a file.

        Parameters
        ----------
        name
            Relative to the folder.

        Raises
        ------
        FileNotFoundError
            It is not there.
        CorruptLayoutError
            It is no file of data, or cannot be opened.
        SourceError
            The process, or the machine, has too many files open.
        """
        path = self.path / name
        if self._fd is None:
            raise SourceError(f"{path}: its tree has been closed; open it again")
        try:
            fd = os.open(name, FLAGS | NO_WAITING, dir_fd=self._fd)
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
        with open(self.open(name), "rb") as file:
            try:
                return file.read(most)
            except OSError as error:
                raise CorruptLayoutError(
                    f"{self.path / name}: cannot be read ({error.strerror})"
                ) from error

    def replaced(self) -> bool:
        """Return whether something else has the folder's name by now."""
        try:
            return self._fd is None or not os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the folder; files that are open stay so."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _not_opened(path: Path, error: OSError) -> SourceError | CorruptLayoutError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return SourceError(
            f"{path}: cannot be opened, since too many files are open already (this process may "
            f"have {limit}); close layouts and Universes that are done with, or raise the limit "
            "with ulimit -n"
        )
    return CorruptLayoutError(f"{path}: cannot be opened ({error.strerror})")
