"""Opens trajectories: one file or several as one, and several that one output has, by label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.errors import PlanError, named_read_error
from mdio.core.files.store import AnyPath, path_list, store_at
from mdio.core.words import did_you_mean
from mdio.layouts.base import Layout
from mdio.layouts.registry import FALLBACK, LAYOUTS, layout_class, members_at, open_layout
from mdio.layouts.views import check_overlap

if TYPE_CHECKING:
    from mdio.core.cache import Cache


def open_source(
    paths: AnyPath | Sequence[AnyPath],
    *,
    overlap: str | None = None,
    cache: Cache | AnyPath | None = None,
    cache_size: int | None = None,
    **options: Any,
) -> Layout:
    """Open one trajectory, or several files as one, in the order of their times.

    Parameters
    ----------
    paths
        A file or folder of any layout, or a sequence of them.
    overlap
        Which of the frames with equal times to keep: ``keep-last``, those of the continuation;
        ``keep-first``, those that were there before; ``error``, none; ``keep-all``, all, in the
        order given. By default ``keep-last``, but an error for files that look like replicas.
    cache
        Keep what is read in this folder, on a disk of this node, and read it from there the next
        time (see `mdio.core.cache.Cache`).
    cache_size
        Bytes that all files there may have; by default, all but a tenth of the disk.
    **options
        As for `mdio.layouts.registry.open_layout`, for each of them.

    Returns
    -------
    Layout
        Opened on first use.

    Raises
    ------
    SourceError, UnknownLayoutError
        Nothing is there, it is empty, or no layout reads it.
    PlanError, ValueError
        An `overlap` that is none, or an empty sequence.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> mdio.open(DCD).read(0, 10, atoms=[0, 1, 2]).positions.shape
    (10, 3, 3)
    >>> _ = mdio.convert(DCD, "adk.zarr")
    >>> with mdio.open("adk.zarr") as layout:
    ...     layout.info.n_frames, layout
    (98, <ZarrLayout 'adk.zarr': 98 frames of 3,341 atoms, 1 to 98 ps, every 1 ps>)
    """
    if overlap is not None:
        check_overlap(overlap)
    if cache is not None or cache_size is not None:
        from mdio.core.cache import Cache

        options["cache"] = Cache.from_option(cache, cache_size)
    listed = path_list(paths)
    if len(listed) == 1:
        return open_layout(listed[0], **options)
    from mdio.layouts.views.chain import ChainLayout

    return ChainLayout(listed, overlap=overlap, **options)


LABEL = re.compile(r"[A-Za-z0-9_][\w.+=-]*")
RESERVED = ("mdio", "h5md", "particles")


def ensemble_members(path: Any, group: str | None = None) -> dict[str, Path]:
    """Return the trajectories of an ensemble by label; none if `path` is something else.

    `path`: a path, or a list of one; for all else that may be opened none are returned. `group`:
    which of them: a label, or a pattern such as ``replica0*``; all by default. None are returned
    for ``LABEL/GROUP``, which is one trajectory, and opened as such.
    Raises PlanError: there is none of that name; SourceError: it cannot be looked at.
    """
    if isinstance(path, list | tuple) and len(path) == 1:
        path = path[0]
    if not isinstance(path, str | PathLike) or not store_at(path).holds_ensembles:
        return {}
    where = Path(path)
    try:
        # Opening reports a missing file: no layout has to be imported for that.
        classes = (layout_class(name) for name in LAYOUTS if name != FALLBACK and where.exists())
        layout_type = next((cls for cls in classes if cls.sniff(where)), None)
        members = {} if layout_type is None else members_at(layout_type, where)
    except OSError as error:
        raise (named_read_error(where, error) or error) from error
    if not members or (group is not None and group.partition("/")[0] in members and "/" in group):
        return {}
    chosen = {a: b for a, b in members.items() if group is None or fnmatchcase(a, group)}
    if not chosen:
        close = did_you_mean(str(group), members) or f"; its first is {next(iter(members))!r}"
        raise PlanError(f"{where}: no trajectory of the ensemble is called {group!r}{close}")
    return chosen


def open_ensemble(
    path: str | PathLike[str], group: str | None = None, **options: Any
) -> dict[str, Layout]:
    """Open the trajectories of an ensemble.

    Parameters
    ----------
    path
        The ensemble: a Zarr tree or an H5MD file.
    group
        Which of them: a label, or a pattern such as ``replica0*``; all by default.
    **options
        As for `mdio.open`.

    Returns
    -------
    dict
        Layouts by label, in the order in which they were written.

    Raises
    ------
    PlanError
        It is no ensemble, or none of its trajectories is called so.
    SourceError
        It cannot be read.

    Examples
    --------
    >>> import mdio, os, tempfile
    >>> from MDAnalysisTests.datafiles import DCD
    >>> os.chdir(tempfile.mkdtemp())
    >>> _ = mdio.convert_ensemble({"a": DCD, "b": DCD}, "both.zarr", step=10)
    >>> {label: one.info.n_frames for label, one in mdio.open_ensemble("both.zarr").items()}
    {'a': 10, 'b': 10}
    """
    members = ensemble_members(path, group)
    if not members:
        raise PlanError(f"{path}: no ensemble of trajectories; open it with mdio.open")
    return {label: open_layout(member, **options) for label, member in members.items()}


def check_labels(labels: Sequence[str]) -> None:
    """Refuse what cannot be the name of a group; raises PlanError."""
    for label in labels:
        if not LABEL.fullmatch(label) or label in RESERVED:
            raise PlanError(
                f"a trajectory cannot be called {label!r}; write LABEL=FILE with letters, digits, "
                f"'_', '-', '.' (and not {' or '.join(RESERVED)})"
            )


def paths_by_label(texts: list[str]) -> dict[str, str]:
    """Return trajectories by label, of ``LABEL=FILE`` or just files.

    A file without a label is called as it is, without its suffix; where several files would be
    called the same, each as the folder that it lies in.

    Raises PlanError: two have the same label.
    """
    pairs = [text.partition("=") for text in texts]
    split = [
        (None, text) if not equals or Path(text).exists() else (label, path)
        for text, (label, equals, path) in zip(texts, pairs, strict=True)
    ]
    alone = [Path(path).absolute() for label, path in split if label is None]
    several = len({path.stem for path in alone}) < len(alone)
    by_folder = several and len({path.parent.name for path in alone}) == len(alone)
    paths: dict[str, str] = {}
    for label, path in split:
        name = label or (Path(path).absolute().parent.name if by_folder else Path(path).stem)
        if name in paths:
            raise PlanError(f"two trajectories are called {name!r}; write LABEL={path}")
        paths[name] = path
    return paths
