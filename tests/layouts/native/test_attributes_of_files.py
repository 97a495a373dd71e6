"""What native files say of themselves: units, boundaries, versions, values never written."""

import json
import struct

import h5py
import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.io.netcdftrajectory import NetCDFTrajectory

import mdio
from mdio.cli.main import main
from mdio.core.errors import MdioError, OptionError, SourceError

RNG = np.random.default_rng(3)
X = RNG.random((3, 4, 3)).astype("f4")


def netcdf(path, time=None, length="angstrom", velocity=None, force=None, **more):
    """Write three frames; `time`: unit and factor; of a variable in `more`, a frame is left out."""
    kind, angle = more.pop("format", "NETCDF3_64BIT_OFFSET"), more.pop("angle", "degree")
    with netCDF4.Dataset(path, "w", format=kind) as data:
        data.Conventions, data.ConventionVersion, data.program = "AMBER", "1.0", "test"
        for name, size in (("frame", None), ("atom", 4), ("spatial", 3)):
            data.createDimension(name, size)

        def variable(name, kind, dimensions, unit, values, **options):
            found = data.createVariable(name, kind, dimensions, **options)
            if unit:
                found.units = unit
            found.set_auto_scale(False)
            for frame in range(3):
                if more.get(name) != "all" and frame != more.get(name):
                    found[frame] = values[frame]
            return found

        each = ("frame", "atom", "spatial")
        if time is not None:
            times = variable("time", "f4", ("frame",), time[0], [0, 500, 1000])
            times.scale_factor = np.float32(time[1])
        variable("coordinates", "f4", each, length, X)
        for name, unit in (("velocities", velocity), ("forces", force)):
            if unit is not None:
                variable(name, "f4", each, unit, X)
        angles = np.full((3, 3), np.pi / 2 if angle == "radian" else 90)
        variable("cell_lengths", "f8", ("frame", "spatial"), length, np.full((3, 3), 10.0))
        variable("cell_angles", "f8", ("frame", "spatial"), angle, angles)
    return path


