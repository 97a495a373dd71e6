"""MDAnalysis' own analyses on the executors of mdio.

``rms.RMSD(ca).run(backend=DaskBackend(client), unsupported_backend=True)``: every analysis that
MDAnalysis can split runs on a dask.distributed cluster, where its own Dask backend only knows the
processes of one machine, or with ``MPIBackend(comm)`` on the ranks of an MPI program.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from MDAnalysis.analysis.backends import BackendBase
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.words import frames_text
from mdio.parallel.dask_executor import DaskExecutor
from mdio.parallel.executors import Executor
from mdio.parallel.mpi_executor import MPIExecutor


class _Compute:
    """Runs an analysis over one group of frames.

    The function belongs to one analysis object, which it changes and returns. Some analyses add
    each group to the results of the one before, so every group gets its own copy.
    """

    def __init__(self, func: Callable[[Any], Any]) -> None:
        try:  # cloudpickle, if it is installed, also pickles functions of a notebook
            dumps = import_module("cloudpickle").dumps
        except ImportError:
            dumps = pickle.dumps
        try:
            self.pickled_func = bytes(dumps(func))
        except Exception as error:  # pickling raises nearly anything
            raise PlanError(f"the analysis cannot be sent to workers ({error})") from error

    def __call__(self, group: NDArray[np.int64]) -> SimpleNamespace:
        analysis = pickle.loads(self.pickled_func)(group)
        # Only what MDAnalysis uses: with its Universe it would be megabytes.
        return SimpleNamespace(
            frames=analysis.frames, times=analysis.times, results=analysis.results
        )


def _describe(group: NDArray[np.int64]) -> str:
    frames = group[:, 1]
    return frames_text(frames[0], frames[-1] + 1) if len(frames) else "no frames"


class ExecutorBackend(BackendBase):  # type: ignore[misc]
    """Runs the parts of an MDAnalysis analysis on an executor.

    Parameters
    ----------
    executor
        `Serial`, `Processes`, `DaskExecutor`, ...

    Notes
    -----
    Pass it to ``run`` together with ``unsupported_backend=True``; give ``n_parts`` for more parts
    than workers.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        super().__init__(n_workers=executor.n_workers)

    def apply(
        self, func: Callable[[Any], Any], computations: Sequence[NDArray[np.int64]]
    ) -> list[Any]:
        """Return the result of each group of frames, in order; called by MDAnalysis.

        Raises
        ------
        BlockError
            The analysis failed in some part, or a worker was killed.
        PlanError
            The analysis cannot be sent to workers.
        """
        return list(self.executor.map(_Compute(func), computations, describe=_describe))


class DaskBackend(ExecutorBackend):
    """Runs the parts of an MDAnalysis analysis on a dask.distributed cluster.

    Parameters
    ----------
    client
        A `distributed.Client`; it stays open.

    Examples
    --------
    >>> import mdio, MDAnalysis as mda
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> from MDAnalysis.analysis.rms import RMSD
    >>> from distributed import Client
    >>> ca = mda.Universe(PSF, DCD).select_atoms("name CA")
    >>> with Client(n_workers=1, dashboard_address=None) as client:
    ...     rmsd = RMSD(ca).run(backend=mdio.DaskBackend(client), unsupported_backend=True)
    >>> rmsd.results.rmsd.shape
    (98, 3)
    """

    def __init__(self, client: Any) -> None:
        super().__init__(DaskExecutor(client))


class MPIBackend(ExecutorBackend):
    """Runs the parts of an MDAnalysis analysis on the ranks of an MPI program.

    All ranks make the same calls (SPMD), and all get the results: only these travel, never the
    Universe.

    Parameters
    ----------
    comm
        An mpi4py intracommunicator.

    Notes
    -----
    Pass it to ``run`` together with ``unsupported_backend=True``; give ``n_parts`` for more parts
    than ranks.

    Examples
    --------
    >>> import mdio, MDAnalysis as mda
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> from MDAnalysis.analysis.rms import RMSD
    >>> from mpi4py import MPI
    >>> ca = mda.Universe(PSF, DCD).select_atoms("name CA")
    >>> backend = mdio.MPIBackend(MPI.COMM_WORLD)
    >>> RMSD(ca).run(backend=backend, unsupported_backend=True).results.rmsd.shape
    (98, 3)
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        BackendBase.__init__(self, n_workers=int(comm.size))

    def apply(
        self, func: Callable[[Any], Any], computations: Sequence[NDArray[np.int64]]
    ) -> list[Any]:
        """Return the result of each group of frames, in order, on all ranks; errors, too."""
        with MPIExecutor(self.comm) as self.executor:
            return super().apply(func, computations)
