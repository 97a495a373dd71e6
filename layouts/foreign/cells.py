"""Unit cells in H5MD trees of others: of every frame or of all, as lengths or as vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import SourceError
from mdio.layouts.foreign.sampling import Sampling, child, require_numbers


def is_array(node: Any) -> bool:
    """Return whether a node of a tree is an array, not a group."""
    return hasattr(node, "shape")


def text_of(value: Any) -> str | None:
    """Return a string attribute, of whichever kind; None if there is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _is_right(vectors: NDArray[Any]) -> bool:
    """Return whether all vectors of cells, (..., n, n), lie along the axes."""
    off = ~np.eye(vectors.shape[-1], dtype=bool)
    return not vectors[..., off].any()


@dataclass(slots=True)
class Cells:
    """The edges of the cells of a particle group."""

    edges: Any
    """An array: (3,) or (3, 3), or of two dimensions, of each frame if `per_frame`."""
    per_frame: bool
    open_axes: tuple[int, ...] = ()
    """Those that are not periodic."""
    notes: tuple[str, ...] = ()
    scale: np.float32 = np.float32(1)  # noqa: RUF009 - a number
    """To angstrom."""

    @classmethod
    def found_in(cls, path: Path, group: Any, n_positions: int) -> Cells | None:
        """Return the cells of a particle group; None if it has none.

        Raises SourceError: it has neither two nor three dimensions, or is no group. ValueError:
        edges of another shape.
        """
        box = child(group, "box")
        if is_array(box):
            raise SourceError(f"{path}: {box.name} is an array, expected a group with edges")
        edges = None if box is None else child(box, "edges")
        n_axes = 3 if box is None else int(child(box.attrs, "dimension", 3))
        if n_axes not in (2, 3):
            raise SourceError(f"{path}: {box.name} has {n_axes} dimensions, expected 3 or 2")
        boundary = () if box is None else np.atleast_1d(child(box.attrs, "boundary", ()))
        open_axes = tuple(axis for axis, one in enumerate(boundary) if text_of(one) == "none")
        if edges is None or (len(boundary) and len(open_axes) == len(boundary)):
            return None
        per_frame = False
        if not is_array(edges):
            is_series = "step" in edges or "time" in edges
            edges = edges["value"]
            # Three times three numbers may be vectors, or the lengths of three frames.
            per_frame = edges.ndim > (1 if is_series else 2)
            per_frame |= edges.ndim == 2 and (edges.shape[0] != n_axes or n_positions == n_axes)
        require_numbers(edges)
        if n_axes == 2 and edges.shape[-1:] != (2,):
            raise SourceError(
                f"{path}: {box.name} has 2 dimensions, but {edges.name} has shape {edges.shape}"
            )
        if edges.shape[-1:] != (n_axes,) or edges.ndim - per_frame not in (1, 2):
            raise ValueError(f"{edges.name} has shape {edges.shape}")
        if 0 in edges.shape:
            return None
        notes: tuple[str, ...] = ()
        if open_axes and edges.ndim - per_frame == 2 and not _is_right(edges[()]):
            names = " and ".join("xyz"[axis] for axis in open_axes)
            notes = (
                f"{path}: the cell is not periodic along {names}, which cannot be kept of a skewed "
                "cell: it is taken for periodic on all axes",
            )
            open_axes = ()
        return cls(edges, per_frame, open_axes, notes)

    def read(self, sampling: Sampling, start: int, stop: int) -> NDArray[np.float32]:
        """Return the cells of frames ``start:stop``; zeros in those without one.

        The length of an axis that is not periodic, as the third of two dimensions, is 0: what
        MDAnalysis takes for that.
        """
        has = None
        if self.per_frame:
            first, last, has = sampling.rows("box", start, stop)
            edges = self.edges[first:last]
        else:
            edges = self.edges[()][np.newaxis]
        n_axes = edges.shape[-1]
        if edges.ndim == 2:
            boxes = np.full((len(edges), 6), 90, np.float32)
            boxes[:, :n_axes] = edges
        else:
            if n_axes == 2:
                edges = np.pad(edges, ((0, 0), (0, 1), (0, 1)))
                edges[:, 2, 2] = 1
            if self.open_axes:
                edges = np.array(edges)
                edges[:, self.open_axes, self.open_axes] = 1
            boxes = boxes_from_vectors(edges)
        boxes[:, n_axes:3] = 0
        boxes[:, self.open_axes] = 0
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0  # what MDAnalysis takes for no cell
        boxes[:, :3] *= self.scale
        if has is not None:
            every = np.zeros((stop - start, 6), np.float32)
            every[has] = boxes
            return every
        return boxes if self.per_frame else np.broadcast_to(boxes, (stop - start, 6))
