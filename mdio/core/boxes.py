"""Unit cells as three vectors and as three lengths and three angles, for many frames at once.

The numbers are those of ``triclinic_box`` and ``triclinic_vectors`` in ``MDAnalysis.lib.mdamath``
bit for bit; the same float64 operations are done in the same order, so the order here matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RIGHT_ANGLE = 90.0
MAX_CELL_CHANGE = 1e-4
"""Share by which unit cells of constant volume may differ, which files may round."""
MAX_TILT = 1e-3
"""How far a vector of a cell may be from where its box has it, as a share of the longest one."""
ROTATED_CELL = (
    "the cell is rotated against x, y and z (a box has its first vector along x, its second in the "
    "plane of x and y), and lengths and angles alone are read: periodic images lie elsewhere, so "
    "that --pbc, distances to nearest images and all else that goes over the boundary is wrong, as "
    "in MDAnalysis; make molecules whole in the program that wrote it"
)
"""A note on cells of which `are_rotated` is true."""
OPEN_LENGTH = 1e9
"""A length for an axis that is not periodic: nothing crosses the box there."""


def boxes_from_vectors(vectors: NDArray[Any], scale: float | None = None) -> NDArray[np.float32]:
    """Return lengths and angles of unit cells, (F, 6) float32.

    MDAnalysis' readers compute these in the units of the file, and convert the lengths afterwards:
    give nm vectors and a scale of 10 to match them.
    `vectors`, (F, 3, 3) float32 or float64: the cell vectors are the rows of each matrix. `scale`:
    multiplies the lengths, as float32 by float32.
    Angles, in degrees, are those between second and third, first and third, first and second
    vector. Zeros where a length is not positive or an angle not between 0 and 180.
    """
    if vectors.shape == (1, 3, 3) and vectors.dtype == np.float32:
        edges = vectors[0].diagonal().tolist()
        if all(0 < edge < 1e30 for edge in edges) and np.count_nonzero(vectors) == 3:
            # The same numbers in less time, of which single frames of an XTC took a third.
            boxes = np.array([[*edges, RIGHT_ANGLE, RIGHT_ANGLE, RIGHT_ANGLE]], np.float32)
            if scale is not None:
                boxes[:, :3] *= np.float32(scale)
            return boxes
    cells = np.ascontiguousarray(vectors, np.float64)
    if cells.ndim != 3 or cells.shape[1:] != (3, 3):
        raise ValueError(f"vectors have shape {cells.shape}; it must be (frames, 3, 3)")
    # vecdot sums the three products in the same way as dot does for one pair of vectors.
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.vecdot(cells, cells))
        angles = np.empty_like(lengths)
        for axis, (first, second) in enumerate(((1, 2), (0, 2), (0, 1))):
            cosine = np.vecdot(cells[:, first], cells[:, second])
            cosine /= lengths[:, first] * lengths[:, second]
            angles[:, axis] = np.rad2deg(np.arccos(cosine))
        boxes = np.hstack((lengths, angles)).astype(np.float32)
        valid = np.all(boxes > 0, axis=1) & np.all(angles < 180, axis=1)
        if scale is not None:
            boxes[:, :3] *= np.float32(scale)
    boxes[~valid] = 0
    return boxes


def are_rotated(vectors: NDArray[Any]) -> bool:
    """Return whether the boxes of any of these cells, (F, 3, 3), have their images elsewhere.

    A cell whose vectors are sums of those of its box has the same images, such as a cube whose
    vectors are in another order. Cells without a volume do not count.
    """
    diagonals = np.diagonal(vectors, axis1=1, axis2=2)
    if not np.triu(vectors, 1).any() and (diagonals >= 0).all():  # as nearly everywhere
        return False
    boxes = boxes_from_vectors(vectors)
    edges = vectors_from_boxes(boxes).astype(np.float64)
    diagonals = np.diagonal(edges, axis1=1, axis2=2)
    is_cell = ((diagonals > 0) & np.isfinite(diagonals)).all(axis=1)
    cells, edges = np.asarray(vectors, np.float64)[is_cell], edges[is_cell]
    lattice = np.rint(cells @ np.linalg.inv(edges)) @ edges
    longest = boxes[is_cell, :3].max(axis=1, initial=0)
    return bool((np.abs(cells - lattice).max(axis=(1, 2), initial=0) > MAX_TILT * longest).any())


def does_cell_change(boxes: NDArray[np.float32]) -> bool:
    """Return whether lengths or angles of unit cells, (F, 6), differ, as at constant pressure.

    Frames without a cell do not count.
    """
    boxes = boxes[boxes.any(axis=1)]
    largest = boxes.max(axis=0, initial=0)
    return bool((largest - boxes.min(axis=0, initial=np.inf) > MAX_CELL_CHANGE * largest).any())


def _cosines(degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(degrees == RIGHT_ANGLE, 0.0, np.cos(np.deg2rad(degrees)))


def _triclinic_vectors(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the vectors of (F, 6) cells that have angles other than right ones."""
    lx, ly, lz, alpha, beta, gamma = cells.T
    cos_alpha, cos_beta, cos_gamma = _cosines(alpha), _cosines(beta), _cosines(gamma)
    sin_gamma = np.where(gamma == RIGHT_ANGLE, 1.0, np.sin(np.deg2rad(gamma)))
    vectors = np.zeros((len(cells), 3, 3))
    vectors[:, 0, 0] = lx
    vectors[:, 1, 0] = ly * cos_gamma
    vectors[:, 1, 1] = ly * sin_gamma
    vectors[:, 2, 0] = lz * cos_beta
    vectors[:, 2, 1] = lz * (cos_alpha - cos_beta * cos_gamma) / sin_gamma
    # C's pow, with which MDAnalysis squares, may differ from the product by a unit in the last
    # place. It is slow, so it is called only for frames whose float32 results depend on that.
    squares = vectors[:, 2, :2] ** 2
    highest = _heights(lz, np.nextafter(squares, -np.inf))
    lowest = _heights(lz, np.nextafter(squares, np.inf))
    is_ambiguous = (highest.astype(np.float32) != lowest.astype(np.float32)) | ~(lowest > 0)
    exact_squares = [x**2 for x in vectors[is_ambiguous, 2, :2].ravel().tolist()]
    squares[is_ambiguous] = np.reshape(exact_squares, (-1, 2))
    vectors[:, 2, 2] = _heights(lz, squares)
    return vectors


