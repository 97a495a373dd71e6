"""The library that records what is done in a folder, and lets calls fail there; see shim.c."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


def build(folder: Path) -> Path:
    """Compile the library; return where it is."""
    library = folder / "libtrust.so"
    words = ["-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([shutil.which("cc") or "gcc", *words], check=True)
    return library


def run_preloaded(script: str) -> None:
    """Start this program again with the library in it, unless it is there already."""
    if "MDIO_TRUST_SHIM" in os.environ:
        return
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        environment = {**os.environ, "LD_PRELOAD": str(library), "MDIO_TRUST_SHIM": "1"}
        words = [sys.executable, script, *sys.argv[1:]]
        sys.exit(subprocess.run(words, env=environment, check=False).returncode)


def watch(folder: Path, log: Path | str = "") -> None:
    """Record in `log` what is done in `folder` from now on, and let calls fail there only."""
    ctypes.CDLL(None).trust_watch(os.fsencode(folder), os.fsencode(log))


def fail(after: int, error: int = 0, how: int = 0) -> None:
    """Let the call that comes `after` others fail (how 0); others in shim.c."""
    ctypes.CDLL(None).trust_fail(ctypes.c_long(after), error, how)


@contextmanager
def resting() -> Iterator[None]:
    """Let nothing fail for a while, and count nothing."""
    library = ctypes.CDLL(None)
    library.trust_rest(1)
    try:
        yield
    finally:
        library.trust_rest(0)


def _number(name: str) -> int:
    function = getattr(ctypes.CDLL(None), name)
    function.restype = ctypes.c_long
    return int(function())


def fired() -> int:
    """Return how many calls have failed since `fail`."""
    return _number("trust_fired")


def remaining() -> int:
    """Return how many calls are to come before one fails."""
    return _number("trust_remaining")
