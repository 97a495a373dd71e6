"""H5MD in parts (``--per-rank``), as older versions wrote it, read by us and by others."""

import gc
import os
import pickle
import shutil
import warnings
from pathlib import Path

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.h5md_cases import make_block, write_h5md
from suites.h5md_parts_cases import copy_parts, frames_of, make_parts
from suites.per_rank import write_parts

import mdio
from mdio.cli.main import main
from mdio.core.errors import OptionError, OutputError, SourceError
from mdio.layouts.h5md.layout import H5MDLayout, written_by_mdio
from mdio.layouts.h5md.own import H5MDChunks
from mdio.testing.blocks import oracle_of
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

CA = np.array([1, 3, 7, 12])
VALUE = "particles/trajectory/position/value"


def parts_case(folder, workers=3, group=None, box="some", **options):
    block = make_block(box=box, velocities=True, forces=True)
    write_h5md(folder / "source.h5md", block)
    groups = {"ca": CA, "few": np.array([3, 7])}
    out = folder / "own.h5md"
    write_parts(folder / "source.h5md", out, workers, groups=groups, **options)
    reading = {} if group is None else {"group": group}
    oracle = oracle_of(block, CA if group == "ca" else None)
    return ReadingCase(H5MDLayout, out, oracle, reading)


class TestOnePart(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return parts_case(tmp_path_factory.mktemp("one"), workers=1, box="triclinic")


class TestParts(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return parts_case(tmp_path_factory.mktemp("many"), chunk_frames=2, chunk_atoms=6)


class TestCompressed(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return parts_case(tmp_path_factory.mktemp("gzip"), chunk_frames=3, compression="gzip:1")


class TestContiguous(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return parts_case(tmp_path_factory.mktemp("pieces"), chunk_frames=2, contiguous=True)


class TestGroup(LayoutReadingTests):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return parts_case(tmp_path_factory.mktemp("group"), group="ca", chunk_frames=1)


@pytest.fixture(scope="module")
def source(adk):
    """784 frames, as one listing."""
    return [adk["xtc"]] * 8


@pytest.fixture(scope="module")
def oracle(adk):
    one = oracle_from_mdanalysis(adk["psf"], adk["xtc"])
    return {name: np.concatenate([getattr(one, name)] * 8) for name in ("positions", "box", "time")}


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    """An output in three parts that nobody changes."""
    return make_parts(adk, tmp_path_factory.mktemp("made"))


@pytest.fixture
def mine(made, tmp_path):
    """A copy to change."""
    return copy_parts(made, tmp_path)


@pytest.mark.parametrize("folder", [".", "/"])
def test_h5py_sees_every_frame_from_anywhere(made, oracle, folder, monkeypatch):
    monkeypatch.chdir(made.parent if folder == "." else folder)
    with h5py.File(os.path.relpath(made)) as file:
        value = file[VALUE]
        assert value.is_virtual and value.dtype == "<f4" and np.isnan(value.fillvalue)
        names = {source.file_name for source in value.virtual_sources()}
        assert names == {f"a.h5md.parts/000{n}.h5md" for n in range(3)}  # relative
        assert_array_equal(value, oracle["positions"])
        assert value.attrs["unit"] == "Angstrom"
        ca = file["particles/ca/position/value"][()]
        position = file["particles/trajectory/position"]
        assert_array_equal(position["time"], oracle["time"])
        assert_array_equal(
            file["particles/trajectory/box/edges/value"][:, 0, 0], oracle["box"][:, 0]
        )
        assert file["particles/ca/position/step"] == position["step"]  # a hard link
    with mdio.open(made, group="ca") as layout:
        assert_array_equal(layout.read(0, 784).positions, ca)


def test_a_link_in_another_folder(made, oracle, tmp_path):
    """Its parts lie beside the file that it leads to, where h5py finds them too."""
    link = tmp_path / "link.h5md"
    link.symlink_to(os.path.relpath(made, tmp_path))
    with mdio.open(link) as layout:
        assert_array_equal(layout.read(0, 784).positions, oracle["positions"])
    assert mdio.verify(link).ok


def test_the_stock_reader_of_mdanalysis(adk, made, oracle):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(adk["psf"], made, format="H5MD")
    assert type(universe.trajectory).__module__ == "MDAnalysis.coordinates.H5MD"
    found = [(ts.positions.copy(), ts.dimensions.copy(), ts.time) for ts in universe.trajectory]
    for column, name in zip(zip(*found, strict=True), ("positions", "box", "time"), strict=True):
        assert_array_equal(np.array(column), oracle[name])


def test_a_universe_of_ours(adk, made, oracle):
    assert written_by_mdio(made)
    universe = mda.Universe(adk["psf"], made)
    assert type(universe.trajectory).__module__.startswith("mdio")
    assert_array_equal(universe.trajectory[500].positions, oracle["positions"][500])


def test_moved_together(mine, oracle, tmp_path):
    (tmp_path / "else").mkdir()
    moved = mine.rename(tmp_path / "else" / "b.h5md")  # another name for the file is no matter
    mine.with_name("a.h5md.parts").rename(tmp_path / "else" / "a.h5md.parts")
    assert_array_equal(frames_of(moved).positions, oracle["positions"])
    with h5py.File(moved) as file:
        assert_array_equal(file[VALUE], oracle["positions"])


def test_every_part_is_a_trajectory(made, source, oracle):
    at = 0
    for part in sorted(made.with_name("a.h5md.parts").glob("*.h5md")):
        block = frames_of(part)
        assert_array_equal(block.positions, oracle["positions"][at : at + block.n_frames])
        at += block.n_frames
        assert mdio.verify(part, source).ok
    assert at == 784


def test_info_and_boundaries(made, source):
    with mdio.open(made) as layout, mdio.open(source) as plain:
        info, bare = layout.info, plain.info
        edges = layout.boundaries()
        manifest = layout.manifest
    assert (info.layout, info.path, info.n_frames) == ("h5md", str(made), 784)
    assert (info.time_first_ps, info.time_last_ps) == (bare.time_first_ps, bare.time_last_ps)
    assert dict(info.groups) == {"ca": 214}
    assert info.nbytes == sum(
        path.stat().st_size for path in (made, *made.with_name("a.h5md.parts").glob("*.h5md"))
    )
    firsts = [part["first_frame"] for part in manifest["parts"]]
    assert len(firsts) == 3 and set(firsts) <= set(edges.tolist())
    assert set(np.diff(edges)[:-1]) == {13}
    uuids = [part["uuid"] for part in manifest["parts"]]
    assert len(set(uuids)) == 3
    for part in manifest["parts"]:
        with mdio.open(made.with_name("a.h5md.parts") / part["file"]) as layout:
            assert layout.manifest["uuid"] == part["uuid"]


def test_a_stored_group_is_read_for_its_atoms(made, monkeypatch):
    """Atoms of a group come from its arrays: those of the full system may be gone."""
    with mdio.open(made, group="ca") as layout:
        ca = layout.read(300, 310).positions
    asked = []
    with mdio.open(made) as layout:
        _ = layout.info
        read = H5MDChunks.read
        monkeypatch.setattr(
            H5MDChunks, "read", lambda self, *a: (asked.append(self.name), read(self, *a))
        )
        runs = layout.manifest["group_atoms"]["ca"]
        atoms = np.concatenate([np.arange(*run) for run in runs])
        assert_array_equal(layout.read(300, 310, atoms=atoms).positions, ca)
    assert len(asked) == 1 and asked[0].endswith("position of ca")


def open_files():
    gc.collect()  # what former tests have left is closed now, and not between two counts
    links = (os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
    return sum(".h5md" in name for name in links)


def test_many_parts_are_not_all_open(adk, tmp_path, monkeypatch):
    monkeypatch.setattr("mdio.layouts.h5md.parts.MAX_OPEN_PARTS", 2)
    out = tmp_path / "a.h5md"
    write_parts(adk["xtc"], out, 9, chunk_frames=5)
    expected = frames_of(adk["xtc"]).positions
    before = open_files()
    with mdio.open(out) as layout:
        for frame in (97, 0, 40, 97, 13, 60):
            assert_array_equal(layout.read(frame, frame + 1).positions[0], expected[frame])
        assert open_files() <= before + 3
        copied = pickle.loads(pickle.dumps(layout))
    assert_array_equal(copied.read(3, 90).positions, expected[3:90])
    copied.close()
    assert open_files() == before


GOLDEN = Path(__file__).parents[3] / "golden" / "h5md"


@pytest.mark.parametrize("name", ["v1-parts.h5md", "v1-parts-gzip.h5md"])
def test_what_older_versions_wrote(name, tmp_path):
    """It is read, verified and converted, and nothing is added to it."""
    out = tmp_path / name
    shutil.copy(GOLDEN / name, out)
    shutil.copytree(GOLDEN / f"{name}.parts", tmp_path / f"{name}.parts")
    one = mdio.open(GOLDEN / "v1.h5md")
    assert mdio.verify(out, GOLDEN / "v1.h5md").ok
    mdio.convert(out, tmp_path / "one.h5md")
    for path in (out, tmp_path / "one.h5md"):
        block = frames_of(path)
        for field in ("positions", "velocities", "forces", "box", "time", "step"):
            assert_array_equal(getattr(block, field), getattr(one.read(0, 10), field))
    with mdio.open(out, group="ends") as layout:
        assert_array_equal(layout.read(0, 10).positions, one.read(0, 10, [4, 0]).positions)
    (tmp_path / "one.h5md").unlink()
    with pytest.raises(OutputError, match=rf"{name}\.parts.* delete both"):
        mdio.append(GOLDEN / "v1.h5md", out, start=4, overlap="keep-all")
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.parts"}
    assert frames_of(out).n_frames == 10 and mdio.verify(out).ok


def test_damaged_parts_are_told_and_not_repaired(mine, source):
    (mine.with_name("a.h5md.parts") / "0001.h5md").unlink()
    assert mdio.repair(mine).bad
    with pytest.raises(SourceError, match=r"a\.h5md: its frames lie in parts"):
        mdio.repair(mine, source)


def test_the_option_is_gone(adk, tmp_path, capsys):
    words = ["convert", str(adk["xtc"]), str(tmp_path / "a.h5md"), "--per-rank"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "--per-rank (it is gone: h5md is one file; in zarr" in capsys.readouterr().err
    with pytest.raises(OptionError, match=r"'per_rank' .it is gone: h5md is one file"):
        mdio.convert(adk["xtc"], tmp_path / "a.h5md", per_rank=True)
    assert list(tmp_path.iterdir()) == []
