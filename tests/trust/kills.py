"""Kill conversions at random points: the former output, the new one, or none, and nothing else.

    python tests/trust/kills.py --rounds 500 --seed 1 --folder /scratch/me

Each round replaces an output (or makes the first of its name), and the conversion is killed with
all its workers (SIGKILL): half of the rounds after a random time, half at a random one of its calls
that Python's audit hooks tell of (files opened, renamed, removed), so that the short end is hit as
often as the long middle. What is then under the name must verify and be the former or the new
output, with its own topology; the next conversion must work and leave nothing of the killed one.
Where there is MPI, three rounds of fourteen kill two ranks at once, at a random call of one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import MDAnalysis as mda
from MDAnalysisTests.datafiles import DCD, PSF

import mdio

sys.path.insert(0, str(Path(__file__).parents[1]))
from suites.outputs import as_options
from suites.under_mpi import CHECKS, MPI, run_under_mpi

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): orphaned workers come to us, so that we see them end."""
CASES = {
    "zarr": ("a.zarr", {}),
    "zarr, workers": ("a.zarr", {"workers": 2}),
    "zarr, group": ("a.zarr", {"top": PSF, "groups": "resid"}),
    "h5md": ("a.h5md", {}),
    "h5md, gzip, workers": ("a.h5md", {"compression": "gzip:1", "workers": 2}),
    "h5md, group": ("a.h5md", {"workers": 2, "chunk_frames": 4, "top": PSF, "groups": "resid"}),
    "segments": ("a.segments", {"segments": 3, "workers": 2}),
    "segments of dcd": ("a.segments", {"segments": 3, "container": "dcd"}),
    "xtc": ("a.xtc", {}),
    "dcd, workers": ("a.dcd", {"workers": 2}),
}
UNDER_MPI = {
    "zarr, ranks": ("a.zarr", {}),
    "h5md, ranks": ("a.h5md", {}),
    "segments, ranks": ("a.segments", {"segments": 3}),
}


def convert(out: Path, options: dict, n_frames: int, source: Path | str = DCD) -> None:
    """Make the output that has `n_frames`; its group, if any, has as many residues."""
    words = dict(options)
    if "groups" in words:
        words["groups"] = {"ca": f"name CA and resid 1:{n_frames}"}
    mdio.convert(source, out, stop=n_frames, force=True, **as_options(words))


def run(target, *, kill_after_s: float | None = None, kill_at: int | None = None) -> tuple:
    """Call `target` in a child with a session of its own, and kill that.

    Return (exit status, seconds, audit events).
    """
    reading, writing = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        code, count = 1, 0
        try:
            os.setsid()
            own = os.getpid()

            def hook(event: str, _: tuple) -> None:
                nonlocal count
                if os.getpid() == own and event.partition(".")[0] in ("open", "os", "shutil"):
                    count += 1
                    if count == kill_at:
                        os.killpg(0, signal.SIGKILL)

            sys.addaudithook(hook)
            target()
            code = 0
        except BaseException:
            traceback.print_exc()
        os.write(writing, str(count).encode())
        os._exit(code)
    os.close(writing)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    seconds = time.monotonic() - begun
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-child, 0)
    with os.fdopen(reading) as pipe:
        count = int(pipe.read() or 0)
    return status, seconds, count


def run_ranks(out: Path, options: dict, n_frames: int, rank: int = 0, kill_at: int = 0) -> tuple:
    """Convert on two ranks, and kill both at a call of one; return as `run` (its calls)."""
    words = ["convert", DCD, str(out), "--mpi", "--force", "--quiet", "--stop", str(n_frames)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    begun = time.monotonic()
    code, _, said = run_under_mpi(2, CHECKS / "faulty/run_killed.py", rank, kill_at, "KILL", *words)
    ended = " calls" in said
    assert ended or kill_at, said
    count = int(said.split(" calls")[0].split()[-1]) if ended else 0
    return code << 8 if ended else signal.SIGKILL, time.monotonic() - begun, count


def look(out: Path, options: dict, source: Path | str = DCD) -> int | None:
    """Return the frames of what is at `out`, None if nothing is; raises if it is not whole."""
    if not os.path.lexists(out):
        return None
    tells = out.suffix not in (".xtc", ".dcd")  # which frames of the source it has
    result = mdio.verify(out, source) if tells else mdio.verify(out)
    assert result.ok, result.bad
    with mdio.open(out) as layout:
        n_frames = layout.info.n_frames
    if "groups" in options:
        n_atoms = len(mda.Universe(str(out.with_name("a.ca.top.pdb")), to_guess=()).atoms)
        assert n_atoms == n_frames, f"{n_frames} frames, but the topology of another output"
    return n_frames


def expected(out: Path, options: dict) -> set[str]:
    names = {out.name, f".{out.name}.mdio-index"}
    if "groups" in options:
        names.add("a.ca.top.pdb")
    return names


def one_round(folder: Path, name: str, typical: dict, rng: random.Random) -> str:
    """Do one round in an empty folder; return what was found after the kill."""
    mpi = name in UNDER_MPI
    out_name, options = UNDER_MPI[name] if mpi else CASES[name]
    out, rank = folder / out_name, rng.randint(0, 1) if mpi else 0
    old, new, later = 10, 20, 12

    def begin(n_frames: int, **how) -> tuple:
        if mpi:
            return run_ranks(out, options, n_frames, rank, **how)
        return run(lambda: convert(out, options, n_frames), **how)

    if (name, rank) not in typical:
        typical[name, rank] = begin(new)[1:]
        shutil.rmtree(folder)
        folder.mkdir()
    had = rng.random() < 0.8
    if had:
        assert begin(old)[0] == 0
    seconds, events = typical[name, rank]
    events = max(events, 1)  # a rank that came too late for any piece made no call
    how = (
        {"kill_after_s": rng.uniform(0, 1.2 * seconds)}
        if not mpi and rng.random() < 0.5
        else {"kill_at": rng.randint(max(1, events - 120) if rng.random() < 0.6 else 1, events)}
    )
    status = begin(new, **how)[0]
    found = look(out, options)
    killed = os.WIFSIGNALED(status)
    allowed = {new} if not killed else {new, old if had else None}
    if killed and "groups" in options:  # an output and its topology do not change in one step
        allowed.add(None)
    assert found in allowed, f"{found} frames after {how}, expected one of {allowed}"
    assert begin(later)[0] == 0, "the next conversion failed"
    assert look(out, options) == later
    left = {path.name for path in folder.iterdir()} - expected(out, options)
    assert not left, f"{sorted(left)} left behind"
    if not killed:
        return "not killed"
    return {old: "former", new: "new", None: "none"}[found] if had else f"first: {found or 'none'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    mda.Universe(PSF, DCD, to_guess=())
    gc.freeze()  # what is here already is not looked through in each child
    seen: Counter[str] = Counter()
    typical: dict = {}
    failures = []
    names = [*CASES, *(UNDER_MPI if MPI is not None else ())]
    with tempfile.TemporaryDirectory(dir=given.folder) as base:
        for number in range(given.rounds):
            name = names[number % len(names)]
            folder = Path(base, str(number))
            folder.mkdir()
            try:
                seen[one_round(folder, name, typical, random.Random(f"{given.seed} {number}"))] += 1
            except Exception as error:
                failures.append(f"round {number} (seed {given.seed}), {name}: {error!r}"[:500])
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"rounds": given.rounds, "found": dict(seen), "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
