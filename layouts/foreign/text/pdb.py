"""PDB and its kin: frames between MODEL and ENDMDL, or before END or ENDMDL without MODEL.

https://www.wwpdb.org/documentation/file-format. CRYST1 stands in the header, once for all models;
programs that write trajectories of changing cells put one before or into each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mdio.layouts.foreign.text.format import FrameError, Lines, Span, TextFormat, plain, shown

ATOMS = (b"ATOM", b"HETATM")
CELL = b"CRYST1"
MODEL, END_OF_MODEL, END = b"MODEL ", b"ENDMDL", b"END"
_MODEL_LINE = re.compile(rb"^MODEL.*\n?", re.MULTILINE)
LAST = (b"CONECT", b"MASTER")
"""Records behind the atoms of all models."""
NO_END = "the file ends without END or ENDMDL: whether atoms are missing cannot be told"
COORDINATES_END = 54
"""Column behind the coordinates."""


@dataclass(slots=True)
class Seen:
    """What is seen of a frame while it is passed."""

    start: int
    n_atoms: int = 0
    cells: list[bytes] = field(default_factory=list)
    has_cell_inside: bool = False
    """Whether a cell stands behind MODEL or atoms."""
    is_ended: bool = False
    """Whether a record says that no atoms follow."""


class PDB(TextFormat):
    """PDB, also with long numbers of residues (XPDB), AutoDock's (PDBQT), and PQR."""

    kind = "PDB"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:  # noqa: ARG002
        """Yield the frames."""
        first: Span | None = None
        n_cells, header_cell, is_behind = 0, b"", False
        while seen := self._next(lines):
            if first is None:
                is_behind = not seen.cells and lines.peek().startswith(CELL)
                if seen.cells and not seen.has_cell_inside:
                    header_cell = seen.cells[0]
            if len({*seen.cells}) > 1:
                raise FrameError("two cells (CRYST1) that are not the same")
            n_cells += len(seen.cells)
            if is_behind:
                self._take_cell_behind(lines)
            if not seen.is_ended and first is not None and seen.n_atoms < first.n_atoms:
                text = f"{seen.n_atoms} atoms, the first frame has {first.n_atoms}"
                raise FrameError(text, at_end=True)
            remarks = () if seen.is_ended or first is not None else (NO_END,)
            span = Span(seen.start, lines.offset, seen.n_atoms, remarks=remarks)
            first = first or span
            yield span
        # One cell before all frames is the header's.
        self.head.lines = header_cell if n_cells == 1 else b""

    @staticmethod
    def _take_cell_behind(lines: Lines) -> None:
        """Go over the cell of a file that has one behind each model, and none before the first."""
        if not lines.peek().startswith(CELL):
            raise FrameError(
                f"{shown(lines.peek())} behind a model, where those before have CRYST1: whether "
                "that is the cell of the model before or behind it cannot be told"
            )
        lines.next()

    @staticmethod
    def _next(lines: Lines) -> Seen | None:
        """Go over a frame; return what is seen of it, None if no atoms are left."""
        seen = Seen(lines.offset)
        is_in_model, line = False, b""
        while following := lines.peek():
            line = following
            record = line[:6]
            is_model = record == MODEL or line.rstrip() == MODEL.rstrip()
            if is_model and seen.n_atoms:
                seen.is_ended = True
                return seen
            lines.next()
            if record.startswith(ATOMS):
                seen.n_atoms += 1
            elif record == CELL:
                seen.cells.append(line)
                seen.has_cell_inside |= is_in_model or seen.n_atoms > 0
            elif record == END_OF_MODEL or line.rstrip() == END:
                if seen.n_atoms:
                    seen.is_ended = True
                    return seen
                if record == END_OF_MODEL and is_in_model:
                    raise FrameError("a model without atoms")
            is_in_model |= is_model
        if not seen.n_atoms and (seen.cells or _may_be_cut(line)):
            raise FrameError(f"{shown(line)} without atoms", at_end=True)
        if is_in_model:
            raise FrameError(f"a model of {seen.n_atoms} atoms without ENDMDL", at_end=True)
        seen.is_ended = line.startswith(LAST)
        return seen if seen.n_atoms else None

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the last line is a mark, or holds all coordinates of an atom."""
        last = raw.splitlines()[-1]
        return not last.startswith(ATOMS) or len(last.rstrip()) >= COORDINATES_END

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a frame with the cell of the header.

        Without MODEL, since MDAnalysis looks for cells behind it where it counts fewer of them.
        """
        return plain(self.head.lines + _MODEL_LINE.sub(b"", raw))


def _may_be_cut(line: bytes) -> bool:
    """Return whether the last line of a file may be the beginning of another record."""
    return line.strip() != b"" and not line.endswith(b"\n") and not line.startswith((*LAST, END))


class PQR(PDB):
    """PQR, whose numbers are words."""

    kind = "PQR"

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the numbers of the last line have decimals as those of the first."""
        return TextFormat.is_whole_without_newline(self, raw) or not raw.splitlines()[
            -1
        ].startswith(ATOMS)
