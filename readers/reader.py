"""The MDAnalysis plugin: readers for every layout, one writer, and their registration.

Formats of other readers (H5MD, H5, ZARRMD, ...) stay theirs. A hint claims only outputs of mdio,
and paths with a suffix of mdio that no other reader claims: MDAnalysis' error for these would be a
list of all formats.

``MDAnalysis.Writer("md.zarr", n_atoms)`` and ``atoms.write("md.segments", frames="all")`` know the
suffixes that no other writer has; ``format="MDIO"`` writes by any suffix.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cached_property
from os import PathLike
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from MDAnalysis import _MULTIFRAME_WRITERS, _READER_HINTS, _READERS, _SINGLEFRAME_WRITERS
from MDAnalysis.coordinates.base import ReaderBase, WriterBase
from MDAnalysis.coordinates.core import writer as mda_writer
from MDAnalysis.coordinates.timestep import Timestep
from MDAnalysis.core.topology import Topology
from MDAnalysis.lib.util import store_init_arguments
from MDAnalysis.topology.base import TopologyReaderBase
from numpy.typing import NDArray

from mdio.core.cache import Cache
from mdio.core.errors import FrameReadError, SourceError
from mdio.core.files.store import is_remote, to_path
from mdio.core.frames import absent_frames
from mdio.core.words import did_you_mean
from mdio.layouts.base import Layout, atoms_to_array, cache_notes, warn_of_lost_frames
from mdio.layouts.foreign.universe import to_mdanalysis_topology
from mdio.layouts.h5md import layout as h5md
from mdio.layouts.registry import open_layout
from mdio.layouts.segments import files as segments
from mdio.layouts.zarr import layout as zarr_layout
from mdio.readers.frames import FrameCache

OPTIONS_OF_OPEN = ("length_unit", "overlap", "salvage", "fields", "timestep")
"""Options of `mdio.open`, or of commands, that a Universe does not take."""


class LayoutReader(ReaderBase):  # type: ignore[misc]
    """Reads any layout as an MDAnalysis trajectory: ``Universe(top, path, format="MDIO")``.

    Sequential access costs one read per chunk; a jump to a distant frame of uncompressed data reads
    that frame only. Units are always those of MDAnalysis, also without `convert_units`.

    Parameters
    ----------
    filename
        Path of a layout (file or folder).
    group
        Name of a stored atom group to read instead of the full system.
    n_atoms
        Number of atoms of the topology, for formats that do not store it.
    verify
        Compare all that is read with the checksums of the output. False trusts the disk.
    uuid
        Identity of the output that is expected there; by default, any.
    cache, cache_size
        Folder on this node for units that are read, and its limit; see `mdio.open`.
    **kwargs
        Those of other MDAnalysis readers: `time_offset`; `dt`, which replaces stored times by its
        multiples.

    Raises
    ------
    FrameReadError
        A frame is damaged.
    SourceError, CorruptLayoutError, UnknownLayoutError
        When opening.
    """

    format = "MDIO"
    units = {  # noqa: RUF012 - the class attribute that MDAnalysis reads
        "time": "ps",
        "length": "Angstrom",
        "velocity": "Angstrom/ps",
        "force": "kJ/(mol*Angstrom)",
    }

    @staticmethod
    def _format_hint(source: Any) -> bool:
        """Claim all paths in a store, for which readers for files fail with unclear errors.

        References, too, which have no reader of their own.
        """
        if not is_remote(source):
            return _is_unclaimed(source, ".refs")
        reader = _READERS.get(PurePath(source).suffix[1:].upper())
        return reader is None or reader.__module__.partition(".")[0] in ("MDAnalysis", "mdio")

    @store_init_arguments  # type: ignore[untyped-decorator]
    def __init__(
        self,
        filename: str | PathLike[str],
        convert_units: bool = True,
        group: str | None = None,
        n_atoms: int | None = None,
        verify: bool = True,
        uuid: str | None = None,
        cache: Cache | str | PathLike[str] | None = None,
        cache_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(filename, convert_units=convert_units, **kwargs)
        for name in kwargs:  # others belong to the topology's parser
            hint = did_you_mean(name, ("group", "verify", "cache", "cache_size"))
            if hint or name in OPTIONS_OF_OPEN:
                hint = hint or "; convert the file with it"
                warnings.warn(f"{filename}: no reader has the option {name}{hint}", stacklevel=2)
        if not convert_units:
            warnings.warn(
                f"{filename}: read in angstrom and ps, as all that mdio reads, also with "
                "convert_units=False",
                stacklevel=2,
            )
        options = {} if group is None else {"group": group}
        self._layout: Layout = open_layout(
            self.filename,
            verify=verify,
            uuid=uuid,
            cache=Cache.from_option(cache, cache_size),
            **options,
        )
        self._n_notes_shown = 0
        if n_atoms is not None:
            self._layout.options["n_atoms"] = n_atoms
        info = self._layout.info
        self._kwargs["uuid"] = self._layout.uuid  # copies of the reader fail on another output
        warn_of_lost_frames(info, stacklevel=1)  # so that the warning names this file
        self.n_atoms = info.n_atoms
        self.n_frames = info.n_frames
        self._requested_dt_ps: float | None = self._ts_kwargs.get("dt")
        self._ts_kwargs.setdefault("dt", info.dt_ps)  # of copies, which do not know their reader
        self._sparse = info.sparse
        self._frame_data = self._layout.frame_data()
        self._frame = -1
        self.ts = Timestep(
            self.n_atoms,
            velocities=info.has_velocities,
            forces=info.has_forces,
            reader=self,
            **self._ts_kwargs,
        )
        self._n_references = sys.getrefcount(self.ts._pos)
        self._read_next_timestep()

    @cached_property
    def _cache(self) -> FrameCache:
        """The cache of frames; making it opens the layout.

        An unpickled reader makes it when it is first read: an error while a pool's worker unpickles
        would make the pool wait forever.
        """
        return FrameCache(self._layout)

    @property
    def layout(self) -> Layout:
        """The layout, whose `read` returns blocks of frames without a Timestep."""
        return self._layout

    @classmethod
    def parse_n_atoms(cls, filename: str | PathLike[str], **kwargs: Any) -> int:
        """Return the number of atoms of the trajectory, or of its ``group=``."""
        options = {key: kwargs[key] for key in ("group",) if kwargs.get(key) is not None}
        with open_layout(filename, **options) as layout:
            return layout.info.n_atoms

    def _reopen(self) -> None:
        self._frame = -1
        self._cache.rewind()

    def _read_next_timestep(self, ts: Timestep | None = None) -> Timestep:
        if self._frame + 1 >= self.n_frames:
            raise EOFError
        return self._fill(self._frame + 1, self.ts if ts is None else ts)

    def _read_frame(self, frame: int) -> Timestep:
        return self._fill(int(frame), self.ts)

    def _fill(self, frame: int, ts: Timestep) -> Timestep:
        try:
            cache = self._cache
            positions, velocities, forces, box, time, step = cache.frame(frame)
        except OSError as error:
            raise FrameReadError(f"frame {frame}: {error}") from error
        if self._layout.cache is not None:
            self._warn_once()
        if cache.must_copy or ts is not self.ts:
            ts.positions = positions
            if velocities is not None:
                ts.velocities = velocities
            if forces is not None:
                ts.forces = forces
        else:
            # As with MDAnalysis' readers of files, an array of the timestep that a caller has kept
            # (or a view of it) shows the current frame. It is filled then, otherwise replaced.
            ts.has_positions = True
            if sys.getrefcount(ts._pos) > self._n_references:
                ts.positions = positions
            else:
                ts._pos = positions
            for name, array in (("velocities", velocities), ("forces", forces)):
                if array is not None:
                    setattr(ts, f"has_{name}", True)
                    is_kept = sys.getrefcount(getattr(ts, f"_{name}")) > self._n_references
                    setattr(ts, name if is_kept else f"_{name}", array)
        if self._sparse:
            self._mark_absent(ts)
        ts.dimensions = box
        ts.frame = self._frame = frame
        data = ts.data
        data["time"] = time if self._requested_dt_ps is None else frame * self._requested_dt_ps
        data["step"] = step
        for name, values in self._frame_data.items():
            data[name] = values[frame]
        return ts

    def _mark_absent(self, ts: Timestep) -> None:
        """Mark velocities and forces that a frame lacks, as MDAnalysis' readers do."""
        for name in self._sparse:
            if getattr(ts, f"has_{name}") and absent_frames(getattr(ts, name)[np.newaxis])[0]:
                setattr(ts, f"has_{name}", False)

    def _warn_once(self) -> None:
        """Warn of new notes of the cache, each once."""
        notes = cache_notes(self._layout)
        for note in notes[self._n_notes_shown :]:
            warnings.warn(note, stacklevel=2)
        self._n_notes_shown = len(notes)

    def timeseries(
        self,
        asel: Any = None,
        atomgroup: Any = None,
        start: int | None = None,
        stop: int | None = None,
        step: int | None = None,
        order: str = "fac",
    ) -> NDArray[np.float32]:
        """Return coordinates of many frames, read in blocks.

        Parameters and the result are those of `MDAnalysis.coordinates.base.ProtoReader.timeseries`;
        if transformations were added, they are applied frame by frame, as there. The trajectory
        is rewound at the end, as there, too. MDAnalysis' readers of DCD and of memory have another
        default, ``order="afc"``: code for these states the order.

        Returns
        -------
        (F, A, 3) float32 array
            Angstrom; the axes in the order `order`.
        """
        if asel is not None:
            warnings.warn(
                "asel argument to timeseries will be renamed to 'atomgroup'",
                category=DeprecationWarning,
                stacklevel=2,
            )
            if atomgroup is not None:
                raise ValueError("Cannot provide both asel and atomgroup kwargs")
            atomgroup = asel
        frames, atoms = self._check_selection(atomgroup, (start, stop, step), order)
        if self.transformations:  # they may depend on the frames before
            n_atoms = self.n_atoms if atoms is None else len(atoms)
            coordinates = np.empty((len(frames), n_atoms, 3), np.float32)
            # A range's stop of -1, before frame 0, would as a slice be the last frame.
            for row, ts in enumerate(self[list(frames)]):
                coordinates[row] = ts.positions if atoms is None else ts.positions[atoms]
        else:
            coordinates = self._cache.positions(frames, atoms)
        self.rewind()
        return np.moveaxis(coordinates, ["fac".index(axis) for axis in order], [0, 1, 2])

    def _check_selection(
        self, atomgroup: Any, bounds: tuple[int | None, ...], order: str
    ) -> tuple[range, NDArray[np.int64] | None]:
        """Return the frames and atoms of `timeseries`; raises ValueError for wrong arguments."""
        atoms = None if atomgroup is None else atoms_to_array(atomgroup)
        if atoms is not None and not atoms.size:
            raise ValueError("Timeseries requires at least one atom to analyze")
        if sorted(order) != ["a", "c", "f"]:
            raise ValueError(f"order must be a permutation of 'fac', not {order!r}")
        start, stop, frame_step = self.check_slice_indices(*bounds)
        return range(start, max(stop, -1), frame_step), atoms  # -1: before frame 0

    def dask_timeseries(
        self,
        atomgroup: Any = None,
        start: int | None = None,
        stop: int | None = None,
        step: int | None = None,
        order: str = "fac",
    ) -> Any:
        """Return coordinates of many frames as an array of dask, which reads them by chunks.

        Parameters are those of `timeseries`. Only the chunks of a computation are read, a few MB
        each if the layout allows; each thread, process or worker opens the trajectory for itself.

        Returns
        -------
        dask.array.Array
            (F, A, 3) float32, angstrom; the axes in the order `order`.

        Raises
        ------
        MissingExtraError
            dask is not installed.
        ValueError
            No atoms, a wrong `order`, or transformations, which depend on the order of reading.

        Examples
        --------
        >>> import MDAnalysis as mda, mdio
        >>> from MDAnalysisTests.datafiles import DCD, PSF
        >>> u = mda.Universe(PSF, DCD, format="MDIO")
        >>> ca = u.trajectory.dask_timeseries(u.select_atoms("name CA"), step=10)
        >>> ca.shape, ca[:3, 0, 0].compute().round(1)
        ((10, 214, 3), array([11.7, 11.9, 11.9], dtype=float32))
        """
        from mdio.layouts.views.notebooks import FieldArray, LayoutPerThread

        if self.transformations:
            raise ValueError("transformations go from frame to frame; take timeseries()")
        frames, atoms = self._check_selection(atomgroup, (start, stop, step), order)
        array = FieldArray(LayoutPerThread(self._layout), "positions", atoms).to_dask()
        stop = frames.stop if frames.stop >= 0 else None  # -1 would count from the end again
        array = array[frames.start : stop : frames.step] if frames else array[:0]
        return array.transpose(["fac".index(a) for a in order])

    def Writer(self, filename: str, n_atoms: int | None = None, **kwargs: Any) -> Any:  # noqa: N802
        """Return MDAnalysis' writer for the suffix of `filename`.

        A DCD gets this reader's time between frames, unless ``dt`` says another.
        """
        if str(filename).lower().endswith(".dcd"):  # that writer ignores the times of frames
            kwargs.setdefault("dt", self.dt)
        return mda_writer(filename, n_atoms=n_atoms or self.n_atoms, **kwargs)

    def close(self) -> None:
        """Close the files of the layout."""
        layout = getattr(self, "_layout", None)
        if layout is not None:  # __init__ may have failed
            layout.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class StoredTopologyParser(TopologyReaderBase):  # type: ignore[misc]
    """Reads the topology of an output of mdio, or, if it has none, the number of atoms."""

    format = ("MDIOTOP", "MDIO", "MDIOSEG", "MDIOH5", "MDIOZ")
    """With a single file, the format that a Universe is given is also that of its topology."""

    @staticmethod
    def _format_hint(source: Any) -> bool:
        hints = (reader._format_hint(source) for reader in (ZarrReader, H5MDReader))
        return any(hints) or _is_unclaimed(source, ".refs")

    def parse(self, group: str | None = None, n_atoms: int | None = None, **_: Any) -> Topology:
        """Return the topology of all atoms, or of those of a stored group.

        `n_atoms`: for formats that do not store it.
        """
        all_options = {"group": group, "n_atoms": n_atoms}
        options: Any = {name: value for name, value in all_options.items() if value is not None}
        with open_layout(self.filename, **options) as layout:
            topology = layout.topology()
            if topology is None:
                return Topology(layout.info.n_atoms)
            return to_mdanalysis_topology(topology)


