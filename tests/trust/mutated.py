"""Damaged trajectories of every readable format: a clear error, or what others read of them.

    nice -n 19 python tests/trust/mutated.py --rounds 50000 --seed 1

What mdio reads of a file that was damaged at random is compared with what MDAnalysis reads of it
(netCDF4 for NetCDF-4, zarr-python for Zarr). mdio's own outputs hold checksums: what is read of
them is refused, or is what was written. Many files are read by one process, in which memory and
time are limited; a crash costs the process, and the next file gets a new one. A bare error is one
that is not mdio's, or that does not name the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mutants
import netCDF4
import numpy as np
import zarr
from MDAnalysis.coordinates import DCD, H5MD, TRJ, TRR, XTC
from MDAnalysis.lib.mdamath import triclinic_box
from MDAnalysis.units import get_conversion_factor

import mdio
from mdio.core.errors import MdioError

MEMORY_NBYTES = 4 << 30
SECONDS = 30
BATCH = 250
MAX_FRAMES = 64
READERS = {
    "XTC": XTC.XTCReader,
    "TRR": TRR.TRRReader,
    "DCD": DCD.DCDReader,
    "NetCDF-3": TRJ.NCDFReader,
    "H5MD of others": H5MD.H5MDReader,
}
IN_HDF5 = ("NetCDF-4", "H5MD of others")
"""HDF5's look-up may miss a chunk that its own index lists, and give its fill value instead."""
TYPES = {"positions": "f4", "box": "f4", "time": "f8"}
COLUMNS = ("error", "equal", "unchanged", "others fail", "differ", "bare", "crash", "hang")
WRONG = ("differ", "bare", "crash", "hang")
Digests = list[dict[str, str]]


def digest(**arrays: Any) -> dict[str, str]:
    """Return what two readers of a frame have to agree on; there is but one zero, and one NaN."""
    found = {}
    for name, values in arrays.items():
        array = np.atleast_1d(np.array(values) + 0)
        array[np.isnan(array)] = np.nan
        found[name] = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
    return found


