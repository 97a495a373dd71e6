"""Ranks that read one H5MD file of mdio through parallel HDF5, each by itself or all together.

For comparison with plain reads, as the papers did it (the mpio driver, collective or not). A file
that HDF5 has opened on all ranks is closed by all; and if reads are collective, each rank must make
as many as every other. So before each such read the ranks agree that none has failed; a rank that
has no more blocks reads nothing along with the others until all are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.plan import MPIOMode, Plan
from mdio.core.errors import PlanError, SourceError
from mdio.core.files.requests import ByteRange
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.timing import Stopwatch
from mdio.layouts.base import AtomIndices, Layout
from mdio.layouts.h5md.layout import H5MDLayout
from mdio.parallel.executors import item_error
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.ranks.agreement import Agreement


def check_mpio(plan: Plan, mode: MPIOMode) -> None:
    """Find out before the work what cannot be read through parallel HDF5.

    Raises PlanError: the trajectory is something else than one H5MD file of mdio, which was named
    by its path. MissingExtraError: this h5py has no MPI.
    """
    option = "--mpio" if mode == "independent" else "--collective"
    layout = plan.layout
    if not layout.reads_shared or layout.manifest is None:
        raise PlanError(
            f"{layout.path}: {option} reads one h5md file that mdio wrote, and this is "
            f"{'one of another program' if layout.reads_shared else layout.info.layout}"
            f"; leave {option} out, or convert it"
        )
    if "parts" in layout.manifest:
        raise PlanError(
            f"{layout.path}: its frames lie in parts, which parallel HDF5 does not open together; "
            f"leave {option} out: any number of ranks may read them"
        )
    if not plan.is_ours:
        raise PlanError(f"{layout.path}: {option} needs the path, not an open layout")
    from mdio.layouts.h5md.mpio.writer import require_parallel_hdf5

    require_parallel_hdf5(option)


class SharedFile:
    """What a rank reads its blocks from: like a layout, for `BlockWork`.

    `layout`: open on all ranks. `atoms`: which are read. `agreement`: of the ranks that have opened
    it. `comm`: the same ranks.
    """

    def __init__(
        self, layout: H5MDLayout, atoms: AtomIndices | None, agreement: Agreement, comm: Any
    ) -> None:
        self._layout = layout
        self._atoms = atoms
        self._agreement = agreement
        self._comm = comm
        self._collective = bool(layout.options["collective"])
        self._is_reading = False
        self.is_over = False
        """Whether the ranks have told each other that one of them has failed."""
        self.opened_s = 0.0
        """How long opening took."""

    @property
    def as_layout(self) -> Layout:
        """Itself, for those who ask a layout for info, boundaries and reads only."""
        return cast(Layout, self)

    @property
    def info(self) -> TrajectoryInfo:
        """What is in the file."""
        return self._layout.info

    @property
    def path(self) -> Path:
        """Of the file."""
        return self._layout.path

    cache_notes: tuple[str, ...] = ()
    """No cache lies under MPI-IO."""

    def expect(self, *_: Any) -> None:
        """Expect nothing: MPI-IO reads, which has ways of its own."""

    def byte_ranges(self, *_: Any) -> Iterator[ByteRange]:
        """Yield none: MPI-IO knows them."""
        return iter(())

    def boundaries(self) -> NDArray[np.int64]:
        """Return where chunks begin."""
        return self._layout.boundaries()

    def read(
        self, start: int, stop: int, atoms: AtomIndices | None = None, out: FrameBlock | None = None
    ) -> FrameBlock:
        """Read some frames of the atoms (if reads are collective, together with the other ranks).

        Raises MdioError: it cannot be read, or another rank has failed.
        """
        if not self._collective:
            return self._layout.read(start, stop, atoms=atoms, out=out)
        self._agree(asks=True)
        self._is_reading = True
        block = self._layout.read(start, stop, atoms=atoms, out=out)
        self._is_reading = False
        return block

    def run(
        self,
        work: Callable[[tuple[int, range]], Any],
        items: list[tuple[int, range]],
        describe: Callable[[tuple[int, range]], str],
    ) -> Iterator[tuple[int, Any]]:
        """Do this rank's share of `items` in collective reads; yield (number, result) of each.

        Raises MdioError: some item failed on some rank: that of the lowest number, on all ranks.
        """
        for item in items[self._comm.rank :: self._comm.size]:
            try:
                result = work(item)
            except Exception as cause:
                if self.is_over:  # it is what all ranks have been told
                    raise
                error = item_error(describe(item), cause)
                self._agree(error, number=item[0], broken=self._is_reading)
            yield item[0], result
        while self._agree():  # while any rank asks to read
            self._layout.take_part(self._atoms)

    def _agree(self, *failed: Any, **how: Any) -> bool:
        try:
            return self._agreement.reach(*failed, **how)
        except BaseException:
            self.is_over = True
            raise


@contextmanager
def shared_file(plan: Plan, mode: MPIOMode, executor: MPIExecutor) -> Iterator[SharedFile]:
    """Open the file on all ranks, and close it on all of them, also if some have failed.

    Raises MdioError: as what is done meanwhile, on all ranks.
    """
    comm, watch = executor.comm, Stopwatch()
    agreement = Agreement(comm, list)
    layout = type(plan.layout)(
        plan.layout.path,
        fields=plan.prepared.fields,
        verify=plan.layout.verify,
        uuid=plan.layout.uuid,
        **plan.layout.options,
        driver="mpio",
        comm=comm,
        collective=mode == "collective",
    )
    agreement.reach(_trial(plan.layout.path), number=comm.rank)
    error: Exception | None = None
    try:
        _ = layout.info
    except Exception as caught:
        error = caught
    # What some have opened together only all can close.
    agreement.reach(error, number=comm.rank, broken=True)
    shared = SharedFile(cast(H5MDLayout, layout), plan.prepared.atoms, agreement, comm)
    shared.opened_s = watch.lap()
    failure: Exception | None = None
    try:
        yield shared
    except Exception as caught:
        executor.close()  # the others leave their loops
        failure = caught
    try:
        if failure is not None and shared.is_over:
            raise failure
        agreement.reach(failure, number=comm.rank)
    finally:
        layout.close()
        agreement.close()


def _trial(path: Path) -> SourceError | None:
    """Return why this rank alone cannot open a file, which it should not find out with others."""
    try:
        path.open("rb").close()
    except OSError as error:
        return SourceError(f"{path}: cannot be opened ({error.strerror})")
    return None
