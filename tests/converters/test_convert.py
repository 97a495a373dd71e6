"""Conversions as a user makes them, held against MDAnalysis reading the source."""

import inspect
import json
import subprocess
import sys

import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from suites.outputs import as_options, contents

import mdio
from mdio.converters.convert import prepare
from mdio.converters.follow import follow
from mdio.converters.options import OPTIONS, ConversionOptions
from mdio.core.errors import PlanError, SourceError
from mdio.core.options import declared_fields

SOURCES = ["xtc", "dcd", "ncdf", "trr"]
TARGETS = ["zarr", "h5md", "segments"]


@pytest.fixture(scope="module")
def frames(adk):
    """All frames of each source, by MDAnalysis."""
    found = {}
    for suffix in SOURCES:
        u = mda.Universe(str(adk["psf"]), str(adk[suffix]))
        rows = [
            (
                ts.positions.copy(),
                np.zeros(6) if ts.dimensions is None else ts.dimensions.copy(),
                ts.time,
            )
            for ts in u.trajectory
        ]
        found[suffix] = {
            "positions": np.array([row[0] for row in rows]),
            "box": np.array([row[1] for row in rows], "f4"),
            "time": np.array([row[2] for row in rows]),
        }
    return found


def read(path, **options):
    layout = mdio.open(path, **options)
    return layout.read(0, layout.info.n_frames)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_any_source_into_any_layout(adk, frames, tmp_path, source, target, workers):
    out = tmp_path / f"a.{target}"
    result = mdio.convert(adk[source], out, workers=workers)
    assert (result.n_frames, result.n_atoms, result.layout) == (98, 3341, target)
    block = read(out)
    for name, expected in frames[source].items():
        assert_array_equal(getattr(block, name), expected, err_msg=name)
    checked = mdio.verify(out, adk[source])
    assert (checked.ok, checked.frames_compared, checked.max_abs_diff_angstrom) == (True, 98, 0.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == [out.name]


@pytest.mark.parametrize("target", ["zarr", "segments"])
def test_the_bytes_do_not_depend_on_the_workers(adk, tmp_path, target):
    made = []
    for workers in (1, 2, 4):
        out = tmp_path / f"{workers}.{target}"
        mdio.convert(adk["dcd"], out, workers=workers, storage=mdio.Storage(container=None))
        files = contents(out)
        made.append({k: v for k, v in files.items() if not k.endswith(("json", "index"))})
    assert made[0] == made[1] == made[2]
    assert len(made[0]) >= 1


@pytest.mark.parametrize("target", ["xtc", "trr", "dcd", "ncdf"])
@pytest.mark.parametrize("middle", TARGETS)
def test_and_back_into_one_native_file(adk, frames, tmp_path, middle, target):
    mdio.convert(adk["xtc"], tmp_path / f"a.{middle}")
    out = tmp_path / f"back.{target}"
    mdio.convert(tmp_path / f"a.{middle}", out, workers=2)
    u = mda.Universe(str(adk["psf"]), str(out))
    positions = np.array([ts.positions.copy() for ts in u.trajectory])
    # An XTC keeps what the first XTC held; TRR goes through nm and loses the last bit.
    assert_allclose(positions, frames["xtc"]["positions"], atol=2e-5 if target == "trr" else 0)
    assert_allclose(u.trajectory[97].dimensions, frames["xtc"]["box"][97], rtol=1e-5)
    assert_allclose(u.trajectory[97].time, frames["xtc"]["time"][97], rtol=1e-5)
    assert mdio.verify(out, adk["xtc"]).ok


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": 3, "stop": 50}, range(3, 50)),
        ({"step": 7}, range(0, 98, 7)),
        ({"step": 10**20}, range(1)),
        ({"start": -10, "step": 3}, range(88, 98, 3)),
        ({"begin_ps": 15.0, "end_ps": 45.0}, range(5, 21)),
        ({"begin_ps": 15.0, "step": 4}, range(5, 98, 4)),
        ({"dt_ps": 10.0}, range(0, 98, 5)),
        ({"begin_ps": 25.0, "dt_ps": 4.0, "stop": 30}, range(10, 30, 2)),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_frames_by_number_and_time(adk, frames, tmp_path, target, options, expected):
    out = tmp_path / f"a.{target}"
    mdio.convert(adk["xtc"], out, workers=2, **as_options(options))
    block = read(out)
    # Frames that are written again into XTC have their box divided by ten, as MDAnalysis does it.
    again = target == "segments" and expected.step > 1
    for name, array in frames["xtc"].items():
        near = 1.3e-7 if again and name == "box" else 0
        assert_allclose(getattr(block, name), array[list(expected)], rtol=near, err_msg=name)
    assert mdio.verify(out, adk["xtc"]).ok


@pytest.mark.parametrize("target", TARGETS)
def test_selection_with_a_topology_that_fits(adk, frames, tmp_path, target):
    out = tmp_path / f"a.{target}"
    mdio.convert(adk["xtc"], out, top=adk["psf"], select="protein and not name H*", workers=2)
    kept = mda.Universe(str(adk["psf"])).select_atoms("protein and not name H*")
    u = mda.Universe(str(tmp_path / "a.top.pdb"), str(out))
    assert list(u.atoms.names) == list(kept.names)
    assert_array_equal(u.trajectory[33].positions, frames["xtc"]["positions"][33][kept.indices])
    assert mdio.verify(out, adk["xtc"]).ok


@pytest.mark.parametrize("target", ["zarr", "h5md"])
def test_groups_are_stored_beside_the_whole(adk, frames, tmp_path, target):
    out = tmp_path / f"a.{target}"
    groups = {"ca": "name CA", "a_first": "resid 1", "backbone": np.arange(7, 400, 3)}
    mdio.convert(
        adk["xtc"],
        out,
        top=adk["psf"],
        groups=groups,
        workers=2,
        storage=mdio.Storage(chunk_frames=5),
    )
    top = mda.Universe(str(adk["psf"]))
    assert dict(mdio.open(out).info.groups) == {
        "ca": 214,
        "a_first": len(top.select_atoms("resid 1")),
        "backbone": 131,
    }
    for name, selection in groups.items():
        indices = top.select_atoms(selection).indices if isinstance(selection, str) else selection
        assert_array_equal(read(out, group=name).positions, frames["xtc"]["positions"][:, indices])
    assert_array_equal(read(out).positions, frames["xtc"]["positions"])


def test_groups_of_the_source_that_are_left_out_are_said(adk, tmp_path):
    source = tmp_path / "a.zarr"
    mdio.convert(adk["dcd"], source, top=adk["psf"], groups={"ca": "name CA", "one": "resid 1"})

    def notes(out, **options):
        result = mdio.convert(source, tmp_path / out, stop=2, **options)
        return [note for note in result.notes if "stored groups" in note]

    assert "stored groups (ca and one) are left out" in notes("a.h5md")[0]
    assert "stored groups (one) are left out" in notes("b.h5md", groups={"ca": "name CA"})[0]
    assert not notes("c.h5md", groups={"ca": "name CA", "one": "resid 1"})
    assert not notes("d.h5md", select="name CA") + notes("a.xtc")


@pytest.mark.parametrize("source", SOURCES)
def test_precision_keeps_its_bound(adk, frames, tmp_path, source):
    for target, step in (("zarr", 0.01), ("h5md", 0.01), ("zarr", 0.5)):
        out = tmp_path / f"{step}.{target}"
        mdio.convert(adk[source], out, precision=step)
        exact = frames[source]["positions"].astype("f8")
        worst = np.abs(read(out).positions - exact).max()
        rounding = np.spacing(np.abs(exact).max().astype("f4"))
        assert 0 < worst <= step / 2 + rounding
        checked = mdio.verify(out, adk[source])
        assert checked.ok and checked.max_abs_diff_angstrom == pytest.approx(worst)


def test_precision_auto_loses_nothing_of_an_xtc(adk, frames, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], out, precision="auto", workers=2)
    assert_array_equal(read(out).positions, frames["xtc"]["positions"])
    assert mdio.open(out).info.precision == pytest.approx(0.01)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    assert size < adk["xtc"].stat().st_size


