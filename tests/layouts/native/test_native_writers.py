"""Native files: what MDAnalysis' writers write, byte for byte where the format allows it."""

from pathlib import Path

import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import (
    SOURCES,
    block_of,
    frames_of,
    mdanalysis_file,
    universe,
    write,
)

import mdio
from mdio.core.frames import FrameBlock
from mdio.layouts.native import writer as native_writer
from mdio.layouts.native.dcd import DCDEncoder
from mdio.testing.blocks import random_block

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("container", ["trr", "xtc"])
def test_gromacs_files_are_those_of_mdanalysis(
    tmp_path: Path, container: str, source: str, order: str
) -> None:
    """MDAnalysis multiplies by 0.1 where a TRR divides by 10: the last bit may differ."""
    n_frames = SOURCES[source][2]
    reference = mdanalysis_file(tmp_path / f"reference.{container}", source, n_frames)
    out = tmp_path / f"out.{container}"
    write(out, container, block_of(universe(source), n_frames), order=order)
    if container == "xtc":
        assert out.read_bytes() == reference.read_bytes()
    else:
        numbers, expected = (np.fromfile(path, ">i4") for path in (out, reference))
        differ = numbers != expected
        assert np.abs(numbers[differ] - expected[differ]).max(initial=0) <= 1
        floats = np.fromfile(out, ">f4")[differ]
        assert (np.abs(floats) > 1e-30).all()  # the last bit of floats alone, no header


@pytest.mark.parametrize("source", SOURCES)
def test_dcd_frames_are_those_of_mdanalysis(tmp_path: Path, source: str) -> None:
    """But for angles without a cell, which MDAnalysis writes as 0 degrees."""
    n_frames = SOURCES[source][2]
    reference = mdanalysis_file(tmp_path / "reference.dcd", source, n_frames).read_bytes()
    block = block_of(universe(source), n_frames)
    write(tmp_path / "out.dcd", "dcd", block, order="random")
    out = (tmp_path / "out.dcd").read_bytes()
    nbytes = n_frames * (56 + 3 * (4 * block.n_atoms + 8))
    frames = np.frombuffer(reference[-nbytes:], np.uint8).reshape(n_frames, -1).copy()
    frames[~block.box.any(axis=1), 4:52] = 0
    assert out[-nbytes:] == frames.tobytes()
    assert len(out) == nbytes + 196


@pytest.mark.parametrize(("container", "name"), [("dcd", "DCD"), ("ncdf", "Amber NetCDF")])
def test_chemfiles_reads_frames_without_a_cell(tmp_path: Path, container: str, name: str) -> None:
    chemfiles = pytest.importorskip("chemfiles")
    block = random_block(2, 3)
    block.box[1] = 0
    write(tmp_path / "a", container, block)
    with chemfiles.Trajectory(str(tmp_path / "a"), "r", name) as trajectory:
        lengths = [trajectory.read().cell.lengths for _ in range(2)]
    np.testing.assert_allclose(lengths, block.box[:, :3], atol=1e-5)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("order", ["forward", "random"])
def test_ncdf_variables_are_those_of_mdanalysis(tmp_path: Path, source: str, order: str) -> None:
    n_frames = SOURCES[source][2]
    block = block_of(universe(source), n_frames)
    fields = {name: getattr(block, name) is not None for name in ("velocities", "forces")}
    fields["scale_velocities"] = 20.455 if fields["velocities"] else None  # as cpptraj has it
    path = mdanalysis_file(tmp_path / "reference.ncdf", source, n_frames, **fields)
    write(tmp_path / "out.ncdf", "ncdf", block, order=order)
    with netCDF4.Dataset(path) as expected, netCDF4.Dataset(tmp_path / "out.ncdf") as out:
        for each in (expected, out):
            each.set_auto_maskandscale(False)
        assert out.data_model == expected.data_model == "NETCDF3_64BIT_OFFSET"
        assert list(out.variables) == list(expected.variables) or sorted(out.variables) == sorted(
            expected.variables
        )
        assert {k: len(v) for k, v in out.dimensions.items()} == {
            k: len(v) for k, v in expected.dimensions.items()
        }
        assert out.dimensions["frame"].isunlimited()
        for name, variable in expected.variables.items():
            mine = out.variables[name]
            assert (mine.dtype, mine.dimensions) == (variable.dtype, variable.dimensions)
            assert mine.__dict__ == pytest.approx(variable.__dict__)
            if name == "velocities":  # divided in single precision, or in double
                np.testing.assert_allclose(mine[:], variable[:], rtol=2e-7)
            else:
                np.testing.assert_array_equal(mine[:], variable[:])
        for name in ("Conventions", "ConventionVersion"):
            assert out.getncattr(name) == expected.getncattr(name)
        assert out.program == "mdio"
    if not fields["velocities"]:
        mine = frames_of(tmp_path / "out.ncdf", block.n_atoms)
        assert mine == frames_of(path, block.n_atoms)


