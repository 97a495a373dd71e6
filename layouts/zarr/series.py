"""Per-frame numbers of a Zarr tree: times, steps, cells; many frames a file, with a crc32c."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.boxes import edges_from_boxes, periodic_axes
from mdio.core.errors import CorruptLayoutError, OutputError
from mdio.core.files.remote.objects import look_ahead
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.writing.calls import Data
from mdio.core.files.writing.direct import WrittenFile
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import DTYPES, ArrayMetadata
from mdio.layouts.zarr.shard import CRC_NBYTES
from mdio.layouts.zarr.tree import SERIES, SeriesName, series_arrays, series_metadata

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan
    from mdio.layouts.writer import PieceRecord

Numbers = NDArray[Any]
KEPT_NBYTES = 8 << 20
"""Files of one array up to this size together stay in memory, at least one of them: frames of a
long trajectory are then fetched in any order without reading the numbers of 65,536 frames each."""
AHEAD = 4
"""Objects of one array that are asked for before they are read."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says while a file of ours is written into OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def write_file(path: Path, *parts: Data) -> None:
    """Write a file of ours, its parts one after the other; raises OutputError."""
    with writing(path), WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(0, *parts)


def write_numbers(path: Path, metadata: ArrayMetadata, rows: Numbers) -> int:
    """Write one file of an array without shards: its numbers, filled up, and their crc32c.

    The crc32c is returned.
    """
    chunk = np.zeros(metadata.file_shape, DTYPES[metadata.dtype])
    chunk[: len(rows)] = rows
    crc = kernels.crc32c(chunk)
    write_file(path, chunk.reshape(-1).view(np.uint8).data, crc.to_bytes(CRC_NBYTES, "little"))
    return crc


