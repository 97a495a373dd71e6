"""GSD files of HOOMD, read in blocks: an index of chunks, and arrays as they are in memory.

Format: https://gsd.readthedocs.io/en/stable/file-layer.html, schema:
https://gsd.readthedocs.io/en/stable/schema-hoomd.html. What a frame lacks is that of frame 0.
Positions count from the centre of the box. A cell has three lengths and three tilts (HOOMD's
xy, xz, yz); they become lengths and angles here, where MDAnalysis takes tilts for cosines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.files.fingerprint import head_of
from mdio.core.files.reading import OpenFile
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts.base import AtomIndices, Layout
from mdio.layouts.foreign.chunks import ForeignChunks
from mdio.layouts.foreign.units import length_factor, made_up

MAGIC = 0x65DF65DF65DF65DF
HEADER = np.dtype(
    [
        *[(name, "<u8") for name in ("magic", "index", "n_index", "names", "n_names")],
        *[("schema_version", "<u4"), ("version", "<u4")],
        *[("application", "S64"), ("schema", "S64"), ("reserved", "S80")],
    ]
)
ENTRY = np.dtype(
    [
        *[("frame", "<u8"), ("n_rows", "<u8"), ("offset", "<i8"), ("n_columns", "<u4")],
        *[("name", "<u2"), ("kind", "u1"), ("flags", "u1")],
    ]
)
NAME_NBYTES = 64
POSITION, N_PARTICLES = "particles/position", "particles/N"
STEP, BOX = "configuration/step", "configuration/box"
KINDS: dict[str, tuple[int, np.dtype[Any], int]] = {
    POSITION: (9, np.dtype("<f4"), 3),
    BOX: (9, np.dtype("<f4"), 1),
    STEP: (4, np.dtype("<u8"), 1),
    N_PARTICLES: (3, np.dtype("<u4"), 1),
}
"""What is read: GSD's number of the type, the type, and columns."""
NOWHERE = -1
MOST_EMPTY = 1000
"""Frames for each chunk that the index may speak of: more are a damaged number."""


