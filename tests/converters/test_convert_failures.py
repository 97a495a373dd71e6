"""Conversions that cannot be finished: the former output stays, or there is none."""

import signal
import subprocess
import sys
import time

import pytest
from suites.outputs import as_options, contents

import mdio
from mdio.core.errors import OutputError

pytestmark = pytest.mark.usefixtures("ending_signals")

TARGETS = ["zarr", "h5md", "segments"]


@pytest.mark.parametrize("target", [*TARGETS, "xtc"])
def test_an_existing_output_is_kept_unless_forced(adk, tmp_path, target):
    out = tmp_path / f"a.{target}"
    mdio.convert(adk["xtc"], out, stop=10)
    before = contents(out)
    with pytest.raises(OutputError, match="exists"):
        mdio.convert(adk["xtc"], out)
    assert contents(out) == before
    mdio.convert(adk["xtc"], out, stop=20, force=True)
    assert mdio.open(out).info.n_frames == 20


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_a_damaged_source_leaves_the_former_output(adk, tmp_path, target, workers):
    out = tmp_path / f"a.{target}"
    options = {"container": "dcd"} if target == "segments" else {}
    mdio.convert(adk["xtc"], out, stop=10, **as_options(options))
    before = contents(out)
    bad = tmp_path / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    start = len(data) * 2 // 3
    data[start : start + 64] = b"\xff" * 64
    bad.write_bytes(data)
    with pytest.raises(OSError, match=r"bad\.xtc.*frame"):
        mdio.convert(bad, out, force=True, workers=workers, **as_options(options))
    assert contents(out) == before
    names = {p.name for p in tmp_path.iterdir() if "index" not in p.name}
    assert names == {out.name, "bad.xtc"}


@pytest.mark.parametrize("target", [*TARGETS, "dcd"])
def test_a_file_that_cannot_grow_is_an_error_and_leaves_nothing(adk, tmp_path, target):
    code = (
        "import resource, sys, mdio\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"mdio.convert({str(adk['dcd'])!r}, {str(tmp_path / 'a')!r} + '.{target}', workers=2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"a.{target}" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["zarr", "h5md"])
@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_conversion_leaves_no_output(adk, tmp_path, target, blow):
    out = tmp_path / f"a.{target}"
    code = (
        "import time, mdio\n"
        "from mdio.converters.strategies.conversion import Conversion\n"
        "commit = Conversion._commit\n"
        "Conversion._commit = lambda *args: (time.sleep(1), commit(*args))\n"  # some 70 of them
        f"mdio.convert({[str(adk['dcd'])] * 600!r}, {str(out)!r}, workers=2)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    limit = time.monotonic() + 100
    while not list(tmp_path.iterdir()) and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(blow)
    process.communicate(timeout=100)
    assert not out.exists()
    if blow != signal.SIGKILL:  # what can be gone on with stays, and nothing else
        left = {path.suffix for path in tmp_path.iterdir()}
        assert left in (set(), {".tmp", ".journal", ".lock"})
    mdio.convert(adk["dcd"], out, force=True)
    assert list(tmp_path.iterdir()) == [out]
