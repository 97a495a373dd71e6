"""Trees that would run code, block, or lead elsewhere; and what is put in a tree's place."""

import errno
import json
import os
import pickle
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from suites.zarr_cases import make_block, write_tree
from test_zarr_foreign import NM, fill, make_zarr

from mdio.core.errors import CorruptLayoutError, MdioError, SourceError
from mdio.layouts.registry import open_layout
from mdio.layouts.zarr.layout import ZarrLayout

VALUE = "particles/trajectory/position/value"


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def foreign(tmp_path):
    block = make_block(11, 7)
    opener, make = make_zarr(2)
    fill(opener(tmp_path / "other.zarrmd"), block, NM, make)
    return tmp_path / "other.zarrmd"


@pytest.mark.parametrize("name", ["time", "step", "value", "../box/edges/value"])
@pytest.mark.parametrize("dtype", ["|O", "<f4"])
def test_no_code_of_a_tree_is_run(foreign, tmp_path, name, dtype):
    folder = foreign / "particles/trajectory/position" / name
    node = json.loads((folder / ".zarray").read_text())
    pickled = pickle.dumps(np.array([Payload(tmp_path / "ran")], object), 0)
    node |= {"dtype": dtype, "filters": [{"id": "pickle", "protocol": 0}], "compressor": None}
    node |= {"fill_value": 0}
    (folder / ".zarray").write_text(json.dumps(node))
    for chunk in folder.glob("[0-9]*"):
        chunk.write_bytes(pickled)
    with pytest.raises(SourceError, match=r"other\.zarrmd: "):
        open_layout(foreign).read(0, 11)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("dtype", "codec", "says"),
    [
        ("<f4", "base64", "the codec base64"),
        ("<f8", "zfpy", "the codec zfpy|cannot be read"),
        ("|O", "vlen-utf8", "the codec vlen-utf8"),
    ],
)
@pytest.mark.parametrize("name", ["time", "../box/edges/value"])
def test_codecs_that_are_not_known(foreign, name, dtype, codec, says):
    folder = foreign / "particles/trajectory/position" / name
    node = json.loads((folder / ".zarray").read_text())
    node |= {"dtype": dtype, "filters": [{"id": codec}], "fill_value": "" if "O" in dtype else 0}
    (folder / ".zarray").write_text(json.dumps(node))
    with pytest.raises(SourceError, match=rf"other\.zarrmd: .*({says})"):
        _ = open_layout(foreign).info


@pytest.mark.parametrize("version", [2, 3])
def test_codecs_that_are_known(tmp_path, version):
    from numcodecs import Delta, Shuffle, Zlib
    from zarr.codecs import BloscCodec, TransposeCodec

    made = {
        2: {"filters": [Delta("<f4"), Shuffle(4)], "compressors": Zlib()},
        3: {"filters": TransposeCodec(order=(1, 0, 2)), "compressors": BloscCodec()},
    }
    block = make_block(11, 7)
    opener, make = make_zarr(version, **made[version])
    fill(opener(tmp_path / "x.zarr"), block, NM, make)
    found = ZarrLayout(tmp_path / "x.zarr").read(0, 11)
    assert np.allclose(found.positions, block.positions * 10, atol=1e-2)


def test_values_that_are_no_numbers(foreign):
    time = zarr.open_group(str(foreign), mode="r+")["particles/trajectory/position"]
    del time["time"]
    time.create_array("time", shape=(11,), dtype="S4").attrs["unit"] = "ps"
    with pytest.raises(SourceError, match=r"position/time has values of type \|S4"):
        _ = ZarrLayout(foreign).info


@pytest.fixture
def tree(tmp_path):
    write_tree(tmp_path / "a.zarr", make_block(), chunk_frames=4, piece_chunks=2)
    return tmp_path / "a.zarr"


def put_pipe(path):
    os.mkfifo(path)


def put_socket(path):
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def put_loop(path):
    path.symlink_to(path.name)


def put_folder(path):
    path.mkdir()


