"""Temporary names of outputs, the process that owns each, and locks on changing an output.

``.NAME.mdio-HOST-PID-TOKEN.tmp`` will be ``NAME``; ``.journal`` records which frames are stored,
``.old`` is what it replaces, where that is moved aside; ``.lock`` is locked (flock) by the working
process and the children that it forked. A publication has one token and one lock, and is dead when
its lock is free. Where a file system has no locks, the lock file identifies its process by number,
start time, namespace and boot, since containers share host names and process numbers. Older
versions of mdio had neither token nor lock.

Anyone who may write into the folder can create such names. So only files of this user (or root)
count, and a plan is ignored if it names anything but the output and its companions.

A run reads an output, works for a while, and puts a new one in its place. Another run may have done
the same meanwhile, and its output must not get lost: so the state that was read is compared with
the present one, and exchanged, under an exclusive lock. Locks of the system (flock) do not work on
every network; creating a link that must not exist does, on NFS too. The lock file names its
process, so that one left by a dead process can be removed.
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

from mdio.core.errors import OutputError
from mdio.core.files.fingerprint import END_NBYTES, MANIFESTS
from mdio.core.files.marks import (
    belongs_to_output,
    is_built_for,
    is_own,
    is_own_record,
    open_regular,
    own_parts_folder,
    try_lock,
)
from mdio.core.files.store import store_at
from mdio.core.kernels import crc32c

TEMPORARY = re.compile(r"\.([^/]+)\.mdio-[A-Za-z0-9_.]+-\d+(?:-[0-9a-f]+)?\.tmp")
_TRACE = re.compile(
    r"\.(?P<name>.+)\.mdio-(?P<owner>(?P<host>[A-Za-z0-9_.]+)-(?P<pid>\d+)(?P<token>-[0-9a-f]+)?)"
    r"\.(?P<ending>tmp|old|lock|journal)",
    re.DOTALL,
)
TOKEN_NBYTES = 4
LOCK_NBYTES = 1 << 20
"""Upper bound on the size of a lock file."""
DYING_S = 1.0
"""How long to wait for the last children of a process that was killed."""
QUIET_S = 60.0
"""A run on another host is dead if its lock is free and its journal did not grow for so long."""
_claimed: set[str] = set()
"""Owners (HOST-PID-TOKEN) of publications of this process, or of its parent before a fork."""


def host_name() -> str:
    """Return the name of this machine, as file names contain it."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", os.uname().nodename)[:40]


def _name(target: Path, owner: str, ending: str) -> Path:
    return target.with_name(f".{target.name}.mdio-{owner}.{ending}")


def _as_built(target: Path, ending: str, built: Mapping[str, str]) -> Path:
    return target.with_name(built.get(target.name, target.name)) if ending == "tmp" else target


def longest_name(target: Path) -> int:
    """Return the bytes of the longest name that publishing `target` may need."""
    owner = f"{host_name()}-{os.getpid()}-{'0' * 2 * TOKEN_NBYTES}"
    return len(os.fsencode(_name(target, owner, "journal").name))


def temporary_for(target: Path, temporary: Path) -> Path:
    """Return the name under which `target` is built.

    `target`: a companion of an output, or the folder of its parts. `temporary`: what
    `mdio.core.files.publish.publish` yielded for the output.
    """
    match = _TRACE.fullmatch(temporary.name)
    if match is None:
        raise ValueError(f"{temporary} is not the temporary name of an output")
    return _name(target, match["owner"], "tmp")


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


