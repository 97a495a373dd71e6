"""Which functions handle XTC here, those of the native module or those of libmdaxdr.

``MDIO_PURE_PYTHON=1`` in the environment turns the native side off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.regular import open_regular
from mdio.core.files.remote.paths import RemotePath
from mdio.core.xtc import fallback as xtc_fallback

__all__ = ["NATIVE", "kernels", "open_file", "opened", "source_errors"]


def _choose() -> tuple[ModuleType, bool]:
    if os.environ.get("MDIO_PURE_PYTHON", "0") not in ("", "0"):
        return xtc_fallback, False
    try:
        return import_module("mdio._xtc"), True
    except ImportError:  # installed without a compiler
        return xtc_fallback, False


if TYPE_CHECKING:  # the other has the same functions, but that it reads positions another way
    from mdio import _xtc as kernels

    NATIVE: bool
else:
    kernels, NATIVE = _choose()


def open_file(path: Path) -> int:
    """Return a descriptor to read from; raises SourceError."""
    if isinstance(path, RemotePath):
        raise SourceError(
            f"{path}: its frames do not follow one another from its beginning to its end (or there "
            "is no compiled module, mdio._xtc); copy it here, and mdio info says where"
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
