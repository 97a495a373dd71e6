"""Publication: an output appears under its name only when it is complete.

An output, file or folder, is built under a temporary name beside its target, flushed, checked and
renamed. If an error, Ctrl-C or SIGTERM stops the work before that, the temporary is removed, unless
a journal lists what is stored and the work can be resumed: then it stays, and the error says so. A
killed process leaves its temporary behind; the next run with the same target resumes it if asked
to, else refuses to start, and removes temporaries that cannot be resumed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdio.core.errors import BlockError, CorruptLayoutError, MdioError, OutputError, SourceError
from mdio.core.files.checks import check_no_foreign_files, manifest_in
from mdio.core.files.journal import find_unfinished, journal_path, refuse_unfinished, unfinished_in
from mdio.core.files.locks import (
    TEMPORARY,
    Publication,
    State,
    is_inside_temporary,
    leftovers,
    longest_name_nbytes,
    refuse_second_run,
    state_at,
)
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.replacing import adopt_unfinished, clean_up, rename_into_place
from mdio.core.files.store import is_remote, store_at, to_path
from mdio.core.files.writing import INDEX_ENDING, flush, remove
from mdio.core.signals import raise_received_signal, signals_as_exceptions

if TYPE_CHECKING:
    from mdio.core.files.remote.uploading import Upload

FULL_REASONS = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
MAX_FLUSH_THREADS = 8
"""Files that are flushed at the same time."""
MAX_NAME_NBYTES = 255
"""Bytes of the longest file name that file systems allow."""


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn OSError while `path`, perhaps a temporary, is written into OutputError on the target."""
    try:
        yield
    except MdioError:
        raise
    except OSError as error:
        name = TEMPORARY.sub(r"\1", str(path))
        full_reason = FULL_REASONS.get(error.errno or 0)
        reason = full_reason or f"it cannot be written ({error.strerror or error})"
        advice = "fix that" if full_reason is None else "free some space"
        raise OutputError(f"{name}: {reason}; {advice} or choose another place") from error


def flush_tree(path: Path) -> None:
    """Flush a file, or all files and folders under a folder, to the disk, several at a time.

    Frame indexes are left out: they are checked when they are used, and can be made again.
    """
    if not path.is_dir():
        flush(path)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and needed for folders only

    tree = [(Path(folder), files) for folder, _, files in os.walk(path)]
    paths = [folder / name for folder, files in tree for name in files]
    paths = [file for file in paths if not file.name.endswith(INDEX_ENDING)]
    paths += [folder for folder, _ in tree]

    def flush_every(first: int) -> None:  # there may be very many
        for path in paths[first::MAX_FLUSH_THREADS]:
            flush(path)

    with ThreadPoolExecutor(MAX_FLUSH_THREADS) as pool:
        list(pool.map(flush_every, range(MAX_FLUSH_THREADS)))


def check_folder(target: Path) -> None:
    """Raise OutputError if the folder of `target` is missing or not writable."""
    parent = target.parent
    if not parent.is_dir():
        if parent.exists():
            raise OutputError(f"{target}: {parent} is not a folder; choose another place")
        raise OutputError(f"{target}: the folder {parent} does not exist; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target}: the folder {parent} is not writable; choose another place")


def _check_name(path: Path, target: Path) -> None:
    """Raise OutputError if the temporary name of `path`, which belongs to `target`, is too long."""
    n_free = MAX_NAME_NBYTES - longest_name_nbytes(path)
    if n_free < 0:
        companion = "" if path == target else f" (for {path.name}, which belongs to it)"
        raise OutputError(
            f"{target}: the name is too long by {-n_free} bytes{companion}; choose a shorter one"
        )


