"""Reading a source through references, unless it has changed since; and writing references.

The format is kerchunk's, version 1, over arrays of Zarr v2
(https://fsspec.github.io/kerchunk/spec.html). Positions are an array whose chunks are ranges of
bytes of the source; times, steps and boxes, which are small, are in the file itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.checks import read_regular
from mdio.core.files.fingerprint import CONTENT_KEYS, KEY_NAMES, fingerprint, read_head
from mdio.core.files.store import to_path
from mdio.core.files.writing import write_atomically
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.layouts.base import FormatFacts, Layout, StoredTimes
from mdio.layouts.manifest import build_manifest, check_manifest, count_indices, indices_from_runs
from mdio.layouts.plan import FieldPlan, LayoutPlan, WriteOptions
from mdio.layouts.registry import open_layout
from mdio.layouts.tables import ChunkTable
from mdio.layouts.units import Unit
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import (
    EncodedChunk,
    LayoutWriter,
    OutputMeta,
    PieceRecord,
    WriterFacts,
)

OWN_OPTIONS = {"fields", "verify", "layout", "cache", "cache_size", "path"}
"""Options of opening the references, which do not belong to the source."""
MAX_NESTED = 16
"""Most files of references in a row that refer to the next one."""
_opening_paths: ContextVar[tuple[str, ...]] = ContextVar("_opening_paths", default=())
"""Paths of the files of references that are being opened; each refers to the next."""
FILE_START = b'{"version":1,"mdio":'
"""First bytes of mdio's files; readers of kerchunk skip the key ``mdio``."""