def written_by_mdanalysis(path: Path, block: FrameBlock, **options: bool) -> Path:
    """Write positions, velocities and forces."""
    u = mda.Universe.empty(block.n_atoms, trajectory=True, velocities=True, forces=True)
    with mda.Writer(str(path), block.n_atoms, **options) as w:
        for i in range(block.n_frames):
            ts = u.trajectory.ts
            ts.positions, ts.velocities = block.positions[i], block.velocities[i]
            ts.forces, ts.dimensions = block.forces[i], block.box[i]
            ts.time, ts.data["step"] = block.time[i], int(block.step[i])
            w.write(u.atoms)
    return path


def test_velocities_and_forces_of_ncdf(tmp_path: Path) -> None:
    block = random_block(5, 11, velocities=True, forces=True)
    reference = written_by_mdanalysis(tmp_path / "a.ncdf", block, velocities=True, forces=True)
    write(tmp_path / "out.ncdf", "ncdf", block)
    rows, expected = frames_of(tmp_path / "out.ncdf", 11), frames_of(reference, 11)
    assert rows[0]["velocities"] is not None and rows[0]["forces"] is not None
    for mine, theirs in zip(rows, expected, strict=True):  # in AMBER's unit, and back
        got, wanted = (np.frombuffer(one.pop("velocities"), "f4") for one in (mine, theirs))
        np.testing.assert_allclose(got, wanted, rtol=3e-7)
    assert rows == expected


def test_a_trr_comes_back_to_the_bit(tmp_path: Path) -> None:
    """As it is read, in angstrom, whatever float32 it holds; GROMACS' H5MD, in nm, does, too."""
    rng, block = np.random.default_rng(7), random_block(5, 5000, velocities=True, forces=True)
    for numbers in (block.positions, block.velocities, block.forces):
        numbers[...] = rng.uniform(-2, 2, numbers.shape) * 2.0 ** rng.integers(-30, 30)
    source = written_by_mdanalysis(tmp_path / "a.trr", block)
    mdio.convert(source, tmp_path / "b.trr")
    assert frames_of(tmp_path / "b.trr", 5000) == frames_of(source, 5000)
    mdio.convert(source, tmp_path / "b.h5md", storage=mdio.Storage(flavour="gromacs"))
    with mdio.open(source) as trr, mdio.open(tmp_path / "b.h5md") as h5md:
        for name, numbers in trr.read(0, 5).present().items():
            np.testing.assert_array_equal(h5md.read(0, 5).present()[name], numbers)


