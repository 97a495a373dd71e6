"""What the machine itself does with the bytes of a conversion: processes that only write.

Each of N processes writes its share into a new file of its own in the folder, with plain ``write``
calls of 4 MiB from memory that is there already, 32 MiB one after the other: as much as a shard
has, so that no more of it is in the processor's cache than of what a conversion has just decoded.
New pages of the cache cost what they cost the machine, and what a conversion of raw frames does
besides, it has to do in the time that is left.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

WRITE_NBYTES = 4 << 20
SOURCE_NBYTES = 32 << 20


def _write(path: Path, nbytes: int, data: memoryview, sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        done = 0
        while done < nbytes:
            at = done % len(data)
            done += os.write(fd, data[at : at + min(WRITE_NBYTES, nbytes - done)])
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _child(path: Path, nbytes: int, data: memoryview, sync: bool, go: int) -> None:
    """Write when the parent closes its end of the pipe; never return."""
    code = 1
    try:
        os.read(go, 1)
        _write(path, nbytes, data, sync)
        code = 0
    finally:
        os._exit(code)


def control(folder: Path, n_processes: int, nbytes: int, *, sync: bool) -> dict[str, float]:
    """Write `nbytes` from `n_processes` at once, and remove what was written.

    Parameters
    ----------
    folder
        Where conversions write too.
    n_processes, nbytes
        Each process writes ``nbytes / n_processes``.
    sync
        Whether files are flushed to the disk, as those of the layout are.

    Returns
    -------
    dict
        ``write_s`` from the first to the last byte; ``user_s`` and ``sys_s`` of all processes.
    """
    data = memoryview(bytearray(os.urandom(SOURCE_NBYTES)))
    paths = [folder / f"mpi-scaling-control-{n}" for n in range(n_processes)]
    go, gate = os.pipe()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = []
    try:
        for path in paths:
            pid = os.fork()
            if pid == 0:
                os.close(gate)
                _child(path, nbytes // n_processes, data, sync, go)
            children.append(pid)
        begun = time.perf_counter()
        os.close(gate)
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        seconds = time.perf_counter() - begun
    finally:
        os.close(go)
        for path in paths:
            path.unlink(missing_ok=True)
    if any(codes):
        raise OSError(f"{folder}: the control could not write {nbytes} bytes")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "write_s": seconds,
        "user_s": after.ru_utime - before.ru_utime,
        "sys_s": after.ru_stime - before.ru_stime,
    }
