"""GSD files of HOOMD, through the file layer of the gsd package.

Schema: https://gsd.readthedocs.io/en/stable/schema-hoomd.html. What a frame lacks is that of frame
0. Positions count from the centre of the box. A cell has three lengths and three tilts (HOOMD's
xy, xz, yz); they become lengths and angles here, where MDAnalysis takes tilts for cosines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, MissingExtraError, SourceError
from mdio.core.files.fingerprint import read_head
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.layouts.base import FormatFacts, Layout
from mdio.layouts.foreign.units import length_factor, made_up

MAGIC = 0x65DF65DF65DF65DF
POSITION, N_PARTICLES = "particles/position", "particles/N"
STEP, BOX = "configuration/step", "configuration/box"
READ = {POSITION: "f4", N_PARTICLES: "u4", STEP: "u8", BOX: "f4"}
MAX_EMPTY_RATIO = 10
"""Frames for each byte of the file: an index that goes to a later one is damaged."""


class GSDLayout(Layout):
    """A GSD file of HOOMD's schema."""

    name = "gsd"
    facts = FormatFacts(
        options=frozenset({"dt", "length_unit"}),
    )

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins as GSD does."""
        return path.is_file() and read_head(path)[:8] == MAGIC.to_bytes(8, "little")

    @property
    def notes(self) -> tuple[str, ...]:
        """Also what is not read; see `Layout.notes`."""
        return (*super().notes, *self._left_out)

    def _fail(self, problem: object) -> SourceError:
        return SourceError(f"{self.path}: {problem}; it is no GSD file of HOOMD, or is damaged")

    def _open(self) -> TrajectoryInfo:
        try:
            import gsd.fl
        except ImportError:
            raise MissingExtraError(
                f"{self.path}: GSD files are read through the package gsd, which is not installed; "
                'pip install "mdio-layouts[formats]"'
            ) from None
        self._factor = length_factor(self.path, self.options)
        try:
            self._file = gsd.fl.open(str(self.path), "r")
        except FOREIGN_ERRORS as error:
            raise self._fail(error) from error
        try:
            return self._describe()
        except BaseException:
            self._close()
            raise

    def _describe(self) -> TrajectoryInfo:
        n_frames, nbytes = self._file.nframes, self.path.stat().st_size
        if self._file.schema != "hoomd":
            raise self._fail(f"its schema is {self._file.schema!r}, expected 'hoomd'")
        if n_frames > MAX_EMPTY_RATIO * nbytes:
            raise self._fail(f"its index goes to frame {n_frames - 1} in {nbytes} bytes")
        if n_frames == 0 or not self._file.chunk_exists(0, POSITION):
            raise self._fail("frame 0 has no positions")
        later = {
            name
            for name in self._file.find_matching_chunk_names("particles/")
            if name not in READ and any(self._frames_of(name, n_frames))
        }
        left_out = f"{self.path}: {', '.join(sorted(later))} of later frames are not read"
        self._left_out = (left_out,) if later else ()
        self._source_frames = {name: self._frames_of(name, n_frames) for name in READ}
        n_atoms = self._n_atoms()
        dt = self._dt()
        texts = made_up("GSD", self.options, times="frames", lengths=True, stepped=True)
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=n_frames,
            n_atoms=n_atoms,
            dt_ps=dt,
            time_first_ps=0.0,
            time_last_ps=dt * (n_frames - 1),
            has_box=bool(self._boxes(0, 1).any()),
            nbytes=nbytes,
            flaws=Flaws(made_up=tuple(texts)),
        )

    def _frames_of(self, name: str, n_frames: int) -> list[int]:
        """Return from which frame each has its numbers: itself, or 0."""
        exists = self._file.chunk_exists
        return [frame if exists(frame, name) else 0 for frame in range(n_frames)]

    def _n_atoms(self) -> int:
        """Return how many atoms frames have; raises SourceError if not all the same."""
        n_atoms = {len(self._numbers(POSITION, 0))}
        if self._file.chunk_exists(0, N_PARTICLES):
            frames = sorted(set(self._source_frames[N_PARTICLES]))
            n_atoms |= {int(self._numbers(N_PARTICLES, frame)[0]) for frame in frames}
        if len(n_atoms) > 1:
            raise SourceError(
                f"{self.path}: frames have {', '.join(map(str, sorted(n_atoms)))} atoms; a "
                "trajectory has the same atoms throughout"
            )
        return n_atoms.pop()

    def _dt(self) -> float:
        return float(self.options.get("dt") or 1.0)

    def _numbers(self, name: str, frame: int) -> NDArray[Any]:
        """Return the numbers of a frame that has them; raises SourceError."""
        try:
            numbers: NDArray[Any] = self._file.read_chunk(frame, name)
        except FOREIGN_ERRORS as error:
            raise self._fail(f"{name} of frame {frame} cannot be read ({error})") from error
        shape = {BOX: (6,), POSITION: (numbers.shape[0], 3)}.get(name, (1,))
        if numbers.dtype != READ[name] or numbers.shape != shape or not numbers.size:
            raise self._fail(f"{name} of frame {frame} is {numbers.dtype} {numbers.shape}")
        return numbers

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        cells = np.zeros((stop - start, 6))
        for row, frame in enumerate(self._source_frames[BOX][start:stop]):
            if frame or self._file.chunk_exists(0, BOX):
                cells[row] = self._numbers(BOX, frame)
        xy, xz, yz = cells[:, 3:].T
        b, c = np.sqrt(1 + xy**2), np.sqrt(1 + xz**2 + yz**2)
        boxes = np.empty_like(cells)
        boxes[:, :3] = cells[:, :3] * np.array([np.ones_like(b), b, c]).T * self._factor
        cosines = np.array([(xy * xz + yz) / (b * c), xz / c, xy / b]).T
        boxes[:, 3:] = np.rad2deg(np.arccos(cosines))
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0
        return boxes.astype(np.float32)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        block.time[...] = np.arange(start, stop) * self._dt()
        for name in block.present():
            if name != "positions" and block.n_atoms:
                raise SourceError(f"{self.path}: there are no {name} in it; leave them out")
        block.box[...] = self._boxes(start, stop)
        has_steps = self._file.chunk_exists(0, STEP)
        for row, frame in enumerate(range(start, stop)):
            source = self._source_frames[STEP][frame]
            is_stored = source or has_steps  # 0 is what the schema says where there is none
            block.step[row] = self._numbers(STEP, source).astype(np.int64)[0] if is_stored else 0
            if block.n_atoms:
                numbers = self._numbers(POSITION, self._source_frames[POSITION][frame])
                if len(numbers) != self.info.n_atoms:
                    raise self._fail(
                        f"frame {frame} has positions of {len(numbers)} atoms, expected "
                        f"{self.info.n_atoms}"
                    )
                block.positions[row] = numbers if atoms is None else numbers[atoms]
        if self._factor != 1:
            block.positions[...] *= self._factor

    def _close(self) -> None:
        self._file.close()
