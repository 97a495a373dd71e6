"""The one function that opens a trajectory, be it one file or several."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.layouts.views import check_overlap

if TYPE_CHECKING:
    from mdio.core.cache.folder import Cache

AnyPath = str | PathLike[str]


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
        time (see `mdio.core.cache.folder.Cache`).
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
        from mdio.core.cache.folder import Cache

        options["cache"] = Cache.of(cache, cache_size)
    if isinstance(paths, str | PathLike):
        return open_layout(paths, **options)
    if len(paths) == 1:
        return open_layout(paths[0], **options)
    from mdio.layouts.views.chain import ChainLayout

    return ChainLayout(paths, overlap=overlap, **options)
