"""Our own H5MD files, read back."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, write_h5md

from mdio.core.errors import FrameRangeError, PlanError, SourceError
from mdio.core.frames import FrameBlock
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.h5md.layout import H5MDLayout, written_by_mdio
from mdio.testing.blocks import oracle_of
from mdio.testing.reading import LayoutReadingTests, Oracle, ReadingCase

GOLDEN = Path(__file__).parents[2] / "golden" / "h5md"
SPLIT = {"chunk_frames": 4, "chunk_atoms": 6}
CA = [3, 1, 7, 12]


def own_case(folder, *, box="orthogonal", group=None, **options):
    block = make_block(box=box, velocities=True, forces=True)
    write_h5md(folder / "own.h5md", block, groups={"ca": CA, "few": [7, 3]}, **options)
    reading = {} if group is None else {"group": group}
    oracle = oracle_of(block, CA if group == "ca" else None)
    return ReadingCase(H5MDLayout, folder / "own.h5md", oracle, reading)


class TestOneChunk(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return own_case(tmp_path_factory.mktemp("one"), box="triclinic")


class TestManyChunks(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return own_case(tmp_path_factory.mktemp("many"), box="some", **SPLIT)


class TestRunsOfFrames(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return own_case(tmp_path_factory.mktemp("runs"), chunk_frames=5)


class TestCompressed(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return own_case(tmp_path_factory.mktemp("gzip"), compression="gzip:2", **SPLIT)


class TestGroup(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return own_case(tmp_path_factory.mktemp("group"), group="ca", **SPLIT)


class TestPrecision(LayoutReadingTests):
    def check_positions(self, actual, expected):
        exact = np.round(expected.astype(np.float64) * 64) / 64
        assert_array_equal(actual, exact.astype(np.float32))

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return own_case(tmp_path_factory.mktemp("precision"), precision=0.02, **SPLIT)


class TestLargeFrames(LayoutReadingTests):
    """Frames of which narrow ranges of atoms are read alone."""

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        block = make_block(6, 9000)
        path = tmp_path_factory.mktemp("large") / "own.h5md"
        write_h5md(path, block, chunk_frames=4)
        return ReadingCase(H5MDLayout, path, oracle_of(block))


def golden_block() -> FrameBlock:
    """What the golden files hold, by formula: 10 frames of 5 atoms."""
    f, a, k = np.ogrid[:10, :5, :3]
    block = FrameBlock.empty(10, 5, velocities=True, forces=True)
    block.positions[...] = f + a / 4 - 8 * k
    block.velocities[...] = (f - a) / 2 + k
    block.forces[...] = f * a - k / 8
    block.box[:] = [30, 31, 32, 60, 70, 80]
    block.box[:, 0] += np.arange(10)
    block.box[4:6] = 0
    block.time[:] = 100 + 2.5 * np.arange(10)
    block.step[:] = [0, 10, 20, 30, 40, 0, 10, 20, 30, 40]  # a run that was started again
    return block


def golden_oracle(group=None):
    block = golden_block()
    block = block if group is None else block.take(np.array([4, 0]))
    return Oracle(
        block.positions, block.box, block.time, block.step, block.velocities, block.forces, 2.5
    )


@pytest.mark.parametrize("group", [None, "ends"])
@pytest.mark.parametrize("name", ["v1.h5md", "v1-gzip.h5md"])
def test_files_of_format_version_1_stay_readable(name, group):
    oracle = golden_oracle(group)
    with H5MDLayout(GOLDEN / name, group=group) as layout:
        LayoutReadingTests().check(layout.read(0, 10), oracle, 0, 10)
        LayoutReadingTests().check(layout.read(3, 5, atoms=[1, 0]), oracle, 3, 5, [1, 0])
        assert layout.info.groups == {"ends": 2}
        assert layout.info.dt_ps == 2.5
        assert layout.manifest["uuid"] == "0f1e2d3c"
        assert [problem for _, problem in layout.check()] == [None] * (3 + 3 * (4 + 4))


def test_info_says_how_it_is_stored(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block(), groups={"ca": CA}, precision=0.01, **SPLIT)
    info = H5MDLayout(tmp_path / "x.h5md").info
    assert (info.chunk_frames, info.chunk_atoms) == (4, 6)
    assert (info.compression, info.precision) == ("gzip:4", 2.0**-7)
    assert info.source["path"] == "/data/run.xtc"
    assert info.groups == {"ca": 4}
    assert info.nbytes == (tmp_path / "x.h5md").stat().st_size
    assert H5MDLayout(tmp_path / "x.h5md").boundaries().tolist() == [0, 4, 8, 12, 16, 20, 23]


def test_selections_are_read_from_the_smallest_group(tmp_path, monkeypatch):
    block = make_block(velocities=True)
    groups = {"ca": CA, "few": [7, 3]}
    write_h5md(tmp_path / "x.h5md", block, groups=groups, **SPLIT)
    seen = []
    read = ChunkedArray.read

    def record(self, *arguments):
        seen.append(self.name)
        read(self, *arguments)

    monkeypatch.setattr(ChunkedArray, "read", record)
    with H5MDLayout(tmp_path / "x.h5md") as layout:
        for atoms, group in (
            ([3, 7], "few"),
            ([7, 3], "few"),
            ([1, 3], "ca"),
            (CA, "ca"),
            ([2], "trajectory"),
            (None, "trajectory"),
        ):
            seen.clear()
            got = layout.read(2, 9, atoms=atoms)
            picked = slice(None) if atoms is None else atoms
            assert_array_equal(got.positions, block.positions[2:9, picked])
            assert_array_equal(got.velocities, block.velocities[2:9, picked])
            assert [what.rsplit(" ", 1)[1] for what in seen] == [group, group]


def test_blocks_with_strides_are_filled(tmp_path):
    block = make_block()
    write_h5md(tmp_path / "x.h5md", block, chunk_frames=5)
    wide = FrameBlock.empty(23, 40)
    out = FrameBlock(wide.positions[:, 10:27], wide.box, wide.time, wide.step)
    with H5MDLayout(tmp_path / "x.h5md") as layout:
        layout.read(0, 23, out=out)
    assert_array_equal(wide.positions[:, 10:27], block.positions)


def test_long_columns_are_read_by_the_slice(tmp_path, monkeypatch):
    monkeypatch.setattr("mdio.layouts.h5md.io.MAX_CACHED_NBYTES", 0)
    block = make_block()
    write_h5md(tmp_path / "x.h5md", block)
    with H5MDLayout(tmp_path / "x.h5md") as layout:
        LayoutReadingTests().check(layout.read(7, 11), oracle_of(block), 7, 11)
        assert layout.backend._columns["time"]._rows is None


def test_a_copy_by_hdf5_tools_is_read(tmp_path):
    """As h5repack makes it: the same chunks in other places."""
    block = make_block(velocities=True)
    write_h5md(tmp_path / "x.h5md", block, groups={"ca": CA}, **SPLIT)
    with h5py.File(tmp_path / "x.h5md") as old, h5py.File(tmp_path / "y.h5md", "w") as new:
        new["ballast"] = np.arange(1000)
        for name in old:
            old.copy(name, new)
    with H5MDLayout(tmp_path / "y.h5md") as layout:
        LayoutReadingTests().check(layout.read(0, 23), oracle_of(block), 0, 23)


def test_a_group_that_is_not_there(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block(), groups={"ca": CA})
    with pytest.raises(PlanError, match=r"x\.h5md.*'cb'.*trajectory, ca"):
        _ = H5MDLayout(tmp_path / "x.h5md", group="cb").info


def test_fields_that_are_not_there(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block())
    layout = H5MDLayout(tmp_path / "x.h5md")
    with pytest.raises(OSError, match="no velocities"):
        layout.read(0, 1, out=FrameBlock.empty(1, 17, velocities=True))
    with pytest.raises(FrameRangeError):
        layout.read(0, 24)


def test_what_mdio_wrote_is_known(tmp_path):
    write_h5md(tmp_path / "own.h5md", make_block())
    with h5py.File(tmp_path / "other.h5md", "w") as file:
        file.create_group("h5md")
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = 1
    (tmp_path / "text.h5md").write_text("text")
    (tmp_path / "cut.h5md").write_bytes((tmp_path / "own.h5md").read_bytes()[:1000])
    (tmp_path / "empty.h5md").touch()
    expected = {  # (written by mdio, H5MD)
        "own.h5md": (True, True),
        "other.h5md": (False, True),
        "plain.h5": (False, False),
        "text.h5md": (False, False),
        "cut.h5md": (False, True),
        "empty.h5md": (False, False),
        "missing.h5md": (False, False),
        ".": (False, False),
    }
    for name, answers in expected.items():
        path = tmp_path / name
        assert (written_by_mdio(path), H5MDLayout.sniff(path)) == answers, name


def test_nothing_is_there(tmp_path):
    with pytest.raises(SourceError, match=r"x\.h5md: no such file"):
        _ = H5MDLayout(tmp_path / "x.h5md").info


def test_no_file_stays_open(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block())
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with H5MDLayout(tmp_path / "x.h5md") as layout:
            layout.read(0, 1)
        layout = H5MDLayout(tmp_path / "x.h5md", group="none")
        with pytest.raises(PlanError):
            _ = layout.info
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_reading_needs_no_mdanalysis(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block())
    code = (
        "import sys; from mdio.layouts.h5md.layout import H5MDLayout as L\n"
        "assert 'h5py' not in sys.modules\n"
        "print(L(sys.argv[1]).read(0, 2).positions.shape)\n"
        "assert 'MDAnalysis' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x.h5md")]
    assert subprocess.check_output(command, text=True).strip() == "(2, 17, 3)"
