"""Writes past the page cache leave the same bytes as others, wherever they are refused."""

import errno
import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suites.outputs import as_options, contents

import mdio
from mdio.cli.main import main
from mdio.converters import storage
from mdio.converters.strategies import conversion, resuming
from mdio.converters.strategies.conversion import Conversion
from mdio.core.errors import OutputError, PlanError
from mdio.core.files import writing
from mdio.core.files.writing import WrittenFile, allocate
from mdio.layouts import plan
from mdio.layouts.native import encoder

BLOCK = 4096
NEW = os.O_RDWR | os.O_CREAT
real_open, real_pwritev = os.open, os.pwritev


class Disk:
    """Stands for a file system: any takes part, for O_DIRECT only marks descriptors.

    What is written to those is checked for alignment, counted, cut short or refused.
    """

    def __init__(self, monkeypatch, *, longest=None, fails=None, after=0):
        self.direct, self.nbytes = set(), 0
        self.longest, self.fails, self.after = longest, fails, after
        monkeypatch.setattr(writing, "_devices_without_direct", set())
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "pwritev", self._pwritev)

    def _open(self, path, flags, *args, **kwargs):
        fd = real_open(path, flags & ~os.O_DIRECT, *args, **kwargs)
        (self.direct.add if flags & os.O_DIRECT else self.direct.discard)(fd)
        return fd

    def _pwritev(self, fd, buffers, offset):
        if fd not in self.direct:
            return real_pwritev(fd, buffers, offset)
        if offset % BLOCK or any(len(part) % BLOCK for part in buffers):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        for part in buffers:
            assert np.frombuffer(part, np.uint8).ctypes.data % BLOCK == 0
        if self.fails is not None and self.nbytes >= self.after:
            raise OSError(self.fails, os.strerror(self.fails))
        if self.longest is not None:
            buffers = [buffers[0][: self.longest]]
        done = real_pwritev(fd, buffers, offset)
        self.nbytes += done
        return done


@pytest.fixture
def small(monkeypatch):
    """Make buffers so small that little is much."""
    monkeypatch.setattr(writing, "BUFFER_NBYTES", 4 * BLOCK)
    monkeypatch.setattr(writing, "MIN_DIRECT_NBYTES", BLOCK)
    monkeypatch.setattr(writing, "_buffers", writing._Buffers())


def write(path, runs, **options):
    with WrittenFile(path, NEW, direct=True, **options) as file:
        for offset, parts in runs:
            assert file.write(offset, *parts) == offset + sum(map(len, parts))
    return path.read_bytes()


def expected(runs):
    whole = bytearray(max((offset + sum(map(len, parts)) for offset, parts in runs), default=0))
    for offset, parts in runs:
        data = b"".join(parts)
        whole[offset : offset + len(data)] = data
    return bytes(whole)


def numbers(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8).tobytes()


sizes = st.sampled_from([0, 1, 4, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 7, 50_000])
offsets = st.one_of(st.integers(0, 9).map(lambda n: n * BLOCK), st.integers(0, 40_000))


