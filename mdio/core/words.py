"""Words of messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean 'rmsd'?``, or nothing where nothing known looks like `word`."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""


def plural(number: int, thing: str) -> str:
    """Return a number and what it counts: ``1 rank``, ``2,158 ranks``, ``3 passes``."""
    if number != 1:
        thing += "es" if thing.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {thing}"


def aligned(rows: Sequence[Sequence[str]], n_left: int) -> list[str]:
    """Return rows of cells as lines with columns, the first `n_left` flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < n_left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def human_nbytes(nbytes: float) -> str:
    """Return bytes as people read them: ``23.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
