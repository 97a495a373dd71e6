"""Probes: what storage gives, from memory and disk; the user's own analysis on a few frames.

A function that nobody here has seen may fail, return the wrong thing, or take a minute for one
frame. So it first runs in a process of its own that can be stopped, on one frame, then on more.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import platform
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mdio.advisor.measurements import Bandwidth, LocalDisk
from mdio.analysis.kernels.kernel import (
    KERNELS,
    BlockFunction,
    Kernel,
    Prepared,
    UserKernel,
    check_rows,
)
from mdio.analysis.reducers import Stack
from mdio.analysis.system import System
from mdio.core.errors import BlockError, MdioError, OutputError, SourceError
from mdio.core.files.page_cache import drop_cache, files_in
from mdio.core.frames import FrameBlock
from mdio.core.signals import ending_signals_held, let_ending_signals_in
from mdio.layouts.base import Layout
from mdio.layouts.striping.file_systems import get_stripe
from mdio.parallel.pool import start_method

Part = tuple[Path, int, int]
"""A file, the first byte, and how many."""
REQUESTS = 16
"""Readers at once with which shared storage is asked for all it gives: as many requests as one
process keeps under way there (`mdio.core.files.in_flight`)."""
READ_NBYTES = 1 << 20
MOST_NBYTES = 64 << 20
"""Bytes that each reader of a bandwidth test reads at most ..."""
PROBE_NBYTES = 64 << 20
"""Bytes that are written and read to try a local disk."""
MOST_S = 2.0
"""... and for how long, s."""


def stripe_layout(path: Path) -> str | None:
    """Return how the file system stripes a file or folder; None where it does not."""
    found = get_stripe(path)
    return None if found is None else found.layout


def check_target(folder: Path) -> int:
    """Return the bytes that are free in a folder that can be written to.

    Raises OutputError: it is missing, or not writable.
    """
    if not folder.is_dir():
        raise OutputError(f"{folder}: no such folder; make it, or give another --target")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: the folder is not writable; give another --target")
    return shutil.disk_usage(folder).free


def bandwidths(paths: Sequence[Path], readers: Sequence[int]) -> list[Bandwidth]:
    """Return bytes/s of 1 and more readers at once, each with its own part of the largest file.

    Cold reads are of another region each time: what a client of a file system over a network has
    in memory is its own affair, and no byte that was never read can be there.
    """
    largest, size = _largest(paths)
    found = []
    region = size // max(1, len(readers))
    for number, count in enumerate(readers):
        share = min(region // count, MOST_NBYTES)
        if share < 1:
            continue
        first = number * region
        parts = [(largest, first + one * (region // count), share) for one in range(count)]
        cold = drop_cache(largest) is None
        for cache in ("cold", "warm") if cold else ("warm",):
            if not cold:
                _at_once(parts)
            nbytes, seconds = _at_once(parts)
            found.append(Bandwidth(count, cache, nbytes / seconds))
    return found


class Share(NamedTuple):
    """What one worker got while all of them asked."""

    node: str
    cold: bool
    nbytes: int
    seconds: float


def ask_storage(paths: Sequence[Path], n_workers: int, number: int) -> Share:
    """Read worker `number`'s part of the largest file, in as many requests as one process keeps."""
    largest, size = _largest(paths)
    region = size // n_workers // REQUESTS
    first = number * REQUESTS
    parts = [
        (largest, one * region, min(region, MOST_NBYTES)) for one in range(first, first + REQUESTS)
    ]
    cold = drop_cache(largest) is None
    return Share(platform.node(), cold, *_at_once(parts))


def total_bandwidth(shares: Sequence[Share]) -> list[Bandwidth]:
    """Return what all workers got together; nothing of a file that is too small to tell."""
    nbytes = sum(share.nbytes for share in shares)
    cache = "cold" if all(share.cold for share in shares) else "warm"
    seconds = max((share.seconds for share in shares), default=0.0)
    return [Bandwidth(len(shares) * REQUESTS, cache, nbytes / seconds)] if nbytes else []


