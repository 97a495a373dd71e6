"""Types and helpers for all striping file systems: stripes of a file, and a record of the request.

Striping only makes an output faster, so a file system that refuses it or does not answer stops no
conversion. The output's manifest records the stripes requested, the stripes applied, and why the
two differ.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from mdio.core.files.store import file_system_type

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


class StripeRecord(TypedDict):
    """Stripes requested and stripes applied, as plain values for a manifest."""

    asked: dict[str, Any]
    applied: dict[str, Any] | None
    """Stripes that the file system reports afterwards; None where none were applied."""
    reason: str | None
    """Why `applied` differs from `asked`; None if it does not."""
    file_system: str


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


def stripe_request(
    stripe_nbytes: int,
    stripe_count: int | None,
    progressive: Sequence[tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """Return requested stripes as plain values for a `StripeRecord`."""
    request: dict[str, Any] = {"stripe_nbytes": stripe_nbytes, "stripe_count": stripe_count}
    if progressive:
        request["progressive"] = [list(part) for part in progressive]
    return request


def stripe_record(
    path: str | PathLike[str],
    request: dict[str, Any],
    applied: Striping | None,
    reason: str | None = None,
) -> StripeRecord:
    """Return a record of the stripes requested and applied, and why they differ if they do."""
    if reason is None and applied is not None and request:
        reason = _difference(applied, request["stripe_nbytes"], request["stripe_count"])
    return StripeRecord(
        asked=request,
        applied=None if applied is None else asdict(applied),
        reason=reason,
        file_system=file_system_type(path),
    )


def _difference(applied: Striping, stripe_nbytes: int, stripe_count: int | None) -> str | None:
    """Return how `applied` differs from the request, or None."""
    if applied.stripe_nbytes != stripe_nbytes:
        return f"the stripe size is {applied.stripe_nbytes}, not {stripe_nbytes}"
    if stripe_count is not None and stripe_count > 0 and applied.stripe_count != stripe_count:
        return f"the stripe count is {applied.stripe_count}, not {stripe_count}"
    return None


def remove_empty(path: Path) -> None:
    """Remove the empty file, with wrong stripes, that a failed attempt may have left."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()
