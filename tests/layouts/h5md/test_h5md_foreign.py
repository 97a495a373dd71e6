"""H5MD files of other writers, against MDAnalysis' own reader and numbers made here."""

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from MDAnalysis.lib.mdamath import triclinic_box
from MDAnalysisTests.datafiles import (
    DCD_TRICLINIC,
    PSF_TRICLINIC,
    H5MD_energy,
    H5MD_malformed,
    H5MD_xvf,
)
from numpy.testing import assert_allclose, assert_array_equal
from suites.h5md_cases import make_block

import mdio
from mdio.core.errors import PlanError, SourceError
from mdio.layouts.h5md.layout import H5MDLayout
from mdio.testing.blocks import oracle_of
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis


def stock_oracle(path):
    """What MDAnalysis' reader gives; it does not know dt and says 1.0 (with a warning)."""
    from MDAnalysis.coordinates.H5MD import H5MDReader

    oracle = oracle_from_mdanalysis(None, path, format=H5MDReader)
    times = oracle.time
    object.__setattr__(oracle, "dt_ps", times[1] - times[0] if len(times) > 1 else 1.0)
    return oracle


def write_other(path, block, *, chunks=True, dtype="f4", box="vectors", units=None, **dataset):
    """Write a file as another program may: one particle group, whatever units."""
    units = units or {"position": "nm", "velocity": "nm ps-1", "force": "kJ mol-1 nm-1"}
    arrays = {"position": block.positions, "velocity": block.velocities, "force": block.forces}
    with h5py.File(path, "w") as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        group = file.create_group("particles/protein")
        for name, values in arrays.items():
            if values is not None:
                element = group.create_group(name)
                element.create_dataset("value", data=values.astype(dtype), chunks=chunks, **dataset)
                element["step"] = block.step
                element["time"] = block.time.astype("f4")
                element["value"].attrs["unit"] = units[name]
                element["time"].attrs["unit"] = units.get("time", "ps")
        cell = group.create_group("box")
        cell.attrs["dimension"] = 3
        lengths = block.box[:, :3]
        if box == "lengths":
            cell["edges/value"] = lengths
        elif box == "vectors":
            skew = np.array([[1, 0, 0], [0.1, 1, 0], [-0.3, 0.2, 1]])
            cell["edges/value"] = lengths[:, :, np.newaxis] * skew


class TestOfMDAnalysis(LayoutReadingTests):
    @pytest.fixture(params=[H5MD_xvf, H5MD_energy], ids=["cobrotoxin", "cu"], scope="class")
    @classmethod
    def case(cls, request):
        return ReadingCase(H5MDLayout, Path(request.param), stock_oracle(request.param))


class TestOfMDAnalysisWriter(LayoutReadingTests):
    @pytest.fixture(params=[{}, {"chunks": (4, 5, 2), "compression": "gzip"}], scope="class")
    @classmethod
    def case(cls, request, tmp_path_factory):
        import MDAnalysis as mda

        path = tmp_path_factory.mktemp("stock") / "x.h5md"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            u = mda.Universe(PSF_TRICLINIC, DCD_TRICLINIC)
            atoms = u.atoms[:40]
            with mda.Writer(str(path), len(atoms), lengthunit="nm", **request.param) as writer:
                for _ in u.trajectory:
                    writer.write(atoms)
        return ReadingCase(H5MDLayout, path, stock_oracle(path))


OTHERS = {
    "nm": {},
    "double": {"dtype": "f8", "chunks": None},
    "cuboid": {"box": "lengths", "chunks": (3, 17, 3)},
    "no edges": {"box": "none", "chunks": (1, 17, 3)},
    "odd units": {
        "units": {
            "position": "pm",
            "velocity": "m s-1",
            "force": "kcal mol-1 Angstrom-1",
            "time": "fs",
        }
    },
    "lzf": {"compression": "lzf", "shuffle": True, "chunks": (7, 4, 1)},
    "integers": {"dtype": "i4"},
}


class TestOfOthers(LayoutReadingTests):
    @pytest.fixture(params=OTHERS.values(), ids=OTHERS.keys(), scope="class")
    @classmethod
    def case(cls, request, tmp_path_factory):
        path = tmp_path_factory.mktemp("other") / "x.h5md"
        write_other(path, make_block(velocities=True, forces=True), **request.param)
        return ReadingCase(H5MDLayout, path, stock_oracle(path))


@pytest.fixture
def other(tmp_path):
    block = make_block()
    write_other(tmp_path / "x.h5md", block, units={"position": "Angstrom", "time": "ps"})
    return tmp_path / "x.h5md", block


def edit(path, change):
    with h5py.File(path, "r+") as file:
        change(file, file["particles/protein"])


