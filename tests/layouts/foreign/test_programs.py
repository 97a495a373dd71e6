"""H5MD files after the writers of LAMMPS, HALMD and ESPResSo, against the numbers in them."""

import h5py
import MDAnalysis
import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal
from suites.files_of_others import write_espresso, write_halmd, write_lammps

import mdio
from mdio.core.errors import SourceError
from mdio.core.frames import absent_frames


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(3).uniform(0, 20, (7, 1100, 3))


def test_lammps(x, tmp_path):
    """Positions are in 256 atoms a chunk, velocities in every other frame, charges by frame."""
    path = tmp_path / "l.h5"
    write_lammps(path, x)
    with pytest.raises(SourceError, match=r"position/value has no unit.*--length-unit"):
        _ = mdio.open(path).info
    with mdio.open(path, length_unit="nm") as layout:
        block, few = layout.read(0, 7), layout.read(2, 5, atoms=[1099, 255, 256])
        assert (layout.info.sparse, layout.info.chunk_atoms) == (("velocities",), 256)
        assert "no units" in layout.info.made_up[0]
    expected = x.astype("f4") * np.float32(10)
    assert_array_equal(block.positions, expected)
    assert_array_equal(few.positions, expected[2:5, [1099, 255, 256]])
    assert_array_equal(block.velocities[::2], -expected[::2])
    assert absent_frames(block.velocities)[1::2].all()
    assert_array_equal(block.step, 10 * np.arange(7))
    assert_array_equal(block.time, 10 * np.arange(7) * 0.005)
    with h5py.File(path) as file:
        edges = file["particles/all/box/edges/value"][...]
    assert_array_equal(block.box[:, :3], edges.astype("f4") * np.float32(10))
    assert (block.box[:, 3:] == 90).all()


def test_lammps_that_also_writes_another_group(x, tmp_path):
    """`file_from` puts a group with frames of its own into the same file."""
    path, other = tmp_path / "l.h5", tmp_path / "other.h5"
    write_lammps(path, x)
    write_lammps(other, x[:3, :40])
    with h5py.File(path, "r+") as file, h5py.File(other) as added:
        added.copy("particles/all", file["particles"], "solvent")
    with mdio.open(path, group="solvent", length_unit="angstrom") as layout:
        assert layout.info.groups == {"all": 1100}
        assert_array_equal(layout.read(0, 3).positions, x[:3, :40].astype("f4"))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_halmd(x, tmp_path, dtype):
    """Its graphics cards compute in floats; chunks of four frames of 130 atoms are deflated."""
    path, x = tmp_path / "h.h5", x[:, :130].astype(dtype)
    write_halmd(path, x)
    with mdio.open(path, length_unit="angstrom") as layout:
        block, few = layout.read(0, 7), layout.read(3, 6, atoms=[7, 5])
        assert (layout.info.compression, layout.info.sparse) == ("gzip:6", ())
    assert_array_equal(block.positions, x.astype("f4"))
    assert_array_equal(few.positions, x[3:6, [7, 5]].astype("f4"))
    assert_array_equal(block.velocities, -x.astype("f4"))
    assert_array_equal(block.box, [[20, 21, 22, 90, 90, 90]] * 7)
    assert (block.step.tolist()[-1], block.time.tolist()[-1]) == (3000, 3.0)


@pytest.fixture
def flat(x, tmp_path):
    """A file of HALMD's in two dimensions, and its numbers with a third that is 0."""
    path, x = tmp_path / "flat.h5", x[:, :130].copy()
    write_halmd(path, x[:, :, :2])
    x[:, :, 2] = 0
    return path, x.astype("f4")


