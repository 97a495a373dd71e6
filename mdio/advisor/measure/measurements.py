"""What the advisor measures, as plain values: they save, load and decide again without any data."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.advisor.model.profile import json_at, made_of
from mdio.core.errors import OutputError, SourceError

SCHEMA = "mdio-measurements-1"


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one measurement."""

    median: float
    low: float
    high: float
    quartile: float
    """The lower quartile, which forecasts go by: what disturbs a run only ever adds time, so this
    is nearer to the undisturbed time than the median is, and steadier than the smallest."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        ordered = sorted(values)
        place = (len(ordered) - 1) / 4
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        quartile = ordered[below] + (place - below) * (ordered[above] - ordered[below])
        return cls(statistics.median(ordered), ordered[0], ordered[-1], quartile)

    @property
    def relative(self) -> float:
        """From the smallest to the median, as a share of the median; 0 where that is 0."""
        return (self.median - self.low) / self.median if self.median > 0 else 0.0

    def scaled(self, factor: float) -> Spread:
        """Return all of it, multiplied."""
        return Spread(*(factor * one for one in (self.median, self.low, self.high, self.quartile)))


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
    """Whether one process stores what the others encode: of records made before 2026-11."""
    fits: bool
    """Whether the target folder has room for it."""
    convert_workers: int
    convert_fixed_s: Spread
    convert_frame_s: Spread
    runs: tuple[Run, ...]
    problem: str | None
    """Why it could not be measured."""


@dataclass(frozen=True, slots=True)
class Source:
    """The trajectory as it is."""

    paths: tuple[str, ...]
    layout: str
    n_frames: int
    n_atoms: int
    nbytes: int
    sample_frames: int

    def density(self, nbytes: float) -> float:
        """Return how many of `nbytes`, which hold all frames, an atom takes in a frame."""
        return nbytes / (self.n_frames * self.n_atoms)


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
    local_folder: str | None
    """On a disk of each node, for copies of the source."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes/s that some readers got together."""

    readers: int
    cache: str
    nbytes_per_s: float


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """What the disk of a node gives to one process, bytes/s."""

    read_nbytes_per_s: float
    write_nbytes_per_s: float


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
    local: LocalDisk | None = None
    """Of the folder for local copies and caches; None if it was not measured from disk."""

    def trial(self, name: str) -> Trial | None:
        """Return a trial by name, or None."""
        return next((trial for trial in self.trials if trial.name == name), None)


def save_measurements(measurements: Measurements, path: str | PathLike[str]) -> None:
    """Write measurements, for `load_measurements`.

    Raises OutputError: the file cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(measurements)}, indent=1)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path}: measurements cannot be written ({error.strerror}); choose another place"
        ) from None


def load_measurements(path: str | PathLike[str]) -> Measurements:
    """Read what `save_measurements` wrote, or the ``measurements`` of ``mdio advise --json``.

    Raises SourceError: there is no such file, it is no measurements, or a value in it cannot be.
    """
    return measurements_from(json_at(path, "expected saved measurements"), str(path))


def measurements_from(data: Any, where: str) -> Measurements:
    """Return measurements from plain values.

    Raises SourceError: they are no measurements, or one of them cannot be; the message names it.
    """
    if isinstance(data, dict) and "measurements" in data:
        data = data["measurements"]
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SourceError(
            f"{where}: no measurements of schema {SCHEMA}; make them with "
            "mdio advise --save-measurements"
        )
    plain = {key: value for key, value in data.items() if key != "schema"}
    found = made_of(Measurements, plain, where)
    if found.source.n_frames < 1 or found.trial("as-is") is None:
        raise SourceError(f"{where}: no frames, or no measurement of the source as it is")
    return found
