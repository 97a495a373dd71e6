"""How many requests opening takes, and that nothing mdio makes tells a secret."""

import io
import logging
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import MDAnalysis as mda
import numpy as np
import pytest
from oracles.stores import FAULTS, NAME, SECRET

import mdio
from mdio.cli.main import main
from mdio.core.errors import MdioError
from mdio.core.files.remote import objects
from mdio.core.files.store import to_path
from mdio.layouts import plan
from mdio.readers import frames

N_SHARDS = 1000


@pytest.fixture(scope="module")
def many_shards(served):
    """A tree of so many shards, on the web server: a frame in each."""
    source = served / "many.dcd"
    frames = np.random.default_rng(0).normal(size=(N_SHARDS, 20, 3)).astype(np.float32)
    universe = mda.Universe.empty(20, trajectory=True).load_new(frames)
    universe.atoms.write(str(source), frames="all")
    patch = pytest.MonkeyPatch()
    patch.setattr(plan, "MIN_PIECE_NBYTES", 1)
    patch.setattr(plan, "MAX_PIECE_NBYTES", 1)
    mdio.convert(source, served / "many.zarr", storage=mdio.Storage(chunk_frames=1))
    patch.undo()
    assert len(list((served / "many.zarr").rglob("position/value/c.*"))) == N_SHARDS
    return frames


def test_opening_a_thousand_shards(web, many_shards):
    with mdio.open(f"{web.url}/many.zarr") as layout:
        assert layout.info.n_frames == N_SHARDS
        assert len(web.log) == 1  # the manifest
        web.log.clear()
        assert (layout.read(500, 501).positions == many_shards[500]).all()
        first = len(web.log)
        layout.read(700, 701)
        # A shard's table and its chunk; the tables of checksums are there by now.
        assert len(web.log) - first <= 2


@pytest.mark.parametrize("name", ["adk.zarr", "adk.quantised.zarr", "many.zarr"])
@pytest.mark.parametrize("group", [None, "ca"])
def test_opening_takes_one_round_of_requests(web, many_shards, name, group):
    options = {} if group is None or name == "many.zarr" else {"group": group}
    web.latency_s = 0.5
    with mdio.open(f"{web.url}/{name}", **options) as layout:
        assert layout.info.n_frames > 0
        assert web.n_rounds() == len(web.log) == 1
        layout.read(50, 51)
    assert web.n_rounds() <= 3  # the root; indexes, columns and checksums; the chunk


def test_the_chunks_of_one_frame_are_asked_for_at_once(web, served, adk, positions):
    storage = mdio.Storage(chunk_frames=10, chunk_atoms=1000)
    mdio.convert(adk["dcd"], served / "wide.zarr", storage=storage, precision=0.01, stop=20)
    web.latency_s = 0.5
    with mdio.open(f"{web.url}/wide.zarr") as layout:
        frame = layout.read(5, 6)
        n_chunks = layout.backend.arrays["trajectory", "positions"].grid[1]
    assert np.abs(frame.positions - positions[5]).max() < 0.006
    assert n_chunks == 4
    assert web.n_rounds() <= 3


def test_outputs_of_older_versions_take_few_rounds(web):
    """Their manifests do not tell of other nodes, which are asked for together, as columns are."""
    web.root = golden = Path(__file__).resolve().parents[3] / "golden/zarr"
    web.latency_s = 1.5  # so that requests together count as such on a busy machine
    with mdio.open(f"{web.url}/v1.zarr") as layout, mdio.open(golden / "v1.zarr") as local:
        assert layout.info.n_frames == local.info.n_frames
        assert web.n_rounds() <= 3
        assert (layout.read(0, 2).positions == local.read(0, 2).positions).all()


def test_what_a_frame_takes_is_asked_for_at_once(web, many_shards, monkeypatch):
    """Times, steps, boxes, checksums, and the shard."""
    together, get = threading.Barrier(5), objects.get

    def waits(path, wanted):
        if isinstance(wanted, dict):
            together.wait(60)  # nobody is answered before five have asked
        return get(path, wanted)

    monkeypatch.setattr(objects, "get", waits)
    with mdio.open(f"{web.url}/many.zarr") as layout:
        assert (layout.read(500, 501).positions == many_shards[500]).all()
    assert len(web.log) == 6


