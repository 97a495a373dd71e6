"""The decoder that was made from docs/rigid.md alone, beside the library."""

import importlib.util
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF, XTC
from numcodecs.blosc import Blosc

from mdio.core.kernels import encode_rigid
from mdio.layouts.codecs.quantised import HEADER

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/quantised"
KINDS = ("free", "time", "swing", "sphere", "circle")


def made_from_the_page():
    spec = importlib.util.spec_from_file_location("rigid_decoder", ROOT / "docs/rigid_decoder.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


decoder = made_from_the_page()


def frames_of(topology: str, path: str, n_frames: int, atoms: slice) -> np.ndarray:
    u = mda.Universe(topology, path, to_guess=())
    return np.array([ts.positions[atoms].copy() for ts in u.trajectory[:n_frames]])


def brine() -> np.ndarray:
    """Water of three sites that tumbles and drifts, and ions that jump about, shuffled together."""
    random = np.random.default_rng(5)
    oxygens = random.uniform(0, 40, (1, 900, 3)) + random.normal(0, 0.2, (4, 900, 3)).cumsum(0)
    bonds = random.normal(0, 1, (2, 4, 900, 3))
    bonds[1] -= (
        bonds[0]
        * (bonds[0] * bonds[1]).sum(-1, keepdims=True)
        / np.square(bonds[0]).sum(-1, keepdims=True)
    )
    first, across = bonds / np.linalg.norm(bonds, axis=-1, keepdims=True)
    turn = np.radians(104.52)
    second = np.cos(turn) * first + np.sin(turn) * across
    water = np.stack([oxygens, oxygens + 0.9572 * first, oxygens + 0.9572 * second], 2)
    ions = random.uniform(0, 40, (1, 120, 3)) + random.normal(0, 0.5, (4, 120, 3)).cumsum(0)
    parts = np.array_split(water.reshape(4, -1, 3), [1200], axis=1)
    return np.concatenate([parts[0], ions, parts[1]], axis=1).astype(np.float32)


SYSTEMS = {
    "adk": lambda: frames_of(PSF, DCD, 6, slice(None)),
    "solvated": lambda: frames_of(XTC, XTC, 4, slice(2000, 8000)),
    "brine": brine,
}


@pytest.mark.parametrize("cut", [(0, 0), (2, 1024)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_real_data(name, cut):
    positions = np.ascontiguousarray(SYSTEMS[name]())
    description, data = encode_rigid(positions, 0.01, *cut, xtc=False)
    found = decoder.integers(description, data.tobytes(), *positions.shape[:2])
    expected = np.rint(positions.astype(np.float64) / 0.01).astype(np.int32)
    np.testing.assert_array_equal(np.array(found, np.int32), expected)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*-rigid.mdq1")), ids=lambda path: path.stem)
def test_golden_files(path):
    chunk = path.read_bytes()
    _, _, filled, _, n_frames, n_atoms, _, n_head, _ = HEADER.unpack_from(chunk)
    head, data = chunk[HEADER.size :][:n_head], chunk[HEADER.size + n_head :]
    description = Blosc().decode(head)
    found = decoder.integers(description[: len(description) - filled], data, n_frames, n_atoms)
    np.testing.assert_array_equal(np.array(found), np.load(GOLDEN / "v1-rigid-integers.npy"))
