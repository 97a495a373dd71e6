"""Reads H5MD files of other writers: chunks by their places in the file, the rest through h5py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError, SourceError
from mdio.core.frames import ELEMENTS, absent
from mdio.core.topology.topology import BONDS, RESINDEX, SEGINDEX, Texts, Topology
from mdio.layouts.base import AtomIndices
from mdio.layouts.foreign.chunks import Datasets
from mdio.layouts.foreign.heaps import check_heaps
from mdio.layouts.foreign.sampling import Series, child
from mdio.layouts.foreign.tree import ForeignTrajectory, as_source_error
from mdio.layouts.h5md.io import FULL_SYSTEM, descriptor_of
from mdio.layouts.manifest import runs_from_indices

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan


MAX_DEPTH = 4
"""Virtual datasets of virtual datasets are followed so far."""


def require_inside(path: Path, node: Any, folder: Path | None = None, depth: int = 0) -> None:
    """Raise SourceError unless all bytes of an object lie in the folder of the opened file.

    `path`: the file that was opened. `node`: a group or dataset, however it was reached.
    """
    is_dataset = isinstance(node, h5py.Dataset)
    if node.file.filename == str(path) and not (is_dataset and (node.is_virtual or node.external)):
        return
    folder = folder or path.resolve().parent
    own = Path(node.file.filename).resolve()
    places = {str(own): own}
    sources = []
    if is_dataset:
        # HDF5 looks for external storage in the working folder, and there last for sources.
        places |= {name: Path(name).resolve() for name, *_ in node.external or ()}
        sources = list(node.virtual_sources()) if node.is_virtual else []
        for source in sources:
            name = source.file_name.replace("%%", "%")
            places[name] = own if name == "." else (own.parent / name).resolve()
    for name, lies in places.items():
        if folder not in lies.parents or not lies.is_file() or depth > MAX_DEPTH:
            raise SourceError(
                f"{path}: {node.name} lies in {name}, which is no file in the folder of this one, "
                "so it is not read; copy both into one folder and refer to it by a relative name"
            )
    if own != path.resolve():
        check_heaps(own)
    for source in sources:
        lies = places[source.file_name.replace("%%", "%")]
        with h5py.File(lies, "r", locking="best-effort") as file:
            require_inside(path, file[source.dset_name], folder, depth + 1)


CACHE_NBYTES = (8 << 20, 256 << 20)
"""Least and most of HDF5's chunk cache: two rows of chunks over all atoms where it has room."""

FILLED_RATIO = 100_000
"""No compressor makes a trajectory so much smaller: a dataset of more bytes was never written."""


