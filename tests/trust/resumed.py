"""End conversions at random points and go on with them: the output is as if nothing had happened.

    python tests/trust/resumed.py --rounds 200 --seed 1 --folder /scratch/me

Each round ends a conversion once, twice or three times (SIGKILL at a random one of its calls or
after a random time, SIGTERM, Ctrl-C, a full disk after a random number of pieces), each time with
another number of workers, or of ranks of MPI if there is one. The last run is left alone. Its
output is compared with that of a conversion that was never ended: every byte of segments, Zarr and
native files but uuid and time of creation, which are those of the first run; of HDF5, every
dataset and attribute.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import h5py
import numpy as np
from kills import DCD, PSF, SUBREAPER, as_options, ctypes, run
from stopping import stop
from suites.under_mpi import patience

import mdio
from mdio.core.errors import OutputError
from mdio.core.files.journal import find_unfinished
from mdio.layouts.h5md.file import FILTER_ID

ROOT = Path(__file__).resolve().parents[2]
MPI = ROOT / ".venv-mpi" / "bin"
CASES = {
    "zarr": ("a.zarr", {"chunk_frames": 4}),
    "zarr, packed": ("a.zarr", {"precision": 0.01, "chunk_frames": 4}),
    "zarr, group": ("a.zarr", {"top": PSF, "groups": {"ca": "name CA"}, "chunk_frames": 2}),
    "h5md": ("a.h5md", {}),
    "h5md, contiguous": ("a.h5md", {"contiguous": True}),
    "segments, copied": ("a.segments", {"segments": 9}),
    "segments of xtc": ("a.segments", {"segments": 3, "container": "xtc"}),
    "segments of trr": ("a.segments", {"segments": 4, "container": "trr"}),
    "h5md, gzip": ("a.h5md", {"compression": "gzip:1", "chunk_frames": 4}),
    "h5md, rigid": ("a.h5md", {"precision": 0.01, "compression": "rigid", "chunk_frames": 4}),
    "h5md, rounded": ("a.h5md", {"precision": 0.01, "top": PSF, "groups": {"ca": "name CA"}}),
    "h5md, mpio": ("a.h5md", {"mpio": "independent", "chunk_frames": 4}),
    "h5md, collective": ("a.h5md", {"mpio": "collective", "chunk_frames": 4}),
    "h5md, collective, gzip": (
        "a.h5md",
        {"mpio": "collective", "compression": "gzip:1", "chunk_frames": 4},
    ),
    "zarr, appended": ("a.zarr", {"append": True}),
    "segments, appended": ("a.segments", {"append": True}),
    "h5md, appended": ("a.h5md", {"append": True}),
    "h5md, gzip, appended": ("a.h5md", {"append": True}),
    "xtc": ("a.xtc", {}),
    "dcd": ("a.dcd", {"step": 2}),
    "ncdf": ("a.ncdf", {}),
}
BEGUN = {
    "zarr, appended": {"chunk_frames": 4},
    "segments, appended": {"segments": 3},
    "h5md, appended": {"chunk_frames": 4},
    "h5md, gzip, appended": {"compression": "gzip:1", "chunk_frames": 4},
}
"""Outputs of the first frames, to which the others are added."""
N_BEGUN = 30
OWN = ("uuid", "created", "manifest_crc32c", "mdio/manifest")
"""What two outputs of the same differ in."""


def words_of(options: dict) -> list[str]:
    """Return options as the command line has them."""
    words = []
    for name, value in options.items():
        option = {"top": "-s", "groups": "--group"}.get(name, "--" + name.replace("_", "-"))
        if name == "mpio":
            option, value = "--collective" if value == "collective" else "--mpio", True
        values = [f"{k}={v}" for k, v in value.items()] if name == "groups" else [str(value)]
        words += [option] if value is True else [word for v in values for word in (option, v)]
    return words


def build_manifest(path: Path) -> dict:
    if path.suffix == ".h5md":
        with h5py.File(path) as file:
            return json.loads(bytes(np.asarray(file["mdio/manifest"]).tobytes()))
    if path.suffix == ".zarr":
        return json.loads((path / "zarr.json").read_text())["attributes"]["mdio"]
    return json.loads((path / "manifest.json").read_text())


def held(item: h5py.Dataset) -> list[bytes]:
    """Return the numbers of a dataset, or its chunks where h5py has no filter for them."""
    if str(FILTER_ID) not in item._filters:
        return [np.asarray(item).tobytes()]
    return [item.id.read_direct_chunk([s.start for s in at])[1] for at in item.iter_chunks()]


def told(path: Path) -> dict[str, object]:
    """Return all that an output holds but what is its own."""
    found: dict[str, object] = {}
    if path.suffix == ".h5md":

        def note(name: str, item) -> None:
            found[f"{name} attributes"] = {k: str(v) for k, v in item.attrs.items()}
            # Compressed chunks lie in the order in which they came.
            placed = name.endswith("/offset") and f"{name[:-6]}nbytes" in file
            if isinstance(item, h5py.Dataset) and name not in OWN and not placed:
                found[name] = (str(item.dtype), item.shape, *held(item))

        with h5py.File(path) as file:
            file.visititems(note)
    else:
        files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        of_manifest = {path / "zarr.json", path / "manifest.json"}
        for file in files:
            if not file.name.endswith("mdio-index") and file not in of_manifest:
                found[str(file.relative_to(path))] = file.read_bytes()
        if path.is_file():
            return found
    manifest = build_manifest(path)
    found["manifest"] = {key: value for key, value in manifest.items() if key not in OWN}
    return found


def leftover(folder: Path) -> dict | None:
    """Return what the journal of an earlier run says first, if it has stored anything."""
    for path in folder.glob(".*.journal"):
        left = find_unfinished(path.with_suffix(".tmp"))
        if left is not None:
            return dict(left.values)
    return None


class Rounds:
    """Rounds, and what is the same in all of them."""

    def __init__(self, rng_of, base: Path) -> None:
        self.rng_of = rng_of
        self.begun = base
        self.whole: dict[str, dict] = {}
        self.typical: dict[str, tuple] = {}
        self.seen: Counter[str] = Counter()

    def convert(self, out: Path, options: dict, how: str, after: int, flush_s: float, **words):
        """Return a function that converts in a child."""

        def work() -> None:
            stop(how, after, flush_s)
            mdio.convert(DCD, out, **as_options(options), **words)

        return work

    def begin(self, out: Path, case: str) -> None:
        """Make the output to which frames are added, if any: the same one each time."""
        if case in BEGUN:
            kept = self.begun / case
            if not kept.exists():
                kept.mkdir(parents=True)
                mdio.convert(DCD, kept / out.name, stop=N_BEGUN, **as_options(BEGUN[case]))
            shutil.copytree(kept, out.parent, dirs_exist_ok=True)

    def is_done(self, out: Path, case: str) -> bool:
        if case not in BEGUN:
            return out.exists()
        with mdio.open(out) as layout:
            return layout.info.n_frames > N_BEGUN

    def under_mpi(self, out: Path, options: dict, n_ranks: int, how: str, after: int) -> int:
        stopping = Path(__file__).with_name("stopping.py")
        words = ["convert", DCD, str(out), "--mpi", "--resume", "--quiet", *words_of(options)]
        done = subprocess.run(
            [
                MPI / "mpiexec",
                "-n",
                str(n_ranks),
                MPI / "python",
                stopping,
                how,
                str(after),
                *words,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | patience(),
            check=False,
        )
        assert how != "never" or done.returncode == 0, done.stderr
        return done.returncode

    def end(self, out: Path, options: dict, rng: random.Random, case: str) -> None:
        """Go on, or begin, and end that."""
        how = rng.choice(["kill", "term", "int", "full", "event", "time"])
        after, flush_s = rng.randint(1, 9), rng.choice([0.001, 0.01, 30.0])
        self.seen[how] += 1
        work = self.convert(
            out,
            options,
            "never" if how in ("event", "time") else how,
            after,
            flush_s,
            resume=True,
            workers=rng.randint(1, 3),
        )
        seconds, events = self.typical[case]
        limits = {
            "event": {"kill_at": rng.randint(events // 2, events)},
            "time": {"kill_after_s": rng.uniform(0, 1.2 * seconds)},
        }
        run(work, **limits.get(how, {}))

    def round(self, folder: Path, number: int) -> None:
        case = list(CASES)[number % len(CASES)]
        rng = self.rng_of(number)
        name, options = CASES[case]
        out = folder / name
        by_mpi = "mpio" in options
        if case not in self.whole:
            self.begin(out, case)
            if by_mpi:
                self.under_mpi(out, options, 2, "never", 0)
            else:
                work = self.convert(out, options, "never", 0, 0.0, workers=2)
                status, *self.typical[case] = run(work)
                assert status == 0
            self.whole[case] = told(out)
            shutil.rmtree(folder)
            folder.mkdir()
        first = None
        self.begin(out, case)
        mpi = by_mpi or (MPI.exists() and number % 5 == 0)
        for _ in range(rng.randint(1, 3)):
            if by_mpi or (mpi and rng.random() < 0.3):
                self.seen["under MPI"] += 1
                self.under_mpi(out, options, 2, rng.choice(["kill", "term", "full"]), 3)
            else:
                self.end(out, options, rng, case)
            if self.is_done(out, case):
                self.seen["came to its end"] += 1
                if not by_mpi and case not in BEGUN:
                    convert = self.convert(out, options, "never", 0, 0.0, force=True)
                    assert run(convert)[0] == 0, "the next conversion failed"
                break
            said = leftover(folder)
            if said is None:
                self.seen["nothing to go on with"] += 1
            elif first is None:
                first = said["uuid"]
                words = {k: v for k, v in options.items() if k != "mpio"}
                with contextlib.suppress(OutputError):
                    mdio.convert(DCD, out, **as_options(words))
                    raise AssertionError("a leftover was passed over without a word")
            else:
                assert said["uuid"] == first, "another output was begun"
        went_on = not self.is_done(out, case)
        if went_on:
            self.seen["gone on with" if first else "begun anew"] += 1
            if mpi:
                self.seen["gone on with under MPI"] += 1
                self.under_mpi(out, options, rng.randint(1, 3), "never", 0)
            else:
                work = self.convert(out, options, "never", 0, 0.0, resume=True, workers=2)
                assert run(work)[0] == 0, "it was not gone on with"
        found = told(out)
        differ = {k for k in {*found, *self.whole[case]} if found.get(k) != self.whole[case].get(k)}
        assert not differ, f"{sorted(differ)[:5]} differ"
        if went_on and first is not None and "manifest" in found:
            assert build_manifest(out)["uuid"] == first, "it is not the output that was begun"
        if case in BEGUN:  # nothing more can be added: another output tidies up
            mdio.convert(DCD, out, stop=9, force=True)
        left = {p.name for p in folder.iterdir() if "mdio-index" not in p.name}
        wanted = {name} | ({"a.ca.top.pdb"} if "groups" in options else set())
        assert left == wanted, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=len(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this round alone")
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have had them ignored
        signal.signal(
            number, {signal.SIGINT: signal.default_int_handler}.get(number, signal.SIG_DFL)
        )
    failures = []
    gc.freeze()  # what is here already is not looked through in each child
    with tempfile.TemporaryDirectory(dir=given.folder) as base:
        rounds = Rounds(lambda number: random.Random(f"{given.seed} {number}"), Path(base, "begun"))
        for number in range(given.rounds) if given.only is None else [given.only]:
            folder = Path(base, str(number))
            folder.mkdir()
            try:
                rounds.round(folder, number)
            except Exception as error:
                case = list(CASES)[number % len(CASES)]
                failures.append(f"round {number} (seed {given.seed}), {case}: {error!r}"[:600])
                print(failures[-1], file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    counts = dict(sorted(rounds.seen.items()))
    print(json.dumps({"rounds": given.rounds, "seen": counts, "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
