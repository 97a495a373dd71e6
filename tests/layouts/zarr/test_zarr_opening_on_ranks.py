"""Ranks open an output of many shards by few requests: rank 0 reads its tables, for all."""

import MDAnalysis as mda
import numpy as np
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi
from suites.zarr_cases import make_block, write_tree

pytestmark = needs_mpi


def test_a_thousand_shards(tmp_path):
    block = make_block(1000, 30)
    write_tree(tmp_path / "a.zarr", block, chunk_frames=1, piece_chunks=1)
    atoms = mda.Universe.empty(30, trajectory=True)
    for name, values in (("name", ["CA"] * 30), ("resname", ["GLY"]), ("resid", [1])):
        atoms.add_TopologyAttr(name, values)
    atoms.dimensions = np.array([80, 80, 80, 90, 90, 90])
    atoms.atoms.write(tmp_path / "a.gro")
    words = (CHECKS / "layouts" / "check_opening.py", tmp_path / "a.zarr", tmp_path / "a.gro")
    code, out, err = run_under_mpi(4, *words)
    assert code == 0 and "opened" in out, out + err
