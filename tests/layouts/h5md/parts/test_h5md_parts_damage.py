"""Parts that are missing, changed or not the right ones, and manifests that lie."""

import json
import os
import shutil

import h5py
import numpy as np
import pytest
from suites.h5md_cases import make_block, write_h5md
from suites.h5md_parts_cases import copy_parts, frames_of, make_parts, with_manifest
from suites.per_rank import write_parts

import mdio
from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError, MdioError
from mdio.core.kernels import crc32c
from mdio.layouts.manifest import with_checksum

VALUE = "particles/trajectory/position/value"


@pytest.fixture(scope="module")
def source(adk):
    """784 frames, as one listing."""
    return [adk["xtc"]] * 8


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    """An output in three parts that nobody changes."""
    return make_parts(adk, tmp_path_factory.mktemp("made"))


@pytest.fixture
def mine(made, tmp_path):
    """A copy to change."""
    return copy_parts(made, tmp_path)


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
    write_parts(source, other, 3, chunk_frames=13)
    shutil.copy(other.with_name("a.h5md.parts") / "0001.h5md", mine.with_name("a.h5md.parts"))
    with mdio.open(mine) as layout:
        layout.read(0, 1)
        with pytest.raises(CorruptLayoutError, match=r"0001\.h5md: not the part that a\.h5md ref"):
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
    with h5py.File(part, "r+") as file:
        file["particles/trajectory/position/time"][0] = -1.0
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
        manifest["column_crc32c"]["time"] = crc32c(file["particles/trajectory/position/time"][()])
        del file["mdio/manifest"]
        file["mdio/manifest"] = json.dumps(with_checksum(manifest))
    assert "not the part that a.h5md refers to" in mdio.verify(mine).bad[0]
    with_manifest(mine, lambda m: m["parts"][1].pop("manifest_crc32c"))
    bad = mdio.verify(mine).bad
    assert len(bad) == 1 and "its times are not those in" in bad[0]


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
    with_manifest(mine, lambda m: m["parts"][0].update(uuid=uuid, manifest_crc32c=None))
    folder = mine.with_name("a.h5md.parts")
    shutil.copy(mine, folder / "0000.h5md")
    (folder / "a.h5md.parts").symlink_to(folder)
    with pytest.raises(CorruptLayoutError, match=r"0000\.h5md"):
        mdio.open(mine).read(0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_in_the_file_that_joins(tmp_path, seed):
    """What it says of parts is never followed to wrong frames, and nothing crashes."""
    block = make_block()
    write_h5md(tmp_path / "source.h5md", block)
    path = tmp_path / "x.h5md"
    write_parts(tmp_path / "source.h5md", path, 2, chunk_frames=4)
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for n_hits in 12 * [1, 40]:
        hit = data.copy()
        for at in rng.integers(0, len(data), n_hits):
            hit[at] = rng.integers(0, 256)
        path.write_bytes(hit)
        try:
            got = frames_of(path)
        except MdioError as error:
            assert "x.h5md" in str(error)
        else:
            for name in ("positions", "time", "step", "box"):
                np.testing.assert_array_equal(getattr(got, name), getattr(block, name))
