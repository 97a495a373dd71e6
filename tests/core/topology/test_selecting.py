"""Simple selections, beside MDAnalysis'."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests import datafiles
from numpy.testing import assert_array_equal

from mdio.core.errors import CorruptLayoutError
from mdio.core.topology import Topology, select
from mdio.layouts.foreign.universe import topology_of, universe_of

FILES = {
    "psf": datafiles.PSF,
    "gro": datafiles.GRO,
    "pdb": datafiles.PDB_small,
    "prmtop": datafiles.PRM,
    "tpr": datafiles.TPR2021,
}
SIMPLE = [
    "name CA",
    "protein",
    "backbone",
    "not protein",
    "protein and name CA",
    "name CA or resname ALA and resid 1:20",
    "(name CA or resname ALA) and resid 1-20",
    "name C* and not (name CA or name CB)",
    "byres name CA and resid 3 5 7",
    "byres (name CA and resid 3)",
    "index 0:10 20 30",
    "bynum 1:10",
    "resid 4:6 9",
    "name N CA C O and not resname GLY PRO",
    "water",
    "nucleic",
    "all",
    "name ?A",
    "segid 4AKE SYSTEM",
    "not backbone and protein",
]
NOT_SIMPLE = [
    "around 3 name CA",
    "prop mass > 12",
    "same residue as name CA",
    "mass 12",
    "name CA and",
    "resid",
    "foo",
    "name CA (resid 3",
    "resid 1 to 5",
    "global name CA",
    "name \\protein",
]


@pytest.fixture(params=FILES, scope="module")
def universe(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(FILES[request.param], to_guess=())


@pytest.mark.parametrize("selection", SIMPLE)
def test_simple_selections_are_those_of_mdanalysis(universe, selection):
    topology = Topology.from_bytes(topology_of(universe).to_bytes(), "here")
    assert_array_equal(select(topology, selection), universe.select_atoms(selection).indices)


@pytest.mark.parametrize("selection", NOT_SIMPLE)
def test_others_are_left_to_mdanalysis(universe, selection):
    assert select(topology_of(universe), selection) is None


def test_what_a_topology_lacks_is_left_to_mdanalysis():
    assert select(Topology(3, {}), "name CA") is None
    assert select(Topology(3, {}), "index 1").tolist() == [1]


ATTRIBUTES = ["names", "types", "elements", "masses", "charges", "resids", "resnames", "segids"]


def compare(one, other):
    for name in ATTRIBUTES:
        assert hasattr(one.atoms, name) == hasattr(other.atoms, name), name
        if hasattr(one.atoms, name):
            assert_array_equal(getattr(one.atoms, name), getattr(other.atoms, name))
    assert hasattr(one, "bonds") == hasattr(other, "bonds")
    if hasattr(one, "bonds"):
        theirs = sorted(map(sorted, other.bonds.to_indices().tolist()))
        assert sorted(map(sorted, one.bonds.to_indices().tolist())) == theirs


def test_universes_come_back(universe):
    stored = Topology.from_bytes(topology_of(universe).to_bytes(), "here")
    made = universe_of(stored)
    compare(made, universe)
    assert_array_equal(made.atoms.resindices, universe.atoms.resindices)


def test_some_atoms(universe):
    """In their own order, as MDAnalysis merges them."""
    atoms = np.random.default_rng(1).permutation(len(universe.atoms))[:300]
    made = universe_of(topology_of(universe, np.sort(atoms)))
    picked = universe.atoms[np.sort(atoms)]
    for name in ATTRIBUTES:
        if hasattr(picked, name):
            assert_array_equal(getattr(made.atoms, name), getattr(picked, name))
    if hasattr(universe, "bonds"):
        inside = [set(b) <= set(atoms.tolist()) for b in universe.bonds.to_indices().tolist()]
        assert len(made.bonds) == sum(inside)


def test_damage_is_told():
    good = topology_of(mda.Universe(datafiles.PSF, to_guess=())).to_bytes()
    for at in (*range(0, 40, 3), *range(40, len(good), 997)):
        bad = bytearray(good)
        bad[at] ^= 0xFF
        try:
            Topology.from_bytes(bytes(bad), "adk.zarr")
        except CorruptLayoutError as error:
            assert "adk.zarr: its topology" in str(error)
    for cut in (0, 8, 11, 100, len(good) // 2):
        with pytest.raises(CorruptLayoutError):
            Topology.from_bytes(good[:cut], "adk.zarr")
