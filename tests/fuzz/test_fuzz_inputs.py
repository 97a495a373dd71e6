"""The fuzz targets over their seeds and over all inputs that ever failed, under sanitisers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from suites.compiled import NATIVE, ROOT, build, needs_compiler

FUZZ = ROOT / "tests/fuzz"


@needs_compiler
@pytest.mark.parametrize("target", ["xtc", "kernels", "codecs"])
def test_seeds_and_former_failures(tmp_path, target):
    native = (NATIVE / target).glob("*.cpp")
    sources = [path for path in native if not path.name.startswith("module")]
    program = tmp_path / "replay"
    build(program, [FUZZ / "replay.cpp", FUZZ / f"fuzz_{target}.cpp", *sources])
    subprocess.run([sys.executable, str(FUZZ / "seeds.py"), str(tmp_path)], check=True)
    inputs = [*(tmp_path / target).iterdir(), *(FUZZ / "found" / target).glob("*")]
    assert len(inputs) > 10
    done = subprocess.run([str(program), *map(str, inputs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{len(inputs)} inputs\n"


def test_damaged_chunks_decode_or_are_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FUZZ / "fuzz_chunks.py"), "1", str(tmp_path / "chunk"), "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "refused" in done.stdout and "decoded" in done.stdout
