"""Runs the checks in tests/mpi under mpiexec; ``make mpi`` makes the environment they need."""

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECKS = ROOT / "tests" / "mpi"
RANKS = (1, 2, 3, 4, 7)


def _find_mpi():
    """Return (mpiexec, python): those of .venv-mpi, or of this environment if it has MPI."""
    ours = ROOT / ".venv-mpi"
    if (ours / "installed").exists():
        return str(ours / "bin" / "mpiexec"), str(ours / "bin" / "python")
    mpiexec = shutil.which("mpiexec")
    if mpiexec and find_spec("mpi4py"):
        return mpiexec, sys.executable
    return None


MPI = _find_mpi()
pytestmark = pytest.mark.skipif(MPI is None, reason="no MPI here: make mpi installs it")


def run_under_mpi(n_ranks, script, *arguments, timeout_s=120, through=("-m", "mpi4py")):
    """Run a script on `n_ranks` ranks (-m mpi4py: an exception on one rank ends all)."""
    mpiexec, python = MPI
    command = [mpiexec, "-n", str(n_ranks), python, *through, str(CHECKS / script), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{script} on {n_ranks} ranks hangs:\n{out}\n{err}")
    return process.returncode, out, err


@pytest.mark.parametrize("script", ["check_gather.py", "check_executor.py"])
@pytest.mark.parametrize("n_ranks", RANKS)
def test_checks(script, n_ranks):
    code, out, err = run_under_mpi(n_ranks, script)
    assert code == 0, out + err
    assert f"checks passed on {n_ranks} ranks" in out


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_failing_item_ends_all_ranks_with_one_message(n_ranks):
    code, _, err = run_under_mpi(n_ranks, "fail.py", "item", timeout_s=60, through=())
    assert code == 1
    assert err.count("bad dihedral") == 1, err
    assert f"block {n_ranks - 1} failed: ValueError: bad dihedral" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("long", "block 2 failed: ValueError: bad dihedral"),
        ("outside", "no topology on this node"),
    ],
)
def test_ranks_that_do_not_leave_are_ended(way, message):
    """The rank that failed says why, once, and ends those that are still at their item."""
    start = time.monotonic()
    code, _, err = run_under_mpi(3, "fail.py", way, timeout_s=60, through=())
    assert time.monotonic() - start < 30
    assert code != 0
    assert err.count(message) == 1, err
    assert f"{message} (rank 2 ends the program)" in err


def test_a_rank_that_exits_inside_an_item_does_not_leave_the_others_waiting():
    code, _, err = run_under_mpi(3, "fail.py", "exit", timeout_s=60, through=())
    assert code != 0
    assert "(rank 2 ends the program)" in err


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
