"""What the tests of the kernels share: the implementations, and coordinates to try them on."""

import importlib
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from oracles import neighbours, plain

from mdio.core.kernels import backend

SIDES = ["numpy", "native", "plain"]
"""plain: native code without the instructions of newer processors."""
WIDE_SIDES = [*SIDES, "avx2", "loads"]
"""Of kernels that know AVX-512, too. loads: with it, but without its gather instruction."""

NUMPY = SimpleNamespace(**vars(plain))
NUMPY.choose_neighbours = neighbours.choose_neighbours
NUMPY.difference_neighbours = neighbours.difference_neighbours
"""What native code has to equal: NumPy's kernels, and those that only the tests need."""

N_ATOMS = [0, 1, 2, 3, 4, 5, 7, 8, 31, 214, 1365, 1366, 3000]
"""Around the widths of vectors and the runs in which native code works."""


@contextmanager
def kernels_of(side, monkeypatch):
    """Let `mdio.core.kernels` call one of `WIDE_SIDES`."""
    if side == "numpy":
        monkeypatch.setattr(backend, "module", NUMPY)
        yield side
        return
    native = importlib.import_module("mdio._kernels")
    monkeypatch.setattr(backend, "module", native)
    native._plain_only(side == "plain")
    native._avx2_only(side == "avx2")
    native._loads_only(side == "loads")
    yield side
    native._plain_only(False)
    native._avx2_only(False)
    native._loads_only(False)


def random_positions(n_frames, n_atoms, seed=0):
    return np.random.default_rng(seed).normal(0, 30, (n_frames, n_atoms, 3)).astype(np.float32)


def in_raw_buffer(array, gap=0, offset=0):
    """Return a view with the same numbers, its frames `gap` bytes apart, unaligned by `offset`."""
    n_frames = len(array)
    frame_nbytes = array[0].nbytes if n_frames else 0
    raw = np.full(offset + n_frames * (frame_nbytes + gap), 0xAB, np.uint8)
    strides = (frame_nbytes + gap, *array.strides[1:])
    view = np.ndarray(array.shape, array.dtype, raw, offset, strides)
    view[...] = array
    return view


def same_bits(one, other):
    np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))
