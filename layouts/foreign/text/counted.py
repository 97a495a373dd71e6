"""Text of frames whose lines are counted: XYZ, TINKER's, GRO of GROMACS, AMBER's trajectories.

Extended XYZ (https://github.com/libAtoms/extxyz) has in its comment the columns
(``Properties``), the three vectors of the cell (``Lattice``) and which of them are periodic
(``pbc``). CP2K writes step and time, in fs, into its comments; i-PI
(https://docs.ipi-code.org/output-files.html) the cell, the step and units. GRO
(https://manual.gromacs.org/current/reference-manual/file-formats.html#gro) has columns of the width
of its first line (``-ndec``); times and steps are in titles, as ``t=`` and ``step=``. AMBER's
(https://ambermd.org/FileFormats.php#trajectory) have a title, then numbers of
format 10F8.3, perhaps a box; they have neither the number of atoms nor the angles of the box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from mdio.core.boxes import boxes_from_vectors
from mdio.core.words import list_text
from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import (
    FrameError,
    FrameRecord,
    Lines,
    TextFormat,
    integer,
    note_on_axes,
    quoted,
    skip_atoms,
    text_lines,
    to_text,
    without_axes,
)
from mdio.layouts.foreign.units import spelled_out_factor

MIN_XYZ_LINE_NBYTES = 8
"""Least bytes of a line of an atom such as ``C 0 0 0``, with its end."""
N_COLUMNS = 4
"""Columns of an atom without ``Properties``: its name and coordinates."""
_PAIR = re.compile(r"""([A-Za-z_][\w-]*)\s*=\s*(?:"([^"]*)"|'([^']*)'|\{([^}]*)\}|(\S+))""")
TRUE_WORDS = ("T", "TRUE", "1")
_CP2K = re.compile(rb"\s*i\s*=\s*(\d+),\s*time\s*=\s*(-?\d+\.\d+),\s*E\s*=")
_CP2K_STEP = re.compile(rb"\s*i\s*=\s*\d+,")
_CP2K_NAME = re.compile(r"-(vel|frc)-\d+\.xyz")
CP2K_CONTENTS = {
    "vel": ("velocities", "bohr per atomic unit of time"),
    "frc": ("forces", "hartree/bohr"),
}
"""Contents of a file of CP2K that is not of positions, by a part of its name: kind, usual unit."""
_IPI_CELL = re.compile(rb"CELL\(abcABC\):((?:\s+[-+.\dEe]+){6})")
_IPI_STEP = re.compile(rb"Step:\s*(\d+)")
_IPI_UNITS = re.compile(rb"(\w+)\{(\w+)\}")
_PLUMED_BOX = re.compile(rb"\s*-?\d+\.\d+(?:\s+-?\d+\.\d+){2}(?:(?:\s+-?\d+\.\d+){6})?\s*")
IPI_POSITIONS = ("positions", "x_centroid")
FS_PER_PS = 1000
UNREAD = ("force", "forces", "momenta", "vel", "velo", "velocities")
"""Names of columns that programs give velocities and forces, in no unit that is known."""
MAX_TILT = 1e-4
"""How far, in angstrom, the first vector of a cell may be from x, the second from the xy plane."""


