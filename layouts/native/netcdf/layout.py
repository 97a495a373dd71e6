"""AMBER NetCDF trajectories (convention 1.0), read without MDAnalysis and SciPy, and written.

Classic files (NetCDF-3) hold the frames as records of equal size, so that any run of them is one
read; NetCDF-4 files are read with netCDF4. What comes back is what MDAnalysis' NCDFReader gives:
scale factors applied in the precision of number and factor, forces in kJ/(mol angstrom), ``step``
the number of the frame (the format has none), ``time = frame`` where there is no time. Beyond it,
NetCDF-4 and CDF-1 and CDF-5 files are read, and ``dt_ps`` follows a scaled time. Of a classic file
that ends within a frame, the complete frames are read; if the header counts no frames, as after a
killed program, the size of the file determines their number. Units other than those of the
convention, as LAMMPS and ASE write them, are converted; NetCDF's fill value is not a number.

What is written is classic NetCDF with 64-bit offsets (CDF-2,
https://docs.unidata.ucar.edu/nug/current/file_format_specifications.html), with the variables of
the convention (https://ambermd.org/netcdf/nctraj.xhtml) in the order in which MDAnalysis writes
them: forces in kcal/(mol angstrom); velocities in AMBER's own unit, with its scale factor,
which cpptraj expects.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio._version import __version__
from mdio.core.errors import OutputError, SourceError
from mdio.core.files.fingerprint import read_head
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, FrameData, LostBytes, TrajectoryInfo
from mdio.core.kernels import swap_to_native
from mdio.layouts.base import FormatFacts, redundant_option_error
from mdio.layouts.foreign.units import (
    ASE_TIME,
    REDUCED_UNITS,
    length_factor,
    made_up_notes,
    spelled_out_factor,
)
from mdio.layouts.native.encoder import Bytes, Encoder, field_views, packed_fields
from mdio.layouts.native.file import NO_ATOMS, NativeLayout, RecordFields, batches
from mdio.layouts.native.netcdf.classic import ClassicFile, frame_table
from mdio.layouts.tables import ChunkTable, Tables, frame_chunk_table

if TYPE_CHECKING:
    from mdio.layouts.native.netcdf.hdf5 import HDF5File

NC_CHAR, NC_INT, NC_FLOAT, NC_DOUBLE = 2, 4, 5, 6
NC_DIMENSION, NC_VARIABLE, NC_ATTRIBUTE = 10, 11, 12
KJ_TO_KCAL = 1 / 4.184
AMBER_VELOCITY = 20.455
"""angstrom/ps in AMBER's unit of velocities, as cpptraj has it."""
ATTRIBUTES = {
    "program": "mdio",
    "programVersion": __version__,
    "Conventions": "AMBER",
    "ConventionVersion": "1.0",
    "application": "mdio",
}
REMD_DIMENSION = "remd_dimension"
DIMENSIONS = ("frame", "atom", "spatial", "cell_spatial", "cell_angular", "label", REMD_DIMENSION)
AXIS_LABELS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "spatial": (("spatial",), b"xyz"),
    "cell_spatial": (("cell_spatial",), b"abc"),
    "cell_angular": (("cell_angular", "label"), b"alphabeta gamma"),
}
"""Variables that name the axes: dimensions, value."""
UNITS = {
    "coordinates": "angstrom",
    "time": "picosecond",
    "cell_lengths": "angstrom",
    "cell_angles": "degree",
    "velocities": "angstrom/picosecond",
    "forces": "kilocalorie/mole/angstrom",
}
VARIABLES = {"positions": "coordinates", "velocities": "velocities", "forces": "forces"}
TYPES = {"i4": NC_INT, "f4": NC_FLOAT, "f8": NC_DOUBLE}
REMD_DIMTYPE = "remd_dimtype"
"""Variable with a code for what is exchanged along each dimension, such as the temperature; it is
stored once for all frames."""


