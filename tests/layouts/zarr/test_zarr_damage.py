"""Trees of mdio that are unfinished or damaged: named by file and frames, never read as zeros."""

import json
import random
import shutil

import numpy as np
import pytest
from suites.zarr_cases import make_block, write_tree

from mdio.core.errors import CorruptLayoutError, MdioError, SourceError
from mdio.layouts.manifest import with_checksum
from mdio.layouts.registry import open_layout
from mdio.layouts.zarr.layout import ZarrLayout

VALUE = "particles/trajectory/position/value"
KINDS = {
    "raw": {},
    "zstd": {"compression": "zstd"},
    "lz4": {"compression": "lz4"},
    "gzip": {"compression": "gzip"},
    "quantised": {"precision": 0.01},
    "quantised-zstd": {"precision": 0.01, "compression": "zstd"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One tree of each kind: 23 frames, chunks of 4, shards of 8."""
    folder = tmp_path_factory.mktemp("whole")
    for name, options in KINDS.items():
        write_tree(
            folder / f"{name}.zarr",
            make_block(),
            chunk_frames=4,
            piece_chunks=2,
            groups={"ca": [1, 5]},
            **options,
        )
    return folder


@pytest.fixture(params=KINDS)
def tree(whole, tmp_path, request):
    return shutil.copytree(whole / f"{request.param}.zarr", tmp_path / "a.zarr")


@pytest.fixture
def raw(whole, tmp_path):
    return shutil.copytree(whole / "raw.zarr", tmp_path / "a.zarr")


def flip(path, at, bit=3):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def problems(path):
    with ZarrLayout(path) as layout:
        return [problem for _, problem in layout.check() if problem is not None]


def test_a_whole_tree_has_no_problems(tree):
    with ZarrLayout(tree) as layout:
        checked = dict(layout.check())
    assert set(checked.values()) == {None}
    assert "positions of trajectory, frames 20 to 22" in checked
    assert "positions of ca, frames 0 to 7" in checked
    copies = {f"particles/{group}/box/edges/value" for group in ("trajectory", "ca")}
    assert {f"{name}, file 0" for name in {"mdio/box", "mdio/step"} | copies} <= set(checked)


@pytest.mark.parametrize("at", [0, 100, 250])
def test_one_wrong_bit_in_a_chunk(tree, at):
    flip(tree / VALUE / "c.1.0.0", at)
    with ZarrLayout(tree) as layout:
        layout.read(0, 8)
        with pytest.raises(CorruptLayoutError, match=r"c\.1\.0\.0: the checksum.*8 to 11"):
            layout.read(0, 23)
        layout.read(12, 23)
    (problem,) = problems(tree)
    assert "c.1.0.0" in problem


def test_a_wrong_bit_in_the_checksum_of_a_chunk(raw):
    flip(raw / VALUE / "c.0.0.0", 4 * 17 * 12 + 1)
    with pytest.raises(CorruptLayoutError, match=r"c\.0\.0\.0.*frames 0 to 3"):
        ZarrLayout(raw).read(0, 4)


def test_a_wrong_bit_in_the_padding_of_the_last_chunk(raw):
    flip(raw / VALUE / "c.2.0.0", (4 * 17 * 12 + 4) + 3 * 17 * 12 + 5)
    with pytest.raises(CorruptLayoutError, match=r"c\.2\.0\.0.*frames 20 to 22"):
        ZarrLayout(raw).read(20, 23)


@pytest.mark.parametrize("back", [1, 4, 5, 20, 36])
def test_a_wrong_bit_in_an_index(tree, back):
    flip(tree / VALUE / "c.0.0.0", -back)
    with pytest.raises(CorruptLayoutError, match=r"c\.0\.0\.0.*index.*frames 0 to 3"):
        ZarrLayout(tree).read(0, 23)
    assert len(problems(tree)) == 2


def test_a_missing_shard(tree):
    (tree / VALUE / "c.1.0.0").unlink()
    with ZarrLayout(tree) as layout:
        layout.read(0, 8)
        for start, stop in ((0, 23), (9, 10), (7, 9)):
            with pytest.raises(CorruptLayoutError, match=r"c\.1\.0\.0: no such shard.*8 to 11"):
                layout.read(start, stop)
    assert len(problems(tree)) == 2


@pytest.mark.parametrize("length", [0, 1, 30, 300])
def test_a_truncated_shard(tree, length):
    path = tree / VALUE / "c.1.0.0"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptLayoutError, match=r"c\.1\.0\.0.*truncated.*frames 8 to 11"):
        ZarrLayout(tree).read(0, 23)


def test_a_shard_that_lost_chunks(raw):
    """A shard that says itself that chunks are missing is no more to be read as zeros."""
    shutil.copy(raw / VALUE / "c.2.0.0", raw / VALUE / "c.1.0.0")  # seven frames, as it should be
    flip_to = raw / VALUE / "c.0.0.0"
    import google_crc32c

    data = bytearray(flip_to.read_bytes())
    data[-36:-20] = b"\xff" * 16
    data[-4:] = google_crc32c.value(bytes(data[-36:-4])).to_bytes(4, "little")
    flip_to.write_bytes(bytes(data))
    with pytest.raises(CorruptLayoutError, match=r"chunk 0 is missing.*frames 0 to 3"):
        ZarrLayout(raw).read(0, 4)
    # Another shard's chunks are whole by their own checksums; those of the manifest tell.
    assert len([p for p in problems(raw) if "not what was written" in p]) == 2


@pytest.mark.parametrize(
    "name",
    [
        "particles/trajectory/position/time",
        "mdio/step",
        "mdio/box",
        "mdio/crc32c/ca/positions",
        "particles/ca/box/edges/time",
    ],
)
def test_numbers_of_frames_that_are_damaged(raw, name):
    file = next((raw / name).glob("c.*"))
    keep = file.read_bytes()
    for change in (lambda: flip(file, 9), lambda: file.write_bytes(keep[:-3]), file.unlink):
        change()
        if "/ca/" in name:
            assert file.name in problems(raw)[0]
        else:
            with pytest.raises(CorruptLayoutError, match=rf"{file.name}.*frames 0 to 22"):
                ZarrLayout(raw).read(3, 4)
        file.write_bytes(keep)


def test_no_manifest(raw):
    (raw / "zarr.json").unlink()
    assert ZarrLayout.sniff(raw)
    with pytest.raises(CorruptLayoutError, match=r"a\.zarr: it has no zarr\.json.*did not finish"):
        _ = open_layout(raw).info


@pytest.mark.parametrize("name", [VALUE, "mdio/box", "particles/ca/position/value"])
def test_missing_metadata(raw, name):
    (raw / name / "zarr.json").unlink()
    with pytest.raises(CorruptLayoutError, match=rf"{name}/zarr\.json: no such file"):
        _ = ZarrLayout(raw).info


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_metadata_that_is_no_metadata(raw, text):
    for name in ("zarr.json", f"{VALUE}/zarr.json"):
        keep = (raw / name).read_bytes()
        (raw / name).write_bytes(text)
        with pytest.raises(CorruptLayoutError, match=r"zarr\.json: "):
            _ = ZarrLayout(raw).info
        (raw / name).write_bytes(keep)


def edit(path, change):
    node = json.loads(path.read_text())
    change(node)
    path.write_text(json.dumps(node))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=99), "format version 99.*newer mdio"),
        (lambda m: m.update(n_frames=10**12), "by the manifest"),
        (lambda m: m.update(n_atoms=10**12), "do not add up|by the manifest"),
        (lambda m: m.update(fields=["velocities"]), "fields"),
        (lambda m: m.update(groups={"../../x": 2}), "which no group may be called"),
        (lambda m: m.pop("uuid"), "uuid"),
        (lambda m: m.clear(), "not one of mdio"),
    ],
)
def test_a_manifest_that_lies(raw, change, message):
    def sealed(node):
        change(node["attributes"]["mdio"])
        node["attributes"]["mdio"] = with_checksum(node["attributes"]["mdio"])

    edit(raw / "zarr.json", sealed)
    with pytest.raises(CorruptLayoutError, match=message):
        _ = ZarrLayout(raw).info


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.update(shape=[23, 17, 4]),
        lambda n: n.update(shape=[-1, 17, 3]),
        lambda n: n.update(data_type="float64"),
        lambda n: n.update(codecs=[]),
        lambda n: n["codecs"][0]["configuration"].update(chunk_shape=[4, 10**9, 3]),
        lambda n: n["codecs"][0]["configuration"].update(chunk_shape=[3, 17, 3]),
        lambda n: n["codecs"][0]["configuration"].update(chunk_shape=[0, 17, 3]),
        lambda n: n["codecs"][0]["configuration"].update(chunk_shape=[4, 17]),
        lambda n: n["codecs"][0]["configuration"].update(codecs=[{"name": "bytes"}]),
        lambda n: n["codecs"][0]["configuration"].update(index_location="start"),
        lambda n: n["chunk_key_encoding"].update(name="v2"),
        lambda n: n["chunk_grid"]["configuration"].update(chunk_shape=[8, 12, 3]),
        lambda n: n.pop("chunk_grid"),
        lambda n: n.update(node_type="group", codecs=None),
    ],
)
def test_an_array_that_mdio_did_not_write(raw, change):
    edit(raw / VALUE / "zarr.json", change)
    with pytest.raises(CorruptLayoutError, match=f"{VALUE}"):
        _ = ZarrLayout(raw).info


def test_shards_of_another_shape(raw):
    """Consistent metadata of larger shards: the index is not where it should be."""

    def widen(node):
        node["chunk_grid"]["configuration"]["chunk_shape"] = [4 * 10**8, 17, 3]

    edit(raw / VALUE / "zarr.json", widen)
    with pytest.raises(CorruptLayoutError, match=r"c\.0\.0\.0.*truncated.*frames 0 to 3"):
        ZarrLayout(raw).read(0, 1)


def test_nothing_there(tmp_path):
    with pytest.raises(SourceError, match="no such"):
        _ = ZarrLayout(tmp_path / "a.zarr").info
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(CorruptLayoutError, match="did not finish"):
        _ = ZarrLayout(tmp_path / "a.zarr").info


def test_any_damaged_byte_anywhere_is_an_error_or_harmless(tree):
    """Never a crash, a hang, or another exception; data files never give other numbers."""
    expected = ZarrLayout(tree).read(0, 23)
    chance = random.Random(7)
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        keep = path.read_bytes()
        for _ in range(4):
            flip(path, chance.randrange(len(keep)), chance.randrange(8))
            try:
                with ZarrLayout(tree) as layout:
                    found = layout.read(0, layout.info.n_frames)
            except MdioError:
                continue
            finally:
                path.write_bytes(keep)
            if path.name != "zarr.json":
                for name in ("positions", "box", "time", "step"):
                    assert np.array_equal(getattr(found, name), getattr(expected, name)), path