@pytest.mark.parametrize("put", [put_pipe, put_socket, put_loop, put_folder])
@pytest.mark.parametrize(
    "name", [f"{VALUE}/c.1.0.0", "mdio/box/c.0.0", f"{VALUE}/zarr.json", "zarr.json"]
)
def test_what_is_no_file_of_data(tree, put, name, monkeypatch):
    monkeypatch.chdir(tree)
    (tree / name).unlink()
    put(tree / name)
    with pytest.raises(CorruptLayoutError, match=rf"{name}|did not finish"):
        open_layout(tree).read(0, 23)


def test_a_link_that_leads_round(tmp_path):
    (tmp_path / "a.zarr").symlink_to("a.zarr")
    with pytest.raises(MdioError, match=r"a\.zarr"):
        _ = ZarrLayout(tmp_path / "a.zarr").info


def replace(tree, **options):
    """Put another output in the place of one, as --force does."""
    other = tree.with_name("other.zarr")
    writer = write_tree(other, make_block(23, 17, box=None), chunk_frames=4, piece_chunks=2)
    node = json.loads((other / "zarr.json").read_text())
    from mdio.layouts.manifest import with_checksum

    node["attributes"]["mdio"] = with_checksum(node["attributes"]["mdio"] | {"uuid": "another"})
    (other / "zarr.json").write_text(json.dumps(node))
    tree.rename(tree.with_name("old"))
    other.rename(tree)
    return writer


def test_a_reader_keeps_to_the_tree_that_it_opened(tree):
    expected = make_block()
    with ZarrLayout(tree) as layout:
        layout.read(0, 1)
        replace(tree)
        assert np.array_equal(layout.read(0, 23).box, expected.box)  # the old one is there still
        shutil.rmtree(tree.with_name("old"))
        layout.close()
        with pytest.raises(CorruptLayoutError, match="was replaced while it was open"):
            layout.read(0, 23)


def test_shards_that_are_opened_after_the_tree_was_replaced(tree):
    with ZarrLayout(tree) as layout:
        layout.read(0, 1)
        replace(tree)
        shutil.rmtree(tree.with_name("old"))
        with pytest.raises(CorruptLayoutError, match="was replaced while it was open"):
            layout.read(8, 23)
    assert ZarrLayout.uuid_at(tree) == "another"
    assert ZarrLayout.uuid_at(tree / "zarr.json") is None


def test_a_damaged_tree_is_not_called_replaced(tree):
    with ZarrLayout(tree) as layout:
        layout.read(0, 1)
        (tree / VALUE / "c.1.0.0").unlink()
        with pytest.raises(CorruptLayoutError, match="no such shard"):
            layout.read(8, 23)


def test_a_disk_that_fails(tree, monkeypatch):
    def fail(fd, buffers, offset, flags=0):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with ZarrLayout(tree) as layout:
        layout.read(0, 1)
        monkeypatch.setattr(os, "preadv", fail)
        wrong = r"c\.[01]\.0\.0: .*bytes at \d+ cannot be read \(Input/output error"
        with pytest.raises(CorruptLayoutError, match=wrong):
            layout.read(0, 23)
        problems = [problem for _, problem in layout.check() if problem]
    assert len(problems) == 6 and all("Input/output error" in problem for problem in problems)


def test_layouts_that_nobody_has_are_closed(tree):
    def n_open():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = n_open()
    for _ in range(5):
        ZarrLayout(tree).read(0, 23)
    assert n_open() == before


FEW = """
import resource, sys
from mdio.layouts.zarr.layout import ZarrLayout
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
layouts = []
try:
    for _ in range(40):
        layouts.append(ZarrLayout(sys.argv[1]))
        layouts[-1].read(0, 23)
except OSError as error:
    print(len(layouts), type(error).__name__, error)
layouts[1].read(0, 23)
"""


def test_too_many_open_files_are_no_damage(tree):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
    done = subprocess.run([sys.executable, "-c", FEW, str(tree)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    n_layouts, kind, message = done.stdout.split(" ", 2)
    assert int(n_layouts) > 9 and kind == "SourceError"
    assert "too many files are open already (this process may have 64)" in message
