"""Converts a trajectory while the simulation writes it: the output grows as complete frames do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdio.converters.append import check_continues
from mdio.converters.convert import prepare
from mdio.converters.options import (
    OPTION_OBJECTS,
    OPTIONS,
    ConversionOptions,
    ConvertResult,
    Running,
    Sources,
)
from mdio.converters.selection import open_with_topology
from mdio.core.errors import PlanError, SourceError, UnknownLayoutError
from mdio.core.files.locks import concurrent_change_error
from mdio.core.files.publish import link_target
from mdio.core.files.store import COPY_ADVICE, AnyPath, require_disk, to_path
from mdio.core.options import takes_options
from mdio.layouts.backend import plan_fields
from mdio.layouts.continuation import open_continuation
from mdio.layouts.registry import layout_class, layout_name_for_output, open_layout
from mdio.parallel.executors import Executor, choose_executor

POLL_S = 1.0
"""Longest interval between two checks of the source's size."""
ENDLESS_FRAMES = 1 << 24
"""Number of frames for which the output is planned, so that shards are as large as possible."""


@takes_options(*OPTIONS, objects=OPTION_OBJECTS)
def follow(
    source: AnyPath,
    out: AnyPath,
    *,
    every_s: float = 60.0,
    until_idle_s: float | None = None,
    n_frames: int | None = None,
    stopped: threading.Event | None = None,
    published: Callable[[int], None] | None = None,
    waiting: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
    force: bool = False,
    append: bool = False,
    **options: Any,
) -> ConvertResult:
    """Convert a trajectory that is being written, a full shard (segment) at a time.

    The output holds full units until the end, and then all complete frames that there are. Each
    time it is replaced as `append` replaces it: the new output keeps the stored units.

    `source`: one file, which grows. It may not be there yet. `out`: output, in a layout to which
    frames can be added. `every_s`: how much time lies between two publications at least.
    `until_idle_s`: end when the source has not grown for this time; None = never. `n_frames`: end
    when the output has this many frames. `stopped`: end when this is set, with all frames that are
    complete then. `published`: called with the number of frames in the output whenever it grows.
    `waiting`: called once, if there are frames, but too few for the first full unit, with how many
    there are and how many it takes.
    `executor`: where to run. `force`: replace an existing output. `append`: continue an existing
    output of `source`. `options`: as for `convert`, except those that depend on where the source
    ends (``stop``, times), a negative ``start``, and those of parallel HDF5.
    Returns ConvertResult: of the last publication.
    Raises SourceError: the source was replaced or cut, or there is no complete frame in the end.
    PlanError, OutputError: as for `convert`.
    """
    conversion_options = ConversionOptions.of(source_grows=True, **options)
    for name in conversion_options.refused_options("follow"):
        raise PlanError(f"{name} cannot be combined with --follow; leave it out")
    selection = conversion_options.selection
    for name, value in (("--start", selection.start), ("--step", selection.step)):
        if value is not None and value < 0:
            raise PlanError(
                f"{name} {value} cannot be combined with --follow: where the source ends is not "
                "known yet; give a number of 0 or more"
            )
    require_disk(source, f"following a source needs it on a disk; {COPY_ADVICE}")
    out_path = link_target(out) if append else to_path(out)
    layout = None if append else layout_name_for_output(out_path, conversion_options.storage.to)
    if layout is not None and layout_class(layout).facts.continuation is None:
        raise PlanError(
            f"{out}: --follow adds frames as they come, which {layout} does not take; write zarr, "
            "h5md or segments"
        )
    follower = _Follower(
        Path(source), out_path, conversion_options, choose_executor(executor, None), force
    )
    if append:
        refused = conversion_options.refused_options("append")
        refused += [
            f"--{name}" for name in ("start", "step") if getattr(selection, name) is not None
        ]
        for name in refused:
            raise PlanError(
                f"{out}: frames are added as the existing ones were written, so leave out {name}"
            )
        follower.resume()
    stop_event = threading.Event() if stopped is None else stopped
    published_s = -float("inf")
    while True:
        is_end = stop_event.is_set()
        n_complete = follower.count_complete_frames()
        idle_s = time.monotonic() - follower.unchanged_since_s
        is_end = is_end or (until_idle_s is not None and idle_s >= until_idle_s)
        is_end = is_end or (n_frames is not None and n_complete >= n_frames)
        n_target = n_complete if n_frames is None else min(n_complete, n_frames)
        is_due = is_end or time.monotonic() - published_s >= every_s
        if is_due and follower.publish(n_target, full_only=not is_end):
            published_s = time.monotonic()
            if published is not None:
                published(follower.n_published)
        elif is_due and waiting is not None and n_complete and follower.unit_frames:
            if not follower.n_published:
                waiting(n_complete, follower.unit_frames)
            waiting = None
        if is_end:
            return follower.last_result()
        stop_event.wait(min(POLL_S, every_s / 2 + 0.05))


