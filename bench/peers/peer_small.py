"""chemfiles, xtclib and mdz: what each offers of reading and converting."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

warnings.simplefilter("ignore")
ANGSTROM_PER_NM = 10.0


def versions() -> dict[str, str]:
    found = {}
    for name in ("chemfiles", "xtclib", "mdz"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def chemfiles_read(path: str) -> Callable[[], Any]:
    """Read all frames one by one, and look at the positions (in angstrom)."""
    chemfiles = import_module("chemfiles")

    def run() -> Any:
        with chemfiles.Trajectory(path) as trajectory:
            for _ in range(trajectory.nsteps):
                frame = trajectory.read()
                positions = frame.positions  # a view of the frame
            return np.array(positions)

    return run


def chemfiles_frames(path: str, frames: str) -> Callable[[], Any]:
    """Fetch single frames by their numbers."""
    chemfiles = import_module("chemfiles")
    wanted = np.load(frames).tolist()
    trajectory = chemfiles.Trajectory(path)

    def run() -> Any:
        for number in wanted:
            frame = trajectory.read_step(number)
            positions = frame.positions  # a view of the frame
        return np.array(positions)

    return run


def chemfiles_convert(path: str, out: str) -> Callable[[], Any]:
    """Copy all frames into the format that the suffix of `out` names."""
    chemfiles = import_module("chemfiles")

    def run() -> None:
        with chemfiles.Trajectory(path) as source, chemfiles.Trajectory(out, "w") as target:
            for _ in range(source.nsteps):
                target.write(source.read())

    return run


def xtclib_read(path: str) -> Callable[[], Any]:
    """Read all frames one by one."""
    xtclib = import_module("xtclib")

    def run() -> Any:
        with xtclib.XTCReader(path) as reader:
            for frame in reader:
                last = frame.coords
        return last * ANGSTROM_PER_NM

    return run


def mdz_read(path: str) -> Callable[[], Any]:
    """Read all frames of an mdz file one by one, in one thread."""
    mdz = import_module("mdz")
    mdz.set_num_threads(1)

    def run() -> Any:
        with mdz.open(path) as reader:
            for positions in reader:
                last = positions
            return last * ANGSTROM_PER_NM

    return run


def mdz_frames(path: str, frames: str) -> Callable[[], Any]:
    """Fetch single frames by their numbers, in one thread."""
    mdz = import_module("mdz")
    mdz.set_num_threads(1)
    wanted = np.load(frames).tolist()
    reader = mdz.open(path)

    def run() -> Any:
        for frame in wanted:
            positions = reader[frame]
        return positions * ANGSTROM_PER_NM

    return run


def mdz_convert(path: str, out: str) -> Callable[[], Any]:
    """``mdz.convert`` with its own settings, in one thread."""
    mdz = import_module("mdz")
    mdz.set_num_threads(1)

    def run() -> None:
        mdz.convert(path, out, overwrite=True)

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "chemfiles_read": chemfiles_read,
    "chemfiles_frames": chemfiles_frames,
    "chemfiles_convert": chemfiles_convert,
    "xtclib_read": xtclib_read,
    "mdz_read": mdz_read,
    "mdz_frames": mdz_frames,
    "mdz_convert": mdz_convert,
}
