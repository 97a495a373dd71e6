"""Damaged H5MD files: an error that names what is wrong, never wrong numbers, never a crash."""

import json
import zlib

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, write_h5md

from mdio.core.errors import CorruptLayoutError, MdioError, SourceError
from mdio.layouts.h5md.layout import H5MDLayout
from mdio.layouts.manifest import with_checksum

SPLIT = {"chunk_frames": 4, "chunk_atoms": 6}
COMPRESSIONS = [None, "gzip:1"]


def chunk_of(path, name, at):
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info_by_coord(at)
        return info.byte_offset, info.size


def change_byte(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.fixture(params=COMPRESSIONS)
def own(request, tmp_path):
    write_h5md(
        tmp_path / "x.h5md", make_block(), groups={"ca": [1, 3]}, compression=request.param, **SPLIT
    )
    return tmp_path / "x.h5md"


@pytest.mark.parametrize("place", [0, 0.5, 0.999])
def test_one_changed_byte(own, place):
    offset, size = chunk_of(own, "particles/trajectory/position/value", (8, 6, 0))
    change_byte(own, offset + int(place * size))
    with H5MDLayout(own) as layout:
        says = r"x\.h5md: position of trajectory, frames 8 to 11, atoms 6 to 11"
        with pytest.raises(CorruptLayoutError, match=says):
            layout.read(0, 23)
        with pytest.raises(CorruptLayoutError, match=says):
            layout.read(8, 12, atoms=[7])
        expected = make_block()
        assert_array_equal(layout.read(0, 8).positions, expected.positions[:8])
        assert_array_equal(layout.read(8, 12, atoms=[0]).positions, expected.positions[8:12, :1])
        bad = [(name, problem) for name, problem in layout.check() if problem]
        assert len(bad) == 1
        assert "frames 8 to 11, atoms 6 to 11" in bad[0][0]


def test_a_changed_byte_behind_the_last_frame(tmp_path):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(), chunk_frames=4)
    offset, size = chunk_of(path, "particles/trajectory/position/value", (20, 0, 0))
    change_byte(path, offset + size - 1)
    with (
        H5MDLayout(path) as layout,
        pytest.raises(CorruptLayoutError, match="frames 20 to 22"),
    ):
        layout.read(20, 23)


def test_a_changed_byte_in_a_group(own):
    change_byte(own, chunk_of(own, "particles/ca/position/value", (0, 0, 0))[0] + 20)
    with H5MDLayout(own) as layout:
        assert_array_equal(layout.read(0, 23).positions, make_block().positions)
        with pytest.raises(CorruptLayoutError, match="position of ca, frames 0 to"):
            layout.read(0, 23, atoms=[1, 3])
        assert [name for name, problem in layout.check() if problem] == [
            name for name, _ in layout.check() if " of ca, frames 0 " in name
        ]


