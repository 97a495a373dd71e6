"""Work on a dask.distributed cluster: a LocalCluster, dask-jobqueue's, anything with a Client.

The scheduler's record says which worker ran which item, and when.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from mdio.core.errors import BlockError, MissingExtraError, PlanError
from mdio.parallel.executors import Executor, check_count, item_error

MAX_CLOCK_DIFFERENCE_S = 600.0
"""How much the clocks of client and workers may differ."""


def _task_stream(client: Any, **window: Any) -> list[dict[str, Any]]:
    """Return the records of distributed's task-stream plugin in the scheduler."""
    try:
        return list(client.get_task_stream(**window))
    except Exception:  # diagnostics must not end the work
        return []


def _task_records(client: Any, prefix: str, since_unix_s: float) -> list[dict[str, Any]]:
    """Return a record for each task whose key is `prefix` and the number of an item, by item."""
    tasks = []
    for task_record in _task_stream(client, start=since_unix_s):
        key = str(task_record["key"])
        if not key.startswith(prefix):
            continue
        seconds = {"compute": 0.0, "transfer": 0.0, "deserialize": 0.0}
        start = stop = None
        for part in task_record["startstops"]:
            action = part["action"]
            seconds[action] = seconds.get(action, 0.0) + part["stop"] - part["start"]
            if action == "compute":
                start, stop = part["start"], part["stop"]
        if start is not None:
            tasks.append(
                {
                    "block": int(key.removeprefix(prefix)),
                    "worker": str(task_record["worker"]),
                    "thread": int(task_record["thread"]),
                    "start_unix_s": start,
                    "stop_unix_s": stop,
                    "transfer_s": seconds["transfer"],
                    "deserialize_s": seconds["deserialize"],
                }
            )
    return sorted(tasks, key=lambda task: int(task["block"]))


Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WITHOUT_WORKERS_S = 30.0
"""How long a cluster may be without workers before the run fails."""

_thread_data = threading.local()
"""The function of each thread of a worker, and the token of its run."""


def _run_item(token: str, pickled_func: bytes, item: Any) -> Any:
    """Run one item in a worker with this thread's own copy of the function.

    Workers may have several threads, and an opened layout serves one at a time.
    """
    if getattr(_thread_data, "token", None) != token:
        _thread_data.token, _thread_data.func = token, pickle.loads(pickled_func)
    return _thread_data.func(item)


