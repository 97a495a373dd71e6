"""A pool of workers, each with its own pipe, and an array that they share.

Forked workers write rows into memory that the parent maps: an anonymous file (Linux' memfd), which
disappears with the last process that has it open, even a killed one, and which containers do not
limit as they do /dev/shm. Workers write to it (`os.pwrite`), not into a mapping: the rows are
still in the CPU's cache, no page has to be zeroed and faulted in first, and a lack of memory is an
error instead of a signal. The parent maps the whole array once, without copying.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import BlockError, PlanError, error_text
from mdio.core.files.reading import Closable
from mdio.core.files.remote.objects import has_store_threads
from mdio.core.frames import uninitialised_array
from mdio.core.signals import termination_signals_blocked, unblock_termination_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess


MAX_EXIT_S = 10.0
"""How long an idle worker may take to close its files before it is killed."""


PICKLABLE_HINT = (
    "define functions and classes at the top of a module or notebook, not as a lambda or inside a "
    "function"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in place of a result."""

    text: str
    """The worker's traceback, or how the worker died."""
    cause: BaseException | None = None
    """The exception; None if the worker died or the exception cannot be pickled."""
    worker_died: bool = False


@dataclass(eq=False, slots=True)
class _Worker:
    """A worker process, and the parent's end of its pipe."""

    process: BaseProcess
    pipe: Connection[Any, Any]
    number: int | None = None
    """Number of the item that it works on."""

    def submit(self, message: tuple[int, Any] | None) -> None:
        """Send an item with its number, or None to end the worker."""
        # A broken pipe means that the worker has died; reading from it reports that.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(message)


def start_method() -> str:
    """Return the start method of workers: fork, if the system has it and no store's threads run."""
    methods = multiprocessing.get_all_start_methods()
    if has_store_threads():
        return "spawn"
    return "fork" if "fork" in methods else methods[0]


def _send(pipe: Connection[Any, Any], value: object) -> None:
    """Send `value`; arrays are sent from memory, without being copied into the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raws = [buffer.raw() for buffer in buffers]
    pipe.send(([raw.nbytes for raw in raws], head))
    for raw in raws:
        while raw:
            raw = raw[os.write(pipe.fileno(), raw) :]


def _receive(pipe: Connection[Any, Any]) -> Any:
    """Receive a message of `_send`; arrays are received in place, unlike `recv_bytes_into`."""
    sizes, head = pipe.recv()
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        remaining = buffer.data
        while remaining:
            n_read = os.readv(pipe.fileno(), [remaining])
            if n_read == 0:
                raise EOFError
            remaining = remaining[n_read:]
    return pickle.loads(head, buffers=buffers)


def as_picklable(error: BaseException | None) -> BaseException | None:
    """Return `error`, or a BlockError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling a foreign exception may raise anything
        return BlockError(error_text(error))
    return error


def _failure(error: BaseException) -> Failure:
    if (picklable := as_picklable(error)) is error:
        return Failure("".join(traceback.format_exception(error)), error)
    return Failure(str(picklable))


def _serve(pipe: Connection[Any, Any], pickled_func: bytes, inherited_pipes: Sequence[Any]) -> None:
    """Work on the items that come through `pipe`, until the parent closes it or dies."""
    # Ctrl-C goes to the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent's handlers, which clean up its outputs, are not for workers.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    unblock_termination_signals()
    # A forked worker also holds the parent's ends of the older pipes; open, they would keep the
    # older workers from noticing that the parent is gone.
    for inherited_pipe in inherited_pipes:
        inherited_pipe.close()
    func: Callable[[Any], Any] | None = None
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):  # the parent is gone
            return
        if message is None:
            return
        number, item = message
        outcome: Any
        try:
            if func is None:
                func = pickle.loads(pickled_func)
            outcome = func(item)
        except BaseException as error:  # SystemExit too: an item must not end its worker silently
            outcome = _failure(error)
        try:
            _send(pipe, (number, outcome))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            text = f"its result cannot be pickled: {error_text(error)}"
            _send(pipe, (number, _failure(TypeError(text))))


