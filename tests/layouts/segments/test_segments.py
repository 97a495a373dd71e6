"""Segments: what is written can be read, by us and segment by segment by others."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suites.segment_cases import (
    CONTAINERS,
    joined_oracle,
    manifest_of_folder,
    segment_paths,
    write_segments,
)

from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.publish import publish
from mdio.core.files.span_checksums import total_and_row_checksums
from mdio.layouts.plan import WriteOptions
from mdio.layouts.registry import open_layout
from mdio.layouts.segments import layout as segments_layout
from mdio.layouts.segments.files import even_split
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.layouts.segments.writer import SegmentsWriter
from mdio.testing.blocks import info_of, random_block
from mdio.testing.reading import LayoutReadingTests, ReadingCase

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")


@pytest.fixture(scope="module", params=CONTAINERS)
def written(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "a.segments"
    full = request.param in ("trr", "ncdf")
    block = random_block(velocities=full, forces=full)
    write_segments(path, block, segments=5, container=request.param)
    return path, joined_oracle(path)


class TestReading(LayoutReadingTests):
    @pytest.fixture
    def case(self, written):
        return ReadingCase(SegmentsLayout, *written)

    def test_boundaries_are_those_of_the_segments(self, case):
        with case.open() as layout:
            np.testing.assert_array_equal(layout.boundaries(), [0, 3, 6, 9, 11, 13])


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("piece_frames", [1, 2, 100])
def test_frames_come_back(tmp_path, container, shuffle, piece_frames):
    full = container in ("trr", "ncdf")
    block = random_block(velocities=full, forces=full)
    path = tmp_path / "a.segments"
    write_segments(path, block, piece_frames, shuffle, segments=3, container=container)
    assert [file.name for file in segment_paths(path)] == [
        f"seg-00000{n}.{container}" for n in range(3)
    ]
    with open_layout(path) as layout:
        assert isinstance(layout, SegmentsLayout)
        assert layout.manifest["container"] == container
        read = layout.read(0, 13)
        assert layout.info.dt_ps == 0.5
        assert (layout.info.has_velocities, layout.info.has_forces) == (full, full)
        assert layout.info.source == {"path": "source"}
        assert [problem for _, problem in layout.check()] == [None] * 3
    exact = container in ("dcd", "ncdf")
    tolerance = {"xtc": 0.00501, "trr": 2e-5}.get(container, 0.0)
    np.testing.assert_allclose(read.positions, block.positions, rtol=0, atol=tolerance)
    assert exact == np.array_equal(read.positions, block.positions)
    np.testing.assert_allclose(read.box, block.box, rtol=1e-6)
    np.testing.assert_allclose(read.time, block.time, rtol=2e-7)
    if full:
        np.testing.assert_allclose(read.velocities, block.velocities, rtol=1e-6)
        np.testing.assert_allclose(read.forces, block.forces, rtol=1e-6)
    if container in ("xtc", "trr"):
        np.testing.assert_array_equal(read.step, block.step)


@pytest.mark.parametrize("container", CONTAINERS)
def test_pieces_make_no_difference_to_the_bytes(tmp_path, container):
    block = random_block()
    for name, pieces, shuffle in (("a", 1, True), ("b", 3, False), ("c", 100, False)):
        write_segments(tmp_path / name, block, pieces, shuffle, segments=2, container=container)
    files = [[file.read_bytes() for file in segment_paths(tmp_path / name)] for name in "abc"]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_manifest_tells_of_every_file(tmp_path, container):
    path = tmp_path / "a.segments"
    write_segments(path, random_block(), segments=4, container=container)
    manifest = manifest_of_folder(path)
    assert (manifest["layout"], manifest["container"]) == ("segments", container)
    assert (manifest["n_frames"], manifest["n_atoms"]) == (13, 23)
    assert manifest["has_box"] is True
    first = 0
    for row, file in zip(manifest["segments"], segment_paths(path), strict=True):
        assert path / row["file"] == file
        assert row["first_frame"] == first
        assert row["nbytes"] == file.stat().st_size
        assert row["crc32c"] == google_crc32c.value(file.read_bytes())
        assert row["time_first_ps"] == pytest.approx(10 + 0.5 * first, rel=1e-6)
        first += row["n_frames"]
    assert first == 13


def test_precision_and_compression_of_xtc(tmp_path):
    write_segments(tmp_path / "a", random_block(), segments=2, container="xtc", precision=0.1)
    with SegmentsLayout(tmp_path / "a") as layout:
        assert (layout.info.compression, layout.info.precision) == ("xtc", 0.1)
    write_segments(tmp_path / "b", random_block(), segments=2, container="dcd")
    with SegmentsLayout(tmp_path / "b") as layout:
        assert (layout.info.compression, layout.info.precision) == (None, None)


@pytest.mark.parametrize("container", ["xtc", "trr"])
def test_indexes_lie_beside_and_survive_publishing(tmp_path, container, monkeypatch):
    target = tmp_path / "a.segments"
    with publish(target) as temporary:
        write_segments(temporary, random_block(), segments=3, container=container)
    copy = tmp_path / "copy.segments"
    shutil.copytree(target, copy)  # with new modification times
    indexes = sorted(path.name for path in (target / "000").rglob(".*"))
    assert indexes == [f".seg-00000{n}.{container}.mdio-index" for n in range(3)]
    with SegmentsLayout(copy) as layout:
        expected = layout.read(0, 13).positions

    def scan(*args):
        raise AssertionError("scanned again")

    module = sys.modules["mdio.layouts.native.file"]
    original = module.load_index
    monkeypatch.setattr(module, "load_index", lambda path, _, *rest: original(path, scan, *rest))
    with SegmentsLayout(target) as layout:
        np.testing.assert_array_equal(layout.read(0, 13).positions, expected)


def test_at_most_256_files_in_a_folder(tmp_path):
    write_segments(tmp_path / "a", random_block(300, 3), segments=300, container="trr")
    folders = [path for path in (tmp_path / "a").iterdir() if path.is_dir()]
    assert len(folders) == 3
    assert max(len(list(folder.iterdir())) for folder in folders) == 256
    with SegmentsLayout(tmp_path / "a") as layout:
        assert layout.read(0, 300).n_frames == 300


def test_the_segments_read_last_stay_open(tmp_path, monkeypatch):
    """Frames in any order open them once; more than that do not stay open."""
    monkeypatch.setattr(segments_layout, "MAX_KEPT_OPEN", 3)
    write_segments(tmp_path / "a", random_block(40), segments=20, container="dcd")
    layout = SegmentsLayout(tmp_path / "a")

    def opened() -> list[str]:
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                links.append(str(entry.readlink()))
            except FileNotFoundError:
                continue
        return [link for link in links if str(tmp_path) in link]

    assert layout.info.n_frames == 40
    assert len(opened()) == 1
    layout.read(0, 40)
    assert sorted(link[-6:] for link in opened()) == ["17.dcd", "18.dcd", "19.dcd"]
    for frame in (35, 38, 1, 35):
        layout.read(frame, frame + 1)
    assert sorted(link[-6:] for link in opened()) == ["00.dcd", "17.dcd", "19.dcd"]
    layout.close()
    assert opened() == []


def test_reading_opens_no_other_segment(tmp_path):
    write_segments(tmp_path / "a", random_block(40), segments=20, container="dcd")
    for file in segment_paths(tmp_path / "a")[2:]:
        file.unlink()
    with SegmentsLayout(tmp_path / "a") as layout:
        layout.read(0, 4)
        with pytest.raises(CorruptLayoutError, match=r"seg-000002\.dcd.*frames 4 to 5.*missing"):
            layout.read(0, 5)
        layout.read(3, 4)


def test_plans():
    info = info_of(random_block(), n_frames=10_000, n_atoms=10_000)
    plan = SegmentsWriter.plan_for(info, WriteOptions())
    assert (plan.layout, plan.container) == ("segments", "ncdf")
    assert len(plan.segment_frames) == plan.n_files == 18  # 1.2 GB in 64 MiB each
    assert sum(plan.segment_frames) == 10_000
    plan = SegmentsWriter.plan_for(info.replace(layout="trr"), WriteOptions(segments=2))
    assert (plan.container, plan.segment_frames) == ("trr", (5000, 5000))
    assert max(stop - start for start, stop in plan.write_tasks()) * 12 * 10_000 <= 8 << 20
    assert 5000 in {start for start, _ in plan.write_tasks()}
    plan = SegmentsWriter.plan_for(info.replace(layout="chain", compression="xtc"), WriteOptions())
    assert plan.container == "xtc"
    assert SegmentsWriter.plan_for(info.replace(n_frames=1), WriteOptions()).segment_frames == (1,)
    pickle.loads(pickle.dumps(plan))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segments": 14}, "14 segments.*13 frames"),
        ({"segments": 0}, "0 segments"),
        ({"container": "pdb"}, "--container is 'pdb'"),
        ({"container": "dcd", "precision": 0.1}, "--precision"),
        ({"groups": {"ca": 3}}, "^segments of ncdf hold no --group"),
        ({"compression": "zstd"}, "^segments of ncdf are not compressed"),
    ],
)
def test_plans_that_do_not_fit(options, message):
    with pytest.raises(PlanError, match=message):
        SegmentsWriter.plan_for(info_of(random_block()), WriteOptions(**options))


@given(st.integers(1, 10**6), st.data())
def test_even_split(n_frames, data):
    n_segments = data.draw(st.integers(1, min(n_frames, 2000)))
    sizes = even_split(n_frames, n_segments)
    assert len(sizes) == n_segments and sum(sizes) == n_frames
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1
    assert list(sizes) == [len(part) for part in np.array_split(np.arange(n_frames), n_segments)]


@pytest.mark.parametrize("shape", [(20, 40_092), (3, 200_001), (7, 65_536), (50, 24), (1, 1)])
def test_the_checksum_of_rows_follows_from_theirs(shape):
    rows = np.frombuffer(os.urandom(int(np.prod(shape))), np.uint8).reshape(shape)
    whole, pieces = total_and_row_checksums(rows)
    assert whole == google_crc32c.value(rows.tobytes())
    begins = range(0, shape[1], 65_536)
    cut = [row[begin : begin + 65_536].tobytes() for row in rows for begin in begins]
    assert pieces == [google_crc32c.value(piece) for piece in cut]


def test_reading_dcd_segments_imports_no_mdanalysis(tmp_path):
    write_segments(tmp_path / "a.segments", random_block(), segments=3, container="dcd")
    code = """
import sys
from mdio.layouts.segments.layout import SegmentsLayout
assert SegmentsLayout(sys.argv[1]).read(0, 13).n_frames == 13
assert not {"MDAnalysis", "h5py", "zarr", "netCDF4"} & set(sys.modules)
"""
    path = str(Path(tmp_path / "a.segments"))
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60)
