"""Cut or damage files at random: all frames that nothing happened to are recovered, bit for bit.

    python tests/trust/salvage.py --rounds 5000 --seed 1

XTC, TRR, DCD and NetCDF files are cut, written over, zeroed, or have one bit flipped in them; H5MD
files are left behind by a writer that died, and had flushed some frames. Each is converted with
``--salvage``. What is compared with is read of the whole file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
from MDAnalysisTests.datafiles import DCD, NCDF, TRR, XTC

import mdio

sys.path.insert(0, str(Path(__file__).parents[1]))
from suites.segment_cases import raw_frames

SOURCES = {"xtc": XTC, "trr": TRR, "dcd": DCD, "ncdf": NCDF}
KINDS = (*SOURCES, "h5md")
N_FRAMES, N_ATOMS = 12, 100
FIRST_HEADER = {"xtc": 100, "trr": 200, "dcd": 0, "ncdf": 0}
"""Bytes of the first frame that tell how many atoms there are, and have to be whole."""


def make_sources(folder: Path) -> dict:
    """Make small files; return their bytes, where frames begin and end, and the frames."""
    found = {}
    for kind, source in SOURCES.items():
        path = folder / f"whole.{kind}"
        times = -(-N_FRAMES // 10) if kind in ("xtc", "trr") else 1
        words = {"stop": N_FRAMES, "select": np.arange(N_ATOMS)}
        mdio.convert([source] * times, path, overlap="keep-all", **words)
        sizes = [len(frame) for frame in raw_frames(path)]
        begin = path.stat().st_size - sum(sizes)
        with mdio.open(path) as layout:
            frames = layout.read(0, N_FRAMES).positions
        found[kind] = path.read_bytes(), begin + np.cumsum([0, *sizes]), frames
    return found


def damage(raw: bytes, edges: np.ndarray, first: int, random: np.random.Generator) -> tuple:
    """Cut it, or write over, zero, remove or insert bytes; return it and the frames left whole."""
    data = bytearray(raw)
    begin = int(edges[0]) + first
    at = int(random.integers(begin, len(raw)))
    end = min(at + int(random.integers(1, 2000)), len(raw))
    how = int(random.integers(0, 5))
    if how == 0:
        del data[at:]
        end = len(raw)
    elif how == 1:
        data[at:end] = random.bytes(end - at)
    elif how == 2:
        data[at:end] = bytes(end - at)
    elif how == 3:
        data[at] ^= 1 << int(random.integers(0, 8))
        end = at + 1
    else:  # close to where a frame begins
        at = max(begin, int(random.choice(edges[:-1])) + int(random.integers(-8, 60)))
        end = min(at + 40, len(raw))
        data[at:end] = random.bytes(end - at)
    whole = [k for k in range(N_FRAMES) if edges[k + 1] <= at or edges[k] >= end]
    return bytes(data), whole


def write_and_die(path: Path, frames: np.ndarray, n_flushed: int) -> None:
    """Write frames as a simulation does, flush some, and end without closing the file."""
    child = os.fork()
    if child == 0:
        file = h5py.File(path, "w")
        file.create_group("h5md").attrs["version"] = [1, 1]
        position = file.create_group("particles/all/position")
        shape = (None, *frames.shape[1:])
        value = position.create_dataset("value", (0, *shape[1:]), "f4", chunks=True, maxshape=shape)
        value.attrs["unit"] = "Angstrom"
        rows = {"step": "i8", "time": "f8"}
        series = [position.create_dataset(n, (0,), rows[n], maxshape=(None,)) for n in rows]
        series[1].attrs["unit"] = "ps"
        for number, frame in enumerate(frames):
            for dataset, row in zip((value, *series), (frame, number, 2.0 * number), strict=True):
                dataset.resize(number + 1, axis=0)
                dataset[number] = row
            if number + 1 == n_flushed:
                file.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def is_in(wanted: np.ndarray, found: np.ndarray) -> bool:
    """Return whether all frames of `wanted` are in `found`, in this order, bit for bit."""
    rest = iter(found)
    return all(any(frame.tobytes() == other.tobytes() for other in rest) for frame in wanted)


def make_damaged(folder: Path, kind: str, sources: dict, random: np.random.Generator) -> tuple:
    """Make a file; return it, and the frames that have to be recovered."""
    if kind == "h5md":
        frames = sources["xtc"][2]
        n_flushed = int(random.integers(1, N_FRAMES + 1))
        path = folder / "a.h5md"
        write_and_die(path, frames[: int(random.integers(n_flushed, N_FRAMES + 1))], n_flushed)
        return path, frames[:n_flushed]
    raw, edges, frames = sources[kind]
    data, whole = damage(raw, edges, FIRST_HEADER[kind], random)
    path = folder / f"a.{kind}"
    path.write_bytes(data)
    return path, frames[whole]


def salvaged(path: Path) -> np.ndarray:
    """Return the frames that are recovered of a file."""
    out = path.with_suffix(".zarr")
    mdio.convert(path, out, salvage=True, force=True)
    with mdio.open(out) as layout:
        return layout.read(0, layout.info.n_frames).positions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first, to go on")
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        sources = make_sources(folder)
        for number in range(given.first, given.first + given.rounds):
            kind = KINDS[number % len(KINDS)]
            random = np.random.default_rng((given.seed, number))
            path, wanted = make_damaged(folder, kind, sources, random)
            if not len(wanted):
                seen[f"{kind}: no frame left whole"] += 1
                continue
            try:
                found = salvaged(path)
                assert is_in(wanted, found), f"{len(found)} frames, not all of {len(wanted)}"
                seen[f"{kind}: all"] += 1
                seen["frames"] += len(wanted)
            except Exception as error:
                failures.append(f"round {number} (seed {given.seed}), {kind}: {error!r}"[:500])
    print(json.dumps({"rounds": given.rounds, "found": dict(seen), "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
