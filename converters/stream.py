"""Stores the frames that a running simulation sends over IMD, without an intermediate file.

The package imdclient speaks the protocol (version 3); `Writer` makes the output.
"""

from __future__ import annotations

import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from os import PathLike
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

import numpy as np

from mdio.converters.options import OPTION_OBJECTS, OPTIONS, ConversionOptions, ConvertResult
from mdio.converters.periodic import TransformedLayout
from mdio.converters.selection import SelectedAtoms, atom_count, choose_atoms
from mdio.converters.writer import Writer
from mdio.core.boxes import ROTATED_CELL, are_rotated, boxes_from_vectors
from mdio.core.errors import MissingExtraError, PlanError, SourceError
from mdio.core.files.store import AnyPath
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.options import non_defaults, spell_option, takes_options
from mdio.core.words import plural
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.layouts.views.memory import MemoryLayout
from mdio.layouts.views.options import FOLLOWS_ATOMS

POLL_S = 0.2
"""Interval at which a request to end the recording is noticed."""
STALL_S, MIN_STALL_S = 600.0, 2.0
"""Seconds without bytes after which a frame is given up; the shortest, since networks pause."""
MAX_GAPS = 10
"""Gaps that are reported one by one."""
DISCONNECTED = b"\0\0\0\0"
"""Beginning of the message with which a simulation disconnects."""
WRITTEN_ARRAYS = ("box", "time", "step", "velocities", "forces")
ALLOWED_OPTIONS = {"top", "select", "groups", "pbc", "center", "fit", "fit_select", "fit_reference"}
"""Options, besides those of storage, that work on one frame at a time."""


@takes_options(*OPTIONS, objects=OPTION_OBJECTS)
def record(
    source: str,
    out: AnyPath,
    *,
    every_s: float | None = 60.0,
    until_idle_s: float | None = None,
    n_frames: int | None = None,
    stopped: threading.Event | None = None,
    published: Callable[[int], None] | None = None,
    force: bool = False,
    append: bool = False,
    **options: Any,
) -> ConvertResult:
    """Store the frames that a running simulation sends, until it ends.

    A frame is received when there is room for it; until then the simulation waits, so that none is
    lost here. Steps that the simulation did not send are reported by warnings. ``top`` is needed,
    and options that choose frames are refused.

    Parameters
    ----------
    source
        ``imd://HOST:PORT``.
    out
        Output, written as by `mdio.Writer`; its suffix names the layout.
    every_s
        Seconds after which frames are stored though they do not fill a shard; None = whole shards
        alone.
    until_idle_s
        End when no frame came for these seconds; None = wait.
    n_frames
        End after this number of frames.
    stopped
        End when this is set.
    published
        Called with the number of frames in the output each time there are more.
    force
        Replace an existing output.
    append
        Go on with an output that is there, or begin one.
    **options
        <options>

    Returns
    -------
    ConvertResult
        Of the last addition; its plan's notes say how the stream ended.

    Raises
    ------
    SourceError
        No simulation answers, its frames have other atoms than ``top``, the connection broke, or no
        frame came. Whole frames are stored.
    PlanError, OutputError
        As for `mdio.convert` and `mdio.Writer`.

    Examples
    --------
    Unsupported options are refused before the simulation is contacted:

    >>> import mdio
    >>> mdio.record("imd://localhost:8888", "md.zarr", top="md.psf", stop=100)
    Traceback (most recent call last):
    mdio.core.errors.PlanError: imd://localhost:8888: --stop is not for a stream; leave it out
    """
    if n_frames is not None and n_frames < 1:
        raise PlanError(f"{source}: {n_frames} frames are asked for; give 1 or more")
    conversion_options = ConversionOptions.of(**options)
    selected_atoms, transformed = _prepare_selection(source, conversion_options)
    assert selected_atoms.universe is not None
    n_published = 0
    with Writer(
        out,
        append=append,
        force=force,
        every_s=every_s,
        groups=selected_atoms.groups,
        storage=conversion_options.storage,
    ) as writer:
        writer.set_atoms(selected_atoms.atom_group())
        gaps = _Gaps(*(_last_steps(writer) if append else ()))
        with _connect(source, len(selected_atoms.universe.atoms), until_idle_s) as client:
            stream = _Stream(source, client, stopped or threading.Event(), until_idle_s)
            for block in _transform(stream.frames(n_frames), selected_atoms.atoms, transformed):
                gaps.check(source, int(block.step[0]))
                values = {name: getattr(block, name) for name in WRITTEN_ARRAYS}
                writer.write_block(block.positions, **values)
                if published and writer.result and writer.result.n_frames > n_published:
                    n_published = writer.result.n_frames
                    published(n_published)
            if not writer.n_frames:
                raise SourceError(f"{source}: no frame came ({stream.end}); nothing was written")
    result = writer.result
    assert result is not None
    notes = [*result.plan.notes, *selected_atoms.notes, stream.end]
    if gaps.n_gaps:
        notes.append(f"{plural(gaps.n_gaps, 'gap')}: the simulation did not send all steps")
    if stream.has_rotated_cell:
        notes.append(ROTATED_CELL)
    if client.get_imdsessioninfo().energies:
        notes.append("energies came with the frames, and are not stored")
    return replace(result, plan=result.plan.replace(notes=tuple(notes)))


