"""Ensembles that ranks make and write back (run by test_ensembles_of_ranks.py)."""

import sys
from pathlib import Path

import numpy as np
from MDAnalysisTests.datafiles import PSF, XTC
from mpi4py import MPI

import mdio
from mdio.converters.ensemble import convert_members
from mdio.core.errors import SourceError
from mdio.parallel.sleeping import allgather

COMM = MPI.COMM_WORLD
FOLDER = Path(sys.argv[1])
SOURCES = {path.stem: path for path in sorted(FOLDER.glob("r*.xtc"))}


def check(out, labels):
    allgather(COMM, None)
    for label in labels:
        with mdio.open(SOURCES[label]) as source, mdio.open(out, group=label) as layout:
            want, found = (one.read(0, source.info.n_frames) for one in (source, layout))
            assert np.array_equal(found.positions, want.positions), label
            assert np.array_equal(found.time, want.time), label


def convert(labels, out, **options):
    with mdio.MPIExecutor(COMM, grace_s=60.0) as executor:
        sources = {label: SOURCES.get(label, XTC) for label in labels}
        return mdio.convert_ensemble(sources, out, top=PSF, executor=executor, **options)


for suffix in ("zarr", "h5md"):
    for n_members in (2, len(SOURCES)):  # each by all ranks; whole ones by each
        labels = list(SOURCES)[:n_members]
        out = FOLDER / f"{n_members}.{suffix}"
        done = convert(labels, out)
        assert list(done) == labels, done
        assert all(Path(one.out).exists() for one in done.values())
        check(out, labels)
        again = convert(labels, out, resume=True)
        assert [one.found_complete for one in again.values()] == n_members * [True]
        with mdio.MPIExecutor(COMM) as executor:
            pattern = str(FOLDER / f"{n_members}-{{label}}-{suffix}.xtc")
            convert_members(out, pattern, executor=executor)
        allgather(COMM, None)
        with mdio.open(pattern.replace("{label}", "r0")) as first:
            assert first.info.n_frames == 4

# Parallel HDF5 takes all ranks for each of them, however many there are.
collective = FOLDER / "collective.h5md"
convert(list(SOURCES), collective, mpio="collective")
check(collective, SOURCES)

for others in (1, len(SOURCES)):  # the last one is of other atoms: all ranks say so
    try:
        convert([*list(SOURCES)[:others], "other"], FOLDER / "mixed.zarr", select="name CA")
    except SourceError as error:
        assert "atoms" in str(error), error
    else:
        raise AssertionError("another system was taken into the ensemble")
allgather(COMM, None)
assert not list(FOLDER.glob("*mixed*")), "something was left behind"
if COMM.rank == 0:
    print(f"ensembles: checks passed on {COMM.size} ranks")
