"""Any other trajectory, through the reader that MDAnalysis has for it.

Frame by frame, as fast as that reader is. The only layout that needs MDAnalysis; it is imported
when a file is opened. What comes back is what the reader has in its timestep: ``step`` is
``ts.data["step"]`` where the reader gives one and the number of the frame otherwise; velocities and
forces are there if any frame of a text has them, or the first of other files, and NaN in frames
that lack them. Text of many frames is cut into frames here (`mdio.layouts.foreign.text`), GSD is
read through its own package.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

from mdio.core.errors import OptionError, SourceError
from mdio.core.files.fingerprint import read_head
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.core.words import did_you_mean
from mdio.layouts.base import FormatFacts, Layout, Timing, needless_option_error
from mdio.layouts.foreign.packed import PACKED, UNPACKED_BY, head_unpacked, packed_as
from mdio.layouts.foreign.snapshot import ForeignFrames, Snapshot
from mdio.layouts.foreign.text.format import FORMATS as TEXT_FORMATS
from mdio.layouts.foreign.text.format import TextFrames
from mdio.layouts.foreign.units import length_factor, made_up
from mdio.layouts.foreign.universe import topology_of
from mdio.layouts.foreign.whole_file import WholeFile, tng_frames

NATIVE = {"XTC": "XTC", "TRR": "TRR", "DCD": "DCD", "NCDF": "NetCDF", "NC": "NetCDF"}
"""Formats that mdio reads itself: a file that is called so and gets here is none."""
BINARY = (*NATIVE, "TNG", "GSD", "H5MD", "H5", "DMS", "NCRST")
"""Formats that are not read through a stream that unpacks them."""
NAMES = (
    "ARC CIF CONFIG COOR CRD CRDBOX DATA DMS ENT FHIAIMS GMS GRO GSD H5MD HISTORY IN "
    "INPCRD LAMMPS LAMMPSDUMP MDCRD MMCIF MMTF MOL2 NAMDBIN PDB PDBQT PQR RESTRT TNG "
    "TRC TRJ TRZ TXYZ XPDB XYZ"
)
FORMATS = frozenset(NAMES.split()).union(NATIVE)
"""Suffixes of trajectories that MDAnalysis 2.x reads, in capitals."""
LOOKED_AT_NBYTES = 512
OTHER_NAMES = {"LAMMPSTRJ": "LAMMPSDUMP", "DUMP": "LAMMPSDUMP"}
"""Suffixes that MDAnalysis does not know, though it reads the format."""
OF_TWO = ("CRD",)
"""Suffixes that files of two formats have: CHARMM's coordinates and AMBER's trajectories."""
NAMED = ("names", "types", "elements")
"""A topology that has none of these says nothing."""
OPTIONS = ("format", "length_unit", "dt", "time_offset", "n_atoms")
"""Those that any format may have, ..."""
HIDDEN_OPTIONS = ("lengthunit", "timeunit", "velocityunit", "atom_style")
"""... and those of MDAnalysis' readers that their signatures do not name."""
BEGINNINGS = {
    "LAMMPSDUMP": re.compile(rb"ITEM: (TIMESTEP|UNITS|TIME)\b"),
    "HISTORY": re.compile(rb"[^\n]{0,100}\n(\s+\d+){3}[^\n]*\ntimestep\s"),
    "TNG": re.compile(rb".{8,100}GENERAL INFO", re.DOTALL),
    "PDB": re.compile(rb"(HEADER|TITLE |REMARK|CRYST1|MODEL |ATOM  |HETATM)"),
    "XYZ": re.compile(rb"[ \t]*\d+[ \t]*\r?\n[^\n]*\n[ \t]*[A-Za-z0-9]+([ \t]+[-+.\dEe]+){3}"),
    "MDCRD": re.compile(rb"[^\n]{0,80}\n(?:[ \d-]{3}\d\.\d{3}){1,10}[ \t]*\r?\n"),
}
"""First bytes of some formats, for files whose name does not show the format."""


