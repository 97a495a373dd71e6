"""H5MD files whose arrays lie in one piece each (``--contiguous``)."""

import json
import warnings

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, write_h5md
from suites.under_mpi import needs_mpi, run_under_mpi

import mdio
from mdio.cli.main import main
from mdio.cli.plan_table import plan_table
from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.h5md.layout import H5MDLayout
from mdio.layouts.h5md.writer import H5MDWriter
from mdio.layouts.plan import WriteOptions
from mdio.testing.blocks import oracle_of
from mdio.testing.reading import LayoutReadingTests, ReadingCase

CA = [3, 1, 7, 12]
VALUE = "particles/trajectory/position/value"


def contiguous_case(folder, group=None, **options):
    block = make_block(box="some", velocities=True, forces=True)
    groups = {"ca": CA, "few": [7, 3]}
    write_h5md(folder / "own.h5md", block, groups=groups, contiguous=True, **options)
    reading = {} if group is None else {"group": group}
    oracle = oracle_of(block, CA if group == "ca" else None)
    return ReadingCase(H5MDLayout, folder / "own.h5md", oracle, reading)


class TestOneRun(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return contiguous_case(tmp_path_factory.mktemp("one"))


class TestRuns(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return contiguous_case(tmp_path_factory.mktemp("runs"), chunk_frames=5)


class TestAlignedRuns(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return contiguous_case(tmp_path_factory.mktemp("aligned"), chunk_frames=4, stripe_nbytes=64)


class TestGroup(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return contiguous_case(tmp_path_factory.mktemp("group"), "ca", chunk_frames=5)


def test_hdf5_sees_one_piece_on_a_stripe(tmp_path):
    block = make_block(300, 1500)
    plan = write_h5md(tmp_path / "x.h5md", block, contiguous=True, groups={"ca": CA})
    assert plan.stripes.alignment_nbytes == 1 << 20 and plan.stripes.padding < 0.15
    assert len(plan.write_tasks()) > 1
    status = (tmp_path / "x.h5md").stat()
    with h5py.File(tmp_path / "x.h5md") as file:
        for name, atoms in (("trajectory", slice(None)), ("ca", CA)):
            value = file[f"particles/{name}/position/value"]
            assert value.chunks is None and value.compression is None
            aligned = value.id.get_offset() % plan.stripes.alignment_nbytes == 0
            assert aligned == (name == "trajectory")  # a group would be mostly padding
            assert_array_equal(value[:], block.positions[:, atoms])
        offset = file[VALUE].id.get_offset()
    mapped = np.memmap(tmp_path / "x.h5md", "<f4", "r", offset, block.positions.shape)
    assert_array_equal(mapped, block.positions)
    assert block.positions.nbytes <= plan.nbytes < status.st_size < plan.nbytes + (3 << 20)


def test_mdanalysis_reads_it(adk, tmp_path):
    import MDAnalysis as mda

    out = tmp_path / "a.h5md"
    words = ["convert", str(adk["xtc"]), str(out), "--contiguous", "--quiet", "-w", "2"]
    assert main([*words, "-s", str(adk["psf"]), "--group", "ca=name CA"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = mda.Universe(adk["psf"], adk["xtc"]).trajectory
        found = mda.Universe(adk["psf"], out).trajectory
        assert type(found).__name__ == "H5MDReader"
        assert found.n_frames == expected.n_frames == 98
        for one, other in zip(found, expected, strict=True):
            assert_array_equal(one.positions, other.positions)
            assert one.time == other.time
        found.close()
        expected.close()
    assert mdio.verify(out, adk["xtc"]).ok


@pytest.mark.parametrize("frame", [0, 9, 22])
def test_a_changed_byte_is_found(tmp_path, frame):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(), contiguous=True, chunk_frames=5)
    with h5py.File(path) as file:
        offset = file[VALUE].id.get_offset() + 12 * 17 * frame + 5
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)
    first = frame - frame % 5
    says = f"frames {first} to {min(first + 4, 22)}: crc32c"
    with H5MDLayout(path) as layout:
        with pytest.raises(CorruptLayoutError, match=says):
            layout.read(0, 23)
        bad = [problem for _, problem in layout.check() if problem]
        assert len(bad) == 1 and says in bad[0]


@pytest.mark.parametrize("run_frames", [0, -3, 4, 24, 1 << 62])
def test_runs_that_lie(tmp_path, run_frames):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(), contiguous=True, chunk_frames=5)
    with h5py.File(path, "r+") as file:
        file["mdio/arrays/trajectory/position"].attrs["run_frames"] = run_frames
    with pytest.raises(CorruptLayoutError, match=r"x\.h5md"), H5MDLayout(path) as layout:
        layout.read(0, 23)


def test_a_truncated_file(tmp_path):
    path = tmp_path / "x.h5md"
    write_h5md(path, make_block(300, 500), contiguous=True)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(OSError, match=r"x\.h5md"), H5MDLayout(path) as layout:
        layout.read(0, 300)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compression": "gzip"}, r"--contiguous .* --compression gzip needs chunks"),
        ({"precision": 0.01}, r"--contiguous .* --precision 0.01 needs chunks"),
        ({"chunk_atoms": 5}, r"--contiguous .* --chunk-atoms 5 needs chunks"),
    ],
)
def test_what_needs_chunks(options, says):
    info = TrajectoryInfo("x", "x", 10, 5, 1.0, 0.0, 9.0)
    with pytest.raises(PlanError, match=says):
        H5MDWriter.plan_for(info, WriteOptions(contiguous=True, **options))


@pytest.mark.parametrize("name", ["a.zarr", "a.segments", "a.dcd"])
def test_other_layouts_have_no_such_arrays(adk, tmp_path, capsys, name):
    assert main(["convert", str(adk["xtc"]), str(tmp_path / name), "--contiguous"]) == 2
    assert "--contiguous belongs to the layout h5md, not to" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_plan_says_so(adk, tmp_path, capsys):
    out = str(tmp_path / "a.h5md")
    assert main(["convert", str(adk["xtc"]), out, "--contiguous", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "contiguous" in text and "arrays begin on stripes" in text
    assert main(["convert", str(adk["xtc"]), out, "--contiguous", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["arrays"][0]["contiguous"] is True


def test_large_frames_are_not_cut():
    info = TrajectoryInfo("x", "x", 7, 10_000_000, 1.0, 0.0, 6.0)
    plan = H5MDWriter.plan_for(info, WriteOptions(contiguous=True))
    assert (plan.arrays[0].chunk_frames, plan.arrays[0].chunk_atoms) == (1, 10_000_000)
    assert plan.write_tasks() == [(n, n + 1) for n in range(7)]
    last = " ".join(plan_table(plan).splitlines()[-1].split())
    assert last == "trajectory positions 10,000,000 contiguous 801.1 MiB none"


@needs_mpi
@pytest.mark.parametrize("how", [(), ("--mpio",), ("--collective",)])
def test_ranks_write_the_same(adk, tmp_path, how):
    serial, shared = tmp_path / "serial.h5md", tmp_path / "shared.h5md"
    words = ("--contiguous", "--chunk-frames", "7", "-s", str(adk["psf"]), "--group", "ca=name CA")
    assert main(["convert", str(adk["xtc"]), str(serial), "--quiet", *words]) == 0
    code, _, err = run_under_mpi(
        3, "-m", "mdio.cli.main", "convert", adk["xtc"], shared, "--mpi", "--quiet", *words, *how
    )
    assert code == 0, err
    assert mdio.verify(shared, adk["xtc"]).ok
    with h5py.File(serial) as one, h5py.File(shared) as other:
        for name in ("trajectory", "ca"):
            table = f"mdio/arrays/{name}/position/crc32c"
            assert one[table].shape[0] > 1
            assert_array_equal(one[table], other[table])
            value = f"particles/{name}/position/value"
            assert other[value].chunks is None
            assert_array_equal(one[value], other[value])
