"""The conversions of ``scaling.py``: which there are, how long each has to be, one run."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layouts import Case
from mdio.analysis.scaling import mpiexec_command

START_S = 2.0
"""About what starting Python and MPI takes, beside the conversion."""
SAMPLE_S = 2.0
"""A calibration this long is long enough."""


@dataclass(frozen=True)
class Job:
    """One conversion, of the source listed `copies` times."""

    name: str
    case: Case
    """On one rank."""
    words: tuple[str, ...] = ()
    """What else its command says."""
    kind: str = "raw"
    """raw (its output is as large as the frames in memory), small, or gzip (of two ways)."""
    syncs: bool = False
    """Whether this layout is flushed to the disk before it gets its name."""
    copies: int = 1
    one_rank_s: float = 0.0
    nbytes: int = 0
    """About what one rank takes, and what is written."""

    def estimate(self, runs: Sequence[tuple[str, int]], cores: int) -> float:
        """Return about how many seconds `runs` of (way, processes) take."""
        total = 0.0
        for way, n in runs:
            if way == "control":
                total += self.nbytes / 400e6
            else:
                total += START_S + 1.15 * self.one_rank_s / min(n, cores)
        return total


def jobs(n_atoms: int, top: str | None, quick: bool) -> list[Job]:
    """Return the conversions; those of a few atoms only with a topology."""
    raw = [
        Job("h5md", Case("h5md", "mpi", 1), syncs=True),
        Job("zarr", Case("zarr", "mpi", 1)),
        Job("segments of dcd", Case("segments:dcd", "mpi", 1)),
    ]
    gzip = [
        Job("h5md, gzip:1, collective", Case("h5md", "collective", 1, "gzip:1"), (), "gzip", True),
        Job("zarr, gzip:1", Case("zarr", "mpi", 1, "gzip:1"), (), "gzip"),
    ]
    precise = ("--precision", "0.01")
    small = [Job("zarr, precision 0.01", Case("zarr", "mpi", 1), precise, "small")]
    if not quick:
        small.append(Job("h5md, gzip:1", Case("h5md", "mpi", 1, "gzip:1"), (), "small", True))
    if top is not None:
        tenth = f"bynum {n_atoms - max(n_atoms // 10, 1) + 1}:{n_atoms}"
        words = ("-s", top, "--select", tenth)
        small.append(Job("zarr, last tenth of the atoms", Case("zarr", "mpi", 1), words, "small"))
    return [*raw, *gzip, *small]


def take_away(out: Path) -> None:
    """Remove an output, and the topology beside it."""
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink(missing_ok=True)
    out.with_suffix(".top.pdb").unlink(missing_ok=True)


def _command(job: Job, way: str, n: int, source: str, out: Path, mpiexec: str | None) -> list[str]:
    case = replace(job.case, n_workers=n, way="workers" if way == "alone" else job.case.way)
    words = case.words(source, out)
    at = words.index(source)
    words[at : at + 1] = [source] * job.copies
    words += job.words
    if way == "alone":
        return [sys.executable, "-m", "mdio.cli.main", *words]
    return mpiexec_command(mpiexec, n, *words)


def run(
    job: Job,
    way: str,
    n: int,
    source: str,
    folder: Path,
    mpiexec: str | None,
    most_s: float,
) -> dict[str, Any]:
    """Convert once, and remove the output.

    Returns
    -------
    dict
        ``write_s`` as the command tells it, without starting Python and MPI; ``wall_s``,
        ``user_s`` and ``sys_s`` of everything, all ranks together; ``nbytes``. Or ``failed``, the
        reason, where the command fails or takes longer than `most_s`.
    """
    out = folder / f"mpi-scaling{job.case.suffix}"
    command = _command(job, way, n, source, out, mpiexec)
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, start_new_session=True
        )
        try:
            code, used = _wait(process.pid, begun + most_s)
        finally:
            take_away(out)
        seconds = time.perf_counter() - begun
        said.seek(0)
        errors.seek(0)
        text, error = said.read().decode(), " ".join(errors.read().decode().split())
    process.returncode = code
    try:
        found = json.loads(text)
    except ValueError:
        late = f"ended after {most_s:.0f} s" if seconds >= most_s else f"exit code {code}"
        return {"failed": f"{late}: {error[:300]}"}
    return {
        "write_s": found["seconds"],
        "wall_s": seconds,
        "user_s": used.ru_utime,
        "sys_s": used.ru_stime,
        "nbytes": found["nbytes_out"],
    }


def _wait(pid: int, deadline: float) -> tuple[int, Any]:
    """Wait for a program and return its exit code and what it and its children used.

    At the deadline its process group is ended: launchers end their ranks when they are told to.
    """
    told = None
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used
        now = time.perf_counter()
        if told is None and now > deadline:
            os.killpg(pid, signal.SIGTERM)
            told = now
        elif told is not None and now > told + 5:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)


def calibrate(
    job: Job,
    source: str,
    folder: Path,
    mpiexec: str | None,
    *,
    seconds: float,
    most_nbytes: int,
    most_s: float,
) -> Job:
    """Return `job` with as many copies of the source as take one rank `seconds`.

    Copies are fewer where its output would be larger than `most_nbytes`. Raises RuntimeError if
    the conversion fails.
    """
    copies = 1
    while True:
        found = run(replace(job, copies=copies), "mpi", 1, source, folder, mpiexec, most_s)
        if "failed" in found:
            raise RuntimeError(f"{job.name}: {found['failed']}")
        each_s, each_nbytes = found["write_s"] / copies, found["nbytes"] / copies
        room = max(1, int(most_nbytes // max(each_nbytes, 1)))
        if found["write_s"] >= min(SAMPLE_S, seconds / 3) or copies == room:
            break
        copies = min(room, copies * math.ceil(1.2 * SAMPLE_S / max(found["write_s"], SAMPLE_S / 8)))
    # A tenth more: longer jobs are a little faster, and the least of the repeats is looked at.
    copies = min(room, max(1, math.ceil(1.1 * seconds / each_s)))
    return replace(
        job, copies=copies, one_rank_s=copies * each_s, nbytes=round(copies * each_nbytes)
    )
