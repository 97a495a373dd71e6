"""Whether the output of a conversion is there already, as the conversion would make it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from mdio.converters.options import ConvertResult
from mdio.converters.strategies.job import Job
from mdio.converters.strategies.topology import holds
from mdio.core.topology.topology import Topology
from mdio.layouts.backend import made_as
from mdio.layouts.manifest import manifest_of
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import open_layout

DIFFERS = ("uuid", "created", "has_box", "not_finite", "manifest_crc32c", "stripe", "recipe")
"""What two outputs of the same conversion need not have in common, or is compared apart."""
STRIPE = ("stripe_nbytes", "stripe_count")
DIVISION = ("piece_frames", "n_files")
"""What follows from who worked at it."""


def complete(job: Job, plan: LayoutPlan, *, copies: bool) -> ConvertResult | None:
    """Return the result of a conversion whose output is there already; None if it is not.

    It is the same if its manifest is the one that the conversion would write: the state of all
    source files, frames, atoms, steps, sizes and version; if its arrays are cut the same way, and
    the topologies inside and beside it are the same. What has no manifest is never taken for it,
    nor what was moved with the bonds of a topology file, whose state outputs do not hold.

    `job`, `plan`: the conversion. `copies`: whether frames are copied as bytes.
    """
    begun = time.perf_counter()
    follows = job.appended or job.repairs or job.options.running.growing
    moved = bool(job.transformed and job.choice.files)
    if follows or moved or not os.path.lexists(job.out):
        return None
    try:
        with open_layout(job.out) as layout:
            manifest, made, topology = layout.manifest, made_as(layout), layout.topology()
            nbytes = layout.info.nbytes
    except OSError:
        return None
    wanted: dict[str, Any] = json.loads(json.dumps(manifest_of(plan, job.meta())))
    same = (
        manifest is not None
        and all(manifest.get(key) == value for key, value in wanted.items() if key not in DIFFERS)
        and all(manifest["stripe"].get(key) == wanted["stripe"][key] for key in STRIPE)
        and "parts" not in manifest
        and manifest.get("container") == plan.container
        and manifest.get("flavour") == plan.flavour
        and all(getattr(plan, key) == value for key, value in made.items() if key not in DIVISION)
        and _bytes(topology) == _bytes(job.topology)
        and all(holds(path, data) for path, data in job.beside.items())
    )
    if not same:
        return None
    return ConvertResult(
        out=str(job.out),
        layout=plan.layout,
        n_frames=plan.n_frames,
        n_atoms=plan.n_atoms,
        nbytes_in=job.nbytes_in,
        nbytes_out=nbytes,
        seconds=time.perf_counter() - begun,
        workers=1,
        plan=plan,
        copied=copies,
        topologies=tuple(map(str, job.beside)),
        found_complete=True,
    )


def _bytes(topology: Topology | None) -> bytes | None:
    return None if topology is None else topology.to_bytes()
