"""What is written into a store is what is written to a disk, is there whole or not, and alone."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import obstore
import pytest
import zarr
from MDAnalysisTests import datafiles
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files import publish as publishing
from mdio.core.files.remote import objects, outputs, uploading
from mdio.layouts import plan

SUFFIXES = (".zarr", ".h5md", ".segments", ".dcd", ".xtc", ".trr", ".ncdf")


pytestmark = pytest.mark.usefixtures("spool", "nothing_fails")


def put_names(between):
    """Return the names of objects that were written, in order."""
    paths = [path.split("?")[0] for method, path, _ in between.log if method == "PUT"]
    return [path.removeprefix("/bucket/") for path in paths]


def looks_like(url, positions, bound=0.01):
    objects._answers.clear()
    with mdio.open(url) as layout:
        return np.abs(layout.read(0, 98).positions - positions).max() < bound


def stopping_after(n_frames):
    done = 0

    def progress(n, _):
        nonlocal done
        done += n
        if done >= n_frames:
            raise KeyboardInterrupt

    return progress


class TestOutputs:
    def test_are_never_larger_than_their_xtc(self, bucket):
        source = Path(datafiles.XTC)  # a protein in water, which bitpack leaves as large as it is
        made = mdio.convert(source, f"{bucket}/water.zarr")
        assert made.plan.compression == "rigid"
        assert made.nbytes_out < 0.75 * source.stat().st_size
        with mdio.open(source) as one, mdio.open(made.out) as other:
            np.testing.assert_array_equal(one.read(0, 10).positions, other.read(0, 10).positions)

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_are_those_of_a_disk(self, bucket, adk, positions, names, spool, suffix):
        out = f"{bucket}/made{suffix}"
        for force in (False, True):
            made = mdio.convert(adk["dcd"], out, top=adk["psf"], select="all", force=force)
            assert made.out == out
            assert looks_like(out, positions)
            assert mdio.verify(out).ok
        left = names(f"made{suffix}")
        assert not [name for name in left if outputs.MARK_NAME in name or outputs.STAGE in name]
        assert not list(spool.glob("mdio-*/*"))

    def test_zarr_as_zarr_python_sees_it(self, bucket, adk, positions, client, tmp_path, names):
        mdio.convert(adk["dcd"], f"{bucket}/seen.zarr", precision="none", compression="none")
        for name in names("seen.zarr/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            client.download_file("bucket", name, str(tmp_path / name))
        tree = zarr.open_group(tmp_path / "seen.zarr", mode="r")
        assert (tree["particles/trajectory/position/value"][:] == positions).all()

    @pytest.mark.parametrize("suffix", [".zarr", ".segments"])
    def test_manifest_is_the_last_of_them(self, bucket, adk, between, suffix):
        mdio.convert(adk["dcd"], f"{bucket}/order{suffix}")
        sent = put_names(between)
        manifest = "zarr.json" if suffix == ".zarr" else "manifest.json"
        assert sent[0].endswith(outputs.MARK_NAME)
        assert sent[-1] == f"order{suffix}/{manifest}"

    @pytest.mark.parametrize("suffix", [".zarr", ".segments"])
    def test_are_not_found_before_they_have_been_read_back(
        self, bucket, adk, between, monkeypatch, suffix
    ):
        passed_on = between._passed_on

        def damaged(request, body):
            status, headers, data = passed_on(request, body)
            of_frames = "value/c." in request.path or "/000/" in request.path
            if request.command == "GET" and of_frames and data:
                data = bytes(len(data))
            return status, headers, data

        monkeypatch.setattr(between, "_passed_on", damaged)
        with pytest.raises(OutputError, match="does not read back as it was written"):
            mdio.convert(adk["dcd"], f"{bucket}/wrong{suffix}")
        at_the_top = [name for name in put_names(between) if name.count("/") == 1]
        names = [Path(name).name for name in at_the_top if "checksums" not in name]
        assert names == [outputs.MARK_NAME]

    def test_each_is_sent_once(self, bucket, adk, between, monkeypatch):
        monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1 << 19)
        monkeypatch.setattr(between, "latency_s", 0.1)  # some are on their way at the end
        mdio.convert(adk["dcd"], f"{bucket}/once.zarr", storage=mdio.Storage(chunk_frames=4))
        sent = put_names(between)
        assert sum("/value/c." in name for name in sent) > 8
        assert sorted(sent) == sorted(set(sent))

    def test_few_requests_beside_those_that_send(self, bucket, adk, between):
        mdio.convert(adk["dcd"], f"{bucket}/few.zarr", storage=mdio.Storage(chunk_frames=10))
        sent = put_names(between)
        assert len(sent) == len(set(sent))
        # What is there, and whether it is an object; once more when it is marked; the mark before
        # a shard and before the small objects; the list, mark and look at the end.
        others = [one for one in between.log if one[0] != "PUT"]
        assert len(others) <= 19

    @pytest.mark.parametrize("told", [None, "", "another"])
    def test_a_manifest_that_was_damaged_on_its_way_is_none(
        self, bucket, adk, monkeypatch, names, told
    ):
        send = outputs.put

        def damages(target, data, **options):
            wrong = target.name == "zarr.json" and isinstance(data, bytes)
            tag = send(target, data[:-1] + b" " if wrong else data, **options)
            return tag if told is None or not wrong else told

        monkeypatch.setattr(outputs, "put", damages)
        with pytest.raises(OutputError, match=r"bad-.*zarr/zarr\.json.*not what was sent"):
            mdio.convert(adk["dcd"], f"{bucket}/bad-{told}.zarr")
        assert f"bad-{told}.zarr/zarr.json" not in names("bad")

    def test_shards_are_sent_while_others_are_made(self, bucket, adk, between):
        """The last piece waits until a shard has been asked for that was made before it."""
        done = 0

        def progress(n, _):
            nonlocal done
            done += n
            until = time.monotonic() + 60
            while done == 98 and len(put_names(between)) < 2:
                assert time.monotonic() < until
                time.sleep(0.01)

        mdio.convert(
            adk["dcd"],
            f"{bucket}/while.zarr",
            storage=mdio.Storage(chunk_frames=10),
            progress=progress,
        )
        assert put_names(between)[0].endswith(outputs.MARK_NAME)

    def test_topologies_beside(self, bucket, adk, names):
        options = {"top": adk["psf"], "select": "name CA"}
        made = mdio.convert(adk["dcd"], f"{bucket}/some.h5md", **options)
        assert made.topologies == (f"{bucket}/some.top.pdb",)
        assert names("some.") == ["some.h5md", "some.top.pdb"]
        other = {"top": adk["psf"], "select": "name CB", "force": True}
        made = mdio.convert(adk["dcd"], f"{bucket}/some.xtc", **other)  # that of another stays
        assert made.topologies == (f"{bucket}/some.xtc.top.pdb",)

    def test_of_dasks_workers(self, bucket, adk, positions):
        from dask.distributed import Client, LocalCluster

        with (
            LocalCluster(2, threads_per_worker=1, processes=False, dashboard_address=":0") as made,
            Client(made) as client,
        ):
            executor = mdio.DaskExecutor(client)
            mdio.convert(adk["dcd"], f"{bucket}/dask.zarr", executor=executor)
        assert looks_like(f"{bucket}/dask.zarr", positions)

    def test_command_line(self, bucket, adk, capsys, names):
        out = f"{bucket}/line.zarr"
        assert main(["convert", str(adk["dcd"]), out, "-w", "2", "--verify"]) == 0
        assert main(["convert", str(adk["dcd"]), out]) == 1
        assert f"{out}: it exists already" in capsys.readouterr().err
        table = f"{bucket}/rgyr.csv"
        assert main(["analyze", "rgyr", out, "-s", str(adk["psf"]), "-o", table]) == 0
        assert names("rgyr") == ["rgyr.csv"]


class TestReplacing:
    def test_former_output_stays_until_the_new_one_is_whole(
        self, bucket, adk, positions, between, monkeypatch
    ):
        out = f"{bucket}/replaced.zarr"
        mdio.convert(adk["dcd"], out)
        between.log.clear()

        def fails(*_):
            raise OSError(5, "no room")

        with monkeypatch.context() as patch:
            patch.setattr(outputs.StoredOutput, "_exchange", fails)
            with pytest.raises(OutputError, match="no room"):
                mdio.convert(adk["dcd"], out, force=True, storage=mdio.Storage(chunk_frames=7))
        stage, mark = outputs.STAGE, outputs.MARK_NAME
        assert all(stage in name or mark in name for name in put_names(between))
        assert looks_like(out, positions)
        mdio.convert(adk["dcd"], out, force=True, storage=mdio.Storage(chunk_frames=7))
        with mdio.open(out) as layout:
            assert layout.info.chunk_frames == 7

    def test_an_exchange_that_was_broken_off_is_finished(
        self, bucket, adk, positions, monkeypatch, names
    ):
        out = f"{bucket}/broken.zarr"
        mdio.convert(adk["dcd"], out)
        copied = []
        copy = outputs.copy

        def breaks_off(source, target):
            copied.append(target)
            if len(copied) > 5:
                raise OSError(5, "the line is dead")
            copy(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(outputs, "copy", breaks_off)
            with pytest.raises(OutputError, match="the line is dead"):
                mdio.convert(adk["dcd"], out, force=True, storage=mdio.Storage(chunk_frames=7))
        assert looks_like(out, positions)  # never a mixture: the new one, where it was sent
        with mdio.open(out) as layout:
            assert layout.info.chunk_frames == 7
        with pytest.raises(OutputError, match="exists already"):
            mdio.convert(adk["dcd"], out)
        assert looks_like(out, positions)
        with mdio.open(out) as layout:
            assert layout.info.chunk_frames == 7
        assert not [one for one in names("broken.zarr") if outputs.STAGE in one]

    def test_what_others_wrote_is_not(self, bucket, adk, client, names):
        client.put_object(Bucket="bucket", Key="others.zarr/zarr.json", Body=b"{}")
        client.put_object(Bucket="bucket", Key="others.zarr/data/c", Body=b"theirs")
        with pytest.raises(OutputError, match="objects below it that mdio did not write"):
            mdio.convert(adk["dcd"], f"{bucket}/others.zarr", force=True)
        assert len(names("others.zarr/")) == 2

    @pytest.mark.parametrize("suffix", [".zarr", ".segments"])
    @pytest.mark.parametrize("name", ["notes.txt", "deep/er/notes.txt"])
    def test_what_others_put_into_an_output_is_not(
        self, bucket, adk, client, names, between, suffix, name
    ):
        out = f"{bucket}/shared-{name.count('/')}{suffix}"
        key = out.removeprefix("s3://bucket/") + f"/{name}"
        mdio.convert(adk["dcd"], out, stop=50)
        client.put_object(Bucket="bucket", Key=key, Body=b"theirs")
        between.log.clear()
        refused = pytest.raises(OutputError, match=rf"holds {name.split('/')[0]}.* would be lost")
        with refused:
            mdio.append(adk["dcd"], out)
        with refused:
            mdio.convert(adk["dcd"], out, force=True)
        shard, *_ = [
            one for one in names(key.removesuffix(name)) if re.search("position/value/c|seg-", one)
        ]
        data = bytearray(client.get_object(Bucket="bucket", Key=shard)["Body"].read())
        data[len(data) // 2] ^= 32
        client.put_object(Bucket="bucket", Key=shard, Body=bytes(data))
        objects._answers.clear()
        with refused:
            mdio.repair(out, against=adk["dcd"])
        assert not put_names(between)
        assert key in names(key)
        client.delete_object(Bucket="bucket", Key=key)
        assert mdio.repair(out, against=adk["dcd"]).repaired
        assert mdio.append(adk["dcd"], out).n_frames == 98

    def test_what_others_put_there_meanwhile_is_not(self, bucket, adk, client, positions, names):
        out, key = f"{bucket}/visited.zarr", "visited.zarr/notes.txt"

        def progress(*_):
            client.put_object(Bucket="bucket", Key=key, Body=b"theirs")

        def fails(*_):
            progress()
            raise RuntimeError

        with pytest.raises(RuntimeError):
            mdio.convert(adk["dcd"], out, progress=fails)
        client.put_object(
            Bucket="bucket",
            Key=f"visited.zarr/{outputs.MARK_NAME}",
            Body=b'{"token": "%s"}' % (b"0" * 16),
        )
        mdio.convert(adk["dcd"], out, progress=progress, force=True)
        assert looks_like(out, positions)
        assert key in names(key)
        client.delete_object(Bucket="bucket", Key=key)
        with pytest.raises(OutputError, match=r"holds notes\.txt.* would be lost"):
            mdio.convert(adk["dcd"], out, progress=progress, force=True, stop=10)
        assert looks_like(out, positions)
        assert key in names(key)

    def test_a_source_is_not(self, bucket, adk):
        mdio.convert(adk["dcd"], f"{bucket}/source.zarr")
        with pytest.raises(OutputError, match="the output is the source"):
            mdio.convert(f"{bucket}/source.zarr", f"{bucket}/source.zarr", force=True)

    def test_web_servers_are_not_written_to(self, adk):
        with pytest.raises(PlanError, match="web servers are read from, not written to"):
            mdio.convert(adk["dcd"], "https://host/a.xtc")

    def test_parts_whose_answer_was_lost_are_sent_again(self, bucket, adk, positions, monkeypatch):
        sent, put = [], obstore.put

        def loses(store, name, data, **how):
            found = put(store, name, data, **how)
            sent.append(name)
            if sent.count(name) == 1 and "position/value/c." in name:
                raise FileNotFoundError("no such upload")
            return found

        with monkeypatch.context() as patch:
            patch.setattr(obstore, "put", loses)
            mdio.convert(adk["dcd"], f"{bucket}/lost.zarr")
        assert looks_like(f"{bucket}/lost.zarr", positions)

    @pytest.mark.parametrize("name", ["a.zarr", "a.segments", "a.h5md", "a.xtc"])
    def test_what_is_sent_is_not_flushed_here(self, bucket, adk, monkeypatch, name):
        flushed = []
        monkeypatch.setattr(publishing, "flush_tree", flushed.append)
        mdio.convert(adk["xtc"], f"{bucket}/unflushed-{name}")
        assert flushed == []

    def test_no_such_bucket(self, bucket, adk):
        with pytest.raises(OutputError, match=r"s3://nothere/a\.zarr.*there is no such bucket"):
            mdio.convert(adk["dcd"], "s3://nothere/a.zarr")


class TestUnfinished:
    def test_is_none_and_is_gone_on_with(self, bucket, adk, positions, between):
        out = f"{bucket}/resumed.zarr"
        options = {"chunk_frames": 10, "precision": "none"}
        with pytest.raises(KeyboardInterrupt):
            mdio.convert(adk["dcd"], out, progress=stopping_after(90), **as_options(options))
        with pytest.raises(MdioError, match="no such object"):
            mdio.open(out)
        objects._answers.clear()
        with pytest.raises(OutputError, match="is not finished there"):
            mdio.convert(adk["dcd"], out, **as_options(options))
        mdio.convert(adk["dcd"], out, resume=True, **as_options(options))
        assert looks_like(out, positions)
        shards = [name for name in put_names(between) if "position/value/c." in name]
        assert len(shards) == len(set(shards)) > 0

    @pytest.mark.parametrize("name", ["whole.zarr", "whole.h5md", "whole.segments", "whole.trr"])
    def test_is_not_what_is_complete(self, bucket, adk, between, name):
        out = f"{bucket}/{name}"
        mdio.convert(adk["dcd"], out)
        between.log.clear()
        result = mdio.convert(adk["dcd"], out, resume=True)
        assert result.found_complete and not put_names(between)
        if name != "whole.trr":  # it has no manifest
            with pytest.raises(OutputError, match=r"made differently.*stop"):
                mdio.convert(adk["dcd"], out, stop=5, resume=True)

    def test_one_file_is_told_by_its_url(self, bucket, adk, positions, monkeypatch):
        monkeypatch.setattr(plan, "MAX_PIECE_NBYTES", 10 * positions[0].nbytes)
        out = f"{bucket}/one.h5md"
        with pytest.raises(KeyboardInterrupt):
            mdio.convert(adk["dcd"], out, progress=stopping_after(90))
        with pytest.raises(OutputError, match=f"^{out}: an earlier run did not finish; "):
            mdio.convert(adk["dcd"], out)
        mdio.convert(adk["dcd"], out, resume=True)
        assert looks_like(out, positions)

    def test_of_a_run_that_was_killed(self, bucket, adk, positions, between, spool):
        out = f"{bucket}/killed.zarr"
        words = ["convert", str(adk["dcd"]), out, "--chunk-frames", "10"]
        code = "import sys; from mdio.cli.main import main; sys.exit(main(sys.argv[1:]))"
        between.latency_s = 0.3
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words], env=os.environ | {"TMPDIR": str(spool)}
        )
        while not any("position/value/c." in name for name in put_names(between)):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        between.latency_s = 0.0
        with pytest.raises(MdioError, match="no such object"):
            mdio.open(out)
        with pytest.raises(OutputError, match="is not finished there"):
            mdio.convert(adk["dcd"], out, storage=mdio.Storage(chunk_frames=10))
        mdio.convert(adk["dcd"], out, storage=mdio.Storage(chunk_frames=10), resume=True)
        assert looks_like(out, positions)

    def test_of_somebody_else_goes_with_force(self, bucket, adk, positions, client, names):
        out = f"{bucket}/dead.zarr"
        mark = json.dumps({"token": "0" * 16, "begun": "2026-01-01 00:00:00 UTC"}).encode()
        client.put_object(Bucket="bucket", Key=f"dead.zarr/{outputs.MARK_NAME}", Body=mark)
        client.put_object(Bucket="bucket", Key="dead.zarr/mdio/old/c", Body=b"left")
        with pytest.raises(OutputError, match="begun 2026-01-01 00:00:00 UTC is not finished"):
            mdio.convert(adk["dcd"], out)
        mdio.convert(adk["dcd"], out, force=True)
        assert looks_like(out, positions)
        assert "dead.zarr/mdio/old/c" not in names("dead.zarr/")

    def test_another_run_meanwhile(self, bucket, adk, client):
        key = f"raced.zarr/{outputs.MARK_NAME}"

        def progress(*_):
            client.put_object(Bucket="bucket", Key=key, Body=b'{"token": "another"}')

        with pytest.raises(OutputError, match="another run has begun to write it meanwhile"):
            mdio.convert(adk["dcd"], f"{bucket}/raced.zarr", progress=progress)

    @pytest.mark.parametrize("suffix", [".zarr", ".segments"])
    @pytest.mark.parametrize("when", ["_begin", "add", "finish", "fails"])
    def test_a_run_that_took_it_over_is_not_disturbed(
        self, bucket, adk, positions, monkeypatch, tmp_path, between, names, when, suffix
    ):
        out = f"{bucket}/taken-{when}{suffix}"
        options = {"chunk_frames": 10} if suffix == ".zarr" else {"segments": 5}
        monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1)
        monkeypatch.setattr(plan, "MAX_PIECE_NBYTES", 1)
        monkeypatch.setattr(uploading, "SMALL_NBYTES", 0)
        name = "finish" if when == "fails" else when
        call, left = getattr(uploading.Upload, name), []

        def taken_over(self, *args):
            if not left and (when == "_begin" or self._pool is not None):
                for future in list(self._in_flight):
                    self._wait_for(future)
                with monkeypatch.context() as patch:
                    patch.setattr(uploading.Upload, name, call)
                    patch.setattr(tempfile, "tempdir", str(tmp_path))
                    mdio.convert(adk["dcd"], out, force=True, **as_options(options))
                left.append(names(out.removeprefix("s3://bucket/")))
                between.log.clear()
                if when == "fails":
                    raise MdioError("it cannot be read any more")
            call(self, *args)

        monkeypatch.setattr(uploading.Upload, name, taken_over)
        wanted = {"_begin": "it appeared while", "fails": "any more"}.get(when, "another run has")
        with pytest.raises(MdioError, match=wanted):
            mdio.convert(adk["dcd"], out, start=1, **as_options(options))
        assert set(put_names(between)) <= {f"taken-{when}{suffix}/{outputs.MARK_NAME}"}
        assert names(out.removeprefix("s3://bucket/")) == left[0]
        assert looks_like(out, positions)
        assert mdio.verify(out).ok

    def test_errors_leave_nothing(self, bucket, adk, names, tmp_path, spool):
        cut = tmp_path / "damaged.xtc"
        data = bytearray(adk["xtc"].read_bytes())
        data[len(data) // 2 : len(data) // 2 + 4000] = bytes(4000)
        cut.write_bytes(data)
        with pytest.raises(MdioError):
            mdio.convert(cut, f"{bucket}/error.zarr", storage=mdio.Storage(chunk_frames=5))
        assert not names("error.zarr")
        assert not list(spool.glob("mdio-*/*"))

    def test_a_whole_output_that_was_not_taken_is_kept_here(self, bucket, adk, monkeypatch, spool):
        def refuses(target, *_, **__):
            raise PermissionError(13, "the store refuses it", str(target))

        monkeypatch.setattr(outputs, "put", refuses)
        with pytest.raises(OutputError, match=r"refuses it.*is whole in .*until the next run"):
            mdio.convert(adk["dcd"], f"{bucket}/kept.dcd")
        (kept,) = spool.glob("mdio-*/*/kept.dcd")
        assert mdio.open(kept).info.n_frames == 98


N_FAULTS = int(os.environ.get("MDIO_TEST_N_FAULTS", "100"))


def test_faults_end_in_a_whole_output_or_a_clear_error(bucket, adk, positions, between, names):
    """Requests that are not heard, or whose answers are lost; refusals; answers that are cut."""
    between.kinds = ("unheard", "unanswered", "503", "cut")
    begin = between.n_faults
    while between.n_faults < begin + N_FAULTS:
        for suffix in (".zarr", ".segments", ".h5md"):
            out = f"{bucket}/faults{suffix}"
            between.faults = between.random.choice([0.05, 0.4])
            try:
                mdio.convert(adk["dcd"], out, force=True, precision=None)
                done = True
            except MdioError as error:
                assert "faults" in str(error)
                done = False
            between.faults = 0.0
            objects._answers.clear()
            if done or names(f"faults{suffix}") == [f"faults{suffix}"]:
                assert looks_like(out, positions)
            else:
                with mdio.open(out) if _is_there(out) else _Nothing() as layout:
                    if layout is not None:
                        assert looks_like(out, positions)
    mdio.convert(adk["dcd"], out, force=True, precision=None)
    between.faults = 1.0
    with pytest.raises(MdioError, match="faults"):
        mdio.convert(adk["dcd"], out, force=True, precision=None)
    between.faults = 0.0
    assert looks_like(out, positions)


def _is_there(out):
    try:
        mdio.open(out).info  # noqa: B018
    except MdioError:
        return False
    return True


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        pass
