"""Sources that are no plain files, have odd names or dates: no traceback, no hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from numpy.testing import assert_allclose
from suites.native_files import made_up

import mdio
from mdio.core.errors import SourceError

FAR_NS = 10_413_792_000 * 10**9
"""The year 2300: more nanoseconds than 64 bits with a sign count."""


def run(*words):
    """Run the program, with a time limit."""
    argv = [sys.executable, "-m", "mdio.cli.main", *words]
    return subprocess.run(argv, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("command", ["info", "convert", "analyze", "verify"])
def test_a_pipe_or_a_loop_is_an_error(tmp_path, command):
    os.mkfifo(tmp_path / "pipe.xtc")
    (tmp_path / "loop.xtc").symlink_to("loop.xtc")
    for name, told in (("pipe", b"neither a file nor a folder"), ("loop", b"cannot be opened")):
        path = os.fsencode(tmp_path / f"{name}.xtc")
        words = {"convert": [path, "out.zarr"], "analyze": ["reference-distances", path]}
        done = run(command, *words.get(command, [path]))
        assert done.returncode == 1, done
        assert told in done.stderr and b"Traceback" not in done.stderr, done


def test_names_that_hold_a_zero_are_an_error():
    with pytest.raises(SourceError, match="cannot be opened"):
        mdio.open("a\0.xtc")


@pytest.mark.parametrize("suffix", ["xtc", "trr", "dcd"])
def test_files_of_the_far_future(adk, tmp_path, suffix):
    source = tmp_path / f"a.{suffix}"
    source.write_bytes(adk[suffix].read_bytes())
    os.utime(source, ns=(FAR_NS, FAR_NS))
    if source.stat().st_mtime_ns != FAR_NS:
        os.utime(source)  # this file system ends before: nothing to see
    for _ in range(2):  # with a new index, and a stored one
        with mdio.open(source) as layout:
            assert layout.info.n_frames == 98
    assert mdio.convert(source, tmp_path / "out.zarr", stop=5).n_frames == 5
    with mdio.open(tmp_path / "out.zarr") as layout:
        assert layout.manifest["source"]["mtime_ns"] == source.stat().st_mtime_ns


def test_names_that_are_no_text(adk, tmp_path):
    """Not UTF-8: such names come with folders of other systems."""
    folder = os.fsencode(tmp_path)
    source = folder + b"/caf\xe9.xtc"
    Path(os.fsdecode(source)).write_bytes(adk["xtc"].read_bytes())
    report = os.fsencode(tmp_path / "report.html")
    for words in (
        ["info", source],
        ["info", source, "--json"],
        ["convert", source, folder + b"/caf\xe9.zarr", "--stop", "5"],
        ["convert", source, folder + b"/b.h5md", "--stop", "5", "--json"],
        ["analyze", "rmsd", source, "--stop", "5", "--report", report],
        ["split", source, folder + b"/b.segments", "-n", "2"],
    ):
        done = run(*words)
        assert done.returncode == 0, done
        assert b"Traceback" not in done.stderr
    assert b"caf" in Path(os.fsdecode(report)).read_bytes()


@pytest.mark.parametrize("angle", [0, 30])
@pytest.mark.parametrize("suffix", ["xtc", "trr"])
def test_rotated_cells_are_told_of(tmp_path, suffix, angle):
    """GROMACS has none, other programs may: MDAnalysis reads lengths and angles alone, too."""
    sine, cosine = np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))
    box = np.diag([3, 4, 5]) @ [[cosine, sine, 0], [-sine, cosine, 0], [0, 0, 1]]
    path, file_type = tmp_path / f"a.{suffix}", {"xtc": XTCFile, "trr": TRRFile}[suffix]
    with file_type(str(path), "w") as file:
        more = (1000,) if suffix == "xtc" else (0, 12)
        fields = [made_up(1, 12)[0]] * (1 if suffix == "xtc" else 3)
        file.write(*fields, box, 0, 0.0, *more)
    with mdio.open(path) as layout:
        assert len(layout.notes) == (angle > 0)
        assert_allclose(layout.read(0, 1).box, [[30, 40, 50, 90, 90, 90]], rtol=1e-6)
    mdio.convert(path, tmp_path / "b.zarr")
    assert [note for note in mdio.open(tmp_path / "b.zarr").notes if "rotated" in note] == [
        note.replace("a." + suffix, "b.zarr") for note in mdio.open(path).notes
    ]