class WorkerPool:
    """Workers for one function, started when they are first needed.

    `func`: pickled once here and unpickled in each worker, so that open files are not shared.
    Raises PlanError: `func` cannot be pickled.
    """

    def __init__(self, func: Callable[[Any], Any]) -> None:
        try:
            self._func = pickle.dumps(func, protocol=5)
        except Exception as error:  # pickle raises TypeError, AttributeError, PicklingError, ...
            raise PlanError(
                f"the work cannot be sent to worker processes ({error}); {PICKLABLE_HINT}, or use "
                "the serial executor"
            ) from error
        if multiprocessing.current_process().daemon:
            raise PlanError(
                "a worker of multiprocessing.Pool cannot start workers of its own; leave out "
                "workers= there, or use concurrent.futures.ProcessPoolExecutor"
            )
        self._forks = start_method() == "fork"
        self._context = multiprocessing.get_context(start_method())
        self._workers: list[_Worker] = []

    @property
    def n_busy(self) -> int:
        """Number of workers that work on an item."""
        return sum(worker.number is not None for worker in self._workers)

    def submit(self, number: int, item: object, worker: _Worker | None = None) -> None:
        """Send an item to `worker`, which is idle, or to a new one."""
        worker = worker or self._start()
        worker.number = number
        worker.submit((number, item))

    def _start(self) -> _Worker:
        parent_end, worker_end = self._context.Pipe()
        inherited_pipes = [w.pipe for w in self._workers] + [parent_end] if self._forks else []
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(worker_end, self._func, inherited_pipes), daemon=True
        )
        with termination_signals_blocked():  # until the worker is one that `close` ends
            process.start()
            worker_end.close()
            self._workers.append(_Worker(process, parent_end))
        return self._workers[-1]

    def next_result(self) -> tuple[_Worker, int, Any]:
        """Wait for a worker to finish its item: (worker, number of the item, result or Failure).

        A worker that died gives a `Failure`.
        """
        from multiprocessing.connection import wait  # serial work needs none of it

        worker_by_pipe = {
            worker.pipe: worker for worker in self._workers if worker.number is not None
        }
        # The oldest item first, so that no finished result waits while younger ones are taken.
        pipes = set(wait(list(worker_by_pipe)))
        ready = [worker for pipe, worker in worker_by_pipe.items() if pipe in pipes]
        worker = min(ready, key=lambda worker: worker.number or 0)
        number, worker.number = worker.number or 0, None
        try:
            return worker, number, _receive(worker.pipe)[1]
        except (EOFError, OSError):
            worker.process.join(5.0)
            return worker, number, Failure(_death_text(worker.process.exitcode), worker_died=True)

    def close(self) -> None:
        """End all workers: idle ones close their files and exit, busy ones are killed."""
        for worker in self._workers:
            if worker.number is not None:
                worker.process.kill()
            else:
                worker.submit(None)
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(MAX_EXIT_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers.clear()


def _death_text(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"its worker process ended with exit code {exitcode} before it was done"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-exitcode, f"signal {-exitcode}")
    hint = "; out of memory? try fewer workers" if name == "SIGKILL" else ""
    return f"its worker process was killed by {name} before it was done{hint}"


SHARED_NBYTES = 1 << 20
"""Fewer bytes than these travel as quickly as part of a result."""

MAPPED_NBYTES = 64 << 20
"""The parent copies fewer bytes than these: a mapping keeps a file open as long as it exists, and
the number of open files is limited."""

HEADER_NBYTES = mmap.ALLOCATIONGRANULARITY
"""Bytes before the rows, for the pickled shape and dtype of a row. Rows begin at a page."""


class SharedRows(Closable):
    """An array of known length; the first rows written determine shape and dtype of its rows.

    The parent makes it before it forks. Each worker writes rows of its own with `write`, if
    `accepts` is true of them; when all are done, the parent gets the array from `read_all`.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._descriptor = os.memfd_create("mdio-rows")
        self._row_type: tuple[tuple[int, ...], np.dtype[Any]] | None = None
        """Shape and dtype of a row, once this process knows them."""

    @staticmethod
    def available() -> bool:
        """Return whether this system has files without names."""
        return hasattr(os, "memfd_create")

    def accepts(self, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Return whether such rows are to be written here (workers).

        They are if the whole array is large, and if the first rows had the same shape and dtype.
        """
        nbytes = self._n_rows * math.prod(row_shape) * dtype.itemsize
        if nbytes < SHARED_NBYTES or dtype.hasobject:
            return False
        row_type = (row_shape, dtype)
        if self._row_type is None:
            self._row_type = self._record_row_type(row_type, nbytes)
        return self._row_type == row_type

    def _record_row_type(
        self, row_type: tuple[tuple[int, ...], np.dtype[Any]], nbytes: int
    ) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Return the type of rows that the first worker recorded; record `row_type` if none has."""
        import fcntl

        pickled = pickle.dumps(row_type)
        # The lock ends with its process: a killed worker leaves nothing locked.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            recorded = self._recorded_row_type()
            if recorded is not None:
                return recorded
            if len(pickled) > HEADER_NBYTES:
                return None
            try:
                os.ftruncate(self._descriptor, HEADER_NBYTES + nbytes)
                os.pwrite(self._descriptor, pickled, 0)
            except OSError:  # beyond the limit of file sizes: rows are sent with results
                os.ftruncate(self._descriptor, 0)
                return None
            return row_type
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _recorded_row_type(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        head = os.pread(self._descriptor, HEADER_NBYTES, 0)
        return pickle.loads(head) if head else None

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write rows of an accepted type, from row `start` on.

        Raises MemoryError: there is no room for them.
        """
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        offset = HEADER_NBYTES + start * (content.nbytes // max(1, len(rows)))
        try:
            while content:
                n_written = os.pwrite(self._descriptor, content, offset)
                content, offset = content[n_written:], offset + n_written
        except OSError as error:
            raise MemoryError(
                f"no room in memory for the values of {self._n_rows} frames ({error.strerror})"
            ) from error

    def read_all(self) -> NDArray[Any]:
        """Return the whole array; other processes do not see changes of it (parent).

        Raises ValueError: no worker has written to it.
        """
        row_shape, dtype = self._known_row_type()
        nbytes = self._n_rows * math.prod(row_shape) * dtype.itemsize
        if nbytes < MAPPED_NBYTES:
            return self.read(0, self._n_rows)
        memory = mmap.mmap(self._descriptor, HEADER_NBYTES + nbytes, access=mmap.ACCESS_COPY)
        rows = np.frombuffer(memory, np.uint8)[HEADER_NBYTES:].view(dtype)
        return rows.reshape((self._n_rows, *row_shape))

    def _known_row_type(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        row_type = self._recorded_row_type()
        if row_type is None:
            raise ValueError("no rows have been written")
        return row_type

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some rows; raises ValueError if no worker has written to it."""
        row_shape, dtype = self._known_row_type()
        rows = uninitialised_array((stop - start, *row_shape), dtype)
        content = rows.reshape(-1).view(np.uint8).data
        offset = HEADER_NBYTES + start * (content.nbytes // max(1, len(rows)))
        while content:
            n_read = os.preadv(self._descriptor, [content], offset)
            if not n_read:
                raise ValueError("not all rows have been written")
            content, offset = content[n_read:], offset + n_read
        return rows

    def close(self) -> None:
        """Close it; arrays that were returned stay valid."""
        os.close(self._descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_row_type": None}