def _check_target(target: Path, force: bool, sources: Sequence[Path]) -> None:
    """Raise OutputError if `target` must not be written, before any work is done."""
    try:
        real_target = target.resolve()
        if real_target.is_symlink():  # Python 3.13 and newer do not raise
            raise RuntimeError(f"loop at {real_target}")
    except (OSError, RuntimeError) as error:
        raise OutputError(
            f"{target}: a symbolic link that leads back to itself; remove it or choose another name"
        ) from error
    for source in sources:
        real_source = source.resolve()
        if (
            real_target == real_source
            or real_target in real_source.parents
            or real_source in real_target.parents
        ):
            raise OutputError(
                f"{target}: the output is the source {source} itself, or one lies inside the "
                "other; choose another name"
            )
    if not os.path.lexists(target):
        if manifest_in(target.parent) is not None:
            raise OutputError(
                f"{target}: lies inside {target.parent}, an output of mdio; choose another folder"
            )
        return
    if not force:
        advice = "choose another name"
        if target.is_symlink() or not _is_foreign_folder(target):
            advice += " or use --force (force=True in Python)"
        for leftover in leftovers([target]):
            for unfinished in unfinished_in(leftover):
                advice = f"of a run that was to replace it, {unfinished.advice(replaces=True)}"
        is_like_source = any(source.suffix == target.suffix for source in sources)
        source_text = ", and the last name is taken for the output" if is_like_source else ""
        raise OutputError(f"{target}: it exists already{source_text}; {advice}")
    if target.is_symlink():
        return
    mode = target.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OutputError(f"{target}: neither a file nor a folder; choose another name")
    if _is_foreign_folder(target):
        raise OutputError(
            f"{target}: a folder that is not an output of mdio (it has no manifest of mdio) is not "
            "replaced; remove it yourself or choose another name"
        )
    if target.is_dir():
        check_no_foreign_files(target)


def _is_foreign_folder(target: Path) -> bool:
    """Return whether it is a folder with something in it that mdio did not write."""
    return target.is_dir() and any(target.iterdir()) and manifest_in(target) is None


@contextmanager
def _output_errors_except(sources: Sequence[Path], temporary: Path) -> Iterator[None]:
    """Turn OSError about any file except the sources into OutputError."""
    try:
        yield
    except OSError as error:
        if is_remote(error.filename):
            raise OutputError(f"{error.filename}: {error.strerror}; try again") from error
        if isinstance(error.filename, str):
            file = Path(error.filename).absolute()
            if any(path in (file, *file.parents) for path in sources):
                raise
        with output_errors(temporary):
            raise


def _is_resumable(error: BaseException) -> bool:
    """Return whether the same work may succeed when it is resumed after this error."""
    if isinstance(error, BlockError):  # a worker was killed, or had no memory
        return isinstance(error.__cause__, MemoryError | None)
    if not isinstance(error, MdioError):  # a caller's own function has raised it, or a signal
        return True
    return isinstance(error, OSError) and not isinstance(error, SourceError | CorruptLayoutError)


def link_target(out: str | os.PathLike[str]) -> Path:
    """Return the path of an existing output: the target of a symbolic link, if `out` is one.

    The new output replaces that target, in its folder, and not the link.
    """
    path = to_path(out)
    return path.resolve() if path.is_symlink() else path


def recover(out: Path) -> None:
    """Complete or undo an exchange that a dead run has begun, before `out` is changed again.

    Raises OutputError: that cannot be done.
    """
    if isinstance(out, RemotePath):
        from mdio.core.files.remote import outputs

        try:
            outputs.recover(out)
        except OSError as error:
            raise OutputError(f"{out}: cannot continue ({error.strerror or error})") from error
        return
    target = out.absolute()
    if target.parent.is_dir():
        with output_errors(target):
            clean_up([target])  # the output itself may have been moved aside


