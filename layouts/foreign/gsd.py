"""GSD files of HOOMD, through the file layer of the gsd package.

Schema: https://gsd.readthedocs.io/en/stable/schema-hoomd.html. A frame has the values of frame 0
that it does not replace. The origin is the centre of the box. A cell has three lengths and three
tilts (HOOMD's xy, xz, yz), which are converted to lengths and angles here, since MDAnalysis takes
the tilts for cosines.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import acos, degrees, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MissingExtraError, SourceError, one_line
from mdio.core.files.fingerprint import read_head
from mdio.layouts.base import FormatFacts
from mdio.layouts.foreign.generic import GenericLayout
from mdio.layouts.foreign.snapshot import ForeignReader, Snapshot

MAGIC = 0x65DF65DF65DF65DF
POSITION, N_PARTICLES = "particles/position", "particles/N"
STEP, BOX = "configuration/step", "configuration/box"
DTYPES = {POSITION: "f4", N_PARTICLES: "u4", STEP: "u8", BOX: "f4"}
MAX_FRAMES_PER_BYTE = 10
"""Most frames for each byte of the file; an index with more is damaged."""


class GSDFrames(ForeignReader):
    """The frames of a GSD file of HOOMD's schema."""

    has_length_unit = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._library_errors("opened"):
            try:
                self._read_properties()
            except BaseException:
                self.close()
                raise

    def _open(self) -> Any:
        try:
            import gsd.fl
        except ImportError:
            raise MissingExtraError(
                f"{self.path}: GSD files are read through the package gsd, which is not installed; "
                'pip install "mdio-layouts[formats]"'
            ) from None
        return gsd.fl.open(str(self.path), "r")

    def _error_for(self, action: str, error: BaseException) -> SourceError:
        return self._error(f"it cannot be {action} ({one_line(error)[:200]})")

    def _error(self, problem: str) -> SourceError:
        return SourceError(f"{self.path}: {problem}; it is not a GSD file of HOOMD, or is damaged")

    def _read_properties(self) -> None:
        file, nbytes = self._file, self.path.stat().st_size
        self.n_frames = file.nframes
        if file.schema != "hoomd":
            raise self._error(f"its schema is {file.schema!r}, expected 'hoomd'")
        if self.n_frames > MAX_FRAMES_PER_BYTE * nbytes:
            raise self._error(f"its index goes to frame {self.n_frames - 1} in {nbytes} bytes")
        if self.n_frames == 0 or not file.chunk_exists(0, POSITION):
            raise self._error("frame 0 has no positions")
        self._unread_names = sorted(
            name
            for name in file.find_matching_chunk_names("particles/")
            if name not in DTYPES and any(self._providing_frames(name))
        )
        self._frames_by_name = {name: self._providing_frames(name) for name in DTYPES}
        self._in_frame_0 = {name for name in DTYPES if file.chunk_exists(0, name)}
        n_atoms = {len(self._values(POSITION, 0))}
        if N_PARTICLES in self._in_frame_0:
            frames = sorted(set(self._frames_by_name[N_PARTICLES]))
            n_atoms |= {int(self._values(N_PARTICLES, frame)[0]) for frame in frames}
        if len(n_atoms) > 1:
            raise SourceError(
                f"{self.path}: frames have {', '.join(map(str, sorted(n_atoms)))} atoms; a "
                "trajectory has the same atoms throughout"
            )
        self.n_atoms = n_atoms.pop()

    def _providing_frames(self, name: str) -> list[int]:
        """Return for each frame which frame has its values: itself, or frame 0."""
        exists = self._file.chunk_exists
        return [frame if exists(frame, name) else 0 for frame in range(self.n_frames)]

    def _values(self, name: str, frame: int) -> NDArray[Any]:
        """Return the values of a frame that has them; raises SourceError."""
        with self._library_errors(f"read: {name} of frame {frame}"):
            values: NDArray[Any] = self._file.read_chunk(frame, name)
        shape = {BOX: (6,), POSITION: (values.shape[0], 3)}.get(name, (1,))
        if values.dtype != DTYPES[name] or values.shape != shape or not values.size:
            raise self._error(f"{name} of frame {frame} is {values.dtype} {values.shape}")
        return values

    def _values_or_default(self, name: str, frame: int) -> NDArray[Any] | None:
        """Return the values of a frame, or else those of frame 0; None if neither has any."""
        source = self._frames_by_name[name][frame]
        return self._values(name, source) if source or name in self._in_frame_0 else None

    def read(self, frame: int) -> Snapshot:
        positions, step, cell = (
            self._values_or_default(name, frame) for name in (POSITION, STEP, BOX)
        )
        assert positions is not None
        box = None
        if cell is not None and cell[:3].any():
            xy, xz, yz = cell[3:].tolist()
            b, c = sqrt(1 + xy**2), sqrt(1 + xz**2 + yz**2)
            lengths = cell[:3] * np.array([1, b, c])
            cosines = (xy * xz + yz) / (b * c), xz / c, xy / b
            box = np.array([*lengths, *(degrees(acos(cosine)) for cosine in cosines)], np.float32)
        # By the schema, the default step is 0.
        return Snapshot(
            positions, box=box, step=0 if step is None else int(step.astype(np.int64)[0])
        )

    def notes(self) -> Iterator[str]:
        if self._unread_names:
            yield f"{', '.join(self._unread_names)} of later frames are not read"


class GSDLayout(GenericLayout):
    """A GSD file of HOOMD's schema."""

    name = "gsd"
    facts = FormatFacts(options=frozenset({"dt", "length_unit"}))

    @classmethod
    def sniff(cls, path: Path) -> bool:
        return path.is_file() and read_head(path)[:8] == MAGIC.to_bytes(8, "little")

    def _format_name(self) -> str:
        return "GSD"

    def _open_reader(self, format_name: str | None) -> ForeignReader:  # noqa: ARG002
        return GSDFrames(self.path)
