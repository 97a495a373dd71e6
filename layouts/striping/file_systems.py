"""The table of striping file systems, and reading and setting stripes through it.

Striping only makes an output faster, so a file system that refuses it or does not answer stops no
conversion. The output's manifest records the stripes requested, the stripes applied, and why the
two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from types import ModuleType
from typing import Any, TypedDict

from mdio.core.files.store import file_system_type
from mdio.layouts.striping import beegfs, cephfs, lustre
from mdio.layouts.striping.stripes import Striping


class StripeRecord(TypedDict):
    """Stripes requested and stripes applied, as plain values for a manifest."""

    asked: dict[str, Any]
    applied: dict[str, Any] | None
    """Stripes that the file system reports afterwards; None where none were applied."""
    reason: str | None
    """Why `applied` differs from `asked`; None if it does not."""
    file_system: str


ONE_WRITER_SYSTEMS = {"ceph", "fuse.ceph-fuse"}
"""File systems where a client buffers its writes to a file only while no other client writes to it;
otherwise every write waits for the servers (Ceph documentation, "Capabilities in CephFS")."""


def favours_one_writer(file_system: str) -> bool:
    """Return whether a file is written fastest by a single machine."""
    return file_system in ONE_WRITER_SYSTEMS


STRIPING_MODULES: Mapping[str, ModuleType] = {
    "lustre": lustre,
    "ceph": cephfs,
    "fuse.ceph-fuse": cephfs,
    "beegfs": beegfs,
}
"""Modules by the kernel's name of the file system type."""


def has_server_per_stripe(file_system: str) -> bool:
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


def _system_type(path: str | PathLike[str]) -> str:
    type_name = file_system_type(path)
    return TYPE_ALIASES.get(type_name, type_name)


def no_stripes_note(path: str | PathLike[str]) -> str | None:
    """Return a note on why stripes cannot be set at `path`; None if they can, or do not matter."""
    return NO_STRIPES_NOTES.get(_system_type(path))


def has_stripes(path: str | PathLike[str]) -> bool:
    """Return whether `path`, which need not exist, is on a file system whose stripes can be set."""
    return _system_type(path) in STRIPING_MODULES


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return the stripes of `path` (for a folder, of new files in it).

    None where they are unknown. Never raises.
    """
    system = STRIPING_MODULES.get(_system_type(path))
    striping: Striping | None = None if system is None else system.get_stripe(path)
    return striping


def set_stripe(
    path: str | PathLike[str],
    stripe_nbytes: int,
    stripe_count: int | None = None,
    progressive: Sequence[tuple[int, int]] | None = None,
) -> StripeRecord:
    """Ask for a new file, or for the files to come in a folder, to be striped.

    A file is made, empty, with its layout, and later to be opened without O_EXCL (truncation does
    not change the layout). `stripe_nbytes`: Lustre wants multiples of 65,536. `stripe_count`:
    targets; -1 = all, None = the file system's default. `progressive`: components of a progressive
    layout (Lustre) before the last one, as (end in bytes, stripe count); the last has
    `stripe_count`, to the end of the file. Never raises: a refusal is in the record. Unknown types
    are taken for Lustre.
    """
    request: dict[str, Any] = {"stripe_nbytes": stripe_nbytes, "stripe_count": stripe_count}
    if progressive:
        request["progressive"] = [list(part) for part in progressive]
    type_name, applied = _system_type(path), None
    reason = NO_STRIPES_NOTES.get(type_name)
    if reason is None:
        system = STRIPING_MODULES.get(type_name, lustre)
        reason = system.set_stripe(path, stripe_nbytes, stripe_count, progressive or ())
        applied = system.get_stripe(path) if reason is None else None
    if reason is None:
        reason = (
            "the stripes were set, but the file system does not show them"
            if applied is None
            else _difference_text(applied, stripe_nbytes, stripe_count)
        )
    return stripe_record(path, request, applied, reason)


def stripe_record(
    path: str | PathLike[str],
    request: dict[str, Any],
    applied: Striping | None,
    reason: str | None,
) -> StripeRecord:
    """Return a record for a manifest; `request` is empty where nothing was requested."""
    return StripeRecord(
        asked=request,
        applied=None if applied is None else asdict(applied),
        reason=reason,
        file_system=file_system_type(path),
    )


def _difference_text(applied: Striping, stripe_nbytes: int, stripe_count: int | None) -> str | None:
    if applied.stripe_nbytes != stripe_nbytes:
        return f"the stripe size is {applied.stripe_nbytes}, not {stripe_nbytes}"
    if stripe_count is not None and stripe_count > 0 and applied.stripe_count != stripe_count:
        return f"the stripe count is {applied.stripe_count}, not {stripe_count}"
    return None
