"""The miniature cluster: begin it, run programs on it, break it, take it down.

    python bench/cluster/cluster.py up          # 4 servers of 200 Mbit/s, 4 nodes, CephFS
    python bench/cluster/cluster.py run 8 .venv-mpi/bin/mdio analyze ... --mpi
    python bench/cluster/cluster.py cold        # empty the caches of all nodes
    python bench/cluster/cluster.py kill s3     # a server's object store, or a node's power
    python bench/cluster/cluster.py start s3
    python bench/cluster/cluster.py status
    python bench/cluster/cluster.py down

Needs root; says what else is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cephfs import CephFS, is_mounted
from machines import Cluster, ClusterError, begin, is_alive

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("MDIO_CLUSTER", Path(tempfile.gettempdir()) / "mdio-cluster"))
MOUNT = Path("/mnt/mdio-cluster")

LAUNCHER = """#!/bin/sh
# What mpiexec calls in place of ssh: LAUNCHER [OPTIONS] ADDRESS COMMAND...
while case $1 in -*) true;; *) false;; esac; do shift; done
case $1 in
{cases}
*) echo "no node $1" >&2; exit 1;;
esac
shift
exec nsenter -t $pid -n -u -i -m -p --wd="$PWD" -- /bin/sh -c "$*"
"""


def launcher(cluster: Cluster) -> Path:
    """Write the script by which mpiexec reaches the nodes, and return its path."""
    cases = "\n".join(f"{node.address}) pid={node.pid};;" for node in cluster.nodes)
    path = cluster.folder / "launch.sh"
    path.write_text(LAUNCHER.format(cases=cases))
    path.chmod(0o755)
    return path


def on_ranks(cluster: Cluster, n_ranks: int, command: list[str], n_nodes: int = 0) -> list[str]:
    """Return the command that runs `command` on ranks dealt to the nodes in turn.

    mpiexec runs on the manager's cable with the process numbers of the host, so that its launcher
    finds the nodes.
    """
    nodes = cluster.nodes[: min(n_nodes or len(cluster.nodes), n_ranks)]
    hosts = ",".join(node.address for node in nodes)
    at_manager = ["nsenter", "-t", str(cluster.manager.pid), "-n", "-u", "--"]
    launch = ["-launcher", "ssh", "-launcher-exec", str(launcher(cluster)), "-iface", "eth0"]
    spread = ["-hosts", hosts, "-ppn", "1", "-n", str(n_ranks)]
    return [*at_manager, "mpiexec.mpich", *launch, *spread, *command]


def mpi_environment() -> dict[str, str]:
    """Return the environment for MPI programs: TCP over the cables, one thread a rank."""
    own = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "TMPDIR": "/var/tmp"}
    return {**os.environ, **own, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def cold(cluster: Cluster) -> None:
    """Empty the caches of all nodes: a new mount each."""
    for node in cluster.nodes:
        CephFS(cluster).mount(node)
    cluster.save()


def kill(cluster: Cluster, name: str) -> None:
    """End a server's object store, or a whole node, without warning."""
    machine = cluster.machines[name]
    if machine in cluster.servers:
        machine.kill("store")
    else:
        machine.end()
    cluster.save()


def start(cluster: Cluster, name: str) -> None:
    """Bring back what `kill` ended."""
    machine = cluster.machines[name]
    if machine in cluster.servers:
        CephFS(cluster).start_store(int(name[1:]))
    else:
        if not is_alive(machine.pid):
            cluster.boot(machine)
        CephFS(cluster).mount(machine)
    cluster.save()


def up(args: argparse.Namespace) -> Cluster:
    """Begin machines and file system; what was begun is taken down again if that fails."""
    begun = time.monotonic()
    sizes = {"servers": args.servers, "nodes": args.nodes}
    rates = {"rate": args.rate, "node_rate": args.node_rate}
    cluster = begin(FOLDER, **sizes, **rates, mount=MOUNT)
    try:
        CephFS(cluster).up()
        cluster.file_system = CephFS.name
        cluster.save()
    except BaseException:
        cluster.down()
        raise
    seconds = time.monotonic() - begun
    parts = f"{args.servers} servers of {args.rate}, {args.nodes} nodes, CephFS on {MOUNT}"
    print(f"{parts}: up in {seconds:.0f} s")
    return cluster


def show(cluster: Cluster) -> None:
    """Print what runs where."""
    for machine in cluster.machines.values():
        runs = is_alive(machine.pid)
        where = (
            is_mounted(machine, str(cluster.mount)) if runs and machine in cluster.nodes else None
        )
        mounted = {None: "", True: "mounted", False: "NOT MOUNTED"}[where]
        daemons = ", ".join(
            f"{name} {'runs' if Path(f'/proc/{pid}').exists() else 'has ended'}"
            for name, pid in machine.daemons.items()
        )
        state = "up" if runs else "DOWN"
        print(f"{machine.name:8} {machine.address:12} {state:5} {mounted} {daemons}")


def main() -> int:
    """Do what the command line asks; 1 if something is missing or went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    begins = commands.add_parser("up")
    begins.add_argument("--servers", type=int, default=4)
    begins.add_argument("--nodes", type=int, default=4)
    begins.add_argument("--rate", default="200mbit", help="of each server's cable")
    begins.add_argument("--node-rate", default="", help="of each node's cable; no limit by default")
    for name in ("down", "cold", "status"):
        commands.add_parser(name)
    for name in ("kill", "start"):
        commands.add_parser(name).add_argument("machine")
    runs = commands.add_parser("run")
    runs.add_argument("ranks", type=int)
    runs.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    try:
        if args.command == "up":
            up(args)
            return 0
        cluster = Cluster.load(FOLDER)
        if args.command == "run":
            command = on_ranks(cluster, args.ranks, args.words)
            return subprocess.run(command, env=mpi_environment(), check=False).returncode
        if args.command in ("kill", "start"):
            {"kill": kill, "start": start}[args.command](cluster, args.machine)
        else:
            {"down": Cluster.down, "cold": cold, "status": show}[args.command](cluster)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
