"""Frames of a running simulation, as it sends them over IMD: stored without a file between.

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

from mdio.converters.options import APART, OPTIONS, ConversionOptions, ConvertResult
from mdio.converters.periodic import TransformedLayout
from mdio.converters.selection import AtomChoice, atom_count, choose_atoms
from mdio.converters.writer import Writer
from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import MissingExtraError, PlanError, SourceError
from mdio.core.files.store import AnyPath
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.options import non_defaults, spell_option, takes_options
from mdio.core.words import plural
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.layouts.views.memory import MemoryLayout

POLL_S = 0.2
"""Interval at which a request to end the recording is noticed."""
STALL_S, MIN_STALL_S = 600.0, 2.0
"""After so long within a frame, the rest of it is given up; the least: networks pause."""
MAX_GAPS = 10
"""Gaps that are reported one by one."""
DISCONNECTED = b"\0\0\0\0"
"""Beginning of the message with which a simulation disconnects."""
WRITTEN_FIELDS = ("box", "time", "step", "velocities", "forces")
ALLOWED_OPTIONS = {"top", "select", "groups", "pbc", "center", "fit", "fit_select", "fit_reference"}
"""Options, besides those of storage, that work on one frame at a time."""


@takes_options(*OPTIONS, objects=APART)
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

    Each is taken from the connection when there is room for it; until then the simulation waits, so
    that none is lost here. Steps that the simulation did not send are reported by warnings.
    ``top`` is needed, and options that choose frames are refused.

    Parameters
    ----------
    source
        ``imd://HOST:PORT``.
    out
        Output, written as by `mdio.Writer`; its suffix names the layout.
    every_s
        How often frames are stored though they do not fill a shard; None = whole shards alone.
    until_idle_s
        End when nothing came for so long; None = wait.
    n_frames
        End after so many.
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
        Of what was stored last; its plan's notes say how the stream ended.

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
    requested = ConversionOptions.of(**options)
    choice, transformed = _chosen(source, requested)
    assert choice.universe is not None
    arguments: dict[str, Any] = {"append": append, "force": force, "every_s": every_s}
    n_published = 0
    with Writer(out, storage=requested.storage, groups=choice.groups, **arguments) as writer:
        writer.set_atoms(choice.atom_group())
        gaps = _Gaps(*(_last_steps(writer) if append else ()))
        with _connected(source, len(choice.universe.atoms), until_idle_s) as client:
            stream = _Stream(source, client, stopped or threading.Event(), until_idle_s)
            for block in _transformed(stream.frames(n_frames), choice.kept, transformed):
                gaps.look(source, int(block.step[0]))
                values = {name: getattr(block, name) for name in WRITTEN_FIELDS}
                writer.write_block(block.positions, **values)
                if published and writer.result and writer.result.n_frames > n_published:
                    n_published = writer.result.n_frames
                    published(n_published)
            if not writer.n_frames:
                raise SourceError(f"{source}: no frame came ({stream.end}); nothing was written")
    result = writer.result
    assert result is not None
    notes = [*result.plan.notes, *choice.notes, stream.end]
    if gaps.n_gaps:
        notes.append(
            f"{plural(gaps.n_gaps, 'gap')}: steps are missing that the simulation left out"
        )
    if client.get_imdsessioninfo().energies:
        notes.append("energies came with the frames, and are not stored")
    return replace(result, plan=result.plan.replace(notes=tuple(notes)))


def _chosen(
    source: str, requested: ConversionOptions
) -> tuple[AtomChoice, TransformedLayout | None]:
    """Return the kept atoms and what transforms frames, before the simulation begins."""
    for part in (requested.sources, requested.selection, requested.running):
        for one, value in non_defaults(part):
            if one.name not in ALLOWED_OPTIONS:
                raise PlanError(
                    f"{source}: {spell_option(one, value)} is not for a stream; leave it out"
                )
    selection, top = requested.selection, requested.sources.top
    reference = selection.fit_reference
    if selection.pbc == "nojump" or (selection.fit and not isinstance(reference, str | PathLike)):
        unsupported = (
            "--pbc nojump" if selection.pbc == "nojump" else "--fit without a file as reference"
        )
        raise PlanError(
            f"{source}: {unsupported} needs earlier frames, too; convert the output with it"
        )
    if top is None:
        raise PlanError(
            f"{source}: the topology says how many atoms the stream has; give it with -s/--top FILE"
        )
    ahead = _Ahead(Path(source), block=FrameBlock.empty(1, atom_count(top)))
    ahead.block.box[:] = 1  # there will be a cell
    choice = choose_atoms(ahead, top, selection.select, selection.groups)
    keywords = selection.transformation(selection.select)
    if keywords is None:
        return choice, None
    transformed = TransformedLayout(Path(source), source=ahead, top=top, **keywords)
    transformed.prepare_steps(choice.kept)
    return choice, transformed


class _Ahead(MemoryLayout):
    """Frames that are yet to come."""

    def _read_into(self, *_: Any) -> None:
        raise PlanError(
            "atoms of a stream are chosen before its first frame, so not by where they are; "
            "select them by what they are (names, residues, ...)"
        )


def _transformed(
    frames: Iterator[FrameBlock], atoms: AtomIndices | None, transformed: TransformedLayout | None
) -> Iterator[FrameBlock]:
    """Yield the atoms that are kept of each frame, with all that is done to them."""
    first = next(frames, None)
    if first is None:
        return
    live = MemoryLayout(Path("stream"), block=first)
    layout: Layout = live
    if transformed is not None:
        layout = TransformedLayout(transformed.path, **{**transformed.options, "source": live})
    for live.block in chain([first], frames):
        yield layout.read(0, 1, atoms=atoms)


def _last_steps(writer: Writer) -> tuple[int | None, int | None]:
    """Return the last step that the output has, and how far it is from the one before."""
    for path in writer.existing_paths():
        with open_layout(path) as layout:
            n_frames = layout.info.n_frames
            steps = layout.read(max(n_frames - 2, 0), n_frames, atoms=[]).step.tolist()
            interval = steps[-1] - steps[0]
            return steps[-1], interval if interval > 0 else None  # it may have been restarted
    return None, None


class _Gaps:
    """Finds steps that are missing: `last` is the step before, `interval` that between frames."""

    def __init__(self, last: int | None = None, interval: int | None = None) -> None:
        self.last, self.interval, self.n_gaps = last, interval, 0

    def look(self, source: str, step: int) -> None:
        """Look at the next step; warns where some are missing before it."""
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
                    stacklevel=3,
                )


@contextmanager
def _connected(source: str, n_atoms: int, idle_s: float | None) -> Iterator[Any]:
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
    # Frames are read when they are asked for: what waits meanwhile is the simulation, and no thread
    # of the client has filled a buffer, or taken the handlers of signals.
    options = {"multithreaded": False, "timeout": max(idle_s or STALL_S, MIN_STALL_S)}
    try:
        client = IMDClient(host, port, n_atoms, **options)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{source}: no simulation answers ({error}); start it first, so that it waits for a "
            "connection, and look for the port in its log"
        ) from error
    with client:
        info = client.get_imdsessioninfo()
        if info.version < 3 or not (info.time and info.positions):
            sends = f"IMD version {info.version}" if info.version < 3 else "no times or positions"
            raise SourceError(
                f"{source}: sends {sends}; have it send version 3 with times and positions, by "
                "which missing frames are found"
            )
        yield client


class _Stream:
    """Frames from a simulation; `end` is the reason for its end."""

    def __init__(
        self, source: str, client: Any, stopped: threading.Event, until_idle_s: float | None
    ) -> None:
        self.source, self.client, self.stopped = source, client, stopped
        self.until_idle_s, self.n_taken, self.end = until_idle_s, 0, ""

    def frames(self, n_frames: int | None) -> Iterator[FrameBlock]:
        """Yield whole frames, in memory that the next one takes; `n_frames` of them, or all.

        Raises SourceError: the stream broke, or is of other atoms.
        """
        while not self._ended():
            yield self._next()
            self.n_taken += 1
            if self.n_taken == n_frames:
                self.end = f"{plural(n_frames, 'frame')} were asked for"
                return

    def _ended(self) -> bool:
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
            raise self._broken(f"the connection broke ({error})") from error
        if head in (b"", DISCONNECTED):
            self.end = (
                "the stream ended after a whole frame; whether the simulation was complete, it "
                "does not say"
                if self.n_taken
                else "the stream ended before the first frame"
            )
        return bool(self.end)

    def _next(self) -> FrameBlock:
        try:
            frame = self.client.get_imdframe()
        except EOFError as error:
            raise self._broken("the stream stopped within a frame") from error
        except RuntimeError as error:
            counts = re.search(r"n_atoms value (\d+), got (\d+)", str(error.__cause__))
            if counts is None:
                raise self._broken(f"no frame of IMD version 3 ({error.__cause__})") from error
            raise SourceError(
                f"{self.source}: its frames have {counts[2]} atoms, but the topology has "
                f"{counts[1]}; give the topology of the simulation"
            ) from error
        vectors = np.zeros((1, 3, 3)) if frame.box is None else frame.box[np.newaxis]
        return FrameBlock(
            frame.positions[np.newaxis],
            boxes_from_vectors(vectors),
            np.array([frame.time], np.float64),
            np.array([frame.step], np.int64),
            None if frame.velocities is None else frame.velocities[np.newaxis],
            None if frame.forces is None else frame.forces[np.newaxis],
        )

    def _broken(self, problem: str) -> SourceError:
        """Return the error of a stream that can be continued."""
        verb = "was" if self.n_taken == 1 else "were"
        stored = f"{plural(self.n_taken, 'whole frame')} before it {verb} stored"
        return SourceError(
            f"{self.source}: {problem}; {stored}: go on with --append (append=True) when the "
            "simulation does"
        )
