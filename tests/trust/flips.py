"""Flip bits in every region of every layout: found by verify, or without effect on what is read.

    python tests/trust/flips.py --rounds 5000 --seed 1

A region is a kind of file, and within it the head, the middle or the tail; rounds go through all of
them in turn, at a random byte and bit of each. Whatever is then read must be right or refused, in
every way of reading, whether or not verify finds the flip.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from suites import per_rank
from suites.h5md_cases import make_block, write_h5md

import mdio
from mdio.core.errors import MdioError

N_FRAMES, N_ATOMS = 9, 5600
"""Frames of more than one piece of 64 KiB."""
GROUP = np.arange(20, 900, 7)
CASES = {
    "zarr": ("a.zarr", {"chunk_frames": 4}),
    "zarr, zstd": ("a.zarr", {"chunk_frames": 4, "compression": "zstd"}),
    "zarr, rounded": ("a.zarr", {"chunk_frames": 4, "precision": 0.01}),
    "zarr, auto": ("a.zarr", {"chunk_frames": 4, "precision": "auto"}),
    "h5md": ("a.h5md", {"chunk_frames": 4}),
    "h5md, contiguous": ("a.h5md", {"chunk_frames": 4, "contiguous": True}),
    "h5md, gzip": ("a.h5md", {"chunk_frames": 4, "compression": "gzip:1"}),
    "h5md, rigid": (
        "a.h5md",
        {"chunk_frames": 4, "precision": 0.01, "compression": "rigid"},
    ),
    "h5md, parts": ("a.h5md", {"chunk_frames": 2, "per_rank": True, "workers": 2}),
    "segments of xtc": ("a.segments", {"segments": 2, "container": "xtc"}),
    "segments of trr": ("a.segments", {"segments": 2, "container": "trr"}),
    "segments of dcd": ("a.segments", {"segments": 2, "container": "dcd"}),
    "segments of ncdf": ("a.segments", {"segments": 2, "container": "ncdf"}),
}
WAYS = {
    "all": lambda layout: layout.read(0, N_FRAMES),
    "one frame": lambda layout: layout.read(5, 6),
    "a part": lambda layout: layout.read(3, 8),
    "some atoms": lambda layout: layout.read(1, 9, atoms=[3, 2000, 5599]),
    "the group": lambda layout: layout.read(0, 7, atoms=GROUP),
    "no atoms": lambda layout: layout.read(0, N_FRAMES, atoms=[]),
}


def make(folder: Path) -> dict[str, Path]:
    """Write an output of each kind."""
    source = folder / "source.bin"
    write_h5md(source, make_block(N_FRAMES, N_ATOMS), chunk_frames=4)
    xtc = folder / "source.xtc"
    mdio.convert(source, xtc)
    made = {}
    for number, (name, (out, options)) in enumerate(CASES.items()):
        made[name] = folder / str(number) / out
        made[name].parent.mkdir()
        groups = {} if out == "a.segments" else {"groups": {"some": GROUP}}
        per_rank.convert(xtc if "auto" in name else source, made[name], **options, **groups)
    return made


def region_of(file: str, at: int, nbytes: int) -> str:
    """Return what kind of file it is, numbers left out, and where in it."""
    kind = re.sub(r"c\.[\d.]+$", "c.*", re.sub(r"seg-\d+|\d{4}\.h5md$", "*", file))
    part = "head" if at < min(512, nbytes / 4) else "tail"
    return f"{kind}, {part if at < 512 or at >= nbytes - 512 else 'middle'}"


def places(path: Path, rng: random.Random) -> list[tuple[Path, int]]:
    """Return a byte of each region of an output."""
    found = []
    for file in sorted(path.parent.rglob("*")):
        if file.is_file() and file.stat().st_size:
            n = file.stat().st_size
            spots = {
                rng.randrange(min(n, 512)),
                rng.randrange(n),
                n - 1 - rng.randrange(min(n, 512)),
            }
            found += [(file, at) for at in sorted(spots)]
    return found


def reads(path: Path) -> dict[str, tuple | None]:
    """Return what each way of reading gives, None where it is refused."""
    found: dict[str, tuple | None] = {}
    for name, way in WAYS.items():
        try:
            with mdio.open(path) as layout:
                block = way(layout)
        except MdioError:
            found[name] = None
        else:
            found[name] = (block.positions, block.box, block.time, block.step)
    return found


def same(mine: tuple, theirs: tuple) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(mine, theirs, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    seen: Counter[str] = Counter()
    regions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    failures = []
    with tempfile.TemporaryDirectory() as base:
        made = make(Path(base))
        truth = {name: reads(path) for name, path in made.items()}
        queues: dict[str, list[tuple[Path, int]]] = {name: [] for name in made}
        for number in range(given.rounds):
            name = list(made)[number % len(made)]
            if not queues[name]:
                queues[name] = places(made[name], rng)
                rng.shuffle(queues[name])
            file, at = queues[name].pop()
            good = file.read_bytes()
            data = bytearray(good)
            data[at] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
            region = region_of(str(file.relative_to(made[name].parent)), at, len(good))
            try:
                found = reads(made[name])
                wrong = [
                    way
                    for way, got in found.items()
                    if got is not None and not same(got, truth[name][way])
                ]
                try:
                    told = not mdio.verify(made[name]).ok
                except MdioError:
                    told = True
                refused = None in found.values()
                what = "found" if told else "without effect"
                if wrong or (refused and not told):
                    what = "FAILED"
                    failures.append(f"{name}, {region}, byte {at}: {wrong}, verify {told}")
            except Exception as error:
                what = "FAILED"
                failures.append(f"{name}, {region}, byte {at}: {error!r}"[:400])
            seen[what] += 1
            regions[f"{name}: {region}"][what] += 1
            file.write_bytes(good)
    unseen = {name: dict(n) for name, n in sorted(regions.items()) if n["without effect"]}
    told = {
        "rounds": given.rounds,
        "regions": len(regions),
        "found": dict(seen),
        "without effect in": unseen,
        "failures": failures,
    }
    print(json.dumps(told, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
