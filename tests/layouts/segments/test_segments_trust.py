"""Nothing wrong is read from segments: every byte that is read is known to be what was written."""

import json
import random
import shutil

import numpy as np
import pytest
from suites.segment_cases import CONTAINERS, segment_paths, write_segments

from mdio.converters.convert import split
from mdio.converters.verify import verify
from mdio.core.errors import CorruptLayoutError, MdioError
from mdio.core.frames import FrameBlock
from mdio.layouts.registry import open_layout
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.testing.blocks import random_block

N_ATOMS = 8000
"""Frames of 96 kB and more, where they have one size: of several pieces each."""


def large_block(seed: int = 0, n_frames: int = 4) -> FrameBlock:
    block = random_block(n_frames, N_ATOMS)
    block.positions += np.float32(seed)
    return block


def write_large(path, container, seed=0):
    write_segments(path, large_block(seed), piece_frames=1, segments=2, container=container)
    return path


WAYS = {
    "all": lambda layout: layout.read(0, 4),
    "one frame": lambda layout: layout.read(3, 4),
    "some atoms": lambda layout: layout.read(0, 4, atoms=[5, 17, 4000]),
    "the last atom": lambda layout: layout.read(1, 4, atoms=[N_ATOMS - 1]),
    "no atoms": lambda layout: layout.read(0, 4, atoms=[]),
}


def everything(path, ways=WAYS):
    """Return what each way of reading gives, or None where it says that something is wrong."""
    found = {}
    for name, way in ways.items():
        try:
            with open_layout(path) as layout:
                block = way(layout)
                info = layout.info.replace(path="", nbytes=0)
            found[name] = (block, info)
        except MdioError:
            found[name] = None
    return found


def wrong(path, expected):
    """Return the ways of reading that give something else than they should."""
    return [
        name
        for name, found in everything(path).items()
        if found is not None and not same(found, expected[name])
    ]


def same(found, expected):
    names = ("positions", "box", "time", "step")
    arrays = all(
        np.array_equal(getattr(found[0], n), getattr(expected[0], n), equal_nan=True) for n in names
    )
    return arrays and found[1] == expected[1]


@pytest.mark.parametrize("container", CONTAINERS)
def test_flips_and_zeroed_pages_are_found(tmp_path, container):
    """In every file of the folder, at random; also where the damage was done after opening."""
    path = write_large(tmp_path / "a.segments", container)
    expected = everything(path)
    assert all(expected.values()) and verify(path).ok
    draw = random.Random(1)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    n_unseen = 0
    for turn in range(36):
        victim = files[turn % len(files)]
        good = victim.read_bytes()
        data = bytearray(good)
        at = draw.choice([draw.randrange(len(data)), draw.randrange(min(300, len(data)))])
        if turn % 4:
            data[at] ^= 1 << draw.randrange(8)
        else:
            begin = at // 4096 * 4096
            data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))
        if data != good:
            victim.write_bytes(data)
            assert wrong(path, expected) == [], (victim, at)
            n_unseen += _is_ok(path)
            victim.write_bytes(good)
    assert not wrong(path, expected)
    assert n_unseen <= 12  # in the manifest's spaces, and in indexes, which are made again


@pytest.mark.parametrize("container", CONTAINERS)
def test_swapped_and_foreign_segments_are_found(tmp_path, container):
    """Segments of equal size, of the same output or of another one."""
    path = write_large(tmp_path / "a.segments", container)
    other = write_large(tmp_path / "b.segments", container, seed=1)
    good = everything(path)
    first, second = segment_paths(path)
    shutil.copy(first, tmp_path / "kept")
    for foreign in (second, *segment_paths(other)):
        shutil.copy(foreign, first)
        assert wrong(path, good) == [] and everything(path)["all"] is None
        assert not _is_ok(path)
        shutil.copy(tmp_path / "kept", first)
    shutil.copy(other / ".mdio-checksums", path / ".mdio-checksums")
    assert everything(path)["one frame"] is None and not _is_ok(path)


def _is_ok(path):
    try:
        return verify(path).ok
    except MdioError:
        return False


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_message_says_where(tmp_path, container):
    path = write_large(tmp_path / "a.segments", container)
    victim = segment_paths(path)[1]
    data = bytearray(victim.read_bytes())
    data[-20_000] ^= 4
    victim.write_bytes(data)
    with SegmentsLayout(path) as layout:
        layout.read(0, 2)
        with pytest.raises(CorruptLayoutError, match=rf"seg-000001\.{container}.*frame 1 of this"):
            layout.read(2, 4)
    with SegmentsLayout(path, verify=False) as layout:
        layout.read(0, 3)


@pytest.mark.parametrize("container", CONTAINERS)
def test_replaced_while_it_is_open(tmp_path, container):
    """Each output has its identity: frames of two are never mixed, also of older outputs."""
    path = write_large(tmp_path / "a.segments", container)
    other = tmp_path / "b.segments"
    write_large(other, container, seed=1)
    manifest = json.loads((other / "manifest.json").read_text())
    for key in ("piece_checksums", "manifest_crc32c", "checksum"):
        del manifest[key]
    (other / "manifest.json").write_text(json.dumps(manifest | {"uuid": "1"}))
    layout = SegmentsLayout(path)
    layout.read(0, 2)
    path.rename(tmp_path / "old")
    other.rename(path)
    with pytest.raises(CorruptLayoutError, match="was replaced while it was open"):
        layout.read(0, 4)
    layout.close()


@pytest.mark.parametrize("container", CONTAINERS)
def test_outputs_of_older_versions(tmp_path, container):
    """Without checksums of pieces they are read as before."""
    path = write_large(tmp_path / "a.segments", container)
    expected = everything(path)
    manifest = json.loads((path / "manifest.json").read_text())
    for key in ("piece_checksums", "manifest_crc32c", "checksum"):
        del manifest[key]
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / ".mdio-checksums").unlink()
    assert wrong(path, expected) == [] and all(everything(path).values()) and verify(path).ok


@pytest.mark.parametrize("container", CONTAINERS)
def test_damaged_segments_are_not_split_further(tmp_path, container):
    path = write_large(tmp_path / "a.segments", container)
    out = tmp_path / "b.segments"
    with SegmentsLayout(split(path, out, 4).out) as layout, SegmentsLayout(path) as source:
        assert np.array_equal(layout.read(0, 4).positions, source.read(0, 4).positions)
        assert layout.manifest["container"] == container
    victim = segment_paths(path)[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(MdioError, match=r"checksum|crc32c"):
        split(path, out, 4, force=True)
