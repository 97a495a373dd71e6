"""Reading through a cache on a disk of the node (`mdio.core.cache`), unit by unit.

A cache unit is a run of frames between boundaries of the layout, of some MiB: chunks, a segment or
a part of one, frames of a native file. The cache keeps the bytes of the source's files that hold
these frames, so checksums, decoding and selections work as without it.
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

from mdio.core.blocks import runs_in_parts
from mdio.core.cache import Cache, CachedSource, CachedUnit, DamagedUnitError, SourceRange
from mdio.core.errors import MdioError
from mdio.core.files.in_flight import ByteRange
from mdio.core.files.reading import OpenFile, reading_from
from mdio.core.frames import AtomIndices, FrameBlock

MAX_UNIT_NBYTES = 16 << 20
"""Decoded bytes of a unit, unless a single chunk has more: enough for a local disk to read the file
at full speed, few enough to distribute many units evenly."""
MIN_UNIT_NBYTES = 256 << 10
GROWTH_DIVISOR = 64
"""A unit has at most 1/64 of the frames before it, or `MIN_UNIT_NBYTES` if that is more: so even
short trajectories have units for all workers."""
MAX_OPEN_UNITS = 2
"""Units that are kept open; those just read from the source are kept in memory."""
MAX_METADATA_NBYTES = 4 << 20
MAX_METADATA_READS = 256
"""Most reads of metadata (indexes of shards, times) that a process keeps, too, each of at most
`MAX_METADATA_NBYTES`."""


def cache_unit_edges(layout: Any, n_atoms: int) -> NDArray[np.int64]:
    """Return the frames at which units begin, ascending, ``n_frames`` last.

    Appending frames changes none of them except the last.
    """
    boundaries = layout.boundaries()
    min_frames, max_frames = (
        max(1, nbytes // max(1, 12 * n_atoms)) for nbytes in (MIN_UNIT_NBYTES, MAX_UNIT_NBYTES)
    )
    starts = [0]
    while (start := starts[-1]) < boundaries[-1]:
        n_frames = min(max(start // GROWTH_DIVISOR, min_frames), max_frames)
        number = int(np.searchsorted(boundaries, start + n_frames, side="right")) - 1
        stop = int(boundaries[number])
        if stop <= start:  # no boundary so near: a chunk becomes one unit, other runs are cut
            stop = int(boundaries[number + 1])
            stop = stop if layout.info.chunk_frames else min(stop, start + n_frames)
        starts.append(stop)
    return np.array(starts, np.int64)


def cached_reads(layout: Any, atoms: AtomIndices | None) -> UnitReads:
    """Return the reads of `atoms` of a layout through its cache."""
    _ = layout.info
    assert layout.cache is not None
    group, group_atoms = layout._group_for_cache(atoms)
    if layout._unit_reads is None:
        layout._unit_reads = {}
    reads: UnitReads | None = layout._unit_reads.get(group)
    if reads is None:
        reads = layout._unit_reads[group] = UnitReads(layout, layout.cache, group, group_atoms)
        for note in _cache_notes(layout.cache, layout.path, reads.has_ranges):
            reads.source.note(note)
    return reads


def _cache_notes(cache: Cache, path: Path, has_ranges: bool) -> Iterator[str]:
    if not has_ranges:
        yield (
            f"{path}: it cannot be cached, since only MDAnalysis or a library can find its frames; "
            "it is read from the source: convert it, and cache the output"
        )
    from mdio.core.files.store import file_system_type, is_network

    type_name = file_system_type(cache.root)
    if is_network(type_name):
        yield (
            f"{cache.root}: it is on a network file system ({type_name}), where a cache gains "
            "nothing and all nodes share it; give a folder on a disk of each node"
        )


class UnitReads:
    """Reads one layout, or one stored group of it (`Layout._group_for_cache`), through a cache."""

    def __init__(self, layout: Any, cache: Cache, group: str, atoms: AtomIndices | None) -> None:
        self._layout = layout
        self._atoms = atoms
        self.edges = cache_unit_edges(layout, layout.info.n_atoms if atoms is None else len(atoms))
        status = None
        self.has_ranges = True
        if layout.uuid is None:
            first = next(layout._ranges(0, int(self.edges[1]), atoms), None)
            self.has_ranges = first is not None
            status = None if first is None else os.fstat(first.file.fileno())
        self.source = CachedSource(
            cache, layout.path, group, layout.uuid, len(self.edges) - 1, status
        )
        self._open_units: OrderedDict[int, CachedUnit] = OrderedDict()
        self._current_unit: CachedUnit | None = None
        self._uncached: set[int] = set()
        self._metadata: dict[tuple[str, int, int], CachedUnit | None] = {}
        self._last_listed_unit = -1

    def read(self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock) -> None:
        """Fill `block` with frames ``start:stop``; raises the errors of the layout's reading."""
        for number, *unit_rows in runs_in_parts(self.edges, start, stop):
            begin, end = (int(self.edges[number]) + row for row in unit_rows)
            rows = block.frames(slice(begin - start, end - start))
            self._read_unit(number, begin, end, atoms, rows)

    def _read_unit(
        self, number: int, start: int, stop: int, atoms: AtomIndices | None, rows: FrameBlock
    ) -> None:
        self._current_unit = self._open_unit(number)
        try:
            with reading_from(self):
                self._layout._read_into(start, stop, atoms, rows)
        except Exception as error:  # libraries raise errors of their own
            self._current_unit = None
            with reading_from(None):
                self._layout._read_into(start, stop, atoms, rows)
            self._remove_damaged(number, DamagedUnitError(str(error)))  # the source is sound

    def source_ranges(self, start: int, stop: int) -> Iterator[ByteRange]:
        """Yield the byte ranges of these frames' units that the cache lacks, each once."""
        number = int(np.searchsorted(self.edges, start, side="right")) - 1
        while number < len(self.edges) - 1 and self.edges[number] < stop:
            begin, end = self.edges[number : number + 2].tolist()
            if number != self._last_listed_unit and not self.source.has(self._unit_name(number)):
                with reading_from(self):  # finding the ranges may read indexes
                    ranges = list(self._layout._ranges(begin, end, self._atoms))
                yield from ranges
            self._last_listed_unit = number
            number += 1

    def read_into(self, file: OpenFile, buffers: Sequence[Any], offset: int) -> int:
        """Fill the beginning of `buffers` with bytes of a file; see `CachedUnit.read_into`."""
        name = self._name(file)
        try:
            if self._current_unit is not None and (
                n_read := self._current_unit.read_into(name, buffers, offset)
            ):
                return n_read
        except (DamagedUnitError, OSError) as damage:
            number = next(n for n, unit in self._open_units.items() if unit is self._current_unit)
            self._remove_damaged(number, DamagedUnitError(str(damage)))
            return 0
        return self._read_metadata(name, file, buffers, offset)

    def _name(self, file: OpenFile) -> str:
        return str(file.path).removeprefix(str(self._layout.path))

    def _remove_damaged(self, number: int, damage: DamagedUnitError) -> None:
        """Remove a damaged unit, so that it is read from the source when it is needed again."""
        self._current_unit = None
        if number in self._open_units:
            self._open_units.pop(number).close()
        self.source.remove_damaged(self._unit_name(number), damage)

    def _unit_name(self, number: int) -> str:
        return self.source.name(number, int(self.edges[number + 1]))

    def _open_unit(self, number: int) -> CachedUnit | None:
        """Return a unit, from the cache or fetched; None if only the source can be read."""
        unit = self._open_units.get(number)
        if unit is not None or number in self._uncached or not self.has_ranges:
            return unit
        unit = self.source.open_unit(self._unit_name(number)) or self.fetch(number)
        if unit is None:
            self._uncached.add(number)
            return None
        self._open_units[number] = unit
        while len(self._open_units) > MAX_OPEN_UNITS:
            self._open_units.popitem(last=False)[1].close()
        return unit

    def fetch(self, number: int) -> CachedUnit | None:
        """Read a unit from the source and cache it; None if a part of it cannot be read."""
        begin, end = self.edges[number : number + 2].tolist()
        self._current_unit = None
        try:
            with reading_from(self):
                byte_ranges = _coalesced(self._layout._ranges(begin, end, self._atoms))
            data = np.empty(sum(byte_range.nbytes for byte_range in byte_ranges), np.uint8)
            ranges: list[SourceRange] = []
            position = 0
            with reading_from(None):
                for byte_range in byte_ranges:
                    byte_range.file.fill(
                        byte_range.offset, data[position : position + byte_range.nbytes]
                    )
                    ranges.append(
                        (self._name(byte_range.file), byte_range.offset, byte_range.nbytes)
                    )
                    position += byte_range.nbytes
        except MdioError:  # reading these frames raises it again
            return None
        if not ranges:
            return None
        self.source.store(self._unit_name(number), ranges, data)
        return CachedUnit(ranges, data)

    def _read_metadata(self, name: str, file: OpenFile, buffers: Sequence[Any], offset: int) -> int:
        """Fill `buffers` with metadata; return their bytes, 0 if these metadata are not kept."""
        nbytes = sum(buffer.nbytes for buffer in buffers)
        source_range = (name, offset, nbytes)
        if source_range not in self._metadata:
            if not 0 < nbytes <= MAX_METADATA_NBYTES or len(self._metadata) >= MAX_METADATA_READS:
                return 0
            digest = hashlib.sha256(
                repr(source_range).encode(errors="surrogateescape")
            ).hexdigest()[:16]
            self._metadata[source_range] = self._load(
                f"{self.source.generation}-t{digest}", source_range, file
            )
        unit = self._metadata[source_range]
        try:
            return 0 if unit is None else unit.read_into(name, buffers, offset)
        except (DamagedUnitError, OSError):
            self._metadata[source_range] = None
            return 0

    def _load(self, name: str, source_range: SourceRange, file: OpenFile) -> CachedUnit | None:
        unit, (_, offset, nbytes) = self.source.open_unit(name), source_range
        if unit is None:
            with reading_from(None):
                data = np.empty(nbytes, np.uint8)
                if file.read_some([data], offset) == len(data):
                    self.source.store(name, [source_range], data)
                    unit = CachedUnit([source_range], data)
        return unit

    def close(self) -> None:
        for unit in (*self._open_units.values(), *self._metadata.values()):
            if unit is not None:
                unit.close()
        self._open_units.clear()
        self._metadata.clear()


