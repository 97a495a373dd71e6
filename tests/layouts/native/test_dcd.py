"""DCD files against MDAnalysis, and against bytes made here where MDAnalysis cannot read them."""

from __future__ import annotations

import os
import shutil
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.lib.formats.libdcd import DCDFile
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests import datafiles
from suites.native_files import CELLS, made_up, write_dcd

import mdio
from mdio.layouts.native.dcd import DCDLayout, boxes_from_cells
from mdio.testing.reading import (
    LayoutReadingTests,
    Oracle,
    ReadingCase,
    oracle_from_mdanalysis,
)

AKMA_PS = 0.04888821


def oracle_of(positions: np.ndarray, cells: np.ndarray | None, charmm: bool = True) -> Oracle:
    n_frames = len(positions)
    boxes = np.zeros((n_frames, 6), np.float32)
    if cells is not None:
        boxes[:, :3] = cells[:, [0, 2, 5]]
        boxes[:, 3:] = 90
    delta = (float(np.float32(0.02)) if charmm else 0.02) * AKMA_PS
    return Oracle(
        positions=positions,
        box=boxes,
        time=np.array([(frame + 30 / 10) * (delta * 10) for frame in range(n_frames)]),
        step=np.arange(1, n_frames + 1),
        dt_ps=delta * 10,
    )


@cache
def mdanalysis_case(path: Path) -> ReadingCase:
    return ReadingCase(DCDLayout, path, oracle_from_mdanalysis(None, path))


@pytest.mark.parametrize("name", ["DCD", "DCD2", "DCD_TRICLINIC", "DCD_NAMD_TRICLINIC"])
class TestFilesOfMDAnalysis(LayoutReadingTests):
    @pytest.fixture
    def case(self, name):
        return mdanalysis_case(Path(getattr(datafiles, name)))


FLAVOURS = {
    "little": {},
    "big": {"order": ">"},
    "wide": {"wide": True},
    "wide-big": {"wide": True, "order": ">"},
    "4d": {"w": True},
    "4d-big": {"w": True, "order": ">"},
    "fixed": {"fixed": [0, 3, 4]},
    "fixed-big": {"fixed": [0, 3, 4], "order": ">"},
    "fixed-4d-wide": {"fixed": [0, 3, 4], "w": True, "wide": True},
    "all-fixed": {"fixed": list(range(7))},
    "xplor": {"charmm": 0},
    "count-0": {"n_frames": 0},
    "count-of-a-liar": {"n_frames": 2**31 - 1},
}


def flavour_case(flavour: str, periodic: bool, folder: Path) -> ReadingCase:
    options = FLAVOURS[flavour]
    positions = made_up(5, 7)
    if options.get("fixed"):
        positions[:, options["fixed"]] = positions[0, options["fixed"]]
    charmm = options.get("charmm", 24) != 0
    cells = CELLS[:5] if periodic and charmm else None
    path = folder / "made.dcd"
    write_dcd(path, positions, cells, **options)
    return ReadingCase(DCDLayout, path, oracle_of(positions, cells, charmm))


@pytest.mark.parametrize(
    ("flavour", "periodic"), [("little", True), ("wide-big", True), ("fixed-big", False)]
)
class TestFlavours(LayoutReadingTests):
    @pytest.fixture
    def case(self, flavour, periodic, tmp_path):
        return flavour_case(flavour, periodic, tmp_path)