def test_two_dimensions(flat):
    """The third coordinate is 0, and so is the third length of the cell, as MDAnalysis has it."""
    path, x = flat
    with mdio.open(path, length_unit="angstrom") as layout:
        block, few = layout.read(0, 7), layout.read(3, 6, atoms=[7, 5])
        assert "two dimensions: the third coordinate" in layout.info.made_up[-1]
    assert_array_equal(block.positions, x)
    assert_array_equal(few.positions, x[3:6, [7, 5]])
    assert_array_equal(block.velocities, -x)
    assert_array_equal(block.box, [[20, 21, 0, 90, 90, 90]] * 7)
    across = MDAnalysis.lib.distances.distance_array(
        np.float32([[1, 1, 0]]), np.float32([[19, 20, 0]]), box=block.box[0]
    )
    assert across[0, 0] == pytest.approx(np.sqrt(8))


@pytest.mark.parametrize("name", ["o.zarr", "o.h5md", "o.xtc", "o.segments"])
def test_two_dimensions_are_converted_into_three(flat, tmp_path, name):
    path, x = flat
    mdio.convert(path, tmp_path / name, source_options={"length_unit": "angstrom"})
    assert name == "o.xtc" or mdio.verify(tmp_path / name, against=path).ok
    with mdio.open(tmp_path / name) as layout:
        np.testing.assert_allclose(layout.read(0, 7).positions, x, atol=0.0051)
        assert name == "o.xtc" or "two dimensions" in str(layout.info.made_up)


@pytest.mark.parametrize(
    ("edges", "box"),
    [
        ([20.0, 21.0], [20, 21, 0, 90, 90, 90]),
        ([[20.0, 0.0], [10.5, 10.5 * 3**0.5]], [20, 21, 0, 90, 90, 60]),
        (np.tile([20.0, 21.0], (7, 1)), [20, 21, 0, 90, 90, 90]),
        (np.zeros(2), [0] * 6),
    ],
)
def test_cells_in_two_dimensions(flat, edges, box):
    path, _ = flat
    with h5py.File(path, "r+") as file:
        group = file["particles/all/box"]
        del group["edges"]
        if np.ndim(edges) == 2 and len(edges) == 7:
            group["edges/value"] = edges
            for axis in ("step", "time"):
                group[f"edges/{axis}"] = file[f"particles/all/position/{axis}"]
        else:
            group["edges"] = np.array(edges)
    with mdio.open(path, length_unit="angstrom") as layout:
        np.testing.assert_allclose(layout.read(0, 7).box, [box] * 7, rtol=1e-6)


def test_two_dimensions_of_atoms_in_any_order(x, tmp_path):
    path = tmp_path / "e.h5"
    write_espresso(path, x)
    with h5py.File(path, "r+") as file:
        for element in ("position", "velocity"):
            if f"particles/atoms/{element}" in file:
                values = file[f"particles/atoms/{element}/value"][:, :, :2]
                del file[f"particles/atoms/{element}/value"]
                file[f"particles/atoms/{element}/value"] = values
    with mdio.open(path, length_unit="nm") as layout:
        positions = layout.read(0, 7).positions
    assert_array_equal(positions[:, :, :2], x[:, :, :2].astype("f4") * np.float32(10))
    assert not positions[:, :, 2].any()


def test_two_dimensions_in_zarr(flat, tmp_path):
    path, x = flat
    with h5py.File(path) as file:
        root = zarr.create_group(tmp_path / "flat.zarr")
        for name in ("value", "step", "time"):
            values = file[f"particles/all/position/{name}"][...]
            made = root.create_array(f"particles/all/position/{name}", data=values)
            made.attrs["unit"] = {"value": "angstrom", "time": "ps"}.get(name)
    with mdio.open(tmp_path / "flat.zarr") as layout:
        assert_array_equal(layout.read(0, 7).positions, x)
        assert_array_equal(layout.read(2, 4, atoms=[3, 1]).positions, x[2:4, [3, 1]])


