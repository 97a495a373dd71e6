"""Virtual Zarr arrays: zarr-python, xarray, Icechunk and fsspec read what mdio reads."""

import os
import shutil
import sys

import fsspec
import icechunk
import MDAnalysis as mda
import numpy as np
import pytest
import xarray
import zarr
from MDAnalysisTests.datafiles import DCD, XTC
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from suites.native_files import write_dcd
from virtualizarr import open_virtual_dataset

import mdio
from mdio.core.errors import MissingExtraError, PlanError, SourceError
from mdio.layouts.refs import position_tables

SOURCES = ("md.xtc", "adk.xtc", "adk.trr", "adk.dcd", "adk.ncdf", "xtc.segments", "trr.segments")
SOURCES += ("chunked.h5md",)


@pytest.fixture(scope="module")
def folder(adk, tmp_path_factory):
    """A trajectory in all formats that can be pointed into; paths with spaces have to work."""
    where = tmp_path_factory.mktemp("virtual") / "my data"
    where.mkdir()
    shutil.copy(XTC, where / "md.xtc")
    for name in ("xtc", "trr", "dcd", "ncdf"):
        shutil.copy(adk[name], where / f"adk.{name}")
    for name in ("xtc", "trr"):
        mdio.split(adk[name], where / f"{name}.segments", 3)
    storage = mdio.Storage(chunk_frames=10, chunk_atoms=1000)
    mdio.convert(adk["dcd"], where / "chunked.h5md", storage=storage)
    return where


def opened(path, **options):
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return open_virtual_dataset(str(path), registry, mdio.virtual_parser, **options)


def stored_in_icechunk(dataset, folder, out):
    """Return a store of Icechunk with the references in it, written and opened anew."""
    place = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    files = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place, files))
    access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # None: before 2
    allowed = icechunk.containers_credentials({place: access})
    storage = icechunk.local_filesystem_storage(str(out))
    repository = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=allowed)
    session = repository.writable_session("main")
    dataset.vz.to_icechunk(session.store)
    session.commit("references")
    again = icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)
    return again.readonly_session("main").store


def assert_same(found, source):
    """Compare a mapping of arrays with what is read of the source, bit for bit."""
    with mdio.open(source) as layout:
        block, has_box = layout.read(0, layout.info.n_frames), layout.info.has_box
    units = {"angstrom": 1, "nm": 10}[dict(found["positions"].attrs)["units"]]
    positions = np.asarray(found["positions"][:]).astype(np.float32)
    assert (positions * np.float32(units)).tobytes() == block.positions.tobytes()
    assert (np.asarray(found["time"][:]) == block.time).all()
    assert (np.asarray(found["step"][:]) == block.step).all()
    assert ("box" in found) == has_box
    assert not has_box or (np.asarray(found["box"][:]) == block.box).all()


@pytest.mark.parametrize("name", SOURCES)
def test_icechunk_zarr_and_xarray_read_it(folder, tmp_path, name):
    store = stored_in_icechunk(opened(folder / name), folder, tmp_path / "repository")
    assert_same(zarr.open_group(store, mode="r"), folder / name)
    found = xarray.open_zarr(store, consolidated=False)
    assert found.positions.dims == ("frame", "atom", "axis")
    assert {"time", "step"} <= set(found.coords)
    assert_same(found, folder / name)


@pytest.mark.parametrize("name", SOURCES)
def test_kerchunk_takes_it(folder, tmp_path, name):
    out = str(tmp_path / "references.json")
    opened(folder / name).vz.to_kerchunk(out, format="json")
    system = fsspec.filesystem("reference", fo=out, remote_protocol="file")
    options = {"engine": "zarr", "consolidated": False, "zarr_format": 2}
    assert_same(xarray.open_dataset(system.get_mapper(""), **options), folder / name)


@pytest.mark.parametrize("name", SOURCES)
def test_zarr_reads_positions_without_a_repository(folder, name):
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    store = mdio.virtual_parser((folder / name).as_uri(), registry)
    frames = zarr.open_group(store, mode="r")["positions"]
    with mdio.open(folder / name) as layout:
        right = layout.read(3, 5).positions
    assert (frames[3:5] * np.float32(10 if frames.attrs["units"] == "nm" else 1) == right).all()


