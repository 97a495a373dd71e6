"""Kill a conversion in the place of each call of its publication: nothing is missing or mixed.

    python tests/trust/between_calls.py

Publication is what is done from the last look at an output on: names change, files and folders are
flushed and removed. A process is killed (SIGKILL) in the place of its first call, then of its
second, and so on until one ends by itself. What is under the name must verify, and be the former
output or the new one; the next conversion must work and leave nothing of the killed one.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import kills
import MDAnalysis as mda
import shim
from kills import DCD, PSF

import mdio
from mdio.core.files import publish
from mdio.layouts.views.opening import ensemble_members

OLD, NEW, LATER, N_FRAMES = 10, 20, 12, 98
CASES = {
    "ensemble over ensemble": ("ensemble", "ensemble"),
    "ensemble over a file": ("file", "ensemble"),
    "a file over an ensemble": ("ensemble", "file"),
    "a file with a topology over one": ("file", "topology"),
    "a file appended to": ("file", None),
    "an ensemble, the first": (None, "ensemble"),
    "a tree with a topology over one": ("group", "group"),
    "a tree with a topology, the first": (None, "group"),
    "a tree with a topology, again": ("group", "again"),
}
"""How the former output is made, and the new one; None is no output, and appending; after "again",
the next conversion is the same as the killed one."""
KILLED = 5
"""To shim.c: kill the process."""


def in_child(target) -> int:
    """Return the status of a child that calls it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            target()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitpid(child, 0)[1]


class Source(NamedTuple):
    """A trajectory of few atoms: names change in the same calls, however large the files are."""

    path: Path
    top: Path

    def group(self) -> dict:
        return {**kills.CASES["zarr, group"][1], "top": self.top}


def make_source(folder: Path) -> Source:
    made = Source(folder / "few.dcd", folder / "few.pdb")
    atoms = mda.Universe(PSF, DCD).select_atoms("name CA CB")
    atoms.write(made.path, frames="all")
    atoms.write(made.top)
    return made


def convert(source: Source, out: Path, kind: str | None, n_frames: int) -> None:
    storage = mdio.Storage(chunk_frames=4)
    if kind is None:
        mdio.append(source.path, out)
    elif out.suffix == ".zarr":
        kills.convert(out, source.group(), n_frames, source.path)
    elif kind == "ensemble":
        mdio.convert_ensemble({"x": source.path}, out, stop=n_frames, force=True, storage=storage)
    else:
        only = {} if kind == "file" else {"top": source.top, "select": "name CA"}
        mdio.convert(source.path, out, stop=n_frames, force=True, storage=storage, **only)


def n_frames_in(source: Source, out: Path) -> int:
    if out.suffix == ".zarr":
        return kills.look(out, source.group(), source.path)
    (path,) = (ensemble_members(out) or {"": out}).values()
    assert mdio.verify(path).ok
    with mdio.open(path) as layout:
        return layout.info.n_frames


def begin(source: Source, out: Path, case: str) -> None:
    former = CASES[case][0]
    out.parent.mkdir()
    if former is not None:
        convert(source, out, former, OLD)


def one_kill(source: Source, out: Path, case: str, nth: int) -> str | None:
    """Kill in the place of the nth call; return what was found, None if it ended by itself."""
    former, kind = CASES[case]
    rename_into_place = publish.rename_into_place

    def killed(*words, **more) -> None:
        if words[1] == out:  # and no member of an ensemble
            shim.watch(out.parent)
            shim.fail(nth, 0, KILLED)
        rename_into_place(*words, **more)

    def work() -> None:
        publish.rename_into_place = killed
        convert(source, out, kind, NEW)

    status = in_child(work)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    else:
        assert status == 0, "it failed by itself"
    found = None
    if os.path.lexists(out):
        found = n_frames_in(source, out)
    new = N_FRAMES if kind is None else NEW
    allowed = {new, OLD if former is not None else None}
    if kind in ("group", "again"):
        allowed.add(None)
    assert found in allowed, f"{found} frames, expected one of {allowed}"
    later = NEW if kind == "again" else LATER
    again = in_child(lambda: convert(source, out, "ensemble", later))
    assert again == 0, "the next conversion failed"
    names = {path.name for path in out.parent.iterdir()} - {"a.top.pdb", "a.ca.top.pdb"}
    assert names == {out.name}, names
    assert n_frames_in(source, out) == later
    if not os.WIFSIGNALED(status):
        return None
    return {OLD: "former", new: "new", None: "none yet"}[found]


def main() -> int:
    shim.run_preloaded(__file__)
    seen: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as base:
        source = make_source(Path(base))
        gc.freeze()  # what is here already is not looked through in each child
        for case in CASES:
            name = "a.zarr" if CASES[case][1] in ("group", "again") else "a.h5md"
            begin(source, Path(base, case, name), case)
            nth, found = 0, ""
            while found is not None:
                folder = Path(base, "now")
                shutil.copytree(Path(base, case), folder)
                try:
                    found = one_kill(source, folder / name, case, nth)
                except Exception as error:
                    failures.append(f"{case}, call {nth}: {error!r}"[:500])
                    found = None
                if found is not None:
                    seen[f"{case}: {found}"] += 1
                shutil.rmtree(folder)
                # The many files of a former tree are removed one by one: not after each.
                nth += 13 if found == "new" and name == "a.zarr" else 1
    print(json.dumps({"found": dict(seen), "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
