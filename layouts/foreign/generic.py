"""Any other trajectory, through MDAnalysis' reader for it.

It is read frame by frame, as fast as that reader is. This is the only layout that needs MDAnalysis,
which is imported when a file is opened. ``step`` is ``ts.data["step"]``, or the number of the frame
if the reader sets none. A trajectory has velocities and forces if any frame of a text has them, or
the first frame of other files; they are NaN in frames that lack them. Text of many frames is
divided into frames by `mdio.layouts.foreign.text`; GSD is read through its own package.
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
from mdio.layouts.base import MADE_UP_DT_PS, FormatFacts, Layout, redundant_option_error
from mdio.layouts.foreign.compressed import (
    COMPRESSED_SUFFIXES,
    DECOMPRESSORS,
    ZSTD,
    compression_of,
    decompressed_head,
)
from mdio.layouts.foreign.library import MDAnalysisFrames, tng_frames
from mdio.layouts.foreign.snapshot import ForeignReader, Snapshot, fill_row
from mdio.layouts.foreign.text.format import FORMATS as TEXT_FORMATS
from mdio.layouts.foreign.text.format import TextFrames
from mdio.layouts.foreign.units import length_factor, made_up_notes
from mdio.layouts.foreign.universe import topology_of, universe_from_parser

NATIVE = {"XTC": "XTC", "TRR": "TRR", "DCD": "DCD", "NCDF": "NetCDF", "NC": "NetCDF"}
"""Formats that mdio reads itself, by suffix: another file with such a suffix is misnamed."""
BINARY = (*NATIVE, "TNG", "GSD", "H5MD", "H5", "DMS", "NCRST")
"""Formats that cannot be read from a compressed file."""
SUFFIXES = (
    "ARC CIF CONFIG COOR CRD CRDBOX DATA DMS ENT FHIAIMS GMS GRO GSD H5MD HISTORY IN "
    "INPCRD LAMMPS LAMMPSDUMP MDCRD MMCIF MMTF MOL2 NAMDBIN PDB PDBQT PQR RESTRT TNG "
    "TRC TRJ TRZ TXYZ XPDB XYZ"
)
FORMATS = frozenset(SUFFIXES.split()).union(NATIVE)
"""Suffixes of trajectories that MDAnalysis 2.x reads, in capitals."""
HEAD_NBYTES = 512
SUFFIX_ALIASES = {"LAMMPSTRJ": "LAMMPSDUMP", "DUMP": "LAMMPSDUMP"}
"""Formats of suffixes that MDAnalysis does not know, although it reads the format."""
AMBIGUOUS_SUFFIXES = ("CRD", "TRJ")
"""Suffixes of two formats: AMBER's trajectories and CHARMM's coordinates, or XYZ of xtb."""
NAMING_COLUMNS = ("names", "types", "elements")
"""Columns of a topology, of which it must have at least one."""
OPTIONS = ("format", "length_unit", "dt", "time_offset", "n_atoms")
HIDDEN_OPTIONS = ("lengthunit", "timeunit", "velocityunit", "atom_style")
"""Options of MDAnalysis' readers that are not in their signatures."""
FIRST_BYTES = {
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

    `format`: MDAnalysis' name of the format; by default that of the suffix. `n_atoms`: for formats
    that do not store it (AMBER's ASCII trajectories, TRZ, LAMMPS dumps); others ignore it or check
    it. `dt`: time between frames in ps, for formats without times. `length_unit`: for formats that
    name none; angstrom by default. `**options`: for the reader.
    """

    name = "generic"
    facts = FormatFacts(options=None)

    _frames: ForeignReader
    _factor: np.float32

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether MDAnalysis knows the suffix or the first bytes; does not import it."""
        if not path.is_file():
            return False
        format_name = _format_by_name(path)
        if format_name in FORMATS or _format_by_head(path) is not None:
            return True
        # Formats of other packages are known to MDAnalysis only if these have been imported.
        readers = getattr(sys.modules.get("MDAnalysis"), "_READERS", {})
        return format_name in readers and not readers[format_name].__module__.startswith("mdio.")

    def _open(self) -> TrajectoryInfo:
        suffix, name = compression_of(self.path), _format_by_name(self.path)
        format_name = self._format_name()
        # MDAnalysis, which reads all but text of frames, knows gzip and bzip2.
        is_unreadable = name in BINARY or (suffix == ZSTD and format_name not in TEXT_FORMATS)
        if suffix in DECOMPRESSORS and is_unreadable:
            raise SourceError(
                f"{self.path}: a compressed {name} file cannot be read; decompress it first "
                f"({DECOMPRESSORS[suffix]} {self.path.name})"
            )
        self._factor = length_factor(self.path, self.options)
        self._frames = self._open_reader(format_name)
        try:
            return self._read_info(format_name or "its format")
        except BaseException:
            self._frames.close()
            raise

    def _read_info(self, format_name: str) -> TrajectoryInfo:
        """Return the information on the trajectory; reads the first two frames and the last."""
        frames = self._frames
        is_stored = {"dt": frames.has_times, "length_unit": frames.has_length_unit}
        if redundant := [name for name in self._missing_value_options if is_stored[name]]:
            raise redundant_option_error(self.path, redundant[0])
        first = self._snapshot(0)
        self._has_steps = first.step is not None
        # Reading a frame may take long: no frame is read twice.
        frame_numbers = {0, min(1, frames.n_frames - 1), frames.n_frames - 1}
        times = [self._time(frame, None if frame else first) for frame in sorted(frame_numbers)]
        dt = self.options.get("dt")
        info = TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=frames.n_frames,
            n_atoms=frames.n_atoms,
            dt_ps=times[1] - times[0]
            if len(times) > 1
            else float(MADE_UP_DT_PS if dt is None else dt),
            time_first_ps=times[0],
            time_last_ps=times[-1],
            has_velocities="velocities" in frames.fields,
            has_forces="forces" in frames.fields,
            has_box=first.box is not None,
            sparse=frames.sparse,
            nbytes=self.path.stat().st_size,
            flaws=Flaws(frames.lost),
        )
        assumed = made_up_notes(
            format_name,
            self.options,
            times=None if frames.has_times else frames.time_unit,
            lengths=not frames.has_length_unit,
            fields=frames.fields,
            has_steps=self._has_steps,
        )
        return info.replace(flaws=info.flaws._replace(made_up=(*assumed, *frames.notes())))

    def _open_reader(self, format_name: str | None) -> ForeignReader:
        if format_name is None or (format_name in NATIVE and "format" not in self.options):
            head = read_head(self.path)[:8]
            raise SourceError(
                f"{self.path}: called {self.path.suffix}, but begins with {head!r}, which is not "
                f"how a {NATIVE[_format_by_name(self.path)]} file begins: it is damaged or misnamed"
            )
        self._check_reader_options(format_name)
        if format_name in TEXT_FORMATS:
            return TextFrames(self.path, format_name, self.options)
        if format_name == "TNG":
            return tng_frames(self.path, self.options)
        return MDAnalysisFrames(self.path, format_name, self.options)

    def _check_reader_options(self, format_name: str) -> None:
        """Raise OptionError if MDAnalysis' reader lacks an option, which it would ignore."""
        if not (reader_options := self.options.keys() - {*OPTIONS, *HIDDEN_OPTIONS}):
            return
        import MDAnalysis as mda

        reader = mda._READERS.get(format_name)
        if reader is None or not reader.__module__.startswith("MDAnalysis."):
            return
        parameters = {
            name
            for cls in reader.__mro__
            if "__init__" in vars(cls)
            for name in inspect.signature(cls.__init__).parameters
        } - {"self", "args", "kwargs"}
        if unknown := sorted(reader_options - parameters):
            names = ", ".join(sorted(parameters.union(OPTIONS, HIDDEN_OPTIONS) - {"filename"}))
            raise OptionError(
                f"{self.path}: the reader of {format_name} has no option {unknown[0]!r}; it has "
                f"{names}"
            )

    def _snapshot(self, frame: int) -> Snapshot:
        snapshot = self._frames.read(frame)
        if snapshot.n_atoms != self._frames.n_atoms:
            raise SourceError(
                f"{self.path}: frame {frame} has {snapshot.n_atoms} atoms, the first has "
                f"{self._frames.n_atoms}; a trajectory has the same atoms throughout"
            )
        return snapshot

    def _time(self, frame: int, snapshot: Snapshot | None = None) -> float:
        snapshot = self._snapshot(frame) if snapshot is None else snapshot
        if snapshot.time is not None:
            return snapshot.time
        dt, offset = self.options.get("dt"), self.options.get("time_offset")
        number = snapshot.step if self._frames.time_unit == "steps" else frame
        number = frame if number is None else number
        return number * float(MADE_UP_DT_PS if dt is None else dt) + float(offset or 0.0)

    def _format_name(self) -> str | None:
        """Return MDAnalysis' name of the format; None if it is unknown."""
        format_name = self.options.get("format") or _format_by_name(self.path)
        if "format" in self.options and format_name not in FORMATS:
            import MDAnalysis as mda

            if format_name not in (formats := {*mda._READERS, *FORMATS}):
                hint = did_you_mean(str(format_name), formats)
                raise OptionError(
                    f"{self.path}: there is no format {format_name!r}{hint}; give one of "
                    f"{', '.join(sorted(FORMATS))}"
                )
        if format_name in AMBIGUOUS_SUFFIXES and "format" not in self.options:
            format_name = _format_by_head(self.path) or format_name
        other_readers = getattr(sys.modules.get("MDAnalysis"), "_READERS", {})
        if format_name not in FORMATS and format_name not in other_readers:
            format_name = _format_by_head(self.path)
        return None if format_name is None else str(format_name)

    def topology(self) -> Topology | None:
        """Return the topology in the file, as PDB, MOL2 and GRO have one; else None."""
        from MDAnalysis.core._get_readers import get_parser_for

        n_atoms, topology = self.info.n_atoms, None
        with warnings.catch_warnings(), suppress(Exception):  # parsers may raise any exception
            warnings.simplefilter("ignore")
            parser_class = get_parser_for(str(self.path), format=self._format_name())
            with parser_class(self._frames.topology_file()) as parser:
                topology = topology_of(universe_from_parser(parser))
        if topology is None or topology.n_atoms != n_atoms:
            return None
        return topology if {*topology.columns} & {*NAMING_COLUMNS} else None

    def _close(self) -> None:
        self._frames.close()

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for row, frame in enumerate(range(start, stop)):
            snapshot = self._snapshot(frame)
            block.time[row] = self._time(frame, snapshot)
            fill_row(block, row, snapshot, atoms, frame)
        if self._factor != 1:
            for lengths in (block.box[:, :3], block.positions, block.velocities):
                if lengths is not None:
                    lengths *= self._factor


def _format_by_name(path: Path) -> str:
    name = path.name.lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    format_name = Path(name).suffix[1:].upper() or name.upper()  # HISTORY of DL_POLY has no suffix
    return SUFFIX_ALIASES.get(format_name, format_name)


def _format_by_head(path: Path) -> str | None:
    head = decompressed_head(path, HEAD_NBYTES)
    return next((name for name, pattern in FIRST_BYTES.items() if pattern.match(head)), None)
