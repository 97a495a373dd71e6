"""Outputs appear under their name only when they are whole.

An output, file or folder, is built under a temporary name beside its target, flushed, looked at and
renamed in the end. Whatever stops the work in between (an error, Ctrl-C, SIGTERM) removes the
temporary, unless a journal lists what is done and the work can be resumed: then it stays, and the
error says so. A process that was killed leaves it behind; the next one for the same target resumes
it if asked to, refuses to start otherwise, and tidies up the rest.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.errors import BlockError, CorruptLayoutError, MdioError, OutputError, SourceError
from mdio.core.files.journal import find_unfinished, journal_path, refuse_unfinished
from mdio.core.files.marks import PARTS_MARKER, final_parts_folder, is_output, parts_folder
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.replacing import put_in_place, take_over, tidy
from mdio.core.files.store import is_remote, store_at, to_path
from mdio.core.files.turns import TEMPORARY, Claim, State, longest_name, state_at
from mdio.core.files.writing import INDEX_ENDING, flush, remove
from mdio.core.signals import terminations_raised

if TYPE_CHECKING:
    from mdio.core.files.remote.uploading import Upload

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
FLUSHERS = 8
"""Files that are flushed at the same time."""
NAME_NBYTES = 255
"""Longest name of a file that file systems allow, bytes."""


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
        full = FULL.get(error.errno or 0)
        reason = full or f"it cannot be written ({error.strerror or error})"
        advice = "fix that" if full is None else "free some space"
        raise OutputError(f"{name}: {reason}; {advice} or choose another place") from error


def flush_tree(path: Path) -> None:
    """Flush a file, or all files and folders under a folder, to the disk.

    Several at a time, since file systems flush them together then. Frame indexes are left out: they
    are checked when they are used, and can be made again.
    """
    if not path.is_dir():
        flush(path)
        return
    from concurrent.futures import ThreadPoolExecutor  # reading needs none, nor its logging

    tree = [(Path(folder), files) for folder, _, files in os.walk(path)]
    paths = [folder / name for folder, files in tree for name in files]
    paths = [file for file in paths if not file.name.endswith(INDEX_ENDING)]
    paths += [folder for folder, _ in tree]
    n_flushers = min(FLUSHERS, len(paths))
    with ThreadPoolExecutor(n_flushers) as pool:
        list(pool.map(_flush_all, (paths[first::n_flushers] for first in range(n_flushers))))


def _flush_all(paths: Sequence[Path]) -> None:
    for path in paths:
        flush(path)


def _check_folder(target: Path) -> None:
    """Refuse where nothing can be written."""
    parent = target.parent
    if not parent.is_dir():
        raise OutputError(f"{target}: the folder {parent} does not exist; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target}: the folder {parent} is not writable; choose another place")


def _check_name(path: Path, target: Path) -> None:
    """Refuse names that do not leave room for that of a temporary."""
    n_free = NAME_NBYTES - longest_name(path)
    if n_free < 0:
        companion = "" if path == target else f" (with it comes {path.name})"
        raise OutputError(
            f"{target}: the name is too long by {-n_free} bytes{companion}; choose a shorter one"
        )


def _check(target: Path, force: bool, sources: Sequence[Path]) -> None:
    """Refuse what must not be written, before any work is done."""
    try:
        real = target.resolve()
        if real.is_symlink():  # Python 3.13 and newer do not raise
            raise RuntimeError(f"loop at {real}")
    except (OSError, RuntimeError) as error:
        raise OutputError(
            f"{target}: a symbolic link that leads back to itself; remove it or choose another name"
        ) from error
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
        raise OutputError(
            f"{target}: it exists already; choose another name or use --force "
            "(force=True in Python)"
        )
    if target.is_symlink():
        return
    mode = target.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OutputError(f"{target}: neither a file nor a folder; choose another name")
    if target.is_dir() and any(target.iterdir()) and not is_output(target):
        raise OutputError(
            f"{target}: a folder that is no trajectory of mdio (it has no manifest of mdio) is not "
            "replaced; remove it yourself or choose another name"
        )


def _existing_parts(goal: Path, parts_at: Callable[[Path], Path | None] | None) -> list[Path]:
    """Return the folder to which what is at `goal` now refers, if to one."""
    former = parts_at(goal) if parts_at is not None and goal.is_file() else None
    return [] if former is None or not (former / PARTS_MARKER).is_file() else [former]


@contextmanager
def _system_error(temporary: Path, sources: Sequence[Path]) -> Iterator[None]:
    """Turn what the system says of anything but the sources into OutputError."""
    try:
        yield
    except OSError as error:
        if is_remote(error.filename):
            raise OutputError(f"{error.filename}: {error.strerror}; try again") from error
        if isinstance(error.filename, str):
            named = Path(error.filename).absolute()
            if any(path in (named, *named.parents) for path in sources):
                raise
        with output_errors(temporary):
            raise


def _may_pass(error: BaseException) -> bool:
    """Return whether the same work may succeed when it is resumed."""
    if isinstance(error, BlockError):  # a worker was killed, or had no memory
        return isinstance(error.__cause__, MemoryError | None)
    stopped = isinstance(error, SystemExit | KeyboardInterrupt | MemoryError | OSError)
    return stopped and not isinstance(error, SourceError | CorruptLayoutError)


def link_target(out: str | os.PathLike[str]) -> Path:
    """Return the path of an existing output: the target of a symbolic link, if `out` is one.

    The new state takes the place of the former one, in its folder, and not that of the link.
    """
    path = to_path(out)
    return path.resolve() if path.is_symlink() else path


def settle(where: Path) -> None:
    """Put right what a dead run has left of an output that is to be resumed or repaired.

    Raises OutputError: that cannot be done.
    """
    if isinstance(where, RemotePath):
        from mdio.core.files.remote import places

        try:
            places.settle(where)
        except OSError as error:
            raise OutputError(f"{where}: cannot go on ({error.strerror or error})") from error
        return
    goal = where.absolute()
    if goal.parent.is_dir():
        with output_errors(goal):
            tidy([goal, parts_folder(goal)])  # the output itself may have been moved aside


@contextmanager
def publish(
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    sources: Sequence[str | os.PathLike[str]] = (),
    companions: Sequence[str | os.PathLike[str]] = (),
    in_parts: bool = False,
    parts_at: Callable[[Path], Path | None] | None = None,
    check: Callable[[Path], None] | None = None,
    begun: Mapping[str, Any] | None = None,
    resume: bool = False,
    anew: bool | None = None,
    upload: Upload | None = None,
    former: State | None = None,
    follows: bool = False,
) -> Iterator[Path]:
    """Build an output under a temporary name, and rename it when the block ends well.

    `target`: file or folder to be. `force`: replace what is there; it stays untouched until the new
    one is whole and on disk. A folder is replaced only if mdio wrote it. `sources`: what is read
    meanwhile: an output that would replace one of them is refused. `companions`: further files in
    the same folder that belong to the output (``NAME.top.pdb``); the block may write each at
    ``temporary_for(companion, temporary)``, and those that it wrote appear with the target.
    `in_parts`: the target is a file that refers to others in a folder beside it, which the block
    makes at ``temporary_for(parts_folder(target), temporary)``, and marks (`mark_parts`) with its
    final name (`new_parts_folder`). The two appear, and are replaced, together. `parts_at`: returns
    the folder to which a former target refers, which is then removed. `check`: called with the
    temporary when all is on disk and before anything is renamed; raises if it is not as it should
    be. `begun`: what is made, and of what: where the block keeps a `Journal`, it
    says this in ``of``. `resume`: go on with what an earlier run has left, if it has begun with the
    same. Otherwise that is an error, or with `anew` removed. `anew`: remove what an earlier run has
    left; None = with `force`. `upload`: into a store: what sends files of the output meanwhile.
    `former`: the state (`state_at`) of what is replaced, as the caller knows it; None = what is
    there now. Only that is replaced: another run may have changed it by then. `follows`: whether
    the output is made of it.
    Yields Path: ``.NAME.mdio-HOST-PID-TOKEN.tmp`` beside the target. It may be made as a file or a
    folder; if it exists, with a journal, then that lists what an earlier run has done.
    Raises OutputError: before any work: the target exists, is a source, is a folder of something
    else, its folder is missing or read-only, or something is left that can be resumed, or
    cannot, with `resume`. In the end: the disk is full, the target has appeared, or another run has
    changed it meanwhile.
    """
    target_path = to_path(target)
    upload = upload or store_at(target_path).upload(target_path)
    if upload is not None and target_path == upload.goal:
        names = [Path(companion).name for companion in companions]
        with (
            upload.building(
                force=force,
                anew=force if anew is None else anew,
                resume=resume,
                sources=[to_path(source) for source in sources],
                companions=[target_path.with_name(name) for name in names],
                check=check,
            ) as local,
            publish(
                local,
                companions=[local.with_name(name) for name in names],
                in_parts=in_parts,
                parts_at=parts_at,
                check=check,
                begun=begun,
                resume=resume,
                anew=force if anew is None else anew,
                upload=upload,
            ) as temporary,
        ):
            yield temporary
        return
    goal = target_path.absolute()
    beside = [Path(companion).absolute() for companion in companions]
    parts = parts_folder(goal)
    read = [Path(source) for source in sources]
    _check_folder(goal)
    for path in (goal, *beside, *[parts] * in_parts):
        _check_name(path, goal)
    # First, since this may bring a former output back.
    anew = force if anew is None else anew
    tidy([goal, parts, *beside], unfinished_too=anew and not resume)
    for path in (goal, *beside):
        _check(path, force, read)
    gone = partial(_existing_parts, goal, parts_at)
    for path in {*(gone() if force else ()), *[parts] * in_parts}:
        _check(path, force, read)
    former = former or state_at(goal)
    if not resume:
        refuse_unfinished(goal, goal if upload is None else upload.goal)
    with terminations_raised():
        with output_errors(goal):
            claim = Claim(goal)
        temporary = claim.name(goal)
        try:
            with _system_error(temporary, [path.absolute() for path in read]):
                if resume and begun is not None:
                    take_over(claim, goal, begun)
                yield temporary
                companions_made = [path for path in beside if os.path.lexists(claim.name(path))]
                if in_parts:
                    companions_made.append(final_parts_folder(claim.name(parts), goal))
                    claim.built[companions_made[-1].name] = parts.name
                for path in (
                    (*companions_made, goal) if upload is None else ()
                ):  # what is sent goes then
                    flush_tree(claim.name(path))
                # What stays in the store, or is there by now, is not here.
                if check is not None and (upload is None or not (upload.follows or upload.early)):
                    try:
                        check(temporary)
                    except MdioError:
                        journal_path(temporary).unlink(missing_ok=True)  # it is wrong
                        raise
                if upload is not None and upload.early:
                    temporaries = {path.name: claim.name(path) for path in companions_made}
                    upload.finish(temporary, temporaries, check)
                try:
                    put_in_place(claim, goal, companions_made, gone, force=force, former=former)
                except OutputError:
                    if follows and state_at(goal) != former:
                        journal_path(temporary).unlink(missing_ok=True)  # it continues nothing now
                    raise
            journal_path(temporary).unlink(missing_ok=True)
        except BaseException as error:
            if os.getpid() == claim.pid:  # and no forked child of it
                goes_on = _may_pass(error) and not (upload is not None and upload.is_done)
                unfinished = find_unfinished(temporary) if goes_on else None
                if unfinished is None:
                    with suppress(OSError):
                        for path in claim.temporaries():
                            remove(path)
                    with suppress(OSError):
                        journal_path(temporary).unlink(missing_ok=True)
                else:
                    plan = (
                        f"{unfinished.text}: use --resume to continue, --force to start over "
                        "(resume=True or force=True in Python)"
                    )
                    if isinstance(error, MdioError):
                        raise type(error)(f"{error}; {plan}") from error
                    error.add_note(plan)
            raise
        finally:
            claim.release()
