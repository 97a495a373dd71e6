"""Have two runs change one output at once: nothing is lost, and who comes second is told.

    python tests/trust/races.py --rounds 200 --seed 1 --folder /scratch/me

Each round lets two commands loose on one output, at the same moment or a little apart: two that
append, one that appends and one that repairs, replaces (``convert --force``) or follows. One that
fails has to say why, and is run again alone; then the output has to hold what both were to give it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from MDAnalysis.lib.formats.libmdaxdr import TRRFile

import mdio
from mdio.cli.main import main as run_mdio
from mdio.converters.strategies import conversion
from mdio.core.files import publish

N_ATOMS, N_FIRST = 500, 40
PARTS = {"first": (0, 40), "second": (40, 50), "third": (50, 60), "longer": (0, 50), "all": (0, 55)}
LAYOUTS = {"zarr": [], "h5md": [], "segments": []}
KINDS = ("append", "repair", "force", "force twice", "follow")
TOLD = (
    "another run",
    "was replaced",
    "changed while it was read",
    "is missing",
    "no such file",
    "only such an output",
)
OF_DAMAGE = ("is damaged", "have changed since they were written", "give all files")


def write(folder: Path) -> None:
    for name, (begin, end) in PARTS.items():
        with TRRFile(str(folder / f"{name}.trr"), "w") as out:
            for frame in range(begin, end):
                xyz = (np.arange(3 * N_ATOMS).reshape(-1, 3) * 1e-3 + frame).astype("f4")
                box = np.eye(3, dtype="f4") * 9
                out.write(xyz, None, None, box, frame, float(frame), 0.0, N_ATOMS)


class Run:
    """A command in a process of its own, which begins when it is told to.

    `delay_s`: how long after that. `wait_s`: between its work and the exchange of names.
    """

    def __init__(self, words: list[str], delay_s: float, wait_s: float) -> None:
        self.words = words
        ready, self._go = os.pipe()
        self._said, said = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            os.read(ready, 1)
            time.sleep(delay_s)
            rename_into_place = publish.rename_into_place

            def later(*words: Any, **more: Any) -> None:
                time.sleep(wait_s)
                rename_into_place(*words, **more)

            publish.rename_into_place = later  # type: ignore[assignment]
            begin, told = time.time(), io.StringIO()
            state_at = conversion.state_at

            def looked_at(path: Path) -> Any:
                nonlocal begin  # a run replaces what is there when it looks
                begin = time.time()
                return state_at(path)

            if "--force" in words:
                conversion.state_at = looked_at  # type: ignore[attr-defined]
            with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
                try:
                    code = run_mdio(words)
                except SystemExit as error:
                    code = error.code
            text = json.dumps([code, told.getvalue(), begin, time.time()])
            os.write(said, text.encode()[:60000])
            os._exit(0)
        os.close(ready)
        os.close(said)

    def go(self) -> None:
        os.write(self._go, b"!")

    def wait(self) -> None:
        with os.fdopen(self._said, "rb") as file:
            self.code, self.told, self.begin, self.end = json.loads(file.read())
        os.waitpid(self._pid, 0)
        os.close(self._go)


def damage(out: Path) -> None:
    held = [
        path for path in (out, *out.parent.rglob("*")) if path.is_file() and path.suffix != ".json"
    ]
    held = [path for path in held if out in (path, *path.parents)]
    file = max(held, key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 8
    file.write_bytes(data)


def commands(kind: str, folder: Path, out: Path, layout: str) -> list[list[str]]:
    part = {name: str(folder / f"{name}.trr") for name in PARTS}
    append = ["append", part["third"], str(out)]
    force = ["convert", part["longer"], str(out), "--force", *LAYOUTS[layout]]
    other = {
        "append": ["append", part["second"], str(out)],
        "repair": ["repair", str(out), "--against", part["first"]],
        "force": force,
        "force twice": [*force[:1], part["all"], *force[2:]],
        "follow": [
            "convert",
            part["longer"],
            str(out),
            "--follow",
            "--append",
            "--until-idle",
            "0",
        ],
    }[kind]
    return [force if kind == "force twice" else append, other]


def one_round(kind: str, layout: str, folder: Path, source: Path, chance: random.Random) -> str:
    out = folder / f"out.{layout}"
    words = ["convert", str(source / "first.trr"), str(out), "-q", *LAYOUTS[layout]]
    assert run_mdio(words) == 0
    if kind == "repair":
        damage(out)
    runs = [
        Run(one, chance.choice([0, 0, 0.03, 0.1]), chance.choice([0, 0.02, 0.1]))
        for one in commands(kind, source, out, layout)
    ]
    for run in runs:
        run.go()
    for run in runs:
        run.wait()
    told = [run for run in runs if run.code != 0]
    for run in told:
        known = TOLD + OF_DAMAGE * (kind == "repair")
        assert any(text in run.told.lower() for text in known), (kind, layout, run.words, run.told)
    assert len(told) < 2, [run.told for run in told]
    with mdio.open(out) as layout_:
        times = layout_.read(0, layout_.info.n_frames, atoms=[]).time.astype(int).tolist()
    wanted = {
        "append": set(range(60)),
        "repair": {*range(40), *range(50, 60)},
        "force": {*range(60)},
        "follow": set(range(60)),
    }
    if kind == "force twice":
        assert times in (list(range(50)), list(range(55)))
        return "told" if told else "one after the other"
    if not told and kind == "force" and runs[1].begin > runs[0].end:
        return "one after the other"
    for run in told:
        again = ["append", *run.words[1:3]] if kind == "follow" else run.words
        if run.words[0] == "convert" and "--force" in run.words:  # it would replace the other's
            assert set(times) == {*range(40), *range(50, 60)}
            return "told"
        if run.words[0] == "repair":
            again = [*run.words, str(source / "third.trr")]
        assert run_mdio([*again, "-q"]) == 0, again
    with mdio.open(out) as layout_:
        block = layout_.read(0, layout_.info.n_frames)
    assert set(block.time.astype(int)) == wanted[kind], (kind, layout, sorted(block.time))
    np.testing.assert_allclose(block.positions[:, 0, 0], 10 * block.time, rtol=1e-6)
    assert mdio.verify(out).ok
    left = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert not left, left
    return "told" if told else "one after the other"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    found: Counter[str] = Counter()
    failures = []
    cases = [(kind, layout) for kind in KINDS for layout in LAYOUTS]
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        source = Path(made, "source")
        source.mkdir()
        write(source)
        for number in range(args.rounds):
            kind, layout = cases[number % len(cases)]
            folder = Path(made, str(number))
            folder.mkdir()
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    found[one_round(kind, layout, folder, source, chance)] += 1
            except Exception as error:
                failures.append(f"{number} {kind} {layout}: {type(error).__name__}: {error}")
            shutil.rmtree(folder)
    print(json.dumps({"found": found, "failures": failures}))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
