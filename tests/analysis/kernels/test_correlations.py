"""Mean square displacements beside MDAnalysis', velocity autocorrelations beside plain sums."""

import subprocess
import sys

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.msd import EinsteinMSD
from MDAnalysis.analysis.rms import RMSF
from MDAnalysis.transformations import NoJump
from MDAnalysisTests.datafiles import DCD, DCD_TRICLINIC, GRO, PSF, PSF_TRICLINIC, TRR
from suites.outputs import as_options
from suites.under_mpi import needs_mpi, run_under_mpi

import mdio
from mdio.analysis import series
from mdio.analysis.kernels.kernel import Prepared, SeriesKernel
from mdio.analysis.reducers import Mean, Sum
from mdio.core.errors import BlockError, PlanError

CA = "protein and name CA"

pytestmark = pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, adk):
    """ADK for time series: Zarr and H5MD of floats, Zarr of an XTC's integers."""
    folder = tmp_path_factory.mktemp("series")
    for name, source, more in (
        ("adk.zarr", "dcd", {"chunk_atoms": 50}),
        ("adk.h5md", "dcd", {"chunk_atoms": 50}),
        ("integers.zarr", "xtc", {"chunk_atoms": 50}),
    ):
        mdio.convert(
            adk[source],
            folder / name,
            **as_options({"pattern": "timeseries", **more}),
        )
    return folder


def einstein(universe, select=CA, **how):
    return EinsteinMSD(universe, select=select, fft=False, **how).run().results.timeseries


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(series, "NARROW_NBYTES", 98 * 12 * 130)
    monkeypatch.setattr(series, "WIDE_NBYTES", 98 * 12 * 100)


@pytest.mark.parametrize("name", ["adk.zarr", "adk.h5md", "dcd"])
@pytest.mark.usefixtures("small_batches")
def test_msd_is_that_of_mdanalysis(folder, adk, name):
    path = adk[name] if name in adk else folder / name
    want = einstein(mda.Universe(PSF, str(adk["dcd"])))
    result = mdio.analyze(path, top=PSF, kernel=mdio.MSD(CA))
    np.testing.assert_allclose(result.values, want, atol=1e-9)
    assert result.frame.tolist() == list(range(98))
    assert result.n_frames == 98
    assert result.time[1] == pytest.approx(mdio.open(path).info.dt_ps)


def test_msd_of_integers_is_that_of_the_xtc(folder, adk):
    want = einstein(mda.Universe(PSF, str(adk["xtc"])), "resid 1:20")
    result = mdio.analyze(folder / "integers.zarr", top=PSF, kernel=mdio.MSD("resid 1:20"))
    np.testing.assert_allclose(result.values, want, atol=1e-9)


@pytest.mark.parametrize("dims", ["x", "yz"])
def test_msd_along_axes_of_some_frames_up_to_a_lag(folder, adk, dims):
    universe = mda.Universe(PSF, str(adk["dcd"]))
    run = EinsteinMSD(universe, select=CA, msd_type=dims, fft=False).run(start=5, stop=90, step=3)
    kernel = mdio.MSD(CA, max_lag_ps=30.0, dims=dims)
    result = mdio.analyze(folder / "adk.zarr", top=PSF, kernel=kernel, start=5, stop=90, step=3)
    np.testing.assert_allclose(result.values, run.results.timeseries[: len(result.values)])
    assert 30.0 - 3 < result.time[-1] <= 30.0


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("name", ["adk.zarr", "dcd"])
def test_workers_give_the_same_to_the_bit(folder, adk, name):
    path = adk[name] if name in adk else folder / name
    alone = mdio.analyze(path, kernel="msd")
    assert len(alone.timings) > 10
    with mdio.Processes(2) as executor:
        both = mdio.analyze(path, kernel="msd", executor=executor)
    assert np.array_equal(alone.values, both.values)
    assert both.notes == alone.notes
    assert ("read 34 times" in " ".join(both.notes)) == (name == "dcd")


