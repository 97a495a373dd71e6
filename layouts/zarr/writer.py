"""Writing Zarr trees: a shard a piece, written whole by the worker that encoded it.

How a Zarr tree stores positions: as integers of a source, rounded, or as floats. Pure.

Floats are compressed unasked only where bytes are dearer than decoding them. Measured on one core
(EPYC, 2.25 GHz) with frames of 3,341 and 16,122 atoms in full precision: lz4 after a shuffle of
bytes leaves 0.84 of them and decodes 5.5 to 8 GB/s; zstd leaves 0.90 to 0.93 and decodes 1.6 GB/s.
Reading then takes less time with lz4 if what is read comes at less than (1 - 0.84) of 5.5 GB/s.

Integers are bit-packed, or by what stays the same (``rigid``). Measured by `bench/codecs.py` on one
core of a busy machine (EPYC with AVX-512, load 25): rigid leaves 0.8 (protein) to 1.4 bytes (in
water) an atom fewer, and decodes in 3.7 and 3.6 ns an atom more. Reading takes less time with it if
what is read comes at less than 0.8 bytes in 3.7 ns to 1.4 in 3.6; what lies behind a network seldom
comes faster to each of several processes. On other storage rigid packs what would take more than
0.9 of the XTC bit-packed, so that no output is larger than its source; that costs little (4,000
frames of 16,122 atoms on a local disk took two workers 1.30 s bit-packed and 1.36 s with rigid).
Frames that are read one by one cost it several times as much as bit-packed ones: outputs for that
are not written so unasked. Those for a selection get ``rigid-seek``, by which fewer atoms are
decoded beside the selected ones, in 2 to 4% more bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.errors import CorruptLayoutError, OutputError, PlanError, SourceError
from mdio.core.files.piece_sums import pieces_of_row, sums_of_rows
from mdio.core.files.publish import flush_tree
from mdio.core.files.remote.places import stands_for_sent
from mdio.core.files.store import is_network, store_at
from mdio.core.files.writing import WrittenFile
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.chunked.own import Ensemble
from mdio.layouts.codecs.compressors import MEANT, full_option, quantised_from_option
from mdio.layouts.codecs.quantised import Scratch, decode_chunk, encode_chunk
from mdio.layouts.manifest import FULL_SYSTEM, build_manifest, check_group_names
from mdio.layouts.plan import (
    SEEKING,
    ArrayPlan,
    LayoutPlan,
    PackedShare,
    WriteOptions,
    plan_pieces,
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
from mdio.layouts.zarr.array import (
    SeriesWriter,
    Shard,
    TableWriter,
    pack_shard,
    write_file,
    write_numbers,
    writing,
)
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.tree import (
    METADATA,
    TOPOLOGY,
    ArrayMetadata,
    array_nodes,
    atom_arrays,
    count_files,
    group_metadata,
    group_nodes,
    series_arrays,
    series_metadata,
    table_arrays,
    table_path,
    topology_metadata,
)

FloatArray = NDArray[np.float32]
_scratch = Scratch()


class ZarrWriter(LayoutWriter):
    """Writes ``NAME.zarr``; see `mdio.layouts.zarr.tree` for what is in it."""

    facts = WriterFacts(
        own_options=CHUNK_OPTIONS,
        ensemble="mdio.layouts.zarr.writer:ZarrEnsemble",
        resumes=True,
        writes_files_once=True,
        parallel_store=True,
        packs_integers=True,
    )
    _handle: WrittenFile | None = None
    """The shard that was stored last, which may be on its way."""

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        self._series = SeriesWriter(path, plan)
        self._tables = {
            name: TableWriter([path / name], metadata)
            for name, metadata in table_arrays(plan).items()
        }
        self._stored: set[int] = set()

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan an output of the frames and atoms of `info`. Pure.

        Raises PlanError: a compressor or level that zarr does not have, a precision that is not
        positive, chunks too large to compress, options of other layouts.
        """
        if options.container is not None or options.segments is not None:
            raise PlanError("--container and --segments belong to the layout segments, not to zarr")
        check_group_names(options.groups)
        choice = choose(info, options)
        plan = plan_pieces(info, options, quantised=choice.precision is not None)
        arrays = tuple(
            replace(array, compression=choice.of_groups.get(array.group))
            if array.field == "positions"
            else array
            for array in plan.arrays
        )
        plan = plan.replace(
            layout="zarr",
            direct=False,
            arrays=arrays,
            precision=choice.precision,
            precision_source=choice.precision_source,
            compression=choice.compression,
            notes=choice.notes,
        )
        atom_arrays(plan)  # raises for compressors that are not there
        return plan.replace(n_files=count_files(plan), nbytes=plan.nbytes + _small_nbytes(plan))

    def create(self) -> None:
        """Make the folders and all metadata but that of the root."""
        try:
            self.path.mkdir(exist_ok=True)
            nodes = group_nodes(self.plan) | array_nodes(self.plan)
            for path, node in nodes.items():
                folder = self.path / path
                folder.mkdir(parents=True, exist_ok=True)
                write_file(folder / METADATA, json.dumps(node).encode())
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{self.path}: cannot be made ({error.strerror})") from error

    def find(self, receipts: Sequence[PieceRecord], believe: SelectIntact) -> Sequence[PieceRecord]:
        """Make the tree again, without the manifest that says that it is whole."""
        (self.path / METADATA).unlink(missing_ok=True)
        self.create()
        return believe(receipts, self._holds)

    def settled(self, receipt: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        """Return the receipt, and the shards."""
        return [(receipt, [self.path / key for key in receipt.crcs])]

    def _holds(self, receipt: PieceRecord) -> bool:
        """Compare the chunks of the shards, as they lie on disk, with their checksums.

        Shards that are in a store by now are believed.
        """
        number = receipt.start // self.plan.piece_frames
        try:
            with Folder(self.path) as root:
                for path, (array, metadata) in atom_arrays(self.plan).items():
                    name = f"{path}/{metadata.file_name(number)}"
                    if stands_for_sent(self.path / name):
                        continue
                    n_rows = math.ceil((receipt.stop - receipt.start) / array.chunk_frames)
                    n_chunks = n_rows * array.n_atom_chunks
                    crcs = receipt.crcs[name]
                    crcs = crcs[:n_chunks] if metadata.plain else crcs[n_chunks:]
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
        """Turn one whole piece into a shard of each array. Pure; any process."""
        items = []
        number = start // self.plan.piece_frames
        groups = self.meta.groups or {}
        for path, (array, metadata) in atom_arrays(self.plan).items():
            values = block.present()[array.field]
            if array.group != FULL_SYSTEM:
                picked = np.empty((block.n_frames, array.n_atoms, 3), np.float32)
                kernels.gather_atoms(values, np.asarray(groups[array.group], np.int64), picked)
                values = picked
            shard, crcs = _encode_shard(values, array, metadata)
            items.append(EncodedChunk(f"{path}/{metadata.file_name(number)}", shard, crcs))
        return items

    def store(self, item: EncodedChunk) -> None:
        """Write a shard, or link one that is there."""
        path = self.path / item.key
        if item.file is not None:
            store_at(item.file).link(item.file, path)
            return
        self.drain()
        with writing(path):
            direct = self.plan.writing.direct or False
            self._handle = WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=direct)
            self._handle.write(0, *item.parts)

    def drain(self) -> None:
        """Wait for the shard that is on its way; see the base class."""
        shard, self._handle = self._handle, None
        if shard is not None:
            with writing(shard.path):
                shard.close()

    def abort(self) -> None:
        """Close the shard that is on its way."""
        with suppress(OutputError):  # it is about to be removed
            self.drain()

    def commit(self, record: PieceRecord) -> None:
        """Keep the checksums, boxes, times and steps of a piece."""
        if record.start in self._stored:
            return
        number = record.start // self.plan.piece_frames
        for path, (array, metadata) in atom_arrays(self.plan).items():
            crcs = np.array(record.crcs[f"{path}/{metadata.file_name(number)}"], "<u4")
            first = record.start // array.chunk_frames
            n_rows = math.ceil((record.stop - record.start) / array.chunk_frames)
            decoded, others = np.split(crcs, [n_rows * array.n_atom_chunks])
            of = array.group, array.field
            self._tables[table_path("crc32c", *of)].add(first, decoded.reshape(n_rows, -1))
            if metadata.plain:
                rows = others.reshape(record.stop - record.start, -1)
                self._tables[table_path("crc32c_pieces", *of)].add(record.start, rows)
            else:
                rows = others.reshape(n_rows, -1)
                self._tables[table_path("crc32c_stored", *of)].add(first, rows)
        self._series.add(record)
        self._stored.add(record.start)

    def finish(self) -> None:
        """Check that every piece came, write what is left, and the manifest last.

        Publication flushes all of it, before the output gets its name.
        """
        missing = [piece for piece in self.plan.write_tasks() if piece[0] not in self._stored]
        if missing:
            start, stop = missing[0]
            raise OutputError(
                f"{self.path}: {len(missing)} of {len(self.plan.write_tasks())} pieces were never "
                f"written, the first with frames {start} to {stop - 1}"
            )
        self._series.finish()
        nodes = group_nodes(self.plan, self._series.periodic.tolist())
        for path, node in nodes.items():
            write_file(self.path / path / METADATA, json.dumps(node).encode())
        nodes |= array_nodes(self.plan)
        tables = {path: table.crcs for path, table in self._tables.items()}
        if self.meta.topology is not None:
            data = np.frombuffer(self.meta.topology.to_bytes(), np.uint8)
            metadata = topology_metadata(data.size)
            file = self.path / TOPOLOGY / metadata.file_name(0)
            tables[TOPOLOGY] = [write_numbers(file, metadata, data)]
        manifest = build_manifest(
            self.plan,
            self.meta,
            has_box=bool(self._series.periodic.any()),
            time_first_ps=self._series.time_first_ps,
            time_last_ps=self._series.time_last_ps,
            fields=list(dict.fromkeys(array.field for array in self.plan.arrays)),
            file_crc32c=self._series.crcs | tables,
            node_crc32c={
                path: kernels.crc32c(json.dumps(node).encode()) for path, node in nodes.items()
            },
            nodes={path: nodes[path] for path in atom_arrays(self.plan)},
            nbytes=sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file()),
        )
        root = group_metadata({"mdio": manifest})
        write_file(self.path / METADATA, json.dumps(root).encode())


