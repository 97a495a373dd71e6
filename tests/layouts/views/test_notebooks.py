"""Layouts as datasets of xarray, and in notebooks."""

import pickle
import sys
from io import StringIO
from pathlib import Path

import dask
import dask.array as da
import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.util import NamedStream
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TRR, XTC
from suites.zarr_cases import make_block, write_tree

import mdio
from mdio.core.errors import MissingExtraError
from mdio.core.files.reading import reads
from mdio.layouts.views import notebooks
from mdio.layouts.views.notebooks import FieldArray, LayoutPerThread


@pytest.fixture(scope="module")
def adk_zarr(tmp_path_factory, adk):
    out = tmp_path_factory.mktemp("xarray") / "adk.zarr"
    mdio.convert(adk["dcd"], out, top=PSF, storage=mdio.Storage(chunk_frames=5, chunk_atoms=500))
    return out


@pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")
def test_a_dataset_is_what_mdanalysis_reads(adk_zarr):
    dataset = mdio.open(adk_zarr).to_xarray()
    universe = mda.Universe(PSF, DCD)
    want = np.array([ts.positions for ts in universe.trajectory])
    assert isinstance(dataset.positions.data, da.Array)
    assert dict(dataset.sizes) == {"frame": 98, "atom": 3341, "axis": 3}
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            assert np.array_equal(dataset.positions.values, want)
    np.testing.assert_allclose(dataset.time, [ts.time for ts in universe.trajectory], rtol=1e-6)
    ca = dataset.isel(atom=dataset.name == "CA")
    chosen = universe.select_atoms("name CA").indices
    assert np.array_equal(ca.positions.isel(frame=slice(3, 90, 7)), want[3:90:7][:, chosen])
    assert dataset.resid.values.tolist() == universe.atoms.resids.tolist()
    assert dataset.positions.attrs["units"] == "angstrom"


def test_velocities_forces_and_cells(tmp_path):
    dataset = mdio.open(TRR).to_xarray()
    universe = mda.Universe(GRO, TRR)
    universe.trajectory[4]
    assert np.array_equal(dataset.velocities[4], universe.atoms.velocities)
    np.testing.assert_allclose(dataset.box[4], universe.dimensions, rtol=1e-6)
    assert "forces" not in dataset
    assert dataset.edge.values.tolist()[:3] == ["a", "b", "c"]


def test_cells_of_later_frames_are_there(tmp_path):
    block = make_block(4, 3)
    block.box[0] = 0
    write_tree(tmp_path / "a.zarr", block)
    dataset = mdio.open(tmp_path / "a.zarr").to_xarray()
    assert np.array_equal(dataset.box, block.box) and dataset.box[1].any()


def test_only_what_is_picked_is_read(adk_zarr):
    with mdio.open(adk_zarr, verify=False) as layout:
        positions = layout.to_xarray().positions
        before = reads.nbytes_source
        some = positions.isel(frame=slice(10, 15), atom=slice(0, 100)).compute(scheduler="sync")
        assert some.shape == (5, 100, 3)
        assert 0 < reads.nbytes_source - before < 98 * 3341


@pytest.mark.parametrize(
    "key",
    [
        3,
        -1,
        slice(2, 40, 9),
        (slice(None), 7),
        (5, slice(2, 9), 1),
        (slice(4, 4),),
        slice(9, 2, -2),
    ],
)
def test_parts_are_those_of_an_array(adk_zarr, key):
    layout = mdio.open(adk_zarr)
    whole = layout.read(0, 98).positions
    array = FieldArray(LayoutPerThread(layout), "positions")
    assert np.array_equal(array[key], whole[key])
    assert np.array_equal(pickle.loads(pickle.dumps(array))[key], whole[key])


