"""Reading Zarr trees of mdio: every codec, groups, parts; what is read of the disk and what not."""

import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from MDAnalysis.coordinates.XTC import XTCReader
from suites.zarr_cases import TRICLINIC, make_block, write_tree

from mdio.core.errors import PlanError, SourceError
from mdio.core.files import reading
from mdio.core.frames import FrameBlock, Rounding
from mdio.layouts.registry import open_layout
from mdio.layouts.zarr.layout import ZarrLayout, written_by_mdio
from mdio.testing.blocks import oracle_of
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

SMALL = {"chunk_frames": 4, "piece_chunks": 2}


def case_of(tmp_path_factory, block, **options):
    path = tmp_path_factory.mktemp("zarr") / "made.zarr"
    write_tree(path, block, **options)
    return ReadingCase(ZarrLayout, path, oracle_of(block))


class TestRaw(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(velocities=True, forces=True)
        return case_of(tmp_path_factory, block, **SMALL)


class TestOneChunk(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return case_of(tmp_path_factory, make_block(5, 3, box=None))


class TestAtomChunks(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(box=TRICLINIC, velocities=True)
        return case_of(tmp_path_factory, block, chunk_atoms=5, **SMALL)


class TestCompressedAtomChunks(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        options = {"chunk_atoms": 5, "compression": "lz4", **SMALL}
        return case_of(tmp_path_factory, make_block(), **options)


class TestZstd(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return case_of(tmp_path_factory, make_block(forces=True), compression="zstd:5", **SMALL)


class TestGzip(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return case_of(tmp_path_factory, make_block(), compression="gzip", **SMALL)


class TestWithStoredGroups(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        groups = {"ca": [0, 8, 16, 3], "none_of_the_first": list(range(5, 17))}
        return case_of(tmp_path_factory, make_block(velocities=True), groups=groups, **SMALL)


class TestAGroup(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(velocities=True)
        path = tmp_path_factory.mktemp("zarr") / "made.zarr"
        write_tree(path, block, groups={"ca": [16, 0, 8, 3]}, **SMALL)
        oracle = oracle_of(block, [16, 0, 8, 3])
        return ReadingCase(ZarrLayout, path, oracle, {"group": "ca"})


class QuantisedReadingTests(LayoutReadingTests):
    def check_positions(self, actual, expected):
        error = np.abs(actual.astype(np.float64) - expected)
        assert np.all(error <= 0.005 + 2.0**-24 * (np.abs(expected) + 0.01))


class TestQuantised(QuantisedReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(velocities=True, forces=True)
        return case_of(tmp_path_factory, block, precision=0.01, **SMALL)


class TestQuantisedAtomChunks(QuantisedReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        options = {"precision": 0.01, "compression": "lz4", "chunk_atoms": 6, **SMALL}
        return case_of(tmp_path_factory, make_block(), **options)


class TestAutoFromXTC(LayoutReadingTests):
    """Positions as MDAnalysis reads them from the XTC, bit for bit, in fewer bytes."""

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory, adk):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            oracle = oracle_from_mdanalysis(None, adk["xtc"])
            reader = XTCReader(str(adk["xtc"]))
        block = make_block(oracle.n_frames, oracle.n_atoms, velocities=False)
        for name in ("positions", "box", "time", "step"):
            getattr(block, name)[...] = getattr(oracle, name)
        reader.close()
        folder = tmp_path_factory.mktemp("zarr")
        source = {"precision": 0.01, "compression": "xtc", "rounding": Rounding(xtc_integers=True)}
        for compression, share in (("zstd", 0.8), ("none", 0.82)):
            path = folder / f"{compression}.zarr"
            options = {"precision": "auto", "compression": compression, "chunk_frames": 32}
            write_tree(path, block, source=source, **options)
            shards = path / "particles" / "trajectory" / "position" / "value"
            size = sum(file.stat().st_size for file in shards.glob("c.*"))
            assert size < share * adk["xtc"].stat().st_size
        return ReadingCase(ZarrLayout, path, oracle)


def test_auto_of_other_sources_is_lossless(tmp_path):
    block = make_block()
    path = tmp_path / "made.zarr"
    plan = write_tree(path, block, precision="auto").plan
    assert (plan.precision, plan.precision_source) == (None, None)
    assert np.array_equal(ZarrLayout(path).read(0, 23).positions, block.positions)


def test_info_says_how_it_is_stored(tmp_path):
    block = make_block()
    for options, expected in (
        ({}, (None, None)),
        ({"compression": "zstd:7"}, ("zstd:7", None)),
        ({"compression": "lz4"}, ("lz4:5", None)),
        ({"precision": 0.02}, ("bitpack", 0.02)),
        ({"precision": 0.03, "compression": "bitpack"}, ("bitpack", 0.03)),
        ({"precision": 0.04, "compression": "zstd"}, ("zstd", 0.04)),
    ):
        path = tmp_path / f"{expected}.zarr"
        write_tree(path, block, groups={"ca": [1, 2]}, **SMALL, **options)
        info = open_layout(path).info
        assert (info.compression, info.precision) == expected
        assert (info.chunk_frames, info.chunk_atoms, info.groups) == (4, 17, {"ca": 2})
        assert info.source == {"path": "test"}
        on_disk = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        assert info.nbytes == on_disk - (path / "zarr.json").stat().st_size


def test_the_manifest_tells_the_error_bound(tmp_path):
    write_tree(tmp_path / "a.zarr", make_block(), precision=0.05)
    assert ZarrLayout(tmp_path / "a.zarr").manifest["error_bound_angstrom"] == 0.025


def test_a_selection_is_read_from_the_smallest_group_that_has_it(tmp_path):
    block = make_block()
    path = tmp_path / "made.zarr"
    write_tree(path, block, groups={"few": [2, 9, 4], "many": range(2, 12)}, **SMALL)
    # Of the full system only the metadata stays: none of its frames can be read.
    for file in (path / "particles/trajectory/position/value").glob("c.*"):
        file.unlink()
    with ZarrLayout(path) as layout:
        for atoms in ([9], [4, 2], [2, 9, 4], [11, 3, 2], list(range(2, 12))):
            found = layout.read(0, 23, atoms=atoms).positions
            assert np.array_equal(found, block.positions[:, atoms])
        with pytest.raises(OSError, match="no such shard"):
            layout.read(0, 23, atoms=[0])


def test_an_unknown_group_is_refused(tmp_path):
    write_tree(tmp_path / "a.zarr", make_block(), groups={"ca": [1]})
    with pytest.raises(PlanError, match=r"no group 'cb'.*trajectory, ca"):
        _ = ZarrLayout(tmp_path / "a.zarr", group="cb").info


class Counted:
    """How many bytes `os.preadv`, and the kernel that reads rows, were asked for."""

    def __init__(self, monkeypatch):
        self.nbytes = self.calls = 0
        self._real = os.preadv
        monkeypatch.setattr(os, "preadv", self)
        self._read_rows = reading.read_rows
        monkeypatch.setattr(reading, "read_rows", self.rows)

    def rows(self, fd, offset, rows, *of):
        self.nbytes += rows.nbytes
        self.calls += 1
        return self._read_rows(fd, offset, rows, *of)

    def __call__(self, fd, buffers, offset):
        self.nbytes += sum(memoryview(buffer).nbytes for buffer in buffers)
        self.calls += 1
        return self._real(fd, buffers, offset)


def test_only_the_wanted_bytes_are_read(tmp_path, monkeypatch):
    # Else the first long read begins with short ones (test_first_read.py).
    monkeypatch.setattr(reading, "devices_with_folios", frozenset)
    block = make_block(64, 20_000, box=None)
    path = tmp_path / "made.zarr"
    write_tree(path, block, chunk_frames=8, piece_chunks=4)
    with ZarrLayout(path) as layout:
        layout.read(0, 1)
        counted = Counted(monkeypatch)
        frame = 12 * block.n_atoms
        found = layout.read(0, 32)
        assert (counted.calls, counted.nbytes) == (2, 32 * frame + 4 * 4)  # 4 MiB each at most
        assert np.array_equal(found.positions, block.positions[:32])
        counted.nbytes = 0
        layout.read(11, 12)
        assert counted.nbytes == frame
        counted.nbytes = 0
        found = layout.read(8, 11, atoms=[19_000, 19_010])
        assert counted.nbytes == 3 * (frame - 3 * 65536)  # widened to runs of 64 KiB
        assert np.array_equal(found.positions, block.positions[8:11, [19_000, 19_010]])
        counted.nbytes = 0
        layout.read(0, 64, atoms=[])
        assert counted.nbytes == 0
    with ZarrLayout(path, verify=False) as layout:
        layout.read(0, 1)
        counted.nbytes = 0
        found = layout.read(8, 11, atoms=[19_000, 19_010])
        assert counted.nbytes == 3 * 12 * 11
        assert np.array_equal(found.positions, block.positions[8:11, [19_000, 19_010]])


def test_only_the_chunks_of_the_wanted_atoms_are_read(tmp_path, monkeypatch):
    block = make_block(8, 1000, box=None)
    path = tmp_path / "made.zarr"
    write_tree(path, block, chunk_frames=8, chunk_atoms=100)
    with ZarrLayout(path) as layout:
        layout.read(0, 1)
        counted = Counted(monkeypatch)
        layout.read(0, 8, atoms=[310, 305, 399, 901])
        assert counted.nbytes == 2 * (8 * 100 * 12 + 4)


def test_frames_of_a_compressed_chunk_are_decoded_once(tmp_path, monkeypatch):
    write_tree(tmp_path / "made.zarr", make_block(), compression="zstd", **SMALL)
    with ZarrLayout(tmp_path / "made.zarr") as layout:
        layout.read(0, 1)
        counted = Counted(monkeypatch)
        for frame in (1, 2, 3, 0):
            layout.read(frame, frame + 1)
        assert counted.calls == 0


def test_few_files_are_open_at_a_time(tmp_path):
    write_tree(tmp_path / "made.zarr", make_block(120), chunk_frames=2, piece_chunks=1)

    def n_open():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = n_open()
    with ZarrLayout(tmp_path / "made.zarr") as layout:
        layout.read(0, 120)  # of 60 shards
        assert n_open() - before <= 32
    assert n_open() == before


def test_reading_needs_neither_zarr_nor_mdanalysis(tmp_path):
    made = {"raw": {}, "bits": {"precision": 0.01}}
    made["zstd"] = {"precision": 0.01, "compression": "zstd"}
    for name, options in made.items():
        write_tree(tmp_path / f"{name}.zarr", make_block(), groups={"ca": [1, 2]}, **options)
    code = (
        "import sys\n"
        "from mdio.layouts.registry import open_layout\n"
        "for name in ('raw', 'bits', 'zstd'):\n"
        "    with open_layout(f'{sys.argv[1]}/{name}.zarr') as layout:\n"
        "        assert layout.read(0, 23, atoms=[1]).positions.shape == (23, 1, 3)\n"
        "        assert layout.read(0, 23).positions.shape == (23, 17, 3)\n"
        "    wrong = {'zarr', 'MDAnalysis', 'h5py', 'netCDF4'} & set(sys.modules)\n"
        "    assert not wrong, wrong\n"
        "    assert ('numcodecs' in sys.modules) == (name == 'zstd')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_sniffing(tmp_path):
    write_tree(tmp_path / "named.anything", make_block())
    (tmp_path / "other").mkdir()
    (tmp_path / "file.zarr").write_bytes(b"no folder")
    assert ZarrLayout.sniff(tmp_path / "named.anything")
    assert written_by_mdio(tmp_path / "named.anything")
    for name in ("other", "file.zarr", "missing"):
        assert not ZarrLayout.sniff(tmp_path / name)
        assert not written_by_mdio(tmp_path / name)
    assert isinstance(open_layout(tmp_path / "named.anything"), ZarrLayout)


def test_a_layout_pickles_as_path_and_options(tmp_path):
    write_tree(tmp_path / "a.zarr", make_block(), groups={"ca": [3, 1]})
    with ZarrLayout(tmp_path / "a.zarr", group="ca") as layout:
        layout.read(0, 2)
        data = pickle.dumps(layout)
    assert len(data) < 1000
    assert pickle.loads(data).read(0, 2).n_atoms == 2


def test_a_field_that_is_not_stored_is_no_damage(tmp_path):
    write_tree(tmp_path / "made.zarr", make_block(3, 4), **SMALL)
    with open_layout(tmp_path / "made.zarr") as layout:
        wanted = FrameBlock.empty(1, 4, velocities=True)
        with pytest.raises(SourceError, match=r"made\.zarr: there are no velocities in it"):
            layout.read(0, 1, out=wanted)
