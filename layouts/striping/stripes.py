"""What all striping file systems need: stripes of a file, and running the file system's program."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 20.0
"""A client that has lost its servers lets commands hang; a conversion does not wait for that."""


@dataclass(frozen=True, slots=True)
class Striping:
    """The stripes of a file, or of new files in a folder.

    For a progressive layout (Lustre), size and count of its last component, where the bulk
    of a trajectory lies.
    """

    stripe_nbytes: int
    stripe_count: int
    """Number of targets (Lustre, BeeGFS) or of objects at a time (Ceph); -1 = all targets."""
    layout: str
    """In the file system's own terms: ``-S 4194304 -c 8``, ``stripe_unit=4194304 ...``."""
    pool: str | None = None


def run_program(program: str, *arguments: str) -> tuple[str, str | None]:
    """Run a file system's program; return its output, and why it failed or None.

    Never raises, and does not wait for long: a client that has lost its servers hangs.
    """
    import subprocess  # not at the top: on most file systems no program is run

    try:
        process = subprocess.Popen(
            (program, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return "", f"there is no {program} command here"
    except OSError as error:
        return "", f"{program} cannot be run: {error.strerror}"
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # In a dead mount even SIGKILL may have no effect: wait a second, then leave the process.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return "", f"{program} {arguments[0]} did not answer within {TIMEOUT_S:g} s"
    if process.returncode != 0:
        message = " ".join(errors.split())[:500] or "no message"
        return (
            output,
            f"{program} {arguments[0]} failed with exit code {process.returncode}: {message}",
        )
    return output, None


def remove_empty(path: Path) -> None:
    """Remove the empty file, with wrong stripes, that a failed attempt may have left."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()
