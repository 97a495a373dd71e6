"""Zstandard, LZ4 and gzip decode exactly the bytes that a chunk has."""

import numpy as np
import pytest

from mdio.layouts.codecs.compressors import COMPRESSORS

DATA = np.arange(300, dtype=np.uint8)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("n_stored", [0, 60, 179, 181, 240])
def test_data_of_another_size_are_refused(name, n_stored):
    """Fewer left the rest of the memory as it was; of more, gzip gave the first."""
    compressor = COMPRESSORS[name](3)
    stored = compressor.encode(DATA[:n_stored])
    with pytest.raises(ValueError):
        compressor.decode(memoryview(stored), np.full(180, 7, np.uint8))


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("nbytes", [1, 180, 70_000])
def test_data_come_back(name, nbytes):
    compressor = COMPRESSORS[name](3)
    data, out = np.resize(DATA, nbytes), np.empty(nbytes, np.uint8)
    stored = compressor.encode(data)
    compressor.decode(memoryview(stored), out)
    np.testing.assert_array_equal(out, data)
    for end in range(0, len(stored), max(1, len(stored) // 50)):
        with pytest.raises(ValueError):
            compressor.decode(memoryview(stored)[:end], out)
