"""Splitting: every frame as it was, to the bit, and every segment a file of its own."""

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from itertools import accumulate, pairwise
from pathlib import Path

import google_crc32c
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from MDAnalysisTests.datafiles import (
    DCD,
    DCD_NAMD_TRICLINIC,
    GRO,
    NCDF,
    PSF,
    TRR,
    XTC,
    PRMncdf,
    TRR_multi_frame,
    XTC_multi_frame,
)
from scipy.io import netcdf_file
from segment_cases import (
    joined_oracle,
    make_block,
    manifest_of_folder,
    segment_paths,
    silent_universe,
    write_segments,
)
from suites.layout_reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

from mdio.converters.split import split
from mdio.core import copying
from mdio.core.errors import OutputError, PlanError, SourceError
from mdio.core.index import load_index
from mdio.layouts.registry import open_layout
from mdio.layouts.segments import SegmentsLayout

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")

SOURCES = {"xtc": (GRO, XTC), "trr": (GRO, TRR), "dcd": (PSF, DCD), "ncdf": (PRMncdf, NCDF)}


def copy_of(path: str, folder: Path) -> Path:
    """Copy a file of the tests' data, so that no index is left beside it."""
    return Path(shutil.copy(path, folder / Path(path).name))


def raw_frames(path: Path) -> list[bytes]:
    """Find the bytes of each frame without mdio."""
    data = path.read_bytes()
    if path.suffix in (".xtc", ".trr"):
        with {".xtc": XTCFile, ".trr": TRRFile}[path.suffix](str(path)) as file:
            edges = [*file.offsets.tolist(), len(data)]
        return [data[a:b] for a, b in pairwise(edges)]
    if path.suffix == ".dcd":
        records, at = [], 0
        while at < len(data):
            nbytes = struct.unpack_from("<i", data, at)[0] + 8
            records.append(data[at : at + nbytes])
            at += nbytes
        has_cell = struct.unpack_from("<i", data, 4 + 44)[0]
        each, frames = 3 + has_cell, records[3:]
        return [b"".join(frames[i : i + each]) for i in range(0, len(frames), each)]
    with netcdf_file(path, mmap=False) as file:
        n_frames, nbytes = file.variables["time"].shape[0], file._recsize
    begin = len(data) - n_frames * nbytes
    return [data[begin + i * nbytes : begin + (i + 1) * nbytes] for i in range(n_frames)]


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

    from mdio.core import xtc_codec
    from mdio.layouts import xtc

    monkeypatch.setattr(xtc_codec, "scan", scan)
    monkeypatch.setattr(xtc, "scan", scan, raising=False)
    monkeypatch.setitem(sys.modules["mdio.converters.byte_frames"].SCANS, "xtc", scan)
    split(source, tmp_path / "out.segments", 3)
    names = sorted(path.name for path in (tmp_path / "out.segments" / "000").glob(".*"))
    assert names == [f".seg-00000{n}.xtc.mdio-index" for n in range(3)]
    with SegmentsLayout(tmp_path / "out.segments") as layout:
        layout.read(0, 10)


def test_several_files_are_joined(tmp_path):
    sources = [copy_of(XTC, tmp_path)]
    sources += [Path(shutil.copy(XTC, tmp_path / "b.xtc"))]
    split(sources, tmp_path / "out.segments", 3)
    expected = raw_frames(sources[0]) + raw_frames(sources[1])
    files = segment_paths(tmp_path / "out.segments")
    found = [raw_frames(file) for file in files]
    assert [len(frames) for frames in found] == [7, 7, 6]
    assert [frame for frames in found for frame in frames] == expected
    for file, frames in zip(files, found, strict=True):
        index = load_index(file, lambda path: pytest.fail("scanned"))
        assert index.offsets.tolist() == [0, *accumulate(map(len, frames))][:-1]
        assert (index.nbytes, index.n_atoms) == (file.stat().st_size, 47681)
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
    with pytest.raises(SourceError, match="only files of the same atoms"):
        split([XTC, XTC_multi_frame], tmp_path / "out.segments", 3)
    assert list(tmp_path.iterdir()) == []


