"""Writing references: kerchunk's, of version 1, over arrays of Zarr's format 2.

https://fsspec.github.io/kerchunk/spec.html. Positions are one array of which each chunk is a run of
bytes of the source; times, steps and cells, which are small, are in the file itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.files.remote.paths import is_remote
from mdio.core.files.writing.calls import write_whole
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.manifest import manifest_of
from mdio.layouts.places import PlacedPositions
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import EncodedChunk, LayoutWriter, OutputMeta, PieceRecord

PIECE_FRAMES = 4096
REF_NBYTES = 100
"""Of a frame in the file, about: its reference, time, step and cell."""
DIMENSIONS = "_ARRAY_DIMENSIONS"


class RefsWriter(LayoutWriter):
    """Writes ``NAME.refs``.

    `path`, `plan`, `meta`: see `LayoutWriter`. `placed`: where positions lie, file by file.
    """

    points = True

    def __init__(
        self, path: Path, plan: LayoutPlan, meta: OutputMeta, placed: Sequence[PlacedPositions]
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
        for name, asked in changes.items():
            if asked:
                raise PlanError(
                    f"{name} does not go with references, which point into the source as it is; "
                    "leave it out, or write zarr"
                )
        options.keep_floats("references")
        left_out = [name for name in ("velocities", "forces") if getattr(info, f"has_{name}")]
        note = f"references are to positions; {' and '.join(left_out)} stay in the source"
        return LayoutPlan(
            layout="refs",
            n_frames=info.n_frames,
            n_atoms=info.n_atoms,
            piece_frames=PIECE_FRAMES,
            has_box=info.has_box,
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
        manifest = manifest_of(self.plan, self.meta, has_box=bool(box.any()))
        refs: dict[str, Any] = {
            ".zgroup": json.dumps({"zarr_format": 2}),
            ".zattrs": json.dumps({"source": self.meta.source["path"], "uuid": manifest["uuid"]}),
        }
        refs |= _inline("time", np.concatenate([p.time for p in pieces]), ("frame",), "ps")
        refs |= _inline("step", np.concatenate([p.step for p in pieces]), ("frame",), None)
        refs |= _inline("box", box, ("frame", "cell"), "angstrom, degree")
        refs |= dict(self._positions())
        templates = {f"f{n}": _url(one.path) for n, one in enumerate(self._placed)}
        found = {"version": 1, "mdio": manifest, "templates": templates, "refs": refs}
        text = json.dumps(found, separators=(",", ":"))
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


def _url(path: Path) -> str:
    return str(path) if is_remote(path) else path.absolute().as_uri()


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
    said = {
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
    yield f"{name}/.zarray", json.dumps(said)
    yield f"{name}/.zattrs", json.dumps(attributes)


def _inline(
    name: str, values: NDArray[Any], dimensions: Sequence[str], unit: str | None
) -> dict[str, str]:
    """Return an array of one chunk that is in the file itself."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    key = ".".join("0" * values.ndim)
    data = base64.b64encode(values.tobytes()).decode()
    said = _array(name, values.dtype.str, values.shape, values.shape, unit, None, dimensions)
    return {**dict(said), f"{name}/{key}": f"base64:{data}"}
