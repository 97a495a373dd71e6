"""Replacing former outputs by new ones: in one step where the system can, else in several.

An output is a file or a folder, with companions such as topologies. A single file is renamed over
the former one; a single folder is exchanged with the former one by renameat2(2). Companions whose
names are free get these first, while nothing refers to them. Several names cannot change in one
step, and network file systems cannot exchange two. Then

1. the former output is moved aside, so that nobody reads it with the companions of the new one;
   then its companions are moved aside,
2. the new companions get their names, then the new output does, which completes it,
3. what was moved aside is removed.

The folder is flushed after each step, so that a power cut cannot keep a later step without an
earlier one, and the former output stays on disk until the new one is there. Before the first step,
a plan in the lock file of the publication says which names will change: if a step fails, the
changes are undone at once; if the process is killed, the next one undoes them (`clean_up`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.files.checks import (
    OUTPUT_MARKERS,
    check_no_foreign_files,
    is_identical,
    manifest_in,
    read_identity,
    try_lock,
)
from mdio.core.files.journal import journal_path, unfinished_in
from mdio.core.files.locks import (
    PLAN_FORMER,
    PLAN_NEW,
    PLAN_TARGET,
    Leftover,
    Publication,
    State,
    change_lock,
    concurrent_change_error,
    leftovers,
    remove_dead_change_lock,
    state_at,
)
from mdio.core.files.writing import INDEX_ENDING, flush, libc_function, remove

AT_FDCWD = -100
NOREPLACE, EXCHANGE = 1, 2
"""Flags of renameat2(2)."""
FLAGS_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of renameat2 where it, or a flag, does not work: old kernels, network file systems,
filters of containers."""
READ_AND_WRITE = 0o666
"""Mode bits that a new file takes from a former folder."""
ACCESS_LISTS = {"system.posix_acl_access", "system.posix_acl_default"}
"""Extended attributes, acl(5)."""

PARTIAL_INDEXES = f"{INDEX_ENDING}-*"
"""Frame indexes that were being written when the process ended."""
MAX_LOCK_TRIES = 200
"""Tries, every 50 ms, to lock a folder in which another process is changing names."""


def _rename_if_free(source: Path, target: Path) -> None:
    """Give `source` the name `target`; raises OutputError if that is taken."""
    try:
        rename(source, target, NOREPLACE)
    except FileExistsError:
        raise _target_exists_error(target) from None
    except OSError as error:
        if error.errno not in FLAGS_UNSUPPORTED:
            raise
        if os.path.lexists(target):
            raise _target_exists_error(target) from None
        rename(source, target)


def _try_exchange(path: Path, other: Path) -> bool:
    """Exchange two names; False where the system cannot."""
    try:
        rename(path, other, EXCHANGE)
    except OSError as error:
        if error.errno not in FLAGS_UNSUPPORTED:
            raise
        return False
    return True


def _target_exists_error(target: Path) -> OutputError:
    return OutputError(f"{target}: it appeared while this was written; nothing was replaced")


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from renaming outputs in `folder`, where folders can be locked."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(MAX_LOCK_TRIES):
            if try_lock(fd) is not False:
                break
            time.sleep(0.05)
        yield
    finally:
        os.close(fd)


