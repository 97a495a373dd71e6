"""Coordinates as integers, differenced along the frames: exact, and the same on every side."""

import numpy as np
import pytest
from MDAnalysis.lib.formats.libmdaxdr import XTCFile
from MDAnalysisTests.datafiles import XTC
from suites.kernel_sides import (
    N_ATOMS,
    SIDES,
    in_raw_buffer,
    kernels_of,
    random_positions,
    same_bits,
)

from mdio.core import kernels


@pytest.fixture(params=SIDES, autouse=True)
def side(request, monkeypatch):
    """Runs every test of this file with every implementation."""
    with kernels_of(request.param, monkeypatch) as chosen:
        yield chosen


@pytest.mark.parametrize("n_atoms", N_ATOMS)
@pytest.mark.parametrize("step", [0.01, 0.001, 1 / 3])
def test_quantise_deltas(n_atoms, step):
    positions = in_raw_buffer(random_positions(6, n_atoms), gap=4)
    integers = np.rint(positions.astype(np.float64) / step).astype(np.int32)
    deltas = kernels.quantise(positions, step)
    assert deltas.dtype == np.int32
    np.testing.assert_array_equal(
        deltas, np.diff(integers, axis=0, prepend=np.zeros_like(integers[:1]))
    )
    out = np.empty_like(positions, order="C")
    kernels.dequantise(deltas, step, out)
    same_bits(out, (integers.astype(np.float64) * step).astype(np.float32))
    atoms = np.arange(n_atoms)[::-1].copy()
    some = np.zeros((3, atoms.size + 2, 3), np.float32)
    kernels.dequantise(deltas, step, some[:, 1:-1], atoms, 2, 5)
    same_bits(some[:, 1:-1], out[2:5][:, atoms])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**30, -(2.0**30), 3e38])
@pytest.mark.parametrize("n_atoms", [1, 9, 2000])
def test_what_cannot_be_an_integer(bad, n_atoms):
    positions = random_positions(3, n_atoms)
    positions[1, -1, 2] = bad
    assert kernels.quantise(positions, 1.0) is None
    assert kernels.quantise(positions, 10.0, xtc=True) is None


def test_extreme_integers():
    """The largest ones, and sums that wrap around on the way."""
    top = np.nextafter(np.float32(2**30), np.float32(0))
    positions = np.array([top, -top, top, 0.5, 1.5, -2.5], np.float32).reshape(6, 1, 1) * np.ones(3)
    positions = positions.astype(np.float32)
    deltas = kernels.quantise(positions, 1.0)
    out = np.empty_like(positions)
    kernels.dequantise(deltas, 1.0, out)
    np.testing.assert_array_equal(out, np.rint(positions))
    wrapped = np.full((4, 1, 3), 2**31 - 1, np.int32)
    kernels.dequantise(wrapped, 1.0, out[:4])
    sums = (np.arange(1, 5) * (2**31 - 1) + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(out[:4, 0, 0], sums.astype(np.float32))


def test_real_xtc():
    """The integers are those of the file: they decode to what MDAnalysis reads, bit for bit."""
    with XTCFile(XTC) as file:
        frames = [(frame.x, frame.prec) for frame in file]
    nm = np.array([x for x, _ in frames])
    positions = nm * np.float32(10)  # what XTCReader does
    deltas = kernels.quantise(positions, frames[0][1], xtc=True)
    integers = np.rint(nm.astype(np.float64) * 1000).astype(np.int32)
    np.testing.assert_array_equal(np.cumsum(deltas, axis=0), integers)
    out = np.empty_like(positions)
    kernels.dequantise(deltas, frames[0][1], out, xtc=True)
    same_bits(out, positions)
    positions[-1, -1, -1] = np.nextafter(positions[-1, -1, -1], np.float32(0))
    assert kernels.quantise(positions, frames[0][1], xtc=True) is None


def xtc_positions(integers, precision):
    inverse = np.float32(1.0 / precision)
    return (integers.astype(np.float32) * inverse) * np.float32(10)


@pytest.mark.parametrize("precision", [1.0, 100.0, 1000.0, 12345.678, 1e6])
@pytest.mark.parametrize("largest", [10, 10**4, 2**24, 2**29])
def test_xtc_of_any_precision(precision, largest):
    integers = np.random.default_rng(4).integers(-largest, largest, (3, 1500, 3))
    positions = xtc_positions(integers, np.float32(precision))
    deltas = kernels.quantise(positions, precision, xtc=True)
    if deltas is None:  # allowed only where float32 tells neighbouring integers no longer apart
        assert largest > 2**24, "within float32's integers all must be found"
        return
    out = np.empty_like(positions)
    kernels.dequantise(deltas, precision, out, xtc=True)
    same_bits(out, positions)
    atoms = np.array([1499, 3, 0])
    kernels.dequantise(deltas, precision, out[:1, :3], atoms, 2, xtc=True)
    same_bits(out[:1, :3], positions[2:, atoms])


def test_minus_zero_is_no_xtc():
    assert kernels.quantise(np.full((1, 1, 3), -0.0, np.float32), 1000, xtc=True) is None
