"""What every way of making an output needs: where it comes from, and room for it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from mdio.core.errors import OutputError
from mdio.core.files.fingerprint import fingerprint
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import AtomIndices
from mdio.layouts.writer import OutputMeta

__all__ = ["check_room", "output_meta"]


def check_room(out: Path, nbytes: int) -> None:
    """Refuse at once what cannot fit on the disk."""
    free = shutil.disk_usage(out.absolute().parent).free
    if nbytes > free:
        raise OutputError(
            f"{out}: needs {nbytes} bytes, but only {free} are free there; "
            "free some space, choose another folder, or use --precision or --select"
        )


def output_meta(
    paths: Sequence[Path],
    source: TrajectoryInfo,
    *,
    dt_ps: float,
    frames: Sequence[Sequence[int]],
    atoms: AtomIndices | None = None,
    groups: Mapping[str, AtomIndices] | None = None,
    transformed: Mapping[str, Any] | None = None,
    striping: Mapping[str, Any] | None = None,
    joined: Mapping[str, Any] | None = None,
) -> OutputMeta:
    """Return what an output says of its source.

    Parameters
    ----------
    paths
        The source's files.
    source
        What is in them, joined.
    dt_ps, frames, atoms, groups
        What is kept; see `OutputMeta`.
    transformed
        The ``--pbc`` and ``--center`` that frames went through; None = none.
    striping
        What was asked of Lustre, and what was applied.
    joined
        How the files were joined, if not just as given.
    """
    prints = [fingerprint(path) for path in paths]
    files = prints[0] if len(prints) == 1 else {"path": prints[0]["path"], "files": prints}
    return OutputMeta(
        uuid=str(uuid4()),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source={
            **files,
            "layout": source.layout,
            "n_frames": source.n_frames,
            "transformed": transformed,
            **({"lost": [asdict(one) for one in source.lost]} if source.lost else {}),
            **({} if joined is None else {"joined": joined}),
        },
        dt_ps=dt_ps,
        frames=frames,
        atoms=atoms,
        groups=groups,
        striping=striping,
        source_precision=source.precision if source.xtc_integers else None,
    )
