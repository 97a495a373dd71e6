"""Every gather gives rank 0 the same rows (run by test_under_mpi.py, on some number of ranks)."""

import numpy as np
from mpi4py import MPI
from parallel.all_checks import run_all

from mdio.parallel import GATHERS
from mdio.parallel.gather import gather_rows

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


def rows_of(rank, n_rows, shape, dtype):
    return np.random.default_rng(rank).normal(size=(n_rows, *shape)).astype(dtype)


def counts_of(kind):
    return {
        "even": [50] * SIZE,
        "uneven": [7 * rank + 1 for rank in range(SIZE)],
        "some empty": [0 if rank % 2 == 0 else 13 for rank in range(SIZE)],
        "only the first": [20] + [0] * (SIZE - 1),
        "only the last": [0] * (SIZE - 1) + [20],
        "none": [0] * SIZE,
    }[kind]


def cases():
    """Fewer on many ranks, which wait for cores more than for each other."""
    kinds = ("even", "uneven", "some empty", "only the first", "only the last", "none")
    yield from ((kind, (212, 2, 2), "f8") for kind in (kinds if SIZE < 4 else kinds[1:3]))
    for shape in ((), (0,), (1,), (3,), (850,)):
        yield ("even", shape, "f4")
        yield ("uneven", shape, "f8")


def check_all_give_the_same():
    for kind, shape, dtype in cases():
        counts = counts_of(kind)
        mine = rows_of(RANK, counts[RANK], shape, dtype)
        expected = np.concatenate(
            [rows_of(rank, counts[rank], shape, dtype) for rank in range(SIZE)]
        )
        for how in GATHERS:
            got = gather_rows(mine, COMM, counts, how)
            assert got.t_comm_s >= got.t_put_s + got.t_get_s >= 0
            assert got.t_comm_s > 0
            if RANK == 0:
                assert got.rows.dtype == expected.dtype
                assert got.rows.shape == expected.shape, (kind, shape, how)
                assert np.array_equal(got.rows, expected), (kind, shape, how)
            else:
                assert got.rows is None


def check_strided_rows():
    mine = rows_of(RANK, 12, (4,), "f8")[::3, ::2]
    expected = np.concatenate([rows_of(r, 12, (4,), "f8")[::3, ::2] for r in range(SIZE)])
    for how in GATHERS:
        got = gather_rows(mine, COMM, [4] * SIZE, how)
        assert RANK != 0 or np.array_equal(got.rows, expected)


def check_only_a_part_of_the_ranks():
    half = COMM.Split(color=RANK % 2)
    for how in GATHERS:
        got = gather_rows(np.full((2, 1), float(RANK)), half, [2] * half.size, how)
        if half.rank == 0:
            assert got.rows[:, 0].tolist() == [
                r for r in range(RANK % 2, SIZE, 2) for _ in range(2)
            ]
    half.Free()


if __name__ == "__main__":
    run_all(globals(), COMM)
