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
"""File systems where a client buffers its writes to a file only while no other client writes to it;
otherwise every write waits for the servers (Ceph documentation, "Capabilities in CephFS")."""


def has_one_writer(file_system: str) -> bool:
    """Return whether a file is written fastest by a single machine."""
    return file_system in ONE_WRITER


STRIPING: Mapping[str, ModuleType] = {
    "lustre": lustre,
    "ceph": cephfs,
    "fuse.ceph-fuse": cephfs,
    "beegfs": beegfs,
}
"""Modules by the kernel's name of the file system type."""


def stripes_are_servers(file_system: str) -> bool:
    """Return whether a file is on as many servers as it has stripes; CephFS may use more."""
    return file_system in ("lustre", "beegfs")


NO_STRIPES_NOTES = {
    "nfs": "NFS does not tell how its server stripes files: all are read from that one",
    "fuse.mfs": "MooseFS keeps every 64 MiB of a file whole on one server, and no stripes can be "
    "set: what is smaller is read from one server, larger or more files from several",
    "cifs": "SMB does not tell how its server stripes files: all are read from that one",
    "fuse.sshfs": "sshfs reads all files from one server, and has no stripes",
    "fuse.glusterfs": "GlusterFS keeps each file whole on one server, unless it was set up to "
    "shard: more files are read from more servers",
}
"""Notes on stripes for types of file systems where none can be set."""
TYPE_ALIASES = {
    "nfs4": "nfs",
    "smb3": "cifs",
    "smbfs": "cifs",
    "glusterfs": "fuse.glusterfs",
    "fuse.mfsmount": "fuse.mfs",
    "fuse.moosefs": "fuse.mfs",
}


def _type(path: str | PathLike[str]) -> str:
    type_name = file_system_type(path)
    return TYPE_ALIASES.get(type_name, type_name)


def no_stripes_note(path: str | PathLike[str]) -> str | None:
    """Return a note on why stripes cannot be set at `path`; None if they can, or do not matter."""
    return NO_STRIPES_NOTES.get(_type(path))


def has_stripes(path: str | PathLike[str]) -> bool:
    """Return whether `path`, which need not exist, is on a file system whose stripes can be set."""
    return _type(path) in STRIPING


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return the stripes of `path` (for a folder, of new files in it).

    None where they are unknown. Never raises.
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

    As `mdio.layouts.striping.lustre.set_stripe`, which is also tried on file systems of unknown
    type. Never raises: a refusal is in the record.
    """
    type_name = _type(path)
    if type_name in NO_STRIPES_NOTES:
        request = stripe_request(stripe_nbytes, stripe_count, progressive)
        return stripe_record(Path(path), request, None, NO_STRIPES_NOTES[type_name])
    system = STRIPING.get(type_name, lustre)
    applied: StripeRecord = system.set_stripe(path, stripe_nbytes, stripe_count, progressive)
    return applied
