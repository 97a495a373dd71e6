"""Every command, one after the other, on an output of every layout; ranks run this too."""

from pathlib import Path

import numpy as np

import mdio
from mdio.cli.main import main

LAYOUTS = {
    "a.zarr": ["--chunk-frames", "4"],
    "joined.zarr": ["--chunk-frames", "4", "--precision", "0.001"],
    "a.h5md": ["--chunk-frames", "4"],
    "xtc.segments": ["--segments", "5", "--container", "xtc"],
    "dcd.segments": ["--segments", "5", "--container", "dcd"],
    "trr.segments": ["--segments", "5", "--container", "trr"],
    "ncdf.segments": ["--segments", "5", "--container", "ncdf"],
    "a.refs": ["--to", "refs"],
    "a.xtc": [],
    "a.dcd": [],
    "a.trr": [],
    "a.ncdf": [],
}
"""Outputs, and the words that make them."""
CHECKED = [name for name in LAYOUTS if Path(name).suffix in (".zarr", ".h5md", ".segments")]
"""Those that are repaired, and to which frames are added."""
PROGRAM = "suites.every_command:Counted"


class Counted:
    """How many coordinates are positive, atom by atom."""

    def map(self, block):
        """Return a pair for each frame and atom."""
        rows, atoms = np.nonzero(np.isfinite(block.positions[:, :, 0]))
        return atoms, rows, {"x": block.positions[rows, atoms, 0]}

    def reduce(self, key, frame, time, values):
        """Return what is known of an atom."""
        return {"n": len(frame), "largest": values["x"].max()}


def make_sources(folder, n_frames=18):
    """Write a trajectory, its continuation, both as one, and a topology."""
    import MDAnalysis as mda

    universe = mda.Universe.empty(7, trajectory=True)
    universe.add_TopologyAttr("names", ["CA"] * 7)
    universe.add_TopologyAttr("masses", np.ones(7))
    x = np.random.default_rng(3).uniform(0, 20, (n_frames, 7, 3)).astype("f4")
    universe.load_new(x, order="fac", dimensions=np.array([30, 30, 30, 90, 90, 90], "f4"), dt=2.0)
    universe.atoms.write(folder / "top.gro")
    cut = n_frames * 2 // 3
    runs = {"first.xtc": slice(0, cut), "next.xtc": slice(cut, None), "all.xtc": slice(None)}
    for name, frames in runs.items():
        universe.atoms.write(folder / name, frames=universe.trajectory[frames])


def damage(out):
    """Flip a bit in the middle of the largest file that holds frames."""
    files = [out] if out.is_file() else []
    beside = [out, *out.parent.glob(f"{out.name}.parts*")]
    for folder in beside:
        files += [path for path in folder.rglob("*") if path.is_file()]
    hidden = (".json", "-index", "-checksums")
    path = max((p for p in files if not p.name.endswith(hidden)), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def run(*words):
    """Run a command, which has to end well."""
    assert main([*map(str, words)]) == 0, words


def commands(folder, name, sharing, *, is_first=lambda: True):
    """Run all commands on one output.

    `sharing`: words that tell who does the work. `is_first`: whether this process does what only
    one may do, called by all.
    """
    out, table = folder / name, folder / f"{name}.csv"
    source, top = folder / "first.xtc", folder / "top.gro"
    workers = sharing if sharing[:1] == ["-w"] else []
    run("convert", source, out, *LAYOUTS[name], *sharing, "-q")
    run("verify", out, "--against", source, *sharing, "-q")
    if name in CHECKED:
        if is_first():
            damage(out)
            if "mpi" in sharing:  # the command is refused on ranks, which would all do the same
                assert mdio.repair(out, source).repaired
                assert not mdio.repair(out).bad
            else:
                run("repair", out, "--against", source, *workers, "-q")
                run("repair", out, *workers, "-q")
        is_first()
        run("append", folder / "next.xtc", out, *sharing, "-q")
        run("verify", out, "--against", folder / "all.xtc", *sharing, "-q")
        source = folder / "all.xtc"
    run("analyze", "rgyr", out, "-s", top, *sharing, "-o", table, "-q")
    run("mapreduce", PROGRAM, out, "-s", top, *sharing, "-o", folder / f"{name}.npz", "-q")
    if is_first():
        run("info", out)
        compare(folder, name, source)
    is_first()


def compare(folder, name, source):
    """Compare positions and results with those of the source."""
    with mdio.open(source) as expected, mdio.open(folder / name) as found:
        assert found.info.n_frames == expected.info.n_frames
        n_frames = expected.info.n_frames
        x, y = (one.read(0, n_frames).positions for one in (found, expected))
    tolerance = 2e-3 if name == "joined.zarr" or "xtc" in name else 1e-5
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)
    apart = y - y.mean(axis=1, keepdims=True)  # atoms of one kind
    radius = np.sqrt((apart**2).sum(axis=2).mean(axis=1))
    rows = np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(rows[:, -1], radius, rtol=0, atol=2e-3)
    with np.load(folder / f"{name}.npz") as table:
        assert (table["n"] == n_frames).all()
        np.testing.assert_allclose(table["largest"], y[:, :, 0].max(axis=0), rtol=0, atol=2e-3)
