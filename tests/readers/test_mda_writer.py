"""MDAnalysis' own tests of writers, with ours, and whose names these have."""

import subprocess
import sys
from contextlib import nullcontext

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis import _MULTIFRAME_WRITERS, _SINGLEFRAME_WRITERS
from MDAnalysisTests.coordinates.base import BaseReference, BaseWriterTest
from MDAnalysisTests.datafiles import COORDINATES_TOPOLOGY, COORDINATES_TRR
from numpy.testing import assert_array_equal

import mdio
from mdio.readers.reader import H5MDReader, SegmentsReader, TrajectoryWriter, ZarrReader


class _Reference(BaseReference):
    def __init__(self, reader, ext, **options):
        super().__init__()
        self.trajectory, self.topology = COORDINATES_TRR, COORDINATES_TOPOLOGY
        self.ext, self.prec, self.changing_dimensions = ext, 3, True
        read = mda.coordinates.TRR.TRRReader
        # What they wrote is read by ours, the reference by MDAnalysis.
        self.reader = lambda path: read(path) if path == self.trajectory else reader(path)
        options |= {"to": ext}  # the names have no dot
        self.writer = lambda *args, **more: TrajectoryWriter(*args, **options, **more)


class TestZarr(BaseWriterTest):
    @pytest.fixture
    def ref(self):
        return _Reference(ZarrReader, "zarr")


class TestZarrAtOnce(BaseWriterTest):
    @pytest.fixture
    def ref(self):
        return _Reference(ZarrReader, "zarr", background=False, every_s=0)


class TestH5MD(BaseWriterTest):
    @pytest.fixture
    def ref(self):
        return _Reference(H5MDReader, "h5md")


class TestSegments(BaseWriterTest):
    @pytest.fixture
    def ref(self):
        return _Reference(SegmentsReader, "segments", storage=mdio.Storage(container="trr"))


@pytest.fixture
def adk_universe(adk):
    return mda.Universe(str(adk["psf"]), str(adk["xtc"]))


@pytest.mark.parametrize("name", ["a.zarr", "a.segments", "a.h5md"])
def test_as_other_trajectories_are_written(adk_universe, tmp_path, name):
    u, out = adk_universe, str(tmp_path / name)
    options = {"format": "MDIO"} if name.endswith("h5md") else {}
    with mda.Writer(out, n_atoms=u.atoms.n_atoms, **options) as writer:
        for _ in u.trajectory:
            writer.write(u.atoms)
    top = [u.filename] if name.endswith("segments") else []
    ours = mda.Universe(*top, out)
    for mine, theirs in zip(ours.trajectory, u.trajectory, strict=True):
        assert_array_equal(mine.positions, theirs.positions)
        np.testing.assert_allclose(mine.dimensions, theirs.dimensions, rtol=1e-6)
        assert mine.time == pytest.approx(theirs.time)
    assert ours.atoms.names.tolist() == u.atoms.names.tolist()


@pytest.mark.parametrize(
    ("method", "format_name"), [("OtherWriter", None), ("OtherWriter", "MDIO"), ("Writer", "MDIO")]
)
@pytest.mark.parametrize("name", ["a.zarr", "a.xtc", "a.dcd"])
def test_writers_that_readers_give_keep_the_time_between_frames(
    adk, tmp_path, name, method, format_name
):
    u = mda.Universe(str(adk["psf"]), str(adk["xtc"]), format=format_name)
    with getattr(u.trajectory, method)(str(tmp_path / name)) as writer:
        for _ in u.trajectory[:3]:
            writer.write(u.atoms)
    info = mdio.open(tmp_path / name).info
    assert (info.n_frames, info.dt_ps) == (3, pytest.approx(u.trajectory.dt))


@pytest.mark.parametrize("name", ["a.zarr", "a.segments"])
def test_a_selection_with_all_its_frames(adk_universe, tmp_path, name):
    ca, out = adk_universe.select_atoms("name CA"), str(tmp_path / name)
    ca.write(out, frames="all")
    ca.write(str(tmp_path / f"one-{name}"))
    with pytest.raises(OSError, match="exists"):
        ca.write(out, frames="all")
    notes = pytest.warns(match="steps .* are not stored") if "segments" in name else nullcontext()
    with notes:
        ca.write(out, frames=adk_universe.trajectory[::2], force=True)
    assert mdio.open(out).info.n_frames == 49
    assert mdio.open(tmp_path / f"one-{name}").info.n_frames == 1


def test_in_a_storage_of_the_users_choice(adk_universe, tmp_path):
    out = str(tmp_path / "a.zarr")
    adk_universe.atoms.write(out, frames="all", precision=0.01, compression="bitpack")
    info = mdio.open(out).info
    assert info.precision == 0.01 and info.compression == "bitpack"


def test_names_of_others_stay_theirs():
    code = (
        "import MDAnalysis as mda\n"
        "from MDAnalysis import _MULTIFRAME_WRITERS as many, _SINGLEFRAME_WRITERS as one\n"
        "class Theirs: pass\n"
        "many['ZARR'] = one['ZARR'] = Theirs\n"
        "before = dict(many), dict(one)\n"
        "import mdio\n"
        "for old, new in zip(before, (many, one)):\n"
        "    assert all(new[name] is old[name] for name in old), new\n"
        "    print(sorted(new.keys() - old.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['MDIO', 'SEGMENTS']"] * 2


def test_they_are_known():
    for known in (_MULTIFRAME_WRITERS, _SINGLEFRAME_WRITERS):
        assert {known[name] for name in ("MDIO", "ZARR", "SEGMENTS")} == {TrajectoryWriter}
        assert not known.get("H5MD", mda.Writer).__module__.startswith("mdio")