def test_a_reader_asks_for_little_until_much_was_read(web, many_shards, monkeypatch):
    monkeypatch.setattr(frames, "RUN_NBYTES", 1)
    universe = mda.Universe.empty(20).load_new(f"{web.url}/many.zarr", format="MDIO")
    for ts in universe.trajectory[:4]:
        assert (ts.positions == many_shards[ts.frame]).all()
    asked = {name for _, name, _ in web.log if "position/value/c." in name}
    assert 4 < len(asked) <= 16  # and not the 24 that may be under way
    for ts in universe.trajectory[:60]:
        assert (ts.positions == many_shards[ts.frame]).all()
    universe.trajectory.close()


def test_shards_that_are_looked_at_ahead_are_asked_for_once(web, many_shards):
    with mdio.open(f"{web.url}/many.zarr") as layout:
        found = np.concatenate([layout.read(at, at + 1).positions for at in range(40)])
    assert (found == many_shards[:40]).all()
    asked = Counter(name for _, name, _ in web.log if "position/value/c." in name)
    assert max(asked.values()) <= 2  # its table, its chunk
    assert len(asked) > 40


@pytest.fixture
def under_way(monkeypatch):
    """The names of shards that are asked for, the first eight of them at the same time.

    But for those that may be asked for alone.
    """
    seen = {"names": [], "alone": ()}
    both = threading.Barrier(8)
    get = objects.get

    def waits(path, wanted):
        if "position/value/c." in str(path) and path.name not in seen["alone"]:
            seen["names"].append(path.name)
            if len(seen["names"]) <= 8:
                both.wait(60)  # nobody is answered before eight have asked
        return get(path, wanted)

    monkeypatch.setattr(objects, "get", waits)
    yield seen
    assert not both.broken


def test_shards_that_are_read_whole_take_a_request_each_many_at_once(web, many_shards, under_way):
    with mdio.open(f"{web.url}/many.zarr") as layout:
        _ = layout.info
        layout.prefetch((at, at + 5) for at in range(0, 100, 5))
        found = np.concatenate([layout.read(at, at + 5).positions for at in range(0, 100, 5)])
    assert (found == many_shards[:100]).all()
    assert sorted(under_way["names"]) == sorted(f"c.{n}.0.0" for n in range(100))


def by_conversion(url, folder):
    mdio.convert(url, folder / "some.dcd", step=10)
    return mdio.open(folder / "some.dcd").read(0, 100).positions


def by_reader(url, _):
    universe = mda.Universe.empty(20).load_new(url, format="MDIO")
    found = [ts.positions.copy() for ts in universe.trajectory[::10]]
    universe.trajectory.close()
    return found


def as_timeseries(url, _):
    universe = mda.Universe.empty(20).load_new(url, format="MDIO")
    found = universe.trajectory.timeseries(step=-10, start=990)[::-1]
    universe.trajectory.close()
    return found


def backwards(url, _):
    universe = mda.Universe.empty(20).load_new(url, format="MDIO")
    found = [ts.positions.copy() for ts in universe.trajectory[990::-10]]
    universe.trajectory.close()
    return found[::-1]


@pytest.mark.parametrize("read", [by_conversion, by_reader, backwards, as_timeseries])
def test_frames_far_apart_are_asked_for_many_at_once(
    web, many_shards, under_way, tmp_path, monkeypatch, read
):
    monkeypatch.setattr(frames, "RUN_NBYTES", 1)
    # Where a Universe begins, and the first two jumps, after which it is known how far they go.
    under_way["alone"] = [f"c.{n}.0.0" for n in (0, 10, 20, 990, 980, 970)]
    assert np.array_equal(read(f"{web.url}/many.zarr", tmp_path), many_shards[::10])
    assert set(under_way["names"]) <= {f"c.{n}.0.0" for n in range(0, N_SHARDS, 10)}


def test_frame_after_frame_backwards_is_asked_for_many_at_once(
    web, many_shards, under_way, monkeypatch
):
    monkeypatch.setattr(frames, "RUN_NBYTES", 1)
    under_way["alone"] = [f"c.{n}.0.0" for n in (0, 98, 99, 100)]
    universe = mda.Universe.empty(20).load_new(f"{web.url}/many.zarr", format="MDIO")
    found = [ts.positions.copy() for ts in universe.trajectory[100::-1]]
    universe.trajectory.close()
    assert np.array_equal(found, many_shards[100::-1])
    assert sorted(under_way["names"]) == sorted(f"c.{n}.0.0" for n in range(1, 98))