@given(runs=st.lists(st.tuples(offsets, st.lists(sizes, max_size=5)), min_size=1, max_size=4))
@settings(max_examples=60)
@pytest.mark.parametrize("checked", [True, False])
def test_any_parts_at_any_offsets(tmp_path_factory, checked, runs):
    path = tmp_path_factory.mktemp("direct") / "a"
    runs = [
        (offset, [numbers(size, 10 * i + j) for j, size in enumerate(parts)])
        for i, (offset, parts) in enumerate(runs)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BUFFER_NBYTES", 4 * BLOCK)
        patch.setattr(writing, "MIN_DIRECT_NBYTES", BLOCK)
        patch.setattr(writing, "_buffers", writing._Buffers())
        if checked:
            Disk(patch)
        found = write(path, runs)
    assert found.ljust(len(expected(runs)), b"\0") == expected(runs)


def test_whole_blocks_go_directly_and_the_ends_do_not(tmp_path, monkeypatch, small):
    disk = Disk(monkeypatch)
    data = numbers(10 * BLOCK)
    assert write(tmp_path / "a", [(100, [data])])[100:] == data
    assert disk.nbytes == 9 * BLOCK


def test_little_goes_through_the_page_cache(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    write(tmp_path / "a", [(0, [numbers(writing.MIN_DIRECT_NBYTES - 1)])])
    assert disk.nbytes == 0


@pytest.mark.parametrize("longest", [BLOCK, BLOCK + 100, 1])
def test_calls_that_write_less_than_asked(tmp_path, monkeypatch, small, longest):
    """After a piece of a block the rest is refused, and goes through the page cache."""
    Disk(monkeypatch, longest=longest)
    data = numbers(11 * BLOCK + 5)
    assert write(tmp_path / "a", [(7, [data])])[7:] == data


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
@pytest.mark.parametrize("after", [0, 6 * BLOCK])
def test_a_file_system_that_refuses_half_way(tmp_path, monkeypatch, small, number, after):
    disk = Disk(monkeypatch, fails=number, after=after)
    data = numbers(13 * BLOCK + 5)
    assert write(tmp_path / "a", [(0, [data])]) == data
    before = disk.nbytes
    disk.fails = None
    assert write(tmp_path / "b", [(0, [data])]) == data  # it is not asked again
    assert disk.nbytes == before


def test_a_file_system_that_refuses_to_open(tmp_path, monkeypatch, small):
    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    data = numbers(13 * BLOCK + 5)
    assert write(tmp_path / "a", [(3, [data])])[3:] == data


def test_a_system_without_such_writes(tmp_path, monkeypatch, small):
    monkeypatch.delattr(os, "O_DIRECT")
    data = numbers(3 * BLOCK)
    assert write(tmp_path / "a", [(0, [data])]) == data


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_errors_are_errors(tmp_path, monkeypatch, small, number):
    Disk(monkeypatch, fails=number, after=4 * BLOCK)
    with pytest.raises(OSError, match=os.strerror(number)):
        write(tmp_path / "a", [(0, [numbers(13 * BLOCK)])])


def test_writing_goes_on_while_blocks_are_on_their_way(tmp_path, monkeypatch, small):
    """And what is said of the file (its descriptor) is said once they are there."""
    disk = Disk(monkeypatch)
    let_go, begun = threading.Event(), threading.Event()
    pwritev = os.pwritev

    def wait(fd, buffers, offset):
        if fd in disk.direct:
            begun.set()
            let_go.wait()
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", wait)
    data = bytearray(numbers(2 * writing.MIN_DIRECT_NBYTES))
    expected = bytes(data) + b"more"
    with WrittenFile(tmp_path / "a", NEW, direct=True) as file:
        file.write(0, data)
        file.write(len(data), b"more")  # waits in line
        data[:] = bytes(len(data))  # it was copied
        begun.wait()
        assert (tmp_path / "a").read_bytes() == b""
        let_go.set()
        assert os.pread(file.fileno(), 1 << 20, 0) == expected


def test_an_error_of_a_former_write_is_not_lost(tmp_path, monkeypatch, small):
    Disk(monkeypatch, fails=errno.EIO)
    file = WrittenFile(tmp_path / "a", NEW, direct=True)
    file.write(0, numbers(2 * BLOCK))
    with pytest.raises(OSError, match="Input/output"):
        file.close()
    file.close()


@pytest.mark.parametrize(("seconds", "fast"), [(1e-6, True), (1.0, False)])
def test_a_slow_disk_is_left_to_the_page_cache(tmp_path, monkeypatch, small, seconds, fast):
    """Its first writes show it, for all files there, and only where it is asked."""
    disk = Disk(monkeypatch)
    monkeypatch.setattr(writing, "_speed_trials", {})
    clock = iter(range(10**6))
    monkeypatch.setattr(writing.time, "perf_counter", lambda: seconds * next(clock))
    tried = writing.N_TRIAL_WRITES * writing.BUFFER_NBYTES
    data = numbers(2 * tried)
    for name in ("a", "b"):
        with WrittenFile(tmp_path / name, NEW, direct="auto") as file:
            file.write(0, data)
        assert (tmp_path / name).read_bytes() == data
    assert disk.nbytes == (4 * tried if fast else tried)
    write(tmp_path / "c", [(0, [data])])
    assert disk.nbytes == (6 * tried if fast else 3 * tried)


def test_no_descriptor_is_left_open(tmp_path, monkeypatch, small):
    before = set(Path("/proc/self/fd").iterdir())
    Disk(monkeypatch, fails=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        write(tmp_path / "a", [(0, [numbers(13 * BLOCK)])])
    file = WrittenFile(tmp_path / "b", NEW, direct=True)
    file.close()
    file.close()
    assert set(Path("/proc/self/fd").iterdir()) == before


def _fill(path, seed):
    for _ in range(20):
        data = numbers(writing.BUFFER_NBYTES, seed)
        with WrittenFile(path, NEW, direct=True) as file:
            file.write(0, data)
        assert path.read_bytes() == data


def test_forked_processes_have_buffers_of_their_own(tmp_path):
    _fill(tmp_path / "0", 0)  # before the fork
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_fill, args=(tmp_path / str(n), n)) for n in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_file_open_for_writing_is_not_copied_to_workers(tmp_path):
    with (
        WrittenFile(tmp_path / "a", NEW) as file,
        pytest.raises(TypeError, match="a: a file open for writing cannot be pickled"),
    ):
        pickle.dumps(file)


def test_places_on_disk_are_kept_without_changing_the_size(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with WrittenFile(path, os.O_RDWR) as file:
        given_places = allocate(file.fileno(), 1 << 20)
        assert not allocate(file.fileno(), 0)
    assert path.read_bytes() == b"abc"
    assert (path.stat().st_blocks * 512 >= 1 << 20) == given_places


OUTPUTS = [
    ("a.zarr", {"precision": "none"}),
    ("a.zarr", {}),
    ("a.h5md", {}),
    ("a.h5md", {"contiguous": True}),
    ("a.dcd", {}),
    ("a.xtc", {"start": 1}),
    ("a.segments", {"container": "ncdf", "segments": 3}),
]


@pytest.mark.parametrize(("name", "options"), OUTPUTS)
@pytest.mark.parametrize("workers", [1, 2])
def test_outputs_are_the_same(adk, tmp_path, monkeypatch, small, name, options, workers):
    """Apart from what tells two outputs from one another."""
    disk = Disk(monkeypatch)
    found = []
    for way in ("off", "on"):
        out = tmp_path / way / name
        out.parent.mkdir()
        result = mdio.convert(adk["xtc"], out, direct=way, workers=workers, **as_options(options))
        assert result.plan.writing.direct == (way == "on")
        assert (disk.nbytes > 0) == (way == "on") or workers == 2
        # What tells outputs from one another is in files of text, and in those of HDF5.
        data = {} if name == "a.h5md" else contents(out)
        found.append({file: data[file] for file in data if not file.endswith((".json", "idx"))})
        with mdio.open(out) as ours, mdio.open(adk["xtc"]) as source:
            first = options.get("start", 0)
            block = ours.read(0, 98 - first)
            np.testing.assert_array_equal(block.positions, source.read(first, 98).positions)
        assert mdio.verify(out).ok
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "options"), OUTPUTS)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_told_of_is_in_its_files(adk, tmp_path, monkeypatch, small, name, options, workers):
    """Another run goes on with it without looking at all of it again."""
    disk = Disk(monkeypatch)
    pwritev, note, record_of = os.pwritev, Conversion._record, resuming.journal_record
    told, writers = [], []

    def late(fd, buffers, offset):
        if fd in disk.direct:
            time.sleep(0.01)
        return pwritev(fd, buffers, offset)

    def keep_writer(self, writer, record):
        writers[:] = [writer]
        note(self, writer, record)

    def look(receipt):
        told.append(not writers or writers[0]._is_intact(receipt))
        return record_of(receipt)

    monkeypatch.setattr(os, "pwritev", late)
    monkeypatch.setattr(Conversion, "_record", keep_writer)
    monkeypatch.setattr(resuming, "journal_record", look)
    monkeypatch.setattr(conversion, "MAX_COMMIT_DELAY_S", 0.03)
    monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1 << 20)
    monkeypatch.setattr(encoder, "DECODED_PIECE_NBYTES", 1 << 20)
    mdio.convert(adk["xtc"], tmp_path / name, direct="on", workers=workers, **as_options(options))
    assert told
    assert all(told)