def rename_into_place(
    publication: Publication,
    target: Path,
    companions: Sequence[Path],
    *,
    force: bool,
    former_state: State | None,
) -> None:
    """Rename an output, and all that belongs to it, from their temporary to their final names.

    `target`, `companions`: final paths, all in one folder. `force`: replace an existing output.
    `former_state`: its state, as this run knows it.
    Raises OutputError: one of the names is taken; another run has changed the former output; or
    that could be neither replaced nor restored. OSError: a rename failed; all is as it was.
    """
    folder = target.parent
    clean_up([target, *companions])
    if force and state_at(target) != former_state:  # unfinished outputs may then be needed
        raise concurrent_change_error(target)
    clean_up([target, *companions], discard_unfinished=True)  # may take long, so unlocked
    with change_lock(target), _folder_lock(folder):
        _clean_up_locked([target, *companions], discard_unfinished=True)
        existing = [path for path in (target, *companions) if os.path.lexists(path)]
        if existing and not force:
            raise _target_exists_error(existing[0])
        for path in existing:
            if os.path.lexists(publication.name(path)):
                copy_access(path, publication.name(path))
        flush(folder)  # the temporary names
        if force and state_at(target) != former_state:
            raise concurrent_change_error(target)
        if _is_folder(target):
            check_no_foreign_files(target)
        is_file = not (_is_folder(target) or _is_folder(publication.name(target)))
        if companions:
            is_renamed = is_file and set(existing) <= {target}
            _replace_in_steps(publication, target, companions, () if is_renamed else existing)
        elif not existing:
            _rename_if_free(publication.name(target), target)
        elif is_file:
            rename(publication.name(target), target)
        elif _try_exchange(publication.name(target), target):
            try:
                flush(folder)
            except OSError:
                _try_exchange(publication.name(target), target)
                raise
            remove(publication.name(target))
        else:
            _replace_in_steps(publication, target, companions, existing)
        flush(folder)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_published(target: Path, plan: Mapping[str, Any]) -> bool:
    """Return whether the new output of a plan has its final name."""
    return is_identical(target, plan[PLAN_NEW][target.name])


def _replace_in_steps(
    publication: Publication, target: Path, companions: Sequence[Path], former: Sequence[Path]
) -> None:
    """Move the `former` files aside, and give the new ones their names; see the module.

    A new file whose former one is not among them replaces it by a rename.
    """
    # Identities of the new files by final name.
    new = {path.name: read_identity(publication.name(path)) for path in (*companions, target)}
    plan = {PLAN_TARGET: target.name, PLAN_FORMER: [path.name for path in former], PLAN_NEW: new}
    publication.record(plan)
    try:
        for path in former:
            rename(path, publication.name(path, "old"))
            if path == target:
                flush(target.parent)
        if former:
            flush(target.parent)
        for path in companions:
            _rename_if_free(publication.name(path), path)
        flush(target.parent)
        if os.path.lexists(target) and not former:
            rename(publication.name(target), target)
        else:
            _rename_if_free(publication.name(target), target)
        flush(target.parent)
    except BaseException as error:
        publication.needs_recovery = True  # until undone
        # In memory only: on disk, the folder may still have the former file.
        if not former and _is_published(target, plan):
            raise
        try:
            try:
                _undo(publication, target.parent, plan)
            except OSError:  # a full disk: removing the new files frees space
                for path in publication.temporaries():
                    remove(path)
                _undo(publication, target.parent, plan)
        except OSError:
            old = publication.name(target, "old")
            if not os.path.lexists(old):
                raise error from None
            raise OutputError(
                f"{target}: the new output could not get its name, nor the former one be restored "
                f"({error}); the former one is {old}, and is restored when {target} is next written"
            ) from error
        publication.needs_recovery = False
        raise
    for path in former:
        remove(publication.name(path, "old"))


def _restore(source: Path, target: Path) -> None:
    """Give `source` the name `target`, which is free: by a rename, else by links."""
    try:
        _rename_if_free(source, target)
    except OSError as error:
        if isinstance(error, OutputError) or os.path.lexists(target):
            raise
        if _is_folder(source):
            _link_tree(source, target)
        else:
            _link(source, target)
        flush(target.parent)
        remove(source)


def _link_tree(source: Path, target: Path) -> None:
    """Make a folder of links to all files; those that mark it as an output come last."""
    markers = [name for name in OUTPUT_MARKERS if os.path.lexists(source / name)]
    target.mkdir()
    try:
        shutil.copytree(
            source,
            target,
            symlinks=True,
            ignore=lambda folder, _: markers if folder == str(source) else (),
            copy_function=_link,
            dirs_exist_ok=True,
        )
        for folder, *_ in os.walk(target):
            flush(Path(folder))
        for name in markers:
            _link(source / name, target / name)
        shutil.copystat(source, target)
        flush(target)
    except BaseException:
        remove(target)
        raise


