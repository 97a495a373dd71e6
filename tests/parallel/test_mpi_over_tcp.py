"""Jobs over TCP, as between nodes: they end well, at once, and say nothing of MPI."""

import pytest
from suites.under_mpi import needs_mpi, run_under_mpi

pytestmark = needs_mpi
LAUNCHERS_S = 30
"""Where MPI_Finalize is waited for, a job never ends; ours take a second or two."""


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")


@pytest.mark.parametrize("times", range(3))
@pytest.mark.parametrize("out", ["out.h5md", "out.zarr", "out.segments"])
def test_conversions_end(adk, tmp_path, out, times):
    words = ("convert", "--mpi", adk["dcd"], tmp_path / out)
    code, _, err = run_under_mpi(4, "-m", "mdio.cli.main", *words, timeout_s=LAUNCHERS_S)
    assert (code, err) == (0, "")
    assert (tmp_path / out).exists()


def test_analyses_end_and_files_of_users_are_whole(adk, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from mpi4py import MPI\n"
        "kept = open(f'kept{MPI.COMM_WORLD.rank}.txt', 'w')\nkept.write('all of it')\n"
        "def first(block):\n    return block.positions[:, 0, 0]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("analyze", "mine:first", adk["dcd"], "--executor", "mpi", "-o", "first.npz")
    code, out, err = run_under_mpi(4, "-m", "mdio.cli.main", *words, timeout_s=LAUNCHERS_S)
    assert (code, err) == (0, ""), out
    assert {path.read_text() for path in tmp_path.glob("kept?.txt")} == {"all of it"}
    assert len(list(tmp_path.glob("kept?.txt"))) == 4


def test_a_failure_is_told_once_and_is_the_exit_code(tmp_path):
    words = ("analyze", "rmsd", tmp_path / "none.xtc", "--executor", "mpi")
    code, _, err = run_under_mpi(4, "-m", "mdio.cli.main", *words, timeout_s=LAUNCHERS_S)
    assert code == 1
    assert err.count("no such file or folder") == 1
    assert len(err.splitlines()) == 1, err


def test_ranks_meet_before_they_leave():
    """Hydra ends all ranks when one leaves without a word."""
    code = (
        "import sys, time; from mpi4py import MPI; from mdio.cli import main\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "main._run = lambda _: time.sleep(0.5 * rank) or 3 * (rank == 1)\n"
        "main.main()\n"
    )
    status, out, err = run_under_mpi(4, "-c", code, timeout_s=LAUNCHERS_S)
    assert (status, out, err) == (3, "", "")
