"""Writing Zarr trees: a shard per piece, written by the worker that encoded it.

Also chooses how positions are stored: as integers of a source, rounded, or as floats.

Unless the user asks, floats are compressed only where reading bytes takes longer than decoding
them. Measured on one core (EPYC, 2.25 GHz) with frames of 3,341 and 16,122 atoms in full precision:
with lz4 after a shuffle of bytes, chunks have 0.84 of their decoded size, and 5.5 to 8 GB/s are
decoded; with zstd 0.90 to 0.93, and 1.6 GB/s. So lz4 saves time where a process reads less than
(1 - 0.84) of 5.5 GB/s.

Integers are bit-packed, or packed by bonds and angles, which hardly change (``rigid``). Measured by
`bench/codecs.py` on one core (EPYC with AVX-512, load 25): rigid takes 0.8 (protein) to 1.4 (in
water) bytes per atom less, and 3.7 and 3.6 ns per atom more to decode. So it saves time where a
process reads less than 0.8 bytes in 3.7 ns to 1.4 bytes in 3.6 ns, as is usual through a network.
On other storage rigid is used if bit-packed integers with the source's own step would take more
than 0.9 of the source's bytes, so that no output is larger than its source, at little cost (4,000
frames of 16,122 atoms on a local disk took two workers 1.30 s bit-packed, 1.36 s with rigid).
Single frames are read several times faster from bit-packed chunks, which outputs ``--for frames``
have.
Those for a selection have ``rigid-seek``, which decodes fewer atoms besides the selected ones, in
2 to 4% more bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.boxes import edges_from_boxes, periodic_axes
from mdio.core.errors import CorruptLayoutError, OutputError, PlanError, SourceError
from mdio.core.files.publish import flush_tree, output_errors
from mdio.core.files.remote.outputs import is_sent_placeholder
from mdio.core.files.span_checksums import spans_of_row, total_and_row_checksums
from mdio.core.files.store import is_network, store_at
from mdio.core.files.writing import WrittenFile
from mdio.core.frames import FrameBlock, Scratch, TrajectoryInfo
from mdio.core.kernels.checks import Buffer
from mdio.layouts.chunked.own import EnsembleWriter
from mdio.layouts.codecs.compressors import (
    PRESETS,
    compress,
    option_with_level,
    quantised_from_option,
)
from mdio.layouts.codecs.quantised import decode_chunk, encode_chunk
from mdio.layouts.manifest import FULL_SYSTEM, build_manifest, check_group_names
from mdio.layouts.plan import (
    COMPRESSION_NOTE,
    SEEK_CODEC,
    ArrayPlan,
    CodecShares,
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
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.own import CRC_NBYTES, MISSING_CHUNK, Bytes, NumberArray, Numbers, Shard
from mdio.layouts.zarr.tree import (
    COLUMNS,
    DTYPES,
    METADATA,
    TOPOLOGY,
    ArrayMetadata,
    ColumnName,
    array_nodes,
    atom_arrays,
    column_arrays,
    column_metadata,
    count_files,
    group_metadata,
    group_nodes,
    table_arrays,
    table_path,
)

FloatArray = NDArray[np.float32]
_scratch = Scratch()


def pack_shard(chunks: Sequence[Bytes], n_chunks: int, crcs: Sequence[int]) -> list[Bytes]:
    """Return the bytes of a shard, in parts that follow one another in the file.

    `chunks`: encoded, in C order; they become parts without a copy. `n_chunks`: entries of the
    index; chunks that are not given are missing. `crcs`: crc32c of each of `chunks`.
    """
    index = np.full((n_chunks, 2), MISSING_CHUNK, "<u8")
    parts = []
    offset = 0
    for number, (chunk, crc) in enumerate(zip(chunks, crcs, strict=True)):
        index[number] = offset, chunk.nbytes + CRC_NBYTES
        parts += [chunk, _crc_bytes(crc)]
        offset += chunk.nbytes + CRC_NBYTES
    index_bytes = index.reshape(-1).view(np.uint8)
    return [*parts, index_bytes, _crc_bytes(kernels.crc32c(index_bytes))]


def _crc_bytes(crc: int) -> Bytes:
    return np.frombuffer(crc.to_bytes(CRC_NBYTES, "little"), np.uint8)


def write_file(path: Path, *parts: Buffer) -> None:
    """Write a file from its parts, one after the other; raises OutputError."""
    with output_errors(path), WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(0, *parts)


def write_numbers(path: Path, metadata: ArrayMetadata, rows: Numbers) -> int:
    """Write one file of an array without shards, padded with zeros; return its crc32c."""
    chunk = np.zeros(metadata.file_shape, DTYPES[metadata.dtype])
    chunk[: len(rows)] = rows
    crc = kernels.crc32c(chunk)
    write_file(path, chunk.reshape(-1).view(np.uint8).data, crc.to_bytes(CRC_NBYTES, "little"))
    return crc


class TableWriter:
    """Writes an array of numbers whose rows come in any order: each file once it is complete."""

    def __init__(self, folders: Sequence[Path], metadata: ArrayMetadata) -> None:
        self.folders, self.metadata = folders, metadata
        self._incomplete: dict[int, tuple[Numbers, int]] = {}
        """Rows of files that are not complete yet, and how many are missing."""
        self.crcs = [0] * metadata.n_files

    def add(self, start: int, rows: Numbers) -> None:
        """Take rows from `start` on, each row once."""
        size, stop = self.metadata.file_shape[0], start + len(rows)
        for number in range(start // size, (stop - 1) // size + 1):
            begin = number * size
            n_rows = min(size, self.metadata.shape[0] - begin)
            first, last = max(start, begin), min(stop, begin + n_rows)
            if number in self._incomplete:
                buffer, n_missing = self._incomplete[number]
            else:
                shape = (n_rows, *self.metadata.shape[1:])
                buffer, n_missing = np.zeros(shape, DTYPES[self.metadata.dtype]), n_rows
            buffer[first - begin : last - begin] = rows[first - start : last - start]
            self._incomplete[number] = buffer, n_missing - (last - first)
            if n_missing == last - first:
                del self._incomplete[number]
                self.write(number, buffer)

    def write(self, number: int, rows: Numbers) -> None:
        for folder in self.folders:
            file = folder / self.metadata.file_name(number)
            self.crcs[number] = write_numbers(file, self.metadata, rows)


class _BoxWriter(TableWriter):
    """Writes boxes, and the edges computed from them."""

    edges: TableWriter

    def write(self, number: int, rows: Numbers) -> None:
        super().write(number, rows)
        self.edges.write(number, edges_from_boxes(rows))


class ColumnWriter:
    """Gathers the per-frame numbers of the pieces."""

    def __init__(self, root: Path, plan: LayoutPlan) -> None:
        self.root = root
        self.periodic = np.zeros(3, bool)
        """Axes along which any frame is periodic."""
        self.time_first_ps: float | None = None
        self.time_last_ps: float | None = None
        self._paths, self._n_frames = column_arrays(plan.array_keys), plan.n_frames
        self._tables: dict[ColumnName, TableWriter] = {}
        for name in COLUMNS:
            folders = [root / path for path, column in self._paths.items() if column == name]
            writer_class = _BoxWriter if name == "box" else TableWriter
            self._tables[name] = writer_class(folders, column_metadata(plan.n_frames, name))
        cast(_BoxWriter, self._tables["box"]).edges = self._tables["edges"]

    @property
    def crcs(self) -> dict[str, list[int]]:
        return {path: self._tables[name].crcs for path, name in self._paths.items()}

    def add(self, record: PieceRecord) -> None:
        self.periodic |= periodic_axes(record.box)
        if np.isfinite(record.time[[0, -1]]).all():  # JSON has no NaN or infinity
            if record.start == 0:
                self.time_first_ps = float(record.time[0])
            if record.stop == self._n_frames:
                self.time_last_ps = float(record.time[-1])
        self._tables["time"].add(record.start, record.time)
        self._tables["source_step"].add(record.start, record.step)
        self._tables["box"].add(record.start, record.box)

    def finish(self) -> None:
        """Write H5MD's steps: those of the source if they increase, else the frame numbers."""
        steps = self._tables["source_step"]
        increasing, last = True, None
        with Folder(self.root) as root:
            name = str(steps.folders[0].relative_to(self.root))
            source = NumberArray(root, name, steps.metadata)
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


