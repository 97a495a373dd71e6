"""Temporary names of outputs, the processes that write them, and locks on changing an output.

An output ``NAME`` is built as ``.NAME.mdio-HOST-PID-TOKEN.tmp``. Under the same name, ``.journal``
records which frames are stored; ``.old`` is the former output, if it had to be moved aside;
``.lock`` is locked (flock) by the working process and the children that it forked. A publication
has one token and one lock, and is dead when its lock is free. Where a file system has no locks, the
lock file identifies its process by number, start time, namespace and boot, since containers share
host names and process numbers.

Anyone who may write into the folder can create such names. So only files of this user (or root)
count, and a plan is ignored if it names anything except the output and what belongs to it.

Another run may replace an output between a run's reading and replacing it, and must not be undone:
so a run compares the state that it read with the present one, and replaces the output, under an
exclusive lock. Locks of the system (flock) do not work on every network; creating a link that must
not exist does, on NFS too. The lock file names its process, so that a dead one's can be removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError, SourceError
from mdio.core.files.checks import (
    belongs_to_output,
    is_built_for,
    is_own,
    is_trusted_record,
    open_regular,
    read_json,
    try_lock,
)
from mdio.core.files.fingerprint import file_state
from mdio.core.files.store import store_at
from mdio.core.kernels import crc32c

TEMPORARY = re.compile(r"\.([^/]+)\.mdio-[A-Za-z0-9_.]+-\d+-[0-9a-f]+\.tmp")
_TRACE_NAME = re.compile(
    r"\.(?P<name>.+)\.mdio-(?P<id>(?P<host>[A-Za-z0-9_.]+)-(?P<pid>\d+)-[0-9a-f]+)"
    r"\.(?P<ending>tmp|old|lock|journal)",
    re.DOTALL,
)
"""A trace of a publication: any file or folder that it names in this way."""
PLAN_TARGET, PLAN_FORMER, PLAN_NEW = "goal", "aside", "new"
"""Keys of the plan in a lock file: the name of the output; the names of files that are moved aside;
the identities of the new files, by name."""
TOKEN_NBYTES = 4
MAX_LOCK_NBYTES = 1 << 20
"""A lock file is read up to this size."""
CHILDREN_END_S = 1.0
"""How long to wait for the children of a killed process to end."""
IDLE_S = 60.0
"""A run on another host is dead if its lock is free and its journal has not grown for this long."""
_own_ids: set[str] = set()
"""HOST-PID-TOKEN of each publication of this process, or of its parent before a fork."""


def host_name() -> str:
    """Return the name of this machine, as file names contain it."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", os.uname().nodename)[:40]


def _trace(target: Path, publication_id: str, ending: str) -> Path:
    return target.with_name(f".{target.name}.mdio-{publication_id}.{ending}")


def longest_name_nbytes(target: Path) -> int:
    """Return the bytes of the longest file name that publishing `target` may need."""
    publication_id = f"{host_name()}-{os.getpid()}-{'0' * 2 * TOKEN_NBYTES}"
    return len(os.fsencode(_trace(target, publication_id, "journal").name))


def temporary_for(target: Path, temporary: Path) -> Path:
    """Return the name under which the companion `target` of an output at `temporary` is built."""
    match = _TRACE_NAME.fullmatch(temporary.name)
    if match is None:
        raise ValueError(f"{temporary} is not the temporary name of an output")
    return _trace(target, match["id"], "tmp")


def is_inside_temporary(path: Path) -> bool:
    """Return whether `path` lies in a folder that is a temporary of another output."""
    return any(map(TEMPORARY.fullmatch, path.parent.parts))


def _is_still_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


