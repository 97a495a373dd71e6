"""Integers in H5MD: by mdio, and by programs that have HDF5's filter and no mdio."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, XTC
from numpy.testing import assert_array_equal
from suites.compiled import KEPT, NATIVE, keep, locked, state_of
from suites.h5md_cases import make_block, write_h5md
from suites.per_rank import convert

import mdio
from mdio.core.errors import PlanError
from mdio.layouts.h5md.file import FILTER_ID

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "h5md"
SOURCES = Path(__file__).resolve().parents[3] / "packaging" / "hdf5-filter"
VALUE = "particles/trajectory/position/value"
N_FRAMES, N_WATERS = 23, 60
READ = f"""
import sys
import h5py, numpy
import mdio_hdf5_filter
with h5py.File(sys.argv[1]) as file:
    numpy.save(sys.argv[2], file["{VALUE}"][...])
assert not [name for name in sys.modules if name.partition(".")[0] == "mdio"]
"""
READ_AS_UNIVERSE = """
import sys
import MDAnalysis, numpy
import mdio_hdf5_filter
u = MDAnalysis.Universe(sys.argv[3], sys.argv[1], format="H5MD")
numpy.save(sys.argv[2], numpy.stack([ts.positions.copy() for ts in u.trajectory]))
assert "mdio" not in sys.modules
"""
READ_DAMAGED = f"""
import sys
import h5py, numpy
import mdio_hdf5_filter
rng = numpy.random.default_rng(0)
refused = 0
with h5py.File(sys.argv[1], "r+") as file:
    good = file["{VALUE}"].id.read_direct_chunk((0, 0, 0))[1]
    for number in range(400):
        data = bytearray(good)
        for at in rng.integers(0, len(data) if number % 2 else 60, 1 + number % 3):
            data[at] ^= 1 << int(rng.integers(0, 8))
        data = data[: len(data) if number % 5 else int(rng.integers(0, len(data)))]
        # Made anew each time: HDF5 keeps what was decoded.
        first = file["{VALUE}"].id
        how = (first.get_type(), first.get_space(), first.get_create_plist())
        other = h5py.h5d.create(file.id, str(number).encode(), *how)
        other.write_direct_chunk((0, 0, 0), bytes(data))
        try:
            file[str(number)][:4, :6]
        except OSError:
            refused += 1
