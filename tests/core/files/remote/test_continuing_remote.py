"""Outputs in a store go on, and are repaired: readers see the old one or the new one."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import zarr
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters.convert import prepare
from mdio.converters.follow import follow
from mdio.converters.options import ConversionOptions
from mdio.core.errors import MdioError, OutputError
from mdio.core.files.remote import objects, outputs
from mdio.core.files.store import to_path
from mdio.layouts import plan
from mdio.parallel.executors import Serial

SUFFIXES = (".zarr", ".segments", ".h5md")
OPTIONS = {
    ".zarr": {"chunk_frames": 10, "precision": "none"},
    ".segments": {"segments": 3, "container": "dcd"},
    ".h5md": {},
}


pytestmark = pytest.mark.usefixtures("spool", "nothing_fails")


@pytest.fixture(scope="session")
def halves(adk, tmp_path_factory):
    """The first 65 frames of a trajectory, and all from frame 60 on."""
    folder = tmp_path_factory.mktemp("halves")
    mdio.convert(adk["dcd"], folder / "first.dcd", stop=65)
    mdio.convert(adk["dcd"], folder / "second.dcd", start=60)
    return folder / "first.dcd", folder / "second.dcd"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of one chunk."""
    monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1)
    monkeypatch.setattr(plan, "MAX_PIECE_NBYTES", 1)


@pytest.fixture
def begun(bucket, halves, request, between):
    """An output in a store with 65 frames, in shards of ten."""

    def made(suffix):
        out = f"{bucket}/goes-on-{request.node.name.split('[')[0][:30]}{suffix}"
        mdio.convert(halves[0], out, force=True, **as_options(OPTIONS[suffix]))
        between.log.clear()
        return out

    return made


def put_names(between):
    paths = [path.split("?")[0] for method, path, _ in between.log if method == "PUT"]
    return [path.removeprefix("/bucket/") for path in paths]


def frames_of(url):
    objects._answers.clear()
    with mdio.open(url) as layout:
        return layout.read(0, layout.info.n_frames).positions


