"""References: fsspec and zarr-python read through them what MDAnalysis reads of the file."""

import json
import os
import shutil

import fsspec
import MDAnalysis as mda
import numpy as np
import pytest
import zarr
from MDAnalysisTests.datafiles import DCD, PSF, XTC
from zarr.storage import FsspecStore

import mdio
from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError, MdioError, PlanError, SourceError
from mdio.layouts.codecs.numcodecs_plugin import XTCFrame
from mdio.layouts.refs import RefsLayout
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

SOURCES = ("xtc", "trr", "dcd", "ncdf")


@pytest.fixture(scope="module")
def folder(adk, tmp_path_factory):
    """A trajectory in all formats that can be pointed into, and references to each.

    Programs take the path in a reference as it is: what a URL would escape has to stay.
    """
    where = tmp_path_factory.mktemp("refs") / "my data #1"
    where.mkdir()
    for name in SOURCES:
        shutil.copy(adk[name], where / f"adk.{name}")
    mdio.convert(
        adk["dcd"], where / "chunked.h5md", storage=mdio.Storage(chunk_frames=10, chunk_atoms=1000)
    )
    mdio.convert(adk["dcd"], where / "contiguous.h5md", storage=mdio.Storage(contiguous=True))
    mdio.convert(
        adk["dcd"], where / "dcd.segments", storage=mdio.Storage(segments=3, container="dcd")
    )
    mdio.convert(adk["xtc"], where / "xtc.segments", storage=mdio.Storage(segments=3))
    for path in list(where.iterdir()):
        if not path.name.startswith("."):
            mdio.convert(path, where / f"{path.name}.refs")
    return where


def group_of(path):
    system = fsspec.filesystem("reference", fo=str(path), remote_protocol="file")
    return zarr.open_group(FsspecStore.from_mapper(system.get_mapper("")), mode="r")


def angstroms(array):
    return array[:] * (10 if array.attrs["units"] == "nm" else 1)


class TestReading(LayoutReadingTests):
    @pytest.fixture(params=["adk.dcd", "adk.xtc", "dcd.segments"])
    def case(self, request, folder, adk):
        source = adk["xtc" if "xtc" in request.param else "dcd"]
        path = folder / f"{request.param}.refs"
        return ReadingCase(RefsLayout, path, oracle_from_mdanalysis(adk["psf"], source))


class TestOthersReadIt:
    @pytest.mark.parametrize(
        "name",
        [
            *(f"adk.{one}" for one in SOURCES),
            "chunked.h5md",
            "contiguous.h5md",
            "dcd.segments",
            "xtc.segments",
        ],
    )
    def test_zarr_python_reads_what_mdanalysis_reads(self, folder, adk, name):
        kind = name.split(".")[1] if name.startswith("adk") else name.split(".")[0]
        universe = mda.Universe(str(adk["psf"]), str(adk.get(kind, adk["dcd"])))
        right = np.array([ts.positions.copy() for ts in universe.trajectory])
        group = group_of(folder / f"{name}.refs")
        assert np.abs(angstroms(group["position"]) - right).max() < 1e-5
        times = [ts.time for ts in universe.trajectory]
        np.testing.assert_allclose(group["time"][:], times, rtol=1e-6)
        with mdio.open(folder / name) as source:
            block = source.read(0, 98)
        assert (group["box"][:] == block.box).all()
        assert (group["step"][:] == block.step).all()

    def test_xarray_reads_it_lazily(self, folder):
        import xarray

        system = fsspec.filesystem("reference", fo=str(folder / "adk.xtc.refs"))
        how = {"engine": "zarr", "consolidated": False, "zarr_format": 2, "chunks": {}}
        found = xarray.open_dataset(system.get_mapper(""), **how)
        assert found.position.dims == ("frame", "atom", "xyz")
        with mdio.open(folder / "adk.xtc") as source:
            right = source.read(40, 50).positions.mean(axis=0)
        np.testing.assert_allclose(found.position[40:50].mean("frame").values, right, rtol=1e-4)

    def test_no_frame_is_copied(self, folder):
        nbytes = (folder / "adk.xtc").stat().st_size
        assert (folder / "adk.xtc.refs").stat().st_size < nbytes / 20

    def test_what_is_said_of_its_size_is_about_true(self, folder, tmp_path, adk):
        done = mdio.convert(adk["xtc"], tmp_path / "a.refs")
        assert 0.5 < done.nbytes_out / (tmp_path / "a.refs").stat().st_size < 2

    def test_some_frames(self, folder, tmp_path, adk):
        for source in ("adk.dcd", "dcd.segments"):
            mdio.convert(folder / source, tmp_path / "some.refs", start=20, step=7, force=True)
            universe = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
            right = np.array([ts.positions.copy() for ts in universe.trajectory[20::7]])
            assert (group_of(tmp_path / "some.refs")["position"][:] == right).all()
            with mdio.open(tmp_path / "some.refs") as found:
                assert (found.read(0, len(right)).positions == right).all()


