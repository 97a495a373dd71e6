"""Frames as the bytes of a native format: what the encoders of all formats have in common.

An encoder knows one file's shape (atoms, which per-atom fields, precision) and nothing of paths:
``header`` gives what stands before the first frame, ``encode`` the bytes of a run of frames. Files
whose frames have one size (`Encoder.frame_nbytes`) can be written anywhere in any order; the others
(XTC) have to be appended to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.files.reading import OpenFile
from mdio.core.frames import FrameBlock, Scratch, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.core.xtc import MAX_UNCOMPRESSED_ATOMS
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.native.file import RecordField, RecordFields, Rows
from mdio.layouts.plan import (
    MIN_PRECISION,
    FieldPlan,
    LayoutPlan,
    StripePlan,
    WriteOptions,
    WritePlan,
)
from mdio.layouts.registry import load_class
from mdio.layouts.writer import PieceRecord

Bytes = NDArray[np.uint8]

DECODED_PIECE_NBYTES = 8 << 20
BATCH_NBYTES = 2 << 20
"""Encoded bytes of a batch of frames of one size: so few that they are still in the processor's
cache when their checksum is computed and they are written, and so many that calls cost nothing."""

HEAD_NBYTES = 96
"""Bytes at the beginning of a frame that give its size."""


@dataclass(frozen=True)
class Encoder(ABC):
    """Turns frames into the bytes of one file; picklable and without state.

    Attributes: `n_atoms`: atoms of every frame. `fields`: per-atom arrays that are written, of
    `FIELDS`. `has_box`: whether the file is to hold unit cells, where the format leaves the choice.
    `precision`: step of the coordinates in angstrom, for the format that rounds them. `sparse`:
    those of `fields` that some frames lack; they are NaN there.
    """

    keeps_partly_periodic_boxes: ClassVar[bool] = True
    """Whether cells whose length is 0 along some axes differ from no cell in the file."""

    n_atoms: int
    fields: tuple[str, ...] = ("positions",)
    has_box: bool = True
    precision: float | None = None
    sparse: tuple[str, ...] = ()
    keeps_steps: ClassVar[bool] = True
    """Whether steps are read back; otherwise frames are counted."""

    @property
    def header_nbytes(self) -> int:
        return 0

    @property
    @abstractmethod
    def frame_nbytes(self) -> int | None:
        """Bytes of every frame; None where they differ."""

    @property
    def batch_frames(self) -> int | None:
        """Frames of a batch; None where frames differ in size, and cannot be placed apart."""
        return None if self.frame_nbytes is None else max(1, BATCH_NBYTES // self.frame_nbytes)

    def header(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> bytes:  # noqa: ARG002
        """Return the ``header_nbytes`` bytes before frames with these times (ps) and steps."""
        return b""

    @abstractmethod
    def encode(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        """Return the bytes of all frames of `block`, one after another, as (N,) uint8.

        `block`: what is to be written. `out`, (N,) uint8, optional: where frames have one size:
        filled and returned.
        Raises OutputError: a value that the format cannot hold.
        """

    def offsets(self, data: Bytes) -> NDArray[np.int64]:
        """Return the offset of each frame of `data`, and the end of the last one."""
        if self.frame_nbytes is not None:
            return np.arange(0, data.nbytes + 1, self.frame_nbytes, dtype=np.int64)
        edges = [0]
        while edges[-1] < data.nbytes:
            head = data[edges[-1] : edges[-1] + HEAD_NBYTES].tobytes()
            edges.append(edges[-1] + self.nbytes_from_header(head))
        return np.array(edges, np.int64)

    def nbytes_from_header(self, head: bytes) -> int:
        """Return the bytes of a frame that begins so, where frames differ in size."""
        raise NotImplementedError

    def notes(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> Iterator[str]:
        """Yield a sentence on times, and one on steps, that the format cannot hold."""
        if (note := self.note_on_lost_times(time)) is not None:
            yield note
        if (np.diff(step) > 1).any() and not self.keeps_steps:
            yield (
                f"steps ({step[0]}, {step[1]}, ...) are not stored: in this format they are the "
                "numbers of frames; h5md, zarr, trr and xtc hold any steps"
            )

    def note_on_lost_times(self, time: NDArray[np.float64]) -> str | None:
        """Return a sentence on times that the format cannot hold; None if it holds all."""
        with np.errstate(over="ignore"):
            return note_on_coarse_times(time, time.astype(np.float32).astype(np.float64))


def note_on_coarse_times(time: NDArray[np.float64], stored: NDArray[np.float64]) -> str | None:
    """Return a sentence on times that differ when they are `stored`; None if none does much."""
    with np.errstate(invalid="ignore"):
        dt = abs(time[-1] - time[0]) / max(1, len(time) - 1) or 1.0
        differs = np.abs(stored - time) > dt / 4
    if not differs.any():
        return None
    first = int(np.argmax(differs))
    return (
        f"times are stored in single precision, too coarse for steps of {dt:g} ps: frame "
        f"{first} is the first to differ, at {stored[first]:.10g} ps instead of "
        f"{time[first]:.10g} ps; h5md and zarr hold any times"
    )


def packed_fields(fields: Sequence[tuple[str, Any, tuple[int, ...]]]) -> RecordFields:
    """Return the fields of a record without gaps; `fields`: their names, types and shapes.

    NumPy's structured types would do, but count bytes in 32 bits, and frames may have more.
    """
    sizes = [np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in fields]
    return {
        name: RecordField(begin, sum(sizes), np.dtype(dtype), shape)
        for (name, dtype, shape), begin in zip(fields, accumulate(sizes, initial=0), strict=False)
    }


def field_views(records: Bytes, fields: RecordFields) -> dict[str, NDArray[Any]]:
    """Return views of the fields of records that follow each other, (F, *shape) each."""
    stride = next(iter(fields.values())).stride
    rows = Rows(records, records.size // stride, stride)
    return {name: rows.view(field, field.begin) for name, field in fields.items()}


def batch_checksums(record: PieceRecord, frame_nbytes: int | None) -> list[tuple[int, int]]:
    """Return crc32c and size of each batch of a piece of native frames, in order."""
    if frame_nbytes is None:  # then a piece is one batch
        return [(record.crcs[str(record.start)][0], record.nbytes)]
    edges = [*sorted(map(int, record.crcs)), record.stop]
    return [
        (record.crcs[str(start)][0], (stop - start) * frame_nbytes)
        for start, stop in pairwise(edges)
    ]


def is_stored(record: PieceRecord, frame_nbytes: int | None, path: Path, offset: int) -> bool:
    """Return whether the bytes of a piece are in a file from `offset` on, by their checksums."""
    try:
        with OpenFile(path) as file:
            for crc, nbytes in batch_checksums(record, frame_nbytes):
                if crc32c(file.array(offset, nbytes)) != crc:
                    return False
                offset += nbytes
    except OSError:
        return False
    return True


_scratch = Scratch()


def encode_frames(encoder: Encoder, block: FrameBlock) -> Bytes:
    """Return ``encoder.encode(block)``; frames of one size are valid until the next call."""
    if encoder.frame_nbytes is None:
        return encoder.encode(block)
    nbytes = block.n_frames * encoder.frame_nbytes
    return encoder.encode(block, _scratch.buffer("frames", nbytes))


def encoder_of(format_name: str, plan: LayoutPlan) -> Encoder:
    """Return the encoder of files of format `format_name` for `plan`."""
    cls: type[Encoder] = load_class(NATIVE_FORMATS[format_name].encoder)
    return cls(
        plan.n_atoms, plan.native.fields, plan.native.has_box, plan.precision, plan.native.sparse
    )


XTC_PRECISION = 0.01
"""Step in angstrom where neither the source nor the user has one: 1/1000 nm, as everywhere."""
_ROUNDING_NOTE = (
    f"xtc rounds positions to {XTC_PRECISION:g} angstrom: unmoved ones from an XTC with this step "
    f"stay as they are, others are off by at most {XTC_PRECISION / 2:g}, besides what single "
    "precision rounds; --precision STEP takes another step"
)


def native_plan(
    format_name: str, info: TrajectoryInfo, options: WriteOptions, output_text: str | None = None
) -> LayoutPlan:
    """Plan one file of a native format, in pieces of about 8 MiB decoded; raises PlanError.

    `output_text`: the name of the output in messages; files of that format by default.
    """
    if info.n_frames < 1 or info.n_atoms < 1:
        raise PlanError(
            f"{info.path}: {info.n_frames} frames of {info.n_atoms} atoms: nothing to write"
        )
    native, output_text = NATIVE_FORMATS[format_name], output_text or f"{format_name} files"
    if info.n_atoms > native.max_atoms:
        raise PlanError(
            f"{info.path}: {info.n_atoms} atoms, but {format_name} counts {native.max_atoms} at "
            "most; write h5md or zarr"
        )
    if options.groups:
        raise PlanError(f"{output_text} hold no --group; write h5md or zarr")
    if options.compression is not None:
        raise PlanError(
            f"{output_text} are not compressed; leave out --compression, or write h5md or zarr"
        )
    options.refuse_rounding(output_text)
    fields = tuple(name for name in info.fields if name in native.fields)
    left_out_fields = [name for name in info.fields if name not in fields]
    frame_nbytes = 12 * info.n_atoms * len(fields)
    notes = (
        [f"{format_name} holds no {' and no '.join(left_out_fields)}: left out"]
        if left_out_fields
        else []
    )
    changes: dict[str, Any] = {}
    if format_name == "xtc":
        changes = _xtc_precision(info, options) | {"compression": "xtc"}
        if "precision_source" not in changes and info.n_atoms > MAX_UNCOMPRESSED_ATOMS:
            notes.append(_ROUNDING_NOTE)
    elif options.precision not in (None, "auto", "none"):
        raise PlanError(
            f"{output_text} hold unrounded floats, so --precision does not fit; use xtc"
        )
    plan = LayoutPlan(
        layout=format_name,
        n_frames=info.n_frames,
        n_atoms=info.n_atoms,
        piece_frames=max(1, min(DECODED_PIECE_NBYTES // frame_nbytes, info.n_frames)),
        container=format_name,
        stripes=StripePlan(options.stripe_nbytes, options.stripe_count),
        native=FieldPlan(
            fields, tuple(name for name in info.sparse if name in fields), info.has_box
        ),
        writing=WritePlan(direct=False),
        notes=tuple(notes),
        **changes,
    )
    encoder = encoder_of(format_name, plan)
    if encoder.sparse and encoder.frame_nbytes is not None:
        notes.append(
            f"{format_name} holds all fields in all frames: {' and '.join(encoder.sparse)} that a "
            "frame lacks are NaN there; trr leaves them out; so does mdio when it reads h5md or "
            "zarr"
        )
        plan = plan.replace(notes=tuple(notes))
    # An XTC frame has at most its header, and four bytes a number.
    written_frame_nbytes = replace(encoder, sparse=()).frame_nbytes or 104 + 12 * info.n_atoms
    return plan.replace(nbytes=encoder.header_nbytes + info.n_frames * written_frame_nbytes)


def _xtc_precision(info: TrajectoryInfo, options: WriteOptions) -> dict[str, Any]:
    precision = options.precision
    if precision == "none":
        raise PlanError(
            "--precision none: XTC files hold integers; give a step, or take another format"
        )
    if isinstance(precision, str) or precision is None:
        if info.precision is not None:
            return {"precision": info.precision, "precision_source": "xtc"}
        return {"precision": XTC_PRECISION}
    if not MIN_PRECISION <= precision <= 10:
        raise PlanError(f"--precision is {precision}; give a step from 1e-6 to 10 angstrom")
    return {"precision": precision, "precision_source": "asked"}