def _small_nbytes(plan: LayoutPlan) -> int:
    """Return the bytes of per-frame numbers and of what shards hold besides their chunks."""
    total = 0
    numbers = [series_metadata(plan.n_frames, name) for name in series_arrays(plan).values()]
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
    """Return the parts of a shard of an array, and checksums.

    First the crc32c of each of its chunks, decoded; then those of each as it lies on disk, or, of
    uncompressed ones, those of the pieces of each frame.
    """
    encoded: list[NDArray[np.uint8]] = []
    decoded_crcs: list[int] = []
    stored_crcs: list[int] = []
    n_pieces = pieces_of_row(12 * array.chunk_atoms)
    pieces = np.empty((len(values), array.n_atom_chunks, n_pieces), np.uint32)
    for first in range(0, len(values), array.chunk_frames):
        rows = values[first : first + array.chunk_frames]
        for begin in range(0, array.n_atoms, array.chunk_atoms):
            part = rows[:, begin : begin + array.chunk_atoms]
            chunk = _whole_chunk(part, metadata)
            flat = chunk.reshape(-1).view(np.uint8)
            if metadata.quantised is not None:
                encoded.append(np.frombuffer(encode_chunk(chunk, metadata.quantised), np.uint8))
                stored_crcs.append(kernels.crc32c(encoded[-1]))  # while a cache has it
                if metadata.quantised.rule == "xtc":  # nothing is lost: they decode to these
                    decoded_crcs.append(kernels.crc32c(flat))
                    continue
                decoded = _scratch.room("decoded", chunk.nbytes).view(np.float32)
                decoded = decoded.reshape(chunk.shape)
                decode_chunk(encoded[-1].data, chunk.shape[:2], decoded)
                decoded_crcs.append(kernels.crc32c(decoded))
            elif metadata.compressor is not None:
                encoded.append(np.frombuffer(metadata.compressor.encode(flat), np.uint8))
                stored_crcs.append(kernels.crc32c(encoded[-1]))
                decoded_crcs.append(kernels.crc32c(flat))
            else:
                encoded.append(flat)
                column = begin // array.chunk_atoms
                crc, sums = sums_of_rows(flat.reshape(array.chunk_frames, -1))
                stored_crcs.append(crc)
                rows_of_sums = np.array(sums, np.uint32).reshape(-1, n_pieces)[: len(part)]
                pieces[first : first + len(part), column] = rows_of_sums
    shard = pack_shard(encoded, int(np.prod(metadata.chunks_per_file)), stored_crcs)
    if metadata.plain:
        return shard, [*stored_crcs, *pieces.reshape(-1).tolist()]
    return shard, decoded_crcs + stored_crcs


