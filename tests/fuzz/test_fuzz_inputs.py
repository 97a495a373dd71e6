"""The fuzz targets over their seeds and over all inputs that ever failed, under sanitisers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests/fuzz"
COMPILER = shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("target", ["xtc", "kernels", "codecs"])
def test_seeds_and_former_failures(tmp_path, target):
    native = ROOT / "mdio/native" / target
    sources = [path for path in native.glob("*.cpp") if not path.name.startswith("module")]
    program = tmp_path / "replay"
    built = subprocess.run(
        [
            str(COMPILER),
            "-std=c++17",
            "-O0",  # half the time of -O1 to compile, and few inputs to run
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-DMDIO_SWITCHES",
            f"-I{native}",
            f"-I{ROOT / 'mdio/native/codecs'}",
            *map(str, [FUZZ / "replay.cpp", FUZZ / f"fuzz_{target}.cpp", *sources]),
            "-pthread",
            "-o",
            str(program),
        ],
        capture_output=True,
        text=True,
    )
    if "cannot find -lasan" in built.stderr or "cannot find -lubsan" in built.stderr:
        pytest.skip("the compiler has no sanitisers")
    assert built.returncode == 0, built.stderr
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
