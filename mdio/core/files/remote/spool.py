"""Where an output is built on this machine that is sent to a store: one run's alone."""

from __future__ import annotations

import getpass
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mdio.core.errors import OutputError
from mdio.core.files.temporaries import try_lock

LOCK = "lock"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder() -> Path:
    """Return the folder for what is to be sent, which is this user's alone."""
    folder = Path(tempfile.gettempdir(), f"mdio-{getpass.getuser()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OutputError(f"{folder}: it belongs to somebody else; set TMPDIR to a folder of yours")
    if status.st_mode & OTHERS_WRITE:
        raise OutputError(f"{folder}: others may write there; take that right away (chmod go-w)")
    return folder


@contextmanager
def alone(folder: Path, goal: Path) -> Iterator[None]:
    """Have `folder`, in which `goal` is built; raises OutputError: another run has it."""
    lock = folder / LOCK
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if try_lock(fd) is False:
            os.close(fd)
            raise OutputError(
                f"{goal}: another run on this machine writes it; wait until that is done"
            )
        with suppress(FileNotFoundError):  # of a run that has just ended
            if os.path.samestat(os.fstat(fd), lock.stat()):
                break
        os.close(fd)
    try:
        yield
    finally:
        with suppress(OSError):  # what a run has left stays
            if [one.name for one in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder)
        os.close(fd)