def _whole_chunk(part: FloatArray, metadata: ArrayMetadata) -> FloatArray:
    """Return `part`, filled up to a whole chunk where it is at an edge.

    Frames beyond the last are zeros, but in quantised chunks they repeat it, which costs nothing.
    """
    if part.shape == metadata.chunk_shape:
        return np.ascontiguousarray(part)
    chunk = np.zeros(metadata.chunk_shape, np.float32)
    chunk[: part.shape[0], : part.shape[1]] = part
    if metadata.quantised is not None:
        chunk[part.shape[0] :] = chunk[part.shape[0] - 1]
    return chunk


LOSSLESS = "lz4"
PAYS_BELOW = "880 MB/s"
SMALLEST = "rigid"
WORTH = 0.95
"""Share of bitpack's bytes: only where rigid takes less is it worth its decoding."""
SMALLEST_PAYS_BELOW = "210 to 390 MB/s"


@dataclass(frozen=True, slots=True)
class Choice:
    """How positions are stored."""

    precision: float | None
    precision_source: Literal["asked", "xtc", None]
    compression: str | None
    notes: tuple[str, ...] = ()
    of_groups: Mapping[str, str] = field(default_factory=dict)
    """Codecs for the integers of groups, where they differ."""


def choose(info: TrajectoryInfo, options: WriteOptions) -> Choice:
    """Choose how positions are stored; raises PlanError for what Zarr trees cannot have."""
    precision, compression = options.precision, options.compression
    compression = None if compression == "none" else compression
    if isinstance(precision, float | int):
        return _integers(Choice(precision, "asked", compression), options)
    if precision == "none" or not info.xtc_integers:
        return _floats(compression, options.file_system)
    if info.precision is None:
        note = "floats in full are stored: the XTC files joined here differ in their precision"
        return _floats(compression, options.file_system, note)
    try:
        quantised_from_option(info.precision, "xtc", compression)
    except PlanError:
        if precision == "auto":
            raise
        note = f"floats in full are stored: --compression {compression} is not for the integers"
        return _floats(compression, options.file_system, f"{note} that the XTC holds")
    note = (
        "positions are the integers that the XTC holds, bit for bit: programs need mdio installed "
        "to read them; --precision none stores floats for all"
    )
    return _integers(Choice(info.precision, "xtc", compression, (note,)), options)


