"""Let calls of the system fail while trajectories are read: an error of mdio's that names the file.

    python tests/trust/read_faults.py --rounds 2000 --seed 1

Opening, reading and asking for a size fail (input/output error, permission, stale handle), at any
call, for every format and every way to read: `mdio.open`, a Universe, an analysis, a verification,
and all that makes outputs of a source, in one go, by its bytes, with a topology, added to
another or against a damaged one. What is read without an error has to be what is read without a
fault.
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
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import MDAnalysis as mda
import mutants
import numpy as np
import shim

import mdio
from mdio.core.errors import MdioError, OutputError

ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE)
READS = 3
ALL = 1 << 40
ROOT = f"{Path(__file__).parents[2]}/"


def _open(path: Path) -> np.ndarray:
    with mdio.open(path) as layout:
        n_frames = layout.info.n_frames
        return np.append(layout.read(0, n_frames).positions, layout.read(1, 2, [1, 3]).positions)


def _universe(path: Path) -> np.ndarray:
    universe = mda.Universe.empty(1)
    with mdio.open(path) as layout:
        universe = mda.Universe.empty(layout.info.n_atoms)
    universe.load_new(str(path), format="MDIO")
    found = np.array([ts.positions.copy() for ts in universe.trajectory])
    universe.trajectory.close()
    return found


def _write_topology(path: Path) -> None:
    with mdio.open(path) as layout:
        universe = mda.Universe.empty(layout.info.n_atoms, trajectory=True)
    universe.atoms.write(path.with_name("top.pdb"))


def _made(suffix: str, make: Callable[[Path, Path], object], path: Path) -> np.ndarray:
    """Return what is in the output that `make` makes."""
    out = path.parent.parent / "elsewhere" / f"out.{suffix}"
    make(path, out)
    with mdio.open(out) as layout:
        return layout.read(0, layout.info.n_frames).positions


def _with_topology(path: Path, out: Path) -> None:
    mdio.convert(path, out, top=path.with_name("top.pdb"), groups={"a": "index 0:3"}, force=True)


def _append(path: Path, out: Path) -> None:
    with shim.resting():
        mdio.convert(path, out, stop=2, force=True)
    mdio.append(path, out)


def _repair(path: Path, out: Path) -> None:
    with shim.resting():
        mdio.convert(path, out, force=True)
        next(out.rglob("c.0.0.0")).unlink()
    mdio.repair(out, path)


def _analyze(path: Path) -> np.ndarray:
    result = mdio.analyze(path, kernel=lambda block: block.positions.sum(axis=(1, 2)))
    return np.asarray(result.values)


def _verify(path: Path) -> np.ndarray:
    report = mdio.verify(path)
    if not report.ok:
        raise MdioError(f"{path}: {report}")
    return np.zeros(1)


WAYS: dict[str, Callable[[Path], np.ndarray]] = {
    "open": _open,
    "Universe": _universe,
    "analyze": _analyze,
    "verify": _verify,
    "convert": partial(_made, "zarr", partial(mdio.convert, force=True)),
    "convert, h5md": partial(_made, "h5md", partial(mdio.convert, force=True)),
    "convert, native": partial(_made, "trr", partial(mdio.convert, force=True)),
    "convert, topology": partial(_made, "zarr", _with_topology),
    "split": partial(_made, "segments", lambda *both: mdio.split(*both, 2, force=True)),
    "append": partial(_made, "zarr", _append),
    "repair": partial(_made, "zarr", _repair),
}


def one_round(
    whole: Path, base: Path, way: str, truth: dict[tuple[str, Path], tuple], rng: random.Random
) -> str:
    shutil.rmtree(base / "read", ignore_errors=True)
    shutil.rmtree(base / "elsewhere", ignore_errors=True)
    (base / "elsewhere").mkdir()
    shutil.copytree(whole.parent, base / "read")  # without an index
    path = base / "read" / whole.name
    if (way, whole) not in truth:
        shim.fail(ALL, errno.EIO, READS)
        values = WAYS[way](path)
        truth[way, whole] = values, ALL - shim.remaining()
        shim.fail(-1)
        shutil.rmtree(base / "read")
        shutil.copytree(whole.parent, base / "read")
    values, n_calls = truth[way, whole]
    shim.fail(rng.randrange(n_calls), rng.choice(ERRORS), READS)
    try:
        found = WAYS[way](path)
    except MdioError as problem:
        shim.fail(-1)
        assert "/read/" in str(problem), f"no file: {problem!r}"
        assert not isinstance(problem, OutputError), f"not what is wrong: {problem!r}"
        return "told"
    shim.fail(-1)
    assert np.array_equal(found, values, equal_nan=True), "other values"
    return "no difference"


def main() -> int:
    shim.run_preloaded(__file__)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=65)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    seen: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    truth: dict[tuple[str, Path], tuple] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        wholes = [mutants.make_whole(kind, base / str(k)) for k, kind in enumerate(mutants.FORMATS)]
        for path in (path for variants in wholes for path in variants):
            _write_topology(path)
        shim.watch(base / "read")
        for number in range(given.rounds):
            way = list(WAYS)[number // len(wholes) % len(WAYS)]
            variants = wholes[number % len(wholes)]
            rng = random.Random(f"{given.seed} {number}")
            try:
                seen[one_round(rng.choice(variants), base, way, truth, rng)] += 1
            except Exception as error:
                kind = mutants.FORMATS[number % len(wholes)]
                ours = [f for f in traceback.extract_tb(error.__traceback__) if ROOT in f.filename]
                where = f"{ours[-1].filename.partition(ROOT)[2]}:{ours[-1].lineno}"
                failures[f"{way}, {kind}: {error!r} at {where}"[:400]] += 1
            shim.fail(-1)
    many = [f"{count} x {what}" for what, count in failures.items()]
    told = {"rounds": given.rounds, "found": dict(seen), "failures": many}
    print(json.dumps(told, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
