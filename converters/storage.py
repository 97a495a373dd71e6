"""What the storage under an output means for how it is written."""

from __future__ import annotations

from pathlib import Path

from mdio.core.errors import PlanError
from mdio.core.files.page_cache import free_memory
from mdio.core.files.remote.paths import RemotePath
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.striping.networks import has_one_writer, is_network
from mdio.layouts.striping.stripes import file_system_type
from mdio.parallel.executors import Executor, Processes, Serial
from mdio.parallel.mpi_executor import MPIExecutor

__all__ = ["goes_direct", "goes_through_owner", "telling_file_system"]

MEMORY_SHARE = 0.25
"""Of the memory that is available: what is larger would not stay in the page cache anyway."""


def telling_file_system(target: Path, compression: str | None) -> str | None:
    """Return the type of the file system that is to say how floats are stored, if any is."""
    if compression not in (None, "auto"):
        return None
    found = file_system_type(target)
    return found if compression == "auto" or is_network(found) else None


def goes_direct(asked: str, plan: LayoutPlan, target: Path) -> bool:
    """Return whether large writes go past the page cache; raises PlanError for another word.

    By itself only an output on a disk of this machine that is large beside its memory: what is
    read again at once had better be in the page cache, and networks were not measured.
    """
    if asked not in ("on", "off", "auto"):
        raise PlanError(f"--direct {asked}: give on, off or auto")
    if asked != "auto":
        return asked == "on"
    nbytes = float(plan.nbytes)
    if plan.precision and plan.precision_source != "asked" and plan.source_density:
        n_atoms = sum(array.n_atoms for array in plan.arrays) or plan.n_atoms
        nbytes = min(nbytes, plan.source_density * plan.n_frames * n_atoms)
    return 0 < MEMORY_SHARE * free_memory() < nbytes and not is_network(file_system_type(target))


def goes_through_owner(plan: LayoutPlan, target: Path, executor: Executor) -> bool:
    """Return whether workers hand what they encode to the owner, which alone writes.

    That is one more way over the network that joins them, and pays where several machines that
    write to one file hold each other up. What goes into a store is built where the owner is.
    """
    if isinstance(target, RemotePath):
        return not isinstance(executor, Serial | Processes)
    several = isinstance(executor, MPIExecutor) and executor.n_workers > 1
    return several and plan.n_files == 1 and has_one_writer(file_system_type(target))