def test_steps_and_times_as_increments(other):
    path, block = other

    def change(_, group):
        position = group["position"]
        for name in ("step", "time"):
            del position[name]
        position["step"] = 500
        position["step"].attrs["offset"] = 2000
        position["time"] = 0.25
        position["time"].attrs["offset"] = 7.0
        position["time"].attrs["unit"] = "ns"

    edit(path, change)
    with H5MDLayout(path) as layout:
        got = layout.read(3, 6)
        assert got.step.tolist() == [3500, 4000, 4500]
        assert got.time.tolist() == [7750, 8000, 8250]
        assert (layout.info.dt_ps, layout.info.time_last_ps) == (250, 1000 * (7 + 22 * 0.25))
        assert_array_equal(got.positions, block.positions[3:6])


def test_no_steps_and_no_times_count_frames(other):
    path, _ = other

    def change(_, group):
        del group["position/step"]
        del group["position/time"]

    edit(path, change)
    with H5MDLayout(path) as layout:
        got = layout.read(3, 6)
        assert got.step.tolist() == got.time.tolist() == [3, 4, 5]


@pytest.mark.parametrize("form", ["lengths", "vectors", "value", "no box"])
def test_one_cell_for_all_frames(other, form):
    path, _ = other

    def change(_, group):
        del group["box/edges"]
        if form == "vectors":
            group["box/edges"] = np.diag([30.0, 40.0, 50.0])
        elif form == "lengths":
            group["box/edges"] = np.array([30.0, 40.0, 50.0])
        elif form == "value":
            group["box/edges/value"] = np.array([30.0, 40.0, 50.0])
        else:
            del group["box"]

    edit(path, change)
    expected = [0] * 6 if form == "no box" else [30, 40, 50, 90, 90, 90]
    with H5MDLayout(path) as layout:
        assert layout.read(5, 8).box.tolist() == [expected] * 3
        assert layout.info.has_box == (form != "no box")


@pytest.mark.parametrize("per_frame", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
def test_cells_that_are_rotated_are_told_of(other, rotated, per_frame):
    """As the primitive cell of a cubic lattice is, often: (0, 5, 5), (5, 0, 5), (5, 5, 0)."""
    path, block = other
    vectors = np.full((3, 3), 5.0)
    vectors[np.triu_indices(3, 1) if not rotated else np.diag_indices(3)] = 0

    def change(_, group):
        steps, times = (group[f"position/{name}"][:] for name in ("step", "time"))
        del group["box/edges"]
        if per_frame:
            edges = group.create_group("box/edges")
            edges["step"], edges["time"] = steps, times
            edges["time"].attrs["unit"] = "ps"
            edges["value"] = np.repeat(vectors[None], block.n_frames, axis=0)
            edges["value"].attrs["unit"] = "Angstrom"
        else:
            group["box/edges"] = vectors
            group["box/edges"].attrs["unit"] = "Angstrom"

    edit(path, change)
    with H5MDLayout(path) as layout:
        told = [note for note in layout.notes if "rotated against x, y and z" in note]
        assert len(told) == rotated
        assert_allclose(layout.read(0, 1).box[0], triclinic_box(*vectors), rtol=1e-6)
    mdio.convert(path, path.with_suffix(".zarr"))
    with mdio.open(path.with_suffix(".zarr")) as layout:  # whose boxes are no others
        assert sum("rotated against x, y and z" in note for note in layout.notes) == rotated


def test_particle_groups_by_name(other):
    path, block = other

    def change(file, group):
        file.copy(group, "particles/water")
        file["particles/water/position/value"][...] *= 2

    edit(path, change)
    with H5MDLayout(path, group="water") as layout:
        assert_array_equal(layout.read(0, 23).positions, block.positions * 2)
    assert_array_equal(H5MDLayout(path).read(0, 23).positions, block.positions)
    with pytest.raises(PlanError, match=r"'ions'.*protein, water"):
        _ = H5MDLayout(path, group="ions").info


def test_numbers_without_units(other):
    path, block = other

    def change(_, group):
        del group["position/value"].attrs["unit"]

    edit(path, change)
    with pytest.raises(SourceError, match=r"no unit.*nm.*convert_units=False"):
        _ = H5MDLayout(path).info
    with H5MDLayout(path, convert_units=False) as layout:
        LayoutReadingTests().check_positions(layout.read(0, 23).positions, block.positions)


def test_units_of_fixed_length(other):
    """As the H5MD text has them; h5py gives bytes."""
    path, block = other

    def change(_, group):
        group["position/value"].attrs["unit"] = np.bytes_("Angstrom")

    edit(path, change)
    assert_array_equal(H5MDLayout(path).read(0, 23).positions, block.positions)
    assert H5MDLayout(path).manifest is None
    assert [problem for _, problem in H5MDLayout(path).check()] == [None] * len(
        H5MDLayout(path).boundaries()[1:]
    )


def test_memory_for_a_selection_is_bounded(other, monkeypatch):
    path, block = other
    monkeypatch.setattr("mdio.layouts.foreign.hdf5.SLAB_NBYTES", 1000)
    LayoutReadingTests().check(
        H5MDLayout(path).read(2, 22, atoms=[16, 2, 2]).frames(slice(0, 0)),
        oracle_of(block),
        0,
        0,
        [16, 2, 2],
    )
    got = H5MDLayout(path).read(2, 22, atoms=[16, 2, 2])
    assert_array_equal(got.positions, block.positions[2:22, [16, 2, 2]])


def replace(group, name, values):
    attributes = dict(group[name].attrs)
    del group[name]
    group[name] = values
    group[name].attrs.update(attributes)


def claim(group):
    del group["position/value"]
    made = group["position"].create_dataset("value", (10**9, 10**6, 3), "f4", chunks=(1, 1000, 3))
    made.attrs["unit"] = "nm"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f, g: f.pop("particles"), "no particles"),
        (lambda f, g: f["particles"].pop("protein"), "no particles"),
        (lambda f, g: g.pop("position"), "no positions"),
        (lambda f, g: g["position"].pop("value"), "no time series"),
        (lambda f, g: replace(g, "position/value", np.zeros((4, 5))), "no time series"),
        (lambda f, g: replace(g, "position/value", np.zeros((0, 5, 3))), "at least one"),
        (lambda f, g: replace(g, "position/time", np.zeros(3)), "times of 3 and 23"),
        (lambda f, g: replace(g, "box/edges/value", np.zeros((2, 3))), "box of 2 frames"),
        (lambda f, g: replace(g, "box/edges/value", np.zeros((23, 2))), "shape"),
        (lambda f, g: g["box"].attrs.update(dimension=2), "2 dimensions"),
        (lambda f, g: g["position/value"].attrs.update(unit="furlong"), "'furlong'"),
        (lambda f, g: g["position/time"].attrs.update(unit="h"), "'h'"),
        (lambda f, g: claim(g), "bytes are stored"),
    ],
)
def test_files_that_hold_no_trajectory(other, change, says):
    path, _ = other
    edit(path, change)
    with pytest.raises(SourceError, match=rf"x\.h5md.*{says}"):
        _ = H5MDLayout(path).info


