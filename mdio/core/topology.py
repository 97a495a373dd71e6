"""What the atoms of a system are: names, elements, masses, charges, residues, segments, bonds.

`Topology.to_bytes` is what outputs hold (see docs/formats.md): ``mdiotop1``, the length of a
JSON object (uint32), the object, and arrays compressed together by zlib, whose names, types and
shapes the object lists. Texts are numbers into tables, which the object has.

Simple selections on stored attributes need no MDAnalysis, whose import takes longer. Their
language is the part of MDAnalysis' that asks for attributes: ``name CA and resid 1:10``, with
``and`` and ``or`` of equal precedence from left to right, ``not``, brackets and ``byres``.
All other selections are left to MDAnalysis.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.frames import AtomIndices


def find_molecules(
    bonds: NDArray[Any], n_atoms: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the connected parts of a system, and a tree of bonds through each.

    `bonds`, (B, 2) int: pairs of atoms.
    Returns `molecules`, (A,) int64: of each atom, the number of its molecule. `order`, (A,): atoms,
    one molecule after the other; in each from its first atom outwards. `parents`, (A,): of the
    atoms in that order, the one that each is bound to and that comes before it; -1 for the first of
    a molecule.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    pairs = np.asarray(bonds, np.int64).reshape(-1, 2)
    weights, shape = np.ones(len(pairs), np.int8), (n_atoms + 1, n_atoms + 1)
    graph = coo_array((weights, (pairs[:, 0], pairs[:, 1])), shape)
    molecules = connected_components(graph, directed=False)[1][:n_atoms].astype(np.int64)
    # One tree for all: a root that is bound to the first atom of each molecule.
    firsts = np.unique(molecules, return_index=True)[1]
    edges = np.concatenate([pairs, np.stack([np.full_like(firsts, n_atoms), firsts], axis=1)])
    graph = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape)
    order, parents = breadth_first_order(graph.tocsr(), n_atoms, directed=False)
    order = order[1:].astype(np.int64)
    order = order[np.argsort(molecules[order], kind="stable")]
    tree_parents = parents[order].astype(np.int64)
    return molecules, order, np.where(tree_parents == n_atoms, -1, tree_parents)


MAGIC = b"mdiotop1"
ATOMS = ("names", "types", "elements", "masses", "charges", "chainIDs")
RESIDUES = ("resids", "resnames", "icodes", "moltypes", "molnums")
SEGMENTS = ("segids",)
"""Attributes of atoms, residues and segments, as MDAnalysis calls them."""
TEXTS = ("names", "elements", "chainIDs", "resnames", "icodes", "moltypes", "segids")
NUMBERS = ("masses", "charges", "resids", "molnums")
BONDS = "bonds"
RESINDEX, SEGINDEX = "resindices", "segindices"
"""Names of the columns with the residue of each atom, and the segment of each residue."""
LEVELS: tuple[tuple[str, tuple[str, ...]], ...] = ((RESINDEX, RESIDUES), (SEGINDEX, SEGMENTS))
DTYPES = tuple(np.dtype(code) for code in ("<u1", "<u2", "<i4", "<i8", "<f4", "<f8"))
DAMAGE_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(zlib.error, ArithmeticError, RecursionError, MemoryError),
)
"""Exceptions that damaged bytes of a topology raise."""


@dataclass(frozen=True, slots=True)
class Texts:
    """An array of texts, few of which differ, as codes into a table."""

    codes: NDArray[Any]
    """Index of each text in `table`."""
    table: tuple[str, ...]

    @classmethod
    def of(cls, values: Any) -> Texts:
        """Return texts as codes, in order of their first appearance."""
        objects = np.asarray(values, object).tolist()
        table: dict[str, int] = {}
        code_of = {
            value: table.setdefault(str(value), len(table)) for value in dict.fromkeys(objects)
        }
        codes = np.fromiter(map(code_of.__getitem__, objects), np.int64, len(objects))
        return cls(_smallest_integers(codes), tuple(table))

    def values(self) -> NDArray[Any]:
        """Return the texts, an array of objects."""
        texts: NDArray[Any] = np.array(self.table, object)[self.codes]
        return texts

    def take(self, indices: NDArray[Any]) -> Texts:
        """Return the texts at some indices."""
        return Texts(self.codes[indices], self.table)


def _smallest_integers(values: NDArray[Any]) -> NDArray[Any]:
    """Return non-negative numbers in the smallest type that holds them."""
    highest = int(values.max(initial=0))
    return values.astype(next(c for c in DTYPES if c.kind != "f" and highest <= np.iinfo(c).max))


@dataclass(frozen=True, slots=True)
class Topology:
    """What the atoms of a system are.

    Attributes: `n_atoms`: number of atoms A. `columns`: by the names in `ATOMS` ((A,) each),
    `RESIDUES` ((R,)) and `SEGMENTS` ((S,)), as far as they are known, texts as `Texts`;
    ``resindices`` (A,) and ``segindices`` (R,); ``bonds`` (B, 2). Masses are in u, charges in
    elementary charges. `classes`: names of residues that are of a kind (``protein``, ``nucleic``,
    ``water``).
    """

    n_atoms: int
    columns: Mapping[str, NDArray[Any] | Texts]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def texts(self, name: str) -> Texts | None:
        """Return a column of texts; None where there is none."""
        column = self.columns.get(name)
        return column if isinstance(column, Texts) else None

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return a column of numbers; None where there is none."""
        column = self.columns.get(name)
        return None if isinstance(column, Texts) else column

    def residues(self, atoms: AtomIndices | None) -> Residues | None:
        """Return the residues of some atoms; None if they are not known."""
        resindices, segments = self.numbers(RESINDEX), self.numbers(SEGINDEX)
        if resindices is None:
            return None
        if atoms is not None:
            resindices = resindices[atoms]
        if segments is not None:
            segments = segments.astype(np.int64)  # stored are the smallest types that hold them
        return Residues(resindices.astype(np.int64), segments, self.texts("resnames"), self.classes)

    def per_atom(self, name: str) -> NDArray[Any] | Texts | None:
        """Return a column spread over the atoms."""
        column = self.columns.get(name)
        if column is None or name in ATOMS:
            return column
        parents = self.numbers(RESINDEX)
        if name in SEGMENTS and parents is not None:
            segments = self.numbers(SEGINDEX)
            parents = None if segments is None else segments[parents]
        return None if parents is None else column.take(parents)

    def differing_names(self, other: Topology) -> tuple[NDArray[np.int64], bool]:
        """Return the atoms whose names, or those of their residues, differ in `other`.

        Also whether it has the same names in another order. What one of them lacks is not compared.
        """
        differs, keys = np.zeros(self.n_atoms, bool), np.zeros((2, self.n_atoms), np.int64)
        for name in ("names", "resnames"):
            own_values, other_values = self.per_atom(name), other.per_atom(name)
            if isinstance(own_values, Texts) and isinstance(other_values, Texts):
                codes = {text: code for code, text in enumerate(own_values.table)}
                own_codes = np.array([codes.get(text, -1) for text in other_values.table], np.int64)
                code_pairs = np.stack(
                    [own_values.codes.astype(np.int64), own_codes[other_values.codes]]
                )
                differs |= code_pairs[0] != code_pairs[1]
                keys = keys * (len(codes) + 1) + code_pairs
        atoms = np.flatnonzero(differs)
        return atoms, bool(atoms.size) and np.array_equal(*np.sort(keys))

    def name_of(self, atom: int) -> str:
        """Return the names of an atom and its residue, ``MET:CA``."""
        texts = (self.per_atom(name) for name in ("resnames", "names"))
        return ":".join(t.table[t.codes[atom]] for t in texts if isinstance(t, Texts))

    def take(self, atoms: NDArray[np.int64]) -> Topology:
        """Return the topology of some atoms, each once; bonds are those among them."""
        columns: dict[str, NDArray[Any] | Texts] = {
            name: self.columns[name].take(atoms) for name in ATOMS if name in self.columns
        }
        children = np.asarray(atoms)
        for index, names in LEVELS:
            parents = self.numbers(index)
            if parents is None:
                break
            children, numbers = np.unique(parents[children], return_inverse=True)
            columns[index] = _smallest_integers(numbers)
            for name in names:
                if name in self.columns:
                    columns[name] = self.columns[name].take(children)
        bonds = self.numbers(BONDS)
        if bonds is not None:
            new_numbers = np.full(self.n_atoms, -1, np.int64)
            new_numbers[atoms] = np.arange(len(atoms))
            pairs = new_numbers[bonds]
            columns[BONDS] = pairs[(pairs >= 0).all(axis=1)]
        return Topology(len(atoms), columns, self.classes)

    def to_bytes(self) -> bytes:
        """Return the bytes that outputs store."""
        header: dict[str, Any] = {"n_atoms": self.n_atoms, "classes": dict(self.classes)}
        rows: list[dict[str, Any]] = []
        parts: list[bytes] = []
        for name, column in self.columns.items():
            values = _codes(column)
            if values.dtype.kind in "iu" and values.min(initial=0) >= 0:
                values = _smallest_integers(values)
            values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
            row = {"name": name, "dtype": values.dtype.str.replace("|", "<"), "shape": values.shape}
            rows.append(row | ({"table": column.table} if isinstance(column, Texts) else {}))
            parts.append(values.tobytes())
        head = json.dumps(header | {"columns": rows}).encode()
        size = np.uint32(len(head)).astype("<u4").tobytes()
        return b"".join((MAGIC, size, head, zlib.compress(b"".join(parts), 1)))

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Topology:
        """Return the topology that `to_bytes` stored; `path`: the file, for messages.

        Raises CorruptLayoutError: these bytes are no topology.
        """
        try:
            if data[: len(MAGIC)] != MAGIC:
                raise ValueError(f"begins with {data[:8]!r}")
            end = len(MAGIC) + 4 + int(np.frombuffer(data, "<u4", 1, len(MAGIC))[0])
            header = json.loads(data[len(MAGIC) + 4 : end])
            n_atoms, rows = header["n_atoms"], header["columns"]
            if type(n_atoms) is not int or n_atoms < 0:
                raise ValueError(f"{n_atoms!r} atoms")
            sizes = [_nbytes(row) for row in rows]
            raw = zlib.decompressobj().decompress(data[end:], sum(sizes) + 1)
            if len(raw) != sum(sizes):
                raise ValueError(f"{len(raw)} bytes of {sum(sizes)}")
            columns: dict[str, NDArray[Any] | Texts] = {}
            offset = 0
            for row, size in zip(rows, sizes, strict=True):
                values = np.frombuffer(
                    raw, row["dtype"], size // np.dtype(row["dtype"]).itemsize, offset
                )
                values = values.reshape(row["shape"])
                offset += size
                columns[row["name"]] = _checked_column(row, values)
            classes = {
                str(name): tuple(map(str, resnames)) for name, resnames in header["classes"].items()
            }
            topology = cls(n_atoms, columns, classes)
            topology.check()
        except DAMAGE_ERRORS as error:
            raise CorruptLayoutError(
                f"{path}: its topology cannot be read ({' '.join(str(error).split())[:200]}); "
                "convert the source again, or name a topology with -s/--top"
            ) from error
        return topology

    def n_parents(self, index: str) -> int:
        """Return the number of residues (``resindices``) or segments (``segindices``).

        Some may have no atoms, and appear in columns of names only.
        """
        parents = self.numbers(index)
        names = (*RESIDUES, SEGINDEX) if index == RESINDEX else SEGMENTS
        columns = [self.columns[name] for name in names if name in self.columns]
        sizes = [len(_codes(column)) for column in columns]
        return max([0 if parents is None else _max_or_minus_1(parents) + 1, *sizes])

    def check(self) -> None:
        """Raise ValueError unless columns have the right types and fit each other."""
        for name, column in self.columns.items():
            is_text = isinstance(column, Texts)
            if is_text != (name in TEXTS) and name in (*TEXTS, *NUMBERS, RESINDEX, SEGINDEX, BONDS):
                raise ValueError(f"{name} are {'texts' if is_text else 'numbers'}")
        sizes: list[tuple[tuple[str, ...], int]] = [(ATOMS, self.n_atoms)]
        n_children = self.n_atoms
        for index, names in LEVELS:
            parents = self.numbers(index)
            if parents is not None:
                sizes.append(((index,), n_children))
                n_children = self.n_parents(index)
                sizes.append((names, n_children))
                _check_range(index, parents, n_children)
        for names, size in sizes:
            for name in names:
                column_of_level = self.columns.get(name)
                if column_of_level is not None and _codes(column_of_level).shape != (size,):
                    raise ValueError(
                        f"{name} of shape {_codes(column_of_level).shape}, expected ({size},)"
                    )
        bonds = self.numbers(BONDS)
        if bonds is not None:
            if bonds.ndim != 2 or bonds.shape[1] != 2:
                raise ValueError(f"bonds of shape {bonds.shape}")
            _check_range(BONDS, bonds, self.n_atoms)


