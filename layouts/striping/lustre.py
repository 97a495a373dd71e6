"""Lustre: how files are striped, and what MPI-IO should know of it.

All calls of ``lfs`` are here. Striping only ever makes an output faster, so nothing that ``lfs``
does (be absent, refuse, hang, print something unknown) stops a conversion: what was asked, what
was applied and why the two differ is a record, which goes into the output's manifest.

Formats of ``lfs getstripe``: the Lustre manual and the text that Lustre 1.8 to 2.15 print.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from mdio.core.errors import PlanError
from mdio.layouts.plan import LayoutPlan

__all__ = [
    "StripeRecord",
    "Striping",
    "file_system_type",
    "get_stripe",
    "mpi_io_hints",
    "parse_getstripe",
    "set_stripe",
]

LFS_TIMEOUT_S = 20.0
"""A client that has lost its servers lets ``lfs`` hang; a conversion does not wait for that."""


@dataclass(frozen=True, slots=True)
class Striping:
    """How a file lies on Lustre, or how files that are made in a folder will.

    For a progressive layout, size and count are those of its last component, where the bulk of a
    trajectory lies.
    """

    stripe_nbytes: int
    stripe_count: int
    """Object storage targets; -1 = all there are."""
    layout: str
    """In words of ``lfs setstripe``: ``-S 4194304 -c 8``, or ``-E 268435456 ... -E -1 ...``."""
    pool: str | None = None


class StripeRecord(TypedDict):
    """What was asked of the file system and what it made of it; plain values for a manifest."""

    asked: dict[str, Any]
    applied: dict[str, Any] | None
    """What ``lfs getstripe`` says after; None where nothing was applied."""
    reason: str | None
    """Why `applied` is not what was asked; None where it is."""
    file_system: str


def file_system_type(path: str | PathLike[str], mountinfo: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system on which `path` lies, or will lie.

    Parameters
    ----------
    path
        Need not exist yet.
    mountinfo
        The kernel's table of mounts (proc(5)), which names every type and, unlike statfs, touches
        no file system.

    Returns
    -------
    str
        ``lustre``, ``nfs4``, ``ext4``, ``xfs``, ``tmpfs``, ``overlay``, ``beegfs``, ``gpfs``, ...;
        ``unknown`` where there is no such table.
    """
    where = Path(os.path.realpath(path))
    found, depth = "unknown", -1
    try:
        lines = Path(mountinfo).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # Spaces, tabs, newlines and backslashes in a mount point are octal: \040.
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        # Of two mounts on one point the later hides the earlier.
        if where.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = after.split(" ")[0], len(point.parts)
    return found


