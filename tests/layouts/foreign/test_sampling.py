"""H5MD whose elements have frames of their own, as GROMACS 2026 and others write it."""

import h5py
import numpy as np
import pytest
from MDAnalysis import Universe
from MDAnalysis.exceptions import NoDataError
from numpy.testing import assert_array_equal
from suites.files_of_others import FIELDS, N_ATOMS, STEPS, write_gromacs
from suites.outputs import as_options

import mdio
from mdio.core.errors import SourceError
from mdio.core.frames import absent_frames
from mdio.layouts.h5md.layout import H5MDLayout


@pytest.fixture
def sampled(tmp_path):
    path = tmp_path / "md.h5md"
    return path, write_gromacs(path)


def dense(values, steps=STEPS):
    """Return what each frame of the trajectory holds, computed the plain way."""
    every = sorted(set().union(*steps.values()))
    factor = {"position": 10, "velocity": 10, "force": 0.1}
    found = {}
    for name, own in values.items():
        found[name] = np.full((len(every), N_ATOMS, 3), np.nan, "f4")
        for row, step in zip(own, steps[name], strict=True):
            found[name][every.index(step)] = row * np.float32(factor[name])
    return every, found


def check(path, values, **options):
    every, expected = dense(values)
    with mdio.open(path, **options) as layout:
        info = layout.info
        assert info.n_frames == len(every) == 21
        assert set(info.sparse) == {"positions", "velocities", "forces"}
        block = layout.read(0, len(every))
        assert_array_equal(block.step, every)
        assert_array_equal(block.time, np.array(every) * 0.5)
        for name, array in expected.items():
            np.testing.assert_allclose(getattr(block, FIELDS[name]), array, rtol=3e-7)
        assert_array_equal(absent_frames(block.positions), ~np.isin(every, list(STEPS["position"])))
        lengths = np.where(absent_frames(block.positions)[:, None], 0, [30, 40, 50])
        np.testing.assert_allclose(block.box[:, :3], lengths, rtol=1e-6)
        part = layout.read(3, 9, atoms=[5, 0])
        assert_array_equal(part.velocities, block.velocities[3:9, [5, 0]])
        for at in range(len(every)):
            assert_array_equal(layout.read(at, at + 1).forces[0], block.forces[at])


def test_every_element_has_its_own_frames(sampled):
    path, values = sampled
    check(path, values)
    notes = " ".join(mdio.open(path).notes)
    assert "velocities are in 4 of 21 frames" in notes
    assert "boxes are in 20 of 21 frames" in notes
    assert "lengths are taken to be in nm" in notes


@pytest.mark.parametrize("name", ["o.zarr", "o.h5md", "o.trr", "o.segments"])
def test_outputs_keep_which_frames_have_it(sampled, name):
    path, values = sampled
    out = path.with_name(name)
    more = {"container": "trr", "segments": 3} if name == "o.segments" else {}
    mdio.convert(path, out, workers=2, **as_options(more))
    check(out, values)
    assert mdio.verify(out, against=path).ok


def test_mdanalysis_finds_fields_absent(sampled):
    path, _ = sampled
    mdio.convert(path, path.with_name("o.zarr"))
    u = Universe.empty(N_ATOMS, trajectory=False)
    u.load_new(str(path.with_name("o.zarr")))
    seen = []
    for ts in u.trajectory:
        seen.append((ts.has_positions, ts.has_velocities, ts.has_forces))
        if not ts.has_velocities:
            with pytest.raises(NoDataError):
                _ = ts.velocities
    every = sorted(set().union(*STEPS.values()))
    assert seen == [tuple(step in STEPS[name] for name in STEPS) for step in every]


def test_a_dataset_of_no_frames_is_not_there(tmp_path):
    steps = {"position": range(4), "velocity": range(4), "force": ()}
    write_gromacs(tmp_path / "md.h5md", steps, time="i4")
    info = mdio.open(tmp_path / "md.h5md").info
    assert (info.n_frames, info.has_velocities, info.has_forces) == (4, True, False)
    assert (info.sparse, info.dt_ps) == ((), 1.0)


def test_a_frame_that_was_being_written_is_left_out(sampled):
    path, _ = sampled
    with h5py.File(path, "r+") as file:
        for name in ("step", "time"):
            file[f"particles/system/velocity/{name}"].resize((3,))
    with mdio.open(path) as layout:
        assert "was not written whole, after 3" in " ".join(layout.notes)
        assert np.count_nonzero(~absent_frames(layout.read(0, 21).velocities)) == 3


def test_no_boundary_is_no_cell(sampled):
    path, _ = sampled
    with h5py.File(path, "r+") as file:
        file["particles/system/box"].attrs["boundary"] = np.array(["none"] * 3, "S4")
    assert not mdio.open(path).info.has_box


def test_atoms_in_another_order_each_frame(sampled):
    """ESPResSo writes atoms as they come, and their numbers beside them."""
    path, values = sampled
    rng = np.random.default_rng(1)
    order = np.array([rng.permutation(N_ATOMS) for _ in range(20)])
    steps = {"position": STEPS["position"]}
    write_gromacs(path, steps)
    with h5py.File(path, "r+") as file:
        system = file["particles/system"]
        system["position/value"][...] = np.take_along_axis(
            values["position"], order[:, :, None], axis=1
        )
        system["id/value"] = order
    with mdio.open(path) as layout:
        expected = values["position"] * np.float32(10)
        assert_array_equal(layout.read(0, 20).positions, expected)
        assert_array_equal(layout.read(3, 9, atoms=[4, 1]).positions, expected[3:9, [4, 1]])