def _link(source: str | Path, target: str | Path) -> None:
    os.link(source, target, follow_symlinks=False)


def _is_partial(target: Path, former: Path) -> bool:
    """Return whether `target` is an incomplete folder of links by a killed `_link_tree`."""

    def is_link(path: Path) -> bool:
        original, status = former / path.relative_to(target), path.lstat()
        if not os.path.lexists(original):
            return False
        original_status = original.lstat()
        if stat.S_ISREG(status.st_mode):
            return os.path.samestat(status, original_status)
        return stat.S_IFMT(status.st_mode) == stat.S_IFMT(original_status.st_mode)

    is_marked = manifest_in(target) is not None or manifest_in(former) is None
    return _is_folder(target) and not is_marked and all(map(is_link, target.rglob("*")))


def _undo(publication: Publication | Leftover, folder: Path, plan: Mapping[str, Any]) -> None:
    """Undo the steps of a plan that were taken, the last one first."""
    target = folder / plan[PLAN_TARGET]
    if _is_partial(target, publication.name(target, "old")):
        remove(target)
    for name, identity in reversed(plan[PLAN_NEW].items()):
        path = folder / name
        if is_identical(path, identity):
            remove(publication.name(path))  # a link, if a process was killed in `_restore`
            _restore(path, publication.name(path))
    for path in [folder / name for name in plan[PLAN_FORMER] if name != target.name]:
        old = publication.name(path, "old")
        if not os.path.lexists(old):
            continue
        if os.path.lexists(path):  # somebody has created it since
            remove(old)
        else:
            _restore(old, path)
    flush(folder)
    old = publication.name(target, "old")
    if os.path.lexists(old):
        _restore(old, target)
        flush(folder)


def clean_up(targets: Sequence[Path], *, discard_unfinished: bool = False) -> None:
    """Restore former outputs of `targets` that killed processes moved aside; remove other traces.

    A new output that had its name already stays. So do temporaries that can be resumed, unless they
    are of the first target and `discard_unfinished` is set.
    """
    with _folder_lock(targets[0].parent):
        _clean_up_locked(targets, discard_unfinished=discard_unfinished)


def _clean_up_locked(targets: Sequence[Path], *, discard_unfinished: bool) -> None:
    for target in targets:
        remove_dead_change_lock(target)
        # After a power cut there may be a frame index without its temporary, which was not flushed.
        for index in target.parent.glob(f"..{escape(target.name)}.mdio-*.tmp{INDEX_ENDING}"):
            if not os.path.lexists(index.with_name(index.name[1 : -len(INDEX_ENDING)])):
                index.unlink(missing_ok=True)
    for leftover in leftovers(targets):
        plan = leftover.plan
        if plan is not None:
            target = leftover.folder / plan[PLAN_TARGET]
            if plan[PLAN_FORMER]:
                former = leftover.name(target, "old")
                is_complete = os.path.lexists(target) and not _is_partial(target, former)
            else:
                is_complete = _is_published(target, plan)
            if not is_complete:
                _undo(leftover, leftover.folder, plan)
            for path in [
                leftover.name(leftover.folder / name, "old") for name in plan[PLAN_FORMER]
            ]:
                # Other folders are not ours; an empty one was being removed.
                if not (_is_folder(path) and any(path.iterdir())) or manifest_in(path) is not None:
                    remove(path)
        may_discard = discard_unfinished and targets[0].name in leftover.journals
        if not may_discard and any(unfinished_in(leftover)):
            continue
        new_names = plan[PLAN_NEW] if plan is not None else ()
        names = {*leftover.temporaries, *new_names}  # some by `_undo`
        temporaries = [leftover.name(leftover.folder / name) for name in names]
        temporaries += [
            leftover.name(leftover.folder / name, "journal") for name in leftover.journals
        ]
        for path in temporaries:
            remove(path)
        if not any(map(os.path.lexists, temporaries)):
            leftover.lock.unlink(missing_ok=True)


