"""Measurements of the advisor as plain values, which are saved and loaded; candidate layouts."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.advisor.profile import access_model
from mdio.core.errors import PlanError, SourceError
from mdio.core.files.publish import publish
from mdio.core.frames import TrajectoryInfo
from mdio.core.json_dataclasses import dataclass_from_json, load_json
from mdio.layouts.plan import DEFAULT_STRIPE_NBYTES, WriteOptions
from mdio.layouts.registry import writer_class

GROUP = "selection"
"""Name of the stored group of the analysed atoms."""

MAX_GROUP_SHARE = 0.5
"""A group is stored if it has at most this share of the atoms."""

PLAIN_CONTAINER = "dcd"
"""Container with floats as in memory, in frames of one size."""
SEGMENT_NBYTES = 64 << 20
"""Decoded bytes of a segment, unless there are as many segments as ranks anyway."""


@dataclass(frozen=True)
class Group:
    """The atoms that the analysis reads, as a group to be stored."""

    selection: str
    indices: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class Candidate:
    """A layout to try."""

    name: str
    layout: str
    behaves_like: str
    """Layout of the scaling model."""
    to: str | None = None
    """Layout to convert to; None: nothing is converted."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `mdio.convert`, without groups."""
    group: Group | None = None
    chunk_frames: int | None = None
    segment_frames: int | None = None
    """Frames of a segment; those of a trial have fewer if the sample has."""
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES


def candidates(
    info: TrajectoryInfo,
    container: str | None,
    group: Group | None,
    ranks: int,
    allow_lossy: float | None = None,
) -> list[Candidate]:
    """Return candidates for conversions, simple ones first.

    `container`: format of the source's files, if frames can be copied as bytes. `group`: the atoms
    that the analysis reads, if they are fewer than all. `ranks`: least number of segments.
    """
    if group is not None and len(group.indices) > MAX_GROUP_SHARE * info.n_atoms:
        group = None
    n_segments = segments_for(info.n_frames, info.frame_nbytes, ranks)
    segments = partial(
        Candidate,
        layout="segments",
        behaves_like="segments",
        to="segments",
        segment_frames=math.ceil(info.n_frames / n_segments),
    )
    result = [] if container is None else [segments("segments")]
    if container != PLAIN_CONTAINER:
        options = {"container": PLAIN_CONTAINER}
        result.append(segments(f"segments of {PLAIN_CONTAINER}", options=options))
    result += [_in_chunks(info, name, name, group, {}) for name in ("h5md", "zarr")]
    if info.xtc_integers:
        result.append(_in_chunks(info, "zarr raw floats", "zarr", group, {"precision": "none"}))
    if allow_lossy is not None:
        name = f"zarr precision {allow_lossy:g}"
        result.append(_in_chunks(info, name, "zarr", group, {"precision": allow_lossy}))
    return result


def segments_for(n_frames: int, frame_nbytes: int, ranks: int) -> int:
    """Return a number of segments: one for each rank, or more if they would be large."""
    n_segments = max(ranks, round(frame_nbytes * n_frames / SEGMENT_NBYTES))
    return max(1, min(n_segments, n_frames))


def _in_chunks(
    info: TrajectoryInfo, name: str, layout: str, group: Group | None, options: Mapping[str, Any]
) -> Candidate:
    """Return a candidate with the chunks of the whole output, which its trials then have, too."""
    write_options = WriteOptions(
        precision=options.get("precision"),
        groups={} if group is None else {GROUP: len(group.indices)},
    )
    try:
        plan = writer_class(layout).plan_for(info, write_options)
        chunk_frames: int | None = plan.array("trajectory", "positions").chunk_frames
        stripe = plan.stripes.stripe_nbytes
    except (PlanError, KeyError):  # the trial will raise it, too
        chunk_frames, stripe = None, DEFAULT_STRIPE_NBYTES
    return Candidate(
        name,
        layout,
        access_model(layout),
        to=layout,
        options=options,
        group=group,
        chunk_frames=chunk_frames,
        stripe_nbytes=stripe,
    )


SCHEMA = "mdio-measurements-1"


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the repeats of one measurement."""

    median: float
    low: float
    high: float
    quartile: float
    """The lower quartile, which forecasts use: disturbances only add time, so that it is nearer to
    the undisturbed time than the median is, and less variable than the minimum."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        quartile = float(np.quantile(values, 0.25))
        return cls(statistics.median(values), min(values), max(values), quartile)

    @property
    def relative(self) -> float:
        """(median - low) / median; 0 if the median is 0."""
        return (self.median - self.low) / self.median if self.median > 0 else 0.0

    def scaled(self, factor: float) -> Spread:
        """Return the spread of `factor` times the values."""
        return Spread(
            factor * self.median, factor * self.low, factor * self.high, factor * self.quartile
        )


