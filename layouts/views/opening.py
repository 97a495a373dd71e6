"""Opening trajectories: one file, several files as one, and the trajectories of an ensemble."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.errors import MdioError, PlanError, unreadable_error
from mdio.core.files.store import AnyPath, path_list, store_at
from mdio.core.words import did_you_mean
from mdio.layouts.base import Layout
from mdio.layouts.registry import FALLBACK, LAYOUTS, find_members, layout_class, open_layout
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
        Which of the frames with equal times to keep: ``keep-last``, those of the later file;
        ``keep-first``, those of the earlier file; ``keep-all``, all, with files in the order given;
        ``error`` raises an error. By default ``keep-last``, but an error for files that look like
        replicas.
    cache
        Folder on a disk of this node, in which units that are read are kept, to be read from there
        the next time (see `mdio.core.cache.Cache`).
    cache_size
        Limit of the cache, bytes; by default, all but a tenth of the disk.
    **options
        As for `mdio.layouts.registry.open_layout`, for each of them.

    Returns
    -------
    Layout
        Opened on first use.

    Raises
    ------
    SourceError, UnknownLayoutError
        A path does not exist, is empty, or no layout reads it.
    PlanError, ValueError
        An unknown `overlap`, or an empty sequence.

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
    path_sequence = path_list(paths)
    if len(path_sequence) == 1:
        return open_layout(path_sequence[0], **options)
    from mdio.layouts.views.chain import ChainLayout

    return ChainLayout(path_sequence, overlap=overlap, **options)


LABEL_PATTERN = re.compile(r"[A-Za-z0-9_][\w.+=-]*")
RESERVED_LABELS = ("mdio", "h5md", "particles", "zarr.json")


def ensemble_members(path: Any, group: str | None = None) -> dict[str, Path]:
    """Return the trajectories of an ensemble by label; empty if `path` is not an ensemble.

    `path`: anything that may be opened; only a path, or a list of one, can be an ensemble. `group`:
    a label, or a pattern of labels such as ``replica0*``; all by default. The result is also empty
    for ``LABEL/GROUP``, which is opened as one trajectory.
    """
    if isinstance(path, list | tuple) and len(path) == 1:
        path = path[0]
    if not isinstance(path, str | PathLike) or not store_at(path).holds_ensembles:
        return {}
    ensemble_path = Path(path)
    try:
        # Opening reports a missing file: no layout has to be imported for that.
        names = [name for name in LAYOUTS if name != FALLBACK] if ensemble_path.exists() else []
        classes = (layout_class(name) for name in names)
        layout_type = next((cls for cls in classes if cls.sniff(ensemble_path)), None)
        members = {} if layout_type is None else find_members(layout_type, ensemble_path)
    except MdioError:
        raise
    except OSError as error:
        raise unreadable_error(ensemble_path, error) from error
    if not members or (group is not None and group.partition("/")[0] in members and "/" in group):
        return {}
    selected = {
        label: member
        for label, member in members.items()
        if group is None or fnmatchcase(label, group)
    }
    if not selected:
        hint = did_you_mean(str(group), members) or f"; its first is {next(iter(members))!r}"
        raise PlanError(f"{ensemble_path}: no trajectory of the ensemble is called {group!r}{hint}")
    return selected


def open_ensemble(
    path: str | PathLike[str], group: str | None = None, **options: Any
) -> dict[str, Layout]:
    """Open the trajectories of an ensemble.

    Parameters
    ----------
    path
        The ensemble: a Zarr tree or an H5MD file.
    group
        A label, or a pattern of labels such as ``replica0*``; all by default.
    **options
        As for `mdio.open`.

    Returns
    -------
    dict
        Layouts by label, in the order in which they were written.

    Raises
    ------
    PlanError
        `path` is not an ensemble, or none of its trajectories is called `group`.
    SourceError
        `path` cannot be read.

    Examples
    --------
    >>> import mdio, os, tempfile
    >>> from MDAnalysisTests.datafiles import DCD
    >>> os.chdir(tempfile.mkdtemp())
    >>> _ = mdio.convert_ensemble({"a": DCD, "b": DCD}, "both.zarr", step=10)
    >>> {label: layout.info.n_frames for label, layout in mdio.open_ensemble("both.zarr").items()}
    {'a': 10, 'b': 10}
    """
    members = ensemble_members(path, group)
    if not members:
        raise PlanError(f"{path}: not an ensemble of trajectories; open it with mdio.open")
    return {label: open_layout(member, **options) for label, member in members.items()}


def check_labels(labels: Sequence[str]) -> None:
    """Raise PlanError if a label cannot be the name of a group."""
    for label in labels:
        is_name = isinstance(label, str) and LABEL_PATTERN.fullmatch(label) is not None
        if not is_name or label in RESERVED_LABELS:
            raise PlanError(
                f"a trajectory cannot be called {label!r}; write LABEL=FILE with letters, digits, "
                f"'_', '-', '.' (and not {' or '.join(RESERVED_LABELS)})"
            )


def check_unlabelled(texts: Sequence[str], advice: str) -> None:
    """Raise PlanError if one is ``LABEL=FILE`` where there are no labels; `advice`: what to do."""
    for text in texts:
        _, equals, path = text.partition("=")
        if equals and Path(path).exists() and not Path(text).exists():
            raise PlanError(f"{text}: no such file, but {path} is one; {advice}")


def paths_by_label(texts: list[str]) -> dict[str, str]:
    """Return paths by label, from ``LABEL=FILE`` or ``FILE``; raises PlanError.

    The label of a ``FILE`` is its name without the suffix; if several files have the same name,
    that of its folder.
    """
    pairs = [text.partition("=") for text in texts]
    labelled_paths = [
        (None, text) if not equals or Path(text).exists() else (label, path)
        for text, (label, equals, path) in zip(texts, pairs, strict=True)
    ]
    unlabelled = [Path(path).absolute() for label, path in labelled_paths if label is None]
    has_equal_names = len({path.stem for path in unlabelled}) < len(unlabelled)
    by_folder = has_equal_names and len({path.parent.name for path in unlabelled}) == len(
        unlabelled
    )
    paths: dict[str, str] = {}
    for label, path in labelled_paths:
        name = label or (Path(path).absolute().parent.name if by_folder else Path(path).stem)
        if name in paths:
            raise PlanError(f"two trajectories are called {name!r}; write LABEL={path}")
        paths[name] = path
    return paths
