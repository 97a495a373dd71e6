"""Storage that does not answer: told with rank, host, file and how long, and ended if asked."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from mdio.core import stalls
from mdio.core.errors import SourceError
from mdio.core.files.reading import OpenFile
from mdio.core.files.writing import write_all
from mdio.core.stalls import StallWatch, pending_calls


@pytest.fixture
def told():
    return []


@pytest.fixture
def watch(told, monkeypatch):
    watch = StallWatch(timeout_s=60.0, report=told.append)
    watch.stop()  # the test looks itself, at times of its own
    monkeypatch.setattr(pending_calls, "n_watches", 1)
    return watch


class Hanging:
    """A call of the system that waits until the test lets it go on."""

    def __init__(self, monkeypatch, name):
        self.reached, self.go_on = threading.Event(), threading.Event()
        real = getattr(os, name)

        def slow(*words):
            self.reached.set()
            assert self.go_on.wait(60)
            return real(*words)

        monkeypatch.setattr(os, name, slow)


def in_thread(function, *words):
    thread = threading.Thread(target=function, args=words)
    thread.start()
    return thread


def test_a_read_that_hangs_is_told_again_and_again(tmp_path, watch, told, monkeypatch):
    path = tmp_path / "slow"
    path.write_bytes(bytes(100))
    hanging = Hanging(monkeypatch, "preadv")
    file = OpenFile(path)
    thread = in_thread(file.array, 10, 20)
    assert hanging.reached.wait(60)
    for now_s in (0.0, 30.0, 59.0):
        watch.check_threads(now_s)
    assert told == []
    watch.check_threads(61.0)
    host = socket.gethostname()
    assert told == [
        f"mdio on {host}: reading {path} has taken 61 s; {stalls.STALLED}",
    ]
    watch.check_threads(100.0)
    watch.check_threads(125.0)
    assert len(told) == 2 and "has taken 125 s" in told[1]
    hanging.go_on.set()
    thread.join()
    watch.check_threads(300.0)
    assert len(told) == 2


def test_who_gets_on_is_not_told_of(tmp_path, watch, told, monkeypatch):
    path = tmp_path / "slow"
    path.write_bytes(bytes(100))
    file = OpenFile(path)
    for now_s in (0.0, 70.0, 140.0):
        hanging = Hanging(monkeypatch, "preadv")
        thread = in_thread(file.array, int(now_s / 70), 20)
        assert hanging.reached.wait(60)
        watch.check_threads(now_s)
        hanging.go_on.set()
        thread.join()
        monkeypatch.undo()
    assert told == []


def test_a_write_that_hangs_names_its_file(tmp_path, watch, told, monkeypatch):
    path = tmp_path / "slow"
    hanging = Hanging(monkeypatch, "pwritev")
    with path.open("wb") as file:
        thread = in_thread(write_all, file.fileno(), 0, np.zeros(100, np.uint8))
        assert hanging.reached.wait(60)
        watch.check_threads(0.0)
        watch.check_threads(70.0)
        hanging.go_on.set()
        thread.join()
    assert len(told) == 1 and f"writing {path}" in told[0]


def test_ranks_are_named(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "3")
    assert stalls.describe_process() == f"mdio, rank 3 on {socket.gethostname()}"


def test_nothing_is_left_of_calls_that_ended(tmp_path, watch):
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    with OpenFile(path) as file:
        file.array(0, 100)
        file.peek(90, 20)
        with pytest.raises(SourceError):
            file.array(90, 20)
    with pytest.raises(SourceError):
        OpenFile(tmp_path / "b")
    assert not pending_calls.by_thread


COMMAND = """
import os, sys, time
real = os.preadv
def slow(fd, buffers, offset, *flags):
    if os.readlink(f"/proc/self/fd/{fd}").endswith(".xtc") and not flags:
        time.sleep(60)
    return real(fd, buffers, offset, *flags)
os.preadv = slow
from mdio.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_command_tells_and_ends_if_asked(adk, tmp_path, workers):
    words = ["verify" if workers == "1" else "convert", str(adk["xtc"])]
    words += [] if workers == "1" else [str(tmp_path / "a.zarr"), "-w", "2"]
    with OpenFile(adk["xtc"]):  # its index is there, or is made in another way
        pass
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words, "--stall-timeout", "0.4", "--stall-abort", "1.2"],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert f"reading {Path(adk['xtc'])} has taken" in done.stderr
    assert "ended, as --stall-abort asks" in done.stderr
