"""Trees read by zarrita and our decoder, in node and in a browser, beside MDAnalysis."""

import functools
import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest

from mdio.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "web/node_modules"
RIGID = ROOT / "web/rigid.wasm"
NODES = [n for n in ["node"] if shutil.which(n) and MODULES.is_dir()]
BROWSERS = [b for b in ["chromium", "google-chrome"] if shutil.which(b) and MODULES.is_dir()][:1]
HEADLESS = ["--headless=new", "--no-sandbox", "--disable-gpu"]

FORMS = {
    # What follows `mdio convert SOURCE`, and the modes of the chunks that come of it.
    "xtc": ("xtc", [], {6}),
    "xtc-zstd": ("xtc", ["--compression", "zstd"], {2}),
    "jumps": ("jumps", ["--compression", "fast"], {8}),
    "jumps-zstd": ("jumps", ["--compression", "zstd"], {4}),
    "xtc-floats": ("xtc", ["--precision", "none"], set()),
    "floats-lz4": ("xtc", ["--precision", "none", "--compression", "lz4"], set()),
    "floats-zstd": ("xtc", ["--precision", "none", "--compression", "zstd"], set()),
    "floats-gzip": ("xtc", ["--precision", "none", "--compression", "gzip"], set()),
    "close": ("close", ["--precision", "0.001"], {5}),
    "close-lz4": ("close", ["--precision", "0.001", "--compression", "lz4"], {1}),
    "rigid": ("xtc", ["--compression", "rigid"], {10}),
    "rigid-seek": ("xtc", ["--compression", "rigid-seek"], {10}),
    "rigid-step": ("close", ["--precision", "0.001", "--compression", "rigid"], {9}),
    "far": ("far", ["--precision", "0.001"], {0, 5}),
}