def _codes(column: NDArray[Any] | Texts) -> NDArray[Any]:
    return column.codes if isinstance(column, Texts) else column


def _check_range(name: str, values: NDArray[Any], end: int) -> None:
    """Raise ValueError unless all are integers from 0 to ``end - 1``: others count from the end."""
    if values.dtype.kind not in "iu" or _max_or_minus_1(values) >= end or values.min(initial=0) < 0:
        raise ValueError(f"{name} must be integers from 0 to {end - 1}")


def _max_or_minus_1(values: NDArray[Any]) -> int:
    return int(values.max()) if values.size else -1


def _nbytes(row: Mapping[str, Any]) -> int:
    shape: Sequence[int] = row["shape"]
    if np.dtype(row["dtype"]) not in DTYPES or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"a column of {row['dtype']} {shape}")
    return int(np.dtype(row["dtype"]).itemsize) * math.prod(shape)


def _checked_column(row: Mapping[str, Any], values: NDArray[Any]) -> NDArray[Any] | Texts:
    if "table" not in row:
        return values
    table = tuple(str(text) for text in row["table"])
    _check_range(str(row["name"]), values, len(table))
    return Texts(values, table)


class Residues(NamedTuple):
    """The residues of some atoms; they are numbered from 0 among all of the system."""

    resindices: NDArray[np.int64]
    """The number of the residue of each atom, (A,)."""
    segments: NDArray[np.int64] | None
    """The segment of each residue, (R,)."""
    names: Texts | None
    """The name of each residue, (R,); `Texts.values` has them as text."""
    classes: Mapping[str, Sequence[str]]
    """Names of residues of protein, nucleic acid and water, by class."""

    def take(self, atoms: AtomIndices | None) -> Residues:
        """Return the residues of some of the atoms; None = all."""
        return self if atoms is None else self._replace(resindices=self.resindices[atoms])

    @property
    def neighbours(self) -> NDArray[np.int64]:
        """Indices of atoms that are in the same molecule as the next atom, (n,).

        That is, in one residue, or in neighbouring residues of a chain of protein or nucleic acid.
        """
        residue_steps = np.diff(self.resindices)
        is_neighbour = residue_steps == 0
        if self.names is not None:
            polymers = {*self.classes.get("protein", ()), *self.classes.get("nucleic", ())}
            is_polymer = np.array([name in polymers for name in self.names.table], bool)
            in_chain, segments = is_polymer[self.names.codes], self.segments
            first, second = self.resindices[:-1], self.resindices[1:]
            same_segment = True if segments is None else segments[first] == segments[second]
            is_neighbour |= (residue_steps == 1) & same_segment & in_chain[first] & in_chain[second]
        return np.flatnonzero(is_neighbour)


