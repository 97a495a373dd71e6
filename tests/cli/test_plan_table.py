"""The table of a plan that ``--dry-run`` prints."""

import h5py
import numpy as np
import pytest
from suites.outputs import as_options

from mdio.cli.main import main
from mdio.cli.plan_table import plan_table
from mdio.converters.convert import convert
from mdio.core.frames import TrajectoryInfo
from mdio.core.words import human_nbytes
from mdio.layouts.plan import (
    ArrayPlan,
    FieldPlan,
    LayoutPlan,
    StripePlan,
    WriteOptions,
    plan_arrays,
)

MIB = 1 << 20

TABLE = """\
layout       h5md
content      4,187 frames of 3,341 atoms
compression  none
precision    float32, not rounded
work         11 pieces of 416 frames
writes       183 in 1 file
stripes      1.0 MiB over 8 targets
alignment    chunks begin on stripes, 1.2% padding
size         171.7 MiB, without padding

group       array      atoms       chunk       bytes  chunks
trajectory  positions  3,341  26 x 3,341  1018.0 KiB     162
ca          positions    214   208 x 214   521.6 KiB      21"""


def test_the_table():
    options = WriteOptions(groups={"ca": 214}, stripe_count=8)
    plan = plan_arrays(
        TrajectoryInfo("xtc", "a.xtc", 4187, 3341, 1.0, 0.0, 4187.0), options, quantised=False
    ).replace(layout="h5md", writes_chunks=True)
    assert plan_table(plan) == TABLE


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_writes_of_h5md_are_those_of_its_chunks(adk, tmp_path, compression):
    options = {"compression": compression, "chunk_frames": 10, "chunk_atoms": 2000}
    options |= {"groups": {"few": np.arange(9)}}
    result = convert(adk["trr"], tmp_path / "a.h5md", **as_options(options))
    with h5py.File(tmp_path / "a.h5md") as file:
        values = [file[f"particles/{name}/position/value"] for name in ("trajectory", "few")]
        n_chunks = sum(dataset.id.get_num_chunks() for dataset in values)
    assert result.plan.n_writes == n_chunks


def test_the_table_of_segments():
    plan = LayoutPlan(
        "segments",
        10,
        5,
        4,
        container="dcd",
        segment_frames=(4, 4, 2),
        n_files=4,
        nbytes=999,
        native=FieldPlan(has_box=False),
        notes=("DCD has no steps",),
    )
    text = plan_table(plan)
    assert "segments     3 with 2 to 4 frames" in text
    assert "arrays       positions\n" in text
    assert "writes       3 in 4 files" in text
    assert "size         999 B\n" in text
    assert text.endswith("note: DCD has no steps")
    assert "stripes" not in text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1000 B"),
        (10 * MIB, "10.0 MiB"),
        (999 * MIB, "999.0 MiB"),
        (1 << 40, "1.0 TiB"),
    ],
)
def test_sizes_for_people(nbytes, text):
    plan = LayoutPlan("xtc", 1, 1, 1, nbytes=nbytes)
    assert plan_table(plan).splitlines()[-1] == f"size         {text}"


def test_a_table_of_any_plan_has_a_row_an_array():
    array = ArrayPlan("trajectory", "positions", 3341, 64, 3341)
    plan = LayoutPlan(
        "zarr",
        4187,
        3341,
        128,
        arrays=(array,),
        precision=0.01,
        precision_source="xtc",
        stripes=StripePlan(stripe_count=-1),
        nbytes=172 * MIB,
    )
    lines = plan_table(plan).splitlines()
    assert "precision    0.01 angstrom, all that the XTC holds" in lines
    assert "stripes      1.0 MiB over all targets" in lines
    assert "shards       one per piece, 4.9 MiB of the full system before encoding" in lines
    assert "size         at most 172.0 MiB" in lines
    cells = " ".join(lines[-1].split())
    assert cells == "trajectory positions 3,341 64 x 3,341 2.4 MiB 66"


def test_the_summary_has_the_size_of_the_file(adk, tmp_path, capsys):
    """An aligned file begins with a stripe for the head, and has empty ends of stripes."""
    out = tmp_path / "a.h5md"
    words = ["convert", str(adk["dcd"]), str(out), "--stripe-size", "1M"]
    assert main([*words, "--dry-run"]) == 0
    assert "MiB, without padding\n" in capsys.readouterr().out
    assert main(words) == 0
    assert f"-> {human_nbytes(out.stat().st_size)} in" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["zarr", "h5md", "segments", "dcd"])
def test_the_size_of_an_output_is_that_on_disk(adk, tmp_path, suffix):
    out = tmp_path / f"a.{suffix}"
    stated = convert(adk["xtc"], out, top=adk["psf"], stop=3).nbytes_out
    files = out.rglob("*") if out.is_dir() else [out]
    numbers = [path.stat().st_size for path in files if path.is_file()]
    assert stated == pytest.approx(sum(numbers), abs=8_000 if out.is_dir() else 0)  # the manifest


def test_of_an_output_that_is_added_to_what_will_be_written_is_told(adk, tmp_path, capsys):
    def told(command):
        capsys.readouterr()
        assert main(list(map(str, command))) == 0
        lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
        return dict(lines)

    for name, options in (
        ("a.zarr", ["--precision", "none", "--chunk-frames", "5"]),
        ("a.segments", ["--segments", "4"]),
    ):
        out = tmp_path / name
        main(["convert", str(adk["dcd"]), str(out), "--stop", "40", *options])
        append = ["append", adk["dcd"], out]
        plan = told([*append, "--dry-run"])
        content = plan["content"].split()
        n_written, n_kept = int(content[0]), int(content[6])
        assert n_written + n_kept == 98 and n_kept <= 40
        n_mib, unit = plan["size"].split()[-2:]
        assert unit == "MiB" and float(n_mib) == pytest.approx(12 * 3341 * n_written / MIB, rel=0.1)
        assert f"{n_written} of them written" in told(append)[f"{out}:"]
        assert told([*append, "--dry-run"]).keys() == {"note:"}
