"""Uploads: an output appears in a store only when it is complete, though nothing can be renamed.

An output is built on this machine, in a folder of its own below the one for temporary files, and
sent from there: a file as one object, which appears at once; a folder object by object, some of
them while others are still being made, and its manifest last, since without it there is no output.
What is sent early leaves this machine: a file without contents stands for it, so that an output may
be larger than the disk.

While a folder is being sent, the object `MARK` in it says so: another run is refused unless it is
asked to start again, and then removes what is there. What is replaced stays until the new output
is whole in the store, in a folder inside the former one, and has been looked at. Then one
conditional put of the manifest says where the new objects are (`mdio.core.files.remote.places`),
the store copies them to their names, and the manifest says so. A run that dies in between leaves a
mark, and the next one continues from that.

Objects of the former output that are also of the new one (full shards, where frames are added or a
few are repaired) stay as they are, and are not sent: files without contents stand for them.

Where an output is built on this machine that is sent to a store: one run's alone.
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
from typing import TYPE_CHECKING, Any

from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files.marks import try_lock
from mdio.core.files.remote.objects import pretend_stored
from mdio.core.files.remote.paths import MANIFESTS, RemotePath
from mdio.core.files.remote.places import (
    SENDERS,
    SMALL_NBYTES,
    SMALL_SENDERS,
    OutputPlace,
    make_placeholder,
    put,
    run_concurrently,
    stands_for_kept,
    stands_for_sent,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


LOCK = "lock"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder() -> Path:
    """Return the private folder in which this user's uploads are built."""
    folder = Path(tempfile.gettempdir(), f"mdio-{getpass.getuser()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OutputError(f"{folder}: it belongs to somebody else; set TMPDIR to a folder of yours")
    if status.st_mode & OTHERS_WRITE:
        raise OutputError(f"{folder}: others may write there; take that right away (chmod go-w)")
    return folder


@contextmanager
def alone(folder: Path, goal: Path) -> Iterator[None]:
    """Lock `folder`, in which `goal` is built; raises OutputError if another run holds it."""
    lock = folder / LOCK
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if try_lock(fd) is False:
            os.close(fd)
            raise OutputError(
                f"{goal}: another run on this machine writes it; wait until that is done"
            )
        with suppress(FileNotFoundError):  # removed by a run that has just ended
            if os.path.samestat(os.fstat(fd), lock.stat()):
                break
        os.close(fd)
    try:
        yield
    finally:
        with suppress(OSError):  # unfinished output stays
            if [entry.name for entry in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder)
        os.close(fd)


STATE = "sent.json"
WAITING_NBYTES = 512 << 20
"""Unsent bytes at which a writer waits for the store."""


class Upload:
    """The upload of one output into a store.

    `goal`: file or folder to be. `follows`: whether it is made of the one that is there, and takes
    the place of that one only. `early`: whether files are added (`add`) while others are made; then
    all is sent (`finish`) before the output has its name here.
    Raises PlanError: a web server, which takes nothing.
    """

    def __init__(self, goal: RemotePath, *, follows: bool = False, early: bool = False) -> None:
        if str(goal).lower().startswith("http"):
            raise PlanError(
                f"{goal}: web servers are read from, not written to; write to the store behind it "
                "(s3://, gs://, az://) or to a disk"
            )
        self.goal, self.follows, self.early = goal, follows, early
        self._place = OutputPlace(goal)
        number = hashlib.sha256(str(goal).encode()).hexdigest()[:16]
        self._folder = own_folder() / number
        self._local = self._folder / goal.name
        self._sent: dict[str, list[int]] = {}
        self._asked: dict[str, list[int]] = {}
        """Files that are sent or being sent, with their size and time."""
        # Both from the first object on: until then this is sent to ranks.
        self._pool: ThreadPoolExecutor | None = None
        self._large: BoundedSemaphore
        self._marked: Future[None]
        self._under_way: dict[Future[None], int] = {}
        """Transfers that are running, and their bytes."""

    @property
    def is_done(self) -> bool:
        """Whether the output has its final name, though objects may remain to be copied."""
        return self._place.is_done

    @contextmanager
    def building(
        self,
        *,
        force: bool,
        anew: bool,
        resume: bool,
        sources: Sequence[Path],
        companions: Sequence[Path],
        check: Callable[[Path], None] | None,
    ) -> Iterator[Path]:
        """Yield the path at which to build the output; send it when the block ends without error.

        Parameters are those of `mdio.core.files.publish.publish`. `check` looks at a folder in the
        store before it replaces anything.

        Raises OutputError: the output exists already, is a source, is another's or unfinished; or
        the store does not take it.
        """
        for source in sources:
            if self.goal == source or self.goal in source.parents or source in self.goal.parents:
                raise OutputError(
                    f"{self.goal}: the output is the source {source} itself, or one lies inside "
                    "the other; choose another name"
                )
        with alone(self._folder, self.goal):
            with self._told():
                state = self._noted() if resume else {}
                goes_on = self._place.look(replace=force, anew=anew, former=state.get("token"))
                self._sent = dict(state["sent"]) if goes_on else {}
                self._leave_out_lost(self._place.new_names() if goes_on else {})
                for one in [] if force else companions:
                    if one.exists():
                        raise OutputError(
                            f"{one}: it exists already; choose another name or use --force"
                        )
            _remove(self._local)  # of a run that could not send it
            whole = False
            try:
                yield self._local
                whole = not self.early
                if whole:
                    beside = {one.name: self._folder / one.name for one in companions}
                    self.finish(self._local, beside, check)
            except BaseException as error:
                if self._pool is not None:
                    self._pool.shutdown(wait=True, cancel_futures=True)
                if self.is_done:
                    shutil.rmtree(self._folder, ignore_errors=True)
                    outcome = (
                        "the new output is there all the same; the next run that writes it copies "
                        "its objects to their names"
                    )
                    if isinstance(error, OutputError):
                        raise OutputError(f"{error}; {outcome}") from error
                    error.add_note(outcome)
                    raise
                whole = whole and not self.follows  # of those, all is not here
                if whole and isinstance(error, OutputError):
                    raise OutputError(
                        f"{error}; what was to be there is whole in {self._local} until the "
                        "next run"
                    ) from error
                with suppress(OSError):
                    if whole or any(self._folder.glob(".*.journal")):
                        self._note()
                    else:
                        shutil.rmtree(self._folder, ignore_errors=True)
                        self._place.withdraw()
                raise
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, built: Path, files: Iterable[Path]) -> None:
        """Send finished files of the folder that is being built at `built`.

        Raises OutputError: the store has not taken an earlier one.
        """
        with self._told():
            self._begin()
            for file in files:
                self._send(file.relative_to(built).as_posix(), file)
            for future in [sent_future for sent_future in self._under_way if sent_future.done()]:
                self._wait_for(future)
            while sum(self._under_way.values()) > WAITING_NBYTES:
                self._wait_for(next(iter(self._under_way)))

    def _begin(self) -> None:
        """Mark the output in the store, in the background; objects wait for the answer."""
        if self._pool is not None:
            return
        from concurrent.futures import Future, ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(SMALL_SENDERS, thread_name_prefix="mdio-send")
        self._large = BoundedSemaphore(SENDERS)
        if self._place.begun:  # by an earlier run, which this one continues
            self._marked = Future()
            self._marked.set_result(None)
            return
        self._note()  # first: it identifies a run that is killed
        self._marked = self._pool.submit(self._place.mark)
        self._under_way[self._marked] = 0

    def _wait_for(self, future: Future[None]) -> None:
        del self._under_way[future]
        future.result()

    def _send(self, name: str, file: Path) -> None:
        status = file.stat()
        if stands_for_kept(status) or stands_for_sent(file):
            return
        state = [status.st_size, status.st_mtime_ns]
        if state in (self._sent.get(name), self._asked.get(name)):
            return
        self._asked[name] = state

        def work() -> None:
            self._marked.result()
            with self._large if status.st_size > SMALL_NBYTES else nullcontext():
                put(self._place.where / name, file)
            self._sent[name] = state
            if self.early and status.st_size > SMALL_NBYTES:
                new = self._folder / f"sent-{get_ident()}"
                make_placeholder(new, status.st_size, sent=True)
                new.replace(file)

        assert self._pool is not None
        self._under_way[self._pool.submit(work)] = status.st_size

    def finish(
        self, built: Path, beside: Mapping[str, Path], check: Callable[[Path], None] | None
    ) -> None:
        """Send the remaining files of the output at `built`, the manifest last.

        `beside`: files that go beside it, by name, if they are there. `check`: looks at a folder in
        the store before it replaces anything, or is found.
        Raises OutputError: the store does not take it.
        """
        with self._told():
            if built.is_file():
                self._send_beside(beside)
                self._place.put_object(built, same=self.follows)
            else:
                self._finish_folder(built, beside, check)

    def _finish_folder(
        self, built: Path, beside: Mapping[str, Path], check: Callable[[Path], None] | None
    ) -> None:
        self._begin()
        files = {
            path.relative_to(built).as_posix(): path
            for path in built.rglob("*")
            if path.is_file() and not path.name.endswith(".mdio-index")
        }
        last = [(name, files.pop(name)) for name in MANIFESTS if name in files]
        status = {name: file.stat() for name, file in files.items()}
        kept_sizes = {
            name: file_status.st_size
            for name, file_status in status.items()
            if stands_for_kept(file_status)
        }
        sent = {
            name: file_status.st_size
            for name, file_status in status.items()
            if name not in kept_sizes
        }
        for name in sent:
            self._send(name, files[name])
        for future in list(self._under_way):
            self._wait_for(future)
        folder = self._place.where
        manifests = {
            name: self._place.manifest(file.read_bytes(), kept_sizes) for name, file in last
        }
        with ExitStack() as stack:  # readers see the output only after the check
            for name, data in manifests.items():
                stack.enter_context(pretend_stored(folder / name, data))
            checks = [partial(check, folder)] if check is not None else []
            run_concurrently(partial(self._place.compare, sent, kept_sizes), *checks)
        if folder == self.goal:
            self._send_beside(beside)
        for name, data in manifests.items():
            self._place.put_manifest(name, data)
        if folder != self.goal:
            self._send_beside(beside)
        self._place.finish()

    def _send_beside(self, beside: Mapping[str, Path]) -> None:
        for name, file in beside.items():
            if file.exists():
                put(self.goal.with_name(name), file)

    def _leave_out_lost(self, stored: Mapping[str, int]) -> None:
        """Remove placeholders of sent objects that are not in the store: they are sent again."""
        for file in filter(stands_for_sent, self._folder.glob("*/**/*")):
            name = file.relative_to(self._folder).as_posix().partition("/")[2]
            if stored.get(name) != file.stat().st_size:
                file.unlink()

    def _note(self) -> None:
        """Record the sent files, for a run that continues."""
        state = {"token": self._place.token, "sent": dict(self._sent)}
        (self._folder / STATE).write_text(json.dumps(state))

    def _noted(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            state = json.loads((self._folder / STATE).read_bytes())
            return state if isinstance(state, dict) else {}
        return {}

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the store into OutputError."""
        try:
            yield
        except OSError as error:
            if isinstance(error, MdioError):
                raise
            raise OutputError(
                f"{error.filename or self.goal}: the store did not take it "
                f"({error.strerror or error})"
            ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
