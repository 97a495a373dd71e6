"""The job script of docs/mpi.md runs, with mpiexec in place of srun."""

import os
import shutil
import subprocess
from pathlib import Path

from suites.under_mpi import MPI, ROOT, needs_mpi

import mdio


@needs_mpi
def test_the_job_script(adk, tmp_path):
    text = (ROOT / "docs" / "mpi.md").read_text()
    script = text.split("```bash\n")[1].split("```")[0]
    assert script.startswith("#!/bin/bash\n#SBATCH")
    (tmp_path / "job.sh").write_text(script)
    shutil.copy(adk["xtc"], tmp_path / "md.xtc")
    shutil.copy(adk["psf"], tmp_path / "md.psf")
    mpiexec, python = MPI
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env={
            **os.environ,
            "RUN": f"{mpiexec} -n 2",
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rmsd.npz").exists() and (tmp_path / "rmsd.json").exists()
    assert dict(mdio.open(tmp_path / "md.h5md").info.groups) == {"ca": 214}
