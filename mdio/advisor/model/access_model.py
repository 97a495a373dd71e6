"""How layouts and gathers use storage and network: the access models of the scaling model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mdio.core.errors import PlanError

LAYOUTS = ("xtc-shared", "segments", "segments-chainreader", "hdf5")
"""One file that all ranks read frame by frame; a file a rank; those files, each opened by each
rank; one HDF5 file read independently through MPI-IO."""

GATHERS = ("gather", "global-array")
"""Blocking collective gather; one-sided puts into an array that rank 0 fetches at the end."""

PAIRS = tuple((layout, gather) for layout in LAYOUTS for gather in GATHERS)

BEHAVES_LIKE = MappingProxyType(
    {
        **dict.fromkeys(("xtc", "trr", "dcd", "ncdf"), "xtc-shared"),
        "h5md": "hdf5",
        "zarr": "segments",
    }
)
"""Layouts of mdio by the published layout they resemble: a shard of Zarr is a file of its own."""

GATHER_NAMES = MappingProxyType(
    {"blocking": "gather", "nonblocking": "gather", "one-sided": "global-array"}
)


def access_model(layout: str) -> str:
    """Return the published layout whose access pattern `layout` shares.

    Raises PlanError: there is no such layout.
    """
    return _modelled("layout", layout, LAYOUTS, BEHAVES_LIKE)


def check_gather(gather: str) -> str:
    """Return the modelled gather of this name.

    Raises PlanError: there is no such gather.
    """
    return _modelled("gather", gather, GATHERS, GATHER_NAMES)


def _modelled(what: str, name: str, modelled: Sequence[str], others: Mapping[str, str]) -> str:
    found = others.get(name, name)
    if found not in modelled:
        known = ", ".join((*modelled, *others))
        raise PlanError(f"{what} {name!r} is not in the scaling model; choose one of {known}")
    return found


def io_family(layout: str) -> str:
    """Return which layouts hold the same bytes: ``hdf5`` holds the selection, the rest is XTC."""
    return "hdf5" if layout == "hdf5" else "xtc"
