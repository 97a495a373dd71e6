"""Outputs appear under their name only when they are whole.

An output, file or folder, is built under a temporary name beside its target and renamed in the end.
Whatever stops the work in between (an error, Ctrl-C, SIGTERM) removes the temporary; a process that
was killed outright leaves it behind, and the next one for the same target tidies up.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from mdio.core.errors import MdioError, OutputError
from mdio.core.replacing import (
    PARTS_MARKER,
    TEMPORARY,
    leftovers,
    parts_of,
    put_both_in_place,
    put_in_place,
    remove,
    temporary_for,
    tidy,
)
from mdio.core.signals import terminations_raised

__all__ = [
    "PARTS_MARKER",
    "TEMPORARY",
    "flush_tree",
    "leftovers",
    "output_errors",
    "parts_of",
    "publish",
    "temporary_for",
]

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
OURS = ("manifest.json", "zarr.json", ".zgroup", PARTS_MARKER)
"""A folder that holds one of these is an output that ``force`` may replace."""
INDEX_ENDING = ".mdio-index"
FLUSHERS = 8
"""Files that are flushed at the same time."""
NAME_NBYTES = 255
"""What file systems allow."""


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


@contextmanager
def publish(
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    sources: Sequence[str | os.PathLike[str]] = (),
    companions: Sequence[str | os.PathLike[str]] = (),
    in_parts: bool = False,
    was_in_parts: bool = False,
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
        appear, and are replaced, together.
    was_in_parts
        The former target refers to that folder, which then goes with it.

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
    if in_parts and leftovers(goal, "old"):
        tidy(goal)  # a killed process may have left both under other names
        _check(goal, force, [])
    was_in_parts = was_in_parts and (parts / PARTS_MARKER).is_file()
    if in_parts or was_in_parts:
        _check(parts, force or not in_parts, [Path(source) for source in sources])
    temporary = temporary_for(goal)
    try:
        for path in (goal, parts, *beside):
            tidy(path)
        with terminations_raised():
            try:
                yield temporary
                made = [path for path in beside if temporary_for(path).exists()]
                for path in (*made, *[parts] * in_parts, goal):
                    flush_tree(temporary_for(path))
                for path in made:
                    put_in_place(temporary_for(path), path, force)
                if in_parts:
                    put_both_in_place(goal, force)
                else:
                    put_in_place(temporary, goal, force)
                    if was_in_parts:
                        remove(parts)
                _flush(goal.parent)
            except BaseException:
                for path in (goal, parts, *beside):  # (those of a forked child have other names)
                    remove(temporary_for(path))
                raise
    except OSError as error:
        writing = error.errno in FULL or str(error.filename or "").startswith(str(temporary))
        if isinstance(error, MdioError) or not writing:
            raise
        with output_errors(temporary):
            raise
