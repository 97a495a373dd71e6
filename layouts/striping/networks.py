"""Which file systems lie behind a network."""

from __future__ import annotations

NETWORKS = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "orangefs",
    "panfs",
    "pvfs2",
    "smb3",
    "smbfs",
    "store",
    "wekafs",
}
"""As the table of mounts names them, and stores of objects."""
ONE_WRITER = {"ceph", "fuse.ceph-fuse"}
"""Where a client keeps what it writes to a file only while no other writes to it: of several, each
waits for the servers with every write (Ceph documentation, "Capabilities in CephFS")."""
LOCAL_FUSE = {"fuse", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuseblk"}


def is_network(file_system: str) -> bool:
    """Return whether a file system of this type lies behind a network.

    Those that run as processes (MooseFS, sshfs, CephFS' own, ...) do, but for a few.
    """
    return file_system in NETWORKS or (
        file_system.startswith("fuse") and file_system not in LOCAL_FUSE
    )


def has_one_writer(file_system: str) -> bool:
    """Return whether a file is written fastest if only one machine writes to it."""
    return file_system in ONE_WRITER
