"""Uploads: an output appears in a store only when it is complete, though nothing can be renamed.

An output is built on this machine, in its own folder below the one for temporary files, and
sent from there: a file as one object, which appears in one step; a folder object by object, some of
them while others are still being made, and its manifest last, since readers look for that. Objects
that are sent early are removed here: a file without contents stands for each, so that an output may
be larger than the disk.

While a folder is being sent, an object `outputs.MARK_NAME` in it marks it: another run is refused
unless it starts again, and then removes the objects. A former output stays until the new one is
complete and checked, in a folder inside the former one. Then one conditional put of the manifest
redirects readers to the new objects (`mdio.core.files.remote.outputs`), the store copies these to
their final names, and the manifest ceases to redirect. If a run dies in between, the mark stays,
and the next run finishes the exchange.

Objects that the former and the new output share (full shards, where frames are added or a few are
repaired) stay as they are, and are not sent: files without contents stand for them.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore, get_ident
from typing import TYPE_CHECKING

from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files.checks import read_json, try_lock
from mdio.core.files.remote.objects import pretend_stored
from mdio.core.files.remote.outputs import (
    MAX_SEND_THREADS,
    MAX_SMALL_SEND_THREADS,
    SMALL_NBYTES,
    StoredOutput,
    is_sent_placeholder,
    is_shared_placeholder,
    make_placeholder,
    put,
    run_concurrently,
)
from mdio.core.files.remote.paths import MANIFESTS, RemotePath
from mdio.core.files.writing import remove

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


LOCK_NAME = "lock"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def uploads_folder() -> Path:
    """Return the private folder in which this user's uploads are built."""
    folder = Path(tempfile.gettempdir(), f"mdio-{getpass.getuser()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OutputError(f"{folder}: it belongs to somebody else; set TMPDIR to a folder of yours")
    if status.st_mode & OTHERS_WRITE:
        raise OutputError(f"{folder}: others may write there; forbid it (chmod go-w)")
    return folder


@contextmanager
def folder_lock(folder: Path, target: Path) -> Iterator[None]:
    """Lock `folder`, in which `target` is built; raises OutputError if another run holds it."""
    lock = folder / LOCK_NAME
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if try_lock(fd) is False:
            os.close(fd)
            raise OutputError(
                f"{target}: another run on this machine is writing it; wait until that has ended"
            )
        with suppress(FileNotFoundError):  # removed by a run that has just ended
            if os.path.samestat(os.fstat(fd), lock.stat()):
                break
        os.close(fd)
    try:
        yield
    finally:
        with suppress(OSError):  # unfinished output stays
            if [entry.name for entry in folder.iterdir()] == [LOCK_NAME]:
                shutil.rmtree(folder)
        os.close(fd)


STATE_FILE = "sent.json"
"""Which files are sent, for a run that resumes this one."""
MAX_UNSENT_NBYTES = 512 << 20
"""With more unsent bytes, a writer waits for the store."""


class Upload:
    """The upload of one output into a store.

    `target`: URL of the file or folder. `continues`: whether it continues the present output, and
    may replace only that. `uploads_while_writing`: whether files are added (`add`) while others are
    made; then all are sent (`finish`) before the output has its final name on this machine.
    Raises PlanError: the URL is that of a web server, to which nothing can be sent.
    """

    def __init__(
        self, target: RemotePath, *, continues: bool = False, uploads_while_writing: bool = False
    ) -> None:
        if str(target).lower().startswith("http"):
            raise PlanError(
                f"{target}: web servers are read from, not written to; write to the store behind "
                "it (s3://, gs://, az://) or to a disk"
            )
        self.target, self.continues = target, continues
        self.uploads_while_writing = uploads_while_writing
        self._output = StoredOutput(target)
        self._folder = uploads_folder() / hashlib.sha256(str(target).encode()).hexdigest()[:16]
        self._local = self._folder / target.name
        self._sent: dict[str, list[int]] = {}
        self._submitted: dict[str, list[int]] = {}
        """Size and time of files that are sent, and of those that this run has begun to send."""
        # Not before the first object: until then, ranks get pickled copies of this.
        self._pool: ThreadPoolExecutor | None = None
        self._large_slots: BoundedSemaphore
        """Limits how many large files are sent at the same time."""
        self._marking: Future[None]
        """Done when the output is marked in the store as being written."""
        self._in_flight: dict[Future[None], int] = {}
        """Transfers in flight, and their bytes."""

    @property
    def is_published(self) -> bool:
        """Whether the output has its final name, though objects may remain to be copied."""
        return self._output.is_published

    @contextmanager
    def building(
        self,
        *,
        force: bool,
        discard: bool,
        resume: bool,
        sources: Sequence[Path],
        companions: Sequence[Path],
        check: Callable[[Path], None] | None,
    ) -> Iterator[Path]:
        """Yield the path at which to build the output; send it when the block ends without error.

        Parameters are those of `mdio.core.files.publish.publish`; `check` gets the folder in the
        store.
        """
        for source in sources:
            if self.target in (source, *source.parents) or source in self.target.parents:
                raise OutputError(
                    f"{self.target}: the output is the source {source} itself, or one lies inside "
                    "the other; choose another name"
                )
        with folder_lock(self._folder, self.target):
            with self._output_errors():
                state = read_json(self._folder / STATE_FILE) if resume else {}
                resumes = self._output.prepare(
                    replace=force, discard=discard, resumed_token=state.get("token")
                )
                self._sent = dict(state["sent"]) if resumes else {}
                self._remove_lost_placeholders(self._output.new_names() if resumes else {})
                for path in [] if force else companions:
                    if path.exists():
                        raise OutputError(
                            f"{path}: it exists already; choose another name or use --force"
                        )
            remove(self._local)  # of a run that could not send it
            is_complete = False
            try:
                yield self._local
                is_complete = not self.uploads_while_writing
                if is_complete:
                    companion_files = {path.name: self._folder / path.name for path in companions}
                    self.finish(self._local, companion_files, check)
            except BaseException as error:
                if self._pool is not None:
                    self._pool.shutdown(wait=True, cancel_futures=True)
                if self.is_published:
                    shutil.rmtree(self._folder, ignore_errors=True)
                    outcome = (
                        "the new output can be read all the same; the next run that writes it "
                        "copies its objects to their final names"
                    )
                    if isinstance(error, OutputError):
                        raise OutputError(f"{error}; {outcome}") from error
                    error.add_note(outcome)
                    raise
                # Some objects of a continued output are only in the store.
                is_complete = is_complete and not self.continues
                if is_complete and isinstance(error, OutputError):
                    raise OutputError(
                        f"{error}; the output is whole in {self._local} until the next run"
                    ) from error
                with suppress(OSError):
                    if is_complete or any(self._folder.glob(".*.journal")):
                        self._save_state()
                    else:
                        shutil.rmtree(self._folder, ignore_errors=True)
                        self._output.remove_sent()
                raise
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, folder: Path, files: Iterable[Path]) -> None:
        """Send finished files of the output that is being built in `folder`.

        Raises OutputError: the store refused an earlier one.
        """
        with self._output_errors():
            self._begin()
            for file in files:
                self._send(file.relative_to(folder).as_posix(), file)
            for future in [future for future in self._in_flight if future.done()]:
                self._wait_for(future)
            while sum(self._in_flight.values()) > MAX_UNSENT_NBYTES:
                self._wait_for(next(iter(self._in_flight)))

    def _begin(self) -> None:
        """Mark the output in the store, in a thread; objects are sent after that."""
        if self._pool is not None:
            return
        from concurrent.futures import Future, ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(MAX_SMALL_SEND_THREADS, thread_name_prefix="mdio-send")
        self._large_slots = BoundedSemaphore(MAX_SEND_THREADS)
        if self._output.is_marked:  # by an earlier run, which this one resumes
            self._marking = Future()
            self._marking.set_result(None)
            return
        self._save_state()  # before the mark, so that a killed run can be resumed
        self._marking = self._pool.submit(self._output.mark)
        self._in_flight[self._marking] = 0

    def _wait_for(self, future: Future[None]) -> None:
        del self._in_flight[future]
        future.result()

    def _send(self, name: str, file: Path) -> None:
        status = file.stat()
        is_large = status.st_size > SMALL_NBYTES
        if is_shared_placeholder(status) or is_sent_placeholder(file):
            return
        size_and_time = [status.st_size, status.st_mtime_ns]
        if size_and_time in (self._sent.get(name), self._submitted.get(name)):
            return
        self._submitted[name] = size_and_time

        def send() -> None:
            self._marking.result()
            with self._large_slots if is_large else nullcontext():
                if is_large:
                    self._output.check_mark()
                put(self._output.destination / name, file)
            self._sent[name] = size_and_time
            if self.uploads_while_writing and is_large:
                placeholder = self._folder / f"sent-{get_ident()}"
                make_placeholder(placeholder, status.st_size, sent=True)
                placeholder.replace(file)

        assert self._pool is not None
        self._in_flight[self._pool.submit(send)] = status.st_size

    def finish(
        self, output: Path, companions: Mapping[str, Path], check: Callable[[Path], None] | None
    ) -> None:
        """Send the remaining files of the output that was built at `output`, the manifest last.

        `check`: called with a folder in the store before readers find it.
        """
        with self._output_errors():
            if output.is_file():
                self._send_companions(companions)
                self._output.put_object(output, only_unchanged=self.continues)
            else:
                self._finish_folder(output, companions, check)

    def _finish_folder(
        self, output: Path, companions: Mapping[str, Path], check: Callable[[Path], None] | None
    ) -> None:
        self._begin()
        self._marking.result()
        self._output.check_mark()  # once for all small objects, which are sent within moments
        files = {
            path.relative_to(output).as_posix(): path
            for path in output.rglob("*")
            if path.is_file() and not path.name.endswith(".mdio-index")
        }
        manifest_files = [(name, files.pop(name)) for name in MANIFESTS if name in files]
        statuses = {name: file.stat() for name, file in files.items()}
        sizes = {name: status.st_size for name, status in statuses.items()}
        shared_sizes = {
            name: sizes[name] for name in sizes if is_shared_placeholder(statuses[name])
        }
        sent_sizes = {name: size for name, size in sizes.items() if name not in shared_sizes}
        for name in sent_sizes:
            self._send(name, files[name])
        for future in list(self._in_flight):
            self._wait_for(future)
        folder = self._output.destination
        manifests = {
            name: self._output.manifest(file.read_bytes(), shared_sizes)
            for name, file in manifest_files
        }
        with ExitStack() as stack:  # readers see the output only after the check
            for name, data in manifests.items():
                stack.enter_context(pretend_stored(folder / name, data))
            checks = [partial(check, folder)] if check is not None else []
            check_sizes = partial(self._output.check_sizes, sent_sizes, shared_sizes)
            other_names, *_ = run_concurrently(check_sizes, *checks)
        self._output.remove(other_names)
        if folder == self.target:
            self._send_companions(companions)
        for name, data in manifests.items():
            self._output.put_manifest(name, data)
        if folder != self.target:
            self._send_companions(companions)
        self._output.finish()

    def _send_companions(self, companions: Mapping[str, Path]) -> None:
        for name, file in companions.items():
            if file.exists():
                put(self.target.with_name(name), file)

    def _remove_lost_placeholders(self, stored: Mapping[str, int]) -> None:
        """Remove placeholders of sent objects that are not in the store: they are sent again."""
        for file in filter(is_sent_placeholder, self._folder.glob("*/**/*")):
            name = file.relative_to(self._folder).as_posix().partition("/")[2]
            if stored.get(name) != file.stat().st_size:
                file.unlink()

    def _save_state(self) -> None:
        state = {"token": self._output.token, "sent": dict(self._sent)}
        (self._folder / STATE_FILE).write_text(json.dumps(state))

    @contextmanager
    def _output_errors(self) -> Iterator[None]:
        """Turn errors of the store into OutputError."""
        try:
            yield
        except OSError as error:
            if isinstance(error, MdioError):
                raise
            name, reason = error.filename or self.target, error.strerror or error
            raise OutputError(f"{name}: the store did not accept it ({reason})") from error
