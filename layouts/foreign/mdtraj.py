"""mdtraj's HDF5 trajectories, read in blocks through h5py.

Convention "Pande" 1.1 (https://mdtraj.org/latest/hdf5_format.html): ``coordinates`` (nm), ``time``
(ps), ``cell_lengths`` (nm), ``cell_angles`` (degrees), ``velocities`` (nm/ps), unless the attribute
``units`` of an array names others, and the topology as JSON. mdtraj writes float32; numbers of
other widths are read, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import FOREIGN_ERRORS, SourceError
from mdio.core.files.fingerprint import read_head
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.core.topology import BONDS, RESINDEX, SEGINDEX, Texts, Topology
from mdio.layouts.base import FormatFacts, Layout, redundant_option_error
from mdio.layouts.foreign.hdf5 import Datasets, check_heaps, has_plausible_size
from mdio.layouts.foreign.tree import as_source_error, text_of
from mdio.layouts.foreign.units import made_up_notes, spelled_out_factor

SIGNATURE = b"\x89HDF\r\n\x1a\n"
ARRAYS = {"positions": "coordinates", "velocities": "velocities"}
UNITS = {
    "coordinates": "nanometers",
    "velocities": "nanometers/picosecond",
    "time": "picoseconds",
    "cell_lengths": "nanometers",
    "cell_angles": "degrees",
}
"""Units of the convention, for arrays that name none."""


class MDTrajLayout(Layout):
    """An HDF5 file of mdtraj."""

    name = "mdtraj"
    facts = FormatFacts(options=frozenset({"dt"}), step_is_frame_number=True)

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is HDF5 with mdtraj's array of coordinates, and not of AMBER."""
        if not path.is_file() or not read_head(path).startswith(SIGNATURE):
            return False
        try:
            with h5py.File(path, "r", locking="best-effort") as file:
                if "AMBER" in str(file.attrs.get("Conventions")):  # NetCDF-4
                    return False
                return "coordinates" in file and isinstance(file["coordinates"], h5py.Dataset)
        except FOREIGN_ERRORS:
            return False

    def _open(self) -> TrajectoryInfo:
        check_heaps(self.path)
        with as_source_error(self.path, "cannot be read as HDF5 of mdtraj"):
            self._file = h5py.File(self.path, "r", locking="best-effort")
            self._datasets = Datasets(self.path)
            try:
                return self._read_properties()
            except BaseException:
                self._file.close()
                raise

    def _error(self, text: str) -> SourceError:
        return SourceError(f"{self.path}: {text}")

    def _array(self, name: str, *shape: int) -> h5py.Dataset:
        array = self._file[name]
        if not isinstance(array, h5py.Dataset):
            raise self._error(f"{name} is a group, expected numbers of shape {shape}")
        if array.is_virtual or array.external or array.dtype.kind not in "fiu":
            text = f"{name} is {array.dtype}, or in another file"
            raise self._error(f"{text}; expected numbers in this file")
        if array.shape != shape:
            raise self._error(f"{name} has shape {array.shape}, expected {shape}")
        if not has_plausible_size(array):
            raise self._error(f"{name} claims {array.nbytes} bytes, few are stored")
        return array

    def _read_properties(self) -> TrajectoryInfo:
        shape = self._file["coordinates"].shape
        if len(shape) != 3 or 0 in shape:
            raise self._error(f"coordinates of shape {shape}: nothing to read")
        n_frames, n_atoms = int(shape[0]), int(shape[1])
        per_atom = (n_frames, n_atoms, 3)
        self._arrays = {
            field: self._array(name, *per_atom)
            for field, name in ARRAYS.items()
            if name in self._file
        }
        self._columns = {
            name: self._array(name, n_frames, *tail)
            for name, tail in (("time", ()), ("cell_lengths", (3,)), ("cell_angles", (3,)))
            if name in self._file
        }
        cell = [name for name in ("cell_lengths", "cell_angles") if name in self._columns]
        if len(cell) == 1:
            raise self._error(
                f"it has {cell[0]} alone, expected cell_lengths and cell_angles, or neither; write "
                "the other one, or take this one out"
            )
        names = {*self._columns, *(ARRAYS[field] for field in self._arrays)}
        self._factors = {name: self._factor(name) for name in sorted(names)}
        if "time" in self._columns and self.options.get("dt") is not None:
            raise redundant_option_error(self.path, "dt")
        times = self._times(0, min(2, n_frames))
        time_unit = None if "time" in self._columns else "frames"
        assumed = made_up_notes("the file", self.options, times=time_unit, lengths=False)
        coordinates = self._arrays["positions"]
        chunks = coordinates.chunks
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=n_frames,
            n_atoms=n_atoms,
            dt_ps=float(times[1] - times[0] if n_frames > 1 else self.options.get("dt") or 1.0),
            time_first_ps=float(times[0]),
            time_last_ps=float(self._times(n_frames - 1, n_frames)[0]),
            has_velocities="velocities" in self._arrays,
            has_box=bool(self._boxes(0, 1).any()),
            chunk_frames=int(chunks[0]) if chunks and chunks[0] > 1 else None,
            compression=coordinates.compression,
            nbytes=self.path.stat().st_size,
            flaws=Flaws(made_up=tuple(assumed)),
        )

    def _factor(self, name: str) -> float:
        text = str(text_of(self._file[name].attrs.get("units", UNITS[name])))
        factor = spelled_out_factor(name, text)
        if factor is None:
            raise self._error(f"{name} is in {text!r}, expected {UNITS[name]}")
        return factor

    def _times(self, start: int, stop: int) -> NDArray[Any]:
        if "time" not in self._columns:
            return np.arange(start, stop, dtype=np.float64) * float(self.options.get("dt") or 1.0)
        times = np.asarray(self._columns["time"][start:stop], np.float64)
        return times * self._factors["time"]

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the boxes of frames; without lengths they are 0, whatever their angles."""
        boxes = np.zeros((stop - start, 6), np.float32)
        if "cell_lengths" in self._columns:
            for name, columns in (("cell_lengths", boxes[:, :3]), ("cell_angles", boxes[:, 3:])):
                columns[...] = self._columns[name][start:stop]
                columns *= np.float32(self._factors[name])
            boxes[~boxes[:, :3].any(axis=1)] = 0
        return boxes

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        with as_source_error(self.path, f"frames {start} to {stop - 1} cannot be read"):
            block.time[...] = self._times(start, stop)
            block.step[...] = np.arange(start, stop)
            block.box[...] = self._boxes(start, stop)
            for field, out in block.present().items() if block.n_atoms else ():
                self._datasets.read(field, self._arrays[field], start, stop, atoms, out)
                out *= np.float32(self._factors[ARRAYS[field]])

    def topology(self) -> Topology | None:
        n_atoms = self.info.n_atoms
        with as_source_error(self.path, "its topology cannot be read"):
            if "topology" not in self._file:
                return None
            text = np.asarray(self._file["topology"][...]).reshape(-1)[0]
            return _topology(json.loads(text), n_atoms)

    def _close(self) -> None:
        self._datasets.close()
        self._file.close()


def _topology(description: Any, n_atoms: int) -> Topology:
    """Return the topology in mdtraj's JSON; raises ValueError or KeyError if it does not fit."""
    names, elements, resindex = [""] * n_atoms, [""] * n_atoms, np.full(n_atoms, -1)
    resids: list[int] = []
    segindex: list[int] = []
    resnames: list[str] = []
    segids: list[str] = []
    for chain in description["chains"]:
        segids.append(str(chain.get("chain_id") or chain["index"]))
        for residue in chain["residues"]:
            for atom in residue["atoms"]:
                index = int(atom["index"])
                if not 0 <= index < n_atoms:
                    raise ValueError(f"it has an atom {index}, the frames have {n_atoms}")
                names[index], elements[index] = str(atom["name"]), str(atom["element"])
                resindex[index] = len(resids)
            resids.append(int(residue["resSeq"]))
            resnames.append(str(residue["name"]))
            segindex.append(len(segids) - 1)
    if (resindex < 0).any():
        raise ValueError(f"it has fewer atoms than the {n_atoms} of the frames")
    bonds = np.array([pair[:2] for pair in description.get("bonds", [])], np.int64).reshape(-1, 2)
    columns: dict[str, NDArray[Any] | Texts] = {
        "names": Texts.of(names),
        "elements": Texts.of(elements),
        "resids": np.array(resids),
        "resnames": Texts.of(resnames),
        "segids": Texts.of(segids),
        RESINDEX: resindex,
        SEGINDEX: np.array(segindex),
        BONDS: bonds,
    }
    topology = Topology(n_atoms, columns)
    topology.check()
    return topology
