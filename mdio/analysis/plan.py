"""What is decided before the work starts: frames, blocks, and a kernel that knows its system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from mdio.analysis.kernels.kernel import Kernel, Prepared
from mdio.analysis.reducers import Reducer
from mdio.analysis.system import System
from mdio.converters.selection import atom_count
from mdio.core.blocks import aligned_blocks
from mdio.core.errors import AtomCountError, OptionError, PlanError
from mdio.core.timing import Stopwatch
from mdio.layouts.base import Layout
from mdio.layouts.views.opening import open_source

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["MPIO_MODES", "MPIOMode", "Plan", "Request", "Trajectory"]

MPIOMode = Literal["independent", "collective"]
MPIO_MODES: tuple[MPIOMode, ...] = ("independent", "collective")
"""Ways to read through parallel HDF5."""

Trajectory = str | PathLike[str] | Sequence[str | PathLike[str]] | Layout


@dataclass(slots=True)
class Plan:
    """All that workers need; pickles, and then takes no open file along."""

    layout: Layout
    frames: range
    blocks: list[range]
    prepared: Prepared
    opened_s: float
    """How long opening took."""
    prepare_s: float
    """Topology, selection and reference; imports too, if they were the first."""
    is_ours: bool
    """Whether `layout` was opened here and is to be closed here."""

    def for_workers(self) -> Plan:
        """Return it with a layout that opens no more than it must."""
        return replace(self, layout=self.layout.preopened(), opened_s=0.0)


@dataclass(frozen=True, slots=True)
class Request:
    """What `analyze` was asked for, but where to run it."""

    trajectory: Trajectory
    kernel: Kernel
    top: str | PathLike[str] | Universe | None
    group: str | None
    start: int | None
    stop: int | None
    step: int | None
    reducer: Reducer | None
    n_blocks: int
    mpio: MPIOMode | None = None
    """How ranks read through parallel HDF5, if they do."""
    verify: bool = True
    """Whether what is read is compared with the checksums that the output holds."""
    overlap: str | None = None
    """What is done with frames whose times several files have."""

    def plan(self) -> Plan:
        """Open the trajectory, choose blocks, prepare the kernel.

        Raises
        ------
        PlanError, SourceError, CorruptLayoutError
            As `mdio.analysis.driver.analyze`.
        """
        try:
            return self._plan()
        except AtomCountError:
            if self.top is None:
                raise
            return self._plan(n_atoms=atom_count(self.top))

    def _plan(self, **options: Any) -> Plan:
        # This imports what reads it.
        layout = self._open(**options)
        watch = Stopwatch()
        is_ours = layout is not self.trajectory
        try:
            frames = _frames(layout, self.start, self.stop, self.step)
            edges = layout.boundaries()
            opened_s = watch.lap()
            prepared = self.kernel.prepare(System(layout, self.top, self.group))
            if self.reducer is not None:
                prepared = replace(prepared, reducer=self.reducer)
            blocks = aligned_blocks(edges, frames, self.n_blocks)
            return Plan(layout, frames, blocks, prepared, opened_s, watch.lap(), is_ours)
        except BaseException:
            if is_ours:
                layout.close()
            raise

    def _open(self, **options: Any) -> Layout:
        trajectory, group = self.trajectory, self.group
        if isinstance(trajectory, Layout):
            if group is not None and trajectory.options.get("group") != group:
                raise PlanError(f"{trajectory.path}: open the layout with group={group!r} instead")
            if trajectory.verify and not self.verify:
                raise PlanError(f"{trajectory.path}: open the layout with verify=False instead")
            return trajectory
        if not isinstance(trajectory, str | PathLike) and not len(trajectory):
            raise PlanError("no trajectory is given; give at least one")
        if group is not None:
            options["group"] = group
        try:
            return open_source(
                trajectory,
                fields=self.kernel.fields,
                verify=self.verify,
                overlap=self.overlap,
                **options,
            )
        except OptionError as error:
            raise PlanError(
                f"no stored groups: {error}; leave out group {group!r} and select atoms instead"
            ) from error


def _frames(layout: Layout, start: int | None, stop: int | None, step: int | None) -> range:
    if step is not None and step < 1:
        raise PlanError(f"the step is {step}; give 1 or more")
    n_frames = layout.info.n_frames
    frames = range(*slice(start, stop, step).indices(n_frames))
    if not frames:
        raise PlanError(
            f"{layout.path}: no frame of {n_frames} is left by start {start}, stop {stop}, "
            f"step {step}; widen the range"
        )
    return frames
