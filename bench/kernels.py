"""What each small kernel costs: native code, NumPy, and what peers do for the same.

Adenylate kinase (3,341 atoms, 98 frames of real motion, five times over); microseconds a frame,
each implementation in turn, minimum and median of the repeats. One core, everything in memory.

    python bench/kernels.py [--json] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from measuring import in_turn, provenance, summary
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.kernels import backend, dihedrals

sys.path.append(str(Path(__file__).parents[1] / "tests"))
plain = import_module("oracles.plain")

Cases = dict[str, Callable[[], Any]]
N_TILES = 5
STEP = 0.01
PRECISION = 1000.0
N_ANGLES = 424


def adk() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]:
    """Return positions, the indices of CA atoms, and their masses."""
    import MDAnalysis as mda
    from MDAnalysisTests.datafiles import DCD, PSF

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(PSF, DCD)
        positions = universe.trajectory.timeseries(order="fac")
    atoms = universe.select_atoms("name CA")
    return np.tile(positions, (N_TILES, 1, 1)), atoms.indices.astype(np.int64), atoms.masses


def sides(call: Callable[[], Any]) -> Cases:
    """Return `call` as native code and as NumPy."""

    def with_kernels(chosen: Any) -> Callable[[], Any]:
        def run() -> None:
            before, backend.module = backend.module, chosen
            call()
            backend.module = before

        return run

    return {"native": with_kernels(backend.module), "NumPy": with_kernels(plain)}


def cases() -> tuple[int, dict[str, Cases]]:
    """Return the number of frames, and for each question who answers it."""
    from MDAnalysis.analysis import rms
    from MDAnalysis.lib import distances, qcprot

    positions, atoms, masses = adk()
    n_frames, n_atoms = positions.shape[:2]
    out, some = np.empty_like(positions), np.empty((n_frames, atoms.size, 3), np.float32)
    big_endian = positions.astype(">f4")
    records = np.zeros((n_frames, 3, n_atoms + 2), np.float32)  # as in DCD, markers at both ends
    planar = records[:, :, 1:-1]
    planar[...] = positions.transpose(0, 2, 1)
    swapped = planar.view(planar.dtype.newbyteorder())
    deltas = kernels.quantise(positions, STEP)
    integers = np.rint(positions.astype(np.float64) * 100).astype(np.int32)
    from_xtc = integers.astype(np.float32) * np.float32(1 / PRECISION) * np.float32(10)
    xtc_deltas = kernels.quantise(from_xtc, PRECISION, xtc=True)
    assert deltas is not None
    assert xtc_deltas is not None
    edges = np.arange(0, positions.nbytes + 1, positions[0].nbytes)
    frames = [frame.tobytes() for frame in positions]
    shuffled = kernels.shuffle(positions, 4)
    mobile = np.ascontiguousarray(positions[:, atoms])
    reference = mobile[0].astype(np.float64)
    centred = mobile.astype(np.float64) - mobile.mean(axis=1, keepdims=True, dtype=np.float64)
    n = atoms.size
    quads = np.arange(4 * N_ANGLES).reshape(-1, 4) % n_atoms
    features = np.empty((n_frames, 2 * N_ANGLES))
    corners = [np.ascontiguousarray(positions[:, some].reshape(-1, 3)) for some in quads.T]
    return n_frames, {
        "copy (memcpy)": {"numpy": lambda: np.copyto(out, positions)},
        "crc32c, a frame each": {
            **sides(lambda: kernels.crc32c_spans(positions, edges)),
            "google_crc32c": lambda: [google_crc32c.value(frame) for frame in frames],
        },
        "planar to xyz": sides(lambda: kernels.planar_to_xyz(planar, out)),
        "planar to xyz, swapped": sides(lambda: kernels.planar_to_xyz(swapped, out)),
        "planar to xyz, 214 atoms": sides(lambda: kernels.planar_to_xyz(planar, some, atoms)),
        "swap bytes": {
            **sides(lambda: kernels.swap_to_native(big_endian, out)),
            "astype": lambda: big_endian.astype(np.float32),
        },
        "swap bytes, nm": sides(lambda: kernels.swap_to_native(big_endian, out, scale=10)),
        "swap bytes, 214 atoms": sides(lambda: kernels.swap_to_native(big_endian, some, atoms)),
        "gather 214 atoms": {
            **sides(lambda: kernels.gather_atoms(positions, atoms, some)),
            "np.take": lambda: np.take(positions, atoms, axis=1, out=some),
        },
        "quantise": sides(lambda: kernels.quantise(positions, STEP)),
        "dequantise": sides(lambda: kernels.dequantise(deltas, STEP, out)),
        "dequantise, 214 atoms": sides(lambda: kernels.dequantise(deltas, STEP, some, atoms)),
        "quantise as XTC": sides(lambda: kernels.quantise(from_xtc, PRECISION, xtc=True)),
        "dequantise as XTC": sides(
            lambda: kernels.dequantise(xtc_deltas, PRECISION, out, xtc=True)
        ),
        "shuffle": sides(lambda: kernels.shuffle(positions, 4)),
        "unshuffle": sides(lambda: kernels.unshuffle(shuffled, 4, out)),
        "RMSD, 214 atoms": {
            **sides(lambda: kernels.rmsd(mobile, reference)),
            "rms.rmsd": lambda: [rms.rmsd(x, reference, superposition=True) for x in mobile],
            "qcprot (centred)": lambda: [
                qcprot.CalcRMSDRotationalMatrix(centred[0], x, n, None, None) for x in centred
            ],
        },
        "RMSD, 214 atoms, masses": {
            **sides(lambda: kernels.rmsd(mobile, reference, masses)),
            "rms.rmsd": lambda: [
                rms.rmsd(x, reference, masses, superposition=True) for x in mobile
            ],
        },
        "RMSD, 3,341 atoms": sides(lambda: kernels.rmsd(positions, positions[0])),
        "RMSD as it lies, 214 atoms": {
            **sides(lambda: kernels.rmsd(mobile, reference, superpose=False)),
            "rms.rmsd": lambda: [rms.rmsd(x, reference) for x in mobile],
        },
        "424 dihedral angles": {
            **sides(lambda: dihedrals(positions, quads, features)),
            "calc_dihedrals (angle only)": lambda: distances.calc_dihedrals(*corners),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    n_frames, questions = cases()
    where = provenance()
    if not options.json:
        print(f"{'kernel':28}{'who':28}{'min us/frame':>14}{'median':>10}")
    for kernel, answers in questions.items():
        for case in answers.values():
            case()  # first calls pay for caches and pages
        for who, seconds in in_turn(answers, options.repeats).items():
            figures = {k: v * 1e6 for k, v in summary(seconds, per=n_frames).items()}
            if options.json:
                record = {"bench": "kernels", "kernel": kernel, "who": who, "us_per_frame": figures}
                print(json.dumps({**record, "n_frames": n_frames, "provenance": where}))
            else:
                print(f"{kernel:28}{who:28}{figures['min']:14.3f}{figures['median']:10.3f}")


if __name__ == "__main__":
    main()
