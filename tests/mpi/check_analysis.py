"""The block driver on ranks equals the serial one (run by test_analysis_mpi.py, on some ranks).

Only rank 0 imports MDAnalysis, as in earnest: that is most of what a small run costs.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mdio
from mdio.analysis import ranks
from mdio.analysis.kernels.geometry import RMSF
from mdio.analysis.kernels.kernel import UserKernel
from mdio.analysis.reducers import Histogram, Mean
from mdio.core.errors import BlockError, PlanError, SourceError
from mdio.core.files.index import load_index
from mdio.core.timing import timing_record
from mdio.core.xtc import scan
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.parallel import GATHERS
from mdio.parallel.sleeping import allgather, bcast

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
TOP, FOLDER, N_OTHERS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
"""With N_OTHERS, all is done once more on so many of the ranks, and on the rest of them."""
FEW = "every_gather", "failures", "more_ranks", "open_what"
"""What many ranks check: on few cores each message takes long."""
DCD, SEGMENTS = FOLDER / "adk.dcd", FOLDER / "adk.segments"
CA = "protein and name CA"


@cache
def universe():
    from MDAnalysis import Universe

    return Universe(TOP)


def serial(trajectory=DCD, **arguments):
    """Return the serial result, computed on rank 0, on all ranks."""
    result = mdio.analyze(trajectory, **arguments) if RANK == 0 else None
    return bcast(COMM, (result.frame, result.time, result.values) if RANK == 0 else None)


def same(result, want, exact=True):
    for got, expected in zip((result.frame, result.time, result.values), want, strict=True):
        assert got.dtype == expected.dtype
        if exact:
            assert np.array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def check_every_gather_gives_the_serial_result():
    ca = {"kernel": mdio.RMSD(select=CA), "top": universe() if RANK == 0 else TOP}
    want = serial(**ca)
    with mdio.MPIExecutor(COMM) as executor:
        for gather in GATHERS:
            for blocks in (1, 3) if SIZE < 4 else (2,):
                got = mdio.analyze(
                    DCD, **ca, executor=executor, gather=gather, blocks_per_worker=blocks
                )
                same(got, want)
                assert (got.gather, got.workers, got.executor) == (gather, SIZE, "mpi")
                assert len(got.timings) == min(98, SIZE * blocks)
                assert [t.block for t in got.timings] == list(range(len(got.timings)))


def check_progress_is_told_while_blocks_are_read():
    """By rank 0, for all; to the last frame where each has as many."""
    seen = []
    with mdio.MPIExecutor(COMM) as executor:
        mdio.analyze(
            DCD,
            kernel=mdio.RMSD(),
            executor=executor,
            blocks_per_worker=3,
            progress=lambda n_frames, nbytes: seen.append(n_frames),
        )
    assert (len(seen) >= 3 and 98 - 3 * SIZE <= sum(seen) <= 98) if RANK == 0 else not seen


def check_timings():
    with mdio.MPIExecutor(COMM) as executor:
        got = mdio.analyze(
            DCD, kernel=mdio.RMSD(), executor=executor, gather="one-sided", blocks_per_worker=2
        )
    assert [worker.rank for worker in got.ranks] == list(range(SIZE))
    assert sum(worker.n_frames for worker in got.ranks) == 98
    assert sum(worker.n_blocks for worker in got.ranks) == len(got.timings)
    for worker in got.ranks:
        mine = [timing for timing in got.timings if timing.rank == worker.rank]
        assert {timing.worker for timing in mine} == {worker.worker}
        for name in ("t_open_s", "t_io_s", "t_comp_s", "t_block_s", "t_comm_s", "nbytes_read"):
            total = sum(getattr(timing, name) for timing in mine)
            assert abs(total - getattr(worker, name)) < 1e-9, name
        assert [timing.t_open_s > 0 for timing in mine] == [True] + [False] * (len(mine) - 1)
        assert min(worker.t_wait_s, worker.t_put_s, worker.t_get_s) >= 0
        assert worker.t_wait_s + worker.t_put_s + worker.t_get_s <= worker.t_comm_s
        assert worker.t_put_s > 0
        assert min(worker.t_overhead1_s, worker.t_overhead2_s) > -1e-6
    assert timing_record(got)["t_total_s"] == max(worker.t_total_s for worker in got.ranks)


def check_rows_of_other_shapes_and_types():
    def corners(block):
        return (block.positions[:, ::1000] * 100).astype(np.int32)

    for step in (None, 5) if SIZE < 4 else (5,):
        want = serial(kernel=corners, step=step)
        with mdio.MPIExecutor(COMM) as executor:
            for gather in GATHERS:
                same(
                    mdio.analyze(DCD, kernel=corners, executor=executor, gather=gather, step=step),
                    want,
                )


def check_reducers():
    for kernel, reducer, exact in (
        (RMSF(), None, False),
        (mdio.RMSD(), Mean(), False),
        (UserKernel(lambda block: block.positions[:, :, 0]), Histogram([-20, 0, 3, 50]), True),
    ):
        want = serial(kernel=kernel, reducer=reducer)
        with mdio.MPIExecutor(COMM) as executor:
            got = mdio.analyze(DCD, kernel=kernel, reducer=reducer, executor=executor)
        same(got, want, exact)
        assert not got.per_frame


def check_more_ranks_than_frames():
    want = serial(kernel=mdio.RMSD(), start=10, stop=12)
    with mdio.MPIExecutor(COMM) as executor:
        for gather in GATHERS:
            got = mdio.analyze(
                DCD, kernel=mdio.RMSD(), executor=executor, gather=gather, start=10, stop=12
            )
            same(got, want)
            assert len(got.ranks) == SIZE
            assert sum(worker.n_blocks == 0 for worker in got.ranks) == max(0, SIZE - 2)


def check_only_rank_0_has_the_result():
    with mdio.MPIExecutor(COMM, to_all=False) as executor:
        got = mdio.analyze(DCD, kernel=mdio.RMSD(), executor=executor)
    assert got.n_frames == len(got.values) == (98 if RANK == 0 else 0)


def check_ranks_open_what_they_read():
    opened = set()
    original = SegmentsLayout._segment

    def spy(self, number, **how):
        opened.add((self.path.name, number))
        return original(self, number, **how)

    one = serial(SEGMENTS, kernel=mdio.RMSD())
    chain = [SEGMENTS, FOLDER / "more.segments"]
    both = serial(chain, kernel=mdio.RMSD())
    SegmentsLayout._segment = spy
    try:
        for trajectory, want, n_files in ((SEGMENTS, one, 14), (chain, both, 21)):
            opened.clear()
            with mdio.MPIExecutor(COMM) as executor:
                got = mdio.analyze(trajectory, kernel=mdio.RMSD(), executor=executor)
            same(got, want)
            mine = sum(timing.n_frames for timing in got.timings if timing.rank == RANK)
            assert mine > 0
            if RANK > 0:
                assert len(opened) == mine // 7 <= n_files // SIZE + 1, (opened, mine)
    finally:
        SegmentsLayout._segment = original


class Unfinished(Mean):
    def finish(self, state):
        raise ZeroDivisionError("no mean")


def check_failures_are_everybodys():
    def fails(block):
        if block.time[-1] > 95:
            raise ZeroDivisionError("no such angle")
        return block.time

    def unlike(block):
        return np.zeros(block.n_frames, [("b" if RANK == SIZE - 1 else "a", float)])

    def uneven(block):
        return np.zeros((block.n_frames, 2 + (RANK == SIZE - 1)))

    def no_rows(block):
        return 1.0

    class Unprepared(mdio.RMSD):
        def prepare(self, system):
            raise ZeroDivisionError("no reference")

    class NotSent(mdio.RMSD):
        def prepare(self, system):
            return mdio.Prepared(lambda block: block.time)

    with mdio.MPIExecutor(COMM) as executor:
        for kernel, kind, says in (
            (fails, BlockError, f"block {SIZE - 1} (frames "),
            (no_rows, BlockError, "one row per frame"),
            (uneven, BlockError, "different shapes") if SIZE > 1 else (no_rows, BlockError, "row"),
            (unlike, BlockError, "different types") if SIZE > 1 else (no_rows, BlockError, "row"),
            (mdio.RMSD(select="name NONE"), PlanError, "no atom"),
            (Unprepared(), PlanError, "ZeroDivisionError: no reference"),
            (NotSent(), PlanError, "define functions and classes at the top of a module"),
            (mdio.RMSD(), BlockError, "Unfinished failed: ZeroDivisionError: no mean"),
            (mdio.RMSD(select="name CA"), SourceError, "4187"),
        ):
            reducer = Unfinished() if "Unfinished" in says else None
            top = TOP if kind is not SourceError else FOLDER / "none.psf"
            try:
                mdio.analyze(DCD, kernel=kernel, top=top, executor=executor, reducer=reducer)
            except (BlockError, PlanError, SourceError) as error:
                messages = allgather(COMM, str(error))
                assert len(set(messages)) == 1, messages
                assert kind is SourceError or (isinstance(error, kind) and says in str(error))
            else:
                raise AssertionError("nobody raised")
        same(mdio.analyze(DCD, kernel=mdio.RMSD(), executor=executor), serial(kernel=mdio.RMSD()))


def check_files_over_a_network_are_indexed_in_parts():
    """By all ranks, before one opens them."""
    path = FOLDER / f"indexed on {SIZE}.xtc"
    if RANK == 0:
        mdio.convert(DCD, path, force=True)
    bcast(COMM, None)
    before, ranks.is_on_network = ranks.is_on_network, lambda path: path.suffix == ".xtc"
    try:
        ranks.index_together([DCD, path], COMM)
    finally:
        ranks.is_on_network = before
    if RANK == 0:
        stored = load_index(path, None)  # which is not called
        np.testing.assert_array_equal(stored.offsets, scan(path).offsets)


def check_a_wrong_gather():
    try:
        with mdio.MPIExecutor(COMM) as executor:
            mdio.analyze(DCD, kernel=mdio.RMSD(), executor=executor, gather="by post")
    except PlanError as error:
        assert "blocking, nonblocking, one-sided" in str(error)
    else:
        raise AssertionError("took it")


def run_on(comm):
    """Run the checks on these ranks; return how many there are."""
    global COMM, RANK, SIZE
    COMM, RANK, SIZE = comm, comm.rank, comm.size
    checks = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
    if SIZE > 4:
        checks = [check for check in checks if any(name in check.__name__ for name in FEW)]
        assert len(checks) == len(FEW)
    for check in checks:
        check()
        allgather(COMM, None)
    return len(checks)


if __name__ == "__main__":
    world, n_checks = MPI.COMM_WORLD, run_on(MPI.COMM_WORLD)
    if N_OTHERS:
        n_checks += run_on(world.Split(world.rank >= N_OTHERS))
        world.Barrier()
    if world.rank == 0:
        print(f"{n_checks} checks passed on {world.size} ranks")