@contextmanager
def publish(
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    sources: Sequence[str | os.PathLike[str]] = (),
    companions: Sequence[str | os.PathLike[str]] = (),
    check: Callable[[Path], None] | None = None,
    identity: Mapping[str, Any] | None = None,
    resume: bool = False,
    discard: bool | None = None,
    upload: Upload | None = None,
    former_state: State | None = None,
    continues: bool = False,
) -> Iterator[Path]:
    """Build an output under a temporary name, and rename it when the block ends without an error.

    `target`: path of the output, a file or a folder. `force`: replace an existing output, which
    stays untouched until the new one is complete and on disk. A folder is replaced only if mdio
    wrote it. `sources`: files that are read meanwhile; an output that would replace one is refused.
    `companions`: further files in the same folder that belong to the output (``NAME.top.pdb``); the
    block may write each at ``temporary_for(companion, temporary)``, and those that it wrote are
    published with the target. `check`: called with the temporary when all is on disk and before
    anything is renamed; raises if it is damaged.
    `identity`: identifies the conversion; if the block keeps a `Journal`, its first record has it
    as ``of``. `resume`: continue what an earlier run of the same conversion has left; one of
    another conversion is an error. `discard`: without `resume`, remove what an earlier run has
    left, which is an error otherwise; None = as `force`. `upload`: for a store: what sends files of
    the output meanwhile. `former_state`: the state (`state_at`) of the output that may be replaced;
    None = the present one. If another run has changed that by the end, nothing is replaced.
    `continues`: whether the new output continues the former one.
    Yields Path: ``.NAME.mdio-HOST-PID-TOKEN.tmp`` beside the target, where the block makes a file
    or a folder. If it exists, its journal lists what an earlier run has stored.
    Raises OutputError: before any work: the target exists, is a source or a folder of something
    else; its folder is missing or read-only; or an unfinished output can be resumed, or with
    `resume` cannot. At the end: the disk is full, the target has appeared, or another run has
    changed it meanwhile.
    """
    target_path = to_path(target)
    discard = force if discard is None else discard
    upload = upload or store_at(target_path).upload(target_path)
    if upload is not None and target_path == upload.target:
        names = [Path(companion).name for companion in companions]
        with (
            upload.building(
                force=force,
                discard=discard,
                resume=resume,
                sources=[to_path(source) for source in sources],
                companions=[target_path.with_name(name) for name in names],
                check=check,
            ) as local,
            publish(
                local,
                companions=[local.with_name(name) for name in names],
                check=check,
                identity=identity,
                resume=resume,
                discard=discard,
                upload=upload,
            ) as temporary,
        ):
            yield temporary
        return
    target_path = target_path.absolute()
    companion_paths = [Path(companion).absolute() for companion in companions]
    source_paths = [Path(source) for source in sources]
    check_folder(target_path)
    for path in (target_path, *companion_paths):
        _check_name(path, target_path)
    # Before the checks, since this may restore a former output.
    clean_up([target_path, *companion_paths], discard_unfinished=discard and not resume)
    for path in (target_path, *companion_paths):
        _check_target(path, force, source_paths)
    former_state = former_state or state_at(target_path)
    if not resume:
        name = target_path if upload is None else upload.target
        refuse_unfinished(target_path, name, continues=continues)
    with signals_as_exceptions(f"{target} is complete"):
        with output_errors(target_path):
            publication = Publication(target_path)
        temporary = publication.name(target_path)
        try:
            if not force:
                refuse_second_run(publication, target_path)
            with _output_errors_except([path.absolute() for path in source_paths], temporary):
                if resume and identity is not None:
                    adopt_unfinished(publication, target_path, identity, continues=continues)
                yield temporary
                raise_received_signal()
                new_paths = [p for p in companion_paths if os.path.lexists(publication.name(p))]
                if upload is None:  # else these files are removed once they are sent
                    for path in (*new_paths, target_path):
                        flush_tree(publication.name(path))
                # Objects that stay in the store, or have been sent, cannot be checked here.
                if check is not None and (
                    upload is None or not (upload.continues or upload.uploads_while_writing)
                ):
                    try:
                        check(temporary)
                    except MdioError:
                        # A damaged output must not be resumed.
                        journal_path(temporary).unlink(missing_ok=True)
                        raise
                if upload is not None and upload.uploads_while_writing:
                    temporaries = {path.name: publication.name(path) for path in new_paths}
                    upload.finish(temporary, temporaries, check)
                try:
                    rename_into_place(
                        publication, target_path, new_paths, force=force, former_state=former_state
                    )
                except OutputError:
                    if continues and state_at(target_path) != former_state:
                        # The output that this one continues is gone.
                        journal_path(temporary).unlink(missing_ok=True)
                    raise
            journal_path(temporary).unlink(missing_ok=True)
            # Of an earlier run: a topology that another output has written meanwhile.
            with suppress(OSError):
                for path in publication.temporaries():
                    remove(path)
        except BaseException as error:
            if os.getpid() == publication.pid:  # not in a forked child
                resumable = _is_resumable(error) and not (
                    upload is not None and upload.is_published
                )
                unfinished = find_unfinished(temporary) if resumable else None
                if unfinished is None:
                    with suppress(OSError):
                        for path in publication.temporaries():
                            remove(path)
                    with suppress(OSError):
                        journal_path(temporary).unlink(missing_ok=True)
                elif not is_inside_temporary(target_path):  # else the output's own message says it
                    replaces = force and not continues and os.path.lexists(target_path)
                    advice = unfinished.advice(replaces=replaces)
                    if isinstance(error, MdioError):
                        raise type(error)(f"{error}; {advice}") from error
                    error.add_note(advice)
            raise
        finally:
            publication.release()