Mask = NDArray[np.bool_]

TEXT_KEYWORDS = {
    "name": "names",
    "type": "types",
    "element": "elements",
    "resname": "resnames",
    "segid": "segids",
}
BACKBONE = ("N", "CA", "C", "O")
OTHER_KEYWORDS = "resid", "index", "bynum", "protein", "backbone", "nucleic", "water", "all"
KEYWORDS = {*TEXT_KEYWORDS, *OTHER_KEYWORDS}
OPERATORS = ("and", "or")
RANGE = re.compile(r"(-?\d+)(?:(?:[:-]|to)(-?\d+))?")


class _NotSimpleError(Exception):
    """The selection is left to MDAnalysis."""


def select(topology: Topology, selection: str) -> NDArray[np.int64] | None:
    """Return the atoms of a simple selection, ascending; None if it is not a simple one.

    None also for what the topology lacks, and for mistakes, which MDAnalysis reports.
    """
    tokens = deque(selection.replace("(", " ( ").replace(")", " ) ").split())
    try:
        mask = _evaluate_expression(topology, tokens, 0)
        if tokens:
            return None
    except (_NotSimpleError, IndexError):
        return None
    return np.flatnonzero(mask).astype(np.int64)


def _evaluate_expression(topology: Topology, tokens: deque[str], precedence: int) -> Mask:
    """Return the atoms of an expression; `and` and `or` have the precedence 3."""
    mask = _evaluate_term(topology, tokens)
    while tokens and tokens[0] in OPERATORS and precedence <= 3:
        is_and = tokens.popleft() == "and"
        operand = _evaluate_expression(topology, tokens, 4)
        mask = mask & operand if is_and else mask | operand
    return mask


