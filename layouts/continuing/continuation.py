"""Outputs that go on: the finished units of one are taken over into a new one with more frames.

A unit (a shard of every array, a segment, the chunks of a piece) that has all its frames
stays as it is, to the byte: as a second name of the same file where it is a file, and where it is
if it is an object of a store. So a continued
output is what converting everything at once would have made, on the grid of the first conversion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.publish import output_errors
from mdio.core.files.store import store_at
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.backend import made_as
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.registry import load_class, writer_class
from mdio.layouts.writer import LayoutWriter


def options_of(manifest: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of an output that is to lie as another does, by name; the precision apart.

    `manifest`: of the other. `made`: how it is laid out; see `Layout.made_as`.
    """
    first = made["arrays"][0] if "arrays" in made else None
    contiguous = first is not None and first.contiguous
    steps = manifest.get("field_precisions", {})
    return {
        # What native files have of their own accord is not asked for.
        "compression": manifest.get("compression") if first else None,
        "precision_velocities": steps.get("velocities"),
        "precision_forces": steps.get("forces"),
        "stripe_nbytes": manifest["stripe"]["stripe_nbytes"],
        "stripe_count": manifest["stripe"]["stripe_count"],
        "chunk_frames": first and first.chunk_frames,
        "chunk_atoms": None if contiguous else first and first.chunk_atoms,
        "contiguous": contiguous,
        "container": manifest.get("container"),
    }


class Continuation(ABC):
    """What becomes of an output when frames are added to it.

    `old`: the output. `stop`: its frames before this one are kept.
    """

    taken = 0
    """Frames in units that are taken over; known once `plan` was called."""

    def __init__(self, old: Layout, stop: int) -> None:
        assert old.manifest is not None
        self.old = old
        self.stop = stop
        self.manifest = old.manifest

    def planned(self, info: TrajectoryInfo) -> LayoutPlan:
        """Return a plan of chunks as they are, made as the output was."""
        made = made_as(self.old)
        options = WriteOptions(
            precision=self.manifest["precision"] or ("none" if "arrays" in made else None),
            groups=self.manifest["groups"],
            **options_of(self.manifest, made),
        )
        plan = writer_class(self.old.name).plan_for(info, options)
        return plan.replace(precision_source=self.manifest["precision_source"], **made)

    @abstractmethod
    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        """Plan the new output, of the frames of `info`, on the grid of the old one.

        `info`: of all frames: the kept ones, and those that are added.
        Raises PlanError: an older version wrote the old one, in a way that does not go on.
        """

    @abstractmethod
    def take_over(self, writer: LayoutWriter) -> None:
        """Give `writer`, which has made its files, the units of the first `taken` frames."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of the output's files, by name."""
        return store_at(self.old.path).sizes(self.old.path)

    def take(self, name: str, folder: Path) -> None:
        """Give a file of the output the same name in `folder`; an object stays, and has a stand-in.

        Raises CorruptLayoutError: it is missing. OutputError: the disk is full, ...
        """
        old, new = self.old.path / name, folder / name
        if name not in self.sizes:
            raise CorruptLayoutError(f"{old}: is missing; put it back, or convert the source again")
        with output_errors(new):
            new.parent.mkdir(parents=True, exist_ok=True)
            store_at(old).link(old, new, self.sizes[name])

    def refuse(self) -> PlanError:
        """Return the error for an output of an older version."""
        return PlanError(
            f"{self.old.path}: made by mdio {self.manifest['mdio_version']}, or changed since, in "
            "a way to which this version cannot add; convert all sources together again"
        )


def continuation_of(old: Layout, stop: int) -> Continuation:
    """Return what continues an output, of which frames before `stop` are kept.

    Raises PlanError: it is none of mdio, or of a layout to which nothing is added.
    """
    address = old.facts.continuation  # layouts without one say nothing
    if old.manifest is None or address is None:
        raise PlanError(
            f"{old.path}: frames are added to outputs of mdio in the layouts zarr, segments and "
            f"h5md only, and this is {old.name}; convert all sources together"
        )
    return cast(Continuation, load_class(address)(old, stop))
