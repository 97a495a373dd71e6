"""Conversion into one H5MD file by parallel HDF5 (``--mpio``, ``--collective``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mdio.converters.options import ConvertResult, Progress
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.converters.strategies.write_tasks import WriteTaskWorker, describe_piece
from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files.journal import find_unfinished, journal_path, refuse_unfinished
from mdio.core.files.locks import temporary_for
from mdio.core.signals import raise_received_signal
from mdio.layouts.registry import load_class
from mdio.layouts.striping.lustre import mpi_io_hints
from mdio.layouts.writer import EncodedChunk, PieceRecord
from mdio.parallel.executors import Executor, item_error
from mdio.parallel.ranks import Agreement

if TYPE_CHECKING:
    from mdio.layouts.h5md.mpio import H5MDMPIOWriter
    from mdio.parallel.mpi_executor import MPIExecutor


class MPIOConversion(Conversion):
    """A planned conversion whose frames all ranks write through parallel HDF5.

    Run it with an `MPIExecutor`. Independent writes need no other rank; collective ones are made
    in rounds of one piece for each rank. If HDF5 itself fails in a collective write (a full disk),
    other ranks may wait in it for ever: then the message is printed and the program ended, and
    nothing is raised. The pieces in the journal can be resumed.
    """

    @classmethod
    def from_job(cls, job: Job, mode: str, writer_address: str) -> Self:
        """Plan for the writer at `writer_address`; `mode` is independent or collective."""
        from mdio.layouts.h5md.mpio import require_parallel_hdf5

        require_parallel_hdf5("--collective" if mode == "collective" else "--mpio")
        writer = load_class(writer_address)
        writer.check(job.plan)
        if mode == "independent" and job.plan.compression is not None:
            raise PlanError(
                "--mpio writes chunks independently, but parallel HDF5 compresses them in "
                "collective writes only; take --collective, or leave out --compression and "
                "--precision"
            )
        hints = mpi_io_hints(job.plan, job.options.running.hints)
        return cls(job, job.plan, writer, collective=mode == "collective", hints=hints)

    def run(
        self,
        executor: Executor,
        *,
        force: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> ConvertResult:
        """Convert; see `Conversion.run`.

        HDF5 waits for ever where ranks add compressed chunks to a file that has some (1.10; later
        ones were not tried): rank 0 continues an earlier run, and stores what all ranks encode.
        """
        if resume and self.plan.compression is not None and executor.from_owner(self._has_begun):
            note = "parallel HDF5 cannot go on with compressed chunks: rank 0 stores the others"
            conversion = Conversion(self.job, self.plan.replace(notes=(*self.plan.notes, note)))
            return conversion.run(executor, force=force, resume=True, progress=progress)
        return super().run(executor, force=force, resume=resume, progress=progress)

    def _has_begun(self) -> bool:
        """Return whether there is an unfinished output to continue."""
        try:
            refuse_unfinished(self.out.absolute(), self.out, continues=self._replaces_former)
        except OutputError:
            return True
        return False

    def _write(self, worker: Any, executor: Executor, progress: Progress | None) -> int:
        ranks = executor.ranks
        if ranks is None:
            raise PlanError(
                "parallel HDF5 is for ranks of MPI; add --mpi, and start it with mpiexec"
            )
        writer: H5MDMPIOWriter = worker.writer
        agreement = Agreement(ranks.comm, self._files_to_remove(writer.path, executor))
        _call_collectively(agreement, lambda: writer.open_shared(ranks.comm))
        nbytes = 0
        failure: Exception | None = None
        try:
            if writer.collective:
                nbytes = self._write_in_rounds(worker, ranks, agreement, progress)
            else:
                nbytes = super()._write(worker, executor, progress)
        except Exception as error:
            executor.close()  # the others leave their loops
            failure = error
        try:
            agreement.reach(failure)  # only all together can close the file
        except MdioError:
            writer.close_shared_after_error()
            raise
        _call_collectively(agreement, writer.close_shared)
        agreement.close()
        if executor.is_owner and self.plan.compression is not None:
            return writer.path.stat().st_size  # only HDF5 has seen the compressed bytes
        return nbytes

    def _files_to_remove(
        self, temporary: Path, executor: Executor
    ) -> Callable[[], tuple[list[Path], str]]:
        """Return a function that lists the temporary files to remove if the program is ended.

        There are none where the journal lists pieces from which the work can be resumed; then the
        function also returns advice for the user.
        """
        topology_paths = executor.from_owner(
            lambda: [
                temporary_for(temporary.with_name(path.name), temporary)
                for path in self.job.topology_files
            ]
        )
        paths = [temporary, *topology_paths]
        paths += [journal_path(temporary), temporary.with_suffix(".lock")]

        def paths_and_advice() -> tuple[list[Path], str]:
            unfinished = find_unfinished(temporary)
            replaces = self.extended is None and self.job.out.exists()
            return (paths, "") if unfinished is None else ([], unfinished.advice(replaces=replaces))

        return paths_and_advice

    def _write_in_rounds(
        self,
        worker: WriteTaskWorker,
        ranks: MPIExecutor,
        agreement: Agreement,
        progress: Progress | None,
    ) -> int:
        """Read and write this rank's pieces, one a round; the owner journals them."""
        writer: H5MDMPIOWriter | Any = worker.writer
        pieces = self._pieces(worker)
        nbytes = 0
        failure: dict[str, Any] = {}  # arguments of `Agreement.reach`
        for first in range(0, len(pieces), ranks.n_workers):
            # h5py frees objects in callbacks of weak references, where an exception of a signal
            # handler is lost.
            raise_received_signal()
            number = first + ranks.rank
            record: PieceRecord | None = None
            items: list[EncodedChunk] = []
            if not failure and number < len(pieces):
                try:
                    record, items = worker(pieces[number])
                except Exception as cause:
                    error = item_error(describe_piece(pieces[number]) + ranks.place_text, cause)
                    failure = {"error": error, "number": number}
            agreement.reach(**failure)
            try:
                writer.store_collectively(items)
            except MdioError as error:
                failure = {"error": error, "number": number, "must_end_program": True}
            agreement.reach(**failure)
            # Once all ranks are here, all have written.
            for stored_record in filter(None, ranks.comm.gather(record) or ()):
                try:
                    self._commit(writer, stored_record, progress)
                    self._record(writer, stored_record)
                    nbytes += stored_record.nbytes
                except MdioError as error:
                    failure = {"error": error, "number": number}
        agreement.reach(**failure)
        return nbytes


def _call_collectively(agreement: Agreement, call: Any) -> None:
    """Make a collective call; if it fails on any rank, the program has to end."""
    error = None
    try:
        call()
    except MdioError as caught:
        error = caught
    agreement.reach(error, must_end_program=True)
