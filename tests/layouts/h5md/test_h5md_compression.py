"""H5MD files with compressed and with rounded chunks."""

import json
import math
import pickle

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, new_writer, write_h5md

from mdio.core.errors import OutputError
from mdio.layouts.h5md.file import power_of_two_step, round_to_step

SPLIT = {"chunk_frames": 4, "chunk_atoms": 6}


@pytest.mark.parametrize("level", [0, 4, 9])
def test_gzip_is_hdf5s_own(tmp_path, level):
    block = make_block(velocities=True)
    plan = write_h5md(tmp_path / "x.h5md", block, compression=f"gzip:{level}", **SPLIT)
    assert plan.compression == f"gzip:{level}"
    assert plan.stripes.alignment_nbytes == 1
    with h5py.File(tmp_path / "x.h5md") as file:
        value = file["particles/trajectory/position/value"]
        assert (value.compression, value.compression_opts, value.shuffle) == ("gzip", level, True)
        assert_array_equal(value, block.positions)
        assert_array_equal(file["particles/trajectory/velocity/value"], block.velocities)


def test_compressed_chunks_belong_to_the_owner(tmp_path):
    writer = new_writer(tmp_path / "x.h5md", make_block(), compression="gzip")
    assert not writer.facts.parallel_store
    writer.create()
    copy = pickle.loads(pickle.dumps(writer))
    item = copy.encode(0, make_block())[0]
    with pytest.raises(OutputError, match="owner"):
        copy.store(item)
    writer.abort()


def test_precision_rounds_and_compresses(tmp_path):
    block = make_block(40, 100, velocities=True)
    block.positions[3, 5] = [np.nan, np.inf, 3e38]
    plan = write_h5md(tmp_path / "x.h5md", block, precision=0.01)
    assert (plan.compression, plan.precision) == ("gzip:4", 2.0**-7)
    with h5py.File(tmp_path / "x.h5md") as file:
        value = file["particles/trajectory/position/value"]
        stored = value[:]
        assert value.id.get_storage_size() < 0.8 * block.positions.nbytes
        assert_array_equal(file["particles/trajectory/velocity/value"], block.velocities)
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
    assert manifest["error_bound_angstrom"] == 2.0**-8
    finite = np.isfinite(block.positions)
    assert_array_equal(stored[3, 5], block.positions[3, 5])
    exact = block.positions.astype(np.float64)
    assert np.abs(stored[finite].astype(np.float64) - exact[finite]).max() <= 0.005
    ordinary = stored[np.abs(stored) < 1e6].astype(np.float64) * 128
    assert_array_equal(ordinary, np.round(ordinary))


def test_precision_auto_is_lossless(tmp_path):
    block = make_block()
    plan = write_h5md(tmp_path / "x.h5md", block, precision="auto")
    assert (plan.compression, plan.precision) == (None, None)
    with h5py.File(tmp_path / "x.h5md") as file:
        assert_array_equal(file["particles/trajectory/position/value"], block.positions)


@given(
    st.floats(1e-4, 10),
    st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=30),
)
def test_rounding_never_exceeds_half_the_precision(precision, numbers):
    step = power_of_two_step(precision)
    assert precision / 2 < step <= precision
    assert math.frexp(step)[0] == 0.5
    values = np.array(numbers, np.float32)
    rounded = round_to_step(values, step)
    assert rounded.dtype == np.float32
    finite = np.isfinite(values)
    assert_array_equal(rounded[~finite], values[~finite])
    error = np.abs(rounded[finite].astype(np.float64) - values[finite].astype(np.float64))
    assert (error <= step / 2).all()
