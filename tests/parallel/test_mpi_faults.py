"""Faults on one rank of ``mdio convert --mpi``: the job ends soon, says which, leaves nothing.

Every target has a former output, which stays as it was.
"""

import os
import time
from pathlib import Path

import pytest
from suites.outputs import as_options
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi

import mdio

pytestmark = needs_mpi
CLI = ("-m", "mdio.cli.main")
TARGETS = ["zarr", "h5md", "segments", "dcd"]
WORDS = {
    "h5md": ("--chunk-frames", "26"),
    "segments": ("--container", "dcd", "--segments", "8"),
    "zarr": ("--chunk-frames", "26"),
}
LIMIT_S = 30
NODE = os.uname().nodename


@pytest.fixture
def former(adk, tmp_path, request):
    """Return an output of five frames that is about to be replaced."""
    target = request.getfixturevalue("target")
    out = tmp_path / f"a.{target}"
    options = {"container": "dcd"} if target == "segments" else {}
    mdio.convert(adk["dcd"], out, stop=5, **as_options(options))
    return out


def fail(out, n_ranks, *words):
    """Convert with a fault; return what is on stderr."""
    begun = time.monotonic()
    code, said, err = run_under_mpi(n_ranks, *words)
    assert time.monotonic() - begun < LIMIT_S
    assert (code, said) == (1, "")
    assert "Traceback" not in err
    assert err.count("mdio convert:") == 1
    assert mdio.open(out).info.n_frames == 5
    assert mdio.verify(out).ok
    left = {path.name for path in out.parent.iterdir()} - {out.name}
    assert {Path(name).suffix for name in left} in (set(), {".tmp", ".journal", ".lock"})
    assert bool(left) == ("--resume" in err)  # what can be gone on with stays, and is told
    return err


def source_of(adk, target):
    """Return a file of another format: several do not replace one of their own by --force."""
    return adk["xtc" if target == "dcd" else "dcd"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_full_disk_on_one_rank(adk, former, target):
    sources = [source_of(adk, target)] * 8
    program = (CHECKS / "faulty/run_limited.py", 2, 300_000, "convert", *sources)
    err = fail(former, 4, *program, former, "--mpi", "--force", *WORDS.get(target, ()))
    assert former.name in err and ("too large" in err or "larger than the limit" in err)
    assert f"(rank 2 on {NODE})" in err


@pytest.mark.parametrize("target", TARGETS)
def test_a_source_that_one_rank_cannot_read(adk, former, target):
    source = source_of(adk, target)
    program = (CHECKS / "faulty/run_blind.py", 1, source, "convert", *[source] * 8)
    err = fail(former, 3, *program, former, "--mpi", "--force", *WORDS.get(target, ()))
    assert str(source) in err and f"(rank 1 on {NODE})" in err


@pytest.mark.parametrize("target", TARGETS)
def test_a_corrupt_frame_met_by_rank_3(adk, former, target, tmp_path_factory):
    bad = tmp_path_factory.mktemp("bad") / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    at = len(data) // 2
    data[at : at + 64] = b"\xff" * 64
    bad.write_bytes(data)
    sources = [adk["xtc"]] * 8
    sources[3 if target == "segments" else 7] = bad  # within a piece of rank 3
    words = (*sources, former, "--mpi", "--force", *WORDS.get(target, ()))
    err = fail(former, 4, *CLI, "convert", *words)
    assert "bad.xtc" in err and "frame" in err and f"(rank 3 on {NODE})" in err


@pytest.mark.parametrize("command", ["analyze", "mapreduce", "verify"])
def test_work_on_a_source_that_one_rank_cannot_read(adk, tmp_path, command):
    top = ("-s", adk["psf"], "-o", tmp_path / "a.npz")
    words = {
        "analyze": ("analyze", "rmsd", adk["dcd"], *top, "--select", "name CA"),
        "mapreduce": ("mapreduce", "mapreduce.programs:Windows", adk["dcd"], *top),
        "verify": ("verify", adk["dcd"]),
    }[command]
    program = (CHECKS / "faulty/run_blind.py", 1, adk["dcd"], *words, "--mpi", "-q")
    code, said, err = run_under_mpi(2, *program)
    assert (code, said) == (1, ""), err
    assert err.count("mdio ") == 1 and str(adk["dcd"]) in err, err
    assert f"(rank 1 on {NODE}): " in err
    assert list(tmp_path.iterdir()) == []
