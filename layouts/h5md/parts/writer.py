"""Writes H5MD in parts: each a file that one process fills, and one file that joins them.

Ranks that write one file wait for its lock, and without parallel HDF5 compressed chunks of one
file can be stored by one process only. Files of their own know neither.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import h5py
import numpy as np

from mdio.core.errors import OutputError
from mdio.core.files.marks import mark_parts, parts_for, parts_of
from mdio.core.files.temporaries import temporary_for
from mdio.layouts.h5md.disk import open_output
from mdio.layouts.h5md.encoding import atom_ids
from mdio.layouts.h5md.file import LIBVER, Places, create_columns, create_groups, value_path
from mdio.layouts.h5md.flavours import flavour_of
from mdio.layouts.h5md.io import writing
from mdio.layouts.h5md.parts.reader import IN_PARTS, Part, part_name
from mdio.layouts.h5md.writer import H5MDWriter
from mdio.layouts.plan import ArrayPlan, LayoutPlan
from mdio.layouts.registry import layout_class
from mdio.layouts.segments.files import even_split
from mdio.layouts.writer import OutputMeta, PieceRecord

JOINING_NBYTES = 4096
"""About what a part adds to headers."""


OF_CONVERSION = ("created", "source", "frames", "appended_to")
"""Fields of a part's manifest that tell of the conversion that made it."""


