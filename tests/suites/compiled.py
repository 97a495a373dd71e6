"""Native code that tests compile for themselves, under sanitisers.

What was compiled stays in build/tests until it, a header, the flags or the compiler change.
"""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "mdio" / "native"
KEPT = ROOT / "build" / "tests"
COMPILER = str(shutil.which("g++"))
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
INCLUDED = sorted(path for path in NATIVE.iterdir() if path.is_dir())
FLAGS = [
    "-std=c++17",
    "-O0",  # half the time of -O1 to compile, and few inputs to run
    "-g1",  # lines in what sanitisers report
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-DMDIO_SWITCHES",
    *(f"-I{folder}" for folder in INCLUDED),
]
HEADERS = "algorithm array cmath cstdint cstring limits memory stdexcept string vector"
STANDARD = "#include <" + HEADERS.replace(" ", ">\n#include <") + ">\n"
STANDARD += "#ifdef __x86_64__\n#include <immintrin.h>\n#endif\n"
"""Parsed once for all files of the product: that is more than half of what most need."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, which no other test uses meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def state_of(paths: Iterable[Path], *words: object) -> str:
    """Return what changes with the contents of files, the compiler and `words`."""
    state = hashlib.sha256(repr((_version(), *words)).encode())
    for path in paths:
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


@cache
def _version() -> bytes:
    """Return what the compiler says of itself, nothing if there is none."""
    if shutil.which(COMPILER) is None:
        return b""
    return subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout


def _compile(*words: object) -> None:
    done = subprocess.run([COMPILER, *map(str, words)], capture_output=True, text=True)
    if "cannot find -lasan" in done.stderr or "cannot find -lubsan" in done.stderr:
        pytest.skip("the compiler has no sanitisers")
    assert done.returncode == 0, done.stderr


def keep(made: Path, state: str, make: Callable[[Path], object]) -> Path:
    """Make a file or folder with this state, unless it is there; `make` gets its name."""
    noted = made.with_name(f"{made.name}.state")
    if not (made.exists() and noted.exists() and noted.read_text() == state):
        noted.unlink(missing_ok=True)
        make(made)
        noted.write_text(state)
    return made


def _object(standard: Path, source: Path) -> Path:
    headers = [header for folder in (*INCLUDED, source.parent) for header in folder.glob("*.h")]
    made = standard.with_name(f"{source.parent.name}-{source.stem}.o")
    state = state_of([source, *sorted(headers)], FLAGS, STANDARD)
    # Sources of tests are compiled here alone: a header that they lack has to be missed.
    included = ("-include", standard) if NATIVE in source.parents else ()
    compiled = (*included, "-c", source, "-o")
    return keep(made, state, lambda path: _compile(*FLAGS, *compiled, path))


def build(program: Path, sources: Iterable[Path]) -> None:
    """Make a program of sources."""
    folder = KEPT / "sanitised"
    with locked(folder):
        standard = folder / "standard.h"
        standard.write_text(STANDARD)
        parsed = standard.with_name("standard.h.gch")
        header = ("-x", "c++-header", standard, "-o")
        keep(parsed, state_of([], FLAGS, STANDARD), lambda path: _compile(*FLAGS, *header, path))
        objects = [*map(partial(_object, standard), sources)]
        _compile(*FLAGS, *objects, "-pthread", "-o", program)
