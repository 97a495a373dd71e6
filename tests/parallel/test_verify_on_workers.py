"""`mdio verify` finds the same, whoever shares its work."""

import json
import os
import shutil
import signal

import pytest
from suites.outputs import as_options
from suites.under_mpi import needs_mpi, run_under_mpi

import mdio
from mdio.cli.main import main
from mdio.converters.verify import sample
from mdio.core.errors import MdioError

KINDS = {
    "a.zarr": {"chunk_frames": 7, "precision": "none"},
    "a.h5md": {"chunk_frames": 7},
    "a.segments": {"segments": 9},
    "a.xtc": {},
}


@pytest.fixture(scope="module", params=KINDS)
def damaged(adk, tmp_path_factory, request):
    """An output of the last 90 frames with damage in its middle; and it, whole."""
    whole = tmp_path_factory.mktemp("whole") / request.param
    mdio.convert(adk["dcd"], whole, start=8, **as_options(KINDS[request.param]))
    out = tmp_path_factory.mktemp("damaged") / request.param
    (shutil.copytree if whole.is_dir() else shutil.copy)(whole, out)
    files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    victim = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = b"\xff" * 64
    victim.write_bytes(data)
    return out, whole


@pytest.fixture(scope="module")
def client():
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        yield client


def said(capsys, *words):
    """Return the exit code and what was found."""
    code = main(["verify", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_same_from_all(adk, damaged, client, capsys, monkeypatch):
    monkeypatch.setattr("mdio.converters.verify.BLOCK_NBYTES", 10 * 12 * 3341)
    for out, code in zip(damaged, (1, 0), strict=True):
        # A native file does not say which frames it should have: the source is for the others.
        source = () if out.suffix == ".xtc" else ("--against", adk["dcd"])
        alone = said(capsys, out, *source)
        assert alone[0] == code and alone[1]["ok"] == (not code)
        assert alone[1]["frames_compared"] == (0 if not source else 90) or code
        some = said(capsys, out, *source, "--part", "2/3")
        for how in (("-w", 3), ("--scheduler", client.scheduler.address)):
            assert said(capsys, out, *source, *how) == alone
            assert said(capsys, out, *source, "--part", "2/3", *how) == some


@needs_mpi
def test_same_from_ranks(adk, damaged, capsys):
    for out in damaged:
        source = () if out.suffix == ".xtc" else ("--against", adk["dcd"])
        words = (out, *source, "--sample", "50%")
        started = ("-m", "mdio.cli.main", "verify", *words, "--json", "--mpi")
        code, text, err = run_under_mpi(3, *started)
        assert (code, json.loads(text)) == said(capsys, *words), err


@needs_mpi
def test_conversions_are_verified_by_all_ranks(adk, tmp_path):
    words = ("convert", adk["dcd"], tmp_path / "a.zarr", "--mpi", "--verify", "--json")
    code, text, err = run_under_mpi(3, "-m", "mdio.cli.main", *words)
    assert code == 0, err
    assert json.loads(text)["verify"]["frames_compared"] == 98


@needs_mpi
def test_what_cannot_be_opened_is_said_once(adk, tmp_path):
    (tmp_path / "a.zarr").mkdir()
    words = ("verify", tmp_path / "a.zarr", "--mpi")
    code, text, err = run_under_mpi(3, "-m", "mdio.cli.main", *words)
    assert (code, text) == (1, "") and err.count("zarr.json") == 1, err


class Deadly:
    """Wants every unit; the worker that is first asked for number 5 is killed."""

    def __init__(self, mark):
        self.mark, self.owner = mark, os.getpid()

    def __call__(self, number):
        if number == 5 and os.getpid() != self.owner and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(1.0)(number)


@pytest.mark.filterwarnings("default")  # dask's own
def test_the_units_of_a_lost_dask_worker_are_checked_by_others(adk, client, tmp_path):
    out, mark = tmp_path / "a.zarr", tmp_path / "killed"
    mdio.convert(adk["dcd"], out, storage=mdio.Storage(chunk_frames=7))
    (chunk := max(out.rglob("c.*"), key=lambda path: path.stat().st_size)).write_bytes(b"none")
    alone = mdio.verify(out)
    assert not alone.ok and chunk.name in alone.bad[0]
    found = mdio.verify(out, wanted=Deadly(mark), executor=mdio.DaskExecutor(client))
    assert found == alone and mark.exists()


def test_a_worker_process_that_is_killed_is_told(adk, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(adk["dcd"], out, storage=mdio.Storage(chunk_frames=7))
    with mdio.Processes(2) as executor, pytest.raises(MdioError, match=r"units \d+ to \d+"):
        mdio.verify(out, wanted=Deadly(tmp_path / "killed"), executor=executor)