class ZarrWriter(LayoutWriter):
    """Writes ``NAME.zarr``; its contents are described in `mdio.layouts.zarr.tree`."""

    facts = WriterFacts(
        own_options=CHUNK_OPTIONS,
        ensemble="mdio.layouts.zarr.writer:ZarrEnsemble",
        resumes=True,
        writes_files_once=True,
        parallel_store=True,
        packs_integers=True,
    )
    _handle_shard: WrittenFile | None = None
    """The shard that was stored last, which a thread may still be writing."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._columns = ColumnWriter(path, plan)
        self._tables = {
            name: TableWriter([path / name], metadata)
            for name, metadata in table_arrays(plan).items()
        }
        self._stored: set[int] = set()

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        check_group_names(options.groups)
        encoding = choose_encoding(info, options)
        plan = plan_arrays(info, options, quantised=encoding.precision is not None)
        arrays = tuple(
            replace(array, compression=encoding.by_group.get(array.group))
            if array.field == "positions"
            else array
            for array in plan.arrays
        )
        plan = plan.replace(
            layout="zarr",
            direct=False,
            arrays=arrays,
            precision=encoding.precision,
            precision_source=encoding.precision_source,
            compression=encoding.compression,
            notes=encoding.notes,
        )
        atom_arrays(plan)  # raises for unavailable compressors
        return plan.replace(n_files=count_files(plan), nbytes=plan.nbytes + _overhead_nbytes(plan))

    def create(self) -> None:
        """Make the folders and all metadata except the root's."""
        with output_errors(self.path):
            self.path.mkdir(exist_ok=True)
            nodes = group_nodes(self.plan) | array_nodes(self.plan)
            for path, node in nodes.items():
                folder = self.path / path
                folder.mkdir(parents=True, exist_ok=True)
                write_file(folder / METADATA, json.dumps(node).encode())

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        """Remove the manifest, write the metadata again and keep intact shards."""
        (self.path / METADATA).unlink(missing_ok=True)
        self.create()
        return select_intact(records, self._is_intact)

    def written_pieces(self, record: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        return [(record, [self.path / key for key in record.crcs])]

    def _is_intact(self, record: PieceRecord) -> bool:
        """Return whether the stored chunks of a piece have their checksums.

        Shards that were sent to a store count as intact.
        """
        piece_number = record.start // self.plan.piece_frames
        try:
            with Folder(self.path) as root:
                for path, (array, metadata) in atom_arrays(self.plan).items():
                    name = f"{path}/{metadata.file_name(piece_number)}"
                    if is_sent_placeholder(self.path / name):
                        continue
                    n_rows = math.ceil((record.stop - record.start) / array.chunk_frames)
                    n_chunks = n_rows * array.n_atom_chunks
                    crcs = record.crcs[name]
                    crcs = crcs[:n_chunks] if metadata.uncompressed else crcs[n_chunks:]
                    shard = Shard(root, name, int(np.prod(metadata.chunks_per_file)))
                    try:
                        if any(shard.crc32c(chunk) != crc for chunk, crc in enumerate(crcs)):
                            return False
                    finally:
                        shard.close()
        except (CorruptLayoutError, SourceError):
            return False
        return True

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        items = []
        piece_number = start // self.plan.piece_frames
        groups = self.meta.groups or {}
        for path, (array, metadata) in atom_arrays(self.plan).items():
            values = block.present()[array.field]
            if array.group != FULL_SYSTEM:
                group_values = np.empty((block.n_frames, array.n_atoms, 3), np.float32)
                atoms = np.asarray(groups[array.group], np.int64)
                kernels.gather_atoms(values, atoms, group_values)
                values = group_values
            shard, crcs = _encode_shard(values, array, metadata)
            items.append(EncodedChunk(f"{path}/{metadata.file_name(piece_number)}", shard, crcs))
        return items

    def store(self, item: EncodedChunk) -> None:
        path = self.path / item.key
        if item.file is not None:
            store_at(item.file).link(item.file, path)
            return
        self.drain()
        with output_errors(path):
            direct = self.plan.writing.direct or False
            self._handle_shard = WrittenFile(
                path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=direct
            )
            self._handle_shard.write(0, *item.parts)

    def drain(self) -> None:
        shard, self._handle_shard = self._handle_shard, None
        if shard is not None:
            with output_errors(shard.path):
                shard.close()

    def abort(self) -> None:
        with suppress(OutputError):  # it is about to be removed
            self.drain()

    def commit(self, record: PieceRecord) -> None:
        if record.start in self._stored:
            return
        piece_number = record.start // self.plan.piece_frames
        for path, (array, metadata) in atom_arrays(self.plan).items():
            crcs = np.array(record.crcs[f"{path}/{metadata.file_name(piece_number)}"], "<u4")
            first = record.start // array.chunk_frames
            n_rows = math.ceil((record.stop - record.start) / array.chunk_frames)
            decoded_crcs, further_crcs = np.split(crcs, [n_rows * array.n_atom_chunks])
            key = array.group, array.field
            self._tables[table_path("crc32c", *key)].add(first, decoded_crcs.reshape(n_rows, -1))
            if metadata.uncompressed:
                span_crcs = further_crcs.reshape(record.stop - record.start, -1)
                self._tables[table_path("crc32c_pieces", *key)].add(record.start, span_crcs)
            else:
                stored_crcs = further_crcs.reshape(n_rows, -1)
                self._tables[table_path("crc32c_stored", *key)].add(first, stored_crcs)
        self._columns.add(record)
        self._stored.add(record.start)

    def finish(self) -> None:
        """Check that every piece was stored, write the rest and, last, the manifest.

        Publication flushes everything before the output gets its name.
        """
        self._check_complete(self._stored)
        self._columns.finish()
        nodes = group_nodes(self.plan, self._columns.periodic.tolist())
        for path, node in nodes.items():
            write_file(self.path / path / METADATA, json.dumps(node).encode())
        nodes |= array_nodes(self.plan)
        tables = {path: table.crcs for path, table in self._tables.items()}
        if self.meta.topology is not None:
            data = np.frombuffer(self.meta.topology.to_bytes(), np.uint8)
            metadata = ArrayMetadata.of_rows(data.shape, "uint8")
            file = self.path / TOPOLOGY / metadata.file_name(0)
            tables[TOPOLOGY] = [write_numbers(file, metadata, data)]
        manifest = build_manifest(
            self.plan,
            self.meta,
            has_box=bool(self._columns.periodic.any()),
            time_first_ps=self._columns.time_first_ps,
            time_last_ps=self._columns.time_last_ps,
            fields=list(dict.fromkeys(array.field for array in self.plan.arrays)),
            file_crc32c=self._columns.crcs | tables,
            node_crc32c={
                path: kernels.crc32c(json.dumps(node).encode()) for path, node in nodes.items()
            },
            nodes={path: nodes[path] for path in atom_arrays(self.plan)},
            nbytes=sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file()),
        )
        root = group_metadata({"mdio": manifest})
        write_file(self.path / METADATA, json.dumps(root).encode())


