"""Segments that are missing, cut, changed, unfinished, or described wrongly."""

import json
import os
import shutil

import pytest
from suites.segment_cases import (
    CONTAINERS,
    manifest_of_folder,
    segment_paths,
    write_segments,
)

from mdio.core.errors import CorruptLayoutError, OutputError
from mdio.layouts.manifest import with_checksum
from mdio.layouts.registry import open_layout
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.testing.blocks import random_block

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")


@pytest.mark.parametrize("container", CONTAINERS)
def test_truncated_segment(tmp_path, container):
    path = tmp_path / "a.segments"
    write_segments(path, random_block(), segments=3, container=container)
    victim = segment_paths(path)[1]
    os.truncate(victim, victim.stat().st_size - 5)
    with SegmentsLayout(path) as layout:
        layout.read(0, 5)
        with pytest.raises(CorruptLayoutError, match=rf"seg-000001\.{container}.* bytes, expected"):
            layout.read(4, 6)
        problems = dict(layout.check())
    assert [name for name, problem in problems.items() if problem] == [f"000/{victim.name}"]


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("where", [0, 0.3, 0.7, 1])
def test_flipped_bits_are_found(tmp_path, container, where):
    path = tmp_path / "a.segments"
    write_segments(path, random_block(), segments=3, container=container)
    victim = segment_paths(path)[2]
    data = bytearray(victim.read_bytes())
    data[round(where * (len(data) - 1))] ^= 0x10
    victim.write_bytes(data)
    with SegmentsLayout(path) as layout:
        problems = [(name, problem) for name, problem in layout.check() if problem is not None]
    assert [name for name, _ in problems] == [f"000/{victim.name}"]
    assert "crc32c" in problems[0][1] and "frames 9 to 12" in problems[0][1]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_segment_of_something_else(tmp_path, container):
    path = tmp_path / "a.segments"
    write_segments(path, random_block(), segments=3, container=container)
    victim = segment_paths(path)[1]
    victim.write_bytes(b"\x07" * victim.stat().st_size)
    with SegmentsLayout(path) as layout, pytest.raises(CorruptLayoutError, match="seg-000001"):
        layout.read(0, 13)


def test_unfinished_folder(tmp_path):
    path = tmp_path / "a.segments"
    with pytest.raises(OutputError, match=r"incomplete.*seg-000001\.dcd"):
        write_segments(path, random_block(), segments=3, container="dcd", skip=5)
    assert SegmentsLayout.sniff(path)
    with pytest.raises(CorruptLayoutError, match="manifest"):
        open_layout(path).read(0, 1)


CHANGES = {
    "another layout": lambda m: m.update(layout="zarr"),
    "another container": lambda m: m.update(container="pdb"),
    "no container": lambda m: m.pop("container"),
    "no fields": lambda m: m.pop("fields"),
    "no segments": lambda m: m.pop("segments"),
    "segments of another kind": lambda m: m.update(segments={"a": 1}),
    "a segment too few": lambda m: m["segments"].pop(),
    "a gap": lambda m: m["segments"].pop(1),
    "frames too many": lambda m: m.update(n_frames=14),
    "a file outside": lambda m: m["segments"][0].update(file="../x.dcd"),
    "an absolute file": lambda m: m["segments"][0].update(file=m["outside"]),
    "a key too many": lambda m: m["segments"][0].update(extra=1),
    "a key too few": lambda m: m["segments"][0].pop("crc32c"),
    "a number that is none": lambda m: m["segments"][0].update(n_frames="5"),
    "a negative number": lambda m: m["segments"][0].update(n_frames=-5),
    "absurdly many frames": lambda m: m["segments"][0].update(n_frames=10**18),
    "other atoms": lambda m: m.update(n_atoms=24),
    "a newer version": lambda m: m.update(format_version=99),
}


@pytest.mark.parametrize("change", CHANGES)
def test_manifests_that_lie(tmp_path, change):
    path = tmp_path / "a.segments"
    write_segments(path, random_block(), segments=3, container="dcd")
    manifest = manifest_of_folder(path) | {"outside": str(tmp_path / "x.dcd")}
    shutil.copy(path / "000" / "seg-000000.dcd", tmp_path / "x.dcd")
    CHANGES[change](manifest)
    (path / "manifest.json").write_text(json.dumps(with_checksum(manifest)))
    with pytest.raises(CorruptLayoutError):
        SegmentsLayout(path).read(0, 1)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"format": "mdio"}'])
def test_manifests_that_are_none(tmp_path, text):
    path = tmp_path / "a.segments"
    write_segments(path, random_block(), segments=3, container="dcd")
    (path / "manifest.json").write_bytes(text)
    with pytest.raises(CorruptLayoutError, match="manifest"):
        _ = SegmentsLayout(path).info
