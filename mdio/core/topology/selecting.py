"""Simple selections on stored attributes, without MDAnalysis, whose import takes longer.

The language is the part of MDAnalysis' that asks for attributes: ``name CA and resid 1:10``, with
``and`` and ``or`` of equal rank from left to right, ``not``, brackets and ``byres``. Whatever else
there is in a selection is left to MDAnalysis.
"""

from __future__ import annotations

import re
from collections import deque
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from mdio.core.topology.topology import RESINDEX, Texts, Topology

Mask = NDArray[np.bool_]

TEXTS = {
    "name": "names",
    "type": "types",
    "element": "elements",
    "resname": "resnames",
    "segid": "segids",
}
BACKBONE = ("N", "CA", "C", "O")
WORDS = {*TEXTS, "resid", "index", "bynum", "protein", "backbone", "nucleic", "water", "all"}
OPERATIONS = ("and", "or")
RANGE = re.compile(r"(-?\d+)(?:(?:[:-]|to)(-?\d+))?")


class _NotSimpleError(Exception):
    """MDAnalysis has to be asked."""


def select(topology: Topology, selection: str) -> NDArray[np.int64] | None:
    """Return the atoms that a selection means, ascending; None if it is not a simple one.

    `topology`: the attributes. `selection`: in MDAnalysis' language.
    Returns (n,) int64, or None: None also for what the topology lacks, and for mistakes: MDAnalysis
    has the words for them.
    """
    tokens = deque(selection.replace("(", " ( ").replace(")", " ) ").split())
    try:
        mask = _expression(topology, tokens, 0)
        if tokens:
            return None
    except (_NotSimpleError, IndexError):
        return None
    return np.flatnonzero(mask).astype(np.int64)


def _expression(topology: Topology, tokens: deque[str], rank: int) -> Mask:
    """Return the atoms of an expression; `and` and `or` have the rank 3."""
    found = _term(topology, tokens)
    while tokens and tokens[0] in OPERATIONS and rank <= 3:
        both = tokens.popleft() == "and"
        other = _expression(topology, tokens, 4)
        found = found & other if both else found | other
    return found


def _term(topology: Topology, tokens: deque[str]) -> Mask:
    word = tokens.popleft()
    if word == "(":
        found = _expression(topology, tokens, 0)
        if tokens.popleft() != ")":
            raise _NotSimpleError
        return found
    if word == "not":
        return ~_expression(topology, tokens, 5)
    if word == "byres":
        of_residue = _numbers(topology, RESINDEX)
        wanted = of_residue[_expression(topology, tokens, 1)]
        return np.isin(of_residue, wanted)
    if word == "all":
        return np.ones(topology.n_atoms, bool)
    if word == "backbone":
        names = _matching(topology, "names", BACKBONE, exactly=True)
        return names & _of_class(topology, "protein")
    if word in ("protein", "nucleic", "water"):
        return _of_class(topology, word)
    if word in TEXTS:
        return _matching(topology, TEXTS[word], _values(tokens))
    if word in ("resid", "index", "bynum"):
        return _in_ranges(topology, word, _values(tokens))
    raise _NotSimpleError


def _values(tokens: deque[str]) -> list[str]:
    """Take the values after a word; what could be a word of MDAnalysis' that is unknown here is."""
    values = []
    while tokens and tokens[0] not in (*OPERATIONS, "not", "byres", "(", ")", *WORDS):
        value = tokens.popleft()
        if value.startswith("\\") or (value.isalpha() and value.islower()):
            raise _NotSimpleError
        values.append(value)
    if not values:
        raise _NotSimpleError
    return values


def _of_class(topology: Topology, name: str) -> Mask:
    if name not in topology.classes:
        raise _NotSimpleError
    return _matching(topology, "resnames", topology.classes[name], exactly=True)


def _matching(
    topology: Topology, column: str, values: list[str] | tuple[str, ...], *, exactly: bool = False
) -> Mask:
    """Return the atoms with one of some texts, which may have wildcards."""
    texts = topology.per_atom(column)
    if not isinstance(texts, Texts):
        raise _NotSimpleError
    if exactly:
        known = [text in values for text in texts.table]
    else:
        known = [any(fnmatchcase(text, value) for value in values) for text in texts.table]
    found: Mask = np.array(known, bool)[texts.codes]
    return found


def _numbers(topology: Topology, column: str) -> NDArray[np.int64]:
    found = topology.numbers(column) if column == RESINDEX else topology.per_atom(column)
    if found is None or isinstance(found, Texts):
        raise _NotSimpleError
    return found.astype(np.int64)


def _in_ranges(topology: Topology, word: str, values: list[str]) -> Mask:
    if word == "resid":
        numbers = _numbers(topology, "resids")
        icodes = topology.texts("icodes")
        if icodes is not None and any(text.strip() for text in icodes.table):
            raise _NotSimpleError
    else:
        numbers = np.arange(topology.n_atoms) + (word == "bynum")
    found = np.zeros(topology.n_atoms, bool)
    for value in values:
        match = RANGE.fullmatch(value)
        if match is None:
            raise _NotSimpleError
        low, high = int(match[1]), int(match[2] or match[1])
        found |= (numbers >= low) & (numbers <= high)
    return found
