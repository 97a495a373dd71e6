"""Molecular-dynamics trajectories: how they lie on disk and get read in parallel.

Importing mdio makes its readers known to MDAnalysis; everything else is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mdio._version import __version__
from mdio.core.when_imported import when_imported

if TYPE_CHECKING:
    from mdio.advisor.advise import advise
    from mdio.analysis.backends import DaskBackend, MPIBackend
    from mdio.analysis.driver import analyze
    from mdio.analysis.kernels.registry import MSD, RMSD, RMSF, VACF, Dihedrals, Pairs
    from mdio.converters.convert import append, convert
    from mdio.converters.ensemble import convert_ensemble
    from mdio.converters.repair import repair
    from mdio.converters.split import split
    from mdio.converters.verify import verify
    from mdio.core.frames import FrameBlock, TrajectoryInfo
    from mdio.core.progress import ProgressBar
    from mdio.layouts.views.opening import open_source as open
    from mdio.mapreduce.driver import map_reduce
    from mdio.parallel.dask_executor import DaskExecutor
    from mdio.parallel.executors import Processes, Serial
    from mdio.parallel.mpi_executor import MPIExecutor

__all__ = [
    "MSD",
    "RMSD",
    "RMSF",
    "VACF",
    "DaskBackend",
    "DaskExecutor",
    "Dihedrals",
    "FrameBlock",
    "MPIBackend",
    "MPIExecutor",
    "Pairs",
    "Processes",
    "ProgressBar",
    "Serial",
    "TrajectoryInfo",
    "__version__",
    "advise",
    "analyze",
    "append",
    "convert",
    "convert_ensemble",
    "map_reduce",
    "open",
    "repair",
    "split",
    "verify",
]

_HOMES = {
    "DaskBackend": "mdio.analysis.backends:DaskBackend",
    "DaskExecutor": "mdio.parallel.dask_executor:DaskExecutor",
    "Dihedrals": "mdio.analysis.kernels.registry:Dihedrals",
    "FrameBlock": "mdio.core.frames:FrameBlock",
    "MPIBackend": "mdio.analysis.backends:MPIBackend",
    "MSD": "mdio.analysis.kernels.registry:MSD",
    "MPIExecutor": "mdio.parallel.mpi_executor:MPIExecutor",
    "Pairs": "mdio.analysis.kernels.registry:Pairs",
    "Processes": "mdio.parallel.executors:Processes",
    "ProgressBar": "mdio.core.progress:ProgressBar",
    "RMSD": "mdio.analysis.kernels.registry:RMSD",
    "RMSF": "mdio.analysis.kernels.registry:RMSF",
    "Serial": "mdio.parallel.executors:Serial",
    "TrajectoryInfo": "mdio.core.frames:TrajectoryInfo",
    "VACF": "mdio.analysis.kernels.registry:VACF",
    "advise": "mdio.advisor.advise:advise",
    "analyze": "mdio.analysis.driver:analyze",
    "append": "mdio.converters.convert:append",
    "convert": "mdio.converters.convert:convert",
    "convert_ensemble": "mdio.converters.ensemble:convert_ensemble",
    "map_reduce": "mdio.mapreduce.driver:map_reduce",
    "open": "mdio.layouts.views.opening:open_source",
    "repair": "mdio.converters.repair:repair",
    "split": "mdio.converters.split:split",
    "verify": "mdio.converters.verify:verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mdio' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def _register_readers() -> None:
    import_module("mdio.readers.formats")


when_imported("MDAnalysis", _register_readers)
