"""What the advisor measures, as plain values: they save, load and decide again without any data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Bandwidth", "Host", "Measurements", "Question", "Run", "Source", "Spread", "Trial"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one measurement: their median, smallest and largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def relative(self) -> float:
        """Half the range as a share of the median; 0 where the median is 0."""
        return (self.high - self.low) / (2 * self.median) if self.median > 0 else 0.0

    def scaled(self, factor: float) -> Spread:
        """Return all three, multiplied."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Run:
    """The analysis over the sample, by so many workers at once; seconds.

    Times of a frame are those of one worker among the others.
    """

    workers: int
    cache: str
    """``warm``: the bytes were in memory; ``cold``: they had been dropped from it."""
    n_frames: int
    t_startup_s: Spread
    """Starting workers and gathering."""
    t_open_s: Spread
    t_io_frame_s: Spread
    t_comp_frame_s: Spread
    t_rest_frame_s: Spread

    @property
    def loop_frame_s(self) -> float:
        """All that one frame takes one worker."""
        return self.t_io_frame_s.median + self.t_comp_frame_s.median + self.t_rest_frame_s.median


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate layout: what it would be, what making it takes, how it reads."""

    name: str
    """Unique: ``as-is``, ``zarr``, ``zarr precision 0.01``, ..."""
    layout: str
    """``as-is``, ``local-copy`` or a writable layout."""
    behaves_like: str
    """In the scaling model."""
    nbytes: float
    """Of the whole output."""
    read_nbytes_frame: float
    """Bytes on disk that hold what the analysis reads of one frame."""
    convert_options: dict[str, str]
    """Options of ``mdio convert`` beyond source, output and topology."""
    chunk_frames: int | None
    stripe_nbytes: int
    groups: dict[str, str]
    precision: float | str | None
    one_writer: bool
    """Whether one process stores what the others encode."""
    fits: bool
    """Whether the target folder has room for it."""
    convert_workers: int
    convert_fixed_s: Spread
    convert_frame_s: Spread
    runs: tuple[Run, ...]
    problem: str | None
    """Why it could not be measured."""

    def run(self, workers: int, cache: str) -> Run | None:
        """Return one of the runs, or None."""
        for run in self.runs:
            if (run.workers, run.cache) == (workers, cache):
                return run
        return None

    def with_runs(self, runs: Sequence[Run]) -> Trial:
        """Return it with other runs."""
        return replace(self, runs=tuple(runs))


@dataclass(frozen=True, slots=True)
class Source:
    """The trajectory as it is."""

    paths: tuple[str, ...]
    layout: str
    n_frames: int
    n_atoms: int
    nbytes: int
    sample_frames: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be computed, in the words of the command line."""

    analysis: str
    select: str | None
    top: str | None
    target: str
    n_selected: int
    """Atoms that the analysis reads."""
    result_nbytes_frame: float
    options: dict[str, str]
    """Further options of ``mdio analyze``."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes/s that some readers got together."""

    readers: int
    cache: str
    nbytes_per_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that was measured."""

    cores: int
    memory_free_nbytes: int
    source_file_system: str
    source_stripe: str | None
    target_file_system: str
    target_stripe: str | None
    target_free_nbytes: int
    cold_problem: str | None
    """Why nothing could be measured cold; None if it could."""
    parallel_hdf5: bool


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that advice follows from, but numbers of ranks and passes."""

    version: str
    source: Source
    question: Question
    host: Host
    ratio_comp_io: float | None
    """t_comp/t_IO of one worker on the source as it is."""
    trials: tuple[Trial, ...]
    bandwidths: tuple[Bandwidth, ...]
    notes: tuple[str, ...]
    seconds: float
    """How long measuring took."""

    def trial(self, name: str) -> Trial | None:
        """Return a trial by name, or None."""
        return next((trial for trial in self.trials if trial.name == name), None)
