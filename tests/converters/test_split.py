"""Splitting: every frame as it was, to the bit, and every segment a file of its own."""

import json
import shutil
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import google_crc32c
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import (
    DCD,
    GRO,
    NCDF,
    PSF,
    TRR,
    XTC,
    PRMncdf,
    TRR_multi_frame,
    XTC_multi_frame,
)
from suites.segment_cases import (
    copy_of,
    joined_oracle,
    manifest_of_folder,
    raw_frames,
    segment_paths,
    silent_universe,
    write_segments,
)

from mdio.converters.convert import split
from mdio.core.errors import SourceError
from mdio.core.files.index import load_index
from mdio.layouts.registry import open_layout
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.testing.blocks import random_block
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")

SOURCES = {"xtc": (GRO, XTC), "trr": (GRO, TRR), "dcd": (PSF, DCD), "ncdf": (PRMncdf, NCDF)}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("n_segments", [1, 3, 10])
@pytest.mark.parametrize("kind", SOURCES)
def test_frames_are_the_same_bytes(tmp_path, kind, n_segments, workers):
    source = copy_of(SOURCES[kind][1], tmp_path)
    seen = []
    result = split(
        source,
        tmp_path / "out.segments",
        n_segments,
        workers=workers,
        progress=lambda frames, nbytes: seen.append((frames, nbytes)),
    )
    expected = raw_frames(source)
    files = segment_paths(tmp_path / "out.segments")
    found = [raw_frames(file) for file in files]
    assert [frame for frames in found for frame in frames] == expected
    sizes = [len(frames) for frames in found]
    assert len(sizes) == n_segments and max(sizes) - min(sizes) <= 1
    assert (result.copied, result.n_frames, result.layout) == (True, len(expected), "segments")
    assert result.nbytes_in == source.stat().st_size
    assert result.nbytes_out == sum(file.stat().st_size for file in files)
    assert sum(frames for frames, _ in seen) == len(expected)
    wanted = "out layout n_frames n_atoms nbytes_in nbytes_out seconds workers plan copied"
    assert set(wanted.split()) <= set(result.to_json())
    json.dumps(result.to_json())
    with SegmentsLayout(tmp_path / "out.segments") as layout:
        assert [problem for _, problem in layout.check()] == [None] * n_segments


@pytest.mark.parametrize("kind", SOURCES)
def test_each_segment_opens_alone(tmp_path, kind):
    top, source = SOURCES[kind]
    split(source, tmp_path / "out.segments", 3)
    whole = silent_universe(top, str(copy_of(source, tmp_path))).trajectory
    frame = 0
    for file in segment_paths(tmp_path / "out.segments"):
        for ts in silent_universe(top, str(file)).trajectory:
            expected = whole[frame]
            np.testing.assert_array_equal(ts.positions, expected.positions)
            assert ts.time == pytest.approx(expected.time, rel=1e-12)
            assert (ts.dimensions is None) == (expected.dimensions is None)
            if ts.dimensions is not None:
                np.testing.assert_array_equal(ts.dimensions, expected.dimensions)
            if kind in ("xtc", "trr"):
                assert ts.data["step"] == expected.data["step"]
            frame += 1
    assert frame == whole.n_frames


SMALL = {"xtc": XTC_multi_frame, "trr": TRR_multi_frame, "dcd": DCD, "ncdf": NCDF}


