"""Trajectories read where they lie are those that MDAnalysis reads on a disk."""

import json
import os
import pickle
import shutil
import time

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import MdioError, PlanError, SourceError
from mdio.core.files.remote import objects
from mdio.core.files.store import to_path
from mdio.parallel.executors import Processes

FORMATS = ("xtc", "trr", "dcd", "ncdf", "zarr", "quantised.zarr", "h5md", "segments")


@pytest.fixture(scope="session")
def frames(adk):
    """Positions by MDAnalysis, by the file that each output was made of."""
    found = {}
    for name in ("xtc", "trr", "dcd", "ncdf"):
        universe = mda.Universe(str(adk["psf"]), str(adk[name]))
        found[name] = np.array([ts.positions.copy() for ts in universe.trajectory])
    return found


def expected(frames, name):
    return frames[name if name in frames else "dcd"]


class TestEveryFormat:
    @pytest.mark.parametrize("name", FORMATS)
    def test_gives_what_mdanalysis_gives(self, web, frames, name):
        with mdio.open(f"{web.url}/adk.{name}") as layout:
            bound = 0.0051 if name.startswith("quantised") else 0
            assert layout.info.n_frames == 98
            whole = layout.read(0, 98).positions
            assert np.abs(whole - expected(frames, name)).max() <= bound
            assert (layout.read(41, 42, [5, 3, 3000]).positions == whole[41:42, [5, 3, 3000]]).all()

    @pytest.mark.parametrize("name", FORMATS)
    def test_is_the_same_in_s3(self, bucket, frames, name):
        with mdio.open(f"{bucket}/adk.{name}") as layout:
            bound = 0.0051 if name.startswith("quantised") else 0
            assert np.abs(layout.read(0, 98).positions - expected(frames, name)).max() <= bound

    @pytest.mark.parametrize("name", ["zarr", "h5md", "segments"])
    def test_is_verified(self, web, name):
        assert mdio.verify(f"{web.url}/adk.{name}").ok


class TestUses:
    def test_analysis_with_workers_that_are_not_forked(self, web, served, adk):
        options = {"kernel": "rgyr", "top": str(adk["psf"])}
        here = mdio.analyze(str(served / "adk.zarr"), **options)
        mdio.open(f"{web.url}/adk.zarr").read(0, 3)
        with Processes(2) as executor:
            there = mdio.analyze(f"{web.url}/adk.zarr", executor=executor, **options)
        np.testing.assert_allclose(there.values, here.values, rtol=1e-6)

    def test_an_ensemble_names_its_trajectories(self, web, served, adk):
        mdio.convert_ensemble({"one": adk["dcd"], "two": adk["dcd"]}, served / "all.zarr", stop=2)
        try:
            advice = "an ensemble of 2 .* on disk only; open one of them, such as .*/all.zarr/one"
            with pytest.raises(PlanError, match=advice):
                _ = mdio.open(f"{web.url}/all.zarr").info
            assert mdio.open(f"{web.url}/all.zarr/one").info.n_frames == 2
        finally:
            shutil.rmtree(served / "all.zarr")

    def test_conversion_from_a_store(self, web, adk, tmp_path, frames):
        mdio.convert(f"{web.url}/adk.xtc", tmp_path / "here.zarr", top=adk["psf"])
        with mdio.open(tmp_path / "here.zarr") as made:
            assert np.abs(made.read(0, 98).positions - frames["xtc"]).max() < 1e-3
            assert made.info.source["path"] == f"{web.url}/adk.xtc"

    @pytest.mark.parametrize("name", ["xtc", "trr", "dcd", "ncdf"])
    def test_splitting_copies_bytes(self, bucket, adk, tmp_path, name):
        here, there = tmp_path / "here.segments", tmp_path / "there.segments"
        mdio.split(adk[name], here, 3)
        assert mdio.split(f"{bucket}/adk.{name}", there, 3).copied
        names = sorted(path.relative_to(here) for path in here.rglob(f"seg-*.{name}"))
        assert len(names) == 3
        for one in names:
            assert (there / one).read_bytes() == (here / one).read_bytes()

    @pytest.mark.parametrize("name", ["adk.zarr", "adk.dcd"])
    def test_universe(self, web, adk, frames, name):
        universe = mda.Universe(str(adk["psf"]), f"{web.url}/{name}")
        assert len(universe.trajectory) == 98
        assert (universe.trajectory[60].positions == frames["dcd"][60]).all()

    @pytest.mark.parametrize("name", ["none.zarr", "none.xtc", "none.trr"])
    def test_universe_of_what_is_not_there(self, web, adk, name):
        with pytest.raises(SourceError, match=f"{name}: no such object"):
            mda.Universe(str(adk["psf"]), f"{web.url}/{name}")

    def test_command_line(self, web, capsys):
        assert main(["info", f"{web.url}/adk.zarr"]) == 0
        assert "98" in capsys.readouterr().out
        assert main(["verify", f"{web.url}/adk.h5md"]) == 0

    def test_index_beside_an_object(self, web, served, monkeypatch, tmp_path):
        monkeypatch.setenv("MDIO_CACHE_DIR", str(tmp_path))
        mdio.open(served / "adk.xtc").info.n_frames  # noqa: B018
        assert (served / ".adk.xtc.mdio-index").exists()
        with mdio.open(f"{web.url}/adk.xtc") as layout:
            assert layout.info.n_frames == 98
        assert web.sent_nbytes() < (served / "adk.xtc").stat().st_size / 10
        assert not list(tmp_path.iterdir())


