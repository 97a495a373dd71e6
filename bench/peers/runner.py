"""A process that times cases of one peer: a request a line in, an answer a line out, all JSON.

``python peers/runner.py peers.peer_mdtraj`` runs in the environment that has mdtraj. Each case is
prepared (imports, opening, topologies) before the clock starts, and what it has prepared is kept
for the next repeat. The answer holds the seconds and a number by which results of peers can be
compared.

With further words, ``MODULE CASE ARGUMENTS TIMES``, it runs that case once and then so often, and
ends: for callgrind, which is told to count the latter alone.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF
from typing import Any

Prepared = Callable[[], Any]
Times = dict[str, float]
EVICTIONS = 5
LIBC = ctypes.CDLL(None)


def clocks() -> Times:
    """Return the time of day, and the CPU time of this process and of those that it has ended."""
    own, children = (resource.getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    user = own.ru_utime + children.ru_utime
    used = user + own.ru_stime + children.ru_stime
    return {"seconds": time.perf_counter(), "cpu_seconds": used, "user_seconds": user}


def between(begun: Times, ended: Times) -> Times:
    """Return what has gone by between two readings of the clocks."""
    return {name: ended[name] - begun[name] for name in begun}


def files_of(path: Path) -> list[Path]:
    """Return the files that `path` is or holds."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def flush(path: Path) -> None:
    """Wait until all that was written to `path` is on the disk."""
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def evict(path: Path) -> bool:
    """Drop the pages of `path` from the page cache, and return whether they are gone."""
    flush(path)
    left = files_of(path)
    for _ in range(EVICTIONS):
        left = [file for file in left if not evicted(file)]
    return not left


def evicted(file: Path) -> bool:
    """Drop the pages of one file, and return whether none is left; some may be in use."""
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size = file.stat().st_size
        if size == 0:
            return True
        # To ask with RWF_NOWAIT would start to read. A private mapping, as ctypes wants to write.
        with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            address = ctypes.c_char.from_buffer(mapped)
            failed = LIBC.mincore(ctypes.byref(address), ctypes.c_size_t(size), pages)
            del address  # the mapping cannot be closed before
            return not failed and not any(page & 1 for page in pages)


def remove(path: Path) -> None:
    """Remove what is there, if anything is."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def count(switch: str) -> None:
    """Tell the callgrind that runs this process to count, ``on`` or ``off``."""
    command = ["callgrind_control", "-i", switch, str(os.getpid())]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def number_of(result: Any) -> float | None:
    """Return the mean of an array, so that results can be compared."""
    if result is None:
        return None
    import numpy as np

    return float(np.mean(result, dtype=np.float64))


class Runner:
    """Answers requests, and keeps what was prepared."""

    def __init__(self, module: str) -> None:
        self.peer = import_module(module)
        self.kept: dict[str, Prepared] = {}
        self.cores = sorted(os.sched_getaffinity(0))

    def prepare(self, request: dict[str, Any]) -> Prepared:
        """Return the case ready to be called."""
        key = json.dumps([request["case"], request["args"]], sort_keys=True)
        if request.get("cold") or key not in self.kept:
            self.kept.pop(key, None)
            self.kept[key] = self.peer.CASES[request["case"]](**request["args"])
        return self.kept[key]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Prepare, time and describe one case."""
        if request.get("forget"):
            self.kept.clear()
            return {}
        # The last of the cores: the first serves more interrupts.
        os.sched_setaffinity(0, self.cores[-request.get("cores", 1) :])
        if "out" in request["args"]:
            remove(Path(request["args"]["out"]))
        case = self.prepare(request)
        cold = evict(Path(request["args"]["path"])) if request.get("cold") else None
        begun = clocks()
        result = case()
        if "out" in request["args"] and not isinstance(result, dict):
            flush(Path(request["args"]["out"]))
        times = between(begun, clocks())
        if isinstance(result, dict):  # it has timed a process of its own
            return {**times, "number": None, **result, "cold": cold}
        return {**times, "number": number_of(result), "cold": cold}


def main() -> int:
    """Serve requests until standard input ends."""
    # Libraries may print: the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = Runner(sys.argv[1])
    if len(sys.argv) > 2:
        case = runner.prepare({"case": sys.argv[2], "args": json.loads(sys.argv[3])})
        case()
        count("on")
        for _ in range(int(sys.argv[4])):
            case()
        count("off")
        return 0
    print(json.dumps({"versions": runner.peer.versions()}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = runner.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the benches, by the names of their folders
    sys.exit(main())
