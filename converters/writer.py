"""Writes the frames that a program makes: each shard is stored as soon as it is full.

A shard is added as a continuation is (`mdio.converters.append`), so there is a whole output at any
time. Adding to a layout in one file would copy that file each time: frames are added to a Zarr tree
beside it, of which the file is made in the end.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from reprlib import repr as shorten
from time import monotonic
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.converters.append import prepare_continuation
from mdio.converters.convert import plan_conversion
from mdio.converters.follow import ENDLESS_FRAMES
from mdio.converters.options import ConversionOptions, ConvertResult, Storage
from mdio.converters.selection import AtomSelection
from mdio.converters.strategies.choice import check_options
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import exists_or_is_link
from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import OutputError, PlanError
from mdio.core.files.locks import concurrent_change_error
from mdio.core.files.publish import link_target, recover
from mdio.core.files.store import require_disk, store_at, to_path
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo, is_masked
from mdio.core.options import takes_options
from mdio.core.topology import Topology
from mdio.core.words import number_text, plural
from mdio.layouts.backend import plan_fields
from mdio.layouts.base import Layout
from mdio.layouts.registry import (
    layout_class,
    layout_name_for_output,
    open_layout,
    writer_class,
)
from mdio.layouts.views.memory import MemoryLayout
from mdio.layouts.views.view import read_columns, read_times
from mdio.parallel.executors import Serial

PLANNED_NBYTES = 256 << 20
"""Bytes of frames for which the size of shards is planned."""
SAME_TIME = 1e-3
"""Times are equal if they differ by less than this part of the time between frames."""

_unclosed: WeakSet[Writer] = WeakSet()

INTEGERS: Any = int | np.integer
NUMBERS: Any = float | np.floating | INTEGERS


def _check_number(name: str, value: Any, types: Any, minimum: float, expected: str) -> None:
    """Raise PlanError unless `value` is a number of these types, `minimum` or more."""
    is_number = isinstance(value, types) and not isinstance(value, bool)
    if not (is_number and minimum <= value < np.inf):
        raise PlanError(f"{name}={value!r}; give {expected}")


class _PlannedFrames(MemoryLayout):
    """The frames for which an output of unknown length is planned: copies of its first one."""

    def _open(self) -> TrajectoryInfo:
        info, n_frames = super()._open(), 2 + PLANNED_NBYTES // (12 * self.block.n_atoms)
        last_ps, nbytes = float(n_frames - 1), n_frames * self.block.nbytes
        return info.replace(n_frames=n_frames, time_last_ps=last_ps, nbytes=nbytes)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        frames = self.block.frames(np.zeros(stop - start, np.int64))
        block.assign(frames if atoms is None else frames.take(atoms))


class _Output:
    """An output to which frames are added; `name` is its path for messages."""

    def __init__(self, name: Path, options: ConversionOptions, *, force: bool) -> None:
        self.name, self.options, self.force = name, options, force
        self.out = name.absolute()  # the program may go to another folder
        self.layout = layout_name_for_output(name, options.storage.to)
        self.n_frames = 0
        self.unit_frames = 0
        self.uuid: str | None = None
        """UUID of the stored output; None = nothing stored yet."""
        self.result: ConvertResult | None = None
        """Result of the last addition."""
        self._has_warned = False

    def plan(self, new_frames: Layout) -> Conversion:
        """Plan the output of the frames that it has and those of `new_frames`."""
        if self.uuid is None:
            return plan_conversion(new_frames, [], self.out, self.layout, self.options, Serial())
        conversion = prepare_continuation(self.out, self.n_frames, new_frames, self.options)
        extended = conversion.extended
        if extended is not None and extended.continuation.manifest["uuid"] != self.uuid:
            conversion.close()
            raise concurrent_change_error(self.out)
        return conversion

    def add(self, new_frames: Layout) -> None:
        """Add the frames of `new_frames`; raises OutputError, and then it stays as it was."""
        conversion = self.plan(new_frames)
        planned_notes = conversion.plan.notes
        result = conversion.run(Serial(), force=self.force and self.uuid is None)
        self.result = replace(result, out=str(self.name))
        new_notes = [note for note in self.result.plan.notes if note not in planned_notes]
        for note in new_notes if not self._has_warned else ():
            self._has_warned = True
            warnings.warn(f"{self.name}: {note}", stacklevel=2)
        self.n_frames, self.uuid = conversion.plan.n_frames, conversion.uuid

    def continue_from(
        self, n_atoms: int, time_ps: float, topology: Topology | None
    ) -> TrajectoryInfo:
        """Keep the existing output's frames before `time_ps`, and return the information on it."""
        self.out = link_target(self.out)
        recover(self.out)
        with open_layout(self.out) as old:
            info, times_ps = old.info, read_times(old)
            plan_values = plan_fields(old)
            self.unit_frames = plan_values.get("piece_frames") or int(old.boundaries()[1])
            self.uuid, old_topology = old.uuid, old.topology()
            manifest = old.manifest or {"source": {}}
        if info.n_atoms != n_atoms:
            raise OutputError(
                f"{self.name}: has {info.n_atoms} atoms, but the frames to add have {n_atoms}; "
                "give the same atoms, or another output"
            )
        if old_topology is not None and topology is not None:
            differing, _ = old_topology.differing_names(topology)
            if len(differing):
                first = int(differing[0])
                raise OutputError(
                    f"{self.name}: {len(differing):,} of its {n_atoms:,} atoms are others than "
                    f"those of the frames to add: atom {first} is {old_topology.name_of(first)} "
                    f"there and {topology.name_of(first)} here; give the same atoms, or another "
                    "output"
                )
        replaced_frames = np.flatnonzero(times_ps >= time_ps - SAME_TIME * abs(info.dt_ps))
        self.n_frames = int(replaced_frames[0]) if len(replaced_frames) else info.n_frames
        if not self.n_frames:
            raise OutputError(
                f"{self.name}: begins at {number_text(times_ps[0])} ps, and the first frame to add "
                f"is at {number_text(time_ps)} ps, so that nothing of it would stay; go on from a "
                "later frame, or replace it with --force (force=True)"
            )
        if n_more := info.n_frames - self.n_frames:
            warnings.warn(
                f"{self.name}: its last {plural(n_more, 'frame')}, from "
                f"{times_ps[self.n_frames]:g} ps on, are replaced",
                stacklevel=6,
            )
        precision = manifest.get("precision")
        if precision is None or manifest.get("precision_source") == "asked":
            return info
        if "arrays" not in plan_values:
            rounding_text = (
                f"are rounded to {precision:g} angstrom, the precision of the files there"
            )
            warnings.warn(f"{self.name}: positions {rounding_text}", stacklevel=6)
        elif "by_program" not in manifest["source"]:
            warnings.warn(
                f"{self.name}: holds the integers of an XTC, and what is added is kept as floats: "
                "from now on all of it is read as floats, which an XTC made of it would round",
                stacklevel=6,
            )
        return info