class XYZ(TextFormat):
    """XYZ of all kinds."""

    has_length_unit = False
    _is_of_cp2k = False
    _ipi_contents = ""
    """What a file of i-PI holds, and its unit, where these are no positions."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        while lines.peek():
            start = lines.offset
            n_atoms = integer(lines.next(), "a number of atoms")
            comment, atom = lines.next(), lines.peek()
            skip_atoms(lines, n_atoms, nbytes, MIN_XYZ_LINE_NBYTES)
            fields = frozenset({"time"} if self._cp2k_values(comment) else ())
            notes = _notes(comment)
            if b"properties" not in comment.lower() and len(atom.split()) > N_COLUMNS:
                notes += ("what stands behind the coordinates of atoms is not read",)
            self._is_of_cp2k |= _CP2K_STEP.match(comment) is not None
            units = ""
            if _IPI_CELL.search(comment) and (names := ipi_units(comment)):
                contents, units, _ = names
                if contents not in IPI_POSITIONS:
                    self._ipi_contents, units = f"{contents} in {units}", ""
            self.has_length_unit = bool(units)
            yield FrameRecord(start, lines.offset, n_atoms, fields, notes, units)

    def made_up_notes(self) -> Iterator[str]:
        if self._ipi_contents:
            yield (
                f"it holds {self._ipi_contents}, as i-PI says in its comments; they are read as if "
                "they were positions"
            )
        if self._is_of_cp2k and (name := _CP2K_NAME.search(self.path.name)):
            contents, unit = CP2K_CONTENTS[name[1]]
            yield (
                f"it holds {contents}, as its name says and CP2K names files, in {unit} unless "
                "CP2K was told otherwise; they are read as if they were positions"
            )

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame with the columns that MDAnalysis reads."""
        text = to_text(raw)
        count, comment, *_ = text.split("\n", 2)
        columns = _columns(_comment_values(comment))
        if columns == [0, 1, 2, 3]:
            return text
        rows = [row.split() for row in text_lines(raw)[2:]]
        if short := next((row for row in rows if len(row) <= max(columns)), None):
            raise FrameError(f"an atom of {len(short)} columns, fewer than its Properties name")
        atoms = [" ".join(row[column] for column in columns) for row in rows]
        return "\n".join([count, "", *atoms, ""])

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        snapshot = super().read(raw, n_atoms)
        comment = raw.split(b"\n", 2)[1]
        if values := self._cp2k_values(comment):
            snapshot.step, snapshot.time = int(values[1]), float(values[2]) / FS_PER_PS
        cell, units = _IPI_CELL.search(comment), ipi_units(comment)
        if cell and units and units[0] in IPI_POSITIONS:
            if step := _IPI_STEP.search(comment):
                snapshot.step = int(step[1])
            snapshot.box = _ipi_cell(cell[1])
            convert_ipi(snapshot, units)
            return snapshot
        pairs = _comment_values(to_text(comment))
        vectors = _lattice(pairs)
        if vectors is not None and not _is_rotated(vectors):
            box = boxes_from_vectors(vectors[np.newaxis])[0]
            snapshot.box = without_axes(box, _periodic(pairs))
        return snapshot

    def _cp2k_values(self, comment: bytes) -> re.Match[bytes] | None:
        """Return step and time of a comment of CP2K; None if a time between frames is given (`dt`).

        `dt` is given for sources of outputs of earlier versions, which did not read comments.
        """
        return _CP2K.match(comment) if self.options.get("dt") is None else None


def ipi_units(comment: bytes) -> tuple[str, str, str] | None:
    """Return what i-PI says in a comment that a frame holds, its unit, and that of the cell.

    They are in any order, ``positions{angstrom} cell{atomic_unit}``; None if one is missing.
    """
    units = {to_text(name): to_text(unit) for name, unit in _IPI_UNITS.findall(comment)}
    cell_unit = units.pop("cell", None)
    if cell_unit is None or len(units) != 1:
        return None
    return (*next(iter(units.items())), cell_unit)


def convert_ipi(snapshot: Snapshot, units: tuple[str, str, str]) -> None:
    """Convert lengths of a frame, of `ipi_units`, to angstrom; raises FrameError."""
    snapshot.positions *= _ipi_factor(units[1])
    if snapshot.box is not None:
        snapshot.box[:3] *= _ipi_factor(units[2])


def _ipi_cell(numbers: bytes) -> np.ndarray:
    """Return lengths and angles of a comment of i-PI; raises FrameError."""
    with suppress(ValueError), np.errstate(over="ignore"):
        cell = np.array(numbers.split(), np.float32)
        if np.isfinite(cell).all():
            return cell
    raise FrameError(f"CELL {quoted(numbers.strip())}, expected six numbers")


def _ipi_factor(name: str) -> np.float32:
    """Return how many angstrom a unit of i-PI has; raises FrameError."""
    factor = spelled_out_factor("coordinates", "bohr" if name == "atomic_unit" else name)
    if factor is None:
        raise FrameError(f"lengths in {name!r}, expected atomic_unit, angstrom, nanometer or pm")
    return np.float32(factor)


