"""An output that is replaced while it is open: its frames are not mixed with those of the new one.

What reads it goes on with the old output or ends, saying what has happened.
"""

import pickle

import MDAnalysis as mda
import pytest
from MDAnalysisTests.datafiles import PSF
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi

import mdio
from mdio.core.errors import CorruptLayoutError
from mdio.parallel.dask_executor import DaskExecutor

REPLACED = "was replaced while it was open"
KINDS = {
    "zarr": {"chunk_frames": 10},
    "compressed.zarr": {"compression": "zstd"},
    "auto.zarr": {"precision": "auto"},
    "segments": {"segments": 7, "container": "dcd"},
}
"""Outputs of several files, that readers open as they come to them."""


def write(sources, out, options, **more):
    mdio.convert(sources, out, **options, **more)


@pytest.fixture(params=KINDS)
def output(adk, tmp_path, request):
    """Return an output of 294 frames, and what puts another one of the same shape in its place."""
    out, options = tmp_path / f"a.{request.param}", KINDS[request.param]
    write([adk["xtc"]] * 3, out, options)
    return out, lambda: write([adk["trr"]] * 3, out, options, force=True)


def test_a_layout_that_opens_again(output):
    out, replace = output
    layout = mdio.open(out)
    assert layout.info.n_frames == 294
    replace()
    layout.close()
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        layout.read(0, 1)


def test_copies_and_workers_of_a_universe(output):
    out, replace = output
    u = mda.Universe(PSF, str(out))
    pickled = pickle.dumps(u)
    replace()
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        pickle.loads(pickled)
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        u.trajectory.copy()


@pytest.mark.parametrize("kind", ["zarr", "h5md"])
@pytest.mark.filterwarnings("default")  # dask's own
def test_dask(adk, tmp_path, kind):
    out = tmp_path / f"a.{kind}"
    mdio.convert(adk["xtc"], out)
    with mdio.open(out) as layout, DaskExecutor(n_workers=1) as executor:
        assert layout.info.n_frames == 98
        mdio.convert(adk["trr"], out, force=True)
        with pytest.raises(CorruptLayoutError, match=REPLACED):
            mdio.analyze(layout, kernel=mdio.RMSD(), executor=executor)


@needs_mpi
def test_ranks(adk, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], out, chunk_frames=10)
    code, said, err = run_under_mpi(
        3, "-m", "mpi4py", CHECKS / "check_replaced.py", out, adk["trr"]
    )
    assert code == 0, said + err
    assert "checks passed on 3 ranks" in said
