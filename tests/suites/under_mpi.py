"""How tests start MPI programs."""

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from suites.compiled import KEPT, keep, locked, state_of

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "tests" / "mpi"


def find_mpi():
    """Return (mpiexec, python): those of .venv-mpi, or of this environment if it has MPI."""
    ours = ROOT / ".venv-mpi"
    if (ours / "installed").exists():
        return str(ours / "bin" / "mpiexec"), str(ours / "bin" / "python")
    mpiexec = shutil.which("mpiexec")
    if mpiexec and find_spec("mpi4py"):
        return mpiexec, sys.executable
    return None


MPI = find_mpi()
needs_mpi = pytest.mark.skipif(
    MPI is None and not os.environ.get("CI"), reason="no MPI here: make mpi installs it"
)


@cache
def patience():
    """Return the variables by which ranks sleep while they wait in calls of MPI; see patient.c."""
    source, compiler = Path(__file__).with_name("patient.c"), shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        return {}
    words = [compiler, "-shared", "-fPIC", "-O1", source, "-ldl", "-o"]
    with locked(KEPT):
        library = keep(
            KEPT / "patient.so",
            state_of([source], words),
            lambda path: subprocess.run([*words, path], check=True),
        )
    return {"LD_PRELOAD": str(library)}


def start_under_mpi(n_ranks, *words, patient=True):
    """Start ``python WORDS`` on `n_ranks` ranks, in a process group of its own.

    They find what tests share (`parallel.all_checks`, the programs of `mapreduce`). Unless
    `patient`, they wait for each other as MPI does.
    """
    mpiexec, python = MPI
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(patience() if patient else {})}
    found_in = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [mpiexec, "-n", str(n_ranks), python, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**variables, "PYTHONPATH": os.pathsep.join(found_in)},
    )


def run_under_mpi(n_ranks, *words, timeout_s=120, patient=True):
    """Run ``python WORDS`` on `n_ranks` ranks; return (exit code, stdout, stderr)."""
    process = start_under_mpi(n_ranks, *words, patient=patient)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{words} on {n_ranks} ranks hangs:\n{out}\n{err}")
    return process.returncode, out, err


def run_checks(n_ranks, script, *arguments, patient=True):
    """Run a script of checks (-m mpi4py: an exception on one rank ends all); all have to pass."""
    words = ("-m", "mpi4py", CHECKS / script, *arguments)
    code, out, err = run_under_mpi(n_ranks, *words, patient=patient)
    assert code == 0, out + err
    assert f"checks passed on {n_ranks} ranks" in out
