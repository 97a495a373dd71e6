"""A mount that is gone: files cannot be read or written, and not even closed."""

import errno
import os
import stat
from pathlib import Path

import pytest

import mdio
from mdio.cli.main import main
from mdio.converters import repair as repairing
from mdio.core.errors import MdioError, OutputError


@pytest.mark.parametrize("name", ["a.h5md", "a.zarr", "a.dcd", "a.segments"])
def test_the_first_error_is_told(adk, tmp_path, monkeypatch, name):
    """With the name of the output, and not those that closing brings."""
    close, pwritev = os.close, os.pwritev
    lost = []

    def on_it(fd):
        status = os.fstat(fd)
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        return stat.S_ISREG(status.st_mode) and path.startswith(str(tmp_path))

    def gone():
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def write(fd, buffers, offset):
        if on_it(fd) and sum(memoryview(one).nbytes for one in buffers) > 10_000:
            lost.append(fd)
            gone()
        return pwritev(fd, buffers, offset)

    def shut(fd):
        is_lost = bool(lost) and on_it(fd)
        close(fd)
        if is_lost:
            gone()

    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "close", shut)
    with pytest.raises(OutputError, match=f"{name}.*Transport endpoint is not connected"):
        mdio.convert(adk["xtc"], tmp_path / name)
    assert lost
    monkeypatch.undo()
    mdio.convert(adk["xtc"], tmp_path / name, force=True)
    assert mdio.verify(tmp_path / name).ok


@pytest.mark.parametrize("name", ["a.h5md", "a.zarr", "a.segments"])
@pytest.mark.parametrize("look", [mdio.verify, mdio.repair])
def test_what_cannot_be_read_any_more_is_not_called_damaged(
    adk, tmp_path, monkeypatch, capsys, name, look
):
    """Nor repaired; a sector of a disk that cannot be read is damage."""
    out, preadv = tmp_path / name, os.preadv
    mdio.convert(adk["xtc"], out, storage=mdio.Storage(chunk_frames=None if "seg" in name else 10))
    number = errno.ENOTCONN

    def read(fd, buffers, offset, *flags):
        if offset > 50_000 and sum(memoryview(one).nbytes for one in buffers) > 10_000:
            raise OSError(number, os.strerror(number))
        return preadv(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", read)
    with pytest.raises(MdioError, match=f"{name}.*Transport endpoint is not connected"):
        look(out)
    if look is mdio.verify:
        assert main(["verify", str(out)]) == 1
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1 and "not connected" in err
        number = errno.EIO
        assert not mdio.verify(out).ok
    monkeypatch.undo()
    assert mdio.verify(out).ok


def test_frames_that_cannot_be_read_any_more_are_not_left_out(adk, tmp_path, monkeypatch):
    preadv, number = os.preadv, errno.ENOTCONN

    def read(fd, buffers, offset, *flags):
        source = Path(f"/proc/self/fd/{fd}").readlink() == adk["dcd"]
        if source and 800_000 < offset < 3_000_000:  # opening reads the last frame
            raise OSError(number, os.strerror(number))
        return preadv(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", read)
    with pytest.raises(MdioError, match="Transport endpoint is not connected"):
        mdio.convert(adk["dcd"], tmp_path / "a.zarr", salvage=True)
    number = errno.EIO
    mdio.convert(adk["dcd"], tmp_path / "b.zarr", salvage=True)
    assert 10 < mdio.open(tmp_path / "b.zarr").info.n_frames < 98


def test_frames_on_a_mount_that_is_lost_are_not_called_lost(adk, tmp_path, monkeypatch):
    """The mount goes after one piece was seen to be damaged, before its frames are looked for."""
    out, look, preadv = tmp_path / "a.zarr", repairing._check_units, os.preadv
    mdio.convert(adk["xtc"], out, storage=mdio.Storage(chunk_frames=10))
    shard = max(out.rglob("c.*"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:1000])

    def read(fd, buffers, offset, *flags):
        if sum(memoryview(one).nbytes for one in buffers) > 10_000:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return preadv(fd, buffers, offset, *flags)

    def look_and_lose(path):
        result = look(path)
        monkeypatch.setattr(os, "preadv", read)
        return result

    assert mdio.repair(out).lost_frames
    monkeypatch.setattr(repairing, "_check_units", look_and_lose)
    with pytest.raises(MdioError, match="Transport endpoint is not connected"):
        mdio.repair(out)
