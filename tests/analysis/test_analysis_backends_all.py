"""Every analysis that MDAnalysis can split, on our backend and on its own multiprocessing one.

The parts are the same, so results must be too, to the last bit. In this process and in order,
which is where a part that is not a copy of its own would show. Systems are small: most of the time
goes into sending them to and fro.
"""

import warnings
from functools import cache

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import (
    atomicdistances,
    bat,
    contacts,
    density,
    diffusionmap,
    dihedrals,
    dssp,
    gnm,
    hydrogenbonds,
    lineardensity,
    nucleicacids,
    polymer,
    rdf,
    rms,
)
from MDAnalysis.analysis.base import AnalysisBase, AnalysisFromFunction
from MDAnalysisTests import datafiles as files
from oracles.versions import MDA_2_11
from suites.small_adk import small_adk as adk

from mdio.analysis.backends import ExecutorBackend
from mdio.parallel.executors import Serial

pytestmark = pytest.mark.filterwarnings("default")  # MDAnalysis' own


def water():
    u = mda.Universe(files.waterPSF, files.waterDCD)
    u.add_TopologyAttr("types", [name[0] for name in u.atoms.names])
    return u


def centre(atoms):
    return atoms.center_of_geometry()


def contacts_of(u):
    select = ("resname ASP and name OD1", "name NZ")
    groups = tuple(map(u.select_atoms, select))
    return contacts.Contacts(u, select=select, refgroup=groups, radius=6.0)


def sites(u):
    oxygens = u.select_atoms("name OD1")[:3], u.select_atoms("name NZ")[:2]
    return rdf.InterRDF_s(u, [oxygens], nbins=10, norm="none")


def polymers():
    u = mda.Universe(files.TRZ_psf, files.TRZ)
    return u, polymer.PersistenceLength([f.atoms[:100] for f in u.atoms.fragments[:2]])


def moving(atoms, n_frames):
    """Return a Universe of these atoms alone, with frames in memory that differ."""
    u = mda.Merge(atoms)
    shifts = np.linspace(0, 1, n_frames)[:, None, None] * np.sin(np.arange(len(atoms)))[:, None]
    return u.load_new((atoms.positions + shifts).astype(np.float32))


@cache
def two_bases():
    u = mda.Universe(files.RNA_PSF, files.RNA_PDB)
    u.residues.resnames = [name[0] for name in u.residues.resnames]
    residues = u.select_atoms("segid RNAA").residues
    return sum(next(r for r in residues if r.resname == name).atoms for name in "GC")


def pairs(which):
    def make():
        u = moving(two_bases(), 6)
        return u, which(u.residues[:1], u.residues[1:])

    return make


@cache
def protein():
    return mda.Universe(files.TPR, files.XTC).select_atoms("protein")


def hydrogen_bonds():
    u = water()
    return u, hydrogenbonds.HydrogenBondAnalysis(
        u, donors_sel="name OH2", hydrogens_sel="name H1 H2", acceptors_sel="name OH2"
    )


def made_of(universe, build):
    def make():
        u = universe()
        return u, build(u)

    return make


ANALYSES = {
    "RMSD": made_of(adk, lambda u: rms.RMSD(u.select_atoms("name CA"))),
    "Dihedral": made_of(adk, lambda u: dihedrals.Dihedral([u.atoms[:4], u.atoms[20:24]])),
    "Ramachandran": made_of(adk, lambda u: dihedrals.Ramachandran(u.select_atoms("resid 9:40"))),
    "Janin": made_of(adk, lambda u: dihedrals.Janin(u.select_atoms("resid 9:30"))),
    "AtomicDistances": made_of(
        adk, lambda u: atomicdistances.AtomicDistances(u.atoms[:50], u.atoms[800:850])
    ),
    "BAT": made_of(adk, lambda u: bat.BAT(u.select_atoms("resid 1:5"))),
    "Contacts": made_of(adk, contacts_of),
    "DSSP": made_of(lambda: moving(protein(), 6), lambda u: dssp.DSSP(u.select_atoms("protein"))),
    "DensityAnalysis": made_of(
        adk, lambda u: density.DensityAnalysis(u.select_atoms("name CA"), delta=4.0, padding=6.0)
    ),
    "DistanceMatrix": made_of(
        adk, lambda u: diffusionmap.DistanceMatrix(u, select="name CA and resid 1:30")
    ),
    "GNMAnalysis": made_of(adk, lambda u: gnm.GNMAnalysis(u, select="name CA and resid 1:30")),
    "closeContactGNM": made_of(
        adk, lambda u: gnm.closeContactGNMAnalysis(u, select="protein and resid 1:8")
    ),
    "HydrogenBondAnalysis": hydrogen_bonds,
    "InterRDF": made_of(
        adk,
        lambda u: rdf.InterRDF(
            u.select_atoms("name OD1"), u.select_atoms("name NZ"), nbins=10, norm="none"
        ),
    ),
    "InterRDF_s": made_of(adk, sites),
    "LinearDensity": made_of(water, lambda u: lineardensity.LinearDensity(u.atoms, binsize=2)),
    "PersistenceLength": polymers,
    "NucPairDist": pairs(nucleicacids.WatsonCrickDist),
    "MinorPairDist": pairs(nucleicacids.MinorPairDist),
    "MajorPairDist": pairs(nucleicacids.MajorPairDist),
    "AnalysisFromFunction": made_of(
        adk, lambda u: AnalysisFromFunction(centre, u.trajectory, u.select_atoms("name CA"))
    ),
}


def same(a, b, where=""):
    if isinstance(a, dict):
        assert set(a) == set(b)
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for one, other in zip(a, b, strict=True):
            same(one, other, where)
    elif isinstance(a, density.Density):
        np.testing.assert_array_equal(a.grid, b.grid)
    else:
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=where)


NEWLY_SPLIT = {"AtomicDistances", "DistanceMatrix"}
"""MDAnalysis before 2.11 runs them in one piece."""


@pytest.mark.parametrize("name", [name for name in ANALYSES if MDA_2_11 or name not in NEWLY_SPLIT])
def test_equals_multiprocessing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (universe, ours), (_, theirs) = ANALYSES[name](), ANALYSES[name]()
        assert isinstance(ours, AnalysisBase)
        assert type(ours)._analysis_algorithm_is_parallelizable
        n_frames = len(universe.trajectory)
        frames = {"stop": min(n_frames, 12), "step": 2 if n_frames > 8 else 1, "n_parts": 3}
        want = theirs.run(backend="multiprocessing", n_workers=1, **frames)
        backend = ExecutorBackend(Serial())
        got = ours.run(backend=backend, unsupported_backend=True, **frames)
    assert len(got.frames) >= 5
    assert np.array_equal(got.frames, want.frames)
    assert np.array_equal(got.times, want.times)
    same(dict(got.results), dict(want.results))
