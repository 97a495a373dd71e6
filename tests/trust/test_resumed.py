"""A few of the random ends, of which resumed.py --rounds does more; SIGTERM amid a long task."""

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from resumed import told
from suites.under_mpi import MPI, needs_mpi, patience

import mdio
from mdio.cli import split
from mdio.cli.convert import _print_summary
from mdio.converters import convert, storage
from mdio.core.errors import OutputError
from mdio.core.files.journal import Journal, find_unfinished

ROUNDS = "24"
STOPPING = str(Path(__file__).with_name("stopping.py"))
PATIENCE_S = 60
LONG = 5
"""The piece that takes an hour."""


def stored(folder):
    """Return the frames that are in the journal of the run in this folder."""
    left = [find_unfinished(path.with_suffix(".tmp")) for path in folder.glob(".*.journal")]
    return sum(one.n_frames for one in left if one is not None)


@pytest.fixture(scope="module")
def whole(adk, tmp_path_factory):
    """Return what a conversion makes that is left alone."""

    @functools.cache
    def made(name):
        out = tmp_path_factory.mktemp("whole") / name
        words = [sys.executable, STOPPING, "never", "0", *words_for(adk, out)]
        subprocess.run(words, check=True)
        return told(out)

    return made


def words_for(adk, out):
    return ["convert", str(adk["dcd"]), str(out), "--chunk-frames", "4", "--quiet"]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("processes", "a.zarr"),
        ("processes", "a.h5md"),
        pytest.param("mpi", "a.zarr", marks=needs_mpi),
        pytest.param("mpi", "a.h5md", marks=needs_mpi),
        pytest.param("rank 0", "a.zarr", marks=needs_mpi),
        ("dask", "a.zarr"),
    ],
)
def test_sigterm_ends_a_conversion_that_can_be_gone_on_with(adk, tmp_path, whole, how, name):
    out = tmp_path / name
    ways = {"processes": ["-w", "2"], "dask": ["--executor", "dask", "-w", "2"]}
    launched = [sys.executable] if how in ways else [MPI[0], "-n", "2", MPI[1]]
    words = words_for(adk, out)
    process = subprocess.Popen(
        [*launched, STOPPING, "long", str(LONG), *words, *ways.get(how, ["--mpi"])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (patience() if how in ("mpi", "rank 0") else {}),
    )
    until = time.monotonic() + PATIENCE_S
    while not stored(tmp_path) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    n_stored = stored(tmp_path)
    try:
        if how == "rank 0":  # as a batch system may do; its number is in the temporary's name
            [temporary] = tmp_path.glob(".*.tmp")
            os.kill(int(temporary.name.split("-")[-2]), signal.SIGTERM)
        else:
            process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=PATIENCE_S)[1]
    finally:
        process.kill()
    assert 0 < n_stored < 98, err
    assert not out.exists() and stored(tmp_path) >= n_stored, err
    if how == "rank 0":
        assert "use --resume to continue" in err, err
    again = [sys.executable, STOPPING, "never", "0", *words, "--resume"]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, expected = told(out), whole(name)
    assert found.keys() == expected.keys()
    assert [key for key in found if found[key] != expected[key]] == []
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_conversions_that_were_ended_are_gone_on_with():
    words = [sys.executable, str(Path(__file__).with_name("resumed.py")), "--rounds", ROUNDS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["failures"] == [] and told["rounds"] == int(ROUNDS)
    assert told["seen"]["gone on with"] > 0


def test_pieces_of_an_owner_that_alone_writes_are_gone_on_with_by_others(
    adk, tmp_path, monkeypatch, capsys
):
    """On some file systems rank 0 alone writes, in smaller pieces than there would be."""
    out, add, said = tmp_path / "a.h5md", Journal.add, []

    def full(self, record, files):
        add(self, record, files)
        said.append(record.n_frames)
        if len(said) == 3:
            raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as there:
        there.setattr(convert, "is_written_by_owner", lambda *_: True)
        there.setattr(storage, "PIECE_FOR_OWNER_NBYTES", 1 << 19)
        there.setattr(Journal, "add", full)
        with pytest.raises(OutputError, match="use --resume to continue"):
            mdio.convert(adk["dcd"], out, storage=mdio.Storage(chunk_frames=4))
    monkeypatch.setattr(Journal, "add", lambda self, record, _: said.append(record.n_frames))
    result = mdio.convert(adk["dcd"], out, storage=mdio.Storage(chunk_frames=4), resume=True)
    assert said == [12] * 8 + [2]
    assert "36 of 98 frames taken from an earlier run" in result.plan.notes
    _print_summary(replace(result, seconds=1.0))
    assert "98 frames of" in (printed := capsys.readouterr().out) and "(62 frames/s" in printed
    for print_summary in (_print_summary, split._print_summary):
        print_summary(replace(result, resumed_frames=98))
        assert "98 frames" in (printed := capsys.readouterr().out) and "/s" not in printed
    assert mdio.verify(out, adk["dcd"]).ok
