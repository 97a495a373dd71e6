"""BeeGFS: stripes of files, read and set with ``beegfs-ctl``.

BeeGFS documentation, "Striping": a pattern belongs to a folder, and files and folders made in it
inherit it. So a single file is made in a folder of its own with the pattern, and then moved out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from mdio.layouts.striping.stripes import Striping, run_program

SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_CHUNK = re.compile(r"^\+ Chunksize: *(\d+)([KMG]?)i?B? *$", re.MULTILINE | re.IGNORECASE)
_TARGETS = re.compile(r"^\+ Number of storage targets: *(?:desired: *)?(\d+)", re.MULTILINE)
_POOL = re.compile(r"^\+ Storage Pool: *(\d+)", re.MULTILINE)


def parse_entry_info(output: str) -> Striping | None:
    """Parse the output of ``beegfs-ctl --getentryinfo`` (BeeGFS 6 and 7; 8 with ``--retro``).

    Returns Striping or None: None if the text lacks the chunk size or the number of targets.
    """
    chunk, targets, pool = (pattern.search(output) for pattern in (_CHUNK, _TARGETS, _POOL))
    if chunk is None or targets is None:
        return None
    nbytes = int(chunk[1]) * SIZE_UNITS[chunk[2].lower()]
    ctl_options = f"--chunksize={nbytes} --numtargets={targets[1]}"
    return Striping(nbytes, int(targets[1]), ctl_options, None if pool is None else pool[1])


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return the stripes of `path` (for a folder, of new files in it); never raises."""
    output, failure = run_program("beegfs-ctl", "--getentryinfo", os.fspath(path))
    return None if failure else parse_entry_info(output)


def set_stripe(
    path: str | PathLike[str],
    stripe_nbytes: int,
    stripe_count: int | None,
    progressive: Sequence[tuple[int, int]],
) -> str | None:
    """See `mdio.layouts.striping.file_systems.set_stripe`; return why it failed, or None."""
    if progressive:
        return "BeeGFS has no progressive layouts"
    if stripe_count == -1:
        return "BeeGFS has no word for all targets; give a number"
    output = Path(path)
    targets = [] if stripe_count is None else [f"--numtargets={stripe_count}"]
    folder = output if output.is_dir() else output.with_name(f"{output.name}.stripes")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        return f"{folder.name} cannot be made ({error.strerror})"
    arguments = ("--setpattern", f"--chunksize={stripe_nbytes}", *targets, os.fspath(folder))
    _, reason = run_program("beegfs-ctl", *arguments)
    if folder != output:
        with contextlib.suppress(OSError):
            if reason is None:
                (folder / output.name).touch()
                (folder / output.name).rename(output)
            folder.rmdir()
    return reason
