"""H5MD files of earlier versions whose frames, or trajectories, are in other files, their parts.

``NAME.h5md`` has time, step and box of all frames, and virtual datasets (HDF5 1.10) over the arrays
of the parts, ``NAME.h5md.parts/0000.h5md`` and so on, each an H5MD file of its own. HDF5 reads a
missing part as NaN, and does not check whether a part belongs to the file. So mdio opens and
verifies each part as a file of its own.

An ensemble in a file has ``/particles/LABEL`` for each trajectory, an external link to the full
system in ``NAME.h5md.parts/LABEL.h5md``, which is an H5MD file of mdio by itself
(`mdio.layouts.h5md.layout.find_members`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import runs_in_parts
from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, MdioError, one_line
from mdio.core.files.checks import file_beside_parts
from mdio.core.files.in_flight import ByteRange
from mdio.core.files.reading import HandleCache
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.core.words import frames_text
from mdio.layouts.h5md.opening import open_hdf5
from mdio.layouts.h5md.own import H5MDChunks, OwnFile
from mdio.layouts.units import Unit

if TYPE_CHECKING:
    from mdio.layouts.writer import EncodedChunk

IN_PARTS = "in_parts"
"""Attribute of ``/mdio`` in files whose frames are in parts: the number of parts."""
MAX_OPEN_PARTS = 16


@dataclass(frozen=True, slots=True)
class Part:
    """One part, as listed in the manifest."""

    file: str
    """Name in the folder of parts."""
    first_frame: int
    n_frames: int
    uuid: str
    nbytes: int
    manifest_crc32c: int | None = None
    """Checksum of its manifest, which holds those of its contents; None in older outputs."""

    @property
    def stop(self) -> int:
        return self.first_frame + self.n_frames


def is_in_parts(file: h5py.File) -> bool:
    """Return whether the frames of a file of mdio are in parts."""
    return "mdio" in file and IN_PARTS in file["mdio"].attrs


def _parts_of(manifest: Mapping[str, Any], path: Path) -> tuple[Path, list[Part]]:
    folder, rows = manifest.get("parts_folder"), manifest.get("parts")
    parts: list[Part] = []
    n_frames = 0
    try:
        if not isinstance(folder, str) or folder in ("", ".", "..") or set(folder) & set("/\0"):
            raise ValueError(f"{folder!r} is not a name of a folder")
        for row in rows if isinstance(rows, list) else []:
            part = Part(**row)
            numbers = (part.first_frame, part.n_frames, part.nbytes)
            if not all(type(number) is int for number in numbers) or part.n_frames < 1:
                raise ValueError(f"{row} has no numbers")
            if part.first_frame != n_frames or not re.fullmatch(r"\d+\.h5md", part.file):
                raise ValueError(f"{row} does not follow at frame {n_frames}")
            parts.append(part)
            n_frames = part.stop
        if n_frames != manifest["n_frames"]:
            raise ValueError(f"they have {n_frames} frames, not {manifest['n_frames']}")
    except (TypeError, ValueError) as error:
        raise CorruptLayoutError(
            f"{path}: its manifest does not describe its parts correctly ({str(error)[:200]}); "
            "convert the source again"
        ) from error
    return file_beside_parts(path, folder).with_name(folder), parts


class FileInParts(OwnFile):
    """A file of mdio and its parts, open for reading by plain system calls."""

    def __init__(
        self, path: Path, file: h5py.File, group: str | None, *, verify: bool = True
    ) -> None:
        self._open_parts = HandleCache(self._open_part, MAX_OPEN_PARTS)
        super().__init__(path, file, group, verify=verify)

    def _arrays(self, file: h5py.File) -> dict[tuple[str, str], H5MDChunks]:  # noqa: ARG002
        """Find the parts, and return no arrays: each part has its own."""
        self.folder, self.parts = _parts_of(self.manifest, self.path)
        try:
            names = {path.name for path in self.folder.iterdir()}
        except OSError as error:
            raise CorruptLayoutError(
                f"{self.folder}: the folder with the {len(self.parts)} parts of {self.path.name} "
                f"cannot be read ({error.strerror}); put it back beside {self.path.name}, or "
                "convert the source again"
            ) from error
        missing = [part for part in self.parts if part.file not in names]
        if missing and self._verifies:
            raise CorruptLayoutError(
                f"{self.folder / missing[0].file}: this part of {self.path.name} (frames "
                f"{missing[0].first_frame} to {missing[0].stop - 1}) is missing, as are "
                f"{len(missing) - 1} others; put it back, or convert the source again"
            )
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "folder": self.folder.absolute()}

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return np.array([0, *(part.stop for part in self.parts)], np.int64)

    def _open_part(self, number: int) -> OwnFile:
        part = self.parts[number]
        path = self.folder / part.file
        frames = frames_text(part.first_frame, part.stop)
        part_text = f"part {number} of {self.path.name}, {frames}"
        try:
            with open_hdf5(path) as file:
                part_file = OwnFile(path, file, self.group, verify=self._verifies)
        except MdioError as error:
            raise CorruptLayoutError(f"{error} ({part_text})") from error
        except FOREIGN_ERRORS as error:
            raise CorruptLayoutError(
                f"{path}: missing, truncated or not an HDF5 file ({one_line(error)}), "
                f"expected {part_text}; put it back, or convert the source again"
            ) from error
        manifest = part_file.manifest
        crc = part_file.manifest_crc32c
        is_same = not self._verifies or part.manifest_crc32c in (None, crc)
        if manifest["uuid"] != part.uuid or not is_same:
            part_file.close()
            raise CorruptLayoutError(
                f"{path}: not the part that {self.path.name} refers to ({part_text}): its uuid is "
                f"{manifest['uuid']}, expected {part.uuid}, and its manifest has crc32c {crc}, "
                f"expected {part.manifest_crc32c}; put the right one back, or convert the "
                "source again"
            )
        shape = (manifest["n_frames"], manifest["n_atoms"])
        if shape != (part.n_frames, self.manifest["n_atoms"]):
            part_file.close()
            raise CorruptLayoutError(
                f"{path}: {shape[0]} frames of {shape[1]} atoms, expected {part.n_frames} of "
                f"{self.manifest['n_atoms']} ({part_text}); convert the source again"
            )
        return part_file

    def _readable_part(self) -> OwnFile:
        """Return the first part; without verifying, the first that is undamaged."""
        for number in range(0 if self._verifies else len(self.parts)):
            with suppress(CorruptLayoutError):
                return self._open_parts[number]
        return self._open_parts[0]

    def info(self, layout: str) -> TrajectoryInfo:
        manifest, info = self.manifest, self._readable_part().info(layout)
        return info.replace(
            path=str(self.path),
            n_frames=manifest["n_frames"],
            dt_ps=float(manifest["dt_ps"]),
            time_last_ps=float(self.read_column("time", self.n_frames - 1, self.n_frames)[0]),
            nbytes=self._bytes.nbytes + sum(part.nbytes for part in self.parts),
            source=manifest["source"],
            flaws=Flaws(made_up=tuple(manifest["source"].get("made_up", ()))),
        )

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for number, first, end in runs_in_parts(self._edges, start, stop):
            rows = block
            if end - first != stop - start:
                first_row = int(self._edges[number]) - start
                rows = block.frames(slice(first_row + first, first_row + end))
            self._open_parts[number].read_into(first, end, atoms, rows)

    def byte_ranges(
        self, start: int, stop: int, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[ByteRange]:
        for number, first, end in runs_in_parts(self._edges, start, stop):
            yield from self._open_parts[number].byte_ranges(first, end, atoms, fields)

    def units(self) -> Iterator[Unit]:
        yield from super().units()
        for number, part in enumerate(self.parts):
            name = f"{self.folder / part.file}: the part that {self.path.name} refers to"
            first = part.first_frame
            yield Unit(name, partial(self._check_part, number), (first, part.stop))
            try:
                part_file = self._open_parts[number]
            except CorruptLayoutError:
                continue
            for unit in part_file.units():
                start, stop = unit.frames or (0, part.n_frames)
                yield replace(unit, frames=(first + start, first + stop))

    def encoded_chunks(self, start: int, stop: int) -> list[EncodedChunk]:
        """Raise NotImplementedError: the parts have the chunks."""
        raise NotImplementedError

    def plan_fields(self) -> dict[str, Any]:
        frames = tuple(part.n_frames for part in self.parts)
        return self._readable_part().plan_fields() | {
            "segment_frames": frames,
            "n_files": 1 + len(frames),
        }

    def _check_part(self, number: int) -> None:
        part_file, part = self._open_parts[number], self.parts[number]
        for name, plural in (("time", "times"), ("step", "steps"), ("box", "boxes")):
            own_rows = self.read_column(name, part.first_frame, part.stop)
            if not np.array_equal(
                own_rows, part_file.read_column(name, 0, part.n_frames), equal_nan=True
            ):
                raise CorruptLayoutError(
                    f"{part_file.path}: its {plural} are not those in {self.path}; convert the "
                    "source again"
                )

    def close(self) -> None:
        self._open_parts.close()
        super().close()
