"""Shards and segments go into a store as they are made, and leave this machine."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.core.errors import OutputError
from mdio.core.files.remote import objects, outputs, uploading
from mdio.layouts import plan

pytestmark = pytest.mark.usefixtures("spool", "nothing_fails", "in_small_pieces")
OPTIONS = {"chunk_frames": 7, "precision": "none", "compression": "none"}
PIECE_NBYTES = 7 * 12 * 3341


@pytest.fixture
def in_small_pieces(monkeypatch):
    monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1)
    monkeypatch.setattr(plan, "MAX_PIECE_NBYTES", 1)
    monkeypatch.setattr(uploading, "SMALL_NBYTES", 1 << 16)


def here_nbytes(spool):
    total = 0
    for path in spool.rglob("*"):
        with suppress(FileNotFoundError):  # it has just been sent
            total += 512 * path.stat().st_blocks if path.is_file() else 0
    return total


def shards(between):
    """Return the names of those that were sent, in order."""
    paths = [path.split("?")[0] for method, path, _ in between.log if method == "PUT"]
    paths = [path for path in paths if "position/value/c." in path]
    new = [path for path in paths if outputs.STAGE in path]  # the others are copies of these
    return [Path(path).name for path in new or paths]


def positions_in(url):
    objects._answers.clear()
    with mdio.open(url) as layout:
        return layout.read(0, 98).positions


@pytest.mark.parametrize("split", [False, True], ids=["zarr", "segments"])
def test_little_of_it_is_here_at_a_time(bucket, adk, positions, spool, monkeypatch, split):
    monkeypatch.setattr(uploading, "MAX_UNSENT_NBYTES", 2 * PIECE_NBYTES)
    seen, put = [], uploading.put

    def noted(target, data):
        put(target, data)
        seen.append(here_nbytes(spool))

    monkeypatch.setattr(uploading, "put", noted)
    if split:
        made = mdio.split(adk["dcd"], out := f"{bucket}/little.segments", 14)
    else:
        made = mdio.convert(adk["dcd"], out := f"{bucket}/little.zarr", **as_options(OPTIONS))
    assert len(seen) > 14
    # Those that wait, the one that is being made, and what is small.
    assert max(seen) < 5 * PIECE_NBYTES < made.nbytes_out / 2
    assert np.array_equal(positions_in(out), positions)
    assert mdio.verify(out).ok
    assert not list(spool.glob("mdio-*/*"))


def test_what_does_not_fit_on_the_disk_is_made(bucket, adk, monkeypatch):
    room = mdio.converters.strategies.conversion.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr("mdio.converters.strategies.conversion.shutil.disk_usage", lambda _: room)
    assert mdio.convert(adk["dcd"], f"{bucket}/room.zarr", **as_options(OPTIONS)).n_frames == 98
    with pytest.raises(OutputError, match="only 1000 are free"):
        mdio.convert(adk["dcd"], f"{bucket}/room.h5md")


@pytest.fixture
def stopped(bucket, adk, spool, between):
    """What begins an output of this name, and stops when some of it has been sent."""

    def stop(out, **how):
        done = 0

        def progress(n, _):
            nonlocal done
            done += n
            if done == 70:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mdio.convert(adk["dcd"], out, progress=progress, **as_options({**OPTIONS, **how}))
        sent = shards(between)
        assert len(sent) >= 5
        assert here_nbytes(spool) < (11 - len(sent)) * PIECE_NBYTES  # they are not here
        return sent

    return stop


@pytest.mark.parametrize("force", [False, True], ids=["new", "in place of another"])
def test_is_gone_on_with(bucket, adk, positions, between, stopped, force):
    out = f"{bucket}/gone-on-{force}.zarr"
    if force:
        mdio.convert(adk["xtc"], out)
        between.log.clear()
    sent = stopped(out, force=force)
    mdio.convert(adk["dcd"], out, resume=True, force=force, **as_options(OPTIONS))
    assert sorted(shards(between)) == sorted(f"c.{n}.0.0" for n in range(14))
    assert set(sent) <= set(shards(between))
    assert np.array_equal(positions_in(out), positions)
    assert mdio.verify(out).ok


def test_is_not_gone_on_with_where_some_of_it_is_lost(
    bucket, adk, positions, client, between, stopped
):
    out = f"{bucket}/some_lost.zarr"
    sent = stopped(out)
    name = f"some_lost.zarr/particles/trajectory/position/value/{sent[-1]}"
    client.delete_object(Bucket="bucket", Key=name)
    try:  # unless it had been flushed, it is made again
        mdio.convert(adk["dcd"], out, resume=True, **as_options(OPTIONS))
    except OutputError as error:
        assert f"{out}: what an earlier run has left is not what its journal tells" in str(error)
        mdio.convert(adk["dcd"], out, force=True, **OPTIONS)
    assert np.array_equal(positions_in(out), positions)
    assert mdio.verify(out).ok


def test_a_store_that_takes_no_manifest_is_told_with_the_way_out(
    bucket, adk, positions, between, monkeypatch
):
    def refuses(*_):
        raise PermissionError(13, "the store refuses it")

    out = f"{bucket}/refused.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(outputs.StoredOutput, "put_manifest", refuses)
        with pytest.raises(
            OutputError, match=r"refuses it.*98 of 98 frames.*use --resume to continue"
        ):
            mdio.convert(adk["dcd"], out, **as_options(OPTIONS))
    sent = shards(between)
    mdio.convert(adk["dcd"], out, resume=True, **as_options(OPTIONS))
    assert shards(between) == sent
    assert np.array_equal(positions_in(out), positions)
