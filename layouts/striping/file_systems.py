"""The table of striping file systems, and reading and setting stripes through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType

from mdio.core.files.store import file_system_type
from mdio.layouts.striping import beegfs, cephfs, lustre
from mdio.layouts.striping.stripes import (
    StripeRecord,
    Striping,
    stripe_record,
    stripe_request,
)

ONE_WRITER = {"ceph", "fuse.ceph-fuse"}
"""Where a client keeps what it writes to a file only while no other writes to it: of several, each
waits for the servers with every write (Ceph documentation, "Capabilities in CephFS")."""


def has_one_writer(file_system: str) -> bool:
    """Return whether a file is written fastest if only one machine writes to it."""
    return file_system in ONE_WRITER


STRIPING: Mapping[str, ModuleType] = {
    "lustre": lustre,
    "ceph": cephfs,
    "fuse.ceph-fuse": cephfs,
    "beegfs": beegfs,
}
"""By the kernel's name of the type."""


def lies_on_its_stripes(file_system: str) -> bool:
    """Return whether a file lies on as many servers as it has stripes: CephFS spreads it anyway."""
    system = STRIPING.get(file_system)
    return system is not None and bool(system.STRIPES_ARE_SERVERS)


WITHOUT = {
    "nfs": "NFS does not tell how its server stripes files: all are read from that one",
    "fuse.mfs": "MooseFS keeps every 64 MiB of a file whole on one server, and no stripes can be "
    "set: what is smaller is read from one server, larger or more files from several",
    "cifs": "SMB does not tell how its server stripes files: all are read from that one",
    "fuse.sshfs": "sshfs reads all files from one server, and has no stripes",
    "fuse.glusterfs": "GlusterFS keeps each file whole on one server, unless it was set up to "
    "shard: more files are read from more servers",
}
"""Notes on stripes for types of file systems where none can be set."""
SAME = {
    "nfs4": "nfs",
    "smb3": "cifs",
    "smbfs": "cifs",
    "glusterfs": "fuse.glusterfs",
    "fuse.mfsmount": "fuse.mfs",
    "fuse.moosefs": "fuse.mfs",
}


def _type(path: str | PathLike[str]) -> str:
    type_name = file_system_type(path)
    return SAME.get(type_name, type_name)


def unstriped(path: str | PathLike[str]) -> str | None:
    """Return a note on stripes at `path`; None where they can be set, or do not matter."""
    return WITHOUT.get(_type(path))


def stripes(path: str | PathLike[str]) -> bool:
    """Return whether `path` lies, or will lie, on a file system whose stripes can be asked for."""
    return _type(path) in STRIPING


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return the stripes of `path` (for a folder, of new files in it).

    None where that cannot be known. Never raises.
    """
    system = STRIPING.get(_type(path))
    striping: Striping | None = None if system is None else system.get_stripe(path)
    return striping


def set_stripe(
    path: str | PathLike[str],
    stripe_nbytes: int,
    stripe_count: int | None = None,
    progressive: Sequence[tuple[int, int]] | None = None,
) -> StripeRecord:
    """Ask for a file that does not exist yet to be striped, or for the files to come in a folder.

    As `mdio.layouts.striping.lustre.set_stripe`, which is asked too where the type of the file
    system says nothing. Never raises: a refusal is in the record.
    """
    kind = _type(path)
    if kind in WITHOUT:
        request = stripe_request(stripe_nbytes, stripe_count, progressive)
        return stripe_record(Path(path), request, None, WITHOUT[kind])
    system = STRIPING.get(kind, lustre)
    applied: StripeRecord = system.set_stripe(path, stripe_nbytes, stripe_count, progressive)
    return applied
