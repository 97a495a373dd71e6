"""Reads H5MD files that mdio wrote: h5py is used only to find where chunks and columns are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5z
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, one_line
from mdio.core.files.reading import OpenFile
from mdio.core.files.span_checksums import Sums, row_checksums, spans_of_row
from mdio.core.frames import H5MD_NAMES, AtomIndices, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.chunked.array import ChunksInFile, inflate
from mdio.layouts.chunked.own import OwnOutput
from mdio.layouts.h5md.disk import check_seal
from mdio.layouts.h5md.file import (
    FILTER_ID,
    OLD_FILTER_ID,
    chunk_ranges,
    decode_integers,
    value_path,
)
from mdio.layouts.h5md.gromacs_topology import TOPOLOGY
from mdio.layouts.h5md.io import (
    ARRAYS,
    BOX_PATH,
    RUN_FRAMES,
    SOURCE_STEP,
    SPANS,
    Column,
    duplicate_descriptor,
    get_flavour,
    manifest_text,
)
from mdio.layouts.h5md.opening import is_sealed
from mdio.layouts.manifest import FULL_SYSTEM
from mdio.layouts.tables import ChunkTable, frame_chunk_table
from mdio.layouts.units import Unit

if TYPE_CHECKING:
    from mdio.layouts.writer import EncodedChunk

Decode = Callable[[NDArray[np.uint8], NDArray[np.float32]], None]


class H5MDChunks(ChunksInFile):
    """One ``/particles/GROUP/ELEMENT/value``, (F, A, 3).

    `crcs`, (frame chunks, atom chunks): checksum of each decoded chunk. `decode`: function that
    decodes a chunk into an array; None for uncompressed chunks. `spans`: checksums of parts of
    chunks, if there are any; see `mdio.layouts.h5md.io.SPANS`. Other parameters are those of
    `ChunksInFile`.
    """

    checksums_of_decoded = True

    def __init__(
        self,
        *chunks: Any,
        crcs: NDArray[np.uint32],
        decode: Decode | None,
        spans: Column | None,
        verify: bool,
    ) -> None:
        uncompressed, has_span_checksums = decode is None, spans is not None
        super().__init__(
            *chunks,
            uncompressed=uncompressed,
            verify=verify,
            has_span_checksums=has_span_checksums,
        )
        self.crcs, self.spans, self._decode_chunk = crcs, spans, decode

    def _compare(
        self, row: int, column: int, file: OpenFile, crc: int, _: NDArray[np.uint8]
    ) -> None:
        expected = int(self.crcs[row, column])
        if crc != expected:
            problem = f"crc32c {crc:08x} found, {expected:08x} expected; the file is damaged"
            raise self.chunk_error(row, column, file, f"{problem}: convert the source again")

    def _span_checksums(self, start: int, stop: int, column: int, first: int, n_spans: int) -> Sums:
        assert self.spans is not None
        table = self.spans.read(self.file, start, stop)
        return table[:, column, first : first + n_spans]

    def _decode(
        self,
        data: NDArray[np.uint8],
        out: NDArray[np.float32],
        atoms: AtomIndices | None,  # noqa: ARG002
        first: int,  # noqa: ARG002
        end: int,  # noqa: ARG002
    ) -> None:
        assert self._decode_chunk is not None
        self._decode_chunk(data, out)


Arrays = Mapping[tuple[str, str], H5MDChunks]
"""By group and field."""


def stored_chunks(arrays: Arrays, start: int, stop: int) -> Iterator[EncodedChunk]:
    """Yield the stored chunks of frames ``start:stop`` of all arrays, after checking each."""
    from mdio.layouts.writer import EncodedChunk

    for (group, field), array in arrays.items():
        rows = range(start // array.chunk_frames, -(-stop // array.chunk_frames))
        for row, column in ((row, column) for row in rows for column in range(array.grid[1])):
            array.check(row, column)
            file, offset, nbytes = array.locate(row, column)
            data = file.array(offset, nbytes)
            crcs = [int(array.crcs[row, column])]
            if array.uncompressed:
                crcs += row_checksums(data.reshape(-1, array.row_nbytes)).tolist()
            yield EncodedChunk(f"{group}/{field}/{row}/{column}", data, crcs)


class OwnFile(OwnOutput[H5MDChunks]):
    """An H5MD file of mdio, read by plain system calls; h5py's `file` may be closed afterwards."""

    contiguous = False  # whether arrays have no chunks

    def __init__(
        self, path: Path, file: h5py.File, group: str | None, *, verify: bool = True
    ) -> None:
        try:
            text = manifest_text(file, path)
            self.manifest_crc32c = crc32c(text.encode())
            manifest = json.loads(text)
        except FOREIGN_ERRORS as error:
            raise CorruptLayoutError(
                f"{path}: its manifest cannot be read; convert the source again"
            ) from error
        super().__init__(path, manifest, group, verify=verify)
        self._bytes = OpenFile(path, CorruptLayoutError, duplicate_descriptor(file))
        self._sealed = is_sealed(path)
        n_frames = self.n_frames
        self._factors = get_flavour(self.manifest.get("flavour")).factors
        try:
            self.arrays = self._arrays(file)
            position = file[f"particles/{FULL_SYSTEM}/position"]
            crcs = {name: int(crc) for name, crc in self.manifest["column_crc32c"].items()}
            step = file[SOURCE_STEP] if SOURCE_STEP in file else position["step"]
            self._columns = {
                "time": self._column(position["time"], (n_frames,), "<f8", crcs["time"], "times"),
                "step": self._column(step, (n_frames,), "<i8", crcs["step"], "steps"),
                "box": self._column(file[BOX_PATH], (n_frames, 6), "<f4", crcs["box"], "boxes"),
            }
            if "topology" in crcs:
                topology = file[TOPOLOGY]
                self._columns["topology"] = self._column(
                    topology, topology.shape, "u1", crcs["topology"], "topology"
                )
        except BaseException as error:
            self._bytes.close()
            if isinstance(error, CorruptLayoutError) or not isinstance(error, FOREIGN_ERRORS):
                raise
            raise CorruptLayoutError(
                f"{path}: its contents do not match its manifest ({one_line(error)}); "
                "convert the source again"
            ) from error

    def _arrays(self, file: h5py.File) -> dict[tuple[str, str], H5MDChunks]:
        arrays = {}
        for name, n_atoms in self._n_atoms_by_group.items():
            for field in H5MD_NAMES:
                path = value_path(name, field)
                if path in file:
                    arrays[name, field] = self._array(
                        file, name, field, (self.n_frames, n_atoms, 3)
                    )
                elif field == "positions":
                    raise KeyError(f"no {path}")
        return arrays

    def _array(
        self, file: h5py.File, group: str, field: str, shape: tuple[int, int, int]
    ) -> H5MDChunks:
        dataset = file[value_path(group, field)]
        tables = file[f"{ARRAYS}/{group}/{H5MD_NAMES[field]}"]
        if dataset.shape != shape or dataset.dtype != np.dtype("<f4"):
            raise ValueError(f"{dataset.name} is {dataset.dtype} {dataset.shape}, expected {shape}")
        crcs = np.asarray(tables["crc32c"], np.uint32)
        expected = self.manifest.get("table_crc32c", {}) if self._verifies else {}
        element = f"{group}/{H5MD_NAMES[field]}"
        if expected and crc32c(crcs) != expected[f"{element}/crc32c"]:
            raise ValueError(f"the checksums of {dataset.name} are damaged")
        spans = None
        if f"{element}/{SPANS}" in expected:
            n_spans = spans_of_row(12 * (dataset.chunks or shape)[1])
            table_shape = (shape[0], crcs.shape[1], n_spans)
            crc = expected[f"{element}/{SPANS}"]
            table_name = f"{H5MD_NAMES[field]} of {group}, checksums"
            spans = self._column(tables[SPANS], table_shape, "<u4", crc, table_name)
        if dataset.chunks is None:
            self.contiguous = True
            decode: Decode | None = None
            chunk = (int(tables.attrs[RUN_FRAMES]), shape[1])
            offset, nbytes = chunk_ranges(dataset, chunk[0])
        else:
            decode, chunk = _decoder_of(dataset), dataset.chunks[:2]
            offset, nbytes = self._chunk_offsets(dataset, tables, decode is not None)
        if not offset.shape == nbytes.shape == crcs.shape:
            raise ValueError(f"{dataset.name} has {offset.shape} chunks, its tables {crcs.shape}")
        if offset.min() < 0 or nbytes.min() < 0 or (offset + nbytes).max() > self._bytes.nbytes:
            raise ValueError(f"{dataset.name} has chunks beyond the end of the file")
        return H5MDChunks(
            f"{self.path}: {H5MD_NAMES[field]} of {group}",
            shape,
            chunk,
            self._bytes,
            offset,
            nbytes,
            crcs=crcs,
            decode=decode,
            spans=spans,
            verify=self._verifies,
        )

    def _chunk_offsets(
        self, dataset: h5py.Dataset, tables: h5py.Group, is_encoded: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets and sizes of chunks by mdio's tables, or by HDF5 if those are stale."""
        chunk_frames, chunk_atoms, _ = dataset.chunks
        grid = (-(-dataset.shape[0] // chunk_frames), -(-dataset.shape[1] // chunk_atoms))
        offset = np.asarray(tables["offset"], np.int64)
        nbytes = np.full(offset.shape, 12 * chunk_frames * chunk_atoms, np.int64)
        if is_encoded:
            nbytes = np.asarray(tables["nbytes"], np.int64)
        if not self._sealed:
            # A copy by h5repack has the same chunks elsewhere: compare the first and the last.
            corners = [(0, 0), ((grid[0] - 1) * chunk_frames, (grid[1] - 1) * chunk_atoms)]
            infos = [dataset.id.get_chunk_info_by_coord((*corner, 0)) for corner in corners]
            table_ranges = [(int(offset.flat[k]), int(nbytes.flat[k])) for k in (0, -1)]
            if [(info.byte_offset, info.size) for info in infos] != table_ranges:
                offset, nbytes = chunk_ranges(dataset)
        if offset.shape != grid:
            raise ValueError(f"{dataset.name} has {grid} chunks, its tables {offset.shape}")
        return offset, nbytes

    def _column(
        self, dataset: h5py.Dataset, shape: tuple[int, ...], dtype: str, crc: int, name: str
    ) -> Column:
        if dataset.shape != shape or dataset.dtype != np.dtype(dtype):
            raise ValueError(f"{dataset.name} is {dataset.dtype} {dataset.shape}, expected {shape}")
        return Column.of(dataset, crc if self._verifies else None, f"{self.path}: {name}")

    def info(self, layout: str) -> TrajectoryInfo:
        return super().info(layout).replace(nbytes=self._bytes.nbytes)

    def _topology_bytes(self) -> bytes | None:
        if "topology" not in self._columns:
            return None
        return self.read_column("topology", 0, self._columns["topology"].shape[0]).tobytes()

    def positions(self) -> ChunkTable | None:
        array = self.arrays[self.group or FULL_SYSTEM, "positions"]
        if not array.uncompressed or self.manifest.get("flavour") is not None:
            return None
        if self.contiguous:  # a chunk per frame, since the last run of frames may be shorter
            begins = array.offset[0, 0] + 12 * array.n_atoms * np.arange(array.n_frames)
            return frame_chunk_table(self.path, begins, np.zeros(1, np.int64), array.n_atoms)
        chunk = (array.chunk_frames, array.chunk_atoms, 3)
        offset, nbytes = array.offset[..., None], array.nbytes[..., None]
        return ChunkTable(self.path, chunk, offset, nbytes)

    def read_column(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self._columns[name].read(self._bytes, start, stop)

    def _column_run(self, start: int, stop: int) -> tuple[int, int]:
        are_cached = all(self._columns[name].is_cached for name in ("time", "step", "box"))
        return (0, self.n_frames) if are_cached else (start, stop)

    def units(self) -> Iterator[Unit]:
        if "table_crc32c" in self.manifest:  # older outputs have no seal
            ranges = [(array.offset, array.nbytes) for array in self.arrays.values()]
            check = partial(check_seal, self._bytes, ranges, str(self.path))
            yield Unit(f"{self.path}: all but the frames", check)
        for column in self._columns.values():
            yield Unit(column.name, partial(column.verify, self._bytes))
        for (group, field), array in self.arrays.items():
            if array.spans is not None:
                verify = partial(array.spans.verify, self._bytes)
                yield Unit(array.spans.name, verify, None, group)
            yield from self._units_of((group, field))

    def encoded_chunks(self, start: int, stop: int) -> list[EncodedChunk]:
        return list(stored_chunks(self.arrays, start, stop))

    def plan_fields(self) -> dict[str, Any]:
        arrays = self.array_plans(contiguous=self.contiguous)
        topology = self._columns.get("topology")
        return {
            "arrays": arrays,
            "flavour": self.manifest.get("flavour"),
            "topology_nbytes": topology.shape[0] if topology else 0,
        }

    def reopen(self) -> bool:
        return self._bytes.reopen()

    def close(self) -> None:
        super().close()
        self._bytes.close()


DECODERS: dict[tuple[int, ...], Decode | None] = {
    (): None,
    (h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE): inflate,
    (FILTER_ID,): decode_integers,
    (OLD_FILTER_ID,): decode_integers,
}
"""Functions that decode chunks, by their HDF5 filters."""


def _decoder_of(dataset: h5py.Dataset) -> Decode | None:
    layout = dataset.id.get_create_plist()
    filters = tuple(layout.get_filter(k)[0] for k in range(layout.get_nfilters()))
    if len(dataset.chunks) != 3 or filters not in DECODERS:
        raise ValueError(f"{dataset.name} has filters that mdio does not use")
    return DECODERS[filters]
