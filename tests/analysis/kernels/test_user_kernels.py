"""``module:function``: found in the working folder, whose other files take no library's place."""

import os
import subprocess
import sys

import numpy as np
import pytest
from MDAnalysisTests.datafiles import PSF

KERNEL = "def heights(block):\n    return block.positions[:, :, 2].max(axis=1)\n"
SCRIPT = """import sys
from mdio.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def folder(tmp_path):
    """A working folder with a kernel, and files that are called like libraries."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mykernels.py").write_text(KERNEL)
    for name in ("MDAnalysis", "tqdm", "distributed", "h5py", "zarr"):
        (tmp_path / f"work/{name}.py").write_text("raise SystemExit('taken for a library')\n")
    return tmp_path / "work"


def analyze(folder, *words):
    """Run ``mdio analyze`` in `folder` as the installed command does: its own folder is on path."""
    script = folder.parent / "mdio_command.py"
    script.write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), "analyze", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("executor", ["serial", "processes", "dask"])
def test_files_beside_a_kernel_are_not_imported(adk, folder, executor):
    words = ["mykernels:heights", adk["xtc"], "-s", PSF, "--select", "name CA", "-o", "o.npz"]
    workers = [] if executor == "serial" else ["-w", 2]
    done = analyze(folder, *words, "--executor", executor, *workers, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert np.load(folder / "o.npz")["values"].shape == (98,)


def test_a_kernel_that_is_called_like_a_library(adk, folder):
    (folder / "wave.py").write_text(KERNEL)
    done = analyze(folder, "wave:heights", adk["xtc"])
    assert done.returncode == 2
    assert "wave.py; if you mean a file in this folder, rename it" in done.stderr
    assert "no function 'heights' in" in done.stderr
