"""The look-up of layouts: by name, by suffix, by a look at the bytes."""

from __future__ import annotations

import stat
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from mdio.core.errors import PlanError, SourceError, UnknownLayoutError
from mdio.layouts.base import Layout
from mdio.layouts.writer import LayoutWriter

__all__ = [
    "LAYOUTS",
    "WRITERS",
    "layout_class",
    "layout_name_for_output",
    "open_layout",
    "writer_class",
]

LAYOUTS = MappingProxyType(
    {
        "zarr": "mdio.layouts.zarr_layout:ZarrLayout",
        "segments": "mdio.layouts.segments:SegmentsLayout",
        "h5md": "mdio.layouts.h5md:H5MDLayout",
        "xtc": "mdio.layouts.xtc:XTCLayout",
        "trr": "mdio.layouts.trr:TRRLayout",
        "dcd": "mdio.layouts.dcd:DCDLayout",
        "ncdf": "mdio.layouts.ncdf:NCDFLayout",
        "generic": "mdio.layouts.generic:GenericLayout",
    }
)
"""Where each readable layout is, in the order in which `open_layout` asks; imported when needed."""

WRITERS = MappingProxyType(
    {
        "segments": "mdio.layouts.segments_writer:SegmentsWriter",
        "h5md": "mdio.layouts.h5md_writer:H5MDWriter",
        "zarr": "mdio.layouts.zarr_writer:ZarrWriter",
        "xtc": "mdio.layouts.native_writer:XTCFileWriter",
        "trr": "mdio.layouts.native_writer:TRRFileWriter",
        "dcd": "mdio.layouts.native_writer:DCDFileWriter",
        "ncdf": "mdio.layouts.native_writer:NCDFFileWriter",
    }
)
"""Where the writer of each writable layout is."""

SUFFIXES = MappingProxyType(
    {
        ".segments": "segments",
        ".h5md": "h5md",
        ".h5": "h5md",
        ".zarr": "zarr",
        ".xtc": "xtc",
        ".trr": "trr",
        ".dcd": "dcd",
        ".ncdf": "ncdf",
        ".nc": "ncdf",
    }
)
"""Layout of an output by its suffix."""


def _load(address: str) -> type:
    module, _, attribute = address.partition(":")
    return cast(type, getattr(import_module(module), attribute))


def layout_class(name: str) -> type[Layout]:
    """Return the class that reads layout `name`; raises UnknownLayoutError."""
    if name not in LAYOUTS:
        raise UnknownLayoutError(f"no layout is called {name!r}; there are {', '.join(LAYOUTS)}")
    return _load(LAYOUTS[name])


def writer_class(name: str) -> type[LayoutWriter]:
    """Return the class that writes layout `name`; raises UnknownLayoutError."""
    if name not in WRITERS:
        raise UnknownLayoutError(f"{name!r} cannot be written; {', '.join(WRITERS)} can")
    return _load(WRITERS[name])


def layout_name_for_output(path: str | PathLike[str], to: str | None = None) -> str:
    """Return the layout to write: `to`, or what the suffix of `path` says."""
    if to is not None:
        writer_class(to)
        return to
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise PlanError(
            f"{path}: the suffix {suffix!r} names no layout; "
            f"use one of {', '.join(SUFFIXES)}, or say --to"
        )
    return SUFFIXES[suffix]


def open_layout(path: str | PathLike[str], *, layout: str | None = None, **options: Any) -> Layout:
    """Open a trajectory of any layout.

    Parameters
    ----------
    path
        File or folder.
    layout
        Name of the layout; by default the bytes at `path` decide, not its suffix.
    **options
        For the layout (``group=``, ``fields=``, ...).

    Returns
    -------
    Layout
        Opened on first use.

    Raises
    ------
    SourceError
        Nothing is there, or it is empty.
    UnknownLayoutError
        No layout reads it.
    """
    where = Path(path)
    if layout is not None:
        return layout_class(layout)(where, **options)
    try:
        status = where.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceError(f"{where}: no such file or folder") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{where}: cannot be opened ({reason}); check the path") from error
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise SourceError(
            f"{where}: neither a file nor a folder (a pipe, a socket or a device); a trajectory is "
            "read in parts, so write it into a file first"
        )
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        raise SourceError(f"{where}: the file is empty (0 bytes), so it holds no trajectory")
    for name in LAYOUTS:
        cls = layout_class(name)
        if cls.sniff(where):
            return cls(where, **options)
    if where.is_dir():
        raise UnknownLayoutError(
            f"{where}: a folder that is no layout of mdio; name a trajectory file, or a folder "
            "NAME.zarr or NAME.segments"
        )
    raise UnknownLayoutError(
        f"{where}: neither a layout of mdio nor a trajectory that MDAnalysis knows by its suffix; "
        "link or rename a trajectory to a name with the suffix of its format"
    )
