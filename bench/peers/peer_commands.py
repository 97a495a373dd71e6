"""GROMACS and molly, which are programs: each timing is a process of its own.

molly's program takes the time itself. Of ``gmx`` the wall time is taken, less that of the same
command on one frame, so that what it takes to start is left out as it is everywhere else.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peers.runner import Times, between, clocks, flush

MOLLY = Path(__file__).parents[2] / ".venv-peers" / "molly" / "release" / "peer_molly"
ANGSTROM_PER_NM = 10.0


def versions() -> dict[str, str]:
    found = {}
    manifest = Path(__file__).parent / "molly" / "Cargo.toml"
    if MOLLY.exists():
        wanted = tomllib.loads(manifest.read_text())["dependencies"]["molly"]
        found["molly"] = wanted.removeprefix("=")
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


def gmx(*words: str, answers: str, out: str) -> Times:
    """Run one command of GROMACS, flush what it writes, and return how long that took."""
    begun = clocks()
    done = subprocess.run(
        ["gmx", "-quiet", "-nobackup", *words, "-o", out],
        input=answers,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"gmx {words[0]} ended with {done.returncode}: {done.stderr[-120:]}")
    flush(Path(out))
    return between(begun, clocks())


def gmx_convert(path: str, out: str, one: str, structure: str) -> Callable[[], Any]:
    """``gmx trjconv`` into the format that the suffix of `out` names."""

    def timed(source: str, target: str) -> Times:
        return gmx("trjconv", "-s", structure, "-f", source, answers="0\n", out=target)

    def run() -> Times:
        start = str(Path(out).with_name(f"one.{Path(out).name}"))
        return between(timed(one, start), timed(path, out))

    return run


def gmx_rms(path: str, structure: str, one: str, atoms: str) -> Callable[[], Any]:
    """``gmx rms`` of the chosen atoms, superposed by them."""
    folder = Path(one).parent
    index, values = folder / "chosen.ndx", folder / "rmsd.xvg"
    chosen = "\n".join(str(i + 1) for i in np.load(atoms).tolist())
    index.write_text(f"[ chosen ]\n{chosen}\n")

    def timed(source: str) -> Times:
        words = ("-s", structure, "-f", source, "-n", str(index), "-fit", "rot+trans")
        return gmx("rms", *words, "-xvg", "none", answers="0\n0\n", out=str(values))

    def run() -> Times:
        start = timed(one)
        whole = timed(path)
        mean = float(np.loadtxt(values)[:, 1].mean()) * ANGSTROM_PER_NM
        return {**between(start, whole), "number": mean}

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "molly": molly,
    "gmx_convert": gmx_convert,
    "gmx_rms": gmx_rms,
}