@pytest.mark.parametrize("periodic", [True, False], ids=["cell", "no-cell"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_flavour(flavour, periodic, tmp_path):
    case, kit = flavour_case(flavour, periodic, tmp_path), LayoutReadingTests()
    kit.test_info(case)
    kit.test_the_bytes_are_recognised(case)
    kit.test_all_frames(case)
    kit.test_every_frame_alone_backwards(case)
    kit.test_atoms(case, "mixed")


@pytest.mark.parametrize("flavour", ["little", "big", "fixed", "xplor", "count-0"])
def test_the_made_files_are_read_alike_by_mdanalysis(tmp_path, flavour):
    options = FLAVOURS[flavour]
    positions = made_up(5, 7)
    if options.get("fixed"):
        positions[:, options["fixed"]] = positions[0, options["fixed"]]
    charmm = options.get("charmm", 24) != 0
    cells = CELLS[:5] if charmm else None
    write_dcd(tmp_path / "made.dcd", positions, cells, **options)
    theirs = oracle_from_mdanalysis(None, tmp_path / "made.dcd")
    ours = oracle_of(positions, cells, charmm)
    # MDAnalysis 2.11 takes the float32 delta of a file of the other byte order as it lies.
    times = () if flavour == "big" else ("time", "dt_ps")
    for name in ("positions", "box", "step", *times):
        np.testing.assert_array_equal(getattr(theirs, name), getattr(ours, name))


@pytest.fixture(scope="module")
def large_dcd(tmp_path_factory):
    path = tmp_path_factory.mktemp("dcd") / "large.dcd"
    write_dcd(path, made_up(9, 40_000), CELLS)
    return path


class TestLargeFrames(LayoutReadingTests):
    """Frames large enough that narrow selections are read alone."""

    @pytest.fixture
    def case(self, large_dcd):
        return mdanalysis_case(large_dcd)


def test_a_narrow_selection_reads_few_bytes(large_dcd, monkeypatch):
    n_read = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: n_read.append(real(*args)) or n_read[-1])
    with DCDLayout(large_dcd) as layout:
        _ = layout.info
        n_read.clear()
        layout.read(0, 6, atoms=np.arange(100, 200))
    assert sum(n_read) == 6 * (3 * 400 + 56)


CELL_KINDS = {
    "cosines": [30, 0.1, 40, -0.2, 0.3, 50],
    "cosine of one": [30, 1.0, 40, 0, 0, 50],
    "degrees": [30, 70, 40, 80, 90, 50],
    "large matrix": [30, 200, 40, 3, 5, 250],
    "matrix": [30, -1.5, 40, 2.5, 0.5, 50],
    "no cell": [0, 0, 0, 0, 0, 0],
    "degrees of nothing": [0, 90, 0, 90, 90, 0],
    "not numbers": [np.nan] * 6,
    "one not a number": [30, 70, np.nan, 80, 90, 50],
    "beyond float32": [1e300, 70, 40, 80, 90, 50],
    "tiny": [1e-60, 70, 1e-60, 80, 90, 1e-60],
}


LENGTHS = st.sampled_from([0.0, -1.0, 1e35, 1e-40, np.nan, np.inf]) | st.floats(0, 200)
ANGLES = st.sampled_from([0.0, -0.0, 0.5, 1.0, 90.0, 180.0, 181.0, np.nan]) | st.floats(-2, 200)


@given(st.tuples(LENGTHS, ANGLES, LENGTHS, ANGLES, ANGLES, LENGTHS), st.booleans())
def test_the_cell_of_one_frame_is_as_among_others(numbers, has_matrices):
    """To the bit: one alone takes a shorter way."""
    cell = np.array([numbers])
    several = boxes_from_cells(np.concatenate([cell, cell]), has_matrices)
    np.testing.assert_array_equal(
        boxes_from_cells(cell, has_matrices).view(np.int32), several[:1].view(np.int32)
    )


def test_every_kind_of_cell_is_that_of_mdanalysis(tmp_path):
    random = np.random.default_rng(11)
    rows = [*CELL_KINDS.values()]
    rows += [[*random.normal(0, 1, 6) * [20, 0.9, 20, 0.9, 0.9, 20]] for _ in range(300)]
    rows += [[*random.uniform(1, 179, 6)] for _ in range(300)]
    cells = np.array(rows, np.float64)
    write_dcd(tmp_path / "cells.dcd", made_up(len(cells), 1), cells)
    with np.errstate(all="ignore"):
        theirs = oracle_from_mdanalysis(None, tmp_path / "cells.dcd")
    block = DCDLayout(tmp_path / "cells.dcd").read(0, len(cells))
    np.testing.assert_array_equal(block.box, theirs.box)


def test_an_interval_of_zero_counts_as_one(tmp_path):
    write_dcd(tmp_path / "zero.dcd", made_up(3, 2), nsavc=0)
    block = DCDLayout(tmp_path / "zero.dcd").read(0, 3)
    delta = float(np.float32(0.02)) * AKMA_PS
    np.testing.assert_array_equal(block.time, [(frame + 30) * delta for frame in range(3)])


@pytest.mark.parametrize("nsavc", [0, -10])
def test_parts_of_odd_intervals_have_the_times_of_the_whole(tmp_path, nsavc):
    write_dcd(tmp_path / "a.dcd", made_up(6, 2), nsavc=nsavc)
    mdio.split(tmp_path / "a.dcd", tmp_path / "a.segments", 3)
    parts = sorted((tmp_path / "a.segments").glob("*/seg-*.dcd"))
    times = [mdio.open(part).read(0, 2).time for part in parts]
    np.testing.assert_allclose(np.concatenate(times), mdio.open(tmp_path / "a.dcd").read(0, 6).time)


def test_parts_whose_steps_descend_beyond_32_bits(tmp_path):
    """No header holds these: their times are counted again, as a note says."""
    write_dcd(tmp_path / "a.dcd", made_up(6, 2), nsavc=-(2**30))
    notes = mdio.split(tmp_path / "a.dcd", tmp_path / "a.segments", 3).notes
    assert any("are counted again" in note for note in notes)


def test_mdanalysis_is_not_imported(tmp_path):
    import subprocess
    import sys

    shutil.copy(datafiles.DCD2, tmp_path / "a.dcd")
    code = (
        "import sys; from mdio.layouts.native.dcd import DCDLayout;"
        f"DCDLayout({str(tmp_path / 'a.dcd')!r}).read(0, 2); assert 'MDAnalysis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_oblique_cells_of_charmm_are_told_of(tmp_path):
    """Water over the boundary is as near as it can be by the matrix, and overlaps by the box."""
    path = Path(datafiles.DCD_TRICLINIC)
    with DCDFile(str(path)) as file:
        xx, xy, yy, xz, yz, zz = file.readframes(start=9).unitcell[0]
    matrix = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    with DCDLayout(path) as layout:
        block, notes = layout.read(9, 10), layout.notes
    oxygens = block.positions[0, ::3].astype(float)
    shifts = np.array([*product((-1, 0, 1), repeat=3)])
    nearest = []
    for cell in (matrix, triclinic_vectors(block.box[0]).astype(float)):
        images = oxygens + (shifts[shifts.any(axis=1)] @ cell)[:, None]
        nearest.append(np.linalg.norm(images[:, :, None] - oxygens, axis=-1).min())
    assert nearest[0] > 2.5 and nearest[1] < 1
    assert len(notes) == 1 and "rotated against x, y and z" in notes[0]
    mdio.convert(path, tmp_path / "a.zarr")
    assert "rotated against x, y and z" in mdio.open(tmp_path / "a.zarr").notes[0]
    for name in ("DCD", "DCD_NAMD_TRICLINIC"):
        assert "rotated" not in "".join(mdio.open(getattr(datafiles, name)).notes)


def test_a_rectangular_cell_of_charmm_is_as_any_other(tmp_path):
    cells = np.array([[30, 0, 40, 0, 0, 50]], float)
    write_dcd(tmp_path / "a.dcd", made_up(1, 7), cells, charmm=41)
    with DCDLayout(tmp_path / "a.dcd") as layout:
        assert not layout.notes and layout.read(0, 1).box.tolist() == [[30, 40, 50, 90, 90, 90]]