class Claim:
    """The lock on the temporaries of one publication; it ends with the process at the latest.

    `target`: the path to publish. Attributes: `built`: by final name, the name under which it is
    built if that differs. `unsettled`: whether names still have to change, so that the lock file
    stays.
    """

    def __init__(self, target: Path) -> None:
        self.pid = os.getpid()
        self.built: dict[str, str] = {}
        self.unsettled = False
        while True:
            self.owner = f"{host_name()}-{self.pid}-{os.urandom(TOKEN_NBYTES).hex()}"
            self.path = _name(target, self.owner, "lock")
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(self.path, flags, 0o666)
            # Between the two calls, another process may have removed it as a dead process's.
            locked = try_lock(self._fd)
            if locked is not False and _is_at(self._fd, self.path):
                break
            os.close(self._fd)
        _claimed.add(self.owner)
        try:
            if locked is None:  # else the lock suffices, and a full disk does no harm
                self._write(process_identity(self.pid))
        except BaseException:
            self.release()
            raise

    def _write(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]

    def name(self, target: Path, ending: str = "tmp") -> Path:
        """Return the name of `target` while it is built (``tmp``) or moved aside (``old``)."""
        return _name(_as_built(target, ending, self.built), self.owner, ending)

    def temporaries(self) -> list[Path]:
        """Return the existing temporaries of this publication."""
        traces = [trace for trace in _traces(self.path.parent) if trace["owner"] == self.owner]
        return [self.path.with_name(trace.string) for trace in traces if trace["ending"] == "tmp"]

    def note(self, plan: Mapping[str, Any]) -> None:
        """Record on disk how names are about to change, so that another process can undo it."""
        self._write(plan)
        os.fsync(self._fd)

    def release(self) -> None:
        """Release the lock; its file stays where temporaries are left."""
        if os.getpid() != self.pid:  # only the process that made it
            return
        with contextlib.suppress(OSError):
            own_traces = [
                trace for trace in _traces(self.path.parent) if trace["owner"] == self.owner
            ]
            if not self.unsettled and all(trace["ending"] == "lock" for trace in own_traces):
                self.path.unlink()
        with contextlib.suppress(OSError):  # a lost mount, which another error reports
            os.close(self._fd)
        _claimed.discard(self.owner)


@dataclass(slots=True)
class Leftover:
    """What a dead process has left of one publication."""

    folder: Path
    owner: str
    temporaries: list[str]
    """Names of the targets that have one."""
    aside: list[str]
    """Names of the targets whose former output was moved aside."""
    journals: list[str]
    """Names of the targets that have a journal."""
    lock: Path | None
    plan: dict[str, Any] | None
    """The plan written by `Claim.note`."""

    def name(self, target: Path, ending: str = "tmp") -> Path:
        """Return the temporary or moved-aside name of `target`, as `Claim.name`."""
        built = {} if self.plan is None else self.plan.get("built", {})
        return _name(_as_built(target, ending, built), self.owner, ending)


def leftovers(targets: Sequence[Path]) -> Iterator[Leftover]:
    """Yield what dead processes have left of any of `targets`, which are in one folder.

    Each is locked during its iteration. Whether a process of another host is alive is unknown
    here: its temporaries are left out, unless they have a journal that has stopped growing.
    """
    folder = targets[0].parent
    names = {target.name for target in targets}
    deadline = time.monotonic() + DYING_S
    groups = _groups(folder)
    if any(one[0]["token"] and not _lock_of(one) for one in groups.values()):
        groups = _groups(folder)  # a lock made meanwhile may be overlooked, but not twice
    for owner, all_traces in groups.items():
        lock = _lock_of(all_traces)
        # The lock has the name of the output; older versions had none, and fewer names.
        goal = lock["name"] if lock else min((one["name"] for one in all_traces), key=len)
        traces = [one for one in all_traces if is_built_for(goal, one["name"])]
        if owner in _claimed or names.isdisjoint(one["name"] for one in traces):
            continue
        temporaries, old, journals = (
            [one["name"] for one in traces if one["ending"] == ending]
            for ending in ("tmp", "old", "journal")
        )
        is_local = traces[0]["host"] == host_name()
        if lock is None:
            if is_local and not _lives(int(traces[0]["pid"])):
                yield Leftover(folder, owner, temporaries, old, journals, None, None)
            continue
        lock_path = folder / lock.string
        try:
            fd = open_regular(lock_path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        try:
            if not is_own_record(os.fstat(fd), folder):
                continue
            locked = try_lock(fd)
            while is_local and locked is False and not _lives(int(lock["pid"])):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)  # it was killed, and children that it forked are yet to end
                locked = try_lock(fd)
            lines = _lines(fd)
            if is_local:
                dead = locked if locked is not None else is_process_gone(lines[0] if lines else {})
            else:
                dead = locked is True and _is_quiet(folder, traces)
            if dead and _is_at(fd, lock_path):
                plan = next((line for line in lines if "goal" in line), None)
                if plan is None or _is_plan(plan, goal):
                    yield Leftover(folder, owner, temporaries, old, journals, lock_path, plan)
        finally:
            os.close(fd)


def _is_plan(plan: Mapping[str, Any], goal: str) -> bool:
    """Return whether a plan from a lock names only the output `goal` and its companions."""
    aside, removed = plan.get("aside"), plan.get("gone", [])
    built, new = plan.get("built", {}), plan.get("new")
    if not (isinstance(aside, list) and isinstance(removed, list)):
        return False
    if not (isinstance(built, dict) and isinstance(new, dict)) or plan["goal"] != goal:
        return False
    names = [*aside, *built, *built.values(), *new]
    return (
        all(belongs_to_output(goal, name) for name in names)
        and all(own_parts_folder(Path(goal), name) is not None for name in removed)
        and all(isinstance(identity, int | str) for identity in new.values())
        and ("gone" not in plan or goal in new)
    )


