"""NetCDF-4 files, which are HDF5, with the interface of `native.netcdf.classic`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.files.store import require_disk
from mdio.layouts.foreign.hdf5 import Datasets, ForeignChunks, check_heaps

INTEGER_VARIABLES = {
    "coordinates": "compressedpos",
    "velocities": "compressedvel",
    "forces": "compressedfrc",
}
"""Integer variables of cpptraj 6.16 and later with ``icompress``, by the name of the floats, times
``icompressfac`` (src/NetcdfFile.cpp)."""

MAX_CACHED_NBYTES = 8 << 20
"""Times and cells up to this size are read once: a call of the library costs as much as a frame."""


class HDF5File:
    """A NetCDF-4 file, opened for reading; numbers come as they are stored, without scaling."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_heaps(path)
        self._hdf5: h5py.File | None = None
        self._datasets = Datasets(path)
        self._chunks_by_name: dict[str, ForeignChunks | None] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        require_disk(path, "NetCDF-4 is not read from object stores; copy it here", SourceError)
        try:
            self._netcdf = netCDF4.Dataset(str(path))
        except (OSError, RuntimeError) as error:
            raise self._unreadable(error) from error
        try:
            self._netcdf.set_auto_maskandscale(False)
            self.attributes = _attributes(self._netcdf)
            self.dimensions = {name: len(d) for name, d in self._netcdf.dimensions.items()}
            self.variables = {
                name: _Variable(variable) for name, variable in self._netcdf.variables.items()
            }
            self._integer_divisors = self._find_integers()
        except (OSError, RuntimeError, AttributeError, ValueError) as error:
            self.close()
            raise error if isinstance(error, SourceError) else self._unreadable(error) from error
        nbytes = path.stat().st_size
        self.record_nbytes = min(nbytes, sum(v.row_nbytes for v in self.variables.values()))

    def _unreadable(self, error: Exception) -> SourceError:
        return SourceError(
            f"{self.path}: not readable as NetCDF-4 ({error}); the file may be truncated"
        )

    def _find_integers(self) -> dict[str, tuple[str, float]]:
        """Return the variables that cpptraj stored as integers, by the name of the floats.

        Each is the name of the integer variable, and the divisor of its numbers.
        """
        integers = {}
        for name, stored in INTEGER_VARIABLES.items():
            variable = self.variables.get(stored)
            if name in self.variables or variable is None:
                continue
            divisor = variable.attributes.get("icompressfac")
            is_integers = variable.dtype.kind == "i"
            if not isinstance(divisor, float | np.floating) or not divisor > 0 or not is_integers:
                raise SourceError(
                    f"{self.path}: {stored} holds {variable.dtype} with icompressfac {divisor!r}; "
                    "expected integers and a positive number"
                )
            integers[name] = (stored, float(divisor))
            variable.dtype = np.dtype(np.float64)
            self.variables[name] = variable
        return integers

    @property
    def rounded_to(self) -> float | None:
        """Step to which coordinates were rounded when they were written; None = not rounded."""
        _, divisor = self._integer_divisors.get("coordinates", ("", None))
        return None if divisor is None else 1 / divisor

    def _values(self, name: str, index: Any) -> NDArray[Any]:
        stored, divisor = self._integer_divisors.get(name, (name, None))
        values = np.asarray(self._netcdf.variables[stored][index])
        return values if divisor is None else values / divisor

    def close(self) -> None:
        if self._netcdf.isopen():
            self._netcdf.close()
        if self._hdf5 is not None:
            self._hdf5.close()
            self._datasets.close()
            self._hdf5 = None

    def n_complete_rows(self, name: str) -> int:
        """Return the number of rows: HDF5 does not open files that are cut."""
        return self.variables[name].shape[0] if self.variables[name].shape else 0

    def _chunks(self, name: str) -> ForeignChunks | None:
        """Return the chunks of an array of coordinates; None for what netCDF4 has to read."""
        if name not in self._chunks_by_name:
            variable = self.variables[name]
            scaled = name in self._integer_divisors or "scale_factor" in variable.attributes
            self._chunks_by_name[name] = None
            if len(variable.shape) == 3 and not scaled and variable.dtype == "<f4":
                if self._hdf5 is None:
                    self._hdf5 = h5py.File(self.path, "r", locking="best-effort")
                dataset = self._hdf5[name]
                if len(dataset) == variable.shape[0]:  # not so if later frames were never written
                    self._chunks_by_name[name] = self._datasets.chunks(name, dataset)
        return self._chunks_by_name[name]

    def _rows(self, name: str, start: int, stop: int, bounds: tuple[int, int]) -> NDArray[Any]:
        variable = self.variables[name]
        if len(variable.shape) < 3 and variable.row_nbytes * variable.shape[0] <= MAX_CACHED_NBYTES:
            if name not in self._columns:
                self._columns[name] = self._values(name, slice(None))
            return self._columns[name][start:stop]
        chunks = self._chunks(name)
        if chunks is None:
            rows = slice(start, stop)
            return self._values(name, rows if len(variable.shape) < 2 else (rows, slice(*bounds)))
        low, high = bounds
        atoms = None if high - low == chunks.n_atoms else np.arange(low, high)
        values = np.empty((stop - start, high - low, 3), np.float32)
        chunks.read(start, stop, atoms, values)
        return values

    def read(
        self, start: int, stop: int, bounds_by_name: Mapping[str, tuple[int, int]]
    ) -> dict[str, NDArray[Any]]:
        try:
            return {
                name: self._rows(name, start, stop, bounds)
                for name, bounds in bounds_by_name.items()
            }
        except (OSError, RuntimeError, LookupError, ValueError) as error:
            raise SourceError(
                f"{self.path}: frames {start}:{stop} cannot be read ({error}); "
                "the file may be damaged"
            ) from error


def is_amber(path: Path) -> bool:
    """Return whether an HDF5 file is NetCDF-4 with AMBER's conventions."""
    try:
        file = HDF5File(path)
    except SourceError:
        return False
    conventions = str(file.attributes.get("Conventions", ""))
    file.close()
    return "AMBER" in conventions.replace(",", " ").split()


class _Variable:
    """A NetCDF-4 variable, with the attributes of `mdio.layouts.native.netcdf.classic.Variable`."""

    def __init__(self, variable: Any) -> None:
        self.dtype = np.dtype(variable.dtype)
        self.shape: tuple[int, ...] = tuple(variable.shape)
        self.attributes = _attributes(variable)
        chunks = variable.chunking()
        self.chunks: tuple[int, ...] | None = None if isinstance(chunks, str) else tuple(chunks)
        filters = variable.filters() or {}
        self.compression: str | None = next(
            (
                f"{name}:{filters.get('complevel', 0)}"
                for name in ("zlib", "zstd", "bzip2", "szip", "blosc")
                if filters.get(name)
            ),
            None,
        )

    @property
    def row_nbytes(self) -> int:
        return int(self.dtype.itemsize * np.prod(self.shape[1:]))


def _attributes(item: Any) -> dict[str, Any]:
    return {name: item.getncattr(name) for name in item.ncattrs()}
