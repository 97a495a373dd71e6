"""MPIBackend equals MDAnalysis' multiprocessing backend on the same parts.

On all ranks, then on all but the last and on that alone: starting takes far longer than running.
"""

import sys

import numpy as np
from backend_function import centre
from MDAnalysis.analysis import gnm, rms
from MDAnalysis.analysis.base import AnalysisFromFunction
from MDAnalysis.analysis.dihedrals import Ramachandran
from mpi4py import MPI

import mdio
from mdio.core.errors import BlockError

FRAMES = {"stop": 40, "step": 3, "n_parts": 5}


def check(comm, wanted, small_adk):
    u = small_adk()
    analyses = {
        "rmsd": rms.RMSD(u.select_atoms("protein and name CA")),
        "ramachandran": Ramachandran(u.select_atoms("resid 10:60")),
        "function": AnalysisFromFunction(centre, u.trajectory, u.select_atoms("name CA")),
        "gnm": gnm.GNMAnalysis(u, select="name CA and resid 1:40"),
    }
    backend = mdio.MPIBackend(comm)
    for name, analysis in analyses.items():
        analysis.run(backend=backend, unsupported_backend=True, **FRAMES)
        for key, value in wanted[name].item().items():
            assert np.array_equal(np.asarray(analysis.results[key]), value), (name, key)
    try:
        analyses["function"].run(backend=backend, unsupported_backend=True, n_parts=7)
    except BlockError as error:
        assert str(error).startswith("frames 84 to 97 (rank "), error
        assert " failed: ArithmeticError: frame 90 is odd" in str(error)
    else:
        raise AssertionError("nobody raised")
    return len(analyses)


def main(path, suites):
    sys.path.insert(0, suites)
    from suites.small_adk import small_adk

    world = MPI.COMM_WORLD
    wanted = dict(np.load(path, allow_pickle=True))
    n_checks = check(world, wanted, small_adk)
    part = world.Split(world.rank == world.size - 1)
    n_checks += check(part, wanted, small_adk)
    sizes = world.gather(part.size)
    if world.rank == 0:
        assert set(sizes) == {world.size - 1, 1}
        print(f"{n_checks} checks passed on {world.size} ranks")


if __name__ == "__main__":
    main(*sys.argv[1:])