def plan_parts(plan: LayoutPlan, n_parts: int) -> LayoutPlan:
    """Divide the frames of an h5md file among parts, each a whole number of all arrays' chunks.

    `plan`: of one file. `n_parts`: at most so many; fewer where there are fewer chunks.
    Returns LayoutPlan: `plan` with the frames of the parts as `segment_frames`.
    """
    unit = math.lcm(*(array.chunk_frames for array in plan.arrays))
    n_units = max(1, plan.n_frames // unit)  # an incomplete one goes with the last
    n_parts = min(n_parts, n_units)
    sizes = [unit * n for n in even_split(n_units, n_parts)]
    sizes[-1] += plan.n_frames - sum(sizes)
    return plan.replace(
        segment_frames=tuple(sizes),
        n_files=1 + n_parts,
        nbytes=plan.nbytes + 68 * plan.n_frames + n_parts * JOINING_NBYTES,
    )


def _cut(runs: Sequence[Sequence[int]], first: int, stop: int) -> list[list[int]]:
    """Return the indices ``first:stop`` of those that runs of (start, stop, step) stand for."""
    found = []
    at = 0
    for run in runs:
        some = range(*run)
        kept = some[max(first - at, 0) : max(stop - at, 0)]
        if len(kept):
            found.append([kept.start, kept.stop, kept.step])
        at += len(some)
    return found


class H5MDPartsWriter(H5MDWriter):
    """Writes the file that joins the parts; `part_writer` gives the writer of each part.

    A part is made, filled and finished by one process. What it writes there is not stored through
    this writer, which gets the boxes, times and steps of pieces (`commit`, with frames counted
    from the first part's) and what became of each part (`note`).

    `path`, `plan`, `meta`: as for every writer; a plan by `plan_parts`. `target`: what the file
    will be called: parts are found by that name. `reason`: why there are parts; for the manifest.
    """

    def __init__(
        self, path: Path, plan: LayoutPlan, meta: OutputMeta, *, target: Path, reason: str
    ) -> None:
        super().__init__(path, plan, meta)
        self._arrays, self._crcs, self._stored = {}, {}, {}
        self.folder = temporary_for(parts_of(target.absolute()), path)
        self.target = target
        self.folder_name = parts_for(target, meta.uuid).name
        self.reason = reason
        edges = itertools.accumulate(plan.segment_frames, initial=0)
        self.ranges = list(itertools.pairwise(edges))
        self._parts: dict[int, Part] = {}
        self.former: Sequence[Mapping[str, Any]] = ()
        """Manifests of the parts that are repaired, which stay what they were."""

    @property
    def parallel_store(self) -> bool:
        """Every part is stored by the process that has it."""
        return True

    @classmethod
    def divided(cls, plan: LayoutPlan, n_parts: int) -> LayoutPlan:
        """Return `plan` with frames in parts; see `plan_parts`."""
        return plan_parts(plan, n_parts)

    def create(self) -> None:
        """Make the folder, and the file with everything but times, steps and boxes."""
        mode = "w" if self.path.exists() else "x"
        with writing(self.path):
            self.folder.mkdir(exist_ok=True)  # Lustre's stripes may have been set for it
            for path in self.folder.glob(".look-*"):  # an earlier run was killed at its last look
                shutil.rmtree(path)
            mark_parts(self.folder, self.meta.uuid, self.target, self.folder_name)
            with open_output(self.path, mode, libver=LIBVER) as file:
                create_groups(file, self.plan.arrays)
                for array in self.plan.arrays:
                    self._create_virtual(file, array)
                columns = create_columns(file, self.plan)
                for group, ids in atom_ids(self.meta).items():
                    file[f"particles/{group}"].create_dataset("id", data=ids)
                file["mdio"].attrs[IN_PARTS] = len(self.ranges)
            self.places = Places({}, *columns)

    def _create_virtual(self, file: h5py.File, array: ArrayPlan) -> None:
        path = value_path(array.group, array.field)
        joined = h5py.VirtualLayout((self.plan.n_frames, array.n_atoms, 3), "<f4")
        for number, (first, stop) in enumerate(self.ranges):
            joined[first:stop] = h5py.VirtualSource(
                # HDF5 takes a percent sign for the beginning of a pattern.
                f"{self.folder_name}/{part_name(number)}".replace("%", "%%"),
                path,
                shape=(stop - first, array.n_atoms, 3),
                dtype="<f4",
            )
        # What HDF5 gives for parts that it does not find should not look like coordinates.
        file.create_virtual_dataset(path, joined, fillvalue=np.nan)
        file[path].attrs["unit"] = flavour_of(None).units[array.field]

    def part_writer(self, number: int) -> H5MDWriter:
        """Return the writer of one part, which counts frames from the part's first."""
        first, stop = self.ranges[number]
        # A dataset has no chunks longer than itself.
        arrays = [
            replace(array, chunk_frames=min(array.chunk_frames, stop - first))
            for array in self.plan.arrays
        ]
        plan = self.plan.replace(
            n_frames=stop - first,
            arrays=tuple(arrays),
            segment_frames=(),
            topology_nbytes=0,
            n_files=1,
            notes=(),
        )
        meta = replace(
            self.meta,
            uuid=self.part_uuid(number),
            frames=_cut(self.meta.frames, first, stop),
            repaired=(),
            topology=None,
        )
        former = self.former[number] if self.former else {}
        stays = {name: former[name] for name in OF_CONVERSION if name in former}
        writer = H5MDWriter(self.folder / part_name(number), plan, replace(meta, **stays))
        part_of = {"uuid": self.meta.uuid, "number": number}
        writer.more = {"part_of": former.get("part_of", part_of)}
        return writer

    def part_uuid(self, number: int) -> str:
        """Return the uuid of a part."""
        if self.former:
            return str(self.former[number]["uuid"])
        return str(uuid5(NAMESPACE_URL, f"mdio:{self.meta.uuid}/{number}"))

    def finished(self, number: int, nbytes: int, manifest_crc32c: int) -> PieceRecord:
        """Return the record of a part whose pieces have all been committed, and take note of it.

        Its file has `nbytes`, and its manifest this checksum.
        """
        first, stop = self.ranges[number]
        columns = (self.places.box, self.places.time, self.places.step)
        with self._reading() as file:
            box, time, step = (column.read(file, first, stop) for column in columns)
        part = {"part": np.array([number, nbytes, manifest_crc32c], "<i8")}
        record = PieceRecord(first, stop, {}, nbytes, box, time, step, extra=part)
        self._note(record)
        return record

    def _note(self, record: PieceRecord) -> None:
        number, nbytes, crc = map(int, record.extra["part"])
        n_frames = record.stop - record.start
        self._parts[number] = Part(
            part_name(number), record.start, n_frames, self.part_uuid(number), nbytes, crc
        )

    def commit(self, record: PieceRecord) -> None:
        """Write boxes, times and steps, of a piece or of a part that an earlier run finished."""
        super().commit(record)
        if record.extra:
            self._note(record)

    def reopen(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Make the file anew; the parts stay."""
        self.create()
        return receipts

    def files(self, receipt: PieceRecord) -> list[Path]:
        """Return the file of a part."""
        return [self.folder / part_name(int(receipt.extra["part"][0]))]

    def holds(self, receipt: PieceRecord) -> bool:
        """Open the part, which compares all but its frames with checksums, and flushed it is."""
        number, nbytes, _ = map(int, receipt.extra["part"])
        path = self.folder / part_name(number)
        try:
            with layout_class("h5md")(path, uuid=self.part_uuid(number)) as part:
                return part.info.n_frames == receipt.stop - receipt.start and (
                    path.stat().st_size == nbytes
                )
        except OSError:
            return False

    def settled(self, receipt: PieceRecord) -> list[PieceRecord]:
        """Return the receipt."""
        return [receipt]

    def adopt(self, number: int, part: Part) -> None:
        """Take note of a part that a former output had, and that is whole."""
        self._parts[number] = part

    def finish(self) -> None:
        """Add cells, checksums and the manifest; flush and close.

        Raises OutputError: a part was never finished, or the file cannot be written.
        """
        missing = [number for number in range(len(self.ranges)) if number not in self._parts]
        if missing:
            raise OutputError(
                f"{self.path}: {len(missing)} of {len(self.ranges)} parts were not finished, the "
                f"first {part_name(missing[0])}; convert again"
            )
        self.more = {
            "parts_folder": self.folder_name,
            "parts_reason": self.reason,
            "parts": [asdict(self._parts[number]) for number in sorted(self._parts)],
        }
        for path in self.folder.glob("*.journal"):  # what they tell, the owner's own does
            path.unlink()
        super().finish()

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what only the owner needs."""
        return {**super().__getstate__(), "_parts": {}}
