"""Cut the power at random points of conversions: the former output or the new one, whole.

    python tests/trust/power_cuts.py --rounds 300 --seed 1

A library that is preloaded records all that a conversion asks of the file system. The disk after a
cut is then made from any beginning of that record: what was not flushed may be there or not, each
write and each change of a name by itself (renames as a whole), in any order, writes in part.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import kills
import shim

from mdio.core.files import locks, replacing

SECTOR_NBYTES = 512
OLD, NEW, LATER = 10, 20, 12


@dataclass
class File:
    flushed: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(place, data), or (size, None)."""


@dataclass
class Folder:
    entries: dict[str, File | Folder | None] = field(default_factory=dict)
    """As programs see them."""
    flushed: dict[str, File | Folder | None] = field(default_factory=dict)


Change = tuple[Folder, str, "File | Folder | None"]


def apply(data: bytearray, at: int, piece: bytes | None) -> None:
    if piece is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
    else:
        data.extend(bytes(max(0, at + len(piece) - len(data))))
        data[at : at + len(piece)] = piece


class Disk:
    """What is on it, and what is on the way there."""

    def __init__(self, folder: Path) -> None:
        self.root = self._load(folder)
        self.changes: list[tuple[bool, list[Change]]] = []

    def _load(self, path: Path) -> Folder:
        there = {
            one.name: self._load(one) if one.is_dir() else File(bytearray(one.read_bytes()))
            for one in path.iterdir()
        }
        return Folder(dict(there), dict(there))

    def _find(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.split("/")
        at = self.root
        for one in folders:
            at = at.entries[one]
        return at, name

    def _get(self, path: str) -> File | Folder | None:
        if not path:
            return self.root
        try:
            folder, name = self._find(path)
        except (KeyError, AttributeError):
            return None  # open, and removed meanwhile
        return folder.entries.get(name)

    def _change(self, *changes: Change) -> None:
        for folder, name, what in changes:
            folder.entries[name] = what
        self.changes.append((False, list(changes)))

    def do(self, what: str, a: str, b: str, at: int, data: bytes) -> None:
        one = self._get(a)
        if what == "write" and isinstance(one, File):
            one.pending.append((at, data))
        elif what == "size" and isinstance(one, File):
            one.pending.append((at, None))
        elif what == "sync" and isinstance(one, File):
            for piece in one.pending:
                apply(one.flushed, *piece)
            one.pending.clear()
        elif what == "sync folder":
            self.changes = [
                (done or any(folder is one for folder, *_ in changes), changes)
                for done, changes in self.changes
            ]
        elif what in ("create", "folder") and one is None:
            self._change((*self._find(a), File() if what == "create" else Folder()))
        elif what == "remove":
            self._change((*self._find(a), None))
        elif what == "link":
            self._change((*self._find(b), one))
        elif what == "rename":
            self._change((*self._find(b), one), (*self._find(a), None))
        elif what == "exchange":
            self._change((*self._find(b), one), (*self._find(a), self._get(b)))

    def cut(self, rng: random.Random, target: Path) -> None:
        """Make in `target` what is on the disk when power comes back."""
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for done, changes in self.changes:
            if done or rng.random() < share:
                for folder, name, what in changes:
                    folder.flushed[name] = what
        self._write(self.root, target, rng)

    def _write(self, folder: Folder, target: Path, rng: random.Random) -> None:
        target.mkdir(exist_ok=True)
        share = rng.choice([0.0, 0.5, 1.0])
        for name, what in folder.flushed.items():
            if isinstance(what, Folder):
                self._write(what, target / name, rng)
            elif what is not None:
                data = bytearray(what.flushed)
                for at, piece in what.pending:
                    if rng.random() < share:
                        if piece and rng.random() < 0.2:
                            piece = piece[
                                : SECTOR_NBYTES * rng.randint(0, len(piece) // SECTOR_NBYTES)
                            ]
                        apply(data, at, piece)
                (target / name).write_bytes(data)


def steps_of(log: Path) -> list[tuple[str, str, str, int, bytes]]:
    """Return what was recorded."""
    steps = []
    with log.open("rb") as file:
        while line := file.readline():
            what, a, b, at, nbytes = line.decode().rstrip("\n").split("\t")
            steps.append((what, a, b, int(at), file.read(int(nbytes))))
    return steps


def record(base: Path, name: str, had: bool) -> tuple[Path, list]:
    """Convert once, over a former output or none; return the folder before it, and the record."""
    out, options = kills.CASES[name]
    folder, before, log = (base / one for one in ("work", "before", "log"))
    folder.mkdir(parents=True)
    if had:
        assert kills.run(lambda: kills.convert(folder / out, options, OLD))[0] == 0
    kills.shutil.copytree(folder, before)

    def watched() -> None:
        shim.watch(folder, log)
        kills.convert(folder / out, options, NEW)

    assert kills.run(watched)[0] == 0
    return before, steps_of(log)


def one_round(recorded, folder: Path, name: str, had: bool, rng: random.Random) -> str:
    """Cut the power once, see what is there, and convert again."""
    out, options = kills.CASES[name]
    before, steps = recorded(name, had)
    n_done = rng.choice(
        [rng.randint(0, len(steps)), rng.randint(max(0, len(steps) - 60), len(steps))]
    )
    disk = Disk(before)
    for step in steps[:n_done]:
        disk.do(*step)
    disk.cut(rng, folder)
    found = kills.look(folder / out, options)
    allowed = {NEW} if n_done == len(steps) else {NEW, OLD if had else None}
    back = ""
    if found is None and had and any(path.suffix == ".old" for path in folder.iterdir()):
        replacing.clean_up([folder / out])
        found, back = kills.look(folder / out, options), ", aside"
    assert found in allowed, f"{found} frames after {n_done} of {len(steps)}, expected {allowed}"
    kills.convert(folder / out, options, LATER)
    assert kills.look(folder / out, options) == LATER
    # What is cached of a temporary (its frame index) may stay: it is never taken for another's.
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".mdio-index-")}
    left = there - kills.expected(folder / out, options)
    assert not left, f"{sorted(left)} left behind"
    if found is None:
        return "first: none"
    return ({OLD: "former", NEW: "new"}[found] if had else "first: new") + back


def main() -> int:
    shim.run_preloaded(__file__)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = list(kills.CASES)
    seen: Counter[str] = Counter()
    failures = []
    kills.mda.Universe(kills.PSF, kills.DCD, to_guess=())
    locks.STALE_S = 2.0  # a lock whose contents were not flushed names nobody, and is waited for
    with tempfile.TemporaryDirectory() as base:
        recorded = functools.cache(
            lambda name, had: record(Path(base, f"{names.index(name)}-{had}"), name, had)
        )
        for number in range(given.rounds):
            name, had = names[number % len(names)], number // len(names) % 3 != 0
            folder = Path(base, f"cut-{number}")
            try:
                rng = random.Random(f"{given.seed} {number}")
                seen[one_round(recorded, folder, name, had, rng)] += 1
            except Exception as error:
                failures.append(
                    f"round {number} (seed {given.seed}), {name}, {had}: {error!r}"[:500]
                )
            kills.shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"rounds": given.rounds, "found": dict(seen), "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