@pytest.mark.parametrize("what", ["position/value/c.", "zarr.json"])
def test_verifying_asks_for_several_units_at_once(web, many_shards, monkeypatch, what):
    seen, eight, get = [], threading.Barrier(8), objects.get

    def waits(path, wanted):
        root = path.parent.name == "many.zarr"
        if what in str(path) and not root and (what == "zarr.json" or isinstance(wanted, tuple)):
            seen.append(path)
            if len(seen) <= 8:
                eight.wait(60)  # nobody is answered before eight have asked
        return get(path, wanted)

    monkeypatch.setattr(objects, "get", waits)
    assert mdio.verify(f"{web.url}/many.zarr").ok
    assert len(seen) == len(set(seen)) > 16


def test_what_comes_with_shards_is_let_go_as_it_is_read(web, many_shards, monkeypatch):
    monkeypatch.setattr(objects, "LARGE_NBYTES", 1)
    with mdio.open(f"{web.url}/many.zarr") as layout:
        assert (layout.read(0, 30).positions == many_shards[:30]).all()
        files = layout.backend.arrays["trajectory", "positions"]._files
        held = [len(files[n].file.remote._data) for n in range(30)]
    assert held == [0] * 30


def test_nothing_is_kept_of_what_nobody_reads(web, many_shards):
    layout = mdio.open(f"{web.url}/many.zarr")
    layout.prefetch([(0, N_SHARDS)])
    layout.read(0, 3)
    assert objects._prefetched
    layout.prefetch(())
    assert not [name for name in objects._prefetched if "position/value/c." in name]
    layout.prefetch([(0, N_SHARDS)])
    layout.close()
    assert not objects._prefetched


def test_threads_that_ask_for_the_same_at_once_share_an_answer(web, many_shards):
    path, together = to_path(f"{web.url}/many.zarr/zarr.json"), threading.Barrier(8)
    web.log.clear()
    web.latency_s = 0.2

    def ask(_):
        together.wait(60)
        objects.prefetch([path], 1 << 20)
        return bytes(objects.find(path).data)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))
    web.latency_s = 0.0
    assert len(found) == len(web.log) == 1
    objects.prefetch([path], 1 << 20)  # it is at hand
    assert len(web.log) == 1


