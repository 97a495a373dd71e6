"""How the first long read of a file begins, for the sake of all later ones.

Linux reads ahead of a program that goes through a file, in pieces that grow, and keeps the larger
pieces in larger runs of memory (folios, from ext4 and XFS). But what a program asks for with its
very first call it gets page by page, however much that is: a file whose first megabytes are read at
once lies scattered in memory, and copying from there takes twice as long ever after, also for other
programs. So the first calls are short (``mm/readahead.c`` of Linux 6: the first window has order 0,
each that follows a higher one). Nothing but that depends on it, and where files come over a network
(Lustre, NFS) every call waits for a server: there they are left as they are.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

WITH_FOLIOS = {"ext4", "xfs"}
"""File systems on disks of the machine itself."""
MOUNTS = "/proc/self/mountinfo"

RAMP_NBYTES = (64 << 10, 64 << 10, 128 << 10, 256 << 10)
"""Bytes of the first calls, one after the other."""
LONG_NBYTES = sum(RAMP_NBYTES)
"""Reads of fewer bytes are left as they are."""


@cache
def devices_with_folios(mountinfo: str = MOUNTS) -> frozenset[int]:
    """Return the devices (``st_dev``) whose files are kept in folios.

    `mountinfo`: the kernel's table of mounts (proc(5)).
    """
    try:
        lines = Path(mountinfo).read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    devices = set()
    for line in lines:
        mount, _, system = line.partition(" - ")
        if system.split(" ", 1)[0] in WITH_FOLIOS:
            major, _, minor = mount.split()[2].partition(":")
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)


def read_with_ramp_up(fd: int, target: memoryview, offset: int) -> int:
    """Begin to fill `target` with the bytes of a file from `offset` on.

    `fd`: of which nothing as long has been read before. `target`: bytes, writable. `offset`: where
    in the file they are.
    Returns int: how many bytes of `target` have been read: none if it is short or the file on
    another file system, fewer than intended at the end of the file. The caller reads the rest.
    Raises OSError: as the system has it.
    """
    if len(target) < LONG_NBYTES or os.fstat(fd).st_dev not in devices_with_folios():
        return 0
    done = 0
    for nbytes in RAMP_NBYTES:
        n_read = os.preadv(fd, [target[done : done + nbytes]], offset + done)
        done += n_read
        if n_read < nbytes:
            break
    return done
