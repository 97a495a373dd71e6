"""PDB and its kin: frames between MODEL and ENDMDL, or before END or ENDMDL without MODEL.

https://www.wwpdb.org/documentation/file-format. CRYST1 stands in the header, once for all models;
programs that write trajectories of changing cells put one before or into each.
"""

from __future__ import annotations

from collections.abc import Iterator

from mdio.layouts.foreign.text.format import FrameError, Span, TextFormat, plain, shown
from mdio.layouts.foreign.text.lines import Lines

ATOMS = (b"ATOM", b"HETATM")
CELL = b"CRYST1"
MODEL, END_OF_MODEL, END = b"MODEL ", b"ENDMDL", b"END"
LAST = (b"END", b"TER", b"CON", b"MAS")
"""Beginnings of records that a file may end with."""
NO_END = "the file ends without END or ENDMDL: whether atoms are missing cannot be told"
COORDINATES_END = 54
"""Column behind the coordinates."""


class PDB(TextFormat):
    """PDB, also with long numbers of residues (XPDB), AutoDock's (PDBQT), and PQR."""

    kind = "PDB"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:  # noqa: ARG002
        """Yield the frames."""
        first: Span | None = None
        n_cells, header_cell = 0, b""
        while span := self._next(lines):
            start, n_atoms, cells, is_in_model, mark = span
            if first is None and not n_cells and cells and not is_in_model:
                header_cell = cells[0]
            n_cells += len(cells)
            if mark is None and first is not None and n_atoms < first.n_atoms:
                raise FrameError(
                    f"{n_atoms} atoms, the first frame has {first.n_atoms}", at_end=True
                )
            remarks = () if mark is not None or first is not None else (NO_END,)
            first = first or Span(start, lines.offset, n_atoms)
            yield Span(start, lines.offset, n_atoms, remarks=remarks)
        # One cell before all frames is the header's.
        self.head.lines = header_cell if n_cells == 1 else b""

    def _next(self, lines: Lines) -> tuple[int, int, list[bytes], bool, bytes | None] | None:
        """Go over a frame; return what is seen of it, None if no atoms are left."""
        start, n_atoms, cells = lines.offset, 0, list[bytes]()
        model = False
        cell_is_in_model = False
        line_before = b""
        while line := lines.peek():
            line_before = line
            record = line[:6]
            if record == MODEL or line.rstrip() == b"MODEL":
                if n_atoms:
                    return start, n_atoms, cells, cell_is_in_model, record
                model = True
            elif record.startswith(ATOMS):
                n_atoms += 1
            elif record == CELL:
                cells.append(line)
                cell_is_in_model |= model or n_atoms > 0
            elif record == END_OF_MODEL or line.rstrip() == END:
                lines.next()
                if n_atoms:
                    return start, n_atoms, cells, cell_is_in_model, record
                if record == END_OF_MODEL and model:
                    raise FrameError("a model without atoms")
                continue
            lines.next()
        if not n_atoms and (cells or _may_be_cut(line_before)):
            raise FrameError(f"{shown(line_before)} without atoms", at_end=True)
        if model:
            raise FrameError(f"a model of {n_atoms} atoms without ENDMDL", at_end=True)
        return (start, n_atoms, cells, cell_is_in_model, None) if n_atoms else None

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the last line is a mark, or holds all coordinates of an atom."""
        last = raw.splitlines()[-1]
        return not last.startswith(ATOMS) or len(last.rstrip()) >= COORDINATES_END

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a frame with the cell of the header.

        Without MODEL, since MDAnalysis looks for cells behind it where it counts fewer of them.
        """
        lines = (self.head.lines + raw).splitlines(keepends=True)
        return plain(b"".join(line for line in lines if not line.startswith(MODEL.rstrip())))


def _may_be_cut(line: bytes) -> bool:
    """Return whether the last line of a file may be the beginning of another record."""
    return line.strip() != b"" and not line.endswith(b"\n") and line[:3] not in LAST


class PQR(PDB):
    """PQR, whose numbers are words."""

    kind = "PQR"

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the numbers of the last line have decimals as those of the first."""
        return TextFormat.is_whole_without_newline(self, raw) or not raw.splitlines()[
            -1
        ].startswith(ATOMS)
