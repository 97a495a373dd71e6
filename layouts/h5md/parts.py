"""H5MD files of mdio whose frames, or trajectories, lie in other files, their parts.

``NAME.h5md`` has time, step and box of all frames, and virtual datasets (HDF5 1.10) over the arrays
of the parts, ``NAME.h5md.parts/0000.h5md`` and so on, each an H5MD file of its own. HDF5 reads a
part that is missing as NaN, and does not ask whether one that is there belongs to the file. So the
parts are read here as the files that they are, with their checksums.

An ensemble has ``/particles/LABEL`` for each trajectory, an external link to the full system in
``NAME.h5md.parts/LABEL.h5md``, which is an H5MD file of mdio by itself.
"""

from __future__ import annotations

import json
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

from mdio.core.blocks import runs_of_parts
from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, MdioError
from mdio.core.files.in_flight import ByteRange
from mdio.core.files.marks import (
    mark_parts,
    new_parts_folder,
    own_parts_folder,
    parts_folder,
    parts_owner,
)
from mdio.core.files.reading import Handles
from mdio.core.files.turns import temporary_for
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.layouts.chunked.own import Ensemble, check_members, labels_in
from mdio.layouts.h5md.disk import open_output
from mdio.layouts.h5md.file import LIBVER, create_groups
from mdio.layouts.h5md.io import FULL_SYSTEM, MANIFEST, writing
from mdio.layouts.h5md.opening import open_hdf5
from mdio.layouts.h5md.own import OwnFile, PlacedChunks
from mdio.layouts.units import Unit

if TYPE_CHECKING:
    from mdio.layouts.writer import EncodedChunk

IN_PARTS = "in_parts"
"""Attribute of ``/mdio`` in files whose frames lie in parts: how many there are."""
MAX_OPEN = 16
"""Parts that are open at the same time."""


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
    """Checksum of the text of its manifest, which has those of the rest; None in older outputs."""

    @property
    def stop(self) -> int:
        """One beyond its last frame."""
        return self.first_frame + self.n_frames


def is_joined(file: h5py.File) -> bool:
    """Return whether the frames of a file of mdio lie in parts."""
    return "mdio" in file and IN_PARTS in file["mdio"].attrs


def _parts_of(manifest: Mapping[str, Any], path: Path) -> tuple[Path, list[Part]]:
    """Return the folder of the parts and what the manifest says of each.

    Raises CorruptLayoutError: they do not follow one another from the first frame to the last, or
    lie elsewhere.
    """
    folder, rows = manifest.get("parts_folder"), manifest.get("parts")
    parts: list[Part] = []
    n_frames = 0
    try:
        if not isinstance(folder, str) or folder in ("", ".", "..") or set(folder) & set("/\0"):
            raise ValueError(f"{folder!r} is no name of a folder")
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
    return parts_owner(path, folder).with_name(folder), parts


