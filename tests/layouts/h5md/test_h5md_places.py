"""Chunks of others that are read by their places: as HDF5 reads them, or left to it."""

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block

from mdio.core.errors import SourceError
from mdio.layouts.h5md.layout import H5MDLayout

N_FRAMES, N_ATOMS = 13, 9000


@pytest.fixture
def write(tmp_path):
    def make(*, dtype="f4", upto=N_FRAMES, **dataset):
        block = make_block(N_FRAMES, N_ATOMS)
        path = tmp_path / "other.h5md"
        with h5py.File(path, "w") as file:
            file.create_group("h5md").attrs["version"] = [1, 1]
            position = file.create_group("particles/system/position")
            shape = (N_FRAMES, N_ATOMS, 3)
            value = position.create_dataset("value", shape, dtype, **dataset)
            for frame in range(upto):  # one by one, as simulations do
                value[frame] = block.positions[frame]
            value.attrs["unit"] = "nm"
            position["step"], position["time"] = np.arange(N_FRAMES), np.arange(N_FRAMES) * 0.5
            position["time"].attrs["unit"] = "ps"
        return path

    return make


CASES = {
    "a frame a chunk": ({"chunks": (1, N_ATOMS, 3)}, True),
    "frames and atoms cut": ({"chunks": (4, 3500, 3)}, True),
    "no chunks": ({"chunks": None}, True),
    "growing": ({"chunks": (2, N_ATOMS, 3), "maxshape": (None, N_ATOMS, 3)}, True),
    "x, y and z cut": ({"chunks": (4, N_ATOMS, 2)}, False),
    "compressed": ({"chunks": (4, N_ATOMS, 3), "compression": "gzip"}, False),
    "checksums of HDF5": ({"chunks": (4, N_ATOMS, 3), "fletcher32": True}, False),
    "big-endian": ({"chunks": (1, N_ATOMS, 3), "dtype": ">f4"}, False),
    "double": ({"chunks": (1, N_ATOMS, 3), "dtype": "f8"}, False),
    "never written": ({"chunks": (1, N_ATOMS, 3), "upto": 11, "fillvalue": 7.5}, False),
}


@pytest.mark.parametrize("name", CASES)
def test_as_hdf5_reads_it(write, name):
    options, placed = CASES[name]
    path = write(**options)
    with h5py.File(path) as file:
        expected = file["particles/system/position/value"][...].astype("f4") * np.float32(10)
    some = np.array([2, 3, 8991, 7, 3600])
    with H5MDLayout(path) as layout:
        for start, stop in ((0, N_FRAMES), (3, 4), (5, 12)):
            for atoms in (None, some, np.array([3499, 3500])):
                found = layout.read(start, stop, atoms).positions
                kept = slice(None) if atoms is None else atoms
                assert_array_equal(found, expected[start:stop, kept])
        assert (layout.backend._datasets._chunks_by_name["positions"] is not None) == placed


@pytest.mark.parametrize("damage", ["sum", "end"])
def test_the_checksum_of_deflated_chunks_counts(write, damage):
    path = write(chunks=(4, N_ATOMS, 3), compression="gzip")
    with h5py.File(path) as file:
        where = file["particles/system/position/value"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    end = where.byte_offset + where.size
    if damage == "sum":
        data[end - 1] ^= 1
    else:
        data[end - 6 : end] = bytes(6)
    path.write_bytes(data)
    with H5MDLayout(path) as layout, pytest.raises(OSError, match=r"frames 0 to 3 cannot be read"):
        layout.read(0, 4)


def test_a_link_to_another_file_is_read_there(write, tmp_path):
    path = write(chunks=(1, N_ATOMS, 3))
    path.rename(tmp_path / "there.h5md")
    with h5py.File(path, "w") as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        file["particles/system"] = h5py.ExternalLink("there.h5md", "/particles/system")
    with H5MDLayout(path) as one, H5MDLayout(tmp_path / "there.h5md") as other:
        assert_array_equal(one.read(0, 3).positions, other.read(0, 3).positions)


def test_a_file_that_is_cut_while_it_is_read(write):
    path = write(chunks=(1, N_ATOMS, 3))
    with H5MDLayout(path) as layout:
        layout.read(0, 1)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(SourceError, match=r"other.h5md: it is truncated: it ends at byte"):
            layout.read(0, N_FRAMES)