@pytest.fixture(scope="module", params=SMALL)
def split_source(request, tmp_path_factory):
    source = SMALL[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    split(source, folder / "out.segments", 4)
    return folder / "out.segments", oracle_from_mdanalysis(None, copy_of(source, folder))


class TestReadingAsTheSource(LayoutReadingTests):
    """What comes back is what MDAnalysis reads from the source."""

    @pytest.fixture
    def case(self, split_source):
        path, oracle = split_source
        return ReadingCase(SegmentsLayout, path, oracle)


@pytest.mark.parametrize("kind", SOURCES)
def test_headers_count_their_own_frames(tmp_path, kind):
    split(SOURCES[kind][1], tmp_path / "out.segments", 3)
    rows = manifest_of_folder(tmp_path / "out.segments")["segments"]
    first = 0
    for row, file in zip(rows, segment_paths(tmp_path / "out.segments"), strict=True):
        n_frames = len(raw_frames(file))
        assert (row["first_frame"], row["n_frames"]) == (first, n_frames)
        assert row["crc32c"] == google_crc32c.value(file.read_bytes())
        if kind == "dcd":
            control = np.fromfile(file, "<i4", 3, offset=8)
            source = np.fromfile(DCD, "<i4", 3, offset=8)
            assert control.tolist() == [n_frames, source[1] + first * source[2], source[2]]
        if kind == "ncdf":
            with netCDF4.Dataset(file) as data:
                assert len(data.dimensions["frame"]) == n_frames
                assert data.Conventions == "AMBER"
        first += n_frames


def test_indexes_come_from_the_source(tmp_path, monkeypatch):
    source = copy_of(XTC, tmp_path)
    open_layout(source).read(0, 1)

    def scan(*args):
        raise AssertionError("scanned again")

    from mdio.core import xtc as xtc_codec
    from mdio.layouts.native import xtc

    monkeypatch.setattr(xtc_codec, "scan", scan)
    monkeypatch.setattr(xtc, "scan", scan, raising=False)
    split(source, tmp_path / "out.segments", 3)
    names = sorted(path.name for path in (tmp_path / "out.segments" / "000").glob(".*"))
    assert names == [f".seg-00000{n}.xtc.mdio-index" for n in range(3)]
    with SegmentsLayout(tmp_path / "out.segments") as layout:
        layout.read(0, 10)


def test_several_files_are_joined(tmp_path):
    sources = [copy_of(XTC, tmp_path)]
    sources += [Path(shutil.copy(XTC, tmp_path / "b.xtc"))]
    split(sources, tmp_path / "out.segments", 3, overlap="keep-all")
    expected = raw_frames(sources[0]) + raw_frames(sources[1])
    files = segment_paths(tmp_path / "out.segments")
    found = [raw_frames(file) for file in files]
    assert [len(frames) for frames in found] == [7, 7, 6]
    assert [frame for frames in found for frame in frames] == expected
    for file, frames in zip(files, found, strict=True):
        index = load_index(file, lambda path: pytest.fail("scanned"))
        assert index.offsets.tolist() == [0, *accumulate(map(len, frames))][:-1]
        assert (index.end, index.n_atoms) == (file.stat().st_size, 47681)
    with SegmentsLayout(tmp_path / "out.segments") as layout:
        oracle = joined_oracle(tmp_path / "out.segments")
        np.testing.assert_array_equal(layout.read(5, 16).positions, oracle.positions[5:16])
    assert len(manifest_of_folder(tmp_path / "out.segments")["source"]["files"]) == 2


def test_segments_can_be_split_again(tmp_path):
    split(XTC, tmp_path / "a.segments", 4)
    result = split(tmp_path / "a.segments", tmp_path / "b.segments", 3)
    assert result.copied
    found = [frame for file in segment_paths(tmp_path / "b.segments") for frame in raw_frames(file)]
    assert found == raw_frames(copy_of(XTC, tmp_path))


def test_files_of_other_atoms_are_not_joined(tmp_path):
    with pytest.raises(SourceError, match="join trajectories of the same atoms"):
        split([XTC, XTC_multi_frame], tmp_path / "out.segments", 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["xtc", "dcd"])
def test_any_number_of_segments(tmp_path_factory, kind):
    folder = tmp_path_factory.mktemp("any")
    write_segments(folder / "a", random_block(17, 12), segments=1, container=kind)
    source = segment_paths(folder / "a")[0]
    expected = raw_frames(source)

    @given(st.integers(1, 17))
    @settings(
        max_examples=17,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    def check(n_segments):
        out = folder / "b.segments"
        split(source, out, n_segments, force=True)
        found = [raw_frames(file) for file in segment_paths(out)]
        sizes = [len(frames) for frames in found]
        assert [frame for frames in found for frame in frames] == expected
        assert sizes == [len(part) for part in np.array_split(np.arange(17), n_segments)]
        rows = manifest_of_folder(out)["segments"]
        assert [row["first_frame"] for row in rows] == [0, *accumulate(sizes)][:-1]

    check()


def test_splitting_imports_no_mdanalysis(tmp_path):
    begun = time.perf_counter()
    code = """
import sys
from mdio.converters.convert import split
split(sys.argv[1], sys.argv[2], 3)
assert not {"MDAnalysis", "h5py", "zarr", "netCDF4"} & set(sys.modules)
"""
    args = [sys.executable, "-c", code, str(DCD), str(tmp_path / "out.segments")]
    subprocess.run(args, check=True, timeout=60)
    assert time.perf_counter() - begun < 60


def test_big_endian_dcd(tmp_path):
    """The header is patched in the byte order of the file."""
    write_segments(tmp_path / "a", random_block(7, 5), segments=1, container="dcd")
    raw = bytearray(segment_paths(tmp_path / "a")[0].read_bytes())
    swapped = np.frombuffer(raw, "<u4").byteswap().tobytes()
    out = bytearray(swapped)
    texts = [slice(4, 8), slice(100, 180)]  # CORD, title
    for text in texts:
        out[text] = raw[text]
    frame_nbytes, begin = 56 + 3 * (4 * 5 + 8), 196
    for frame in range(7):
        cell = slice(begin + frame * frame_nbytes + 4, begin + frame * frame_nbytes + 52)
        out[cell] = np.frombuffer(raw[cell], "<f8").byteswap().tobytes()
    (tmp_path / "big.dcd").write_bytes(out)
    expected = oracle_from_mdanalysis(None, tmp_path / "big.dcd")
    assert split(tmp_path / "big.dcd", tmp_path / "out.segments", 3).copied
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.box, expected.box)
    for file, n_frames, istart in zip(
        segment_paths(tmp_path / "out.segments"), (3, 2, 2), (5000, 5750, 6250), strict=True
    ):
        assert np.fromfile(file, ">i4", 3, offset=8).tolist() == [n_frames, istart, 250]
