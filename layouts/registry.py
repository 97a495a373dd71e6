"""The table of layouts, which are found by name, by suffix, or from a file's first bytes.

Other distributions add layouts through entry points of the group ``mdio.layouts``: the name is that
of the layout, the object its class (``lines = mdio_lines:LinesLayout``), which names its suffixes
and its writer. They are searched when no layout of mdio fits.
"""

from __future__ import annotations

import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from mdio.core.errors import (
    MdioError,
    OutputError,
    PlanError,
    SourceError,
    UnknownLayoutError,
    error_text,
    unreadable_error,
)
from mdio.core.files.store import require_disk, store_at, to_path
from mdio.core.words import did_you_mean
from mdio.layouts.base import Layout

if TYPE_CHECKING:
    from mdio.layouts.writer import LayoutWriter

ENTRY_POINT_GROUP = "mdio.layouts"


@dataclass(frozen=True, slots=True)
class Entry:
    """Addresses of the classes of a layout, which are imported when needed."""

    reader: str
    writer: str | None = None
    suffixes: tuple[str, ...] = ()
    """Suffixes of its outputs, if it has a writer."""


_OWN_LAYOUTS = (
    ("zarr", "zarr.layout:ZarrLayout", "zarr.writer:ZarrWriter", ".zarr"),
    ("segments", "segments.layout:SegmentsLayout", "segments.writer:SegmentsWriter", ".segments"),
    ("h5md", "h5md.layout:H5MDLayout", "h5md.writer:H5MDWriter", ".h5md", ".h5"),
    ("refs", "refs:RefsLayout", "refs:RefsWriter", ".refs"),
    ("xtc", "native.xtc:XTCLayout", "native.writer:XTCFileWriter", ".xtc"),
    ("trr", "native.trr:TRRLayout", "native.writer:TRRFileWriter", ".trr"),
    ("dcd", "native.dcd:DCDLayout", "native.writer:DCDFileWriter", ".dcd"),
    ("mdtraj", "foreign.mdtraj:MDTrajLayout", None),
    ("gsd", "foreign.gsd:GSDLayout", None),
    ("restart", "native.restart:RestartLayout", None),
    ("ncdf", "native.netcdf.layout:NCDFLayout", "native.writer:NCDFFileWriter", ".ncdf", ".nc"),
    ("generic", "foreign.generic:GenericLayout", None),
)
LAYOUTS = MappingProxyType(
    {
        name: Entry(f"mdio.layouts.{reader}", writer and f"mdio.layouts.{writer}", tuple(suffixes))
        for name, reader, writer, *suffixes in _OWN_LAYOUTS
    }
)
"""mdio's own, in the order in which `open_layout` tries them; plug-ins come before the last."""

ALIASES = dict.fromkeys(("inpcrd", "restrt", "rst7", "ncrst"), "restart")
"""Layouts by names that MDAnalysis or AMBER give to their formats."""
FALLBACK = "generic"
"""The layout that is tried last: any format that MDAnalysis reads."""
UNMISTAKABLE = ("xtc", "trr", "dcd")
"""Formats whose first bytes no other format has: they are tried first if the suffix fits."""
MAX_LABELS_SHOWN = 5
"""Most trajectories of an ensemble that a message names."""


@cache
def plug_ins() -> MappingProxyType[str, Entry]:
    """Return the layouts of other distributions, which are searched once in a process."""
    from mdio.core.plug_ins import find_plug_ins  # seldom needed

    classes = find_plug_ins(ENTRY_POINT_GROUP, Layout, LAYOUTS)  # type: ignore[type-abstract]
    return MappingProxyType(
        {
            name: Entry(
                f"{cls.__module__}:{cls.__qualname__}", cls.facts.writer, cls.facts.suffixes
            )
            for name, cls in classes.items()
        }
    )


def load_class(address: str) -> Any:
    """Return the class that ``module:Class`` names."""
    module, _, attribute = address.partition(":")
    return getattr(import_module(module), attribute)


def import_readers(trajectory: Any) -> None:
    """Import the modules that will read a path, or several, judged by suffix, ahead of opening."""
    if isinstance(trajectory, Layout):
        return
    paths = [trajectory] if isinstance(trajectory, str | PathLike) else trajectory
    suffixes = {Path(path).suffix for path in paths if isinstance(path, str | PathLike)}
    for entry in LAYOUTS.values():
        if suffixes.intersection(entry.suffixes):
            for module in load_class(entry.reader).facts.imported_modules:
                import_module(module)


def _entry(name: str) -> Entry | None:
    return LAYOUTS.get(name) or plug_ins().get(name)


