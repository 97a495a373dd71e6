"""Ensembles that were interrupted: what was whole is kept, the rest is made."""

import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from MDAnalysisTests.datafiles import PSF

import mdio
from mdio.core.errors import CorruptLayoutError, OutputError, PlanError

STOPS = {"a": 20, "b": 30, "c": 40}
ENDED = """
import os, signal, sys
from mdio.converters import ensemble

number = int(sys.argv[2])
convert, done = ensemble.convert, []

def ended(paths, out, **options):
    if len(done) == 2:
        os.kill(os.getpid(), number)
    done.append(out)
    return convert(paths, out, **options)

ensemble.convert = ended
from mdio.cli.main import main
sys.exit(main(["convert", "--ensemble", "a.xtc", "b.xtc", "c.xtc", sys.argv[1], "-s", sys.argv[3]]))
"""
ENDED_BEFORE_ANY_IS_WHOLE = """
import os, signal, sys
from mdio.converters.strategies.conversion import Conversion

number, note = int(sys.argv[2]), Conversion._record

def ended(self, writer, record):
    note(self, writer, record)
    os.kill(os.getpid(), number)

Conversion._record = ended
from mdio.cli.main import main
from mdio.converters.strategies import conversion
conversion.MAX_COMMIT_DELAY_S = 0.0  # each piece is noted
words = ["convert", "--ensemble", "a.xtc", "b.xtc", "c.xtc", sys.argv[1], "-s", sys.argv[3]]
sys.exit(main([*words, "--resume", "--chunk-frames", "5"]))
"""


@pytest.fixture
def folder(tmp_path, adk, monkeypatch):
    """Three trajectories in the working folder."""
    monkeypatch.chdir(tmp_path)
    for label, stop in STOPS.items():
        mdio.convert(adk["xtc"], f"{label}.xtc", stop=stop)
    return tmp_path


SOURCES = {label: f"{label}.xtc" for label in STOPS}
STORAGE = mdio.Storage(chunk_frames=5)


def interrupt(out, number, program=ENDED):
    done = subprocess.run(
        [sys.executable, "-c", program, out, str(int(number)), PSF], capture_output=True, text=True
    )
    assert done.returncode != 0
    return done.stderr


def check(out, stops=STOPS):
    for label, stop in stops.items():
        with mdio.open(f"{label}.xtc") as want, mdio.open(out, group=label) as layout:
            assert layout.info.n_frames == stop
            found, expected = layout.read(0, stop), want.read(0, stop)
            assert np.array_equal(found.positions, expected.positions)
            assert np.array_equal(found.time, expected.time)
    assert mdio.verify(out).ok


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("out", ["all.zarr", "all.h5md"])
def test_whole_trajectories_are_kept(folder, out, number, workers):
    told = interrupt(out, number)
    assert number == signal.SIGKILL or "--resume" in told
    with pytest.raises(OutputError, match=f"{out}.* 2 of 3 trajectories .*--resume"):
        mdio.convert_ensemble(SOURCES, out, top=PSF)
    executor = None if workers is None else mdio.Processes(workers)
    done = mdio.convert_ensemble(SOURCES, out, top=PSF, resume=True, executor=executor)
    assert {label: one.found_complete for label, one in done.items()} == {
        "a": True,
        "b": True,
        "c": False,
    }
    check(out)
    assert not list(folder.glob(".all*"))


@pytest.mark.usefixtures("ending_signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("out", ["all.zarr", "all.h5md"])
def test_frames_are_kept_before_any_trajectory_is_whole(folder, adk, out, number):
    mdio.convert(adk["xtc"], "a.xtc", force=True)
    told = interrupt(out, number, ENDED_BEFORE_ANY_IS_WHOLE)
    kept = re.escape(str(folder / f".{out}.mdio-"))
    said = rf" (\d+) frames \([^)]*\) are kept in {kept}[^/]*\.tmp.*--resume"
    if number != signal.SIGKILL:
        assert re.search(said, told), told
        assert told.count("are kept") == 1
    with pytest.raises(OutputError, match=f"{out}.*{said}") as refused:
        mdio.convert_ensemble(SOURCES, out, top=PSF, storage=STORAGE)
    n_frames = int(re.search(said, str(refused.value))[1])
    assert 0 < n_frames < 98
    done = mdio.convert_ensemble(SOURCES, out, top=PSF, storage=STORAGE, resume=True)
    assert f"{n_frames} of 98 frames taken from an earlier run" in done["a"].plan.notes
    check(out, STOPS | {"a": 98})
    assert not [path for path in folder.rglob(".*") if not path.name.endswith(".mdio-index")]


def test_what_is_whole_and_what_is_not_are_told_apart(folder, adk):
    mdio.convert(adk["xtc"], "c.xtc", force=True)
    interrupt("all.zarr", signal.SIGTERM, ENDED.replace("]))", ", '--chunk-frames', '5']))"))
    told = interrupt("all.zarr", signal.SIGTERM, ENDED_BEFORE_ANY_IS_WHOLE)
    assert re.search(
        r"; at least 2 of 3 trajectories and \d\d frames of others \([^)]*\) are kept", told
    ), told


@pytest.mark.parametrize("out", ["all.zarr", "all.h5md"])
def test_a_whole_one_is_left_alone(folder, out):
    mdio.convert_ensemble(SOURCES, out, top=PSF, resume=True)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    done = mdio.convert_ensemble(SOURCES, out, top=PSF, resume=True)
    assert all(one.found_complete for one in done.values())
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert_ensemble(SOURCES, out, top=PSF, select="name CA", resume=True)


def test_another_ensemble_is_refused(folder):
    interrupt("all.zarr", signal.SIGKILL)
    with pytest.raises(OutputError, match=r"all.zarr: a different conversion .*options, select"):
        mdio.convert_ensemble(SOURCES, "all.zarr", top=PSF, select="name CA", resume=True)
    fewer = {label: SOURCES[label] for label in "ab"}
    with pytest.raises(OutputError, match=r"all.zarr: a different conversion .*sources, c"):
        mdio.convert_ensemble(fewer, "all.zarr", top=PSF, resume=True)
    mdio.convert_ensemble(fewer, "all.zarr", top=PSF, force=True)
    assert not list(folder.glob(".all*"))


def test_back_into_files(folder):
    mdio.convert_ensemble(SOURCES, "all.zarr", top=PSF)
    from mdio.converters.ensemble import convert_members

    mdio.convert("all.zarr/a", "back-a.zarr")
    done = convert_members("all.zarr", "back-{label}.zarr", resume=True)
    assert done["a"].found_complete and not done["b"].found_complete


@pytest.mark.parametrize("out", ["all.zarr", "all.h5md"])
def test_other_trajectories_than_a_whole_ensemble_holds_are_told(folder, out):
    two = {label: SOURCES[label] for label in ("a", "b")}
    mdio.convert_ensemble(two, out)
    with pytest.raises(
        PlanError, match=f"{out}: holds the trajectories a, b, but a, b, c are given"
    ):
        mdio.convert_ensemble(SOURCES, out, resume=True)
    assert list(mdio.convert_ensemble(two, out, resume=True)) == ["a", "b"]


def test_a_trajectory_that_is_lost_is_put_back_as_the_message_says(folder):
    mdio.convert_ensemble(SOURCES, "all.zarr")
    shutil.rmtree("all.zarr/b")
    with pytest.raises(CorruptLayoutError, match=r"'b' .*all.zarr/b.*mv"):
        mdio.verify("all.zarr")
    mdio.convert("b.xtc", "b.zarr")
    shutil.move("b.zarr", "all.zarr/b")
    check("all.zarr")
