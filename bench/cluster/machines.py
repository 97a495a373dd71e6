"""Machines on one machine: namespaces of their own, joined by cables of limited bandwidth.

A machine is one sleeping process with network, host-name, IPC, process and mount namespaces of its
own. Nothing gets a name outside of them (no entry in /run/netns, no link in the network of the
host), and whatever runs or is mounted in a machine ends with that one process.

Needs root, util-linux (unshare, nsenter) and iproute2 (ip, tc).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NETWORK = "10.99.0"
BURST = "256kb"
WAIT_S = 10.0
SWITCH, MANAGER = "switch", "manager"

_launched: list[subprocess.Popen[bytes]] = []
"""What this process has started; it lives on when this process ends."""


class ClusterError(Exception):
    """What is missing or did not work, and what to do."""


def need(programs: Mapping[str, str]) -> None:
    """Raise ClusterError unless this is root and all programs (name: Debian package) are there."""
    if os.geteuid() != 0:
        raise ClusterError("the miniature cluster needs root: namespaces, links and mounts")
    missing = sorted({package for name, package in programs.items() if not shutil.which(name)})
    if missing:
        raise ClusterError(
            "the miniature cluster needs more programs; on Debian: apt-get install "
            f"--no-install-recommends {' '.join(missing)}"
        )


def until(what: str, check: object, limit_s: float = WAIT_S) -> None:
    """Wait until `check` returns something true; raises ClusterError that names `what`."""
    assert callable(check)
    end = time.monotonic() + limit_s
    while not check():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: nothing after {limit_s:g} s")
        time.sleep(0.02)


def said(*command: str) -> str:
    """Run a command of the host and return what it prints; raises ClusterError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@dataclass
