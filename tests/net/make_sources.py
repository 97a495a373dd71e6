"""Writes the small trajectories that the net converts and reads: ``python make_sources.py``.

They are kept beside this script, so that nothing hangs on the libraries that wrote them. Seventy
atoms (eight residues of a protein and ten waters) move through a box for fourteen frames.
"""

import gzip
import warnings
from pathlib import Path

import h5py
import MDAnalysis as mda
import netCDF4
import numpy as np

HERE = Path(__file__).parent / "sources"
N_FRAMES, BACKBONE = 14, ("N", "CA", "C", "O", "CB")
BOX = np.array([24.0, 25.0, 26.0, 90, 90, 90], np.float32)


def system():
    """Return the Universe with names, bonds, and all frames in memory."""
    n_residues, n_waters = 8, 10
    names = [*BACKBONE] * n_residues + ["OW", "HW1", "HW2"] * n_waters
    resindex = np.repeat(np.arange(n_residues + n_waters), [5] * n_residues + [3] * n_waters)
    universe = mda.Universe.empty(
        len(names),
        n_residues=n_residues + n_waters,
        n_segments=2,
        atom_resindex=resindex,
        residue_segindex=[0] * n_residues + [1] * n_waters,
        trajectory=True,
        velocities=True,
        forces=True,
    )
    universe.add_TopologyAttr("names", names)
    universe.add_TopologyAttr("resnames", ["ALA", "GLY"] * (n_residues // 2) + ["SOL"] * n_waters)
    universe.add_TopologyAttr("resids", [*range(1, n_residues + 1), *range(1, n_waters + 1)])
    universe.add_TopologyAttr("segids", ["A", "W"])
    universe.add_TopologyAttr("elements", [name[0] for name in names])
    bonds = []
    for residue in range(n_residues):
        first = 5 * residue
        bonds += [(first + i, first + j) for i, j in ((0, 1), (1, 2), (2, 3), (1, 4))]
        bonds += [(first + 2, first + 5)] if residue + 1 < n_residues else []
    for water in range(n_waters):
        first = 5 * n_residues + 3 * water
        bonds += [(first, first + 1), (first, first + 2)]
    universe.add_TopologyAttr("bonds", bonds)
    rng = np.random.default_rng(20261125)
    chain = np.cumsum(rng.normal(0, 0.8, (5 * n_residues, 3)), axis=0)
    waters = np.repeat(rng.uniform(0, 24, (n_waters, 3)), 3, axis=0) + rng.normal(0, 0.5, (30, 3))
    start = np.concatenate([chain - chain.mean(axis=0) + 11, waters])
    drift = np.linspace(0, 9, N_FRAMES)[:, None, None]
    frames = start + drift + rng.normal(0, 0.2, (N_FRAMES, len(names), 3))
    boxes = np.tile(BOX, (N_FRAMES, 1))
    boxes[:, :3] += rng.normal(0, 0.05, (N_FRAMES, 3)).astype(np.float32)
    frames = np.mod(frames, boxes[:, None, :3])
    velocities = rng.normal(0, 2, frames.shape)
    forces = rng.normal(0, 30, frames.shape)
    universe.load_new(
        frames.astype(np.float32),
        dimensions=boxes,
        velocities=velocities.astype(np.float32),
        forces=forces.astype(np.float32),
        dt=2.0,
    )
    return universe


def write(universe, name, frames=slice(None), **options):
    with mda.Writer(str(HERE / name), universe.atoms.n_atoms, **options) as writer:
        for ts in universe.trajectory[frames]:
            ts.data["step"] = 100 * ts.frame
            writer.write(universe)


def h5md(universe, path):
    """Write H5MD as another program does: nm, chunks of one frame, deflated."""
    trajectory = universe.trajectory
    with h5py.File(path, "w") as out:
        out.create_group("h5md").attrs["version"] = [1, 1]
        out.create_group("h5md/author").attrs["name"] = "net"
        out.create_group("h5md/creator").attrs.update(name="other", version="1")
        box = out.create_group("particles/all/box")
        box.attrs.update(dimension=3, boundary=["periodic"] * 3)
        edges = [np.diag(ts.dimensions[:3]) / 10 for ts in trajectory]
        for element, unit, values in (
            ("position", "nm", [ts.positions / 10 for ts in trajectory]),
            ("velocity", "nm ps-1", [ts.velocities / 10 for ts in trajectory]),
            ("box/edges", "nm", edges),
        ):
            group = out.create_group(f"particles/all/{element}")
            values = np.array(values, np.float32)
            chunks = (1, *values.shape[1:])
            group.create_dataset("value", data=values, chunks=chunks, compression="gzip")
            group["value"].attrs["unit"] = unit
            group["step"] = np.arange(len(values)) * 100
            group["time"] = np.arange(len(values)) * 2.0
            group["time"].attrs["unit"] = "ps"


def mdtraj(universe, path):
    trajectory = universe.trajectory
    with h5py.File(path, "w") as out:
        out.attrs.update(conventions="Pande", conventionVersion="1.1", program="net")
        out["coordinates"] = np.array([ts.positions / 10 for ts in trajectory], np.float32)
        out["time"] = np.arange(len(trajectory)) * 2.0
        out["cell_lengths"] = np.array([ts.dimensions[:3] / 10 for ts in trajectory], np.float32)
        out["cell_angles"] = np.full((len(trajectory), 3), 90, np.float32)
        for name, unit in (("coordinates", "nanometers"), ("time", "picoseconds")):
            out[name].attrs["units"] = unit


def netcdf4(universe, path):
    trajectory = universe.trajectory
    with netCDF4.Dataset(path, "w", format="NETCDF4") as data:
        data.Conventions, data.ConventionVersion, data.program = "AMBER", "1.0", "net"
        for name, size in (("frame", None), ("atom", universe.atoms.n_atoms), ("spatial", 3)):
            data.createDimension(name, size)
        each = ("frame", "atom", "spatial")
        coordinates = data.createVariable("coordinates", "f4", each, zlib=True)
        times = data.createVariable("time", "f4", ("frame",))
        coordinates.units, times.units = "angstrom", "picosecond"
        coordinates[:] = np.array([ts.positions for ts in trajectory])
        times[:] = np.arange(len(trajectory)) * 2.0


def lammps(universe, path):
    with path.open("w") as out:
        for ts in universe.trajectory[:6]:
            out.write(f"ITEM: TIMESTEP\n{100 * ts.frame}\nITEM: NUMBER OF ATOMS\n{ts.n_atoms}\n")
            out.write("ITEM: BOX BOUNDS pp pp pp\n")
            out.writelines(f"0 {length:.5f}\n" for length in ts.dimensions[:3])
            out.write("ITEM: ATOMS id type x y z\n")
            for number, (x, y, z) in enumerate(ts.positions, 1):
                out.write(f"{number} 1 {x:.4f} {y:.4f} {z:.4f}\n")


def main():
    warnings.simplefilter("ignore")
    HERE.mkdir(exist_ok=True)
    universe = system()
    universe.atoms.write(str(HERE / "top.pdb"), bonds="all")
    write(universe, "a.xtc", slice(0, 8))
    write(universe, "b.xtc", slice(6, 14))
    write(universe, "all.xtc")
    write(universe, "all.trr")
    write(universe, "all.dcd", dt=2.0)
    write(universe, "all.ncdf")
    universe.atoms.write(str(HERE / "models.pdb"), frames=universe.trajectory[:3])
    universe.atoms.write(str(HERE / "all.xyz"), frames=universe.trajectory[:6])
    universe.trajectory[0]
    universe.atoms.write(str(HERE / "one.gro"))
    lammps(universe, HERE / "run.lammpstrj")
    h5md(universe, HERE / "other.h5md")
    mdtraj(universe, HERE / "mdtraj.h5")
    netcdf4(universe, HERE / "four.nc")
    data = (HERE / "all.xtc").read_bytes()
    (HERE / "cut.xtc").write_bytes(data[: len(data) - 100])
    middle = bytearray(data)
    middle[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    (HERE / "damaged.xtc").write_bytes(bytes(middle))
    with gzip.GzipFile(HERE / "all.xyz.gz", "wb", mtime=0) as out:
        out.write((HERE / "all.xyz").read_bytes())
    for path in HERE.glob(".*"):
        path.unlink()


if __name__ == "__main__":
    main()