class TestBudgets:
    def test_opening_a_tree_reads_no_shard(self, web):
        with mdio.open(f"{web.url}/adk.zarr") as layout:
            assert layout.info.n_frames == 98
        assert [name for _, name, _ in web.log] == ["/adk.zarr/zarr.json"]

    def test_opening_segments_looks_for_nothing_else(self, web):
        with mdio.open(f"{web.url}/adk.segments") as layout:
            assert layout.info.n_frames == 98
        assert not [name for _, name, _ in web.log if name.endswith((".zgroup", "zarr.json"))]
        assert len(web.log) <= 4

    def test_opening_an_xtc_with_its_index(self, web, served):
        mdio.open(served / "adk.xtc").info.n_frames  # noqa: B018
        with mdio.open(f"{web.url}/adk.xtc") as layout:
            assert layout.info.n_frames == 98
        assert len(web.log) == 3  # its head; the index and its end

    def test_opening_a_trr_asks_for_many_headers_at_once(self, web, served, monkeypatch, tmp_path):
        monkeypatch.setenv("MDIO_CACHE_DIR", str(tmp_path))
        (served / "new.trr").write_bytes((served / "adk.trr").read_bytes())
        with mdio.open(f"{web.url}/new.trr") as layout:
            assert layout.info.n_frames == 98
        assert len(web.log) <= 8

    @pytest.mark.parametrize("name", ["plain.h5md", "plain.zarr"])
    def test_no_byte_of_a_run_that_ends_in_a_chunk_comes_twice(self, web, served, adk, name):
        mdio.convert(
            adk["dcd"],
            served / name,
            storage=mdio.Storage(chunk_frames=26),
            compression="none",
            force=True,
        )
        with mdio.open(f"{web.url}/{name}") as layout:
            layout.read(0, 1)
            web.log.clear()
            layout.read(10, 80)
        assert web.sent_nbytes() < 1.1 * 12 * 70 * 3341

    def test_opening_h5md(self, web, monkeypatch):
        monkeypatch.setattr(objects, "REUSE_S", 1e6)
        with mdio.open(f"{web.url}/adk.h5md") as layout:
            assert layout.info.n_frames == 98
            assert len([one for one in web.log if one[2]]) == 2  # its head and its end
            web.log.clear()
            layout.read(61, 62)
        assert len(web.log) == 1

    def test_verifying_h5md(self, web):
        assert mdio.verify(f"{web.url}/adk.h5md").ok
        whole = [nbytes for *_, nbytes in web.log if nbytes > 12 * 3341 * 10]
        assert len(whole) <= 3  # its end; ten chunks and those of the group, together

    @pytest.mark.parametrize("name", ["xtc", "dcd", "ncdf"])
    def test_one_frame_of_a_native_file(self, web, name):
        with mdio.open(f"{web.url}/adk.{name}") as layout:
            _ = layout.info
            web.log.clear()
            layout.read(61, 62)
        assert len(web.log) <= 2

    def test_a_group_takes_its_own_bytes(self, web, adk):
        ca = mda.Universe(str(adk["psf"])).select_atoms("name CA").indices
        with mdio.open(f"{web.url}/adk.zarr") as layout:
            _ = layout.info
            web.log.clear()
            layout.read(0, 98, ca)
            of_group = web.sent_nbytes()
        with mdio.open(f"{web.url}/adk.zarr") as layout:
            _ = layout.info
            web.log.clear()
            layout.read(0, 98)
        assert of_group <= web.sent_nbytes() / 12