def test_fixed_atoms_are_decoded(tmp_path):
    """DCD files with fixed atoms hold them in the first frame alone."""
    from MDAnalysisTests import datafiles

    source = copy_of(DCD, tmp_path)
    data = bytearray(source.read_bytes())
    n_atoms, n_frames = 3341, 98
    frames = raw_frames(source)
    free = np.arange(2, n_atoms + 1, dtype="<i4")  # all but the first one
    data[4 + 36 : 4 + 40] = struct.pack("<i", 1)
    header = bytes(data[: source.stat().st_size - sum(map(len, frames))])
    record = struct.pack("<i", free.nbytes)
    out = [header, record + free.tobytes() + record, frames[0]]
    marker = struct.pack("<i", 4 * (n_atoms - 1))
    plane = 4 * n_atoms + 8
    for frame in frames[1:]:
        for axis in range(3):
            begin = axis * plane + 4
            out.append(marker + frame[begin + 4 : begin + 4 * n_atoms] + marker)
    (tmp_path / "fixed.dcd").write_bytes(b"".join(out))
    oracle = oracle_from_mdanalysis(None, tmp_path / "fixed.dcd")
    assert oracle.n_frames == n_frames and datafiles
    result = split(tmp_path / "fixed.dcd", tmp_path / "out.segments", 5)
    assert not result.copied and result.plan.container == "dcd"
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, oracle.positions)
    np.testing.assert_allclose(found.time, oracle.time, rtol=1e-6)


def test_netcdf4_is_decoded(tmp_path):
    with netCDF4.Dataset(NCDF) as old, netCDF4.Dataset(tmp_path / "a.ncdf", "w") as new:
        new.setncatts({name: old.getncattr(name) for name in old.ncattrs()})
        for name, dimension in old.dimensions.items():
            new.createDimension(name, None if dimension.isunlimited() else len(dimension))
        for name, variable in old.variables.items():
            made = new.createVariable(name, variable.dtype, variable.dimensions)
            made.setncatts({key: variable.getncattr(key) for key in variable.ncattrs()})
            made[:] = variable[:]
    result = split(tmp_path / "a.ncdf", tmp_path / "out.segments", 3)
    assert not result.copied and result.plan.container == "ncdf"
    expected = oracle_from_mdanalysis(PRMncdf, NCDF)
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.time, expected.time)


def test_several_dcd_files_are_decoded(tmp_path):
    result = split([DCD_NAMD_TRICLINIC] * 2, tmp_path / "out.segments", 2)
    assert not result.copied
    expected = oracle_from_mdanalysis(None, DCD_NAMD_TRICLINIC)
    found = joined_oracle(tmp_path / "out.segments")
    np.testing.assert_array_equal(found.positions, np.concatenate([expected.positions] * 2))


def test_more_segments_than_frames(tmp_path):
    with pytest.raises(PlanError, match=r"11 segments.*10 frames"):
        split(XTC, tmp_path / "out.segments", 11)
    with pytest.raises(PlanError, match="0 segments"):
        split(XTC, tmp_path / "out.segments", 0)
    assert list(tmp_path.iterdir()) == []


def test_existing_output(tmp_path):
    split(XTC, tmp_path / "out.segments", 2)
    before = (tmp_path / "out.segments" / "manifest.json").read_bytes()
    with pytest.raises(OutputError, match="--force"):
        split(XTC, tmp_path / "out.segments", 3)
    assert (tmp_path / "out.segments" / "manifest.json").read_bytes() == before
    split(XTC, tmp_path / "out.segments", 3, force=True)
    assert len(segment_paths(tmp_path / "out.segments")) == 3
    with pytest.raises(OutputError, match="is the source"):
        split(tmp_path / "out.segments", tmp_path / "out.segments", 2, force=True)


def test_missing_and_damaged_sources(tmp_path):
    with pytest.raises(SourceError, match=r"no\.xtc"):
        split(tmp_path / "no.xtc", tmp_path / "out.segments", 2)
    source = copy_of(XTC, tmp_path)
    os.truncate(source, source.stat().st_size - 100)
    with pytest.raises(SourceError, match=source.name):
        split(source, tmp_path / "out.segments", 2)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_a_source_that_is_cut_while_it_is_copied(tmp_path, monkeypatch):
    source = copy_of(XTC, tmp_path)
    open_layout(source).read(0, 1)
    real = os.preadv

    def cut(fd, buffers, offset):
        if "seg" not in str(Path(f"/proc/self/fd/{fd}").readlink()) and offset > 100_000:
            return 0
        return real(fd, buffers, offset)

    monkeypatch.setattr(copying.os, "preadv", cut)
    with pytest.raises(SourceError, match=rf"{source.name}: it ends at byte"):
        split(source, tmp_path / "out.segments", 2)
    assert not (tmp_path / "out.segments").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, workers):
    (tmp_path / "sub").mkdir()
    real, calls = os.pwrite, []

    def full(fd, data, offset):
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(copying.os, "pwrite", full)
    with pytest.raises(OutputError, match=r"out\.segments.*the disk is full") as caught:
        split(XTC, tmp_path / "sub" / "out.segments", 4, workers=workers)
    assert ".mdio-" not in str(caught.value)
    assert list((tmp_path / "sub").iterdir()) == []


