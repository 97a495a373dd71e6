"""The seal of a file that is made now: where nothing was written, nothing is read."""

import os

import h5py
import numpy as np
import pytest
from suites.h5md_cases import make_block, new_writer

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.reading import OpenFile
from mdio.layouts.h5md.disk import _has_writes, check_seal
from mdio.testing.blocks import store_piece


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, [True, True, True]),
        ([], [False, False, False]),
        ([(0, 10)], [True, False, False]),
        ([(10, 10)], [False, False, False]),  # a chunk's
        ([(19, 2)], [False, True, False]),
        ([(29, 1), (0, 1)], [True, True, False]),
        ([(12, 100), (13, 1)], [False, True, True]),
        ([(49, 50)], [False, False, True]),
    ],
)
def test_what_was_reached(written, expected):
    assert _has_writes([(0, 10), (20, 30), (40, 50)], written) == expected


@pytest.fixture
def written(tmp_path):
    """A writer of chunks that lie on stripes, all of them stored."""
    block = make_block(430, 1500)
    writer = new_writer(tmp_path / "x.h5md", block, groups={"some": range(700)})
    writer.create()
    for piece in writer.plan.write_tasks():
        writer.commit(store_piece(writer, block, piece))
    yield writer
    writer.abort()


def _chunks(path):
    """Return (offset, bytes) of all chunks, as HDF5 has it."""
    with h5py.File(path) as file:
        ids = [file[f"particles/{name}/position/value"].id for name in ("trajectory", "some")]
        infos = [one.get_chunk_info(k) for one in ids for k in range(one.get_num_chunks())]
    return [(one.byte_offset, one.size) for one in infos]


def _problem(path, chunks):
    """Return what a look at all that lies between the chunks finds."""
    with OpenFile(path, ValueError) as file:
        try:
            check_seal(file, [(np.array([at]), np.array([n])) for at, n in chunks], "it")
        except CorruptLayoutError as error:
            return str(error)
    return None


def test_holes_are_not_read(written, monkeypatch):
    read, real = [], os.preadv

    def reading(fd, buffers, offset, *args):
        read.append((offset, offset + sum(map(len, buffers))))
        return real(fd, buffers, offset, *args)

    monkeypatch.setattr(os, "preadv", reading)
    written.finish()
    monkeypatch.undo()
    chunks = _chunks(written.path)
    (offset, nbytes), (following, _) = chunks[1:3]
    hole = offset + nbytes, following
    assert hole[1] - hole[0] > 4000 and read
    assert not [(a, b) for a, b in read if a < hole[1] and b > hole[0]]
    assert _problem(written.path, chunks) is None


def test_what_strangers_write_into_a_hole_is_seen(written):
    written.finish()
    chunks = _chunks(written.path)
    with written.path.open("r+b") as file:
        file.seek(sum(chunks[1]) + 5)
        file.write(b"\1")
    assert "expected" in _problem(written.path, chunks)
