"""MDAnalysis' analyses on our executors, against its multiprocessing backend on the same parts."""

import numpy as np
import pytest
from MDAnalysis.analysis import align, gnm, rdf, rms
from MDAnalysis.analysis.base import AnalysisFromFunction
from oracles.versions import MDA_2_11, needs_mda_2_11
from parallel.on_dask import dask_client
from suites.small_adk import small_adk

from mdio.analysis.backends import DaskBackend, ExecutorBackend
from mdio.core.errors import BlockError
from mdio.parallel.executors import Processes, Serial

pytestmark = pytest.mark.filterwarnings("default")  # MDAnalysis' and dask's own


@pytest.fixture(scope="module")
def universe():
    return small_adk()


def centre(atoms):
    return atoms.center_of_geometry()


def fails_late(atoms):
    if atoms.universe.trajectory.frame == 90:
        raise ArithmeticError("frame 90 is odd")
    return 0.0


def analysis(name, u):
    if name == "rmsd":
        return rms.RMSD(u.select_atoms("protein and name CA"))
    if name == "function":
        return AnalysisFromFunction(centre, u.trajectory, u.select_atoms("name CA"))
    if name == "gnm":  # adds to what it has of the part before
        return gnm.GNMAnalysis(u, select="name CA and resid 1:40")
    assert name == "rdf"  # a sum over frames
    pair = u.select_atoms("name OD1"), u.select_atoms("name NZ")
    return rdf.InterRDF(*pair, nbins=10, norm="none")


GNM = pytest.param("gnm", marks=needs_mda_2_11)  # joins parts of unequal lengths
NAMES = ["rmsd", "function", GNM, "rdf"]
FRAMES = {"stop": 40, "step": 3, "n_parts": 5}


@pytest.fixture(scope="module", params=NAMES)
def expected(request, universe):
    run = analysis(request.param, universe).run(backend="multiprocessing", n_workers=2, **FRAMES)
    return request.param, run


def same(a, b):
    assert set(a) == set(b)
    for key in a:
        if isinstance(a[key], dict):
            same(a[key], b[key])
        else:
            np.testing.assert_array_equal(np.asarray(a[key]), np.asarray(b[key]))


@pytest.mark.parametrize("executor", [Serial(), Processes(2)], ids=["serial", "processes"])
def test_equals_multiprocessing(universe, expected, executor):
    name, want = expected
    backend = ExecutorBackend(executor)
    got = analysis(name, universe).run(backend=backend, unsupported_backend=True, **FRAMES)
    assert np.array_equal(got.frames, want.frames)
    assert np.array_equal(got.times, want.times)
    same(got.results, want.results)


def test_dask(universe):
    with dask_client(threads_per_worker=2) as client:
        for name in ("rmsd", "gnm") if MDA_2_11 else ("rmsd",):
            want = analysis(name, universe).run(backend="multiprocessing", n_workers=2, **FRAMES)
            got = analysis(name, universe).run(
                backend=DaskBackend(client), unsupported_backend=True, **FRAMES
            )
            same(got.results, want.results)


def test_failures_name_the_frames(universe):
    failing = AnalysisFromFunction(fails_late, universe.trajectory, universe.atoms)
    with pytest.raises(BlockError, match=r"frames 84 to 97 failed: ArithmeticError: frame 90 is"):
        failing.run(backend=ExecutorBackend(Processes(2)), n_parts=7, unsupported_backend=True)


def test_serial_only_analyses_stay_serial(universe):
    with pytest.raises(ValueError, match="paralleliz"):
        align.AverageStructure(universe).run(
            backend=ExecutorBackend(Serial()), unsupported_backend=True
        )
