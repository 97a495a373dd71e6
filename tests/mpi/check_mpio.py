"""H5MD files written through parallel HDF5 equal serial ones (run by test_mpio_under_mpi.py)."""

import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from mpi4py import MPI

import mdio
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.parallel.executors import Serial
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.sleeping import allgather, bcast

COMM = MPI.COMM_WORLD
CA = np.arange(7, 3000, 15)
BOTH, TOGETHER = ("independent", "collective"), ("collective",)
CASES = [
    (BOTH, {"chunk_frames": 5, "groups": {"ca": CA}}),
    (BOTH, {"chunk_frames": 7, "chunk_atoms": 1000, "stripe_nbytes": 65536}),
    (BOTH, {"start": 3, "stop": 4}),  # one piece: most ranks have none
    (TOGETHER, {"compression": "gzip:1", "chunk_frames": 7, "chunk_atoms": 1000}),
    (TOGETHER, {"precision": 0.01, "chunk_frames": 5, "groups": {"ca": CA}, "step": 3}),
]
MOVES = ("mdio/manifest", "offset", "nbytes")
"""Datasets that differ: a uuid and a date, and the places of compressed chunks."""


def convert(source, out, executor, **options):
    conversion = executor.from_owner(lambda: prepare(source, out, ConversionOptions.of(**options)))
    return conversion.run(executor, force=True)


def attributes(thing):
    return {name: np.asarray(value).tolist() for name, value in thing.attrs.items()}


def check_same_contents(one, other, compressed):
    """Compare all that is in two HDF5 files, as h5py sees it."""
    found = []
    with h5py.File(one) as a, h5py.File(other) as b:
        names, others = [], []
        a.visit(names.append)
        b.visit(others.append)
        assert names == others
        for name in names:
            x, y = a[name], b[name]
            assert attributes(x) == attributes(y), name
            if not isinstance(x, h5py.Dataset):
                continue
            found.append(name)
            if name == MOVES[0]:  # as long as the digits of its checksum
                continue
            assert (x.dtype, x.maxshape, x.chunks) == (y.dtype, y.maxshape, y.chunks), name
            assert (x.compression, x.compression_opts) == (y.compression, y.compression_opts), name
            if compressed and name.endswith(MOVES):
                continue
            assert x[()].tobytes() == y[()].tobytes(), name
            if x.chunks is not None:
                check_same_chunks(x, y, compressed)
    assert "particles/trajectory/position/value" in found
    assert "mdio/arrays/trajectory/position/crc32c" in found


def check_same_chunks(x, y, compressed):
    """Compare chunks as they are stored, what lies behind the last frame and atom included."""
    for at in np.ndindex(*(-(-n // c) for n, c in zip(x.shape, x.chunks, strict=True))):
        corner = tuple(int(i * c) for i, c in zip(at, x.chunks, strict=True))
        a, b = x.id.read_direct_chunk(corner), y.id.read_direct_chunk(corner)
        assert a[0] == b[0] == 0
        # Compressed here by HDF5 and there by zlib, with the same result or not.
        assert compressed or bytes(a[1]) == bytes(b[1])


def check_equal_to_serial(source, folder):
    for number, (modes, options) in enumerate(CASES):
        serial = folder / f"serial-{number}.h5md"
        if COMM.rank == 0:
            with Serial() as executor:
                convert(source, serial, executor, **options)
        for mode in modes:
            out = folder / f"{mode}-{number}.h5md"
            hints = ["romio_cb_write=enable"] if number == 0 else []
            with MPIExecutor(COMM, to_all=False) as executor:
                result = convert(source, out, executor, mpio=mode, hints=hints, **options)
            assert result.workers == COMM.size
            if COMM.rank == 0:
                compressed = "compression" in options or "precision" in options
                check_same_contents(out, serial, compressed)
                verified = mdio.verify(out)
                assert verified.ok, verified.bad
                check_stock_reader(out, serial)
            allgather(COMM, None)
            check_stock_reader(out, serial, driver="mpio", comm=COMM)


def check_stock_reader(one, other, **how):
    from MDAnalysis.coordinates.H5MD import H5MDReader

    with H5MDReader(str(one), convert_units=False, **how) as a, mdio.open(other) as b:
        assert a.n_frames == b.info.n_frames
        for frame in (0, a.n_frames - 1):
            expected = b.read(frame, frame + 1)
            assert np.array_equal(a[frame].positions, expected.positions[0])
            assert a[frame].time == expected.time[0]


def main():
    source = Path(sys.argv[1])
    folder = bcast(COMM, Path(tempfile.mkdtemp(dir=sys.argv[2])) if COMM.rank == 0 else None)
    check_equal_to_serial(source, folder)
    if COMM.rank == 0:
        print(f"parallel HDF5 equals serial on {COMM.size} ranks")


if __name__ == "__main__":
    main()
