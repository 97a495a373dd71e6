"""The function behind ``mdio advise``: measure, then decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from mdio.advisor.forecast import Total, read_calibration
from mdio.advisor.measure import Limits, StepProgress, measure
from mdio.advisor.measurements import Measurements, load_measurements, save_measurements
from mdio.advisor.probes import WorkerRead, read_as_worker, total_bandwidth
from mdio.advisor.profile import PROFILE_NAMES, Profile, load_profile
from mdio.advisor.recommend import Decision, recommend
from mdio.advisor.report import advice_html, headline, save_advice, text_lines
from mdio.core.errors import PlanError
from mdio.core.files.store import path_list, to_path
from mdio.core.options import build_options, option, takes_options
from mdio.layouts.views.options import ReadOptions
from mdio.parallel.executors import Executor, available_cores

if TYPE_CHECKING:
    from mdio.analysis.kernels.kernel import BlockFunction, Kernel


@dataclass(frozen=True)
class Advice(Decision):
    """A decision that can be read: as text, in a notebook, as a page."""

    def save_report(self, path: str | PathLike[str]) -> None:
        """Write a self-contained HTML page with plots and tables.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        OutputError
            The file cannot be written.
        """
        save_advice(self, path)

    def __repr__(self) -> str:
        return f"<Advice: {headline(self)}>"

    def _repr_html_(self) -> str:
        """Show the tables in a notebook, and the pictures if matplotlib is installed."""
        return advice_html(self)

    def __str__(self) -> str:
        return "\n".join(text_lines(self))


LOCAL = "local"
"""Name of the machine that this process runs on."""


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """The machine that will run the analysis."""

    machine: str | PathLike[str] | Profile = option(
        f"{LOCAL} (this one, from measurements alone; default), {', '.join(PROFILE_NAMES)}, or a "
        "profile saved by mdio model fit",
        "--machine NAME|FILE",
        LOCAL,
    )
    nodes: int | None = option(
        "number of machines like this one on which ranks run (default: those of the workers)",
        "--nodes N",
    )
    cache: str = option(
        "--cold: assume that passes read from storage, --warm: from memory (default: from memory "
        "if their bytes fit into it)",
        "--cold",
        "auto",
        values={"cold": "--cold", "warm": "--warm"},
        alone="caches",
    )
    calibrate: Sequence[str | PathLike[str]] = option(
        "scale the forecast by these runs on that machine, saved by mdio analyze --timings "
        "(default layout: as-is)",
        "--calibrate [LAYOUT=]T.json",
        (),
        kind="files",
    )


@takes_options(ReadOptions, ForecastOptions)
def advise(
    trajectory: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    *,
    top: str | PathLike[str] | None = None,
    analysis: str | Kernel | BlockFunction = "rmsd",
    select: str | None = None,
    ranks: int | None = None,
    passes: int = 1,
    target: str | PathLike[str] = ".",
    allow_lossy: float | None = None,
    local_folder: str | PathLike[str] | None = None,
    replay: str | PathLike[str] | None = None,
    save: str | PathLike[str] | None = None,
    limits: Limits | None = None,
    progress: StepProgress | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Advice:
    """Measure an analysis on a trajectory and say which layout will serve it best.

    Parameters
    ----------
    trajectory
        A path of any layout, or several that are joined.
    top
        Topology file, for selections.
    analysis
        ``rmsd``, ``dihedrals``, ``module:function``, a kernel, or a function of a `FrameBlock`.
    select
        Selection of the analysed atoms, if the kernel has none of its own.
    ranks
        Number of processes that will analyse; by default the workers of `executor`, or the cores
        that this process may use.
    passes
        How often the trajectory will be analysed.
    target
        Folder that an output would go to: trial conversions of some frames are made, read and
        removed there.
    allow_lossy
        Also consider positions rounded to this step, angstrom.
    local_folder
        Folder on a disk of each node: also consider copying the source there first, and a cache
        there (``mdio analyze --cache``).
    replay, save
        Decide from saved measurements instead of measuring; save the measurements.
    limits
        Limits of time and disk space for the measurements.
    progress
        Called with (the next step, steps done, all steps).
    executor
        Its workers first measure the source's storage by reading simultaneously; one process
        measures everything else. `mdio.MPIExecutor(comm)`, on which all ranks call this, or Dask.
    **options
        <options>

    Returns
    -------
    Advice

    Raises
    ------
    PlanError, SourceError
        Arguments that do not fit together; a trajectory or topology that cannot be read.
    BlockError
        The analysis itself fails.
    OutputError
        The target folder is missing or not writable.

    Examples
    --------
    >>> import mdio
    >>> from mdio.advisor.measure import Limits
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> quick = Limits(sample_nbytes=1 << 20, repeats=1, max_repeats=1)  # by default some 20 s
    >>> advice = mdio.advise(DCD, top=PSF, select="name CA", limits=quick, save="measured.json")
    >>> mdio.advise(replay="measured.json", passes=1000).passes
    1000
    """
    read_options, forecast_options = build_options((ReadOptions, ForecastOptions), options)
    if replay is not None:
        arguments = {"trajectory": trajectory, "top": top, "select": select, **vars(read_options)}
        arguments |= {"allow_lossy": allow_lossy, "local_folder": local_folder}
        arguments |= {"analysis": analysis, "target": str(target)}
        defaults = {"analysis": "rmsd", "target": ".", **vars(ReadOptions())}
        if changed := [name for name, value in arguments.items() if value != defaults.get(name)]:
            raise PlanError(
                f"{replay}: saved measurements have their own arguments; leave out "
                f"{', '.join(changed)}, or measure again"
            )
    reads = [] if replay is not None else _read_together(executor, trajectory)
    is_parallel = executor is not None and executor.n_workers > 1
    n_workers = executor.n_workers if executor is not None and is_parallel else available_cores()
    n_ranks = n_workers if ranks is None else ranks
    n_nodes = max(1, len({read.node for read in reads}))
    if forecast_options.nodes is not None:
        n_nodes = forecast_options.nodes
    for name, count in (("ranks", n_ranks), ("passes", passes), ("nodes", n_nodes)):
        if not (hasattr(count, "__index__") and count >= 1):
            raise PlanError(f"{count} {name}: give a whole number of 1 or more")
    is_number = hasattr(allow_lossy, "__float__") and not isinstance(allow_lossy, bool)
    if allow_lossy is not None and not (is_number and allow_lossy > 0):
        raise PlanError(f"allow_lossy is {allow_lossy!r}; give a positive step in angstrom")
    if not isinstance(limits, Limits | None):
        raise PlanError(f"limits is {limits!r}; give mdio.advisor.measure.Limits(seconds=...)")

    def decide() -> Advice:
        machine = forecast_options.machine
        profile = machine if isinstance(machine, Profile) else None
        if profile is None and str(machine) != LOCAL:
            profile = load_profile(str(machine))
        calibrations = [read_calibration(str(path)) for path in forecast_options.calibrate]
        recommend_from = partial(
            recommend,
            ranks=n_ranks,
            passes=passes,
            profile=profile,
            cache=forecast_options.cache,
            nodes=n_nodes,
            under_mpi=executor is not None and executor.ranks is not None,
        )

        def forecast_source(measurements: Measurements) -> Total:
            """Forecast the source as it is, uncalibrated: calibrations may be of other layouts."""
            total = recommend_from(measurements).options[0].total
            assert total is not None
            return total

        used_limits = limits
        if save is not None or calibrations:  # all options are needed, however fast the source is
            used_limits = replace(limits or Limits(), enough_s=0.0)
        if replay is not None:
            measurements = load_measurements(replay)
        elif trajectory is None:
            raise PlanError("no trajectory is given; name one, or measurements to replay")
        else:
            measurements = measure(
                trajectory,
                analysis=analysis,
                select=select,
                top=top,
                target=target,
                ranks=n_ranks,
                allow_lossy=allow_lossy,
                local_folder=local_folder,
                limits=used_limits,
                progress=progress,
                **vars(read_options),
                shared_bandwidths=total_bandwidth(reads),
                forecast=forecast_source,
            )
        if save is not None:
            save_measurements(measurements, save)
        return Advice(**vars(recommend_from(measurements, calibrations=calibrations)))

    return decide() if executor is None else executor.from_owner(decide)


def _read_together(
    executor: Executor | None,
    trajectory: str | PathLike[str] | Sequence[str | PathLike[str]] | None,
) -> list[WorkerRead]:
    """Have all workers read at the same time; return what each read, nothing for one worker."""
    files = [] if trajectory is None else [to_path(path) for path in path_list(trajectory)]
    if executor is None or executor.n_workers == 1 or not files:
        return []
    read = partial(read_as_worker, files, executor.n_workers)
    return executor.map(read, range(executor.n_workers), describe=lambda n: f"worker {n}")
