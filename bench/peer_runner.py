"""A process that times cases of one peer: a request a line in, an answer a line out, all JSON.

``python peer_runner.py peer_mdtraj`` runs in the environment that has mdtraj. Each case is prepared
(imports, opening, topologies) before the clock starts, and what it has prepared is kept for the
next repeat. The answer holds the seconds and a number by which results of peers can be compared.

With further words, ``MODULE CASE ARGUMENTS TIMES``, it runs that case and ends: for callgrind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Prepared = Callable[[], Any]


def files_of(path: Path) -> list[Path]:
    """Return the files that `path` is or holds."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def evict(path: Path) -> bool:
    """Drop the pages of `path` from the page cache, and return whether they are gone."""
    gone = True
    for file in files_of(path):
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            gone &= not any(cached(handle, at) for at in (0, file.stat().st_size // 2))
        finally:
            os.close(handle)
    return gone


def cached(handle: int, at: int) -> bool:
    """Return whether the byte at `at` could be read without waiting for the disk."""
    try:
        return os.preadv(handle, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def remove(path: Path) -> None:
    """Remove what is there, if anything is."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
        begun = time.perf_counter()
        result = case()
        seconds = time.perf_counter() - begun
        if isinstance(result, dict):  # timed in a process of its own
            return {"seconds": result["seconds"], "number": result.get("number"), "cold": cold}
        return {"seconds": seconds, "number": number_of(result), "cold": cold}


def main() -> int:
    """Serve requests until standard input ends."""
    # Libraries may print: the answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = Runner(sys.argv[1])
    if len(sys.argv) > 2:
        case = runner.prepare({"case": sys.argv[2], "args": json.loads(sys.argv[3])})
        for _ in range(int(sys.argv[4])):
            case()
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
    sys.exit(main())
