"""TRR files against MDAnalysis: GROMACS' own, and files made here of every kind of frame."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests import datafiles
from suites.native_files import trr_frame, write_trr

from mdio.core.errors import MdioError, SourceError
from mdio.core.frames import absent_frames
from mdio.layouts.native.trr import TRRLayout
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis


def linked(name: str, folder: Path) -> Path:
    """Return a link to a file of MDAnalysisTests, so that its index lies in our folder."""
    target = Path(getattr(datafiles, name))
    link = folder / target.name
    if not link.exists():
        link.symlink_to(target)
    return link


@cache
def mdanalysis_oracle(path: Path):
    return oracle_from_mdanalysis(None, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trr")


@pytest.mark.parametrize("name", ["TRR", "TRR_multi_frame", "COORDINATES_TRR"])
class TestFilesOfMDAnalysis(LayoutReadingTests):
    @pytest.fixture
    def case(self, name, folder):
        path = linked(name, folder)
        return ReadingCase(TRRLayout, path, mdanalysis_oracle(path))


KINDS = {
    "all": (["xvf"] * 5, {}),
    "positions": (["x"] * 5, {}),
    "no-box": (["xv"] * 5, {"box": False}),
    "double": (["xvf"] * 5, {"double": True}),
    "virial": (["xp"] * 5, {}),
    "sometimes-velocities": (["xv", "x", "x", "xv", "x", "x", "xvf", "xv"], {}),
    "velocities-later": (["x", "x", "xv", "x"], {}),
    "as-long-but-different": (["xv", "xf", "xv", "xv", "xf"], {}),
    "double-sometimes": (["xv", "x", "x", "xf"], {"double": True}),
}


@pytest.mark.parametrize("kind", KINDS)
class TestKinds(LayoutReadingTests):
    @pytest.fixture
    def case(self, kind, folder):
        path = folder / f"{kind}.trr"
        parts, options = KINDS[kind]
        if not path.exists():
            write_trr(path, parts, **options)
        oracle = mdanalysis_oracle(path)
        if kind == "no-box":  # MDAnalysis gives whatever was in memory
            oracle = replace(oracle, box=np.zeros_like(oracle.box))
        return ReadingCase(TRRLayout, path, oracle)


@pytest.mark.parametrize("double", [False, True])
class TestLargeFrames(LayoutReadingTests):
    """Frames large enough that narrow selections are read alone."""

    @pytest.fixture
    def case(self, double, folder):
        path = folder / f"large-{double}.trr"
        if not path.exists():
            write_trr(path, ["xvf", "xvf", "x", "xv", "xf", "xf"], 20_000, double=double)
        return ReadingCase(TRRLayout, path, mdanalysis_oracle(path))


@pytest.fixture
def count_read_bytes(monkeypatch):
    n_read = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: n_read.append(real(*args)) or n_read[-1])
    return n_read


def test_a_narrow_selection_reads_few_bytes(folder, count_read_bytes):
    path = write_trr(folder / "narrow.trr", ["xvf"] * 6, 20_000)
    with TRRLayout(path, fields=("positions",)) as layout:
        _ = layout.info
        count_read_bytes.clear()
        layout.read(0, 6, atoms=np.arange(300, 400))
        head_nbytes = 68  # of the first frame, before its step: the others are like it
        assert sum(count_read_bytes) == 6 * (1200 + 84 + 36) + head_nbytes
        count_read_bytes.clear()
        layout.read(0, 6)
        assert sum(count_read_bytes) == 6 * (240_000 + 84 + 36) + head_nbytes


def test_a_single_frame_has_an_interval_of_one(tmp_path):
    info = TRRLayout(write_trr(tmp_path / "one.trr", ["x"])).info
    assert (info.n_frames, info.dt_ps, info.time_first_ps, info.time_last_ps) == (1, 1.0, 0.0, 0.0)


def test_a_frame_without_positions_has_none(tmp_path):
    path = write_trr(tmp_path / "some.trr", ["xv", "v", "xv"])
    layout = TRRLayout(path)
    assert (layout.info.n_frames, layout.info.sparse) == (3, ("positions",))
    np.testing.assert_array_equal(absent_frames(layout.read(0, 3).positions), [False, True, False])
    block = layout.read(0, 3, atoms=[])
    np.testing.assert_array_equal(block.step, [0, 50, 100])
    assert layout.read(2, 3).n_frames == 1


@pytest.mark.parametrize(
    ("fields", "sparse"),
    [
        (["xv", "x"] * 100, ("velocities",)),
        (["xvf", *["x"] * 9] * 20, ("forces", "velocities")),
        (["x", "v", "x", "xv"] * 64, ("positions", "velocities")),
    ],
)
def test_what_every_frame_has_is_not_called_sparse(tmp_path, fields, sparse):
    info = TRRLayout(write_trr(tmp_path / "turns.trr", fields)).info
    assert (info.n_frames, info.sparse) == (len(fields), sparse)


def test_truncation_anywhere_leaves_whole_frames(tmp_path):
    raw = b"".join(trr_frame(number, 3, "xv") for number in range(3))
    path = tmp_path / "cut.trr"
    frame_nbytes = len(raw) // 3
    for nbytes in range(0, len(raw), 3):
        path.write_bytes(raw[:nbytes])
        if nbytes and nbytes % frame_nbytes == 0:
            assert TRRLayout(path).info.n_frames == nbytes // frame_nbytes
            continue
        if nbytes < frame_nbytes:
            with pytest.raises(SourceError, match="frame 0 is truncated"):
                TRRLayout(path).info  # noqa: B018
            continue
        with TRRLayout(path) as layout:
            n_frames, left = divmod(nbytes, frame_nbytes)
            (lost,) = layout.info.lost
            assert (lost.frame, lost.nbytes, layout.info.n_frames) == (n_frames, left, n_frames)
            assert layout.read(0, n_frames).n_frames == n_frames
    path.write_bytes(raw[: frame_nbytes - 5])
    with pytest.raises(SourceError, match=f"found {frame_nbytes - 5} of its {frame_nbytes} bytes"):
        TRRLayout(path).info  # noqa: B018


def test_offsets_of_mdanalysis_do_not_hide_a_truncated_frame(tmp_path):
    path = tmp_path / "cut.trr"
    path.write_bytes(b"".join(trr_frame(number, 3, "xv") for number in range(3)) + b"\0" * 50)
    oracle = oracle_from_mdanalysis(None, path)
    assert oracle.n_frames == 3
    assert (tmp_path / ".cut.trr_offsets.npz").exists()
    with TRRLayout(path) as layout:
        assert (layout.info.n_frames, layout.info.lost[0].nbytes) == (3, 50)


def test_offsets_of_mdanalysis_are_used(tmp_path):
    path = write_trr(tmp_path / "a.trr", ["x"] * 4)
    oracle = oracle_from_mdanalysis(None, path)
    import mdio.layouts.native.trr as module

    def refuse(path):
        raise AssertionError("scanned")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "scan", refuse)
        block = TRRLayout(path).read(0, 4)
    np.testing.assert_array_equal(block.positions, oracle.positions)


def test_damage_is_never_more_than_an_error(tmp_path):
    raw = b"".join(trr_frame(number, 3, "xv") for number in range(3))
    path = tmp_path / "damaged.trr"
    random = np.random.default_rng(8)
    n_errors = 0
    for attempt in range(300):
        damaged = bytearray(raw)
        for position in random.integers(0, 90 if attempt % 2 else len(raw), 2):
            damaged[position] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            with TRRLayout(path) as layout:
                layout.read(0, layout.info.n_frames)
        except MdioError as error:
            assert "damaged.trr" in str(error)
            n_errors += 1
    assert n_errors > 50


def checked_header(sizes: list[int], n_atoms: int) -> bytes:
    head = struct.pack(">iii", 1993, 13, 12) + b"GMX_trn_file"
    return head + struct.pack(">13i", *sizes, n_atoms, 0, 0) + struct.pack(">ff", 0, 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x00\x07\xc9",
        b"\xff" * 500,
        checked_header([0] * 10, 5),
        checked_header([0, 0, 36, 0, 0, 0, 0, 0, 0, 0], 2**31 - 1) + bytes(36),
        checked_header([0, 0, 0, 0, 0, 0, 0, -60, 0, 0], -5),
        checked_header([0, 0, 36, 0, 0, 0, 0, 60, 0, 0], 2**30) + bytes(96),
        checked_header([0, 0, 36, 0, 0, 0, 0, 2**31 - 4, 0, 0], 178956970) + bytes(96),
        checked_header([8, 0, 36, 0, 0, 0, 0, 60, 0, 0], 5) + bytes(104),
    ],
)
def test_other_bytes(tmp_path, raw):
    path = tmp_path / "other.trr"
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"other\.trr"):
        TRRLayout(path).info  # noqa: B018


def test_another_number_of_atoms_is_named(tmp_path):
    path = tmp_path / "mixed.trr"
    path.write_bytes(trr_frame(0, 3) + trr_frame(1, 4))
    with pytest.raises(SourceError, match="frame 1 has 4 atoms, the frames before have 3"):
        TRRLayout(path).info  # noqa: B018


def test_sniff(tmp_path):
    path = write_trr(tmp_path / "a.dat", ["x"])
    assert TRRLayout.sniff(path)
    assert not TRRLayout.sniff(tmp_path)
    assert not TRRLayout.sniff(Path(datafiles.XTC))
