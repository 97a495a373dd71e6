"""H5MD files written through parallel HDF5: the ranks of an MPI program share one open file.

The owner creates the file serially, exactly as `H5MDWriter` does, and finishes it serially; only
the frames in between are written through HDF5's mpio driver. So the file is the same, whichever
writer wrote its frames. Space for uncompressed chunks is allocated beforehand, and ranks write
theirs independently or collectively. Compressed chunks need collective writes: HDF5 compresses them
on the ranks that hold them, and the ranks agree on where to put them.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5fd, h5p, h5s
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, MissingExtraError, OutputError, PlanError
from mdio.core.files.span_checksums import spans_of_row
from mdio.core.frames import FrameBlock
from mdio.core.signals import LAUNCHER_READ_S
from mdio.layouts.h5md.file import (
    LIBVER,
    chunk_checksums,
    chunk_codec,
    cut_chunks,
    integer_codec,
    value_path,
)
from mdio.layouts.h5md.io import as_output_error
from mdio.layouts.h5md.writer import H5MDWriter
from mdio.layouts.plan import ArrayPlan, LayoutPlan
from mdio.layouts.writer import EncodedChunk, OutputMeta, PieceRecord

RETRIES_CLOSE_VERSION = (2, 0, 0)
"""From this HDF5 on a file whose close has failed can be closed again; earlier ones may crash."""

_never_closed: list[h5py.h5f.FileID] = []


def close_file(file: h5py.File) -> None:
    """Close `file`; if that fails, make sure that it is never closed again, and raise h5py's error.

    Such a file counts as closed.
    """
    if any(file.id is file_id for file_id in _never_closed):
        return
    try:
        file.close()
    except FOREIGN_ERRORS:
        if h5py.version.hdf5_version_tuple < RETRIES_CLOSE_VERSION:
            _never_close(file.id)
        raise


def _never_close(file_id: h5py.h5f.FileID) -> None:
    if not _never_closed:
        library = ctypes.CDLL(None)
        if hasattr(library, "on_exit"):
            # Ends the process after Python, but before HDF5's exit handler; keeps the exit code.
            library.on_exit(library._exit, None)
        atexit.register(_end_mpi)
    _never_closed.append(file_id)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(file_id))  # h5py closes it with the last reference


def _end_mpi() -> None:
    """Abort the MPI program, if this is one, since finalising it would crash."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(LAUNCHER_READ_S)
    mpi.COMM_WORLD.Abort(1)


def require_parallel_hdf5(option: str) -> None:
    """Raise MissingExtraError if h5py was built without MPI, as the wheels of PyPI are."""
    if not h5py.get_config().mpi:
        raise MissingExtraError(
            f"{option} needs an h5py built with MPI and parallel HDF5, and this h5py "
            f"{h5py.__version__} is not; --mpi alone does without (all ranks write one file by "
            "plain system calls, or rank 0 does if it is compressed); "
            "make mpi builds an environment that has it (.venv-mpi), or: "
            "conda install -c conda-forge 'h5py=*=mpi_mpich*', or a cluster's module of h5py"
        )