def test_precision_auto_is_lossless_elsewhere(adk, frames, tmp_path):
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", precision="auto")
    assert_array_equal(read(tmp_path / "a.zarr").positions, frames["dcd"]["positions"])


@pytest.mark.parametrize(
    ("target", "compression"),
    [("zarr", "zstd:3"), ("zarr", "lz4"), ("zarr", "gzip:1"), ("h5md", "gzip:2")],
)
def test_compression_is_lossless(adk, frames, tmp_path, target, compression):
    out = tmp_path / f"a.{target}"
    mdio.convert(adk["dcd"], out, compression=compression, workers=2)
    assert_array_equal(read(out).positions, frames["dcd"]["positions"])
    assert mdio.open(out).info.compression.startswith(compression.split(":")[0])


@pytest.mark.parametrize("target", TARGETS)
def test_several_files_joined(adk, frames, tmp_path, target):
    out = tmp_path / f"a.{target}"
    mdio.convert([adk["xtc"], adk["xtc"]], out, workers=2)
    both = np.concatenate([frames["xtc"]["positions"]] * 2)
    block = read(out)
    assert_array_equal(block.positions, both)
    # Steps and times start again in the middle, and are kept so.
    assert_array_equal(block.time, np.concatenate([frames["xtc"]["time"]] * 2))
    assert_array_equal(block.step[:98], block.step[98:])
    assert mdio.verify(out, [adk["xtc"], adk["xtc"]]).ok