def by_mdio(_: str, path: Path) -> Digests | str:
    """Read as users do: all frames, and some atoms of the last ones."""
    try:
        with mdio.open(path) as layout:
            info = layout.info
            n_frames = min(info.n_frames, MAX_FRAMES)
            block = layout.read(0, n_frames)
            atoms = np.arange(0, info.n_atoms, 2)
            some = layout.read(n_frames // 2, n_frames, atoms)
        whole = block.positions[n_frames // 2 :, atoms]
        if not np.array_equal(some.positions, whole, equal_nan=True):
            return "bare: some atoms are others than among all"
    except MdioError as error:
        return "error" if path.parent.name in str(error) else f"bare: {error!r}"
    except Exception as error:
        return f"bare: {error!r}"
    if info.sparse:  # H5MD has steps for each element, which others do not look at
        has = ~np.isnan(block.positions).all(axis=(1, 2))
        return [digest(positions=frame) for frame in block.positions[has]]
    return [
        digest(positions=block.positions[k], box=block.box[k], time=float(block.time[k]))
        for k in range(n_frames)
    ]


def by_others(kind: str, path: Path) -> Digests | str:
    """Read as far as it goes."""
    found: Digests = []
    try:
        for frame in OTHERS.get(kind, _by_mdanalysis)(kind, path):
            found.append(digest(**frame))
            if len(found) == MAX_FRAMES:
                break
    except Exception as error:
        if not found:
            return repr(error)
    return found


def _by_mdanalysis(kind: str, path: Path) -> Iterator[dict[str, Any]]:
    try:
        reader = READERS[kind](str(path))
    except Exception:
        if kind == "NetCDF-3":  # it reads but one of three versions, and through SciPy
            yield from _by_netcdf4(kind, path)
            return
        raise
    with reader:
        for ts in reader:
            box = np.zeros(6, np.float32) if ts.dimensions is None else ts.dimensions
            yield {"positions": ts.positions, "box": box, "time": float(ts.time)}


def _by_netcdf4(_: str, path: Path) -> Iterator[dict[str, Any]]:
    with netCDF4.Dataset(str(path)) as data:
        data.set_auto_mask(False)
        for number in range(len(data.dimensions["frame"])):
            frame = {"positions": data["coordinates"][number]}
            if "time" in data.variables and data["time"].dimensions == ("frame",):
                frame["time"] = data["time"][number]
            if {"cell_lengths", "cell_angles"} <= set(data.variables):
                box = np.append(data["cell_lengths"][number], data["cell_angles"][number])
                box = box.astype(TYPES["box"])
                frame["box"] = box if box[:3].any() else np.zeros(6)  # as MDAnalysis has it
            yield {name: np.asarray(values, TYPES[name]) for name, values in frame.items()}


def _by_zarr(_: str, path: Path) -> Iterator[dict[str, Any]]:
    group: Any = zarr.open_group(str(path), mode="r")["particles/trajectory"]
    arrays = {
        "positions": ("length", "Angstrom", group["position/value"]),
        "box": ("length", "Angstrom", group["box/edges/value"]),
    }
    if "position/time" in group:
        arrays["time"] = ("time", "ps", group["position/time"])
    factors = {
        name: get_conversion_factor(kind, array.attrs["unit"], unit)
        for name, (kind, unit, array) in arrays.items()
    }
    whole = {name: np.asarray(array[:MAX_FRAMES]) for name, (_, _, array) in arrays.items()}
    for number in range(len(whole["positions"])):
        values = {name: rows[number] for name, rows in whole.items()}
        box = triclinic_box(*np.asarray(values["box"], np.float32))
        box[:3] *= np.float32(factors["box"])
        positions = np.asarray(values["positions"], np.float32)
        frame = {"positions": positions * np.float32(factors["positions"]), "box": box}
        if "time" in values:
            frame["time"] = float(values["time"]) * factors["time"]
        yield frame


OTHERS = {"NetCDF-4": _by_netcdf4, "Zarr v2": _by_zarr, "Zarr v3 of others": _by_zarr}


class Sandbox:
    """A process that reads one damaged file after the other.

    Parameters
    ----------
    read
        Called with the format and the path.
    base
        Where the damaged files are put; removed after each.
    """

    def __init__(self, read: Callable[[str, Path], Any], base: Path) -> None:
        self._read, self._base = read, base

    def results(
        self, kind: str, wholes: Sequence[Path], seed: int, numbers: Sequence[int]
    ) -> dict[int, Any]:
        """Return by number what was read, or "crash" or "hang"."""
        found: dict[int, Any] = {}
        fork = multiprocessing.get_context("fork")
        while left := [number for number in numbers if number not in found]:
            receiving, sending = fork.Pipe(duplex=False)
            process = fork.Process(target=self._run, args=(kind, wholes, seed, left, sending))
            process.start()
            sending.close()
            try:
                for number in left:
                    found[number] = receiving.recv()
            except EOFError:
                process.join()
                late = process.exitcode == -signal.SIGALRM
                found[number] = "hang" if late else f"crash: exit {process.exitcode}"
            process.join()
            receiving.close()
        return found

    def _run(
        self, kind: str, wholes: Sequence[Path], seed: int, numbers: list[int], sending: Any
    ) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        warnings.simplefilter("ignore")
        for number in numbers:
            folder = self._base / f"mutant{number}"
            whole = wholes[number % len(wholes)]
            try:
                path = mutants.mutate(whole, folder, kind, seed, number)
                signal.alarm(SECONDS)
                with np.errstate(all="ignore"):
                    sending.send(self._read(kind, path))
                signal.alarm(0)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def same(mine: Digests, theirs: Digests) -> str:
    """Return in what two readings differ, in as many frames as both have; empty if in nothing."""
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        for name in one.keys() & other.keys():
            if one[name] != other[name]:
                return f"{name} of frame {number}"
    return ""


def judge(kind: str, mine: Any, theirs: Any, whole: Digests) -> str:
    """Return the column of the table, and after a colon what was found."""
    if isinstance(mine, str):
        return mine
    if mine == whole[: len(mine)] and len(mine) <= len(whole) and kind in mutants.OURS:
        return "unchanged" if len(mine) == len(whole) else "differ: frames are missing"
    if kind in mutants.OURS:
        return f"differ: {same(mine, whole) or 'there are more frames'}"
    if isinstance(theirs, str) or not theirs:
        said = str(theirs)[:150] if theirs else "no frames"
        return "unchanged" if mine == whole else f"others fail: {said}"
    what = same(mine, theirs)
    if what and not (kind in IN_HDF5 and mine == whole):
        return f"differ: {what}"
    return "unchanged" if mine == whole else "equal"


def run(
    kind: str, base: Path, seed: int, first: int, rounds: int
) -> tuple[Counter[str], list[str], list[str]]:
    """Damage and read that many files of a format; return counts, and what to look at."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    alone: list[str] = []
    wholes = mutants.make_whole(kind, base / "whole")
    truth = [by_mdio(kind, path) for path in wholes]
    assert not any(isinstance(one, str) for one in truth), truth
    mdio_box, others_box = Sandbox(by_mdio, base), Sandbox(by_others, base)
    for begin in range(first, first + rounds, BATCH):
        numbers = range(begin, min(begin + BATCH, first + rounds))
        mine = mdio_box.results(kind, wholes, seed, numbers)
        doubtful = [n for n in numbers if not isinstance(mine[n], str)]
        theirs = {}
        if kind in mutants.OTHERS:
            theirs = others_box.results(kind, wholes, seed, doubtful)
        for number in numbers:
            whole = truth[number % len(wholes)]
            assert not isinstance(whole, str)
            verdict = judge(kind, mine[number], theirs.get(number), whole)
            column = verdict.partition(":")[0]
            counts[column] += 1
            if column in (*WRONG, "others fail"):
                notes = wrong if column in WRONG else alone
                notes.append(f"{kind}, seed {seed}, {number}: {verdict}"[:600])
    return counts, wrong, alone


def table(counts: dict[str, Counter[str]]) -> str:
    """Return the counts as a table, formats beneath each other."""
    lines = ["| " + " | ".join(("format", *COLUMNS)) + " |", "| --- " * (len(COLUMNS) + 1) + "|"]
    total: Counter[str] = sum(counts.values(), Counter())
    for kind, found in [*counts.items(), ("all", total)]:
        lines.append(f"| {kind} | " + " | ".join(str(found[name]) for name in COLUMNS) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1200, help="of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first, to go on")
    parser.add_argument("--formats", nargs="*", choices=mutants.FORMATS, default=mutants.FORMATS)
    parser.add_argument("--keep", type=Path, help="put one damaged file there, and read it here")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.keep:
        return keep(given.formats[0], given.keep, given.seed, given.first)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as base:
        for number, kind in enumerate(given.formats):
            more = number < given.rounds % len(given.formats)
            rounds = given.rounds // len(given.formats) + more
            found, bad, alone = run(kind, Path(base, str(number)), given.seed, given.first, rounds)
            counts[kind] += found
            wrong += bad
            if not given.json:
                print(kind, dict(found), *bad, *alone, sep="\n", flush=True)
    if given.json:
        print(json.dumps({"found": counts, "failures": wrong}, indent=1))
    else:
        print(table(counts))
    return 1 if wrong else 0


def keep(kind: str, folder: Path, seed: int, number: int) -> int:
    """Make one damaged file, and show what mdio and the other reader say of it."""
    wholes = mutants.make_whole(kind, folder / "whole")
    whole = wholes[number % len(wholes)]
    path = mutants.mutate(whole, folder / f"mutant{number}", kind, seed, number)
    print(path)
    for read in (by_mdio, by_others):
        if read is by_mdio or kind in mutants.OTHERS:
            print(read.__name__, read(kind, path))
    with mdio.open(path) as layout:
        print(layout.info, layout.read(0, min(layout.info.n_frames, 4)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