class Publication:
    """The names and the lock of one publication; a lock is released when its process ends, too.

    `target`: the path to publish. Attribute `needs_recovery`: whether a plan is yet to be completed
    or undone, so that the lock file must stay.
    """

    def __init__(self, target: Path) -> None:
        self.pid = os.getpid()
        self.needs_recovery = False
        while True:
            self.id = f"{host_name()}-{self.pid}-{os.urandom(TOKEN_NBYTES).hex()}"
            self.path = _trace(target, self.id, "lock")
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o666)
            # Between the two calls, another process may have taken it for a dead one's lock.
            locked = try_lock(self._fd)
            if locked is not False and _is_still_at(self._fd, self.path):
                break
            os.close(self._fd)
        _own_ids.add(self.id)
        try:
            if locked is None:  # else nothing need be written, and a full disk does no harm
                self._write(process_identity(self.pid))
        except BaseException:
            self.release()
            raise

    def _write(self, entry: Mapping[str, Any]) -> None:
        data = json.dumps(entry).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]

    def name(self, target: Path, ending: str = "tmp") -> Path:
        """Return the path of `target` while it is built (``tmp``) or moved aside (``old``)."""
        return _trace(target, self.id, ending)

    def temporaries(self) -> list[Path]:
        """Return the existing temporaries of this publication."""
        names = [trace.string for trace in self._traces() if trace["ending"] == "tmp"]
        return [self.path.with_name(name) for name in names]

    def _traces(self) -> list[re.Match[str]]:
        return [trace for trace in _traces(self.path.parent) if trace["id"] == self.id]

    def record(self, plan: Mapping[str, Any]) -> None:
        """Record on disk how names are about to change, so that another process can undo it."""
        self._write(plan)
        os.fsync(self._fd)

    def release(self) -> None:
        """Release the lock; its file stays where temporaries are left."""
        if os.getpid() != self.pid:  # a forked child
            return
        with contextlib.suppress(OSError):
            if not self.needs_recovery and all(
                trace["ending"] == "lock" for trace in self._traces()
            ):
                self.path.unlink()
        with contextlib.suppress(OSError):  # a lost mount, which another error reports
            os.close(self._fd)
        _own_ids.discard(self.id)


def refuse_second_run(publication: Publication, target: Path) -> None:
    """Raise OutputError if a run that is alive on this machine began to write `target` before.

    One that began on another machine, or is about to end, is noticed when this run publishes.
    """
    own_age = publication.path.lstat().st_mtime_ns, publication.id
    for trace in _traces(target.parent):
        publication_id, path = trace["id"], target.parent / trace.string
        is_other = trace["ending"] == "lock" and trace["name"] == target.name
        if not is_other or publication_id == publication.id or trace["host"] != host_name():
            continue
        try:
            is_older = (path.lstat().st_mtime_ns, publication_id) < own_age
            is_alive = is_older and (
                publication_id in _own_ids or _is_locked(path, int(trace["pid"]))
            )
        except OSError:  # it has ended meanwhile
            continue
        if is_alive:
            raise OutputError(
                f"{target}: another run (process {trace['pid']}) is writing it; wait for that, or "
                "choose another name"
            )


def _is_locked(path: Path, pid: int) -> bool:
    fd = open_regular(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        return try_lock(fd) is False and is_running(pid)
    finally:
        os.close(fd)


@dataclass(slots=True)
class Leftover:
    """The traces that a dead process has left of one publication."""

    folder: Path
    id: str
    """HOST-PID-TOKEN of the publication."""
    temporaries: list[str]
    """Names of the targets that have a temporary."""
    journals: list[str]
    """Names of the targets that have a journal."""
    lock: Path
    """It may not exist: after a power cut."""
    plan: dict[str, Any] | None
    """The plan written by `Publication.record`."""

    def name(self, target: Path, ending: str = "tmp") -> Path:
        """Return the temporary or moved-aside name of `target`."""
        return _trace(target, self.id, ending)


def leftovers(targets: Sequence[Path]) -> Iterator[Leftover]:
    """Yield what dead processes have left of any of `targets`, which are in one folder.

    Each leftover is locked while the caller has it. Whether a process of another host is alive is
    unknown here: its traces are left out, unless they have a journal that has stopped growing.
    """
    folder = targets[0].parent
    names = {target.name for target in targets}
    deadline = time.monotonic() + CHILDREN_END_S
    traces_by_publication: dict[str, list[re.Match[str]]] = {}
    for trace in _traces(folder):
        traces_by_publication.setdefault(trace["id"], []).append(trace)
    for publication_id, all_traces in traces_by_publication.items():
        is_local = all_traces[0]["host"] == host_name()
        if not is_local and all(trace["ending"] != "journal" for trace in all_traces):
            continue
        lock = next((trace for trace in all_traces if trace["ending"] == "lock"), None)
        target = lock["name"] if lock else min((trace["name"] for trace in all_traces), key=len)
        traces = [trace for trace in all_traces if is_built_for(target, trace["name"])]
        if publication_id in _own_ids or names.isdisjoint(trace["name"] for trace in traces):
            continue
        temporaries, journals = (
            [trace["name"] for trace in traces if trace["ending"] == ending]
            for ending in ("tmp", "journal")
        )
        lock_path = _trace(folder / target, publication_id, "lock")
        if lock is None:  # a power cut may keep a temporary without its lock
            has_lock = os.path.lexists(lock_path)  # of another user, or just made
            if is_local and not has_lock and not is_running(int(all_traces[0]["pid"])):
                yield Leftover(folder, publication_id, temporaries, journals, lock_path, None)
            continue
        try:
            fd = open_regular(lock_path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # its process has ended meanwhile, or is another user's
            continue
        try:
            if not is_trusted_record(os.fstat(fd), folder):
                continue
            locked = try_lock(fd)
            while is_local and locked is False and not is_running(int(lock["pid"])):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)  # it was killed, and children that it forked are yet to end
                locked = try_lock(fd)
            entries = _lock_entries(fd)
            if not is_local:
                is_dead = locked is True and _is_idle(folder, traces)
            elif locked is not None:
                is_dead = locked
            else:
                is_dead = is_process_gone(entries[0] if entries else {})
            if is_dead and _is_still_at(fd, lock_path):
                plan = next((entry for entry in entries if PLAN_TARGET in entry), None)
                if plan is None or _is_valid_plan(plan, target):
                    yield Leftover(folder, publication_id, temporaries, journals, lock_path, plan)
        finally:
            os.close(fd)


def _is_valid_plan(plan: Mapping[str, Any], target: str) -> bool:
    """Return whether a plan in a lock file names only the output `target` and its companions."""
    former, new = plan.get(PLAN_FORMER), plan.get(PLAN_NEW)
    if not (isinstance(former, list) and isinstance(new, dict)) or plan[PLAN_TARGET] != target:
        return False
    return (
        all(belongs_to_output(target, name) for name in (*former, *new))
        and all(isinstance(identity, int | str) for identity in new.values())
        and (bool(former) or target in new)
    )


def _traces(folder: Path) -> list[re.Match[str]]:
    """Return the names of traces in `folder` that belong to this user.

    Locks and journals are trusted, so these must also be regular files with one name.
    """
    matches = []
    for path in folder.iterdir():
        match = _TRACE_NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):  # it was removed meanwhile
            if match is not None:
                is_record = match["ending"] in ("lock", "journal")
                if (is_trusted_record if is_record else is_own)(path.lstat(), folder):
                    matches.append(match)
    return matches