@dataclass(frozen=True)
class NCDFEncoder(Encoder):
    """AMBER NetCDF: positions, velocities, forces, cells; time in single precision, no steps."""

    keeps_steps = False
    columns: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Columns of replica exchange: name, type, and shape, (k,) for a number for each dimension."""
    codes: tuple[int, ...] = ()
    """Code of what is exchanged along each dimension."""

    def with_columns(self, data: Mapping[str, NDArray[Any]]) -> NCDFEncoder:
        """Return an encoder with these columns in each record; see `fill`."""
        codes = tuple(map(int, data[REMD_DIMTYPE][0])) if REMD_DIMTYPE in data else ()
        columns = []
        for name, values in data.items():
            is_column = values.shape[1:] in ((), (len(codes),)) and values.dtype.kind in "fi"
            if is_column and name != REMD_DIMTYPE:
                dtype = ">f8" if values.dtype.kind == "f" else ">i4"
                columns.append((name, dtype, values.shape[1:]))
        return replace(self, columns=tuple(columns), codes=codes)

    def fill(self, records: Bytes, start: int, data: Mapping[str, NDArray[Any]]) -> None:
        """Fill the columns of records, of frames from `start` on."""
        rows = field_views(records, self._record_fields)
        for name, _, _ in self.columns:
            rows[name][...] = data[name][start : start + len(rows[name])]

    @property
    def header_nbytes(self) -> int:
        no_frames = np.empty(0, np.int64)
        return len(self.header(no_frames.astype(np.float64), no_frames))

    @property
    def frame_nbytes(self) -> int:
        return self._record_fields["time"].stride

    @property
    def _record_fields(self) -> RecordFields:
        """Every variable in turn, packed (all are multiples of four bytes)."""
        xyz = (self.n_atoms, 3)
        variables: list[tuple[str, str, tuple[int, ...]]]
        variables = [("coordinates", ">f4", xyz), ("time", ">f4", ())]
        if self.has_box:
            variables += [("cell_lengths", ">f8", (3,)), ("cell_angles", ">f8", (3,))]
        variables += [(name, ">f4", xyz) for name in self.fields if name != "positions"]
        return packed_fields(variables + list(self.columns))

    def header(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> bytes:  # noqa: ARG002
        sizes = dict(zip(DIMENSIONS, (0, self.n_atoms, 3, 3, 3, 5, len(self.codes)), strict=True))
        sizes = {name: size for name, size in sizes.items() if size or name == "frame"}
        header = struct.pack(">4sI", b"CDF\x02", len(time))
        header += struct.pack(">II", NC_DIMENSION, len(sizes))
        for name, size in sizes.items():
            header += _encoded_text(name) + struct.pack(">I", size)
        header += _attributes(ATTRIBUTES)
        fixed_variables = [
            (_variable(name, dimensions, NC_CHAR, {}), _padded(value))
            for name, (dimensions, value) in AXIS_LABELS.items()
            if self.has_box or name == "spatial"
        ]
        if self.codes:
            codes_variable = _variable(REMD_DIMTYPE, (REMD_DIMENSION,), NC_INT, {})
            fixed_variables.append((codes_variable, np.array(self.codes, ">i4").tobytes()))
        fields = self._record_fields
        header += struct.pack(">II", NC_VARIABLE, len(fixed_variables) + len(fields))
        descriptions = []
        for name, field in fields.items():
            nc_type = TYPES[field.dtype.str[1:]]
            unit = UNITS.get(name, "kelvin" if name == "temp0" else None)
            attributes: dict[str, str | float] = {} if unit is None else {"units": unit}
            attributes |= {"scale_factor": AMBER_VELOCITY} if name == "velocities" else {}
            is_per_dimension = any(
                name == column_name and shape for column_name, _, shape in self.columns
            )
            dimensions = _dimensions(name) + ((REMD_DIMENSION,) if is_per_dimension else ())
            descriptions.append(_variable(name, dimensions, nc_type, attributes))
        all_descriptions = [*(description for description, _ in fixed_variables), *descriptions]
        begin = len(header) + sum(len(description) + 12 for description in all_descriptions)
        values = b""
        for description, value in fixed_variables:
            header += description + struct.pack(">IQ", len(value), begin + len(values))
            values += value
        begin += len(values)
        for description, field in zip(descriptions, fields.values(), strict=True):
            header += description + struct.pack(">IQ", field.nbytes, begin + field.begin)
        return header + values

    def encode(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        if out is None:
            out = np.empty(block.n_frames * self.frame_nbytes, np.uint8)
        rows = field_views(out, self._record_fields)
        rows["coordinates"][...] = block.positions
        rows["time"][...] = block.time
        if self.has_box:
            rows["cell_lengths"][...] = block.box[:, :3]
            rows["cell_angles"][...] = block.box[:, 3:]
            # Right angles without a cell, too: of 0 degrees, chemfiles opens no file.
            rows["cell_angles"][~block.box.any(axis=1)] = 90
        elif block.box.any():
            raise OutputError(
                "ncdf files have unit cells in all frames or in none, but the first frame has none "
                "and a later one has; write trr, h5md or zarr"
            )
        if "velocities" in self.fields and block.velocities is not None:
            np.divide(block.velocities, np.float32(AMBER_VELOCITY), out=rows["velocities"])
        if "forces" in self.fields and block.forces is not None:
            np.multiply(block.forces, np.float32(KJ_TO_KCAL), out=rows["forces"])
        return out


def _dimensions(name: str) -> tuple[str, ...]:
    if name in VARIABLES.values():
        return ("frame", "atom", "spatial")
    cells = {"cell_lengths": ("cell_spatial",), "cell_angles": ("cell_angular",)}
    return ("frame", *cells.get(name, ()))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _encoded_text(text: str) -> bytes:
    return struct.pack(">I", len(text)) + _padded(text.encode())


def _attributes(attributes: Mapping[str, str | float]) -> bytes:
    if not attributes:
        return bytes(8)
    out = struct.pack(">II", NC_ATTRIBUTE, len(attributes))
    for name, value in attributes.items():
        if isinstance(value, str):
            out += _encoded_text(name) + struct.pack(">I", NC_CHAR) + _encoded_text(value)
        else:
            out += _encoded_text(name) + struct.pack(">IId", NC_DOUBLE, 1, value)
    return out


def _variable(
    name: str, dimensions: Sequence[str], nc_type: int, attributes: Mapping[str, str | float]
) -> bytes:
    """Return the description of a variable up to its size and offset."""
    ids = [DIMENSIONS.index(dimension) for dimension in dimensions]
    return (
        _encoded_text(name)
        + struct.pack(f">{1 + len(ids)}I", len(ids), *ids)
        + _attributes(attributes)
        + struct.pack(">I", nc_type)
    )


CELL = ("cell_lengths", "cell_angles")
EXCHANGE = (REMD_DIMTYPE, "temp0", "remd_indices", "remd_values", "remd_repidx", "remd_crdidx")
"""Variables of replica exchange in files of pmemd and cpptraj."""
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
FILL_VALUES = {4: float(np.float32(9.969209968386869e36)), 8: 9.969209968386869e36}
"""Fill values of numbers that were never written (NC_FILL_FLOAT, NC_FILL_DOUBLE), by itemsize; a
variable may have another one (`_FillValue`)."""


class NCDFLayout(NativeLayout):
    """An AMBER NetCDF file."""

    name = "ncdf"
    facts = FormatFacts(
        suffixes=(".ncdf", ".nc"),
        options=frozenset({"checksums", "dt", "length_unit"}),
        step_is_frame_number=True,
        rounded_fields=("velocities", "forces"),
        can_copy_frames=True,
        reads_remote=True,
    )

    _data: ClassicFile | HDF5File
    _variable_names: set[str]
    _scales: dict[str, Any]
    _factors: dict[str, float | None]
    """Factors to mdio's units, applied after the scales; None is 1."""
    _fill_values: dict[str, float]
    _unwritten: tuple[str, ...] = ()
    """Names of variables that are left out, since they were never written."""

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is classic NetCDF, or NetCDF-4 by suffix or by its conventions."""
        magic = read_head(path)[:8]
        if magic[:3] == b"CDF":
            return True
        if magic != HDF5_MAGIC:
            return False
        if path.suffix.lower() in cls.facts.suffixes:
            return True
        from mdio.layouts.native.netcdf.hdf5 import is_amber

        return is_amber(path)

    @property
    def data(self) -> ClassicFile | HDF5File:
        _ = self.info
        return self._data

    @property
    def notes(self) -> tuple[str, ...]:
        step = getattr(self.data, "rounded_to", None)
        note = f"{self.path}: its program rounded coordinates to {step:g} angstrom" if step else ""
        unwritten = (
            f"{self.path}: {name} is left out: it was defined, but never written"
            for name in self._unwritten
        )
        return (*super().notes, *filter(None, (note,)), *unwritten)

    def _open_frames(self) -> TrajectoryInfo:
        magic = self._file.read(0, 8)
        if magic == HDF5_MAGIC:
            from mdio.layouts.native.netcdf.hdf5 import HDF5File

            self._data = HDF5File(self.path)
            self._file.close()
        elif magic[:3] == b"CDF":
            self._data = ClassicFile(self._file)
        else:
            raise SourceError(
                f"{self.path}: begins with {magic!r}, expected CDF or HDF: not a NetCDF file"
            )
        return self._inspect()

    def tables(self) -> Tables:
        data, frames = self.data, None
        if not isinstance(data, ClassicFile):  # NetCDF-4
            return Tables()
        if "length_unit" not in self.options and "time" in self._variable_names:
            frames = frame_table(self.path, data, self.info.n_frames)
            frames = frames and replace(frames, checksums=self.options.get("checksums"))
        return Tables(frames, self._position_table)

    def frame_data(self) -> FrameData:
        n_frames, columns_by_name = self.info.n_frames, {}
        for name in EXCHANGE:
            variable = self.data.variables.get(name)
            if variable is None or variable.dtype.kind not in "fi" or len(variable.shape) > 2:
                continue
            n_rows = variable.shape[0] if variable.shape else 0
            bounds = (0, variable.shape[-1])
            if name == REMD_DIMTYPE and len(variable.shape) == 1:
                values = self.data.read(0, n_rows, {name: bounds})[name]
                values = np.broadcast_to(values, (n_frames, n_rows))
            elif n_frames <= n_rows and self.data.n_complete_rows(name) >= n_frames:
                values = self.data.read(0, n_frames, {name: bounds})[name]
            else:
                continue
            columns_by_name[name] = values.astype(values.dtype.newbyteorder("="))
        return columns_by_name

    def _position_table(self) -> ChunkTable | None:
        data, n_frames = self.data, self.info.n_frames
        is_plain = self._scale("coordinates") is None and self._factors["coordinates"] is None
        if not isinstance(data, ClassicFile) or not is_plain:
            return None
        variable = data.variables["coordinates"]
        begins = variable.begin + variable.stride * np.arange(n_frames, dtype=np.int64)
        dtype, planes = variable.dtype.str, np.zeros(1, np.int64)
        return frame_chunk_table(self.path, begins, planes, self.info.n_atoms, dtype=dtype)

    def _close(self) -> None:
        super()._close()
        if "_data" in self.__dict__:
            self._data.close()

    def _convention_error(self, actual: str, expected: str) -> SourceError:
        return SourceError(f"{self.path}: {actual}; expected {expected} (AMBER NetCDF 1.0)")

    def _inspect(self) -> TrajectoryInfo:
        """Check that the file follows the convention, and return the information on it."""
        data = self._data
        conventions = str(data.attributes.get("Conventions", ""))
        if "AMBER" not in conventions.replace(",", " ").split():
            raise self._convention_error(f"its conventions are {conventions!r}", "'AMBER'")
        for name in ("frame", "atom", "spatial"):
            if name not in data.dimensions:
                raise self._convention_error(
                    f"it has no dimension {name!r}", "frame, atom and spatial"
                )
        n_frames, n_atoms = data.dimensions["frame"], data.dimensions["atom"]
        if "coordinates" not in data.variables:
            raise self._convention_error("it has no coordinates", "a variable of that name")
        if n_frames < 1 or n_atoms < 1:
            raise SourceError(f"{self.path}: {n_frames} frames of {n_atoms} atoms: nothing to read")
        self._variable_names = {name for name in UNITS if name in data.variables}
        if not set(CELL) <= self._variable_names:
            if "cell_lengths" in self._variable_names:
                raise self._convention_error("it has cell_lengths only", "cell_angles too")
            self._variable_names -= set(CELL)
        shapes: dict[str, tuple[int, ...]] = {"time": (n_frames,)}
        shapes |= dict.fromkeys(CELL, (n_frames, 3))
        shapes |= dict.fromkeys(VARIABLES.values(), (n_frames, n_atoms, 3))
        for name in sorted(self._variable_names):
            variable = data.variables[name]
            if variable.shape != shapes[name] or variable.dtype.kind != "f":
                raise self._convention_error(
                    f"{name} holds {variable.dtype} of shape {variable.shape}",
                    f"floats of {shapes[name]}",
                )
        self._units = self._find_units()
        self._factors = {name: self._factor(name) for name in sorted(self._variable_names)}
        self._scales = {name: self._scale(name) for name in self._variable_names}
        self._fill_values = {name: self._fill_value(name) for name in self._variable_names}
        n_complete, loss = self._count_complete(n_frames)
        self._leave_out_unwritten(n_complete)
        self._times_are_equal = self.options.get("dt") is not None and self._has_equal_times(
            n_complete
        )
        if self._times_are_equal:
            self._variable_names.discard("time")
        redundant = {"dt": "time" in self._variable_names, "length_unit": not self._without_units}
        for option, is_redundant in redundant.items():
            if is_redundant and self.options.get(option) is not None:
                raise redundant_option_error(self.path, option)
        info = self._read_properties(n_complete, n_atoms)
        return info.replace(flaws=info.flaws._replace(lost=loss))

    def _named_unit(self, name: str) -> str:
        return str(self._data.variables[name].attributes.get("units", ""))  # it may be an array

    def _find_units(self) -> dict[str, str]:
        """Return the units of all variables, `REDUCED_UNITS` where there is none.

        LAMMPS names those of times and of the cell alone, which its others follow from. ASE
        has velocities in a unit of its own, and names a wrong one for positions.
        """
        program = str(self._data.attributes.get("program", ""))  # it may be an array
        units = {key: unit for key in self._variable_names if (unit := self._named_unit(key))}
        units = {key: unit for key, unit in units.items() if unit != REDUCED_UNITS}
        if program == "ASE":
            units["coordinates"] = units.get("cell_lengths", UNITS["coordinates"])
        length = units.get("coordinates", units.get("cell_lengths", REDUCED_UNITS))
        time = ASE_TIME if program == "ASE" else units.get("time", UNITS["time"])
        energy = "kilocalorie/mole"
        if program == "LAMMPS":
            energy = {"femtosecond": energy, "picosecond": "eV"}.get(units.get("time", ""), "")
        assumed_units = {
            **dict.fromkeys(UNITS, REDUCED_UNITS),
            "coordinates": length,
            "cell_lengths": length,
            "cell_angles": UNITS["cell_angles"],
        }
        if length != REDUCED_UNITS:
            composed = {"velocities": f"{length}/{time}", "forces": f"{energy}/{length}"}
            if program == "LAMMPS" and (length != "Angstrom" or not energy):
                composed = dict.fromkeys(composed, "")  # its other styles have other units
            assumed_units |= composed
        return {name: units.get(name, assumed_units[name]) for name in self._variable_names}

    def _factor(self, name: str) -> float | None:
        """Return the factor from the unit of a variable to that of mdio; None where it is 1."""
        unit = self._units[name]
        factor = 1.0 if unit == REDUCED_UNITS else spelled_out_factor(name, unit)
        if unit == REDUCED_UNITS and name in ("coordinates", "cell_lengths", "velocities"):
            factor = float(length_factor(self.path, self.options))
        if factor is None:
            raise self._convention_error(
                f"{name} is in units of {unit!r}", f"{UNITS[name]!r}, or the like"
            )
        return None if factor == 1 else factor

    @property
    def _without_units(self) -> list[str]:
        return [name for name in self._variable_names if self._units[name] == REDUCED_UNITS]

    def _fill_value(self, name: str) -> float:
        variable = self._data.variables[name]
        fill = variable.attributes.get("_FillValue")
        if isinstance(fill, float | np.floating) and np.isfinite(fill):
            return float(fill)
        return FILL_VALUES[variable.dtype.itemsize]

    def _leave_out_unwritten(self, n_frames: int) -> None:
        """Treat variables as absent whose first and last frames were never written."""
        optional = self._variable_names - {"coordinates"}
        frames = sorted({0, min(1, n_frames - 1), n_frames - 1})
        bounds_by_name = dict.fromkeys(optional, (0, self._data.dimensions["atom"]))
        bounds_by_name |= dict.fromkeys(optional & set(CELL), (0, 3))
        unwritten, self._sparse = set(optional), set()
        for frame in frames:
            arrays = self._data.read(frame, frame + 1, bounds_by_name)
            # What another format leaves out of a frame is NaN here.
            self._sparse |= {
                field
                for field, name in VARIABLES.items()
                if name in arrays and np.isnan(arrays[name]).all()
            }
            unwritten = {name for name in unwritten if self._is_unwritten(name, arrays[name])[0]}
        if unwritten & set(CELL):
            unwritten |= set(CELL)
        self._unwritten = tuple(sorted(unwritten - {"time"}))
        self._variable_names -= unwritten

    def _is_unwritten(self, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
        rows, fill_value = values.reshape(len(values), -1), self._fill_values[name]
        if not rows.shape[1]:
            return np.zeros(len(rows), bool)
        return np.asarray((rows[:, 0] == fill_value) | (rows[:, -1] == fill_value))

    def _has_equal_times(self, n_frames: int) -> bool:
        """Return whether times say nothing: those of the first two frames and of the last."""
        if "time" not in self._variable_names or n_frames < 2:
            return False
        frames = (0, 1, n_frames - 1)
        times = [self._data.read(n, n + 1, {"time": (0, 0)})["time"][0] for n in frames]
        return times.count(times[0]) == len(times)

    def _count_complete(self, n_frames: int) -> tuple[int, tuple[LostBytes, ...]]:
        n_complete, name = min(
            (self._data.n_complete_rows(name), name) for name in self._variable_names
        )
        if n_complete < 1:
            raise SourceError(
                f"{self.path}: frame 0 is truncated: the header says {n_frames} frames of "
                f"{self._data.record_nbytes} bytes, but the file ends after "
                f"{self.path.stat().st_size} bytes, within {name}. Copy the file again"
            )
        if not isinstance(self._data, ClassicFile):
            return n_complete, ()
        end = min(self._data.end_of_rows(n_complete), self._data.file.nbytes)
        lost_nbytes = self._data.file.nbytes - end
        if n_complete == n_frames and (self._data.has_record_count or not lost_nbytes):
            return n_complete, ()
        return n_complete, (LostBytes(str(self.path), n_complete, end, lost_nbytes),)

    def _scale(self, name: str) -> Any:
        """Return the ``scale_factor`` of a variable; None where there is none, or it is 1."""
        attributes = self._data.variables[name].attributes
        offset = attributes.get("add_offset", 0)
        if not (np.isscalar(offset) and offset == 0):  # it may be an array
            raise self._convention_error(f"{name} has an add_offset of {offset!r}", "none")
        factor = attributes.get("scale_factor")
        if factor is None:
            return None
        if not isinstance(factor, float | np.floating):
            raise self._convention_error(f"{name} has a scale_factor of {factor!r}", "one float")
        return None if math.isclose(factor, 1) else factor

    def _read_properties(self, n_frames: int, n_atoms: int) -> TrajectoryInfo:
        data = self._data
        dt_ps = float(self.options.get("dt") or 1.0)
        if "time" in self._variable_names and n_frames > 1:
            # The difference is taken before scaling, in the precision of the file.
            first, second = data.read(0, 2, {"time": (0, 0)})["time"]
            dt_ps = float((second - first) * (self._scales["time"] or 1))
            dt_ps *= self._factors["time"] or 1.0
        first = FrameBlock.empty(1, 0)
        first.box[...] = 1
        with suppress(SourceError):  # only reading this frame raises; the others may be whole
            self._read_into(0, 1, NO_ATOMS, first)
        last_ps = first.time[0] + dt_ps * (n_frames - 1)
        if "time" in self._variable_names:
            last = data.read(n_frames - 1, n_frames, {"time": (0, 0)})
            if not self._is_unwritten("time", last["time"]).any():
                last_ps = self._times(last)[0]
        coordinates = data.variables["coordinates"]
        chunks = getattr(coordinates, "chunks", None)
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=n_frames,
            n_atoms=n_atoms,
            dt_ps=dt_ps,
            time_first_ps=float(first.time[0]),
            time_last_ps=float(last_ps),
            has_velocities="velocities" in self._variable_names,
            has_forces="forces" in self._variable_names,
            has_box=bool(first.box.any()),
            sparse=tuple(sorted(self._sparse)),
            chunk_frames=chunks[0] if chunks else None,
            chunk_atoms=chunks[1] if chunks else None,
            compression=getattr(coordinates, "compression", None),
            nbytes=self.path.stat().st_size,
            flaws=Flaws(made_up=self._made_up()),
        )

    def _made_up(self) -> tuple[str, ...]:
        without_units = self._without_units
        notes = made_up_notes(
            "the file, whose times are all equal," if self._times_are_equal else "the file",
            self.options,
            times=None if "time" in self._variable_names else "frames",
            lengths="coordinates" in without_units,
            fields=[name for name in ("velocities", "forces") if name in without_units],
        )
        times = ("it names no unit of times: assumed to be ps",) if "time" in without_units else ()
        composed = [
            f"the file names no unit of {name}: assumed to be {self._units[name]}"
            for name in ("velocities", "forces")
            if name in self._variable_names - {*without_units}
            and self._units[name] != self._named_unit(name)
        ]
        return (*notes, *times, *composed)

    def _byte_bounds(self, start: int, stop: int) -> tuple[int, int]:
        data = self._data
        if not isinstance(data, ClassicFile):  # only its library knows where NetCDF-4 has them
            return 0, 0
        return data.end_of_rows(start), data.end_of_rows(stop)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        bounds_by_name = {name: (0, 3) for name in ("time", *CELL) if name in self._variable_names}
        fields = {} if block.n_atoms == 0 else {VARIABLES[name]: name for name in block.present()}
        if atoms is not None and atoms.size:
            low, high = int(atoms.min()), int(atoms.max()) + 1
            atoms = atoms - low
        else:
            low, high = 0, self._data.dimensions["atom"]
        bounds_by_name |= dict.fromkeys(fields, (low, high))
        for first, end in batches(start, stop, self._data.record_nbytes):
            arrays = self._data.read(first, end, bounds_by_name)
            for name, values in arrays.items():
                if np.count_nonzero(unwritten := self._is_unwritten(name, values)):
                    raise SourceError(
                        f"{self.path}: frame {first + int(unwritten.argmax())} is not whole: its "
                        f"{name} hold {self._fill_values[name]:g}, which NetCDF has where nothing "
                        "was written. Its program ended too early; --salvage leaves such frames out"
                    )
            part = block.frames(slice(first - start, end - start))
            self._fill_frame_values(arrays, first, end, part)
            for name, field in fields.items():
                out = getattr(part, field)
                values = self._scaled(arrays, name)
                if values.dtype.itemsize != 4:
                    with np.errstate(over="ignore", invalid="ignore"):
                        values = values.astype(np.float32)
                swap_to_native(values, out, atoms, self._factors[name])

    def _fill_frame_values(
        self, arrays: dict[str, NDArray[Any]], first: int, end: int, block: FrameBlock
    ) -> None:
        frames = np.arange(first, end)
        block.step[...] = frames
        if "time" in arrays:
            block.time[...] = self._times(arrays)
        else:
            block.time[...] = frames * float(self.options.get("dt") or 1.0)
        if not all(name in arrays for name in CELL):
            block.box[...] = 0
            return
        with np.errstate(over="ignore", invalid="ignore"):
            for name, target in zip(CELL, (block.box[:, :3], block.box[:, 3:]), strict=True):
                target[...] = self._scaled(arrays, name)
                if factor := self._factors[name]:
                    target *= np.float32(factor)
        has_cell = block.box[:, :3].any(axis=1)
        if np.count_nonzero(has_cell) < block.n_frames:
            block.box[~has_cell] = 0

    def _times(self, arrays: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
        times = np.asarray(self._scaled(arrays, "time"), np.float64)
        return times * (self._factors["time"] or 1)

    def _scaled(self, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
        scale = self._scales[name]
        if scale is None:
            return arrays[name]
        with np.errstate(over="ignore", invalid="ignore"):
            return cast(NDArray[Any], arrays[name] * scale)
