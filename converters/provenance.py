"""What every way of making an output needs: where it comes from, and room for it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from mdio.core.errors import OutputError
from mdio.core.files.fingerprint import fingerprint
from mdio.core.frames import AtomIndices, Stretch, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.layouts.continuing.continuation import Continuation
from mdio.layouts.writer import NotFinite, OutputMeta


@dataclass(frozen=True)
class Appended:
    """An output that another one continues, and takes the place of."""

    continuation: Continuation
    source: Mapping[str, Any]
    frames: Sequence[Sequence[int]]
    """What the new one says of its source, and of the frames it has of it."""
    not_finite: NotFinite | None = None
    """What is in the units that are taken over."""

    def meta(self, meta: OutputMeta) -> OutputMeta:
        """Return what the new one says of itself."""
        uuid = self.continuation.manifest["uuid"]
        recipe = self.continuation.manifest.get("recipe", {})
        return replace(
            meta,
            source=self.source,
            frames=self.frames,
            not_finite=self.not_finite,
            appended_to=uuid,
            recipe={k: v for k, v in recipe.items() if k not in ("stop", "end_ps")},
        )


def check_room(out: Path, nbytes: float, folder: Path) -> None:
    """Refuse at once what cannot fit on the disk of `folder`, where it is built."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise OutputError(
            f"{out}: needs {nbytes:.0f} bytes, but only {free} are free in {folder}; "
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
    joined: Mapping[str, Any] | None = None,
    opened: Mapping[str, Any] | None = None,
    topology: Topology | None = None,
    unreadable: Sequence[Sequence[int]] | None = None,
    stretches: Sequence[Stretch] = (),
) -> OutputMeta:
    """Return what an output says of its source.

    `paths`: the source's files. `source`: what is in them, joined. `dt_ps`, `frames`, `atoms`,
    `groups`: what is kept; see `OutputMeta`. `transformed`: the ``--pbc`` and ``--center`` that
    frames went through; None = none. `joined`: how the files were joined, if not just as given.
    `opened`: what they were said to be, where they do not say it themselves. `topology`: of the
    atoms that are kept, if the output is to hold it. `unreadable`: runs of frames that were left
    out since they cannot be read. `stretches`: what of these may be several frames.
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
            "n_atoms": source.n_atoms,
            "transformed": transformed,
            **({"lost": [asdict(one) for one in source.lost]} if source.lost else {}),
            **({} if joined is None else {"joined": joined}),
            **({"opened": opened} if opened else {}),
            **({"unreadable_frames": unreadable} if unreadable else {}),
            **({"unreadable_stretches": list(map(asdict, stretches))} if stretches else {}),
            **({"made_up": list(source.made_up)} if source.made_up else {}),
        },
        dt_ps=dt_ps,
        frames=frames,
        atoms=atoms,
        groups=groups,
        topology=topology,
    )
