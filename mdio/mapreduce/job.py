"""A map-reduce on its way: what was asked for, and what is known of its frames and blocks."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from mdio.analysis.plan import Plan
from mdio.analysis.work import NumberedBlock
from mdio.core.errors import OutputError
from mdio.mapreduce.frames import FrameTable
from mdio.mapreduce.mapping import MapItem, Mapped
from mdio.mapreduce.pairs import Kind
from mdio.mapreduce.program import Combined, Program
from mdio.mapreduce.reducing import Table
from mdio.mapreduce.results import MapReduceResult
from mdio.mapreduce.runs import Run, Spool
from mdio.parallel.executors import Executor

RANGES_PER_WORKER = 4
"""More than one evens out keys with more work than others."""
LEAST_RANGES = 16
"""Of all of several workers, as `mdio.mapreduce.driver.LEAST_BLOCKS`."""
SHARE = 6
"""A run, and a range while it is sorted, take this part of the memory, and copies as much again;
what is kept for the reduce takes two."""
LEAST_NBYTES = 4096
"""Less memory would be all overhead."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to go about it, wherever that is."""

    program: Program
    memory: int
    local_dir: str | PathLike[str] | None
    keep_going: bool
    progress: Progress | None

    @property
    def most_nbytes(self) -> int:
        """Of a run, and of a range."""
        return max(LEAST_NBYTES, self.memory // SHARE)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a folder for pairs, which goes with all that is in it.

        Raises OutputError: it cannot be made.
        """
        try:
            folder = tempfile.TemporaryDirectory(prefix="mdio-pairs-", dir=self.local_dir)
        except OSError as error:
            where = self.local_dir or tempfile.gettempdir()
            raise OutputError(
                f"{where}: no folder for pairs can be made there ({error.strerror}); name another "
                "one (--local-dir, local_dir=)"
            ) from error
        with folder as name:
            yield Path(name)

    def spool(self, folder: Path | None, *, shares: bool) -> Spool:
        """Return where a worker's pairs go: into files if it shares them; or no folder, no file."""
        combine = self.program.combine
        combined = None if combine is None else Combined(combine)
        most = math.inf if folder is None else self.most_nbytes
        return Spool(most, 0 if shares else 2 * most, folder, combined)

    def n_ranges(self, runs: Sequence[Run], kind: Kind, n_workers: int) -> int:
        """Return how many ranges of keys to make."""
        nbytes = sum(map(len, runs)) * kind.nbytes
        wanted = max(LEAST_RANGES, n_workers * RANGES_PER_WORKER) if n_workers > 1 else 1
        return max(wanted, math.ceil(nbytes / self.most_nbytes))


@dataclass(slots=True)
class Job:
    """A map-reduce whose trajectories are open."""

    plans: dict[str, Plan]
    """By label."""
    settings: Settings
    table: FrameTable
    mapped: dict[int, Mapped] = field(default_factory=dict)
    """What is done, by where it begins."""

    @classmethod
    def of(cls, plans: dict[str, Plan], settings: Settings) -> Job:
        """Count frames."""
        table = FrameTable.of({label: plan.chosen for label, plan in plans.items()})
        return cls(plans, settings, table)

    def items(self, blocks: Iterable[Iterable[NumberedBlock]]) -> list[MapItem]:
        """Return what is to be mapped: some blocks of each trajectory."""
        found = []
        of_each = zip(self.table.firsts.tolist(), self.plans.items(), blocks, strict=True)
        for trajectory, (first, (label, plan), some) in enumerate(of_each):
            for number, block in some:
                at = first + plan.frames.index(block.start)
                found.append(MapItem(at, number, trajectory, label, block))
        return found

    def note(self, mapped: Mapped) -> None:
        """Take what became of a block."""
        self.mapped[mapped.at] = mapped
        self.table.time[mapped.at : mapped.at + len(mapped.time)] = mapped.time
        mapped.timing.gathered()
        if self.settings.progress is not None:
            self.settings.progress(mapped.timing.n_frames, mapped.timing.nbytes_read)

    def result(self, reduced: Table, executor: Executor, runs: Sequence[Run]) -> MapReduceResult:
        """Return the result, but for how long it took; `runs` are those of all workers."""
        plans = list(self.plans.values())
        mapped = [self.mapped[at] for at in sorted(self.mapped)]
        timings = [one.timing for one in mapped]
        for plan in plans if timings else ():
            plan.count(timings[0])
        labels, of = self.table.labels, reduced.trajectory
        n_pairs = np.zeros(len(self.table.number), np.int64)
        for one in mapped:
            n_pairs[one.at : one.at + len(one.n_pairs)] = one.n_pairs
        nbytes = [(len(run) * run.kind.nbytes, run.path is not None) for run in runs]
        return MapReduceResult(
            keys=reduced.keys,
            columns=reduced.columns,
            label=np.array(labels)[of] if labels else None,
            failures=[(key, labels[t] if labels else None, e) for key, t, e in reduced.failures],
            frame=self.table.number,
            time=self.table.time,
            n_pairs=n_pairs,
            timings=timings,
            seconds=sum(plan.opened_s for plan in plans),
            reduce_s=0.0,
            executor=executor.name,
            workers=executor.n_workers,
            nbytes_shuffled=sum(one for one, _ in nbytes),
            nbytes_on_disk=sum(one for one, on_disk in nbytes if on_disk),
            firsts=tuple(self.table.firsts.tolist()),
            prepare_s=sum(plan.prepare_s for plan in plans),
            notes=tuple(
                dict.fromkeys(
                    [
                        *(note for plan in plans for note in plan.notes),
                        *(note for timing in timings for note in timing.notes),
                    ]
                )
            ),
        )