@pytest.mark.parametrize("target", TARGETS)
def test_velocities_and_forces_come_along(tmp_path, target):
    from MDAnalysisTests.datafiles import COORDINATES_TOPOLOGY, COORDINATES_TRR

    out = tmp_path / f"a.{target}"
    mdio.convert(COORDINATES_TRR, out)
    u = mda.Universe(COORDINATES_TOPOLOGY, COORDINATES_TRR)
    block = read(out)
    for row, ts in enumerate(u.trajectory):
        assert_array_equal(block.velocities[row], ts.velocities)
        assert_array_equal(block.forces[row], ts.forces)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"select": "name CA"}, PlanError, "topology"),
        ({"top": "psf", "select": "name NOTHING"}, PlanError, "no atom"),
        ({"top": "psf", "select": "nonsense ("}, PlanError, "select"),
        ({"precision": "high"}, PlanError, "give a step in angstrom"),
        ({"groups": ["name CA"]}, PlanError, "give a dict of names and selections"),
        ({"start": 98}, PlanError, "no frames with --start 98; it has frames 0 to 97"),
        ({"begin_ps": 1e6}, PlanError, r"no frames with --begin 1e\+06; it has"),
        ({"step": 0}, PlanError, "step"),
        ({"compression": "nonsense"}, PlanError, "nonsense"),
        ({"pbc": "nonsense", "top": "psf"}, PlanError, "nonsense"),
        ({"top": "psf", "groups": {"trajectory": "all"}}, PlanError, "trajectory"),
        ({"top": "psf", "groups": {"a/b": "all"}}, PlanError, "a/b"),
        ({"to": "nonsense"}, ValueError, "nonsense"),
        ({"chunk_frames": 0}, PlanError, "chunk-frames"),
    ],
)
def test_wrong_options_teach(adk, tmp_path, options, error, words):
    options = {k: adk["psf"] if v == "psf" else v for k, v in options.items()}
    with pytest.raises(error, match=words):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", **as_options(options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["a.xtc", "a.trr", "a.segments"])
