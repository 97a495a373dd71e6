"""Files that were packed whole: gzip, bzip2, Zstandard."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from mdio.core.errors import SourceError
from mdio.core.files.marks import first_bytes

OPENS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
ZSTD = ".zst"
PACKED = (*OPENS, ZSTD)
UNPACKED_BY = {".gz": "gunzip", ".bz2": "bunzip2", ZSTD: "unzstd"}
BEGINNINGS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ZSTD}


@cache
def _zstd() -> Any:
    """Return Python's module, or what has it for Python before 3.14; None if neither is there."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def head_unpacked(path: Path, nbytes: int) -> bytes:
    """Return how a file begins once it is unpacked; nothing if it cannot be."""
    try:
        with opened_unpacked(path) as file:
            return bytes(file.read(nbytes))
    except Exception:  # zlib's and zstd's errors are no OSErrors
        return b""


def opened_unpacked(path: Path) -> BinaryIO:
    """Return a file opened for reading its bytes, unpacked; raises SourceError."""
    suffix = packed_as(path)
    if suffix == ZSTD and _zstd() is None:
        raise _without_zstd(path)
    opened = _zstd().open if suffix == ZSTD else OPENS.get(suffix, open)
    return cast(BinaryIO, opened(path, "rb"))


def _without_zstd(path: Path) -> SourceError:
    return SourceError(
        f"{path}: packed with Zstandard, which this Python lacks; install it: "
        "pip install backports.zstd, or unpack the file (zstd -d)"
    )


def packed_as(path: Path) -> str:
    """Return the suffix of a compressed file by its first bytes; empty for others."""
    try:
        head = first_bytes(path, 4)
    except OSError:
        return ""
    return next((suffix for begins, suffix in BEGINNINGS.items() if head.startswith(begins)), "")


def let_mdanalysis_read(path: Path) -> None:
    """See that MDAnalysis opens a file; raises SourceError.

    It knows gzip and bzip2, and opens all files with one function, which learns
    Zstandard here.
    """
    if packed_as(path) != ZSTD:
        return
    zstd = _zstd()
    if zstd is None:
        raise _without_zstd(path)
    from MDAnalysis.lib import util

    original = util._get_stream
    if getattr(original, "knows_zstd", False):
        return

    def get_stream(filename: Any, openfunction: Any = open, mode: str = "r") -> Any:
        if isinstance(filename, str | Path) and packed_as(Path(filename)) == ZSTD:
            return zstd.open(filename, mode if "b" in mode else mode.replace("t", "") + "t")
        return original(filename, openfunction, mode)

    get_stream.knows_zstd = True  # type: ignore[attr-defined]
    util._get_stream = get_stream
