"""Names under which outputs are built, whose they are, and whose turn it is to change them.

``.NAME.mdio-HOST-PID-TOKEN.tmp`` is what will be ``NAME``; ``.journal`` tells what of it is done,
``.old`` is what it replaces, where that is moved aside; ``.lock`` is held (flock) by the process at
work and the children that it forked. A publication, one token and one lock, is dead when its lock
can be had. Where a file system has no locks, the process that made it decides: the lock file then
tells its number, time of start, namespace and boot, since containers share host names and process
numbers. Older versions of mdio had neither token nor lock.

Anyone who may write into the folder can put such names there. So only what belongs to this user (or
root) counts, and a plan that names anything but the output and what goes with it is none.

A run reads an output, works for a while, and puts a new one in its place. If another run has done
the same meanwhile, what that one made must not get lost: so the state that was read is compared
with what is there, and exchanged, while nobody else may do so. Locks of the system (flock) do not
hold on every network; a name that is given only where there is none (a link) does, on NFS too. The
file tells who made it, so that one left by a dead process is in nobody's way.
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
"""More than is ever in a lock file."""
DYING_S = 1.0
"""How long to wait for the last children of a process that was killed."""
QUIET_S = 60.0
"""Where another host has not added to a journal for so long, and its lock is free, it is dead."""
_claimed: set[str] = set()
"""Owners of what this process, or the one that it was forked from, is at."""


def host_name() -> str:
    """Return the name of this machine, as it is in names of files."""
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
    """The right to the temporaries of one publication; it ends with the process at the latest.

    `target`: what is published. Attributes: `built`: names under which something is built that will
    be called otherwise, by the name that it will have. `unsettled`: whether there is more to do
    than temporaries tell, so that the lock stays.
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
            # Between the two calls, another process may have taken it for that of a dead one.
            held = try_lock(self._fd)
            if held is not False and _is_at(self._fd, self.path):
                break
            os.close(self._fd)
        _claimed.add(self.owner)
        try:
            if held is None:  # else the lock says enough, and a full disk is in nobody's way
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
        """Return what there is under temporary names of this publication."""
        traces = [one for one in _traces(self.path.parent) if one["owner"] == self.owner]
        return [self.path.with_name(one.string) for one in traces if one["ending"] == "tmp"]

    def note(self, plan: Mapping[str, Any]) -> None:
        """Write down, on disk, how names are about to change: who finds the lock can go back."""
        self._write(plan)
        os.fsync(self._fd)

    def release(self) -> None:
        """Give the claim up; where temporaries are left, the lock stays as that of a dead one."""
        if os.getpid() != self.pid:  # a forked child has no say in it
            return
        with contextlib.suppress(OSError):
            ours = [one for one in _traces(self.path.parent) if one["owner"] == self.owner]
            if not self.unsettled and all(one["ending"] == "lock" for one in ours):
                self.path.unlink()
        with contextlib.suppress(OSError):  # of a mount that is gone: why, another error has told
            os.close(self._fd)
        _claimed.discard(self.owner)


@dataclass(slots=True)
class Leftover:
    """What a process that is gone has left of one publication."""

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
    """What `Claim.note` wrote."""

    def name(self, target: Path, ending: str = "tmp") -> Path:
        """Return the name of `target`, as `Claim.name`."""
        built = {} if self.plan is None else self.plan.get("built", {})
        return _name(_as_built(target, ending, built), self.owner, ending)


