"""The XTC layout against MDAnalysis, with the native module and without it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests import datafiles
from suites.xtc_cases import SIDES, chain, use_side, write

from mdio.core.errors import SourceError
from mdio.layouts.native.xtc import XTCLayout
from mdio.layouts.registry import open_layout
from mdio.testing.reading import (
    LayoutReadingTests,
    Oracle,
    ReadingCase,
    oracle_from_mdanalysis,
)

SMALL_FILES = ["XTC_multi_frame", "COORDINATES_XTC", "RANDOM_WALK"]
ALL_FILES = [*SMALL_FILES, "XTC_sub_sol", "XTC", "XTC_MEMPROT", "AUX_EDR_XTC"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("xtc")


@pytest.fixture(params=SIDES)
def side(request):
    with use_side(request.param):
        yield request.param


def linked(name: str, folder: Path) -> Path:
    """Return a link to a file of MDAnalysisTests, so that its index lies in our folder."""
    target = Path(getattr(datafiles, name))
    link = folder / target.name
    if not link.exists():
        link.symlink_to(target)
    return link


@cache
def mdanalysis_oracle(path: Path) -> Oracle:
    return oracle_from_mdanalysis(None, path)


@pytest.mark.parametrize("name", SMALL_FILES)
class TestFilesOfMDAnalysis(LayoutReadingTests):
    @pytest.fixture
    def case(self, name, folder, side):
        path = linked(name, folder)
        return ReadingCase(XTCLayout, path, mdanalysis_oracle(path))


class TestManyFrames(LayoutReadingTests):
    @pytest.fixture
    def case(self, adk):
        return ReadingCase(XTCLayout, adk["xtc"], mdanalysis_oracle(adk["xtc"]))


class TestThreads(LayoutReadingTests):
    @pytest.fixture
    def case(self, adk):
        oracle = mdanalysis_oracle(adk["xtc"])
        return ReadingCase(XTCLayout, adk["xtc"], oracle, {"n_threads": 3})


@pytest.mark.parametrize("name", ALL_FILES)
def test_every_xtc_of_mdanalysis_is_read_bit_for_bit(name, folder):
    path = linked(name, folder)
    oracle = mdanalysis_oracle(path)
    with XTCLayout(path) as layout:
        block = layout.read(0, layout.info.n_frames)
    assert block.positions.tobytes() == oracle.positions.tobytes()
    assert block.box.tobytes() == oracle.box.tobytes()
    assert block.time.tobytes() == oracle.time.tobytes()
    assert block.step.tobytes() == oracle.step.tobytes()


@pytest.mark.parametrize("precision", [10, 100, 1000, 12345, 100000])
def test_info_says_precision(tmp_path, precision):
    frames = chain(40, np.random.default_rng(1))[None].repeat(3, axis=0)
    path = write(tmp_path / "a.xtc", frames, precision)
    with XTCLayout(path) as layout:
        info = layout.info
    assert info.precision == 10 / precision
    assert info.compression == "xtc"
    assert info.nbytes == path.stat().st_size
    assert (info.dt_ps, info.time_first_ps, info.time_last_ps) == (0.5, 0.25, 1.25)
    assert info.has_box
    assert not info.has_velocities
    assert info.chunk_frames is None


def test_small_frames_have_no_precision(tmp_path):
    path = write(tmp_path / "a.xtc", np.ones((1, 9, 3), np.float32))
    with XTCLayout(path) as layout:
        info = layout.info
    assert info.precision is None
    assert info.compression is None
    assert info.dt_ps == 1.0


def test_it_is_found_by_its_bytes(tmp_path):
    path = write(tmp_path / "no-suffix", np.ones((2, 12, 3), np.float32))
    with open_layout(path) as layout:
        assert isinstance(layout, XTCLayout)
    other = tmp_path / "other.xtc"
    other.write_bytes(b"CORD" * 40)
    assert not XTCLayout.sniff(other)
    assert not XTCLayout.sniff(tmp_path)


def test_a_missing_file_and_an_empty_one(tmp_path, side):
    with pytest.raises(SourceError, match=r"none\.xtc: no such file"):
        _ = XTCLayout(tmp_path / "none.xtc").info
    (tmp_path / "empty.xtc").touch()
    with pytest.raises(SourceError, match=r"empty\.xtc: the file is empty"):
        _ = XTCLayout(tmp_path / "empty.xtc").info


def test_truncated_files_name_the_frame_and_where_to_cut(tmp_path, side):
    path = write(tmp_path / "a.xtc", chain(60, np.random.default_rng(2))[None].repeat(4, axis=0))
    whole = path.read_bytes()
    size = len(whole) // 4
    path.write_bytes(whole[:-10])
    with XTCLayout(path) as layout:
        (lost,) = layout.info.lost
        assert (layout.info.n_frames, lost.frame, lost.offset) == (3, 3, 3 * size)
        assert lost.nbytes == size - 10 and layout.info.nbytes == len(whole) - 10
    path.write_bytes(whole[: 3 * size])
    with XTCLayout(path) as layout:
        assert layout.info.n_frames == 3


def test_atom_counts_that_change_are_refused(tmp_path, side):
    rng = np.random.default_rng(3)
    one = write(tmp_path / "a.xtc", chain(60, rng)[None]).read_bytes()
    other = write(tmp_path / "b.xtc", chain(61, rng)[None]).read_bytes()
    path = tmp_path / "both.xtc"
    path.write_bytes(one + other)
    with pytest.raises(SourceError, match=rf"frame 1 at byte {len(one)}: it has 61 atoms.* 60"):
        _ = XTCLayout(path).info


def test_offsets_of_mdanalysis_that_count_a_partial_frame_are_not_trusted(tmp_path, side):
    path = write(tmp_path / "a.xtc", chain(60, np.random.default_rng(4))[None].repeat(3, axis=0))
    path.write_bytes(path.read_bytes()[:-40])
    oracle_from_mdanalysis_offsets(path)
    with XTCLayout(path) as layout:
        assert layout.info.n_frames == layout.info.lost[0].frame == 2


def oracle_from_mdanalysis_offsets(path: Path) -> None:
    """Let MDAnalysis store its offsets of a file whose last frame it cannot read."""
    from MDAnalysis.coordinates.XTC import XTCReader

    XTCReader(str(path)).close()
    assert path.with_name(f".{path.name}_offsets.npz").is_file()


def test_a_file_that_shrinks_after_it_was_opened(tmp_path, side):
    path = write(tmp_path / "a.xtc", chain(60, np.random.default_rng(5))[None].repeat(3, axis=0))
    with XTCLayout(path) as layout:
        size = layout.info.nbytes
        with path.open("r+b") as file:
            file.truncate(size - 200)
        with pytest.raises(SourceError, match=r"a\.xtc: "):
            layout.read(0, 3)