@pytest.mark.parametrize("kind", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_units_of_lammps(tmp_path, kind):
    path = netcdf(
        tmp_path / "a.nc",
        time=("femtosecond", 2),
        length="Angstrom",
        velocity="angstrom/femtosecond",
        force="(Kcal/mol)/angstrom)",
        format=kind,
    )
    with mdio.open(path) as layout:
        assert layout.info.made_up == ()
        assert layout.info.dt_ps == pytest.approx(1)
        block = layout.read(0, 3)
    np.testing.assert_allclose(block.time, [0, 1, 2])
    np.testing.assert_array_equal(block.positions, X)
    np.testing.assert_allclose(block.velocities, X * 1e3, rtol=1e-6)
    np.testing.assert_allclose(block.forces, X * 4.184, rtol=1e-6)
    np.testing.assert_allclose(block.box, [[10, 10, 10, 90, 90, 90]] * 3)


def test_other_units_of_length_angle_and_energy(tmp_path):
    path = netcdf(tmp_path / "a.nc", length="nanometers", force="eV/angstrom", angle="radian")
    with mdio.open(path) as layout:
        block = layout.read(0, 3)
    np.testing.assert_allclose(block.positions, X * 10, rtol=1e-6)
    np.testing.assert_allclose(block.box, [[100, 100, 100, 90, 90, 90]] * 3, rtol=1e-6)
    np.testing.assert_allclose(block.forces, X * 96.48533, rtol=1e-6)
    mdio.convert(path, tmp_path / "out.zarr")
    assert mdio.verify(tmp_path / "out.zarr", against=path).ok


def test_a_unit_that_nobody_knows_is_refused_by_name(tmp_path):
    path = netcdf(tmp_path / "a.nc", length="furlong")
    with pytest.raises(SourceError, match="is in units of 'furlong'; expected 'angst"):
        mdio.open(path).info  # noqa: B018


def test_reduced_units_are_assumed_with_a_note(tmp_path):
    path = netcdf(tmp_path / "a.nc", time=("lj", 1), length="lj", velocity="lj")
    with mdio.open(path) as layout:
        text = " ".join(layout.info.made_up)
        assert "no unit of lengths" in text and "times" in text and "velocities" in text
    with mdio.open(path, length_unit="nm") as layout:
        np.testing.assert_allclose(layout.read(0, 3).positions, X * 10, rtol=1e-6)


@pytest.mark.parametrize(
    ("time", "velocity", "force"), [("femtosecond", 1e3, 4.184), ("picosecond", 1, 96.485332)]
)
def test_lammps_names_the_units_of_times_and_cells_alone(tmp_path, time, velocity, force):
    """Its styles real and metal; files of LAMMPS of 2014 and 2020 were read by hand."""
    path = netcdf(tmp_path / "a.nc", time=(time, 2), length="", velocity="", force="")
    with netCDF4.Dataset(path, "a") as data:
        data.program, data["cell_lengths"].units = "LAMMPS", "Angstrom"
    with mdio.open(path) as layout:
        made_up = layout.info.made_up
        block = layout.read(0, 3)
    np.testing.assert_array_equal(block.positions, X)
    np.testing.assert_allclose(block.velocities, X * velocity, rtol=1e-6)
    np.testing.assert_allclose(block.forces, X * force, rtol=1e-6)
    assert [f"velocities: assumed to be Angstrom/{time}" in text for text in made_up] == [1, 0]
    assert "/Angstrom" in made_up[1]
    with pytest.raises(OptionError, match="units of lengths of its own"):
        mdio.open(path, length_unit="nm").info  # noqa: B018


def test_forces_of_other_styles_of_lammps_are_refused(tmp_path):
    path = netcdf(tmp_path / "a.nc", time=("femtosecond", 2), length="", force="")
    with netCDF4.Dataset(path, "a") as data:
        data.program, data["cell_lengths"].units = "LAMMPS", "Bohr"
    with pytest.raises(SourceError, match="forces is in units of ''"):
        _ = mdio.open(path).info


@pytest.mark.parametrize("time", ["", "lj"])
def test_velocities_have_the_unit_of_lengths(tmp_path, time):
    path = netcdf(tmp_path / "a.nc", time=(time, 1), length="nanometer", velocity="", force="lj")
    with mdio.open(path) as layout:
        text = " ".join(layout.info.made_up)
        block = layout.read(0, 3)
    np.testing.assert_allclose(block.velocities, X * 10, rtol=1e-6)
    np.testing.assert_allclose(block.forces, X * 0.4184, rtol=1e-6)
    assert "velocities: assumed to be nanometer/picosecond" in text
    assert "forces: assumed to be kilocalorie/mole/nanometer" in text


def test_ase_names_positions_for_its_velocities(tmp_path):
    """Positions are "Angstrom/Femtosecond" there, and velocities in a unit of ASE's own."""
    atoms = bulk("NaCl", "rocksalt", 5.64, cubic=True)
    velocities = RNG.random((8, 3))
    atoms.set_velocities(velocities)
    with NetCDFTrajectory(tmp_path / "a.nc", "w", atoms) as trajectory:
        trajectory.write(atoms)
    with mdio.open(tmp_path / "a.nc") as layout:
        block = layout.read(0, 1)
    np.testing.assert_allclose(block.positions[0], atoms.positions, atol=1e-6)
    expected = velocities / (units.Ang / (1000 * units.fs))
    np.testing.assert_allclose(block.velocities[0], expected, rtol=1e-6)


def test_units_that_are_not_there_are_assumed_with_notes(tmp_path):
    path = netcdf(tmp_path / "a.nc", time=("", 1), length="", velocity="", force="", angle="")
    with mdio.open(path, length_unit="nm") as layout:
        text = " ".join(layout.info.made_up)
        block = layout.read(0, 3)
    np.testing.assert_allclose(block.positions, X * 10, rtol=1e-6)
    np.testing.assert_allclose(block.velocities, X * 10, rtol=1e-6)
    np.testing.assert_allclose(block.box, [[100, 100, 100, 90, 90, 90]] * 3)
    assert "velocities: assumed to be nm/ps" in text
    assert all(name in text for name in ("lengths", "times", "velocities", "forces"))


@pytest.mark.parametrize("kind", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_times_that_are_not_there_are_made_up_with_a_note(tmp_path, kind, capsys):
    for name, options in (("none.nc", {}), ("fill.nc", {"time": ("picosecond", 1)})):
        if name == "fill.nc":
            options["time"] = ("picosecond", 1)
        path = tmp_path / name
        if name == "fill.nc":
            write_unwritten_times(path, kind)
        else:
            netcdf(path, format=kind)
        assert main(["info", str(path), "--json"]) == 0
        made_up = json.loads(capsys.readouterr()[0])["made_up"]
        assert ["times are made up" in text for text in made_up] == [True]
        with mdio.open(path, dt=5) as layout:
            assert layout.read(0, 3).time.tolist() == [0, 5, 10]
            assert layout.info.dt_ps == 5
            assert layout.notes[0].endswith("5 ps apart, as asked")
        mdio.convert(path, tmp_path / f"{name}.zarr", source_options={"dt": 2})
        with mdio.open(tmp_path / f"{name}.zarr") as layout:
            assert layout.read(0, 3).time.tolist() == [0, 2, 4]
            assert "2 ps apart, as asked" in layout.info.made_up[0]


def write_unwritten_times(path, kind):
    netcdf(path, format=kind)
    with netCDF4.Dataset(path, "a") as data:
        times = data.createVariable("time", "f4", ("frame",))
        times.units = "picosecond"


def test_times_of_the_file_are_not_to_be_assumed(tmp_path, capsys):
    path = netcdf(tmp_path / "a.nc", time=("picosecond", 1))
    assert main(["info", str(path), "--timestep", "5"]) != 0
    assert "leave out --timestep" in capsys.readouterr()[1]
    assert main(["info", str(path), "--length-unit", "nm"]) != 0
    assert "leave out --length-unit" in capsys.readouterr()[1]


@pytest.mark.parametrize("atom", [0, -1])
def test_a_frame_that_was_written_in_part_is_an_error(tmp_path, atom):
    """Its first atoms are there, or its last."""
    path = netcdf(tmp_path / "a.nc", time=("picosecond", 1))
    with netCDF4.Dataset(path, "a") as data:
        data.variables["coordinates"][1, atom] = netCDF4.default_fillvals["f4"]
    with mdio.open(path) as layout:
        layout.read(0, 1)
        with pytest.raises(SourceError, match="frame 1 is not whole: its coordinates"):
            layout.read(1, 2)


@pytest.mark.parametrize("name", ["coordinates", "velocities", "cell_lengths"])
@pytest.mark.parametrize("kind", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_a_frame_that_was_not_written_whole_is_an_error(tmp_path, name, kind):
    options = {"time": ("picosecond", 1), "velocity": "angstrom/picosecond", name: 2}
    path = netcdf(tmp_path / "a.nc", format=kind, **options)
    with mdio.open(path) as layout:
        layout.read(0, 2)
        with pytest.raises(SourceError, match=f"frame 2 is not whole: its {name}"):
            layout.read(0, 3)
    with pytest.raises(MdioError, match="frame 2 is not whole"):
        mdio.convert(path, tmp_path / "out.zarr")
    mdio.convert(path, tmp_path / "out.zarr", salvage=True)
    assert mdio.open(tmp_path / "out.zarr").info.n_frames == 2


def test_velocities_that_were_never_written_are_left_out_with_a_note(tmp_path):
    path = netcdf(tmp_path / "a.nc", velocity="angstrom/picosecond", velocities="all")
    with mdio.open(path) as layout:
        assert not layout.info.has_velocities
        assert any("velocities is left out" in note for note in layout.notes)


def dcd(path, titles, *, version=24, delta=1.0, cell=(30, 90, 30, 90, 90, 30), marked=None):
    """Write two frames of three atoms, with one record of titles, as Fortran does."""

    def record(payload, nbytes=None):
        mark = struct.pack("<i", len(payload) if nbytes is None else nbytes)
        return mark + payload + mark

    control = struct.pack(
        "<4s9if10i", b"CORD", 2, 100, 100, 200, *[0] * 5, delta, 1, *[0] * 8, version
    )
    text = b"".join(title.ljust(80) for title in titles)
    data = record(control) + record(struct.pack("<i", len(titles)) + text, marked)
    data += record(struct.pack("<i", 3))
    for frame in range(2):
        data += record(struct.pack("<6d", *cell))
        for axis in range(3):
            data += record(struct.pack("<3f", *(frame + axis + np.arange(3))))
    path.write_bytes(data)
    return path


def test_times_of_lammps_are_femtoseconds_with_a_note(tmp_path, capsys):
    path = dcd(tmp_path / "a.dcd", [b"Written by LAMMPS"], delta=2.0)
    with mdio.open(path) as layout:
        np.testing.assert_allclose(layout.read(0, 2).time, [0.2, 0.4])
        assert "LAMMPS wrote it" in layout.info.made_up[0]
    with mdio.open(path, dt=3) as layout:
        np.testing.assert_allclose(layout.read(0, 2).time, [3, 6])
    mdio.split(path, tmp_path / "s.segments", 2)
    with mdio.open(tmp_path / "s.segments") as layout:
        np.testing.assert_allclose(layout.read(0, 2).time, [0.2, 0.4])
    mdio.convert(path, tmp_path / "t.segments", source_options={"dt": 3})
    with mdio.open(tmp_path / "t.segments") as layout:
        np.testing.assert_allclose(layout.read(0, 2).time, [3, 6])
    other = dcd(tmp_path / "b.dcd", [b"Created by NAMD"], delta=2.0)
    with mdio.open(other) as layout:
        assert layout.info.made_up == ()
        np.testing.assert_allclose(layout.read(0, 1).time, 200 * 0.04888821)


def test_times_of_cp2k_are_femtoseconds(tmp_path):
    """Its motion_utils.F writes the step in fs, and calls itself so."""
    titles = [b"REMARK CORD DCD file created by CP2K version 2024.1 (revision git:5058fb2)"]
    path = dcd(tmp_path / "a.dcd", [*titles, b"REMARK me@there"], delta=0.5)
    with mdio.open(path) as layout:
        assert layout.info.made_up == ()
        np.testing.assert_allclose(layout.read(0, 2).time, [0.05, 0.1])


@pytest.mark.parametrize(
    ("title", "delta", "step_ps"),
    [
        (b"CHARMM format DCD trajectory written by CPMD. ", 5, 5 * 2.4188843e-5),
        (b"Created by https://sire.openbiosim.org", 2, 2),
    ],
    ids=["CPMD", "Sire"],
)
def test_times_of_programs_with_other_units(tmp_path, title, delta, step_ps):
    """CPMD's printp writes atomic units, Sire's dcd.cpp ps."""
    path = dcd(tmp_path / "a.dcd", [title], delta=delta)
    with mdio.open(path) as layout:
        assert layout.info.made_up == ()
        np.testing.assert_allclose(layout.read(0, 2).time, [100 * step_ps, 200 * step_ps])


def test_a_step_of_tinker_hp_is_no_time(tmp_path):
    """Its dcdio.f writes the number of the first step in place of the time step."""
    path = dcd(tmp_path / "a.dcd", [b"Created by Tinker-HP development version"], delta=1000)
    with mdio.open(path) as layout:
        assert "which Tinker-HP writes" in layout.info.made_up[0]


@pytest.mark.parametrize(
    ("title", "note"),
    [
        (b"REMARKS FILENAME=eq.1.veldcd CREATED BY NAMD", "velocities, in units of 20.455"),
        (b"REMARKS FILENAME=out/eq.forcedcd CREATED BY", "forces, as the name"),
        (b"REMARKS FILENAME=veldcd.dcd CREATED BY NAMD", None),
    ],
)
def test_velocities_and_forces_of_namd_are_told_of(tmp_path, title, note):
    """Its dcdlib.C begins them with CORD, and names the file in the title."""
    path = dcd(tmp_path / "a.dcd", [title], delta=0.02)
    with mdio.open(path, dt=3) as layout:
        notes = layout.info.made_up[1:]
    assert not notes if note is None else note in notes[0]


def test_flat_cells_of_hoomd(tmp_path):
    """Its DCDDumpWriter divides by the length of an axis that is 0, and writes cosines."""
    titles, nan = [b"Created by HOOMD\0"], np.nan
    path = dcd(tmp_path / "a.dcd", titles, delta=0, cell=(20, 0.5, 30, nan, nan, 0))
    with mdio.open(path) as layout:
        np.testing.assert_allclose(layout.read(0, 1).box[0], [20, 30, 0, 90, 90, 60], rtol=1e-6)
        assert "which has no units" in layout.info.made_up[1]


def test_a_dcd_whose_times_are_equal_is_appended_by_its_contents(tmp_path):
    """Its step of 0 gives all frames one time, and the format holds no steps."""
    path = dcd(tmp_path / "a.dcd", [b"Created by NAMD"], delta=0.0)
    mdio.convert(path, tmp_path / "a.zarr", stop=1)
    result = mdio.append(path, tmp_path / "a.zarr")
    assert result.n_frames == 2
    assert "1 of its 2 frames already" in " ".join(result.plan.notes)


def matrix(box):
    """Return CHARMM's symmetric matrix of a cell, in the order of its record."""
    vectors = mda.lib.mdamath.triclinic_vectors(np.float32(box)).astype(float)
    values, axes = np.linalg.eigh(vectors @ vectors.T)
    shape = axes @ np.diag(np.sqrt(values)) @ axes.T
    return [shape[i, j] for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))]


@pytest.mark.parametrize(
    "box",
    [
        [60, 60, 80, 89.7, 90.2, 89.5],
        [60, 50, 80, 90, 80, 90],
        [40, 40, 40, 109.47, 109.47, 109.47],
    ],
)
def test_cells_of_charmm_are_matrices(tmp_path, box):
    path = dcd(tmp_path / "a.dcd", [b"CHARMM"], version=46, cell=matrix(box))
    np.testing.assert_allclose(mdio.open(path).read(0, 1).box[0], box, atol=2e-3)


def test_degrees_under_a_version_of_charmm_are_still_degrees(tmp_path):
    for number, (a, b, c, beta) in enumerate([(30, 40, 50, 80), (100, 200, 300, 90)]):
        cell = (a, 90, b, beta, 90, c)  # A, gamma, B, beta, alpha, C
        path = dcd(tmp_path / f"{number}.dcd", [b"x"], version=40, cell=cell)
        np.testing.assert_allclose(mdio.open(path).read(0, 1).box[0], [a, b, c, 90, beta, 90])


@pytest.mark.parametrize("version", [27, 35, 36])
@pytest.mark.parametrize(
    "angles", [(109.4712190, 109.4712190, 109.4712190), (90, 90, 90), (70, 95, 60)]
)
@pytest.mark.parametrize(
    "of_angle", [lambda degrees: degrees, lambda degrees: np.cos(np.radians(degrees))]
)
def test_programs_that_only_give_a_version_of_charmm_write_no_matrices(
    tmp_path, version, angles, of_angle
):
    """As cpptraj (35, cosines), MODYLAS (36, degrees) and LOOS (27, degrees) do."""
    alpha, beta, gamma = map(of_angle, angles)
    cell = (200, gamma, 210, beta, alpha, 220)  # longer than its angles: the matrix spans a cell
    path = dcd(tmp_path / "a.dcd", [b"x"], version=version, delta=0.001, cell=cell)
    with mdio.open(path) as layout:
        np.testing.assert_allclose(layout.read(0, 1).box[0], [200, 210, 220, *angles], atol=1e-4)
        assert "rotated" not in "".join(layout.notes)


@pytest.mark.parametrize("delta, by", [(0, "Tinker"), (0.001, "cpptraj"), (1, "VMD")])
def test_time_steps_that_programs_write_of_any_trajectory_are_told(tmp_path, delta, by):
    path = dcd(tmp_path / "a.dcd", [b"x"], delta=delta)
    (note,) = mdio.open(path).info.made_up
    assert by in note and "--timestep" in note
    assert "as asked" in mdio.open(path, dt=3).info.made_up[0]
    mdio.convert(path, tmp_path / "a.zarr")
    assert by in "".join(mdio.open(tmp_path / "a.zarr").notes)


def test_a_step_of_one_femtosecond_of_cp2k_is_one(tmp_path):
    path = dcd(tmp_path / "a.dcd", [b"REMARK DCD file created by CP2K 2023"], delta=1.0)
    assert not mdio.open(path).notes


def test_titles_longer_than_they_are_marked(tmp_path):
    path = dcd(tmp_path / "a.dcd", [b"one", b"two", b"three"], marked=164)
    with mdio.open(path) as layout:
        assert layout.info.n_frames == 2
        np.testing.assert_array_equal(layout.read(1, 2).positions[0, :, 0], [1, 2, 3])
    data = bytearray(path.read_bytes())
    data[92 + 4 + 244] ^= 1  # the mark behind them
    path.write_bytes(bytes(data))
    with pytest.raises(SourceError, match=r"a\.dcd.*titles"):
        mdio.open(path).info  # noqa: B018


def test_units_of_mdtraj(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out.attrs.update(conventions="Pande", conventionVersion="1.1", program="x")
        for name, values, unit in (
            ("coordinates", X, "angstroms"),
            ("time", np.arange(3) * 2000.0, "femtoseconds"),
            ("cell_lengths", np.full((3, 3), 3, "f4"), b"nanometers"),
            ("cell_angles", np.full((3, 3), np.pi / 2, "f4"), "radians"),
            ("velocities", X, "angstroms/picosecond"),
        ):
            out[name] = values
            out[name].attrs["units"] = unit
    block = mdio.open(tmp_path / "a.h5").read(0, 3)
    np.testing.assert_allclose(block.positions, X)
    np.testing.assert_allclose(block.velocities, X)
    np.testing.assert_allclose(block.time, [0, 2, 4])
    np.testing.assert_allclose(block.box, [[30, 30, 30, 90, 90, 90]] * 3, rtol=1e-6)
    with h5py.File(tmp_path / "a.h5", "a") as out:
        out["velocities"].attrs["units"] = "furlongs/fortnight"
    with pytest.raises(SourceError, match="velocities is in 'furlongs/fortnight'"):
        mdio.open(tmp_path / "a.h5").info  # noqa: B018


def h5md(path, edges, boundary, unit="Angstrom"):
    with h5py.File(path, "w") as out:
        out.create_group("h5md").attrs["version"] = [1, 1]
        out.create_group("h5md/author").attrs["name"] = "x"
        out.create_group("h5md/creator").attrs.update(name="x", version="1")
        box = out.create_group("particles/all/box")
        box.attrs.update(dimension=3, boundary=boundary)
        box["edges"] = np.asarray(edges, float)
        if unit:
            box["edges"].attrs["unit"] = unit
        out["particles/all/position/value"] = [[[0.1, 0.1, 0.1], [0.1, 0.1, 2.9]]] * 2
        out["particles/all/position/value"].attrs["unit"] = "nm"
        out["particles/all/position/time"] = [0.0, 1.0]
        out["particles/all/position/time"].attrs["unit"] = "ps"
        out["particles/all/position/step"] = [0, 1]
    return path


def test_cells_of_h5md_have_units_of_their_own(tmp_path):
    for unit, factor in (("Angstrom", 1), ("nm", 10), (None, 10)):
        path = h5md(tmp_path / f"{unit}.h5", [30, 30, 30], ["periodic"] * 3, unit)
        box = mdio.open(path).read(0, 2).box
        np.testing.assert_allclose(box[:, :3], 30.0 * factor)


@pytest.mark.parametrize("edges", [[30, 30, 30], np.diag([30, 30, 30])], ids=["lengths", "vectors"])
def test_axes_that_are_not_periodic(tmp_path, edges):
    path = h5md(tmp_path / "slab.h5", edges, ["periodic", "periodic", "none"])
    for out in (path, tmp_path / "a.zarr", tmp_path / "a.h5md", tmp_path / "a.segments"):
        if out != path:
            mdio.convert(path, out)
        np.testing.assert_array_equal(mdio.open(out).read(0, 1).box[0], [30, 30, 0, 90, 90, 90])
        values = mdio.analyze(out, kernel="pairs").values
        np.testing.assert_allclose(values, 28, rtol=1e-6)
    with h5py.File(tmp_path / "a.h5md") as file:
        box = file["particles/trajectory/box"]
        assert list(box.attrs["boundary"]) == ["periodic", "periodic", "none"]
        np.testing.assert_array_equal(box["edges/value"][0], np.diag([30, 30, 0]))
    with pytest.raises(MdioError, match="not periodic along z"):
        mdio.convert(path, tmp_path / "b.zarr", selection=mdio.Selection(pbc="atom"))


def test_a_skewed_cell_that_is_open_is_noted(tmp_path):
    edges = [[30, 0, 0], [5, 30, 0], [0, 5, 30]]
    path = h5md(tmp_path / "slab.h5", edges, ["periodic", "periodic", "none"])
    with mdio.open(path) as layout:
        assert layout.read(0, 1).box[0, 2] > 0
        assert any("not periodic along z" in note for note in layout.notes)


RESTART = (
    "made by hand\n    3  1.2500000E+02\n"
    + "".join(f"{x:12.7f}" for x in range(1, 7))
    + "\n"
    + "".join(f"{x:12.7f}" for x in range(7, 10))
    + "\n"
    + "".join(f"{x / 10:12.7f}" for x in range(1, 7))
    + "\n"
    + "".join(f"{x / 10:12.7f}" for x in range(7, 10))
    + "\n"
    + "".join(f"{x:12.7f}" for x in (30, 31, 32, 90, 90, 90))
    + "\n"
)


@pytest.mark.parametrize("name", ["restrt", "inpcrd", "md.rst7", "md.crd", "md.rst", "restrt.3"])
@pytest.mark.parametrize("kind", [None, "RESTRT", "INPCRD"])
def test_restart_files_are_known_by_their_contents(tmp_path, name, kind):
    (tmp_path / name).write_text(RESTART)
    options = {} if kind is None else {"format": kind}
    with mdio.open(tmp_path / name, **options) as layout:
        assert layout.info.layout == "restart"
        block = layout.read(0, 1)
    np.testing.assert_array_equal(block.box[0], [30, 31, 32, 90, 90, 90])
    np.testing.assert_array_equal(block.positions[0, 2], [7, 8, 9])
    np.testing.assert_allclose(block.velocities[0, 0], np.array([0.1, 0.2, 0.3]) * 20.455)


@pytest.mark.parametrize("suffix", ["dcd", "xtc", "zarr", "h5md", "segments"])
def test_dt_of_a_universe_moves_its_times(tmp_path, suffix):
    universe = mda.Universe.empty(4, trajectory=True)
    universe.load_new(X)
    source = tmp_path / ("a.dcd" if suffix == "dcd" else "a.xtc")
    with mda.Writer(str(source), 4, dt=1) as writer:
        for _ in universe.trajectory:
            writer.write(universe)
    path = source
    if suffix not in ("dcd", "xtc"):
        path = tmp_path / f"a.{suffix}"
        mdio.convert(source, path)
    read = mda.Universe.empty(4, trajectory=True)
    read.load_new(str(path), format="MDIO", dt=5)
    assert [ts.time for ts in read.trajectory] == [0, 5, 10]
    assert read.trajectory.dt == 5 and read.trajectory.totaltime == 10
    assert read.trajectory[1].time == 5


def test_numbers_of_frames_are_no_steps_to_match_by(tmp_path):
    """Times that start again within a file: its frames were matched by their numbers."""
    first = netcdf(tmp_path / "a.nc", time=("picosecond", 1))
    again = netcdf(tmp_path / "b.nc", time=("picosecond", 1))
    with netCDF4.Dataset(again, "a") as data:
        data["time"][:] = [2000, 3000, 2000]
    mdio.convert(first, tmp_path / "a.zarr")
    for overlap in (None, "keep-last"):
        with pytest.raises(MdioError, match=r"b\.nc: its times do not ascend"):
            mdio.append(again, tmp_path / "a.zarr", overlap=overlap)
