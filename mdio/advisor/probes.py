"""Probes: bandwidths of storage, from memory and disk; the user's analysis on a few frames.

A user's function may fail, return the wrong thing, or take a minute for a frame. So it first runs
in a separate process that can be stopped, on one frame, then on more.
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
from dataclasses import Field, dataclass, fields, is_dataclass
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
    load_kernel,
)
from mdio.analysis.reducers import Stack
from mdio.analysis.system import System
from mdio.core.errors import BlockError, MdioError, OutputError, SourceError
from mdio.core.files.page_cache import drop_cache, files_in
from mdio.core.frames import FrameBlock
from mdio.core.signals import termination_signals_blocked, unblock_termination_signals
from mdio.layouts.base import Layout
from mdio.parallel.pool import start_method

FilePart = tuple[Path, int, int]
"""A file, the first byte, and the number of bytes."""
SHARED_STORAGE_READERS = 16
"""Simultaneous readers that saturate shared storage: as many as the requests that one process has
in flight there (`mdio.core.files.in_flight`)."""
READ_NBYTES = 1 << 20
MAX_READER_NBYTES, MAX_READER_S = 64 << 20, 2.0
"""Limits of each reader of a bandwidth test: bytes, and seconds."""
PROBE_NBYTES = 64 << 20
"""Bytes that are written to and read from a local disk to measure it."""


def free_nbytes(folder: Path, option: str) -> int:
    """Return the free bytes of a folder, which `option` names; raises OutputError: not writable."""
    if not folder.is_dir():
        raise OutputError(f"{folder}: no such folder; make it, or give another {option}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: the folder is not writable; give another {option}")
    return shutil.disk_usage(folder).free


def bandwidths(paths: Sequence[Path], readers: Sequence[int]) -> list[Bandwidth]:
    """Return bytes/s of simultaneous readers, each with its own part of the largest file.

    Each number of readers has its own region: a client of a network file system may keep in
    memory the bytes of earlier reads, even if this process drops them.
    """
    largest, size = _largest_file(paths)
    rates = []
    region = size // max(1, len(readers))
    for number, count in enumerate(readers):
        nbytes_each = min(region // count, MAX_READER_NBYTES)
        if nbytes_each < 1:
            continue
        first = number * region
        parts = [
            (largest, first + reader * (region // count), nbytes_each) for reader in range(count)
        ]
        is_cold = drop_cache(largest) is None
        for cache in ("cold", "warm") if is_cold else ("warm",):
            if not is_cold:
                _read_parts(parts)
            nbytes, seconds = _read_parts(parts)
            rates.append(Bandwidth(count, cache, nbytes / seconds))
    return rates


class WorkerRead(NamedTuple):
    """The bytes that one worker read while all of them did."""

    node: str
    is_cold: bool
    """Whether they came from disk."""
    nbytes: int
    seconds: float


def read_as_worker(paths: Sequence[Path], n_workers: int, number: int) -> WorkerRead:
    """Read worker `number`'s part of the largest file, with `SHARED_STORAGE_READERS` at once."""
    largest, size = _largest_file(paths)
    region = size // n_workers // SHARED_STORAGE_READERS
    first = number * SHARED_STORAGE_READERS
    nbytes = min(region, MAX_READER_NBYTES)
    parts = [(largest, k * region, nbytes) for k in range(first, first + SHARED_STORAGE_READERS)]
    is_cold = drop_cache(largest) is None
    return WorkerRead(platform.node(), is_cold, *_read_parts(parts))


def total_bandwidth(reads: Sequence[WorkerRead]) -> list[Bandwidth]:
    """Return the bandwidth of all workers together; nothing if the file is too small."""
    nbytes = sum(read.nbytes for read in reads)
    if not nbytes:
        return []
    cache = "cold" if all(read.is_cold for read in reads) else "warm"
    seconds = max(read.seconds for read in reads)
    return [Bandwidth(len(reads) * SHARED_STORAGE_READERS, cache, nbytes / seconds)]