def adopt_unfinished(
    publication: Publication, target: Path, identity: Mapping[str, Any], *, continues: bool
) -> None:
    """Rename an unfinished `target` of a dead process to the names of `publication`, to resume it.

    Raises OutputError: it is of another conversion than that of this `identity`.
    """
    with _folder_lock(target.parent):
        for leftover in leftovers([target]):
            for unfinished in unfinished_in(leftover):
                unfinished.check_continues(target, continues=continues)
                unfinished.check_identity(target, identity)
                for path in [leftover.folder / name for name in leftover.temporaries]:
                    rename(leftover.name(path), publication.name(path))
                for path in publication.name(target).rglob(PARTIAL_INDEXES):
                    path.unlink(missing_ok=True)
                # The journal last: it is useless without the files that it lists.
                rename(journal_path(leftover.name(target)), journal_path(publication.name(target)))
                leftover.lock.unlink(missing_ok=True)
                return


def drop_unfinished(target: Path, identity: Mapping[str, Any]) -> None:
    """Remove unfinished outputs of `target`, which is complete, that dead processes left.

    Only those of the conversion with this `identity`: others may be needed.
    """
    with _folder_lock(target.parent):
        for leftover in leftovers([target]):
            for unfinished in unfinished_in(leftover):
                with suppress(OSError):  # another conversion, or a failing disk
                    unfinished.check_identity(target, identity)
                    for name in leftover.temporaries:
                        remove(leftover.name(leftover.folder / name))
                    journal_path(leftover.name(target)).unlink(missing_ok=True)
                    leftover.lock.unlink(missing_ok=True)
        with suppress(OSError):
            _clean_up_locked([target], discard_unfinished=False)


def copy_access(former: Path, new: Path) -> None:
    """Give the new output the group, mode and access lists of the former one.

    In a folder, a new file gets those of the former file of its name, else of the folder.
    """
    if former.is_symlink() or not former.exists() or former.is_dir() != new.is_dir():
        return
    for path in (new, *(new.rglob("*") if new.is_dir() else ())):
        counterpart = former / path.relative_to(new)
        has_counterpart = counterpart.exists() and counterpart.is_dir() == path.is_dir()
        _copy_access_of_file(counterpart if has_counterpart else former, path)


def _copy_access_of_file(source: Path, target: Path) -> None:
    former_status, status = source.stat(), target.lstat()
    if stat.S_ISLNK(status.st_mode) or os.path.samestat(former_status, status):
        return
    mode = stat.S_IMODE(former_status.st_mode)
    is_file = stat.S_ISREG(status.st_mode)
    if is_file and stat.S_ISDIR(former_status.st_mode):
        mode &= READ_AND_WRITE
    with suppress(OSError):
        if former_status.st_gid != status.st_gid:
            try:
                os.chown(target, -1, former_status.st_gid)
            except OSError:
                mode &= ~stat.S_IRWXG  # the bits would apply to another group
        if mode != stat.S_IMODE(status.st_mode):
            target.chmod(mode)
        names = os.listxattr(source) if hasattr(os, "listxattr") else ()
        for name in ACCESS_LISTS.intersection(names):
            if not (is_file and stat.S_ISDIR(former_status.st_mode)):
                os.setxattr(target, name, os.getxattr(source, name))


def rename(source: Path, target: Path, flags: int = 0) -> None:
    """Rename; with `flags` of renameat2(2), raises OSError (`FLAGS_UNSUPPORTED`) without them."""
    if not flags:
        source.rename(target)
        return
    number, path = ctypes.c_int, ctypes.c_char_p
    function = libc_function("renameat2", number, path, number, path, ctypes.c_uint)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source))
    if function(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(source), None, str(target))