def _comment_values(comment: str) -> dict[str, str]:
    """Return the values in a comment, by names in lower case."""
    if "=" not in comment:
        return {}
    return {
        name.lower(): next((value for value in values if value), "").strip()
        for name, *values in _PAIR.findall(comment)
    }


def _columns(pairs: dict[str, str]) -> list[int]:
    """Return the columns of names and positions; raises FrameError."""
    names, column = {}, 0
    parts = pairs.get("properties", "species:S:1:pos:R:3").split(":")
    for name, kind, count in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if not count.isdigit():
            break
        names[name.lower()] = (column, kind.upper(), int(count))
        column += int(count)
    position = names.get("x_centroid", names.get("pos"))  # i-PI's, beside a pos that is all 0
    if position is None or position[2] != 3:
        raise FrameError(f"Properties {':'.join(parts)!r} lacks pos:R:3, the positions")
    species = next((names[name][0] for name in ("species", "element", "z") if name in names), None)
    first = position[0]
    return [first if species is None else species, first, first + 1, first + 2]


def _lattice(pairs: dict[str, str]) -> np.ndarray | None:
    """Return the vectors of the cell, one in a row; None if there is none. Raises FrameError."""
    text = pairs.get("lattice")
    if text is None:
        return None
    try:
        numbers = np.array(re.split(r"[\s,\[\]]+", text.strip(" [],")), np.float64)
    except ValueError:
        numbers = np.empty(0)
    if numbers.size == 3:
        numbers = np.diag(numbers)
    if numbers.size != 9 or not np.isfinite(numbers).all():
        raise FrameError(f"Lattice {quoted(text.encode())}, expected nine numbers")
    return numbers.reshape(3, 3) if numbers.any() else None


def _is_rotated(vectors: np.ndarray) -> bool:
    """Return whether lengths and angles do not determine the cell, or it has no volume."""
    is_flat = np.abs(np.linalg.det(vectors)) == 0
    return bool(
        is_flat or (np.abs(np.triu(vectors, 1)) > MAX_TILT).any() or (np.diag(vectors) < 0).any()
    )


def _periodic(pairs: dict[str, str]) -> tuple[bool, ...]:
    words = re.split(r"[\s,\[\]]+", pairs.get("pbc", "T T T").strip(" [],"))
    return tuple(word.upper() in TRUE_WORDS for word in words) if len(words) == 3 else (True,) * 3


def _notes(comment: bytes) -> tuple[str, ...]:
    if _PLUMED_BOX.fullmatch(comment):
        return (
            "comments are 3 or 9 numbers, as PLUMED writes the box: it is not read, and lengths of "
            "PLUMED are in nm (--length-unit nm), unless it was told otherwise",
        )
    if b"=" not in comment:
        return ()
    pairs = _comment_values(to_text(comment))
    columns = pairs.get("properties", "").split(":")[::3]
    names = [name for name in columns if name.lower() in UNREAD]
    notes: tuple[str, ...] = (f"columns of {list_text(names)} are not read",) if names else ()
    if "time" in pairs and not _CP2K.match(comment):
        notes += ("the times in comments are not read, since they name no unit",)
    vectors = _lattice(pairs)
    if vectors is None:
        return notes
    if _is_rotated(vectors):
        return (
            *notes,
            "Lattice is rotated against x, y and z (a box has its first vector along x, its second "
            "in the plane of x and y): no box is read",
        )
    return notes + note_on_axes(_periodic(pairs), f'pbc="{pairs.get("pbc")}"')


MIN_TINKER_LINE_NBYTES = 10
"""Least bytes of a line of an atom such as ``1 C 0 0 0``, with its end."""
_BOX = re.compile(rb"(?:\s*[-+]?\d*\.?\d+(?:[eEdD][-+]?\d+)?(?=\s)){6}\s*")