class JoinedFile(OwnFile):
    """A file of mdio and its parts, open for reading by plain system calls.

    Takes the same parameters, and raises the same errors, as `OwnFile`; CorruptLayoutError also
    for a part that is missing, truncated, or not the one that the manifest means. That a part is
    not there is seen at once, everything else when the part is first read.
    """

    def __init__(
        self, path: Path, file: h5py.File, group: str | None, *, verify: bool = True
    ) -> None:
        self._open_parts = Handles(self._open_part, MAX_OPEN)
        super().__init__(path, file, group, verify=verify)

    def _arrays(self, file: h5py.File) -> dict[tuple[str, str], PlacedChunks]:  # noqa: ARG002
        """Return none, since the arrays are those of the parts; find these."""
        self.folder, self.parts = _parts_of(self.manifest, self.path)
        try:
            names = {path.name for path in self.folder.iterdir()}
        except OSError as error:
            raise CorruptLayoutError(
                f"{self.folder}: the folder with the {len(self.parts)} parts of {self.path.name} "
                f"cannot be read ({error.strerror}); the two belong together: put it back beside "
                f"{self.path.name}, or convert the source again"
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
        """Have parts found from any folder."""
        return {**self.__dict__, "folder": self.folder.absolute()}

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return np.array([0, *(part.stop for part in self.parts)], np.int64)

    def _open_part(self, number: int) -> OwnFile:
        """Return an opened part, compared with what is said of it."""
        part, name = self.parts[number], self.folder / self.parts[number].file
        what = f"part {number} of {self.path.name}, frames {part.first_frame} to {part.stop - 1}"
        try:
            with open_hdf5(name) as file:
                opened = OwnFile(name, file, self.group, verify=self._verifies)
        except MdioError as error:
            raise CorruptLayoutError(f"{error} ({what})") from error
        except FOREIGN_ERRORS as error:
            raise CorruptLayoutError(
                f"{name}: missing, truncated or no HDF5 file ({' '.join(str(error).split())}), "
                f"expected {what}; put it back, or convert the source again"
            ) from error
        manifest = opened.manifest
        crc = opened.manifest_crc32c
        is_the_same = not self._verifies or part.manifest_crc32c in (None, crc)
        if manifest["uuid"] != part.uuid or not is_the_same:
            opened.close()
            raise CorruptLayoutError(
                f"{name}: not the file that {self.path.name} means ({what}): its uuid is "
                f"{manifest['uuid']}, expected {part.uuid}, and its manifest has crc32c {crc}, "
                f"expected {part.manifest_crc32c}; put the right one back, or convert the "
                "source again"
            )
        shape = (manifest["n_frames"], manifest["n_atoms"])
        if shape != (part.n_frames, self.manifest["n_atoms"]):
            opened.close()
            raise CorruptLayoutError(
                f"{name}: {shape[0]} frames of {shape[1]} atoms, expected {part.n_frames} of "
                f"{self.manifest['n_atoms']} ({what}); convert the source again"
            )
        return opened

    def _first(self) -> OwnFile:
        """Return a part to learn from: the first, or without verifying the first whole one."""
        for number in range(0 if self._verifies else len(self.parts)):
            with suppress(CorruptLayoutError):
                return self._open_parts[number]
        return self._open_parts[0]

    def info(self, layout: str) -> TrajectoryInfo:
        """Return the information on the trajectory of the group in all parts."""
        manifest = self.manifest
        return (
            self._first()
            .info(layout)
            .replace(
                path=str(self.path),
                n_frames=manifest["n_frames"],
                dt_ps=float(manifest["dt_ps"]),
                time_last_ps=float(self.rows("time", self.n_frames - 1, self.n_frames)[0]),
                nbytes=self._bytes.nbytes + sum(part.nbytes for part in self.parts),
                source=manifest["source"],
                flaws=Flaws(made_up=tuple(manifest["source"].get("made_up", ()))),
            )
        )

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill `block`; raises CorruptLayoutError."""
        for number, first, last in runs_of_parts(self._edges, start, stop):
            rows = block
            if last - first != stop - start:
                part_begins = int(self._edges[number]) - start
                rows = block.frames(slice(part_begins + first, part_begins + last))
            self._open_parts[number].read_into(first, last, atoms, rows)

    def byte_ranges(
        self, start: int, stop: int, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[ByteRange]:
        """Yield what reading takes of the parts; see `Layout.byte_ranges`."""
        for number, first, last in runs_of_parts(self._edges, start, stop):
            yield from self._open_parts[number].byte_ranges(first, last, atoms, fields)

    def units(self) -> Iterator[Unit]:
        """Yield the file's own columns, each part, and its chunks; see `Layout.units`."""
        yield from super().units()
        for number, part in enumerate(self.parts):
            name = f"{self.folder / part.file}: the part that {self.path.name} means"
            first = part.first_frame
            yield Unit(name, partial(self._check_part, number), (first, part.stop))
            try:
                opened = self._open_parts[number]
            except CorruptLayoutError:
                continue
            for unit in opened.units():
                a, b = unit.frames or (0, part.n_frames)
                yield replace(unit, frames=(first + a, first + b))

    def encoded_chunks(self, start: int, stop: int) -> list[EncodedChunk]:
        """Raise: a part is a file by itself, which is asked instead."""
        raise NotImplementedError

    def plan_fields(self) -> dict[str, Any]:
        """Return how parts and arrays are cut; see `backend.plan_fields`."""
        frames = tuple(part.n_frames for part in self.parts)
        return self._first().plan_fields() | {"segment_frames": frames, "n_files": 1 + len(frames)}

    def _check_part(self, number: int) -> None:
        """Open a part and compare it with what is said of it; raises CorruptLayoutError."""
        self._compare_columns(self._open_parts[number], self.parts[number])

    def _compare_columns(self, opened: OwnFile, part: Part) -> None:
        """Raise CorruptLayoutError if times, steps and boxes are not those of a part."""
        for name, many in (("time", "times"), ("step", "steps"), ("box", "boxes")):
            own_rows = self.rows(name, part.first_frame, part.stop)
            if not np.array_equal(own_rows, opened.rows(name, 0, part.n_frames), equal_nan=True):
                raise CorruptLayoutError(
                    f"{opened.path}: its {many} are not those in {self.path}; convert the source "
                    "again"
                )

    def close(self) -> None:
        """Close the file and its parts."""
        self._open_parts.close()
        super().close()


class H5MDEnsemble(Ensemble):
    """Makes a file that links to several."""

    in_parts = True

    @property
    def folder(self) -> Path:
        """The final path of the folder of parts."""
        return new_parts_folder(self.target, self.uuid)

    def create(self) -> None:
        """Make the folder of parts, and a file that stands for what `seal` writes."""
        self.path.touch()
        folder = self.member("x").parent
        folder.mkdir()
        mark_parts(folder, self.uuid, self.target, self.folder.name)

    def member(self, label: str, *, final: bool = False) -> Path:
        """Return the file of a trajectory."""
        built = temporary_for(parts_folder(self.target.absolute()), self.path)
        return (self.folder if final else built) / f"{label}.h5md"

    def seal(self, labels: Sequence[str]) -> None:
        """Write the links and the manifest; raises OutputError."""
        from mdio.core.files.publish import flush_tree  # those who read need none

        folder = self.folder.name
        text = json.dumps(self.manifest(labels) | {"parts_folder": folder}).encode()
        with writing(self.path):
            with open_output(self.path, "w", libver=LIBVER) as file:
                create_groups(file, ())
                del file[f"particles/{FULL_SYSTEM}"]
                for label in labels:
                    link = h5py.ExternalLink(f"{folder}/{label}.h5md", f"/particles/{FULL_SYSTEM}")
                    file[f"particles/{label}"] = link
                file.create_dataset(MANIFEST, data=text, dtype=h5py.string_dtype(length=len(text)))
            flush_tree(self.path)


def member_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of an ensemble, in order; none if the manifest is of something else.

    Raises CorruptLayoutError: a file is missing.
    """
    name = str(manifest.get("parts_folder"))
    owner = parts_owner(path, name)
    folder = own_parts_folder(owner, name) or parts_folder(owner)
    members = {label: folder / f"{label}.h5md" for label in labels_in(manifest)}
    check_members(path, members)
    return members
