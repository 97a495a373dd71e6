"""Native files: what MDAnalysis' writers write, byte for byte where the format allows it."""

import pickle
import random
import warnings
from functools import cache
from pathlib import Path

import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, GRO, NCDF, PSF, TRR, XTC, PRMncdf

from mdio.core.errors import OutputError, PlanError
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.layouts import native_writer
from mdio.layouts.base import OutputMeta, Receipt
from mdio.layouts.encode_dcd import DCDEncoder
from mdio.layouts.native_writer import XTCFileWriter
from mdio.layouts.plan import WriteOptions
from mdio.layouts.registry import writer_class

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")

META = OutputMeta(uuid="0", created="", source={}, dt_ps=1.0, frames=[])
SOURCES = {
    "adk": (PSF, DCD, 7),
    "triclinic": (GRO, XTC, 3),
    "trr": (GRO, TRR, 3),
    "amber": (PRMncdf, NCDF, 10),
}


@cache
def universe(source: str) -> mda.Universe:
    top, traj, _ = SOURCES[source]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(top, traj)


def block_of(u: mda.Universe, n_frames: int) -> FrameBlock:
    ts = u.trajectory.ts
    block = FrameBlock.empty(
        n_frames, u.atoms.n_atoms, velocities=ts.has_velocities, forces=ts.has_forces
    )
    for i, frame in enumerate(u.trajectory[:n_frames]):
        block.positions[i] = frame.positions
        block.box[i] = 0 if frame.dimensions is None else frame.dimensions
        block.time[i] = frame.time
        block.step[i] = frame.data.get("step", frame.frame)
        for name in ("velocities", "forces"):
            if getattr(block, name) is not None:
                getattr(block, name)[i] = getattr(frame, name)
    return block


def random_block(n_frames: int, n_atoms: int, seed: int = 0, **fields: bool) -> FrameBlock:
    rng = np.random.default_rng(seed)
    block = FrameBlock.empty(n_frames, n_atoms, **fields)
    for array in block.present().values():
        array[:] = rng.normal(scale=20, size=array.shape)
    block.box[:] = [40, 50, 60, 70, 80, 100]
    block.time[:] = np.arange(n_frames) * 0.5 + 10
    block.step[:] = np.arange(n_frames) * 250 + 5000
    return block


def info_of(block: FrameBlock, **changes: object) -> TrajectoryInfo:
    return TrajectoryInfo(
        layout="generic",
        path="source",
        n_frames=block.n_frames,
        n_atoms=block.n_atoms,
        dt_ps=1.0,
        time_first_ps=float(block.time[0]),
        time_last_ps=float(block.time[-1]),
        has_velocities=block.velocities is not None,
        has_forces=block.forces is not None,
        has_box=bool(block.box[0].any()),
    ).replace(**changes)


def write(
    path: Path,
    container: str,
    block: FrameBlock,
    piece_frames: int = 2,
    order: str = "forward",
    **options: object,
) -> native_writer._FileWriter:
    """Write in pieces through pickled workers, as a conversion does."""
    cls = writer_class(container)
    plan = cls.plan_for(info_of(block), WriteOptions(**options)).replace(piece_frames=piece_frames)
    owner = cls(path, plan, META)
    owner.create()
    worker = pickle.loads(pickle.dumps(owner))
    try:
        write_pieces(owner, worker, block, order)
        owner.finish()
    finally:
        worker.abort()
        owner.abort()
    return owner


def write_pieces(
    owner: native_writer._FileWriter,
    worker: native_writer._FileWriter,
    block: FrameBlock,
    order: str,
) -> None:
    pieces = owner.plan.pieces()
    if order == "backward":
        pieces.reverse()
    elif order == "random":
        random.Random(1).shuffle(pieces)
    for start, stop in pieces:
        rows = block.frames(slice(start, stop))
        items = worker.encode(start, rows)
        for item in items:
            (worker if owner.parallel_store else owner).store(item)
        crcs = {item.key: item.crcs for item in items}
        owner.commit(Receipt(start, stop, crcs, 0, rows.box, rows.time, rows.step))


