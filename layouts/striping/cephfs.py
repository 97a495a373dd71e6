"""CephFS: stripes of files, read and set as extended attributes.

Ceph documentation, "File layouts": a file is cut into stripe units, which are dealt to
`stripe_count` objects in turn until each has `object_size` bytes; then come the next objects.
Objects are placed on servers by a hash of their names, so "count" is a number of objects, of which
two may lie on one server. A file's layout is set while it is empty; a folder's layout applies to
files made in it from then on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from mdio.layouts.striping.stripes import Striping, remove_empty

OBJECT_NBYTES = 64 << 20
"""Size of objects that are filled in turn; by default servers take objects up to 128 MiB."""


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return the stripes of `path` (for a folder, of new files in it).

    A folder without a layout of its own has that of the nearest folder above it with one. None
    where it is unknown, or no layout was set. Never raises.
    """
    target = Path(path).absolute()
    if not target.is_dir():
        return _read_layout(target, "ceph.file.layout")
    for folder in (target, *target.parents):
        striping = _read_layout(folder, "ceph.dir.layout")
        if striping is not None:
            return striping
    return None


def _read_layout(path: Path, attribute: str) -> Striping | None:
    try:
        text = os.getxattr(path, attribute).decode("ascii", "replace").strip("\0 \n")
    except OSError:
        return None
    values = dict(setting.split("=", 1) for setting in text.split() if "=" in setting)
    try:
        nbytes, count = int(values["stripe_unit"]), int(values["stripe_count"])
    except (KeyError, ValueError):
        return None
    return Striping(nbytes, count, text, values.get("pool")) if nbytes > 0 else None


def set_stripe(
    path: str | PathLike[str],
    stripe_nbytes: int,
    stripe_count: int | None,
    progressive: Sequence[tuple[int, int]],
) -> str | None:
    """See `mdio.layouts.striping.file_systems.set_stripe`; return why it failed, or None."""
    if progressive:
        return "CephFS has no progressive layouts"
    if stripe_count == -1:
        return "CephFS does not say how many servers there are; give the number of stripes"
    target = Path(path)
    attribute = "ceph.dir.layout" if target.is_dir() else "ceph.file.layout"
    count = stripe_count or 1
    # With one object at a time, a new one for each unit spreads the file over all servers.
    object_nbytes = (
        stripe_nbytes if count == 1 else max(1, OBJECT_NBYTES // stripe_nbytes) * stripe_nbytes
    )
    layout = f"stripe_unit={stripe_nbytes} stripe_count={count} object_size={object_nbytes}"
    is_new_file = not target.exists()
    try:
        if is_new_file:
            target.touch()
        os.setxattr(target, attribute, layout.encode())
    except OSError as error:
        if is_new_file:
            remove_empty(target)
        return f"CephFS refuses {layout} ({error.strerror})"
    return None