def test_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(OutputError, match="only 5 are free"):
        split(XTC, tmp_path / "out.segments", 2)
    assert list(tmp_path.iterdir()) == []


WORK = """
import os, sys, time
from mdio.core import copying
from mdio.converters.split import split
real = os.pwrite
def slow(fd, data, offset):
    os.write(1, b"working\\n")
    time.sleep(0.2)
    return real(fd, data, offset)
copying.os.pwrite = slow
split(sys.argv[1], sys.argv[2], 4, force=True, workers=2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_half_way(tmp_path, number):
    source, target = copy_of(XTC, tmp_path), tmp_path / "out.segments"
    split(source, target, 2)
    child = subprocess.Popen(
        [sys.executable, "-c", WORK, str(source), str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    child.send_signal(number)
    errors = child.communicate(timeout=20)[1]
    assert first == "working\n", errors
    assert child.returncode != 0
    assert len(segment_paths(target)) == 2
    with SegmentsLayout(target) as layout:
        assert [problem for _, problem in layout.check()] == [None, None]
    unfinished = [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    assert len(unfinished) == (1 if number == signal.SIGKILL else 0)
    split(source, target, 3, force=True)
    assert [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


@pytest.mark.parametrize("kind", ["xtc", "dcd"])
def test_any_number_of_segments(tmp_path_factory, kind):
    folder = tmp_path_factory.mktemp("any")
    write_segments(folder / "a", make_block(17, 12), segments=1, container=kind)
    source = segment_paths(folder / "a")[0]
    expected = raw_frames(source)

    @given(st.integers(1, 17))
    @settings(
        max_examples=17,
        deadline=None,
        derandomize=True,
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


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_copying_without_copy_file_range(tmp_path, monkeypatch, code):
    data = os.urandom(1_000_003)
    (tmp_path / "a").write_bytes(data)

    def refuse(*args):
        raise OSError(code, os.strerror(code))

    for step in ("with", "without", "absent", "silent"):
        if step == "without":
            monkeypatch.setattr(os, "copy_file_range", refuse)
        elif step == "silent":
            monkeypatch.setattr(os, "copy_file_range", lambda *args: 0, raising=False)
        elif step == "absent":
            monkeypatch.delattr(os, "copy_file_range")
        with (tmp_path / "a").open("rb") as a, (tmp_path / step).open("w+b") as b:
            copying.copy_bytes(a.fileno(), 17, 900_001, b.fileno(), 5)
            crc = copying.copy_summed(a.fileno(), 17, 900_001, b.fileno(), 1_000_000)
        written = (tmp_path / step).read_bytes()
        assert written[5 : 5 + 900_001] == data[17 : 17 + 900_001] == written[1_000_000:]
        assert crc == google_crc32c.value(data[17 : 17 + 900_001])
        with (tmp_path / "a").open("rb") as a, (tmp_path / step).open("w+b") as b:
            for copy in (copying.copy_bytes, copying.copy_summed):
                with pytest.raises(SourceError, match="ends at byte 1000003"):
                    copy(a.fileno(), 1_000_000, 10, b.fileno(), 0)


def test_copying_into_a_full_disk(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(100))

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with (
        (tmp_path / "a").open("rb") as a,
        (tmp_path / "b").open("wb") as b,
        pytest.raises(OSError, match="No space"),
    ):
        copying.copy_bytes(a.fileno(), 0, 100, b.fileno(), 0)


def test_splitting_imports_no_mdanalysis(tmp_path):
    begun = time.perf_counter()
    code = """
import sys
from mdio.converters.split import split
split(sys.argv[1], sys.argv[2], 3)
assert not {"MDAnalysis", "h5py", "zarr", "netCDF4"} & set(sys.modules)
"""
    args = [sys.executable, "-c", code, str(DCD), str(tmp_path / "out.segments")]
    subprocess.run(args, check=True, timeout=60)
    assert time.perf_counter() - begun < 60


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_disk_in_the_end_is_not_lost(tmp_path, monkeypatch, workers):
    """A write that failed after it was taken is told by fsync, and only once."""
    real, told = os.fsync, []

    def fail_once(fd):
        if not told and str(Path(f"/proc/self/fd/{fd}").readlink()).endswith("seg-000001.xtc"):
            told.append(fd)
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OutputError, match=r"out\.segments.*Input/output error"):
        split(copy_of(XTC, tmp_path), tmp_path / "out.segments", 3, workers=workers)
    assert told and not (tmp_path / "out.segments").exists()


def test_big_endian_dcd(tmp_path):
    """The header is patched in the byte order of the file."""
    write_segments(tmp_path / "a", make_block(7, 5), segments=1, container="dcd")
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