print(refused)
"""


@pytest.fixture(scope="module")
def plugin():
    """The folder of the package, built by its own setup.py, and again where that has changed."""
    folder = KEPT / f"hdf5-filter-{sys.implementation.cache_tag}"
    words = ["setup.py", "-q", "build", "-b", folder / "build", "--build-lib"]
    native = sorted((NATIVE / "codecs").iterdir())
    own = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".py", ".cpp", ".toml"))
    state = state_of([*own, *native], sys.version)

    def make(path):
        for part in (folder / "build", path):
            shutil.rmtree(part, ignore_errors=True)
        subprocess.run([sys.executable, *words, path], cwd=SOURCES, check=True)

    with locked(folder):
        return keep(folder / "lib", state, make)


def run(plugin, script, *args):
    env = {**os.environ, "PYTHONPATH": str(plugin)}
    words = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def waters(rng, stride):
    """Return rigid molecules that move and turn a little each frame, and a fourth loose atom."""
    shape = np.array([[0, 0, 0], [0.9572, 0, 0], [-0.24, 0.927, 0], [2.1, 0.3, 0.4]])
    at = 20 * rng.random((N_WATERS, 1, 3))
    angles = 6 * rng.random(N_WATERS)
    frames = []
    for _ in range(N_FRAMES):
        at = at + stride * rng.normal(size=at.shape)
        angles = angles + stride * rng.normal(size=angles.shape)
        c, s, zero = np.cos(angles), np.sin(angles), np.zeros(N_WATERS)
        turn = np.array([[c, -s, zero], [s, c, zero], [zero, zero, zero + 1]]).transpose(2, 0, 1)
        frames.append((at + shape @ turn).reshape(-1, 3))
    return np.array(frames, np.float32)


def block_of(kind):
    rng = np.random.default_rng(7)
    x = waters(rng, {"calm": 0.02, "far": 9.0, "odd": 0.02}[kind])
    if kind == "odd":
        x[3, 5] = [np.nan, np.inf, 3e38]
    block = make_block(len(x), x.shape[1])
    block.positions[...] = x
    return block


def golden_positions():
    """What is in the golden file, made by arithmetic that no library changes."""
    n = np.arange(N_FRAMES * 40, dtype=np.int64).reshape(N_FRAMES, 40, 1)
    moving = n * 7919 % 1009 + np.array([[[0, 300, 900]]])
    integers = np.stack(
        [moving, moving + np.array([96, 0, 0]), moving + np.array([-24, 93, 0])], axis=2
    )
    return np.float32(integers.reshape(N_FRAMES, 120, 3) * 0.01)


def modes_of(path):
    with h5py.File(path) as file:
        value = file[VALUE]
        firsts = [tuple(part.start for part in at) for at in value.iter_chunks()]
        return {value.id.read_direct_chunk(first)[1][4] for first in firsts}


@pytest.mark.parametrize(
    ("kind", "compression", "mode"),
    [
        ("calm", "bitpack", 5),
        ("calm", "rigid", 9),
        ("far", "bitpack", 7),
        ("far", "rigid", 9),
        ("odd", "bitpack", 0),
        ("odd", "rigid", 0),
    ],
)
def test_integers_of_a_step(tmp_path, plugin, kind, compression, mode):
    block = block_of(kind)
    path = tmp_path / "x.h5md"
    split = {"chunk_frames": 9, "chunk_atoms": 100}
    plan = write_h5md(path, block, precision=0.02, compression=compression, **split)
    assert (plan.compression, plan.precision, plan.precision_source) == (compression, 0.02, "asked")
    assert mode in modes_of(path)
    run(plugin, READ, path, tmp_path / "found.npy")
    found = np.load(tmp_path / "found.npy")
    expected = block.positions.copy()
    sound = np.rint(np.float64(expected) / 0.02) * 0.02
    for i in range(0, N_FRAMES, 9):
        for j in range(0, expected.shape[1], 100):
            at = np.s_[i : i + 9, j : j + 100]
            if np.isfinite(expected[at]).all():  # others are stored as they are
                expected[at] = sound[at]
    assert_array_equal(found, expected)
    with mdio.open(path) as layout:
        assert_array_equal(layout.read(0, N_FRAMES).positions, expected)
        some = np.array([239, 5, 101, 100])
        assert_array_equal(layout.read(7, 20, atoms=some).positions, expected[7:20, some])
        assert all(problem is None for _, problem in layout.check())
        manifest = layout.manifest
    assert manifest["error_bound_angstrom"] == 0.01
    assert "nbytes" in h5py.File(path)["mdio/arrays/trajectory/position"]


@pytest.mark.parametrize("compression", ["bitpack", "rigid", "fast", "small"])
@pytest.mark.parametrize("precision", [None, "auto"])
def test_the_integers_of_an_xtc(tmp_path, plugin, compression, precision):
    path, group = tmp_path / "a.h5md", {"some": "index 5:999"}
    made = mdio.convert(
        XTC, path, top=GRO, precision=precision, compression=compression, groups=group, workers=2
    )
    name = {"fast": "bitpack", "small": "rigid"}.get(compression, compression)
    assert (made.plan.compression, made.plan.precision_source) == (name, "xtc")
    assert path.stat().st_size < 1.1 * Path(XTC).stat().st_size
    theirs = np.stack([ts.positions.copy() for ts in mda.Universe(GRO, XTC).trajectory])
    run(plugin, READ_AS_UNIVERSE, path, tmp_path / "found.npy", GRO)
    assert_array_equal(np.load(tmp_path / "found.npy"), theirs)
    with mdio.open(path) as layout:
        assert layout.info.xtc_integers
        assert layout.info.compression == name
        assert_array_equal(layout.read(0, 10).positions, theirs)
    assert mdio.verify(path, XTC).max_abs_diff_angstrom == 0
    mdio.convert(path, tmp_path / "back.xtc")
    universe = mda.Universe(GRO, str(tmp_path / "back.xtc"))
    back = np.stack([ts.positions.copy() for ts in universe.trajectory])
    assert_array_equal(back, theirs)


def test_velocities_and_forces(tmp_path, plugin):
    block = make_block(velocities=True, forces=True)
    path = tmp_path / "x.h5md"
    steps = {"precision": "none", "precision_velocities": 0.1}
    plan = write_h5md(path, block, compression="bitpack", chunk_frames=4, **steps)
    assert (plan.precision, dict(plan.field_precisions)) == (None, {"velocities": 0.1})
    with h5py.File(path) as file:  # without a step: as every program reads them
        assert_array_equal(file[VALUE], block.positions)
        assert_array_equal(file["particles/trajectory/force/value"], block.forces)
    run(plugin, READ.replace("position", "velocity"), path, tmp_path / "found.npy")
    sound = (np.rint(np.float64(block.velocities) / 0.1) * 0.1).astype(np.float32)
    assert_array_equal(np.load(tmp_path / "found.npy"), sound)


def test_in_parts(tmp_path, plugin):
    path = tmp_path / "a.h5md"
    convert(
        XTC,
        path,
        per_rank=True,
        workers=2,
        storage=mdio.Storage(chunk_frames=4),
        compression="rigid",
    )
    run(plugin, READ, path, tmp_path / "found.npy")
    theirs = np.stack([ts.positions.copy() for ts in mda.Universe(GRO, XTC).trajectory])
    assert_array_equal(np.load(tmp_path / "found.npy"), theirs)


def test_without_the_filter_h5py_says_so_and_the_plan_said_it(tmp_path):
    path = tmp_path / "a.h5md"
    made = mdio.convert(XTC, path, compression="rigid", stop=3)
    assert any("packaging/hdf5-filter" in note for note in made.plan.notes)
    with h5py.File(path) as file:
        assert file[VALUE].id.get_create_plist().get_filter(0)[0] == FILTER_ID
        with pytest.raises(OSError, match=r"plugin|filter"):
            file[VALUE][0]
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
    assert (manifest["compression"], manifest["precision_source"]) == ("rigid", "xtc")


def test_damaged_chunks_never_end_the_program(tmp_path, plugin):
    for kind, compression in (("calm", "bitpack"), ("far", "bitpack"), ("calm", "rigid")):
        path = tmp_path / "x.h5md"
        write_h5md(path, block_of(kind), precision=0.02, compression=compression)
        assert 100 < int(run(plugin, READ_DAMAGED, path)) <= 400
        path.unlink()


def test_files_of_format_version_1_stay_readable(tmp_path, plugin):
    path = GOLDEN / "v1-rigid.h5md"
    expected = golden_positions()
    run(plugin, READ, path, tmp_path / "found.npy")
    assert_array_equal(np.load(tmp_path / "found.npy"), expected)
    assert modes_of(path) == {9}
    with mdio.open(path) as layout:
        assert_array_equal(layout.read(0, N_FRAMES).positions, expected)
        assert all(problem is None for _, problem in layout.check())


def test_never_unasked(tmp_path):
    for asked in (
        {},
        {"precision": "auto"},
        {"precision": 0.01},
        {"precision": 0.01, "compression": "gzip"},
    ):
        made = mdio.convert(XTC, tmp_path / "a.h5md", stop=2, force=True, **asked)
        assert made.plan.compression in (None, "gzip:4")
        with h5py.File(tmp_path / "a.h5md") as file:
            assert np.isfinite(file[VALUE][...]).all()


def test_gromacs_flavour_is_no_larger_than_the_xtc(plugin, tmp_path):
    """In nm under GROMACS' names; h5py reads it with the filter alone."""
    out = tmp_path / "o.h5md"
    storage = mdio.Storage(flavour="gromacs")
    plan = mdio.convert(XTC, out, storage=storage, compression="rigid").plan
    assert plan.compression == "rigid"
    assert out.stat().st_size < 0.75 * Path(XTC).stat().st_size
    x = np.array([ts.positions.copy() for ts in mda.Universe(GRO, XTC).trajectory])
    script = READ.replace(VALUE, "particles/system/position/value")
    run(plugin, script, out, tmp_path / "read.npy")
    steps = np.rint(x.astype(np.float64) / 0.01)
    assert_array_equal(np.load(tmp_path / "read.npy"), (steps * 0.001).astype(np.float32))
    assert mdio.verify(out, against=XTC).ok
    with mdio.open(out) as layout:
        np.testing.assert_allclose(layout.read(0, len(x)).positions, x, rtol=3e-7)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compression": "rigid"}, "these are floats.*give --precision STEP"),
        ({"compression": "bitpack", "precision": "none"}, "give --precision STEP"),
        ({"compression": "rigid", "precision": -1.0}, "give a positive step"),
        ({"compression": "rigid", "precision": 0.01, "contiguous": True}, "needs chunks"),
        ({"compression": "gzip", "precision": 0.01, "flavour": "gromacs"}, "--flavour gromacs"),
        ({"compression": "zstd", "precision": 0.01}, "integers also with bitpack or rigid"),
    ],
)
def test_what_is_refused(tmp_path, options, says):
    with pytest.raises(PlanError, match=says):
        write_h5md(tmp_path / "x.h5md", make_block(), **options)


def test_writing_loads_no_plug_ins_of_others(adk, tmp_path):
    """HDF5 looks for the filter where netCDF4 has its own, and ranks of MPI crashed there."""
    folder = Path(netCDF4.__file__).with_name("plugins")
    assert [*folder.glob("lib*.so")]
    convert = (
        f"import mdio; mdio.convert({str(adk['xtc'])!r}, 'a.h5md', "
        "storage=mdio.Storage(compression='rigid'))"
    )
    environment = os.environ | {
        "HDF5_PLUGIN_PATH": str(folder),
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": str(tmp_path / "loaded"),
    }
    subprocess.run([sys.executable, "-c", convert], cwd=tmp_path, env=environment, check=True)
    loaded = "".join(path.read_text() for path in tmp_path.glob("loaded.*"))
    assert "h5py" in loaded and str(folder) not in loaded
