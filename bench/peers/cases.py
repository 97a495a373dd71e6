"""The tables: which cases are timed beside each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peers.process import Case
from peers.systems import System

MDIO = "peers.peer_mdio"
MDANALYSIS = "peers.peer_mdanalysis"
MDTRAJ = "peers.peer_mdtraj"
SMALL = "peers.peer_small"
ZARRTRAJ = "peers.peer_zarrtraj"
COMMANDS = "peers.peer_commands"


def decode(system: System) -> list[Case]:
    """Read all atoms of all frames, in order."""
    xtc = {"path": str(system.xtc)}

    def ours(what: str, suffix: str) -> Case:
        return Case(f"mdio, {what}", MDIO, "read", {"path": system.made(suffix)})

    return [
        Case("mdio, XTC", MDIO, "read", xtc),
        Case("libmdaxdr, XTC", MDANALYSIS, "libmdaxdr", xtc),
        Case("molly, XTC", COMMANDS, "molly", xtc),
        Case("mdtraj, XTC", MDTRAJ, "read", xtc),
        Case("chemfiles, XTC", SMALL, "chemfiles_read", xtc),
        Case("xtclib, XTC", SMALL, "xtclib_read", xtc),
        Case("mdz, mdz", SMALL, "mdz_read", {"path": system.made("mdz")}),
        ours("h5md", "h5md"),
        ours("zarr", "zarr"),
        ours("zarr --precision 0.01", "step.zarr"),
        ours("zarr --precision auto", "auto.zarr"),
        ours("dcd", "dcd"),
    ]


def part(system: System, name: str) -> list[Case]:
    """Read some atoms of all frames."""
    atoms = {"atoms": system.numbers(name)}
    xtc = {"path": str(system.xtc), **atoms}
    cases = [
        Case("mdio, XTC", MDIO, "read", xtc),
        Case("molly, XTC", COMMANDS, "molly", {**xtc, "first": name == "first"}),
        Case(
            "molly buffered, XTC",
            COMMANDS,
            "molly",
            {**xtc, "first": name == "first", "buffered": True},
        ),
        Case("MDAnalysis, XTC", MDANALYSIS, "selection", universe(system.xtc, system, **atoms)),
        Case("mdtraj atom_indices=, XTC", MDTRAJ, "read", xtc),
    ]
    for suffix in ("h5md", "zarr", "step.zarr"):
        what = "zarr --precision 0.01" if suffix == "step.zarr" else suffix
        cases.append(Case(f"mdio, {what}", MDIO, "read", {"path": system.made(suffix), **atoms}))
    return cases


def first(system: System) -> list[Case]:
    """Read the first 10% of the atoms of all frames."""
    return part(system, "first")


def calpha(system: System) -> list[Case]:
    """Read the C-alpha atoms of all frames."""
    return part(system, "ca")


def universe(path: str | Path, system: System, **more: object) -> dict[str, object]:
    """Return the arguments of cases that go through a Universe."""
    return {"path": str(path), "n_atoms": system.n_atoms, **more}


def iterate(system: System) -> list[Case]:
    """Go through all frames of a Universe."""
    xtc = str(system.xtc)
    h5md = system.made("h5md")
    zarr = system.made("zarr")
    return [
        Case("MDAnalysis in memory, and a copy", MDANALYSIS, "memory", {"path": xtc}),
        Case("MDAnalysis, XTC", MDANALYSIS, "iterate", universe(xtc, system)),
        Case("mdio, XTC", MDIO, "iterate", universe(xtc, system, format="MDIO")),
        Case("mdio, h5md", MDIO, "iterate", universe(h5md, system)),
        Case("mdio, zarr", MDIO, "iterate", universe(zarr, system)),
        Case(
            "mdio, zarr --precision 0.01",
            MDIO,
            "iterate",
            universe(system.made("step.zarr"), system),
        ),
        Case("MDAnalysis, our h5md", MDANALYSIS, "iterate", universe(h5md, system, format="H5MD")),
        Case("MDAnalysis, our dcd", MDANALYSIS, "iterate", universe(system.made("dcd"), system)),
        Case("zarrtraj, zarrmd", ZARRTRAJ, "iterate", universe(system.made("zarrmd"), system)),
    ]


def random(system: System) -> list[Case]:
    """Fetch single frames in random order."""
    frames = {"frames": system.numbers("frames")}
    xtc = str(system.xtc)
    ours = {what: universe(system.made(what), system, **frames) for what in ("h5md", "zarr")}
    return [
        Case("MDAnalysis, XTC with offsets", MDANALYSIS, "frames", universe(xtc, system, **frames)),
        Case("mdio, h5md", MDIO, "frames", ours["h5md"]),
        Case("mdio, zarr", MDIO, "frames", ours["zarr"]),
        Case("mdio, XTC", MDIO, "frames", universe(xtc, system, format="MDIO", **frames)),
        Case("MDAnalysis, our h5md", MDANALYSIS, "frames", {**ours["h5md"], "format": "H5MD"}),
        Case("molly, XTC", COMMANDS, "molly", {"path": xtc, **frames}),
        Case("mdtraj, XTC", MDTRAJ, "frames", {"path": xtc, **frames}),
        Case("chemfiles, XTC", SMALL, "chemfiles_frames", {"path": xtc, **frames}),
        Case("mdz, mdz", SMALL, "mdz_frames", {"path": system.made("mdz"), **frames}),
        Case(
            "zarrtraj, zarrmd",
            ZARRTRAJ,
            "frames",
            universe(system.made("zarrmd"), system, **frames),
        ),
    ]


def rmsd(system: System) -> list[Case]:
    """RMSD of the C-alpha atoms, end to end (without parsing the topology)."""
    if system.top is None:
        return []
    select = {"top": str(system.top), "select": "name CA"}
    files = {"structure": str(system.structure), "atoms": system.numbers("ca")}
    xtc = {"path": str(system.xtc)}
    grouped = {kind: system.made(f"groups.{kind}") for kind in ("h5md", "zarr")}
    return [
        Case("mdio, XTC", MDIO, "rmsd", {**xtc, **select}),
        Case("MDAnalysis rms.RMSD, XTC", MDANALYSIS, "rmsd", {**xtc, **select}),
        Case("gmx rms, XTC", COMMANDS, "gmx_rms", {**xtc, **files, "one": str(system.one)}),
        Case("mdtraj, XTC", MDTRAJ, "rmsd", {**xtc, **files}),
        Case(
            "mdio, ca group of h5md",
            MDIO,
            "rmsd",
            {"path": grouped["h5md"], **select, "group": "ca"},
        ),
        Case(
            "mdio, ca group of zarr",
            MDIO,
            "rmsd",
            {"path": grouped["zarr"], **select, "group": "ca"},
        ),
        Case(
            "MDAnalysis rms.RMSD, our dcd",
            MDANALYSIS,
            "rmsd",
            {"path": system.made("dcd"), **select},
        ),
    ]


def convert(system: System) -> list[Case]:
    """Convert the XTC."""
    xtc = {"path": str(system.xtc)}
    one = {"one": str(system.one), "structure": str(system.structure)}

    def ours(what: str, suffix: str, **options: object) -> Case:
        return Case(f"mdio, {what}", MDIO, "convert", {**xtc, "out": system.out(suffix), **options})

    def theirs(what: str, suffix: str) -> Case:
        args = universe(str(system.xtc), system, out=system.out(suffix))
        return Case(f"MDAnalysis writer, {what}", MDANALYSIS, "write", args)

    def out(suffix: str) -> dict[str, str]:
        return {**xtc, "out": system.out(suffix)}

    cases = [
        Case("mdio, only decoding the XTC", MDIO, "read", xtc),
        ours("h5md", "a.h5md"),
        ours("zarr", "a.zarr", precision="none"),
        ours("zarr --precision 0.01", "b.zarr", precision=0.01),
        ours("segments of dcd", "a.segments", container="dcd"),
        ours("dcd", "a.dcd"),
        Case(
            "control: a plain write of the bytes of h5md",
            MDIO,
            "control",
            {"nbytes_of": system.made("h5md"), "out": system.out("control")},
        ),
        theirs("H5MD", "b.h5md"),
        theirs("DCD", "b.dcd"),
        theirs("NetCDF", "b.ncdf"),
        Case(
            "zarrtraj writer, zarrmd",
            ZARRTRAJ,
            "write",
            universe(str(system.xtc), system, out=system.out("a.zarrmd")),
        ),
        Case("mdz convert, mdz", SMALL, "mdz_convert", out("a.mdz")),
    ]
    if system.top is None:
        return cases
    return [
        *cases,
        Case("mdconvert, HDF5", MDTRAJ, "convert", {**out("c.h5"), **one}),
        Case("mdconvert, DCD", MDTRAJ, "convert", {**out("c.dcd"), **one}),
        Case("chemfiles, NetCDF", SMALL, "chemfiles_convert", out("d.nc")),
        Case(
            "gmx trjconv, TRR",
            COMMANDS,
            "gmx_convert",
            {**out("e.trr"), **one},
        ),
    ]


def two_workers(system: System, n_copies: int) -> list[Case]:
    """Convert the XTC, so many times over, with one worker and with two."""
    args = {"path": [str(system.xtc)] * n_copies, "out": system.out("w.zarr"), "precision": 0.01}
    return [
        Case("mdio, 1 worker", MDIO, "convert", {**args, "workers": 1}, cores=2),
        Case("mdio, 2 workers", MDIO, "convert", {**args, "workers": 2}, cores=2),
    ]


TABLES: dict[str, Callable[[System], list[Case]]] = {
    "decode": decode,
    "first": first,
    "calpha": calpha,
    "iterate": iterate,
    "random": random,
    "rmsd": rmsd,
    "convert": convert,
}
"""By name; each function's docstring is the table's title."""

COLD = ("libmdaxdr, XTC", "mdio, XTC", "mdio, h5md", "mdio, zarr", "mdio, zarr --precision 0.01")
"""Cases of `decode` that are also timed with nothing in the page cache."""