def positions_of(topology, path, atoms="all"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe(topology, path)
        group = u.select_atoms(atoms)
        return np.array([group.positions.copy() for _ in u.trajectory])


@pytest.fixture(scope="module")
def site(adk, tmp_path_factory):
    """The folder ``web`` with a tree of each form beside it, and what MDAnalysis reads of each."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "web").symlink_to(ROOT / "web")
    start = positions_of(adk["psf"], adk["dcd"])[0]
    random = np.random.default_rng(1)
    close = start + random.normal(0, 0.004, (28, *start.shape)).cumsum(axis=0)
    far = close.copy()
    far[21:, 7] = 1e30  # in no range of integers
    made = {
        "close.dcd": close,
        "far.dcd": far,
        "jumps.xtc": start + random.uniform(-40, 40, (28, 1, 3)),
    }
    sources = {"xtc": adk["xtc"]}
    for name, frames in made.items():
        universe = mda.Universe(adk["psf"], frames.astype(np.float32), dt=1.0)
        sources[Path(name).stem] = folder / name
        with mda.Writer(str(folder / name), universe.atoms.n_atoms) as writer:
            for _ in universe.trajectory:
                writer.write(universe.atoms)
    expected = {name: positions_of(adk["psf"], path) for name, path in sources.items()}
    for name, (source, options, _) in FORMS.items():
        output = [str(sources[source]), str(folder / f"{name}.zarr"), *options]
        assert main(["convert", *output, "--chunk-frames", "7", "--quiet"]) == 0
    group = [str(sources["xtc"]), str(folder / "group.zarr"), "-s", str(adk["psf"])]
    assert main(["convert", *group, "--group", "ca=name CA", "--quiet"]) == 0
    ca = positions_of(adk["psf"], adk["xtc"], "name CA")
    return folder, expected | {"ca": ca}


@contextmanager
def served(folder, ranges, pages=(), posted=None):
    """Serve a folder as a plain server does, and yield its address; `ranges`: if it knows them.

    `posted`: a queue for what is sent.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            posted.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def do_GET(self):
            path = Path(self.translate_path(self.path))
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if self.path in dict(pages):
                body, status = dict(pages)[self.path].encode(), 200
            elif ranges and asked and path.is_file():
                first, last = map(int, asked.groups())
                body, status = path.read_bytes()[first : last + 1], 206
            else:
                super().do_GET()
                return
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def read_by(node, url, group, file):
    command = [node, str(ROOT / "tests/web/read.mjs"), url, group, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def read(node, url, group, file):
    """Return times and positions as a page gets them."""
    done = read_by(node, url, group, file)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return np.array(told["times"]), np.fromfile(file, "<f4").reshape(told["shape"])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("node", NODES)
def test_what_node_reads_is_what_mdanalysis_reads(node, name, site, tmp_path):
    folder, expected = site
    source, _, modes = FORMS[name]
    if name.startswith("rigid") and not RIGID.exists():
        pytest.skip("needs clang, which builds web/rigid.wasm")
    tree = folder / f"{name}.zarr"
    shards = (tree / "particles/trajectory/position/value").glob("c.*")
    found = {mode for s in shards for [mode] in re.findall(b"mdq1(.)", s.read_bytes(), re.DOTALL)}
    assert found == modes
    with served(folder, ranges=True) as url:
        _, positions = read(node, f"{url}/{tree.name}", "trajectory", tmp_path / "positions")
    if source in ("xtc", "jumps"):
        assert positions.tobytes() == expected[source].tobytes()
    else:
        np.testing.assert_allclose(positions, expected[source], rtol=1.2e-7, atol=0.0005)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("node", NODES)
def test_a_group_is_read_from_servers_with_and_without_ranges(node, ranges, site, tmp_path):
    folder, expected = site
    with served(folder, ranges) as url:
        times, positions = read(node, f"{url}/group.zarr", "ca", tmp_path / "positions")
    np.testing.assert_allclose(times, 5 + 2 * np.arange(98))
    assert positions.tobytes() == expected["ca"].tobytes()


@pytest.mark.parametrize("node", NODES)
def test_damage_is_told(node, site, tmp_path):
    folder, _ = site
    shutil.copytree(folder / "group.zarr", tmp_path / "damaged.zarr")
    shard = tmp_path / "damaged.zarr/particles/ca/position/value/c.0.0.0"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with served(tmp_path, ranges=True) as url:
        done = read_by(node, f"{url}/damaged.zarr", "ca", tmp_path / "positions")
        assert done.returncode == 1
        assert "the checksum (crc32c) of a chunk does not fit" in done.stderr


DECODE = """
import { readFileSync } from "node:fs";
import { decodeChunk } from "ROOT/web/quantised.js";
const whole = readFileSync(process.argv[2]);
let [decoded, refused, other] = [0, 0, 0];
for (let at = 32; at < whole.length; at += 1 + Math.floor(whole.length / 300)) {
  const bytes = new Uint8Array(whole);
  bytes[at] ^= 0x55;
  try {
    await decodeChunk(bytes, 6, 230);
    decoded++;
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError) other++;
    else refused++;
  }
}
console.log(JSON.stringify({ decoded, refused, other }));
"""


@pytest.mark.skipif(not RIGID.exists(), reason="needs clang, which builds web/rigid.wasm")
@pytest.mark.parametrize("node", NODES)
def test_damaged_chunks_of_rigid_decode_or_are_refused(node, tmp_path):
    program = tmp_path / "decode.mjs"
    program.write_text(DECODE.replace("ROOT", ROOT.as_posix()))
    chunk = ROOT / "tests/golden/quantised/v2-step-rigid.mdq1"
    done = subprocess.run([node, str(program), str(chunk)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["refused"] > 50 and counts["other"] == 0


@pytest.mark.skipif(not RIGID.exists(), reason="needs clang, which builds web/rigid.wasm")
def test_the_codecs_for_pages_are_small():
    assert RIGID.stat().st_size < 100_000


CHECK = """
<pre id="read"></pre>
<script type="module">
import { Trajectory } from "./trajectory.js";
const trajectory = await Trajectory.open(new URL("../TREE.zarr", location.href).href, "GROUP");
document.querySelector("#read").textContent = JSON.stringify([...(await trajectory.frame(7))]);
const [shown, status] = ["output", "[role=status]"].map((name) => document.querySelector(name));
while (!shown.textContent || !status.textContent.includes(" frames of ")) {
  await new Promise((done) => setTimeout(done, 20));
}
await fetch("/done", { method: "POST", body: document.documentElement.outerHTML });
</script>
"""


@pytest.mark.parametrize(
    "tree, group, source", [("group", "ca", "ca"), ("rigid", "trajectory", "xtc")]
)
@pytest.mark.parametrize("browser", BROWSERS)
def test_the_page_in_a_browser(browser, tree, group, source, site, tmp_path):
    if tree == "rigid" and not RIGID.exists():
        pytest.skip("needs clang, which builds web/rigid.wasm")
    folder, expected = site
    page = (ROOT / "web/index.html").read_text()
    page += CHECK.replace("TREE", tree).replace("GROUP", group)
    path = f"/web/check.html?zarr=../{tree}.zarr&group={group}&frame=7"
    posted = queue.Queue()
    with (
        served(folder, ranges=False, pages=[(path, page)], posted=posted) as url,
        (tmp_path / "stderr").open("w+") as told,
        subprocess.Popen(
            [browser, *HEADLESS, f"--user-data-dir={tmp_path}", url + path],
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,
        ) as process,
    ):
        try:
            text = posted.get(timeout=120)
        except queue.Empty:
            pytest.fail((tmp_path / "stderr").read_text())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert "<output>frame 7 of 98, 19 ps</output>" in text
    n_atoms = expected[source].shape[1]
    assert f'<p role="status">98 frames of {n_atoms} atoms</p>' in text
    [cost] = re.findall(r'<p id="cost">([0-9.]+) kB a frame</p>', text)
    assert 2 * n_atoms < 1000 * float(cost) < 12 * n_atoms
    [numbers] = re.findall(r'<pre id="read">(\[.*?\])</pre>', text)
    positions = np.array(json.loads(numbers), np.float32).reshape(-1, 3)
    assert positions.tobytes() == expected[source][7].tobytes()