def _evaluate_term(topology: Topology, tokens: deque[str]) -> Mask:
    token = tokens.popleft()
    if token == "(":
        mask = _evaluate_expression(topology, tokens, 0)
        if tokens.popleft() != ")":
            raise _NotSimpleError
        return mask
    if token == "not":
        return ~_evaluate_expression(topology, tokens, 5)
    if token == "byres":
        residue_of_atom = _numbers(topology, RESINDEX)
        residues = residue_of_atom[_evaluate_expression(topology, tokens, 1)]
        return np.isin(residue_of_atom, residues)
    if token == "all":
        return np.ones(topology.n_atoms, bool)
    if token == "backbone":
        names = _mask_of_matches(topology, "names", BACKBONE, is_exact=True)
        return names & _mask_of_class(topology, "protein")
    if token in ("protein", "nucleic", "water"):
        return _mask_of_class(topology, token)
    if token in TEXT_KEYWORDS:
        return _mask_of_matches(topology, TEXT_KEYWORDS[token], _take_values(tokens))
    if token in ("resid", "index", "bynum"):
        return _mask_of_ranges(topology, token, _take_values(tokens))
    raise _NotSimpleError


def _take_values(tokens: deque[str]) -> list[str]:
    """Remove and return the values after a keyword; what may be another keyword is not simple."""
    values = []
    while tokens and tokens[0] not in (*OPERATORS, "not", "byres", "(", ")", *KEYWORDS):
        value = tokens.popleft()
        if value.startswith("\\") or value[:1].islower():  # chainID, record_type
            raise _NotSimpleError
        values.append(value)
    if not values:
        raise _NotSimpleError
    return values


