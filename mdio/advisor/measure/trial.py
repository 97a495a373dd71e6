"""Trial conversions of a few frames, and the analysis over them; nothing of it stays behind."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdio.advisor.measure.candidates import GROUP, Candidate
from mdio.advisor.measure.kernel_probe import Ready
from mdio.advisor.measure.measurements import Run, Spread
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.kernel import Prepared
from mdio.converters.convert import convert
from mdio.core.errors import OutputError
from mdio.core.signals import terminations_raised
from mdio.parallel.executors import running

PREFIX = ".mdio-advise-"
LEAST_SLOPE = 0.6
"""Of the mean seconds of a frame: more than the rest is not put down to fixed costs, since the
difference of two noisy times may be anything."""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """Yield a new folder in `target` that is removed in the end, whatever ends the work.

    What killed processes of this host left behind goes first.

    Raises OutputError: it cannot be made.
    """
    host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
    for old in target.glob(f"{PREFIX}{host}-*"):
        pid = old.name.removeprefix(f"{PREFIX}{host}-").partition("-")[0]
        # Ours only: another user may have given some folder such a name.
        if old.lstat().st_uid == os.geteuid() and pid.isdigit() and not _is_running(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    with terminations_raised():
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{host}-{os.getpid()}-", dir=target))
        except OSError as error:
            raise OutputError(
                f"{target}: no trial conversions can be made there ({error.strerror}); "
                "give another --target"
            ) from None
        owner = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner:
                shutil.rmtree(folder, ignore_errors=True)


def convert_trial(
    candidate: Candidate,
    sources: Sequence[str],
    frames: range,
    out: Path,
    workers: int,
    n_segments: int | None,
    overlap: str | None = None,
) -> tuple[float, int]:
    """Convert some frames; return the seconds and the bytes of the output.

    Raises MdioError: as `mdio.convert`.
    """
    assert candidate.to is not None
    options: dict[str, Any] = dict(candidate.options)
    if candidate.group is not None:
        options["groups"] = {GROUP: candidate.group.indices}
    if candidate.chunk_frames is not None:
        options["chunk_frames"] = candidate.chunk_frames
    if n_segments is not None:
        options["segments"] = n_segments
    if out.exists():
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    with running(None, workers) as executor:
        result = convert(
            list(sources),
            out,
            to=candidate.to,
            start=frames.start,
            stop=frames.stop,
            executor=executor,
            overlap=overlap,
            **options,
        )
    return result.seconds, result.nbytes_out


def fit_conversion(
    large: Sequence[float], small: Sequence[float], n_large: int, n_small: int, whole: bool
) -> tuple[Spread, Spread]:
    """Return the fixed seconds and those of each frame from conversions of two lengths.

    `large`, `small`: seconds of the repeats. `n_large`, `n_small`: frames of each. `whole`: whether
    the longer one is all there is: then nothing needs to be extrapolated.
    """
    long = Spread.of(large)
    if whole or not small or n_small >= n_large:
        return Spread.of([0.0]), long.scaled(1 / n_large)
    slope = (long.quartile - Spread.of(small).quartile) / (n_large - n_small)
    mean = long.quartile / n_large
    slope = min(max(slope, LEAST_SLOPE * mean), mean)
    relative = slope / mean if mean > 0 else 1.0
    return Spread.of([long.quartile - slope * n_large]), long.scaled(relative / n_large)


@dataclass(frozen=True, slots=True)
class Raw:
    """One run of the analysis; seconds."""

    n_frames: int
    startup_s: float
    open_s: float
    io_frame_s: float
    comp_frame_s: float
    rest_frame_s: float


def timed_run(
    trajectory: Sequence[str],
    prepared: Prepared,
    workers: int,
    frames: range,
    *,
    overlap: str | None = None,
    verify: bool = True,
) -> Raw:
    """Run the analysis over some frames and return the times of its parts.

    Raises MdioError: as `mdio.analyze`.
    """
    with running(None, workers) as executor:
        result = analyze(
            trajectory if len(trajectory) > 1 else trajectory[0],
            kernel=Ready(prepared),
            executor=executor,
            start=frames.start,
            stop=frames.stop,
            overlap=overlap,
            verify=verify,
        )
    n_frames = result.n_frames
    io = sum(rank.t_io_s for rank in result.ranks)
    comp = sum(rank.t_comp_s for rank in result.ranks)
    opening = [rank.t_open_s for rank in result.ranks]
    whole = sum(rank.t_block_s for rank in result.ranks)
    slowest = max(rank.t_block_s for rank in result.ranks)
    return Raw(
        n_frames=n_frames,
        startup_s=max(0.0, result.seconds - slowest),
        open_s=sum(opening) / len(opening),
        io_frame_s=io / n_frames,
        comp_frame_s=comp / n_frames,
        rest_frame_s=max(0.0, whole - io - comp - sum(opening)) / n_frames,
    )


def run_of(raws: Sequence[Raw], workers: int, cache: str, startup: Spread, comp: Spread) -> Run:
    """Return repeats as one; start-up and computing are known from all layouts together."""
    return Run(
        workers=workers,
        cache=cache,
        n_frames=raws[0].n_frames,
        t_startup_s=startup,
        t_open_s=Spread.of([raw.open_s for raw in raws]),
        t_io_frame_s=Spread.of([raw.io_frame_s for raw in raws]),
        t_comp_frame_s=comp,
        t_rest_frame_s=Spread.of([raw.rest_frame_s for raw in raws]),
    )