class Machine:
    """One machine; `pid` is its first process, as the host counts."""

    name: str
    address: str
    folder: Path
    pid: int = 0
    launcher: int = 0
    daemons: dict[str, int] = field(default_factory=dict)

    def enter(self, *command: str) -> list[str]:
        """Return the command that runs `command` in the machine."""
        spaces = ("-n", "-u", "-i", "-m", "-p")
        return ["nsenter", "-t", str(self.pid), *spaces, f"--wd={Path.cwd()}", "--", *command]

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in the machine and return what it prints; raises ClusterError."""
        done = subprocess.run(self.enter(*command), capture_output=True, text=True, check=False)
        if check and done.returncode:
            text = (done.stderr or done.stdout).strip()
            raise ClusterError(f"{self.name}: {' '.join(command)}: {text}")
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a daemon of the machine; what it says goes to ``NAME.out`` in its folder."""
        with (self.folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                self.enter(*command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _launched.append(process)
        until(f"{self.name}: {name}", lambda: process.poll() is not None or child_of(process.pid))
        self.daemons[name] = child_of(process.pid)
        if not self.daemons[name]:
            raise ClusterError(f"{self.name}: {name} ended at once: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """Return the end of what a daemon has said."""
        return (self.folder / f"{name}.out").read_text(errors="replace")[-300:].strip()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a daemon a signal."""
        os.kill(self.daemons[name], number)

    def boot(self) -> None:
        """Begin the machine: an empty network but for itself, and folders of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "booted").unlink(missing_ok=True)
        script = (
            # Its orphans are reaped by the kernel.
            f"trap '' CHLD; hostname {self.name}; ip link set lo up; "
            f"touch {self.folder}/booted; exec sleep infinity"
        )
        spaces = ("-n", "-u", "-i", "-m", "-p", "-f", "--kill-child", "--mount-proc")
        process = subprocess.Popen(
            ["unshare", *spaces, "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _launched.append(process)
        until(f"{self.name} does not boot", (self.folder / "booted").exists)
        self.launcher, self.pid = process.pid, child_of(process.pid)

    def plug(self, switch: Machine, rate: str) -> None:
        """Lay a cable to the switch, limited to `rate` (as tc has it) in both directions."""
        port = f"p-{self.name}"
        at_switch = ("nsenter", "-t", str(switch.pid), "-n")
        peer = ("peer", "name", "eth0", "netns", str(self.pid))
        said(*at_switch, "ip", "link", "add", port, "type", "veth", *peer)
        said(*at_switch, "ip", "link", "set", port, "master", "br0", "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.limit(switch, rate)

    def limit(self, switch: Machine, rate: str) -> None:
        """Limit the cable again; an empty rate lifts the limit."""
        for machine, link in ((self, "eth0"), (switch, f"p-{self.name}")):
            inside = ("nsenter", "-t", str(machine.pid), "-n", "tc", "qdisc")
            subprocess.run([*inside, "del", "dev", link, "root"], capture_output=True, check=False)
            if rate:
                bucket = ("tbf", "rate", rate, "burst", BURST, "latency", "100ms")
                said(*inside, "add", "dev", link, "root", *bucket)

    def dress(self, hosts: Path) -> None:
        """Give the machine host names, a temporary folder, a disk and shared memory of its own."""
        for name, place in (("tmp", "/var/tmp"), ("local", "/local")):
            (self.folder / name).mkdir(exist_ok=True)
            Path(place).mkdir(exist_ok=True)
            self.run("mount", "--bind", str(self.folder / name), place)
        self.run("mount", "--bind", str(hosts), "/etc/hosts")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")

    def sent(self) -> tuple[int, int]:
        """Return the bytes that went out over its cable, and came in."""
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == "eth0":
                counts = numbers.split()
                return int(counts[8]), int(counts[0])
        raise ClusterError(f"{self.name}: it has no cable")

    def end(self) -> None:
        """Cut the power: all that runs in it, its cable and its mounts are gone."""
        for pid in (self.pid, self.launcher):
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.daemons.clear()


def child_of(pid: int) -> int:
    """Return the first child of a process, 0 if it has none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(children[0]) if children else 0


@dataclass
class Cluster:
    """A switch, a manager, storage servers and compute nodes; kept in ``cluster.json``."""

    folder: Path
    machines: dict[str, Machine]
    rate: str
    """Of each server's cable."""
    node_rate: str
    """Of each node's cable; empty for no limit."""
    mount: Path
    """Where the shared file system is, on every node."""
    file_system: str = ""

    @property
    def servers(self) -> list[Machine]:
        """The storage servers, in order."""
        return [
            one for name, one in self.machines.items() if name.startswith("s") and name != SWITCH
        ]

    @property
    def nodes(self) -> list[Machine]:
        """The compute nodes, in order."""
        return [one for name, one in self.machines.items() if name.startswith("n")]

    @property
    def switch(self) -> Machine:
        """What joins them."""
        return self.machines[SWITCH]

    @property
    def manager(self) -> Machine:
        """The machine of monitors and metadata, whose cable has no limit."""
        return self.machines[MANAGER]

    @property
    def hosts(self) -> Path:
        """The names of all machines, as /etc/hosts."""
        return self.folder / "hosts"

    def boot(self, machine: Machine) -> None:
        """Begin a machine and lay its cable."""
        machine.boot()
        rate = {"s": self.rate, "n": self.node_rate}.get(machine.name[0], "")
        machine.plug(self.switch, "" if machine is self.manager else rate)
        machine.dress(self.hosts)

    def save(self) -> None:
        """Keep what is needed to find the machines again."""
        rows = [{**vars(one), "folder": str(one.folder)} for one in self.machines.values()]
        own = {"rate": self.rate, "node_rate": self.node_rate, "mount": str(self.mount)}
        text = json.dumps({**own, "file_system": self.file_system, "machines": rows}, indent=1)
        (self.folder / "cluster.json").write_text(text)

    @classmethod
    def load(cls, folder: Path) -> Cluster:
        """Return the cluster that is up; raises ClusterError."""
        try:
            kept = json.loads((folder / "cluster.json").read_text())
        except FileNotFoundError:
            raise ClusterError("no cluster is up: begin one with `cluster.py up`") from None
        rows = [Machine(**{**row, "folder": Path(row["folder"])}) for row in kept["machines"]]
        machines = {one.name: one for one in rows}
        cluster = cls(folder, machines, kept["rate"], kept["node_rate"], Path(kept["mount"]))
        cluster.file_system = kept["file_system"]
        return cluster

    def down(self) -> None:
        """End all machines, and remove what they kept."""
        for machine in self.machines.values():
            machine.end()
        until("machines that were ended still run", lambda: not any(map(is_alive, self._pids())))
        while _launched:
            _launched.pop().wait()
        shutil.rmtree(self.folder)

    def _pids(self) -> Sequence[int]:
        return [one.pid for one in self.machines.values() if one.pid]


def is_alive(pid: int) -> bool:
    """Return whether a process runs: not one that has ended and nobody asked about."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def begin(
    folder: Path, *, servers: int, nodes: int, rate: str, node_rate: str, mount: Path
) -> Cluster:
    """Boot and join all machines; no file system yet. Raises ClusterError."""
    need({"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"})
    if (folder / "cluster.json").exists():
        raise ClusterError("a cluster is up already: end it with `cluster.py down`")
    folder.mkdir(parents=True, exist_ok=True)
    mount.mkdir(parents=True, exist_ok=True)
    places = {SWITCH: 254, MANAGER: 1}
    places |= {f"s{k}": 10 + k for k in range(1, servers + 1)}
    places |= {f"n{k}": 30 + k for k in range(1, nodes + 1)}
    machines = {
        name: Machine(name, f"{NETWORK}.{place}", folder / name) for name, place in places.items()
    }
    cluster = Cluster(folder, machines, rate, node_rate, mount)
    lines = [f"{one.address} {one.name}" for one in machines.values()]
    cluster.hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    try:
        cluster.switch.boot()
        bridge = ("nsenter", "-t", str(cluster.switch.pid), "-n", "ip", "link")
        said(*bridge, "add", "br0", "type", "bridge")
        said(*bridge, "set", "br0", "up")
        for machine in machines.values():
            if machine is not cluster.switch:
                cluster.boot(machine)
    except BaseException:
        cluster.down()
        raise
    cluster.save()
    return cluster