def _traces(folder: Path) -> list[re.Match[str]]:
    """Return the temporary names in `folder` that belong to this user.

    Journals, too, are trusted: they say which frames need not be written again.
    """
    matches = []
    for path in folder.iterdir():
        match = _TRACE.fullmatch(path.name)
        with contextlib.suppress(OSError):  # it has gone meanwhile
            if match is not None:
                is_record = match["ending"] in ("lock", "journal")
                if (is_own_record if is_record else is_own)(path.lstat(), folder):
                    matches.append(match)
    return matches


def _groups(folder: Path) -> dict[str, list[re.Match[str]]]:
    """Return traces of publications of this host, or with a journal, by owner."""
    groups: dict[str, list[re.Match[str]]] = {}
    for match in _traces(folder):
        groups.setdefault(match["owner"], []).append(match)
    return {
        owner: traces
        for owner, traces in groups.items()
        if traces[0]["host"] == host_name() or any(trace["ending"] == "journal" for trace in traces)
    }


def _is_quiet(folder: Path, traces: Sequence[re.Match[str]]) -> bool:
    """Return whether nothing has been added to a journal for a while."""
    journals = [folder / trace.string for trace in traces if trace["ending"] == "journal"]
    with contextlib.suppress(OSError):
        return all(time.time() - path.stat().st_mtime > QUIET_S for path in journals)
    return False


def _lock_of(traces: Sequence[re.Match[str]]) -> re.Match[str] | None:
    return next((trace for trace in traces if trace["ending"] == "lock"), None)


def _lines(fd: int) -> list[dict[str, Any]]:
    """Return the lines of a lock file that were written whole."""
    parsed: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        lines = map(json.loads, os.pread(fd, LOCK_NBYTES, 0).split(b"\n")[:-1])
        parsed.extend(line for line in lines if isinstance(line, dict))
    return parsed


def process_identity(pid: int) -> dict[str, Any]:
    """Return an identity of a process of this namespace, as far as the system has one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = ""
    process = _status(pid)
    return {
        "pid": pid,
        "start": process[1] if process else None,
        "boot": boot,
        "namespace": namespace,
    }


def is_process_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether a process, as `process_identity` described it, has ended.

    False where the description is incomplete (a lock file that is just being written).
    """
    ours = process_identity(os.getpid())
    if "boot" not in owner:  # it is only just being written
        return False
    if owner.get("boot") != ours["boot"]:
        return True
    if owner.get("namespace") != ours["namespace"] or not isinstance(owner.get("pid"), int):
        return False
    process = _status(owner["pid"])
    return process is None or process[0] in "ZX" or process[1] != owner.get("start")