class ForeignFile(ForeignTrajectory):
    """An H5MD file of another writer; see `ForeignTrajectory`.

    `path`, `file`: the file, opened by h5py; it is closed by `close`. `group`: particle group; the
    first by default, as MDAnalysis has it. `convert_units`: whether numbers have units and are
    converted.
    """

    def __init__(
        self,
        path: Path,
        file: h5py.File,
        group: str | None,
        *,
        convert_units: bool,
        length_unit: str | None = None,
    ) -> None:
        self._file = file
        self._datasets = Datasets(path, lambda: descriptor_of(file, path))
        check_heaps(path)
        particles = child(file, "particles")
        names = list(particles) if isinstance(particles, h5py.Group) else []
        if particles is not None:
            require_inside(path, particles)
        super().__init__(
            path, file, names, group, convert_units=convert_units, length_unit=length_unit
        )
        parents = [self._group, *(self._group[ELEMENTS[field]] for field in self._values)]
        edges = None if self._cells is None else self._cells.edges
        for node in (*parents, child(self._group, "box/edges"), edges, self._ids):
            if node is not None:
                require_inside(path, node)

    def _series(self, field: str, positions: Series | None = None) -> Series:
        parent = self._group["box/edges" if field == "box" else ELEMENTS[field]]
        for name in ("time", "step"):
            if name in parent:
                require_inside(self.path, parent[name])
        return super()._series(field, positions)

    def _value(self, element: str) -> h5py.Dataset:
        """Open the values of an element with a chunk cache that holds what a frame touches."""
        dataset: h5py.Dataset = super()._value(element)
        require_inside(self.path, dataset)
        nbytes = dataset.size * dataset.dtype.itemsize
        elsewhere = dataset.is_virtual or dataset.external
        if (
            nbytes
            and not elsewhere
            and nbytes > FILLED_RATIO * max(dataset.id.get_storage_size(), 1)
        ):
            raise SourceError(
                f"{self.path}: {dataset.name} claims {dataset.shape[0]} frames of "
                f"{dataset.shape[1]} atoms, but {dataset.id.get_storage_size()} bytes are stored"
            )
        if dataset.chunks is None:
            return dataset
        row = int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
        row *= -(-dataset.shape[1] // dataset.chunks[1]) * -(-3 // dataset.chunks[2])
        access = dataset.id.get_access_plist()
        least, most = CACHE_NBYTES
        access.set_chunk_cache(100_003, min(max(2 * row, least), most), 1.0)
        return h5py.Dataset(h5py.h5d.open(self._group[element].id, b"value", access))

    def _compression(self, array: h5py.Dataset) -> str | None:
        name: str | None = array.compression
        options = array.compression_opts
        return name if name is None or options is None else f"{name}:{options}"

    def _read_field(
        self, field: str, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        self._datasets.read(field, self._values[field], start, stop, atoms, out)

    def topology(self) -> Topology | None:
        """Return what the file says of the atoms; see `Layout.topology`."""
        with as_source_error(self.path, "what it says of its atoms cannot be read"):
            return topology_in(self._file, self._group, self.n_atoms)

    def close(self) -> None:
        """Close the file."""
        self._datasets.close()
        self._file.close()


SLAB_NBYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Flavour:
    """In which units numbers are stored."""

    units: Mapping[str, str]
    to_file: Mapping[str, float] = field(default_factory=dict)
    """By field, what numbers in memory are multiplied with; 1 where it has none."""
    from_file: Mapping[str, float] = field(default_factory=dict)
    system: str | None = None
    """Another name of the group of all atoms, whose cells are then always there."""

    def store(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return numbers as they are stored."""
        return values * np.float32(self.to_file[name]) if name in self.to_file else values


_FLAVOURS = MappingProxyType(
    {
        None: Flavour(
            {
                "positions": "Angstrom",
                "velocities": "Angstrom ps-1",
                "forces": "kJ mol-1 Angstrom-1",
            }
        ),
        "gromacs": Flavour(
            {"positions": "nm", "velocities": "nm ps-1", "forces": "kJ mol-1 nm-1"},
            {"positions": 0.1, "velocities": 0.1, "forces": 10.0},
            {"positions": 10.0, "velocities": 10.0, "forces": 0.1},
            "system",
        ),
    }
)


def flavour_of(name: str | None) -> Flavour:
    """Return a flavour by name; raises PlanError for one that is none."""
    if name not in _FLAVOURS:
        known = ", ".join(key for key in _FLAVOURS if key)
        raise PlanError(f"--flavour {name}: there is no such flavour of h5md, only {known}")
    return _FLAVOURS[name]


def add_system(file: h5py.File, plan: LayoutPlan) -> None:
    """Add the group of all atoms under the name that a program looks for.

    A field that some frames lack is shown with the others only, by virtual datasets.
    """
    name = flavour_of(plan.flavour).system
    if name is None:
        return
    full = file[f"particles/{FULL_SYSTEM}"]
    if not plan.sparse:
        file[f"particles/{name}"] = full
        return
    system = file.create_group(f"particles/{name}")
    box = system.create_group("box")
    box.attrs.update(full["box"].attrs)
    for field_name in dict.fromkeys(array.field for array in plan.arrays):
        element = ELEMENTS[field_name]
        rows = _present(full[element]["value"])
        shown = system.create_group(element)
        _show(shown, full[element], rows)
        for column in ("step", "time"):
            shown[column] = full[element][column][...][rows]
            shown[column].attrs.update(full[element][column].attrs)
        if field_name == "positions":
            edges = box.create_group("edges")
            _show(edges, full["box/edges"], rows)
            edges["step"], edges["time"] = shown["step"], shown["time"]


def _present(dataset: h5py.Dataset) -> NDArray[np.int64]:
    rows = max(1, SLAB_NBYTES // (12 * dataset.shape[1]))
    if dataset.chunks is not None:
        rows = max(dataset.chunks[0], rows - rows % dataset.chunks[0])
    found = [~absent(dataset[at : at + rows]) for at in range(0, dataset.shape[0], rows)]
    return np.flatnonzero(np.concatenate(found)).astype(np.int64)


def _show(group: h5py.Group, source: h5py.Group, rows: NDArray[np.int64]) -> None:
    """Make a dataset ``value`` of some rows of that of another group."""
    dataset = source["value"]
    layout = h5py.VirtualLayout((len(rows), *dataset.shape[1:]), dataset.dtype)
    inside = h5py.VirtualSource(".", dataset.name, dataset.shape)
    at = 0
    for start, stop, step in runs_from_indices(rows):
        count = len(range(start, stop, step))
        layout[at : at + count] = inside[start:stop:step]
        at += count
    group.create_virtual_dataset("value", layout, fillvalue=np.nan)
    group["value"].attrs.update(dataset.attrs)


TOPOLOGY = "mdio/topology"
MODULE = "h5md/modules/gromacs_topology"
CONNECTIVITY = "connectivity"
COUNT = "bond_count"
_TABLE = """
X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb
Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
"""
SYMBOLS = _TABLE.split()
"""By atomic number."""
MAX_ATOMS = 1 << 31


def write_topology(file: h5py.File, topology: Topology, group: str) -> None:
    """Write what other programs find: bonds, and what atoms of a particle group are."""
    particles = file[f"particles/{group}"]
    for name, column, unit in (("mass", "masses", "u"), ("charge", "charges", "e")):
        values = topology.numbers(column)
        if values is not None:
            dataset = particles.create_dataset(name, data=values.astype("<f4"))
            dataset.attrs["unit"] = np.bytes_(unit)
    elements = topology.texts("elements")
    if elements is not None:
        place = {symbol.upper(): number for number, symbol in enumerate(SYMBOLS)}
        known = np.array([place.get(text.strip().upper(), 0) for text in elements.table], "<i4")
        particles.create_dataset("species", data=known[elements.codes])
    bonds = topology.numbers(BONDS)
    if bonds is not None:
        connectivity = file.create_group(CONNECTIVITY)
        connectivity.attrs.create(COUNT, len(bonds), dtype="<i8")
        dataset = connectivity.create_dataset("bonds", data=bonds.reshape(-1, 2).astype("<i8"))
        dataset.attrs["particles_group"] = particles.ref


def topology_in(file: h5py.File, group: h5py.Group, n_atoms: int) -> Topology | None:
    """Return what a file of another program says of the atoms of a group; None if nothing.

    Raises ValueError, LookupError: its parts do not fit each other.
    """
    columns: dict[str, Any] = _of_molecules(file[MODULE], n_atoms) if MODULE in file else {}
    for name, column in (("mass", "masses"), ("charge", "charges")):
        node = group.get(name)
        if isinstance(node, h5py.Dataset) and node.shape == (n_atoms,) and node.dtype.kind in "fiu":
            columns.setdefault(column, node[...].astype("f8"))
    node = file.get(f"{CONNECTIVITY}/bonds")
    if isinstance(node, h5py.Dataset) and node.ndim == 2 and node.shape[1] == 2:
        pairs = node[...].astype("i8")
        if pairs.min(initial=0) >= 0 and pairs.max(initial=0) < n_atoms:
            columns[BONDS] = pairs
    if not columns:
        return None
    found = Topology(n_atoms, columns)
    found.check()
    return found


def _of_molecules(module: h5py.Group, n_atoms: int) -> dict[str, Any]:
    """Return the columns of GROMACS' module: a row of molecule types, each some times."""
    names = [_text(name) for name in np.atleast_1d(module.attrs["molecule_block_names"])]
    counts = [int(count) for count in np.atleast_1d(module.attrs["molecule_block_counts"])]
    texts: dict[str, list[str]] = {"names": [], "resnames": [], "segids": names}
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("masses", "charges", "elements")}
    parts |= {name: [] for name in ("names", "resnames", "residues", "segments")}
    first_residue = total = 0
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        kind = module[name]
        size = int(kind.attrs["particle_count"])
        n_residues = int(kind.attrs["residue_count"])
        total += size * count
        if count < 0 or size < 0 or total > min(n_atoms, MAX_ATOMS):
            raise ValueError(f"{module.name} has more atoms than the {n_atoms} of the trajectory")
        for column, dataset in (("masses", "mass"), ("charges", "charge"), ("elements", "species")):
            parts[column].append(np.tile(kind[dataset][...], count))
        for column, dataset in (("names", "particle_name"), ("resnames", "residue_name")):
            table = [_text(text) for text in kind[f"{dataset}_table"][...]]
            codes = kind[dataset][...] + len(texts[column])
            texts[column] += table
            codes = codes if column == "names" else _first_of(codes, kind["residue_id"][...])
            parts[column].append(np.tile(codes, count))
        own = kind["residue_id"][...].astype("i8") - 1
        shift = first_residue + n_residues * np.arange(count)
        parts["residues"].append((own + shift[:, None]).ravel())
        parts["segments"].append(np.full(n_residues * count, number))
        first_residue += n_residues * count
    if total != n_atoms:
        raise ValueError(f"{module.name} has {total} atoms, the trajectory {n_atoms}")
    flat = {name: np.concatenate(part) for name, part in parts.items()}
    symbols = np.where(
        (flat["elements"] > 0) & (flat["elements"] < len(SYMBOLS)), flat["elements"], 0
    )
    return {
        "names": Texts(flat["names"], tuple(texts["names"])),
        "elements": Texts(symbols, ("", *SYMBOLS[1:])),
        "masses": flat["masses"].astype("f8"),
        "charges": flat["charges"].astype("f8"),
        "resids": np.arange(1, first_residue + 1),
        "resnames": Texts(flat["resnames"], tuple(texts["resnames"])),
        "segids": Texts(np.arange(len(names)), tuple(names)),
        RESINDEX: flat["residues"],
        SEGINDEX: flat["segments"],
    }


def _first_of(values: NDArray[Any], residues: NDArray[Any]) -> NDArray[Any]:
    """Return the value of the first atom of each residue."""
    return values[np.unique(residues, return_index=True)[1]]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