class DaskExecutor(Executor):
    """Runs items on a dask.distributed cluster.

    Parameters
    ----------
    client
        A `distributed.Client`, used as it is and left open. Without one, a local cluster of
        processes is started at first use and closed by `close`.
    n_workers
        Processes of that local cluster; by default the cores that this process may use.

    Raises
    ------
    MissingExtraError
        dask.distributed is not installed.
    PlanError
        The client is asynchronous, or both `client` and `n_workers` are given.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> with mdio.DaskExecutor(n_workers=1) as executor:
    ...     result = mdio.analyze(DCD, top=PSF, kernel=mdio.RMSD("name CA"), executor=executor)
    >>> result.n_frames
    98
    """

    name = "dask"
    cluster = property(lambda self: self)

    def __init__(self, client: Any = None, n_workers: int | None = None) -> None:
        _distributed()
        if client is not None and n_workers is not None:
            raise PlanError("give DaskExecutor a client or a number of workers, not both")
        if not (client is None or hasattr(client, "asynchronous")):
            raise PlanError(
                f"the client is {client!r}; give a distributed.Client, or connect to a scheduler "
                "with DaskExecutor.at(ADDRESS)"
            )
        if client is not None and client.asynchronous:
            raise PlanError("DaskExecutor needs a client made with asynchronous=False")
        self._client = client
        self._owns_client = client is None
        self._n_local_workers = check_count(n_workers, "dask workers asked for")
        self._preferred_workers: Sequence[Sequence[str]] = ()

    def place(self, workers: Sequence[Sequence[str]]) -> None:
        """Set the preferred workers of each item of the next `imap`; others may run it, too."""
        self._preferred_workers = workers

    @classmethod
    def at(cls, address: str) -> DaskExecutor:
        """Connect to the cluster whose scheduler is at `address`; `close` ends the connection.

        `address` may also be the path of a scheduler's file.

        Raises
        ------
        PlanError
            No scheduler answers there.
        """
        try:
            is_file = Path(address).is_file()
            client = _distributed().Client(**{"scheduler_file" if is_file else "address": address})
        except (OSError, ValueError) as error:
            raise PlanError(f"no dask scheduler answers at {address} ({error})") from error
        executor = cls(client)
        executor._owns_client = True
        return executor

    @property
    def client(self) -> Any:
        """The client; starts the local cluster if there is none yet."""
        if self._client is None:
            import logging

            self._client = _distributed().Client(
                n_workers=self._n_local_workers,
                threads_per_worker=1,
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,  # what matters is raised as an error of mdio
            )
        return self._client

    @property
    def n_workers(self) -> int:
        """Threads of all workers that the cluster has now (at least 1)."""
        if self._client is None:
            return self._n_local_workers
        if self._client.status == "closed":
            raise PlanError("the client of DaskExecutor is closed; make another executor")
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
        summarise: Callable[[Result], Any] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield results as they come; see `Executor.imap`.

        Dask gives the items of a worker that died to others, and fails an item that several
        workers died of. With `summarise`, results stay on the cluster, and what is yielded is
        (number, (future of the result, `summarise` of the result)). Dask recomputes lost results.
        """
        wait = _distributed().wait
        client = self.client
        from uuid import uuid4

        token = uuid4().hex
        # A task, not scattered data: when a worker that holds it dies, dask makes it again.
        pickled_func = client.submit(bytes, _pickle(func), key=f"mdio-func-{token}", pure=False)
        numbered = enumerate(items)
        pending: dict[Any, tuple[int, Item]] = {}
        futures: dict[int, Any] = {}
        without_workers_s = 0.0
        workers, self._preferred_workers = self._preferred_workers, ()
        prefix, since_unix_s = f"mdio-{token}-", time.time() - MAX_CLOCK_DIFFERENCE_S
        _task_stream(client, count=1)  # the first call starts the plugin
        try:
            while True:
                for number, item in numbered:
                    key = f"{prefix}{number}"
                    placement: dict[str, Any] = {}
                    if workers and workers[number]:
                        placement = {"workers": list(workers[number]), "allow_other_workers": True}
                    future = client.submit(
                        _run_item, token, pickled_func, item, key=key, pure=False, **placement
                    )
                    if summarise is not None:
                        futures[number] = future
                        future = client.submit(summarise, future, pure=False)
                    pending[future] = number, item
                    if len(pending) >= self.n_workers + 2:
                        break
                if not pending:
                    self.tasks = _task_records(client, prefix, since_unix_s)
                    return
                with contextlib.suppress(TimeoutError):
                    wait(list(pending), timeout=1.0, return_when="FIRST_COMPLETED")
                finished = [future for future in pending if future.done()]
                if not finished:
                    label = describe(next(iter(pending.values()))[1])
                    without_workers_s = self._check_cluster(label, without_workers_s + 1.0)
                for future in finished:
                    number, item = pending.pop(future)
                    result = _result(future, describe(item))
                    yield number, result if summarise is None else (futures.pop(number), result)
        finally:
            unfinished = [
                *pending,
                *futures.values(),
                *([pickled_func] if summarise is None else []),
            ]
            with contextlib.suppress(Exception):  # the scheduler may be gone, which is no news
                client.cancel(unfinished, force=True)

    def _check_cluster(self, label: str, without_workers_s: float) -> float:
        """Return for how long there have been no workers; raises BlockError if that is too long."""
        if self.client.status != "running":
            raise BlockError(f"{label} failed: the connection to the dask scheduler is lost")
        if self.client.nthreads():
            return 0.0
        if without_workers_s >= MAX_WITHOUT_WORKERS_S:
            raise BlockError(
                f"{label} failed: the dask cluster has had no workers for "
                f"{MAX_WITHOUT_WORKERS_S:.0f} s; see the workers' logs"
            )
        return without_workers_s

    def close(self) -> None:
        """Close the client, and the local cluster, if they were made here."""
        if self._owns_client and self._client is not None:
            self._client.close()
            self._client = None


def _distributed(module: str = "distributed") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "the dask executor needs dask.distributed, which is not installed; "
            'pip install "mdio-layouts[dask]"'
        ) from error


def _pickle(func: Callable[[Any], Any]) -> bytes:
    """Pickle as dask does: functions of a notebook or script travel by value.

    So do those of modules in the working folder, which workers need not find.
    """
    try:
        pickled = bytes(_distributed("distributed.protocol.pickle").dumps(func))
    except Exception as error:  # pickling raises nearly anything
        raise PlanError(f"{func!r} cannot be sent to dask workers ({error})") from error
    modules = list(filter(_is_in_working_folder, list(sys.modules.values())))
    if not any(module.__name__.encode() in pickled for module in modules):
        return pickled
    cloudpickle = _distributed("cloudpickle")
    sent_modules = {module.__name__: module for module in modules}
    for name in cloudpickle.list_registry_pickle_by_value():
        sent_modules.pop(name, None)
    for module in sent_modules.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(func))
    except Exception:  # they hold an open file, say: workers import them where they can
        return pickled
    finally:
        for module in sent_modules.values():
            cloudpickle.unregister_pickle_by_value(module)


def _is_in_working_folder(module: Any) -> bool:
    """Return whether a module is a file of the working folder, and no script."""
    attributes = getattr(module, "__dict__", {})
    name, path = attributes.get("__name__", "__main__"), attributes.get("__file__")
    if not path or "__path__" in attributes or name == "__main__":
        return False
    return sys.modules.get(name) is module and Path(path).parent == Path.cwd()


def _result(future: Any, label: str) -> Any:
    """Return the task's result, or raise its error with the item's name."""
    if future.status == "finished":
        return future.result()
    if future.status == "cancelled":
        raise BlockError(f"{label} failed: dask cancelled it, or lost the worker that had it")
    cause = future.exception()
    if cause is None:  # it was lost with its worker after it was done, and has been done again
        return future.result()
    if isinstance(cause, _distributed().KilledWorker):
        raise BlockError(
            f"{label} failed: its dask workers were killed, {cause.allowed_failures + 1} of them; "
            "did they run out of memory? see the workers' logs"
        ) from cause
    error = item_error(label, cause)
    if isinstance(cause, ModuleNotFoundError):
        advice = "install it there, or start them with its folder on PYTHONPATH"
        if not getattr(sys.modules.get(cause.name or ""), "__path__", None):  # no package
            advice += f", or send it with client.upload_file('{cause.name}.py')"
        raise BlockError(f"{error}; dask workers have to find it: {advice}") from cause
    raise error
