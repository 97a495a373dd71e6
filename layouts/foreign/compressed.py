"""Compressed files: gzip, bzip2, Zstandard."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from mdio.core.errors import SourceError
from mdio.core.files.checks import first_bytes

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
ZSTD = ".zst"
COMPRESSED_SUFFIXES = (*OPENERS, ZSTD)
DECOMPRESSORS = {".gz": "gunzip", ".bz2": "bunzip2", ZSTD: "unzstd"}
FIRST_BYTES = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ZSTD}


@cache
def _zstd() -> Any:
    """Return Python's module, or its backport for Python before 3.14; None without either."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def decompressed_head(path: Path, nbytes: int) -> bytes:
    """Return the first bytes of a file, decompressed; empty if that fails."""
    try:
        with open_decompressed(path) as file:
            return bytes(file.read(nbytes))
    except Exception:  # errors of zlib and zstd are not OSErrors
        return b""


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file for reading its decompressed bytes; raises SourceError."""
    suffix = compression_of(path)
    if suffix == ZSTD and _zstd() is None:
        raise SourceError(
            f"{path}: compressed with Zstandard, which this Python lacks; install it: "
            "pip install backports.zstd, or decompress the file (zstd -d)"
        )
    opener = _zstd().open if suffix == ZSTD else OPENERS.get(suffix, open)
    return cast(BinaryIO, opener(path, "rb"))


def compression_of(path: Path) -> str:
    """Return the suffix of a compressed file by its first bytes; empty for others."""
    try:
        head = first_bytes(path, 4)
    except OSError:
        return ""
    return next((suffix for magic, suffix in FIRST_BYTES.items() if head.startswith(magic)), "")