def layout_class(name: str) -> type[Layout]:
    """Return the class that reads layout `name`; raises UnknownLayoutError."""
    entry = _entry(name)
    if entry is None:
        names = ", ".join([*LAYOUTS, *plug_ins()])
        raise UnknownLayoutError(f"no layout is called {name!r}; there are {names}")
    return cast(type[Layout], load_class(entry.reader))


def writer_class(name: str) -> type[LayoutWriter]:
    """Return the class that writes layout `name`; raises UnknownLayoutError."""
    entry = _entry(name)
    if entry is None or entry.writer is None:
        raise UnknownLayoutError(f"{name!r} cannot be written; {', '.join(writable_layouts())} can")
    return cast("type[LayoutWriter]", load_class(entry.writer))


def writable_layouts() -> list[str]:
    """Return the names of all layouts that can be written."""
    entries = {**LAYOUTS, **plug_ins()}
    return [name for name, entry in entries.items() if entry.writer is not None]


def output_suffixes() -> dict[str, str]:
    """Return the layout of each suffix of outputs; mdio's own take precedence."""
    layouts: dict[str, str] = {}
    for name, entry in [*LAYOUTS.items(), *plug_ins().items()]:
        if entry.writer is not None:
            for suffix in entry.suffixes:
                layouts.setdefault(suffix, name)
    return layouts


def refuse_parts(out: Path) -> None:
    """Raise OutputError if an output at `out` has frames in a folder beside it: it is not replaced.

    Earlier versions wrote such outputs.
    """
    if not (store_at(out).has_folders and out.is_file()):
        return  # without importing all layouts
    finders = (layout_class(name).facts.parts for name in LAYOUTS)
    for finder in filter(None, finders):
        folder = load_class(finder)(out)
        if folder is not None and folder.is_dir():
            raise OutputError(
                f"{out}: an earlier version of mdio has written its frames into {folder}, and the "
                "two are not replaced together; delete both, or choose another name"
            )


def find_members(cls: type[Layout], path: Path) -> dict[str, Path]:
    """Return the paths of the trajectories of an ensemble at `path`, by label."""
    if cls.facts.members is None or not store_at(path).holds_ensembles:
        return {}
    try:
        return cast(dict[str, Path], load_class(cls.facts.members)(path))
    except MdioError:
        raise
    except OSError as error:
        raise unreadable_error(path, error) from error


def layout_name_for_output(
    path: str | PathLike[str], to: str | None = None, one_frame_suffixes: Iterable[str] = ()
) -> str:
    """Return the layout to write: `to`, or that of the suffix of `path`.

    `one_frame_suffixes`: suffixes of files of one frame, which are written too, for the message.
    """
    if to is not None:
        writer_class(to)
        return to
    suffix = Path(path).suffix.lower()
    for name, entry in LAYOUTS.items():
        if suffix in entry.suffixes:
            return name
    suffixes = output_suffixes()
    if suffix not in suffixes:
        frames = "".join(f", {other} (one frame)" for other in one_frame_suffixes)
        hint = did_you_mean(suffix, (*suffixes, *one_frame_suffixes))
        raise PlanError(
            f"{path}: the suffix {suffix!r} names no layout{hint}; "
            f"use one of {', '.join(suffixes)}{frames}, or set --to"
        )
    return suffixes[suffix]


def _candidates(path: Path) -> Iterator[type[Layout]]:
    """Yield the classes that may read `path`, in the order in which they are tried.

    Formats with unmistakable first bytes and a fitting suffix come first; for an object in a store,
    all formats with its suffix, since trying others takes requests.
    """
    is_slow, suffix = store_at(path).opening_waits, path.suffix.lower()
    for name, entry in LAYOUTS.items():
        if suffix in entry.suffixes and (is_slow or (name in UNMISTAKABLE and path.is_file())):
            yield layout_class(name)
    for name in LAYOUTS:
        if name != FALLBACK:
            yield layout_class(name)
    for name in (*plug_ins(), FALLBACK):
        yield layout_class(name)


def _recognises(cls: type[Layout], path: Path) -> bool:
    """Return whether a layout reads `path`; with a warning, not if it fails to tell."""
    try:
        return cls.sniff(path)
    except (OSError, MdioError):
        raise
    except Exception as error:  # plug-ins raise anything; other layouts can still be tried
        text = f"the layout {cls.name!r} is not tried, since its sniff failed: {error_text(error)}"
        warnings.warn(f"{path}: {text}", stacklevel=2)
        return False


