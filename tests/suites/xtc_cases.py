"""XTC files for tests, written by MDAnalysis' libmdaxdr, and what it reads of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

from mdio.core import xtc as xtc_native
from mdio.core.xtc import scan
from mdio.layouts.native.file import PositionalFile
from mdio.layouts.native.xtc import read_frames

SIDES = ["native", "plain"]
"""plain: native code without the instructions of newer processors."""
VECTORS_NM = np.array([[8.1, 0, 0], [1.25, 7.5, 0], [-0.5, 2.25, 9]], np.float32)


@contextmanager
def use_side(side: str) -> Iterator[None]:
    """Make XTC go through native code with or without newer instructions."""
    xtc_native.kernels._plain_only(side == "plain")
    try:
        yield
    finally:
        xtc_native.kernels._plain_only(False)


def write(path: Path, frames_nm: np.ndarray, precision: float = 1000.0) -> Path:
    """Write frames (F, A, 3), nm."""
    with XTCFile(str(path), "w") as file:
        for i, x in enumerate(frames_nm):
            box = VECTORS_NM * np.float32(1 + i / 64)
            file.write(x, box, 7 * i - 3, 0.5 * i + 0.25, precision)
    return path


def expected(path: Path) -> dict[str, np.ndarray]:
    """Read all frames with libmdaxdr; positions as MDAnalysis makes them of it."""
    with XTCFile(str(path)) as file:
        frames = list(file)
    return {
        "positions": np.array([frame.x for frame in frames]) * np.float32(10),
        "vectors": np.array([frame.box for frame in frames]),
        "time": np.array([frame.time for frame in frames], np.float64),
        "step": np.array([frame.step for frame in frames], np.int64),
    }


def empty_arrays(n_frames: int, n_atoms: int) -> dict[str, np.ndarray]:
    """Return arrays for `read_frames` that hold nothing that it could write."""
    return {
        "positions": np.full((n_frames, n_atoms, 3), np.nan, np.float32),
        "vectors": np.full((n_frames, 3, 3), np.nan, np.float32),
        "time": np.full(n_frames, np.nan),
        "step": np.full(n_frames, -99, np.int64),
    }


def read(path: Path, atoms: np.ndarray | None = None, n_threads: int = 1) -> dict[str, np.ndarray]:
    """Read all frames with the codec."""
    index = scan(path)
    n_atoms = index.n_atoms if atoms is None else len(atoms)
    arrays = empty_arrays(index.n_frames, n_atoms)
    with PositionalFile(path) as file:
        read_frames(file, index, 0, index.n_frames, **arrays, atoms=atoms, n_threads=n_threads)
    return arrays


def assert_same(
    actual: dict[str, np.ndarray], wanted: dict[str, np.ndarray], atoms: np.ndarray | None = None
) -> None:
    """Compare bits."""
    picked = slice(None) if atoms is None else atoms
    for name, array in wanted.items():
        array = array[:, picked] if name == "positions" else array
        assert actual[name].dtype == array.dtype
        assert actual[name].shape == array.shape
        assert actual[name].tobytes() == np.ascontiguousarray(array).tobytes(), name


def water(n_molecules: int, rng: np.random.Generator, box_nm: float = 6.0) -> np.ndarray:
    """Return (3 n, 3) coordinates of water-like molecules, nm."""
    oxygen = rng.uniform(0, box_nm, (n_molecules, 1, 3))
    hydrogens = rng.normal(0, 0.06, (n_molecules, 2, 3))
    return np.concatenate([oxygen, oxygen + hydrogens], axis=1).reshape(-1, 3).astype(np.float32)


def chain(n_atoms: int, rng: np.random.Generator, step_nm: float = 0.08) -> np.ndarray:
    """Return (n, 3) coordinates of a protein-like chain, nm."""
    return np.cumsum(rng.normal(0, step_nm, (n_atoms, 3)), axis=0).astype(np.float32)


def gas(n_atoms: int, rng: np.random.Generator, box_nm: float = 10.0) -> np.ndarray:
    """Return (n, 3) coordinates that have nothing to do with each other, nm."""
    return rng.uniform(-box_nm, box_nm, (n_atoms, 3)).astype(np.float32)


def mixture(n_atoms: int, rng: np.random.Generator) -> np.ndarray:
    """Return (n, 3) coordinates of a chain in water with ions, nm."""
    n_chain, n_ions = n_atoms // 3, n_atoms // 10
    n_water = n_atoms - n_chain - n_ions
    solvent = water(n_water // 3 + 1, rng)[:n_water]
    return np.concatenate([chain(n_chain, rng), solvent, gas(n_ions, rng)])
