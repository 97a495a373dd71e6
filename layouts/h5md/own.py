"""Opens H5MD files that mdio wrote: HDF5 says where things are, and is closed again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5z
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.files.reading import OpenFile
from mdio.core.files.requests import ByteRange
from mdio.core.frames import ELEMENTS, FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.grouped import StoredGroups
from mdio.layouts.h5md.chunks import ChunkedArray, plans_of, stored_chunks
from mdio.layouts.h5md.file import chunk_table, run_table, value_path
from mdio.layouts.h5md.io import (
    ARRAYS,
    BOX,
    FOREIGN_ERRORS,
    FULL_SYSTEM,
    MANIFEST,
    PIECES,
    RUN_FRAMES,
    SOURCE_STEP,
    Column,
    descriptor_of,
)
from mdio.layouts.h5md.seal import check_seal
from mdio.layouts.manifest import check_manifest, indices_from_runs
from mdio.layouts.output import EncodedChunk, Unit

__all__ = ["OwnFile"]

AtomIndices = NDArray[np.int64]


class OwnFile:
    """An H5MD file of mdio, open for reading by plain system calls.

    Parameters
    ----------
    path, file
        The file, and the same opened by h5py, which is not needed any more afterwards.
    group
        Particle group whose atoms are those of the trajectory; the full system by default.
    verify
        Whether what is read is compared with the checksums of the file.

    Raises
    ------
    CorruptLayoutError
        It is not what its manifest says.
    PlanError
        There is no such group.
    """

    contiguous = False  # whether arrays lie in one piece each

    def __init__(
        self, path: Path, file: h5py.File, group: str | None, *, verify: bool = True
    ) -> None:
        self.path = path
        self._trusted = not verify
        self._nbytes: int = file.id.get_filesize()
        try:
            text = file[MANIFEST].asstr()[()]
            self.manifest_crc32c = crc32c(text.encode())
            manifest = json.loads(text)
        except FOREIGN_ERRORS as error:
            raise CorruptLayoutError(
                f"{path}: its manifest cannot be read; convert the source again"
            ) from error
        self.manifest = check_manifest(manifest, path)
        sizes = {FULL_SYSTEM: self.manifest["n_atoms"], **self.manifest["groups"]}
        self.group = group or FULL_SYSTEM
        if self.group not in sizes:
            raise PlanError(
                f"{path}: there is no group {group!r} in it; there are {', '.join(sizes)}"
            )
        n_frames = self.manifest["n_frames"]
        try:
            self.arrays = self._arrays(file, sizes, n_frames)
            position = file[f"particles/{FULL_SYSTEM}/position"]
            crcs = {name: int(crc) for name, crc in self.manifest["column_crc32c"].items()}
            step = file[SOURCE_STEP] if SOURCE_STEP in file else position["step"]
            self._columns = {
                "times": self._column(position["time"], (n_frames,), "<f8", crcs["time"]),
                "steps": self._column(step, (n_frames,), "<i8", crcs["step"]),
                "boxes": self._column(file[BOX], (n_frames, 6), "<f4", crcs["box"]),
            }
        except FOREIGN_ERRORS as error:
            if isinstance(error, CorruptLayoutError):
                raise
            raise CorruptLayoutError(
                f"{path}: not laid out as its manifest says ({' '.join(str(error).split())}); "
                "convert the source again"
            ) from error
        self._whats = {name: f"{path}: {name}" for name in self._columns}
        members = {}
        if self.group == FULL_SYSTEM:
            runs = self.manifest["group_atoms"]
            members = {name: indices_from_runs(runs[name]) for name in self.manifest["groups"]}
        self._groups = StoredGroups(members)
        self._bytes = OpenFile(path, CorruptLayoutError, descriptor_of(file, path))

    def _arrays(
        self, file: h5py.File, sizes: dict[str, int], n_frames: int
    ) -> dict[tuple[str, str], ChunkedArray]:
        arrays = {}
        for name, n_atoms in sizes.items():
            for field in ELEMENTS:
                path = value_path(name, field)
                if path in file:
                    shape = (n_frames, n_atoms, 3)
                    arrays[name, field] = self._array(file, name, field, shape)
                elif field == "positions":
                    raise KeyError(f"no {path}")
        return arrays

    def _array(
        self, file: h5py.File, group: str, field: str, shape: tuple[int, int, int]
    ) -> ChunkedArray:
        dataset = file[value_path(group, field)]
        tables = file[f"{ARRAYS}/{group}/{ELEMENTS[field]}"]
        if dataset.shape != shape or dataset.dtype != np.dtype("<f4"):
            raise ValueError(f"{dataset.name} is {dataset.dtype} {dataset.shape}, expected {shape}")
        what = f"{self.path}: {ELEMENTS[field]} of {group}"
        crcs = np.asarray(tables["crc32c"], np.uint32)
        expected = self.manifest.get("table_crc32c", {}) if not self._trusted else {}
        table = f"{group}/{ELEMENTS[field]}"
        if expected and crc32c(crcs) != expected[f"{table}/crc32c"]:
            raise ValueError(f"the checksums of {dataset.name} are damaged")
        pieces = None
        if f"{table}/{PIECES}" in expected:
            shape_of = (shape[0], crcs.shape[1], pieces_of_row(12 * (dataset.chunks or shape)[1]))
            crc = expected[f"{table}/{PIECES}"]
            pieces = self._column(tables[PIECES], shape_of, "<u4", crc)
        if dataset.chunks is None:
            self.contiguous = True
            run_frames = int(tables.attrs[RUN_FRAMES])
            places = run_table(dataset, run_frames)
            self._check_places(dataset.name, crcs, *places)
            return ChunkedArray(
                what,
                shape,
                (run_frames, shape[1]),
                *places,
                crcs,
                deflated=False,
                shuffled=False,
                pieces=pieces,
                trusted=self._trusted,
            )
        chunk_frames, chunk_atoms, n_axes = dataset.chunks
        grid = (-(-shape[0] // chunk_frames), -(-shape[1] // chunk_atoms))
        layout = dataset.id.get_create_plist()
        filters = [layout.get_filter(k)[0] for k in range(layout.get_nfilters())]
        if n_axes != 3 or filters not in ([], [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE]):
            raise ValueError(f"{dataset.name} went through other filters than mdio's")
        offset = np.asarray(tables["offset"], np.int64)
        nbytes = np.full(offset.shape, 12 * chunk_frames * chunk_atoms, np.int64)
        if filters:
            nbytes = np.asarray(tables["nbytes"], np.int64)
        # A copy by h5repack has the same chunks elsewhere; its first and last say so.
        corners = [(0, 0), ((grid[0] - 1) * chunk_frames, (grid[1] - 1) * chunk_atoms)]
        found = [dataset.id.get_chunk_info_by_coord((*at, 0)) for at in corners]
        listed = [(int(o.flat[k]), int(n.flat[k])) for o, n in [(offset, nbytes)] for k in (0, -1)]
        if [(info.byte_offset, info.size) for info in found] != listed:
            offset, nbytes = chunk_table(dataset)
        if offset.shape != grid:
            raise ValueError(f"{dataset.name} has {grid} chunks, its tables {offset.shape}")
        self._check_places(dataset.name, crcs, offset, nbytes)
        return ChunkedArray(
            what,
            shape,
            (chunk_frames, chunk_atoms),
            offset,
            nbytes,
            crcs,
            deflated=bool(filters),
            shuffled=bool(filters),
            pieces=pieces,
            trusted=self._trusted,
        )

    def _check_places(
        self,
        name: str,
        crcs: NDArray[np.uint32],
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
    ) -> None:
        if not offset.shape == nbytes.shape == crcs.shape:
            raise ValueError(f"{name} has {offset.shape} chunks, its tables {crcs.shape}")
        if offset.min() < 0 or nbytes.min() < 0 or (offset + nbytes).max() > self._size():
            raise ValueError(f"{name} has chunks beyond the end of the file")

    def _size(self) -> int:
        return self._nbytes

    def _column(
        self, dataset: h5py.Dataset, shape: tuple[int, ...], dtype: str, crc: int
    ) -> Column:
        if dataset.shape != shape or dataset.dtype != np.dtype(dtype):
            raise ValueError(f"{dataset.name} is {dataset.dtype} {dataset.shape}, expected {shape}")
        return Column.of(dataset, None if self._trusted else crc)

    def info(self, layout: str) -> TrajectoryInfo:
        """Return what is in the file, as the trajectory of its group."""
        manifest = self.manifest
        first, last = (self._row(n) for n in (0, manifest["n_frames"] - 1))
        positions = self.arrays[self.group, "positions"]
        return TrajectoryInfo(
            layout=layout,
            path=str(self.path),
            n_frames=manifest["n_frames"],
            n_atoms=positions.n_atoms,
            dt_ps=float(manifest["dt_ps"]),
            time_first_ps=first[0],
            time_last_ps=last[0],
            has_velocities=(self.group, "velocities") in self.arrays,
            has_forces=(self.group, "forces") in self.arrays,
            has_box=first[1],
            groups=dict(manifest["groups"]),
            chunk_frames=positions.chunk_frames,
            chunk_atoms=positions.chunk_atoms,
            compression=manifest["compression"],
            precision=manifest["precision"],
            nbytes=self._size(),
            source=manifest["source"],
        )

    def _row(self, frame: int) -> tuple[float, bool]:
        time, box = (self._rows(name, frame, frame + 1) for name in ("times", "boxes"))
        return float(time[0]), bool(box.any())

    def _rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self._columns[name].read(self._bytes, start, stop, self._whats[name])

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill `block`; raises CorruptLayoutError."""
        block.time[:] = self._rows("times", start, stop)
        block.step[:] = self._rows("steps", start, stop)
        block.box[:] = self._rows("boxes", start, stop)
        if atoms is not None and not atoms.size:
            return
        group, atoms = self._stored_as(atoms)
        for field, out in block.present().items():
            if (group, field) not in self.arrays:
                raise CorruptLayoutError(f"{self.path}: there are no {field} in it; leave them out")
            self._read_array((group, field), start, stop, atoms, out)

    def byte_ranges(
        self, start: int, stop: int, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[ByteRange]:
        """Yield what reading `fields` takes of chunks; see `Layout.byte_ranges`."""
        if atoms is None or atoms.size:
            group, atoms = self._stored_as(atoms)
            for field in fields:
                if (group, field) in self.arrays:
                    array = self.arrays[group, field]
                    yield from array.byte_ranges(self._bytes, start, stop, atoms)

    def _stored_as(self, atoms: AtomIndices | None) -> tuple[str, AtomIndices | None]:
        """Return the group that atoms are read of, and which of its atoms; None for all."""
        covered = None if atoms is None else self._groups.cover(atoms)
        return (self.group, atoms) if covered is None else covered

    def _read_array(
        self,
        key: tuple[str, str],
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out` with frames of the array of a group and field."""
        self.arrays[key].read(self._bytes, start, stop, atoms, out)

    def units(self) -> Iterator[Unit]:
        """Yield every column, table and chunk, and the seal; see `Layout.units`."""
        if "table_crc32c" in self.manifest:  # written since there are seals
            places = [array.places for array in self.arrays.values()]
            check = partial(check_seal, self._bytes.fileno(), places, str(self.path))
            yield Unit(f"{self.path}: all but the frames", check)
        for name, column in self._columns.items():
            what = self._whats[name]
            yield Unit(what, partial(column.verify, self._bytes, what))
        for (group, _), array in self.arrays.items():
            if array.pieces is not None:
                what = f"{array.what}, checksums"
                yield Unit(what, partial(array.pieces.verify, self._bytes, what), None, group)
            for i, j in np.ndindex(*array.grid):
                verify = partial(array.verify, self._bytes, i, j)
                first = i * array.chunk_frames
                frames = (first, min(first + array.chunk_frames, array.n_frames))
                yield Unit(array.name_of(i, j), verify, frames, group)

    def stored(self, start: int, stop: int) -> list[EncodedChunk]:
        """Return the chunks of a piece as they lie in the file; see `Layout.stored`."""
        return list(stored_chunks(self.arrays, self._bytes, start, stop))

    def made_as(self) -> dict[str, Any]:
        """Return how arrays are cut; see `Layout.made_as`."""
        return {"arrays": plans_of(self.arrays, contiguous=self.contiguous)}

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()
