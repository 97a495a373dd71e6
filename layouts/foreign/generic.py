"""Any other trajectory, through the reader that MDAnalysis has for it.

Frame by frame, as fast as that reader is. The only layout that needs MDAnalysis; it is imported
when a file is opened. What comes back is what the reader has in its timestep: ``step`` is
``ts.data["step"]`` where the reader gives one and the number of the frame otherwise; velocities and
forces are there if the first frame has them, and NaN in frames that lack them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import AtomCountError, MdioError, SourceError
from mdio.core.files.fingerprint import head_of
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.topology.topology import Topology
from mdio.layouts.base import AtomIndices, Layout
from mdio.layouts.foreign.packed import (
    PACKED,
    UNPACKED_BY,
    head_unpacked,
    let_mdanalysis_read,
    packed_as,
)
from mdio.layouts.foreign.tng import check_blocks
from mdio.layouts.foreign.units import length_factor, made_up
from mdio.layouts.foreign.universe import topology_of

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
WITHOUT_UNITS = ("LAMMPSDUMP", "XYZ")
"""Formats that do not say in which unit lengths are."""
COUNT_STEPS = ("LAMMPSDUMP",)
"""Formats that number steps, of which times are made."""
NAMED = ("names", "types", "elements")
"""A topology that has none of these says nothing."""
EXTRAS = {"TNG": "pytng"}
"""Packages that MDAnalysis needs for a format."""
BEGINNINGS = {
    "LAMMPSDUMP": re.compile(rb"ITEM: (TIMESTEP|UNITS|TIME)\b"),
    "HISTORY": re.compile(rb"[^\n]{0,100}\n(\s+\d+){3}[^\n]*\ntimestep\s"),
    "TNG": re.compile(rb".{8,100}GENERAL INFO", re.DOTALL),
    "PDB": re.compile(rb"(HEADER|TITLE |REMARK|CRYST1|MODEL |ATOM  |HETATM)"),
    "XYZ": re.compile(rb"\s*\d+\s*\n[^\n]*\n\s*[A-Za-z0-9]+(\s+[-+.\dEe]+){3}"),
}
"""How files of some formats begin, by which they are known where their name does not tell."""


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
    known_options = None

    _reader: Any
    _process: int
    _factor: np.float32
    _has_times: bool

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
        return kind in readers and not _is_ours(readers[kind])

    def _open(self) -> TrajectoryInfo:
        if (packed := packed_as(self.path)) in UNPACKED_BY and _format_of(self.path) in BINARY:
            raise SourceError(
                f"{self.path}: frames of {_format_of(self.path)} files are found by position, and "
                f"this one is packed; unpack it first ({UNPACKED_BY[packed]} {self.path.name})"
            )
        with self._translated("opened"):
            if self._kind() == "TNG":
                check_blocks(self.path)
            reader = self._reader = self._make_reader()
            self._process = os.getpid()
            first = self._timestep(0)
            n_frames, time_first_ps = int(reader.n_frames), float(first.time)
            info = TrajectoryInfo(
                layout=self.name,
                path=str(self.path),
                n_frames=n_frames,
                n_atoms=int(reader.n_atoms),
                dt_ps=float(reader.dt),
                time_first_ps=time_first_ps,
                time_last_ps=time_first_ps,
                has_velocities=bool(first.has_velocities),
                has_forces=bool(first.has_forces),
                has_box=first.dimensions is not None,
                nbytes=self.path.stat().st_size,
            )
            kind = self._kind()
            times = "steps" if kind in COUNT_STEPS else None if "time" in first.data else "frames"
            fields = [name for name in ("velocities", "forces") if getattr(info, f"has_{name}")]
            made = made_up(
                kind or "its format",
                self.options,
                times=times,
                lengths=kind in WITHOUT_UNITS,
                fields=fields,
                stepped=times == "steps",
            )
            self._has_times = times is None
            time_last_ps = float(self._timestep(n_frames - 1).time)
            return info.replace(time_last_ps=time_last_ps, made_up=tuple(made))

    def _kind(self) -> str | None:
        """Return the format as MDAnalysis calls it; None if it is to find out."""
        kind = self.options.get("format") or _format_of(self.path)
        others = getattr(sys.modules.get("MDAnalysis"), "_READERS", {})
        if kind not in FORMATS and kind not in others:
            kind = _begins_as(self.path)
        return None if kind is None else str(kind)

    @property
    def has_times(self) -> bool:
        """Whether the reader finds times in the file, and does not make them up."""
        _ = self.info
        return self._has_times

    def topology(self) -> Topology | None:
        """Return what the file itself says of its atoms, as PDB, MOL2 or GRO do; else None."""
        import MDAnalysis as mda
        from MDAnalysis.core._get_readers import get_parser_for

        n_atoms, found = self.info.n_atoms, None
        with warnings.catch_warnings(), suppress(Exception):  # parsers raise anything, too
            warnings.simplefilter("ignore")
            with get_parser_for(str(self.path), format=self._kind())(str(self.path)) as parser:
                found = topology_of(mda.Universe(parser.parse(), to_guess=()))
        named = found is not None and found.n_atoms == n_atoms and {*found.columns} & {*NAMED}
        return found if named else None

    def _make_reader(self) -> Any:
        from MDAnalysis.coordinates.core import get_reader_for

        kind = self.options.get("format")
        if kind is None and _format_of(self.path) not in NATIVE:
            kind = self._kind()
        if kind in EXTRAS and importlib.util.find_spec(EXTRAS[kind]) is None:
            raise SourceError(
                f"{self.path}: {kind} files are read through the package {EXTRAS[kind]}, which is "
                f"not installed; install it: pip install {EXTRAS[kind]}"
            )
        if kind is None and _format_of(self.path) in NATIVE:
            head = head_of(self.path)[:8]
            raise SourceError(
                f"{self.path}: called {self.path.suffix}, but begins with {head!r}, which is not "
                f"how a {NATIVE[_format_of(self.path)]} file begins: it is damaged or misnamed"
            )
        let_mdanalysis_read(self.path)
        reader_class = get_reader_for(str(self.path), format=kind)
        if _is_ours(reader_class):
            raise SourceError(f"{self.path}: no layout of mdio reads it, nor does MDAnalysis")
        self._factor = length_factor(self.path, self.options)
        ours = ("format", "length_unit")
        options = {name: value for name, value in self.options.items() if name not in ours}
        reader = reader_class.__new__(reader_class)
        try:
            reader.__init__(str(self.path), **options)
        except BaseException:
            # Its __del__ would fail on what is not there yet, and print that on stderr.
            with suppress(Exception):
                reader.close()
            reader._auxs, reader.close = {}, _nothing
            raise
        return reader

    def _close(self) -> None:
        self._reader.close()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn whatever a reader raises into a SourceError, and keep its warnings to itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except MdioError:
                raise
            except Exception as error:  # readers raise anything on bad input
                if "n_atoms" in str(error) and "n_atoms" not in self.options:
                    raise AtomCountError(
                        f"{self.path}: its format does not hold the number of atoms; give a "
                        "topology with -s/--top FILE (in Python: n_atoms=)"
                    ) from error
                raise SourceError(
                    f"{self.path}: cannot be {what} by MDAnalysis "
                    f"({type(error).__name__}: {_one_line(error)})"
                ) from error

    def _timestep(self, frame: int) -> Any:
        # A forked process has its parent's position in the file: it opens the file for itself.
        if self._process != os.getpid():
            self._reader, self._process = self._make_reader(), os.getpid()
        return self._reader[frame]

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for row, frame in enumerate(range(start, stop)):
            with self._translated(f"read at frame {frame}"):
                ts = self._timestep(frame)
                self._fill(block, row, ts, atoms, frame)

    def _fill(
        self, block: FrameBlock, row: int, ts: Any, atoms: AtomIndices | None, frame: int
    ) -> None:
        dimensions = ts.dimensions
        block.box[row] = 0 if dimensions is None else dimensions
        block.box[row, :3] *= self._factor
        block.time[row] = ts.time
        block.step[row] = ts.data.get("step", ts.frame)
        if ts.n_atoms != self.info.n_atoms:
            raise SourceError(
                f"{self.path}: frame {frame} has {ts.n_atoms} atoms, the first has "
                f"{self.info.n_atoms}; a trajectory has the same atoms throughout"
            )
        if block.n_atoms == 0:
            return
        for name, out in block.present().items():
            if name != "positions" and not getattr(ts, f"has_{name}"):
                out[row] = np.nan
            else:
                values = getattr(ts, name)
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
    """Return the format that a file begins as; None if that does not tell."""
    head = head_unpacked(path, LOOKED_AT_NBYTES)
    return next((kind for kind, begins in BEGINNINGS.items() if begins.match(head)), None)


def _is_ours(reader_class: type) -> bool:
    return reader_class.__module__.startswith("mdio.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _nothing() -> None:
    """Do nothing."""
