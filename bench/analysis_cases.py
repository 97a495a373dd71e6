"""What `analysis.py` times: the same analyses by mdio and by its peers, on the same frames."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adk
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis import rms
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysis.lib import qcprot
from peers.peer_commands import gmx_rms
from peers.runner import RUSAGE_CHILDREN, RUSAGE_SELF, resource

import mdio
from mdio.core import kernels

SELECT = "name CA"
N_TIMES_KERNEL = 20
"""How often the 98 frames are gone through when a kernel is timed alone."""

Cases = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Target:
    """What a row shall reach: so many times as fast as a peer, or so many microseconds."""

    case: str
    peer: str | None = None
    factor: float = 0.0
    below_us: float = 0.0


@dataclass(frozen=True)
class Section:
    """Cases that answer one question, to be timed in turn."""

    title: str
    n_frames: int
    cases: Cases
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Files:
    """One trajectory in all its forms, made before any clock starts."""

    top: Path
    xtc: Path
    grouped: dict[str, Path]
    full: Path
    n_frames: int

    @classmethod
    def make(cls, folder: Path, n_tiles: int) -> Files:
        """Convert the tiled trajectory, where that has not been done before."""
        top, xtc = adk.topology(), adk.tiled(folder, n_tiles)
        grouped = {name: folder / f"analysis_{n_tiles}x.{name}" for name in ("h5md", "zarr")}
        full = folder / f"analysis_all_{n_tiles}x.h5md"
        for path in grouped.values():
            if not path.exists():
                mdio.convert(xtc, path, top=top, groups={"ca": SELECT}, workers=2)
        if not full.exists():
            mdio.convert(xtc, full, workers=2)
        for path in (*grouped.values(), full, xtc):  # into the page cache
            mdio.analyze(path, top=top, kernel=mdio.RMSD(select="all"), step=7)
        return cls(top, xtc, grouped, full, 98 * n_tiles)


def user_seconds() -> float:
    """Return the user CPU time of this process and of those that it has ended."""
    return sum(resource.getrusage(who).ru_utime for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def quiet_universe(top: Path, *trajectory: Path) -> mda.Universe:
    """Return a Universe without what MDAnalysis has to say about guesses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(str(top), *map(str, trajectory))


def kernel_alone(folder: Path) -> Section:
    """RMSD of frames that lie in memory; no reading."""
    universe = quiet_universe(adk.topology(), adk.tiled(folder, 1))
    atoms = universe.select_atoms(SELECT)
    frames = np.array([atoms.positions for _ in universe.trajectory])
    reference = frames[0].astype(np.float64)
    centred = frames - frames.mean(axis=1, keepdims=True, dtype=np.float64)
    many = np.tile(frames, (N_TIMES_KERNEL, 1, 1))
    n, out = len(atoms), np.empty(len(many))

    def bare() -> float:
        for _ in range(N_TIMES_KERNEL):
            for x in centred:
                last = qcprot.CalcRMSDRotationalMatrix(centred[0], x, n, None, None)
        return float(last)

    def centring() -> float:
        for _ in range(N_TIMES_KERNEL):
            for x in frames:
                last = rms.rmsd(x, reference, superposition=True)
        return float(last)

    bare_name = "MDAnalysis qcprot alone, frames centred beforehand"
    centring_name = "MDAnalysis rms.rmsd, which centres and calls qcprot"
    return Section(
        f"RMSD of {n} atoms in memory, one core",
        len(many),
        {
            bare_name: bare,
            centring_name: centring,
            "mdio": lambda: float(kernels.rmsd(many, reference, out=out)[-1]),
        },
        (Target("mdio", centring_name, below_us=3),),
    )


class Peers:
    """MDAnalysis' analyses; each call opens the trajectory again, the topology was read before."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.universe = quiet_universe(files.top)

    def rmsd(self) -> Any:
        """``rms.RMSD`` of the selection, on the XTC."""
        self.universe.load_new(str(self.files.xtc))
        return rms.RMSD(self.universe.select_atoms(SELECT)).run().results.rmsd[:, 2]

    def ramachandran(self) -> Any:
        """``Ramachandran`` of the protein, on the XTC: degrees."""
        self.universe.load_new(str(self.files.xtc))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Ramachandran(self.universe.select_atoms("protein")).run().results.angles


def gmx_case(files: Files) -> Callable[[], Any]:
    """``gmx rms`` on the XTC; the time of the same command on one frame is taken off."""
    universe = quiet_universe(files.top, files.xtc)
    folder = files.xtc.parent / "analysis_gmx"
    folder.mkdir(exist_ok=True)
    structure, one, atoms = folder / "structure.gro", folder / "one.xtc", folder / "ca.npy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe.atoms.write(str(structure))
        universe.atoms.write(str(one))
    np.save(atoms, universe.select_atoms(SELECT).indices)
    os.environ["OMP_NUM_THREADS"] = "1"
    return gmx_rms(str(files.xtc), str(structure), str(one), str(atoms))


def rmsd_end_to_end(files: Files, with_gmx: bool) -> Section:
    """Open, read and compute, in one process."""
    top = quiet_universe(files.top)
    peer, gmx = "MDAnalysis rms.RMSD on the XTC", "gmx rms on the XTC"

    def ours(path: Path) -> Callable[[], Any]:
        kernel = mdio.RMSD(select=SELECT)
        return lambda: mdio.analyze(path, top=top, kernel=kernel).values

    cases = {peer: Peers(files).rmsd}
    if with_gmx:
        cases[gmx] = gmx_case(files)
    targets = []
    for name, path in files.grouped.items():
        cases[f"mdio, ca group of {name}"] = ours(path)
        targets += [Target(f"mdio, ca group of {name}", peer, 50)]
        targets += [Target(f"mdio, ca group of {name}", gmx, 30)]
    cases["mdio, all atoms in h5md"] = ours(files.full)
    targets += [Target("mdio, all atoms in h5md", peer, 10)]
    cases["mdio, the XTC itself"] = ours(files.xtc)
    title = f"RMSD of C-alpha, {files.n_frames:,} frames, one process"
    return Section(title, files.n_frames, cases, (*targets, Target("mdio, the XTC itself", peer)))


def dihedrals_end_to_end(files: Files) -> Section:
    """Phi and psi of 212 residues: angles there, their cosines and sines here."""
    top = quiet_universe(files.top)
    peer = "MDAnalysis Ramachandran on the XTC"
    paths = {"h5md": files.full, "zarr": files.grouped["zarr"], "XTC": files.xtc}
    cases: Cases = {peer: Peers(files).ramachandran}
    for name, path in paths.items():
        cases[f"mdio, {name}"] = lambda path=path: (
            mdio.analyze(path, top=top, kernel=mdio.Dihedrals()).values
        )
    targets = Target("mdio, h5md", peer, 8), Target("mdio, zarr", peer), Target("mdio, XTC", peer)
    title = f"phi and psi of 212 residues, {files.n_frames:,} frames, one process"
    return Section(title, files.n_frames, cases, targets)


def check(files: Files) -> None:
    """Raise AssertionError unless all compute the same, as far as float32 can tell."""
    peers = Peers(files)
    top = quiet_universe(files.top)
    wanted = peers.rmsd()
    for path in (*files.grouped.values(), files.full, files.xtc):
        found = mdio.analyze(path, top=top, kernel=mdio.RMSD(select=SELECT)).values
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    angles = np.radians(peers.ramachandran())
    wanted = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(angles), -1)
    found = mdio.analyze(files.full, top=top, kernel=mdio.Dihedrals()).values
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
