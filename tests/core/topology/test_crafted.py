"""Topologies that were changed: each number is looked at, and parents without children are kept."""

import json
import zlib

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError
from mdio.core.topology import MAGIC, Texts, Topology
from mdio.layouts.foreign.universe import topology_of, universe_of

N = 50


def universe_with(n_segments=2, n_residues=N):
    parents = np.arange(n_residues) % min(2, n_segments)
    universe = mda.Universe.empty(
        N,
        n_residues=n_residues,
        n_segments=n_segments,
        atom_resindex=np.arange(N),
        residue_segindex=parents,
        trajectory=True,
    )
    universe.add_TopologyAttr("names", ["CA" if i % 5 == 0 else "C" for i in range(N)])
    universe.add_TopologyAttr("masses", np.ones(N))
    universe.add_TopologyAttr("resids", np.arange(n_residues) + 1)
    universe.add_TopologyAttr("resnames", ["ALA"] * n_residues)
    universe.add_TopologyAttr("segids", [f"S{i}" for i in range(n_segments)])
    universe.add_TopologyAttr("bonds", [(0, 1), (3, 4)])
    universe.load_new(np.random.default_rng(1).uniform(0, 20, (3, N, 3)).astype("f4"), order="fac")
    return universe


def crafted(change, n_atoms=N):
    """Return the bytes of a topology, after a change of its columns."""
    columns = {
        name: [np.array(column.codes, "<i4"), list(column.table)]
        if isinstance(column, Texts)
        else [np.array(column, "<f8" if column.dtype.kind == "f" else "<i4"), None]
        for name, column in topology_of(universe_with()).columns.items()
    }
    change(columns)
    rows = [
        {"name": name, "dtype": values.dtype.str.replace("|", "<"), "shape": values.shape}
        | ({} if table is None else {"table": table})
        for name, (values, table) in columns.items()
    ]
    head = json.dumps({"n_atoms": n_atoms, "classes": {}, "columns": rows}).encode()
    flat = b"".join(np.ascontiguousarray(values).tobytes() for values, _ in columns.values())
    return MAGIC + np.uint32(len(head)).tobytes() + head + zlib.compress(flat)


def put(name, value, at=0):
    def change(columns):
        values = columns[name][0]
        values[(at,) * values.ndim] = value

    return change


CHANGES = [
    *[put(name, -1) for name in ("names", "resindices", "segindices", "bonds", "segids")],
    *[put(name, 1000) for name in ("names", "resindices", "segindices", "bonds", "resnames")],
    put("names", -1000),
    lambda columns: columns.update(names=[columns["names"][0], None]),
    lambda columns: columns.update(segids=[columns["segids"][0], None]),
    lambda columns: columns.update(resindices=[np.zeros(N, "<u1"), ["0"]]),
    lambda columns: columns.update(masses=[np.zeros(N, "<u1"), ["heavy"]]),
    lambda columns: columns.update(resids=[np.zeros(N, "<u1"), ["one"]]),
    lambda columns: columns.update(bonds=[np.zeros((2, 2), "<f8"), None]),
    lambda columns: columns.update(resindices=[np.zeros(N, "<f8"), None]),
    lambda columns: columns.update(resindices=[np.zeros((N, 1), "<i4"), None]),
    lambda columns: columns.update(bonds=[np.zeros((2, 3), "<i4"), None]),
]


def test_what_was_not_changed_is_read():
    assert Topology.from_bytes(crafted(lambda _: None), "x").n_atoms == N


@pytest.mark.parametrize("change", CHANGES)
def test_every_number_is_looked_at(change):
    with pytest.raises(CorruptLayoutError, match="its topology cannot be read"):
        Topology.from_bytes(crafted(change), "x")


@pytest.mark.parametrize("n_atoms", [-50, 51, "50", 50.0, None])
def test_the_number_of_atoms(n_atoms):
    with pytest.raises(CorruptLayoutError, match="its topology cannot be read"):
        Topology.from_bytes(crafted(lambda _: None, n_atoms), "x")


@pytest.mark.parametrize(
    ("n_segments", "n_residues"), [(2, N), (3, N), (7, N), (2, N + 3), (5, N + 9)]
)
def test_parents_without_children(tmp_path, monkeypatch, n_segments, n_residues):
    source = universe_with(n_segments, n_residues)
    wide = topology_of(source)
    path, top = tmp_path / "md.dcd", tmp_path / "md.gro"
    source.atoms.write(path, frames="all")
    source.atoms.write(top)
    for suffix in ("zarr", "h5md"):
        out, part = tmp_path / f"md.{suffix}", tmp_path / f"part.{suffix}"
        with monkeypatch.context() as patch:
            data = wide.to_bytes()
            patch.setattr(Topology, "to_bytes", lambda _, data=data: data)
            mdio.convert(path, out, top=top)
        universe = mda.Universe(str(out))
        assert len(universe.segments) == n_segments and len(universe.residues) == n_residues
        assert universe.atoms.segids.tolist() == source.atoms.segids.tolist()
        assert universe.atoms.resids.tolist() == source.atoms.resids.tolist()
        assert main(["analyze", "rgyr", str(out), "-q", "-o", f"{out}.csv"]) == 0
        assert main(["convert", str(out), str(part), "--select", "name CA", "-q"]) == 0
        picked, expected = mda.Universe(str(part)).atoms, source.select_atoms("name CA")
        assert picked.resids.tolist() == expected.resids.tolist()
        assert picked.segids.tolist() == expected.segids.tolist()


def test_no_atoms_of_a_universe_with_segments():
    universe = universe_with(4)
    assert len(universe_of(topology_of(universe, np.array([1, 2]))).segments) == 2