def write_ids(path, order, steps=range(4)):
    """Write four frames with velocities in every other, atoms in another order each frame."""
    values = write_gromacs(path, {"position": range(4), "velocity": range(0, 4, 2)})
    rows = {"position": slice(None), "velocity": slice(None, None, 2)}
    with h5py.File(path, "r+") as file:
        system = file["particles/system"]
        for name, own in rows.items():
            system[f"{name}/value"][...] = np.take_along_axis(
                values[name], order[own][:, :, None], axis=1
            )
        system["id/value"], system["id/step"] = order[list(steps)], np.array(steps)
    return values


def test_velocities_of_some_frames_have_the_numbers_of_atoms_of_these_frames(tmp_path):
    rng = np.random.default_rng(3)
    order = np.array([rng.permutation(N_ATOMS) for _ in range(4)])
    values = write_ids(tmp_path / "md.h5md", order)
    with mdio.open(tmp_path / "md.h5md") as layout:
        block = layout.read(0, 4)
        assert_array_equal(block.positions, values["position"] * np.float32(10))
        assert_array_equal(block.velocities[::2], values["velocity"] * np.float32(10))


def test_numbers_of_atoms_that_do_not_tell_the_order_are_refused(tmp_path):
    order = np.tile(np.arange(N_ATOMS), (4, 1))
    write_ids(tmp_path / "few.h5md", order, steps=(0, 1, 3))
    with mdio.open(tmp_path / "few.h5md") as layout:
        _ = layout.read(0, 2), layout.read(3, 4)
        with pytest.raises(SourceError, match=r"few\.h5md: frame 2 has positions, but no row"):
            layout.read(0, 4)
    order[3, 0] = 99
    write_ids(tmp_path / "other.h5md", np.argsort(order), steps=range(4))
    with h5py.File(tmp_path / "other.h5md", "r+") as file:
        file["particles/system/id/value"][3, 0] = 99
    with (
        mdio.open(tmp_path / "other.h5md") as layout,
        pytest.raises(SourceError, match="of frame 3 has other atom ids"),
    ):
        layout.read(0, 4)


@pytest.mark.parametrize("has_steps", [True, False])
def test_times_that_are_counted_are_told_and_drop_no_frame(tmp_path, has_steps):
    paths = [tmp_path / "a.h5md", tmp_path / "b.h5md"]
    for number, path in enumerate(paths):
        write_gromacs(path, {"position": range(10 * number, 10 * number + 5)})
        with h5py.File(path, "r+") as file:
            for name in ["time"] + ["step"] * (not has_steps):
                for element in ("position", "box/edges"):
                    del file[f"particles/system/{element}/{name}"]
    with mdio.open(paths) as layout:
        assert layout.info.n_frames == 10
    with mdio.open(paths[0]) as layout:
        assert layout.stored_times[:2] == (False, has_steps)
        (note,) = [note for note in layout.notes if "times are made up" in note]
        assert "frames are 1 ps apart" in note


@pytest.mark.parametrize(
    ("unit", "field", "factor"),
    [
        ("nm u ps-2", "force", 0.1),
        ("kg m s-2", "force", 6.02214129e10),
        ("kcal mol-1 nm-1", "force", 0.4184),
        ("um s-1", "velocity", 1e-8),
        ("\u00c5", "position", 1),
        ("eV/Angstrom", "force", 96.48533),  # these two by ZnH5MD
        ("Angstrom/fs", "velocity", 1e3),
    ],
)
def test_units_that_are_composed(sampled, unit, field, factor):
    path, values = sampled
    with h5py.File(path, "r+") as file:
        file[f"particles/system/{field}/value"].attrs["unit"] = unit
    with mdio.open(path) as layout:
        got = getattr(layout.read(0, 21), FIELDS[field])
        expected = values[field] * factor
        np.testing.assert_allclose(got[~absent_frames(got)], expected, rtol=1e-5)


def test_frames_without_steps_are_not_matched_by_them(tmp_path):
    path = tmp_path / "md.h5md"
    write_gromacs(path, {"position": range(0, 6, 2)})
    with mdio.open(path) as layout:
        assert layout.stored_times[:2] == (True, True)
    with h5py.File(path, "r+") as file:
        for name in ("position", "box/edges"):
            del file[f"particles/system/{name}/step"]
    with mdio.open(path) as layout:
        assert layout.stored_times[:2] == (True, False)


def test_numbers_without_units_take_the_one_that_is_named(sampled):
    path, values = sampled
    with h5py.File(path, "r+") as file:
        del file["h5md/creator"]
    with pytest.raises(SourceError, match=r"no unit.*--length-unit"):
        _ = mdio.open(path).info
    with mdio.open(path, length_unit="pm") as layout:
        got = layout.read(0, 21)
        has = ~absent_frames(got.positions)
        np.testing.assert_allclose(got.positions[has], values["position"] / 100, rtol=1e-6)
        assert "as asked with --length-unit" in " ".join(layout.notes)


def other_atoms(group):
    del group["value"]
    group["value"] = np.zeros((2, N_ATOMS - 1, 3), "f4")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g["velocity"].pop("step"), "without steps of its own"),
        (lambda g: g["velocity/step"].write_direct(np.zeros(4, "i8")), "do not increase"),
        (lambda g: g["velocity/value"].resize((2, N_ATOMS, 3)), "velocities of 2 frames"),
        (lambda g: other_atoms(g["force"]), "forces of 5 atoms"),
        (lambda g: g["position/value"].resize((0, N_ATOMS, 3)), "at least one"),
    ],
)
def test_frames_that_cannot_be_told_apart(sampled, change, says):
    path, _ = sampled
    with h5py.File(path, "r+") as file:
        change(file["particles/system"])
    with pytest.raises(SourceError, match=rf"md\.h5md.*{says}"):
        _ = H5MDLayout(path).info
