"""Runs the checks in tests/mpi under mpiexec; ``make mpi`` makes the environment they need."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from suites.under_mpi import CHECKS, MPI, needs_mpi, run_checks, run_under_mpi

RANKS = (1, 2, 3, 7)
NODE = os.uname().nodename
pytestmark = needs_mpi


def run_script(n_ranks, script, *arguments, timeout_s=120, through=("-m", "mpi4py")):
    """Run a script on `n_ranks` ranks (-m mpi4py: an exception on one rank ends all)."""
    return run_under_mpi(n_ranks, *through, CHECKS / script, *arguments, timeout_s=timeout_s)


@pytest.mark.parametrize("script", ["check_gather.py", "check_executor.py", "check_sleeping.py"])
@pytest.mark.parametrize("n_ranks", RANKS)
def test_checks(script, n_ranks):
    # Who sleeps in the last of them has to be us, and not MPI.
    run_checks(n_ranks, script, patient=script != "check_sleeping.py")


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_calls_that_differ_are_told_on_all_ranks(n_ranks, adk, tmp_path):
    run_checks(n_ranks, "check_calls_differ.py", adk["dcd"], adk["xtc"], tmp_path)


@pytest.mark.parametrize(
    ("words", "others", "told"),
    [
        (["--mpi"], ["--mpi", "--bogus"], "--bogus"),
        (["--mpi", "--bogus"], ["--mpi"], "unrecognized arguments: --bogus"),
        (["--mpi"], [], "same words"),
        ([], ["--mpi"], "add --mpi"),
        (["--mpi"], ["--mpi", "-b", "5"], "-b 5"),
        (["--mpi"], ["--mpi", "--executor", "dask"], "--executor dask"),
        (["--mpi", "--bogus"], ["--mpi", "--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_ranks_that_were_started_with_different_words_all_end(words, others, told, adk, tmp_path):
    command = ("-m", "mdio.cli.main", "analyze", "rgyr", adk["dcd"], "-s", adk["psf"])
    command += ("-o", tmp_path / "a.csv")
    second = (":", "-n", "2", MPI[1], *command, *others)
    code, out, err = run_under_mpi(1, *command, *words, *second, timeout_s=60)
    assert (code, out) == (2, ""), err
    assert told in err and err.count("\n") == 1, err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize(("name", "way"), [("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self")])
def test_sending_between_nodes(n_ranks, monkeypatch, name, way):
    monkeypatch.setenv(name, way)  # no ways of MPI but those over a network
    run_checks(n_ranks, "check_sending.py")


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_failing_item_ends_all_ranks_with_one_message(n_ranks):
    code, _, err = run_script(n_ranks, "fail.py", "item", timeout_s=60, through=())
    assert code == 1
    assert err.count("bad dihedral") == 1, err
    place = f"(rank {n_ranks - 1} on {NODE})"
    assert f"block {n_ranks - 1} {place} failed: ValueError: bad dihedral" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("long", f"block 2 (rank 2 on {NODE}) failed: ValueError: bad dihedral"),
        ("outside", "no topology on this node"),
    ],
)
def test_ranks_that_do_not_leave_are_ended(way, message):
    """The rank that failed says why, once, and ends those that are still at their item."""
    start = time.monotonic()
    code, _, err = run_script(3, "fail.py", way, timeout_s=60, through=())
    assert time.monotonic() - start < 30
    assert code != 0
    assert err.count(message) == 1, err
    assert f"{message} (rank 2 ends the program)" in err


def test_one_rank_speaks_where_rank_0_does_not_leave():
    """Though all have the error: the one that met it."""
    code, _, err = run_script(4, "fail.py", "stuck", timeout_s=60, through=())
    assert code != 0
    assert err.count("bad dihedral") == 1, err
    assert "ValueError: bad dihedral (rank 3 ends the program)" in err


def test_a_rank_that_exits_inside_an_item_does_not_leave_the_others_waiting():
    code, _, err = run_script(3, "fail.py", "exit", timeout_s=60, through=())
    assert code != 0
    assert "(rank 2 ends the program)" in err


def test_what_ended_rank_0_among_results_is_told():
    """Not that others did not leave in time; and before they are waited for, it is handled."""
    code, _, err = run_script(3, "fail.py", "signal", timeout_s=60, through=())
    assert code != 0
    assert "mdio: ended by a signal; 9 frames are kept (rank 0 ends the program)" in err


@pytest.mark.parametrize("code", [0, 1])
def test_results_are_whole_and_the_program_ends_though_mpi_does_not(adk, tmp_path, code):
    """As MPI_Finalize of MPICH 4.0 now and then."""
    trajectory = adk["xtc"] if code == 0 else tmp_path / "none.xtc"
    words = ("analyze", "rmsd", trajectory, "--executor", "mpi", "-o", tmp_path / "a.npz")
    found, out, err = run_script(3, "faulty/run_endless.py", *words, timeout_s=60, through=())
    assert found == code, err
    assert err.count("none.xtc") == code
    assert (tmp_path / "a.npz").exists() == (code == 0)
    assert out.count("rmsd: 98 frames") == (code == 0)


@pytest.mark.parametrize("launcher", ["hydra", "other"])
def test_all_ranks_leave_with_the_code_of_the_one_that_knows(launcher):
    code = (
        "import sys; from mpi4py import MPI; from mdio.cli import main as m\n"
        "import mdio.cli.main as ending\n"
        f"if {launcher == 'other'}: ending._hydra_descriptor = lambda MPI: None\n"
        "m._run = lambda _: 3 * (MPI.COMM_WORLD.rank == 0)\n"
        "try: m.main()\n"
        "except SystemExit as end: sys.stdout.write(str(end.code))\n"
    )
    status, out, err = run_under_mpi(3, "-c", code)
    assert (status, out) == ((3, "") if launcher == "hydra" else (0, "333")), err


def test_the_environment_has_one_mpi():
    """mpi4py and h5py are linked with the same library, and h5py can do parallel HDF5."""
    code = (
        "import h5py, mpi4py.MPI as m; assert h5py.get_config().mpi\n"
        "maps = {l.split()[-1] for l in open('/proc/self/maps') if 'libmpi' in l}\n"
        "print(*sorted(maps), sep='\\n')"
    )
    if not MPI[1].endswith(".venv-mpi/bin/python"):
        pytest.skip("the environment is not ours")
    result = subprocess.run([MPI[1], "-c", code], capture_output=True, text=True, check=True)
    libraries = [line for line in result.stdout.split() if "libmpi" in Path(line).name]
    assert len(libraries) == 1
    assert "libmpich" in libraries[0]
