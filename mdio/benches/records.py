"""What the benches share: where and with what was measured, JSON lines, means and deviations."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mdio.core.errors import BlockError, MissingExtraError, OutputError
from mdio.parallel.executors import available_cores

PACKAGES = ("mdio-layouts", "MDAnalysis", "numpy", "h5py", "zarr", "mpi4py", "distributed")


def provenance() -> dict[str, Any]:
    """Return when, where and with what a figure was measured."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "versions": versions,
    }


def make_folder(path: str | Path) -> Path:
    """Return the folder for a bench's outputs, made if need be.

    Raises OutputError: it cannot be made or written.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); choose another") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: is not writable; choose another folder")
    return folder


def append_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Append records, each with its provenance, to a file of JSON lines."""
    where = provenance()
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({**record, "provenance": where}) + "\n")


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a sample (0 for a single value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def told_by(command: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Run a program, and return the JSON object that it prints, or writes to `file`.

    Raises BlockError: the program failed; the message has its own.
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout if file is None else file.read_text())
    except (ValueError, OSError) as error:
        said = " ".join(done.stderr.split()) or "without a word"
        words = " ".join(command)
        raise BlockError(f"{words} failed ({done.returncode}): {said}") from error
    return found


MDIO = ("-m", "mdio.cli.main")
"""What Python runs as ``mdio``."""


def mpiexec_command(
    mpiexec: str | None, n_ranks: int, *words: str, program: Sequence[str] = MDIO
) -> list[str]:
    """Return the command line that runs a Python `program` with `words` on `n_ranks` ranks.

    `mpiexec`: the launcher with its options, such as ``srun --mpi=pmi2``; by default the
    ``mpiexec`` beside this Python, or else on PATH.
    Raises MissingExtraError: there is no launcher.
    """
    launcher = mpiexec.split() if mpiexec else []
    if not launcher:
        beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
        found = beside or shutil.which("mpiexec")
        if found is None:
            raise MissingExtraError(
                "this bench starts MPI programs and finds no mpiexec; make mpi builds an "
                "environment that has one (.venv-mpi), or name it: --mpiexec"
            )
        launcher = [found]
    return [*launcher, "-n", str(n_ranks), sys.executable, *program, *words]