def _overhead_nbytes(plan: LayoutPlan) -> int:
    """Return the bytes of per-frame numbers, tables, and shards' checksums and indexes."""
    total = 0
    numbers = [
        column_metadata(plan.n_frames, name) for name in column_arrays(plan.array_keys).values()
    ]
    for metadata in (*numbers, *table_arrays(plan).values()):
        total += metadata.n_files * (metadata.chunk_nbytes + 4)
    for array, metadata in atom_arrays(plan).values():
        n_chunks = math.ceil(plan.n_frames / array.chunk_frames) * array.n_atom_chunks
        total += 4 * n_chunks
        total += len(plan.write_tasks()) * (16 * int(np.prod(metadata.chunks_per_file)) + 4)
    return total


def _encode_shard(
    values: FloatArray, array: ArrayPlan, metadata: ArrayMetadata
) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """Return the parts of a shard of an array, and its checksums.

    The checksums are first the crc32c of each decoded chunk; then those of each stored chunk or, if
    chunks are not compressed, those of the spans of each frame.
    """
    encoded: list[NDArray[np.uint8]] = []
    decoded_crcs: list[int] = []
    stored_crcs: list[int] = []
    n_spans = spans_of_row(12 * array.chunk_atoms)
    spans = np.empty((len(values), array.n_atom_chunks, n_spans), np.uint32)
    for first in range(0, len(values), array.chunk_frames):
        rows = values[first : first + array.chunk_frames]
        for begin in range(0, array.n_atoms, array.chunk_atoms):
            part = rows[:, begin : begin + array.chunk_atoms]
            chunk = _padded_chunk(part, metadata)
            chunk_bytes = chunk.reshape(-1).view(np.uint8)
            if metadata.quantised is not None:
                encoded.append(np.frombuffer(encode_chunk(chunk, metadata.quantised), np.uint8))
                # Now, while it is in the processor's cache.
                stored_crcs.append(kernels.crc32c(encoded[-1]))
                if metadata.quantised.rule == "xtc":  # lossless: it decodes to the same numbers
                    decoded_crcs.append(kernels.crc32c(chunk_bytes))
                    continue
                decoded = _scratch.buffer("decoded", chunk.nbytes).view(np.float32)
                decoded = decoded.reshape(chunk.shape)
                decode_chunk(encoded[-1].data, chunk.shape[:2], decoded)
                decoded_crcs.append(kernels.crc32c(decoded))
            elif metadata.compressor is not None:
                encoded.append(compress(metadata.compressor, chunk_bytes))
                stored_crcs.append(kernels.crc32c(encoded[-1]))
                decoded_crcs.append(kernels.crc32c(chunk_bytes))
            else:
                encoded.append(chunk_bytes)
                column = begin // array.chunk_atoms
                crc, checksums = total_and_row_checksums(
                    chunk_bytes.reshape(array.chunk_frames, -1)
                )
                stored_crcs.append(crc)
                frame_checksums = np.array(checksums, np.uint32).reshape(-1, n_spans)[: len(part)]
                spans[first : first + len(part), column] = frame_checksums
    shard = pack_shard(encoded, int(np.prod(metadata.chunks_per_file)), stored_crcs)
    if metadata.uncompressed:
        return shard, [*stored_crcs, *spans.reshape(-1).tolist()]
    return shard, decoded_crcs + stored_crcs


