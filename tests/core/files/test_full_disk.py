"""HDF5 on a full disk: a message, an exit code, nothing left, and no crash at the end."""

import subprocess
import sys

import pytest
from suites.small_disks import NAMESPACE, need_namespaces
from suites.under_mpi import CHECKS, MPI, ROOT, needs_mpi, patience, run_under_mpi

GZIP = ("--compression", "gzip:1")
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from mdio.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
SMALL_DISK = """
set -e
mount -t tmpfs -o size=400k tmpfs "$1"
head -c {filled}k /dev/zero > "$1/filler"
code=0
shift
"$@" || code=$?
ls -A "$DISK"
exit $code
"""


def check(code, err, name):
    assert code == 1, err
    assert "Traceback" not in err and "Segmentation" not in err and "signal" not in err
    told = [line for line in err.splitlines() if name in line]
    assert len(told) == 1, err
    assert "cannot be written" in told[0] or "the disk is full" in told[0], err


def check_left(names, err):
    """What can be gone on with stays, and only then."""
    assert all(name.startswith(".a.h5md.") for name in names), names
    assert bool(names) == ("--resume" in err) or "ends the program" in err, err


@needs_mpi
@pytest.mark.parametrize("limit", [1000, 100_000])
@pytest.mark.parametrize(
    "how",
    [(), GZIP, ("--mpio",), ("--collective", *GZIP)],
    ids=lambda how: " ".join(how) or "plain",
)
def test_rank_0_under_mpi(adk, tmp_path, limit, how):
    words = ("convert", adk["dcd"], tmp_path / "a.h5md", "--mpi", *how)
    code, _, err = run_under_mpi(2, CHECKS / "faulty/run_limited.py", 0, limit, *words)
    check(code, err, "a.h5md")
    check_left([path.name for path in tmp_path.iterdir()], err)


@pytest.mark.parametrize("python", [sys.executable, MPI and MPI[1]])
@pytest.mark.parametrize("how", [(), GZIP])
def test_without_mpi(adk, tmp_path, python, how):
    if python is None:
        pytest.skip("no environment with MPI")
    words = ["convert", str(adk["dcd"]), str(tmp_path / "a.h5md"), *how]
    done = subprocess.run(
        [python, "-c", LIMITED, "100000", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    check(done.returncode, done.stderr, "a.h5md")
    assert list(tmp_path.iterdir()) == []


@needs_mpi
@pytest.mark.parametrize("filled", [380, 396, 399])
@pytest.mark.parametrize(
    "how",
    [GZIP, ("--collective", *GZIP)],
    ids=["gzip", "collective"],
)
def test_a_real_full_disk(adk, tmp_path, filled, how):
    need_namespaces(tmp_path)
    words = ["-m", "mdio.cli.main", "convert", str(adk["dcd"]), f"{tmp_path}/a.h5md", "--mpi"]
    shell = ["sh", "-c", SMALL_DISK.format(filled=filled), "sh", str(tmp_path)]
    done = subprocess.run(
        [*NAMESPACE, *shell, MPI[0], "-n", "2", MPI[1], *words, *how],
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "DISK": str(tmp_path), **patience()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    check(done.returncode, done.stderr, "a.h5md")
    assert "the disk is full" in done.stderr
    assert done.stdout.split() == ["filler"]