class TestUses:
    def test_verify_info_and_analysis(self, folder, adk, capsys):
        refs = str(folder / "dcd.segments.refs")
        assert mdio.verify(refs).ok
        assert mdio.verify(refs, against=adk["dcd"]).ok
        assert main(["info", refs, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["layout"] == "refs"
        here, there = (
            mdio.analyze(str(path), kernel="rgyr", top=str(adk["psf"])).values
            for path in (adk["dcd"], refs)
        )
        np.testing.assert_allclose(there, here)

    def test_damage_of_the_source_is_found(self, folder, tmp_path, adk):
        shutil.copytree(folder / "dcd.segments", tmp_path / "d.segments")
        mdio.convert(tmp_path / "d.segments", tmp_path / "d.refs")
        (one,) = tmp_path.glob("d.segments/*/seg-000001.dcd")
        data = bytearray(one.read_bytes())
        data[len(data) // 2] ^= 1
        one.write_bytes(data)
        assert not mdio.verify(tmp_path / "d.refs").ok


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"select": "name CA"}, "leave out --select"),
            ({"precision": 0.01}, "--precision cannot be combined with references"),
            ({"groups": {"ca": "name CA"}}, "--group cannot be combined with references"),
            ({"compression": "zstd"}, "--compression cannot be combined with references"),
        ],
    )
    def test_what_changes_frames(self, tmp_path, options, what):
        with pytest.raises(PlanError, match=what):
            mdio.convert(DCD, tmp_path / "a.refs", top=PSF, **options)

    def test_what_lies_in_ways_of_its_own(self, tmp_path, adk):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr")
        mdio.convert(adk["dcd"], tmp_path / "a.h5md", compression="gzip")
        for name in ("a.zarr", "a.h5md"):
            with pytest.raises(PlanError, match=rf"{name}: its positions are stored in a way"):
                mdio.convert(tmp_path / name, tmp_path / "a.refs")

    def test_parts_of_chunks_and_several_files(self, folder, tmp_path, adk):
        with pytest.raises(PlanError, match="chunks of 10"):
            mdio.convert(folder / "chunked.h5md", tmp_path / "a.refs", start=5)
        with pytest.raises(PlanError, match="references are to one trajectory"):
            mdio.convert([adk["dcd"], adk["dcd"]], tmp_path / "a.refs", overlap="keep-all")

    def test_a_source_that_changed_or_is_gone(self, tmp_path):
        source = tmp_path / "md.xtc"
        shutil.copy(XTC, source)
        mdio.convert(source, tmp_path / "md.refs")
        with source.open("r+b") as file:
            os.truncate(file.fileno(), source.stat().st_size - 4000)
        with pytest.raises(SourceError, match=r"md\.xtc, which has changed \(its size"):
            mdio.open(tmp_path / "md.refs").info  # noqa: B018
        source.unlink()
        with pytest.raises(SourceError, match=r"md\.xtc"):
            mdio.open(tmp_path / "md.refs").info  # noqa: B018

    def test_bytes_that_are_no_references(self, folder, tmp_path):
        data = (folder / "adk.dcd.refs").read_bytes()
        text = data.decode()
        for number, bad in enumerate(
            [
                data[:1000],
                b"{}",
                b'{"version":1,"refs":{}}',
                text.replace('"n_frames":98', '"n_frames":97', 1).encode(),
                b"[" * 100000,
                text.replace('"mdio":{', '"mdio":[{', 1).encode(),
            ]
        ):
            path = tmp_path / f"{number}.refs"
            path.write_bytes(bad)
            with pytest.raises(MdioError, match=path.name):
                mdio.open(path).info  # noqa: B018

    def test_a_frame_that_is_none(self):
        with pytest.raises(ValueError, match="frame"):
            XTCFrame().decode(b"\0" * 200)
        with mdio.open(XTC) as source:
            begin, end = source.index.offsets[:2]
        with open(XTC, "rb") as file:
            data = file.read(int(end))[int(begin) :]
        with pytest.raises(ValueError, match="bytes in a chunk of"):
            XTCFrame().decode(data[:-4])

    def test_others_references_are_told(self, tmp_path):
        (tmp_path / "a.refs").write_text('{"version": 1, "refs": {".zgroup": "{}"}}')
        with pytest.raises(CorruptLayoutError, match="not one of mdio"):
            mdio.open(tmp_path / "a.refs").info  # noqa: B018