def _was_written_by_mdio(source: Any, was_written: Callable[[Path], bool], *, folder: bool) -> bool:
    """Return whether a path is a folder, or else a file, that mdio has written."""
    if not isinstance(source, str | Path):
        return False
    path = to_path(source)
    try:
        return (path.is_dir() if folder else path.is_file()) and was_written(path)
    except OSError as error:
        advice = "; check the URL" if is_remote(path) else ""
        raise SourceError(f"{path}: cannot be opened ({error.strerror}){advice}") from error


def _is_unclaimed(source: Any, suffix: str) -> bool:
    """Return whether a path has this suffix, and no reader of others claims it."""
    if not isinstance(source, str | Path) or is_remote(source) or Path(source).suffix != suffix:
        return False
    others = (hint for name, hint in _READER_HINTS.items() if not name.startswith("MDIO"))
    return suffix[1:].upper() not in _READERS and not any(hint(source) for hint in others)


class SegmentsReader(LayoutReader):
    """Reads ``NAME.segments/``."""

    format = "MDIOSEG"

    @staticmethod
    def _format_hint(source: Any) -> bool:
        is_ours = _was_written_by_mdio(source, segments.written_by_mdio, folder=True)
        return is_ours or (_is_unclaimed(source, ".segments") and not Path(source).exists())


