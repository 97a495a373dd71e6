"""Outputs that go on: the finished units of one are taken over into a new one with more frames.

A unit (a shard of every array, a segment, a part, the chunks of a piece) that has all its frames
stays as it is, to the byte: as a second name of the same file where it is a file. So a continued
output is what converting everything at once would have made, on the grid of the first conversion.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from mdio.core.errors import PlanError
from mdio.core.files.copying import copy_bytes
from mdio.core.files.publish import output_errors
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import LayoutWriter

__all__ = ["Continuation", "continuation_of", "link"]

NO_LINKS = {
    errno.EACCES,
    errno.EMLINK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
}
"""What file systems say that have no second names of files, or no more of them."""


class Continuation(ABC):
    """What becomes of an output when frames are added to it.

    Parameters
    ----------
    old
        The output.
    stop
        Its frames before this one are kept.
    """

    taken = 0
    """Frames in units that are taken over; known once `plan` was called."""

    def __init__(self, old: Layout, stop: int) -> None:
        assert old.manifest is not None
        self.old = old
        self.stop = stop
        self.manifest = old.manifest

    def options(self, **known: Any) -> WriteOptions:
        """Return the options with which the output was made."""
        stripe = self.manifest["stripe"]
        return WriteOptions(
            compression=self.manifest["compression"],
            precision=self.manifest["precision"],
            stripe_nbytes=stripe["stripe_nbytes"],
            stripe_count=stripe["stripe_count"],
            groups=self.manifest["groups"],
            **known,
        )

    @abstractmethod
    def plan(self, info: TrajectoryInfo, n_parts: int) -> LayoutPlan:
        """Plan the new output, of the frames of `info`, on the grid of the old one.

        Parameters
        ----------
        info
            Of all frames: the kept ones, and those that are added.
        n_parts
            In how many parts what is added should lie, if in parts.

        Raises
        ------
        PlanError
            An older version wrote the old one, in a way that does not go on.
        """

    @abstractmethod
    def take_over(self, writer: LayoutWriter) -> None:
        """Give `writer`, which has made its files, the units of the first `taken` frames."""

    def refuse(self) -> PlanError:
        """Return the error for an output of an older version."""
        return PlanError(
            f"{self.old.path}: made by mdio {self.manifest['mdio_version']}, or changed since, in "
            "a way to which this version cannot add; convert all sources together anew"
        )


def continuation_of(old: Layout, stop: int) -> Continuation:
    """Return what continues an output, of which frames before `stop` are kept.

    Raises
    ------
    PlanError
        It is none of mdio, or of a layout to which nothing is added.
    """
    address = getattr(old, "continuation", None)  # layouts without one say nothing
    if old.manifest is None or address is None:
        raise PlanError(
            f"{old.path}: frames are added to outputs of mdio in the layouts zarr, segments and "
            f"h5md only, and this is {old.name}; convert all sources together"
        )
    module, _, name = address.partition(":")
    return cast(Continuation, getattr(import_module(module), name)(old, stop))


def link(source: Path, target: Path) -> None:
    """Give a file that nobody changes any more a second name, or copy it where that cannot be."""
    with output_errors(target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
                copy_bytes(old.fileno(), 0, os.fstat(old.fileno()).st_size, new.fileno(), 0)
