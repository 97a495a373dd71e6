"""Reads by position: all that was asked for, or an error that says what was found."""

import errno
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files import reading
from mdio.core.files.reading import HandleCache, OpenFile, handles_allowed
from mdio.core.files.writing import write_all

DATA = np.random.default_rng(1).integers(0, 256, 3_000_000, dtype=np.uint8)


@pytest.fixture
def path(tmp_path):
    DATA.tofile(tmp_path / "a")
    return tmp_path / "a"


def short_reads(monkeypatch, nbytes):
    """Let the system give at most `nbytes` bytes a call, as it may."""
    real = os.preadv

    def preadv(fd, buffers, offset):
        return real(fd, [memoryview(buffers[0]).cast("B")[:nbytes]], offset)

    monkeypatch.setattr(os, "preadv", preadv)


@pytest.mark.parametrize("nbytes", [1 << 30, 70_000, 999])
def test_several_buffers_are_filled_whatever_comes_at_a_time(path, monkeypatch, nbytes):
    short_reads(monkeypatch, nbytes)
    parts = [
        np.empty((3, 100), np.float32),
        np.empty(0, np.uint8),
        np.empty(2_000_000, np.uint8),
        memoryview(bytearray(17)),
    ]
    with OpenFile(path) as file:
        file.fill(5, *parts)
        assert file.peek(2_999_990, 100) == DATA[-10:].tobytes()
        assert file.peek(4_000_000, 1) == b""
        np.testing.assert_array_equal(file.array(7, 20), DATA[7:27])
    found = b"".join(memoryview(part).cast("B") if part.nbytes else b"" for part in parts)
    assert found == DATA[5 : 5 + len(found)].tobytes()


def test_more_buffers_than_the_system_takes(path):
    parts = [np.empty(3, np.uint8) for _ in range(2500)]
    with OpenFile(path) as file:
        file.fill(1, *parts)
    np.testing.assert_array_equal(np.concatenate(parts), DATA[1:7501])


@pytest.mark.parametrize("error", [SourceError, CorruptLayoutError])
def test_what_ends_too_early(path, error):
    with OpenFile(path, error) as file:
        with pytest.raises(error, match="ends at byte 3000000, but bytes 2999999 to 3000008 were"):
            file.array(2_999_999, 10)
        os.truncate(path, 1000)
        with pytest.raises(error, match=r"byte 1000 \(it was 3000000 bytes long .* cut since\)"):
            file.array(990, 20)
        assert file.peek(995, 20) == DATA[995:1000].tobytes()


def test_what_cannot_be_opened_or_read(path, tmp_path, monkeypatch):
    with pytest.raises(SourceError, match="b: no such file"):
        OpenFile(tmp_path / "b")
    with pytest.raises(CorruptLayoutError, match=r"cannot be opened \(Not a directory\)"):
        OpenFile(path / "b", CorruptLayoutError)
    with pytest.raises(SourceError, match=r"cannot be opened \(Is a directory\)"):
        OpenFile(tmp_path)
    file = OpenFile(path)
    file.close()
    with pytest.raises(SourceError, match=rf"{path.name}: cannot be read \(Bad file descriptor\)"):
        file.status()


def test_the_first_long_read_is_split(path, monkeypatch):
    calls = []
    monkeypatch.setattr(reading, "read_first_bytes", lambda *words: calls.append(words[2]) or 0)
    with OpenFile(path) as file:
        file.array(0, 100)
        file.array(100, 2_000_000)
        file.array(200, 2_000_000)
    assert calls == [100]


class Handle:
    def __init__(self, key, log):
        self.key, self.log = key, log
        log.append(f"open {key}")

    def close(self):
        self.log.append(f"close {self.key}")


def test_handles_close_what_was_used_longest_ago():
    log = []
    kept = HandleCache(lambda key: Handle(key, log), 2)
    for key in "abac":
        assert kept[key].key == key
    assert log == ["open a", "open b", "close b", "open c"]
    assert list(kept) == ["a", "c"]
    kept.close()
    assert len(kept) == 0
    assert sorted(log[-2:]) == ["close a", "close c"]
    assert kept["b"].key == "b"


def test_a_handle_that_cannot_be_opened_is_not_kept():
    def fail(key):
        raise OSError(key)

    kept = HandleCache(fail, 2)
    with pytest.raises(OSError, match="a"):
        kept["a"]
    assert "a" not in kept


def test_handles_keep_to_what_the_process_may_have(monkeypatch):
    for soft, expected in ((1024, 100), (256, 32), (4, 1), (resource.RLIM_INFINITY, 100)):
        monkeypatch.setattr(reading.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert handles_allowed(100) == expected


def test_many_files_under_a_low_limit(tmp_path):
    code = f"""
import resource
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
from mdio.core.files.reading import HandleCache
from mdio.core.files.reading import OpenFile
files = HandleCache(lambda number: OpenFile(Path({str(tmp_path)!r}, str(number))), 100)
for number in range(100):
    Path({str(tmp_path)!r}, str(number)).write_bytes(b"%d" % number)
    assert files[number].peek(0, 9) == b"%d" % number
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("nbytes", [1 << 30, 100, 1])
def test_all_is_written_whatever_goes_at_a_time(tmp_path, monkeypatch, nbytes):
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: real(fd, [memoryview(parts[0])[:nbytes]], at)
    )
    parts = [b"abc", memoryview(b""), DATA[:700].view("<f4"), bytearray(b"z")]
    with (tmp_path / "a").open("wb", buffering=0) as file:
        assert write_all(file.fileno(), 4, *parts) == 708
    assert (tmp_path / "a").read_bytes() == b"\0" * 4 + b"abc" + DATA[:700].tobytes() + b"z"


def test_many_parts_are_written(tmp_path):
    with (tmp_path / "a").open("wb", buffering=0) as file:
        write_all(file.fileno(), 0, *[b"%04d" % number for number in range(3000)])
    assert (tmp_path / "a").read_bytes() == b"".join(b"%04d" % n for n in range(3000))


def test_a_call_that_writes_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with (tmp_path / "a").open("wb", buffering=0) as file, pytest.raises(OSError, match="output"):
        write_all(file.fileno(), 0, b"a")


def test_closing_is_quiet_where_the_mount_is_gone(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"abc")

    def gone(descriptor):
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    file = OpenFile(path)
    descriptor = file.fileno()
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", gone)
        file.close()
    os.close(descriptor)
    assert file.fileno() == -1
