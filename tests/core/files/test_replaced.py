"""An output that is replaced while it is open: its frames are not mixed with those of the new one.

What reads it goes on with the old output or ends, saying what has happened.
"""

import pickle

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import PSF
from suites.outputs import as_options
from suites.under_mpi import needs_mpi, run_checks

import mdio
from mdio.core.errors import CorruptLayoutError, FrameReadError
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
    mdio.convert(sources, out, **as_options({**options, **more}))


@pytest.fixture(params=KINDS)
def output(adk, tmp_path, request):
    """Return an output of 294 frames, and what puts another one of the same shape in its place."""
    out, options = tmp_path / f"a.{request.param}", KINDS[request.param]
    write([adk["xtc"]] * 3, out, options)
    return out, lambda: write([adk["trr"]] * 3, out, options, force=True)


@pytest.fixture
def old(adk):
    with mdio.open([adk["xtc"]] * 3) as layout:
        return layout.read(0, 294, atoms=np.arange(5)).positions


def test_a_layout_that_opens_again(output, old):
    out, replace = output
    layout = mdio.open(out)
    assert layout.info.n_frames == 294
    replace()
    layout.close()
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        layout.read(0, 1)


def test_a_layout(output, old):
    out, replace = output
    with mdio.open(out) as layout:
        layout.read(0, 30)
        replace()
        with pytest.raises(CorruptLayoutError, match=REPLACED):
            layout.read(0, 294)


def test_a_universe(output, old):
    out, replace = output
    u = mda.Universe(PSF, str(out))
    seen = []
    with pytest.raises(FrameReadError, match=REPLACED):
        for ts in u.trajectory:
            seen.append(ts.positions[:5].copy())
            if ts.frame == 20:
                replace()
    assert len(seen) > 20
    np.testing.assert_allclose(seen, old[: len(seen)], atol=1e-3)
    with pytest.raises(FrameReadError, match=REPLACED):
        u.trajectory[293]


def test_copies_and_workers_of_a_universe(output):
    out, replace = output
    u = mda.Universe(PSF, str(out))
    pickled = pickle.dumps(u)
    was = u.trajectory.ts.positions.copy()
    replace()
    copy = pickle.loads(pickled).trajectory  # a pool waits for ever for what raises here
    assert np.array_equal(copy.ts.positions, was)
    for frame in (0, 1):
        with pytest.raises(FrameReadError, match=REPLACED):
            copy[frame]
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        copy.timeseries()
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        u.trajectory.copy()


class Replacing:
    """A kernel that replaces what it reads, once."""

    def __init__(self, replace):
        self.replace = replace

    def __call__(self, block):
        if self.replace is not None:
            self.replace()
        self.replace = None
        return block.positions[:, 0]


@pytest.mark.parametrize("blocks", [1, 7])
def test_a_serial_analysis(output, blocks):
    out, replace = output
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        mdio.analyze(out, kernel=Replacing(replace), blocks_per_worker=blocks)


def test_processes(output):
    """Forked workers have what was opened; they must not take new files for the old ones."""
    out, replace = output
    with mdio.open(out) as layout:
        assert layout.info.n_frames == 294
        replace()
        with pytest.raises(CorruptLayoutError, match=REPLACED), mdio.Processes(2) as executor:
            mdio.analyze(layout, kernel=mdio.RMSD(), executor=executor)


@pytest.mark.parametrize("kind", ["zarr", "h5md", "segments"])
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
    mdio.convert(adk["xtc"], out, storage=mdio.Storage(chunk_frames=10))
    run_checks(3, "check_replaced.py", out, adk["trr"])


def test_a_conversion_of_it(output, tmp_path):
    out, replace = output
    from mdio.converters.convert import prepare
    from mdio.converters.options import ConversionOptions

    conversion = prepare(out, tmp_path / "b.h5md", ConversionOptions.of(step=2))
    replace()
    with pytest.raises(CorruptLayoutError, match=REPLACED):
        conversion.run(mdio.Serial())
    assert not (tmp_path / "b.h5md").exists()