def test_each_chunk_is_read_once(folder, monkeypatch):
    """What is read of an output for time series is what it has, however many batches there are."""
    monkeypatch.setattr(series, "NARROW_NBYTES", 98 * 12 * 130)
    result = mdio.analyze(folder / "adk.zarr", kernel="msd", verify=False)
    assert len(result.timings) == 34
    assert result.to_json()["nbytes_source"] < 1.2 * 98 * 3341 * 12


@pytest.mark.usefixtures("small_batches")
def test_molecules_of_a_universe_are_made_whole_by_workers():
    universe = mda.Universe(PSF_TRICLINIC)
    alone, shared = (
        mdio.analyze(DCD_TRICLINIC, top=top, kernel="msd", pbc="whole", workers=workers)
        for top, workers in ((PSF_TRICLINIC, 1), (universe, 2))
    )
    assert "125 molecules made whole" in shared.notes
    np.testing.assert_array_equal(shared.values, alone.values)


def test_msd_after_nojump(tmp_path, solvated_like):
    """Where water leaves the box, what is wrapped is told of; what goes on is MDAnalysis' value."""
    top, wrapped = solvated_like
    raw = mdio.analyze(wrapped, kernel="msd")
    (note,) = [note for note in raw.notes if "--pbc nojump" in note]
    assert note.index("--pbc nojump") < note.index("mdio convert")
    here = mdio.analyze(wrapped, kernel="msd", pbc="nojump").values
    mdio.convert(
        wrapped,
        tmp_path / "on.zarr",
        selection=mdio.Selection(pbc="nojump"),
        storage=mdio.Storage(pattern="timeseries"),
    )
    result = mdio.analyze(tmp_path / "on.zarr", kernel="msd")
    assert not any("nojump" in note for note in result.notes)
    universe = mda.Universe(str(top), str(wrapped))
    universe.trajectory.add_transformations(NoJump())
    np.testing.assert_allclose(result.values, einstein(universe, "all"), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(here, result.values, rtol=1e-4, atol=1e-6)


def test_diffusion_where_the_cell_changes(tmp_path):
    """Steps of a random walk: those added up are right, those of unfolded cells are too large."""
    rng, n_frames, step = np.random.default_rng(7), 3000, 3.0
    lengths = 24 * (1 + 0.01 * rng.standard_normal(n_frames))
    positions = np.empty((n_frames, 100, 3), "f4")
    walked = rng.uniform(0, lengths[0], (100, 3))
    for frame, length in enumerate(lengths):
        if frame:
            walked = walked * length / lengths[frame - 1] + rng.normal(0, step, (100, 3))
        walked %= length
        positions[frame] = walked
    box = np.stack([*[lengths] * 3, *[np.full(n_frames, 90)] * 3], axis=1).astype("f4")
    path = tmp_path / "walk.zarr"
    with mdio.Writer(path) as writer:
        writer.write_block(positions, box=box, time=np.arange(n_frames))
    wrapped, unfolded, added = (
        mdio.analyze(path, kernel="msd", max_lag_ps=1, **options)
        for options in ({}, {"pbc": "nojump"}, {"pbc": "toroidal"})
    )
    assert any("with --pbc toroidal" in note for note in wrapped.notes)
    assert any("for diffusion take --pbc toroidal" in note for note in unfolded.notes)
    assert not any("toroidal" in note for note in added.notes)
    expected = 3 * step**2 + (positions**2).sum(-1).mean() * 2 * 0.01**2  # and those of the cell
    assert added.values[1] == pytest.approx(expected, rel=0.03)
    assert unfolded.values[1] > 1.2 * expected
    mdio.convert(path, tmp_path / "on.zarr", selection=mdio.Selection(pbc="toroidal"))
    stored = mdio.analyze(tmp_path / "on.zarr", kernel="msd", max_lag_ps=1)
    assert stored.values[1] == pytest.approx(added.values[1], rel=1e-6)
    assert not any("toroidal" in note or "nojump" in note for note in stored.notes)


def test_the_cell_changes_in_frames_that_are_left_out(tmp_path):
    lengths = np.array([24, 24, 24, 24, 25, 26, 27], "f4")
    box = np.stack([*[lengths] * 3, *[np.full(7, 90)] * 3], axis=1).astype("f4")
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(np.zeros((7, 2, 3), "f4"), box=box, time=np.arange(7))
    for frames, is_noted in (({"stop": 4}, False), ({"end_ps": 3}, False), ({"stop": 6}, True)):
        notes = mdio.analyze(tmp_path / "a.zarr", kernel="msd", pbc="nojump", **frames).notes
        assert any("cell changes" in note for note in notes) == is_noted


def test_displacements_of_fitted_frames_are_told(adk, tmp_path):
    out = tmp_path / "fitted.zarr"
    mdio.convert(adk["xtc"], out, top=adk["psf"], selection=mdio.Selection(fit="rot+trans"))
    notes = mdio.analyze(out, kernel="msd", select="name CA").notes
    assert any("superposed on a reference by a fit" in note for note in notes)
    assert not any("--pbc nojump" in note for note in notes)


def test_displacements_of_translated_frames_are_told(adk, tmp_path):
    """Those of the centre of the fitted atoms are gone."""
    out = tmp_path / "moved.zarr"
    options = {"top": adk["psf"], "select": "name CA"}
    mdio.convert(adk["xtc"], out, selection=mdio.Selection(fit="translation"), **options)
    here = mdio.analyze(adk["xtc"], kernel="msd", fit="translation", **options)
    for result in (here, mdio.analyze(out, kernel="msd")):
        assert any("relative to the atoms that were fitted" in note for note in result.notes)
    unfitted = mdio.analyze(adk["xtc"], kernel="msd", **options)
    assert not any("fitted" in note for note in unfitted.notes)
    assert unfitted.values[50] > here.values[50]


@pytest.mark.parametrize(("fit", "is_noted"), [("rot+trans", True), ("translation", False)])
def test_velocities_of_fitted_frames_are_told(tmp_path, fit, is_noted):
    """A rotation turns them, too: their correlation is another one."""
    given = {"top": GRO, "stop": 4}
    mdio.convert(
        TRR, tmp_path / "a.zarr", select="name CA", selection=mdio.Selection(fit=fit), **given
    )
    here = mdio.analyze(TRR, kernel="vacf", select="name CA", fit=fit, **given)
    stored = mdio.analyze(tmp_path / "a.zarr", kernel="vacf")
    unfitted = mdio.analyze(TRR, kernel="vacf", select="name CA", **given)
    for result in (here, stored):
        assert any("so that velocities are not" in note for note in result.notes) == is_noted
        assert np.allclose(result.values, unfitted.values, rtol=1e-3) != is_noted


def test_the_longest_lag_may_be_infinite(folder):
    result = mdio.analyze(folder / "adk.zarr", kernel=mdio.MSD(max_lag_ps=np.inf), select=None)
    assert len(result.values) == 98
    assert not any("lags of up to" in note for note in result.notes)


def test_a_lag_beyond_the_run_is_told(folder):
    for lag_ps, is_beyond in ((97.5, True), (97, False), (20, False)):
        result = mdio.analyze(folder / "adk.zarr", kernel=mdio.MSD(max_lag_ps=lag_ps))
        notes = [note for note in result.notes if "lags of up to 97.5 ps" in note]
        assert len(notes) == is_beyond
        assert all("the frames span 97 ps" in note for note in notes)


def test_a_lag_below_the_step_is_told(folder):
    result = mdio.analyze(folder / "adk.zarr", kernel="msd", max_lag_ps=0.5)
    assert len(result.values) == 1
    assert any("of up to 0.5 ps were asked for, but frames lie 1 ps" in n for n in result.notes)
    assert not any("asked for" in n for n in mdio.analyze(folder / "adk.zarr", kernel="msd").notes)


def jumps_noted(path, **options):
    notes = mdio.analyze(path, kernel="msd", **options).notes
    return any("--pbc nojump" in note for note in notes)


def test_moves_along_long_edges_and_of_followed_atoms_are_no_jumps(tmp_path):
    """16 angstrom of 100 are no jump along z; they are along x, of 20, unless atoms go on there."""
    for axis in "xz":
        moved = np.zeros((4, 2, 3), "f4")
        moved[:, 1, "xyz".index(axis)] = [0, 8, 16, 24]
        with mdio.Writer(tmp_path / f"{axis}.zarr") as writer:
            writer.write_block(moved, box=np.tile(np.float32([20, 20, 100, 90, 90, 90]), (4, 1)))
    assert not jumps_noted(tmp_path / "z.zarr", step=2)
    assert jumps_noted(tmp_path / "x.zarr", step=2)
    followed = mdio.Selection(pbc="nojump")
    mdio.convert(tmp_path / "x.zarr", tmp_path / "followed.zarr", selection=followed)
    assert not jumps_noted(tmp_path / "followed.zarr", step=2)
    assert not jumps_noted(tmp_path / "x.zarr", pbc="nojump", step=2)


def test_jumps_in_a_box_that_is_not_periodic_along_z(tmp_path):
    for axis in "xz":
        moved = np.zeros((3, 2, 3), "f4")
        moved[:, 1, "xyz".index(axis)] = [0, 19, 0]
        with mdio.Writer(tmp_path / f"{axis}.zarr") as writer:
            writer.write_block(moved, box=np.tile(np.float32([20, 20, 0, 90, 90, 90]), (3, 1)))
    assert jumps_noted(tmp_path / "x.zarr")
    assert not jumps_noted(tmp_path / "z.zarr")


@pytest.fixture
def solvated_like(tmp_path):
    """Two hundred atoms that walk through a box of 20 angstrom and are put back into it."""
    rng = np.random.default_rng(5)
    universe = mda.Universe.empty(200, trajectory=True)
    path = np.cumsum(rng.normal(scale=0.6, size=(60, 200, 3)), axis=0) + 10
    universe.load_new((path % 20).astype("f4"), dimensions=[20, 20, 20, 90, 90, 90], dt=2.0)
    universe.add_TopologyAttr("names", ["OW"] * 200)
    wrapped, top = tmp_path / "wrapped.trr", tmp_path / "top.pdb"
    universe.atoms.write(str(wrapped), frames="all")
    universe.add_TopologyAttr("resnames", ["SOL"])
    universe.atoms.write(str(top))
    return top, wrapped


def plain_vacf(velocities):
    n_frames = len(velocities)
    values = []
    for lag in range(n_frames):
        products = velocities[: n_frames - lag] * velocities[lag:]
        values.append(products.sum(axis=2).mean())
    return np.array(values)


@pytest.mark.parametrize("select", ["all", "name OW and resid 500:900"])
def test_vacf_is_the_mean_of_products(tmp_path, select):
    universe = mda.Universe(GRO, TRR)
    atoms = universe.select_atoms(select)
    velocities = np.array([atoms.velocities for _ in universe.trajectory], dtype=np.float64)
    result = mdio.analyze(TRR, top=GRO, kernel=mdio.VACF(select))
    np.testing.assert_allclose(result.values, plain_vacf(velocities), rtol=1e-10, atol=1e-9)
    mdio.convert(TRR, tmp_path / "v.zarr", storage=mdio.Storage(pattern="timeseries"))
    again = mdio.analyze(tmp_path / "v.zarr", top=GRO, kernel=mdio.VACF(select))
    np.testing.assert_allclose(again.values, result.values, rtol=1e-10, atol=1e-9)


def test_rmsf_of_an_output_for_time_series(folder, adk):
    universe = mda.Universe(PSF, str(adk["dcd"]))
    want = RMSF(universe.select_atoms(CA)).run().results.rmsf
    for name in ("adk.zarr", "adk.h5md"):
        result = mdio.analyze(folder / name, top=PSF, kernel=mdio.RMSF(CA))
        np.testing.assert_allclose(result.values, want, atol=1e-5)


def test_what_cannot_be_correlated(adk, tmp_path):
    for words, how in (
        ("no velocities", {"kernel": "vacf"}),
        ("one frame alone", {"kernel": "msd", "stop": 1}),
        ("some of x, y and z", {"kernel": mdio.MSD(dims="xx")}),
        ("give 0 or more", {"kernel": mdio.MSD(max_lag_ps=-1)}),
        ("leave out the reducer", {"kernel": "msd", "reducer": Mean()}),
    ):
        with pytest.raises(PlanError, match=words):
            mdio.analyze(adk["dcd"], **how)
    mdio.convert(adk["dcd"], tmp_path / "a.dcd", stop=10)
    mdio.convert(adk["xtc"], tmp_path / "a.xtc", stop=10)
    mdio.convert(adk["xtc"], tmp_path / "b.xtc", start=40, stop=50)


@pytest.mark.parametrize("workers", [None, 2])
def test_frames_that_are_not_evenly_spaced_are_told_by_their_times(adk, tmp_path, workers):
    for name, start, stop in (("a", 0, 10), ("b", 40, 50)):
        mdio.convert(adk["xtc"], tmp_path / f"{name}.xtc", start=start, stop=stop)
    first, second = mdio.open(tmp_path / "a.xtc"), mdio.open(tmp_path / "b.xtc")
    end, begin = first.info.time_last_ps, second.read(0, 1).time[0]
    parts = [tmp_path / "a.xtc", tmp_path / "b.xtc"]
    with pytest.raises(PlanError, match=f"a gap between {end:g} and {begin:g} ps") as raised:
        mdio.analyze(parts, kernel="msd", workers=workers)
    assert "batch" not in str(raised.value) and "a.xtc" in str(raised.value)
    (tmp_path / "back.xtc").write_bytes(parts[1].read_bytes() + parts[0].read_bytes())
    with pytest.raises(PlanError, match=r"back.xtc: .* frame 10 of 20 lies at"):
        mdio.analyze(tmp_path / "back.xtc", kernel="msd", workers=workers)


@pytest.mark.parametrize(("number", "value"), [(3, np.inf), (1, np.nan), (0, -np.inf)])
def test_times_that_are_not_finite(tmp_path, number, value):
    universe = mda.Universe.empty(4, trajectory=True)
    with mda.Writer(str(tmp_path / "a.xtc"), 4) as writer:
        for frame in range(4):
            universe.trajectory.ts.time = value if frame == number else float(frame)
            writer.write(universe.atoms)
    with pytest.raises(PlanError, match=f"frame {number} of 4 lies at {value} ps"):
        mdio.analyze(tmp_path / "a.xtc", kernel="msd")


def test_a_time_beyond_float32(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr", 4) as writer:
        writer.write_block(np.zeros((4, 4, 3)), time=[0, 1, 2, 1e39])
    with pytest.raises(PlanError, match="must be evenly spaced in time"):
        mdio.analyze(tmp_path / "a.zarr", kernel="msd")


def test_frames_without_velocities_are_named(tmp_path):
    universe = mda.Universe.empty(4, trajectory=True, velocities=True)
    with mda.Writer(str(tmp_path / "some.trr"), 4) as writer:
        for frame in range(6):
            ts = universe.trajectory.ts
            ts.positions, ts.time, ts.dimensions = (
                np.ones((4, 3)) * frame,
                frame,
                [9] * 3 + [90] * 3,
            )
            ts.has_velocities = frame % 2 == 0
            if ts.has_velocities:
                ts.velocities = np.ones((4, 3)) * frame
            writer.write(universe.atoms)
    with pytest.raises(BlockError, match="3 of 6 frames have no velocities"):
        mdio.analyze(tmp_path / "some.trr", kernel="vacf")
    result = mdio.analyze(tmp_path / "some.trr", kernel="vacf", step=2)
    np.testing.assert_allclose(result.values, [3 * 20 / 3, 3 * 8 / 2, 0], rtol=1e-6, atol=1e-9)


def test_on_the_command_line(folder, tmp_path):
    def run(*words):
        command = [sys.executable, "-m", "mdio.cli.main", "analyze", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    out = tmp_path / "msd.xvg"
    done = run("msd", folder / "adk.zarr", "--max-lag", 20, "--dims", "xy", "-o", out, "-w", 2)
    assert done.returncode == 0, done.stderr
    assert "21 lags of 1 value" in done.stdout
    assert 'label "Lag (ps)"' in out.read_text()
    rows = np.loadtxt(out, comments=("@", "#"))
    want = mdio.analyze(folder / "adk.zarr", kernel=mdio.MSD(max_lag_ps=20, dims="xy"))
    np.testing.assert_array_equal(rows[:, 1], want.values)
    assert run("msd", folder / "adk.zarr", "-o", tmp_path / "m.csv").returncode == 0
    assert (tmp_path / "m.csv").read_text().startswith("lag,time_ps,msd_angstrom2\n0,0.0,0.0\n")
    refused = run("rmsf", folder / "adk.zarr", "--max-lag", 20)
    assert "--max-lag 20.0 is for msd and vacf" in refused.stderr


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_on_ranks(folder, tmp_path, n_ranks):
    out = tmp_path / "msd.npz"
    command = ("analyze", "msd", folder / "adk.zarr", "--executor", "mpi", "-o", out)
    code, _, err = run_under_mpi(n_ranks, "-m", "mdio.cli.main", *command)
    assert code == 0, err
    want = mdio.analyze(folder / "adk.zarr", kernel="msd")
    assert np.array_equal(np.load(out)["values"], want.values)


def test_batches_end_where_chunks_do():
    info = mdio.open(DCD).info.replace(chunk_atoms=100)
    atoms = np.arange(50, 1000)
    batches = series.cut_into_batches(atoms, info, 98, 1)
    assert np.array_equal(np.concatenate(batches), atoms)
    many = series.cut_into_batches(atoms, info, 12_000, 1)
    assert [int(one[0]) for one in many] == [50, 200, 400, 600, 800]
    assert max(map(len, series.cut_into_batches(atoms, info, 10**7, 1))) <= 100
    with pytest.raises(PlanError, match="--for belongs to the layouts h5md and zarr"):
        mdio.convert(DCD, "out.xtc", storage=mdio.Storage(pattern="timeseries"))
    with pytest.raises(PlanError, match=r"pattern is 'series'.*; give one of frames, blocks"):
        mdio.convert(DCD, "out.zarr", storage=mdio.Storage(pattern="series"))


class Travelled(SeriesKernel):
    """Somebody else's: how far atoms go in all, summed, up to each frame."""

    def prepare(self, system):
        return Prepared(self.sums, system.select(CA), Sum(), labels=("path_angstrom",))

    def sums(self, block):
        steps = np.linalg.norm(np.diff(block.positions, axis=0), axis=2).sum(axis=1)
        return np.concatenate([[0], np.cumsum(steps, dtype=np.float64)])

    def rows(self, sums, time, n_atoms):
        return np.arange(len(time)), time - time[0], sums / n_atoms


@pytest.mark.parametrize("executor", [mdio.Serial(), mdio.Processes(2)])
def test_a_kernel_of_somebody_else(folder, adk, small_batches, executor):
    found = mdio.analyze(folder / "adk.zarr", kernel=Travelled(), top=PSF, executor=executor)
    universe = mda.Universe(PSF, adk["dcd"])
    atoms = universe.select_atoms(CA)
    positions = np.stack([atoms.positions for _ in universe.trajectory])
    steps = np.linalg.norm(np.diff(positions, axis=0), axis=2).mean(axis=1)
    np.testing.assert_allclose(found.values, [0, *np.cumsum(steps)], rtol=1e-5)
    assert len(found.timings) > 1 and list(found.labels) == ["path_angstrom"]
