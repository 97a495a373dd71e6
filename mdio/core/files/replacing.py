"""Replacing former outputs by new ones: in one step where the system can, else step by step.

An output is a file or a folder; a file and the folder of the parts that it refers to; and its
companions, such as topologies. One alone is exchanged with its predecessor by a single call
(renameat2(2)): there is no moment without either. A file in parts refers to them by a name that was
free (`marks.new_parts_folder`): they get it first, when nothing refers to it yet, then one rename
replaces the file, and then the former parts are removed. Other names cannot change at once, and
file systems on a network do not exchange. Then

1. the former output goes aside, so that nobody meets it with companions or parts that are not its
   own; then these go aside,
2. the new companions and parts get their names; then the new output does, and all is done,
3. what went aside is removed.

The folder is flushed after each step, before the next one, so that a power cut leaves no later step
without an earlier one, and the former output is on disk until the new one is. Before the first, the
lock file of the publication says what is about to change: if a step fails, or the process is
killed, everything goes back to where it was (`tidy`), at once or by the next process that comes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.files.journal import journal_path, unfinished_in
from mdio.core.files.marks import is_identical, is_output, parts_folder, read_identity, try_lock
from mdio.core.files.turns import (
    Claim,
    Leftover,
    State,
    concurrent_change_error,
    exclusive_turn,
    leftovers,
    remove_dead_turn,
    state_at,
)
from mdio.core.files.writing import INDEX_ENDING, flush, remove

AT_FDCWD = -100
NOREPLACE, EXCHANGE = 1, 2
"""Flags of renameat2(2)."""
CANNOT_RENAME = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
"""What it says where it, or a flag, does not work: old kernels, network file systems, filters of
containers."""
READ_AND_WRITE = 0o666
"""Mode bits that a file inherits from a folder."""
ACCESS_LISTS = {"system.posix_acl_access", "system.posix_acl_default"}
"""Extended attributes, acl(5)."""

INDEX_HALVES = f"{INDEX_ENDING}-*"
"""Frame indexes that were being written when the process ended."""
WAITS = 200
"""Checks, every 50 ms, whether another process has finished changing names here."""


def _rename_to_free(source: Path, target: Path) -> None:
    """Give `source` the name `target`; raises OutputError if that is taken."""
    try:
        rename(source, target, NOREPLACE)
    except FileExistsError:
        raise _appeared(target) from None
    except OSError as error:
        if error.errno not in CANNOT_RENAME:
            raise
        if os.path.lexists(target):
            raise _appeared(target) from None
        rename(source, target)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names; False where the system cannot."""
    try:
        rename(one, other, EXCHANGE)
    except OSError as error:
        if error.errno not in CANNOT_RENAME:
            raise
        return False
    return True


def _appeared(target: Path) -> OutputError:
    return OutputError(f"{target}: it appeared while this was written; nothing was replaced")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep others from changing names of outputs in `folder`, as far as it can be locked."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(WAITS):
            if try_lock(fd) is not False:
                break
            time.sleep(0.05)
        yield
    finally:
        os.close(fd)


def put_in_place(
    claim: Claim,
    goal: Path,
    beside: Sequence[Path],
    former_parts: Callable[[], Sequence[Path]],
    *,
    force: bool,
    former: State | None,
) -> None:
    """Give what was built, and flushed, its names.

    `claim`: the publication, with its temporary names. `goal`, `beside`: the output, and what
    was built with it; all in one folder. `former_parts`: returns what belongs to the output that is
    there now, perhaps since another run ended, and goes with it.
    `force`: replace what is there. `former`: the state of that, as it is known to this run.
    Raises OutputError: one of the names is taken; another run has changed what was there; or the
    former output could be put neither aside nor back. OSError: a rename failed: all is as it was.
    """
    folder = goal.parent
    tidy([goal, *beside, parts_folder(goal)], unfinished_too=True)  # which may take long
    with exclusive_turn(goal), _alone_in(folder):
        _tidy([goal, *beside, parts_folder(goal)], unfinished_too=True)
        removed_parts = [path for path in former_parts() if path not in beside]
        claim.built |= {path.name: parts_folder(goal).name for path in removed_parts}
        existing = [path for path in (goal, *beside, *removed_parts) if os.path.lexists(path)]
        if existing and not force:
            raise _appeared(existing[0])
        for path in existing:
            if os.path.lexists(claim.name(path)):
                keep_access(path, claim.name(path))
        flush(folder)  # the names under which all was built
        if force and state_at(goal) != former:
            raise concurrent_change_error(goal)
        is_file = not (_is_folder(goal) or _is_folder(claim.name(goal)))
        if (
            (beside or set(existing) - {goal})
            and is_file
            and set(existing) <= {goal, *removed_parts}
        ):
            _by_reference(claim, goal, beside, removed_parts)
        elif beside or set(existing) - {goal}:
            _step_by_step(claim, goal, beside, existing)
        elif not existing:
            _rename_to_free(claim.name(goal), goal)
        elif not _is_folder(claim.name(goal)) and not _is_folder(goal):
            rename(claim.name(goal), goal)
        elif _exchanged(claim.name(goal), goal):
            try:
                flush(folder)
            except OSError:
                _exchanged(claim.name(goal), goal)
                raise
            remove(claim.name(goal))
        else:
            _step_by_step(claim, goal, beside, existing)
        flush(folder)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _by_reference(claim: Claim, goal: Path, beside: Sequence[Path], gone: Sequence[Path]) -> None:
    """Give names that are free to `beside`, then that of the output to the file that needs them."""
    plan = _plan(claim, goal, beside) | {"gone": [path.name for path in gone]}
    claim.note(plan)
    try:
        for path in beside:
            _rename_to_free(claim.name(path), path)
        flush(goal.parent)
        if os.path.lexists(goal):
            rename(claim.name(goal), goal)
        else:
            _rename_to_free(claim.name(goal), goal)
        flush(goal.parent)
    except BaseException:
        claim.unsettled = True  # unless it can be settled here
        if _is_done(goal, plan):  # but the folder may not be on disk, which may have the former
            raise
        _go_back(claim, goal.parent, plan)
        claim.unsettled = False
        raise
    for path in gone:
        remove(path)