class H5MDMPIOWriter(H5MDWriter):
    """Writes an H5MD 1.1 file from several ranks through HDF5's mpio driver.

    Between `create` and `finish`, which the owner calls, all ranks call `open_shared` and
    `close_shared` together. In between, every rank calls `store` for its own pieces at any time or,
    if `collective`, as it must be if chunks are compressed, all call `store_collectively` equally
    often. `hints`: for MPI-IO, of `mdio.layouts.striping.lustre.mpi_io_hints`.
    """

    @staticmethod
    def check(plan: LayoutPlan) -> None:
        """Raise PlanError for a compression that HDF5 cannot encode."""
        if integer_codec(plan.compression):
            raise PlanError(
                f"parallel HDF5 has no filter that encodes {plan.compression}; leave --mpio and "
                "--collective out (--mpi alone does without), or take --compression gzip"
            )

    def __init__(
        self,
        path: Path,
        plan: LayoutPlan,
        meta: OutputMeta,
        *,
        collective: bool = False,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(path, plan, meta)
        if not collective and plan.compression is not None:
            raise ValueError("compressed chunks are written collectively")
        self.collective = collective
        self.facts = self.facts._replace(parallel_store=not collective)
        self.hints = dict(hints or {})
        self._handle_shared: h5py.File | None = None

    def create(self) -> None:
        """Make the file as a serial writer does, and close it."""
        super().create()
        file, self._handle_file = self._handle_file, None
        if file is not None:
            with as_output_error(self.path):
                file.close()
        self._writes = None  # HDF5's own writes are not listed

    def open_shared(self, comm: Any) -> None:
        """Open the file on all ranks of `comm` together (collective); raises OutputError."""
        from mpi4py import MPI

        info = MPI.Info.Create()
        try:
            for key, value in self.hints.items():  # libraries ignore unknown keys
                info.Set(key, value)
            with as_output_error(self.path):
                self._handle_shared = h5py.File(
                    self.path, "r+", driver="mpio", comm=comm, info=info, libver=LIBVER
                )
        finally:
            info.Free()

    def close_shared(self) -> None:
        """Close the file on all ranks together (collective); raises OutputError."""
        file, self._handle_shared = self._handle_shared, None
        if file is not None:
            with as_output_error(self.path):
                close_file(file)

    def close_shared_after_error(self) -> None:
        """Close the file after an error, on all ranks together; it is about to be removed."""
        with suppress(OutputError):
            self.close_shared()

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Return one item for each array, uncompressed, with the checksums of its chunks."""
        items = []
        for (group, field), array in self._arrays.items():
            values = np.ascontiguousarray(self._values(block, group, field), "<f4")
            chunks = cut_chunks(array, start, values)
            codec = chunk_codec(self.plan, field)
            crcs = [crc for *_, chunk in chunks for crc in chunk_checksums(chunk, codec)]
            items.append(EncodedChunk(f"{group}/{field}/{start}", values, crcs))
        return items

    def store(self, item: EncodedChunk) -> None:
        """Write one array of a piece independently of other ranks; raises OutputError."""
        group, field, start = item.key.split("/")
        self._write((group, field), int(start), np.asarray(item.data), collective=False)

    def store_collectively(self, items: Sequence[EncodedChunk]) -> None:
        """Write a piece while all other ranks write theirs (collective); raises OutputError.

        `items`: what `encode` has returned; empty on a rank that has no piece. After an error,
        others may wait in HDF5 forever: the program has to be ended without closing the file.
        """
        by_array = {tuple(item.key.split("/")[:2]): item for item in items}
        for key in self._arrays:
            item = by_array.get(key)
            start = 0 if item is None else int(item.key.rsplit("/", 1)[1])
            data = None if item is None else np.asarray(item.data)
            self._write(key, start, data, collective=True)

    def _write(
        self, key: tuple[str, str], start: int, values: NDArray[Any] | None, *, collective: bool
    ) -> None:
        if self._handle_shared is None:
            raise OutputError(f"{self.path}: not open on all ranks")
        with as_output_error(self.path):  # opening a dataset may write what HDF5 keeps in memory
            dataset = self._handle_shared[value_path(*key)].id
        space = dataset.get_space()
        if values is None:
            values = np.empty(1, "<f4")
            memory = h5s.create_simple(values.shape)
            memory.select_none()
            space.select_none()
        else:
            memory = h5s.create_simple(values.shape)
            space.select_hyperslab((start, 0, 0), values.shape)
        transfer = h5p.create(h5p.DATASET_XFER)
        if collective:
            transfer.set_dxpl_mpio(h5fd.MPIO_COLLECTIVE)
        with as_output_error(self.path):
            dataset.write(memory, space, values, dxpl=transfer)

    def commit(self, record: PieceRecord) -> None:
        super().commit(self._by_chunk(record))

    def written_pieces(self, record: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        return super().written_pieces(self._by_chunk(record))

    @property
    def _file(self) -> h5py.File:
        return super()._file if self._handle_shared is None else self._handle_shared

    def _by_chunk(self, record: PieceRecord) -> PieceRecord:
        """Return a record whose checksums are listed by chunk instead of by array."""
        crcs = {}
        for key, chunk_crcs in record.crcs.items():
            group, field, start, *rest = key.split("/")
            if rest:  # a key of a chunk, in a record of an earlier run
                return record
            array = self._arrays[group, field]
            row, column, first = int(start) // array.chunk_frames, 0, 0
            while first < len(chunk_crcs):
                end = first + self._n_checksums(array, row)
                crcs[f"{group}/{field}/{row}/{column}"] = chunk_crcs[first:end]
                first = end
                row, column = (
                    (row, column + 1) if column + 1 < array.n_atom_chunks else (row + 1, 0)
                )
        return replace(record, crcs=crcs)

    def _n_checksums(self, array: ArrayPlan, row: int) -> int:
        if self.plan.compression is not None:
            return 1
        n_rows = array.chunk_frames
        if array.contiguous:
            n_rows = min(n_rows, self.plan.n_frames - row * n_rows)
        return 1 + n_rows * spans_of_row(12 * array.chunk_atoms)