@pytest.mark.parametrize("suffix", ["zarr", "h5md", "dcd", "segments"])
def test_a_full_disk_leaves_nothing(adk, tmp_path, monkeypatch, small, suffix):
    Disk(monkeypatch, fails=errno.ENOSPC, after=100_000)
    options = {"container": "dcd"} if suffix == "segments" else {}
    with pytest.raises(OutputError, match=r"space|full"):
        mdio.convert(adk["xtc"], tmp_path / f"a.{suffix}", direct="on", **as_options(options))
    assert list(tmp_path.iterdir()) == []


def test_what_is_large_beside_memory_goes_directly(adk, tmp_path, monkeypatch, capsys):
    out = tmp_path / "a.h5md"
    size = 12 * 3341 * 98

    def directly(free, file_system="ext4", **options):
        monkeypatch.setattr(storage, "free_memory", lambda: free)
        monkeypatch.setattr(storage, "file_system_type", lambda _: file_system)
        return mdio.convert(adk["xtc"], out, force=True, **options).plan.writing.direct

    assert directly(3 * size)
    assert not directly(5 * size)
    assert not directly(0)
    assert not directly(3 * size, "lustre")
    monkeypatch.setattr(storage, "LARGE_NBYTES", size // 2)
    assert directly(5 * size) == directly(0) == "auto"
    assert not directly(5 * size, "lustre")
    monkeypatch.setattr(storage, "LARGE_NBYTES", 2 * size)
    assert directly(5 * size, direct="on")
    assert not directly(3 * size, direct="off")
    # Compressed chunks of HDF5 are written by HDF5, copied frames by the kernel.
    assert directly(3 * size, compression="gzip:1") is None
    with pytest.raises(PlanError, match="on, off, auto"):
        directly(size, direct="yes")
    # An XTC's own integers take about the bytes of the XTC.
    out = tmp_path / "a.zarr"
    assert not directly(3 * size)
    assert directly(3 * adk["xtc"].stat().st_size)
    assert main(["convert", str(adk["xtc"]), str(out), "--direct", "on", "--dry-run"]) == 0
    assert "bypass the page cache" in capsys.readouterr().out


def test_a_descriptor_that_fails_to_close_is_not_closed_again(tmp_path, monkeypatch):
    """As on a mount that is lost; its number may be that of another file by then."""
    closed = []

    def gone(descriptor):
        closed.append(descriptor)
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    path = tmp_path / "a"
    path.touch()
    file = WrittenFile(path, direct=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", gone)
        with pytest.raises(OSError, match="not connected"):
            file.close()
        file.close()
    for descriptor in closed:
        os.close(descriptor)
    assert len(closed) == len(set(closed)) >= 1