def leftovers(targets: Sequence[Path]) -> Iterator[Leftover]:
    """Yield what dead processes have left of any of `targets`, of one folder.

    Each is locked while the caller has it. Whether a process of another host still lives cannot
    be seen from here: its temporaries are left out, unless they have a journal that tells.
    """
    folder = targets[0].parent
    wanted = {target.name for target in targets}
    deadline = time.monotonic() + DYING_S
    groups = _groups(folder)
    if any(one[0]["token"] and not _lock_of(one) for one in groups.values()):
        groups = _groups(folder)  # a lock made meanwhile may be overlooked, but not twice
    for owner, every in groups.items():
        lock = _lock_of(every)
        # The lock has the name of the output; older versions had none, and fewer names.
        goal = lock["name"] if lock else min((one["name"] for one in every), key=len)
        traces = [one for one in every if is_built_for(goal, one["name"])]
        if owner in _claimed or wanted.isdisjoint(one["name"] for one in traces):
            continue
        tmp, old, journals = (
            [one["name"] for one in traces if one["ending"] == ending]
            for ending in ("tmp", "old", "journal")
        )
        here = traces[0]["host"] == host_name()
        if lock is None:
            if here and not _lives(int(traces[0]["pid"])):
                yield Leftover(folder, owner, tmp, old, journals, None, None)
            continue
        where = folder / lock.string
        try:
            fd = open_regular(where, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        try:
            if not is_own_record(os.fstat(fd), folder):
                continue
            held = try_lock(fd)
            while here and held is False and not _lives(int(lock["pid"])):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)  # it was killed, and children that it forked are yet to end
                held = try_lock(fd)
            lines = _lines(fd)
            if here:
                dead = held if held is not None else is_process_gone(lines[0] if lines else {})
            else:
                dead = held is True and _is_quiet(folder, traces)
            if dead and _is_at(fd, where):
                plan = next((line for line in lines if "goal" in line), None)
                if plan is None or _is_plan(plan, goal):
                    yield Leftover(folder, owner, tmp, old, journals, where, plan)
        finally:
            os.close(fd)


def _is_plan(plan: Mapping[str, Any], goal: str) -> bool:
    """Return whether what a lock holds names the output `goal`, and what goes with it, alone."""
    aside, gone = plan.get("aside"), plan.get("gone", [])
    built, new = plan.get("built", {}), plan.get("new")
    if not (isinstance(aside, list) and isinstance(gone, list)):
        return False
    if not (isinstance(built, dict) and isinstance(new, dict)) or plan["goal"] != goal:
        return False
    names = [*aside, *built, *built.values(), *new]
    return (
        all(belongs_to_output(goal, name) for name in names)
        and all(own_parts_folder(Path(goal), name) is not None for name in gone)
        and all(isinstance(known, int | str) for known in new.values())
        and ("gone" not in plan or goal in new)
    )


def _traces(folder: Path) -> list[re.Match[str]]:
    """Return the names of publications in `folder`; those that others have put there are left out.

    A journal, too, is obeyed: it says which frames need not be written again.
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
    """Return what is in `folder` of publications of this host, or with a journal, by owner."""
    groups: dict[str, list[re.Match[str]]] = {}
    for match in _traces(folder):
        groups.setdefault(match["owner"], []).append(match)
    return {
        owner: traces
        for owner, traces in groups.items()
        if traces[0]["host"] == host_name() or any(one["ending"] == "journal" for one in traces)
    }


def _is_quiet(folder: Path, traces: Sequence[re.Match[str]]) -> bool:
    """Return whether nothing has been added to a journal for a while."""
    journals = [folder / one.string for one in traces if one["ending"] == "journal"]
    with contextlib.suppress(OSError):
        return all(time.time() - path.stat().st_mtime > QUIET_S for path in journals)
    return False


def _lock_of(traces: Sequence[re.Match[str]]) -> re.Match[str] | None:
    return next((one for one in traces if one["ending"] == "lock"), None)


def _lines(fd: int) -> list[dict[str, Any]]:
    """Return the lines of a lock file that were written whole."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        lines = map(json.loads, os.pread(fd, LOCK_NBYTES, 0).split(b"\n")[:-1])
        found.extend(line for line in lines if isinstance(line, dict))
    return found


def process_identity(pid: int) -> dict[str, Any]:
    """Return who a process of this namespace is, as far as the system tells."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = ""
    status = _status(pid)
    return {
        "pid": pid,
        "start": status[1] if status else None,
        "boot": boot,
        "namespace": namespace,
    }


def is_process_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether a process of a machine of this name is gone, of which `process_identity` told.

    Where it does not tell enough (a lock file that is only just being written), it is not.
    """
    here = process_identity(os.getpid())
    if "boot" not in owner:  # it is only just being written
        return False
    if owner.get("boot") != here["boot"]:
        return True
    if owner.get("namespace") != here["namespace"] or not isinstance(owner.get("pid"), int):
        return False
    status = _status(owner["pid"])
    return status is None or status[0] in "ZX" or status[1] != owner.get("start")


