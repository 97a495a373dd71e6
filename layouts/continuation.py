"""Appending to outputs: full units of the old output are reused in a new one with more frames.

A unit (a shard of every array, a segment, the chunks of a piece) that has all its frames is reused
byte for byte: a file gets a second name (a hard link), an object of a store stays in its place. So
the new output is what converting all frames at once would have made, with the old one's chunks.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mdio.core.errors import CorruptLayoutError, MdioError, PlanError
from mdio.core.files.checks import read_regular
from mdio.core.files.index import index_paths
from mdio.core.files.publish import output_errors
from mdio.core.files.store import store_at
from mdio.core.frames import TrajectoryInfo
from mdio.core.words import plural
from mdio.layouts.backend import plan_fields, read_encoded_chunks
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.registry import load_class, writer_class
from mdio.layouts.writer import LayoutWriter, PieceRecord

if TYPE_CHECKING:
    from mdio.layouts.segments.files import Segment
    from mdio.layouts.segments.layout import SegmentsLayout
    from mdio.layouts.segments.writer import SegmentsWriter
    from mdio.layouts.zarr.layout import ZarrLayout
    from mdio.layouts.zarr.own import OwnTree


def storage_options_of(
    manifest: Mapping[str, Any], plan_values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options, by name, that lay out a new output as an old one, without precision."""
    first = plan_values["arrays"][0] if "arrays" in plan_values else None
    contiguous = first is not None and first.contiguous
    precisions = manifest.get("field_precisions", {})
    return {
        # The compression of a native format is not an option of its writer.
        "compression": manifest.get("compression") if first else None,
        "precision_velocities": precisions.get("velocities"),
        "precision_forces": precisions.get("forces"),
        "stripe_nbytes": manifest["stripe"]["stripe_nbytes"],
        "stripe_count": manifest["stripe"]["stripe_count"],
        "chunk_frames": first and first.chunk_frames,
        "chunk_atoms": None if contiguous else first and first.chunk_atoms,
        "contiguous": contiguous,
        "container": manifest.get("container"),
    }


SMALL_SHARDS_RATIO = 16
"""Shards are noted as small if those of a new output had at least this many times the frames."""


class Continuation(ABC):
    """How frames are added to an output, of which those before `stop` are kept."""

    n_reused_frames = 0
    """Frames in units that are reused; set by `plan`."""

    def __init__(self, old: Layout, stop: int) -> None:
        assert old.manifest is not None
        self.old = old
        self.stop = stop
        self.manifest = old.manifest

    def plan_like_old(self, info: TrajectoryInfo) -> LayoutPlan:
        """Return a plan for the frames of `info` with the old output's options and chunks."""
        plan_values = plan_fields(self.old)
        options = WriteOptions(
            precision=self.manifest["precision"] or ("none" if "arrays" in plan_values else None),
            groups=self.manifest["groups"],
            **storage_options_of(self.manifest, plan_values),
        )
        plan = writer_class(self.old.name).plan_for(info, options)
        shard_frames = plan_values.get("piece_frames", plan.piece_frames)
        notes = plan.notes
        grows = info.n_frames > self.old.info.n_frames
        if grows and plan.piece_frames >= SMALL_SHARDS_RATIO * shard_frames:
            notes += (
                f"{self.old.path}: was begun with few frames, so its shards hold "
                f"{plural(shard_frames, 'frame')} each, and those of a new output would hold "
                f"{plan.piece_frames:,}; convert the source again for fewer files, which are read "
                "faster",
            )
        return plan.replace(
            precision_source=self.manifest["precision_source"], notes=notes, **plan_values
        )

    @abstractmethod
    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        """Plan an output of the frames of `info`, kept and added, with the old one's chunks."""

    @abstractmethod
    def reuse_units(self, writer: LayoutWriter) -> None:
        """Give `writer`, after its `create`, the units that hold the first `n_reused_frames`."""

    @cached_property
    def nbytes_by_name(self) -> dict[str, int]:
        """Bytes of the output's files, by name."""
        return store_at(self.old.path).sizes(self.old.path)

    def link_file(self, name: str, folder: Path) -> None:
        """Link a file of the output into `folder`; for an object of a store, put a placeholder."""
        old, new = self.old.path / name, folder / name
        if name not in self.nbytes_by_name:
            raise CorruptLayoutError(f"{old}: is missing; put it back, or convert the source again")
        with output_errors(new):
            new.parent.mkdir(parents=True, exist_ok=True)
            store_at(old).link(old, new, self.nbytes_by_name[name])

    def mismatch_error(self) -> MdioError:
        """Return the error for an output of an older version, or that was replaced meanwhile."""
        if self.old.uuid_at(self.old.path) not in (None, self.manifest["uuid"]):
            return self.old._replaced_error()
        return PlanError(
            f"{self.old.path}: made by mdio {self.manifest['mdio_version']}, or changed since, in "
            "a way to which this version cannot add; convert all sources together again"
        )