@pytest.mark.parametrize("seeded", [True, False])
def test_espresso(x, tmp_path, seeded):
    """A number that stands before the first step and time moves neither by a frame."""
    path = tmp_path / "e.h5"
    write_espresso(path, x, seeded=seeded)
    expected = x.astype("f4") * np.float32(10)
    with mdio.open(path) as layout:
        block, few = layout.read(0, 7), layout.read(3, 6, atoms=[1001, 5])
        assert layout.info.time_first_ps == 0.5
        assert not [note for note in layout.notes if "whole" in note]
        assert len([note for note in layout.notes if "entry without a frame" in note]) == seeded
    assert_array_equal(block.positions, expected)
    assert_array_equal(few.positions, expected[3:6, [1001, 5]])
    assert_array_equal(block.step, 100 * np.arange(7))
    assert_array_equal(block.time, 0.5 + np.arange(7))
    assert_array_equal(few.time, [3.5, 4.5, 5.5])
    assert_array_equal(block.box, [[200, 210, 220, 90, 90, 90]] * 7)
    mdio.convert(path, tmp_path / "e.zarr")
    with mdio.open(tmp_path / "e.zarr") as layout:
        assert_array_equal(layout.read(0, 7).time, block.time)


def test_entries_without_atoms_are_left_out(x, tmp_path):
    """ESPResSo++ makes arrays for multiples of 256 atoms, with -1 for their ids."""
    path, n_atoms = tmp_path / "e.h5", 900
    write_espresso(path, x, seeded=False)
    with h5py.File(path, "r+") as file:
        ids = file["particles/atoms/id/value"]
        ids[...] = np.where(ids[...] < n_atoms, ids[...], -1)
    with mdio.open(path) as layout:
        block, few = layout.read(0, 7), layout.read(3, 6, atoms=[899, 5])
        assert "200 of 1100 entries" in " ".join(layout.notes)
    assert_array_equal(block.positions, x[:, :n_atoms].astype("f4") * np.float32(10))
    assert_array_equal(few.positions, block.positions[3:6, [899, 5]])
    with h5py.File(path, "r+") as file:
        file["particles/atoms/id/value"][3, 0] = -1
    with pytest.raises(SourceError, match="frame 3 has other atom ids"):
        mdio.open(path).read(0, 7)


@pytest.mark.parametrize(
    ("unit", "factor", "expected"),
    [("meter", 1e-10, 1), ("nanometer", 1.0, 10), ("0.1 nm", None, 1), ("3 Angstrom", 2.0, 6)],
)
def test_numbers_before_units(x, tmp_path, unit, factor, expected):
    """H5MD has them in the unit, NOMAD's files in an attribute beside it."""
    path = tmp_path / "n.h5"
    write_espresso(path, x[:, :9], unit=unit)
    with h5py.File(path, "r+") as file:
        for name in ("position", "box/edges") if factor else ():
            file[f"particles/atoms/{name}/value"].attrs["unit_factor"] = factor
    block = mdio.open(path).read(0, 7)
    np.testing.assert_allclose(block.positions, expected * x[:, :9], rtol=1e-6)
    np.testing.assert_allclose(block.box[0, :3], expected * np.array([20, 21, 22]), rtol=1e-6)


@pytest.mark.parametrize("image", [0, 1])
def test_images_that_are_not_read_are_told(x, tmp_path, image):
    path = tmp_path / "e.h5"
    write_espresso(path, x)
    with h5py.File(path, "r+") as file:
        file["particles/atoms/image/value"] = np.full(x.shape, image, "i4")
    with mdio.open(path) as layout:
        assert ("atoms/image/value) is not read" in " ".join(layout.notes)) == bool(image)


def test_only_espresso_leaves_out_a_step_of_minus_ten(x, tmp_path):
    path = tmp_path / "e.h5"
    write_espresso(path, x)
    with h5py.File(path, "r+") as file:
        file["h5md/creator"].attrs["name"] = np.bytes_("another")
    with mdio.open(path) as layout:
        assert layout.read(0, 2).step.tolist() == [-10, 0]