def _heights(lz: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
    heights: NDArray[np.float64] = np.sqrt(lz * lz - squares[:, 0] - squares[:, 1])
    return heights


def vectors_from_boxes(boxes: NDArray[Any]) -> NDArray[np.float32]:
    """Return the vectors of unit cells, (F, 3, 3) float32: first along x, second in the xy plane.

    `boxes`, (F, 6) float32: lengths, and angles in degrees. A vector a row, in the unit of the
    lengths. Zeros for impossible cells: a number that is not positive, an angle of 180 or more,
    angles that enclose no volume.
    """
    cells = np.ascontiguousarray(boxes, np.float64)
    if cells.ndim != 2 or cells.shape[1] != 6:
        raise ValueError(f"boxes have shape {cells.shape}; it must be (frames, 6)")
    is_rectangular = np.all(cells[:, 3:] == RIGHT_ANGLE, axis=1)
    vectors = np.zeros((len(cells), 3, 3))
    vectors[:, [0, 1, 2], [0, 1, 2]] = cells[:, :3]
    with np.errstate(all="ignore"):
        if not is_rectangular.all():
            vectors[~is_rectangular] = _triclinic_vectors(cells[~is_rectangular])
        valid = np.all(cells > 0, axis=1) & np.all(cells[:, 3:] < 180, axis=1)
        vectors[~(valid & (vectors[:, 2, 2] > 0))] = 0
        return vectors.astype(np.float32)


def edges_from_boxes(boxes: NDArray[Any]) -> NDArray[np.float32]:
    """Return the vectors of unit cells, also of those that are periodic along some axes only.

    As `vectors_from_boxes`; along the other axes, lengths and vectors are 0.
    """
    cells = np.array(boxes)
    is_open = open_axes(cells)
    cells[:, :3][is_open] = 1
    edges = vectors_from_boxes(cells)
    edges[is_open] = 0
    return edges


def open_axes(boxes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return along which axes, (F, 3), boxes are not periodic, though along others: length 0."""
    is_open = boxes[:, :3] == 0
    return np.asarray(is_open & ~is_open.all(axis=1, keepdims=True))


def with_lengths_of_open_axes(
    boxes: NDArray[Any], lengths: float | NDArray[Any] = OPEN_LENGTH
) -> NDArray[np.float32]:
    """Return boxes with `lengths`, a number or (F, 3), along their `open_axes`.

    As in MDAnalysis, only rectangular cells are taken to be periodic along some axes only.
    """
    is_open = open_axes(boxes) & (boxes[:, 3:] == RIGHT_ANGLE).all(axis=1, keepdims=True)
    filled = np.array(boxes, np.float32)
    filled[:, :3] = np.where(is_open, lengths, filled[:, :3])
    return filled


def shortest_heights(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the shortest height of each cell, (F,); infinity where there is none.

    `boxes`: (F, 6), lengths in angstrom and angles in degrees.
    """
    cells = vectors_from_boxes(boxes).astype(np.float64)
    heights = np.full(len(cells), np.inf)
    is_cell = cells[:, 2, 2] > 0
    # The rows of the transposed inverse are the normals of the faces.
    normals = np.linalg.inv(cells[is_cell]).transpose(0, 2, 1)
    heights[is_cell] = 1 / np.linalg.norm(normals, axis=2).max(axis=1, initial=0)
    return heights


def periodic_axes(boxes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask, (3,), of the axes along which any of the boxes, (F, 6), is periodic."""
    return np.asarray((np.asarray(boxes)[:, :3] != 0).any(axis=0))