class TestSecrets:
    """What is written, printed, pickled, logged or raised has no credential in it."""

    def test_in_nothing_that_is_written(self, bucket, adk, tmp_path, client, monkeypatch, caplog):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        client.upload_file(str(adk["psf"]), "bucket", "secret.psf")
        caplog.set_level(logging.DEBUG)
        written = io.StringIO()
        monkeypatch.setattr(sys, "stdout", written)
        monkeypatch.setattr(sys, "stderr", written)
        top, reports = str(adk["psf"]), ["-o", str(tmp_path / "r.npz")]
        first, there = str(tmp_path / "first.dcd"), f"{bucket}/secret.psf"
        mdio.convert(adk["dcd"], first, stop=50)
        reports += ["--report", str(tmp_path / "r.html"), "--timings", str(tmp_path / "r.json")]
        for words in (
            ["convert", f"{bucket}/adk.xtc", f"{bucket}/secret.zarr", "-s", top, "--json"],
            ["convert", f"{bucket}/adk.dcd", f"{bucket}/secret.segments", "--debug"],
            ["convert", f"{bucket}/adk.dcd", f"{bucket}/secret.h5md", "--dry-run"],
            ["convert", f"{bucket}/adk.xtc", f"{bucket}/secret.refs"],
            ["convert", f"{bucket}/adk.xtc", str(tmp_path / "here.zarr"), "-s", top],
            ["info", f"{bucket}/secret.zarr", "--json"],
            ["verify", f"{bucket}/secret.zarr", "--json"],
            ["analyze", "rgyr", f"{bucket}/secret.zarr", "-s", top, *reports],
            ["convert", f"{bucket}/adk.dcd", f"{bucket}/secret.zarr", "--debug"],
            ["convert", first, f"{bucket}/secret-on.zarr", "-s", there, "--group", "ca=name CA"],
            ["append", f"{bucket}/adk.dcd", f"{bucket}/secret-on.zarr", "--debug"],
            ["repair", f"{bucket}/secret-on.zarr", "--against", f"{bucket}/adk.dcd"],
            ["analyze", "rgyr", f"{bucket}/adk.dcd", "-s", there, "-o", f"{bucket}/secret.csv"],
            ["analyze", "rgyr", f"{bucket}/adk.dcd", "-s", f"{bucket}/no.psf", "--debug"],
            ["convert", f"{bucket}/no.dcd", f"{bucket}/x.zarr", "--debug"],
            ["convert", f"{bucket}/adk.dcd", "s3://no-such-bucket/x.zarr", "--debug"],
        ):
            try:
                main(words)
            except MdioError:  # as --debug has it
                traceback.print_exc(file=written)
        found = [written.getvalue().encode(), caplog.text.encode()]
        found += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        listed = client.list_objects_v2(Bucket="bucket", Prefix="secret")["Contents"]
        for one in listed:
            found.append(client.get_object(Bucket="bucket", Key=one["Key"])["Body"].read())
        assert len(found) > 90
        assert {"secret.csv", "secret-on.ca.top.pdb"} <= {one["Key"] for one in listed}
        for data in found:
            assert SECRET.encode() not in data
            assert NAME.encode() not in data

    def test_in_nothing_that_travels(self, bucket, adk):
        universe = mda.Universe(str(adk["psf"]), f"{bucket}/adk.zarr", format="MDIO")
        with mdio.open(f"{bucket}/adk.h5md") as layout:
            _ = layout.info
            texts = [
                pickle.dumps(layout),
                repr(layout).encode(),
                pickle.dumps(layout.with_metadata()),
            ]
        texts.append(pickle.dumps(universe.trajectory))
        for text in texts:
            assert SECRET.encode() not in text
            assert NAME.encode() not in text

    def test_in_no_refusal(self, bucket, between, adk, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        between.kinds, between.faults = ("403",), 1.0
        for call in (
            lambda: mdio.open(f"{bucket}/adk.xtc").info,
            lambda: mdio.convert(adk["dcd"], f"{bucket}/refused.zarr"),
        ):
            with pytest.raises(MdioError, match="see credentials, region and endpoint") as caught:
                call()
            text = "".join(traceback.format_exception(caught.value))
            assert SECRET not in text
            assert NAME not in text
        between.kinds, between.faults = FAULTS, 0.0


def test_a_url_with_a_secret_is_not_repeated(tmp_path):
    words = [sys.executable, "-m", "mdio", "convert", "a.xtc", "s3://Me:TheWord@bucket/a.zarr"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode != 0
    assert "TheWord" not in done.stderr + done.stdout


def test_large_objects_are_requested_one_after_the_other(monkeypatch):
    waits = []
    clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    monkeypatch.setattr(objects, "time", clock)
    monkeypatch.setattr(objects, "get", lambda path, wanted: None)
    paths = [Path(f"large{n}") for n in range(3)]
    objects.prefetch(paths, 16 << 20, expected_nbytes=4_000_000)
    futures = [objects._prefetched[str(path)] for path in paths]
    assert [future.result(60) for future in futures] == [None] * 3
    objects.forget_prefetched(paths)
    assert sorted(waits) == [0, 0.001, 0.002]


def test_whole_shards_are_large_and_indexes_are_not(adk, tmp_path):
    mdio.convert(adk["xtc"], tmp_path / "a.zarr", precision="none")
    with mdio.open(tmp_path / "a.zarr") as layout:
        whole, parts = (
            [one.expected_nbytes for one in layout._openings([run], None) if "value" in str(one)]
            for run in ((0, 98), (3, 5))
        )
    assert whole and min(whole) > 1 << 20
    assert parts and max(parts) == 0


def test_threads_that_look_ahead_end_with_their_answers(monkeypatch):
    begun = threading.Event()
    monkeypatch.setattr(objects, "get", lambda path, wanted: begun.wait())
    objects.prefetch([Path(f"object{n}") for n in range(20)], 8)
    looking = [
        thread for thread in threading.enumerate() if thread.name.startswith("mdio prefetch")
    ]
    assert looking
    begun.set()
    for thread in looking:
        thread.join(60)
        assert not thread.is_alive()
    for n in range(20):
        objects.forget(Path(f"object{n}"))


def test_what_is_collected_as_garbage_never_waits_for_who_looks(monkeypatch):
    """It is collected in any thread, also while one is begun, and wherever something is made."""
    path, begun = Path("object"), []

    class Begun(threading.Thread):
        def start(self):
            letting_go = threading.Thread(target=objects.forget, args=(path,), daemon=True)
            _start(letting_go)
            letting_go.join(10)
            begun.append(not letting_go.is_alive())
            _start(self)

    _start = threading.Thread.start
    monkeypatch.setattr(objects, "get", lambda path, wanted: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Begun)
        objects.prefetch([path], 8)
    assert begun == [True]

    def inside():
        with objects._lock:
            objects.forget(path)
            objects.prefetch([], 8)

    thread = threading.Thread(target=inside, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