def _padded_chunk(part: FloatArray, metadata: ArrayMetadata) -> FloatArray:
    """Return `part`, padded to a whole chunk at the end of frames or atoms.

    Padding is zeros, but in quantised chunks added frames repeat the last, which takes no space.
    """
    if part.shape == metadata.chunk_shape:
        return np.ascontiguousarray(part)
    chunk = np.zeros(metadata.chunk_shape, np.float32)
    chunk[: part.shape[0], : part.shape[1]] = part
    if metadata.quantised is not None:
        chunk[part.shape[0] :] = chunk[part.shape[0] - 1]
    return chunk


FLOAT_CODEC = "lz4"
FLOAT_CODEC_MAX_RATE = "880 MB/s"
COMPACT_CODEC = "rigid"
MAX_COMPACT_SHARE = 0.95
"""Rigid is used only where it takes less than this share of bitpack's bytes."""
COMPACT_CODEC_MAX_RATE = "210 to 390 MB/s"


@dataclass(frozen=True, slots=True)
class Encoding:
    """How positions are stored: the part of a plan that `choose_encoding` chooses."""

    precision: float | None
    precision_source: Literal["asked", "xtc", None]
    compression: str | None
    notes: tuple[str, ...] = ()
    by_group: Mapping[str, str] = field(default_factory=dict)
    """Codecs for the integers of groups, where they differ from `compression`."""


