"""Planning and writing H5MD files, which many workers fill, or the owner alone if compressed.

A run that resumes keeps the chunks of the file that an earlier run left, and writes everything else
again, since the earlier run may have been killed while HDF5 was writing. For uncompressed chunks a
plan determines where in the file they are. Compressed chunks are where HDF5 put them: the journal
has their offsets, and they are copied into a new file. Run N makes that file as ``NAME.N``, and
renames it over the former one once the journal has the new offsets. So the journal's offsets are
always those of a file that exists, wherever the run is killed, and one copy stays.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, OutputError, PlanError
from mdio.core.files.checks import ENSEMBLE_MANIFEST
from mdio.core.files.locks import TEMPORARY, temporary_for
from mdio.core.files.publish import output_errors
from mdio.core.files.reading import OpenFile
from mdio.core.files.span_checksums import spans_of_row
from mdio.core.files.writing import WrittenFile, copy_bytes, flush
from mdio.core.frames import H5MD_NAMES, FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.chunked.array import inflate
from mdio.layouts.chunked.own import EnsembleWriter
from mdio.layouts.codecs.compressors import quantised_from_option
from mdio.layouts.codecs.quantised import PACKING_CODECS
from mdio.layouts.h5md.disk import ArrayRanges, OutputFile, Writes, check_written, gaps, make_seal
from mdio.layouts.h5md.file import (
    FILTER_ID,
    LIBVER,
    atom_ids,
    chunk_codec,
    chunk_ranges,
    create_column,
    create_file,
    cut_chunks,
    decode_integers,
    encode_chunk,
    gzip_level,
    integer_codec,
    is_aligned,
    link_full_system,
    parse_key,
    power_of_two_step,
    renumber_unordered_steps,
    round_to_step,
    value_path,
    write_edges,
)
from mdio.layouts.h5md.gromacs_topology import TOPOLOGY, write_topology
from mdio.layouts.h5md.io import (
    ARRAYS,
    MANIFEST,
    RUN_FRAMES,
    SPANS,
    Column,
    as_output_error,
    checksum,
    get_flavour,
)
from mdio.layouts.manifest import FULL_SYSTEM, build_manifest, check_group_names
from mdio.layouts.plan import (
    COMPRESSION_NOTE,
    ArrayPlan,
    LayoutPlan,
    WriteOptions,
    plan_arrays,
)
from mdio.layouts.writer import (
    CHUNK_OPTIONS,
    EncodedChunk,
    LayoutWriter,
    OutputMeta,
    PieceRecord,
    SelectIntact,
    WriterFacts,
)

BATCH_NBYTES = 2 << 20
"""Approximate bytes of the chunks that are encoded and written at a time."""


class H5MDWriter(LayoutWriter):
    """Writes an H5MD 1.1 file.

    Space for uncompressed chunks, and for contiguous arrays, is allocated when the file is created,
    and every worker writes its own with plain system calls; HDF5 has the file open only before and
    after. Compressed chunks are appended as they come, by the owner of the open file.

    With a precision, numbers are rounded to multiples of the largest power of two that is not above
    it: the error is at most half of it, and the floats compress well. Or they become integers of
    exactly that precision (``bitpack``, ``rigid``), which HDF5 reads with a filter of mdio's.
    """

    facts = WriterFacts(
        own_options=CHUNK_OPTIONS | {"contiguous", "mpio"},
        ensemble="mdio.layouts.h5md.writer:H5MDEnsemble",
        mpi_writer="mdio.layouts.h5md.mpio:H5MDMPIOWriter",
        resumes=True,
    )
    columns: dict[str, Column]
    """Time, step and box of all frames."""
    _ranges: dict[tuple[str, str], ArrayRanges]
    """Where the chunks of each array are; of compressed ones once all are stored."""
    _handle: WrittenFile | None = None
    _handle_file: OutputFile | None = None
    _handle_earlier: EarlierRunChunks | None = None
    _writes: Writes | None = None
    """Offsets and lengths of all writes except chunks, in a file that this run made."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self.facts = self.facts._replace(
            parallel_store=self._uncompressed, batch_frames=self._batch_frames
        )
        self._arrays = {(a.group, a.field): a for a in plan.arrays}
        self._crcs, self._spans = {}, {}
        for key, array in self._arrays.items():
            n_rows = math.ceil(plan.n_frames / array.chunk_frames)
            self._crcs[key] = np.zeros((n_rows, array.n_atom_chunks), "<u4")
            if self._uncompressed:
                per_row = spans_of_row(12 * array.chunk_atoms)
                shape = (plan.n_frames, array.n_atom_chunks, per_row)
                self._spans[key] = np.zeros(shape, "<u4")
        self.manifest_crc32c = 0
        """Checksum of the text of the manifest, once it is written."""
        self._stored = {key: np.zeros(crcs.shape, np.bool_) for key, crcs in self._crcs.items()}

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        check_group_names(options.groups)
        if get_flavour(options.flavour).factors and not integer_codec(options.compression):
            options.refuse_rounding(f"--flavour {options.flavour}, which has units of its own")
            if options.precision not in (None, "auto", "none"):
                raise PlanError(
                    f"--flavour {options.flavour} stores floats in its own units, which "
                    "--precision does not know; leave one of them out"
                )
        encoding = (
            _integer_encoding(info, options)
            if integer_codec(options.compression)
            else _float_encoding(options)
        )
        is_compressed = encoding["compression"] is not None
        if options.contiguous:
            options = _contiguous_options(info, options)
        quantised = integer_codec(encoding["compression"]) is not None
        plan = plan_arrays(info, options, quantised=quantised).replace(
            layout="h5md",
            writes_chunks=True,
            flavour=options.flavour,
            direct=None if is_compressed else False,
            **encoding,
        )
        if is_compressed:  # where compressed chunks begin is not known beforehand
            plan = plan.replace(alignment_nbytes=1, padding=0.0)
        nbytes = info.n_frames * (8 + 8 + 24 + 36) + 2 * options.topology_nbytes
        for array in plan.arrays:
            n_chunks = math.ceil(info.n_frames / array.chunk_frames) * array.n_atom_chunks
            nbytes += n_chunks * CHUNK_ENTRY_NBYTES
            block_nbytes, n_blocks = array.chunk_nbytes, n_chunks
            if array.contiguous:
                block_nbytes, n_blocks = 12 * array.n_atoms * info.n_frames, 1
            alignment = plan.stripes.alignment_nbytes
            if is_aligned(array, alignment):
                block_nbytes = math.ceil(block_nbytes / alignment) * alignment
            nbytes += n_blocks * block_nbytes
            if not is_compressed:
                per_row = array.n_atom_chunks * spans_of_row(12 * array.chunk_atoms)
                nbytes += 4 * info.n_frames * per_row
        return plan.replace(nbytes=nbytes)

    @property
    def _batch_frames(self) -> int | None:
        """Frames of a batch of whole chunks, so that one is written while the next is read."""
        if not self.plan.writing.direct:
            return None
        chunk = math.lcm(*(array.chunk_frames for array in self.plan.arrays))
        nbytes = chunk * sum(12 * array.n_atoms for array in self.plan.arrays)
        return chunk * max(1, BATCH_NBYTES // nbytes)

    @property
    def _uncompressed(self) -> bool:
        return self.plan.compression is None

    def create(self) -> None:
        """Make the file with all its groups, and space for everything whose size is known."""
        self._create(self.path)

    def _create(self, path: Path) -> None:
        with as_output_error(self.path):
            if self._uncompressed:
                self._writes = []
            self._ranges, self.columns = create_file(
                path, self.plan, atom_ids(self.meta), self._writes
            )
            if not self._uncompressed:
                self._handle_file = OutputFile(path, "r+", libver=LIBVER)

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        """Write everything but the chunks again, and copy compressed chunks."""
        if self._uncompressed:
            with as_output_error(self.path):
                self._ranges, self.columns = write_all_but_chunks(
                    self.path, self.plan, atom_ids(self.meta)
                )
            return select_intact(records, self._is_intact)
        earlier_chunks = self._handle_earlier = EarlierRunChunks(self.path, records)
        copied: list[PieceRecord] = []
        try:
            self._create(earlier_chunks.new)
            for record in select_intact(records, partial(earlier_chunks.is_intact, plan=self.plan)):
                for item in earlier_chunks.read(record, self.plan):
                    self.store(item)
                copied += (piece for piece, _ in self.written_pieces(record))
            with as_output_error(self.path):
                assert self._handle_file is not None
                self._handle_file.flush()
                flush(earlier_chunks.new)
                flush(earlier_chunks.new.parent)
        except BaseException:
            earlier_chunks.new.unlink(missing_ok=True)
            raise
        return copied

    def finish_moving(self) -> None:
        if self._handle_earlier is not None:
            with as_output_error(self.path):
                self._handle_earlier.replace()

    def _is_intact(self, record: PieceRecord) -> bool:
        with self._open_for_reading() as file, suppress(CorruptLayoutError):
            for chunk_key, crcs in record.crcs.items():
                key, position = parse_key(chunk_key)
                offset, nbytes = (int(table[position]) for table in self._ranges[key])
                if checksum(file, offset, nbytes) != crcs[0]:
                    return False
            return True
        return False

    def written_pieces(self, record: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        run = 1 if self._handle_earlier is None else self._handle_earlier.run
        record = record if self._uncompressed else add_offsets(self._file, record, self.plan, run)
        return [(record, [self.path])]

    @property
    def _file(self) -> h5py.File:
        if self._handle_file is None:
            raise OutputError(f"{self.path}: compressed chunks are stored by the owner of the file")
        return self._handle_file.file

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        items = []
        for (group, field), array in self._arrays.items():
            codec = chunk_codec(self.plan, field)
            for row, column, shape, chunk in cut_chunks(
                array, start, self._values(block, group, field)
            ):
                data, crcs = encode_chunk(chunk, codec, shape)
                items.append(EncodedChunk(f"{group}/{field}/{row}/{column}", data, crcs))
        return items

    def _values(self, block: FrameBlock, group: str, field: str) -> NDArray[np.float32]:
        """Return the numbers of one array as they are stored; floats are rounded as planned."""
        values = block.present()[field]
        if group != FULL_SYSTEM:
            values = np.take(values, (self.meta.groups or {})[group], axis=1)
        step = self.plan.rounding_step(field)
        if step is not None and self.plan.compression not in PACKING_CODECS:
            values = round_to_step(values, step)
        return get_flavour(self.plan.flavour).to_stored_units(field, values)

    @property
    def _raw_file(self) -> WrittenFile:
        """The file, open for writing without HDF5."""
        if self._handle is None:
            with as_output_error(self.path):
                self._handle = WrittenFile(
                    self.path, os.O_RDWR, direct=self.plan.writing.direct or False
                )
        return self._handle

    def _open_for_reading(self) -> OpenFile:
        return OpenFile(self.path, CorruptLayoutError)

    def store(self, item: EncodedChunk) -> None:
        key, (row, column) = parse_key(item.key)
        if self._uncompressed:
            with as_output_error(self.path):
                self._raw_file.write(int(self._ranges[key][0][row, column]), *item.parts)
            return
        array = self._arrays[key]
        file = self._file
        assert self._handle_file is not None
        with as_output_error(self.path), self._handle_file.raising_disk_errors():
            dataset = file[value_path(*key)].id
            first = (row * array.chunk_frames, column * array.chunk_atoms, 0)
            dataset.write_direct_chunk(first, item.data)

    def drain(self) -> None:
        if self._handle is not None:
            with as_output_error(self.path):
                self._handle.drain()

    def commit(self, record: PieceRecord) -> None:
        for chunk_key, crcs in record.crcs.items():
            key, (row, column) = parse_key(chunk_key)
            self._crcs[key][row, column] = crcs[0]
            self._stored[key][row, column] = True
            if key in self._spans:
                chunk_frames = self._arrays[key].chunk_frames
                rows = self._spans[key][row * chunk_frames : (row + 1) * chunk_frames, column]
                rows[...] = np.reshape(crcs[1:], (-1, rows.shape[1]))[: len(rows)]
        for name, column_of_file in self.columns.items():
            rows = getattr(record, name)
            column_of_file.write(self._raw_file.fileno(), record.start, rows, self.path)
        if self._handle_file is not None:
            with as_output_error(self.path):
                self._handle_file.flush()

    def _check_all_chunks(self) -> None:
        """Raise OutputError unless all chunks were stored."""
        for (group, field), is_stored in self._stored.items():
            if not is_stored.all():
                row, column = (int(n) for n in np.argwhere(~is_stored)[0])
                array = self._arrays[group, field]
                first = row * array.chunk_frames
                last = min(first + array.chunk_frames, self.plan.n_frames) - 1
                raise OutputError(
                    f"{self.path}: {int((~is_stored).sum())} of {is_stored.size} chunks of {field} "
                    f"of {group} were not stored, the first that of frames {first} to {last}, "
                    f"atoms from {column * array.chunk_atoms} on; convert again"
                )

    def finish(self) -> None:
        """Add edges, checksums, the manifest and, last, the seal; flush and close."""
        self._check_all_chunks()
        with as_output_error(self.path):
            output = self._handle_file or OutputFile(self.path, "r+", self._writes, libver=LIBVER)
            self._handle_file = output
            with output.raising_disk_errors():
                self._write_metadata(output.file)
            self._handle_file = None
            output.close()
            with self._open_for_reading() as file:
                seal = make_seal(file, self._ranges.values(), self._writes)
                self._raw_file.write(file.nbytes, seal)
            os.fsync(self._raw_file.fileno())
            check_written(self.path, self.manifest_crc32c, self._ranges.values(), self._writes)
        self.abort()

    def _write_metadata(self, file: h5py.File) -> None:
        """Write everything but the frames that is still missing, the manifest last."""
        columns = self.columns
        with self._open_for_reading() as source:
            crcs = {name: column.checksum(source) for name, column in columns.items()}
            has_box = write_edges(file, columns["box"], source, get_flavour(self.plan.flavour))
            renumber_unordered_steps(file, columns["step"], source)
        link_full_system(file, self.plan)
        table_crcs = self._write_tables(file)
        if self.meta.topology is not None:
            data = np.frombuffer(self.meta.topology.to_bytes(), np.uint8)
            create_column(file, TOPOLOGY, data.shape, "u1")
            file[TOPOLOGY][...] = data
            crcs["topology"] = crc32c(data)
            write_topology(file, self.meta.topology, FULL_SYSTEM)
        extra = {"has_box": has_box, "column_crc32c": crcs, "table_crc32c": table_crcs}
        manifest = build_manifest(self.plan, self.meta, **extra)
        text = json.dumps(manifest).encode()
        self.manifest_crc32c = crc32c(text)
        file.create_dataset(MANIFEST, data=text, dtype=h5py.string_dtype(length=len(text)))

    def _write_tables(self, file: h5py.File) -> dict[str, int]:
        """Write checksums, offsets and sizes of chunks; see `mdio.layouts.h5md.io`.

        Returns the crc32c of each table of checksums by name.
        """
        table_crcs: dict[str, int] = {}
        for (group, field), array in self._arrays.items():
            name = f"{group}/{H5MD_NAMES[field]}"
            parent = file.create_group(f"{ARRAYS}/{name}")
            tables: dict[str, NDArray[Any]] = {"crc32c": self._crcs[group, field]}
            if self._uncompressed:
                tables[SPANS] = self._spans[group, field]
            table_crcs |= {f"{name}/{key}": crc32c(table) for key, table in tables.items()}
            if not self._uncompressed:
                self._ranges[group, field] = chunk_ranges(file[value_path(group, field)])
                tables["nbytes"] = self._ranges[group, field][1]
            if array.contiguous:
                parent.attrs[RUN_FRAMES] = array.chunk_frames
            else:
                tables["offset"] = self._ranges[group, field][0]
            for key, table in tables.items():
                create_column(parent, key, table.shape, table.dtype.str)
                parent[key][...] = table
        return table_crcs

    def abort(self) -> None:
        if self._handle_file is not None:
            file, self._handle_file = self._handle_file, None
            with suppress(*FOREIGN_ERRORS):  # the file is about to be removed
                file.close()
        if self._handle is not None:
            with suppress(OSError):  # the file is flushed, or about to be removed
                self._handle.close()
            self._handle = None


def _contiguous_options(info: TrajectoryInfo, options: WriteOptions) -> WriteOptions:
    """Return the options for contiguous arrays; raises PlanError for those that need chunks."""
    precision = None if options.precision in ("auto", "none") else options.precision
    options.refuse_rounding("--contiguous")
    for option, value in (
        ("--compression", options.compression),
        ("--precision", precision),
        ("--chunk-atoms", options.chunk_atoms),
    ):
        if value is not None:
            raise PlanError(
                f"--contiguous stores every array in one piece, and {option} {value} needs chunks; "
                "leave one of them out"
            )
    return replace(options, chunk_atoms=info.n_atoms)


CHUNK_ENTRY_NBYTES = 12 + 64
"""Bytes of a chunk in our tables and, approximately, in HDF5's index."""


def _float_encoding(options: WriteOptions) -> dict[str, Any]:
    level = gzip_level(options.compression)
    steps = {
        name: power_of_two_step(step, f"--precision-{name}")
        for name, step in options.field_precisions.items()
    }
    precision, source = None, None
    if options.precision not in (None, "auto", "none"):
        precision, source = power_of_two_step(float(options.precision)), "asked"
    if level is None and (steps or precision is not None):
        level = gzip_level("gzip")
    return {
        "compression": None if level is None else f"gzip:{level}",
        "precision": precision,
        "precision_source": source,
        "field_precisions": steps,
    }


def _integer_encoding(info: TrajectoryInfo, options: WriteOptions) -> dict[str, Any]:
    name, requested = integer_codec(options.compression), options.precision
    precision, source = None, None
    if isinstance(requested, float | int):
        precision, source = float(requested), "asked"
        quantised_from_option(precision, source, name)  # raises for an invalid step
    elif requested != "none" and info.xtc_integers and info.precision is not None:
        precision, source = info.precision, "xtc"
    elif not options.field_precisions:
        raise PlanError(
            f"--compression {name} stores integers, and these are floats, as of a source without a "
            "precision, or after --pbc, --center or --fit; give --precision STEP, or take "
            "--compression gzip"
        )
    if get_flavour(options.flavour).factors and precision is not None:
        source = "asked"  # in other units the last bits are not those of the XTC
    note = (
        f"{COMPRESSION_NOTE}other programs read {name} by HDF5's filter {FILTER_ID}, which comes "
        "with mdio's sources (packaging/hdf5-filter); --compression gzip is for all programs"
    )
    return {
        "compression": name,
        "precision": precision,
        "precision_source": source,
        "notes": (note,),
    }


def _temporary_path(path: Path, ending: str) -> Path:
    """Return the path of another temporary file of the run whose temporary file is `path`."""
    match = TEMPORARY.fullmatch(path.name)
    assert match is not None
    return temporary_for(path.with_name(f"{match[1]}.{ending}"), path)


def write_all_but_chunks(
    path: Path, plan: LayoutPlan, atom_ids: Mapping[str, NDArray[np.int64]]
) -> tuple[dict[tuple[str, str], ArrayRanges], dict[str, Column]]:
    """Restore an unfinished file, except its chunks, to what it was when it was created."""
    new_file = _temporary_path(path, "new")
    new_file.unlink(missing_ok=True)
    try:
        ranges, columns = create_file(new_file, plan.replace(direct=False), atom_ids)
        with new_file.open("rb", buffering=0) as source, path.open("r+b", buffering=0) as file:
            size = os.fstat(source.fileno()).st_size
            file.truncate(size)
            for begin, stop in gaps(ranges.values(), size):
                copy_bytes(source.fileno(), begin, stop - begin, file.fileno(), begin)
    finally:
        new_file.unlink(missing_ok=True)
    return ranges, columns


def add_offsets(file: h5py.File, record: PieceRecord, plan: LayoutPlan, run: int) -> PieceRecord:
    """Return the record with offsets and sizes of its compressed chunks in the file of a run."""
    ranges = []
    for chunk_key in record.crcs:
        key, (row, column) = parse_key(chunk_key)
        array = plan.array(*key)
        first = (row * array.chunk_frames, column * array.chunk_atoms, 0)
        info = file[value_path(*key)].id.get_chunk_info_by_coord(first)
        ranges.append((info.byte_offset, info.size))
    extra = {"places": np.array(ranges, "<i8"), "run": np.array([run], "<i8")}
    return replace(record, nbytes=sum(nbytes for _, nbytes in ranges), extra=extra)


def _check_chunk(
    data: NDArray[np.uint8], crc: int, array: ArrayPlan, plan: LayoutPlan, name: str
) -> None:
    """Decode a chunk, and raise CorruptLayoutError if it is not that of the checksum."""
    decoded = np.empty((array.chunk_frames, array.chunk_atoms, 3), "<f4")
    codec = chunk_codec(plan, array.field)
    try:
        (inflate if isinstance(codec, int) else decode_integers)(data, decoded)
    except ValueError as error:
        raise CorruptLayoutError(f"{name}: {error}") from error
    if crc32c(decoded) != crc:
        raise CorruptLayoutError(f"{name} has changed since it was written")


class EarlierRunChunks:
    """Compressed chunks that earlier runs stored, and the new file into which they are copied."""

    def __init__(self, path: Path, records: Sequence[PieceRecord]) -> None:
        self._path = path
        self.run = 1 + max(int(record.extra["run"][0]) for record in records)
        self._intact: set[int] = set()
        """First frames of the pieces that were compared with their checksums."""
        self.new = self._name(self.run)
        self.new.unlink(missing_ok=True)  # of a run that was killed while it copied

    def _name(self, run: int) -> Path:
        return _temporary_path(self._path, str(run))

    def _file(self, run: int) -> Path:
        """Return the path of the file of a run, which may have been renamed."""
        return self._name(run) if os.path.lexists(self._name(run)) else self._path

    def read(self, record: PieceRecord, plan: LayoutPlan) -> Iterator[EncodedChunk]:
        """Yield the chunks of a piece, each checked once; raises CorruptLayoutError."""
        path = self._file(int(record.extra["run"][0]))
        with OpenFile(path, CorruptLayoutError) as file:
            chunks = zip(record.crcs.items(), record.extra["places"].tolist(), strict=True)
            for (key, crcs), (offset, nbytes) in chunks:
                data = file.array(offset, nbytes)
                if record.start not in self._intact:  # decoding takes most of the time
                    array = plan.array(*key.split("/")[:2])
                    _check_chunk(data, crcs[0], array, plan, f"{path}: chunk {key}")
                yield EncodedChunk(key, data, crcs)

    def is_intact(self, record: PieceRecord, plan: LayoutPlan) -> bool:
        try:
            deque(self.read(record, plan), maxlen=0)
        except CorruptLayoutError:
            return False
        self._intact.add(record.start)
        return True

    def replace(self) -> None:
        """Put the new file, which has all chunks, in the place of the former one."""
        self.new.replace(self._path)
        for run in range(1, self.run):  # of a run that was killed before it removed them
            self._name(run).unlink(missing_ok=True)


class H5MDEnsemble(EnsembleWriter):
    """Makes a folder of H5MD files, one for each trajectory."""

    suffix = ".h5md"

    def write_manifest(self, labels: Sequence[str]) -> None:
        """Write the manifest, which names the files; raises OutputError."""
        path = self.path / ENSEMBLE_MANIFEST
        with output_errors(path):
            path.write_text(json.dumps(self.manifest(labels)))
            flush(path)
