"""Conversions shared among ranks equal serial ones (run by test_convert_under_mpi.py)."""

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mdio
from mdio.converters import storage
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.core.errors import OutputError, SourceError
from mdio.parallel.executors import Serial
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.sleeping import allgather, bcast

COMM = MPI.COMM_WORLD
OUTPUTS = {
    "a.zarr": {"chunk_frames": 5, "groups": {"ca": np.arange(7, 3000, 15)}},
    "b.zarr": {"precision": "auto", "chunk_frames": 10},
    "a.h5md": {"chunk_frames": 5, "groups": {"ca": np.arange(7, 3000, 15)}},
    "b.h5md": {"compression": "gzip:1"},
    "rigid.h5md": {"chunk_frames": 5, "compression": "rigid"},
    "bitpack.h5md": {"precision": 0.01, "compression": "bitpack"},
    "a.segments": {"segments": 5, "container": "dcd"},
    "bytes.segments": {"segments": 6},
    "b.segments": {"segments": 90, "container": "ncdf"},
    "c.segments": {"segments": 9, "container": "xtc", "step": 2},
    "a.xtc": {},
    "a.dcd": {},
    "a.ncdf": {"start": 3, "stop": 4},
    "a.trr": {},
}
VARYING = ("manifest", "zarr.json", "index", "checksums")
"""Files that hold a uuid or a date."""


def convert(source, out, executor, **options):
    wanted = ConversionOptions.of(**options)
    conversion = executor.from_owner(lambda: prepare(source, out, wanted, executor))
    return conversion.run(executor)


def contents(path):
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    named = {str(p.relative_to(path)): p for p in files}
    return {
        name: p.read_bytes()
        for name, p in named.items()
        if not any(word in p.name for word in VARYING)
    }


def same_frames(one, other):
    a, b = mdio.open(one), mdio.open(other)
    x, y = a.read(0, a.info.n_frames), b.read(0, b.info.n_frames)
    return all(
        np.array_equal(getattr(x, name), getattr(y, name))
        for name in ("positions", "box", "time", "step")
    )


def check_equal_to_serial(source, folder):
    for name, options in OUTPUTS.items():
        out = folder / name
        with MPIExecutor(COMM, to_all=False) as executor:
            result = convert(source, out, executor, **options)
        assert result.workers == COMM.size
        if COMM.rank == 0:
            with Serial() as serial:
                convert(source, folder / f"serial-{name}", serial, **options)
            assert mdio.verify(out).ok, name
            assert same_frames(out, folder / f"serial-{name}"), name
            if out.suffix != ".h5md":  # its manifest lies inside
                assert contents(out) == contents(folder / f"serial-{name}"), name


def check_written_by_rank_0(source, folder):
    """As on file systems where several writers of one file hold each other up."""
    storage.favours_one_writer = lambda _: True
    storage.PIECE_FOR_OWNER_NBYTES = 1 << 19  # 13 frames, or 10 as whole chunks
    for name, options in (("owner.h5md", {"chunk_frames": 5}), ("owner.dcd", {})):
        wanted, out = ConversionOptions.of(**options), folder / name
        with MPIExecutor(COMM, to_all=False) as executor:
            conversion = executor.from_owner(partial(prepare, source, out, wanted, executor))
            assert conversion.plan.writing.by_owner == (COMM.size > 1)
            pieces = {stop - start for start, stop in conversion.plan.write_tasks()[:-1]}
            assert COMM.size == 1 or pieces == {10 if name == "owner.h5md" else 13}, pieces
            conversion.run(executor)
        if COMM.rank == 0:
            assert mdio.verify(out).ok
            assert same_frames(out, folder / f"serial-a{out.suffix}"), name


def check_errors_reach_all_ranks(source, bad, folder):
    for what, out, kind in ((source, "a.zarr", OutputError), (bad, "bad.zarr", SourceError)):
        try:
            with MPIExecutor(COMM, to_all=False) as executor:
                convert(what, folder / out, executor)
        except kind as error:
            assert out in str(error) or "bad.xtc" in str(error)
        else:
            raise AssertionError(f"no error for {out}")
    allgather(COMM, None)
    assert not (folder / "bad.zarr").exists()
    assert not [p for p in folder.iterdir() if p.name.endswith(".tmp")]


def main():
    source, bad = map(Path, sys.argv[1:3])
    folder = bcast(COMM, Path(tempfile.mkdtemp(dir=sys.argv[3])) if COMM.rank == 0 else None)
    check_equal_to_serial(source, folder)
    check_written_by_rank_0(source, folder)
    check_errors_reach_all_ranks(source, bad, folder)
    if COMM.rank == 0:
        print(f"conversions equal on {COMM.size} ranks")


if __name__ == "__main__":
    main()
