"""What a bar shows of frames and bytes."""

import io
import re
import subprocess
import sys

import pytest

import mdio
from mdio.core import progress
from mdio.core.progress import ProgressLog


def test_frames_rate_and_bytes(adk, tmp_path):
    shown = io.StringIO()
    with mdio.ProgressBar(98, "adk", file=shown, mininterval=0) as bar:
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", progress=bar)
    last = shown.getvalue().split("\r")[-1]
    assert last.startswith("adk: 100%")
    assert "98.0/98.0" in last and "MB/s" in last


def test_without_a_total():
    shown = io.StringIO()
    with mdio.ProgressBar(file=shown) as bar:
        bar(7, 0)
    assert "7.00frame" in shown.getvalue()


@pytest.mark.parametrize(("total", "said"), [(98, "60.0 of 98.0"), (0, r"60.0 of \?")])
def test_lines_of_a_log_come_seldom(monkeypatch, total, said):
    now = iter([0.0, 40.0, 70.0, 71.0, 140.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    shown = io.StringIO()
    log = ProgressLog(lambda: total, "convert", shown)
    for n_frames in (20, 40, 1, 37):
        log(n_frames, 1_000_000 * n_frames)
    first, second = shown.getvalue().splitlines()
    assert re.match(rf"convert: {said} frames \[01:10<.*frame.*, 1 MB/s\]$", first)
    assert second.startswith("convert: 98.0 of ") and "02:20" in second


def test_a_command_without_a_terminal_writes_lines(adk, tmp_path):
    """Of short work none; with lines at once, one for each piece."""
    program = (
        "import sys; from mdio.core import progress; from mdio.cli.main import main;"
        "progress.LOG_INTERVAL_S = float(sys.argv.pop(1)); sys.exit(main(sys.argv[1:]))"
    )
    for number, seconds in enumerate(("60", "0")):
        words = ["convert", adk["xtc"], str(tmp_path / f"{number}.zarr"), "--chunk-frames", "10"]
        run = [sys.executable, "-c", program, seconds, *words]
        told = subprocess.run(run, capture_output=True, text=True, check=True).stderr
        assert ("convert: 98.0 of 98.0 frames [" in told) == (seconds == "0")
        assert "\r" not in told
