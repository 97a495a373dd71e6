"""GROMACS and molly, which are programs: each timing is a process of its own.

molly's program takes the time itself. Of ``gmx`` the wall time is taken, less that of the same
command on one frame, so that what it takes to start is left out as it is everywhere else.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MOLLY = Path(__file__).parent.parent / ".venv-peers" / "molly" / "release" / "peer_molly"
ANGSTROM_PER_NM = 10.0


def versions() -> dict[str, str]:
    found = {}
    lock = Path(__file__).parent / "peer_molly" / "Cargo.lock"
    if MOLLY.exists():
        lines = lock.read_text().splitlines()
        found["molly"] = lines[lines.index('name = "molly"') + 1].split('"')[1]
    try:
        told = subprocess.run(["gmx", "--version"], capture_output=True, text=True, check=True)
    except OSError:
        return found
    for line in told.stdout.splitlines():
        if line.startswith("GROMACS version"):
            found["GROMACS"] = line.split()[-1]
    return found


def as_text(numbers: str) -> str:
    """Write numbers of a .npy file as text beside it, and return that file."""
    path = Path(numbers).with_suffix(".txt")
    path.write_text("\n".join(map(str, np.load(numbers).tolist())))
    return str(path)


def molly(
    path: str,
    atoms: str | None = None,
    frames: str | None = None,
    buffered: bool = False,
    first: bool = False,
    times: int = 1,
) -> Callable[[], Any]:
    """Decode an XTC with molly: all atoms, the first of them, or a list of them."""
    if not MOLLY.exists():
        raise FileNotFoundError("molly's program was not built (is cargo installed?)")
    chosen = "all"
    if atoms is not None:
        chosen = f"first:{len(np.load(atoms))}" if first else as_text(atoms)
    command = [str(MOLLY), path, chosen, str(int(buffered)), str(times)]
    if frames is not None:
        command.append(as_text(frames))

    def run() -> dict[str, float]:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return {"seconds": float(told[0]), "number": float(told[1]) * ANGSTROM_PER_NM}

    return run


def gmx_seconds(*words: str, answers: str) -> float:
    """Return the wall time of one command of GROMACS."""
    begun = time.perf_counter()
    done = subprocess.run(
        ["gmx", "-quiet", "-nobackup", *words], input=answers, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"gmx {words[0]} ended with {done.returncode}: {done.stderr[-120:]}")
    return seconds


def gmx_convert(path: str, out: str, one: str, structure: str) -> Callable[[], Any]:
    """``gmx trjconv`` into the format that the suffix of `out` names."""

    def timed(source: str, target: str) -> float:
        return gmx_seconds("trjconv", "-s", structure, "-f", source, "-o", target, answers="0\n")

    def run() -> dict[str, float]:
        start = str(Path(out).with_name(f"one.{Path(out).name}"))
        return {"seconds": timed(path, out) - timed(one, start)}

    return run


def gmx_rms(path: str, structure: str, one: str, atoms: str) -> Callable[[], Any]:
    """``gmx rms`` of the chosen atoms, superposed by them."""
    with tempfile.NamedTemporaryFile("w", suffix=".ndx", delete=False) as file:
        file.write("[ chosen ]\n" + "\n".join(str(i + 1) for i in np.load(atoms).tolist()) + "\n")
    values = Path(file.name).with_suffix(".xvg")

    def timed(source: str) -> float:
        return gmx_seconds(
            *("rms", "-s", structure, "-f", source, "-n", file.name, "-o", str(values)),
            *("-fit", "rot+trans", "-xvg", "none"),
            answers="0\n0\n",
        )

    def run() -> dict[str, float]:
        seconds = timed(path)
        mean = float(np.loadtxt(values)[:, 1].mean()) * ANGSTROM_PER_NM
        return {"seconds": seconds - timed(one), "number": mean}

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "molly": molly,
    "gmx_convert": gmx_convert,
    "gmx_rms": gmx_rms,
}
