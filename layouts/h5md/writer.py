"""Writes H5MD files: one file that many workers fill, or one that its owner fills for them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, OutputError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.files.reading import OpenFile
from mdio.core.files.writing.direct import WrittenFile
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.h5md.disk import OutputFile, Written
from mdio.layouts.h5md.encoding import (
    atom_ids,
    chunks_of,
    coder_of,
    encode_chunk,
    missing_chunks,
    split_key,
    values_of,
)
from mdio.layouts.h5md.file import (
    LIBVER,
    Places,
    create_column,
    create_file,
    value_path,
    write_edges,
    write_steps,
)
from mdio.layouts.h5md.io import FULL_SYSTEM, MANIFEST, writing
from mdio.layouts.h5md.others.flavours import add_system, flavour_of
from mdio.layouts.h5md.others.topology import TOPOLOGY, write_topology
from mdio.layouts.h5md.plan import plan_h5md
from mdio.layouts.h5md.remaking import FormerChunks, holds_chunks, placed, remake
from mdio.layouts.h5md.seal import check_written, seal_of
from mdio.layouts.h5md.tables import write_tables
from mdio.layouts.manifest import manifest_of
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import CHUNK_OPTIONS, EncodedChunk, LayoutWriter, OutputMeta, PieceRecord

BATCH_NBYTES = 2 << 20


class H5MDWriter(LayoutWriter):
    """Writes an H5MD 1.1 file.

    Uncompressed chunks, and arrays in one piece, have their places in the file as soon as it is
    created, and every worker writes its own with plain system calls; HDF5 has the file open before
    and after that only.
    Compressed chunks get their places as they come, from the one owner of the open file.

    With a precision numbers are rounded to multiples of the largest power of two that is not above
    it: the error is at most half of it, and the floats compress well. Or they become integers of
    that very precision (``bitpack``, ``rigid``), which HDF5 reads by a filter of mdio's.
    """

    own_options = CHUNK_OPTIONS | {"contiguous", "mpio", "per_rank"}
    in_parts = "mdio.layouts.h5md.parts.writer:H5MDPartsWriter"
    ensemble = "mdio.layouts.h5md.parts.ensemble:H5MDEnsemble"
    through_mpi = "mdio.layouts.h5md.mpio.writer:H5MDMPIOWriter"
    resumes = True
    places: Places
    more: Mapping[str, Any] = MappingProxyType({})
    """What else the manifest says."""
    _handle: WrittenFile | None = None
    _handle_file: OutputFile | None = None
    _handle_former: FormerChunks | None = None
    _written: Written | None = None
    """Of a file made now: where something other than chunks was written."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._arrays = {(a.group, a.field): a for a in plan.arrays}
        self._crcs = {key: np.zeros(self._grid(*key), "<u4") for key in self._arrays}
        self._pieces = {key: self._piece_table(*key) for key in self._arrays if self._plain}
        self._chunk_places: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.manifest_crc32c = 0
        """Of the text of the manifest, once it is written."""
        self._stored = {key: np.zeros(self._grid(*key), np.bool_) for key in self._arrays}

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan the file; raises PlanError for what H5MD files cannot have."""
        return plan_h5md(info, options)

    @property
    def parallel_store(self) -> bool:
        """Whether workers write for themselves: when nothing is compressed."""
        return self._plain

    @property
    def batch_frames(self) -> int | None:
        """Whole chunks of all arrays: one is written while the next is read."""
        if not self.plan.direct:
            return None
        chunk = math.lcm(*(array.chunk_frames for array in self.plan.arrays))
        nbytes = chunk * sum(12 * array.n_atoms for array in self.plan.arrays)
        return chunk * max(1, BATCH_NBYTES // nbytes)

    @property
    def _plain(self) -> bool:
        return self.plan.compression is None

    def _grid(self, group: str, field: str) -> tuple[int, int]:
        array = self._arrays[group, field]
        return math.ceil(self.plan.n_frames / array.chunk_frames), array.n_atom_chunks

    def _piece_table(self, group: str, field: str) -> NDArray[Any]:
        array = self._arrays[group, field]
        per_row = pieces_of_row(12 * array.chunk_atoms)
        return np.zeros((self.plan.n_frames, array.n_atom_chunks, per_row), "<u4")

    def create(self) -> None:
        """Make the file with all its groups, and room for everything whose size is known.

        Raises OutputError: it exists and is not empty, or cannot be written.
        """
        with writing(self.path):
            if self._plain:
                self._written = []
            self.places = create_file(self.path, self.plan, atom_ids(self.meta), self._written)
            if not self._plain:
                self._handle_file = OutputFile(self.path, "r+", libver=LIBVER)

    def reopen(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Make all but the chunks anew; compressed ones are copied (`store_again`)."""
        if self._plain:
            with writing(self.path):
                self.places = remake(self.path, self.plan, atom_ids(self.meta))
        elif self._handle_former is None:
            self._handle_former = FormerChunks(self.path, receipts)
            self.create()
        return receipts

    def holds(self, receipt: PieceRecord) -> bool:
        """Read the chunks of a piece."""
        if self._handle_former is not None:
            return self._handle_former.holds(receipt, self.plan)
        with self._reading() as file:
            return holds_chunks(file, receipt, self.plan, self.places)

    def store_again(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Copy the compressed chunks of former runs."""
        again: list[PieceRecord] = []
        if self._handle_former is not None:
            for receipt in receipts:
                for item in self._handle_former.chunks(receipt, self.plan):
                    self.store(item)
                again += self.settled(receipt)
        return again

    def settled(self, receipt: PieceRecord) -> list[PieceRecord]:
        """Return the receipt; of compressed chunks, with their places."""
        run = 1 if self._handle_former is None else self._handle_former.run
        return [receipt if self._plain else placed(self._file, receipt, self.plan, run)]

    @property
    def _file(self) -> h5py.File:
        """The file as HDF5 has it open."""
        if self._handle_file is None:
            raise OutputError(f"{self.path}: compressed chunks are stored by the owner of the file")
        return self._handle_file.file

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Cut one piece into chunks, rounded and compressed as planned."""
        items = []
        for (group, field), array in self._arrays.items():
            coder = coder_of(self.plan, field)
            for i, j, there, chunk in chunks_of(array, start, self._values(block, group, field)):
                data, crcs = encode_chunk(chunk, coder, there)
                items.append(EncodedChunk(f"{group}/{field}/{i}/{j}", data, crcs))
        return items

    def _values(self, block: FrameBlock, group: str, field: str) -> NDArray[np.float32]:
        values = values_of(block, group, field, self.meta.groups, self.plan)
        return flavour_of(self.plan.flavour).store(field, values)

    @property
    def _opened(self) -> WrittenFile:
        if self._handle is None:
            with writing(self.path):
                self._handle = WrittenFile(self.path, os.O_RDWR, direct=self.plan.direct or False)
        return self._handle

    def _reading(self) -> OpenFile:
        return OpenFile(self.path, CorruptLayoutError)

    def store(self, item: EncodedChunk) -> None:
        """Write one chunk where it belongs; raises OutputError."""
        array, at = split_key(item.key)
        if self._plain:
            with writing(self.path):
                self._opened.write(int(self.places.chunks[array][at]), *item.parts)
            return
        plan = self._arrays[array]
        file = self._file
        assert self._handle_file is not None
        with writing(self.path), self._handle_file.telling():
            dataset = file[value_path(*array)].id
            first = (at[0] * plan.chunk_frames, at[1] * plan.chunk_atoms, 0)
            dataset.write_direct_chunk(first, item.data)

    def drain(self) -> None:
        """Wait for what is written by a thread; see the base class."""
        if self._handle is not None:
            with writing(self.path):
                self._handle.drain()

    def commit(self, record: PieceRecord) -> None:
        """Note the checksums of a piece, and write its boxes, times and steps."""
        for key, crcs in record.crcs.items():
            array, at = split_key(key)
            self._crcs[array][at] = crcs[0]
            self._stored[array][at] = True
            if array in self._pieces:
                first = at[0] * self._arrays[array].chunk_frames
                rows = self._pieces[array][first : first + self._arrays[array].chunk_frames, at[1]]
                rows[...] = np.reshape(crcs[1:], (-1, rows.shape[1]))[: len(rows)]
        self.places.time.write(self._opened.fileno(), record.start, record.time, self.path)
        self.places.step.write(self._opened.fileno(), record.start, record.step, self.path)
        self.places.box.write(self._opened.fileno(), record.start, record.box, self.path)
        if self._handle_file is not None:
            with writing(self.path):
                self._handle_file.flush()

    def finish(self) -> None:
        """Add cells, checksums and, last, the manifest; flush and close.

        Raises OutputError: a chunk was never stored, or the file cannot be written.
        """
        missing = missing_chunks(self._stored, self._arrays, self.plan.n_frames)
        if missing is not None:
            raise OutputError(f"{self.path}: {missing}; convert again")
        with writing(self.path):
            output = self._handle_file or OutputFile(self.path, "r+", self._written, libver=LIBVER)
            self._handle_file = output
            with output.telling():
                self._write_rest(output.file)
            self._handle_file = None
            output.close()
            with self._reading() as file:
                seal = seal_of(file, self._chunk_places, self._written)
                self._opened.write(file.nbytes, seal)
            os.fsync(self._opened.fileno())
            check_written(self.path, self.manifest_crc32c, self._chunk_places, self._written)
        if self._handle_former is not None:
            self._handle_former.remove()
        self.abort()

    def _write_rest(self, file: h5py.File) -> None:
        """Write all that is known in the end, the manifest last."""
        places = self.places
        columns = {"time": places.time, "step": places.step, "box": places.box}
        with self._reading() as source:
            crcs = {name: column.checksum(source) for name, column in columns.items()}
            has_box = write_edges(file, places.box, source, flavour_of(self.plan.flavour))
            write_steps(file, places.step, source)
        add_system(file, self.plan)
        tables, self._chunk_places = write_tables(file, self._arrays, self._crcs, self._pieces)
        if self.meta.topology is not None:
            data = np.frombuffer(self.meta.topology.to_bytes(), np.uint8)
            create_column(file, TOPOLOGY, data.shape, "u1")
            file[TOPOLOGY][...] = data
            crcs["topology"] = crc32c(data)
            write_topology(file, self.meta.topology, FULL_SYSTEM)
        said = dict(self.more, has_box=has_box, column_crc32c=crcs, table_crc32c=tables)
        manifest = manifest_of(self.plan, self.meta, **said)
        text = json.dumps(manifest).encode()
        self.manifest_crc32c = crc32c(text)
        file.create_dataset(MANIFEST, data=text, dtype=h5py.string_dtype(length=len(text)))

    def abort(self) -> None:
        """Close what is open; the file may be in any state."""
        if self._handle_file is not None:
            file, self._handle_file = self._handle_file, None
            with suppress(*FOREIGN_ERRORS):  # what cannot be written is about to be removed
                file.close()
        if self._handle is not None:
            with suppress(OSError):  # what was written is flushed, or about to be removed
                self._handle.close()
            self._handle = None
