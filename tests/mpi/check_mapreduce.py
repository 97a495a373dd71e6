"""Map-reduce on ranks equals the serial one (run by test_mapreduce_mpi.py, on some ranks)."""

import sys
import traceback
from pathlib import Path

import numpy as np
from mapreduce import programs
from mpi4py import MPI
from parallel.all_checks import run_all

import mdio
from mdio.core.errors import BlockError, OutputError
from mdio.parallel import ranks

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
TOP, FOLDER = sys.argv[1], Path(sys.argv[2])
DCD = FOLDER / "adk.dcd"


def same(found, expected):
    np.testing.assert_array_equal(found.keys, expected.keys)
    assert found.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], column)
        assert found.columns[name].dtype == column.dtype
    np.testing.assert_array_equal(found.n_pairs, expected.n_pairs)
    np.testing.assert_array_equal(found.time, expected.time)
    if expected.label is not None:
        np.testing.assert_array_equal(found.label, expected.label)


def check_the_same_table():
    for keys in ("text", "few"):
        program = programs.Windows(keys)
        arguments = {"top": TOP, "map": program.map}
        expected = mdio.map_reduce(DCD, **arguments)
        for memory in (100_000, 1 << 30):
            with mdio.MPIExecutor(COMM) as executor:
                found = mdio.map_reduce(
                    DCD, **arguments, executor=executor, memory=memory, local_dir=FOLDER
                )
            same(found, expected)
            assert found.workers == SIZE
            assert SIZE > 2 or (found.nbytes_on_disk > 0) == (memory == 100_000)


def check_replicas_frames_and_combiners():
    both = {"b": DCD, "a": [DCD]}
    arguments = {
        "map": programs.bins,
        "reduce": programs.total,
        "frames": [1, 2, 5, 70, 71],
        "combine": "sum",
    }
    with mdio.MPIExecutor(COMM, to_all=False) as executor:
        found = mdio.map_reduce(both, **arguments, executor=executor)
    if RANK == 0:
        same(found, mdio.map_reduce(both, **arguments))
    else:
        assert len(found.keys) == 0


def check_pieces_of_a_message():
    """As if MPI could not send more than 40 bytes from one rank to another."""
    usual, ranks.PIECE_NBYTES = ranks.PIECE_NBYTES, 40
    try:
        counts = [(3 * RANK + 7 * to) % 31 for to in range(SIZE)]
        rows = (
            np.concatenate([np.full((n, 2), 1000 * RANK + to) for to, n in enumerate(counts)])
            + np.arange(sum(counts))[:, None] / 1000
        )
        found = ranks.exchange_rows(rows, counts, COMM)
    finally:
        ranks.PIECE_NBYTES = usual
    every = COMM.allgather((rows, counts))
    ends = [np.cumsum([0, *n]) for _, n in every]
    wanted = [r[end[RANK] : end[RANK + 1]] for (r, _), end in zip(every, ends, strict=True)]
    np.testing.assert_array_equal(found, np.concatenate(wanted))
    assert len(ranks.exchange_rows(np.empty((0, 3), "S3"), [0] * SIZE, COMM)) == 0


def check_failures_are_everybodys():
    cases = [
        ({"reduce": programs.fails_for_odd}, "failed: ValueError: odd"),
        ({"map": programs.text_later}, "keys are whole numbers and text"),
        ({"map": programs.wider_later}, "each value of 'n' has the shape"),
        ({"map": programs.fails_late}, "no such angle"),
    ]
    for more, message in cases:
        arguments = {"map": programs.bins, "reduce": programs.total} | more
        try:
            with mdio.MPIExecutor(COMM) as executor:
                mdio.map_reduce(DCD, **arguments, executor=executor)
        except BlockError as error:
            assert message in str(error), error
            trace = "".join(traceback.format_exception(error))
            assert ("failed: " in message or "angle" in message) == ('programs.py", line' in trace)
            assert len(set(COMM.allgather(str(error)))) == 1
        else:
            raise AssertionError(f"nothing was said of {message}")


def check_keep_going():
    with mdio.MPIExecutor(COMM) as executor:
        found = mdio.map_reduce(
            DCD,
            map=programs.bins,
            reduce=programs.fails_for_odd,
            executor=executor,
            keep_going=True,
        )
    assert not (found.keys % 2).any() and all(key % 2 for key, _, _ in found.failures)
    assert found.failures == sorted(found.failures)


def check_a_folder_that_one_rank_lacks():
    folder = FOLDER / "none" if RANK == SIZE - 1 else FOLDER
    try:
        with mdio.MPIExecutor(COMM) as executor:
            mdio.map_reduce(
                DCD,
                map=programs.bins,
                reduce=programs.total,
                executor=executor,
                local_dir=folder,
            )
    except OutputError as error:
        assert "no folder for pairs" in str(error)
    else:
        raise AssertionError("went on")


if __name__ == "__main__":
    run_all(globals(), COMM)
    assert not list(FOLDER.glob("mdio-pairs-*"))