def _mask_of_class(topology: Topology, name: str) -> Mask:
    if name not in topology.classes:
        raise _NotSimpleError
    return _mask_of_matches(topology, "resnames", topology.classes[name], is_exact=True)


def _mask_of_matches(
    topology: Topology, column: str, values: list[str] | tuple[str, ...], *, is_exact: bool = False
) -> Mask:
    """Return a mask of the atoms whose text matches one of `values`, which may have wildcards."""
    texts = topology.per_atom(column)
    if not isinstance(texts, Texts):
        raise _NotSimpleError
    if is_exact:
        matches = [text in values for text in texts.table]
    else:
        matches = [any(fnmatchcase(text, value) for value in values) for text in texts.table]
    mask: Mask = np.array(matches, bool)[texts.codes]
    return mask


def _numbers(topology: Topology, column: str) -> NDArray[np.int64]:
    values = topology.numbers(column) if column == RESINDEX else topology.per_atom(column)
    if values is None or isinstance(values, Texts):
        raise _NotSimpleError
    return values.astype(np.int64)


def _mask_of_ranges(topology: Topology, keyword: str, values: list[str]) -> Mask:
    if keyword == "resid":
        numbers = _numbers(topology, "resids")
        icodes = topology.texts("icodes")
        if icodes is not None and any(text.strip() for text in icodes.table):
            raise _NotSimpleError
    else:
        numbers = np.arange(topology.n_atoms) + (keyword == "bynum")
    mask = np.zeros(topology.n_atoms, bool)
    for value in values:
        match = RANGE.fullmatch(value)
        if match is None:
            raise _NotSimpleError
        low, high = int(match[1]), int(match[2] or match[1])
        mask |= (numbers >= low) & (numbers <= high)
    return mask