def _instantiate(cls: type[Layout], path: Path, options: dict[str, Any]) -> Layout:
    """Return a layout; ``salvage`` is left out unless it searches for frames after damage."""
    if not cls.facts.reads_remote:
        require_disk(path, f"{cls.name} is not read from object stores; copy it here", SourceError)
    if options.get("cache") is not None:
        require_disk(path, "caches of nodes hold files, not objects; leave cache= out")
    try:
        store_at(path).check_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # opening it says so
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened ({error.strerror})") from error
    path = _path_in_ensemble(cls, path, options)
    if "salvage" not in (cls.facts.options or ()):
        options.pop("salvage", None)
    return cls(path, **options)


def _path_in_ensemble(cls: type[Layout], path: Path, options: dict[str, Any]) -> Path:
    """Return the path of the trajectory that ``group`` names, or `path` if it is no ensemble."""
    members = find_members(cls, path)
    if not members:
        return path
    labels = list(members)
    label, _, group = str(options.pop("group", None) or "").partition("/")
    if label not in labels:
        unknown = f", but no trajectory {label!r}{did_you_mean(label, labels)}" if label else ""
        names = ", ".join(labels[:MAX_LABELS_SHOWN])
        names += ", ..." if len(labels) > MAX_LABELS_SHOWN else ""
        raise PlanError(
            f"{path}: an ensemble of {len(labels)} trajectories ({names}){unknown}; "
            f"choose one as {members[labels[0]]}, or by group={labels[0]!r} in Python "
            "(mdio convert --ensemble takes all, to files with {label} in their names)"
        )
    if group:
        options["group"] = group
    return members[label]


def open_layout(
    path: str | PathLike[str],
    *,
    layout: str | None = None,
    format: str | None = None,
    **options: Any,
) -> Layout:
    """Open a trajectory of any layout.

    `path`: file or folder. `layout`: name of the layout; by default the bytes at `path` decide, not
    its suffix. `format`: the same, or a format as MDAnalysis calls it (``LAMMPSDUMP``).
    `**options`: for the layout (``group=``, ``fields=``, ...). Returns Layout: opened on first use.
    Raises SourceError: it does not exist, or is empty. UnknownLayoutError: no layout reads it.
    """
    target = to_path(path)
    if layout is None and format is not None:
        layout = ALIASES.get(format.lower(), format.lower())
        layout = layout if _entry(layout) is not None else FALLBACK
        options |= {"format": format.upper()} if layout == FALLBACK else {}
        if layout != FALLBACK and not store_at(target).opening_waits:
            actual = None
            with suppress(OSError):  # opening it raises a better error
                if target.is_file() and not _recognises(layout_class(layout), target):
                    actual = next(
                        (cls.name for cls in _candidates(target) if _recognises(cls, target)), None
                    )
            if actual not in (None, FALLBACK):
                raise SourceError(
                    f"{target}: is {actual}, and was to be read as {layout}; leave its format out "
                    "(an output's format is given by its suffix, or by --to)"
                )
    if layout is not None:
        return _instantiate(layout_class(layout), target, options)
    try:
        status = target.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceError(f"{target}: {store_at(target).missing_text(target)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{target}: cannot be opened ({reason}); check the path") from error
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise SourceError(
            f"{target}: neither a file nor a folder (a pipe, a socket or a device); a trajectory "
            "is read in parts, so write it into a file first"
        )
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        raise SourceError(f"{target}: the file is empty (0 bytes), so it holds no trajectory")
    try:
        reader = next((cls for cls in _candidates(target) if _recognises(cls, target)), None)
    except MdioError:
        raise
    except OSError as error:
        raise unreadable_error(target, error) from error
    if reader is not None:
        return _instantiate(reader, target, options)
    if stat.S_ISDIR(status.st_mode):
        raise UnknownLayoutError(
            f"{target}: a folder, but not an output of mdio; give a trajectory file, or a folder "
            "NAME.zarr or NAME.segments"
        )
    from MDAnalysis import _PARSERS

    from mdio.layouts.foreign.compressed import COMPRESSED_SUFFIXES

    unpacked = target.with_suffix("") if target.suffix.lower() in COMPRESSED_SUFFIXES else target
    if unpacked.suffix[1:].upper() in _PARSERS:
        raise UnknownLayoutError(
            f"{target}: a topology, which holds no frames; give a trajectory, and this file with "
            "-s/--top (top= in Python)"
        )
    raise UnknownLayoutError(
        f"{target}: not recognised as a trajectory; if it is one, name its format with --format "
        "(LAMMPSDUMP, XYZ, PDB, ...), or give the file the usual suffix"
    )
