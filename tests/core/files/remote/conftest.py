"""A web server that knows ranges, and can fail; an S3 server; outputs that they serve."""

import random
import tempfile
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import MDAnalysis as mda
import numpy as np
import pytest
from oracles.stores import SERVERS, Between, environment, s3_server
from oracles.stores import client as client_of
from suites.outputs import as_options

import mdio

FORMATS = ("xtc", "trr", "dcd", "ncdf", "zarr", "quantised.zarr", "h5md", "segments")
FAULTS = ("drop", "503", "cut", "flip")


class Web:
    """A folder on a web server.

    `log` has (method, name, bytes sent) of each request; `faults` is the probability that one
    fails, as `random` decides, in one of the ways of `kinds`; `latency_s` comes before each answer;
    `waits` has when each request began to wait for it, and until when.
    """

    def __init__(self, root):
        self.root, self.log, self.faults, self.kinds = root, [], 0.0, FAULTS
        self.random, self.n_faults, self.latency_s = random.Random(0), 0, 0.0
        self.waits = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                web.answer(self)

            do_HEAD = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        begun = time.monotonic()
        time.sleep(self.latency_s)
        self.waits.append((begun, time.monotonic()))
        fault = None
        if self.random.random() < self.faults:
            fault = self.random.choice(self.kinds)
            self.n_faults += 1
        if fault == "drop":
            request.close_connection = True
            return
        path = self.root / request.path[1:]
        if fault == "503" or not path.is_file():
            request.send_response(503 if fault else 404)
            request.send_header("Content-Length", "0")
            request.end_headers()
            self.log.append((request.command, request.path, 0))
            return
        data, status = path.read_bytes(), path.stat()
        nbytes, asked = len(data), request.headers.get("Range")
        request.send_response(206 if asked else 200)
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            begin = int(first) if first else max(0, nbytes - int(last))
            end = min(int(last), nbytes - 1) if first else nbytes - 1
            request.send_header("Content-Range", f"bytes {begin}-{end}/{nbytes}")
            data = data[begin : end + 1]
        if fault == "flip" and data:
            at = self.random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        self.log.append((request.command, request.path, len(data)))
        request.send_header("Content-Length", str(len(data)))
        request.send_header("ETag", f'"{status.st_mtime_ns}-{nbytes}"')
        request.send_header("Last-Modified", formatdate(status.st_mtime, usegmt=True))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
            request.close_connection = fault == "cut"

    def n_rounds(self):
        """How many requests waited one after the other, whatever others waited meanwhile."""
        count, end = 0, 0.0
        for begun, ended in sorted(self.waits, key=lambda wait: wait[1]):
            if begun >= end:
                count, end = count + 1, ended
        return count

    def sent_nbytes(self):
        return sum(nbytes for *_, nbytes in self.log)


@pytest.fixture(scope="session")
def served(adk, tmp_path_factory):
    """A folder with one trajectory in all formats, by name; ``ca`` is a group of outputs."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("xtc", "trr", "dcd", "ncdf"):
        (folder / f"adk.{name}").write_bytes(adk[name].read_bytes())
    options = {"top": adk["psf"], "groups": {"ca": "name CA"}, "chunk_frames": 10}
    mdio.convert(adk["dcd"], folder / "adk.zarr", **as_options(options))
    mdio.convert(adk["dcd"], folder / "adk.h5md", **as_options(options))
    mdio.convert(adk["dcd"], folder / "adk.quantised.zarr", precision=0.01, **as_options(options))
    mdio.convert(
        adk["dcd"], folder / "adk.segments", storage=mdio.Storage(segments=3, container="dcd")
    )
    return folder


@pytest.fixture
def web(served):
    one = Web(served)
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    """Forget what was found out about objects of other tests, which had the same names."""
    from mdio.core.files.remote import objects

    objects._answers.clear()
    objects._small_answers.clear()
    monkeypatch.setattr(objects, "PAUSE_S", 0.001)


ON_EVERY_SERVER = {"test_reading_remote", "test_what_stores_say", "test_writing_remote"}
"""Modules in which it matters how a server answers; the others run on the last of `SERVERS`."""


def pytest_generate_tests(metafunc):
    """Choose the servers of each module."""
    if "s3_port" in metafunc.fixturenames:
        on_every = metafunc.module.__name__ in ON_EVERY_SERVER
        servers = SERVERS if on_every else SERVERS[-1:]
        metafunc.parametrize("s3_port", servers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def s3_port(request, tmp_path_factory):
    """The port of an S3 server; there is a bucket in it, called ``bucket``."""
    with s3_server(request.param, tmp_path_factory.mktemp("s3") / "server") as port:
        yield port


@pytest.fixture(scope="module")
def client(s3_port):
    """boto3's, by which objects are looked at."""
    return client_of(s3_port)


@pytest.fixture(scope="module")
def between(s3_port):
    """What can fail between the server and us; requests of `bucket` pass it."""
    one = Between(s3_port)
    yield one
    one.close()


@pytest.fixture(scope="module")
def bucket(served, client, between):
    """The same folder in an S3 store, as ``s3://bucket``; credentials are in the environment."""
    from mdio.core.files.remote import objects

    patch = pytest.MonkeyPatch()
    for name, value in environment(between.port).items():
        patch.setenv(name, value)
    for path in served.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "bucket", str(path.relative_to(served)))
    objects._store.cache_clear()
    yield "s3://bucket"
    patch.undo()
    objects._store.cache_clear()


@pytest.fixture(autouse=True)
def _later_tests_fork_again(monkeypatch):
    """Let go of what makes workers start anew once a process has read from stores."""
    from mdio.core.files.remote import objects

    monkeypatch.setattr(objects, "_pid", 0)


@pytest.fixture
def spool(monkeypatch, tmp_path):
    """Where outputs are built before they are sent."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


@pytest.fixture
def nothing_fails(between):
    between.log.clear()
    yield
    between.faults = between.latency_s = 0.0


@pytest.fixture(scope="session")
def positions(adk):
    universe = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    return np.array([ts.positions.copy() for ts in universe.trajectory])


@pytest.fixture
def names(client):
    """What lists the objects below a name."""

    def found(prefix):
        answer = client.list_objects_v2(Bucket="bucket", Prefix=prefix)
        return [one["Key"] for one in answer.get("Contents", [])]

    return found
