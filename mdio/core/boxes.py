"""Unit cells as three vectors and as three lengths and three angles, for many frames at once.

The numbers are those of ``triclinic_box`` and ``triclinic_vectors`` in ``MDAnalysis.lib.mdamath``
bit for bit; the same float64 operations are done in the same order, so the order here matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RIGHT_ANGLE = 90.0


def boxes_from_vectors(vectors: NDArray[Any], scale: float | None = None) -> NDArray[np.float32]:
    """Return lengths and angles of unit cells.

    MDAnalysis' readers take these of the vectors as they lie in the file, and convert the units of
    the lengths afterwards: give nm vectors and a scale of 10 to match them.

    `vectors`, (F, 3, 3) float32 or float64: the cell vectors are the rows of each matrix. `scale`:
    multiplies the lengths, as float32 by float32.
    Returns (F, 6) float32: lengths, and the angles between second and third, first and third, first
    and second vector in degrees. Zeros where a length is not positive or an angle not between 0 and
    180.
    Raises ValueError: the shape is not (F, 3, 3).
    """
    cells = np.ascontiguousarray(vectors, np.float64)
    if cells.ndim != 3 or cells.shape[1:] != (3, 3):
        raise ValueError(f"vectors have shape {cells.shape}; it must be (frames, 3, 3)")
    # vecdot sums the three products in the same way as dot does for one pair of vectors.
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.vecdot(cells, cells))
        angles = np.empty_like(lengths)
        for axis, (one, other) in enumerate(((1, 2), (0, 2), (0, 1))):
            cosine = np.vecdot(cells[:, one], cells[:, other])
            cosine /= lengths[:, one] * lengths[:, other]
            angles[:, axis] = np.rad2deg(np.arccos(cosine))
        boxes = np.hstack((lengths, angles)).astype(np.float32)
        valid = np.all(boxes > 0, axis=1) & np.all(angles < 180, axis=1)
        if scale is not None:
            boxes[:, :3] *= np.float32(scale)
    boxes[~valid] = 0
    return boxes


def _cosines(degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(degrees == RIGHT_ANGLE, 0.0, np.cos(np.deg2rad(degrees)))


def _skewed(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the vectors of (F, 6) cells of which some angle is not a right one."""
    lx, ly, lz, alpha, beta, gamma = cells.T
    cos_alpha, cos_beta, cos_gamma = _cosines(alpha), _cosines(beta), _cosines(gamma)
    sin_gamma = np.where(gamma == RIGHT_ANGLE, 1.0, np.sin(np.deg2rad(gamma)))
    vectors = np.zeros((len(cells), 3, 3))
    vectors[:, 0, 0] = lx
    vectors[:, 1, 0] = ly * cos_gamma
    vectors[:, 1, 1] = ly * sin_gamma
    vectors[:, 2, 0] = lz * cos_beta
    vectors[:, 2, 1] = lz * (cos_alpha - cos_beta * cos_gamma) / sin_gamma
    # C's pow, which MDAnalysis squares with, may be a unit in the last place off the product. It
    # has to be called, once a frame, only where float32 numbers hang on that.
    squares = vectors[:, 2, :2] ** 2
    most = _heights(lz, np.nextafter(squares, -np.inf))
    least = _heights(lz, np.nextafter(squares, np.inf))
    unsure = (most.astype(np.float32) != least.astype(np.float32)) | ~(least > 0)
    exact = [x**2 for x in vectors[unsure, 2, :2].ravel().tolist()]
    squares[unsure] = np.reshape(exact, (-1, 2))
    vectors[:, 2, 2] = _heights(lz, squares)
    return vectors


def _heights(lz: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
    heights: NDArray[np.float64] = np.sqrt(lz * lz - squares[:, 0] - squares[:, 1])
    return heights


def vectors_from_boxes(boxes: NDArray[Any]) -> NDArray[np.float32]:
    """Return the vectors of unit cells: the first along x, the second in the xy plane.

    `boxes`, (F, 6) float32: lengths, and angles in degrees.
    Returns (F, 3, 3) float32: in the unit of the lengths, a vector a row. Zeros for cells that are
    none: a number that is not positive, an angle of 180 or more, angles that do not close.
    Raises ValueError: the shape is not (F, 6).
    """
    cells = np.ascontiguousarray(boxes, np.float64)
    if cells.ndim != 2 or cells.shape[1] != 6:
        raise ValueError(f"boxes have shape {cells.shape}; it must be (frames, 6)")
    right = np.all(cells[:, 3:] == RIGHT_ANGLE, axis=1)
    vectors = np.zeros((len(cells), 3, 3))
    vectors[:, [0, 1, 2], [0, 1, 2]] = cells[:, :3]
    with np.errstate(all="ignore"):
        if not right.all():
            vectors[~right] = _skewed(cells[~right])
        valid = np.all(cells > 0, axis=1) & np.all(cells[:, 3:] < 180, axis=1)
        vectors[~(valid & (vectors[:, 2, 2] > 0))] = 0
        return vectors.astype(np.float32)


def edges_from_boxes(boxes: NDArray[Any]) -> NDArray[np.float32]:
    """Return the same as `vectors_from_boxes`, and of cells that are open along some axes.

    `boxes`, (F, 6) float32: a length of 0 stands for an axis that is not periodic.
    Returns (F, 3, 3) float32: the vector of such an axis is zeros, the others are there.
    """
    cells = np.array(boxes)
    is_open = cells[:, :3] == 0
    is_open &= ~is_open.all(axis=1)[:, np.newaxis]
    cells[:, :3][is_open] = 1
    edges = vectors_from_boxes(cells)
    edges[is_open] = 0
    return edges


def periodic_axes(boxes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return along which axes any of some cells, (F, 6), are periodic, (3,)."""
    return np.asarray((np.asarray(boxes)[:, :3] != 0).any(axis=0))
