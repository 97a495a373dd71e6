"""Chunks that are read and summed in pieces, as those larger than some MiB are."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.outputs import as_options

import mdio
from mdio.core.errors import CorruptLayoutError
from mdio.layouts.chunked import array


@pytest.fixture(params=["h5md", "zarr"])
def path(request, adk, tmp_path, monkeypatch):
    # Neither a divisor of a chunk of 11 frames nor of a frame.
    monkeypatch.setattr(array, "CHECKSUM_RUN_NBYTES", 100_000)
    options = {"precision": "none", "chunk_frames": 11}
    mdio.convert(adk["xtc"], tmp_path / f"adk.{request.param}", **as_options(options))
    return tmp_path / f"adk.{request.param}"


def data_file(path):
    return path if path.is_file() else path / "particles/trajectory/position/value/c.0.0.0"


def test_all_pieces_come_where_they_belong(path, adk):
    with mdio.open(path) as ours, mdio.open(adk["xtc"]) as source:
        expected = source.read(0, 98).positions
        assert_array_equal(ours.read(0, 98).positions, expected)  # the last chunk is padded
        assert_array_equal(ours.read(5, 40).positions, expected[5:40])
        assert_array_equal(ours.read(0, 98, atoms=[7, 3000]).positions, expected[:, [7, 3000]])


@pytest.mark.parametrize("byte", [3, 99_999, 100_000, 250_001, 441_011])
def test_damage_in_any_piece_is_seen(path, adk, byte):
    with mdio.open(adk["xtc"]) as source:
        first = source.read(0, 1).positions[0, :5].tobytes()
    file = data_file(path)
    data = bytearray(file.read_bytes())
    data[data.index(first) + byte] ^= 4
    file.write_bytes(data)
    with mdio.open(path) as ours:
        with pytest.raises(CorruptLayoutError, match="frames 0 to 10"):
            ours.read(0, 22)
        assert np.isfinite(ours.read(11, 98).positions).all()


def test_a_file_that_ends_within_a_piece(path):
    with mdio.open(path) as ours:
        _ = ours.info
        ours.read(0, 1)
        file = data_file(path)
        with file.open("r+b") as data:
            data.truncate(250_000)
        with pytest.raises(CorruptLayoutError, match="truncated"):
            ours.read(0, 11)