def _plan(claim: Claim, goal: Path, beside: Sequence[Path]) -> dict[str, Any]:
    new = {path.name: read_identity(claim.name(path)) for path in (*beside, goal)}
    return {"goal": goal.name, "aside": [], "built": claim.built, "new": new}


def _is_done(goal: Path, plan: Mapping[str, Any]) -> bool:
    """Return whether the output of a plan has its name."""
    return is_identical(goal, plan["new"][goal.name])


def _step_by_step(
    claim: Claim, goal: Path, beside: Sequence[Path], existing: Sequence[Path]
) -> None:
    plan = _plan(claim, goal, beside) | {"aside": [path.name for path in existing]}
    claim.note(plan)
    try:
        for path in existing:
            rename(path, claim.name(path, "old"))
            if path == goal:
                flush(goal.parent)
        flush(goal.parent)
        for path in beside:
            _rename_to_free(claim.name(path), path)
        flush(goal.parent)
        _rename_to_free(claim.name(goal), goal)
        flush(goal.parent)
    except BaseException as error:
        try:
            try:
                _go_back(claim, goal.parent, plan)
            except OSError:  # a full disk may need no more than room
                for path in claim.temporaries():
                    remove(path)
                _go_back(claim, goal.parent, plan)
        except OSError:
            old = claim.name(goal, "old")
            if not os.path.lexists(old):
                raise error from None
            raise OutputError(
                f"{goal}: the new output could not be put in its place, nor the former one back "
                f"({error}); the former one is {old}, and comes back when {goal} is next written"
            ) from error
        raise
    for path in existing:
        remove(claim.name(path, "old"))


def _move(source: Path, target: Path) -> None:
    """Give `source` the name `target`, which is free, by whichever way works."""
    try:
        _rename_to_free(source, target)
    except OSError as error:
        if isinstance(error, OutputError) or os.path.lexists(target):
            raise
        move_by_links(source, target)


def _go_back(owner: Claim | Leftover, folder: Path, plan: Mapping[str, Any]) -> None:
    """Undo the steps of a plan that were taken, the last one first."""
    goal = folder / plan["goal"]
    for name, identity in reversed(plan["new"].items()):
        path = folder / name
        if is_identical(path, identity):
            _move(path, owner.name(path))
    for path in [folder / name for name in plan["aside"] if name != goal.name]:
        old = owner.name(path, "old")
        if not os.path.lexists(old):
            continue
        if _is_folder(path) and is_output(
            path
        ):  # parts that are not those of the output that comes back
            remove(path)
        if os.path.lexists(path):  # somebody has made one since
            remove(old)
        else:
            _move(old, path)
    flush(folder)
    old = owner.name(goal, "old")
    if os.path.lexists(old):
        _move(old, goal)
        flush(folder)


def tidy(targets: Sequence[Path], *, unfinished_too: bool = False) -> None:
    """Put right what killed processes left of `targets`: former outputs come back, the rest goes.

    Where a new output was in place already, it stays. What can be resumed stays too, unless
    it is of the first target and `unfinished_too`.
    """
    with _alone_in(targets[0].parent):
        _tidy(targets, unfinished_too=unfinished_too)


