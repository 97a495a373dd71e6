"""The XTC kernels under AddressSanitizer and UBSan, fed with damaged frames."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KERNELS = [ROOT / f"mdio/native/xtc/{name}.cpp" for name in ("decode", "encode", "header")]
COMPILER = shutil.which("g++")
N_ROUNDS = 1500


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_damaged_frames_under_sanitisers(tmp_path):
    harness = tmp_path / "harness"
    sanitised = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags = ["-std=c++17", "-O1", "-g", "-DMDIO_SWITCHES", *sanitised]
    sources = [ROOT / "tests/native/xtc_sanitised.cpp", *KERNELS]
    built = subprocess.run(
        [str(COMPILER), *flags, *map(str, sources), "-o", str(harness)],
        capture_output=True,
        text=True,
    )
    if "cannot find -lasan" in built.stderr or "cannot find -lubsan" in built.stderr:
        pytest.skip("the compiler has no sanitisers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(harness), str(N_ROUNDS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"(\d+) of (\d+) damaged frames decoded\n", done.stdout)
    assert found, done.stdout
    n_decoded, n_tried = map(int, found.groups())
    assert n_tried == 10 * N_ROUNDS
    assert 0.02 * n_tried < n_decoded < 0.8 * n_tried
