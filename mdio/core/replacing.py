"""Temporary names of outputs, and how what was built under one replaces what was there.

An output is a file or a folder, or a file and the folder of the parts that it refers to.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path

from mdio.core.errors import OutputError

__all__ = [
    "PARTS_MARKER",
    "TEMPORARY",
    "leftovers",
    "parts_of",
    "put_both_in_place",
    "put_in_place",
    "remove",
    "temporary_for",
    "tidy",
]

TEMPORARY = re.compile(r"\.([^/]+)\.mdio-[A-Za-z0-9_.]+-\d+\.tmp")
PARTS_MARKER = "parts.json"
"""What a folder of parts holds besides them."""


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:40]


def temporary_for(target: Path, ending: str = "tmp") -> Path:
    """Return the name under which this process builds `target` (or a companion file of it)."""
    return target.parent / f".{target.name}.mdio-{_host()}-{os.getpid()}.{ending}"


def parts_of(target: Path) -> Path:
    """Return the folder beside `target` for files that it refers to."""
    return target.with_name(f"{target.name}.parts")


def leftovers(target: Path, ending: str = "tmp") -> list[Path]:
    """Return temporaries of `target` whose processes are gone, the latest last.

    Whether a process of another host still lives cannot be seen from here: its temporaries are
    left out.
    """
    pattern = re.compile(
        rf"\.{re.escape(target.name)}\.mdio-{re.escape(_host())}-(?P<pid>\d+)\.{ending}"
    )
    found: list[tuple[int, Path]] = []
    for path in target.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match is not None and not _lives(int(match["pid"])):
            found.append((path.lstat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _lives(pid: int) -> bool:
    """Return whether another process with this number runs."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def tidy(target: Path) -> None:
    """Put right what killed processes left: a replaced output comes back, the rest goes."""
    parts = parts_of(target)
    if leftovers(target, "old") and not os.path.lexists(target):
        for old in leftovers(parts, "old"):  # and its parts with it, before it
            remove(parts)
            old.rename(parts)
    for old in leftovers(target, "old"):
        if os.path.lexists(target):
            remove(old)
        else:
            old.rename(target)
    for path in leftovers(target):
        remove(path)


def put_in_place(temporary: Path, target: Path, force: bool) -> None:
    """Give what lies at `temporary` the name `target`; raises OutputError if that is taken."""
    if os.path.lexists(target) and not force:
        raise OutputError(f"{target}: it appeared while this was written; nothing was replaced")
    aside = temporary_for(target, "old")
    if os.path.lexists(target):
        both_files = not temporary.is_dir() and not (target.is_dir() and not target.is_symlink())
        if both_files:
            temporary.replace(target)
            return
        try:
            target.rename(aside)
            temporary.rename(target)
        except BaseException:
            if os.path.lexists(aside) and not os.path.lexists(target):
                aside.rename(target)
            raise
        remove(aside)
    else:
        temporary.rename(target)


def put_both_in_place(target: Path, force: bool) -> None:
    """Put a file and the folder of its parts in place, and what they replace back if that fails.

    The file is under its name only while its own parts are, so that wherever a process is killed
    in between, no file refers to the parts of another.
    """
    parts = parts_of(target)
    there = [path for path in (target, parts) if os.path.lexists(path)]
    if there and not force:
        raise OutputError(f"{there[0]}: it appeared while this was written; nothing was replaced")
    moved: list[Path] = []
    placed: list[Path] = []
    try:
        for path in there:
            path.rename(temporary_for(path, "old"))
            moved.append(path)
        for path in (parts, target):
            temporary_for(path).rename(path)
            placed.append(path)
    except BaseException:
        for path in placed:
            path.rename(temporary_for(path))
        for path in reversed(moved):
            temporary_for(path, "old").rename(path)
        raise
    for path in there:
        remove(temporary_for(path, "old"))
