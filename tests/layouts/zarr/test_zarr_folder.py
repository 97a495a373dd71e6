"""What goes wrong with the folder of a tree and its files is told with the name of the file."""

import os

import pytest

from mdio.core.errors import CorruptLayoutError
from mdio.layouts.zarr import folder as folders
from mdio.layouts.zarr.folder import Folder


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "loop").symlink_to("loop")
    with Folder(tmp_path) as tree:
        yield tree


def test_a_folder_that_cannot_be_opened(tree):
    with pytest.raises(CorruptLayoutError, match=r"file: cannot be opened \(Not a directory\)"):
        Folder(tree.path / "file")


def test_a_file_that_cannot_be_opened(tree):
    for use in (tree.open, lambda name: tree.read(name, 5)):
        with pytest.raises(CorruptLayoutError, match=r"loop: cannot be opened \(Too many levels"):
            use("loop")


def test_a_file_that_cannot_be_read(tree, monkeypatch):
    only_written = os.open(tree.path / "file", os.O_WRONLY)
    monkeypatch.setattr(tree, "open", lambda _: only_written)
    with pytest.raises(CorruptLayoutError, match=r"file: cannot be read \(Bad file descriptor\)"):
        tree.read("file", 5)


def test_an_object_that_cannot_be_read(tree, monkeypatch):
    def fail(*_):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(tree, "_store_path", tree.path)
    monkeypatch.setattr(folders, "find", fail)
    with pytest.raises(CorruptLayoutError, match=r"file: cannot be opened \(Connection reset"):
        tree.read("file", 5)
