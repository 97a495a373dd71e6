"""Without compiled modules everything works the same: a part of the tests, run once more so."""

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
        "quantised_neighbours",
        "packed",
        "zarr_golden",
        "h5md_reader",
        "kernel_planes",
    ],
}
"""Arguments of pytest, and files of tests without ``test_`` and ``.py``."""


@pytest.mark.parametrize("suite", SUITES)
def test_without_native_modules(tmp_path, suite):
    words = [
        str(TESTS / f"test_{word}.py") if (TESTS / f"test_{word}.py").exists() else word
        for word in SUITES[suite]
    ]
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
