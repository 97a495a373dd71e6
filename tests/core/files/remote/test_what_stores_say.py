"""Errors name what is wrong: a URL, a bucket, credentials, a process that was forked."""

import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import obstore
import pytest
from obstore.exceptions import GenericError

import mdio
from mdio.core.errors import OutputError, PlanError, SourceError
from mdio.core.files.remote import objects, outputs

pytestmark = pytest.mark.usefixtures("spool", "nothing_fails")


class TestWrong:
    """How reading and writing end."""

    @pytest.mark.parametrize("name", ["a.zarr", "a.xtc", "a.segments"])
    def test_bucket(self, bucket, adk, name):
        with pytest.raises(SourceError, match=r"s3://nothere/a\.\w+: .*there is no such bucket"):
            mdio.open(f"s3://nothere/{name}")
        for call in (mdio.convert, mdio.append):
            with pytest.raises(OutputError, match=r"s3://nothere/a\..*there is no such bucket"):
                call(adk["xtc"], f"s3://nothere/{name}")

    def test_bucket_of_a_topology(self, bucket, adk):
        with pytest.raises(SourceError, match=r"s3://nothere/a\.psf.*there is no such bucket"):
            mdio.analyze(adk["dcd"], kernel=mdio.RMSD("name CA"), top="s3://nothere/a.psf")

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("AWS_SECRET_ACCESS_KEY", "wrong", "the store refuses it; see credentials"),
            ("AWS_ACCESS_KEY_ID", "wrong", "the store refuses it; see credentials"),
            ("AWS_REGION", "eu-west-1", r"see credentials, region \(it is in us-east-1\)"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "cannot be reached.*see endpoint"),
        ],
    )
    def test_environment(self, request, bucket, adk, monkeypatch, name, value, said):
        if name != "AWS_ENDPOINT_URL" and "moto" in request.node.name:
            return  # it takes whoever comes
        monkeypatch.setenv(name, value)
        objects._store.cache_clear()
        try:
            with pytest.raises(SourceError, match=said):
                mdio.open(f"{bucket}/adk.zarr")
            with pytest.raises(OutputError, match=said):
                mdio.convert(adk["dcd"], f"{bucket}/wrong.dcd")
        finally:
            objects._store.cache_clear()

    @pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "https://example.org"])
    def test_no_name(self, adk, url):
        for call in (lambda: mdio.open(url), lambda: mdio.convert(adk["dcd"], url, to="zarr")):
            with pytest.raises(
                PlanError, match=r"a bucket or host alone; name an object, as .*/md"
            ):
                call()

    @pytest.mark.parametrize("url", ["ftp://host/a.xtc", "s3a://bucket/a.zarr"])
    def test_scheme(self, adk, url):
        for call in (lambda: mdio.open(url), lambda: mdio.convert(adk["dcd"], url)):
            with pytest.raises(PlanError, match=f"{url}: not a URL that mdio reads.*s3://"):
                call()


@pytest.mark.parametrize("name", ["adk.zarr", "adk.xtc", "adk.segments"])
def test_a_server_without_ranges(served, name):
    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served))

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            with pytest.raises(SourceError, match=f"^{url}: .*gives no ranges of bytes; use"):
                mdio.open(url)
        finally:
            server.shutdown()


FORKS = """
import warnings; warnings.simplefilter("ignore")
import sys
import MDAnalysis as mda
from MDAnalysis.analysis.rms import RMSD
import multiprocessing
import mdio
from mdio.core.files.remote import objects
multiprocessing.set_start_method("fork", force=True)
universe = mda.Universe(sys.argv[1])
objects._answers.clear()  # as after a while
RMSD(universe.select_atoms("name CA")).run(backend="multiprocessing", n_workers=2)
"""


def test_a_pool_that_forks_is_told(bucket, adk):
    mdio.convert(adk["dcd"], f"{bucket}/forked.zarr", top=adk["psf"])
    words = [sys.executable, "-c", FORKS, f"{bucket}/forked.zarr"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "forked.zarr" in last
    assert "start processes with 'spawn'" in last


def test_nothing_is_asked_for_as_the_interpreter_ends(bucket):
    code = "import sys, mdio, MDAnalysis; kept = MDAnalysis.Universe(sys.argv[1]).trajectory"
    words = [sys.executable, "-W", "ignore", "-c", code, f"{bucket}/adk.zarr"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class TestListsThatBreakOff:
    """Answers to lists are cut as others are."""

    @pytest.fixture
    def goes_on(self, bucket, adk, tmp_path):
        """An output with half of the frames."""
        out = f"{bucket}/lists.zarr"
        mdio.convert(adk["dcd"], tmp_path / "first.dcd", stop=50, force=True)
        mdio.convert(tmp_path / "first.dcd", out, force=True)
        return out

    @staticmethod
    def cut(monkeypatch, n_times):
        real, calls = obstore.list, []

        def cuts(*args, **options):
            calls.append(args)
            if len(calls) <= n_times:
                raise GenericError("Generic S3 error: Error getting list response body")
            return real(*args, **options)

        monkeypatch.setattr(obstore, "list", cuts)

    def test_are_asked_for_again(self, goes_on, adk, monkeypatch):
        self.cut(monkeypatch, 3)
        mdio.append(adk["dcd"], goes_on)
        assert mdio.open(goes_on).info.n_frames == 98

    def test_for_good_are_told_by_the_name_in_the_store(self, goes_on, adk, monkeypatch, spool):
        real = outputs.names_below

        def fails(folder):
            self.cut(monkeypatch, 1000)
            return real(folder)

        monkeypatch.setattr(outputs, "names_below", fails)
        with pytest.raises(OutputError, match=r"^s3://.*lists\.zarr: .*response body") as caught:
            mdio.append(adk["dcd"], goes_on)
        assert str(spool) not in str(caught.value)
        assert "free some space" not in str(caught.value)