class Tinker(TextFormat):
    """A trajectory of TINKER."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        while line := lines.peek():
            start = lines.offset
            lines.next()
            if not line.strip():
                raise FrameError(f"{quoted(line)} in place of a number of atoms")
            n_atoms = integer(line.split()[0], "a number of atoms")
            if _BOX.fullmatch(lines.peek()):
                lines.next()
            skip_atoms(lines, n_atoms, nbytes, MIN_TINKER_LINE_NBYTES)
            yield FrameRecord(start, lines.offset, n_atoms)

    def is_complete_without_newline(self, raw: bytes) -> bool:  # noqa: ARG002
        """Return False: lines end with numbers of atoms, which may be truncated."""
        return False


NAMES_WIDTH = 20
"""Characters of a line before the coordinates."""
FIRST_POINT = 24
"""Column of the first decimal point, for any precision."""
MIN_GRO_LINE_NBYTES = NAMES_WIDTH + 3
_TIME = re.compile(rb"(?:^|[\s,;])t\s*=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_STEP = re.compile(rb"(?:^|[\s,;])step\s*=\s*(-?\d+)")
_LENGTH = re.compile(rb"-?\d+\.\d{5}")
"""A length of a box, which may touch the next."""


class GRO(TextFormat):
    """GRO, of one frame or many."""

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        while title := lines.peek():
            start = lines.offset
            lines.next()
            n_atoms = integer(lines.next(), "a number of atoms")
            atom = lines.peek()
            skip_atoms(lines, n_atoms, nbytes, MIN_GRO_LINE_NBYTES)
            box = lines.next()
            if _n_lengths(box) not in (3, 9):
                raise FrameError(
                    f"{quoted(box)} in place of a box of 3 or 9 numbers after {n_atoms} atoms",
                    at_end=not lines.peek(),
                )
            fields = {"time"} if _TIME.search(title) else set()
            if len(atom.rstrip()) >= NAMES_WIDTH + 6 * _width(atom):
                fields.add("velocities")
            yield FrameRecord(start, lines.offset, n_atoms, frozenset(fields))

    def is_complete_without_newline(self, raw: bytes) -> bool:
        """Return whether all numbers of the box have equally many decimals, at least three."""
        decimals = {len(word.partition(b".")[2]) for word in raw.splitlines()[-1].split()}
        return len(decimals) == 1 and decimals.pop() >= 3

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame with spaces between the numbers of its box, as MDAnalysis needs."""
        *lines, box = text_lines(raw)
        if _LENGTH.sub(b"", box.encode()).strip() == b"":
            box = b" ".join(_LENGTH.findall(box.encode())).decode()
        return "\n".join([*lines, box, ""])

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame, with velocities if the first atom has them."""
        title, _, *atoms = text_lines(raw)
        atoms = atoms[:n_atoms]
        width = _width(atoms[0].encode())
        n_columns = [(len(line.rstrip()) - NAMES_WIDTH) // width for line in atoms]
        # Some programs write velocities of some atoms only.
        if not {*n_columns} <= {n_columns[0], 3} or n_columns[0] not in (3, 6):
            raise FrameError(
                f"atoms of {' and '.join(map(str, sorted({*n_columns})))} numbers {width} "
                "characters wide, expected 3 (positions) or 6 (and velocities) of each"
            )
        points = slice(FIRST_POINT, NAMES_WIDTH + 3 * width, width)
        if shifted := next((line for line in atoms if line[points] != "..."), None):
            raise FrameError(
                f"{quoted(shifted.encode())}, whose decimal points are not where those of the "
                "first atom are"
            )
        snapshot = super().read(raw, n_atoms)
        if n_columns[0] == 6:
            if snapshot.velocities is None:  # MDAnalysis takes zeros for none
                snapshot.velocities = np.zeros((n_atoms, 3), np.float32)
            snapshot.velocities[[n == 3 for n in n_columns]] = np.nan
        if time := _TIME.search(title.encode()):
            snapshot.time = float(time[1])
        if step := _STEP.search(title.encode()):
            snapshot.step = int(step[1])
        return snapshot


def _n_lengths(line: bytes) -> int:
    """Return how many numbers a box has; 0 if it has other words."""
    words = line.split()
    try:
        [float(word) for word in words]
    except ValueError:
        words = _LENGTH.findall(line)
        return len(words) if b"".join(words) == b"".join(line.split()) else 0
    return len(words)


def _width(atom: bytes) -> int:
    """Return the width of a coordinate: the distance of two decimal points."""
    first = atom.find(b".", NAMES_WIDTH)
    second = atom.find(b".", first + 1)
    if first != FIRST_POINT or second < 0:
        raise FrameError(f"{quoted(atom)} in place of an atom with coordinates from column 21 on")
    return second - first


PER_LINE, NUMBER_WIDTH = 10, 8
_NUMBERS = re.compile(rb"(?:[ \d*+-]{4}[.*][\d*]{3}){1,10}[ \t]*\r?\n?")
_SPACED_LENGTHS = re.compile(rb"(?: *\d+\.\d{3}){3}[ \t]*\r?\n?")
"""The lengths of a box; mdtraj puts a space between them and their width of 8."""
TITLE = "one frame\n"
"""First line of a file of one frame, which MDAnalysis' reader skips."""


