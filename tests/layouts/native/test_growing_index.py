"""The index of a file that is being written goes on where it ended."""

import os

import numpy as np
import pytest

import mdio
from mdio.core.files.index import index_paths
from mdio.layouts.native import file as native_file


@pytest.fixture(params=["xtc", "trr"])
def written(request, adk, tmp_path):
    """Return a whole file, and where each frame of it ends."""
    path = tmp_path / f"whole.{request.param}"
    mdio.convert(adk["dcd"], path, stop=30)
    with mdio.open(path) as layout:
        _ = layout.info
        offsets = [*layout._index.offsets.tolist(), layout._index.end]
    return path, offsets


def look(path):
    with mdio.open(path) as layout:
        info = layout.info
        return info.n_frames, layout.read(0, info.n_frames).positions, info.lost


def test_only_what_is_new_is_read(written, tmp_path, monkeypatch):
    whole, offsets = written
    data = whole.read_bytes()
    with mdio.open(whole) as layout:
        expected = layout.read(0, 30).positions
    looked_at, n_scans = [], []
    peek, scan_fast = native_file.OpenFile.peek, native_file.scan_fast

    def counted(self, at, nbytes):
        looked_at.append((at, nbytes))
        return peek(self, at, nbytes)

    monkeypatch.setattr(native_file.OpenFile, "peek", counted)
    monkeypatch.setattr(
        native_file, "scan_fast", lambda *words: n_scans.append(1) or scan_fast(*words)
    )
    path = tmp_path / f"md{whole.suffix}"
    for number, more in ((5, 0), (5, 300), (12, 0), (13, 1000), (30, 0)):
        former = path.stat().st_size if path.exists() else 0
        looked_at.clear()
        path.write_bytes(data[: offsets[number] + more])
        os.utime(path, ns=(number, 10**9 * (number + more)))
        n_frames, positions, lost = look(path)
        assert n_frames == number and np.array_equal(positions, expected[:number])
        assert bool(lost) == bool(more)
        looked_at[:] = [one for one in looked_at if one[1] != 4096 and one[0]]
        # Left out: the ends of the former part, by which it is known, and the first header.
        if former:
            assert sum(nbytes for _, nbytes in looked_at) < 20 * 200
    assert len(n_scans) == 1


def test_what_is_another_file_is_scanned_again(written, tmp_path):
    whole, offsets = written
    data = whole.read_bytes()
    path = tmp_path / f"md{whole.suffix}"
    path.write_bytes(data[: offsets[5]])
    assert look(path)[0] == 5
    path.write_bytes(data[offsets[7] :])
    n_frames, positions, _ = look(path)
    with mdio.open(whole) as layout:
        assert n_frames == 23 and np.array_equal(positions, layout.read(7, 30).positions)


def test_garbage_behind_it_is_told_as_ever(written, tmp_path):
    whole, offsets = written
    path = tmp_path / f"md{whole.suffix}"
    path.write_bytes(whole.read_bytes()[: offsets[5]])
    assert look(path)[0] == 5
    with path.open("ab") as file:
        file.write(b"garbage" * 100)
    told = []
    for _ in range(2):
        with pytest.raises(mdio.core.errors.SourceError) as caught:
            look(path)
        told.append(str(caught.value))
        for where in index_paths(path):  # then without an index of the whole frames
            where.unlink(missing_ok=True)
    assert told[0] == told[1]


def test_frames_that_come_while_it_is_opened(written, tmp_path, monkeypatch):
    whole, offsets = written
    data, path = whole.read_bytes(), tmp_path / f"md{whole.suffix}"
    path.write_bytes(data[: offsets[12]])
    load_index = native_file.load_index

    def grown(*words):
        path.write_bytes(data[: offsets[20]])
        return load_index(*words)

    monkeypatch.setattr(native_file, "load_index", grown)
    n_frames, positions, lost = look(path)
    with mdio.open(whole) as layout:
        assert n_frames == 20 and np.array_equal(positions, layout.read(0, 20).positions)
    assert not lost