class Writer:
    """Writes frames as a program makes them, into a layout that grows by whole shards.

    A shard (a segment) is stored in the background as soon as it is full; other programs read the
    output meanwhile, as far as it goes, and after a crash it is whole. A crash loses only the shard
    that was being filled and the one that was being stored; memory holds these two. With
    ``background=False`` it loses one at most, and writing waits while a shard is stored.

    Zarr trees and segments grow in place. Layouts in one file are made when the writer is closed,
    of a tree ``OUT.zarr`` that grows beside them and is then removed; after a crash that has the
    frames.

    Threads may share a writer: it takes their frames one call after the other.

    Formats round and leave out what they cannot hold: XTC, also in segments, keeps positions to
    0.01 angstrom unless ``precision`` says otherwise, and neither XTC nor DCD velocities. A warning
    says so with the first frame.

    Parameters
    ----------
    out
        Output; its suffix names the layout.
    n_atoms
        Number of atoms of each frame; by default, that of `atoms` or of the first frame.
    atoms
        What the atoms are, stored in the output: an AtomGroup or a Universe of MDAnalysis. By
        default, those of the first `write`.
    append
        Continue an existing output, or begin one. Frames that it has from the time of the first new
        one on (its step, if it has no time) are replaced: a simulation that is restarted repeats
        them. New frames are stored with the options with which the output was begun, whatever is
        given here; velocities and forces that it does not hold are left out, with a warning.
    force
        Replace an existing output, once the first shard (for a layout in one file: all frames) is
        complete.
    velocities, forces
        Whether to store them. By default, if the first frame has them and the format holds them;
        True refuses one that does not. Frames without them are NaN.
    dt_ps
        Time between frames that come without times.
    every_s
        Also store frames after this many seconds, though the shard is not full. By default, only
        whole shards are stored.
    background
        Whether shards are stored while the next ones are filled.
    groups
        Atoms that are stored a second time: names, and selections or indices.
    **options
        How the output is stored, as for `mdio.convert`: ``precision``, ``compression``, ``to`` and
        ``storage=mdio.Storage(...)``.

    Raises
    ------
    OutputError
        The output exists, is full, ...: while writing, too, in the call after it happened. Nothing
        more is written then, and the output has what was stored before.
    PlanError
        Options that do not fit together, or a layout that is not written so.

    Examples
    --------
    >>> import mdio, numpy as np, os, tempfile
    >>> os.chdir(tempfile.mkdtemp())
    >>> with mdio.Writer("walk.zarr") as writer:
    ...     for n in range(20):
    ...         writer.write_block(np.full((5, 3), n, "f4"), time=2.0 * n, step=1000 * n)
    >>> mdio.open("walk.zarr").info.n_frames
    20
    """

    _closed = True  # until there is something to close
    _closed_text = "its writer is closed; make another with append=True"

    @takes_options(Storage, objects={"storage": Storage})
    def __init__(
        self,
        out: str | PathLike[str],
        n_atoms: int | None = None,
        *,
        atoms: Any = None,
        append: bool = False,
        force: bool = False,
        velocities: bool | None = None,
        forces: bool | None = None,
        dt_ps: float = 1.0,
        every_s: float | None = None,
        background: bool = True,
        groups: Mapping[str, AtomSelection] | None = None,
        **options: Any,
    ) -> None:
        self.out, self.n_atoms = to_path(out), n_atoms
        self._lock = threading.RLock()
        if n_atoms is not None:
            _check_number(f"{out}: n_atoms", n_atoms, INTEGERS, 1, "a whole number of 1 or more")
        if every_s is not None:
            _check_number(f"{out}: every_s", every_s, NUMBERS, 0, "seconds, or None")
        tiny = float(np.finfo(float).tiny)
        _check_number(f"{out}: dt_ps", dt_ps, NUMBERS, tiny, "ps between frames, more than 0")
        if append and force:
            raise PlanError(
                f"{out}: append=True goes on with what is there, force=True replaces it; give one"
            )
        self.n_frames = 0
        """Frames that were written, those that are not stored yet among them."""
        self._append, self._every_s = append, every_s
        self._requested = {"velocities": velocities, "forces": forces}
        self._stores_field: dict[str, bool] = {}
        self._dt_ps, self._time_ps, self._step = dt_ps, -dt_ps, -1
        self._replaced_from_ps = np.inf
        """Time from which stored frames are replaced, where new ones have steps only."""
        self._topology: Topology | None = None
        self._indices: NDArray[np.int64] | None = None
        """Atoms of the Universe that `_topology` describes; None after a warning of other ones."""
        self._block: FrameBlock | None = None
        """The shard that is being filled."""
        self._spare_block: FrameBlock | None = None
        """Memory of the shard that is being stored."""
        self._n_filled = self._n_existing = 0
        self._is_used = False
        self._storing: Future[None] | None = None
        self._error: BaseException | None = None
        final_options = ConversionOptions.of(groups=groups or {}, source_grows=True, **options)
        self._final: _Output | None = _Output(self.out, final_options, force=force)
        """The output, if it is made in the end of the tree to which frames are added."""
        layout = self._final.layout
        if writer_class(layout).facts.refers_to_source:
            raise PlanError(f"{out}: {layout} refers to frames in other files; write zarr or h5md")
        for name in final_options.refused_options("follow"):
            raise PlanError(f"{out}: {name} needs all frames beforehand; leave it out")
        check_options(final_options, layout, self.out)
        facts = layout_class(layout).facts
        if facts.continuation is not None and facts.is_folder:
            growing_options = final_options.replaced(expected_frames=ENDLESS_FRAMES)
            self._growing, self._final = _Output(self.out, growing_options, force=force), None
        else:
            require_disk(self.out, f"{layout} is made of a tree that grows beside it, on a disk")
            growing_options = ConversionOptions.of(
                source_grows=True, expected_frames=ENDLESS_FRAMES
            )
            tree = self.out.with_name(f"{self.out.name}.zarr")
            self._growing = _Output(tree, growing_options, force=force)
            if append and facts.continuation is None and os.path.lexists(self.out):
                raise OutputError(
                    f"{self.out}: exists already, and nothing can be added to {layout}; write to "
                    "NAME.zarr, NAME.h5md or NAME.segments, or choose another name"
                )
        for path in self.existing_paths():
            if not (append or force):
                raise OutputError(
                    f"{self.out.with_name(path.name)}: exists already; go on with it with "
                    "--append (append=True), replace it with --force (force=True), or choose "
                    "another name"
                )
        if atoms is not None:
            self.set_atoms(atoms)
        folder = link_target(self._growing.out).parent
        if store_at(folder).has_folders and not os.access(folder, os.W_OK | os.X_OK):
            problem = "cannot be written to" if folder.is_dir() else "is no folder"
            raise OutputError(f"{out}: {folder} {problem}; make it, or choose another")
        self._closed, self._pid, self._last_stored_s = False, os.getpid(), monotonic()
        self._pool = ThreadPoolExecutor(1, "mdio-writer") if background else None
        _unclosed.add(self)

    @property
    def result(self) -> ConvertResult | None:
        """The `ConvertResult` of the last conversion or append; None before that."""
        return ((self._closed and self._final) or self._growing).result

    def existing_paths(self) -> list[Path]:
        """Return the existing paths with frames: the output, or the tree that it is made from."""
        paths = (self._growing.out, self.out if self._final is None else self._final.out)
        return [path for path in dict.fromkeys(paths) if exists_or_is_link(path)]

    def set_atoms(self, atoms: Any) -> None:
        """Set the topology, before the first frame.

        Parameters
        ----------
        atoms
            An AtomGroup or a Universe of MDAnalysis.
        """
        with self._lock:
            from mdio.layouts.foreign.universe import topology_of

            group = getattr(atoms, "atoms", None)
            if group is None:
                raise TypeError(
                    f"{self.out}: atoms={atoms!r}; give an AtomGroup or a Universe of MDAnalysis"
                )
            if self.n_atoms is None:
                self.n_atoms = len(group)
            if len(group) != self.n_atoms:
                raise ValueError(
                    f"{self.out}: {len(group)} atoms, but frames of {self.n_atoms}; give the atoms "
                    "that are written"
                )
            self._indices = group.indices
            self._topology = topology_of(group.universe, group.indices)

    def write(self, atoms: Any) -> None:
        """Write the present frame of atoms.

        Parameters
        ----------
        atoms
            An AtomGroup or a Universe of MDAnalysis.

        Raises
        ------
        TypeError
            It is neither.
        ValueError
            It has another number of atoms than the frames before.
        OutputError
            See the class.
        """
        with self._lock:
            try:
                group, ts = atoms.atoms, atoms.universe.trajectory.ts
            except AttributeError:
                raise TypeError(
                    f"{self.out}: expected an AtomGroup or a Universe, found {type(atoms).__name__}"
                ) from None
            if self._topology is None and self._block is None:
                self.set_atoms(group)
            elif self._indices is not None and group.indices is not self._indices:
                has_same_size = len(group.indices) == len(self._indices)
                if has_same_size and not np.array_equal(group.indices, self._indices):
                    warnings.warn(
                        f"{self.out}: frame {self.n_frames} has other atoms of the Universe than "
                        "the first one, or in another order; the names and residues stored are "
                        "those of the first",
                        stacklevel=2,
                    )
                    self._indices = None
            values = {
                name: getattr(group, name)
                for name, is_requested in self._requested.items()
                if getattr(ts, f"has_{name}") and is_requested is not False
            }
            step = ts.data.get("step", ts.frame)
            self._write_frames(group.positions, ts.dimensions, ts.time, step, **values)

    def write_block(
        self,
        positions: ArrayLike,
        *,
        box: ArrayLike | None = None,
        time: ArrayLike | None = None,
        step: ArrayLike | None = None,
        velocities: ArrayLike | None = None,
        forces: ArrayLike | None = None,
    ) -> None:
        """Write a run of frames, or one.

        Parameters
        ----------
        positions : (F, A, 3) or (A, 3)
            angstrom.
        box : (F, 6) or (6,), optional
            Three lengths in angstrom, three angles in degrees; by default there is none.
        time : (F,) or number, optional
            ps; by default every `dt_ps` after the frame before.
        step : (F,) or number, optional
            Integration steps; by default frames are counted.
        velocities, forces : as positions, optional
            angstrom/ps and kJ/(mol angstrom).

        Raises
        ------
        ValueError
            A shape that does not fit, numbers that float32 cannot hold, or velocities or forces
            that the first frame did not have.
        PlanError
            Velocities or forces that were asked for, and the output cannot hold.
        OutputError
            See the class.
        """
        self._write_frames(positions, box, time, step, velocities, forces)

    def _write_frames(
        self,
        positions: ArrayLike,
        box: ArrayLike | None,
        time: ArrayLike | None,
        step: ArrayLike | None,
        velocities: ArrayLike | None = None,
        forces: ArrayLike | None = None,
    ) -> None:
        """Write frames; called by what programs call, as the levels of warnings say."""
        with self._lock:
            self._check_usable()
            arrays = {"velocities": velocities, "forces": forces}
            block = self._as_block(positions, box, time, step, arrays)
            if not block.n_frames:
                return
            first = 0
            while first < block.n_frames:
                assert self._block is not None
                n_frames = min(block.n_frames - first, self._n_free)
                rows = self._block.frames(slice(self._n_filled, self._n_filled + n_frames))
                rows.assign(block.frames(slice(first, first + n_frames)))
                first += n_frames
                self._n_filled += n_frames
                self.n_frames += n_frames
                if self._n_free == self._growing.unit_frames:
                    self._store()
            self._time_ps, self._step = float(block.time[-1]), int(block.step[-1])
            if self._every_s is not None and monotonic() - self._last_stored_s >= self._every_s:
                self._store()

    def flush(self) -> None:
        """Store all frames that were written, and return when they are; a shard may not be full.

        Raises
        ------
        OutputError
            See the class.
        """
        with self._lock:
            self._check_usable()
            self._store()
            self._wait_for_storing()

    def close(self) -> None:
        """Store the frames that were written, and finish the output; warns if there are none.

        Raises
        ------
        OutputError
            See the class; what writing has raised is not raised again.
        """
        if not self._closed and not self._is_used:
            warnings.warn(f"{self.out}: closed before any frame was written", stacklevel=2)
        self._close()

    def _close(self) -> None:
        if self._closed or self._pid != os.getpid():  # a forked process has a copy of it
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _unclosed.discard(self)
            try:
                if self._error is None:
                    self._wait_for_storing()
                    self._store(wait=True)
                    self._finish()
            finally:
                if self._pool is not None:
                    self._pool.shutdown()
                self._block = self._spare_block = None

    def _close_at_exit(self) -> None:
        self._closed_text = (
            "closed, since the main thread has ended; let it wait for the thread that writes (join)"
        )
        self._close()

    def __enter__(self) -> Self:
        """Return the writer, which is closed in the end."""
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close the writer; frames written before an error are stored."""
        if error_type is None:
            self.close()
        else:
            self._close()

    def __del__(self) -> None:
        """Close the writer; Python prints the errors that this raises."""
        self._close()

    def __repr__(self) -> str:
        """Return the output, and how many frames were written."""
        return f"<Writer {str(self.out)!r}: {plural(self.n_frames, 'frame')}>"

    def _as_block(
        self,
        positions: ArrayLike,
        box: ArrayLike | None,
        time: ArrayLike | None,
        step: ArrayLike | None,
        arrays: Mapping[str, ArrayLike | None],
    ) -> FrameBlock:
        """Return frames as a block; the first call plans the output. Raises ValueError."""

        def as_array(name: str, values: Any, dtype: Any) -> NDArray[Any]:
            try:
                if dtype is not np.float32 or getattr(values, "dtype", None) == dtype:
                    return np.asarray(values, dtype)
                with np.errstate(over="raise"):  # infinite numbers remain
                    return np.asarray(values, dtype)
            except (ArithmeticError, TypeError, ValueError) as error:
                raise ValueError(f"{self.out}: {name} is {shorten(values)} ({error})") from error

        for name, values in {"positions": positions, **arrays}.items():
            if is_masked(values):
                raise ValueError(f"{self.out}: {name} are masked, and the mask would be lost")
            if as_array(name, values, None).dtype.kind == "c":
                raise ValueError(f"{self.out}: {name} are complex numbers; give their real parts")
        frames: NDArray[np.float32] = as_array("positions", positions, np.float32)
        frames = frames[np.newaxis] if frames.ndim == 2 else frames
        if (
            frames.ndim != 3
            or not frames.shape[1]
            or frames.shape[1:] != (self.n_atoms or frames.shape[1], 3)
        ):
            expected = "some" if self.n_atoms is None else f"{self.n_atoms}"
            raise ValueError(
                f"{self.out}: positions of shape {np.shape(positions)}, expected (F, A, 3) or "
                f"(A, 3) of {expected} atoms: every frame has the same"
            )
        shape, n_frames = frames.shape, len(frames)

        def broadcast(name: str, values: ArrayLike, shape: tuple[int, ...], dtype: Any) -> Any:
            array = as_array(name, values, dtype)
            if array.shape != shape and (
                array.shape != shape[1:] or (n_frames > 1 and name != "box")
            ):
                raise ValueError(f"{self.out}: {name} of shape {array.shape}, expected {shape}")
            return np.broadcast_to(array, shape)

        if self._block is None and self._append:
            times, steps = (
                np.ravel([] if values is None else as_array(name, values, float))
                for name, values in (("time", time), ("step", step))
            )
            self._continue_steps(times, steps)
        numbers = np.arange(1, n_frames + 1)
        time = self._time_ps + self._dt_ps * numbers if time is None else time
        step = self._step + numbers if step is None else step
        block = FrameBlock(
            frames,
            broadcast("box", np.zeros(6) if box is None else box, (n_frames, 6), np.float32),
            broadcast("time", time, (n_frames,), np.float64),
            broadcast("step", step, (n_frames,), np.int64),
        )
        if not (block.step == np.asarray(step)).all():
            raise ValueError(f"{self.out}: step is {step!r}; give whole numbers")
        lengths, angles = block.box[:, :3], block.box[:, 3:]
        has_cell = (lengths > 0).all(axis=1)
        is_degenerate = has_cell & ~(vectors_from_boxes(block.box)[:, 2, 2] > 0)
        is_in_range = (lengths >= 0).all() and (angles >= 0).all() and (angles < 180).all()
        if not is_in_range or is_degenerate.any():
            raise ValueError(
                f"{self.out}: the box is {box!r}; give 3 lengths, and 3 angles of a cell"
            )
        if self._block is None and n_frames:
            names = [name for name, values in arrays.items() if values is not None]
            self._plan_output(block, names)
        for name, is_stored in self._stores_field.items():
            values = arrays[name]
            if is_stored:
                values = np.full(shape, np.nan, np.float32) if values is None else values
                setattr(block, name, broadcast(name, values, shape, np.float32))
            elif values is not None and self._requested[name] is not False:
                raise ValueError(
                    f"{self.out}: a frame with {name}, which the first one did not have; make the "
                    f"writer of a new output with {name}=True, or with {name}=False to leave them "
                    "out"
                )
        return block

    def _plan_output(self, block: FrameBlock, names: Sequence[str]) -> None:
        """Plan the output for its first frames, or continue an existing one; allocate a shard."""
        n_atoms, time_ps = block.n_atoms, min(float(block.time[0]), self._replaced_from_ps)
        self.n_atoms = n_atoms
        self._stores_field = {
            name: name in names if is_requested is None else is_requested
            for name, is_requested in self._requested.items()
        }
        for output in (self._growing, self._final):
            if self._append and output is not None and output.out.exists():
                info = output.continue_from(n_atoms, time_ps, self._topology)
                time_ps = min(time_ps, info.time_first_ps)
                self._stores_field = {name: name in info.fields for name in self._stores_field}
                self._check_requested(
                    [name for name in self._stores_field if self._stores_field[name]]
                )
                for name in names:
                    if not self._stores_field[name] and self._requested[name] is None:
                        self._requested[name] = False
                        warnings.warn(f"{output.name}: holds no {name}: left out", stacklevel=4)
        if self._growing.uuid is None:
            first_frame = FrameBlock(
                positions=block.positions[:1],
                box=block.box[:1],
                time=np.zeros(1),
                step=np.zeros(1, np.int64),
                **{
                    name: block.positions[:1]
                    for name, stored in self._stores_field.items()
                    if stored
                },
            )
            path = self._growing.out
            with _PlannedFrames(path, block=first_frame, atoms=self._topology) as frames:
                plan = self._growing.plan(frames).plan
                final_plan = plan if self._final is None else self._final.plan(frames).plan
            self._growing.unit_frames = (
                plan.segment_frames[0] if plan.segment_frames else plan.piece_frames
            )
            self._check_requested(
                {array.field for array in final_plan.arrays} or set(final_plan.native.fields)
            )
            for note in () if final_plan.arrays else final_plan.notes:
                warnings.warn(f"{self.out}: {note}", stacklevel=5)
        self._n_existing = self._growing.n_frames
        self._block = self._empty_shard()

    def _check_requested(self, stored_fields: Container[str]) -> None:
        """Raise PlanError where requested velocities or forces are not among `stored_fields`."""
        for name, is_requested in self._requested.items():
            if is_requested and name not in stored_fields:
                raise PlanError(
                    f"{self.out}: {name}=True, but it cannot hold them, or was begun without them; "
                    f"leave out {name}=True, or write another output: trr, ncdf, h5md or zarr"
                )

    def _continue_steps(self, times: NDArray[Any], steps: NDArray[Any]) -> None:
        """Count on from the existing frames before new ones, whose times or steps may be empty."""
        self._replaced_from_ps = np.inf
        for path in self.existing_paths()[:1]:
            with open_layout(path) as layout:
                columns, step_is_frame_number = (
                    read_columns(layout),
                    layout.stored_times.step_is_frame_number,
                )
            is_before = np.ones(len(columns.time), bool)
            if times.size:
                is_before = columns.time < times[0]
            elif steps.size and step_is_frame_number:
                raise OutputError(
                    f"{self.out}: holds no steps by which frames could be found that are repeated; "
                    "give their times, too"
                )
            elif steps.size:
                is_before = columns.step < steps[0]
                self._replaced_from_ps = columns.time[~is_before].min(initial=np.inf)
            for last in np.flatnonzero(is_before)[-1:].tolist():
                self._time_ps, self._step = float(columns.time[last]), int(columns.step[last])

    def _empty_shard(self) -> FrameBlock:
        assert self.n_atoms is not None
        return FrameBlock.empty(self._growing.unit_frames, self.n_atoms, **self._stores_field)

    @property
    def _n_free(self) -> int:
        """Frames that still fit into the shard that is being filled."""
        size = self._growing.unit_frames
        return size - (self._n_existing + self.n_frames) % size

    def _check_usable(self) -> None:
        """Raise the error of an earlier call, of storing, or of a writer that cannot be used."""
        self._is_used = True
        if self._pid != os.getpid():
            raise OutputError(
                f"{self.out}: its writer belongs to the process that made it, and this is a copy; "
                "make one in each process, for outputs of their own"
            )
        if self._error is not None:
            raise self._error
        if self._closed:
            raise OutputError(f"{self.out}: {self._closed_text}")
        if self._storing is not None and self._storing.done():
            self._wait_for_storing()

    def _wait_for_storing(self) -> None:
        """Wait until the shard in the background is stored; raises the errors of storing it."""
        storing, self._storing = self._storing, None
        if storing is not None:
            try:
                storing.result()
            except BaseException as error:
                self._error = error
                raise

    def _store(self, *, wait: bool = False) -> None:
        """Store the written frames in the background; with `wait`, before returning."""
        self._wait_for_storing()
        self._last_stored_s = monotonic()
        if self._block is None or not self._n_filled:
            return
        block = self._block.frames(slice(0, self._n_filled))
        self._n_filled = 0
        if wait or self._pool is None:
            try:
                self._add(block)
            except BaseException as error:
                self._error = error
                raise
            return
        self._block, self._spare_block = self._spare_block or self._empty_shard(), self._block
        self._storing = self._pool.submit(self._add, block)

    def _add(self, block: FrameBlock) -> None:
        with MemoryLayout(self._growing.out, block=block, atoms=self._topology) as frames:
            self._growing.add(frames)

    def _finish(self) -> None:
        """Convert the tree beside an output in one file into that output."""
        if self._final is not None and self._growing.uuid is not None:
            try:
                with open_layout(self._growing.out) as tree:
                    self._final.add(tree)
            except (OutputError, PlanError) as error:
                raise OutputError(
                    f"{error}; all frames are in {self._growing.name}: make another output of it "
                    "with mdio convert"
                ) from error
            shutil.rmtree(self._growing.out)


def _close_all() -> None:
    """Close all open writers at exit, so that their last frames are stored."""
    with ExitStack() as stack:  # all of them, though one may fail
        for writer in list(_unclosed):
            stack.callback(writer._close_at_exit)


# As `atexit` does, but while threads can still be begun, which writing needs.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