def _lfs(*arguments: str, timeout_s: float | None = None) -> tuple[str, str | None]:
    """Run ``lfs`` and return (what it printed, why that is worth nothing or None)."""
    limit = LFS_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        process = subprocess.Popen(
            ("lfs", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return "", "there is no lfs command here"
    except OSError as error:
        return "", f"lfs cannot be run: {error.strerror}"
    try:
        printed, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Inside a dead mount even SIGKILL has to wait: give it a second and go on without it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return "", f"lfs {arguments[0]} did not answer within {limit:g} s"
    if process.returncode != 0:
        said = " ".join(complaint.split())[:500] or "no message"
        return printed, f"lfs {arguments[0]} failed with exit code {process.returncode}: {said}"
    return printed, None


_WORD = re.compile(
    r"(?<![\w.])(?:lmm_)?(stripe_count|stripe_size|pattern|pool):[ \t]*(\S+)"
    r"|(?<!\w)lcme_(extent\.e_start|extent\.e_end):[ \t]*(\S+)"
)


def parse_getstripe(printed: str) -> Striping | None:
    """Read what ``lfs getstripe`` prints for one file or folder.

    Parameters
    ----------
    printed
        The text, plain or YAML (``-y``), of any version since 1.8: one line for a folder
        (``stripe_count: 1 stripe_size: 1048576 ...``), a line for each value of a file
        (``lmm_stripe_count: 1``), with components where the layout is composite
        (``lcme_extent.e_start: 0``).

    Returns
    -------
    Striping or None
        None if the text gives no stripe size and count. Of a mirrored file the first mirror
        counts, of a progressive one its last component; a component on the metadata server (data
        on MDT) does not.
    """
    components: list[dict[str, str]] = []
    for match in _WORD.finditer(printed):
        key = match[1] or match[3]
        value = match[2] or match[4]
        if key == "extent.e_start" or (key in (components[-1] if components else {})):
            if key == "extent.e_start" and value == "0" and components:
                break  # the second mirror begins at 0 again
            if key != "extent.e_start" and "extent.e_start" not in components[-1]:
                break  # a second file: old versions list a folder's files after the folder
            components.append({})
        elif not components:
            components.append({})
        components[-1][key] = value
    texts, last = [], None
    for component in components:
        try:
            nbytes, count = int(component["stripe_size"]), int(component["stripe_count"])
        except (KeyError, ValueError):
            return None
        if nbytes < 1 or count < -1:
            return None
        end = component.get("extent.e_end")
        text = "" if end is None else f"-E {'-1' if end == 'EOF' else end} "
        if "mdt" in component.get("pattern", ""):
            texts.append(text + "-L mdt")
            continue
        pool = component.get("pool")
        overstriped = "overstriped" in component.get("pattern", "")
        text += f"-S {nbytes} {'-C' if overstriped else '-c'} {count}"
        texts.append(text + (f" -p {pool}" if pool else ""))
        last = (nbytes, count, pool)
    return None if last is None else Striping(last[0], last[1], " ".join(texts), last[2])


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return how `path` is striped (a folder: how new files in it will be).

    None where that cannot be known: no Lustre, no ``lfs``, or an answer of unknown shape. Never
    raises.
    """
    printed, failure = _lfs("getstripe", *(["-d"] if Path(path).is_dir() else []), os.fspath(path))
    return None if failure else parse_getstripe(printed)


def set_stripe(
    path: str | PathLike[str],
    stripe_nbytes: int,
    stripe_count: int | None = None,
    progressive: Sequence[tuple[int, int]] | None = None,
) -> StripeRecord:
    """Ask Lustre to stripe a file that does not exist yet, or the files to come in a folder.

    Parameters
    ----------
    path
        A folder that exists gets a default layout for what will be made in it. A file must not
        exist: ``lfs`` makes it, empty, with its layout, and it is then opened without O_EXCL
        (truncation leaves the layout as it is).
    stripe_nbytes
        Stripe size; Lustre wants multiples of 65,536.
    stripe_count
        Object storage targets; -1 = all, None = the file system's default.
    progressive
        Components of a progressive layout that come before the last one, as (end in bytes, stripe
        count); the last has `stripe_count` and goes on to the end of the file.

    Returns
    -------
    StripeRecord
        Never raises: a refusal is in it.
    """
    asked: dict[str, Any] = {"stripe_nbytes": stripe_nbytes, "stripe_count": stripe_count}
    if progressive:
        asked["progressive"] = [list(part) for part in progressive]
    where = Path(path)
    new_file = not where.exists()
    counts = [] if stripe_count is None else ["-c", str(stripe_count)]
    size = ["-S", str(stripe_nbytes)]
    arguments = []
    for end, count in progressive or ():
        arguments += ["-E", str(end), *size, "-c", str(count)]
    arguments += [*(["-E", "-1"] if progressive else []), *size, *counts]
    _, reason = _lfs("setstripe", *arguments, os.fspath(path))
    applied = None
    if reason is None:
        found = get_stripe(path)
        if found is None:
            reason = "lfs setstripe was content, but lfs getstripe cannot tell what it did"
        else:
            applied = {
                "stripe_nbytes": found.stripe_nbytes,
                "stripe_count": found.stripe_count,
                "layout": found.layout,
                "pool": found.pool,
            }
            reason = _difference(found, stripe_nbytes, stripe_count)
    elif new_file:
        _remove_empty(where)
    return StripeRecord(
        asked=asked, applied=applied, reason=reason, file_system=file_system_type(path)
    )


def _remove_empty(path: Path) -> None:
    """Remove the file that a failed ``lfs setstripe`` may have left: it has the wrong layout."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()


def _difference(found: Striping, stripe_nbytes: int, stripe_count: int | None) -> str | None:
    """Return how `found` differs from what was asked, or None."""
    if found.stripe_nbytes != stripe_nbytes:
        return f"the stripe size is {found.stripe_nbytes}, not {stripe_nbytes}"
    if stripe_count is not None and stripe_count > 0 and found.stripe_count != stripe_count:
        return f"the stripe count is {found.stripe_count}, not {stripe_count}"
    return None


def mpi_io_hints(plan: LayoutPlan, extra: Iterable[str] = ()) -> dict[str, str]:
    """Return the hints for MPI.Info with which a planned file should be opened for writing.

    Names and values are those of ROMIO's users' guide; other MPI-IO libraries ignore what they do
    not know.

    Parameters
    ----------
    plan
        Gives stripe size and count. Where its chunks begin on stripe boundaries, every rank writes
        whole stripes of its own, and gathering them in aggregators first would only copy them;
        otherwise aggregators put the ranks' parts together. Data sieving (read a range, change it,
        write it back, under a lock) is off for writing: no chunk is written in part.
    extra
        ``KEY=VALUE`` texts (``--hint``), which win.

    Raises
    ------
    PlanError
        A text that is not ``KEY=VALUE``.
    """
    aligned = plan.alignment_nbytes > 1 and plan.compression is None and plan.precision is None
    hints = {
        "striping_unit": str(plan.stripe_nbytes),
        "romio_cb_write": "disable" if aligned else "enable",
        "romio_cb_read": "automatic",
        "romio_ds_write": "disable",
        "romio_ds_read": "automatic",
    }
    if plan.stripe_count is not None and plan.stripe_count > 0:
        hints["striping_factor"] = hints["cb_nodes"] = str(plan.stripe_count)
    for text in extra:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise PlanError(f"--hint {text}: give KEY=VALUE, such as cb_nodes=8")
        hints[key.strip()] = value.strip()
    return hints