def test_an_xtc_is_what_mdanalysis_reads(folder, tmp_path, adk):
    store = stored_in_icechunk(opened(folder / "adk.xtc"), folder, tmp_path / "repository")
    found = xarray.open_zarr(store, consolidated=False)
    universe = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    for ts in universe.trajectory[::10]:
        assert (found.positions[ts.frame].values == ts.positions).all()
        assert found.time[ts.frame] == ts.time


def test_boxes_that_the_first_frame_lacks(tmp_path):
    with mdio.Writer(tmp_path / "a.trr", 20) as writer:
        for box in ([0] * 6, [30, 31, 32, 90, 90, 90]):
            writer.write_block(np.ones((1, 20, 3)), box=box)
    found = opened(tmp_path / "a.trr")
    assert found.box.values.tolist() == [[0] * 6, [30, 31, 32, 90, 90, 90]]


def test_trajectories_are_joined_without_reading_them(folder, tmp_path, adk):
    mdio.convert(adk["xtc"], folder / "more.xtc", start=90)
    parts = [opened(folder / name) for name in ("adk.xtc", "more.xtc")]
    joined = xarray.concat(parts, "frame", coords="minimal", compat="override")
    store = stored_in_icechunk(joined, folder, tmp_path / "repository")
    found = xarray.open_zarr(store, consolidated=False)
    assert found.sizes["frame"] == 98 + 8
    assert (found.positions[98:].values == found.positions[90:98].values).all()


@pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")
class TestRefusals:
    def test_what_lies_in_ways_of_its_own(self, folder, tmp_path, adk):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr")
        mdio.convert(adk["dcd"], tmp_path / "a.h5md", compression="gzip")
        for name in ("a.zarr", "a.h5md"):
            with pytest.raises(PlanError, match=rf"{name}: its positions are stored in a way"):
                opened(tmp_path / name)

    def test_fixed_atoms(self, tmp_path):
        positions = np.zeros((3, 5, 3), np.float32)
        write_dcd(tmp_path / "fixed.dcd", positions, fixed=[1, 2])
        with pytest.raises(PlanError, match=r"fixed\.dcd: its positions .* fixed atoms"):
            opened(tmp_path / "fixed.dcd")

    def test_files_that_are_not_one_array(self, folder):
        class Mixed:
            def file_layouts(self):
                return map(mdio.open, (folder / "adk.trr", folder / "adk.xtc"))

        with pytest.raises(
            PlanError, match=r"adk\.xtc: its positions are stored in another way than those"
        ):
            position_tables(Mixed())

    def test_paths_that_virtualizarr_cuts(self, folder, tmp_path):
        path = tmp_path / "run #2" / "md.xtc"
        path.parent.mkdir()
        path.symlink_to(folder / "md.xtc")
        with pytest.raises(PlanError, match=r"md\.xtc: VirtualiZarr takes # and \? for the end"):
            opened(path)

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(SourceError, match=r"none\.xtc"):
            opened(tmp_path / "none.xtc")

    def test_without_virtualizarr(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "virtualizarr.manifests", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'mdio-layouts\[virtual\]'"):
            mdio.virtual_parser(DCD, None)

    def test_frames_are_not_written(self, folder):
        registry = ObjectStoreRegistry({"file://": LocalStore()})
        store = mdio.virtual_parser((folder / "adk.xtc").as_uri(), registry)
        with pytest.raises(ValueError, match="read-only"):
            zarr.open_group(store, mode="r+")["positions"][0] = 0

    def test_damage_is_an_error(self, folder, tmp_path):
        data = bytearray((folder / "adk.xtc").read_bytes())
        source = tmp_path / "bad.xtc"
        source.write_bytes(data)
        dataset = opened(source)
        store = stored_in_icechunk(dataset, tmp_path, tmp_path / "repository")
        with mdio.open(source) as layout:
            begin = int(layout.index.offsets[5])
        data[begin : begin + 4] = b"\0\0\0\0"
        then = source.stat().st_mtime_ns  # Icechunk refuses files that were changed later
        source.write_bytes(data)
        os.utime(source, ns=(then, then))
        with pytest.raises(ValueError, match="frame"):
            xarray.open_zarr(store, consolidated=False).positions[5].values  # noqa: B018
