"""A disk of a few MB, which fills."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--map-root-user", "--mount"]
"""What runs a program that may mount for itself."""


def need_namespaces(folder: Path) -> None:
    """Skip a test where a program cannot mount on a folder for itself."""
    tried = shutil.which("unshare") and subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if not tried or tried.returncode:
        pytest.skip("no mounts in a namespace of one's own here")


def fill_disk(folder: Path, nbytes: str, code: str) -> str:
    """Run Python code on a disk of so many bytes (``3M``), mounted on the folder, its argument.

    What it prints has to tell of the output ``a.zarr`` and of the disk. Returns its stderr.
    """
    need_namespaces(folder)
    script = f'set -e; mount -t tmpfs -o size={nbytes} tmpfs "$1"; "$2" -c "$3" "$1"'
    done = subprocess.run(
        [*NAMESPACE, "sh", "-c", script, "sh", str(folder), sys.executable, code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a.zarr" in done.stdout and ("free" in done.stdout or "full" in done.stdout), done.stdout
    return done.stderr