class TestRefusals:
    @pytest.mark.parametrize(
        "url", ["https://me:Secret1@host/a.xtc", "https://host/a.xtc?sig=Secret1", "s3:///a.xtc"]
    )
    def test_secrets_in_urls(self, url):
        with pytest.raises(PlanError, match="in the environment") as caught:
            mdio.open(url)
        assert "Secret1" not in str(caught.value)

    def test_what_is_not_read_remotely(self, web, served, tmp_path):
        (served / "a.xyz").write_text("1\n\nC 0 0 0\n")
        with pytest.raises(SourceError, match=r"a\.xyz: generic is not read from object stores"):
            mdio.open(f"{web.url}/a.xyz")
        with pytest.raises(PlanError, match="caches of nodes"):
            mdio.open(f"{web.url}/adk.zarr", cache=tmp_path)

    def test_nothing_there(self, web, bucket):
        for url in (web.url, bucket):
            with pytest.raises(SourceError, match=r"no/such\.xtc: no such object"):
                mdio.open(f"{url}/no/such.xtc")

    def test_a_change_while_it_is_open(self, web, served):
        (served / "new.dcd").write_bytes((served / "adk.dcd").read_bytes())
        with mdio.open(f"{web.url}/new.dcd") as layout:
            layout.read(50, 51)
            time.sleep(0.01)
            os.utime(served / "new.dcd")
            with pytest.raises(SourceError, match=r"new\.dcd.*replaced while it was open"):
                layout.read(60, 61)

    def test_no_secret_in_pickles_and_manifests(self, bucket, tmp_path):
        layout = mdio.open(f"{bucket}/adk.zarr")
        before = layout.read(3, 4).positions
        text = pickle.dumps(layout)
        made = tmp_path / "made.zarr"
        mdio.convert(f"{bucket}/adk.dcd", made)
        for found in (text, (made / "zarr.json").read_bytes(), repr(layout).encode()):
            assert b"TheSecretItself" not in found
            assert b"ThePublicName" not in found
        assert (pickle.loads(text).read(3, 4).positions == before).all()


N_FAULTS = int(os.environ.get("MDIO_TEST_N_FAULTS", "100"))


def test_faults_end_in_the_right_result_or_a_clear_error(web, served):
    """Drops, refusals, bodies that are cut, bytes that are wrong; some that no try mends."""
    here = {name: mdio.open(served / f"adk.{name}").read(0, 98) for name in ("zarr", "h5md")}
    seen = {"right": 0, "error": 0}
    while web.n_faults < N_FAULTS:
        for name, right in here.items():
            web.faults = web.random.choice([0.05, 0.2])
            try:
                with mdio.open(f"{web.url}/adk.{name}") as layout:
                    found = layout.read(0, 98)
                assert (found.positions == right.positions).all()
                assert (found.time == right.time).all()
                seen["right"] += 1
            except MdioError as error:
                assert web.url in str(error)
                seen["error"] += 1
            web.faults = 0.0
            objects._answers.clear()
    assert min(seen.values()) > 0


class TestReferences:
    def test_to_an_object_beside_it(self, bucket, frames):
        import fsspec
        import zarr
        from obstore.fsspec import register
        from zarr.storage import FsspecStore

        import mdio.layouts.codecs.numcodecs_plugin

        register("s3")
        for name in ("xtc", "dcd"):
            refs = f"{bucket}/{name}.refs"
            mdio.convert(f"{bucket}/adk.{name}", refs, force=True)
            with mdio.open(refs) as layout:
                assert np.abs(layout.read(0, 98).positions - frames[name]).max() == 0
            plain = {"client_options": {"allow_http": True}, "asynchronous": True}
            how = {"remote_protocol": "s3", "remote_options": plain, "asynchronous": True}
            said = json.loads(to_path(refs).read_bytes())
            system = fsspec.filesystem("reference", fo=said, **how)
            group = zarr.open_group(FsspecStore(system, read_only=True, path=""), mode="r")
            assert np.abs(group["position"][3:9] - frames[name][3:9]).max() < 1e-5

    def test_virtual_arrays_of_an_object(self, bucket, frames):
        import zarr
        from obspec_utils.registry import ObjectStoreRegistry
        from obstore.store import from_url

        place = "/".join(bucket.split("/")[:3])
        store = from_url(place, client_options={"allow_http": True})
        registry = ObjectStoreRegistry({place: store})
        for name in ("xtc", "dcd"):
            parsed = mdio.virtual_parser(f"{bucket}/adk.{name}", registry)
            positions = zarr.open_group(parsed, mode="r")["positions"]
            assert (positions[3:5] == frames[name][3:5]).all()
