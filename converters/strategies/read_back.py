"""A last look at an output before it gets its name: does it open, and hold what was planned?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import OutputError
from mdio.core.files.index import index_paths
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.remote.places import at_once
from mdio.core.files.temporaries import TEMPORARY
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import layout_class

Look = Callable[[Mapping[str, Any]], None]

LOOKS = 4
"""Chunks or segments of which a frame is read, the first and the last among them."""


def read_back(path: Path, plan: LayoutPlan, look: Look | None = None) -> None:
    """Open what was written to a temporary `path`, and read some of it.

    Opening checks the manifest and the tables; reading, the checksums of what is read. `verify`
    reads all, but would take as long as any other pass over the trajectory. `look` is called with
    the manifest, and may raise.

    Raises OutputError: it is not as planned, or cannot be read.
    """
    try:
        with layout_class(plan.layout)(path) as layout:
            found = (layout.info.n_frames, layout.info.n_atoms)
            edges = layout.boundaries()
            if found == (plan.n_frames, plan.n_atoms):
                firsts = edges[np.linspace(0, len(edges) - 2, LOOKS).round().astype(int)]
                *some, last = np.unique(firsts).tolist()
                if isinstance(path, RemotePath):
                    _read_at_once(path, plan, [*some, plan.n_frames - 1])
                else:
                    for at in sorted({*some, last, plan.n_frames - 1}):
                        layout.read(at, at + 1)
            manifest = layout.manifest
    except OSError as error:
        raise _failed(path, str(error)) from error
    finally:
        with suppress(OSError):
            next(index_paths(path)).unlink()  # under the name of the temporary
    if found != (plan.n_frames, plan.n_atoms):
        raise _failed(path, f"{found[0]} frames of {found[1]} atoms in it")
    if look is not None and manifest is not None:
        look(manifest)


def _read_at_once(path: Path, plan: LayoutPlan, frames: Sequence[int]) -> None:
    """Read frames, each with a layout of its own: stores answer late."""

    def read(layout: Layout, at: int) -> None:
        layout.prefetch([(at, at + 1)])
        layout.read(at, at + 1)

    with ExitStack() as stack:  # what one has asked for the others have, until it is closed
        layouts = [stack.enter_context(layout_class(plan.layout)(path)) for _ in frames]
        at_once(*(partial(read, one, at) for one, at in zip(layouts, frames, strict=True)))


def _failed(path: Path, what: str) -> OutputError:
    name, what = (TEMPORARY.sub(r"\1", text) for text in (str(path), what))
    return OutputError(
        f"{name}: it does not read back as it was written ({what}), so it was not put in place; "
        "check the disk and convert again"
    )
