"""Conversion into one H5MD file by parallel HDF5 (``--mpio``, ``--collective``)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mdio.converters.options import ConversionOptions, Progress
from mdio.converters.strategies.decoded import Conversion
from mdio.converters.strategies.write_tasks import WriteTaskWorker, describe_on
from mdio.core.errors import MdioError, PlanError
from mdio.core.files.publish import temporary_for
from mdio.layouts.striping.lustre import mpi_io_hints
from mdio.layouts.writer import EncodedChunk, PieceRecord
from mdio.parallel.agreement import Agreement
from mdio.parallel.executors import Executor, item_error
from mdio.parallel.mpi_executor import MPIExecutor

if TYPE_CHECKING:
    from mdio.layouts.h5md.mpio.writer import H5MDMPIOWriter

__all__ = ["MPIOConversion", "check_mpio"]


def check_mpio(options: ConversionOptions, layout: str) -> None:
    """Refuse what parallel HDF5 cannot do.

    Raises
    ------
    PlanError
        Another layout than h5md.
    MissingExtraError
        There is no parallel HDF5.
    """
    option = _option(options)
    if layout != "h5md":
        raise PlanError(
            f"{option} writes HDF5 files only, not {layout}; take .h5md for the output, or --mpi "
            "alone, under which every rank writes its own parts of any layout"
        )
    from mdio.layouts.h5md.mpio.writer import require_parallel_hdf5

    require_parallel_hdf5(option)


def _option(options: ConversionOptions) -> str:
    return "--collective" if options.mpio == "collective" else "--mpio"


class MPIOConversion(Conversion):
    """A planned conversion whose frames all ranks write through parallel HDF5.

    Run it with an `MPIExecutor`. Independently, ranks go on at their own pace. Collectively, they
    write in rounds of one piece each. If HDF5 itself fails in a collective write (a full disk), it
    may leave other ranks waiting in it for ever: then the output is removed, the message is printed
    and the program ended, and nothing is raised.
    """

    def write_with(self, options: ConversionOptions) -> None:
        """Take the writer that `options` ask for; raises PlanError where they do not fit."""
        from mdio.layouts.h5md.mpio.writer import H5MDMPIOWriter

        if options.mpio == "independent" and self.plan.compression is not None:
            raise PlanError(
                "--mpio writes chunks independently, but parallel HDF5 compresses them in "
                "collective writes only; take --collective, or leave out --compression and "
                "--precision"
            )

        hints = mpi_io_hints(self.plan, options.hints)
        self.writer = partial(H5MDMPIOWriter, collective=options.mpio == "collective", hints=hints)

    def _write(self, work: WriteTaskWorker, executor: Executor, progress: Progress | None) -> int:
        if not isinstance(executor, MPIExecutor):
            raise PlanError(
                "parallel HDF5 is for ranks of MPI; add --mpi, and start it with mpiexec"
            )
        writer = cast("H5MDMPIOWriter", work.writer)
        agreement = Agreement(executor.comm, self._unfinished(writer.path, executor))
        _together(agreement, lambda: writer.open_shared(executor.comm))
        records: list[PieceRecord] = []
        nbytes = 0
        failure: Exception | None = None
        try:
            if writer.collective:
                records = self._rounds(work, executor, agreement, progress)
            else:
                nbytes = super()._write(work, executor, progress)
        except Exception as error:
            executor.close()  # the others leave their loops
            failure = error
        try:
            agreement.reach(failure)  # only all together can close the file
        except MdioError:
            writer.leave_shared()
            raise
        _together(agreement, writer.close_shared)
        agreement.close()
        for some in executor.comm.gather(records) or ():
            for record in some:
                self._commit(writer, record, None)
                nbytes += record.nbytes
        if executor.is_owner and self.plan.compression is not None:
            return writer.path.stat().st_size  # only HDF5 has seen the compressed bytes
        return nbytes

    def _unfinished(self, temporary: Path, executor: Executor) -> list[Path]:
        """Return what the owner has made so far, under the names it has given."""
        beside = executor.from_owner(
            lambda: [temporary_for(path.absolute(), temporary) for path in self.beside]
        )
        return [temporary, *beside, temporary.with_suffix(".lock")]

    def _rounds(
        self,
        work: WriteTaskWorker,
        executor: MPIExecutor,
        agreement: Agreement,
        progress: Progress | None,
    ) -> list[PieceRecord]:
        """Read and write this rank's pieces, one in each round; return their records."""
        pieces = self.plan.write_tasks()
        writer = cast("H5MDMPIOWriter", work.writer)
        records: list[PieceRecord] = []
        failure: tuple[MdioError, int, bool] | None = None
        for first in range(0, len(pieces), executor.n_workers):
            number = first + executor.rank
            items: list[EncodedChunk] = []
            if failure is None and number < len(pieces):
                try:
                    record, items = work(pieces[number])
                    records.append(record)
                except Exception as cause:
                    error = item_error(describe_on(executor)(pieces[number]), cause)
                    failure = (error, number, False)
            _tell(agreement, failure)
            try:
                writer.store_together(items)
            except MdioError as error:
                failure = (error, number, True)
            if progress is not None:
                done = pieces[first : first + executor.n_workers]
                n_frames = done[-1][1] - done[0][0]
                progress(n_frames, n_frames * self.view.info.frame_nbytes)
        _tell(agreement, failure)
        return records


def _tell(agreement: Agreement, failure: tuple[MdioError, int, bool] | None) -> None:
    if failure is None:
        agreement.reach()
    else:
        error, number, broken = failure
        agreement.reach(error, number=number, broken=broken)


def _together(agreement: Agreement, call: Any) -> None:
    """Make a collective call; if it fails on any rank, the program has to end."""
    error = None
    try:
        call()
    except MdioError as caught:
        error = caught
    agreement.reach(error, broken=True)
