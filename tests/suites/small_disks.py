"""A disk of a few MB, which fills."""

import shutil
import subprocess
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
