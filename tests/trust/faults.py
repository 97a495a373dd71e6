"""Let calls of the system fail while outputs are written: nothing is lost, nothing is damaged.

    python tests/trust/faults.py --rounds 1000 --seed 1

A full disk, a quota, an input/output error, short writes, a file system that becomes read-only or
refuses all renames, at any call that writes, flushes, makes or renames something, for every layout,
over a former output.
"""

from __future__ import annotations

import argparse
import errno
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import kills
import shim

from mdio.core.errors import MdioError

OLD, NEW, LATER = 10, 20, 12
ROOT = f"{Path(__file__).parents[2]}/"
ONCE, ALWAYS, SHORT, RENAMES = 0, 1, 2, 4
LAST = 40
FAULTS = {
    "disk full": (errno.ENOSPC, ONCE),
    "disk stays full": (errno.ENOSPC, ALWAYS),
    "quota": (errno.EDQUOT, ONCE),
    "input/output error": (errno.EIO, ONCE),
    "read-only": (errno.EROFS, ALWAYS),
    "short write": (0, SHORT),
    "no renames": (errno.EROFS, RENAMES),
}
CASES = {
    name: (out, {**options, "workers": 1} if "workers" in options else options)
    for name, (out, options) in kills.CASES.items()
}
"""In one process, in which calls can be counted."""


def one_round(folder: Path, name: str, fault: str, calls: dict, rng: random.Random) -> str:
    out, options = CASES[name]
    error, how = FAULTS[fault]
    if name not in calls:
        shim.fail(1 << 40)
        kills.convert(folder / out, options, NEW)
        kills.convert(folder / out, options, NEW)
        calls[name] = (1 << 40) - shim.remaining()
        shutil.rmtree(folder)
        folder.mkdir()
    shim.fail(-1)
    kills.convert(folder / out, options, OLD)
    # The short end, where names change, is met as often as all that comes before it.
    n_calls = calls[name] // 2
    first = max(0, n_calls - LAST) if rng.random() < 0.5 else 0
    after = rng.randrange(6) if how == RENAMES else rng.randrange(first, n_calls)
    shim.fail(after, error, how)
    said = None
    try:
        kills.convert(folder / out, options, NEW)
    except (MdioError, OSError) as problem:
        said = problem
    fired = shim.fired()
    shim.fail(-1)
    found = kills.look(folder / out, options)
    # The last call flushes the folder: if that fails, the new output is there, but perhaps not yet
    # on disk, and an error says so.
    assert found in ({NEW} if said is None else {OLD, NEW}), f"{found} frames after {said!r}"
    # What `--resume` would go on with, or could not be removed, has names with a dot in front.
    left = {path.name for path in folder.iterdir()} - kills.expected(folder / out, options)
    assert all(name.startswith(".") for name in left), f"{sorted(left)} left behind"
    kills.convert(folder / out, options, LATER)
    assert kills.look(folder / out, options) == LATER
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".mdio-index-")}
    left = there - kills.expected(folder / out, options)
    assert not left, f"{sorted(left)} left behind by the next one"
    if not fired:
        return "none happened"
    if said is None:
        return f"went on after {fault}, whole"
    if not isinstance(said, MdioError):
        raise said  # in the system's words, which name no file
    return f"told, {'former kept' if found == OLD else 'new one in place'}"


def main() -> int:
    shim.run_preloaded(__file__)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=66)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    failures = []
    calls: dict = {}
    kills.mda.Universe(kills.PSF, kills.DCD, to_guess=())
    with tempfile.TemporaryDirectory() as base:
        shim.watch(Path(base))
        for number in range(given.rounds):
            name = list(CASES)[number % len(CASES)]
            fault = list(FAULTS)[number // len(CASES) % len(FAULTS)]
            folder = Path(base, str(number))
            folder.mkdir()
            try:
                rng = random.Random(f"{given.seed} {number}")
                seen[one_round(folder, name, fault, calls, rng)] += 1
            except Exception as error:
                ours = [f for f in traceback.extract_tb(error.__traceback__) if ROOT in f.filename]
                where = f"{ours[-1].filename.partition(ROOT)[2]}:{ours[-1].lineno}"
                what = f"round {number} (seed {given.seed}), {name}, {fault}, at {where}"
                failures.append(f"{what}: {error!r}"[:500])
            shim.fail(-1)
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"rounds": given.rounds, "found": dict(seen), "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
