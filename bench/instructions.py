"""Instructions of hot calls, by callgrind: the same on every run, whatever else a machine does.

    python bench/instructions.py                 # a table beside bench/instructions.json
    python bench/instructions.py --record        # and keep the numbers there

Needs valgrind with its headers, and a C compiler. A process does all calls, each twice without and
then once with counting, so that imports and caches of the first call do not count. Threads and
processes of their own are not used. It takes about three minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "instructions.json"
COUNTER = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def calls(folder: Path) -> dict[str, Callable[[], object]]:
    """Return the calls, by name; files are made in `folder`."""
    import MDAnalysis as mda
    import numpy as np
    from MDAnalysisTests.datafiles import DCD, PSF

    import mdio

    ca = mda.Universe(PSF, DCD).select_atoms("name CA").indices
    some = np.arange(1000, 1209)
    with mda.Writer(str(folder / "a.xtc"), 3341) as writer:
        universe = mda.Universe(PSF, DCD)
        for ts in universe.trajectory:
            ts.dimensions = [90, 90, 90, 90, 90, 90]
            writer.write(universe)
    paths = {"dcd": Path(DCD), "xtc": folder / "a.xtc"}
    for name, options in (
        ("zarr", {"precision": "none"}),
        ("integers.zarr", {}),
        ("h5md", {"groups": {"ca": "name CA"}, "top": PSF}),
        ("segments", {"storage": mdio.Storage(segments=4)}),
    ):
        paths[name] = folder / f"out.{name}"
        mdio.convert(folder / "a.xtc", paths[name], **options)
    found: dict[str, Callable[[], object]] = {}
    universes = {}
    for name, path in paths.items():
        universe = universes[name] = mda.Universe(PSF, str(path), format="MDIO")

        def iterate(universe: mda.Universe = universe) -> None:
            for _ in universe.trajectory:
                pass

        def opened(path: Path = path) -> None:
            with mdio.open(path) as layout:
                layout.info  # noqa: B018

        layout = mdio.open(path)
        layout.info  # noqa: B018
        found[f"iterate {name}"] = iterate
        found[f"open {name}"] = opened
        found[f"one frame {name}"] = lambda layout=layout: layout.read(57, 58)
        found[f"selection {name}"] = lambda layout=layout: layout.read(0, 98, atoms=some)
    found["rmsd of a group"] = lambda: mdio.analyze(
        paths["h5md"], top=universes["h5md"], kernel=mdio.RMSD("name CA"), group=None
    )
    found["rmsd of a dcd"] = lambda: mdio.analyze(
        DCD, top=universes["dcd"], kernel=mdio.RMSD("name CA")
    )
    for name, kernel in (
        ("rmsd of all atoms", mdio.RMSD()),
        ("gyration of all atoms", "rgyr"),
        ("superposed fluctuations", mdio.RMSF(superpose=True)),
        ("pairs of c-alphas", mdio.Pairs("name CA")),
    ):
        found[name] = lambda kernel=kernel: mdio.analyze(
            paths["zarr"], top=universes["zarr"], kernel=kernel
        )
    for suffix in ("zarr", "h5md"):
        found[f"convert xtc to {suffix}"] = lambda suffix=suffix: mdio.convert(
            folder / "a.xtc", folder / f"again.{suffix}", force=True
        )
    assert len(ca) == 214
    return found


def count(folder: Path, library: Path) -> None:
    """Do all calls, under callgrind, which writes a file for each."""
    counter = ctypes.CDLL(str(library))
    for name, call in calls(folder).items():
        call()
        call()
        counter.begin()
        call()
        counter.end(name.encode())


def measure() -> dict[str, int]:
    """Return the instructions of each call."""
    for program in ("valgrind", "cc"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed; bench/instructions.py needs it")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "counter.c").write_text(COUNTER)
        library = folder / "counter.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", str(folder / "counter.c"), "-o", str(library)],
            check=True,
        )
        words = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet"]
        words += [f"--callgrind-out-file={folder}/counts", sys.executable, "-W", "ignore"]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([*words, __file__, "--calls", name], check=True, env=environment)
        found = {}
        for path in folder.glob("counts*"):
            text = path.read_text(errors="replace")
            trigger = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
            totals = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            if trigger and totals:
                found[trigger[1]] = int(totals[1])
    return found


def main() -> None:
    """Measure, and print what has changed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="keep the numbers as the baseline")
    parser.add_argument("--calls", nargs=1, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.calls:
        count(args.calls[0], args.calls[0] / "counter.so")
        return
    before = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    now = measure()
    print(f"{'call':32}{'before':>16}{'now':>16}{'ratio':>8}")
    for name in sorted({*before, *now}):
        then, found = before.get(name), now.get(name)
        ratio = f"{found / then:.3f}" if then and found else "-"
        print(f"{name:32}{then or '-':>16}{found or '-':>16}{ratio:>8}")
    if args.record:
        BASELINE.write_text(json.dumps(dict(sorted(now.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
