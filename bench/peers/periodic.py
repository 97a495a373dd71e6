"""Periodic boundaries beside MDAnalysis' transformations and ``gmx trjconv``, by CPU time.

``python bench/peers/periodic.py TOP.tpr TRAJECTORY.xtc [REPEATS [SELECTION]]``: the steps alone in
memory beside MDAnalysis (of mdio: reading with the step less reading without), then conversions
from XTC to XTC, in turn, each a process: user CPU time, the least of the repeats, and what the step
adds to a conversion without one. ``cluster``, which MDAnalysis does not have, is of the molecules
of the selection, beside writing these alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import MDAnalysis as mda
from MDAnalysis import transformations

import mdio
from mdio.converters.periodic import TransformedLayout

STEPS = ("whole", "mol", "atom", "nojump")
N_THEIRS = 5


def user_s(command: list[str]) -> float:
    """Return the user CPU seconds of a command."""
    before = os.times().children_user
    subprocess.run(command, input=b"0\n0\n", capture_output=True, check=True)
    return os.times().children_user - before


def cpu_s(work: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU seconds of some repeats."""
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def theirs(top: str, source: str, pbc: str) -> float:
    """Return CPU seconds a frame of MDAnalysis' transformation, frames being read before."""
    u = mda.Universe(top, source)
    atoms = u.atoms
    atoms.fragments  # noqa: B018 - found once, by both

    def by_molecules(ts: Any) -> Any:
        atoms.wrap(compound="fragments", center="com")
        return ts

    whole = transformations.unwrap(atoms)
    steps = {
        "whole": [whole],
        "mol": [whole, by_molecules],
        "atom": [transformations.wrap(atoms)],
        "nojump": [transformations.NoJump()],
    }[pbc]
    seconds = 0.0
    for ts in u.trajectory[:N_THEIRS]:
        begun = time.process_time()
        for step in steps:
            step(ts)
        seconds += time.process_time() - begun
    return seconds / N_THEIRS


def ours(top: str, source: str, pbc: str, repeats: int) -> float:
    """Return the CPU seconds a frame that a step adds to reading."""
    with mdio.open(source) as plain:
        n_frames = plain.info.n_frames
        made = TransformedLayout(source, source=plain, top=top, pbc=pbc)
        room = made.read(0, n_frames)
        both = [
            cpu_s(lambda layout=layout: layout.read(0, n_frames, out=room), repeats)
            for layout in (made, plain)
        ]
    return (both[0] - both[1]) / n_frames


def commands(top: str, source: str, out: Path, selection: str) -> dict[tuple[str, str], list[str]]:
    """Return the conversions to compare: of all atoms, and of some molecules (``some``)."""
    some = mda.Universe(top, source).select_atoms(f"same fragment as ({selection})")
    index = str(out / "some.ndx")
    some.write(index, name="some")
    mdio_command = str(Path(sys.executable).with_name("mdio"))
    convert = [mdio_command, "convert", source, str(out / "a.xtc"), "-s", top]
    convert += ["--quiet", "--force", "--no-topology"]
    trjconv = ["gmx", "trjconv", "-s", top, "-f", source, "-o", str(out / "g.xtc"), "-ur", "tric"]
    kept = ["--select", f"same fragment as ({selection})"]
    found = {}
    for name in ("none", *STEPS, "some", "cluster"):
        pbc = "none" if name == "some" else name
        ours, theirs = (kept, ["-n", index]) if name in ("some", "cluster") else ([], [])
        found["mdio", name] = [*convert, *ours, *([] if pbc == "none" else ["--pbc", pbc])]
        if shutil.which("gmx"):
            found["gmx trjconv", name] = [*trjconv, *theirs, "-pbc", pbc]
    return found


def main() -> None:
    """Measure and print."""
    top, source, *rest = sys.argv[1:]
    repeats = int(rest[0]) if rest else 5
    selection = rest[1] if rest[1:] else "resname SOL and resid 300:700"
    warnings.simplefilter("ignore")
    print(f"load {os.getloadavg()[0]:.1f}; CPU microseconds a frame, in memory")
    for pbc in STEPS:
        fast, slow = ours(top, source, pbc, repeats), theirs(top, source, pbc)
        print(f"{pbc:8} mdio {1e6 * fast:9.0f}  MDAnalysis {1e6 * slow:9.0f}  {slow / fast:7.1f}x")
    with tempfile.TemporaryDirectory() as folder:
        compared = commands(top, source, Path(folder), selection)
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in compared}
        for _ in range(repeats):
            for key, command in compared.items():
                seconds[key].append(user_s(command))
    print(
        f"load {os.getloadavg()[0]:.1f}; user CPU seconds of a conversion, and what the step adds"
    )
    for (who, pbc), found in seconds.items():
        least = min(found)
        plain = min(seconds[who, "some" if pbc == "cluster" else "none"])
        print(f"{who:12} {pbc:8} {least:6.2f}  {least - plain:+6.2f}")


if __name__ == "__main__":
    main()
