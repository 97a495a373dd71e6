"""``mdio convert --mpi --mpio`` and ``--collective``: one H5MD file by parallel HDF5."""

import json
import time

import pytest
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError

CLI = ("-m", "mdio.cli.main")
GZIP = ("--compression", "gzip:1")
ALONE = ("--hint", "romio_cb_write=disable")
"""Every rank writes for itself in a collective write: the others wait when it fails."""


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_equal_to_serial(adk, tmp_path, n_ranks):
    code, out, err = run_under_mpi(
        n_ranks, "-m", "mpi4py", CHECKS / "check_mpio.py", adk["xtc"], tmp_path
    )
    assert code == 0, out + err
    assert f"parallel HDF5 equals serial on {n_ranks} ranks" in out


@needs_mpi
def test_command_line(adk, tmp_path):
    out = tmp_path / "a.h5md"
    words = ("convert", adk["dcd"], out, "--mpi", "--collective", *GZIP, "-s", adk["psf"])
    code, text, err = run_under_mpi(
        2, *CLI, *words, "--group", "ca=name CA", "--hint", "cb_nodes=1", "--json", "--verify"
    )
    assert code == 0, err
    report = json.loads(text)
    assert (report["workers"], report["verify"]["ok"]) == (2, True)
    assert report["plan"]["compression"] == "gzip:1"
    assert 0 < report["nbytes_out"] <= out.stat().st_size
    assert dict(mdio.open(out).info.groups) == {"ca": 214}


@needs_mpi
@pytest.mark.parametrize("how", ["--mpio", "--collective"])
def test_integers_are_not_for_parallel_hdf5(adk, tmp_path, how):
    words = ("convert", adk["xtc"], tmp_path / "a.h5md", "--mpi", how, "--compression", "rigid")
    code, out, err = run_under_mpi(2, *CLI, *words)
    assert (code, out) == (2, "")
    assert "has no filter that encodes rigid; leave --mpio and --collective out" in err
    assert list(tmp_path.iterdir()) == []


def run_and_fail(n_ranks, *words):
    begun = time.monotonic()
    code, out, err = run_under_mpi(n_ranks, *words)
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert time.monotonic() - begun < 60
    return err


@needs_mpi
@pytest.mark.parametrize("how", [("--mpio",), ("--collective",), ("--collective", *GZIP)])
def test_a_damaged_frame_met_by_one_rank(damaged, tmp_path, how):
    out = tmp_path / "a.h5md"
    err = run_and_fail(4, *CLI, "convert", damaged, out, "--mpi", "--chunk-frames", "5", *how)
    assert err.count("bad.xtc") == 1 and "frame" in err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def damaged(adk, tmp_path_factory):
    """An XTC with damage in the last third."""
    path = tmp_path_factory.mktemp("damaged") / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    start = len(data) * 2 // 3
    data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    return path


@needs_mpi
@pytest.mark.parametrize(
    ("rank", "how"),
    [
        (1, ("--mpio",)),
        (1, ("--collective", *ALONE)),
        (0, ("--collective", *GZIP)),
        (1, ("--collective", *GZIP, *ALONE)),
    ],
)
def test_a_full_disk_on_one_rank(adk, tmp_path, rank, how):
    program = (CHECKS / "faulty/run_limited.py", rank, 6_000_000, "convert", *[adk["dcd"]] * 4)
    words = (tmp_path / "a.h5md", "--mpi", "--chunk-frames", "26", "-s", adk["psf"])
    err = run_and_fail(3, *program, *words, "--group", "ca=name CA", *how)
    lines = [line for line in err.splitlines() if "a.h5md" in line]
    assert len(lines) == 1, err
    assert "/a.h5md: cannot be written: the file is larger than the limit" in lines[0]
    left = [path.name for path in tmp_path.iterdir()]
    assert all(name.startswith(".a.") for name in left)  # what can be gone on with, and is told
    assert bool(left) == ("frames (" in lines[0]) == ("--resume" in lines[0]), err


@needs_mpi
@pytest.mark.parametrize("how", [(), GZIP])
def test_what_a_full_disk_leaves_is_told(adk, tmp_path, how):
    """The first rounds are journalled when a collective write fails, which ends the program."""
    words = ("convert", *[adk["dcd"]] * 12, tmp_path / "a.h5md", "--mpi", "--chunk-frames", "26")
    words += ("--collective", *how, *ALONE)
    err = run_and_fail(3, CHECKS / "faulty/run_limited.py", 1, 20_000_000, *words)
    (line,) = (line for line in err.splitlines() if "a.h5md" in line)
    assert "of 1,176 frames (" in line and "are kept in" in line and "--resume" in line
    code, said, err = run_under_mpi(2, *CLI, *words, "--resume", "--json")
    assert code == 0 and "taken from an earlier run" in said, err
    nbytes = (tmp_path / "a.h5md").stat().st_size
    assert 0.9 * nbytes < json.loads(said)["nbytes_out"] <= nbytes
    assert mdio.verify(tmp_path / "a.h5md").ok


@needs_mpi
@pytest.mark.parametrize("how", ["--mpio", "--collective"])
def test_a_source_that_one_rank_cannot_read(adk, tmp_path, how):
    program = (CHECKS / "faulty/run_blind.py", 1, adk["dcd"], "convert", *[adk["dcd"]] * 4)
    err = run_and_fail(3, *program, tmp_path / "a.h5md", "--mpi", "--chunk-frames", "26", how)
    assert err.count(str(adk["dcd"])) == 1, err
    assert list(tmp_path.iterdir()) == []


@needs_mpi
@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "a.zarr",
            ("--mpi", "--collective"),
            "belongs to the layout h5md, not to zarr",
        ),
        (
            "a.segments",
            ("--mpi", "--collective"),
            "belongs to the layout h5md, not to segments",
        ),
        ("a.h5md", ("--mpi", "--mpio", *GZIP), "--collective"),
        ("a.h5md", ("--mpi", "--mpio", "--hint", "cb_nodes"), "KEY=VALUE"),
        ("a.h5md", ("--mpi", "--hint", "cb_nodes=2"), "add --mpio"),
    ],
)
def test_options_that_do_not_fit(adk, tmp_path, name, words, message):
    code, out, err = run_under_mpi(2, *CLI, "convert", adk["dcd"], tmp_path / name, *words)
    assert (code, out) == (2, "")
    assert err.count("mdio convert:") == 1 and message in err
    assert list(tmp_path.iterdir()) == []


def test_hints_without_mpi_io(adk, tmp_path, capsys):
    with pytest.raises(PlanError, match="is for MPI-IO"):
        mdio.convert(adk["dcd"], tmp_path / "a.h5md", hints=["cb_nodes=2"])
    for more in ([], ["--ensemble"], ["--dry-run"]):
        words = ["convert", str(adk["dcd"]), str(tmp_path / "a.h5md"), "--hint", "a", *more]
        assert main(words) == 2 and "add --mpio" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_mpi(adk, tmp_path, capsys):
    assert main(["convert", str(adk["dcd"]), str(tmp_path / "a.h5md"), "--collective"]) == 2
    assert "add --mpi" in capsys.readouterr().err


def test_without_parallel_hdf5(adk, tmp_path, monkeypatch):
    import h5py

    serial = h5py.get_config()
    if serial.mpi:
        pytest.skip("this h5py is parallel")
    for mode in ("independent", "collective"):
        with pytest.raises(ImportError, match=r"--mpi alone does without.*conda install"):
            mdio.convert(adk["dcd"], tmp_path / "a.h5md", mpio=mode)
    assert list(tmp_path.iterdir()) == []
