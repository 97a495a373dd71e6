"""What an earlier run stored is not done again: all of it, in each format."""

import errno

import pytest

import mdio
from mdio.core.errors import OutputError
from mdio.core.files.journal import Journal, find_unfinished
from mdio.layouts import plan
from mdio.layouts.native import encoder


@pytest.mark.parametrize(
    ("out", "storage"),
    [
        ("a.zarr", {"chunk_frames": 4}),
        ("a.h5md", {"chunk_frames": 4}),
        ("a.segments", {"segments": 9}),
        ("a.segments", {"segments": 9, "container": "xtc"}),
        ("a.segments", {"segments": 9, "container": "trr"}),
        ("a.xtc", {}),
        ("a.ncdf", {}),
    ],
    ids=str,
)
def test_every_piece_on_record_is_taken(adk, tmp_path, monkeypatch, out, storage):
    add, sizes = Journal.add, []

    def full(self, record, files):
        add(self, record, files)
        sizes.append(record.n_frames)
        if len(sizes) == 3:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(plan, "MIN_PIECE_NBYTES", 1)
    monkeypatch.setattr(encoder, "DECODED_PIECE_NBYTES", 1 << 19)
    options = {"storage": mdio.Storage(**storage)}
    with monkeypatch.context() as there:
        there.setattr(Journal, "add", full)
        with pytest.raises(OutputError, match="use --resume to continue"):
            mdio.convert(adk["dcd"], tmp_path / out, **options)
    [temporary] = tmp_path.glob(".*.tmp")
    assert find_unfinished(temporary).n_frames == sum(sizes) < 98
    done = mdio.convert(adk["dcd"], tmp_path / out, resume=True, **options)
    assert done.resumed_frames == sum(sizes)