def _integers(choice: Choice, options: WriteOptions) -> Choice:
    """Choose what packs integers, and say why."""
    if choice.compression is not None:
        option = choice.compression
        return replace(choice, compression=MEANT.get(option, (None, option))[1])
    if options.file_system is None and not options.packed:
        return choice
    names = {name: _packs(options, share) for name, share in options.packed.items()}
    name = names.get(FULL_SYSTEM) or _packs(options, None)
    return replace(
        choice,
        compression=None if name == "bitpack" else name,
        notes=(*choice.notes, *_why(name, options)),
        of_groups={group: own for group, own in names.items() if own != name},
    )


def _packs(options: WriteOptions, share: PackedShare | None) -> str:
    """Return the codec for the integers of one array; `share`: its measured sizes."""
    if options.pattern == "frames":
        return "bitpack"
    pays = options.file_system is not None and is_network(options.file_system)
    if share is not None and share.rigid is not None:
        pays = pays or share.rigid < WORTH * share.bitpack
    small = SMALLEST if options.pattern == "blocks" else SEEKING
    return small if pays else "bitpack"


def _why(name: str, options: WriteOptions) -> tuple[str, ...]:
    """Say why integers are packed so, and what the other choice would be."""
    share = options.packed.get(FULL_SYSTEM)
    if name != "bitpack" and share is not None and share.rigid is not None:
        return (
            f"{name} is used: a few frames take {share.rigid:.1f} of the XTC's bytes, and "
            f"{share.bitpack:.1f} with bitpack (--compression fast), which is read in about 1 ns "
            "an atom and frame in place of 4",
        )
    saves = (
        "about a third fewer bytes, and is read in less time where a process gets less than "
        f"{SMALLEST_PAYS_BELOW}"
    )
    if name != "bitpack":
        return (
            f"{name} is used: it takes {saves}, as on {_named(options.file_system)}; --compression "
            "fast is written and decoded faster",
        )
    if options.file_system is None and (share is None or share.rigid is None):
        return ()  # the smaller choice gains little
    size = "" if share is None else f" (a few frames take {share.bitpack:.1f} of the XTC's bytes)"
    place = "" if options.file_system is None else f" from {_named(options.file_system)}"
    return (
        f"bitpack is used, the fastest to read{size}; --compression {SMALLEST} takes {saves}"
        f"{place}",
    )


def _named(file_system: str | None) -> str:
    return "a store" if file_system == "store" else str(file_system)


def _floats(compression: str | None, file_system: str | None, *notes: str) -> Choice:
    full = full_option(compression)
    if compression is None and file_system is not None:
        if is_network(file_system):
            full = full_option(LOSSLESS)
            why = (
                f"{LOSSLESS} is used, without loss: on {_named(file_system)} a process seldom gets "
                f"the {PAYS_BELOW} above which decoding takes longer than what it saves; "
                "--compression none stores bytes as they are"
            )
        else:
            why = f"not compressed: {file_system} is not a network file system"
        notes = (*notes, why)
    return Choice(None, None, full, notes)


class ZarrEnsemble(Ensemble):
    """Makes one tree of several."""

    def create(self) -> None:
        """Make the root."""
        self.path.mkdir()

    def member(self, label: str, *, final: bool = False) -> Path:
        """Return the folder of a group."""
        return (self.target if final else self.path) / label

    def seal(self, labels: Sequence[str]) -> None:
        """Write the root's metadata over the groups that are there; raises OutputError."""
        root = group_metadata({"mdio": self.manifest(labels)})
        write_file(self.path / METADATA, json.dumps(root).encode())
        flush_tree(self.path / METADATA)
