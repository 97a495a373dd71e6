"""H5MD in parts (``--per-rank``): what is written, and read by us and by others."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.blocks import oracle_of
from suites.h5md_cases import make_block, write_h5md
from suites.layout_reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis

import mdio
from mdio.cli.main import main
from mdio.converters.parts_conversion import PartWorker
from mdio.core.errors import CorruptLayoutError, OutputError, PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.h5md import H5MDLayout, written_by_mdio
from mdio.layouts.h5md_parts_writer import plan_parts
from mdio.layouts.h5md_writer import H5MDWriter
from mdio.layouts.plan import WriteOptions
from mdio.layouts.plan_table import plan_table
from mdio.parallel.executors import Processes

CA = np.array([1, 3, 7, 12])
VALUE = "particles/trajectory/position/value"


def parts_case(folder, workers=3, group=None, box="some", **options):
    block = make_block(box=box, velocities=True, forces=True)
    write_h5md(folder / "source.h5md", block)
    groups = {"ca": CA, "few": np.array([3, 7])}
    out = folder / "own.h5md"
    mdio.convert(
        folder / "source.h5md", out, groups=groups, workers=workers, per_rank=True, **options
    )
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
def made(adk, source, tmp_path_factory):
    """An output in three parts that nobody changes."""
    out = tmp_path_factory.mktemp("made") / "a.h5md"
    options = {"top": adk["psf"], "groups": {"ca": "name CA"}, "chunk_frames": 13}
    mdio.convert(source, out, workers=3, per_rank=True, **options)
    return out


@pytest.fixture
def mine(made, tmp_path):
    """A copy to change."""
    shutil.copy(made, tmp_path / "a.h5md")
    shutil.copytree(made.with_name("a.h5md.parts"), tmp_path / "a.h5md.parts")
    return tmp_path / "a.h5md"


def frames_of(path):
    with mdio.open(path) as layout:
        return layout.read(0, layout.info.n_frames)


def parts_in(path):
    return sorted(part.name for part in path.with_name(f"{path.name}.parts").glob("*.h5md"))


@pytest.mark.parametrize("compression", [None, "gzip:1"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_equal_to_one_file(source, oracle, made, tmp_path, workers, compression):
    out = tmp_path / "a.h5md"
    options = {"chunk_frames": 13, "compression": compression}
    mdio.convert(source, out, workers=workers, per_rank=True, **options)
    assert len(parts_in(out)) == workers
    block, one = frames_of(out), frames_of(made)
    for name in ("positions", "box", "time"):
        assert_array_equal(getattr(block, name), oracle[name])
    assert_array_equal(block.step, one.step)
    assert mdio.verify(out, source).ok
    mdio.convert(source, tmp_path / "one.h5md", **options)
    crcs = [
        h5py.File(path)["mdio/arrays/trajectory/position/crc32c"][()]
        for path in [*sorted((tmp_path / "a.h5md.parts").glob("*.h5md")), tmp_path / "one.h5md"]
    ]
    assert_array_equal(np.concatenate(crcs[:-1]), crcs[-1])


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


@pytest.mark.parametrize("how", [{"start": 5, "stop": 700, "step": 3}, {"dt_ps": 6.0}])
def test_parts_know_their_frames(source, tmp_path, how):
    out = tmp_path / "a.h5md"
    mdio.convert(source, out, workers=2, per_rank=True, chunk_frames=5, **how)
    assert len(parts_in(out)) == 2
    for path in (out, *(tmp_path / "a.h5md.parts").glob("*.h5md")):
        assert mdio.verify(path, source).ok


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
            assert layout.manifest["part_of"]["uuid"] == manifest["uuid"]


def test_a_stored_group_is_read_for_its_atoms(made, monkeypatch):
    """Atoms of a group come from its arrays: those of the full system may be gone."""
    with mdio.open(made, group="ca") as layout:
        ca = layout.read(300, 310).positions
    asked = []
    with mdio.open(made) as layout:
        _ = layout.info
        from mdio.layouts.h5md_own import OwnFile

        read = OwnFile._read_array
        monkeypatch.setattr(
            OwnFile, "_read_array", lambda self, key, *a: (asked.append(key), read(self, key, *a))
        )
        runs = layout.manifest["group_atoms"]["ca"]
        atoms = np.concatenate([np.arange(*run) for run in runs])
        assert_array_equal(layout.read(300, 310, atoms=atoms).positions, ca)
    assert {group for group, _ in asked} == {"ca"}


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_parts_are_not_all_open(adk, tmp_path, monkeypatch):
    monkeypatch.setattr("mdio.layouts.h5md_parts.MAX_OPEN", 2)
    out = tmp_path / "a.h5md"
    with Processes(2) as executor:
        executor._n_workers = 9
        mdio.convert(adk["xtc"], out, executor=executor, per_rank=True, chunk_frames=5)
    assert len(parts_in(out)) == 9
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


def test_missing_parts(mine):
    (mine.with_name("a.h5md.parts") / "0001.h5md").unlink()
    message = r"a\.h5md\.parts/0001\.h5md: this part of a\.h5md \(frames \d+ to \d+\) is missing"
    with pytest.raises(CorruptLayoutError, match=message):
        mdio.open(mine).read(0, 1)
    with h5py.File(mine) as file:
        assert np.isnan(file[VALUE][400]).all()  # to others it is at least no coordinate
    shutil.rmtree(mine.with_name("a.h5md.parts"))
    with pytest.raises(CorruptLayoutError, match=r"a\.h5md\.parts: the folder with the 3 parts"):
        _ = mdio.open(mine).info
    assert main(["verify", str(mine)]) == 1


def test_a_part_of_another_output(mine, source, tmp_path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "a.h5md"
    mdio.convert(source, other, workers=3, per_rank=True, chunk_frames=13)
    shutil.copy(other.with_name("a.h5md.parts") / "0001.h5md", mine.with_name("a.h5md.parts"))
    with mdio.open(mine) as layout:
        layout.read(0, 1)
        with pytest.raises(CorruptLayoutError, match=r"0001\.h5md: not the file that a\.h5md mea"):
            layout.read(400, 401)
    result = mdio.verify(mine)
    assert not result.ok and len(result.bad) == 1 and "0001.h5md" in result.bad[0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_truncated_part(mine, share):
    part = mine.with_name("a.h5md.parts") / "0002.h5md"
    os.truncate(part, int(share * part.stat().st_size))
    with mdio.open(mine) as layout, pytest.raises(CorruptLayoutError, match=r"0002\.h5md.*part 2"):
        layout.read(700, 784)
    bad = mdio.verify(mine).bad
    assert len(bad) == 1 and "0002.h5md" in bad[0]


def test_a_changed_byte_in_a_part(mine):
    part = mine.with_name("a.h5md.parts") / "0001.h5md"
    with h5py.File(part) as file:
        offset = file[VALUE].id.get_chunk_info(1).byte_offset
    with part.open("r+b") as file:
        file.seek(offset + 1000)
        file.write(b"\x55\xaa")
    with mdio.open(mine) as layout, pytest.raises(CorruptLayoutError, match=r"0001\.h5md.*crc32c"):
        layout.read(0, 784)
    bad = mdio.verify(mine).bad
    assert len(bad) == 1 and "0001.h5md" in bad[0]


def test_a_time_that_differs_from_its_parts(mine):
    """Consistent in itself, but not what the part says: somebody has written both."""
    part = mine.with_name("a.h5md.parts") / "0001.h5md"
    from mdio.core.kernels import crc32c

    with h5py.File(part, "r+") as file:
        file["particles/trajectory/position/time"][0] = -1.0
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
        manifest["column_crc32c"]["time"] = crc32c(file["particles/trajectory/position/time"][()])
        del file["mdio/manifest"]
        file["mdio/manifest"] = json.dumps(manifest)
    bad = mdio.verify(mine).bad
    assert len(bad) == 1 and "its times are not those in" in bad[0]


def with_manifest(path, change):
    with h5py.File(path, "r+") as file:
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
        del file["mdio/manifest"]
        change(manifest)
        file["mdio/manifest"] = json.dumps(manifest)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("parts"),
        lambda m: m.update(parts=7),
        lambda m: m["parts"].pop(),
        lambda m: m["parts"].reverse(),
        lambda m: m["parts"][0].update(file="../../x.h5md"),
        lambda m: m["parts"][0].update(file="x"),
        lambda m: m["parts"][0].update(n_frames=-3),
        lambda m: m["parts"][0].update(n_frames="3"),
        lambda m: m["parts"][0].pop("uuid"),
        lambda m: m["parts"][0].update(more=1),
        lambda m: m["parts"][2].update(n_frames=10**15),
        lambda m: m.update(parts_folder=".."),
        lambda m: m.update(parts_folder="a/b"),
        lambda m: m.update(parts_folder=None),
        lambda m: m.update(parts_folder="\0"),
    ],
)
def test_lying_manifests(mine, change):
    with_manifest(mine, change)
    with pytest.raises(CorruptLayoutError, match=r"a\.h5md"):
        mdio.open(mine).read(0, 784)


def test_a_file_that_is_a_part_of_itself(mine):
    with h5py.File(mine) as file:
        uuid = json.loads(file["mdio/manifest"].asstr()[()])["uuid"]
    with_manifest(mine, lambda m: m["parts"][0].update(uuid=uuid))
    folder = mine.with_name("a.h5md.parts")
    shutil.copy(mine, folder / "0000.h5md")
    (folder / "a.h5md.parts").symlink_to(folder)
    with pytest.raises(CorruptLayoutError, match=r"0000\.h5md"):
        mdio.open(mine).read(0, 1)


def test_force_replaces_both(adk, mine):
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["xtc"], mine, per_rank=True)
    mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
    assert frames_of(mine).n_frames == 98
    assert parts_in(mine) == ["0000.h5md"]
    mdio.convert(adk["xtc"], mine, stop=7, force=True)
    assert [path.name for path in mine.parent.iterdir()] == ["a.h5md"]
    mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
    assert sorted(path.name for path in mine.parent.iterdir()) == ["a.h5md", "a.h5md.parts"]
    assert mdio.verify(mine, adk["xtc"]).ok


def test_parts_of_a_file_that_was_moved_away_are_not_replaced(adk, mine):
    mine.rename(mine.with_name("kept.h5md"))
    with pytest.raises(OutputError, match=r"a\.h5md\.parts: it exists already"):
        mdio.convert(adk["xtc"], mine, per_rank=True)
    mdio.convert(adk["xtc"], mine)  # one file is in nobody's way
    assert frames_of(mine.with_name("kept.h5md")).n_frames == 784


def test_a_folder_of_something_else_is_not_replaced(adk, tmp_path):
    (tmp_path / "a.h5md.parts").mkdir()
    (tmp_path / "a.h5md.parts" / "thesis.tex").touch()
    with pytest.raises(OutputError, match="no trajectory"):
        mdio.convert(adk["xtc"], tmp_path / "a.h5md", per_rank=True, force=True)


def test_a_part_is_not_replaced_by_what_is_made_of_it(mine):
    part = mine.with_name("a.h5md.parts") / "0001.h5md"
    for per_rank in (True, False):
        with pytest.raises(OutputError, match="the source"):
            mdio.convert(part, mine, force=True, per_rank=per_rank)
    assert mdio.verify(mine).ok


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_frame_leaves_the_former_output(adk, mine, tmp_path_factory, workers):
    bad = tmp_path_factory.mktemp("bad") / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    at = len(data) * 2 // 3
    data[at : at + 64] = b"\xff" * 64
    bad.write_bytes(data)
    for options in ({}, {"compression": "gzip:1"}):
        with pytest.raises(OSError, match=r"bad\.xtc"):
            mdio.convert(
                [adk["xtc"]] * 3 + [bad],
                mine,
                workers=workers,
                per_rank=True,
                force=True,
                **options,
            )
    assert sorted(path.name for path in mine.parent.iterdir()) == ["a.h5md", "a.h5md.parts"]
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784


@pytest.mark.parametrize("nth", [0, 1, 2, 3])
def test_a_rename_that_fails_leaves_the_former_output(adk, mine, nth, monkeypatch):
    rename, left = Path.rename, [nth]

    def fail(self, target):
        left[0] -= 1
        if left[0] == -1:
            raise OSError(5, "broken disk")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="broken disk"):
            mdio.convert(adk["xtc"], mine, per_rank=True, force=True)
    assert sorted(path.name for path in mine.parent.iterdir()) == ["a.h5md", "a.h5md.parts"]
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_killed_between_renames(adk, mine, nth):
    """No file ever refers to parts of another; the next conversion puts right what is left."""
    code = (
        "import os, sys, mdio\n"
        "from pathlib import Path\n"
        "rename, left = Path.rename, [int(sys.argv[3])]\n"
        "def once(self, target):\n"
        "    rename(self, target)\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os._exit(9)\n"
        "Path.rename = once\n"
        "mdio.convert(sys.argv[1], sys.argv[2], per_rank=True, force=True)\n"
    )
    words = [sys.executable, "-c", code, str(adk["xtc"]), str(mine), str(nth)]
    assert subprocess.run(words, check=False).returncode == 9
    if mine.exists():  # only once its own parts are there
        assert nth == 4 and mdio.verify(mine, adk["xtc"]).ok
    with pytest.raises((OutputError, PlanError)):
        mdio.convert(adk["xtc"], mine, stop=3, per_rank=True)  # it is there again
    assert mdio.verify(mine).ok
    assert frames_of(mine).n_frames == (98 if nth == 4 else 784)
    mdio.convert(adk["xtc"], mine, stop=3, per_rank=True, force=True)
    assert sorted(path.name for path in mine.parent.iterdir()) == ["a.h5md", "a.h5md.parts"]


def test_dry_run_tells(adk, tmp_path, capsys):
    words = ["convert", *[str(adk["xtc"])] * 8, str(tmp_path / "a.h5md"), "--dry-run", "-w", "3"]
    assert main([*words, "--per-rank"]) == 0
    said = capsys.readouterr().out
    assert "parts        3 with 260 to 264 frames" in said
    assert "in 4 files" in said and "a.h5md.parts" in said and "keep the two together" in said
    assert main([*words, "--per-rank", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert len(plan["segment_frames"]) == 3 and sum(plan["segment_frames"]) == 784
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n_frames", [1, 5, 6, 7, 12, 13, 100, 784])
@pytest.mark.parametrize("n_parts", [1, 2, 3, 7, 1000])
def test_plan_divides_chunks(n_frames, n_parts):
    info = TrajectoryInfo(
        layout="xtc", path="x", n_frames=n_frames, n_atoms=3341, dt_ps=1.0,
        time_first_ps=0.0, time_last_ps=1.0, has_velocities=False, has_forces=False, has_box=True,
    )  # fmt: skip
    one = H5MDWriter.plan_for(info, WriteOptions(chunk_frames=6, groups={"ca": 214}))
    plan = plan_parts(one, n_parts)
    sizes = plan.segment_frames
    unit = max(array.chunk_frames for array in plan.arrays)
    assert sum(sizes) == n_frames and len(sizes) <= n_parts
    assert all(size % unit == 0 for size in sizes[:-1])
    assert len(sizes) == min(n_parts, max(1, n_frames // unit))
    assert max(sizes) - min(sizes) < 2 * unit
    edges = np.cumsum((0, *sizes))
    for start, stop in plan.pieces():
        part = np.searchsorted(edges, start, side="right") - 1
        assert stop <= edges[part + 1]
    assert f"{len(sizes)} with" in plan_table(plan)


def test_what_cannot_be_in_parts(adk, tmp_path, capsys):
    with pytest.raises(PlanError, match=r"h5md in parts, not zarr"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", per_rank=True)
    assert main(["convert", str(adk["xtc"]), str(tmp_path / "a.zarr"), "--per-rank"]) == 2
    assert "--per-rank" in capsys.readouterr().err
    with pytest.raises(PlanError, match="without parallel HDF5"):
        mdio.convert(adk["xtc"], tmp_path / "a.h5md", per_rank=True, mpio="independent")


def test_pieces_of_one_part_on_several_workers_are_refused():
    class Writer:
        ranges = ((0, 10),)

    with pytest.raises(PlanError, match="deal them in turn"):
        PartWorker(None, Writer())((0, ((5, 10),)))