def _coalesced(ranges: Iterator[ByteRange]) -> list[ByteRange]:
    """Return `ranges`, with adjacent and overlapping ones of a file coalesced."""
    coalesced: list[ByteRange] = []
    for byte_range in ranges:
        last = coalesced[-1] if coalesced else None
        if (
            last is not None
            and byte_range.file is last.file
            and 0 <= byte_range.offset - last.offset <= last.nbytes
        ):
            nbytes = max(last.nbytes, byte_range.offset - last.offset + byte_range.nbytes)
            coalesced[-1] = ByteRange(byte_range.file, last.offset, nbytes)
        elif byte_range.nbytes:
            coalesced.append(byte_range)
    return coalesced


@dataclass(frozen=True, slots=True, eq=False)
class FileUnits:
    """Units of one file or output."""

    path: Path
    group: str
    uuid: str | None
    numbers: NDArray[np.int64]
    stops: NDArray[np.int64]
    """The frame after the last one of each unit."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheUnits:
    """Units of a trajectory, of one or several files; pickled, a unit takes a few bytes.

    Attributes: `edges`, (U + 1,) int64: frames at which units begin, ``n_frames`` last.
    `file_units`: units of each file, in order.
    """

    edges: NDArray[np.int64]
    file_units: list[FileUnits]

    def cached(self, cache: Cache) -> NDArray[np.bool_]:
        """Return whether this node has each unit, (U,)."""
        is_cached = []
        for units in self.file_units:
            source = CachedSource(cache, units.path, units.group, units.uuid)
            try:
                is_cached.append(source.cached_mask(units.numbers.tolist(), units.stops.tolist()))
            except OSError:  # the source is missing: reading it raises a clear error
                is_cached.append(np.zeros(len(units.numbers), bool))
        return np.concatenate(is_cached)


def cache_units(layout: Any, atoms: NDArray[np.int64] | None) -> CacheUnits:
    """Return the units that reading `atoms` of an open layout takes, file by file."""
    edges, file_units, n_frames = [np.zeros(1, np.int64)], [], 0
    for joined, first, end in layout.joined_layouts:
        reads = cached_reads(joined, atoms)
        first_unit = int(np.searchsorted(reads.edges, first, side="right")) - 1
        end_unit = int(np.searchsorted(reads.edges, end, side="left"))
        stops = reads.edges[first_unit + 1 : end_unit + 1]
        edges.append(n_frames + np.minimum(stops, end) - first)
        numbers = np.arange(first_unit, end_unit)
        source = reads.source
        file_units.append(FileUnits(source.path, source.group, source.uuid, numbers, stops))
        n_frames += end - first
    return CacheUnits(np.concatenate(edges), file_units)
