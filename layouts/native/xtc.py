"""XTC files of GROMACS, read without MDAnalysis.

Frames are found through a stored index (`mdio.core.files.index`) and decoded in runs. What comes
back is what MDAnalysis' XTCReader gives, times included, which the file has in single precision.

Bytes of GROMACS XTC frames: the codec's, with boxes and precision as MDAnalysis writes them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core import xtc as xtc_codec
from mdio.core.boxes import boxes_from_vectors, vectors_from_boxes
from mdio.core.files.fingerprint import read_head
from mdio.core.files.index import FrameIndex
from mdio.core.files.store import store_at
from mdio.core.frames import AtomIndices, FrameBlock, Rounding, TrajectoryInfo
from mdio.core.kernels import checks
from mdio.core.units import NM_TO_ANGSTROM
from mdio.core.xtc import (
    HEADER_NBYTES,
    MAGICS,
    XTCHeader,
    parse_header,
    read_header,
    scan,
    source_errors,
)
from mdio.layouts.base import FormatFacts
from mdio.layouts.native.encoder import XTC_PRECISION, Bytes, Encoder
from mdio.layouts.native.file import BATCH_NBYTES, FrameMagic, PositionalFile, ScannedLayout
from mdio.layouts.tables import ChunkTable, FrameTable

XTC_CODEC = "mdio.xtc"
"""Name of the codec of whole frames in numcodecs."""


def check_frames(data: NDArray[np.uint8], run: range, frames: FrameTable, n_atoms: int) -> None:
    """Follow frames from the first to the last group of atoms: all that can go wrong in them."""
    n_frames = len(run)
    with source_errors(frames.path):
        xtc_codec.decode(
            data,
            frames.first + run.start,
            frames.edges[run.start : run.stop + 1],
            n_atoms,
            np.empty((n_frames, 1, 3), np.float32),
            np.empty((n_frames, 3, 3), np.float32),
            np.empty(n_frames, np.float64),
            np.empty(n_frames, np.int64),
            np.array([n_atoms - 1]),
        )


def read_frames(
    file: PositionalFile,
    index: FrameIndex,
    start: int,
    stop: int,
    positions: NDArray[np.float32],
    vectors: NDArray[np.float32],
    time: NDArray[np.float64],
    step: NDArray[np.int64],
    atoms: AtomIndices | None = None,
    n_threads: int = 1,
) -> None:
    """Read frames ``start:stop`` into arrays as `mdio.core.xtc.decode` takes them, MiB by MiB.

    `file`, `index`: where they are. With arrays for no atoms only headers are read.
    """
    n_frames, n_atoms = stop - start, checks.indices(atoms, index.n_atoms)[1]
    checks.output(positions, n_frames, n_atoms)
    checks.array(vectors, "vectors", np.float32, (n_frames, 3, 3), is_output=True)
    checks.array(time, "time", np.float64, (n_frames,), is_output=True)
    checks.array(step, "step", np.int64, (n_frames,), is_output=True)
    edges = index.offsets[start : stop + 1]
    if stop == index.n_frames:
        edges = np.append(edges, np.int64(index.end))
    with source_errors(file.path):
        if not n_atoms:
            _read_headers(file, start, edges, index.n_atoms, vectors, time, step)
            return
        first = 0
        while first < n_frames:
            end = int(np.searchsorted(edges, edges[first] + BATCH_NBYTES, side="right")) - 1
            end = max(end, first + 1)
            nbytes, rows = int(edges[end] - edges[first]), slice(first, end)
            data = file.read_padded(int(edges[first]), nbytes, xtc_codec.kernels.PADDING)
            out = positions[rows], vectors[rows], time[rows], step[rows]
            run_edges = edges[first : end + 1]
            xtc_codec.decode(data, start + first, run_edges, index.n_atoms, *out, atoms, n_threads)
            first = end


def _read_headers(
    file: PositionalFile, start: int, edges: NDArray[np.int64], n_atoms: int, *out: NDArray[Any]
) -> None:
    if file.remote is None:
        for _ in (
            file.headers(edges[:-1].tolist(), HEADER_NBYTES) if file.checksums is not None else ()
        ):
            pass  # it compares them with their checksums
        xtc_codec.kernels.read_headers(file.fileno(), start, edges, n_atoms, *out)
        return
    headers = file.headers(edges[:-1].tolist(), HEADER_NBYTES)
    for row, (raw, (begin, end)) in enumerate(zip(headers, pairwise(edges.tolist()), strict=True)):
        head = parse_header(raw, start + row, begin, n_atoms)
        if head.nbytes != end - begin:
            raise ValueError(
                f"frame {start + row} at byte {begin}: {head.nbytes} bytes, expected {end - begin}"
            )
        values = np.reshape(head.vectors_nm, (3, 3)), head.time_ps, head.step
        for array, value in zip(out, values, strict=True):
            array[row] = value


N_SAMPLED = 16
"""Frames that are read to find out whether all have one precision."""
MAX_RATIO_ERROR = 1e-6
"""Relative error of the ratio of two precisions, which are float32."""


class XTCLayout(ScannedLayout):
    """An XTC file.

    `path`: the file. `n_threads` (int, optional): threads that decode the frames of one `read`; 1
    by default, since parallel readers have a process for every core. `salvage` (bool, optional):
    look for frames after damage, too; damaged bytes are listed as a frame that cannot be read.
    """

    name = "xtc"
    facts = FormatFacts(
        suffixes=(".xtc",),
        options=frozenset({"n_threads", "salvage", "checksums"}),
        rounded_fields=("positions",),
        can_copy_frames=True,
        reads_remote=True,
    )
    reads_whole_frames = True
    check_frames = staticmethod(check_frames)
    header_nbytes = HEADER_NBYTES
    _precision_note: str | None = None

    @classmethod
    def sniff(cls, path: Path) -> bool:
        return int.from_bytes(read_head(path)[:4], "big") in MAGICS

    def _position_table(self) -> ChunkTable:
        index, shape = self.index, (self.index.n_frames, 1, 1)
        ranges = index.offsets.reshape(shape), index.frame_nbytes.reshape(shape)
        return ChunkTable(self.path, (1, index.n_atoms, 3), *ranges, codec={"id": XTC_CODEC})

    @classmethod
    def magic(cls, path: Path) -> FrameMagic:
        n_atoms = read_header(path).n_atoms

        def nbytes_from_header(raw: bytes) -> int | None:
            try:
                return parse_header(raw, 0, 0, n_atoms).nbytes
            except ValueError:
                return None

        first_bytes = [struct.pack(">ii", magic, n_atoms) for magic in MAGICS]
        return FrameMagic(n_atoms, first_bytes, nbytes_from_header, HEADER_NBYTES)

    def _parse_header(self, raw: bytes, frame: int) -> XTCHeader:
        with source_errors(self.path):
            return parse_header(raw, frame, int(self._index.offsets[frame]))

    def _open_frames(self) -> TrajectoryInfo:
        first = read_header(self.path)
        self._find_frames(first.n_atoms, scan)
        precisions = self._precisions()
        precision = max(precisions, default=None)
        other_precisions = [
            other for other in precisions if precision and not _is_multiple(precision, other)
        ]
        if precision and other_precisions:
            self._precision_note = (
                f"{self.path}: some frames are rounded to "
                f"{NM_TO_ANGSTROM / other_precisions[0]:.3g} angstrom, which is no multiple of the "
                f"{NM_TO_ANGSTROM / precision:.3g} of others: an XTC that is written from it "
                "rounds them again; h5md and zarr keep them"
            )
        return self._read_properties(
            np.reshape(first.vectors_nm, (1, 3, 3)),
            compression=None if precision is None else "xtc",
            precision=None if precision is None else NM_TO_ANGSTROM / precision,
            rounding=Rounding(xtc_integers=precision is not None),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        notes = super().notes
        return notes if self._precision_note is None else (*notes, self._precision_note)

    def _precisions(self) -> list[float]:
        """Return the precisions of all frames if sampled ones differ; uncompressed ones have none.

        Each once, in steps a nm, ascending.
        """
        reads_first_only = (
            self.options.get("checksums") is not None or store_at(self.path).opening_waits
        )
        frames = [0] if reads_first_only else self._sample_frames(N_SAMPLED)
        precisions = {header.precision for header in self._headers(frames)}
        if len(precisions) > 1:
            precisions = {header.precision for header in self._headers(self._readable_frames)}
        return sorted(precision for precision in precisions if precision is not None)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        vectors_nm = np.empty((stop - start, 3, 3), np.float32)
        out = block.positions, vectors_nm, block.time, block.step
        n_threads = self.options.get("n_threads", 1)
        read_frames(self._file, self._index, start, stop, *out, atoms, n_threads)
        block.box[...] = boxes_from_vectors(vectors_nm, scale=NM_TO_ANGSTROM)


def _is_multiple(finer: float, coarser: float) -> bool:
    """Return whether one precision is a multiple of another, but for their rounding to float32."""
    ratio = finer / coarser
    return abs(ratio - round(ratio)) < MAX_RATIO_ERROR * ratio


@dataclass(frozen=True)
class XTCEncoder(Encoder):
    """XTC: positions rounded to `precision` (angstrom), box, time in single precision, step."""

    keeps_partly_periodic_boxes = False

    @property
    def frame_nbytes(self) -> None:
        return

    def encode(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:  # noqa: ARG002
        box = block.box.copy()
        box[:, :3] *= np.float32(0.1)
        vectors, per_nm = vectors_from_boxes(box), 10.0 / (self.precision or XTC_PRECISION)
        data = xtc_codec.encode(block.positions, vectors, block.time, block.step, per_nm)
        return np.frombuffer(data, np.uint8)

    def nbytes_from_header(self, head: bytes) -> int:
        return parse_header(head, 0, 0).nbytes