def _status(pid: int) -> tuple[str, int] | None:
    """Return state and time of start of a process; None if there is none (proc(5))."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def _lives(pid: int) -> bool:
    """Return whether another process with this number runs; zombies do not count."""
    if pid == os.getpid():
        return False
    if Path("/proc/self").is_dir():
        status = _status(pid)
        return status is not None and status[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


LOOK_S = 0.02
"""How long a process waits before it tries to take the lock again."""
STALE_S = 60.0
"""Age at which the lock of an unknown process is removed; changing names takes far less."""
WAIT_S = 600.0
"""How long a process waits for others at most."""
OWNER_NBYTES = 4096

State = tuple[Any, ...]

_unremoved: dict[Path, State | None] = {}
"""Files of this process that could not be removed yet, with their states."""


def state_at(path: Path) -> State | None:
    """Return a value by which the output at `path` differs from any that replaces it; None if none.

    For a folder, the state of its manifest, which is written last. None in stores, whose requests
    compare states themselves. Raises OSError: it cannot be read.
    """
    if store_at(path).compares_states:
        return None
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return status.st_ino, str(path.readlink())
        file = path
        if stat.S_ISDIR(status.st_mode):
            file = next((path / name for name in MANIFESTS if (path / name).is_file()), path)
        return status.st_ino, *_state_of(file)
    except FileNotFoundError:
        return None


def _state_of(file: Path) -> State:
    try:
        # Opening makes a network client ask its server instead of its own cache.
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        status = file.lstat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    try:
        status = os.fstat(fd)
        ends = b""
        if stat.S_ISREG(status.st_mode):
            ends = os.pread(fd, END_NBYTES, 0)
            ends += os.pread(fd, END_NBYTES, max(0, status.st_size - END_NBYTES))
        return status.st_ino, status.st_size, status.st_mtime_ns, crc32c(ends)
    finally:
        os.close(fd)


def concurrent_change_error(path: Path) -> OutputError:
    """Return the error for a run whose output another run has changed."""
    return OutputError(
        f"{path}: another run has changed it meanwhile, so nothing of this one was put in its "
        "place; run it again"
    )


@contextlib.contextmanager
def exclusive_turn(goal: Path) -> Iterator[None]:
    """Hold the lock on changing `goal`, among processes of all machines.

    Raises OutputError: another process holds it for too long. OSError: the folder is not writable.
    """
    lock = _turn_file(goal)
    number = _take(lock, goal)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if lock.lstat().st_ino == number:
                _remove(lock)


def remove_dead_turn(goal: Path) -> None:
    """Remove the lock of a process of this machine that was killed while it held it."""
    lock = _turn_file(goal)
    _remove_again(lock.parent)
    for own in lock.parent.glob(".mdio-turn-*"):  # on its way to be a lock, or aside
        if _is_left(own):
            own.unlink(missing_ok=True)
    state = state_at(lock)
    if state is not None and _is_gone(_owner(lock)):
        _clear(lock, state)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _turn_file(goal: Path) -> Path:
    return goal.with_name(f".{goal.name}.mdio-turn")


def _is_gone(owner: dict[str, Any]) -> bool:
    return owner.get("host") == host_name() and is_process_gone(owner)


def _take(lock: Path, goal: Path) -> int:
    """Create the lock file, waiting for others, and return its inode."""
    _remove_again(lock.parent)
    begun = time.monotonic()
    last_change: tuple[State | None, float] = (None, begun)
    while True:
        state = state_at(lock)
        if state is None:
            with contextlib.suppress(FileExistsError):
                return _make(lock)
            continue
        now = time.monotonic()
        if state != last_change[0]:
            last_change = state, now
        owner = _owner(lock)
        if _is_gone(owner) or now - last_change[1] > STALE_S:
            _clear(lock, state)
        elif now - begun > WAIT_S:
            holder = f"process {owner.get('pid', '?')} on {owner.get('host', 'some machine')}"
            raise OutputError(
                f"{goal}: another run ({holder}) has been changing it for {WAIT_S:g} s; if that is "
                f"gone, remove {lock}, and run this again"
            )
        else:
            time.sleep(LOOK_S)


def _make(lock: Path) -> int:
    """Create the lock file with its owner in it, and return its inode.

    Raises FileExistsError: there is one.
    """
    own = _name_of_ours(lock)
    try:
        number = _write(own)
        os.link(own, lock)
        return number
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        return _write(lock)
    finally:
        _remove(own)


def _remove(path: Path) -> None:
    """Remove a file of ours, now or, if that fails, at the next call of `_remove_again`."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            _unremoved[path] = state_at(path)


def _remove_again(folder: Path) -> None:
    """Remove files that could not be removed before, unless they were replaced meanwhile."""
    for path in [path for path in list(_unremoved) if path.parent == folder]:
        state = _unremoved.pop(path, None)
        with contextlib.suppress(OSError):
            if state is not None and state_at(path) == state:
                _remove(path)


def _name_of_ours(lock: Path) -> Path:
    """Return a free name beside the lock, short even where the goal's is long."""
    return lock.with_name(f".mdio-turn-{_here()}-{os.getpid()}-{os.urandom(4).hex()}")


def _here() -> str:
    return f"{crc32c(host_name().encode()):08x}"


def _is_left(own: Path) -> bool:
    """Return whether the process that made a temporary lock file has ended."""
    owner = _owner(own)
    if owner:
        return _is_gone(owner)
    *_, host, pid, _ = ("", "", *own.name.split("-"))
    if host == _here() and pid.isdecimal():
        return int(pid) != os.getpid() and not _lives(int(pid))
    return _age_s(own) > STALE_S


def _write(path: Path) -> int:
    """Create a file that identifies this process; return its inode."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        ourselves = {"host": host_name(), **process_identity(os.getpid())}
        with contextlib.suppress(OSError):  # a full disk does no harm
            os.write(fd, json.dumps(ourselves).encode())
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _owner(lock: Path) -> dict[str, Any]:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            record = json.loads(os.read(fd, OWNER_NBYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _clear(lock: Path, state: State) -> None:
    """Remove the lock of a dead process; a newer one is put back."""
    aside = _name_of_ours(lock)
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return
    if state_at(aside) != state:
        with contextlib.suppress(OSError):
            os.link(aside, lock)
    _remove(aside)
