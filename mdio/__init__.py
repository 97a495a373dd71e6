"""Molecular-dynamics trajectories: how they lie on disk and get read in parallel.

Importing mdio makes its readers known to MDAnalysis; everything else is imported when it is used.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mdio._name import clash_with
from mdio._version import __version__
from mdio.core.when_imported import when_imported

if TYPE_CHECKING:
    from mdio.advisor.advise import advise
    from mdio.analysis.backends import DaskBackend, MPIBackend
    from mdio.analysis.driver import analyze
    from mdio.analysis.kernels.correlations import MSD, VACF
    from mdio.analysis.kernels.dihedrals import Dihedrals
    from mdio.analysis.kernels.geometry import RMSD, RMSF, Pairs
    from mdio.analysis.kernels.kernel import Kernel, Prepared, UserKernel
    from mdio.converters.convert import append, convert, split
    from mdio.converters.ensemble import convert_ensemble
    from mdio.converters.options import Selection, Storage
    from mdio.converters.repair import repair
    from mdio.converters.stream import record
    from mdio.converters.verify import verify
    from mdio.converters.writer import Writer
    from mdio.core.errors import MdioError
    from mdio.core.frames import FrameBlock, TrajectoryInfo
    from mdio.core.progress import ProgressBar
    from mdio.layouts.views.opening import open_ensemble
    from mdio.layouts.views.opening import open_source as open
    from mdio.layouts.virtual import virtual_parser
    from mdio.mapreduce.driver import map_reduce
    from mdio.parallel.dask_executor import DaskExecutor
    from mdio.parallel.executors import Executor, Processes, Serial
    from mdio.parallel.mpi_executor import MPIExecutor
    from mdio.sampling import sample

__all__ = [
    "MSD",
    "RMSD",
    "RMSF",
    "VACF",
    "DaskBackend",
    "DaskExecutor",
    "Dihedrals",
    "Executor",
    "FrameBlock",
    "Kernel",
    "MPIBackend",
    "MPIExecutor",
    "MdioError",
    "Pairs",
    "Prepared",
    "Processes",
    "ProgressBar",
    "Selection",
    "Serial",
    "Storage",
    "TrajectoryInfo",
    "UserKernel",
    "Writer",
    "__version__",
    "advise",
    "analyze",
    "append",
    "convert",
    "convert_ensemble",
    "map_reduce",
    "open",
    "open_ensemble",
    "record",
    "repair",
    "sample",
    "split",
    "verify",
    "virtual_parser",
]

_HOMES = {
    name: module
    for module, names in {
        "mdio.advisor.advise": "advise",
        "mdio.analysis.backends": "DaskBackend MPIBackend",
        "mdio.analysis.driver": "analyze",
        "mdio.analysis.kernels.correlations": "MSD VACF",
        "mdio.analysis.kernels.dihedrals": "Dihedrals",
        "mdio.analysis.kernels.geometry": "Pairs RMSD RMSF",
        "mdio.analysis.kernels.kernel": "Kernel Prepared UserKernel",
        "mdio.converters.convert": "append convert split",
        "mdio.converters.ensemble": "convert_ensemble",
        "mdio.converters.options": "Selection Storage",
        "mdio.converters.repair": "repair",
        "mdio.converters.stream": "record",
        "mdio.converters.verify": "verify",
        "mdio.converters.writer": "Writer",
        "mdio.core.errors": "MdioError",
        "mdio.core.frames": "FrameBlock TrajectoryInfo",
        "mdio.core.progress": "ProgressBar",
        "mdio.layouts.views.opening": "open open_ensemble",
        "mdio.layouts.virtual": "virtual_parser",
        "mdio.mapreduce.driver": "map_reduce",
        "mdio.parallel.dask_executor": "DaskExecutor",
        "mdio.parallel.executors": "Executor Processes Serial",
        "mdio.parallel.mpi_executor": "MPIExecutor",
        "mdio.sampling": "sample",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mdio' has no attribute {name!r}")
    attribute = getattr(import_module(_HOMES[name]), "open_source" if name == "open" else name)
    globals()[name] = attribute  # found there from now on, without this function
    return attribute


def __dir__() -> list[str]:
    return list(__all__)


if clash := clash_with():
    warnings.warn(clash, stacklevel=2)
when_imported("MDAnalysis", lambda: import_module("mdio.readers.reader"))