@pytest.mark.parametrize("name", ["times", "steps", "boxes"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_changed_time_step_or_cell(own, name, cached, monkeypatch):
    paths = {
        "times": "particles/trajectory/position/time",
        "steps": "particles/trajectory/position/step",
        "boxes": "mdio/box",
    }
    with h5py.File(own) as file:
        offset = file[paths[name]].id.get_offset()
    change_byte(own, offset + 40)
    if not cached:  # long ones are verified once, and read by the slice
        monkeypatch.setattr("mdio.layouts.h5md.io.MAX_CACHED_NBYTES", 0)
    layout = H5MDLayout(own)
    with pytest.raises(CorruptLayoutError, match=rf"x\.h5md: {name}: crc32c"):
        layout.read(0, 1)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(own, share):
    data = own.read_bytes()
    own.write_bytes(data[: int(share * len(data))])
    with pytest.raises(SourceError, match=r"x\.h5md.*truncated"):
        _ = H5MDLayout(own).info
    assert H5MDLayout.sniff(own)


def test_a_file_truncated_while_it_is_open(tmp_path):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(), **SPLIT)
    with H5MDLayout(path) as layout:
        _ = layout.info
        with path.open("r+b") as file:
            file.truncate(5000)
        with pytest.raises(CorruptLayoutError, match=r"x\.h5md: .*it ends at byte"):
            layout.read(0, 23)


def rewrite(path, change):
    """Change the manifest of a file."""
    with h5py.File(path, "r+") as file:
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
        del file["mdio/manifest"]
        file["mdio/manifest"] = change(manifest)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: "{", "cannot be read"),
        (lambda m: "[]", "not one of mdio"),
        (lambda m: 7, "cannot be read"),
        (lambda m: json.dumps(with_checksum(m | {"format_version": 2})), "newer mdio"),
        (
            lambda m: json.dumps(with_checksum(m | {"n_frames": 10**12})),
            "do not match its manifest",
        ),
        (lambda m: json.dumps(with_checksum(m | {"n_atoms": 10**12})), "do not match its manifest"),
        (
            lambda m: json.dumps(
                with_checksum(m | {"groups": {}, "group_atoms": {}, "n_frames": 22})
            ),
            "do not match its manifest",
        ),
        (
            lambda m: json.dumps(with_checksum(m | {"groups": {"cb": 0}})),
            "do not match its manifest",
        ),
    ],
)
def test_a_manifest_that_lies(own, change, says):
    rewrite(own, change)
    with pytest.raises(CorruptLayoutError, match=rf"x\.h5md.*{says}"):
        _ = H5MDLayout(own).info


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: f["mdio"].pop("manifest"),
        lambda f: f.pop("mdio"),
        lambda f: f.pop("mdio/arrays/trajectory"),
        lambda f: f.pop("mdio/box"),
        lambda f: f.pop("particles/ca"),
        lambda f: f.pop("particles/trajectory/position/time"),
        lambda f: f.pop("particles"),
    ],
)
def test_parts_that_are_missing(own, damage):
    with h5py.File(own, "r+") as file:
        damage(file)
    with pytest.raises(CorruptLayoutError, match=r"x\.h5md"):
        H5MDLayout(own).read(0, 23)


@pytest.mark.parametrize(("offset", "says"), [(1 << 60, "beyond the end"), (800, "frames 4 to 7")])
def test_places_that_lie(tmp_path, offset, says):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(), **SPLIT)
    with h5py.File(path, "r+") as file:
        file["mdio/arrays/trajectory/position/offset"][1, 1] = offset
    with pytest.raises(CorruptLayoutError, match=says):
        H5MDLayout(path).read(0, 23)


def test_tables_of_another_shape(own):
    with h5py.File(own, "r+") as file:
        tables = file["mdio/arrays/trajectory/position"]
        crcs = tables["crc32c"][:-1]
        del tables["crc32c"]
        tables["crc32c"] = crcs
    with pytest.raises(CorruptLayoutError, match="tables"):
        _ = H5MDLayout(own).info


@pytest.mark.parametrize(
    "stored",
    [b"", b"\0", zlib.compress(b"short"), zlib.compress(bytes(1 << 20))],
    ids=["empty", "no zlib", "too short", "too long"],
)
def test_compressed_chunks_that_hold_something_else(tmp_path, stored):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(8, 300), compression="gzip:0", chunk_frames=4)
    offset, size = chunk_of(path, "particles/trajectory/position/value", (4, 0, 0))
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(stored.ljust(size, b"\0"))
    with (
        H5MDLayout(path) as layout,
        pytest.raises(CorruptLayoutError, match=r"position of trajectory, frames 4 to 7"),
    ):
        layout.read(0, 8)


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" * 200]
)
def test_no_hdf5(tmp_path, content):
    path = tmp_path / "x.h5md"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.h5md"):
        _ = H5MDLayout(path).info


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_in_the_structures(tmp_path, seed):
    """Frames are checked by checksums; here HDF5's own structures are hit."""
    path = tmp_path / "x.h5md"
    block = make_block()
    write_h5md(path, block, groups={"ca": [1, 3]}, compression=COMPRESSIONS[seed % 2], **SPLIT)
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for _ in range(12):
        hit = data.copy()
        for at in rng.integers(0, len(data), 40):
            hit[at] = rng.integers(0, 256)
        path.write_bytes(hit)
        try:
            known = H5MDLayout.sniff(path)
            with H5MDLayout(path) as layout:
                got = layout.read(0, layout.info.n_frames)
        except MdioError as error:
            assert "x.h5md" in str(error)
        else:
            assert known
            assert_array_equal(got.positions, block.positions)
