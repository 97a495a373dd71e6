"""S3 servers for tests and benches, and what stands between them and us."""

import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME, SECRET = "ThePublicName", "TheSecretItself"
VERSITYGW = shutil.which(
    "versitygw", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
SERVERS = ("moto", *(["versitygw"] if VERSITYGW else []))
FAULTS = ("unheard", "unanswered", "503", "cut", "flip")


@cache
def _moto():
    """Return moto's server, told to remember which of its services a host is.

    For each request it went through all of its folders and patterns: half of the time of tests.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Application
    from moto.server import ThreadedMotoServer

    Application.get_backend_for_host = cache(Application.get_backend_for_host)
    return ThreadedMotoServer


@contextmanager
def s3_server(kind, folder):
    """Run an S3 server with a bucket ``bucket``, and yield its port; `folder` is for its files."""
    if kind == "moto":
        server = _moto()(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        port = server.get_host_and_port()[1]
        stop = server.stop
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "objects").mkdir(parents=True)
        words = [VERSITYGW, "--port", f"127.0.0.1:{port}", "--quiet", "posix"]
        keys = {"ROOT_ACCESS_KEY": NAME, "ROOT_SECRET_KEY": SECRET}
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*words, str(folder / "objects")],
                env=os.environ | keys,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

        def stop():
            process.terminate()
            process.wait()

    try:
        for _ in range(200):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        client(port).create_bucket(Bucket="bucket")
        yield port
    finally:
        stop()


def client(port):
    """Return boto3's client of a server."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=NAME,
        aws_secret_access_key=SECRET,
    )


def environment(port):
    """Return what obstore is told through the environment."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": NAME,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


class Between:
    """Passes requests on to a server, late, or not, or not whole.

    `log` has (method, path, bytes of the answer) of each request; `faults` is the probability that
    one fails, in one of the ways of `kinds`: the server does not hear of it, or its answer is lost;
    it refuses; the answer is cut, or has a wrong bit. `latency_s` comes before each answer, and
    `nbytes_per_s`, if given, is what all answers together may take.
    """

    def __init__(self, port, seed=0):
        self.latency_s, self.nbytes_per_s = 0.0, None
        self.faults, self.kinds, self.n_faults = 0.0, FAULTS, 0
        self.random, self.log = random.Random(seed), []
        self._server_port, self._lock, self._free_at = port, threading.Lock(), 0.0
        self._connections = threading.local()
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def answer(self):
                between.answer(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        time.sleep(self.latency_s)
        fault = None
        if self.random.random() < self.faults:
            fault = self.random.choice(self.kinds)
            self.n_faults += 1
        if fault in ("unheard", "403", "503"):
            request.close_connection = True
            if fault != "unheard":
                request.send_response(int(fault))
                request.send_header("Content-Length", "0")
                request.end_headers()
            return
        status, headers, data = self._passed_on(request, body)
        if fault == "unanswered":
            request.close_connection = True
            return
        if fault == "flip" and request.command == "GET" and status in (200, 206) and data:
            at = self.random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        self.log.append((request.command, request.path, len(data)))
        self._wait_for(len(data) + len(body))
        request.send_response(status)
        for key, value in headers:
            if key.lower() not in ("transfer-encoding", "connection", "date", "server"):
                request.send_header(key, value)
        if not any(key.lower() == "content-length" for key, _ in headers):
            request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
            request.close_connection = fault == "cut"

    def _passed_on(self, request, body):
        for fresh in (False, True):
            connection = None if fresh else getattr(self._connections, "one", None)
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self._server_port)
                self._connections.one = connection
            try:
                connection.putrequest(
                    request.command, request.path, skip_host=True, skip_accept_encoding=True
                )
                for key, value in request.headers.items():
                    connection.putheader(key, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if fresh:
                    raise
        raise AssertionError

    def _wait_for(self, nbytes):
        if self.nbytes_per_s is None:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + nbytes / self.nbytes_per_s
        time.sleep(max(0.0, self._free_at - time.monotonic()))
