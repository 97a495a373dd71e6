"""H5MD files in the units, and with the names, that another program reads.

``gromacs`` is what GROMACS 2026's reader takes (src/gromacs/fileio/h5md of its sources, at commit
b1a82ec1956e). It opens ``/particles/system`` (h5md.cpp, lines 507 to 512 and 570) and in it
``position``, ``velocity`` and ``force`` where there are any, each with ``value`` in float32 of
shape (F, N, 3), ``step`` in int64 and ``time`` in float64 of as many frames (518 to 540;
h5md_timedatablock.cpp, 74 to 99; h5md_datasetbase.cpp, 92 to 115). With positions there have to be
``box/edges/value`` of shape (F, 3, 3), whose row i belongs to row i of the positions (h5md.cpp, 528
to 531 and 762; h5md_particleblock.cpp, 115 to 122). The next frame has the smallest step not yet
read in any of them (709 to 732), so a field that some frames lack has steps of its own. Numbers
are in nm and ps (127 to 131), whichever units the file names. Any chunks and compression are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.frames import H5MD_NAMES, absent_frames
from mdio.layouts.chunked.own import UNITS
from mdio.layouts.manifest import FULL_SYSTEM, runs_from_indices

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan

READ_NBYTES = 32 << 20
"""Approximate bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """Units of stored numbers, and the name of the full system."""

    units: Mapping[str, str]
    factors: Mapping[str, float] = field(default_factory=dict)
    """By field, the factor from stored numbers to those in memory; 1 for fields without one."""
    system_name: str | None = None
    """Another name for the group of all atoms, which then always has box edges."""

    def to_stored_units(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return numbers of a field in the units in which they are stored.

        They are divided by what reading multiplies with, so that it gives the same numbers.
        """
        return values / np.float32(self.factors[name]) if name in self.factors else values


_FLAVOURS = MappingProxyType(
    {
        None: Flavour(UNITS),
        "gromacs": Flavour(
            {"positions": "nm", "velocities": "nm ps-1", "forces": "kJ mol-1 nm-1"},
            {"positions": 10.0, "velocities": 10.0, "forces": 0.1},
            "system",
        ),
    }
)


def get_flavour(name: str | None) -> Flavour:
    """Return a flavour by name; raises PlanError for an unknown one."""
    if name not in _FLAVOURS:
        names = ", ".join(key for key in _FLAVOURS if key)
        raise PlanError(f"--flavour {name}: there is no such flavour of h5md, only {names}")
    return _FLAVOURS[name]


def link_full_system(file: h5py.File, plan: LayoutPlan) -> None:
    """Add the group of all atoms under the name that the flavour's program looks for.

    Of a field that some frames lack, virtual datasets show only the frames that have it.
    """
    name = get_flavour(plan.flavour).system_name
    if name is None:
        return
    full_system = file[f"particles/{FULL_SYSTEM}"]
    if not plan.native.sparse:
        file[f"particles/{name}"] = full_system
        return
    system = file.create_group(f"particles/{name}")
    box = system.create_group("box")
    box.attrs.update(full_system["box"].attrs)
    for field_name in dict.fromkeys(array.field for array in plan.arrays):
        element = H5MD_NAMES[field_name]
        frames = _present_frames(full_system[element]["value"])
        group = system.create_group(element)
        _add_virtual_value(group, full_system[element], frames)
        for column in ("step", "time"):
            group[column] = full_system[element][column][...][frames]
            group[column].attrs.update(full_system[element][column].attrs)
        if field_name == "positions":
            edges = box.create_group("edges")
            _add_virtual_value(edges, full_system["box/edges"], frames)
            edges["step"], edges["time"] = group["step"], group["time"]


def _present_frames(dataset: h5py.Dataset) -> NDArray[np.int64]:
    n_rows = max(1, READ_NBYTES // (12 * dataset.shape[1]))
    if dataset.chunks is not None:
        n_rows = max(dataset.chunks[0], n_rows - n_rows % dataset.chunks[0])
    is_present = [
        ~absent_frames(dataset[first : first + n_rows])
        for first in range(0, dataset.shape[0], n_rows)
    ]
    return np.flatnonzero(np.concatenate(is_present)).astype(np.int64)


def _add_virtual_value(group: h5py.Group, source: h5py.Group, frames: NDArray[np.int64]) -> None:
    """Make a virtual dataset ``value`` that shows `frames` of the one in `source`."""
    dataset = source["value"]
    layout = h5py.VirtualLayout((len(frames), *dataset.shape[1:]), dataset.dtype)
    virtual_source = h5py.VirtualSource(".", dataset.name, dataset.shape)
    first = 0
    for start, stop, step in runs_from_indices(frames):
        n_frames = len(range(start, stop, step))
        layout[first : first + n_frames] = virtual_source[start:stop:step]
        first += n_frames
    group.create_virtual_dataset("value", layout, fillvalue=np.nan)
    group["value"].attrs.update(dataset.attrs)
