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

from mdio.core.errors import OutputError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.files.writing import WrittenFile
from mdio.core.frames import ELEMENTS, FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.h5md.disk import OutputFile
from mdio.layouts.h5md.encoding import (
    chunks_of,
    encode_chunk,
    gzip_level,
    round_to_step,
)
from mdio.layouts.h5md.file import (
    LIBVER,
    Places,
    chunk_table,
    create_column,
    create_file,
    run_table,
    value_path,
    write_edges,
    write_steps,
)
from mdio.layouts.h5md.io import (
    ARRAYS,
    FOREIGN_ERRORS,
    FULL_SYSTEM,
    MANIFEST,
    PIECES,
    RUN_FRAMES,
    writing,
)
from mdio.layouts.h5md.plan import plan_h5md
from mdio.layouts.h5md.remaking import holds_chunks, remake
from mdio.layouts.h5md.seal import problem_of_seal, seal_of
from mdio.layouts.manifest import manifest_of
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import EncodedChunk, LayoutWriter, OutputMeta, PieceRecord

__all__ = ["H5MDWriter"]


class H5MDWriter(LayoutWriter):
    """Writes an H5MD 1.1 file.

    Uncompressed chunks, and arrays in one piece, have their places in the file as soon as it is
    created, and every worker writes its own with plain system calls; HDF5 has the file open before
    and after that only.
    Compressed chunks get their places as they come, from the one owner of the open file.

    With a `precision` positions are rounded to multiples of the largest power of two that is not
    above it: the error is at most half of it, and the floats compress well.
    """

    places: Places
    more: Mapping[str, Any] = MappingProxyType({})
    """What else the manifest says."""
    _handle: WrittenFile | None = None
    _handle_file: OutputFile | None = None

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._level = gzip_level(plan.compression)
        self._arrays = {(a.group, a.field): a for a in plan.arrays}
        self._crcs = {key: np.zeros(self._grid(*key), "<u4") for key in self._arrays}
        self._pieces = {key: self._piece_table(*key) for key in self._arrays if self._level is None}
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
        return self._level is None

    def _grid(self, group: str, field: str) -> tuple[int, int]:
        array = self._arrays[group, field]
        return math.ceil(self.plan.n_frames / array.chunk_frames), array.n_atom_chunks

    def _piece_table(self, group: str, field: str) -> NDArray[Any]:
        array = self._arrays[group, field]
        per_row = pieces_of_row(12 * array.chunk_atoms)
        return np.zeros((self.plan.n_frames, array.n_atom_chunks, per_row), "<u4")

    def create(self) -> None:
        """Make the file with all its groups, and room for everything whose size is known.

        Raises
        ------
        OutputError
            It exists and is not empty, or cannot be written.
        """
        with writing(self.path):
            self.places = create_file(self.path, self.plan, self._level, self._atom_ids())
            if self._level is not None:
                self._handle_file = OutputFile(self.path, "r+", libver=LIBVER)

    @property
    def why_no_resume(self) -> str | None:
        """What HDF5 itself writes piece by piece is lost if it is stopped in the middle."""
        if self._level is None:
            return None
        return "HDF5 stores compressed chunks; take zarr for those, or no compression"

    def reopen(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Make all but the chunks anew."""
        with writing(self.path):
            self.places = remake(self.path, self.plan, self._atom_ids())
        return receipts

    def holds(self, receipt: PieceRecord) -> bool:
        """Read the chunks of a piece."""
        return holds_chunks(self._fd, receipt, self.plan, self.places)

    def _atom_ids(self) -> dict[str, NDArray[np.int64]]:
        """Return the numbers that atoms have in the source, where they are not 0, 1, 2, ..."""
        ids = {} if self.meta.atoms is None else {FULL_SYSTEM: np.asarray(self.meta.atoms)}
        for name, atoms in (self.meta.groups or {}).items():
            ids[name] = ids[FULL_SYSTEM][atoms] if FULL_SYSTEM in ids else np.asarray(atoms)
        return ids

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Cut one piece into chunks, rounded and compressed as planned."""
        items = []
        for (group, field), array in self._arrays.items():
            for i, j, chunk in chunks_of(array, start, self._values(block, group, field)):
                data, crcs = encode_chunk(chunk, self._level)
                items.append(EncodedChunk(f"{group}/{field}/{i}/{j}", data, crcs))
        return items

    def _values(self, block: FrameBlock, group: str, field: str) -> NDArray[np.float32]:
        """Return the numbers of one array, of the group's atoms, rounded as planned."""
        values = block.present()[field]
        if group != FULL_SYSTEM:
            values = np.take(values, (self.meta.groups or {})[group], axis=1)
        if field == "positions" and self.plan.precision is not None:
            values = round_to_step(values, self.plan.precision)
        return values

    @staticmethod
    def _split(key: str) -> tuple[tuple[str, str], tuple[int, int]]:
        group, field, i, j = key.split("/")
        return (group, field), (int(i), int(j))

    @property
    def _opened(self) -> WrittenFile:
        if self._handle is None:
            with writing(self.path):
                self._handle = WrittenFile(self.path, os.O_RDWR, direct=bool(self.plan.direct))
        return self._handle

    @property
    def _fd(self) -> int:
        return self._opened.fileno()

    def store(self, item: EncodedChunk) -> None:
        """Write one chunk where it belongs; raises OutputError."""
        array, at = self._split(item.key)
        if self._level is None:
            with writing(self.path):
                self._opened.write(int(self.places.chunks[array][at]), *item.parts)
            return
        plan = self._arrays[array]
        if self._handle_file is None:
            raise OutputError(f"{self.path}: compressed chunks are stored by the owner of the file")
        with writing(self.path), self._handle_file.telling():
            dataset = self._handle_file.file[value_path(*array)].id
            first = (at[0] * plan.chunk_frames, at[1] * plan.chunk_atoms, 0)
            dataset.write_direct_chunk(first, item.data)

    def commit(self, record: PieceRecord) -> None:
        """Note the checksums of a piece, and write its boxes, times and steps."""
        for key, crcs in record.crcs.items():
            array, at = self._split(key)
            self._crcs[array][at] = crcs[0]
            self._stored[array][at] = True
            if array in self._pieces:
                first = at[0] * self._arrays[array].chunk_frames
                rows = self._pieces[array][first : first + self._arrays[array].chunk_frames, at[1]]
                rows[...] = np.reshape(crcs[1:], (-1, rows.shape[1]))[: len(rows)]
        places = self.places
        places.time.write(self._fd, record.start, record.time, self.path)
        places.step.write(self._fd, record.start, record.step, self.path)
        places.box.write(self._fd, record.start, record.box, self.path)
        if self._handle_file is not None:
            with writing(self.path):
                self._handle_file.flush()

    def finish(self) -> None:
        """Add cells, checksums and, last, the manifest; flush and close.

        Raises
        ------
        OutputError
            A chunk was never stored, or the file cannot be written.
        """
        for (group, field), stored in self._stored.items():
            if not stored.all():
                i, j = (int(n) for n in np.argwhere(~stored)[0])
                array = self._arrays[group, field]
                first = i * array.chunk_frames
                raise OutputError(
                    f"{self.path}: {int((~stored).sum())} of {stored.size} chunks of {field} of "
                    f"{group} were not stored, the first that of frames {first} to "
                    f"{min(first + array.chunk_frames, self.plan.n_frames) - 1}, atoms from "
                    f"{j * array.chunk_atoms} on; convert again"
                )
        with writing(self.path):
            output = self._handle_file or OutputFile(self.path, "r+", libver=LIBVER)
            self._handle_file = output
            with output.telling():
                self._write_rest(output.file)
            self._handle_file = None
            output.close()
            what = str(self.path)
            seal = seal_of(self._fd, self._chunk_places, what)
            self._opened.write(os.fstat(self._fd).st_size, seal)
            os.fsync(self._fd)
            self._read_again()
        self.abort()

    def _read_again(self) -> None:
        """Open the file again, and compare what was written last; raises OutputError."""
        with h5py.File(self.path, "r", locking="best-effort") as file:
            found = bytes(np.asarray(file[MANIFEST]).tobytes())
        problem = problem_of_seal(self._fd, self._chunk_places, str(self.path))
        if crc32c(found) != self.manifest_crc32c or problem is not None:
            raise OutputError(
                f"{self.path}: what was written is not what is there ({problem or 'manifest'}); "
                "check the disk and convert again"
            )

    def _write_rest(self, file: h5py.File) -> None:
        """Write all that is known in the end, the manifest last."""
        places, what = self.places, str(self.path)
        columns = {"time": places.time, "step": places.step, "box": places.box}
        crcs = {name: column.checksum(self._fd, what) for name, column in columns.items()}
        has_box = write_edges(file, places.box, self._fd, what)
        write_steps(file, places.step, self._fd, what)
        tables = self._write_tables(file)
        said = dict(self.more, has_box=has_box, column_crc32c=crcs, table_crc32c=tables)
        manifest = manifest_of(self.plan, self.meta, **said)
        text = json.dumps(manifest).encode()
        self.manifest_crc32c = crc32c(text)
        file.create_dataset(MANIFEST, data=text, dtype=h5py.string_dtype(length=len(text)))

    def _write_tables(self, file: h5py.File) -> dict[str, int]:
        """Write the tables of the arrays, and return the crc32c of their checksums by name."""
        known = {}
        for (group, field), crcs in self._crcs.items():
            array = self._arrays[group, field]
            parent = file.create_group(f"{ARRAYS}/{group}/{ELEMENTS[field]}")
            tables: dict[str, NDArray[Any]] = {"crc32c": crcs}
            if self._level is None:
                tables[PIECES] = self._pieces[group, field]
            for name, table in tables.items():
                known[f"{group}/{ELEMENTS[field]}/{name}"] = crc32c(table)
            dataset = file[value_path(group, field)]
            if array.contiguous:
                parent.attrs[RUN_FRAMES] = array.chunk_frames
                self._chunk_places.append(run_table(dataset, array.chunk_frames))
            else:
                tables["offset"], nbytes = chunk_table(dataset)
                self._chunk_places.append((tables["offset"], nbytes))
                if self._level is not None:
                    tables["nbytes"] = nbytes
            for name, table in tables.items():
                create_column(parent, name, table.shape, table.dtype.str)
                parent[name][...] = table
        return known

    def abort(self) -> None:
        """Close what is open; the file may be in any state."""
        if self._handle_file is not None:
            file, self._handle_file = self._handle_file, None
            with suppress(*FOREIGN_ERRORS):  # what cannot be written is about to be removed
                file.close()
        if self._handle is not None:
            self._handle.close()
            self._handle = None