class MDCRD(TextFormat):
    """A trajectory of AMBER: coordinates, or velocities, which look the same in the file."""

    needs_n_atoms = True
    _has_box: bool | None = None

    def records(self, lines: Lines, nbytes: int | None) -> Iterator[FrameRecord]:
        n_atoms = int(self.options["n_atoms"])
        n_full, n_rest = divmod(3 * n_atoms, PER_LINE)
        lines.next()
        if nbytes is not None and nbytes - lines.offset < 3 * n_atoms * NUMBER_WIDTH:
            raise FrameError(
                f"{nbytes - lines.offset} bytes, expected {3 * n_atoms} numbers of {NUMBER_WIDTH} "
                f"for {n_atoms} atoms",
                at_end=True,
            )
        self._has_box = True if self.format_name == "CRDBOX" else None
        while lines.peek():
            start = lines.offset
            for count in [PER_LINE] * n_full + [n_rest] * bool(n_rest):
                _check_count(lines.next(), count, n_atoms)
            if self._has_box is None:
                line = lines.peek()
                if line.strip() and not line.endswith(b"\n") and len(line) <= 3 * NUMBER_WIDTH + 2:
                    raise FrameError(f"{quoted(line)} at the end, perhaps of a box", at_end=True)
                # A line of three numbers is the next frame only if that has three: of one atom.
                is_box = _n_numbers(line) == 3 or _SPACED_LENGTHS.fullmatch(line) is not None
                self._has_box = n_atoms > 1 and is_box
            if self._has_box and not _SPACED_LENGTHS.fullmatch(line := lines.next()):
                _check_count(line, 3, n_atoms)
            yield FrameRecord(start, lines.offset, n_atoms)

    def is_complete_without_newline(self, raw: bytes) -> bool:  # noqa: ARG002
        """Return True: numbers have a fixed width, which was checked."""
        return True

    def text_for_mdanalysis(self, raw: bytes) -> str:
        frame, end, box = raw.rstrip(b"\n").rpartition(b"\n")
        if self._has_box and _n_numbers(box) != 3:
            box = b"".join(length.rjust(NUMBER_WIDTH) for length in box.split())
        return TITLE + to_text(frame + end + box) + "\n"

    def reader_class(self, reader: Any) -> Any:
        """Return a subclass of MDAnalysis' reader that need not detect whether there is a box."""
        has_box = self._has_box

        class OneFrame(reader):  # type: ignore[misc]
            def _detect_amber_box(self) -> bool:
                self.periodic = has_box
                return bool(has_box)

        return OneFrame

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        if b"*" in raw:
            raise FrameError("stars in place of a number, which was too large for its format")
        return super().read(raw, n_atoms)

    def made_up_notes(self) -> Iterator[str]:
        if self._has_box:
            yield f"{self.format_name} holds no angles of the box: assumed to be 90 degrees"
        elif int(self.options["n_atoms"]) == 1:
            yield (
                f"whether frames of one atom have a box is unknown in {self.format_name}: they "
                "are taken to have none; if they have, name the format with --format CRDBOX"
            )


def _n_numbers(line: bytes) -> int:
    """Return how many numbers a line has; 0 if it has other words."""
    return len(line.rstrip()) // NUMBER_WIDTH if _NUMBERS.fullmatch(line) else 0


def _check_count(line: bytes, count: int, n_atoms: int) -> None:
    if _n_numbers(line) != count:
        raise FrameError(
            f"{quoted(line)} in place of {count} numbers of {NUMBER_WIDTH} characters, as frames "
            f"of {n_atoms} atoms have them (are these the file's atoms?)",
            at_end=not line.endswith(b"\n"),
        )
