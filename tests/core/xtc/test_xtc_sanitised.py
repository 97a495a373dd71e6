"""The XTC kernels under AddressSanitizer and UBSan, fed with damaged frames."""

from __future__ import annotations

import re
import subprocess

from suites.compiled import NATIVE, ROOT, build, needs_compiler

KERNELS = [NATIVE / f"xtc/{name}.cpp" for name in ("decode", "encode", "header")]
N_ROUNDS = 1500


@needs_compiler
def test_damaged_frames_under_sanitisers(tmp_path):
    harness = tmp_path / "harness"
    build(harness, [ROOT / "tests/native/xtc_sanitised.cpp", *KERNELS])
    done = subprocess.run([str(harness), str(N_ROUNDS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"(\d+) of (\d+) damaged frames decoded\n", done.stdout)
    assert found, done.stdout
    n_decoded, n_tried = map(int, found.groups())
    assert n_tried == 10 * N_ROUNDS
    assert 0.02 * n_tried < n_decoded < 0.8 * n_tried
