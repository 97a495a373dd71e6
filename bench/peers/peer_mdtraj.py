"""mdtraj: its XTC reader, its RMSD, and the conversions of its mdconvert."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mdtraj
import numpy as np
from mdtraj.formats import XTCTrajectoryFile
from peers.runner import Times, between, clocks, flush

ANGSTROM_PER_NM = 10.0
N_ROWS = 64


def versions() -> dict[str, str]:
    return {"mdtraj": version("mdtraj")}


def read(path: str, atoms: str | None = None) -> Callable[[], Any]:
    """Read an XTC in blocks of frames."""
    indices = None if atoms is None else np.load(atoms)
    reader = XTCTrajectoryFile(path)
    n_atoms = reader.read(n_frames=1)[0].shape[1]
    rows = max(1, N_ROWS * 3341 // n_atoms)

    def run() -> Any:
        reader.seek(0)
        last = None
        while True:
            positions = reader.read(n_frames=rows, atom_indices=indices)[0]
            if not len(positions):
                return last * ANGSTROM_PER_NM
            last = positions[-1]

    return run


def frames(path: str, frames: str) -> Callable[[], Any]:
    """Fetch single frames by their numbers."""
    wanted = np.load(frames).tolist()
    reader = XTCTrajectoryFile(path)
    len(reader)

    def run() -> Any:
        for frame in wanted:
            reader.seek(frame)
            positions = reader.read(n_frames=1)[0]
        return positions[0] * ANGSTROM_PER_NM

    return run


def rmsd(path: str, structure: str, atoms: str) -> Callable[[], Any]:
    """Read the chosen atoms of all frames, and superpose them on the first."""
    topology = mdtraj.load_topology(structure)
    indices = np.load(atoms)

    def run() -> Any:
        trajectory = mdtraj.load_xtc(path, top=topology, atom_indices=indices)
        return mdtraj.rmsd(trajectory, trajectory, 0) * ANGSTROM_PER_NM

    return run


def convert(path: str, out: str, one: str, structure: str) -> Callable[[], Any]:
    """``mdconvert``, less what it takes to start and convert one frame."""
    program = str(Path(sys.executable).with_name("mdconvert"))

    def timed(source: str, target: str) -> Times:
        begun = clocks()
        done = subprocess.run(
            [program, "-f", "-t", structure, "-o", target, source], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"mdconvert: {done.stderr.strip().splitlines()[-1]}")
        flush(Path(target))
        return between(begun, clocks())

    def run() -> Times:
        start = Path(out).with_name(f"one.{Path(out).name}")
        return between(timed(one, str(start)), timed(path, out))

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "read": read,
    "frames": frames,
    "rmsd": rmsd,
    "convert": convert,
}