def local_disk(folder: Path) -> LocalDisk | None:
    """Return the bandwidth of a disk for one process; None where it cannot be read cold."""
    path = folder / f".mdio-probe-{secrets.token_hex(8)}"
    data = os.urandom(READ_NBYTES)
    try:
        with path.open("xb", buffering=0) as file:
            started_at = time.perf_counter()
            for _ in range(PROBE_NBYTES // READ_NBYTES):
                file.write(data)
            os.fsync(file.fileno())
            seconds = max(time.perf_counter() - started_at, 1e-9)
        cold_rates = [
            bandwidth.nbytes_per_s
            for bandwidth in bandwidths([path], [1])
            if bandwidth.cache == "cold"
        ]
    except OSError:  # it is full
        return None
    finally:
        path.unlink(missing_ok=True)
    return LocalDisk(cold_rates[0], PROBE_NBYTES / seconds) if cold_rates else None


def _largest_file(paths: Sequence[Path]) -> tuple[Path, int]:
    try:
        files = [(file, file.stat().st_size) for path in paths for file in files_in(path)]
    except OSError as error:
        raise SourceError(
            f"{error.filename}: {error.strerror}, seen from {platform.node()}"
        ) from error
    return max(files, key=lambda file: file[1])


def _read_parts(parts: Sequence[FilePart]) -> tuple[int, float]:
    """Read parts of files at the same time; return the bytes, and the seconds they took."""
    with ThreadPoolExecutor(len(parts)) as pool:
        started_at = time.perf_counter()
        nbytes = sum(pool.map(_read_part, parts))
        return nbytes, max(time.perf_counter() - started_at, 1e-9)


def _read_part(part: FilePart) -> int:
    path, offset, nbytes = part
    buffer = memoryview(bytearray(min(READ_NBYTES, nbytes)))
    n_done = 0
    end_s = time.perf_counter() + MAX_READER_S
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while n_done < nbytes and time.perf_counter() < end_s:
            n_read = file.readinto(buffer[: nbytes - n_done])
            if not n_read:
                break
            n_done += n_read
    return n_done


MAX_START_S = 60.0
"""Time limit for a process to start, which imports everything if it cannot be forked."""
MAX_END_S = 2.0
"""Time limit for the process to end; then it is killed."""
MIN_COMPUTE_S = 0.25
"""More frames are computed until computing has taken this long."""


def analysis_name(analysis: str | Kernel | BlockFunction) -> str:
    """Return the name of an analysis on the command line."""
    if isinstance(analysis, str):
        return analysis
    for name in KERNELS:
        if isinstance(analysis, load_kernel(name)):
            return name
    function = analysis.function if isinstance(analysis, UserKernel) else analysis
    module = getattr(function, "__module__", None) or "module"
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


def analysis_settings(kernel: Kernel) -> dict[str, str]:
    """Return the arguments of a kernel that are not the defaults, as Python's `repr`."""
    arguments: tuple[Field[Any], ...] = fields(kernel) if is_dataclass(kernel) else ()
    values = {argument.name: repr(getattr(kernel, argument.name)) for argument in arguments}
    defaults = {argument.name: repr(argument.default) for argument in arguments}
    return {
        name: text
        for name, text in values.items()
        if text != defaults[name] and name not in ("select", "function")
    }


@dataclass(frozen=True)
class PreparedKernel(Kernel):
    """A kernel that is already prepared, for the same atoms in another layout."""

    prepared: Prepared

    def prepare(self, system: System) -> Prepared:  # noqa: ARG002
        """Return the prepared kernel."""
        return self.prepared


def without_computing(prepared: Prepared) -> Prepared:
    """Return a kernel that reads the atoms and fields of `prepared` and computes nothing."""
    return Prepared(_zeros, prepared.atoms, Stack(), prepared.fields)


def _zeros(block: FrameBlock) -> Any:
    return np.zeros((block.n_frames, 1))


@dataclass(frozen=True)
class Probe:
    """Cost of the analysis for a frame."""

    t_comp_frame_s: float
    result_nbytes_frame: float
    finished: bool
    """Whether a frame was computed within the time limit; if not, `t_comp_frame_s` is the limit."""


def probe(layout: Layout, prepared: Prepared, limit_s: float) -> Probe:
    """Run the analysis on one frame, then on more while time remains, in a separate process."""
    context: Any = multiprocessing.get_context(start_method())
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_compute, args=(sender, layout, prepared, limit_s), daemon=True
    )
    with termination_signals_blocked():
        process.start()
    sender.close()
    latest: Probe | None = None
    try:
        if receiver.poll(MAX_START_S):
            receiver.recv()
        deadline = time.monotonic() + limit_s
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            message = receiver.recv()
            if isinstance(message, BaseException):
                raise message
            if message is None:
                process.join(MAX_END_S)
                break
            latest = message
    except EOFError:
        if latest is None:
            process.join()
            raise BlockError(
                "the analysis ended its process at the first frame "
                f"(exit code {process.exitcode}); try it with mdio analyze --stop 1"
            ) from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    return latest or Probe(limit_s, 0.0, finished=False)


def _compute(pipe: Connection, layout: Layout, prepared: Prepared, limit_s: float) -> None:
    unblock_termination_signals()
    pipe.send(None)  # it has started
    try:
        # A pickled layout has none of the parent's open files.
        layout_copy = pickle.loads(pickle.dumps(layout))
        for cost in _costs(layout_copy, prepared, limit_s):
            pipe.send(cost)
        pipe.send(None)
    except MdioError as error:
        pipe.send(error)
    except Exception as error:
        name = getattr(prepared.function, "__name__", type(prepared.function).__name__)
        pipe.send(BlockError(f"{name} failed: {type(error).__name__}: {error}"))


def _costs(layout: Layout, prepared: Prepared, limit_s: float) -> Iterator[Probe]:
    """Yield the cost of computing a frame, from ever more frames; reading is not timed."""
    function, n_frames, total_s = prepared.function, 1, 0.0
    while total_s < min(MIN_COMPUTE_S, limit_s / 4):
        n_frames = min(n_frames, layout.info.n_frames)
        block = layout.read(0, n_frames, atoms=prepared.atoms)
        started_at = time.perf_counter()
        rows = check_rows(function(block), range(n_frames), function)
        compute_s = time.perf_counter() - started_at
        total_s += compute_s
        yield Probe(compute_s / n_frames, rows.nbytes / n_frames, finished=True)
        if n_frames >= min(layout.info.n_frames, 256) or 4 * compute_s > limit_s / 2:
            return
        n_frames *= 4