def test_an_xtc_of_few_atoms_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Up to 9 atoms are floats."""
    block = random_block(500, 9, velocities=True, forces=True)
    block.positions[...] *= 2.0 ** np.random.default_rng(7).integers(-30, 30, (500, 1, 1))
    source = written_by_mdanalysis(tmp_path / "a.xtc", block)
    for name in ("b.zarr", "b.xtc"):
        mdio.convert(source, tmp_path / name)
    mdio.convert(tmp_path / "b.zarr", tmp_path / "c.xtc")
    held, *came_back = (
        [frame["positions"] for frame in frames_of(path, 9)]
        for path in (source, tmp_path / "b.xtc", tmp_path / "c.xtc")
    )
    assert came_back == [held, held]


def test_positions_of_full_formats_come_back_to_the_bit(tmp_path: Path) -> None:
    block = random_block(5, 12)
    block.positions[0, 0] = [np.nan, np.inf, -np.inf]
    block.positions[1, 1] = [1e30, -0.0, 1e-42]
    for container in ("dcd", "ncdf"):
        path = tmp_path / f"a.{container}"
        write(path, container, block)
        rows = frames_of(path, 12)
        assert b"".join(row["positions"] for row in rows) == block.positions.tobytes()


@pytest.mark.parametrize(
    ("first", "dt", "step0", "stride"),
    [
        (0.0, 1.0, 0, 1),
        (10.0, 0.5, 5000, 250),
        (10.0, 0.5, 7, 250),  # steps that say something else than the times
        (0.5, 2.0, 0, 0),
        (7.25, 3.0, -3, -1),
        (1e6, 0.02, 50_000_000, 1),
        (-100.0, 10.0, 0, 1),
        (0.123, 0.002, 0, 1),
        (1e6, 1.0, 10**12, 10**6),
        (10.0004, 1.0, 0, 0),  # near a simple fraction of the time between frames
        (0.0004, 1.0, 0, 0),
    ],
)
@pytest.mark.parametrize("n_frames", [1, 2, 9])
def test_dcd_times(
    tmp_path: Path, first: float, dt: float, step0: int, stride: int, n_frames: int
) -> None:
    block = random_block(n_frames, 3)
    block.time[:] = first + dt * np.arange(n_frames)
    block.step[:] = step0 + stride * np.arange(n_frames)
    writer = write(tmp_path / "a.dcd", "dcd", block)
    times = [row["time"] for row in frames_of(tmp_path / "a.dcd", 3)]
    np.testing.assert_allclose(times, block.time, rtol=2e-7, atol=1e-7)
    is_coarse = n_frames > 1 and first * 2.0**-24 > dt / 4
    assert [note.split(" ")[0] for note in writer.notes] == [
        *(["times"] if is_coarse else []),
        *(["steps"] if n_frames > 1 and stride > 1 else []),
    ]


def test_dcd_times_of_single_precision_have_small_numbers(tmp_path: Path) -> None:
    """Those of an XTC: exact fractions of them would have numbers that no frame can count on."""
    block = random_block(5000, 3)
    block.time[:] = np.float32(10.0004) + np.arange(5000, dtype=np.float32)
    block.step[:] = 0
    write(tmp_path / "a.dcd", "dcd", block)
    with mda.lib.formats.libdcd.DCDFile(str(tmp_path / "a.dcd")) as file:
        header = file.header
    assert header["istart"] + 5000 * header["nsavc"] < 2**31
    assert header["istart"] / header["nsavc"] == pytest.approx(10.0004, abs=2e-5)


def test_dcd_keeps_the_steps_of_the_source_where_they_fit(tmp_path: Path) -> None:
    write(tmp_path / "a.dcd", "dcd", random_block(4, 3))
    with mda.lib.formats.libdcd.DCDFile(str(tmp_path / "a.dcd")) as file:
        header = file.header
        assert len(file) == 4
    assert (header["istart"], header["nsavc"], header["natoms"]) == (5000, 250, 3)
    assert np.fromfile(tmp_path / "a.dcd", "<i4", 3, offset=4)[1] == 4  # frames


def test_dcd_says_that_uneven_times_are_lost(tmp_path: Path) -> None:
    block = random_block(4, 3)
    block.time[:] = [0, 1, 2, 6]
    writer = write(tmp_path / "a.dcd", "dcd", block)
    lost_times, lost_steps = writer.notes
    assert "not equally spaced" in lost_times
    assert lost_steps.startswith("steps (5000, 5250, ...) are not stored")
    times = [row["time"] for row in frames_of(tmp_path / "a.dcd", 3)]
    np.testing.assert_allclose(times, [0, 2, 4, 6], rtol=1e-6)


@pytest.mark.parametrize("times", [[7, 7, 7, 7], [7, 8, 9, 6], [7, 5, 6, 7]])
def test_dcd_says_what_becomes_of_times_that_do_not_grow(tmp_path: Path, times) -> None:
    block = random_block(4, 3)
    block.time[:] = times
    note, _ = write(tmp_path / "a.dcd", "dcd", block).notes
    assert "be evened out and are counted again; the file says 7 to 10 ps, every 1 ps" in note
    first = next(n for n in range(4) if times[n] != 7 + n)
    assert (
        f"Frame {first} is the first to differ, at {7 + first} ps instead of {times[first]} ps"
        in note
    )
    found = [row["time"] for row in frames_of(tmp_path / "a.dcd", 3)]
    np.testing.assert_allclose(found, [7, 8, 9, 10], rtol=1e-6)


@pytest.mark.parametrize("times", [[np.nan, 1, 2], [np.inf, 1, 2], [np.nan] * 3, [0, 1, np.inf]])
def test_dcd_counts_times_that_are_no_numbers(tmp_path: Path, times) -> None:
    block = random_block(3, 3)
    block.time[:] = times
    note, _ = write(tmp_path / "a.dcd", "dcd", block).notes
    assert "are counted again; the file says 0 to 2 ps, every 1 ps" in note
    found = [row["time"] for row in frames_of(tmp_path / "a.dcd", 3)]
    np.testing.assert_allclose(found, [0, 1, 2], rtol=1e-6)


@given(first=st.floats(-1e5, 1e5), dt=st.floats(5e-2, 1e3), n_frames=st.integers(2, 40))
@settings(max_examples=60)
def test_float32_times_count_as_even(first: float, dt: float, n_frames: int) -> None:
    time = (first + dt * np.arange(n_frames)).astype(np.float32).astype(np.float64)
    assert DCDEncoder(3).note_on_lost_times(time) is None


@pytest.mark.parametrize("dt", [1e-3, 2e-3])
def test_float32_times_that_are_moved_by_much_of_their_interval_are_not_even(dt: float) -> None:
    time = (1e5 + dt * np.arange(40)).astype(np.float32).astype(np.float64)
    assert "not equally spaced" in (DCDEncoder(3).note_on_lost_times(time) or "")


@pytest.mark.parametrize("precision", [0.1, 0.01, 0.003, 1e-4])
def test_xtc_precision(tmp_path: Path, precision: float) -> None:
    block = random_block(4, 50)
    write(tmp_path / "a.xtc", "xtc", block, precision=precision)
    with mda.lib.formats.libmdaxdr.XTCFile(str(tmp_path / "a.xtc")) as file:
        frame = file.read()
        assert frame.prec == np.float32(10 / precision)
        assert np.abs(frame.x * 10 - block.positions[0]).max() <= precision * 0.51 + 1e-5
        assert frame.step == 5000 and frame.time == 10


def test_early_pieces_of_xtc_wait_on_disk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(native_writer, "WAITING_NBYTES", 1000)
    block = random_block(40, 50)
    write(tmp_path / "forward.xtc", "xtc", block)
    for order in ("backward", "random"):
        write(tmp_path / f"{order}.xtc", "xtc", block, order=order)
        expected = (tmp_path / "forward.xtc").read_bytes()
        assert (tmp_path / f"{order}.xtc").read_bytes() == expected
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("container", ["xtc", "trr", "dcd", "ncdf"])
@pytest.mark.parametrize("n_atoms", [1, 9, 10])
def test_small_systems_without_box(tmp_path: Path, container: str, n_atoms: int) -> None:
    block = random_block(3, n_atoms)
    block.box[:] = 0
    path = tmp_path / f"a.{container}"
    write(path, container, block)
    rows = frames_of(path, n_atoms)
    assert len(rows) == 3
    for i, row in enumerate(rows):
        mine = np.frombuffer(row["positions"], np.float32).reshape(n_atoms, 3)
        np.testing.assert_allclose(
            mine, block.positions[i], atol=0.0051 if container == "xtc" else 1e-5
        )
        assert row["box"] is None or container == "dcd"
