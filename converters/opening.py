"""Opening sources again, and those that are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.layouts.views.joining import KEEP_ALL

__all__ = ["open_damaged", "opening_of", "salvage_offered"]


def opening_of(layout: Layout) -> dict[str, Any]:
    """Return how the files of the source are opened and joined, to be what `layout` holds."""
    if layout.manifest is None:
        return {}
    source = layout.manifest["source"]
    joined = source.get("joined")
    how = {"overlap": KEEP_ALL if joined is None else joined.get("overlap")}
    return how | {"salvage": True} if "unreadable_frames" in source else how


def open_damaged(path: str | PathLike[str]) -> Layout:
    """Open a trajectory; if it is damaged, so that frames behind the damage are found too."""
    layout = open_layout(path)
    try:
        _ = layout.info
    except CorruptLayoutError:
        raise
    except SourceError:
        layout = open_layout(path, salvage=True)
        _ = layout.info
    return layout


@contextmanager
def salvage_offered(salvage: bool) -> Iterator[None]:
    """Say, of a source that turns out damaged, that the rest of it can be had, if it was not asked.

    Parameters
    ----------
    salvage
        Whether it was.
    """
    try:
        yield
    except SourceError as error:
        if salvage or "damaged" not in str(error):
            raise
        raise SourceError(
            f"{error}; add --salvage (salvage=True) to take the frames that can be read "
            "(`mdio verify` lists the others)"
        ) from error
