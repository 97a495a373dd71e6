"""Under MPI, one rank alone prints what argparse has to say, and that mpi4py is missing."""

import os
import subprocess
import sys

import pytest
from suites.under_mpi import needs_mpi, run_under_mpi

CLI = ("-m", "mdio.cli.main")
HIDE_MPI4PY = "import sys; sys.modules['mpi4py'] = None; from mdio.cli.main import main; "
MISSING = HIDE_MPI4PY + "sys.exit(main(['convert', 'a.xtc', 'a.zarr', '--mpi']))"
LAUNCHERS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def run(words, **ranks):
    env = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return subprocess.run(
        [sys.executable, *words],
        env={**env, **ranks},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_mpi
@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        ((*CLI, "convert", "--mpi", "--bogus"), 2, "", "mdio convert: "),
        ((*CLI, "convert", "--help"), 0, "usage: mdio convert", ""),
        ((*CLI, "--version"), 0, "mdio ", ""),
        ((*CLI, "bench", "scaling", "--help"), 0, "usage: mdio bench scaling", ""),
        (("-c", MISSING), 1, "", "--mpi needs mpi4py"),
    ],
)
def test_on_real_ranks(words, code, out, err):
    found = run_under_mpi(3, *words)
    assert found[0] == code
    assert found[1].count(out) == 1 if out else found[1] == ""
    assert found[2].count(err) == 1 if err else found[2] == ""
    assert "Traceback" not in found[2]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher(launcher):
    words = (*CLI, "convert", "--mpi", "--bogus")
    first, second = (run(words, **{launcher: rank}) for rank in "01")
    assert (first.returncode, second.returncode) == (2, 2)
    assert first.stderr.startswith("mdio convert: ")
    assert second.stderr == second.stdout == ""
    words = ("-c", MISSING)
    first, second = (run(words, **{launcher: rank}) for rank in "01")
    assert (first.returncode, second.returncode) == (1, 1)
    assert "--mpi needs mpi4py" in first.stderr and second.stderr == ""


def test_srun_also_starts_programs_of_their_own():
    done = run((*CLI, "info"), SLURM_PROCID="3")
    assert done.returncode == 2 and done.stderr.startswith("mdio info: ")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_other_errors_are_not_hidden(launcher):
    done = run((*CLI, "info", "no-such.xtc"), **{launcher: "1"})
    assert done.returncode == 1 and "no-such.xtc" in done.stderr
