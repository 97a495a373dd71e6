"""Plans of Zarr trees: their numbers are those of what is written."""

import json
from pathlib import Path

import pytest
from suites.zarr_cases import make_block, write_tree

import mdio
from mdio.core.errors import PlanError
from mdio.layouts.plan import WriteOptions
from mdio.layouts.zarr import tree as zarr_tree
from mdio.layouts.zarr.writer import ZarrWriter
from mdio.testing.blocks import info_of

SMALL = {"chunk_frames": 4, "piece_chunks": 2}


def n_files(path: Path) -> int:
    return sum(1 for found in path.rglob("*") if found.is_file())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": {"ca": [1, 2], "cb": [3]}, **SMALL},
        {"precision": 0.1, **SMALL},
        {"chunk_frames": 3, "piece_chunks": 1, "chunk_atoms": 4},
    ],
)
def test_the_plan_counts_the_files(tmp_path, options, monkeypatch):
    monkeypatch.setattr(zarr_tree, "COLUMN_FILE_FRAMES", 10)
    writer = write_tree(tmp_path / "a.zarr", make_block(velocities=True), **options)
    assert n_files(tmp_path / "a.zarr") == writer.plan.n_files
    assert writer.plan.layout == "zarr"
    json.dumps(writer.plan.to_json())


def test_the_plan_knows_the_bytes_but_for_metadata(tmp_path):
    plan = write_tree(tmp_path / "a.zarr", make_block(60, 500), groups={"ca": [1, 2]}).plan
    files = [f for f in (tmp_path / "a.zarr").rglob("*") if f.is_file() and f.name != "zarr.json"]
    assert sum(f.stat().st_size for f in files) == plan.nbytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "bzip2"}, r"zstd\[:LEVEL\], lz4\[:LEVEL\], gzip\[:LEVEL\]"),
        ({"compression": "zstd:99"}, "level of zstd must be 1 to 22"),
        ({"compression": "fast:3"}, "fast has no levels; leave out :3"),
        ({"compression": "rigid:2", "precision": 0.01}, "rigid has no levels; leave out :2"),
        ({"compression": "lz4:x"}, "level of lz4 must be 1 to 9"),
        ({"compression": "gzip", "precision": 0.01}, "with --precision has zstd"),
        ({"precision": 0.0}, "positive"),
        ({"precision": -1.0}, "positive"),
        ({"precision": float("nan")}, "positive"),
        ({"groups": {"a/b": 1}}, "without a slash"),
        ({"groups": {"trajectory": 1}}, "the full system"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        ZarrWriter.plan_for(info_of(make_block()), WriteOptions(**options))


def test_options_of_segments_are_refused(adk, tmp_path):
    with pytest.raises(PlanError, match="segments"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", storage=mdio.Storage(container="xtc"))


def test_chunks_too_large_to_compress_are_refused():
    info = info_of(make_block()).replace(n_frames=10**6, n_atoms=10**5)
    with pytest.raises(PlanError, match="too many to compress"):
        ZarrWriter.plan_for(info, WriteOptions(compression="zstd", chunk_frames=2000))