def open_continuation(old: Layout, stop: int) -> Continuation:
    """Return the continuation of an output, of which frames before `stop` are kept."""
    address = old.facts.continuation
    if old.manifest is None or address is None:
        raise PlanError(
            f"{old.path}: cannot append to {old.name}, only to mdio's zarr, segments and h5md; "
            "give the output last (mdio append SRC OUT), or convert all sources together"
        )
    return cast(Continuation, load_class(address)(old, stop))


class ZarrContinuation(Continuation):
    """The continuation of a Zarr tree."""

    old: ZarrLayout

    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        plan = self.plan_like_old(info)
        self._check_metadata(plan.replace(n_frames=self.old.info.n_frames))
        self.n_reused_frames = self.stop // plan.piece_frames * plan.piece_frames
        return plan

    def _check_metadata(self, plan: LayoutPlan) -> None:
        """Raise PlanError unless the tree's metadata are what this version would write."""
        from mdio.layouts.zarr.tree import METADATA, array_nodes

        for path, node in array_nodes(plan).items():
            try:
                stored = read_regular(self.old.path / path / METADATA)
            except OSError:
                stored = b""
            if stored != json.dumps(node).encode():
                raise self.mismatch_error()

    def reuse_units(self, writer: LayoutWriter) -> None:
        from mdio.layouts.zarr.tree import atom_arrays

        plan, tree = writer.plan, cast("OwnTree", self.old.backend)
        for start in range(0, self.n_reused_frames, plan.piece_frames):
            stop = start + plan.piece_frames
            crcs = {}
            for path, (array, metadata) in atom_arrays(plan).items():
                key = f"{path}/{metadata.file_name(start // plan.piece_frames)}"
                self.link_file(key, writer.path)
                stored_array = tree.arrays[array.group, array.field]
                crcs[key] = stored_array.recorded_checksums(start, stop)
            block = self.old.read(start, stop, atoms=[])
            writer.commit(PieceRecord(start, stop, crcs, 0, block.box, block.time, block.step))


class SegmentsContinuation(Continuation):
    """The continuation of a folder of segments."""

    old: SegmentsLayout

    @property
    def reused_segments(self) -> list[Segment]:
        """The segments that are reused.

        A last one that is not full is not reused. Full ones may have one frame less than the first,
        as if all frames were split evenly.
        """
        segments = [segment for segment in self.old.segments if segment.stop <= self.stop]
        while segments and segments[-1].n_frames < self.old.segments[0].n_frames - 1:
            segments.pop()
        return segments

    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        from mdio.layouts.segments.files import read_checksums

        if read_checksums(self.old.path, self.manifest, 0) is None:
            raise self.mismatch_error()
        old_frames = [segment.n_frames for segment in self.reused_segments]
        self.n_reused_frames = sum(old_frames)
        size = self.old.segments[0].n_frames
        n_full, n_remaining = divmod(info.n_frames - self.n_reused_frames, size)
        segment_frames = (*old_frames, *[size] * n_full, *[n_remaining] * (n_remaining > 0))
        plan = self.plan_like_old(info)
        return plan.replace(
            segment_frames=segment_frames,
            piece_frames=min(plan.piece_frames, size),
            n_files=len(segment_frames),
        )

    def reuse_units(self, writer: LayoutWriter) -> None:
        from mdio.layouts.segments.files import read_checksums

        reused_segments = []
        for number, segment in enumerate(self.reused_segments):
            checksums = read_checksums(self.old.path, self.manifest, number)
            assert checksums is not None
            self.link_file(segment.file, writer.path)
            index = next(index_paths(self.old.path / segment.file))
            if (name := str(index.relative_to(self.old.path))) in self.nbytes_by_name:
                self.link_file(name, writer.path)
            reused_segments.append((segment, checksums.table))
        cast("SegmentsWriter", writer).reuse_segments(
            reused_segments, has_box=bool(self.manifest["has_box"])
        )


class H5MDContinuation(Continuation):
    """The continuation of an H5MD file."""

    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        """Plan the same chunks, shorter ones for fewer frames than one has."""
        plan = self.plan_like_old(info)
        plan = plan.replace(
            arrays=tuple(
                replace(array, chunk_frames=min(array.chunk_frames, info.n_frames))
                for array in plan.arrays
            )
        )
        multiple = math.lcm(*(array.chunk_frames for array in plan.arrays))
        piece_frames = max(1, plan.piece_frames // multiple) * multiple
        plan = plan.replace(piece_frames=piece_frames, segment_frames=(), n_files=1)
        if plan.compression is not None and "parts" not in self.manifest:
            self.n_reused_frames = self.stop // plan.piece_frames * plan.piece_frames
        return plan

    def reuse_units(self, writer: LayoutWriter) -> None:
        for start, stop in writer.plan.write_tasks():
            if stop <= self.n_reused_frames:
                items = read_encoded_chunks(self.old, start, stop)
                for item in items:
                    writer.store(item)
                block = self.old.read(start, stop, atoms=[])
                crcs = {item.key: item.crcs for item in items}
                writer.commit(PieceRecord(start, stop, crcs, 0, block.box, block.time, block.step))
