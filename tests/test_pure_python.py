"""Without compiled modules mdio reads, converts and verifies: some of the tests, once more so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


WORDS = ["any_source", "precision_auto", "every_frame", "timeseries_in_bulk", "group"]
SUITES = {
    "conversions and readers": ["-k", " or ".join(WORDS), "convert", "readers"],
    "native formats": ["xtc", "xtc_codec", "dcd", "trr", "native_writers"],
    "outputs": [
        "quantised",
        "zarr_golden",
        "h5md_reader",
        "kernel_planes",
    ],
}
"""Arguments of pytest, and files of tests without ``test_`` and ``.py``."""


@pytest.mark.parametrize("suite", SUITES)
def test_without_native_modules(tmp_path, suite):
    words = [str(next(TESTS.rglob(f"test_{word}.py"), word)) for word in SUITES[suite]]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'pure'}",
            *words,
        ],
        env={**os.environ, "MDIO_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_the_command_line_says_which_decoders_are_in_use():
    said = {}
    for pure in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "mdio.cli.main", "info", "--version"],
            env={**os.environ, "MDIO_PURE_PYTHON": pure},
            capture_output=True,
            text=True,
            check=True,
        )
        said[pure] = done.stdout
    assert "XTC decoder: native" in said["0"]
    assert "XTC decoder: MDAnalysis" in said["1"]


def test_an_install_without_a_compiler_says_once_what_it_costs(tmp_path):
    code = (
        "import sys; sys.modules['mdio._kernels'] = sys.modules['mdio._xtc'] = None\n"
        "from mdio.cli.main import main\n"
        "from MDAnalysisTests.datafiles import XTC\n"
        "for name in ('a.zarr', 'b.h5md'):\n"
        "    assert main(['convert', XTC, name, '--stop', '2', '--quiet', '-w', '1']) == 0\n"
        "    assert main(['verify', name]) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "MDIO_PURE_PYTHON": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("installed without a C++ compiler") == 1
    assert "several times slower" in done.stderr