class GenericLayout(Layout):
    """A file that MDAnalysis reads.

    `path`: the file. `fields`: which per-atom arrays to read of those that are there; all by
    default. `format`: name of the format as MDAnalysis has it; by default that of the suffix.
    `n_atoms`: number of atoms, for formats that do not say it themselves (AMBER's ASCII
    trajectories, TRZ, LAMMPS dumps); others ignore it or check it. `dt`: time between frames in ps,
    where the format holds none. `length_unit`: unit of lengths, where the format names none;
    angstrom by default. `**options`: for the reader.
    """

    name = "generic"
    facts = FormatFacts(
        options=None,
    )

    _frames: ForeignFrames
    _factor: np.float32

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether MDAnalysis knows the suffix; does not import it to find out."""
        if not path.is_file():
            return False
        kind = _format_of(path)
        if kind in FORMATS or _begins_as(path) is not None:
            return True
        # Formats of other packages are known to MDAnalysis only if these have been imported.
        readers = getattr(sys.modules.get("MDAnalysis"), "_READERS", {})
        return kind in readers and not readers[kind].__module__.startswith("mdio.")

    def _open(self) -> TrajectoryInfo:
        if (packed := packed_as(self.path)) in UNPACKED_BY and _format_of(self.path) in BINARY:
            raise SourceError(
                f"{self.path}: frames of {_format_of(self.path)} files are found by position, and "
                f"this one is packed; unpack it first ({UNPACKED_BY[packed]} {self.path.name})"
            )
        kind = self._kind()
        self._factor = length_factor(self.path, self.options)
        self._frames = self._frames_of(kind)
        try:
            return self._described(kind or "its format")
        except BaseException:
            self._frames.close()
            raise

    def _described(self, kind: str) -> TrajectoryInfo:
        """Return the information on the trajectory; reads the first two frames and the last."""
        frames = self._frames
        from_file = {"dt": frames.has_times, "length_unit": frames.names_lengths}
        if needless := [name for name in self._assumed if from_file[name]]:
            raise needless_option_error(self.path, needless[0])
        first = self._snapshot(0)
        # A frame may take long to read: none is read twice.
        ends = {0, min(1, frames.n_frames - 1), frames.n_frames - 1}
        times = [self._time(frame, None if frame else first) for frame in sorted(ends)]
        dt = self.options.get("dt")
        info = TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=frames.n_frames,
            n_atoms=frames.n_atoms,
            dt_ps=times[1] - times[0] if len(times) > 1 else float(1.0 if dt is None else dt),
            time_first_ps=times[0],
            time_last_ps=times[-1],
            has_velocities="velocities" in frames.fields,
            has_forces="forces" in frames.fields,
            has_box=first.box is not None,
            sparse=frames.sparse,
            nbytes=self.path.stat().st_size,
            flaws=Flaws(frames.lost),
        )
        assumed = made_up(
            kind,
            self.options,
            times=None if frames.has_times else frames.counts,
            lengths=not frames.names_lengths,
            fields=frames.fields,
            stepped=first.step is not None,
        )
        return info.replace(flaws=info.flaws._replace(made_up=(*assumed, *frames.remarks())))

    def _frames_of(self, kind: str | None) -> ForeignFrames:
        """Return the reader of frames."""
        if kind is None or (kind in NATIVE and "format" not in self.options):
            head = read_head(self.path)[:8]
            raise SourceError(
                f"{self.path}: called {self.path.suffix}, but begins with {head!r}, which is not "
                f"how a {NATIVE[_format_of(self.path)]} file begins: it is damaged or misnamed"
            )
        self._refuse_unknown_options(kind)
        if kind in TEXT_FORMATS:
            return TextFrames(self.path, kind, self.options)
        if kind == "TNG":
            return tng_frames(self.path, self.options)
        return WholeFile(self.path, kind, self.options)

    def _refuse_unknown_options(self, kind: str) -> None:
        """Raise OptionError if MDAnalysis' reader has no such option: it ignores what is left."""
        if not (more := self.options.keys() - {*OPTIONS, *HIDDEN_OPTIONS}):
            return
        import MDAnalysis as mda

        reader = mda._READERS.get(kind)
        if reader is None or not reader.__module__.startswith("MDAnalysis."):
            return
        known = {
            name
            for cls in reader.__mro__
            if "__init__" in vars(cls)
            for name in inspect.signature(cls.__init__).parameters
        } - {"self", "args", "kwargs"}
        if unknown := sorted(more - known):
            names = ", ".join(sorted(known.union(OPTIONS, HIDDEN_OPTIONS) - {"filename"}))
            raise OptionError(
                f"{self.path}: the reader of {kind} has no option {unknown[0]!r}; it has {names}"
            )

    def _snapshot(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""
        snapshot = self._frames.read(frame)
        if snapshot.n_atoms != self._frames.n_atoms:
            raise SourceError(
                f"{self.path}: frame {frame} has {snapshot.n_atoms} atoms, the first has "
                f"{self._frames.n_atoms}; a trajectory has the same atoms throughout"
            )
        return snapshot

    def _time(self, frame: int, snapshot: Snapshot | None = None) -> float:
        """Return the time of a frame, as the file has it or as it is made up."""
        snapshot = self._snapshot(frame) if snapshot is None else snapshot
        if snapshot.time is not None:
            return snapshot.time
        dt, offset = self.options.get("dt"), self.options.get("time_offset")
        counted = snapshot.step if self._frames.counts == "steps" else frame
        counted = frame if counted is None else counted
        return counted * float(1.0 if dt is None else dt) + float(offset or 0.0)

    def _kind(self) -> str | None:
        """Return the format as MDAnalysis calls it; None if it is to find out."""
        kind = self.options.get("format") or _format_of(self.path)
        if "format" in self.options and kind not in FORMATS:
            import MDAnalysis as mda

            if kind not in (known := {*mda._READERS, *FORMATS}):
                raise OptionError(
                    f"{self.path}: there is no format {kind!r}{did_you_mean(str(kind), known)}; "
                    f"give one of {', '.join(sorted(FORMATS))}"
                )
        if kind in OF_TWO and "format" not in self.options:
            kind = _begins_as(self.path) or kind
        others = getattr(sys.modules.get("MDAnalysis"), "_READERS", {})
        if kind not in FORMATS and kind not in others:
            kind = _begins_as(self.path)
        return None if kind is None else str(kind)

    @property
    def timing(self) -> Timing:
        """Whether the reader finds times in the file; see `Layout.timing`."""
        timing = super().timing  # opens it
        return timing._replace(has_times=self._frames.has_times)

    def topology(self) -> Topology | None:
        """Return the topology in the file itself, as in PDB, MOL2 or GRO; else None."""
        import MDAnalysis as mda
        from MDAnalysis.core._get_readers import get_parser_for

        n_atoms, topology = self.info.n_atoms, None
        with warnings.catch_warnings(), suppress(Exception):  # parsers raise anything, too
            warnings.simplefilter("ignore")
            parser_class = get_parser_for(str(self.path), format=self._kind())
            with parser_class(self._frames.topology_file()) as parser:
                topology = topology_of(mda.Universe(parser.parse(), to_guess=()))
        if topology is None or topology.n_atoms != n_atoms:
            return None
        return topology if {*topology.columns} & {*NAMED} else None

    def _close(self) -> None:
        self._frames.close()

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for row, frame in enumerate(range(start, stop)):
            snapshot = self._snapshot(frame)
            block.time[row] = self._time(frame, snapshot)
            block.step[row] = frame if snapshot.step is None else snapshot.step
            self._fill(block, row, snapshot, atoms)

    def _fill(
        self, block: FrameBlock, row: int, snapshot: Snapshot, atoms: AtomIndices | None
    ) -> None:
        block.box[row] = 0 if snapshot.box is None else snapshot.box
        block.box[row, :3] *= self._factor
        if block.n_atoms == 0:
            return
        for name, out in block.present().items():
            values = getattr(snapshot, name)
            if values is None:
                out[row] = np.nan
            else:
                out[row] = values if atoms is None else values[atoms]
                if name != "forces" and self._factor != 1:
                    out[row] *= self._factor


def _format_of(path: Path) -> str:
    name = path.name.lower()
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    kind = Path(name).suffix[1:].upper() or name.upper()  # HISTORY of DL_POLY has no suffix
    return OTHER_NAMES.get(kind, kind)


def _begins_as(path: Path) -> str | None:
    """Return the format by the first bytes of a file; None if they fit none."""
    head = head_unpacked(path, LOOKED_AT_NBYTES)
    return next((kind for kind, begins in BEGINNINGS.items() if begins.match(head)), None)
