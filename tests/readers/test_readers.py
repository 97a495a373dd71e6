"""Our readers under MDAnalysis' own reader tests, and what those do not ask."""

import multiprocessing
import pickle
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysis.coordinates.TRR import TRRWriter
from MDAnalysis.coordinates.XTC import XTCWriter
from MDAnalysisTests.coordinates.base import BaseReference, MultiframeReaderTest
from MDAnalysisTests.datafiles import COORDINATES_TOPOLOGY, COORDINATES_TRR, GRO, XTC
from numpy.testing import assert_array_equal
from suites.outputs import as_options

import mdio
from mdio.core.errors import FrameReadError
from mdio.layouts.base import Layout
from mdio.readers.reader import H5MDReader, LayoutReader, SegmentsReader, ZarrReader

N_FRAMES = 10
"""MDAnalysis' reference trajectories have 5, too few for some of its tests."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """MDAnalysis' reference trajectory (5 atoms), continued, and the auxiliary data beside it."""
    folder = tmp_path_factory.mktemp("reference")
    n_steps = {"lowf": N_FRAMES // 2, "highf": 2 * N_FRAMES}
    for name, n in n_steps.items():
        (folder / f"{name}.xvg").write_text("".join(f"{2**i}\n" for i in range(n)))
    u = mda.Universe(COORDINATES_TOPOLOGY, COORDINATES_TRR)
    first, dimensions = u.atoms.positions.copy(), u.dimensions.copy()
    step = np.array([1, 1, 1, 0.1, 0.1, 0.1], np.float32)
    with TRRWriter(str(folder / "a.trr"), 5) as trr, XTCWriter(str(folder / "a.xtc"), 5) as xtc:
        for i in range(N_FRAMES):
            ts = u.trajectory.ts
            ts.data["step"] = ts.time = i
            ts.dimensions = dimensions + i * step
            ts.positions = first * 2**i
            ts.velocities, ts.forces = ts.positions / 10, ts.positions / 100
            trr.write(u.atoms)
            xtc.write(u.atoms)
    return folder


class _Reference(BaseReference):
    """What MDAnalysis' tests expect of the reference trajectory in one of our layouts."""

    def __init__(self, folder, path, reader, *, dynamic=True):
        super().__init__()
        self.trajectory = str(path)
        self.topology = COORDINATES_TOPOLOGY
        self.reader = reader
        self.writer = XTCWriter
        self.ext = "xtc"
        self.prec = 3
        self.changing_dimensions = True
        self.dynamic = dynamic
        self.n_frames, self.totaltime = N_FRAMES, N_FRAMES - 1
        self.aux_lowf, self.aux_highf = (str(folder / f"{name}.xvg") for name in ("lowf", "highf"))
        self.aux_lowf_data = [[np.nan if i % 2 else 2 ** (i // 2)] for i in range(N_FRAMES)]
        self.aux_lowf_frames_with_steps = list(range(0, N_FRAMES, 2))
        self.aux_highf_data = [[4**i] for i in range(N_FRAMES)]
        self.aux_highf_n_steps = 2 * N_FRAMES
        self.aux_highf_all_data = [[2**i] for i in range(2 * N_FRAMES)]
        self.first_frame, self.second_frame = self.iter_ts(0), self.iter_ts(1)
        self.jump_to_frame, self.last_frame = self.iter_ts(3), self.iter_ts(N_FRAMES - 1)

    def iter_ts(self, i):
        ts = super().iter_ts(i)
        if self.dynamic:
            ts.velocities, ts.forces = ts.positions / 10, ts.positions / 100
        return ts


class TestSegmentsReader(MultiframeReaderTest):
    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, reference, tmp_path_factory):
        path = tmp_path_factory.mktemp("made") / "a.segments"
        mdio.split(reference / "a.trr", path, 4)
        return path

    @pytest.fixture
    def ref(self, reference, path):
        return _Reference(reference, path, SegmentsReader)


class _ConvertedTest(MultiframeReaderTest):
    """A layout made with some options, which no test changes."""

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, reference, tmp_path_factory):
        path = tmp_path_factory.mktemp("made") / cls.name
        mdio.convert(reference / "a.trr", path, **as_options(cls.options))
        return path

    @pytest.fixture
    def ref(self, reference, path):
        return _Reference(reference, path, self.kind)


class TestH5MDReader(_ConvertedTest):
    name, kind, options = "a.h5md", H5MDReader, {"chunk_frames": 4}


class TestH5MDReaderCompressed(_ConvertedTest):
    name, kind, options = "a.h5md", H5MDReader, {"chunk_frames": 3, "compression": "gzip:1"}


class TestZarrReader(_ConvertedTest):
    name, kind, options = "a.zarr", ZarrReader, {"chunk_frames": 4}


class TestZarrReaderQuantised(_ConvertedTest):
    name, kind, options = "a.zarr", ZarrReader, {"precision": 0.001}


class TestOverXTC(MultiframeReaderTest):
    """The fast reader over a native file, chosen by ``format="MDIO"``."""

    @pytest.fixture
    def ref(self, reference, tmp_path):
        path = tmp_path / "a.xtc"
        path.write_bytes((reference / "a.xtc").read_bytes())
        return _Reference(reference, path, LayoutReader, dynamic=False)


@pytest.fixture(scope="module")
def outputs(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    kinds = {
        "zarr": {"chunk_frames": 7, "precision": "none"},
        "h5md": {"chunk_frames": 7},
        "segments": {"segments": 5},
        "quantised.zarr": {"precision": "auto"},
    }
    paths = {}
    for kind, options in kinds.items():
        paths[kind] = folder / f"adk.{kind}"
        groups = {} if kind == "segments" else {"groups": {"ca": "name CA"}}
        mdio.convert(adk["xtc"], paths[kind], top=adk["psf"], **as_options({**groups, **options}))
    return paths


KINDS = ["zarr", "h5md", "segments", "quantised.zarr"]


@pytest.fixture(params=KINDS)
def pair(request, adk, outputs):
    """The same trajectory through our reader and through MDAnalysis' XTC reader."""
    ours = mda.Universe(str(adk["psf"]), str(outputs[request.param]))
    return ours, mda.Universe(str(adk["psf"]), str(adk["xtc"]))


def assert_same_frame(ours, theirs):
    assert ours.frame == theirs.frame
    assert ours.time == theirs.time
    assert ours.data["step"] == theirs.data["step"]
    assert_array_equal(ours.positions, theirs.positions)
    assert_array_equal(ours.dimensions, theirs.dimensions)


def test_every_frame_equals_the_source(pair):
    for ours, theirs in zip(pair[0].trajectory, pair[1].trajectory, strict=True):
        assert_same_frame(ours, theirs)


@pytest.mark.parametrize("frames", [slice(None, None, -1), slice(3, 90, 7), [5, 97, 0, 0, 33, -1]])
def test_any_order(pair, frames):
    for ours, theirs in zip(pair[0].trajectory[frames], pair[1].trajectory[frames], strict=True):
        assert_same_frame(ours, theirs)


def test_timeseries_in_bulk(pair):
    ours, theirs = pair
    ca = "name CA and resid 10:50"
    for kwargs in ({}, {"start": 3, "stop": 80, "step": 5}, {"stop": 2, "start": 60, "step": -3}):
        for order in ("fac", "caf", "afc"):
            mine = ours.trajectory.timeseries(
                atomgroup=ours.select_atoms(ca), order=order, **kwargs
            )
            lazy = ours.trajectory.dask_timeseries(ours.select_atoms(ca), order=order, **kwargs)
            reference = theirs.trajectory.timeseries(
                atomgroup=theirs.select_atoms(ca), order=order, **kwargs
            )
            assert_array_equal(mine, reference)
            assert_array_equal(lazy.compute(), reference)


@pytest.mark.parametrize(("start", "step"), [(None, None), (4, 3), (-2, 1)])
def test_lazy_timeseries_ends_before_the_first_frame(pair, start, step):
    ours = pair[0].trajectory
    lazy = ours.dask_timeseries(start=start, stop=-len(ours) - 5, step=step)
    assert lazy.compute().shape == (0, ours.n_atoms, 3)


@pytest.mark.parametrize("name", ["timeseries", "dask_timeseries"])
def test_timeseries_backwards_to_a_stop_before_the_first_frame(pair, name):
    ours = pair[0].trajectory
    found = getattr(ours, name)(start=3, stop=-len(ours) - 5, step=-2)
    assert_array_equal(found, ours.timeseries()[3::-2])


def test_timeseries_ends_at_the_first_frame():
    """As the readers of MDAnalysis for XTC, TRR, NetCDF and H5MD do."""
    ends = []
    for how in ({}, {"format": "MDIO"}):
        universe = mda.Universe(GRO, XTC, **how)
        universe.trajectory[4]
        universe.trajectory.timeseries(universe.select_atoms("name CA"), stop=3)
        ends.append((universe.trajectory.frame, universe.atoms.positions[7].tolist()))
    assert ends[0] == ends[1] and ends[0][0] == 0


def test_lazy_timeseries_says_what_it_does_not_do(pair):
    ours = pair[0]
    with pytest.raises(ValueError, match="at least one atom"):
        ours.trajectory.dask_timeseries(ours.atoms[:0])
    with pytest.raises(ValueError, match="permutation of 'fac'"):
        ours.trajectory.dask_timeseries(order="xyz")
    moved = ours.copy()
    moved.trajectory.add_transformations(lambda ts: ts)
    with pytest.raises(ValueError, match=r"take timeseries\(\)"):
        moved.trajectory.dask_timeseries()


def test_group(adk, outputs):
    u = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    ca = u.select_atoms("name CA")
    for kind in ("zarr", "h5md", "quantised.zarr"):
        top = outputs[kind].with_name(outputs[kind].stem + ".ca.top.pdb")
        small = mda.Universe(str(top), str(outputs[kind]), group="ca")
        assert len(small.atoms) == len(ca)
        for ours, _ in zip(small.trajectory, u.trajectory, strict=True):
            assert_array_equal(ours.positions, ca.positions)


def test_copy_and_pickle_keep_place_and_independence(pair):
    ours = pair[0]
    ours.trajectory[41]
    copied, pickled = ours.copy(), pickle.loads(pickle.dumps(ours))
    ours.trajectory[3]
    for other in (copied, pickled):
        assert other.trajectory.frame == 41
        assert_array_equal(other.trajectory[12].positions, pair[1].trajectory[12].positions)


def test_copies_know_the_time_between_frames():
    """Of copies of frames, too, which do not know their reader."""
    ours = mda.Universe(GRO, XTC, format="MDIO")
    expected = mda.Universe(GRO, XTC).trajectory
    assert ours.trajectory.ts.copy().dt == expected.ts.dt
    in_memory = ours.copy()
    in_memory.transfer_to_memory()
    times = [ts.time for ts in expected]
    assert [ts.time for ts in in_memory.trajectory] == pytest.approx(times)


def _rmsd(universe):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rms.RMSD(universe.select_atoms("name CA"))


def test_under_mdanalysis_multiprocessing(pair):
    serial = _rmsd(pair[1]).run()
    parallel = _rmsd(pair[0]).run(backend="multiprocessing", n_workers=2)
    assert_array_equal(parallel.results.rmsd, serial.results.rmsd)


def test_in_a_forked_child_after_use_in_the_parent(pair):
    ours, theirs = pair
    ours.trajectory[50]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(_positions_of, (ours, 77))
    assert_array_equal(found, theirs.trajectory[77].positions)
    assert_array_equal(ours.trajectory[51].positions, theirs.trajectory[51].positions)


def _positions_of(universe, frame):
    return universe.trajectory[frame].positions


class _Counting:
    """Stands in for a layout and counts the frames of each read."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.reads = []

    def __getattr__(self, name):
        return getattr(self._layout, name)

    def read(self, start, stop, **kwargs):
        self.reads.append((start, stop))
        return self._layout.read(start, stop, **kwargs)


def counted(universe):
    trajectory = universe.trajectory
    trajectory._cache._layout = counting = _Counting(trajectory._layout)
    return counting


@pytest.mark.parametrize("direction", [1, -1])
def test_frame_after_frame_costs_one_read_per_run_of_chunks(adk, outputs, direction):
    for kind in ("zarr", "h5md"):
        u = mda.Universe(str(adk["psf"]), str(outputs[kind]))
        counting = counted(u)
        for _ in u.trajectory[::direction]:
            pass
        n_runs = -(-98 // 7)
        assert len(counting.reads) <= n_runs + 2
        inner = [pair for pair in counting.reads if pair[1] - pair[0] > 1]
        assert all(start % 7 == 0 for start, _ in inner)


def test_a_far_jump_reads_one_frame(adk, outputs):
    u = mda.Universe(str(adk["psf"]), str(outputs["zarr"]))
    counting = counted(u)
    for frame in (90, 20, 60):
        u.trajectory[frame]
    assert counting.reads == [(90, 91), (20, 21), (60, 61)]


def test_damage_does_not_end_an_iteration_quietly(adk, tmp_path):
    path = tmp_path / "adk.zarr"
    mdio.convert(adk["dcd"], path, storage=mdio.Storage(chunk_frames=10))
    shard = path / "particles/trajectory/position/value/c.0.0.0"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    u = mda.Universe(str(adk["psf"]), str(path))
    seen = []
    with pytest.raises(FrameReadError, match=r"frame 40: .*checksum"):
        seen.extend(ts.frame for ts in u.trajectory)
    assert seen == list(range(40))


def test_transformations_and_dimensions(adk, outputs):
    from MDAnalysis.transformations import translate

    for kind in KINDS:
        u = mda.Universe(str(adk["psf"]), str(outputs[kind]), transformations=translate([1, 2, 3]))
        v = mda.Universe(str(adk["psf"]), str(adk["xtc"]), transformations=translate([1, 2, 3]))
        for frame in (0, 50, 51):
            assert_same_frame(u.trajectory[frame], v.trajectory[frame])
        assert_array_equal(u.trajectory.timeseries(stop=5), v.trajectory.timeseries(stop=5))


def test_timeseries_with_transformations_backwards_to_the_first_frame(pair):
    from MDAnalysis.transformations import translate

    ours, theirs = pair
    ours.trajectory.add_transformations(translate([1, 2, 3]))
    some = [3, 40]
    expected = [ts.positions[some] + np.float32([1, 2, 3]) for ts in theirs.trajectory][::-7]
    found = ours.trajectory.timeseries(ours.atoms[some], step=-7)
    assert_array_equal(found, np.array(expected, np.float32))


def test_a_list_of_outputs_is_chained(adk, outputs):
    u = mda.Universe(str(adk["psf"]), [str(outputs["zarr"]), str(outputs["h5md"])])
    assert len(u.trajectory) == 196
    v = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    assert_array_equal(u.trajectory[98 + 5].positions, v.trajectory[5].positions)


def test_mismatching_topology_is_mdanalysis_own_error(outputs):
    with pytest.raises(ValueError, match="number of atoms"):
        mda.Universe(COORDINATES_TOPOLOGY, str(outputs["zarr"]))
    assert np.isfinite(
        mda.Universe(str(outputs["zarr"].parent / "adk.ca.top.pdb")).atoms.positions
    ).all()