def _status(pid: int) -> tuple[str, int] | None:
    """Return state and time of start of a process; None if there is none (proc(5))."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def _lives(pid: int) -> bool:
    """Return whether another process with this number runs; what waits to be reaped does not."""
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
"""How long a process waits until it looks again whether it is its turn."""
STALE_S = 60.0
"""So long is the file of an unknown process left alone; names are changed within far less."""
WAIT_S = 600.0
"""How long a process waits for others at most."""
OWNER_NBYTES = 4096

State = tuple[Any, ...]

_unremoved: dict[Path, State | None] = {}
"""Files of this process that could not be removed yet: the disk refused, perhaps for a while."""


def state_at(path: Path) -> State | None:
    """Return what tells the output that is at `path` from any that takes its place; None if none.

    Of a folder, that of its manifest, which is written last. None in stores, which compare.
    Raises OSError: it cannot be looked at.
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
        # Opening it asks a server what is there now, where its clients remember what was.
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
    """Return the error of the run that comes second."""
    return OutputError(
        f"{path}: another run has changed it meanwhile, so nothing of this one was put in its "
        "place; run it again"
    )


@contextlib.contextmanager
def exclusive_turn(goal: Path) -> Iterator[None]:
    """Be the only one who changes what is at `goal`, on whatever machine others are.

    Raises OutputError: another one does so for too long. OSError: the folder cannot be written.
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
    """Remove what a process of this machine has left that was killed while it was its turn."""
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
    """Make the file that says whose turn it is, and return its number."""
    _remove_again(lock.parent)
    begun = time.monotonic()
    seen: tuple[State | None, float] = (None, begun)
    while True:
        state = state_at(lock)
        if state is None:
            with contextlib.suppress(FileExistsError):
                return _make(lock)
            continue
        now = time.monotonic()
        if state != seen[0]:
            seen = state, now
        owner = _owner(lock)
        if _is_gone(owner) or now - seen[1] > STALE_S:
            _clear(lock, state)
        elif now - begun > WAIT_S:
            who = f"process {owner.get('pid', '?')} on {owner.get('host', 'some machine')}"
            raise OutputError(
                f"{goal}: another run ({who}) has been changing it for {WAIT_S:g} s; if that is "
                f"gone, remove {lock}, and run this again"
            )
        else:
            time.sleep(LOOK_S)


def _make(lock: Path) -> int:
    """Make the file, which says whose it is from the beginning, and return its number.

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
    """Remove a file of ours, now or, if the disk refuses, when this process is here again."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            _unremoved[path] = state_at(path)


def _remove_again(folder: Path) -> None:
    """Remove what could not be removed before, unless another one has its name by now."""
    for path in [path for path in list(_unremoved) if path.parent == folder]:
        state = _unremoved.pop(path, None)
        with contextlib.suppress(OSError):
            if state is not None and state_at(path) == state:
                _remove(path)


def _name_of_ours(lock: Path) -> Path:
    """Return a free name beside the lock that tells of this process; goals may have long names."""
    return lock.with_name(f".mdio-turn-{_here()}-{os.getpid()}-{os.urandom(4).hex()}")


def _here() -> str:
    return f"{crc32c(host_name().encode()):08x}"


def _is_left(own: Path) -> bool:
    """Return whether the process that made a file on its way to be the lock has gone."""
    owner = _owner(own)
    if owner:
        return _is_gone(owner)
    *_, host, pid, _ = ("", "", *own.name.split("-"))
    if host == _here() and pid.isdecimal():
        return int(pid) != os.getpid() and not _lives(int(pid))
    return _age_s(own) > STALE_S


def _write(path: Path) -> int:
    """Make a file where there is none, with who we are in it; return its number."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        ourselves = {"host": host_name(), **process_identity(os.getpid())}
        with contextlib.suppress(OSError):  # a full disk is in nobody's way
            os.write(fd, json.dumps(ourselves).encode())
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _owner(lock: Path) -> dict[str, Any]:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            said = json.loads(os.read(fd, OWNER_NBYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _clear(lock: Path, state: State) -> None:
    """Remove the file of a dead process; one that was made meanwhile comes back."""
    aside = _name_of_ours(lock)
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return
    if state_at(aside) != state:
        with contextlib.suppress(OSError):
            os.link(aside, lock)
    _remove(aside)
