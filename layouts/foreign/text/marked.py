"""Text of frames between marks: PDB and its kin, MOL2 of Tripos, TRC of GROMOS.

A frame of PDB (https://www.wwpdb.org/documentation/file-format) lies between MODEL and ENDMDL, or,
without MODEL, ends with END or ENDMDL. CRYST1 stands in the header, once for all models; programs
that write trajectories of changing cells put one before or into each. A molecule of MOL2 begins
with ``@<TRIPOS>MOLECULE``, its name and its counts. TRC (https://www.gromos.net, volume 4) has
blocks with a name, lines and END; a frame is a run of them: positions are in POSITIONRED, steps and
times in TIMESTEP, boxes in GENBOX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mdio.core.words import plural
from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.counted import convert_ipi, ipi_units
from mdio.layouts.foreign.text.format import (
    FrameError,
    FrameRecord,
    Lines,
    TextFormat,
    quoted,
    to_text,
)

TITLE_LINE = b"TITLE"
ATOMS = (b"ATOM", b"HETATM")
CELL = b"CRYST1"
MODEL, END_OF_MODEL, END = b"MODEL ", b"ENDMDL", b"END"
_MODEL_LINE = re.compile(rb"^MODEL.*\n?", re.MULTILINE)
TRAILER = (b"CONECT", b"MASTER")
"""Records after the atoms of all models."""
NO_END = "the file ends without END or ENDMDL: whether atoms are missing is unknown"
COORDINATES_END = 54
"""First column after the coordinates."""


@dataclass(slots=True)
class Model:
    """One model, filled in as its lines are read."""

    start: int
    n_atoms: int = 0
    cells: list[bytes] = field(default_factory=list)
    has_cell_inside: bool = False
    """Whether a cell follows MODEL or an atom."""
    is_ended: bool = False


class PDB(TextFormat):
    """PDB, also with long numbers of residues (XPDB), AutoDock's (PDBQT), and PQR."""

    _header_cell = b""
    _n_without_cell = 0
    """Frames without a cell where others have one, or the header."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:  # noqa: ARG002
        first: FrameRecord | None = None
        n_cells, n_without_cell, header_cell, cells_follow_models = 0, 0, b"", False
        while model := self._next_model(lines):
            if first is None:
                cells_follow_models = not model.cells and lines.peek().startswith(CELL)
                if model.cells and not model.has_cell_inside:
                    header_cell = model.cells[0]
            if len({*model.cells}) > 1:
                raise FrameError("two cells (CRYST1) that are not the same")
            n_cells += len(model.cells)
            n_without_cell += not model.cells
            # One cell before all frames is the header's.
            self._header_cell = header_cell if n_cells == 1 else b""
            self._n_without_cell = n_without_cell if n_cells else 0
            if cells_follow_models:
                self._skip_cell_after_model(lines)
            if not model.is_ended and first is not None and model.n_atoms < first.n_atoms:
                text = f"{model.n_atoms} atoms, the first frame has {first.n_atoms}"
                raise FrameError(text, at_end=True)
            notes = () if model.is_ended or first is not None else (NO_END,)
            record = FrameRecord(model.start, lines.offset, model.n_atoms, notes=notes)
            first = first or record
            yield record

    def made_up_notes(self) -> Iterator[str]:
        n = self._n_without_cell
        if n and self._header_cell:
            yield (
                f"one CRYST1 stands before all {n + 1} frames and is read for each: if the box "
                "changed, as at constant pressure, those of later frames are not known"
            )
        elif n:
            yield f"{plural(n, 'frame')} without CRYST1 beside others with it: no box"

    @staticmethod
    def _skip_cell_after_model(lines: Lines) -> None:
        """Skip the cell after a model, in a file with cells after models."""
        if not lines.peek().startswith(CELL):
            raise FrameError(
                f"{quoted(lines.peek())} after a model, where those before have CRYST1: whether "
                "that is the cell of the model before or after it is unknown"
            )
        lines.next()

    @staticmethod
    def _next_model(lines: Lines) -> Model | None:
        """Read one model; None if no atoms are left."""
        model = Model(lines.offset)
        is_in_model, line = False, b""
        while next_line := lines.peek():
            line = next_line
            line_type = line[:6]
            is_model = line_type == MODEL or line.rstrip() == MODEL.rstrip()
            if is_model and model.n_atoms:
                model.is_ended = True
                return model
            lines.next()
            if line_type.startswith(ATOMS):
                model.n_atoms += 1
            elif line_type == CELL:
                model.cells.append(line)
                model.has_cell_inside |= is_in_model or model.n_atoms > 0
            elif line_type == END_OF_MODEL or line.rstrip() == END:
                if model.n_atoms:
                    model.is_ended = True
                    return model
                if line_type == END_OF_MODEL and is_in_model:
                    raise FrameError("a model without atoms")
            is_in_model |= is_model
        if not model.n_atoms and (model.cells or _may_be_cut(line)):
            raise FrameError(f"{quoted(line)} without atoms", at_end=True)
        if is_in_model:
            raise FrameError(f"a model of {model.n_atoms} atoms without ENDMDL", at_end=True)
        model.is_ended = line.startswith(TRAILER)
        return model if model.n_atoms else None

    def is_complete_without_newline(self, raw: bytes) -> bool:
        """Return whether the last line is a mark, or has all coordinates of an atom."""
        last = raw.splitlines()[-1]
        return not last.startswith(ATOMS) or len(last.rstrip()) >= COORDINATES_END

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return a frame with the cell of the header.

        Without MODEL: MDAnalysis looks for cells after it if there are fewer cells than models.
        """
        return to_text(self._header_cell + _MODEL_LINE.sub(b"", raw))

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame; in the units of its title, which i-PI writes."""
        snapshot = super().read(raw, n_atoms)
        is_title = raw.startswith(TITLE_LINE)
        if is_title and (units := ipi_units(raw[: raw.index(b"\n")])):
            convert_ipi(snapshot, units)
        return snapshot


def _may_be_cut(line: bytes) -> bool:
    """Return whether the last line of a file may be a truncated record."""
    return line.strip() != b"" and not line.endswith(b"\n") and not line.startswith((*TRAILER, END))


class PQR(PDB):
    """PQR, with numbers separated by spaces."""

    def is_complete_without_newline(self, raw: bytes) -> bool:
        """Return whether the numbers of the last line have as many decimals as others."""
        last_line = raw.splitlines()[-1]
        return TextFormat.is_complete_without_newline(self, raw) or not last_line.startswith(ATOMS)


SECTION = b"@<TRIPOS>"
MOL2_CELL, MOL2_END = b"CRYSIN", b"END"
BOND_WORDS = 4
"""Words of a bond: number, two atoms, type."""
COUNTED = (b"ATOM", b"BOND")
"""Sections whose numbers of lines a molecule's header has, in that order."""


