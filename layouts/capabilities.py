"""What layouts state of themselves: callers ask for such facts, never for names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import Stretch, TrajectoryInfo
from mdio.core.words import plural

if TYPE_CHECKING:
    from xarray import Dataset

    from mdio.core.frame_data import FrameData
    from mdio.core.topology.topology import Topology
    from mdio.layouts.frame_bytes import FrameBytes
    from mdio.layouts.placed import PlacedPositions


TIMES_MADE_UP = "times are made up"
"""How that is told begins (`TrajectoryInfo.made_up`), ..."""
STEPS_KNOWN = f"{TIMES_MADE_UP}, though steps are known"
"""... and where the format numbers integration steps."""


def boundaries_of(info: TrajectoryInfo) -> NDArray[np.int64]:
    """Return where chunks begin, or frames where there are no chunks, and ``n_frames``."""
    edges = np.arange(0, info.n_frames, info.chunk_frames or 1, dtype=np.int64)
    return np.append(edges, info.n_frames)


def fields_in_some(infos: Sequence[TrajectoryInfo]) -> tuple[str, ...]:
    """Return the fields that some frames lack, of one of the files or all of one."""
    lacking = {name for info in infos for name in info.sparse}
    for name in ("velocities", "forces"):
        if len({getattr(info, f"has_{name}") for info in infos}) > 1:
            lacking.add(name)
    return tuple(sorted(lacking))


class Capabilities:
    """Facts and capabilities of `mdio.layouts.base.Layout`, and what holds for most layouts."""

    path: Path
    _info: TrajectoryInfo | None
    writer: ClassVar[str | None] = None
    """For plug-ins: where their `LayoutWriter` is, as ``module:Class``."""
    reads_with: ClassVar[tuple[str, ...]] = ()
    """Modules that are imported when one is opened, and can be before."""
    continuation: ClassVar[str | None] = None
    """Where its `Continuation` is, in the same way, if frames can be added to outputs of it."""
    is_folder: ClassVar[bool] = False
    """Whether it is a folder of files."""
    in_segments: ClassVar[bool] = False
    """Whether an output is as many files as are asked for."""
    in_chunks: ClassVar[bool] = False
    """Whether arrays are cut into chunks, which can be compressed."""
    keeps_columns: ClassVar[bool] = False
    """Whether box, time and step come back to the bit; others keep what their fields allow."""
    counts_steps: ClassVar[bool] = False
    """Whether steps are not stored, and the frames of a file are counted instead."""
    rounds: ClassVar[tuple[str, ...]] = ()
    """Fields that are stored in other units than those in memory, and rounded on the way."""

    reads_remote: ClassVar[bool] = False
    """Whether it reads objects of stores where they lie."""
    keeps_topology: ClassVar[bool] = False
    """Whether outputs hold what atoms are."""
    flavours: ClassVar[tuple[str, ...]] = ()
    """As which other programs want them its outputs can be written."""

    @classmethod
    def ensemble_at(cls, path: Path) -> dict[str, Path]:  # noqa: ARG003
        """Return, by label, where the trajectories are that one output at `path` has as groups."""
        return {}

    @classmethod
    def parts_at(cls, path: Path) -> Path | None:  # noqa: ARG003
        """Return the folder of parts beside an output at `path` in which its frames lie, if any."""
        return None

    @classmethod
    def uuid_at(cls, path: Path) -> str | None:  # noqa: ARG003
        """Return the identity of the output of mdio that is at `path` now; None if it has none."""
        return None

    @property
    def has_times(self) -> bool:
        """Whether times are the file's own; if not, frames are but counted."""
        this: Any = self
        return not any(text.startswith(TIMES_MADE_UP) for text in this.info.made_up)

    @property
    def has_steps(self) -> bool:
        """Whether the file numbers its frames by integration steps, if it has no times."""
        this: Any = self
        known = any(text.startswith(STEPS_KNOWN) for text in this.info.made_up)
        return known and not self.counts_steps

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What lies between frames of a damaged file and may be several."""
        return ()

    @property
    def step_ps(self) -> float | None:
        """Length of an integration step in ps, where times follow from counted ones."""
        return None

    @property
    def joined(self) -> Mapping[str, Any] | None:
        """What an output notes of how files were joined; None if just as given."""
        return None

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        """What mdio wrote of this output's making; None for files of others."""
        return None

    def made_as(self) -> dict[str, Any]:
        """Return what fields of a plan are to be for an output that is laid out as this one."""
        return {}

    @property
    def decodes(self) -> bool:
        """Whether reading is mostly work that other threads need not wait for."""
        return False

    @property
    def container(self) -> str | None:
        """Format of the files whose frames can be copied as bytes; None if there is none."""
        return None

    def topology(self) -> Topology | None:
        """Return what is stored of its atoms; None if nothing is.

        Raises
        ------
        CorruptLayoutError
            It is damaged.
        """
        first = self.members[0]
        return None if first is self else first.topology()

    def frame_data(self) -> FrameData:
        """Return numbers of each frame beside its atoms, by name, (F,) or (F, k).

        Of AMBER's replica exchange: ``temp0`` (K), ``remd_indices`` and others.

        Raises
        ------
        CorruptLayoutError
            They are damaged.
        """
        from mdio.core.frame_data import from_json, joined

        this: Any = self
        n_frames = this.info.n_frames
        if this.manifest is None and self.members[0] is not self:
            parts = [(one.frame_data(), start, stop) for one, start, stop in this.kept]
            return joined([{name: v[a:b] for name, v in data.items()} for data, a, b in parts])
        return from_json((this.manifest or {}).get("frame_data"), n_frames, this.path)

    def frame_bytes(self) -> FrameBytes | None:
        """Return where its frames lie, as bytes that can be copied into another file.

        None where copies would not make valid files.

        Raises
        ------
        SourceError
            The file is damaged.
        """
        return None

    def placed(self) -> PlacedPositions | None:
        """Return where its positions lie, so that others read them without a copy.

        None where they are stored in a way that others do not know.

        Raises
        ------
        SourceError
            The file is damaged.
        """
        return None

    @property
    def members(self) -> tuple[Any, ...]:
        """The trajectories that it joins; of one, itself."""
        return (self,)

    def to_xarray(self) -> Dataset:
        """Return the trajectory as a dataset of xarray, which dask reads chunk by chunk.

        Variables are ``positions``, ``velocities`` and ``forces`` (frame, atom, axis) and ``box``
        (frame, edge), as far as they are there; what is picked of frames and atoms is all that is
        read. What `frame_data` returns is in memory. Coordinates are ``time`` (frame), ps, and of
        the atoms what the trajectory holds: ``name``, ``resid``, ``resname``, ``segid``. Units are
        those of `FrameBlock`.

        Raises
        ------
        MissingExtraError
            xarray or dask is not installed.

        Examples
        --------
        >>> import mdio
        >>> from MDAnalysisTests.datafiles import DCD
        >>> dataset = mdio.open(DCD).to_xarray()
        >>> dataset.positions.isel(atom=0).mean("frame").values.round(1)
        array([ 3.4,  9.8, -8.2], dtype=float32)
        """
        dataset: Dataset = import_module("mdio.layouts.views.notebooks").as_dataset(self)
        return dataset

    def __repr__(self) -> str:
        """Return the path and, once it is open, what is in it."""
        return self._shown(repr(str(self.path)))

    def _shown(self, named: str) -> str:
        if self._info is None:
            return f"{type(self).__name__}({named})"
        frames = plural(self._info.n_frames, "frame")
        told = [f"{frames} of {plural(self._info.n_atoms, 'atom')}", self._info.times]
        return f"<{type(self).__name__} {named}: {', '.join(filter(None, told))}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: a table of what is in it."""
        html: str = import_module("mdio.layouts.views.notebooks").as_html(self)
        return html

    def preopened(self) -> Any:
        """Return a layout that pickles with what opening finds; itself if opening is cheap."""
        return self
