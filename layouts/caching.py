"""Reading through a cache on a disk of the node (`mdio.core.cache`), unit by unit.

A unit is a run of frames between boundaries of the layout, of some MiB: chunks, a segment or a part
of one, frames of a native file. What is cached are the bytes of the source's files that its frames
take, so checksums, decoding and selections stay as they are.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import runs_of_parts
from mdio.core.cache import Cache, CachedSource, CachedUnit, DamagedUnitError, SourceRange
from mdio.core.errors import MdioError
from mdio.core.files.in_flight import ByteRange
from mdio.core.files.reading import OpenFile, reading_from
from mdio.core.frames import AtomIndices, FrameBlock

UNIT_NBYTES = 16 << 20
"""Decoded bytes of a unit at most, unless a chunk has more: enough for a local disk to give one
file at full speed, few enough for many to be shared out evenly."""
LEAST_NBYTES = 256 << 10
SHARE = 64
"""A unit has no more than this part of the frames before it, but `LEAST_NBYTES`: of short
trajectories, too, there are units for all workers."""
KEPT = 2
"""Units that are held at a time, in memory when they have just been read from the source."""
TABLE_NBYTES = 4 << 20
MOST_TABLES = 256
"""Reads beside the frames (indexes of shards, times) are kept too: at most so many, and of so many
bytes each, by one process."""


def unit_edges(layout: Any, n_atoms: int) -> NDArray[np.int64]:
    """Return the frames at which units begin, ascending, ``n_frames`` last.

    They stay what they are when frames are added at the end, but for the last unit.
    """
    edges = layout.boundaries()
    least, most = (max(1, n // max(1, 12 * n_atoms)) for n in (LEAST_NBYTES, UNIT_NBYTES))
    starts = [0]
    while (start := starts[-1]) < edges[-1]:
        n_rows = min(max(start // SHARE, least), most)
        number = int(np.searchsorted(edges, start + n_rows, side="right")) - 1
        stop = int(edges[number])
        if stop <= start:  # a longer piece: chunks are read as one, others in parts
            stop = int(edges[number + 1])
            stop = stop if layout.info.chunk_frames else min(stop, start + n_rows)
        starts.append(stop)
    return np.array(starts, np.int64)


def cached_reads(layout: Any, atoms: AtomIndices | None) -> UnitReads:
    """Return the reads of `atoms` of a layout through its cache."""
    _ = layout.info
    assert layout.cache is not None
    label, group_atoms = layout._cached_group(atoms)
    if layout._unit_reads is None:
        layout._unit_reads = {}
    reads: UnitReads | None = layout._unit_reads.get(label)
    if reads is None:
        reads = layout._unit_reads[label] = UnitReads(layout, layout.cache, label, group_atoms)
        for note in _notes_on(layout.cache, layout.path, reads.works):
            reads.source.note(note)
    return reads


def _notes_on(cache: Cache, path: Path, works: bool) -> Iterator[str]:
    """Yield the notes on keeping units of the trajectory `path` in `cache`.

    `works`: whether the byte ranges of its frames are known.
    """
    if not works:
        yield (
            f"{path}: no unit of it can be kept, since only MDAnalysis or a library knows where "
            "its frames lie; it is read from the source: convert it, and keep units of the output"
        )
    from mdio.core.files.store import file_system_type, is_network

    kind = file_system_type(cache.root)
    if is_network(kind):
        yield (
            f"{cache.root}: it lies on a file system of the network ({kind}), where a cache gains "
            "nothing and all nodes share it; give a folder on a disk of each node"
        )


class UnitReads:
    """Reads one layout, or one stored group of it, through a cache.

    `layout`: open. `cache`: the node's. `label`, `atoms`: the part of the layout that units hold,
    from `mdio.layouts.base.Layout._cached_group`.
    """

    def __init__(self, layout: Any, cache: Cache, label: str, atoms: AtomIndices | None) -> None:
        self._layout = layout
        self._atoms = atoms
        self.edges = unit_edges(layout, layout.info.n_atoms if atoms is None else len(atoms))
        opened = None
        self.works = True
        """Whether the byte ranges of frames are known."""
        if layout.uuid is None:
            first = next(layout._ranges(0, int(self.edges[1]), atoms), None)
            self.works = first is not None
            opened = None if first is None else os.fstat(first.file.fileno())
        self.source = CachedSource(
            cache, layout.path, label, layout.uuid, len(self.edges) - 1, opened
        )
        self._held: OrderedDict[int, CachedUnit] = OrderedDict()
        self._current: CachedUnit | None = None
        self._failed: set[int] = set()
        self._tables: dict[tuple[str, int, int], CachedUnit | None] = {}
        self._expected = -1

    def read(self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock) -> None:
        """Fill `block` with frames ``start:stop``, as the layout does; raises what it raises."""
        for number, first, last in runs_of_parts(self.edges, start, stop):
            begin, end = (int(self.edges[number]) + row for row in (first, last))
            rows = block.frames(slice(begin - start, end - start))
            self._read_unit(number, begin, end, atoms, rows)

    def _read_unit(
        self, number: int, start: int, stop: int, atoms: AtomIndices | None, rows: FrameBlock
    ) -> None:
        self._current = self._hold(number)
        try:
            with reading_from(self):
                self._layout._read_into(start, stop, atoms, rows)
        except Exception as error:  # libraries have their own
            self._current = None
            with reading_from(None):
                self._layout._read_into(start, stop, atoms, rows)
            self._drop(number, DamagedUnitError(str(error)))  # the source is sound

    def source_ranges(self, start: int, stop: int) -> Iterator[ByteRange]:
        """Yield the byte ranges of these frames' units that the cache lacks, each once."""
        number = int(np.searchsorted(self.edges, start, side="right")) - 1
        while number < len(self.edges) - 1 and self.edges[number] < stop:
            begin, end = self.edges[number : number + 2].tolist()
            if number != self._expected and not self.source.held([number], [end])[0]:
                with reading_from(self):  # it may read indexes
                    ranges = list(self._layout._ranges(begin, end, self._atoms))
                yield from ranges
            self._expected = number
            number += 1

    def read_into(self, file: OpenFile, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with bytes of a file; see `CachedUnit.read_into`."""
        name = self._name(file)
        try:
            if self._current is not None and (
                n_read := self._current.read_into(name, buffers, offset)
            ):
                return n_read
        except (DamagedUnitError, OSError) as damage:
            number = next(n for n, unit in self._held.items() if unit is self._current)
            self._drop(number, DamagedUnitError(str(damage)))
            return 0
        return self._read_table(name, file, buffers, offset)

    def _name(self, file: OpenFile) -> str:
        return str(file.path).removeprefix(str(self._layout.path))

    def _drop(self, number: int, damage: DamagedUnitError) -> None:
        """Forget a unit, so that it is read from the source when it is needed again."""
        self._current = None
        self._held.pop(number).close() if number in self._held else None
        self.source.drop(self._unit_name(number), damage)

    def _unit_name(self, number: int) -> str:
        return self.source.name(number, int(self.edges[number + 1]))

    def _hold(self, number: int) -> CachedUnit | None:
        """Return a unit to read from, kept or fetched; None where the source has to be read."""
        unit = self._held.get(number)
        if unit is not None or number in self._failed or not self.works:
            return unit
        unit = self.source.take(self._unit_name(number)) or self.fetch(number)
        if unit is None:
            self._failed.add(number)
            return None
        self._held[number] = unit
        while len(self._held) > KEPT:
            self._held.popitem(last=False)[1].close()
        return unit

    def fetch(self, number: int) -> CachedUnit | None:
        """Read a unit from the source and keep it; None where that is not possible as a whole."""
        begin, end = self.edges[number : number + 2].tolist()
        self._current = None
        try:
            with reading_from(self):
                source_ranges = _merged(self._layout._ranges(begin, end, self._atoms))
            data = np.empty(sum(part.nbytes for part in source_ranges), np.uint8)
            ranges: list[SourceRange] = []
            begin = 0
            with reading_from(None):
                for part in source_ranges:
                    part.file.fill(part.offset, data[begin : begin + part.nbytes])
                    ranges.append((self._name(part.file), part.offset, part.nbytes))
                    begin += part.nbytes
        except MdioError:  # reading these frames raises it again
            return None
        if not ranges:
            return None
        self.source.put(self._unit_name(number), ranges, data)
        return CachedUnit(ranges, data)

    def _read_table(self, name: str, file: OpenFile, buffers: Sequence[Any], offset: int) -> int:
        """Fill `buffers` with bytes beside the frames that were read before."""
        nbytes = sum(buffer.nbytes for buffer in buffers)
        key = (name, offset, nbytes)
        if key not in self._tables:
            if not 0 < nbytes <= TABLE_NBYTES or len(self._tables) >= MOST_TABLES:
                return 0
            digest = hashlib.sha256(repr(key).encode(errors="surrogateescape")).hexdigest()[:16]
            self._tables[key] = self._load_table(f"{self.source.generation}-t{digest}", key, file)
        table = self._tables[key]
        try:
            return 0 if table is None else table.read_into(name, buffers, offset)
        except (DamagedUnitError, OSError):
            self._tables[key] = None
            return 0

    def _load_table(
        self, name: str, key: tuple[str, int, int], file: OpenFile
    ) -> CachedUnit | None:
        table = self.source.take(name)
        if table is None:
            with reading_from(None):
                data = np.empty(key[2], np.uint8)
                if file.read_some([data], key[1]) == len(data):
                    self.source.put(name, [key], data)
                    table = CachedUnit([key], data)
        return table

    def close(self) -> None:
        """Close all units."""
        for unit in (*self._held.values(), *self._tables.values()):
            if unit is not None:
                unit.close()
        self._held.clear()
        self._tables.clear()


def _merged(ranges: Iterator[ByteRange]) -> list[ByteRange]:
    """Return ranges in which adjacent and overlapping ones of a file are one."""
    merged: list[ByteRange] = []
    for part in ranges:
        last = merged[-1] if merged else None
        if (
            last is not None
            and part.file is last.file
            and 0 <= part.offset - last.offset <= (last.nbytes)
        ):
            nbytes = max(last.nbytes, part.offset - last.offset + part.nbytes)
            merged[-1] = ByteRange(part.file, last.offset, nbytes)
        elif part.nbytes:
            merged.append(part)
    return merged


@dataclass(frozen=True, slots=True, eq=False)
class FileUnits:
    """Units of one file or output."""

    path: Path
    label: str
    uuid: str | None
    numbers: NDArray[np.int64]
    stops: NDArray[np.int64]
    """One beyond the last frame of each unit."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheUnits:
    """Units of a trajectory, of one or several files; pickles to some bytes a unit.

    Attributes: `edges`, (U + 1,) int64: frames at which units begin, ``n_frames`` last. `parts`:
    units of each file, in order.
    """

    edges: NDArray[np.int64]
    parts: list[FileUnits]

    def held(self, cache: Cache) -> NDArray[np.bool_]:
        """Return whether this node has each unit, (U,)."""
        has_units = []
        for part in self.parts:
            source = CachedSource(cache, part.path, part.label, part.uuid)
            try:
                has_units.append(source.held(part.numbers.tolist(), part.stops.tolist()))
            except OSError:  # the source is not there: reading it raises a clear error
                has_units.append(np.zeros(len(part.numbers), bool))
        return np.concatenate(has_units)


def cache_units(layout: Any, atoms: NDArray[np.int64] | None) -> CacheUnits:
    """Return the units that reading `atoms` of an open layout takes, its members' one by one."""
    edges, parts, n_frames = [np.zeros(1, np.int64)], [], 0
    for member, first, last in layout.member_runs:
        reads = cached_reads(member, atoms)
        own = reads.edges
        a = int(np.searchsorted(own, first, side="right")) - 1
        b = int(np.searchsorted(own, last, side="left"))
        inner = np.minimum(own[a + 1 : b + 1], last) - first
        edges.append(n_frames + inner)
        stops = own[a + 1 : b + 1]
        source = reads.source
        parts.append(FileUnits(source.path, source.label, source.uuid, np.arange(a, b), stops))
        n_frames += last - first
    return CacheUnits(np.concatenate(edges), parts)
