"""Bytes of GROMACS TRR frames: XDR, big-endian, single precision, nm.

Frame header and order of the arrays as GROMACS' trxio reads them
(https://manual.gromacs.org/current/reference-manual/file-formats.html#trr); values and arithmetic
are those of MDAnalysis' writer, so the files are the same to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import OutputError
from mdio.core.frames import FIELDS, FrameBlock, runs_of_fields
from mdio.layouts.native.encoder import Bytes, Encoder
from mdio.layouts.native.trr.header import FIXED_NBYTES, parse_header

MAGIC = 1993
VERSION = b"GMX_trn_file"
FACTORS = {"positions": 0.1, "velocities": 0.1, "forces": 10.0}
"""From angstrom, angstrom/ps, kJ/(mol angstrom) to nm, nm/ps, kJ/(mol nm)."""


@dataclass(frozen=True)
class TRREncoder(Encoder):
    """TRR: positions, velocities, forces, box (always, zeros if there is none), time, step.

    A frame that lacks a field says so in its header, and is as much shorter.
    """

    @property
    def frame_nbytes(self) -> int | None:
        """Bytes of a frame."""
        return None if self.sparse else self._dtype.itemsize

    @property
    def _dtype(self) -> np.dtype[np.void]:
        shape = (self.n_atoms, 3)
        return np.dtype(
            [
                ("head", ">i4", 3),
                ("version", "S12"),
                ("sizes", ">i4", 10),
                ("n_atoms", ">i4"),
                ("step", ">i4"),
                ("nre", ">i4"),
                ("time", ">f4"),
                ("lambda", ">f4"),
                ("box", ">f4", (3, 3)),
                *[(name, ">f4", shape) for name in self.fields],
            ]
        )

    def frames(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        """Return the bytes of all frames; see the base class."""
        if self.sparse:
            return np.concatenate(
                [
                    replace(self, fields=fields, sparse=()).frames(block.frames(slice(*run)))
                    for run, fields in runs_of_fields(block, self.fields)
                ]
            )
        limits = np.iinfo(np.int32)
        if block.step.min() < limits.min or block.step.max() > limits.max:
            raise OutputError(
                f"trr holds steps up to {limits.max}, but step {block.step.max()} was to be "
                "written; write h5md or zarr"
            )
        rows = np.empty(block.n_frames, self._dtype) if out is None else out.view(self._dtype)
        rows["head"] = (MAGIC, len(VERSION) + 1, len(VERSION))
        rows["version"] = VERSION
        rows["sizes"] = 0
        rows["sizes"][:, 2] = 36
        for number, name in enumerate(FIELDS):
            rows["sizes"][:, 7 + number] = 12 * self.n_atoms if name in self.fields else 0
        rows["n_atoms"] = self.n_atoms
        rows["nre"] = 0
        rows["lambda"] = 0
        rows["step"] = block.step
        rows["time"] = block.time
        box = block.box.copy()
        box[:, :3] *= np.float32(FACTORS["positions"])
        rows["box"] = vectors_from_boxes(box)
        for name in self.fields:
            np.multiply(getattr(block, name), np.float32(FACTORS[name]), out=rows[name])
        return rows.view(np.uint8)

    def offsets(self, data: Bytes) -> NDArray[np.int64]:
        """Return where each frame of `data` begins, and where the last one ends."""
        if not self.sparse:
            return super().offsets(data)
        view, edges = data.data, [0]
        while edges[-1] < len(view):
            raw = view[edges[-1] : edges[-1] + FIXED_NBYTES].tobytes()
            header = parse_header(raw, Path("frame"), len(edges) - 1)
            edges.append(edges[-1] + header.frame_nbytes)
        return np.array(edges, np.int64)
