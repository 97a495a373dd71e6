"""A mount that is gone while an output is written: files cannot be written, and not even closed."""

import errno
import os
import stat
from pathlib import Path

import pytest

import mdio
from mdio.core.errors import OutputError


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
