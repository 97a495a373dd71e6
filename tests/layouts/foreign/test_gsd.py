"""GSD files of HOOMD, beside what the gsd library and MDAnalysis' reader say of them."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests import datafiles
from numpy.testing import assert_allclose, assert_array_equal

import mdio
from mdio.core.errors import MdioError, MissingExtraError, SourceError
from mdio.layouts.foreign.gsd import GSDLayout
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

hoomd = pytest.importorskip("gsd.hoomd")
N_FRAMES, N_ATOMS = 6, 9


@pytest.mark.parametrize("name", ["GSD", "GSD_bonds"])
class TestFilesOfMDAnalysis(LayoutReadingTests):
    @pytest.fixture
    def case(self, name):
        path = Path(getattr(datafiles, name))
        return ReadingCase(GSDLayout, path, oracle_from_mdanalysis(None, path, format="GSD"), {})


def write(path, change=lambda frame, at: None):
    """Write frames with tilted cells, and without what `change` takes away."""
    rng = np.random.default_rng(4)
    with hoomd.open(path, "w") as file:
        for at in range(N_FRAMES):
            frame = hoomd.Frame()
            frame.configuration.step = 50 * at
            frame.configuration.box = [8 + at, 9, 10, 0.3, -0.2, 0.1]
            frame.particles.N = N_ATOMS
            frame.particles.position = rng.normal(size=(N_ATOMS, 3)).astype("f4")
            change(frame, at)
            file.append(frame)
    return path


def leave_out(frame, at):
    """Take box and positions of frames 2 and 3 away: they are those of frame 0 then."""
    if at in (2, 3):
        frame.configuration.box = frame.particles.position = frame.configuration.step = None


@pytest.mark.parametrize("change", [lambda *_: None, leave_out])
def test_frames_are_what_the_library_says(tmp_path, change):
    path = write(tmp_path / "a.gsd", change)
    with hoomd.open(path, "r") as file, mdio.open(path) as layout:
        assert layout.info.layout == "gsd"
        block = pickle.loads(pickle.dumps(layout)).read(0, N_FRAMES)
        for at, frame in enumerate(file):
            assert_array_equal(block.positions[at], frame.particles.position)
            assert block.step[at] == frame.configuration.step
            lx, ly, lz, xy, xz, yz = frame.configuration.box
            vectors = np.array([[lx, 0, 0], [xy * ly, ly, 0], [xz * lz, yz * lz, lz]])
            lengths = np.linalg.norm(vectors, axis=1)
            a, b, c = vectors / lengths[:, None]
            angles = np.rad2deg(np.arccos([b @ c, a @ c, a @ b]))
            assert_allclose(block.box[at], [*lengths, *angles], rtol=1e-6)
        assert_array_equal(layout.read(1, 4, [7, 2]).positions, block.positions[1:4, [7, 2]])


def test_conversions_in_workers_and_units(tmp_path):
    path, said = write(tmp_path / "a.gsd"), {"dt": 2.0, "length_unit": "nm"}
    mdio.convert(path, tmp_path / "o.zarr", workers=2, source_options=said)
    mdio.split(path, tmp_path / "o.segments", 2)
    with hoomd.open(path, "r") as file:
        expected = np.array([frame.particles.position for frame in file])
    with mdio.open(tmp_path / "o.zarr") as layout:
        block = layout.read(0, N_FRAMES)
        assert_array_equal(block.positions, expected * np.float32(10))
        assert_array_equal(block.time, 2.0 * np.arange(N_FRAMES))
    with mdio.open(tmp_path / "o.segments") as layout:
        assert_array_equal(layout.read(0, N_FRAMES).positions, expected)


def test_other_numbers_of_atoms_are_told(tmp_path):
    def change(frame, at):
        if at == 3:
            frame.particles.N, frame.particles.position = 4, np.zeros((4, 3), "f4")

    with pytest.raises(SourceError, match=r"a\.gsd: frames have 4, 9 atoms"):
        _ = mdio.open(write(tmp_path / "a.gsd", change)).info


def test_damage_is_an_error_of_one_line(tmp_path):
    whole = write(tmp_path / "a.gsd").read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "b.gsd"
    cases = [whole[:n] for n in (8, 100, 256, 300, len(whole) // 2, len(whole) - 1)]
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(8, len(whole), 3):
            data[at] = rng.integers(256)
        cases.append(bytes(data))
    n_refused = 0
    for data in cases:
        path.write_bytes(data)
        try:
            with mdio.open(path) as layout:
                layout.read(0, min(layout.info.n_frames, 100))
        except MdioError as error:
            n_refused += 1
            assert "b.gsd" in str(error) and "\n" not in str(error)
    assert n_refused > 50


def test_a_schema_that_is_no_text_is_damage(tmp_path):
    data = bytearray(write(tmp_path / "a.gsd").read_bytes())
    data[112] = 0xFF  # of the header: behind six numbers and the name of the program
    (tmp_path / "b.gsd").write_bytes(data)
    with pytest.raises(SourceError, match=r"b\.gsd: .*is damaged"):
        _ = mdio.open(tmp_path / "b.gsd").info


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.gsd")
    for name in ("gsd", "gsd.fl"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"a\.gsd: .*mdio-layouts\[formats\]"):
        _ = mdio.open(path).info