def choose_encoding(info: TrajectoryInfo, options: WriteOptions) -> Encoding:
    """Choose how positions are stored; raises PlanError for options that Zarr does not take."""
    precision, compression = options.precision, options.compression
    compression = None if compression == "none" else compression
    if isinstance(precision, float | int):
        return _choose_integer_codec(Encoding(precision, "asked", compression), options)
    if precision == "none" or not info.xtc_integers:
        return _choose_float_codec(compression, options.file_system)
    if info.precision is None:
        note = "unrounded floats are stored: the XTC files joined here differ in their precision"
        return _choose_float_codec(compression, options.file_system, note)
    try:
        quantised_from_option(info.precision, "xtc", compression)
    except PlanError:
        if precision == "auto":
            raise
        note = f"unrounded floats are stored: --compression {compression} is not for the integers"
        note = f"{note} that the XTC holds"
        return _choose_float_codec(compression, options.file_system, note)
    note = (
        f"{COMPRESSION_NOTE}positions are kept exactly, as the integers that the XTC holds, which "
        "other programs read only where mdio is installed; all read floats (--precision none)"
    )
    return _choose_integer_codec(Encoding(info.precision, "xtc", compression, (note,)), options)


def _choose_integer_codec(encoding: Encoding, options: WriteOptions) -> Encoding:
    """Return `encoding` with the codec for its integers, and a note on why."""
    if encoding.compression is not None:
        option = encoding.compression
        return replace(encoding, compression=PRESETS.get(option, (None, option))[1])
    if options.file_system is None and not options.codec_shares:
        return encoding
    codecs = {
        group: _integer_codec(options, sizes) for group, sizes in options.codec_shares.items()
    }
    codec = codecs.get(FULL_SYSTEM) or _integer_codec(options, None)
    return replace(
        encoding,
        compression=None if codec == "bitpack" else codec,
        notes=(*encoding.notes, *_codec_notes(codec, options)),
        by_group={group: name for group, name in codecs.items() if name != codec},
    )


