"""What turning selections into atoms reads of a trajectory: one frame at the most."""

import os
import pickle
import shutil

import numpy as np
import pytest

import mdio
from mdio.analysis.system import System
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.converters.selection import universe_from_topology
from mdio.core.files.index import END_NBYTES

FRAME_NBYTES = 3341 * 12
BY_PLACE = "around 4 (resid 30 and name CA)"


@pytest.fixture
def reads(monkeypatch):
    """The bytes of each call to `os.preadv`, of any file."""
    found, real = [], os.preadv

    def counting(fd, buffers, offset):
        found.append(real(fd, buffers, offset))
        return found[-1]

    monkeypatch.setattr(os, "preadv", counting)
    return found


@pytest.fixture(scope="module")
def sources(adk, tmp_path_factory):
    """One with a frame a read, and one whose 98 frames are compressed together."""
    folder = tmp_path_factory.mktemp("sources")
    mdio.convert(
        adk["dcd"], folder / "packed.zarr", precision=0.01, storage=mdio.Storage(chunk_frames=98)
    )
    return {"dcd": adk["dcd"], "packed": folder / "packed.zarr"}


def planned(source, folder, reads, **options):
    """Return calls and bytes of planning."""
    reads.clear()
    prepare(source, folder / "out.zarr", ConversionOptions.of(**options)).close()
    return len(reads), sum(reads)


@pytest.mark.parametrize("name", ["dcd", "packed"])
@pytest.mark.parametrize("options", [{}, {"select": "name CA"}, {"groups": {"ca": "name CA"}}])
def test_names_need_no_coordinates(sources, adk, tmp_path, reads, name, options):
    planned(sources[name], tmp_path, reads)  # indices are made once
    calls, nbytes = planned(sources[name], tmp_path, reads)
    with_top = planned(sources[name], tmp_path, reads, top=adk["psf"], **options)
    assert with_top[0] <= calls + 2  # the topology is looked at
    assert with_top[1] <= nbytes + 200


def test_places_need_one_frame(sources, adk, tmp_path, reads):
    planned(sources["dcd"], tmp_path, reads)
    calls, nbytes = planned(sources["dcd"], tmp_path, reads)
    asked = {"groups": {"near": BY_PLACE, "nearer": BY_PLACE.replace("4", "3")}}
    with_top = planned(sources["dcd"], tmp_path, reads, top=adk["psf"], **asked)
    assert with_top[0] <= calls + 3
    assert FRAME_NBYTES <= with_top[1] - nbytes + 200 <= FRAME_NBYTES + 400


def test_an_analysis_reads_its_own_frames_only(sources, adk, reads, tmp_path):
    """Beside what tells that the topology file is the same, and what was parsed of it."""
    psf = shutil.copy(adk["psf"], tmp_path / "adk.psf")
    kept = tmp_path / ".adk.psf.mdio-topology"
    with mdio.open(sources["packed"]) as layout:
        layout.info  # noqa: B018 - opens it
        for _ in range(2):
            of_topology = 2 * END_NBYTES + (kept.stat().st_size if kept.exists() else 0)
            reads.clear()
            assert len(System(layout, psf).select("name CA")) == 214
            assert 0 <= sum(reads) - of_topology < 200
    assert kept.exists()


def test_the_first_frame_is_that_of_the_trajectory(sources, adk):
    """Not what a topology file has; and copies and pickles of it have what was changed."""
    with mdio.open(adk["xtc"]) as layout:
        block = layout.read(0, 1)
        universe = universe_from_topology(adk["psf"], layout)
        assert len(universe.trajectory) == 1
        assert universe.trajectory.dt == layout.info.dt_ps
        np.testing.assert_array_equal(universe.atoms.positions, block.positions[0])
        np.testing.assert_array_equal(universe.dimensions, block.box[0])
        universe.atoms[3].position = [1, 2, 3]
        for again in (universe.copy(), pickle.loads(pickle.dumps(universe))):
            np.testing.assert_array_equal(again.atoms.positions, universe.atoms.positions)
        assert [ts.frame for ts in universe.trajectory] == [0]


def test_a_layout_that_was_closed_is_closed_again(adk):
    layout = mdio.open(adk["dcd"])
    universe = universe_from_topology(adk["psf"], layout)
    layout.close()
    assert universe.atoms.positions.any()
    assert layout._info is None