class MOL2(TextFormat):
    """Molecules, each a frame."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:  # noqa: ARG002
        while (line := lines.peek()) and not line.startswith(SECTION):
            if line.strip() and not line.startswith(b"#"):
                raise FrameError(f"{quoted(line)} in place of @<TRIPOS>MOLECULE")
            lines.next()
        first_sections: dict[bytes, int] = {}
        while lines.peek():
            start = lines.offset
            line = lines.next()
            if line.strip() != SECTION + b"MOLECULE":
                text = f"{quoted(line)} in place of @<TRIPOS>MOLECULE"
                raise FrameError(text, at_end=not line.endswith(b"\n"))
            lines.next()
            header = lines.next()
            counts = header.split()
            if not counts or not all(word.isdigit() for word in counts):
                raise FrameError(f"{quoted(header)} in place of numbers of atoms and bonds")
            expected = {name: int(count) for name, count in zip(COUNTED, counts, strict=False)}
            n_lines = self._sections(lines, expected | {MOL2_CELL: 1})
            if MOL2_CELL in n_lines:
                expected[MOL2_CELL] = 1
            for name, count in expected.items():
                if n_lines.get(name, 0) != count:
                    raise FrameError(
                        f"{n_lines.get(name, 0)} lines of section {to_text(name)}, "
                        f"expected {count}",
                        at_end=not lines.peek(),
                    )
            first_sections = first_sections or n_lines
            next_line = lines.peek()
            is_last = not next_line.endswith(b"\n")
            if next_line and is_last and MOL2_CELL not in first_sections:
                raise FrameError(
                    f"{quoted(next_line)} at the end, perhaps of a section", at_end=True
                )
            if is_last and (missing := first_sections.keys() - n_lines.keys()):
                raise FrameError(
                    f"no section {to_text(min(missing))}, which the first has", at_end=True
                )
            yield FrameRecord(start, lines.offset, int(counts[0]))

    @staticmethod
    def _sections(lines: Lines, max_lines: dict[bytes, int]) -> dict[bytes, int]:
        """Skip to the end of a molecule; return how many lines (`max_lines` at most) by section."""
        n_lines: dict[bytes, int] = {}
        section = b""
        while line := lines.peek():
            is_open = line.startswith(b"@") and not line.endswith(b"\n")
            if is_open and line != SECTION + MOL2_END:
                break
            if line.startswith(SECTION):
                section = line[len(SECTION) :].strip()
                if section == b"MOLECULE":
                    break
                n_lines.setdefault(section, 0)
            elif section and line.strip() and not line.startswith(b"#"):
                if n_lines[section] == max_lines.get(section):
                    break
                n_lines[section] += 1
            lines.next()
        return n_lines

    def is_complete_without_newline(self, raw: bytes) -> bool:
        """Return whether the last section is not coordinates, a cell or a truncated bond."""
        section = raw[raw.rfind(SECTION) + len(SECTION) :].split()[0]
        n_words = len(raw.splitlines()[-1].split())
        return section in (b"SUBSTRUCTURE", MOL2_END) or (
            section == b"BOND" and n_words >= BOND_WORDS
        )


TIME, POSITIONS, BOX = "TIMESTEP", "POSITIONRED", "GENBOX"
READ_BLOCKS = (TIME, POSITIONS, BOX)
BLOCK_END = b"END"
TITLE = "TITLE\none frame\nEND\n"
BOUNDARIES = {0: "none", 1: "rectangular", 2: "triclinic"}


class BlockError(FrameError):
    """There is no complete block here."""

    def __init__(self, text: str, *, at_end: bool, name: str = "") -> None:
        super().__init__(text, at_end=at_end)
        self.name = name


class TRC(TextFormat):
    """A trajectory of GROMOS."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:  # noqa: ARG002
        first, start, n_atoms = "", 0, 0
        blocks, first_blocks = list[str](), list[str]()
        name: str | None = None
        while name != "":
            offset = lines.offset
            try:
                name, n_rows = _skip_block(lines)
            except BlockError as error:
                # The rest after the last block of a frame does not belong to that frame.
                if blocks and (not error.name or first.startswith(error.name)):
                    yield self._record(start, offset, n_atoms, blocks, first_blocks, is_last=True)
                raise
            if not first and name in READ_BLOCKS:
                first = name
            if first and name in ("", first):
                if blocks:
                    yield self._record(
                        start, offset, n_atoms, blocks, first_blocks, is_last=not name
                    )
                    first_blocks = first_blocks or blocks
                start, blocks, n_atoms = offset, [], 0
            if first:
                blocks.append(name)
            if name == POSITIONS:
                if n_atoms:
                    raise FrameError(f"two blocks {POSITIONS} in a frame")
                n_atoms = n_rows

    @staticmethod
    def _record(
        start: int,
        stop: int,
        n_atoms: int,
        blocks: list[str],
        first_blocks: list[str],
        *,
        is_last: bool,
    ) -> FrameRecord:
        """Return a frame; raises FrameError if it lacks positions, or a block of frame 0."""
        if POSITIONS not in blocks:
            text = f"blocks {', '.join(blocks)} without {POSITIONS}"
            raise FrameError(text, at_end=is_last)
        if is_last and (missing := [name for name in first_blocks if name not in blocks]):
            raise FrameError(
                f"blocks {', '.join(blocks)}, without the {missing[0]} of the first frame",
                at_end=True,
            )
        fields = frozenset({"time"} if TIME in blocks else ())
        notes = tuple(f"blocks {name} are not read" for name in blocks if name not in READ_BLOCKS)
        return FrameRecord(start, stop, n_atoms, fields, notes)

    def is_complete_without_newline(self, raw: bytes) -> bool:
        return raw.rstrip().endswith(b"\n" + BLOCK_END)

    def text_for_mdanalysis(self, raw: bytes) -> str:
        return TITLE + to_text(raw)

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        words = to_text(raw).split()
        has_block = {name: name in words for name in READ_BLOCKS}
        if has_block[BOX] and (key := words[words.index(BOX) + 1]) not in map(str, BOUNDARIES):
            raise FrameError(f"{BOX} with boundaries {key}, expected 0, 1 or 2")
        snapshot = super().read(raw, n_atoms)
        if not has_block[TIME]:
            snapshot.time = snapshot.step = None
        return snapshot


def _skip_block(lines: Lines) -> tuple[str, int]:
    """Skip a block; return its name and number of rows; an empty name at the end of the file."""
    while (line := lines.next()) and (not line.strip() or line.lstrip().startswith(b"#")):
        pass
    name = to_text(line).strip()
    if not name:
        return "", 0
    if not name.replace("0", "").isalnum() or not name.isupper():
        text = f"{quoted(line)} in place of the name of a block"
        raise BlockError(text, at_end=not line.endswith(b"\n"))
    n_rows = 0
    while line := lines.next():
        if line.startswith(b"END") and line.strip() == BLOCK_END:
            return name, n_rows
        n_rows += not line.lstrip().startswith(b"#")
    raise BlockError(f"a block {name} without END", at_end=True, name=name)
