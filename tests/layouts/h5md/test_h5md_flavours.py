"""H5MD as GROMACS 2026 reads it."""

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from oracles.gromacs_h5md import READERS
from suites.files_of_others import FIELDS, STEPS, write_gromacs
from suites.h5md_cases import make_block, write_h5md

import mdio
from mdio.core.errors import PlanError

by_each_reader = pytest.mark.parametrize("read_frames", READERS, ids=lambda read: read.__name__)


@by_each_reader
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_gromacs_reads_back_what_it_wrote(tmp_path, compression, read_frames):
    """Rechunked and compressed, with each element at its own steps."""
    values = write_gromacs(tmp_path / "md.h5md")
    out = tmp_path / "o.h5md"
    mdio.convert(
        tmp_path / "md.h5md", out, storage=mdio.Storage(flavour="gromacs"), compression=compression
    )
    seen = {name: [] for name in STEPS}
    for step, time, box, arrays in read_frames(out):
        assert time == step * 0.5
        assert set(arrays) == {name for name in STEPS if step in STEPS[name]}
        if box is not None:
            np.testing.assert_allclose(box, np.diag([3, 4, 5]), rtol=1e-6)
        for name, array in arrays.items():
            seen[name].append(array)
    for name, arrays in seen.items():
        np.testing.assert_allclose(arrays, values[name], rtol=3e-7)
    assert mdio.verify(out).ok
    assert mdio.verify(out, against=tmp_path / "md.h5md").ok
    with h5py.File(out) as file:
        assert file["particles/trajectory/position/value"].chunks[0] > 1


@by_each_reader
def test_frames_with_everything_are_not_kept_twice(tmp_path, read_frames):
    block = make_block(velocities=True, forces=True, box="triclinic")
    path = tmp_path / "o.h5md"
    write_h5md(path, block, flavour="gromacs")
    with h5py.File(path) as file:
        assert file["particles/system"] == file["particles/trajectory"]
    for frame, (step, time, box, arrays) in enumerate(read_frames(path)):
        assert (step, time) == (block.step[frame], block.time[frame])
        np.testing.assert_allclose(
            np.linalg.norm(box, axis=1), block.box[frame, :3] / 10, rtol=1e-5
        )
        for name, factor in {"position": 10, "velocity": 10, "force": 0.1}.items():
            expected = getattr(block, FIELDS[name])[frame] / np.float32(factor)
            assert_array_equal(arrays[name], expected)
    with mdio.open(path) as layout:
        got = layout.read(3, 9, atoms=[3, 1])
        assert layout.facts.rounded_fields == ("positions", "velocities", "forces")
        np.testing.assert_allclose(got.positions, block.positions[3:9, [3, 1]], rtol=3e-7)
        assert_array_equal(got.box, block.box[3:9])


@by_each_reader
def test_no_cell_is_one_of_zeros(tmp_path, read_frames):
    write_h5md(tmp_path / "o.h5md", make_block(box="none"), flavour="gromacs")
    assert not np.any([box for _, _, box, _ in read_frames(tmp_path / "o.h5md")])
    assert not mdio.open(tmp_path / "o.h5md").info.has_box


@by_each_reader
def test_frames_are_added_in_the_same_units(tmp_path, read_frames):
    write_gromacs(tmp_path / "md.h5md")
    out = tmp_path / "o.h5md"
    mdio.convert(tmp_path / "md.h5md", out, storage=mdio.Storage(flavour="gromacs"), stop=9)
    mdio.append(tmp_path / "md.h5md", out)
    assert mdio.verify(out, against=tmp_path / "md.h5md").ok
    assert len(list(read_frames(out))) == 21


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("o.zarr", {}, "zarr has no flavours"),
        ("o.h5md", {"mpio": "independent"}, "without parallel HDF5"),
        ("o.h5md", {"precision": 0.01}, "--precision"),
    ],
)
def test_what_does_not_go_together(tmp_path, name, options, says):
    write_gromacs(tmp_path / "md.h5md")
    with pytest.raises(PlanError, match=says):
        mdio.convert(
            tmp_path / "md.h5md",
            tmp_path / name,
            storage=mdio.Storage(flavour="gromacs"),
            **options,
        )


def test_writers_refuse_a_flavour_that_the_layout_does_not_have(tmp_path):
    with pytest.raises(PlanError, match="zarr has no flavours"):
        mdio.Writer(tmp_path / "o.zarr", 5, storage=mdio.Storage(flavour="gromacs"))
