"""H5MD files that refer to other files: only to those in their own folder."""

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, write_h5md
from suites.per_rank import convert

import mdio
from mdio.core.errors import MdioError, SourceError
from mdio.layouts.h5md.layout import H5MDLayout

SHAPE = (4, 5, 3)


def by_external_storage(group, target):
    storage = [(str(target), 0, h5py.h5f.UNLIMITED)]
    value = group.create_dataset("value", SHAPE, "<f4", external=storage)
    value.attrs["unit"] = "Angstrom"


def by_external_link(group, target):
    group["value"] = h5py.ExternalLink(str(target), "value")


def by_virtual_dataset(group, target):
    layout = h5py.VirtualLayout(SHAPE, "<f4")
    layout[:] = h5py.VirtualSource(str(target), "value", shape=SHAPE)
    group.create_virtual_dataset("value", layout).attrs["unit"] = "Angstrom"


def foreign(path, refer, target):
    with h5py.File(path, "w") as file:
        file.create_group("h5md")
        position = file.create_group("particles/all/position")
        refer(position, target)
        position["step"], position["time"] = np.arange(4), np.arange(4.0)
        position["time"].attrs["unit"] = "ps"


def secret(path, refer):
    numbers = np.arange(60, dtype="<f4").reshape(SHAPE)
    if refer is by_external_storage:
        path.write_bytes(numbers.tobytes())
        return numbers
    with h5py.File(path, "w") as file:
        file["value"] = numbers
        file["value"].attrs["unit"] = "Angstrom"
    return numbers


@pytest.mark.parametrize("name", ["absolute", "relative", "symlink"])
@pytest.mark.parametrize("refer", [by_external_storage, by_external_link, by_virtual_dataset])
def test_files_elsewhere_are_refused(tmp_path, refer, name):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "here"
    elsewhere.mkdir()
    folder.mkdir()
    secret(elsewhere / "secret", refer)
    (folder / "link").symlink_to(elsewhere / "secret")
    targets = {"absolute": elsewhere / "secret", "relative": "../elsewhere/secret"}
    foreign(folder / "x.h5md", refer, targets.get(name, folder / "link"))
    with (
        H5MDLayout(folder / "x.h5md") as layout,
        pytest.raises(SourceError, match="not in a file in"),
    ):
        layout.read(0, 4)


@pytest.mark.parametrize("refer", [by_external_link, by_virtual_dataset])
def test_files_beside_are_read(tmp_path, refer):
    numbers = secret(tmp_path / "beside", refer)
    foreign(tmp_path / "x.h5md", refer, "beside")
    with H5MDLayout(tmp_path / "x.h5md") as layout:
        assert_array_equal(layout.read(0, 4).positions, numbers)


def test_percent_signs_in_names(tmp_path):
    """HDF5 took them for patterns, and showed NaN."""
    block = make_block()
    write_h5md(tmp_path / "source.bin", block)
    out = tmp_path / "50%b.h5md"
    convert(
        tmp_path / "source.bin", out, per_rank=True, workers=2, storage=mdio.Storage(chunk_frames=4)
    )
    with h5py.File(out) as file:
        assert_array_equal(file["particles/trajectory/position/value"][()], block.positions)
    with mdio.open(out) as layout:
        assert_array_equal(layout.read(0, 23).positions, block.positions)


@pytest.mark.parametrize("unit", [["Angstrom", "nm"], np.array([1.0, 2.0]), 7], ids=str)
def test_units_that_are_no_names(tmp_path, unit):
    foreign(tmp_path / "x.h5md", lambda group, _: group.create_dataset("value", SHAPE, "f4"), None)
    with h5py.File(tmp_path / "x.h5md", "r+") as file:
        file["particles/all/position/value"][...] = 1
        file["particles/all/position/value"].attrs["unit"] = unit
    with pytest.raises(SourceError, match="expected one of Angstrom"):
        _ = H5MDLayout(tmp_path / "x.h5md").info


def test_the_identity_of_what_is_there(tmp_path):
    path = tmp_path / "x.h5md"
    assert H5MDLayout.uuid_at(path) is None
    write_h5md(path, make_block())
    assert H5MDLayout.uuid_at(path) == "0f1e2d3c"
    data = path.read_bytes()
    for n_bytes in (0, 100, len(data) // 2):
        path.write_bytes(data[:n_bytes])
        assert H5MDLayout.uuid_at(path) is None


def test_replaced_while_it_is_open(tmp_path):
    """What was opened is read on, or an error says that it was replaced; never a mixture."""
    path = tmp_path / "a.h5md"
    write_h5md(tmp_path / "source.bin", make_block(23, 17))
    mdio.convert(tmp_path / "source.bin", path, storage=mdio.Storage(chunk_frames=4))
    layout = mdio.open(path)
    first = layout.read(0, 4)
    mdio.convert(tmp_path / "source.bin", path, storage=mdio.Storage(chunk_frames=4), force=True)
    try:
        rest = layout.read(4, 23)
    except MdioError as error:
        assert "was replaced while it was open" in str(error)
    else:
        assert_array_equal(rest.positions, make_block(23, 17).positions[4:])
    assert_array_equal(first.positions, make_block(23, 17).positions[:4])
    layout.close()