class H5MDReader(LayoutReader):
    """Reads H5MD files that mdio has written, and folders of them."""

    format = "MDIOH5"

    @staticmethod
    def _format_hint(source: Any) -> bool:
        folder_flags = (False,) if is_remote(source) else (False, True)
        return any(
            _was_written_by_mdio(source, h5md.written_by_mdio, folder=is_folder)
            for is_folder in folder_flags
        )


class ZarrReader(LayoutReader):
    """Reads Zarr trees that mdio has written."""

    format = "MDIOZ"

    @staticmethod
    def _format_hint(source: Any) -> bool:
        is_ours = _was_written_by_mdio(source, zarr_layout.written_by_mdio, folder=True)
        return is_ours or _is_unclaimed(source, ".zarr")


class TrajectoryWriter(WriterBase):  # type: ignore[misc]
    """Writes any layout from MDAnalysis.

    Parameters
    ----------
    filename
        Output; its suffix names the layout.
    n_atoms
        Number of atoms of each frame.
    **options
        Those of `mdio.Writer`.

    Raises
    ------
    TypeError
        The argument of `write` is neither an AtomGroup nor a Universe.
    ValueError
        It has another number of atoms than `n_atoms`.
    OutputError, PlanError
        See `mdio.Writer`.
    """

    format = "MDIO"
    multiframe = True
    units = {"time": "ps", "length": "Angstrom"}  # noqa: RUF012 - as MDAnalysis reads it

    def __init__(self, filename: str | PathLike[str], n_atoms: int, **options: Any) -> None:
        from mdio.converters.writer import Writer

        self.filename, self.n_atoms = filename, n_atoms
        for name in ("start", "dt"):  # of `OtherWriter` of MDAnalysis' readers: frames have both
            options.pop(name, None)
        self._writer: Writer = Writer(filename, n_atoms, **options)

    def _write_next_frame(self, atoms: Any) -> None:
        self._writer.write(atoms)

    def close(self) -> None:
        """Store the frames that were written, and publish the output."""
        if "_writer" in self.__dict__:  # __init__ may have failed
            self._writer._close()  # MDAnalysis expects no error if no frame was written


for _suffix in ("ZARR", "SEGMENTS"):
    _MULTIFRAME_WRITERS.setdefault(_suffix, TrajectoryWriter)
    _SINGLEFRAME_WRITERS.setdefault(_suffix, TrajectoryWriter)