class GSDLayout(Layout):
    """A GSD file of HOOMD's schema."""

    name = "gsd"
    known_options = frozenset({"dt", "length_unit"})

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins as GSD does."""
        return path.is_file() and head_of(path)[:8] == MAGIC.to_bytes(8, "little")

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not read, too; see `Layout.notes`."""
        return (*super().notes, *self._left_out)

    def _fail(self, found: str) -> SourceError:
        return SourceError(f"{self.path}: {found}; it is no GSD file of HOOMD, or is damaged")

    def _open(self) -> TrajectoryInfo:
        self._factor = length_factor(self.path, self.options)
        self._file = OpenFile(self.path)
        try:
            return self._describe()
        except BaseException:
            self._close()
            raise

    def _describe(self) -> TrajectoryInfo:
        if self._file.nbytes < HEADER.itemsize:
            raise self._fail(f"it has {self._file.nbytes} bytes, less than a header")
        header: Any = self._file.array(0, HEADER.itemsize).view(HEADER)[0]
        if header["magic"] != MAGIC or header["schema"] != b"hoomd":
            raise self._fail(f"its schema is {bytes(header['schema'])!r}, expected b'hoomd'")
        table = self._table(int(header["index"]), int(header["n_index"]) * ENTRY.itemsize)
        entries: NDArray[Any] = table.view(ENTRY)
        unused = np.flatnonzero(entries["offset"] == 0)
        entries = entries[: unused[0]] if unused.size else entries
        raw = self._table(int(header["names"]), int(header["n_names"]) * NAME_NBYTES).tobytes()
        is_old = int(header["version"]) < 0x20000
        slots = range(0, len(raw), NAME_NBYTES)
        texts = [raw[at : at + NAME_NBYTES].split(b"\0")[0] for at in slots]
        names = [
            text.decode("utf-8", "replace") for text in (texts if is_old else raw.split(b"\0"))
        ]
        frames = entries["frame"].astype(np.int64)
        if not entries.size or frames[0] != 0 or (np.diff(frames) < 0).any():
            raise self._fail(f"its index has {entries.size} entries, not in the order of frames")
        if frames[-1] >= MOST_EMPTY * entries.size:
            raise self._fail(f"its index goes to frame {frames[-1]} with {entries.size} entries")
        n_frames = int(frames[-1]) + 1
        self._sizes: dict[str, NDArray[Any]] = {}
        self._rows = {name: self._rows_of(name, names, entries, n_frames) for name in KINDS}
        n_atoms = self._check_atoms()
        offset = self._rows[POSITION]
        self._chunks = ForeignChunks(
            f"{self.path}: {POSITION}",
            (n_frames, n_atoms, 3),
            (1, n_atoms),
            self._file,
            offset[:, None],
            np.full((n_frames, 1), 12 * n_atoms, np.int64),
        )
        later = {names[at] for at in np.unique(entries["name"][frames > 0]) if at < len(names)}
        more = sorted(one for one in later - KINDS.keys() if one.startswith("particles/"))
        said = f"{self.path}: {', '.join(more)} of later frames are not read"
        self._left_out = (said,) if more else ()
        dt = self._dt()
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=n_frames,
            n_atoms=n_atoms,
            dt_ps=dt,
            time_first_ps=0.0,
            time_last_ps=dt * (n_frames - 1),
            has_box=bool(self._boxes(0, 1).any()),
            nbytes=self._file.nbytes,
            made_up=tuple(made_up("GSD", self.options, times="frames", lengths=True, stepped=True)),
        )

    def _dt(self) -> float:
        return float(self.options.get("dt") or 1.0)

    def _table(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        if not HEADER.itemsize <= offset <= offset + nbytes <= self._file.nbytes:
            raise self._fail(
                f"{nbytes} bytes of its index are said to lie at {offset}, it has "
                f"{self._file.nbytes}"
            )
        return self._file.array(offset, nbytes)

    def _rows_of(
        self, name: str, names: list[str], entries: NDArray[Any], n_frames: int
    ) -> NDArray[np.int64]:
        """Return where the numbers of each frame lie, those of frame 0 where it has none."""
        number = names.index(name) if name in names else NOWHERE
        found = entries[entries["name"] == number] if number >= 0 else entries[:0]
        kind, dtype, n_columns = KINDS[name]
        room = self._file.nbytes // (dtype.itemsize * n_columns)
        wrong = (found["kind"] != kind) | (found["n_columns"] != n_columns)
        wrong |= (found["n_rows"] > room) | (found["offset"] < HEADER.itemsize)
        ends = found["offset"] + found["n_rows"].astype(np.int64) * dtype.itemsize * n_columns
        wrong |= ends > self._file.nbytes
        if wrong.any():
            at = found[int(np.flatnonzero(wrong)[0])]
            raise self._fail(
                f"{name} of frame {at['frame']} has {at['n_rows']} x {at['n_columns']} numbers of "
                f"type {at['kind']} at byte {at['offset']} of {self._file.nbytes}"
            )
        rows = np.full(n_frames, NOWHERE, np.int64)
        rows[found["frame"].astype(np.int64)] = found["offset"]
        rows[rows == NOWHERE] = rows[0]
        self._sizes[name] = found["n_rows"]
        return rows

    def _check_atoms(self) -> int:
        """Return how many atoms frames have; raises SourceError if not all the same."""
        sizes = self._sizes[POSITION]
        if self._rows[POSITION][0] == NOWHERE or not sizes.size or sizes[0] == 0:
            raise self._fail("frame 0 has no positions")
        if (self._sizes[BOX] != 6).any():
            raise self._fail("a box has other than 6 numbers")
        n_atoms = int(sizes[0])
        said = {int(self._numbers(N_PARTICLES, at)[0]) for at in np.unique(self._rows[N_PARTICLES])}
        others = {int(n) for n in np.unique(sizes)} | (said - {NOWHERE})
        if others != {n_atoms}:
            raise SourceError(
                f"{self.path}: frames have {', '.join(map(str, sorted(others)))} atoms; a "
                "trajectory has the same atoms throughout"
            )
        return n_atoms

    def _numbers(self, name: str, offset: int) -> NDArray[Any]:
        """Return the numbers that lie somewhere; -1 where there are none."""
        dtype: np.dtype[Any] = KINDS[name][1]
        if offset == NOWHERE:
            return np.full(6, NOWHERE)
        nbytes = dtype.itemsize * (6 if name == BOX else 1)
        return self._file.array(int(offset), nbytes).view(dtype)

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        places, at = np.unique(self._rows[BOX][start:stop], return_inverse=True)
        if places[0] == NOWHERE:
            return np.zeros((stop - start, 6), np.float32)
        cells = np.array([self._numbers(BOX, place) for place in places], np.float64)
        xy, xz, yz = cells[:, 3:].T
        b, c = np.sqrt(1 + xy**2), np.sqrt(1 + xz**2 + yz**2)
        boxes = np.empty_like(cells)
        boxes[:, :3] = cells[:, :3] * np.array([np.ones_like(b), b, c]).T * self._factor
        cosines = np.array([(xy * xz + yz) / (b * c), xz / c, xy / b]).T
        boxes[:, 3:] = np.rad2deg(np.arccos(cosines))
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0
        return boxes.astype(np.float32)[at]

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        block.time[...] = np.arange(start, stop) * self._dt()
        places, at = np.unique(self._rows[STEP][start:stop], return_inverse=True)
        steps = [max(int(self._numbers(STEP, place)[0]), 0) for place in places]
        block.step[...] = np.array(steps, np.uint64).astype(np.int64)[at]
        block.box[...] = self._boxes(start, stop)
        if block.n_atoms == 0:
            return
        for name in block.present():
            if name != "positions":
                raise SourceError(f"{self.path}: there are no {name} in it; leave them out")
        self._chunks.read(start, stop, atoms, block.positions)
        if self._factor != 1:
            block.positions[...] *= self._factor

    def _close(self) -> None:
        self._file.close()