def test_velocities_of_other_frames(other):
    path, _ = other

    def change(_, group):
        group["velocity/value"] = np.zeros((5, 17, 3))
        group["velocity/value"].attrs["unit"] = "nm ps-1"

    edit(path, change)
    with pytest.raises(SourceError, match="velocities of 5 frames"):
        _ = H5MDLayout(path).info


def test_malformed_observables_do_not_matter():
    """MDAnalysis refuses this file for its observables; its frames are whole."""
    with h5py.File(H5MD_malformed) as file:
        value = next(iter(file["particles"].values()))["position/value"]
        unit = {"nm": 10.0, "Angstrom": 1.0}[value.attrs["unit"]]
        expected = value[:].astype("f4") * np.float32(unit)
    with H5MDLayout(H5MD_malformed) as layout:
        assert_array_equal(layout.read(0, layout.info.n_frames).positions, expected)


def test_damaged_chunks(tmp_path):
    path = tmp_path / "x.h5md"
    write_other(path, make_block(), compression="gzip", chunks=(4, 17, 3))
    with h5py.File(path) as file:
        info = file["particles/protein/position/value"].id.get_chunk_info_by_coord((8, 0, 0))
    with path.open("r+b") as file:
        file.seek(info.byte_offset)
        file.write(bytes(100))
    with pytest.raises(SourceError, match=r"x\.h5md: frames 8 to 9 cannot be read"):
        H5MDLayout(path).read(8, 10)


@pytest.mark.parametrize("name", ["position/time", "position/step", "box", "box/edges/value"])
def test_what_is_there_but_damaged_is_not_left_out(tmp_path, name):
    path = tmp_path / "x.h5md"
    with h5py.File(path, "w", libver="latest") as file:  # object headers have checksums
        file.create_group("h5md").attrs["version"] = [1, 1]
        group = file.create_group("particles/protein")
        group["position/value"] = np.ones((2, 3, 3), np.float32)
        group["position/value"].attrs["unit"] = "nm"
        group["position/time"], group["position/step"] = [5.0, 7.0], [1, 2]
        group["position/time"].attrs["unit"] = "ps"
        group["box/edges/value"] = np.ones((2, 3), np.float32)
        at = h5py.h5o.get_info(group[name].id).addr
    raw = bytearray(path.read_bytes())
    assert raw[at : at + 4] == b"OHDR"
    raw[at + 8] ^= 1
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"x\.h5md"), H5MDLayout(path) as layout:
        _ = layout.info