def _tidy(targets: Sequence[Path], *, unfinished_too: bool) -> None:
    for target in targets:
        remove_dead_turn(target)
        # A power cut may keep the frame index of a temporary, which is not flushed, without that.
        for index in target.parent.glob(f"..{escape(target.name)}.mdio-*.tmp{INDEX_ENDING}"):
            if not os.path.lexists(index.with_name(index.name[1 : -len(INDEX_ENDING)])):
                index.unlink(missing_ok=True)
    for left in leftovers(targets):
        plan = left.plan
        if plan is None and left.aside:  # by an older version: an output, and perhaps its parts
            plan = {"goal": min(left.aside, key=len), "aside": left.aside, "new": {}}
        if plan is not None:
            goal = left.folder / plan["goal"]
            done = _is_done(goal, plan) if "gone" in plan else os.path.lexists(goal)
            if not done:
                _go_back(left, left.folder, plan)
            gone = [left.folder / name for name in plan.get("gone", ()) if done]
            gone += [left.name(left.folder / name, "old") for name in plan["aside"]]
            for path in gone:
                # Nothing else was an output's; an empty one was being removed.
                if not _is_folder(path) or is_output(path) or not any(path.iterdir()):
                    remove(path)
        ours = unfinished_too and targets[0].name in left.journals
        if not ours and any(unfinished_in(left)):
            continue
        names = {*left.temporaries, *(plan["new"] if plan is not None else ())}  # gone back
        temporaries = [left.name(left.folder / name) for name in names]
        temporaries += [left.name(left.folder / name, "journal") for name in left.journals]
        for path in temporaries:
            remove(path)
        if left.lock is not None and not any(map(os.path.lexists, temporaries)):
            left.lock.unlink(missing_ok=True)


def take_over(claim: Claim, goal: Path, begun: Mapping[str, Any]) -> None:
    """Make what a dead process has left of `goal` that of `claim`, if it can be resumed.

    Raises OutputError: it is of another conversion than that which `begun` says.
    """
    with _alone_in(goal.parent):
        for left in leftovers([goal]):
            for unfinished in unfinished_in(left):
                unfinished.compare(goal, begun)
                for name in left.temporaries:
                    rename(left.name(left.folder / name), claim.name(left.folder / name))
                for path in claim.name(goal).rglob(INDEX_HALVES):
                    path.unlink(missing_ok=True)
                # The journal last: it is useless without the files that it lists.
                rename(journal_path(left.name(goal)), journal_path(claim.name(goal)))
                if left.lock is not None:
                    left.lock.unlink(missing_ok=True)
                return


def drop_unfinished(goal: Path, begun: Mapping[str, Any]) -> None:
    """Remove what dead processes have left of this conversion of `goal`, which another has made.

    What is left of other conversions stays: nobody said that it is not needed.
    """
    with _alone_in(goal.parent):
        for left in leftovers([goal]):
            for unfinished in unfinished_in(left):
                with suppress(OSError):  # another conversion, or a disk that refuses
                    unfinished.compare(goal, begun)
                    for name in left.temporaries:
                        remove(left.name(left.folder / name))
                    journal_path(left.name(goal)).unlink(missing_ok=True)
                    if left.lock is not None:
                        left.lock.unlink(missing_ok=True)


def keep_access(former: Path, new: Path) -> None:
    """Let those have the new output who had the former one: group, mode and access lists of it.

    In a folder, what is new has those of what had its name, or of the whole folder.
    """
    if former.is_symlink() or not former.exists() or former.is_dir() != new.is_dir():
        return
    _give_access(former, new)
    if not new.is_dir():
        return
    for folder, _, files in os.walk(new):
        within = Path(folder).relative_to(new)
        if folder != str(new):
            before = former / within
            _give_access(before if before.is_dir() else former, Path(folder))
        for name in files:
            before = former / within / name
            _give_access(before if before.is_file() else former, Path(folder, name))


def _give_access(former: Path, new: Path) -> None:
    """Give a file or folder group, mode and access lists of another one."""
    status, own = former.stat(), new.lstat()
    if stat.S_ISLNK(own.st_mode) or os.path.samestat(status, own):
        return
    mode = stat.S_IMODE(status.st_mode)
    is_file = stat.S_ISREG(own.st_mode)
    if is_file and stat.S_ISDIR(status.st_mode):
        mode &= READ_AND_WRITE
    with suppress(OSError):
        if status.st_gid != own.st_gid:
            try:
                os.chown(new, -1, status.st_gid)
            except OSError:
                mode &= ~stat.S_IRWXG  # it would be that of another group
        if mode != stat.S_IMODE(own.st_mode):
            new.chmod(mode)
        names = os.listxattr(former) if hasattr(os, "listxattr") else ()
        for name in ACCESS_LISTS.intersection(names):
            if not (is_file and stat.S_ISDIR(status.st_mode)):
                os.setxattr(new, name, os.getxattr(former, name))


def move_by_links(source: Path, target: Path) -> None:
    """Give a file or folder another name where the system does not rename it; raises OSError.

    `target`: there is nothing. Files are linked, or copied where that is refused too.
    """
    try:
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, copy_function=_link)
            tree = [Path(folder) for folder, *_ in os.walk(target)]
        else:
            _link(source, target)
            tree = []
        for folder in (*tree, target.parent):
            flush(folder)
    except (OSError, shutil.Error):
        remove(target)
        raise
    remove(source)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
        if not Path(target).is_symlink():
            flush(Path(target))


@cache
def _renameat2() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # another C library
        return None
    function.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    return function


def rename(source: Path, target: Path, flags: int = 0) -> None:
    """Give `source` the name `target`; with flags, OSError (`CANNOT_RENAME`) without them."""
    if not flags:
        source.rename(target)
        return
    function = _renameat2()
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source))
    words = (AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags)
    if function(*words):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source), None, str(target))
