"""Whether the blocks of a TNG file are whole.

The package that reads TNG follows damaged lengths out of memory, which ends the process. Each block
has a header (its length, that of the contents, the kind, an MD5 of the contents, a name), so that
damage can be told before the package sees it.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from mdio.core.errors import SourceError

FIXED = 40
"""Bytes of a header before the name."""
MOST_HEADER = 4096
PIECE_NBYTES = 4 << 20


def check_blocks(path: Path) -> None:
    """Compare all blocks with their checksums; raises SourceError: one is cut or damaged."""
    at, number, size = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        order = ">" if file.read(8)[:4] == bytes(4) else "<"
        while at < size:
            file.seek(at)
            head = file.read(FIXED)
            length, nbytes = (
                struct.unpack(order + "qq", head[:16]) if len(head) == FIXED else (0, 0)
            )
            end = at + length + nbytes
            if not FIXED < length <= MOST_HEADER or nbytes < 0 or end > size:
                raise SourceError(
                    f"{path}: block {number} at byte {at} says it ends at byte {end}, the file has "
                    f"{size}: it is cut or damaged; copy it anew"
                )
            if any(expected := head[24:FIXED]):
                found, left = hashlib.md5(usedforsecurity=False), nbytes
                file.seek(at + length)
                while left and (piece := file.read(min(left, PIECE_NBYTES))):
                    found.update(piece)
                    left -= len(piece)
                if found.digest() != expected:
                    raise SourceError(
                        f"{path}: block {number} at byte {at} has the MD5 {found.hexdigest()}, "
                        f"expected {expected.hex()}: it is damaged; copy the file anew"
                    )
            at, number = end, number + 1
