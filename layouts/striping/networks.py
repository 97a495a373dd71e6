"""Which file systems lie behind a network."""

from __future__ import annotations

__all__ = ["is_network"]

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
    "wekafs",
}
"""As the table of mounts names them."""
LOCAL_FUSE = {"fuse", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuseblk"}


def is_network(file_system: str) -> bool:
    """Return whether a file system of this type lies behind a network.

    Those that run as processes (MooseFS, sshfs, CephFS' own, ...) do, but for a few.
    """
    return file_system in NETWORKS or (
        file_system.startswith("fuse") and file_system not in LOCAL_FUSE
    )
