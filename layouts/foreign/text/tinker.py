"""TXYZ and ARC of TINKER: a number of atoms and a title, perhaps the box, a line for each atom."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mdio.layouts.foreign.text.format import (
    FrameError,
    Span,
    TextFormat,
    integer,
    shown,
    skip_atoms,
)
from mdio.layouts.foreign.text.lines import Lines

LEAST_NBYTES = 10
"""Of a line such as ``1 C 0 0 0``, with its end."""
_BOX = re.compile(rb"(?:\s*[-+]?\d*\.?\d+(?:[eEdD][-+]?\d+)?(?=\s)){6}\s*")


class Tinker(TextFormat):
    """A trajectory of TINKER."""

    kind = "TXYZ"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        while line := lines.peek():
            start = lines.offset
            lines.next()
            if not line.strip():
                raise FrameError(f"{shown(line)} in place of a number of atoms")
            n_atoms = integer(line.split()[0], "a number of atoms")
            if _BOX.fullmatch(lines.peek()):
                lines.next()
            skip_atoms(lines, n_atoms, nbytes, LEAST_NBYTES)
            yield Span(start, lines.offset, n_atoms)

    def is_whole_without_newline(self, raw: bytes) -> bool:  # noqa: ARG002
        """Return False: lines end with numbers of atoms, which may be cut."""
        return False