def _prepare_selection(
    source: str, options: ConversionOptions
) -> tuple[SelectedAtoms, TransformedLayout | None]:
    """Return the atoms to store and the layout that transforms frames, before the first one."""
    for part in (options.sources, options.selection, options.running):
        for declaration, value in non_defaults(part):
            if declaration.name not in ALLOWED_OPTIONS:
                name = spell_option(declaration, value)
                raise PlanError(f"{source}: {name} is not for a stream; leave it out")
    selection, top = options.selection, options.sources.top
    reference = selection.fit_reference
    follows_atoms = selection.pbc in FOLLOWS_ATOMS
    if follows_atoms or (selection.fit and not isinstance(reference, str | PathLike)):
        unsupported = (
            f"--pbc {selection.pbc}" if follows_atoms else "--fit without a file as reference"
        )
        raise PlanError(
            f"{source}: {unsupported} needs earlier frames, too; convert the output with it"
        )
    if top is None:
        raise PlanError(
            f"{source}: the topology says how many atoms the stream has; give it with -s/--top FILE"
        )
    unsent_frames = _UnsentFrames(Path(source), block=FrameBlock.empty(1, atom_count(top)))
    unsent_frames.block.box[:] = 1  # there will be a cell
    selected_atoms = choose_atoms(unsent_frames, top, selection.select, selection.groups)
    transform_options = selection.transformation(selection.select)
    if transform_options is None:
        return selected_atoms, None
    transformed = TransformedLayout(
        Path(source), source=unsent_frames, top=top, **transform_options
    )
    transformed.prepare_transform(selected_atoms.atoms)
    return selected_atoms, transformed


class _UnsentFrames(MemoryLayout):
    """Frames that the simulation has not sent yet."""

    def _read_into(self, *_: Any) -> None:
        raise PlanError(
            "atoms of a stream are chosen before its first frame, so not by where they are; "
            "select them by what they are (names, residues, ...)"
        )


def _transform(
    frames: Iterator[FrameBlock], atoms: AtomIndices | None, transformed: TransformedLayout | None
) -> Iterator[FrameBlock]:
    """Yield the chosen atoms of each frame, transformed as `transformed` would."""
    first = next(frames, None)
    if first is None:
        return
    memory = MemoryLayout(Path("stream"), block=first)
    layout: Layout = memory
    if transformed is not None:
        layout = TransformedLayout(transformed.path, **{**transformed.options, "source": memory})
    for memory.block in chain([first], frames):
        yield layout.read(0, 1, atoms=atoms)


def _last_steps(writer: Writer) -> tuple[int | None, int | None]:
    """Return the last step of the output, and its distance from the one before; None if unknown."""
    for path in writer.existing_paths():
        with open_layout(path) as layout:
            if layout.stored_times.step_is_frame_number:
                break
            n_frames = layout.info.n_frames
            steps = layout.read(max(n_frames - 2, 0), n_frames, atoms=[]).step.tolist()
            interval = steps[-1] - steps[0]
            return steps[-1], interval if interval > 0 else None  # it may have been restarted
    return None, None


class _Gaps:
    """Finds missing steps: `last` is the step of the last frame, `interval` that between frames."""

    def __init__(self, last: int | None = None, interval: int | None = None) -> None:
        self.last, self.interval, self.n_gaps = last, interval, 0

    def check(self, source: str, step: int) -> None:
        """Warn if steps are missing before the step of the next frame."""
        last, self.last = self.last, step
        if last is None or step <= last:  # a simulation that was restarted repeats some
            return
        if self.interval is None or step - last < self.interval:
            self.interval = step - last
        elif step - last > self.interval:
            self.n_gaps += 1
            if self.n_gaps <= MAX_GAPS:
                warnings.warn(
                    f"{source}: no frames came between steps {last:,} and {step:,}, though one "
                    f"came every {self.interval:,} before",
                    stacklevel=4,
                )


