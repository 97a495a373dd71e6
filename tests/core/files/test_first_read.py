"""How the first read of a file begins: a short call first, the same bytes, the same errors."""

import os
import shutil

import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import mdio
from mdio.core.errors import CorruptLayoutError
from mdio.core.files import reading, store
from mdio.core.files.reading import (
    FIRST_NBYTES,
    MIN_SPLIT_NBYTES,
    OpenFile,
    devices_with_folios,
    read_first_bytes,
)
from mdio.layouts.chunked.array import DISK_CHECKSUM_RUN_NBYTES

KINDS = ["h5md", "zarr"]
CHUNK_FRAMES = 20
CHUNK_NBYTES = 12 * 3341 * CHUNK_FRAMES


@pytest.fixture(scope="module")
def paths(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    for kind in KINDS:
        mdio.convert(
            adk["dcd"], folder / f"adk.{kind}", storage=mdio.Storage(chunk_frames=CHUNK_FRAMES)
        )
    return {kind: folder / f"adk.{kind}" for kind in KINDS}


@pytest.fixture(autouse=True)
def folios(monkeypatch, tmp_path):
    """Take the files of tests to be kept in folios, whatever the machine's file system."""
    devices = frozenset([tmp_path.stat().st_dev])
    monkeypatch.setattr(reading, "devices_with_folios", lambda: devices)


@pytest.fixture
def sizes(monkeypatch):
    """Bytes that each `os.preadv` is asked for."""
    found = []
    real = os.preadv

    def counting(fd, buffers, offset):
        found.append(sum(memoryview(buffer).nbytes for buffer in buffers))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counting)
    return found


def test_the_first_call_is_short_and_the_rest_is_left(tmp_path, sizes):
    data = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8)
    data.tofile(tmp_path / "a")
    out = np.zeros(2 << 20, np.uint8)
    with (tmp_path / "a").open("rb") as file:
        assert read_first_bytes(file.fileno(), out.data, 12_345) == FIRST_NBYTES
    assert_array_equal(out[:FIRST_NBYTES], data[12_345 : 12_345 + FIRST_NBYTES])
    assert not out[FIRST_NBYTES:].any()
    assert sizes == [FIRST_NBYTES]


def test_short_reads_are_left_alone(tmp_path, sizes):
    (tmp_path / "a").write_bytes(bytes(2 * MIN_SPLIT_NBYTES))
    with OpenFile(tmp_path / "a") as file:
        file.array(0, MIN_SPLIT_NBYTES - 1)
        file.array(0, MIN_SPLIT_NBYTES)
    assert sizes == [MIN_SPLIT_NBYTES - 1, FIRST_NBYTES, MIN_SPLIT_NBYTES - FIRST_NBYTES]


@pytest.mark.parametrize("n_there", [0, 1, FIRST_NBYTES])
def test_a_file_that_ends_before_gives_what_it_has(tmp_path, n_there):
    data = np.arange(n_there).astype(np.uint8)
    data.tofile(tmp_path / "a")
    out = np.zeros(MIN_SPLIT_NBYTES, np.uint8)
    with (tmp_path / "a").open("rb") as file:
        assert read_first_bytes(file.fileno(), out.data, 0) == n_there
    assert_array_equal(out[:n_there], data)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_first_read_of_a_file_is_so(adk, paths, sizes, kind):
    theirs = mda.Universe(str(adk["psf"]), str(adk["dcd"])).trajectory.timeseries(order="fac")
    with mdio.open(paths[kind]) as layout:
        layout.read(30, 31)  # a short one
        sizes.clear()
        found = layout.read(0, 40).positions
        assert_array_equal(found, theirs[:40])
        crcs = 4 * 2 if kind == "zarr" else 0
        assert sizes[0] == FIRST_NBYTES
        assert sum(sizes) == 2 * CHUNK_NBYTES + crcs
        assert len(sizes) == 1 + 4 and max(sizes) == DISK_CHECKSUM_RUN_NBYTES
        sizes.clear()
        assert_array_equal(layout.read(0, 40).positions, theirs[:40])
        assert len(sizes) == 4 and max(sizes) == DISK_CHECKSUM_RUN_NBYTES
        assert sum(sizes) == 2 * CHUNK_NBYTES + crcs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [FIRST_NBYTES // 2, FIRST_NBYTES, MIN_SPLIT_NBYTES])
def test_a_file_cut_while_it_is_open_is_an_error(paths, tmp_path, kind, left):
    path = tmp_path / f"cut.{kind}"
    (shutil.copytree if kind == "zarr" else shutil.copy)(paths[kind], path)
    with mdio.open(path) as layout:
        layout.read(0, 1)
        begin = 0
        file = path / "particles/trajectory/position/value/c.0.0.0"
        if kind == "h5md":
            file = path
            first = np.ascontiguousarray(layout.read(0, 1).positions).tobytes()
            begin = path.read_bytes().index(first)
        os.truncate(file, begin + left)
        with pytest.raises(CorruptLayoutError, match=rf"{file.name}.*truncated"):
            layout.read(0, CHUNK_FRAMES)


def test_a_file_that_comes_over_a_network_is_read_at_once(paths, sizes, monkeypatch):
    monkeypatch.setattr(reading, "devices_with_folios", frozenset)
    with mdio.open(paths["zarr"]) as layout:
        sizes.clear()
        layout.read(0, 40)
    assert len([size for size in sizes if size > 4096]) == 1  # besides the shard's index


def test_devices_are_those_of_the_table_of_mounts(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(
        "36 35 98:1 / / rw,noatime master:1 - ext4 /dev/root rw\n"
        "37 36 0:45 / /lustre/a\\040b rw - lustre 10.0.0.1@tcp:/scratch rw\n"
        "38 36 259:3 / /local rw shared:7 master:2 - xfs /dev/nvme0n1p3 rw\n"
        "39 36 0:46 / /nfs rw - nfs4 server:/ext4 rw\n"
    )
    monkeypatch.setattr(store, "MOUNTS", str(table))
    found = devices_with_folios.__wrapped__()
    assert found == {os.makedev(98, 1), os.makedev(259, 3)}
    monkeypatch.setattr(store, "MOUNTS", str(tmp_path / "none"))
    assert devices_with_folios.__wrapped__() == frozenset()


def test_an_xtc_too(adk, sizes):
    with mdio.open(adk["xtc"]) as layout:
        _ = layout.info
        sizes.clear()
        found = layout.read(0, 98).positions
        assert sizes[0] == FIRST_NBYTES
        assert len(sizes) == 2
        sizes.clear()
        assert_array_equal(layout.read(0, 98).positions, found)
        assert len(sizes) == 1
    theirs = mda.Universe(str(adk["psf"]), str(adk["xtc"])).trajectory.timeseries(order="fac")
    assert_array_equal(found, theirs)
