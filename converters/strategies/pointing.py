"""Outputs that only point: where positions lie in the source is all that is written."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.core.errors import PlanError
from mdio.layouts.base import Layout
from mdio.layouts.tables import ChunkTable
from mdio.layouts.writer import EncodedChunk, LayoutWriter, PieceRecord


class Pointing(Conversion):
    """A planned output of references."""

    copies = True

    @classmethod
    def planned(cls, job: Job) -> Self:
        """Find out where positions lie; raises SourceError, PlanError."""
        if job.choice.kept is not None or job.transformed:
            raise PlanError(
                f"{job.out}: references are to whole frames as they are; leave out --select, --pbc "
                "and --center, or write zarr"
            )
        if len(job.files) > 1:
            raise PlanError(
                f"{job.out}: references are to one trajectory; make segments of several files "
                "first (mdio split), or references to each"
            )
        origin = job.view.source
        placed = []
        for layout in origin.files():
            with layout:
                found = layout.tables().positions()
            if found is None:
                raise PlanError(
                    f"{layout.path}: its positions do not lie there as others can read them "
                    "(compressed, in other units, fixed atoms, or frames that lack some); convert "
                    "it into zarr"
                )
            placed.append(found)
        return cls(job, job.plan, placed=_cut(placed, job))

    def _worker(self, writer: LayoutWriter) -> Any:
        return _Columns(writer, self.view)


def _cut(placed: list[ChunkTable], job: Job) -> list[ChunkTable]:
    """Return the chunks of the frames that are kept."""
    kinds = {one.kind for one in placed}
    frames = np.asarray(job.view.frames, np.int64)
    n_frames = job.view.source.info.n_frames
    every = len(frames) == n_frames and job.view.first == 0
    if len(kinds) > 1 or (placed[0].chunk[0] > 1 and not (every and len(placed) == 1)):
        raise PlanError(
            f"{job.out}: its frames are stored in chunks of {placed[0].chunk[0]}, which references "
            "take whole: leave out --start, --stop and --step, or write zarr"
        )
    if every:
        return placed
    cut, at = [], 0
    for one in placed:
        n_here = len(one.offset)
        here = frames[(frames >= at) & (frames < at + n_here)] - at
        cut += [one.frames(here)] if len(here) else []
        at += n_here
    return cut


class _Columns:
    """Reads times, steps and cells of a piece at each call."""

    def __init__(self, writer: LayoutWriter, source: Layout) -> None:
        self.writer, self.source = writer, source

    def __call__(self, piece: tuple[int, int]) -> tuple[PieceRecord, list[EncodedChunk]]:
        block = self.source.read(*piece, atoms=[])
        plan = self.writer.plan
        nbytes = round(plan.nbytes * block.n_frames / plan.n_frames)
        return PieceRecord(*piece, {}, nbytes, block.box, block.time, block.step), []

    def close(self) -> None:
        """Close the source."""
        self.source.close()
