"""Analyses through parallel HDF5 equal serial ones (run by test_analysis_mpio.py).

``check_analysis_mpio.py FOLDER``: with plain.h5md, gzip.h5md (with the group ca) and speeds.h5md.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mdio
from mdio.analysis import work
from mdio.analysis.kernels.registry import RMSF, UserKernel
from mdio.core.errors import BlockError, PlanError
from mdio.layouts.h5md.mpio.reader import MPIOFile

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
FOLDER = Path(sys.argv[1])
MODES = "independent", "collective"


def corners(block):
    return block.positions[:, [0, -1]]


def speeds(block):
    return np.concatenate([block.positions, block.velocities], axis=2)


class FewAtoms(mdio.RMSD):
    """RMSD of some atoms, which a topology would name."""

    def prepare(self, system):
        prepared = super().prepare(system)
        return type(prepared)(corners, np.arange(7, 3000, 15)[::-2])


CASES = [
    ("plain", {"kernel": mdio.RMSD()}),
    ("plain", {"kernel": corners, "start": 3, "stop": 80, "step": 2}),
    ("plain", {"kernel": corners, "step": 23}),  # each frame is a read
    ("plain", {"kernel": corners, "blocks_per_worker": 3, "gather": "one-sided"}),
    ("plain", {"kernel": corners, "start": 11, "stop": 13}),  # most ranks have none
    ("gzip", {"kernel": FewAtoms()}),
    ("gzip", {"kernel": FewAtoms(), "stop": 1}),  # of the group's array, also by idle ranks
    ("gzip", {"kernel": mdio.RMSD(), "group": "ca", "gather": "nonblocking"}),
    ("gzip", {"kernel": RMSF()}),
    ("speeds", {"kernel": UserKernel(speeds, fields=("positions", "velocities"))}),
    ("speeds", {"kernel": corners}),
]


def serial(path, **arguments):
    arguments.pop("gather", None)
    result = mdio.analyze(path, **arguments) if RANK == 0 else None
    return COMM.bcast((result.frame, result.time, result.values) if RANK == 0 else None)


def check_equal_to_serial():
    transfers = []
    transfer = MPIOFile._transfer

    def spy(self, key, *args):
        transfers.append(key)
        return transfer(self, key, *args)

    MPIOFile._transfer = spy
    work.READ_NBYTES = (10 if SIZE < 3 else 25) * 12 * 3341
    # Ranks that share a core wait long for each other.
    for name, arguments in CASES if SIZE < 3 else CASES[1::2]:
        want = serial(FOLDER / f"{name}.h5md", **arguments)
        for mode in MODES:
            transfers.clear()
            seen = []
            with mdio.MPIExecutor(COMM) as executor:
                got = mdio.analyze(
                    FOLDER / f"{name}.h5md",
                    **arguments,
                    executor=executor,
                    mpio=mode,
                    progress=lambda n_frames, _, seen=seen: seen.append(n_frames),
                )
            for one, other in zip(want, (got.frame, got.time, got.values), strict=True):
                if isinstance(arguments["kernel"], RMSF):
                    np.testing.assert_allclose(one, other, rtol=1e-10)
                else:
                    assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), name
            assert sum(seen) == (len(want[0]) if RANK == 0 else 0)
            every = COMM.allgather(transfers)
            assert any(every)
            if mode == "collective":  # all ranks take part in all reads, of the same arrays
                assert all(one == every[0] for one in every), every
    MPIOFile._transfer = transfer


def check_failures_are_everybodys():
    def fails(block):
        if block.time[-1] > 80:
            raise ZeroDivisionError("no such angle")
        return block.time

    def fails_here_and_there(block):
        raise ZeroDivisionError(f"frame {block.time[0]:.0f}")

    def stops(*_):
        raise RuntimeError("progress")

    many = {"blocks_per_worker": 3}
    path = FOLDER / "plain.h5md"
    cases = [
        ({"kernel": fails, **many}, BlockError, "ZeroDivisionError: no such angle"),
        ({"kernel": fails}, BlockError, f"block {SIZE - 1} (frames "),
        ({"kernel": fails_here_and_there, **many}, BlockError, "ZeroDivisionError: frame "),
        ({"kernel": lambda block: 1.0}, BlockError, "one row a frame"),
        ({"kernel": mdio.RMSD(reference=500)}, PlanError, "500"),
        ({"kernel": mdio.RMSD(), "group": "none"}, Exception, "none"),
    ]
    for mode in MODES:
        with mdio.MPIExecutor(COMM) as executor:
            for arguments, kind, says in cases:
                try:
                    mdio.analyze(path, **arguments, executor=executor, mpio=mode)
                except kind as error:
                    messages = COMM.allgather(str(error))
                    assert len(set(messages)) == 1, messages
                    assert says in messages[0], messages
                    together = mode == "collective" and arguments["kernel"] is fails_here_and_there
                    assert not together or "block 0 (frames 0:" in messages[0]
                else:
                    raise AssertionError("nobody raised")
            try:
                mdio.analyze(
                    path, kernel=corners, executor=executor, mpio=mode, progress=stops, **many
                )
            except (RuntimeError, BlockError) as error:
                assert isinstance(error, RuntimeError)
            else:
                raise AssertionError("nobody raised")
            got = mdio.analyze(path, kernel=corners, executor=executor, mpio=mode)
            assert got.n_frames == 98


if __name__ == "__main__":
    check_equal_to_serial()
    check_failures_are_everybodys()
    COMM.Barrier()
    if RANK == 0:
        print(f"parallel HDF5 analyses as serial on {SIZE} ranks")