def local_disk(folder: Path) -> LocalDisk | None:
    """Return what a disk gives to one process; None where nothing is read from it cold."""
    path = folder / f".mdio-probe-{secrets.token_hex(8)}"
    data = os.urandom(READ_NBYTES)
    try:
        with path.open("xb", buffering=0) as file:
            begun = time.perf_counter()
            for _ in range(PROBE_NBYTES // READ_NBYTES):
                file.write(data)
            os.fsync(file.fileno())
            seconds = max(time.perf_counter() - begun, 1e-9)
        cold = [one.nbytes_per_s for one in bandwidths([path], [1]) if one.cache == "cold"]
    except OSError:  # it is full
        return None
    finally:
        path.unlink(missing_ok=True)
    return LocalDisk(cold[0], PROBE_NBYTES / seconds) if cold else None


def _largest(paths: Sequence[Path]) -> tuple[Path, int]:
    try:
        files = [(file, file.stat().st_size) for path in paths for file in files_in(path)]
    except OSError as error:
        raise SourceError(
            f"{error.filename}: {error.strerror}, seen from {platform.node()}"
        ) from error
    return max(files, key=lambda file: file[1])


def _at_once(parts: Sequence[Part]) -> tuple[int, float]:
    """Read parts of files at the same time; return the bytes, and the seconds they took."""
    with ThreadPoolExecutor(len(parts)) as pool:
        begun = time.perf_counter()
        nbytes = sum(pool.map(_read_part, parts))
        return nbytes, max(time.perf_counter() - begun, 1e-9)


def _read_part(part: Part) -> int:
    path, offset, nbytes = part
    room = memoryview(bytearray(min(READ_NBYTES, nbytes)))
    done = 0
    end = time.perf_counter() + MOST_S
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while done < nbytes and time.perf_counter() < end:
            got = file.readinto(room[: nbytes - done])
            if not got:
                break
            done += got
    return done


START_S = 60.0
"""How long a process may take to start, which imports anew where it cannot be forked."""
END_S = 2.0
"""How long it may take to end: what it has of the system it gives back by itself."""
TRIAL_S = 0.25
"""Computing goes on with more frames until it has taken this long."""


def analysis_name(analysis: str | Kernel | BlockFunction) -> str:
    """Return what the command line calls an analysis."""
    if isinstance(analysis, str):
        return analysis
    for name, kernel in KERNELS.items():
        if isinstance(kernel, type) and isinstance(analysis, kernel):
            return name
    function = analysis.function if isinstance(analysis, UserKernel) else analysis
    module = getattr(function, "__module__", None) or "module"
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


@dataclass(frozen=True)
class PreparedKernel(Kernel):
    """A kernel that was made ready before, for the same atoms in another layout."""

    ready: Prepared

    def prepare(self, system: System) -> Prepared:  # noqa: ARG002
        """Return what was prepared."""
        return self.ready


def read_only(prepared: Prepared) -> Prepared:
    """Return a kernel that reads what `prepared` reads and computes nothing."""
    return Prepared(_nothing, prepared.atoms, Stack(), prepared.fields)


def _nothing(block: FrameBlock) -> Any:
    return np.zeros((block.n_frames, 1))


@dataclass(frozen=True)
class Probe:
    """What computing takes."""

    t_comp_frame_s: float
    result_nbytes_frame: float
    finished: bool
    """Whether one frame was computed in the time allowed; if not, it takes longer than that."""


def probe(layout: Layout, prepared: Prepared, cap_s: float) -> Probe:
    """Run the analysis on one frame, then on more while time is left, in a process of its own.

    Raises BlockError: the function failed, or did not return one row a frame, or its process died.
    """
    context: Any = multiprocessing.get_context(start_method())
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(theirs, layout, prepared, cap_s), daemon=True)
    with ending_signals_held():
        process.start()
    theirs.close()
    last: Probe | None = None
    try:
        if ours.poll(START_S):
            ours.recv()
        deadline = time.monotonic() + cap_s
        while ours.poll(max(0.0, deadline - time.monotonic())):
            message = ours.recv()
            if isinstance(message, BaseException):
                raise message
            if message is None:
                process.join(END_S)
                break
            last = message
    except EOFError:
        if last is None:
            process.join()
            raise BlockError(
                "the analysis ended its process at the first frame "
                f"(exit code {process.exitcode}); try it with mdio analyze --stop 1"
            ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    return last or Probe(cap_s, 0.0, finished=False)


def _compute(pipe: Connection, layout: Layout, prepared: Prepared, cap_s: float) -> None:
    let_ending_signals_in()
    pipe.send(None)  # it is there
    try:
        # Pickled, a layout leaves the parent's open files behind.
        own = pickle.loads(pickle.dumps(layout))
        for found in _trials(own, prepared, cap_s):
            pipe.send(found)
        pipe.send(None)
    except MdioError as error:
        pipe.send(error)
    except Exception as error:
        name = getattr(prepared.function, "__name__", type(prepared.function).__name__)
        pipe.send(BlockError(f"{name} failed: {type(error).__name__}: {error}"))


def _trials(layout: Layout, prepared: Prepared, cap_s: float) -> Iterator[Probe]:
    """Yield what more and more frames give; each one is read first, untimed."""
    function, n_frames, spent_s = prepared.function, 1, 0.0
    while spent_s < min(TRIAL_S, cap_s / 4):
        n_frames = min(n_frames, layout.info.n_frames)
        block = layout.read(0, n_frames, atoms=prepared.atoms)
        begun = time.perf_counter()
        rows = check_rows(function(block), range(n_frames), function)
        took_s = time.perf_counter() - begun
        spent_s += took_s
        yield Probe(took_s / n_frames, rows.nbytes / n_frames, finished=True)
        if n_frames >= min(layout.info.n_frames, 256) or 4 * took_s > cap_s / 2:
            return
        n_frames *= 4