@dataclass(frozen=True, slots=True)
class SampleRun:
    """Seconds of the analysis of the sample; those per frame are of one worker among others."""

    workers: int
    cache: str
    """``warm``: the bytes were in memory; ``cold``: they were read from disk."""
    n_frames: int
    t_startup_s: Spread
    """Starting workers and gathering."""
    t_open_s: Spread
    t_io_frame_s: Spread
    t_comp_frame_s: Spread
    t_rest_frame_s: Spread


@dataclass(frozen=True, slots=True)
class Trial:
    """Measurements of one candidate: size, conversion, analysis."""

    name: str
    """Unique: ``as-is``, ``zarr``, ``zarr precision 0.01``, ..."""
    layout: str
    """``as-is``, ``local-copy`` or a writable layout."""
    behaves_like: str
    """Layout of the scaling model."""
    nbytes: float
    """Size of the whole output."""
    read_nbytes_frame: float
    """Bytes on disk that the analysis reads of one frame."""
    convert_options: dict[str, str]
    """Options of ``mdio convert`` beyond source, output and topology."""
    chunk_frames: int | None
    stripe_nbytes: int
    groups: dict[str, str]
    precision: float | str | None
    one_writer: bool
    """Whether one process stores for all others; True only in measurements before 2026-11."""
    fits: bool
    """Whether the target folder has room for it."""
    convert_workers: int
    convert_fixed_s: Spread
    convert_frame_s: Spread
    runs: tuple[SampleRun, ...]
    problem: str | None
    """Reason why it could not be measured; None if it was."""
    convert_cpu_share: float = 1.0
    """Share of the time of trial conversions in which their workers computed, and did not wait for
    storage; 1 in older measurements."""


@dataclass(frozen=True, slots=True)
class Source:
    """The trajectory as it is."""

    paths: tuple[str, ...]
    layout: str
    n_frames: int
    n_atoms: int
    nbytes: int
    sample_frames: int

    def nbytes_per_atom(self, nbytes: float) -> float:
        """Return bytes per atom and frame, if all frames take `nbytes`."""
        return nbytes / (self.n_frames * self.n_atoms)


@dataclass(frozen=True, slots=True)
class Question:
    """The analysis, as arguments of the command line."""

    analysis: str
    select: str | None
    top: str | None
    target: str
    n_selected: int
    """Number of atoms that the analysis reads."""
    result_nbytes_frame: float
    options: dict[str, str]
    """Further options of ``mdio analyze``; names without dashes are for ``--set``."""
    local_folder: str | None
    """Folder on a disk of each node, for copies of the source."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes/s of simultaneous readers together."""

    readers: int
    cache: str
    nbytes_per_s: float


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """Bandwidths of a node's disk for one process."""

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
    """Reason why nothing could be measured cold; None if it could."""
    parallel_hdf5: bool


@dataclass(frozen=True, slots=True)
class Measurements:
    """All inputs of advice except the numbers of ranks and passes."""

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
    local: LocalDisk | None = None
    """Disk of the folder for local copies and caches; None if it was not measured."""
    t_prepare_s: float = 0.0
    """Seconds before a pass over any layout, for topology and selections."""

    def trial(self, name: str) -> Trial | None:
        """Return a trial by name, or None."""
        return next((trial for trial in self.trials if trial.name == name), None)


def save_measurements(measurements: Measurements, path: str | PathLike[str]) -> None:
    """Write measurements, for `load_measurements`."""
    text = json.dumps({"schema": SCHEMA, **asdict(measurements)}, indent=1)
    with publish(path, force=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def load_measurements(path: str | PathLike[str]) -> Measurements:
    """Read a file of `save_measurements`, or the ``measurements`` of ``mdio advise --json``."""
    return measurements_from(load_json(path, "expected saved measurements"), str(path))


def measurements_from(data: Any, source: str) -> Measurements:
    """Return measurements from plain values; raises SourceError: they are not, or impossible."""
    if isinstance(data, dict) and "measurements" in data:
        data = data["measurements"]
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SourceError(
            f"{source}: no measurements of schema {SCHEMA}; make them with "
            "mdio advise --save-measurements"
        )
    fields = {key: value for key, value in data.items() if key != "schema"}
    measurements = dataclass_from_json(Measurements, fields, source)
    if measurements.source.n_frames < 1 or measurements.trial("as-is") is None:
        raise SourceError(f"{source}: no frames, or no measurement of the source as it is")
    return measurements
