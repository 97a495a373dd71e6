"""Opening 1,000 shards asks for little (run by test_zarr_opening_on_ranks.py)."""

import sys

from mpi4py import MPI

import mdio

opened: list[str] = []


def note(event, args):
    """Keep what is opened, in the order of the calls."""
    if event == "open" and isinstance(args[0], str):
        opened.append(args[0])


sys.addaudithook(note)
path, top = sys.argv[1:]
with mdio.MPIExecutor(MPI.COMM_WORLD) as executor:
    result = mdio.analyze(path, top=top, kernel=mdio.RMSD(), executor=executor)
assert result.n_frames == 1000
ours = [name for name in opened if name.startswith((path, "mdio/", "particles/", "zarr.json"))]
tables = [name for name in ours if "/value/c." not in name]
shards = [name for name in ours if "/value/c." in name]
every = MPI.COMM_WORLD.gather((len(tables), len(shards)))
if MPI.COMM_WORLD.rank == 0:
    assert max(n for _, n in every) <= 1000 // len(every) + 1, every
    assert every[0][0] <= 20, ours[:30]
    assert [n for n, _ in every[1:]] == [1] * (len(every) - 1), every
    print("opened", every)
