"""Three systems to measure with, and the files made from each before the clock starts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adk
import numpy as np
from peers.process import Case, NotMeasuredError, Peers
from peers.runner import remove

import mdio

N_RANDOM = 300
"""Single frames that are fetched, at most."""


@dataclass(frozen=True)
class System:
    """An XTC file and what belongs to it."""

    title: str
    n_atoms: int
    n_frames: int
    xtc: Path
    top: Path | None
    folder: Path
    scratch: Path

    @property
    def n_random(self) -> int:
        """How many single frames are fetched."""
        return min(N_RANDOM, 2 * self.n_frames)

    @property
    def structure(self) -> Path:
        """A GRO file of one frame, for programs that want one."""
        return self.folder / "structure.gro"

    @property
    def one(self) -> Path:
        """An XTC of the first frame alone."""
        return self.folder / "one.xtc"

    def numbers(self, name: str) -> str:
        """Return the file of atom indices ``ca`` or ``first``, or of ``frames``."""
        return str(self.folder / f"{name}.npy")

    def made(self, suffix: str) -> str:
        """Return a file that `make` makes from the XTC."""
        return str(self.folder / f"made.{suffix}")

    def out(self, suffix: str) -> str:
        """Return a path that conversions may write to."""
        return str(self.scratch / f"out.{suffix}")


def systems(folder: Path, scratch: Path | None, quick: bool, tiny: bool) -> list[System]:
    """Return the systems: small, in water, and in much water."""
    tiles, waters = (50, ((1, 200), (6, 60)))
    if quick:
        tiles, waters = (10, ((1, 30),))
    if tiny:
        tiles, waters = (1, ())
    found = [small_system(folder, scratch, tiles)]
    for copies, n_frames in waters:
        found.append(
            System(
                f"{47_681 * copies:,} atoms x {n_frames:,} frames",
                47_681 * copies,
                n_frames,
                adk.solvated(folder, copies, n_frames),
                adk.solvated_topology() if copies == 1 else None,
                folder / f"water_{copies}x{n_frames}",
                scratch or folder,
            )
        )
        lay_out(found[-1])
    return found


def small_system(folder: Path, scratch: Path | None, tiles: int) -> System:
    """Return adenylate kinase without water, so many times its 98 frames."""
    system = System(
        f"{3341:,} atoms x {98 * tiles:,} frames",
        3341,
        98 * tiles,
        adk.tiled(folder, tiles),
        adk.topology(),
        folder / f"adk_{tiles}x",
        scratch or folder,
    )
    lay_out(system)
    return system


def lay_out(system: System) -> None:
    """Write what programs want beside the trajectory: indices, one frame, a structure."""
    import MDAnalysis as mda

    system.folder.mkdir(parents=True, exist_ok=True)
    top = system.top or adk.solvated_topology()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(str(top))
        chosen = universe.select_atoms("name CA").indices
        n_copies = system.n_atoms // len(universe.atoms)
        ca = np.concatenate([chosen + i * len(universe.atoms) for i in range(n_copies)])
        rng = np.random.default_rng(0)
        np.save(system.numbers("ca"), ca)
        np.save(system.numbers("first"), np.arange(system.n_atoms // 10))
        np.save(system.numbers("frames"), rng.integers(0, system.n_frames, system.n_random))
        if not system.one.exists():
            universe = mda.Universe.empty(system.n_atoms, trajectory=False)
            universe.load_new(str(system.xtc))
            with mda.Writer(str(system.one), system.n_atoms) as writer:
                writer.write(universe.atoms)
            if system.top is not None:
                universe = mda.Universe(str(system.top), str(system.xtc))
                universe.atoms.write(str(system.structure))


def make(system: System, peers: Peers) -> dict[str, str]:
    """Make the other files of a system, and return why some could not be made.

    Those of mdio are made again each time, since its code changes.
    """
    source = str(system.xtc)
    groups: dict[str, Any] = {}
    if system.top is not None:
        groups = {"top": str(system.top), "groups": {"ca": "name CA"}}
    for suffix, options in (
        ("h5md", {}),
        ("zarr", {"precision": "none"}),
        ("groups.h5md", groups),
        ("groups.zarr", {**groups, "precision": "none"}),
        ("step.zarr", {"precision": 0.01}),
        ("auto.zarr", {"precision": "auto"}),
        ("dcd", {}),
    ):
        mdio.convert(source, system.made(suffix), force=True, **options)
    n_atoms = system.n_atoms
    size = {"path": source, "n_atoms": n_atoms}
    cases = {
        "mdz": Case("", "peers.peer_small", "mdz_convert", {"path": source}),
        "zarrmd": Case("", "peers.peer_zarrtraj", "write", size),
        "digits.zarrmd": Case("", "peers.peer_zarrtraj", "write", {**size, "digits": 3}),
    }
    problems = {}
    for suffix, case in cases.items():
        target = Path(system.made(suffix))
        if target.exists():
            continue
        part = target.with_name(f"part.{target.name}")
        asked = Case(suffix, case.module, case.case, {**case.args, "out": str(part)})
        try:
            peers.ask(asked)
            part.rename(target)
        except NotMeasuredError as error:
            problems[suffix] = str(error)
            remove(part)
    return problems