class SeriesArray:
    """An array of numbers without shards, of which the files read last are kept in memory.

    `root`: of the tree. `name`: of the array in it. `metadata`: what its ``zarr.json`` says.
    `crcs`: the crc32c that the numbers of each file should have; by default, what the file says.
    """

    def __init__(
        self, root: Folder, name: str, metadata: ArrayMetadata, crcs: Sequence[int] | None = None
    ) -> None:
        self._root = root
        self._name = name
        self._crcs = crcs
        self.metadata = metadata
        self.rows_per_file = metadata.file_shape[0]
        self._n_kept = max(1, KEPT_NBYTES // metadata.chunk_nbytes)
        self._kept: OrderedDict[int, Numbers] = OrderedDict()

    def file(self, number: int) -> Numbers:
        """Return the rows of one file.

        Raises CorruptLayoutError: it is missing, truncated, or its checksum is wrong.
        """
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept
        name = f"{self._name}/{self.metadata.file_name(number)}"
        path = self._root.path / name
        begin = number * self.rows_per_file
        end = min(begin + self.rows_per_file, self.metadata.shape[0])
        frames = f"(frames {begin} to {end - 1})"
        expected = self.metadata.chunk_nbytes + CRC_NBYTES
        try:
            data = np.frombuffer(self._root.read(name, expected + 1), np.uint8)
        except FileNotFoundError as error:
            raise CorruptLayoutError(
                f"{path}: no such file; it is missing from the tree, convert the source again "
                f"{frames}"
            ) from error
        if data.nbytes != expected:
            raise CorruptLayoutError(
                f"{path}: {data.nbytes} bytes, expected {expected}; it is truncated or damaged, "
                f"convert the source again {frames}"
            )
        stored = int.from_bytes(data[-CRC_NBYTES:].tobytes(), "little")
        crc = kernels.crc32c(data[:-CRC_NBYTES])
        if crc != stored:
            raise CorruptLayoutError(
                f"{path}: its checksum is wrong; it is damaged, convert the source again {frames}"
            )
        if self._crcs is not None and crc != self._crcs[number]:
            raise CorruptLayoutError(
                f"{path}: not what was written there, though whole: a file of another output has "
                f"its place, convert the source again {frames}"
            )
        numbers = data[:-CRC_NBYTES].view(DTYPES[self.metadata.dtype])
        rows: Numbers = numbers.reshape(self.metadata.file_shape)[: end - begin]
        while len(self._kept) >= self._n_kept:
            self._kept.popitem(last=False)
        self._kept[number] = rows
        return rows

    def look_ahead(self, start: int, stop: int) -> None:
        """Ask for objects with rows ``start:stop`` that are not there yet, `AHEAD` at most."""
        if isinstance(self._root.path, RemotePath):
            numbers = range(start // self.rows_per_file, -(-stop // self.rows_per_file))[:AHEAD]
            names = [self.metadata.file_name(n) for n in numbers if n not in self._kept]
            folder, nbytes = self._root.path / self._name, self.metadata.chunk_nbytes
            look_ahead([folder / name for name in names], nbytes + CRC_NBYTES + 1)

    def rows(self, start: int, stop: int) -> Numbers:
        """Return rows ``start:stop``, not to be changed; raises as `file` does."""
        size = self.rows_per_file
        number, first = divmod(start, size)
        if first + stop - start <= size:
            return self.file(number)[first : first + stop - start]
        numbers = range(number, (stop - 1) // size + 1)
        parts = (self.file(n)[max(start - n * size, 0) : stop - n * size] for n in numbers)
        return np.concatenate(list(parts))


class TableWriter:
    """Writes an array of numbers whose rows come in any order, each file when it is full.

    `folders`: of the array and its copies. `metadata`: how it lies on disk.
    """

    def __init__(self, folders: Sequence[Path], metadata: ArrayMetadata) -> None:
        self.folders, self.metadata = folders, metadata
        self._gathered: dict[int, tuple[Numbers, int]] = {}
        self.crcs = [0] * metadata.n_files
        """The crc32c of the numbers of each file."""

    def add(self, start: int, rows: Numbers) -> None:
        """Take rows from `start` on, each row once."""
        size, stop = self.metadata.file_shape[0], start + len(rows)
        for number in range(start // size, (stop - 1) // size + 1):
            begin = number * size
            n_rows = min(size, self.metadata.shape[0] - begin)
            first, last = max(start, begin), min(stop, begin + n_rows)
            if number in self._gathered:
                gathered, missing = self._gathered[number]
            else:
                shape = (n_rows, *self.metadata.shape[1:])
                gathered, missing = np.zeros(shape, DTYPES[self.metadata.dtype]), n_rows
            gathered[first - begin : last - begin] = rows[first - start : last - start]
            self._gathered[number] = gathered, missing - (last - first)
            if missing == last - first:
                del self._gathered[number]
                self.write(number, gathered)

    def write(self, number: int, rows: Numbers) -> None:
        """Write all rows of a file."""
        for folder in self.folders:
            file = folder / self.metadata.file_name(number)
            self.crcs[number] = write_numbers(file, self.metadata, rows)


class _BoxWriter(TableWriter):
    """Writes boxes, and the edges that follow from them."""

    edges: TableWriter

    def write(self, number: int, rows: Numbers) -> None:
        super().write(number, rows)
        self.edges.write(number, edges_from_boxes(rows))


class SeriesWriter:
    """Gathers the per-frame numbers of the pieces.

    `root`: of the tree. `plan`: what is written.
    """

    def __init__(self, root: Path, plan: LayoutPlan) -> None:
        self.root = root
        self.periodic = np.zeros(3, bool)
        """Along which axes any frame is."""
        self.time_first_ps: float | None = None
        self.time_last_ps: float | None = None
        self._paths, self._n_frames = series_arrays(plan), plan.n_frames
        self._tables: dict[SeriesName, TableWriter] = {}
        for name in SERIES:
            folders = [root / path for path, found in self._paths.items() if found == name]
            kind = _BoxWriter if name == "box" else TableWriter
            self._tables[name] = kind(folders, series_metadata(plan.n_frames, name))
        cast(_BoxWriter, self._tables["box"]).edges = self._tables["edges"]

    @property
    def crcs(self) -> dict[str, list[int]]:
        """The crc32c of the numbers of each file, by array."""
        return {path: self._tables[name].crcs for path, name in self._paths.items()}

    def add(self, record: PieceRecord) -> None:
        """Take the numbers of a piece, each piece once."""
        self.periodic |= periodic_axes(record.box)
        if np.isfinite(record.time[[0, -1]]).all():  # JSON has no others
            if record.start == 0:
                self.time_first_ps = float(record.time[0])
            if record.stop == self._n_frames:
                self.time_last_ps = float(record.time[-1])
        self._tables["time"].add(record.start, record.time)
        self._tables["source_step"].add(record.start, record.step)
        self._tables["box"].add(record.start, record.box)

    def finish(self) -> None:
        """Write the steps of H5MD: the source's if they increase, or else the frame numbers."""
        steps = self._tables["source_step"]
        increasing, last = True, None
        with Folder(self.root) as root:
            name = str(steps.folders[0].relative_to(self.root))
            source = SeriesArray(root, name, steps.metadata)
            for number in range(steps.metadata.n_files):
                rows = source.file(number)
                increasing &= bool(np.all(np.diff(rows) > 0)) and (last is None or rows[0] > last)
                last = rows[-1]
            for number in range(steps.metadata.n_files):
                begin = number * source.rows_per_file
                rows = source.file(number)
                if not increasing:
                    rows = np.arange(begin, begin + len(rows))
                self._tables["step"].write(number, rows)
