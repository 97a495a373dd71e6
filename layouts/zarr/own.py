"""Opens Zarr trees that mdio wrote, without zarr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.files.requests import ByteRange
from mdio.core.frames import ELEMENTS, FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.grouped import StoredGroups
from mdio.layouts.manifest import FULL_SYSTEM, check_manifest, indices_from_runs
from mdio.layouts.output import EncodedChunk, Unit
from mdio.layouts.plan import ArrayPlan
from mdio.layouts.zarr.checksums import Checksums
from mdio.layouts.zarr.chunks import ChunkedArray
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.metadata import (
    METADATA,
    ArrayMetadata,
    group_metadata,
    parse_metadata,
    read_node,
)
from mdio.layouts.zarr.series import SeriesArray
from mdio.layouts.zarr.tree import SERIES, SeriesName, TableName, table_path

__all__ = ["OwnTree"]

AtomIndices = NDArray[np.int64]


class OwnTree:
    """A Zarr tree of mdio.

    Parameters
    ----------
    root
        Of the tree; closed with it.
    text
        Its ``zarr.json``, with a manifest.
    group
        Particle group whose atoms are those of the trajectory; the full system by default.
    verify
        Whether what is read is compared with its checksums.

    Raises
    ------
    CorruptLayoutError
        It is not what its manifest says.
    PlanError
        There is no such group.
    """

    def __init__(self, root: Folder, text: bytes, group: str | None, *, verify: bool) -> None:
        self.path = path = root.path
        self._root, self._text, self._verifies = root, text, verify
        node = parse_metadata(path / METADATA, text)
        self.manifest = check_manifest(node["attributes"]["mdio"], path)
        self._file_crcs = _crcs_in(self.manifest, "file_crc32c", path)
        self._node_crcs = _crcs_in(self.manifest, "node_crc32c", path)
        sizes = {FULL_SYSTEM: self.manifest["n_atoms"], **self.manifest["groups"]}
        self.group = group or FULL_SYSTEM
        if self.group not in sizes:
            raise PlanError(
                f"{path}: there is no group {group!r} in it; there are {', '.join(sizes)}"
            )
        self.n_frames: int = self.manifest["n_frames"]
        fields = self.manifest.get("fields")
        if not isinstance(fields, list) or "positions" not in fields or set(fields) - set(FIELDS):
            raise CorruptLayoutError(
                f"{path}: its manifest has {fields!r} for 'fields'; convert the source again"
            )
        self.arrays = {
            (name, field): self._array(name, field, n_atoms)
            for name, n_atoms in sizes.items()
            for field in fields
        }
        self._time = self._series(f"particles/{self.group}/position/time", "time")
        self._step = self._series("mdio/step", "source_step")
        self._box = self._series("mdio/box", "box")
        members = {}
        if self.group == FULL_SYSTEM:
            runs = self.manifest["group_atoms"]
            members = {name: indices_from_runs(runs[name]) for name in self.manifest["groups"]}
        self._groups = StoredGroups(members)

    def _metadata(self, path: str, shape: tuple[int, ...], dtype: str) -> ArrayMetadata:
        text = read_node(self._root, path)
        try:
            metadata = ArrayMetadata.from_json(parse_metadata(self.path / path / METADATA, text))
        except ValueError as error:
            raise CorruptLayoutError(
                f"{self.path / path}: mdio did not write this array: {error}"
            ) from error
        if (metadata.shape, metadata.dtype) != (shape, dtype):
            raise CorruptLayoutError(
                f"{self.path / path}: {metadata.dtype} of shape {metadata.shape}, but the manifest "
                f"tells of {dtype} {shape}; convert the source again"
            )
        return metadata

    def _array(self, group: str, field: str, n_atoms: int) -> ChunkedArray:
        path = f"particles/{group}/{ELEMENTS[field]}/value"
        metadata = self._metadata(path, (self.n_frames, n_atoms, 3), "float32")
        if not metadata.sharded or metadata.chunk_shape[2] != 3:
            raise CorruptLayoutError(f"{self.path / path}: mdio did not write this array")
        n_atom_chunks = metadata.chunks_per_file[1]
        n_pieces = pieces_of_row(12 * metadata.chunk_shape[1])
        grid = (-(-self.n_frames // metadata.chunk_shape[0]), n_atom_chunks)
        decoded = self._table("crc32c", group, field, grid)
        stored: SeriesArray | None = decoded
        pieces = None
        if not metadata.plain:
            stored = self._table("crc32c_stored", group, field, grid)
        else:
            shape = (self.n_frames, n_atom_chunks * n_pieces)
            pieces = self._table("crc32c_pieces", group, field, shape)
        assert decoded is not None
        checksums = Checksums(decoded, stored, pieces, n_pieces)
        return ChunkedArray(self._root, path, metadata, checksums, verify=self._verifies)

    def _series(self, path: str, name: SeriesName) -> SeriesArray:
        series = SERIES[name]
        metadata = self._metadata(path, (self.n_frames, *series.tail), series.dtype)
        return self._numbers(path, metadata)

    def _table(
        self, table: TableName, group: str, field: str, shape: tuple[int, ...]
    ) -> SeriesArray | None:
        """Return a table of checksums; None for those that older versions did not write."""
        path = table_path(table, group, field)
        if table != "crc32c" and path not in self._file_crcs:
            return None
        return self._numbers(path, self._metadata(path, shape, "uint32"))

    def _numbers(self, path: str, metadata: ArrayMetadata) -> SeriesArray:
        crcs = self._file_crcs.get(path)
        if crcs is not None and len(crcs) != metadata.n_files:
            raise CorruptLayoutError(
                f"{self.path / path}: in {metadata.n_files} files, but the manifest tells of "
                f"{len(crcs)}; convert the source again"
            )
        return SeriesArray(self._root, path, metadata, crcs)

    def info(self, layout: str) -> TrajectoryInfo:
        """Return what is in the tree, as the trajectory of its group."""
        manifest = self.manifest
        time = np.zeros(2)
        box = np.zeros((1, 6), np.float32)
        # Without verifying, damaged trees are opened to be repaired.
        with nullcontext() if self._verifies else suppress(CorruptLayoutError):
            self._box.read(0, 1, box)
            self._time.read(0, 1, time[:1])
            self._time.read(self.n_frames - 1, self.n_frames, time[1:])
        positions = self.arrays[self.group, "positions"]
        compression = manifest.get("compression")
        if compression is None and positions.metadata.quantised is not None:
            compression = positions.metadata.quantised.compression
        return TrajectoryInfo(
            layout=layout,
            path=str(self.path),
            n_frames=self.n_frames,
            n_atoms=positions.n_atoms,
            dt_ps=float(manifest["dt_ps"]),
            time_first_ps=float(time[0]),
            time_last_ps=float(time[1]),
            has_velocities=(self.group, "velocities") in self.arrays,
            has_forces=(self.group, "forces") in self.arrays,
            has_box=bool(box.any()),
            groups=dict(manifest["groups"]),
            chunk_frames=positions.chunk_frames,
            chunk_atoms=min(positions.chunk_atoms, positions.n_atoms),
            compression=compression,
            precision=manifest.get("precision"),
            xtc_integers=manifest.get("precision_source") == "xtc",
            nbytes=int(manifest.get("nbytes", 0)),
            source=manifest["source"],
        )

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill `block`; raises CorruptLayoutError."""
        self._time.read(start, stop, block.time)
        self._step.read(start, stop, block.step)
        self._box.read(start, stop, block.box)
        if atoms is not None and not atoms.size:
            return
        group, atoms = self._stored_as(atoms)
        for field, out in block.present().items():
            if (group, field) not in self.arrays:
                raise CorruptLayoutError(f"{self.path}: there are no {field} in it; leave them out")
            self.arrays[group, field].read(start, stop, atoms, out)

    def byte_ranges(
        self, start: int, stop: int, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[ByteRange]:
        """Yield what reading `fields` takes of shards; see `Layout.byte_ranges`."""
        if atoms is None or atoms.size:
            group, atoms = self._stored_as(atoms)
            for field in fields:
                if (group, field) in self.arrays:
                    yield from self.arrays[group, field].byte_ranges(start, stop, atoms)

    def _stored_as(self, atoms: AtomIndices | None) -> tuple[str, AtomIndices | None]:
        """Return the group that atoms are read of, and which of its atoms; None for all."""
        group = self.group
        covered = None if atoms is None else self._groups.cover(atoms)
        if covered is not None:
            group, atoms = covered
        if atoms is not None and _is_everything(atoms, self.arrays[group, "positions"].n_atoms):
            atoms = None
        return group, atoms

    def units(self) -> Iterator[Unit]:
        """Yield every chunk, file of numbers and ``zarr.json``; see `Layout.units`."""
        for (group, field), array in self.arrays.items():
            name = f"{field} of {group}"
            try:
                array.checksums.read()
            except CorruptLayoutError:
                yield Unit(f"checksums of the {name}", array.checksums.read, None, group)
                continue
            grid = (-(-self.n_frames // array.chunk_frames), array.n_atom_chunks)
            for number, column in np.ndindex(*grid):
                begin = number * array.chunk_frames
                end = min(begin + array.chunk_frames, self.n_frames)
                what = f"{name}, frames {begin} to {end - 1}"
                if array.n_atom_chunks > 1:
                    what += f", atoms from {column * array.chunk_atoms}"
                yield Unit(what, partial(array.check, number, column), (begin, end), group)
        for path, name in self._all_series():
            try:
                series = self._series(path, name)
            except CorruptLayoutError:
                yield Unit(path, partial(self._check_series, path, name, 0))
                continue
            rows = series.rows_per_file
            for number in range(series.metadata.n_files):
                frames = (number * rows, min((number + 1) * rows, self.n_frames))
                check = partial(self._check_series, path, name, number)
                yield Unit(f"{path}, file {number}", check, frames)
        if self._node_crcs:  # trees of older versions have none
            for path in ("", *self._node_crcs):
                yield Unit(f"{path}/{METADATA}".lstrip("/"), partial(self._check_node, path))

    def _check_series(self, path: str, name: SeriesName, number: int) -> None:
        self._series(path, name).file(number)

    def _check_node(self, path: str) -> None:
        """Compare a ``zarr.json`` with what was written; raises CorruptLayoutError."""
        if path:
            same = kernels.crc32c(read_node(self._root, path)) == self._node_crcs[path]
        else:
            same = self._text == json.dumps(group_metadata({"mdio": self.manifest})).encode()
        if not same:
            raise CorruptLayoutError(
                f"{self.path / path / METADATA}: not as mdio wrote it; it was damaged, or another "
                "program added to it (attributes, consolidated metadata)"
            )

    def stored(self, start: int, stop: int) -> list[EncodedChunk]:
        """Return the shards of a piece, each as the file that it is; see `Layout.stored`."""
        return [array.stored(start, stop) for array in self.arrays.values()]

    def made_as(self) -> dict[str, Any]:
        """Return how arrays are cut; see `Layout.made_as`."""
        first = next(iter(self.arrays.values()))
        arrays = tuple(
            ArrayPlan(*of, array.n_atoms, array.chunk_frames, array.chunk_atoms)
            for of, array in self.arrays.items()
        )
        return {"arrays": arrays, "piece_frames": first.frames_per_shard * first.chunk_frames}

    def _all_series(self) -> Iterator[tuple[str, SeriesName]]:
        """Return the folders of all per-frame numbers, copies too."""
        yield "mdio/box", "box"
        yield "mdio/step", "source_step"
        elements = [f"particles/{group}/{ELEMENTS[field]}" for group, field in self.arrays]
        cells = [f"particles/{group}/box/edges" for group in dict(self.arrays.keys())]
        for element in elements + cells:
            yield f"{element}/step", "step"
            yield f"{element}/time", "time"
        for cell in cells:
            yield f"{cell}/value", "edges"

    def close(self) -> None:
        """Close all files."""
        for array in self.arrays.values():
            array.close()
        self._root.close()


def _crcs_in(manifest: Mapping[str, Any], key: str, path: Any) -> dict[str, Any]:
    """Return the checksums by array that a manifest holds; those of older versions have none."""
    crcs = manifest.get(key, {})
    if not isinstance(crcs, dict):
        raise CorruptLayoutError(
            f"{path}: its manifest has {str(crcs)[:60]!r} for {key!r}; convert the source again"
        )
    return crcs


def _is_everything(atoms: AtomIndices, n_atoms: int) -> bool:
    return atoms.size == n_atoms and bool(np.array_equal(atoms, np.arange(n_atoms)))
