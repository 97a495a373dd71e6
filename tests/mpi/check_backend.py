"""MPIBackend equals MDAnalysis' multiprocessing backend on the same parts (some ranks)."""

import sys

import MDAnalysis as mda
import numpy as np
from backend_function import centre
from MDAnalysis.analysis import gnm, rms
from MDAnalysis.analysis.base import AnalysisFromFunction
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysisTests.datafiles import DCD, PSF
from mpi4py import MPI

import mdio
from mdio.core.errors import BlockError

COMM = MPI.COMM_WORLD
FRAMES = {"stop": 40, "step": 3, "n_parts": 5}


def main(wanted):
    u = mda.Universe(PSF, DCD)
    analyses = {
        "rmsd": rms.RMSD(u.select_atoms("protein and name CA")),
        "ramachandran": Ramachandran(u.select_atoms("resid 10:60")),
        "function": AnalysisFromFunction(centre, u.trajectory, u.select_atoms("name CA")),
        "gnm": gnm.GNMAnalysis(u, select="name CA and resid 1:40"),
    }
    backend = mdio.MPIBackend(COMM)
    for name, analysis in analyses.items():
        analysis.run(backend=backend, unsupported_backend=True, **FRAMES)
        expected = np.load(wanted, allow_pickle=True)[name].item()
        for key, value in expected.items():
            assert np.array_equal(np.asarray(analysis.results[key]), value), (name, key)
    try:
        analyses["function"].run(backend=backend, unsupported_backend=True, n_parts=7)
    except BlockError as error:
        assert "frames 84 to 97 failed: ArithmeticError: frame 90 is odd" in str(error)
    else:
        raise AssertionError("nobody raised")
    COMM.Barrier()
    if COMM.rank == 0:
        print(f"{len(analyses)} checks passed on {COMM.size} ranks")


if __name__ == "__main__":
    main(sys.argv[1])
