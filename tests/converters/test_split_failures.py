"""Splitting that fails: bad sources, full and failing disks, killed processes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests.datafiles import (
    DCD,
    TRR,
    XTC,
)
from suites.segment_cases import (
    copy_of,
    raw_frames,
    segment_paths,
)

import mdio
from mdio.cli.main import main
from mdio.converters.convert import prepare, split
from mdio.converters.options import ConversionOptions
from mdio.core.errors import OutputError, PlanError, SourceError
from mdio.core.files import writing
from mdio.layouts.registry import open_layout
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.parallel.executors import Serial

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")


def test_more_segments_than_frames(tmp_path):
    with pytest.raises(PlanError, match=r"11 segments.*10 frames"):
        split(XTC, tmp_path / "out.segments", 11)
    with pytest.raises(PlanError, match="0 segments"):
        split(XTC, tmp_path / "out.segments", 0)
    with pytest.raises(PlanError, match="3 segments asked for, of 1 frame to store"):
        mdio.convert(XTC, tmp_path / "out.segments", stop=1, storage=mdio.Storage(segments=3))
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
    assert {path.name for path in tmp_path.iterdir()} - {f".{source.name}.mdio-index"} == {
        source.name
    }


def test_a_source_that_is_cut_while_it_is_copied(tmp_path, monkeypatch):
    source = copy_of(XTC, tmp_path)
    open_layout(source).read(0, 1)
    real = os.preadv

    def cut(fd, buffers, offset):
        if "seg" not in str(Path(f"/proc/self/fd/{fd}").readlink()) and offset > 100_000:
            return 0
        return real(fd, buffers, offset)

    monkeypatch.setattr(writing.os, "preadv", cut)
    with pytest.raises(SourceError, match=rf"{source.name}: (it ends at byte|frame 9 at byte)"):
        split(source, tmp_path / "out.segments", 2)
    assert not (tmp_path / "out.segments").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, workers):
    (tmp_path / "sub").mkdir()
    real, calls = os.pwritev, []

    def full(fd, data, offset):
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(writing.os, "pwritev", full)
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
from mdio.core.files import writing
from mdio.cli.main import main
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.converters.convert import split
real = os.pwritev
def slow(fd, data, offset):
    if ".tmp" in os.readlink(f"/proc/self/fd/{fd}"):
        os.write(1, b"working\\n")
        time.sleep(0.5)
    return real(fd, data, offset)
writing.os.pwritev = slow
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
    errors = child.communicate(timeout=100)[1]
    assert first == "working\n", errors
    assert child.returncode != 0
    assert len(segment_paths(target)) == 2
    with SegmentsLayout(target) as layout:
        assert [problem for _, problem in layout.check()] == [None, None]
    unfinished = [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    assert len(unfinished) == (1 if number == signal.SIGKILL else 0), sorted(tmp_path.iterdir())
    split(source, target, 3, force=True)
    assert [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


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
            writing.copy_bytes(a.fileno(), 17, 900_001, b.fileno(), 5)
            writing.write_sliced(b.fileno(), memoryview(data)[17:900_018], 1_000_000)
        written = (tmp_path / step).read_bytes()
        assert written[5 : 5 + 900_001] == data[17 : 17 + 900_001] == written[1_000_000:]
        with (
            (tmp_path / "a").open("rb") as a,
            (tmp_path / step).open("w+b") as b,
            pytest.raises(SourceError, match="ends at byte 1000003"),
        ):
            writing.copy_bytes(a.fileno(), 1_000_000, 10, b.fileno(), 0)


@pytest.mark.parametrize(
    ("call", "code", "error", "message"),
    [
        ("pwritev", errno.ENOSPC, OSError, "No space"),
        ("preadv", errno.EIO, SourceError, "byte 0 cannot be read"),
    ],
)
def test_copying_says_which_file_failed(tmp_path, monkeypatch, call, code, error, message):
    """In the kernel, errors of both files have one number."""
    (tmp_path / "a").write_bytes(bytes(100))

    def fail(*args):
        raise OSError(code, os.strerror(code))

    for name in ("copy_file_range", call):
        monkeypatch.setattr(os, name, fail)
    with (
        (tmp_path / "a").open("rb") as a,
        (tmp_path / "b").open("wb") as b,
        pytest.raises(error, match=message),
    ):
        writing.copy_bytes(a.fileno(), 0, 100, b.fileno(), 0)


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


@pytest.mark.parametrize("change", ["grown", "touched", "replaced", "overwritten"])
@pytest.mark.parametrize("copied", [True, False])
def test_a_source_that_changes_while_it_is_read(tmp_path, change, copied):
    """Whatever was read of it is not published."""
    source = copy_of(XTC, tmp_path)
    out = tmp_path / ("out.segments" if copied else "out.trr")
    conversion = prepare(source, out, ConversionOptions.of(segments=3 if copied else None))
    data = bytearray(source.read_bytes())
    if change == "grown":
        source.write_bytes(data + data)
    elif change == "touched":
        os.utime(source, ns=(5, 5))
    elif change == "replaced":
        state = source.stat()
        source.rename(tmp_path / "old")
        source.write_bytes(data)
        os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    else:
        state = source.stat()
        data[11] ^= 1  # in the step of the first frame
        source.write_bytes(data)
        os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    with Serial() as executor, pytest.raises(SourceError, match="changed while it was read"):
        conversion.run(executor)
    conversion.close()
    assert not out.exists()


@pytest.mark.parametrize("kind", ["xtc", "trr", "dcd"])
def test_frames_that_cannot_be_read_are_not_published(tmp_path, kind):
    """Damage that the headers of frames do not tell of, and such that came after the index."""
    source = copy_of({"xtc": XTC, "trr": TRR, "dcd": DCD}[kind], tmp_path)
    conversion = prepare(source, tmp_path / "out.segments", ConversionOptions.of(segments=3))
    state = source.stat()
    data = bytearray(source.read_bytes())
    edges = np.cumsum([0, *map(len, raw_frames(source))]) + len(data)
    begin = int(edges[5] - edges[-1])
    data[begin : begin + 400] = b"\xff" * 400  # in the head of a frame in the middle
    source.write_bytes(data)
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    with Serial() as executor, pytest.raises(SourceError, match=source.name):
        conversion.run(executor)
    conversion.close()
    assert not (tmp_path / "out.segments").exists()


def test_a_packed_frame_that_does_not_decode_is_not_published(tmp_path):
    source = copy_of(XTC, tmp_path)
    data = bytearray(source.read_bytes())
    edges = np.cumsum([0, *map(len, raw_frames(source))])
    data[int(edges[4]) + 92 : int(edges[5])] = b"\xff" * int(edges[5] - edges[4] - 92)
    source.write_bytes(data)
    with pytest.raises(SourceError, match=r"frame 4.*do not decode"):
        split(source, tmp_path / "out.segments", 3)
    assert not (tmp_path / "out.segments").exists()


def test_names_of_other_layouts_are_refused(tmp_path, capsys):
    source = copy_of(XTC, tmp_path)
    assert main(["split", str(source), str(tmp_path / "e.zarr"), "-n", "2"]) == 2
    told = capsys.readouterr().err
    assert "e.segments" in told and "mdio convert" in told
    with pytest.raises(PlanError, match=r"e\.segments"):
        split(source, tmp_path / "e.xtc", 2)
    assert not list(tmp_path.glob("e.*"))


KEEP_ALL = ("--overlap", "keep-all")


def test_it_is_told_when_bytes_are_not_copied(tmp_path, capsys):
    first, second = copy_of(DCD, tmp_path), tmp_path / "again.dcd"
    second.write_bytes(first.read_bytes())
    out = tmp_path / "out.segments"
    assert main(["split", str(first), str(second), str(out), "-n", "3", *KEEP_ALL]) == 0
    told = capsys.readouterr().out
    assert "decoded and encoded again, as dcd" in told and "evened out" in told