def _integer_codec(options: WriteOptions, sizes: CodecShares | None) -> str:
    """Return the codec for the integers of one array; `sizes`: its measured sizes."""
    if options.pattern == "frames":
        return "bitpack"
    use_compact = options.file_system is not None and is_network(options.file_system)
    if sizes is not None and sizes.rigid is not None:
        use_compact = use_compact or sizes.rigid < MAX_COMPACT_SHARE * sizes.bitpack
    compact_codec = COMPACT_CODEC if options.pattern == "blocks" else SEEK_CODEC
    return compact_codec if use_compact else "bitpack"


def _codec_notes(codec: str, options: WriteOptions) -> tuple[str, ...]:
    """Return a note on why integers get this codec and how to get the other, or nothing."""
    sizes = options.codec_shares.get(FULL_SYSTEM)
    if codec != "bitpack" and sizes is not None and sizes.rigid is not None:
        return (
            f"{COMPRESSION_NOTE}{codec} is used, which is smaller: a few frames take "
            f"{sizes.rigid:.1f} of the source's bytes; bitpack (--compression fast) takes "
            f"{sizes.bitpack:.1f} of them and is decoded four times as fast",
        )
    gain_text = (
        "about a third fewer bytes, and is read in less time where a process gets less than "
        f"{COMPACT_CODEC_MAX_RATE}"
    )
    if codec != "bitpack":
        return (
            f"{COMPRESSION_NOTE}{codec} is used, which is smaller than bitpack: it takes "
            f"{gain_text}, as on {_storage_name(options.file_system)}; --compression fast "
            "(bitpack) is written and decoded faster",
        )
    if options.file_system is None and (sizes is None or sizes.rigid is None):
        return ()  # the other codec gains little
    size = ""
    if sizes is not None:
        size = f" (a few frames take {sizes.bitpack:.1f} of the source's bytes)"
    storage_text = (
        "" if options.file_system is None else f" from {_storage_name(options.file_system)}"
    )
    return (
        f"{COMPRESSION_NOTE}bitpack is used, the fastest to decode{size}; --compression "
        f"{COMPACT_CODEC} takes {gain_text}{storage_text}",
    )


def _storage_name(file_system: str | None) -> str:
    return "a store" if file_system == "store" else str(file_system)


def _choose_float_codec(compression: str | None, file_system: str | None, *notes: str) -> Encoding:
    option = option_with_level(compression)
    if compression is None and file_system is not None:
        if is_network(file_system):
            option = option_with_level(FLOAT_CODEC)
            reason = (
                f"{COMPRESSION_NOTE}{FLOAT_CODEC} is used, without loss: on "
                f"{_storage_name(file_system)} a process seldom gets the {FLOAT_CODEC_MAX_RATE} "
                "above which decoding takes longer than what it saves; --compression none stores "
                "bytes as they are"
            )
        else:
            reason = f"{COMPRESSION_NOTE}none, as {file_system} is not a network file system"
        notes = (*notes, reason)
    return Encoding(None, None, option, notes)


class ZarrEnsemble(EnsembleWriter):
    """Makes a tree whose groups are trees, one for each trajectory."""

    def write_manifest(self, labels: Sequence[str]) -> None:
        root = group_metadata({"mdio": self.manifest(labels)})
        write_file(self.path / METADATA, json.dumps(root).encode())
        flush_tree(self.path / METADATA)