def test_steps_beyond_the_format_are_refused_before_anything_is_written(tmp_path, out):
    """Of a trajectory of hours, the first pieces would be written in vain."""
    source, steps = tmp_path / "a.h5md", 2**31 - 7 + np.arange(8)
    with mdio.Writer(source, n_atoms=12) as writer:
        writer.write_block(np.zeros((8, 12, 3), np.float32), step=steps)
    storage = mdio.Storage(container="trr" if out == "a.segments" else None)
    with pytest.raises(PlanError, match=rf"steps up to 2147483647, .* is {2**31}; write h5md"):
        prepare(source, tmp_path / out, ConversionOptions.of(storage=storage))
    mdio.convert(source, tmp_path / out, stop=7, storage=storage)
    assert read(tmp_path / out).step.tolist() == steps[:7].tolist()


def test_a_topology_of_another_system(adk, tmp_path):
    from MDAnalysisTests.datafiles import GRO

    with pytest.raises(SourceError, match=r"3341 atoms.*47681"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", top=GRO)


def test_memory_does_not_grow_with_the_trajectory(adk, tmp_path):
    code = (
        "import sys, mdio\n"
        "n, out = int(sys.argv[1]), sys.argv[2]\n"
        f"mdio.convert([{str(adk['dcd'])!r}] * n, out)\n"
        # Not getrusage: its peak begins with that of the process that started this one.
        "lines = open('/proc/self/status').read().splitlines()\n"
        "print(*[int(line.split()[1]) // 1024 for line in lines if line.startswith('VmHWM')])"
    )
    peaks = []
    for n in (3, 24):
        argv = [sys.executable, "-c", code, str(n), str(tmp_path / f"{n}.zarr")]
        peaks.append(int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout))
    # 24 copies are 94 MB of positions: nothing like that may be held.
    assert peaks[1] < peaks[0] + 30


def test_plan_only(adk, tmp_path):
    conversion = prepare(adk["xtc"], tmp_path / "a.zarr", ConversionOptions())
    assert json.loads(json.dumps(conversion.plan.to_json()))["n_frames"] == 98
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", [mdio.convert, mdio.append, follow])
def test_options_are_named(adk, tmp_path, function):
    parameters = inspect.signature(function).parameters
    every = declared_fields(*OPTIONS)
    named = {one.name for one in every.values() if one.metadata.get("named")}
    assert named <= parameters.keys()
    assert len(parameters) <= 16 or function is follow
    assert all(f"``{name}``" in mdio.convert.__doc__ for name in every)
    with pytest.raises(TypeError, match=r"'selct' \(did you mean 'select'\?\)$"):
        function(adk["xtc"], tmp_path / "a.zarr", selct="name CA")
    with pytest.raises(TypeError, match=r"'xyzzy'; it has .*top"):
        function(adk["xtc"], tmp_path / "a.zarr", xyzzy="name CA")


def test_what_a_prompt_shows_of_a_conversion_is_short(adk, tmp_path):
    result = mdio.convert(adk["xtc"], tmp_path / "a.zarr")
    shown = repr(result)
    assert shown.startswith("ConvertResult(out=") and "n_frames=98" in shown
    assert "Plan" not in shown
    assert result.plan.notes  # which print shows
    assert str(result).splitlines() == [shown, *(f"note: {note}" for note in result.plan.notes)]


def test_atoms_of_another_universe(adk, tmp_path):
    other = mda.Universe.empty(3000).atoms[:3]
    for wrong in ({"select": other}, {"groups": {"few": other}}):
        with pytest.raises(PlanError, match=r"Universe has 3000 atoms, but .* has 3341"):
            mdio.convert(adk["xtc"], tmp_path / "a.zarr", **wrong)
    with pytest.raises(PlanError, match="a group cannot be called 5"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", groups={5: range(3)})