def mdanalysis_file(path: Path, source: str, n_frames: int, **kwargs: object) -> Path:
    u = universe(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mda.Writer(str(path), u.atoms.n_atoms, **kwargs) as w:
            for _ in u.trajectory[:n_frames]:
                w.write(u.atoms)
    return path


def frames_of(path: Path, n_atoms: int) -> list[dict[str, object]]:
    """Read with MDAnalysis alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = mda.coordinates.core.get_reader_for(str(path))(str(path))
        assert reader.n_atoms == n_atoms
        rows = [
            {
                "time": ts.time,
                "step": ts.data.get("step"),
                "box": None if ts.dimensions is None else ts.dimensions.tolist(),
                "positions": ts.positions.tobytes(),
                "velocities": ts.velocities.tobytes() if ts.has_velocities else None,
                "forces": ts.forces.tobytes() if ts.has_forces else None,
            }
            for ts in reader
        ]
        reader.close()
    return rows


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("container", ["trr", "xtc"])
def test_gromacs_files_are_those_of_mdanalysis(
    tmp_path: Path, container: str, source: str, order: str
) -> None:
    n_frames = SOURCES[source][2]
    reference = mdanalysis_file(tmp_path / f"reference.{container}", source, n_frames)
    out = tmp_path / f"out.{container}"
    write(out, container, block_of(universe(source), n_frames), order=order)
    assert out.read_bytes() == reference.read_bytes()


@pytest.mark.parametrize("source", SOURCES)
def test_dcd_frames_are_those_of_mdanalysis(tmp_path: Path, source: str) -> None:
    n_frames = SOURCES[source][2]
    reference = mdanalysis_file(tmp_path / "reference.dcd", source, n_frames).read_bytes()
    block = block_of(universe(source), n_frames)
    write(tmp_path / "out.dcd", "dcd", block, order="random")
    out = (tmp_path / "out.dcd").read_bytes()
    nbytes = n_frames * (56 + 3 * (4 * block.n_atoms + 8))
    assert out[-nbytes:] == reference[-nbytes:]
    assert len(out) == nbytes + 196


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("order", ["forward", "random"])
def test_ncdf_variables_are_those_of_mdanalysis(tmp_path: Path, source: str, order: str) -> None:
    n_frames = SOURCES[source][2]
    block = block_of(universe(source), n_frames)
    fields = {name: getattr(block, name) is not None for name in ("velocities", "forces")}
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
            assert mine.__dict__ == variable.__dict__
            np.testing.assert_array_equal(mine[:], variable[:])
        for name in ("Conventions", "ConventionVersion"):
            assert out.getncattr(name) == expected.getncattr(name)
        assert out.program == "mdio"
    mine = frames_of(tmp_path / "out.ncdf", block.n_atoms)
    assert mine == frames_of(path, block.n_atoms)


@pytest.mark.parametrize("container", ["trr", "ncdf"])
def test_velocities_and_forces(tmp_path: Path, container: str) -> None:
    block = random_block(5, 11, velocities=True, forces=True)
    path = tmp_path / f"out.{container}"
    write(path, container, block)
    u = mda.Universe.empty(11, trajectory=True, velocities=True, forces=True)
    reference = tmp_path / f"reference.{container}"
    extra = {"velocities": True, "forces": True} if container == "ncdf" else {}
    with mda.Writer(str(reference), 11, **extra) as w:
        for i in range(5):
            ts = u.trajectory.ts
            ts.positions, ts.velocities = block.positions[i], block.velocities[i]
            ts.forces, ts.dimensions = block.forces[i], block.box[i]
            ts.time, ts.data["step"] = block.time[i], int(block.step[i])
            w.write(u.atoms)
    rows = frames_of(path, 11)
    assert rows == frames_of(reference, 11)
    assert rows[0]["velocities"] is not None and rows[0]["forces"] is not None


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
    assert writer.notes == []


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
    assert len(writer.notes) == 1 and "not equally spaced" in writer.notes[0]
    times = [row["time"] for row in frames_of(tmp_path / "a.dcd", 3)]
    np.testing.assert_allclose(times, [0, 2, 4, 6], rtol=1e-6)


@given(first=st.floats(-1e5, 1e5), dt=st.floats(1e-3, 1e3), n_frames=st.integers(2, 40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_float32_times_count_as_even(first: float, dt: float, n_frames: int) -> None:
    time = (first + dt * np.arange(n_frames)).astype(np.float32).astype(np.float64)
    assert DCDEncoder(3).lost(time, np.arange(n_frames)) is None


@pytest.mark.parametrize("precision", [0.1, 0.01, 0.003, 1e-4])
def test_xtc_precision(tmp_path: Path, precision: float) -> None:
    block = random_block(4, 50)
    write(tmp_path / "a.xtc", "xtc", block, precision=precision)
    with mda.lib.formats.libmdaxdr.XTCFile(str(tmp_path / "a.xtc")) as file:
        frame = file.read()
        assert frame.prec == np.float32(10 / precision)
        assert np.abs(frame.x * 10 - block.positions[0]).max() <= precision * 0.51 + 1e-5
        assert frame.step == 5000 and frame.time == 10


def test_xtc_takes_the_precision_of_its_source() -> None:
    info = info_of(random_block(2, 12), precision=10 / 12345.0)
    for asked in (None, "auto"):
        plan = XTCFileWriter.plan_for(info, WriteOptions(precision=asked))
        assert plan.precision_source == "xtc"
        assert np.float32(10 / plan.precision) == 12345
    plan = XTCFileWriter.plan_for(info, WriteOptions(precision=0.1))
    assert (plan.precision, plan.precision_source) == (0.1, "asked")
    plan = XTCFileWriter.plan_for(info_of(random_block(2, 12)), WriteOptions())
    assert (plan.precision, plan.precision_source, plan.compression) == (0.01, None, "xtc")


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
def test_a_missing_piece_is_an_error(tmp_path: Path, container: str) -> None:
    block = random_block(6, 12)
    cls = writer_class(container)
    plan = cls.plan_for(info_of(block), WriteOptions()).replace(piece_frames=2)
    writer = cls(tmp_path / "a", plan, META)
    writer.create()
    for start in (0, 4):
        rows = block.frames(slice(start, start + 2))
        for item in writer.encode(start, rows):
            writer.store(item)
        writer.commit(Receipt(start, start + 2, {}, 0, rows.box, rows.time, rows.step))
    with pytest.raises(OutputError, match="frames 2 to 3"):
        writer.finish()
    writer.abort()


@pytest.mark.parametrize("container", ["xtc", "trr", "dcd", "ncdf"])
def test_plans(container: str) -> None:
    cls = writer_class(container)
    block = random_block(9, 20, velocities=True, forces=True)
    plan = cls.plan_for(info_of(block, n_frames=100_000), WriteOptions())
    fields = ("positions", "velocities", "forces")
    if container in ("trr", "ncdf"):
        assert (plan.fields, plan.notes) == (fields, ())
    else:
        assert plan.fields == ("positions",)
        assert plan.notes == (f"{container} holds no velocities and no forces: left out",)
    decoded = 12 * 20 * len(plan.fields) * plan.piece_frames
    assert 7 << 20 < decoded <= 8 << 20
    assert (plan.layout, plan.n_files) == (container, 1)
    pickle.loads(pickle.dumps(plan))
    assert plan.to_json()["notes"] == plan.notes


@pytest.mark.parametrize("container", ["trr", "dcd", "ncdf"])
def test_planned_bytes_are_exact(tmp_path: Path, container: str) -> None:
    block = random_block(9, 20, velocities=True)
    writer = write(tmp_path / "a", container, block)
    assert (tmp_path / "a").stat().st_size == writer.plan.nbytes


@pytest.mark.parametrize(
    ("container", "options", "changes", "message"),
    [
        ("xtc", {"groups": {"ca": 3}}, {}, "--group"),
        ("ncdf", {"compression": "zstd"}, {}, "--compression"),
        ("dcd", {"precision": 0.01}, {}, "--precision"),
        ("xtc", {"precision": -1.0}, {}, "--precision"),
        ("xtc", {"precision": float("nan")}, {}, "--precision"),
        ("trr", {}, {"n_frames": 0}, "nothing to write"),
        ("trr", {}, {"n_atoms": 2**28}, "counts"),
        ("ncdf", {}, {"n_atoms": 2**29}, "counts"),
        ("dcd", {}, {"n_atoms": 2**29}, "counts"),
        ("xtc", {}, {"n_atoms": 2**28}, "counts"),
    ],
)
def test_plans_that_do_not_fit(container: str, options, changes, message: str) -> None:
    info = info_of(random_block(9, 20), **changes)
    with pytest.raises(PlanError, match=message):
        writer_class(container).plan_for(info, WriteOptions(**options))


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    block = random_block(2, 12)
    block.step[1] = 2**31
    for container in ("trr", "xtc"):
        with pytest.raises(OutputError, match="step"):
            write(tmp_path / f"a.{container}", container, block)
    block = random_block(2, 12)
    block.positions[1] = 1e9
    with pytest.raises(OutputError):
        write(tmp_path / "b.xtc", "xtc", block)
    block = random_block(2, 12)
    block.box[0] = 0
    with pytest.raises(OutputError, match="unit cell"):
        write(tmp_path / "a.ncdf", "ncdf", block)


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


@pytest.mark.parametrize("container", ["xtc", "ncdf"])
def test_full_disk(tmp_path: Path, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    from mdio.core.publish import publish

    def full(fd: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "sub" / f"a.{container}"
    target.parent.mkdir()
    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(OutputError, match=rf"a\.{container}: the disk is full") as caught,
        publish(target) as temporary,
    ):
        write(temporary, container, random_block(4, 12))
    assert ".mdio-" not in str(caught.value)
    assert list(target.parent.iterdir()) == []
