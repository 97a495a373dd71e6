"""What the advisor chooses from, made and run whole: the truth its advice is compared with."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import adk
import numpy as np
from numpy.typing import NDArray

import mdio
from mdio.advisor.measure import Limits, convert_trial, measure
from mdio.advisor.measurements import SCHEMA, Candidate, Group, candidates
from mdio.advisor.probes import PreparedKernel, without_computing
from mdio.analysis.kernels.kernel import Kernel, Prepared, UserKernel
from mdio.analysis.system import System
from mdio.layouts.base import container_format
from mdio.parallel.executors import Executor

SLOW_S = 0.0002
"""Of the slow callable, for each frame."""


def slow(block: mdio.FrameBlock) -> NDArray[np.float64]:
    """Compute for a fixed time a frame, as what has not been vectorised does."""
    rows = np.empty((block.n_frames, 1))
    for frame, positions in enumerate(block.positions):
        begun = time.perf_counter()
        while time.perf_counter() - begun < SLOW_S:
            rows[frame] = np.linalg.norm(positions - positions.mean(axis=0))
    return rows


ANALYSES: dict[str, Callable[[], Kernel]] = {
    "rmsd x1": lambda: mdio.RMSD(select="name CA"),
    "rmsd x10": lambda: mdio.RMSD(select="name CA", repeat=10),
    "rmsd x100": lambda: mdio.RMSD(select="name CA", repeat=100),
    "slow callable": lambda: UserKernel(slow, "name CA"),
    "dihedrals": lambda: mdio.Dihedrals(),
}
"""Those that read the same atoms follow each other: they share the converted outputs."""


@dataclass(frozen=True)
class Trajectory:
    """A source of the grid."""

    title: str
    path: Path
    top: Path


def trajectories(folder: Path, quick: bool) -> Iterator[Trajectory]:
    """Yield 3,341 and 47,681 atoms in three formats each."""
    tiles, frames = (10, 40) if quick else (50, 300)
    for suffix in adk.SUFFIXES:
        path = adk.tiled(folder, tiles, suffix)
        yield Trajectory(f"3341 atoms {suffix}", path, adk.topology())
    water = adk.solvated(folder, 1, frames)
    for suffix in adk.SUFFIXES:
        path = water.with_suffix(f".{suffix}")
        if not path.exists():
            mdio.convert(water, path)
        yield Trajectory(f"47681 atoms {suffix}", path, adk.solvated_topology())


@dataclass
class Made:
    """All options for one trajectory, set of atoms and number of workers."""

    outs: dict[str, Path]
    convert_s: dict[str, list[float]] = field(default_factory=dict)


class Truth:
    """Converts and runs one trajectory whole, option by option in turn, again and again.

    Parameters
    ----------
    folder
        Where outputs lie until the next set of atoms is asked for.
    repeats
        Of conversions and of runs, at most; at least `fewest`, while `seconds` last.
    """

    def __init__(self, source: Trajectory, folder: Path, repeats: int, seconds: float) -> None:
        self.source, self.folder = source, folder
        self.repeats, self.seconds, self.fewest = repeats, seconds, 3
        self._made: dict[int, Made] = {}
        self._atoms: bytes | None = None
        self._own: tempfile.TemporaryDirectory[str] | None = None

    def measure(self, name: str, workers: int, limits: Limits) -> dict[str, Any]:
        """Return what the advisor measured, and the seconds of all options for an analysis."""
        prepared = self._prepare(name)
        made = self._options(prepared, workers)
        runs_s = self._runs(prepared, made, workers)
        begun = time.perf_counter()
        found = measure(
            self.source.path,
            analysis=ANALYSES[name](),
            top=self.source.top,
            target=self.folder,
            ranks=workers,
            limits=limits,
        )
        return {
            "convert_s": _rounded(made.convert_s),
            "run_s": _rounded(runs_s),
            "advise_s": time.perf_counter() - begun,
            "measurements": _rounded(json.loads(json.dumps({"schema": SCHEMA, **asdict(found)}))),
        }

    def close(self) -> None:
        """Remove all outputs."""
        self._made = {}
        if self._own is not None:
            self._own.cleanup()
            self._own = None

    def _prepare(self, name: str) -> Prepared:
        with mdio.open(str(self.source.path)) as layout:
            return ANALYSES[name]().prepare(System(layout, str(self.source.top)))

    def _options(self, prepared: Prepared, workers: int) -> Made:
        atoms = np.unique(prepared.atoms)
        if self._atoms != atoms.tobytes():
            self.close()
            self._atoms = atoms.tobytes()
        if self._own is None:
            self._own = tempfile.TemporaryDirectory(prefix="truth-", dir=self.folder)
        if workers not in self._made:
            self._made[workers] = self._convert(Group("selection", atoms), workers)
        return self._made[workers]

    def _convert(self, group: Group, workers: int) -> Made:
        assert self._own is not None
        with mdio.open(str(self.source.path)) as layout:
            info, container = layout.info, container_format(layout)
        made = Made({"as-is": self.source.path})
        wanted: list[Candidate] = candidates(info, container, group, workers)
        for number, candidate in enumerate(wanted):
            out = Path(self._own.name) / f"{workers}-{number}.{candidate.to}"
            made.outs[candidate.name], made.convert_s[candidate.name] = out, []
        for _ in self._repeats():
            for candidate in wanted:
                seconds, _, _ = convert_trial(
                    candidate,
                    [str(self.source.path)],
                    range(info.n_frames),
                    made.outs[candidate.name],
                    workers,
                )
                made.convert_s[candidate.name].append(seconds)
        return made

    def _runs(self, prepared: Prepared, made: Made, workers: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {option: [] for option in made.outs}
        for option in found:  # brings the bytes into memory
            self._run(option, made, PreparedKernel(without_computing(prepared)), workers)
        for _ in self._repeats():
            for option, took_s in found.items():
                took_s.append(self._run(option, made, PreparedKernel(prepared), workers))
        return found

    def _run(self, option: str, made: Made, kernel: Kernel, workers: int) -> float:
        executor: Executor = mdio.Processes(workers) if workers > 1 else mdio.Serial()
        with executor:
            result = mdio.analyze(str(made.outs[option]), kernel=kernel, executor=executor)
        return float(result.seconds)

    def _repeats(self) -> Iterator[int]:
        begun = time.monotonic()
        for repeat in range(self.repeats):
            if repeat >= self.fewest and time.monotonic() - begun > self.seconds:
                return
            yield repeat


def _rounded(value: Any) -> Any:
    """Return plain values with four digits: what is measured has no more."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