class TestAppending:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_gives_what_all_at_once_gives(self, begun, halves, positions, names, spool, suffix):
        out = begun(suffix)
        mdio.append(halves[1], out)
        assert (frames_of(out) == positions).all()
        assert mdio.verify(out).ok
        left = names(out.removeprefix("s3://bucket/"))
        assert not [name for name in left if outputs.MARK_NAME in name or outputs.STAGE in name]
        assert not list(spool.glob("mdio-*/*"))
        manifest = mdio.open(out).manifest
        assert outputs.REDIRECT_KEY not in manifest

    @pytest.mark.parametrize("suffix", [".zarr", ".segments"])
    def test_sends_what_is_new(self, begun, halves, between, suffix):
        out = begun(suffix)
        mdio.append(halves[1], out)
        kept = ("position/value/c.0.", "seg-000000")
        assert not [name for name in put_names(between) if any(part in name for part in kept)]

    def test_is_a_tree_for_zarr_python(self, begun, halves, positions, names, client, tmp_path):
        out = begun(".zarr")
        mdio.append(halves[1], out)
        for name in names(out.removeprefix("s3://bucket/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            client.download_file("bucket", name, str(tmp_path / name))
        tree = zarr.open_group(tmp_path / out.removeprefix("s3://bucket/"), mode="r")
        assert (tree["particles/trajectory/position/value"][:] == positions).all()

    def test_readers_see_the_old_one_or_the_new_one(self, begun, halves, positions, monkeypatch):
        out = begun(".zarr")
        seen = []

        def looking(function):
            def looks(*args, **how):
                seen.append(len(frames := frames_of(out)))
                assert (frames == positions[: len(frames)]).all()
                return function(*args, **how)

            return looks

        opened = mdio.open(out)
        with monkeypatch.context() as patch:
            for name in ("copy", "put"):
                patch.setattr(outputs, name, looking(getattr(outputs, name)))
            mdio.append(halves[1], out)
        assert set(seen) == {65, 98}
        assert seen == sorted(seen)
        assert (opened.read(0, 65).positions == positions[:65]).all()

    def test_who_opened_it_between_reads_on_afterwards(self, begun, halves, positions, monkeypatch):
        out = begun(".zarr")
        opened, copy = [], outputs.copy

        def opens(source, target):
            copy(source, target)
            opened.append(mdio.open(out))
            _ = opened[-1].info

        with monkeypatch.context() as patch:
            patch.setattr(outputs, "copy", opens)
            mdio.append(halves[1], out)
        for one in (opened[0], opened[-1]):
            assert (one.read(0, 98).positions == positions).all()

    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_by_another_meanwhile(
        self, begun, halves, positions, suffix, elsewhere, monkeypatch, tmp_path
    ):
        out = begun(suffix)
        seen = []

        def progress(*_):
            if not seen:
                with monkeypatch.context() as patch:
                    if elsewhere:
                        patch.setattr(tempfile, "tempdir", str(tmp_path))
                    seen.append(_ending(lambda: mdio.append(halves[1], out)))

        seen.append(_ending(lambda: appending(halves[1], out, progress)))
        (error,) = [one for one in seen if one is not None]  # the other one was done
        assert re.search(
            "another run|is not finished there|was replaced|changed while it was read", error
        )
        assert (frames_of(out) == positions).all()
        assert mdio.verify(out).ok

    @pytest.mark.parametrize("suffix", [".zarr", ".h5md"])
    def test_by_another_at_the_last_moment(
        self, begun, halves, positions, monkeypatch, suffix, tmp_path
    ):
        out = begun(suffix)
        name = "finish" if suffix == ".zarr" else "put_object"
        last = getattr(outputs.StoredOutput, name)

        def late(*args, **how):
            with monkeypatch.context() as patch:
                patch.setattr(outputs.StoredOutput, name, last)
                patch.setattr(tempfile, "tempdir", str(tmp_path))
                if suffix == ".zarr":  # who took the mark for that of a dead run
                    outputs.delete([to_path(out) / outputs.MARK_NAME])
                mdio.append(halves[1], out)
            last(*args, **how)

        with monkeypatch.context() as patch:
            patch.setattr(outputs.StoredOutput, name, late)
            with pytest.raises(OutputError, match="another run has"):
                mdio.append(halves[1], out)
        assert (frames_of(out) == positions).all()
        assert mdio.verify(out).ok


class TestDeadRuns:
    @pytest.fixture
    def killed(self, begun, halves, between, spool):
        """What adds frames is killed when it has sent so many objects of them."""

        def kill(suffix, n_sent):
            out = begun(suffix)
            code = "import sys; from mdio.cli.main import main; sys.exit(main(sys.argv[1:]))"
            words = [sys.executable, "-c", code, "append", str(halves[1]), out]
            between.latency_s = 0.05
            process = subprocess.Popen(words, env=os.environ | {"TMPDIR": str(spool)})
            while len(put_names(between)) < n_sent:
                assert process.poll() is None
                time.sleep(0.005)
            process.kill()
            process.wait()
            between.latency_s = 0.0
            assert len(frames_of(out)) == 65
            return out

        return kill

    def test_are_named_and_removed_with_force(self, killed, halves, positions, names):
        out = killed(".zarr", 4)
        with pytest.raises(OutputError, match=r"begun 20.* UTC is not finished there.*--force"):
            mdio.append(halves[1], out)
        assert len(frames_of(out)) == 65
        assert main(["append", str(halves[1]), out, "--force", "--quiet"]) == 0
        assert (frames_of(out) == positions).all()
        left = names(out.removeprefix("s3://bucket/"))
        assert not [name for name in left if outputs.MARK_NAME in name or outputs.STAGE in name]

    def test_are_gone_on_with(self, killed, halves, positions, between):
        out = killed(".zarr", 4)
        assert main(["append", str(halves[1]), out, "--resume", "--quiet"]) == 0
        assert (frames_of(out) == positions).all()
        assert mdio.verify(out).ok

    @pytest.mark.parametrize("n_calls", [0, 1, 2, 5, -1])
    @pytest.mark.parametrize("suffix", [".zarr", ".segments"])
    def test_that_die_in_the_exchange(
        self, begun, halves, positions, names, monkeypatch, suffix, n_calls
    ):
        out = begun(suffix)
        calls = []

        def dies(name):
            call = getattr(outputs, name)

            def dead(*args, **how):
                if how.get("replaces") is not None or calls or name == "delete":
                    calls.append(name)
                if len(calls) > n_calls >= 0 or (n_calls < 0 and name == "delete"):
                    raise SystemExit(9)
                return call(*args, **how)

            return dead

        exchange = outputs.StoredOutput._exchange

        def exchanging(*args, **how):
            with monkeypatch.context() as patch:
                for name in ("put", "copy", "delete"):
                    patch.setattr(outputs, name, dies(name))
                exchange(*args, **how)

        with monkeypatch.context() as patch:
            patch.setattr(outputs.StoredOutput, "_exchange", exchanging)
            patch.setattr(outputs.StoredOutput, "remove_sent", lambda _: None)
            with pytest.raises(SystemExit):
                mdio.append(halves[1], out)
        seen = frames_of(out)
        assert len(seen) == (98 if n_calls else 65)
        assert (seen == positions[: len(seen)]).all()
        # Whoever writes it next finishes this; the frames are there then.
        assert mdio.append(halves[1], out).found_complete
        assert (frames_of(out) == positions).all()
        assert mdio.verify(out).ok
        left = names(out.removeprefix("s3://bucket/"))
        assert not [name for name in left if outputs.MARK_NAME in name or outputs.STAGE in name]


class TestRepair:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_of_what_is_damaged(self, begun, halves, client, positions, between, suffix, names):
        out = begun(suffix)
        whole = out.removeprefix("s3://bucket/")
        wanted = {".zarr": "position/value/c.3.0.0", ".segments": "seg-000001.dcd", ".h5md": ""}
        (key,) = [name for name in names(whole) if name.endswith(wanted[suffix])]
        data = bytearray(client.get_object(Bucket="bucket", Key=key)["Body"].read())
        data[len(data) // 2] ^= 32
        client.put_object(Bucket="bucket", Key=key, Body=bytes(data))
        objects._answers.clear()
        uuid = json.loads(json.dumps(mdio.open(out).manifest))["uuid"]
        assert not mdio.verify(out).ok
        looked = mdio.repair(out)
        assert looked.bad
        assert not looked.repaired
        between.log.clear()
        assert main(["repair", out, "--against", str(halves[0])]) == 0
        assert (frames_of(out) == positions[:65]).all()
        assert mdio.verify(out).ok
        assert mdio.open(out).manifest["uuid"] == uuid
        assert mdio.open(out).manifest["repaired"]
        if suffix == ".zarr":
            shards = [name for name in put_names(between) if "position/value/c." in name]
            assert {name.rpartition("/")[2] for name in shards} == {"c.3.0.0"}


def test_following_into_a_store(bucket, adk, tmp_path, positions):
    out = f"{bucket}/followed.zarr"
    growing = tmp_path / "growing.xtc"
    data = adk["xtc"].read_bytes()
    growing.write_bytes(data[: len(data) // 2])
    seen = []

    def published(n_frames):
        seen.append(n_frames)
        growing.write_bytes(data)

    follow(
        growing,
        out,
        every_s=0.0,
        until_idle_s=20.0,
        n_frames=98,
        published=published,
        storage=mdio.Storage(chunk_frames=10),
    )
    assert seen[0] < 98
    assert seen[-1] == len(frames_of(out)) == 98
    assert np.abs(frames_of(out) - positions).max() < 0.01
    assert mdio.verify(out).ok


def appending(source, out, progress):
    how = ConversionOptions.of(append=True)
    prepare(source, out, how, Serial()).run(Serial(), progress=progress)


def _ending(call):
    try:
        call()
    except MdioError as error:
        return str(error)
    return None


def test_a_program_goes_on(bucket):
    out = f"{bucket}/goes-on-program.zarr"
    for n in range(2):
        with mdio.Writer(out, append=True) as writer:
            for _ in range(3):
                writer.write_block(np.full((5, 3), n, "f4"))
                writer.flush()
        assert writer.result.out == out
    with mdio.open(out) as layout:
        assert layout.read(0, 6).time.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(OutputError, match="exists already; go on with it"):
        mdio.Writer(out)
