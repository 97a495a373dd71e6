"""AMBER's restart files: one frame, as NetCDF (AMBERRESTART) or as text.

Convention: https://ambermd.org/netcdf/nctraj.xhtml; text:
https://ambermd.org/FileFormats.php#restart. Velocities of both are in AMBER's unit, of 20.455
angstrom/ps; NetCDF names the factor.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError, one_line
from mdio.core.files.checks import first_bytes, read_regular
from mdio.core.files.fingerprint import read_head
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo
from mdio.layouts.base import FormatFacts, Layout
from mdio.layouts.foreign.units import spelled_out_factor
from mdio.layouts.native.file import PositionalFile
from mdio.layouts.native.netcdf.classic import ClassicFile
from mdio.layouts.native.netcdf.layout import AMBER_VELOCITY, FILL_VALUES, UNITS

CONVENTIONS = b"AMBERRESTART"
SNIFFED_NBYTES = 1 << 16
SECOND_LINE = re.compile(rb"\s*(\d+)(\s+[-+.\dEeDd]+){0,2}\s*")
THIRD_LINE = re.compile(rb"([ \d-]{3}\d\.\d{7}){3,6}\s*")
NUMBER_WIDTH, PER_LINE = 12, 6
"""Columns of each number in a text file."""


class RestartLayout(Layout):
    """A restart file; all of it is read when it is opened."""

    name = "restart"
    facts = FormatFacts(suffixes=(".ncrst", ".rst7", ".restrt", ".inpcrd"))

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is NetCDF with AMBER's convention, or begins as the text does.

        AMBER's own name of a text file, ``restrt``, has no suffix, and ``.rst`` and ``.crd`` are
        those of other files too: then the first line of numbers has to have these columns as well.
        """
        if not path.is_file():
            return False
        head = first_bytes(path, SNIFFED_NBYTES)
        if head[:3] == b"CDF" or head[:4] == b"\x89HDF":
            return CONVENTIONS in head
        lines = head.split(b"\n", 3)
        is_second = len(lines) > 1 and SECOND_LINE.fullmatch(lines[1]) is not None
        is_third = len(lines) > 2 and THIRD_LINE.fullmatch(lines[2]) is not None
        return is_second and (path.suffix.lower() in cls.facts.suffixes or is_third)

    def _open(self) -> TrajectoryInfo:
        head = read_head(self.path)
        is_netcdf = head[:3] == b"CDF" or head[:4] == b"\x89HDF"
        try:
            frame = self._from_netcdf() if is_netcdf else self._from_text()
        except (OSError, RuntimeError, ValueError, LookupError, OverflowError) as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(
                f"{self.path}: cannot be read as a restart file of AMBER "
                f"({one_line(error)[:200]}); it may be truncated"
            ) from error
        self._frame = frame
        nbytes = self.path.stat().st_size
        return TrajectoryInfo.of_block(frame, self.name, str(self.path), nbytes=nbytes)

    def _from_netcdf(self) -> FrameBlock:
        import netCDF4

        if read_head(self.path)[:3] == b"CDF":
            self._check_size()
        else:
            from mdio.layouts.foreign.hdf5 import check_heaps

            check_heaps(self.path)
        with netCDF4.Dataset(str(self.path)) as data:
            data.set_auto_mask(False)
            variables = {
                name: self._read_variable(data[name]) for name in data.variables if name in NAMES
            }
        arrays = {name: values for name, values in variables.items() if values is not None}
        if "coordinates" not in arrays:
            raise ValueError("there are no coordinates, or they were never written")
        positions = arrays["coordinates"]
        if positions.ndim != 2 or positions.shape[1] != 3:
            raise ValueError(f"coordinates of shape {positions.shape}")
        box = np.zeros(6)
        if "cell_lengths" in arrays:
            if "cell_angles" not in arrays:
                raise ValueError("cell_lengths without cell_angles")
            box[:3], box[3:] = arrays["cell_lengths"], arrays["cell_angles"]
        time = np.ravel(arrays.get("time", 0.0))  # mdtraj gives it a dimension of its own
        if time.size != 1:
            raise ValueError(f"{time.size} times of one frame")
        return _frame_block(positions, arrays.get("velocities"), box, float(time[0]))

    def _read_variable(self, variable: Any) -> NDArray[np.float64] | None:
        """Return the numbers of a variable in mdio's unit; None where they were never written."""
        variable.set_auto_scale(False)
        stored = np.asarray(variable[...]).ravel()
        fill = getattr(variable, "_FillValue", FILL_VALUES.get(stored.dtype.itemsize))
        if stored.size and fill in (stored[0], stored[-1]):
            return None
        unit = str(getattr(variable, "units", UNITS[variable.name]))
        factor = spelled_out_factor(variable.name, unit)
        if factor is None:
            raise SourceError(
                f"{self.path}: {variable.name} is in units of {unit!r}; expected "
                f"{UNITS[variable.name]!r}, or the like"
            )
        variable.set_auto_scale(True)
        return np.asarray(variable[...], np.float64) * factor

    def _check_size(self) -> None:
        """Raise ValueError for a file that is cut: the library would fill it up with zeros."""
        with PositionalFile(self.path) as file:
            data = ClassicFile(file)
            for name in NAMES & data.variables.keys():
                variable = data.variables[name]
                if variable.shape and data.n_complete_rows(name) < variable.shape[0]:
                    raise ValueError(f"{name} ends within the file's {file.nbytes} bytes")

    def _from_text(self) -> FrameBlock:
        text = read_regular(self.path).decode("ascii")
        _, second, rest = text.split("\n", 2)
        words = second.split()
        n_atoms = int(words[0])
        lines = [line for line in rest.split("\n") if line.strip()]
        per_frame = -(-3 * n_atoms // PER_LINE)
        n_remaining_lines = len(lines) - per_frame
        if n_atoms < 1 or n_remaining_lines not in (0, 1, per_frame, per_frame + 1):
            raise ValueError(f"{len(lines)} lines of numbers for {n_atoms} atoms")
        positions = _parse_numbers(lines[:per_frame], 3 * n_atoms).reshape(-1, 3)
        # With two atoms or fewer, both velocities and a cell are one line. A cell ends with angles.
        has_velocities = n_remaining_lines >= per_frame
        if n_remaining_lines == per_frame == 1:
            last = _parse_numbers(lines[-1:])
            has_velocities = len(last) != PER_LINE or not all((last[3:] > 0) & (last[3:] <= 180))
        velocities = None
        if has_velocities:
            stored = _parse_numbers(lines[per_frame : 2 * per_frame], 3 * n_atoms)
            velocities = stored.reshape(-1, 3) * AMBER_VELOCITY
        box = np.zeros(6)
        if n_remaining_lines > per_frame * has_velocities:
            cell = _parse_numbers(lines[-1:])
            if len(cell) not in (3, 6):
                raise ValueError(f"a box of {len(cell)} numbers, expected 3 or 6")
            box[:] = np.append(cell, [90.0] * (6 - len(cell)))
        time = float(words[1].replace("D", "E")) if len(words) > 1 else 0.0
        return _frame_block(positions, velocities, box, time)

    def _read_into(
        self,
        start: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
        atoms: AtomIndices | None,
        block: FrameBlock,
    ) -> None:
        frame = self._frame if atoms is None else self._frame.take(atoms)
        block.box[...], block.time[...], block.step[...] = frame.box, frame.time, 0
        for name, out in block.present().items():
            values = getattr(frame, name)
            out[...] = np.nan if values is None else values


NAMES = UNITS.keys() - {"forces"}


def _frame_block(
    positions: NDArray[Any], velocities: NDArray[Any] | None, box: NDArray[Any], time: float
) -> FrameBlock:
    block = FrameBlock.empty(1, len(positions), velocities=velocities is not None)
    block.positions[0], block.time[0] = positions, time
    block.box[0] = box if box[:3].any() else 0
    if block.velocities is not None:
        block.velocities[0] = velocities
    return block


def _parse_numbers(lines: list[str], count: int | None = None) -> NDArray[np.float64]:
    texts = [
        line[first : first + NUMBER_WIDTH]
        for line in lines
        for first in range(0, len(line.rstrip()), NUMBER_WIDTH)
    ]
    if count not in (None, len(texts)):
        raise ValueError(f"{len(texts)} numbers, expected {count}")
    if len(texts[-1]) < NUMBER_WIDTH:
        raise ValueError(f"a last number {texts[-1]!r} of fewer than {NUMBER_WIDTH} characters")
    return np.array([float(number) for number in texts])
