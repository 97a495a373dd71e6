"""The compiled functions that handle XTC, and files opened for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.regular import open_regular
from mdio.core.files.store import need_disk
from mdio.core.kernels.backend import compiled

__all__ = ["kernels", "open_file", "opened", "source_errors"]


if TYPE_CHECKING:
    from mdio import _xtc as kernels
else:
    kernels = compiled("mdio._xtc")


def open_file(path: Path) -> int:
    """Return a descriptor to read from; raises SourceError."""
    need_disk(
        path,
        "its frames do not follow one another from its beginning to its end; copy it here, and "
        "mdio info says where",
        SourceError,
    )
    try:
        return open_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened ({error.strerror})") from error


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file for reading; errors within become SourceError."""
    fd = open_file(path)
    try:
        with source_errors(path):
            yield fd
    finally:
        os.close(fd)


@contextmanager
def source_errors(path: Path) -> Iterator[None]:
    """Turn the errors of `kernels` and of the operating system into SourceError."""
    try:
        yield
    except (SourceError, CorruptLayoutError):
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error
    except NotImplementedError as error:
        raise SourceError(f"{path}: {error}") from error
    except ValueError as error:
        raise SourceError(
            f"{path}: {error}; the file is damaged or still being written: take it from its "
            "source again, or cut it at that byte to keep the frames before it"
        ) from error
