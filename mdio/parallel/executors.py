"""Executors: how independent items of work are spread over processes.

One contract for all: `Executor.imap` sends items to workers, a few at a time, and yields results as
they come. The function is sent to each worker once, not with every item, so that a callable object
can keep a layout open between items. `Serial` and `Processes` are here; Dask is in
`mdio.parallel.dask_executor`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import tee
from reprlib import repr as short_repr
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mdio.core.errors import BlockError, MdioError, PlanError, WorkerDiedError, error_text
from mdio.core.files.reading import Closable
from mdio.core.signals import raise_received_signal

if TYPE_CHECKING:
    from mdio.parallel.pool import WorkerPool

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return how many cores this process may use (its affinity, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_count(n_workers: Any, noun: str) -> int:
    """Return a number of workers, by default that of the cores; raises PlanError if it is invalid.

    `noun`: what is counted, for the message.
    """
    count = available_cores() if n_workers is None else n_workers
    if not hasattr(count, "__index__") or count < 1:
        raise PlanError(f"{count!r} {noun}; give a number of 1 or more")
    return int(count)


def item_error(label: str, cause: BaseException) -> MdioError:
    """Return the error to raise when the item called `label` failed with `cause`.

    An error of mdio keeps its class, so that callers can distinguish a damaged source from a full
    disk; a BlockError, which names its block, and a PlanError, which is about a whole call, are
    returned as they are; other errors become a BlockError.
    """
    if isinstance(cause, BlockError | PlanError):
        return cause
    error: MdioError = BlockError(f"{label} failed: {error_text(cause)}")
    if isinstance(cause, MdioError):
        error = type(cause)(f"{label}: {' '.join(str(cause).split())}")
    error.__cause__ = cause
    return error


class OneAtATime:
    """A block of code for one thread at a time; a second one gets a PlanError.

    A copy of it guards its own block.
    """

    def __init__(self) -> None:
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[OneAtATime], tuple[()]]:
        return OneAtATime, ()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise PlanError(
                "an executor called its function from two threads at once; give each thread a copy "
                "of its own, pickle.loads(pickle.dumps(func))"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Executor(Closable, ABC):
    """Runs a function over items.

    A context manager: leaving it ends all remaining workers.

    A subclass needs `n_workers` and `imap`. The other attributes tell callers how they may use it;
    the defaults hold for workers on any machine.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> class Here(mdio.Executor):
    ...     shares_memory = True
    ...     n_workers = 1
    ...     def imap(self, func, items, *, describe=str):
    ...         for number, item in enumerate(items):
    ...             yield number, func(item)
    >>> result = mdio.analyze(DCD, top=PSF, kernel="rmsd", select="name CA", executor=Here())
    >>> result.values.shape
    (98,)
    """

    name: ClassVar[str] = "custom"
    """Name on the command line and in reports."""
    shares_memory: ClassVar[bool] = False
    """Whether `imap` calls the function itself in this process, one item after the other."""
    shares_files: ClassVar[bool] = False
    """Whether workers see the folders of this machine, and this process the files they write."""
    allows_buffer_reuse: ClassVar[bool] = False
    """Whether each result is used before its worker's next call, which may reuse the memory."""
    tasks: Sequence[dict[str, Any]] = ()
    """Records of the tasks of the last finished `imap`, where known: worker and times."""
    ranks: Any = None
    """This executor, if it is an `MPIExecutor`: all ranks make the same calls."""
    cluster: Any = None
    """This executor, if it is a `DaskExecutor`: workers keep results, and items can be placed."""

    @property
    def forks(self) -> bool:
        """Whether `imap` forks its workers, which inherit open files and memory of this process."""
        return False

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Items that run at the same time."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_workers})"

    @property
    def is_owner(self) -> bool:
        """Whether this process owns outputs; False only on ranks other than 0 under MPI."""
        return True

    def agree(self, function: str, *paths: Any) -> None:
        """Check that all processes that run this program call `function` on the same paths.

        Raises PlanError under MPI, on all ranks: some call another one.
        """

    def from_owner(self, make: Callable[[], Result]) -> Result:
        """Return the owner's result of `make` in every process that runs this program.

        Under MPI all ranks call it and only rank 0 calls `make`; all raise the error of `make`.
        """
        return make()

    @abstractmethod
    def imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number of the item, result) in the order in which items are finished.

        At most ``n_workers + 2`` items are in flight, so `items` may be an endless generator, and
        results do not accumulate behind a slow consumer. Workers stop when the iterator is closed.

        Parameters
        ----------
        func
            Called with one item. Pickled once for each worker: even threads have their own copy.
        items
            Picklable, small.
        describe
            Returns the item's label for errors.

        Raises
        ------
        BlockError
            An item failed; the first failure ends all work.
        WorkerDiedError
            An item's worker was killed.
        MdioError
            An item failed with an error of mdio, which keeps its class.
        PlanError
            `func` cannot be pickled.
        """

    def map(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
    ) -> list[Result]:
        """Return all results in the order of `items`; raises as `imap` does."""
        pairs = sorted(results_of(self, func, items, describe), key=lambda pair: pair[0])
        return [result for _, result in pairs]

    def close(self) -> None:
        """End all workers."""


def results_of(
    executor: Executor,
    func: Callable[[Item], Result],
    items: Iterable[Item],
    describe: Callable[[Item], str] = str,
    **options: Any,
) -> Iterator[tuple[int, Result]]:
    """Return an iterator over the results of an executor's `imap`, which are checked.

    Raises PlanError: it yields anything but (number of an item, result), once for each item.
    BlockError: the result of an item is missing.
    """
    if executor.ranks is not None:
        # Results may come on rank 0 alone. The executor's own iterator: an error in the caller's
        # loop would close a generator around it, and wait for the others, before it is handled.
        return executor.imap(func, items, describe=describe, **options)
    return _checked_results(executor, func, items, describe, options)


def _checked_results(
    executor: Executor,
    func: Callable[[Item], Result],
    items: Iterable[Item],
    describe: Callable[[Item], str],
    options: dict[str, Any],
) -> Iterator[tuple[int, Result]]:
    """Yield the results of `imap` of an executor without ranks; see `results_of`."""
    numbered = enumerate(items)
    unfinished: dict[int, Item] = {}

    def recorded_items() -> Iterator[Item]:
        for number, item in numbered:
            unfinished[number] = item
            yield item

    usage = "it is called as imap(func, items, describe=...), and yields (number, result)"
    try:
        pairs = iter(executor.imap(func, recorded_items(), describe=describe, **options))
    except TypeError as error:
        raise PlanError(f"imap of {executor!r} failed: {error_text(error)}; {usage}") from error
    for pair in pairs:
        try:
            number, result = pair
            del unfinished[number]
        except (TypeError, ValueError, KeyError) as error:
            raise PlanError(
                f"imap of {executor!r} yielded {short_repr(pair)}; {usage} of each item once"
            ) from error
        yield number, result
    unfinished.update(numbered)
    if unfinished:
        missing = ", ".join(map(describe, unfinished.values()))
        raise BlockError(f"{executor!r} returned no result of {missing}; its imap has to yield all")


def with_prefetch(
    func: Callable[[Item], Result], numbered_items: Iterable[tuple[int, Item]]
) -> Iterator[tuple[int, Item]]:
    """Return numbered items, after passing them to `func.prefetch_items`, if it has this method.

    `prefetch_items` gets an iterator and consumes it as far as `func` wants to prefetch.
    """
    if not hasattr(func, "prefetch_items"):
        return iter(numbered_items)
    numbered_items, items_to_prefetch = tee(numbered_items)
    func.prefetch_items(item for _, item in items_to_prefetch)
    return numbered_items


def choose_executor(executor: Executor | None, n_workers: int | None) -> Executor:
    """Return `executor`, or one with `n_workers` processes; by default, a serial one.

    Raises PlanError: both are given, or `executor` is not an executor, or one without workers.
    """
    if executor is None:
        return Serial() if n_workers in (None, 1) else Processes(n_workers)
    if n_workers is not None:
        raise PlanError("give an executor or a number of workers, not both")
    if not isinstance(executor, Executor):
        raise PlanError(
            f"the executor is {executor!r}; give one of mdio's: Serial(), Processes(N), "
            "DaskExecutor(client) or MPIExecutor(comm), or an Executor of your own"
        )
    check_count(executor.n_workers or 0, f"workers of {executor!r}")
    return executor


@contextmanager
def pool_or_serial(executor: Executor | None, n_workers: int) -> Iterator[Executor]:
    """Yield `executor`, or one with `n_workers` processes, which is closed afterwards."""
    if executor is not None:
        yield choose_executor(executor, None if n_workers == 1 else n_workers)
        return
    with choose_executor(None, n_workers) as pool:
        yield pool


REPLICAS_PER_WORKER = 2
"""With this many replicas or more, each is read by one worker; else each is cut for all workers."""


def has_enough_replicas(executor: Executor, n_replicas: int, tops: Iterable[Any]) -> bool:
    """Return whether there are enough replicas for each worker of this machine to take whole ones.

    Not if a topology is not a file: it may be large, and would be sent to every worker.
    """
    if executor.shares_memory or not executor.shares_files:
        return False
    is_file = all(isinstance(top, str | os.PathLike | None) for top in tops)
    return is_file and n_replicas >= REPLICAS_PER_WORKER * executor.n_workers


class Serial(Executor):
    """Runs all items in this process, in order.

    Examples
    --------
    >>> import mdio
    >>> mdio.Serial().map(abs, [-1, 2])
    [1, 2]
    """

    name = "serial"
    shares_memory = shares_files = allows_buffer_reuse = True

    @property
    def n_workers(self) -> int:
        """One."""
        return 1

    def imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
    ) -> Iterator[tuple[int, Result]]:
        """Yield results in order, each computed when it is requested."""
        for number, item in with_prefetch(func, enumerate(items)):
            try:
                result = func(item)
            except Exception as cause:
                raise item_error(describe(item), cause)  # noqa: B904 - it has its cause
            yield number, result


class Processes(Executor):
    """Worker processes on this machine, forked where the system can.

    Forked workers start in milliseconds, since nothing is imported again, and functions defined in
    a notebook are found in them. Each worker has its own pipe to the parent: when one is
    killed, even while it sends a result, the parent sees the end of that pipe at once (a shared
    queue would wait for ever for the rest of the message).

    Parameters
    ----------
    n_workers
        Number of processes; by default the cores that this process may use.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> with mdio.Processes(2) as executor:
    ...     result = mdio.analyze(DCD, top=PSF, kernel=mdio.RMSD("name CA"), executor=executor)
    >>> result.n_frames, result.workers
    (98, 2)
    """

    name = "processes"
    shares_files = allows_buffer_reuse = True

    def __init__(self, n_workers: int | None = None) -> None:
        self._n_workers = check_count(n_workers, "worker processes")
        self._pools: set[WorkerPool] = set()

    @property
    def n_workers(self) -> int:
        """Number of processes."""
        return self._n_workers

    @property
    def forks(self) -> bool:
        """Whether workers are forked, and so inherit the open files of this process."""
        from mdio.parallel.pool import start_method

        return start_method() == "fork"

    def imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
    ) -> Iterator[tuple[int, Result]]:
        """Yield results as workers finish them; see `Executor.imap`."""
        from mdio.parallel.pool import Failure, WorkerPool

        pool = WorkerPool(func)
        self._pools.add(pool)
        numbered = enumerate(items)
        pending: dict[int, Item] = {}
        try:
            for number, item in numbered:
                pending[number] = item
                pool.submit(number, item)
                if pool.n_busy == self._n_workers:
                    break
            while pending:
                worker, number, outcome = pool.next_result()
                raise_received_signal()
                item = pending.pop(number)
                if isinstance(outcome, Failure):
                    label = describe(item)
                    if outcome.cause is None:
                        error_type = WorkerDiedError if outcome.worker_died else BlockError
                        raise error_type(f"{label} failed: {outcome.text}")
                    outcome.cause.add_note(f"In a worker process:\n{outcome.text}")
                    raise item_error(label, outcome.cause)
                next_item = next(numbered, None)
                if next_item is not None:
                    pending[next_item[0]] = next_item[1]
                    pool.submit(*next_item, worker=worker)
                yield number, outcome
        finally:
            self._pools.discard(pool)
            pool.close()

    def close(self) -> None:
        """End the workers of iterators that were left unfinished."""
        while self._pools:
            self._pools.pop().close()
