"""CephFS on the machines: monitor, manager and metadata on one, an object store on each server.

Facts tried with Ceph 16.2: pools are made when all object stores are up, since placement groups of
a late one stay "laggy" and writes hang without an error; objects larger than 4 GiB - 1 make a store
refuse to start again; the client's readahead is off, so that what is measured is the program's own.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from machines import Cluster, ClusterError, Machine, need, until

PROGRAMS = {
    "ceph-mon": "ceph-mon",
    "ceph-mgr": "ceph-mgr",
    "ceph-osd": "ceph-osd",
    "ceph-mds": "ceph-mds",
    "ceph-fuse": "ceph-fuse",
    "ceph": "ceph-common",
    "monmaptool": "ceph-common",
    "setfattr": "attr",
}
DISK_GIB = 12
"""Of each object store, as a sparse file."""
UP_S = 60.0
STRIPES = {
    "one": "stripe_unit=4194304 stripe_count=1 object_size=1073741824",
    "default": "stripe_unit=4194304 stripe_count=1 object_size=4194304",
    "fine": "stripe_unit=1048576 stripe_count=1 object_size=1048576",
    "all": "stripe_unit=1048576 stripe_count={servers} object_size=1073741824",
}
"""How files of a folder lie on the servers: on one, in objects placed by a hash, in small ones (by
which new files lie evenly), on all."""
PLACING_FILES, PLACING_ROUNDS = 8, 15
N_GROUPS = 64
WORD = (1 << 32) - 1

CONFIG = """
[global]
fsid = {fsid}
mon_host = [v2:{address}:3300,v1:{address}:6789]
public_network = {network}/24
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_bind_ipv6 = false
ms_crc_data = false
run_dir = {folder}
admin_socket = {folder}/$name.asok
pid_file = {folder}/$name.pidfile
crash_dir = {folder}/crash
log_file = {folder}/$name.log
log_to_stderr = false
err_to_stderr = true
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
[mon]
mon_data = {folder}/manager/mon
mon_osd_down_out_interval = 600
auth_allow_insecure_global_id_reclaim = false
[mgr]
mgr_data = {folder}/manager/mgr
mgr_initial_modules =
[mds]
mds_data = {folder}/manager/mds
mds_cache_memory_limit = 256M
[osd]
osd_data = {folder}/s$id/osd
osd_max_object_size = 4294967295
osd_objectstore = bluestore
osd_memory_target = 1073741824
osd_memory_cache_min = 134217728
bluestore_block_create = true
bluestore_block_size = {disk_nbytes}
bluestore_block_wal_path =
bluestore_block_db_path =
bluestore_fsck_on_mount = false
[client]
admin_socket = {folder}/$name.$pid.$cctid.asok
client_oc_size = 67108864
client_readahead_max_bytes = 0
"""


class CephFS:
    """The file system of a cluster."""

    name = "cephfs"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.config = cluster.folder / "ceph.conf"

    def ceph(self, *words: str) -> str:
        """Run ``ceph`` on the manager and return what it prints."""
        limit = ("--connect-timeout", "20")
        return self.cluster.manager.run("ceph", "-c", str(self.config), *limit, *words)

    def up(self) -> None:
        """Make and start it, and mount it on every node; raises ClusterError."""
        need(PROGRAMS)
        cluster, manager = self.cluster, self.cluster.manager
        fsid = str(uuid.uuid4())
        values = {
            "fsid": fsid,
            "address": manager.address,
            "network": manager.address.rpartition(".")[0] + ".0",
            "folder": cluster.folder,
            "disk_nbytes": DISK_GIB << 30,
        }
        self.config.write_text(CONFIG.format(**values))
        for name in ("mgr", "mds"):
            (manager.folder / name).mkdir()
        (cluster.folder / "crash").mkdir()
        address = f"[v2:{manager.address}:3300,v1:{manager.address}:6789]"
        monitors = str(cluster.folder / "monitors")
        create = ("--create", "--fsid", fsid, "--addv", "a", address, monitors)
        manager.run("monmaptool", *create)
        self._make(manager, "ceph-mon", "-i", "a", "--mkfs", "--monmap", monitors)
        self._start(manager, "mon", "ceph-mon", "-i", "a")
        self._start(manager, "mgr", "ceph-mgr", "-i", "x")
        for number, server in enumerate(cluster.servers, 1):
            (server.folder / "osd").mkdir()
            own = str(uuid.uuid4())
            self.ceph("osd", "new", own, str(number))
            self._make(server, "ceph-osd", "-i", str(number), "--mkfs", "--osd-uuid", own)
            self.start_store(number)
        wanted = f" {len(cluster.servers)} up"
        until("object stores are not up", lambda: wanted in self.ceph("osd", "stat"), UP_S)
        self._start(manager, "mds", "ceph-mds", "-i", "m")
        for pool, n_groups in (("data", N_GROUPS), ("meta", 8)):
            self.ceph("osd", "pool", "create", pool, str(n_groups))
        self._balance()
        self.ceph("fs", "new", "shared", "meta", "data")
        until("no metadata server", lambda: "up:active" in self.ceph("mds", "stat"), UP_S)
        for node in cluster.nodes:
            self.mount(node)
        self._look()

    def start_store(self, number: int) -> None:
        """Start the object store of a server, from its own disk."""
        server = self.cluster.machines[f"s{number}"]
        self._start(server, "store", "ceph-osd", "-i", str(number))

    def mount(self, node: Machine) -> None:
        """Mount it on one node; again, with empty caches, if it is mounted."""
        where = str(self.cluster.mount)
        node.run("umount", where, check=False)
        old = node.daemons.get("client")
        if old is not None:
            until(
                f"{node.name}: the client does not end", lambda: not Path(f"/proc/{old}").exists()
            )
        self._start(node, "client", "ceph-fuse", where)
        until(
            f"{node.name}: no mount ({node.last_words('client')})",
            lambda: is_mounted(node, where),
        )

    def make_folder(self, name: str, stripes: str) -> Path:
        """Make a folder in which files are striped as `STRIPES` has it; return its path."""
        folder = self.cluster.mount / name
        node = self.cluster.nodes[0]
        node.run("mkdir", "-p", str(folder))
        layout = STRIPES[stripes].format(servers=len(self.cluster.servers))
        node.run("setfattr", "-n", "ceph.dir.layout", "-v", layout, str(folder))
        found = node.run("getfattr", "-n", "ceph.dir.layout", "--only-values", str(folder))
        if layout not in found:
            raise ClusterError(f"{folder}: its layout is {found!r}, not {layout!r}")
        return folder

    def place_files(self, files: Sequence[Path]) -> None:
        """Make empty files whose first stripes lie on different servers, as Lustre would.

        Objects are placed by a hash of the file's number: of many files some fit.
        """
        node = self.cluster.nodes[0]
        left = list(files)
        for _ in range(PLACING_ROUNDS):
            tries = [f"{left[0]}.{k}" for k in range(PLACING_FILES * len(left))]
            node.run("touch", *tries)
            stores = self.stores_of(*tries)
            fits = [name for name in tries if len(set(stores[name])) == len(self.cluster.servers)]
            moves = [f"mv '{fit}' '{left.pop(0)}'" for fit in fits[: len(left)]]
            node.run("sh", "-c", "; ".join([*moves, f"rm -f '{tries[0][:-1]}'*"]))
            if not left:
                return
        raise ClusterError(f"{left[0]}: no file in {PLACING_ROUNDS} rounds lies on all servers")

    def stores_of(self, *files: str) -> dict[str, list[int]]:
        """Return which object store holds each of the first objects of files."""
        numbers = self.cluster.nodes[0].run("stat", "-c", "%i", *files).split()
        groups = self._groups()
        return {
            file: [
                groups[f"{object_hash(f'{int(number):x}.{k:08x}') % N_GROUPS:x}"]
                for k in range(len(self.cluster.servers))
            ]
            for file, number in zip(files, numbers, strict=True)
        }

    def _balance(self) -> None:
        """Give every store as many placement groups, as a cluster that is looked after has it."""
        self.ceph("osd", "set-require-min-compat-client", "luminous")
        # A pool is there at once, its groups find their stores in the seconds after.
        until("no stores for all data", lambda: len(self._groups()) == N_GROUPS, UP_S)
        pool = self._pool()
        held = {k: [] for k in range(1, len(self.cluster.servers) + 1)}
        for group, store in self._groups().items():
            held[store].append(group)
        while (
            len(held[most := max(held, key=lambda k: len(held[k]))])
            - len(held[least := min(held, key=lambda k: len(held[k]))])
            > 1
        ):
            group = held[most].pop()
            held[least].append(group)
            self.ceph("osd", "pg-upmap", f"{pool}.{group}", str(least))

    def _pool(self) -> int:
        """Return the number of the pool of data."""
        stats = json.loads(self.ceph("osd", "pool", "stats", "data", "-f", "json"))
        return int(stats[0]["pool_id"])

    def _groups(self) -> dict[str, int]:
        """Return which store holds each placement group of data that has one by now."""
        found = json.loads(self.ceph("pg", "dump", "pgs_brief", "-f", "json"))["pg_stats"]
        rows = [(*row["pgid"].split("."), row["acting"]) for row in found]
        pool = str(self._pool())
        return {group: stores[0] for of, group, stores in rows if of == pool and stores}

    def _look(self) -> None:
        """Prove that what one node writes, the others read."""
        first, mark = self.cluster.nodes[0], self.cluster.mount / ".mark"
        first.run("sh", "-c", f"echo whole > {mark}")
        for node in self.cluster.nodes:
            if node.run("cat", str(mark)).strip() != "whole":
                raise ClusterError(f"{node.name} does not see what {first.name} wrote")
        first.run("rm", str(mark))

    def _make(self, machine: Machine, program: str, *words: str) -> None:
        machine.run(program, "-c", str(self.config), *words)

    def _start(self, machine: Machine, name: str, program: str, *words: str) -> None:
        machine.start(name, program, "-c", str(self.config), "-f", *words)


def object_hash(name: str) -> int:
    """Return the number by which Ceph puts an object into one of 2**n placement groups.

    Bob Jenkins, "Hash functions for hash table lookup" (1997), as in Ceph's ``ceph_hash.cc``.
    """
    data = name.encode()
    a = b = 0x9E3779B9
    c = 0
    whole = len(data) - len(data) % 12
    for at in range(0, whole, 12):
        a, b, c = _mixed(
            *(x + y for x, y in zip((a, b, c), _words(data[at : at + 12]), strict=True))
        )
    x, y, z = _words(data[whole:].ljust(8, b"\0"))
    return _mixed(a + x, b + y, c + (z << 8) + len(data))[2]


def _words(data: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c) & WORD
        a ^= c >> first
        b = (b - c - a) & WORD
        b ^= (a << second) & WORD
        c = (c - a - b) & WORD
        c ^= b >> third
    return a, b, c


def is_mounted(node: Machine, where: str) -> bool:
    """Return whether something is mounted there, as the node sees it."""
    try:
        mounts = Path(f"/proc/{node.pid}/mounts").read_text()
    except OSError as error:
        raise ClusterError(f"{node.name} does not run any more") from error
    return any(os.fsdecode(line.split()[1]) == where for line in mounts.splitlines())
