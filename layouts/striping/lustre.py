"""Lustre: stripes of files, read and set with ``lfs``, and hints on them for MPI-IO.

Formats of ``lfs getstripe``: the Lustre manual, and the output of Lustre 1.8 to 2.15.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from mdio.core.errors import PlanError
from mdio.layouts.striping.stripes import Striping, remove_empty, run_program

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan

_SETTING = re.compile(
    r"(?<![\w.])(?:lmm_)?(stripe_count|stripe_size|pattern|pool):[ \t]*(\S+)"
    r"|(?<!\w)lcme_(extent\.e_start|extent\.e_end):[ \t]*(\S+)"
)


def parse_getstripe(output: str) -> Striping | None:
    """Parse the output of ``lfs getstripe`` for one file or folder.

    `output`: plain or YAML (``-y``), of any version since 1.8: one line for a folder
    (``stripe_count: 1 stripe_size: 1048576 ...``), a line for each value of a file
    (``lmm_stripe_count: 1``), with components if the layout is composite (``lcme_extent.e_start:
    0``). Of a mirrored file the first mirror counts, of a progressive layout the last component;
    components on the metadata server (data on MDT) are left out of size and count. Returns None if
    these are not in the text.
    """
    components: list[dict[str, str]] = []
    for match in _SETTING.finditer(output):
        key = match[1] or match[3]
        value = match[2] or match[4]
        if key == "extent.e_start" or (key in (components[-1] if components else {})):
            if key == "extent.e_start" and value == "0" and components:
                break  # the second mirror begins at 0 again
            if key != "extent.e_start" and "extent.e_start" not in components[-1]:
                break  # a second file: old versions list a folder's files after the folder
            components.append({})
        elif not components:
            components.append({})
        components[-1][key] = value
    texts, last = [], None
    for component in components:
        try:
            nbytes, count = int(component["stripe_size"]), int(component["stripe_count"])
        except (KeyError, ValueError):
            return None
        if nbytes < 1 or count < -1:
            return None
        end = component.get("extent.e_end")
        text = "" if end is None else f"-E {'-1' if end == 'EOF' else end} "
        if "mdt" in component.get("pattern", ""):
            texts.append(text + "-L mdt")
            continue
        pool = component.get("pool")
        overstriped = "overstriped" in component.get("pattern", "")
        text += f"-S {nbytes} {'-C' if overstriped else '-c'} {count}"
        texts.append(text + (f" -p {pool}" if pool else ""))
        last = (nbytes, count, pool)
    return None if last is None else Striping(last[0], last[1], " ".join(texts), last[2])


def get_stripe(path: str | PathLike[str]) -> Striping | None:
    """Return the stripes of `path` (for a folder, of new files in it).

    None where they are unknown: no Lustre, no ``lfs``, or an answer in an unknown format. Never
    raises.
    """
    folder = ["-d"] if Path(path).is_dir() else []
    output, failure = run_program("lfs", "getstripe", *folder, os.fspath(path))
    return None if failure else parse_getstripe(output)


def set_stripe(
    path: str | PathLike[str],
    stripe_nbytes: int,
    stripe_count: int | None,
    progressive: Sequence[tuple[int, int]],
) -> str | None:
    """See `mdio.layouts.striping.file_systems.set_stripe`; return why it failed, or None."""
    target = Path(path)
    is_new_file = not target.exists()
    count_arguments = [] if stripe_count is None else ["-c", str(stripe_count)]
    size_arguments = ["-S", str(stripe_nbytes)]
    arguments = []
    for end, count in progressive:
        arguments += ["-E", str(end), *size_arguments, "-c", str(count)]
    arguments += [*(["-E", "-1"] if progressive else []), *size_arguments, *count_arguments]
    _, reason = run_program("lfs", "setstripe", *arguments, os.fspath(path))
    if reason is not None and is_new_file:
        remove_empty(target)
    return reason


def mpi_io_hints(plan: LayoutPlan, extra: Iterable[str] = ()) -> dict[str, str]:
    """Return the hints for MPI.Info with which a planned file should be opened for writing.

    Names and values are those of ROMIO's users' guide; other libraries ignore unknown hints. Where
    chunks begin on stripe boundaries, every rank writes whole stripes of its own, and gathering
    them in aggregators first would only copy them; otherwise aggregators put the ranks' parts
    together. Data sieving (read a range, change it, write it back, under a lock) is off for
    writing: no chunk is written in part. `extra`: ``KEY=VALUE`` texts (``--hint``), which take
    precedence.
    """
    aligned = plan.stripes.alignment_nbytes > 1 and plan.compression is None and not plan.is_rounded
    hints = {
        "striping_unit": str(plan.stripes.stripe_nbytes),
        "romio_cb_write": "disable" if aligned else "enable",
        "romio_cb_read": "automatic",
        "romio_ds_write": "disable",
        "romio_ds_read": "automatic",
    }
    if plan.stripes.stripe_count is not None and plan.stripes.stripe_count > 0:
        hints["striping_factor"] = hints["cb_nodes"] = str(plan.stripes.stripe_count)
    for text in extra:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise PlanError(f"--hint {text}: give KEY=VALUE, such as cb_nodes=8")
        hints[key.strip()] = value.strip()
    return hints