@dataclass
class _Follower:
    """Counts complete frames in a growing source, and publishes an output of them."""

    source: Path
    out: Path
    options: ConversionOptions
    executor: Executor
    force: bool
    n_published: int = 0
    """Frames in the output."""
    unchanged_since_s: float = field(default_factory=time.monotonic)
    """Time at which the source was last seen to grow."""
    _uuid: str | None = None
    """Identity of the output since the last publication."""
    _is_compared: bool = True
    """Whether the frames of the output were compared with the source's."""
    _n_complete: int = 0
    unit_frames: int | None = None
    """Frames of a shard or segment."""
    _file_state: tuple[int, int] | None = None
    """Inode and size of the source at the last check."""
    _open_error: Exception | None = None
    """Why the source could not be opened yet."""
    _result: ConvertResult | None = None

    def __post_init__(self) -> None:
        selection = self.options.selection
        self.first, self.step = selection.start or 0, selection.step or 1

    def resume(self) -> None:
        """Continue the existing output."""
        with open_with_topology(self.out, None) as old:
            manifest = open_continuation(old, 0).manifest
            runs, recipe = manifest["frames"], manifest.get("recipe", {})
            self.n_published = old.info.n_frames
            is_single = self.n_published == 1  # then its run does not say how far apart frames are
            has_other_frames = {"files", "by_program"} & manifest["source"].keys()
            if len(runs) != 1 or has_other_frames or (is_single and "dt_ps" in recipe):
                raise PlanError(
                    f"{self.out}: not every frame of one file, or every nth; only such an output "
                    "goes on with --follow (mdio append adds frames of others)"
                )
            self.first, _, self.step = runs[0]
            if is_single:
                self.step = recipe.get("step") or 1
            self._uuid, self._is_compared = old.uuid, False
            plan_values = plan_fields(old)
            self.unit_frames = plan_values.get("piece_frames") or int(old.boundaries()[1])

    def count_complete_frames(self) -> int:
        """Return the number of the output's frames that are complete in the source."""
        try:
            status = self.source.stat()
        except FileNotFoundError as error:
            if self._file_state is not None:
                raise SourceError(f"{self.source}: was removed while it was followed") from error
            return 0
        inode, size = status.st_ino, status.st_size
        if self._file_state == (inode, size):
            return self._n_complete
        if self._file_state is not None:
            former_inode, former_size = self._file_state
            if inode != former_inode or size < former_size:
                change = "it was cut" if inode == former_inode else "another file has its name now"
                raise SourceError(
                    f"{self.source}: {change}; {self.out} has {self.n_published:,} frames of what "
                    "was there"
                )
        self._file_state, self.unchanged_since_s = (inode, size), time.monotonic()
        try:
            reading = self.options.sources
            with open_with_topology(self.source, reading.top, **reading.source_options) as layout:
                n_source = layout.info.n_frames
        except UnknownLayoutError:
            raise
        except SourceError as error:  # its first frame is not complete, perhaps
            if self._n_complete:
                raise
            self._open_error = error
            return self._n_complete
        if not self._is_compared:
            with self._concurrent_changes():
                check_continues(self.source, self.out, self.options)
            self._is_compared = True
        self._n_complete = len(range(self.first, n_source, self.step))
        return self._n_complete

    def publish(self, n_frames: int, *, full_only: bool) -> bool:
        """Write the output of `n_frames`, or of the full units of these; return whether it grew."""
        if n_frames <= self.n_published:
            return False
        if self.unit_frames is None:
            self.unit_frames = self._plan_unit(n_frames)
        if full_only:
            n_frames = n_frames // self.unit_frames * self.unit_frames if self.unit_frames else 0
        if n_frames <= self.n_published:
            return False
        self._write(n_frames)
        return True

    def _write(self, n_frames: int) -> None:
        """Write the output of `n_frames`; do nothing if it is there."""
        options = self.options
        if self.n_published:
            options = ConversionOptions(
                sources=Sources(top=options.sources.top, verify=options.sources.verify),
                running=Running(append=True, source_grows=True),
            )
        elif self.unit_frames is not None and n_frames >= self.unit_frames:
            options = options.replaced(expected_frames=ENDLESS_FRAMES)
        options = self._with_frames(options, n_frames)
        with self._concurrent_changes():
            conversion = prepare(self.source, self.out, options, self.executor)
        extended = conversion.extended
        if extended is not None and extended.continuation.manifest["uuid"] != self._uuid:
            conversion.close()
            raise concurrent_change_error(self.out)
        self._result = conversion.run(self.executor, force=self.force and not self.n_published)
        self.n_published, self._uuid = n_frames, conversion.uuid

    @contextmanager
    def _concurrent_changes(self) -> Iterator[None]:
        """Turn a SourceError into that of a concurrent change, if another run made one."""
        try:
            yield
        except SourceError as error:
            if self._uuid is not None:
                with open_layout(self.out, verify=False) as current:
                    if current.info and current.uuid != self._uuid:
                        raise concurrent_change_error(self.out) from error
            raise

    def _with_frames(self, options: ConversionOptions, n_frames: int) -> ConversionOptions:
        """Return `options` for the frames after those of the output, up to frame `n_frames`."""
        start, stop = (self.first + n * self.step for n in (self.n_published, n_frames))
        return options.replaced(start=start, stop=stop, step=self.step)

    def _plan_unit(self, n_frames: int) -> int | None:
        """Return the frames of a shard or segment; None if there are too few frames to plan."""
        options = self.options.replaced(expected_frames=ENDLESS_FRAMES)
        options = self._with_frames(options, n_frames)
        conversion = prepare(self.source, self.out, options, self.executor)
        conversion.close()
        segment_frames = conversion.plan.segment_frames
        if segment_frames:
            return segment_frames[0] if len(segment_frames) > 1 else None
        return conversion.plan.piece_frames

    def last_result(self) -> ConvertResult:
        """Return the last result; raises SourceError if there is none."""
        if self._result is None and self._uuid is not None and self._n_complete:
            self._write(self.n_published)
        if self._result is None:
            problem = f" ({self._open_error})" if self._open_error is not None else ""
            raise SourceError(
                f"{self.source}: no complete frame came that {self.out} does not have{problem}"
            )
        return self._result
