"""Measuring that goes wrong: what is told, and that nothing is left behind."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from suites.quick_advice import quickly

import mdio
from mdio.advisor import measure, probes
from mdio.advisor.measure import scratch
from mdio.core.errors import BlockError, OutputError, PlanError, SourceError


def raising(block):
    raise ValueError("no such residue")


def too_few(block):
    return np.zeros(block.n_frames + 1)


def dying(block):
    os._exit(7)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (raising, "raising failed: ValueError: no such residue"),
        (too_few, "one row per frame"),
        (dying, "exit code 7"),
    ],
)
def test_a_function_that_fails(adk, tmp_path, function, text):
    with pytest.raises(BlockError, match=text):
        quickly(adk, tmp_path, analysis=function)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("limits", 3, "give mdio.advisor.measure.Limits"),
        ("allow_lossy", "yes", "'yes'; give a positive step"),
        ("allow_lossy", True, "True; give a positive step"),
        ("cache", "hot", "give one of cold, warm, auto"),
        ("ranks", "two", "two ranks: give a whole number"),
    ],
)
def test_arguments_of_another_kind(adk, tmp_path, name, value, expected):
    with pytest.raises(PlanError, match=expected):
        mdio.advise(adk["xtc"], target=tmp_path, **{name: value})


def test_no_room(adk, tmp_path, monkeypatch):
    little = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(probes.shutil, "disk_usage", lambda path: little)
    found = quickly(adk, tmp_path)
    assert [trial.name for trial in found.trials] == ["as-is"]
    assert any("too few for trial conversions" in note for note in found.notes)


def test_little_room_makes_a_short_sample_and_that_is_said(adk, tmp_path, monkeypatch):
    little = shutil.disk_usage(tmp_path)._replace(free=10_000_000)
    monkeypatch.setattr(probes.shutil, "disk_usage", lambda path: little)
    found = quickly(adk, tmp_path)
    assert found.source.sample_frames == 10
    assert any("9.5 MiB are free" in note and "10 frames" in note for note in found.notes)


def test_no_such_target(adk, tmp_path, monkeypatch):
    with pytest.raises(OutputError, match=r"no such folder.*--target"):
        quickly(adk, tmp_path / "nowhere")
    with pytest.raises(OutputError, match=r"no such folder.*--local-dir"):
        quickly(adk, tmp_path, local_folder=tmp_path / "nowhere")
    monkeypatch.setattr(probes.os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="not writable"):
        quickly(adk, tmp_path)


def test_bad_questions(adk, tmp_path):
    with pytest.raises(PlanError, match=r"there is no kernel 'rsmd' \(did you mean 'rmsd'"):
        quickly(adk, tmp_path, analysis="rsmd")
    with pytest.raises(PlanError, match="'name XX' selects no atom"):
        quickly(adk, tmp_path, select="name XX")
    with pytest.raises(SourceError):
        quickly(adk, tmp_path, source=tmp_path / "none.xtc")
    with pytest.raises(PlanError, match="msd looks at all frames of an atom together"):
        quickly(adk, tmp_path, analysis="msd")
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_cannot_be_made_is_told(adk, tmp_path, monkeypatch):
    convert = measure.convert_trial

    def failing(candidate, *arguments, **options):
        if candidate.to == "zarr":
            raise OutputError("the disk is full")
        return convert(candidate, *arguments, **options)

    monkeypatch.setattr(measure, "convert_trial", failing)
    found = quickly(adk, tmp_path)
    assert found.trial("zarr").problem == "the disk is full"
    assert found.trial("zarr").runs == ()
    assert found.trial("h5md").runs


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted(adk, tmp_path, monkeypatch, error):
    seen = []

    def interrupted(*_arguments, **_options):
        seen.extend(tmp_path.iterdir())
        raise error

    monkeypatch.setattr(measure, "convert_trial", interrupted)
    with pytest.raises(error):
        quickly(adk, tmp_path)
    assert seen  # there was something to remove
    assert list(tmp_path.iterdir()) == []


def test_terminated(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from mdio.advisor.measure import scratch\n"
        "with scratch(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'x').write_text('x'); print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from mdio.advisor.measure import scratch\n"
        "with scratch(Path(sys.argv[1])): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    (left,) = tmp_path.iterdir()
    with scratch(tmp_path) as folder:
        assert not left.exists()
        with scratch(tmp_path) as other:  # one that is in use stays
            assert folder.exists()
            assert other != folder
    assert list(tmp_path.iterdir()) == []
