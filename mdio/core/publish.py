"""Outputs appear under their name only when they are whole.

An output, file or folder, is built under a temporary name beside its target and renamed in the end.
Whatever stops the work in between (an error, Ctrl-C, SIGTERM) removes the temporary; a process that
was killed outright leaves it behind, and the next one for the same target tidies up.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from mdio.core.errors import MdioError, OutputError
from mdio.core.signals import terminations_raised

__all__ = [
    "PARTS_MARKER",
    "flush_tree",
    "leftovers",
    "output_errors",
    "parts_of",
    "publish",
    "temporary_for",
]

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
TEMPORARY = re.compile(r"\.([^/]+)\.mdio-[A-Za-z0-9_.]+-\d+\.tmp")
PARTS_MARKER = "parts.json"
"""What a folder of parts holds besides them."""
OURS = ("manifest.json", "zarr.json", ".zgroup", PARTS_MARKER)
"""A folder that holds one of these is an output that ``force`` may replace."""
INDEX_ENDING = ".mdio-index"
FLUSHERS = 8
"""Files that are flushed at the same time."""
NAME_NBYTES = 255
"""What file systems allow."""


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


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn what the system says while `path` is written into OutputError.

    A temporary is called by the name of its target.
    """
    try:
        yield
    except MdioError:
        raise
    except OSError as error:
        name = TEMPORARY.sub(r"\1", str(path))
        reason = FULL.get(error.errno or 0, f"it cannot be written ({error.strerror or error})")
        raise OutputError(f"{name}: {reason}; free some space or choose another place") from error


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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no fsync of folders here
            raise
    finally:
        os.close(fd)


def flush_tree(path: Path) -> None:
    """Flush a file, or all files and folders under a folder, to the disk.

    Several at a time, since file systems flush them together then. Frame indexes are left out: they
    are checked when they are used, and can be made again.
    """
    if not path.is_dir():
        _flush(path)
        return
    tree = [(Path(folder), files) for folder, _, files in os.walk(path)]
    paths = [folder / name for folder, files in tree for name in files]
    paths = [file for file in paths if not file.name.endswith(INDEX_ENDING)]
    paths += [folder for folder, _ in tree]
    with ThreadPoolExecutor(max_workers=min(FLUSHERS, len(paths))) as pool:
        list(pool.map(_flush, paths))


def _check(target: Path, force: bool, sources: Sequence[Path]) -> None:
    """Refuse what cannot or must not be written, before any work is done."""
    parent = target.parent
    if not parent.is_dir():
        raise OutputError(f"{target}: the folder {parent} does not exist; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target}: the folder {parent} is not writable; choose another place")
    if len(os.fsencode(temporary_for(target).name)) > NAME_NBYTES:
        raise OutputError(f"{target}: the name is too long; choose a shorter one")
    real = target.resolve()
    for source in sources:
        one = source.resolve()
        if real == one or real in one.parents or one in real.parents:
            raise OutputError(
                f"{target}: the output is the source {source} itself, or one lies inside the "
                "other; choose another name"
            )
    if not os.path.lexists(target):
        return
    if not force:
        raise OutputError(f"{target}: it exists already; choose another name or use --force")
    if target.is_symlink():
        return
    mode = target.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OutputError(f"{target}: neither a file nor a folder; choose another name")
    if target.is_dir():
        names = {path.name for path in target.iterdir()}
        if names and names.isdisjoint(OURS):
            raise OutputError(
                f"{target}: a folder that is no trajectory (it has none of {', '.join(OURS)}) is "
                "not replaced; remove it yourself or choose another name"
            )


def _tidy(target: Path) -> None:
    """Put right what killed processes left: a replaced output comes back, the rest goes."""
    parts = parts_of(target)
    if leftovers(target, "old") and not os.path.lexists(target):
        for old in leftovers(parts, "old"):  # and its parts with it, before it
            _remove(parts)
            old.rename(parts)
    for old in leftovers(target, "old"):
        if os.path.lexists(target):
            _remove(old)
        else:
            old.rename(target)
    for path in leftovers(target):
        _remove(path)


def _put_in_place(temporary: Path, target: Path, force: bool) -> None:
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
        _remove(aside)
    else:
        temporary.rename(target)


def _put_both_in_place(target: Path, force: bool) -> None:
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
        _remove(temporary_for(path, "old"))


@contextmanager
def publish(
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    sources: Sequence[str | os.PathLike[str]] = (),
    companions: Sequence[str | os.PathLike[str]] = (),
    in_parts: bool = False,
) -> Iterator[Path]:
    """Build an output under a temporary name, and rename it when the block ends well.

    Parameters
    ----------
    target
        File or folder to be.
    force
        Replace what is there; it stays untouched until the new one is whole and on disk.
    sources
        What is read meanwhile: an output that would replace one of them is refused.
    companions
        Further files that belong to the output (``NAME.top.pdb``); the block may write each at
        ``temporary_for(companion)``, and those that it wrote are renamed just before the target.
    in_parts
        The target is a file that refers to others in the folder ``parts_of(target)``, which the
        block makes at ``temporary_for(parts_of(target))`` with a `PARTS_MARKER` in it. The two
        appear, and are replaced, together. A target without parts that replaces one with parts
        takes these away.

    Yields
    ------
    Path
        ``.NAME.mdio-HOST-PID.tmp`` beside the target. It does not exist, and may be made as a
        file or a folder.

    Raises
    ------
    OutputError
        Before any work: the target exists, is a source, is a folder of something else, or its
        folder is missing or read-only. In the end: the disk is full, the target has appeared.
    """
    goal = Path(target).absolute()
    beside = [Path(companion).absolute() for companion in companions]
    for path in (goal, *beside):
        _check(path, force, [Path(source) for source in sources])
    parts = parts_of(goal)
    if in_parts or (parts / PARTS_MARKER).is_file():
        _check(parts, force or not in_parts, [Path(source) for source in sources])
    temporary = temporary_for(goal)
    try:
        for path in (goal, parts, *beside):
            _tidy(path)
        with terminations_raised():
            try:
                yield temporary
                made = [path for path in beside if temporary_for(path).exists()]
                for path in (*made, *[parts] * in_parts, goal):
                    flush_tree(temporary_for(path))
                for path in made:
                    _put_in_place(temporary_for(path), path, force)
                if in_parts:
                    _put_both_in_place(goal, force)
                else:
                    orphaned = os.path.lexists(goal) and (parts / PARTS_MARKER).is_file()
                    _put_in_place(temporary, goal, force)
                    if orphaned:
                        _remove(parts)
                _flush(goal.parent)
            except BaseException:
                for path in (goal, parts, *beside):  # (those of a forked child have other names)
                    _remove(temporary_for(path))
                raise
    except OSError as error:
        writing = error.errno in FULL or str(error.filename or "").startswith(str(temporary))
        if isinstance(error, MdioError) or not writing:
            raise
        with output_errors(temporary):
            raise
