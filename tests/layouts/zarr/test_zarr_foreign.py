"""Zarr trees of others: ZarrMD (v2) and H5MD trees (v3), against MDAnalysis on the same numbers."""

import shutil

import h5py
import numpy as np
import pytest
import zarr
from MDAnalysis.coordinates.H5MD import H5MDReader
from suites.zarr_cases import TRICLINIC, make_block

from mdio.core.errors import PlanError, SourceError
from mdio.layouts.registry import open_layout
from mdio.layouts.zarr.layout import ZarrLayout, written_by_mdio
from mdio.testing.reading import LayoutReadingTests, Oracle, ReadingCase

NM = {"position": "nm", "velocity": "nm ps-1", "force": "kJ mol-1 nm-1"}
ANGSTROM = {
    "position": "Angstrom",
    "velocity": "Angstrom ps-1",
    "force": "kJ mol-1 Angstrom-1",
}
N_FRAMES, N_ATOMS = 11, 7


def fill(root, block, units, make, time_unit="ps", group="trajectory"):
    """Write a ZarrMD tree, as zarrtraj does, or the same as HDF5: `make` creates an array."""
    h5md = root.create_group("h5md")
    h5md.attrs["version"] = [1, 1]
    h5md.create_group("author").attrs["name"] = "somebody"
    h5md.create_group("creator").attrs["name"] = "something"
    particles = root.create_group("particles").create_group(group)
    box = particles.create_group("box")
    box.attrs["dimension"] = 3
    elements = {"position": block.positions, "velocity": block.velocities, "force": block.forces}
    has_box = block.box.any()
    box.attrs["boundary"] = ["periodic" if has_box else "none"] * 3
    if has_box:
        from MDAnalysis.lib.mdamath import triclinic_vectors

        elements["box/edges"] = np.array([triclinic_vectors(b) for b in block.box], np.float32)
    for name, values in elements.items():
        if values is None:
            continue
        folder = particles
        for part in name.split("/"):
            folder = folder[part] if part in folder else folder.create_group(part)
        make(folder, "value", values).attrs["unit"] = units.get(name, units["position"])
        make(folder, "step", block.step.astype(np.int32))
        make(folder, "time", block.time.astype(np.float32)).attrs["unit"] = time_unit


def make_zarr(version, **options):
    def make(folder, name, values):
        chunks = (4, *values.shape[1:]) if name == "value" else values.shape
        keep = options if values.shape[1:] == (N_ATOMS, 3) else {}
        return folder.create_array(name, data=values, chunks=chunks, **keep)

    return lambda path: zarr.open_group(str(path), mode="w", zarr_format=version), make


def make_hdf5(folder, name, values):
    return folder.create_dataset(name, data=values)


def reference(folder, block, units, time_unit="ps", group="trajectory") -> Oracle:
    """What MDAnalysis reads of an H5MD file with the same numbers."""
    path = folder / "same.h5md"
    with h5py.File(path, "w") as file:
        fill(file, block, units, make_hdf5, time_unit, group)
    reader = H5MDReader(str(path))
    rows = []
    for ts in reader:
        box = np.zeros(6, np.float32) if ts.dimensions is None else ts.dimensions.copy()
        row = [ts.positions.copy(), box, ts.time, ts.data["step"]]
        row += [ts.velocities.copy() if ts.has_velocities else None]
        rows.append([*row, ts.forces.copy() if ts.has_forces else None])
    reader.close()
    columns = list(zip(*rows, strict=True))
    return Oracle(
        positions=np.array(columns[0]),
        box=np.array(columns[1], np.float32),
        time=np.array(columns[2], np.float64),
        step=np.array(columns[3], np.int64),
        velocities=None if columns[4][0] is None else np.array(columns[4]),
        forces=None if columns[5][0] is None else np.array(columns[5]),
    )


def foreign_case(folder, block, units, version, name="other.zarrmd", **options):
    open_root, make = make_zarr(version, **options)
    fill(open_root(folder / name), block, units, make)
    return ReadingCase(ZarrLayout, folder / name, reference(folder, block, units))


class TestZarrMD(LayoutReadingTests):
    """Zarr v2 in nm, as zarrtraj writes what was read from XTC or TRR."""

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(N_FRAMES, N_ATOMS, velocities=True, forces=True, box=TRICLINIC)
        return foreign_case(tmp_path_factory.mktemp("v2"), block, NM, 2)


