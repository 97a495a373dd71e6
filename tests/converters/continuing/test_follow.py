"""A source that is written while it is converted: readers see full shards, and in the end all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import MDAnalysis as mda
import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters.follow import follow
from mdio.core.errors import PlanError, SourceError
from mdio.layouts import plan
from mdio.layouts.segments import writer as segments

N_ATOMS, N_FRAMES, UNIT = 30, 40, 8
WRITER = """
import sys
data = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "wb", buffering=0) as out:
    at = 0
    for line in sys.stdin:  # write on, up to this share of the file
        end = round(len(data) * float(line))
        out.write(data[at:end])
        at = end
        print("written", flush=True)
"""


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    for name in ("MIN_PIECE_NBYTES", "MAX_PIECE_NBYTES"):
        monkeypatch.setattr(plan, name, UNIT * 12 * N_ATOMS)
    monkeypatch.setattr(segments, "SEGMENT_NBYTES", UNIT * 12 * N_ATOMS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    universe = mda.Universe.empty(N_ATOMS, trajectory=True)
    paths = {ending: folder / f"md.{ending}" for ending in ("xtc", "trr", "dcd", "ncdf")}
    for path in paths.values():
        with mda.Writer(str(path), N_ATOMS) as out:
            for frame in range(N_FRAMES):
                ts = universe.trajectory.ts
                ts.positions = np.random.default_rng(frame).random((N_ATOMS, 3), np.float32)
                ts.time, ts.dimensions = 2.0 * frame, [20, 30, 30, 90, 90, 90]
                out.write(universe.atoms)
    return paths


class Growing:
    """A file that another process writes on when it is told to."""

    def __init__(self, source, path):
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, source, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, share):
        self.process.stdin.write(f"{share}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "written\n"

    def close(self):
        self.process.communicate()


@pytest.fixture
def grow(tmp_path):
    made = []

    def start(source):
        made.append(Growing(source, tmp_path / f"growing{source.suffix}"))
        return made[-1]

    yield start
    for one in made:
        one.close()


CASES = [
    ("xtc", "zarr", {"chunk_frames": 2}),
    ("trr", "zarr", {"chunk_frames": 2, "compression": "gzip:1", "step": 2}),
    ("dcd", "zarr", {"chunk_frames": 2, "select": np.arange(28), "start": 3}),
    ("ncdf", "h5md", {"chunk_frames": 2}),
    ("xtc", "segments", {}),
    ("dcd", "segments", {}),
]


@pytest.mark.parametrize(("ending", "layout", "options"), CASES)
def test_full_units_while_it_grows_and_everything_in_the_end(
    tmp_path, whole, grow, ending, layout, options
):
    growing, out = grow(whole[ending]), tmp_path / f"out.{layout}"
    shares = iter([0.46, 0.9, 1.0] if "step" in options else [0.46, 0.66, 0.9, 1.0])
    stopped, seen = threading.Event(), []
    expected = tmp_path / f"expected.{layout}"
    mdio.convert(whole[ending], expected, **as_options(options))
    everything = mdio.open(expected).read(0, mdio.open(expected).info.n_frames)

    def published(n_frames):
        with mdio.open(out) as opened:
            found = opened.read(0, opened.info.n_frames)
            assert found.n_frames == n_frames
            np.testing.assert_array_equal(found.positions, everything.positions[:n_frames])
        seen.append(n_frames)
        share = next(shares, None)
        if share is None or n_frames == everything.n_frames:
            stopped.set()
        else:
            growing.write(share)
            if share == 1.0:
                stopped.set()

    growing.write(next(shares))
    result = follow(
        growing.path, out, every_s=0, stopped=stopped, published=published, **as_options(options)
    )
    assert result.n_frames == seen[-1] == everything.n_frames
    assert all(n % UNIT == 0 for n in seen[:-1])
    assert len(seen) > 1
    assert mdio.verify(out, against=growing.path).ok
    numbers = [
        [n for run in mdio.open(path).manifest["frames"] for n in range(*run)]
        for path in (out, expected)
    ]
    assert numbers[0] == numbers[1]


def test_the_end(tmp_path, whole, grow):
    growing = grow(whole["xtc"])
    growing.write(0.55)  # in the middle of a frame
    out = tmp_path / "out.zarr"
    assert follow(growing.path, out, every_s=0, until_idle_s=0.2).n_frames in (21, 22)
    growing.write(1)
    assert follow(growing.path, out, every_s=0, n_frames=30, append=True).n_frames == 30
    assert follow(growing.path, out, every_s=0, until_idle_s=0, append=True).n_frames == N_FRAMES
    assert mdio.verify(out, against=whole["xtc"]).ok
    result = follow(growing.path, out, every_s=0, until_idle_s=0, append=True)
    assert result.found_complete
    assert result.n_frames == N_FRAMES
    with pytest.raises(SourceError, match="no complete frame came"):
        follow(tmp_path / "not-there.xtc", tmp_path / "a.zarr", until_idle_s=0)
    with pytest.raises(PlanError, match="--begin cannot be combined with --follow"):
        follow(growing.path, out, selection=mdio.Selection(begin_ps=3))
    for bad in ({"start": -5}, {"step": -1}):
        with pytest.raises(
            PlanError, match="cannot be combined with --follow: where the source ends"
        ):
            follow(growing.path, tmp_path / "a.zarr", until_idle_s=0, **bad)


def test_an_output_of_one_frame_goes_on_with_its_step(tmp_path, whole):
    source, out, again = tmp_path / "md.dcd", tmp_path / "out.zarr", {"until_idle_s": 0}
    data = whole["dcd"].read_bytes()
    source.write_bytes(data[:1000])
    assert follow(source, out, **again, step=5).n_frames == 1
    source.write_bytes(data)
    assert follow(source, out, **again, append=True).n_frames == N_FRAMES / 5
    assert mdio.verify(out, against=source).ok
    by_time = tmp_path / "by_time.zarr"
    mdio.convert(source, by_time, selection=mdio.Selection(dt_ps=5, stop=2))
    with pytest.raises(PlanError, match="every nth; only such an output goes on"):
        follow(source, by_time, **again, append=True)


@pytest.mark.parametrize("ending", ["ncdf", "dcd", "trr"])
def test_nothing_new_in_a_source_without_steps(tmp_path, whole, ending):
    out = tmp_path / "out.zarr"
    mdio.convert(whole[ending], out)
    result = follow(whole[ending], out, until_idle_s=0, append=True)
    assert result.found_complete
    assert result.n_frames == N_FRAMES


@pytest.mark.parametrize("how", ["cut", "replaced", "removed"])
def test_a_source_that_does_not_just_grow(tmp_path, whole, how):
    source, out = tmp_path / "md.xtc", tmp_path / "out.zarr"
    source.write_bytes(whole["xtc"].read_bytes())

    def change(_):
        if how == "cut":
            os.truncate(source, 5000)
        elif how == "removed":
            source.unlink()
        else:
            (tmp_path / "new.xtc").write_bytes(whole["xtc"].read_bytes())
            (tmp_path / "new.xtc").rename(source)

    with pytest.raises(SourceError, match=r"was removed|another file|it was cut"):
        follow(source, out, every_s=0, published=change, storage=mdio.Storage(chunk_frames=2))
    assert mdio.open(out).info.n_frames == N_FRAMES  # as it was published


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_is_complete(tmp_path, whole, grow, number):
    growing, out = grow(whole["xtc"]), tmp_path / "out.segments"
    growing.write(0.5)
    words = ["convert", growing.path, out, "--follow", "--every", "0", "-w", "2"]
    command = [sys.executable, "-c", FOLLOW, *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert "16 frames so far" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(60) == 0
    assert mdio.open(out).info.n_frames in (19, 20)
    assert mdio.verify(out, against=growing.path).ok
    assert not list(tmp_path.glob(".*.tmp"))


FOLLOW = f"""
import sys
from mdio.cli.main import main
from mdio.layouts.segments import writer as writer
writer.SEGMENT_NBYTES = {UNIT * 12 * N_ATOMS}
sys.exit(main(sys.argv[1:]))
"""


def test_what_nothing_can_be_added_to_is_refused_at_once(tmp_path, whole):
    out = tmp_path / "out.xtc"
    with pytest.raises(PlanError, match="which xtc does not take; write zarr, h5md or segments"):
        follow(tmp_path / "not-there-yet.xtc", out)
    assert list(tmp_path.iterdir()) == []
    mdio.convert(whole["xtc"], out)
    with pytest.raises(PlanError, match="cannot append to xtc, only to mdio's"):
        follow(whole["xtc"], out, append=True)


def test_options_of_following_are_for_following(tmp_path, whole, capsys):
    out = tmp_path / "out.zarr"
    for option in ("--frames", "--until-idle"):
        assert main(["convert", str(whole["xtc"]), str(out), option, "7"]) == 2
        assert f"{option} is for --follow; add it, or leave it out" in capsys.readouterr().err
    assert not out.exists()


def test_frames_that_are_too_few_for_a_full_unit_are_told_once(tmp_path, whole):
    counts = []
    options = {"every_s": 0, "until_idle_s": 0.5, "waiting": lambda *told: counts.append(told)}
    result = follow(whole["xtc"], tmp_path / "a.zarr", **options)
    assert len(counts) == 1 and counts[0][0] == N_FRAMES < counts[0][1]
    assert result.n_frames == N_FRAMES


def test_nothing_is_told_of_waiting_once_a_unit_is_published(tmp_path, whole):
    counts = []
    options = {"every_s": 0, "until_idle_s": 0.5, "waiting": lambda *told: counts.append(told)}
    storage = mdio.Storage(chunk_frames=2)
    result = follow(whole["xtc"], tmp_path / "a.zarr", storage=storage, **options)
    assert result.n_frames == N_FRAMES and not counts