@contextmanager
def _connect(source: str, n_atoms: int, until_idle_s: float | None) -> Iterator[Any]:
    """Yield imdclient's client; the simulation starts or continues as soon as there is one."""
    try:
        from imdclient.IMDClient import IMDClient
        from imdclient.utils import parse_host_port
    except ImportError:
        raise MissingExtraError(
            f"{source}: streams are read through the package imdclient, which is not installed; "
            'pip install "mdio-layouts[imd]"'
        ) from None
    try:
        host, port = parse_host_port(source)
    except ValueError:
        raise PlanError(f"{source}: expected imd://HOST:PORT") from None
    # One thread: the simulation waits until a frame is read, no thread of the client fills a buffer
    # meanwhile, and handlers of signals stay as they are.
    options = {"multithreaded": False, "timeout": max(until_idle_s or STALL_S, MIN_STALL_S)}
    try:
        client = IMDClient(host, port, n_atoms, **options)
    except (OSError, ValueError) as error:
        reason = str(error) or "the connection broke"
        raise SourceError(
            f"{source}: no simulation answers ({reason}); start it first, so that it waits for a "
            "connection, and look for the port in its log"
        ) from error
    with client:
        info = client.get_imdsessioninfo()
        if info.version < 3 or not (info.time and info.positions):
            problem = f"IMD version {info.version}" if info.version < 3 else "no times or positions"
            raise SourceError(
                f"{source}: sends {problem}; have it send version 3 with times and positions, by "
                "which missing frames are found"
            )
        yield client


class _Stream:
    """Frames from a simulation; `end` is the reason for its end."""

    def __init__(
        self, source: str, client: Any, stopped: threading.Event, until_idle_s: float | None
    ) -> None:
        self.source, self.client, self.stopped = source, client, stopped
        self.until_idle_s, self.n_received, self.end = until_idle_s, 0, ""
        self.has_rotated_cell = False

    def frames(self, n_frames: int | None) -> Iterator[FrameBlock]:
        """Yield whole frames, `n_frames` or all, in memory that the next one overwrites."""
        while not self._has_ended():
            yield self._receive_frame()
            self.n_received += 1
            if self.n_received == n_frames:
                self.end = (
                    f"{plural(n_frames, 'frame')} {'was' if n_frames == 1 else 'were'} asked for"
                )
                return

    def _has_ended(self) -> bool:
        """Wait for the next frame; return whether none comes."""
        # imdclient itself does not distinguish an end between frames from one within, and cannot be
        # interrupted while it waits.
        connection, since_s = self.client._conn, monotonic()
        while not (self.stopped.is_set() or select([connection], [], [], POLL_S)[0]):
            if self.until_idle_s is not None and monotonic() - since_s >= self.until_idle_s:
                self.end = f"nothing came for {self.until_idle_s:g} s"
                return True
        if self.stopped.is_set():
            self.end = "ended here, while the simulation went on"
            return True
        try:
            head = connection.recv(len(DISCONNECTED), socket.MSG_PEEK)
        except OSError as error:
            raise self._connection_error(f"the connection broke ({error})") from error
        if head in (b"", DISCONNECTED):
            self.end = (
                "the stream ended after a whole frame; whether the simulation was complete, it "
                "does not say"
                if self.n_received
                else "the stream ended before the first frame"
            )
        return bool(self.end)

    def _receive_frame(self) -> FrameBlock:
        try:
            frame = self.client.get_imdframe()
        except EOFError as error:
            raise self._connection_error("the stream stopped within a frame") from error
        except RuntimeError as error:
            counts = re.search(r"n_atoms value (\d+), got (\d+)", str(error.__cause__))
            if counts is None:
                problem = f"no frame of IMD version 3 ({error.__cause__})"
                raise self._connection_error(problem) from error
            raise SourceError(
                f"{self.source}: its frames have {counts[2]} atoms, but the topology has "
                f"{counts[1]}; give the topology of the simulation"
            ) from error
        vectors = np.zeros((1, 3, 3)) if frame.box is None else frame.box[np.newaxis]
        self.has_rotated_cell |= are_rotated(vectors)
        return FrameBlock(
            frame.positions[np.newaxis],
            boxes_from_vectors(vectors),
            np.array([frame.time], np.float64),
            np.array([frame.step], np.int64),
            None if frame.velocities is None else frame.velocities[np.newaxis],
            None if frame.forces is None else frame.forces[np.newaxis],
        )

    def _connection_error(self, problem: str) -> SourceError:
        """Return the error of a stream that can be continued."""
        verb = "was" if self.n_received == 1 else "were"
        stored = f"{plural(self.n_received, 'whole frame')} before it {verb} stored"
        return SourceError(
            f"{self.source}: {problem}; {stored}: go on with --append (append=True) when the "
            "simulation does"
        )