class TestZarrMDWithoutCells(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(N_FRAMES, N_ATOMS, box=None)
        return foreign_case(tmp_path_factory.mktemp("v2"), block, ANGSTROM, 2)


class TestH5MDTreeOfOthers(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(N_FRAMES, N_ATOMS, velocities=True)
        return foreign_case(tmp_path_factory.mktemp("v3"), block, NM, 3, shards=(8, N_ATOMS, 3))


@pytest.fixture
def tree(tmp_path):
    open_root, make = make_zarr(2)
    fill(open_root(tmp_path / "a.zarrmd"), make_block(N_FRAMES, N_ATOMS), NM, make)
    return tmp_path / "a.zarrmd"


def test_it_is_found_by_its_bytes_and_is_not_ours(tree):
    other = tree.rename(tree.with_name("unnamed"))
    assert isinstance(open_layout(other), ZarrLayout)
    assert not written_by_mdio(other)
    layout = open_layout(other)
    assert layout.manifest is None
    assert layout.info.compression == "blosc" or layout.info.compression == "zstd"
    assert (layout.info.chunk_frames, layout.info.chunk_atoms) == (4, N_ATOMS)
    assert {problem for _, problem in layout.check()} == {None}


@pytest.mark.parametrize("time_unit", ["ps", "fs", "ns"])
def test_units_of_time(tmp_path, time_unit):
    block = make_block(N_FRAMES, N_ATOMS)
    open_root, make = make_zarr(2)
    fill(open_root(tmp_path / "a.zarrmd"), block, NM, make, time_unit)
    oracle = reference(tmp_path, block, NM, time_unit)
    found = ZarrLayout(tmp_path / "a.zarrmd").read(0, N_FRAMES)
    assert np.array_equal(found.time, oracle.time)


def test_groups_are_chosen_by_name(tmp_path):
    block = make_block(N_FRAMES, N_ATOMS)
    open_root, make = make_zarr(2)
    root = open_root(tmp_path / "a.zarrmd")
    fill(root, block, ANGSTROM, make, group="protein")
    assert np.array_equal(
        ZarrLayout(tmp_path / "a.zarrmd").read(0, 2).positions, block.positions[:2]
    )
    found = ZarrLayout(tmp_path / "a.zarrmd", group="protein").read(0, 2)
    assert np.array_equal(found.positions, block.positions[:2])
    with pytest.raises(PlanError, match=r"no group 'water'.*protein"):
        _ = ZarrLayout(tmp_path / "a.zarrmd", group="water").info


def test_steps_and_times_as_an_increment(tree):
    root = zarr.open_group(str(tree), mode="a")
    position = root["particles/trajectory/position"]
    for name, offset, increment in (("step", 3, 5), ("time", 0.5, 0.25)):
        del position[name]
        scalar = position.create_array(name, shape=(), dtype="f8")
        scalar[...] = increment
        scalar.attrs["offset"] = offset
        if name == "time":
            scalar.attrs["unit"] = "ps"
    found = ZarrLayout(tree).read(2, 4)
    assert found.step.tolist() == [13, 18]
    assert found.time.tolist() == [1.0, 1.25]


def test_one_cell_for_all_frames(tree):
    root = zarr.open_group(str(tree), mode="a")
    box = root["particles/trajectory/box"]
    del box["edges"]
    box.create_array("edges", data=np.array([3.0, 4.0, 5.0], np.float32))
    found = ZarrLayout(tree).read(2, 4)
    assert found.box.tolist() == [[30, 40, 50, 90, 90, 90]] * 2


def change_unit(root):
    root["particles/trajectory/position/value"].attrs["unit"] = "furlong"


def drop_unit(root):
    del root["particles/trajectory/position/value"].attrs["unit"]


def drop(path):
    def change(root):
        del root[path]

    return change


def shorter_velocities(root):
    velocity = root["particles/trajectory"].create_group("velocity")
    value = velocity.create_array("value", shape=(3, N_ATOMS, 3), dtype="f4")
    value.attrs["unit"] = "nm ps-1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_unit, "'furlong'; expected one of Angstrom"),
        (drop_unit, "no unit.*convert_units=False"),
        (drop("particles"), "no particles"),
        (drop("particles/trajectory/position"), "no positions"),
        (drop("particles/trajectory/position/value"), "no time series"),
        (shorter_velocities, "velocities of 3 frames"),
    ],
)
def test_trees_that_are_no_trajectory(tree, change, message):
    change(zarr.open_group(str(tree), mode="a"))
    with pytest.raises(SourceError, match=message):
        _ = ZarrLayout(tree).info


def test_without_conversion_numbers_stay_as_they_are(tree):
    drop_unit(zarr.open_group(str(tree), mode="a"))
    found = ZarrLayout(tree, convert_units=False).read(0, N_FRAMES)
    assert np.array_equal(found.positions, make_block(N_FRAMES, N_ATOMS).positions)


def test_damaged_chunks_and_metadata_are_told(tree):
    value = tree / "particles/trajectory/position/value"
    (value / "1.0.0").write_bytes(b"no chunk")
    message = (
        rf"{tree}: frames 0 to {N_FRAMES - 1} .*a chunk of 8 bytes, expected a header of Blosc"
    )
    with pytest.raises(SourceError, match=message):
        ZarrLayout(tree).read(0, N_FRAMES)
    (value / ".zarray").write_text("{")
    with pytest.raises(SourceError, match="cannot be read as a Zarr tree"):
        _ = ZarrLayout(tree).info
    shutil.rmtree(tree / "particles")
    with pytest.raises(SourceError):
        _ = ZarrLayout(tree).info


@pytest.mark.parametrize(
    ("lost", "place"),
    [
        ("box/.zgroup", "box"),
        ("box/edges/value/.zarray", "value"),
        ("velocity/.zgroup", "velocity"),
    ],
)
def test_what_has_lost_its_metadata_is_not_left_out(tmp_path, lost, place):
    open_root, make = make_zarr(2)
    path = tmp_path / "a.zarrmd"
    fill(open_root(path), make_block(N_FRAMES, N_ATOMS, velocities=True), NM, make)
    (path / "particles/trajectory" / lost).unlink()
    with pytest.raises(SourceError, match=rf"{path.name}: .*{place} is a folder without metadata"):
        _ = ZarrLayout(path).info


def test_a_box_that_is_no_group(tree):
    root = zarr.open_group(str(tree), mode="a")
    del root["particles/trajectory/box"]
    root["particles/trajectory"].create_array("box", shape=(3,), dtype="f4")
    with pytest.raises(SourceError, match="box is an array, expected a group with edges"):
        _ = ZarrLayout(tree).info


def test_a_damaged_table_is_told_and_not_that_the_tree_was_replaced(tree):
    """It is read as the tree is opened, when one may be replaced."""
    chunk = tree / "particles/trajectory/position/time/0"
    chunk.write_bytes(chunk.read_bytes()[:-2])
    with pytest.raises(SourceError, match=rf"{tree}: .* by the header of Blosc"):
        _ = ZarrLayout(tree).info
