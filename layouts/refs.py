"""Reading through references: the source, if it still is what they point into.

Writing references: kerchunk's, of version 1, over arrays of Zarr's format 2.

https://fsspec.github.io/kerchunk/spec.html. Positions are one array of which each chunk is a run of
bytes of the source; times, steps and cells, which are small, are in the file itself.
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
from mdio.core.files.fingerprint import NAMES, fingerprint, read_head
from mdio.core.files.marks import read_regular
from mdio.core.files.store import to_path
from mdio.core.files.writing import write_whole
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.layouts.base import FormatFacts, Layout, Timing
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

OURS = {"fields", "verify", "layout", "cache", "cache_size", "path"}
"""Options of opening the references, which do not belong to the source."""
MOST_REFERENCES = 16
"""That refer to one another."""
_through: ContextVar[tuple[str, ...]] = ContextVar("_through", default=())
"""The references that are being opened, each for the one before."""
BEGIN = b'{"version":1,"mdio":'
"""Keys of mdio's files; kerchunk's readers skip the second."""


class RefsLayout(Layout):
    """A file of references in kerchunk's format, as mdio writes them.

    Its frames are read from the source, as without it: by mdio's own readers, which verify more
    than references can.
    """

    name = "refs"
    facts = FormatFacts(
        suffixes=(".refs",),
        keeps_columns=True,
        reads_remote=True,
    )
    _source: Layout
    _manifest: dict[str, Any]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins as mdio's do, or is called ``.refs`` and begins as JSON."""
        head = read_head(path)
        return head.startswith(BEGIN) or (
            path.suffix in cls.facts.suffixes and head.startswith(b"{")
        )

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest."""
        _ = self.info
        return self._manifest

    def _open(self) -> TrajectoryInfo:
        through = _through.get()
        here = str(self.path.resolve())
        if here in through or len(through) >= MOST_REFERENCES:
            raise CorruptLayoutError(
                f"{self.path}: refers to itself, through {len(through)} files of references; make "
                "them again from the trajectory"
            )
        reset = _through.set((*through, here))
        try:
            return self._open_source()
        finally:
            _through.reset(reset)

    def _open_source(self) -> TrajectoryInfo:
        self._manifest = manifest = self._read_manifest()
        recorded = manifest["source"]
        source = to_path(recorded["path"])
        current = fingerprint(source)
        changed = [name for name in ("nbytes", "crc32c_head", "crc32c_tail") if name in recorded]
        changed = [name for name in changed if current[name] != recorded[name]]
        for name in changed:
            raise SourceError(
                f"{self.path}: points into {source}, which is not what it was (its "
                f"{NAMES[name]} was {recorded[name]}, now it is {current[name]}); "
                "make the references again"
            )
        opened = recorded.get("opened") or {}
        whole = open_layout(source, fields=self.fields, verify=self.verify, **opened)
        last = max((stop for _, stop, _ in manifest["frames"]), default=0)
        if count_indices(manifest["frames"]) != manifest["n_frames"] or last > whole.info.n_frames:
            whole.close()
            raise SourceError(
                f"{self.path}: tells of {manifest['n_frames']} frames and refers to others of the "
                f"{whole.info.n_frames} of {source}; make the references again"
            )
        frames = indices_from_runs(manifest["frames"])
        self._source = ViewLayout(source, source=whole, frames=_range_of(frames))
        info = self._source.info
        if (info.n_frames, info.n_atoms) != (manifest["n_frames"], manifest["n_atoms"]):
            self._source.close()
            raise SourceError(
                f"{self.path}: tells of {manifest['n_frames']} frames of {manifest['n_atoms']} "
                f"atoms, and {source} has {info.n_frames} of {info.n_atoms}; make them again"
            )
        return info.replace(layout=self.name, path=str(self.path), source=recorded)

    def _read_manifest(self) -> dict[str, Any]:
        try:
            references = json.loads(read_regular(self.path))
        except FileNotFoundError as error:
            raise SourceError(f"{self.path}: no such file") from error
        except (OSError, ValueError, RecursionError) as error:
            raise CorruptLayoutError(
                f"{self.path}: not JSON, or cut ({error}); make the references again"
            ) from error
        manifest = references.get("mdio") if isinstance(references, dict) else None
        manifest = check_manifest(manifest, self.path)
        path, opened = manifest["source"].get("path"), manifest["source"].get("opened", {})
        fitting = isinstance(path, str) and path and "\0" not in path and isinstance(opened, dict)
        if not fitting or not all(isinstance(key, str) for key in opened) or OURS & opened.keys():
            raise CorruptLayoutError(
                f"{self.path}: says of its source {str(manifest['source'])[:80]!r}, expected a "
                "path, and how it was opened; make the references again"
            )
        return manifest

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        self._source.read(start, stop, atoms=atoms, out=block)

    @property
    def timing(self) -> Timing:
        """Whether the source's times and steps are its own."""
        _ = self.info
        return self._source.timing

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        return (self._source,) if "_source" in self.__dict__ else ()  # it may not be open

    def _members_of(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:
        yield self._source, start, stop

    def units(self) -> Iterator[Unit]:
        """Yield what there is to check of the source."""
        _ = self.info
        yield from self._source.units()

    def topology(self) -> Topology | None:
        """Return the topology of the source."""
        _ = self.info
        return self._source.topology()

    def _close(self) -> None:
        self._source.close()


def _range_of(frames: Any) -> Any:
    """Return frame numbers as a range, if they are neighbours."""
    first, n_frames = int(frames[0]), len(frames)
    neighbours = (frames[1:] - frames[:-1] == 1).all()
    return range(first, first + n_frames) if neighbours else frames


PIECE_FRAMES = 4096
REF_NBYTES = 100
"""Approximate bytes of a frame in the file: its reference, time, step and cell."""
DIMENSIONS = "_ARRAY_DIMENSIONS"


class RefsWriter(LayoutWriter):
    """Writes ``NAME.refs``.

    `path`, `plan`, `meta`: see `LayoutWriter`. `placed`: where positions lie, file by file.
    """

    facts = WriterFacts(points=True)

    def __init__(
        self, path: Path, plan: LayoutPlan, meta: OutputMeta, placed: Sequence[ChunkTable]
    ) -> None:
        super().__init__(path, plan, meta)
        self._placed = placed
        self._columns: dict[int, PieceRecord] = {}

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan references; raises PlanError for what would change the bytes they point into."""
        changes = {
            "--group": options.groups,
            "--compression": options.compression,
            "--precision": options.precision not in (None, "auto", "none"),
        }
        for name, is_given in changes.items():
            if is_given:
                raise PlanError(
                    f"{name} does not go with references, which point into the source as it is; "
                    "leave it out, or write zarr"
                )
        options.refuse_rounding("references")
        left_out = [name for name in ("velocities", "forces") if getattr(info, f"has_{name}")]
        note = f"references are to positions; {' and '.join(left_out)} stay in the source"
        return LayoutPlan(
            layout="refs",
            n_frames=info.n_frames,
            n_atoms=info.n_atoms,
            piece_frames=PIECE_FRAMES,
            native=FieldPlan(has_box=info.has_box),
            notes=(note,) if left_out else (),
            nbytes=REF_NBYTES * info.n_frames,
        )

    def create(self) -> None:
        """Do nothing yet: the file is written whole."""

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:  # noqa: ARG002
        """Return nothing: no frames are stored."""
        return []

    def store(self, item: EncodedChunk) -> None:
        """Store nothing."""

    def commit(self, record: PieceRecord) -> None:
        """Keep the boxes, times and steps of a piece."""
        self._columns[record.start] = record

    def finish(self) -> None:
        """Write the file."""
        pieces = [self._columns[start] for start in sorted(self._columns)]
        box = np.concatenate([piece.box for piece in pieces])
        manifest = build_manifest(self.plan, self.meta, has_box=bool(box.any()))
        refs: dict[str, Any] = {
            ".zgroup": json.dumps({"zarr_format": 2}),
            ".zattrs": json.dumps({"source": self.meta.source["path"], "uuid": manifest["uuid"]}),
        }
        refs |= _inline("time", np.concatenate([p.time for p in pieces]), ("frame",), "ps")
        refs |= _inline("step", np.concatenate([p.step for p in pieces]), ("frame",), None)
        refs |= _inline("box", box, ("frame", "cell"), "angstrom, degree")
        refs |= dict(self._positions())
        templates = {f"f{n}": one.path.absolute().as_uri() for n, one in enumerate(self._placed)}
        references = {"version": 1, "mdio": manifest, "templates": templates, "refs": refs}
        text = json.dumps(references, separators=(",", ":"))
        write_whole(self.path, text.encode(), prefix=f"{self.path.name}.")

    def _positions(self) -> Iterator[tuple[str, Any]]:
        first = self._placed[0]
        shape = (self.plan.n_frames, self.plan.n_atoms, 3)
        yield from _array("position", first.dtype, shape, first.chunk, first.unit, first.codec)
        row = 0
        for number, one in enumerate(self._placed):
            url = f"{{{{f{number}}}}}"
            sizes = one.nbytes.tolist()
            for a, places in enumerate(one.offset.tolist()):
                for b, c in product(*map(range, one.offset.shape[1:])):
                    yield f"position/{row}.{b}.{c}", [url, places[b][c], sizes[a][b][c]]
                row += 1


def _array(
    name: str,
    dtype: str,
    shape: Sequence[int],
    chunk: Sequence[int],
    unit: str | None,
    codec: Any = None,
    dimensions: Sequence[str] = ("frame", "atom", "xyz"),
) -> Iterator[tuple[str, str]]:
    """Yield the metadata of an array, by name."""
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
    attributes = {DIMENSIONS: list(dimensions)} | ({} if unit is None else {"units": unit})
    yield f"{name}/.zarray", json.dumps(metadata)
    yield f"{name}/.zattrs", json.dumps(attributes)


def _inline(
    name: str, values: NDArray[Any], dimensions: Sequence[str], unit: str | None
) -> dict[str, str]:
    """Return an array of one chunk that is in the file itself."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    key = ".".join("0" * values.ndim)
    data = base64.b64encode(values.tobytes()).decode()
    metadata = _array(name, values.dtype.str, values.shape, values.shape, unit, None, dimensions)
    return {**dict(metadata), f"{name}/{key}": f"base64:{data}"}


def position_tables(source: Layout) -> list[ChunkTable]:
    """Return where the positions of a trajectory lie, file by file, each in the same way.

    Raises PlanError: others cannot read them there; SourceError.
    """
    placed: list[ChunkTable] = []
    for layout in source.files():
        with layout:
            table = layout.tables().positions()
        if table is None:
            raise PlanError(
                f"{layout.path}: its positions do not lie there as others can read them "
                "(compressed, in other units, fixed atoms, or frames that lack some); convert "
                "it into zarr"
            )
        if placed and table.kind != placed[0].kind:
            raise PlanError(
                f"{layout.path}: its positions do not lie there as those in {placed[0].path} do, "
                "so that they are not one array; convert them into zarr"
            )
        placed.append(table)
    return placed
