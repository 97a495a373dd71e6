"""What storage gives: bytes/s to one and several readers, from memory and from disk."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mdio.advisor.measure.measurements import Bandwidth, LocalDisk
from mdio.core.errors import OutputError, SourceError
from mdio.core.files.page_cache import drop_cache, files_in
from mdio.layouts.striping.file_systems import get_stripe

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


def stripe_of(path: Path) -> str | None:
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


def bandwidth_of(shares: Sequence[Share]) -> list[Bandwidth]:
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