class RefsLayout(Layout):
    """A file of references in kerchunk's format, written by mdio.

    Frames are read from the source by mdio's own readers, which verify more than references can.
    """

    name = "refs"
    facts = FormatFacts(suffixes=(".refs",), stores_columns_exactly=True, reads_remote=True)
    _source: Layout
    _manifest: dict[str, Any]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins like mdio's files, or is a ``.refs`` and begins like JSON."""
        head = read_head(path)
        return head.startswith(FILE_START) or (
            path.suffix in cls.facts.suffixes and head.startswith(b"{")
        )

    @property
    def manifest(self) -> Mapping[str, Any]:
        _ = self.info
        return self._manifest

    def _open(self) -> TrajectoryInfo:
        paths = _opening_paths.get()
        own_path = str(self.path.resolve())
        if own_path in paths or len(paths) >= MAX_NESTED:
            raise CorruptLayoutError(
                f"{self.path}: refers to itself, through {len(paths)} files of references; make "
                "them again from the trajectory"
            )
        token = _opening_paths.set((*paths, own_path))
        try:
            return self._open_source()
        finally:
            _opening_paths.reset(token)

    def _open_source(self) -> TrajectoryInfo:
        self._manifest = manifest = self._read_manifest()
        stored_source = manifest["source"]
        source = to_path(stored_source["path"])
        current = fingerprint(source)
        for name in CONTENT_KEYS:
            if name in stored_source and current[name] != stored_source[name]:
                raise SourceError(
                    f"{self.path}: points into {source}, which has changed (its "
                    f"{KEY_NAMES[name]} was {stored_source[name]}, now it is {current[name]}); "
                    "make the references again"
                )
        open_options = stored_source.get("opened") or {}
        layout = open_layout(source, fields=self.fields, verify=self.verify, **open_options)
        runs, info = manifest["frames"], layout.info
        stop = max((stop for _, stop, _ in runs), default=0)
        expected = manifest["n_frames"], manifest["n_atoms"]
        n_listed = count_indices(runs)
        if (n_listed, info.n_atoms) != expected or stop > info.n_frames:
            layout.close()
            raise SourceError(
                f"{self.path}: its manifest has {expected[0]} frames of {expected[1]} atoms, but "
                f"lists {n_listed} up to frame {stop - 1}, and {source} has {info.n_frames} of "
                f"{info.n_atoms}; make the references again"
            )
        frames = range(*runs[0]) if len(runs) == 1 else indices_from_runs(runs)
        self._source = ViewLayout(source, source=layout, frames=frames)
        info = self._source.info
        return info.replace(layout=self.name, path=str(self.path), source=stored_source)

    def _read_manifest(self) -> dict[str, Any]:
        try:
            references = json.loads(read_regular(self.path))
        except FileNotFoundError as error:
            raise SourceError(f"{self.path}: no such file") from error
        except (OSError, ValueError, RecursionError) as error:
            raise CorruptLayoutError(
                f"{self.path}: not JSON, or truncated ({error}); make the references again"
            ) from error
        manifest = references.get("mdio") if isinstance(references, dict) else None
        manifest = check_manifest(manifest, self.path)
        path, open_options = manifest["source"].get("path"), manifest["source"].get("opened", {})
        is_valid = isinstance(path, str) and path and "\0" not in path
        is_valid = is_valid and isinstance(open_options, dict)
        is_valid = is_valid and all(isinstance(key, str) for key in open_options)
        if not is_valid or OWN_OPTIONS & open_options.keys():
            raise CorruptLayoutError(
                f"{self.path}: its source is described as {str(manifest['source'])[:80]!r}, "
                "expected a path and the options for opening it; make the references again"
            )
        return manifest

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        self._source.read(start, stop, atoms=atoms, out=block)

    @property
    def stored_times(self) -> StoredTimes:
        _ = self.info
        return self._source.stored_times

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        return (self._source,) if "_source" in self.__dict__ else ()  # it may not be open

    def _inner_runs(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:
        yield self._source, start, stop

    def units(self) -> Iterator[Unit]:
        _ = self.info
        yield from self._source.units()

    def topology(self) -> Topology | None:
        _ = self.info
        return self._source.topology()

    def _close(self) -> None:
        self._source.close()


PIECE_FRAMES = 4096
FRAME_NBYTES = 100
"""Approximate bytes of a frame in the file: its reference, time, step and box."""
DIMENSIONS_KEY = "_ARRAY_DIMENSIONS"
"""Attribute of Zarr v2 arrays in which xarray looks for the names of dimensions."""


class RefsWriter(LayoutWriter):
    """Writes ``NAME.refs``."""

    facts = WriterFacts(refers_to_source=True)

    def __init__(
        self, path: Path, plan: LayoutPlan, meta: OutputMeta, tables: Sequence[ChunkTable]
    ) -> None:
        super().__init__(path, plan, meta)
        self._tables = tables
        self._columns: dict[int, PieceRecord] = {}

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan references; raises PlanError for options that would need other bytes."""
        changes = {
            "--group": options.groups,
            "--compression": options.compression,
            "--precision": options.precision not in (None, "auto", "none"),
        }
        for name, is_given in changes.items():
            if is_given:
                raise PlanError(
                    f"{name} cannot be combined with references, which point into the source as it "
                    "is; leave it out, or write zarr"
                )
        options.refuse_rounding("references")
        left_out_fields = info.fields[1:]
        note = f"references are to positions; {' and '.join(left_out_fields)} stay in the source"
        return LayoutPlan(
            layout="refs",
            n_frames=info.n_frames,
            n_atoms=info.n_atoms,
            piece_frames=PIECE_FRAMES,
            native=FieldPlan(has_box=info.has_box),
            notes=(note,) if left_out_fields else (),
            nbytes=FRAME_NBYTES * info.n_frames,
        )

    def create(self) -> None:
        """Do nothing: `finish` writes the file at once."""

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:  # noqa: ARG002
        return []

    def store(self, item: EncodedChunk) -> None:
        """Store nothing."""

    def commit(self, record: PieceRecord) -> None:
        self._columns[record.start] = record

    def finish(self) -> None:
        pieces = [self._columns[start] for start in sorted(self._columns)]
        box = np.concatenate([piece.box for piece in pieces])
        manifest = build_manifest(self.plan, self.meta, has_box=bool(box.any()))
        refs: dict[str, Any] = {
            ".zgroup": json.dumps({"zarr_format": 2}),
            ".zattrs": json.dumps({"source": self.meta.source["path"], "uuid": manifest["uuid"]}),
        }
        refs |= _inline_array("time", np.concatenate([p.time for p in pieces]), ("frame",), "ps")
        refs |= _inline_array("step", np.concatenate([p.step for p in pieces]), ("frame",), None)
        refs |= _inline_array("box", box, ("frame", "cell"), "angstrom, degree")
        refs |= dict(self._position_references())
        templates = {f"f{number}": table.url for number, table in enumerate(self._tables)}
        references = {"version": 1, "mdio": manifest, "templates": templates, "refs": refs}
        text = json.dumps(references, separators=(",", ":"))
        write_atomically(self.path, text.encode(), prefix=f"{self.path.name}.")

    def _position_references(self) -> Iterator[tuple[str, Any]]:
        """Yield the metadata of positions, and file, offset and size of each chunk, by key."""
        table = self._tables[0]
        shape = (self.plan.n_frames, self.plan.n_atoms, 3)
        yield from _array_metadata(
            "position", table.dtype, shape, table.chunk, table.unit, table.codec
        )
        row = 0
        for number, table in enumerate(self._tables):
            url = f"{{{{f{number}}}}}"
            for offsets, sizes in zip(table.offset.tolist(), table.nbytes.tolist(), strict=True):
                for column, part in product(*map(range, table.offset.shape[1:])):
                    yield (
                        f"position/{row}.{column}.{part}",
                        [url, offsets[column][part], sizes[column][part]],
                    )
                row += 1


def _array_metadata(
    name: str,
    dtype: str,
    shape: Sequence[int],
    chunk: Sequence[int],
    unit: str | None,
    codec: Any = None,
    dimensions: Sequence[str] = ("frame", "atom", "xyz"),
) -> Iterator[tuple[str, str]]:
    metadata = {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunk),
        "dtype": dtype,
        "compressor": None if codec is None else dict(codec),
        "fill_value": "NaN" if np.dtype(dtype).kind == "f" else None,
        "order": "C",
        "filters": None,
    }
    attributes = {DIMENSIONS_KEY: list(dimensions)} | ({} if unit is None else {"units": unit})
    yield f"{name}/.zarray", json.dumps(metadata)
    yield f"{name}/.zattrs", json.dumps(attributes)


def _inline_array(
    name: str, values: NDArray[Any], dimensions: Sequence[str], unit: str | None
) -> dict[str, str]:
    """Return the metadata of an array of one chunk, and its numbers, for the file itself."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    key = ".".join("0" * values.ndim)
    data = base64.b64encode(values.tobytes()).decode()
    metadata = _array_metadata(
        name, values.dtype.str, values.shape, values.shape, unit, None, dimensions
    )
    return {**dict(metadata), f"{name}/{key}": f"base64:{data}"}


def position_tables(source: Layout) -> list[ChunkTable]:
    """Return the offsets of a trajectory's positions, file by file, all in the same format."""
    tables: list[ChunkTable] = []
    for layout in source.file_layouts():
        with layout:
            table = layout.tables().positions()
        if table is None:
            raise PlanError(
                f"{layout.path}: its positions are stored in a way that other programs cannot read "
                "(compressed, in other units, fixed atoms, or frames that lack some); convert it "
                "into zarr"
            )
        if tables and table.array_format != tables[0].array_format:
            raise PlanError(
                f"{layout.path}: its positions are stored in another way than those in "
                f"{tables[0].path}, so they cannot be one array; convert them into zarr"
            )
        tables.append(table)
    return tables