def _is_idle(folder: Path, traces: Sequence[re.Match[str]]) -> bool:
    """Return whether nothing has been added to a journal for a while."""
    journals = [folder / trace.string for trace in traces if trace["ending"] == "journal"]
    with contextlib.suppress(OSError):
        return all(time.time() - path.stat().st_mtime > IDLE_S for path in journals)
    return False


def _lock_entries(fd: int) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        lines = map(json.loads, os.pread(fd, MAX_LOCK_NBYTES, 0).split(b"\n")[:-1])
        entries.extend(line for line in lines if isinstance(line, dict))
    return entries


def process_identity(pid: int) -> dict[str, Any]:
    """Return the identity of a process of this namespace, as far as the system reveals it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = ""
    status = _process_status(pid)
    return {
        "pid": pid,
        "start": status[1] if status else None,
        "boot": boot,
        "namespace": namespace,
    }


def is_process_gone(identity: Mapping[str, Any]) -> bool:
    """Return whether a process, as `process_identity` described it, has ended.

    False where that is unknown, or the description incomplete (a lock file being written).
    """
    own_identity = process_identity(os.getpid())
    if "boot" not in identity:
        return False
    if identity.get("boot") != own_identity["boot"]:
        return True
    if identity.get("namespace") != own_identity["namespace"] or not isinstance(
        identity.get("pid"), int
    ):
        return False
    status = _process_status(identity["pid"])
    return status is None or status[0] in "ZX" or status[1] != identity.get("start")


def _process_status(pid: int) -> tuple[str, int] | None:
    """Return state and start time of a process; None if there is none (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def is_running(pid: int) -> bool:
    """Return whether another process than this one has the number `pid`, and is not a zombie."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        pass
    status = _process_status(pid)
    return status is None or status[0] not in "ZX"


POLL_S = 0.02
"""How long a process waits before it tries to take the lock again."""
STALE_S = 60.0
"""Age at which the lock of an unknown process is removed; changing names takes far less."""
MAX_WAIT_S = 600.0
"""How long a process waits for others at most."""

State = tuple[Any, ...]

_to_remove: dict[Path, State | None] = {}
"""Files of this process that could not be removed yet, and their states."""


def state_at(path: Path) -> State | None:
    """Return a value that differs once the output at `path` is replaced; None if there is none.

    For a folder, the state of its manifest, which is written last. None in stores, whose requests
    compare states themselves.
    """
    if store_at(path).has_conditional_writes:
        return None
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return status.st_ino, str(path.readlink())
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return status.st_ino, *file_state(path).values()
    except SourceError:  # a folder without a manifest, or what cannot be read
        return status.st_ino, status.st_size, status.st_mtime_ns


def concurrent_change_error(path: Path) -> OutputError:
    """Return the error for a run whose output another run has changed."""
    return OutputError(
        f"{path}: another run has changed it meanwhile, so this one has not replaced it; run it "
        "again"
    )


@contextlib.contextmanager
def change_lock(target: Path) -> Iterator[None]:
    """Hold the lock on changing `target`, among processes of all machines.

    Raises OutputError: another process holds it for too long. OSError: the folder is not writable.
    """
    lock = _change_lock_path(target)
    inode = _acquire(lock, target)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if lock.lstat().st_ino == inode:
                _try_remove(lock)


def remove_dead_change_lock(target: Path) -> None:
    """Remove the lock on `target` if a process of this machine was killed while it held it."""
    lock = _change_lock_path(target)
    _retry_removals(lock.parent)
    for temporary in lock.parent.glob(".mdio-turn-*"):  # locks that are being made or removed
        if _is_abandoned(temporary):
            temporary.unlink(missing_ok=True)
    state = state_at(lock)
    if state is not None and _is_dead(read_json(lock)):
        _remove_stale(lock, state)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _change_lock_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.mdio-turn")


def _is_dead(holder: dict[str, Any]) -> bool:
    return holder.get("host") == host_name() and is_process_gone(holder)


def _acquire(lock: Path, target: Path) -> int:
    """Create the lock file, waiting for others, and return its inode."""
    _retry_removals(lock.parent)
    began_s = unchanged_since_s = time.monotonic()
    last_state: State | None = None
    while True:
        state = state_at(lock)
        if state is None:
            with contextlib.suppress(FileExistsError):
                return _create_lock(lock)
            continue
        now_s = time.monotonic()
        if state != last_state:
            last_state, unchanged_since_s = state, now_s
        holder = read_json(lock)
        if _is_dead(holder) or now_s - unchanged_since_s > STALE_S:
            _remove_stale(lock, state)
        elif now_s - began_s > MAX_WAIT_S:
            holder_text = (
                f"process {holder.get('pid', '?')} on {holder.get('host', 'some machine')}"
            )
            raise OutputError(
                f"{target}: another run ({holder_text}) has been changing it for "
                f"{MAX_WAIT_S:g} s; if that has ended, remove {lock}, and run this again"
            )
        else:
            time.sleep(POLL_S)


def _create_lock(lock: Path) -> int:
    """Create the lock file, which names its holder, and return its inode.

    Raises FileExistsError: another process has it.
    """
    temporary = _unique_path(lock)
    try:
        inode = _create_holder_file(temporary)
        os.link(temporary, lock)
        return inode
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        return _create_holder_file(lock)
    finally:
        _try_remove(temporary)


def _try_remove(path: Path) -> None:
    """Remove a file of this process; if that fails, `_retry_removals` does it later."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            _to_remove[path] = state_at(path)


def _retry_removals(folder: Path) -> None:
    """Remove files that could not be removed before, unless they were replaced meanwhile."""
    for path in [path for path in list(_to_remove) if path.parent == folder]:
        state = _to_remove.pop(path, None)
        with contextlib.suppress(OSError):
            if state is not None and state_at(path) == state:
                _try_remove(path)


def _unique_path(lock: Path) -> Path:
    """Return a free path beside the lock; its name is short even if the target's is long."""
    return lock.with_name(f".mdio-turn-{_host_hash()}-{os.getpid()}-{os.urandom(4).hex()}")


def _host_hash() -> str:
    return f"{crc32c(host_name().encode()):08x}"


def _is_abandoned(temporary: Path) -> bool:
    """Return whether the process that made a temporary lock file has ended."""
    holder = read_json(temporary)
    if holder:
        return _is_dead(holder)
    *_, host, pid, _ = ("", "", *temporary.name.split("-"))
    if host == _host_hash() and pid.isdecimal():
        return int(pid) != os.getpid() and not is_running(int(pid))
    return _age_s(temporary) > STALE_S


def _create_holder_file(path: Path) -> int:
    """Create a file that identifies this process; return its inode."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        holder = {"host": host_name(), **process_identity(os.getpid())}
        with contextlib.suppress(OSError):  # a full disk does no harm
            os.write(fd, json.dumps(holder).encode())
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _remove_stale(lock: Path, state: State) -> None:
    """Remove the lock of a dead process; if another one has this name by now, restore it."""
    moved_lock = _unique_path(lock)
    try:
        lock.rename(moved_lock)
    except FileNotFoundError:
        return
    if state_at(moved_lock) != state:
        with contextlib.suppress(OSError):
            os.link(moved_lock, lock)
    _try_remove(moved_lock)