@pytest.fixture(scope="module")
def every_layout(tmp_path_factory, adk):
    folder = tmp_path_factory.mktemp("lazy")
    made = {
        "few.zarr": {"storage": mdio.Storage(chunk_frames=5)},
        "wide.zarr": {"storage": mdio.Storage(pattern="timeseries")},
        "a.h5md": {},
        "gzip.h5md": {"compression": "gzip"},
        "a.segments": {"storage": mdio.Storage(segments=2)},
        "a.refs": {},
    }
    for name, options in made.items():
        mdio.convert(adk["xtc"], folder / name, top=adk["psf"], **options)
    return [*(folder / name for name in made), *(adk[name] for name in ("xtc", "trr", "ncdf"))]


@pytest.mark.parametrize("number", range(9))
def test_every_layout_is_read_by_chunks_in_many_threads(every_layout, number, monkeypatch):
    """A layout by itself is for one thread; dask reads in as many as there are cores."""
    path = every_layout[number]
    monkeypatch.setattr(notebooks, "CHUNK_NBYTES", 3 * 12 * 3341)
    with mdio.open(path) as layout:
        want = layout.read(0, 98).positions
        unit = layout.info.chunk_frames or 1
        width = layout.info.chunk_atoms or 3341
        array = layout.to_xarray().positions
    frames, atoms, _ = array.chunks
    assert max(frames) <= max(3, unit)
    assert max(frames) * max(atoms) * 12 <= max(3 * 12 * 3341, unit * min(width, 3341) * 12)
    with dask.config.set(scheduler="threads", num_workers=8):
        for _ in range(3):
            assert np.array_equal(array.values, want)


def test_notebooks_show_what_is_in_it(tmp_path):
    (tmp_path / "a<b>.dcd").write_bytes(Path(DCD).read_bytes())
    shown = mdio.open(tmp_path / "a<b>.dcd")._repr_html_()
    assert (
        "a&lt;b&gt;.dcd" in shown
        and "<td>3,341</td>" in shown
        and "<td>1 to 98 ps, every 1 ps<" in shown
    )
    shown = mdio.open(XTC)._repr_html_()
    assert (
        "<td>80.02 x 80.02 x 80.02 angstrom, angles 60, 60, 90</td>" in shown
        and "note" not in shown
    )
    (tmp_path / "cut.xtc").write_bytes(Path(XTC).read_bytes()[:-100])
    assert "<th>note</th><td>" in (shown := mdio.open(tmp_path / "cut.xtc")._repr_html_())
    assert "ends within frame 9" in shown


def test_prompts_show_it_once_it_is_open():
    layout = mdio.open(DCD)
    assert repr(layout) == f"DCDLayout({DCD!r})"
    with layout:
        _ = layout.info
        frames = "98 frames of 3,341 atoms, 1 to 98 ps, every 1 ps"
        assert repr(layout) == f"<DCDLayout {DCD!r}: {frames}>"
    with mdio.open([DCD, DCD, DCD], overlap="keep-all") as chain:
        assert chain.info.n_frames == 294
        assert repr(chain).startswith(f"<ChainLayout {DCD!r} and 2 more: 294 frames")


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match="needs xarray and dask: pip install"):
        mdio.open(DCD).to_xarray()


def test_nglview_finds_what_it_asks_for(adk_zarr):
    """The calls of its ``MDAnalysisTrajectory``: frames by number, and a structure as PDB."""
    atoms = mda.Universe(PSF, str(adk_zarr)).select_atoms("name CA")
    want = mda.Universe(PSF, DCD).select_atoms("name CA")
    assert atoms.universe.trajectory.n_frames == 98
    for index in (97, 0, 41):
        atoms.universe.trajectory[index]
        want.universe.trajectory[index]
        assert np.array_equal(atoms.atoms.positions, want.positions)
    atoms.universe.trajectory[0]
    text = StringIO()
    with mda.Writer(NamedStream(text, "tmp.pdb"), atoms.n_atoms, multiframe=False) as writer:
        writer.write(atoms)
    assert text.getvalue().count("ATOM  ") == 214
