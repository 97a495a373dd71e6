"""Pieces that workers encode and write in batches of a few frames."""

import json
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from suites.segment_cases import write_segments

import mdio
from mdio.converters.strategies.write_tasks import WriteTaskWorker
from mdio.core.kernels import crc32c
from mdio.layouts.native import encoder as encode
from mdio.layouts.native.file import PositionalFile
from mdio.testing.blocks import random_block

CONTAINERS = ["dcd", "trr", "ncdf"]


@pytest.fixture(params=[1, 90_000, 250_000], ids=["one frame", "two", "six"])
def small_batches(request, monkeypatch):
    """Batches that neither pieces nor segments are multiples of, and a note of what they were."""
    monkeypatch.setattr(encode, "BATCH_NBYTES", request.param)
    seen = []
    read = WriteTaskWorker._read

    def noted(self, start, stop):
        seen.append((start, stop))
        return read(self, start, stop)

    monkeypatch.setattr(WriteTaskWorker, "_read", noted)
    return seen


def check(seen, n_frames=98):
    sizes = [stop - start for start, stop in seen]
    assert sum(sizes) == n_frames and len(seen) > 10
    assert [start for start, _ in seen[1:]] == [stop for _, stop in seen[:-1]]


def same(found, wanted, container):
    if container == "trr":  # which has nanometres
        assert_allclose(found, wanted, rtol=2e-7)
    else:
        assert_array_equal(found, wanted)


def whole(path, top):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [ts.positions.copy() for ts in mda.Universe(str(top), str(path)).trajectory]


@pytest.mark.parametrize("container", CONTAINERS)
def test_native_files(adk, tmp_path, small_batches, container):
    out = tmp_path / f"a.{container}"
    mdio.convert(adk["xtc"], out)
    check(small_batches)
    same(whole(out, adk["psf"]), whole(adk["xtc"], adk["psf"]), container)
    with mdio.open(out) as ours:
        assert_allclose(ours.read(0, 98).time, 5.0 + 2.0 * np.arange(98), rtol=1e-6)


@pytest.mark.parametrize("container", CONTAINERS)
def test_segments(adk, tmp_path, small_batches, container):
    out = tmp_path / "a.segments"
    mdio.convert(adk["xtc"], out, storage=mdio.Storage(container=container, segments=3))
    check(small_batches)
    manifest = json.loads((out / "manifest.json").read_text())
    files = [out / segment["file"] for segment in manifest["segments"]]
    for file, segment in zip(files, manifest["segments"], strict=True):
        assert crc32c(np.fromfile(file, np.uint8)) == segment["crc32c"]
    found = [x for file in files for x in whole(file, adk["psf"])]
    same(found, whole(adk["xtc"], adk["psf"]), container)


def test_frames_of_many_sizes_are_one_batch(adk, tmp_path, small_batches):
    """Where the next frame goes is known only when those before it are encoded."""
    mdio.convert(
        adk["dcd"], tmp_path / "a.segments", storage=mdio.Storage(container="xtc", segments=3)
    )
    assert len(small_batches) == 3


@pytest.mark.parametrize("container", ["xtc", "trr"])
@pytest.mark.parametrize("n_atoms", [1, 3000], ids=["near", "far"])
def test_headers_that_lie_near_are_read_together(tmp_path, monkeypatch, container, n_atoms):
    """One by one, times of segments of 2 million frames took half a minute."""
    out, n_frames = tmp_path / "a.segments", 500
    write_segments(out, random_block(n_frames, n_atoms), segments=2, container=container)
    reads = []
    read = PositionalFile.read
    monkeypatch.setattr(
        PositionalFile,
        "read",
        lambda self, offset, nbytes: (reads.append(nbytes), read(self, offset, nbytes))[1],
    )
    for path in sorted(out.glob(f"*.{container}")):
        with PositionalFile(path) as file, mdio.open(path) as layout:
            offsets = layout.index.offsets.tolist()
            reads.clear()
            found = list(file.headers(offsets, 56))
        data = path.read_bytes()
        assert found == [data[offset : offset + 56] for offset in offsets]
        assert len(reads) == (-(-len(offsets) // 64) if n_atoms == 1 else len(offsets))
    if n_atoms == 1:
        reads.clear()
        with mdio.open(out) as layout:
            layout.read(0, n_frames, atoms=[])
        assert len(reads) < 50
