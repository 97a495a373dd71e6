"""What is to be made, and of what: strategies are asked whether they are the one for it."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from mdio.converters.options import ConversionOptions, ConvertResult
from mdio.converters.selection import AtomChoice
from mdio.converters.storage import StripeRequest
from mdio.core.errors import OutputError, SourceError
from mdio.core.files.fingerprint import fingerprint
from mdio.core.files.marks import read_regular
from mdio.core.files.turns import State
from mdio.core.frames import AtomIndices, FrameBlock, Stretch, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.layouts.base import Layout
from mdio.layouts.continuation import Continuation
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import output_suffixes
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter, NotFinite, OutputMeta


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
    files = {"path": prints[0]["path"], "files": prints} if len(prints) > 1 else {}
    files = prints[0] if len(prints) == 1 else files  # frames in memory are of no file
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


def topology_files(
    choice: AtomChoice, out: Path, sources: Sequence[Path] = (), first: FrameBlock | None = None
) -> dict[Path, bytes]:
    """Return the topology files that belong beside `out`, and what is to be in each.

    One for the kept atoms where only some are kept, and one for each group, with the coordinates
    of the output's first frame; none where no topology was given. Outputs that share their stem
    (``md.zarr`` and ``md.h5md``) share a topology if it is the same; where another one has the name
    and may belong to another output, the name gets the suffix of `out` too (``md.h5md.top.pdb``).

    `choice`: what is kept. `out`: the output. `sources`: what is converted: no outputs, even if
    they share the stem. `first`: the first frame, (1, kept atoms), where it is not the source's.
    Returns dict of path to bytes: ``NAME.top.pdb`` and ``NAME.GROUP.top.pdb``; ``.gro`` where the
    coordinates do not fit the columns of a PDB file.
    """
    wanted: list[str | None] = [] if choice.kept is None else [None]
    wanted += choice.groups
    made = {}
    with _placed(choice.atom_group(), first):
        files = [_topology(choice, group) for group in wanted]
    for group, (suffix, data) in zip(wanted, files, strict=True):
        ending = f".{group}.top{suffix}" if group else f".top{suffix}"
        path = out.with_name(out.stem + ending)
        if os.path.lexists(path) and not file_has(path, data) and _has_namesakes(out, sources):
            path = out.with_name(out.name + ending)
        made[path] = data
    return made


def file_has(path: Path, data: bytes) -> bool:
    """Return whether a file is there, and has these bytes."""
    with suppress(OSError):  # the name may be too long for a file
        return path.is_file() and read_regular(path) == data
    return False


def _has_namesakes(out: Path, sources: Sequence[Path]) -> bool:
    """Return whether trajectories besides `out` have its stem."""
    names = {out.stem + suffix for suffix in output_suffixes()} - {out.name}
    there = [out.with_name(name) for name in names if os.path.lexists(out.with_name(name))]
    given = {os.path.realpath(source) for source in sources}
    return any(os.path.realpath(path) not in given for path in there)


@contextmanager
def _placed(atoms: Any, first: FrameBlock | None) -> Iterator[None]:
    """Have atoms meanwhile where a frame has them."""
    if first is None:
        yield
        return
    positions, box = atoms.positions, atoms.dimensions
    atoms.positions, atoms.dimensions = first.positions[0], first.box[0]
    try:
        yield
    finally:
        atoms.positions, atoms.dimensions = positions, box


def _topology(choice: AtomChoice, group: str | None) -> tuple[str, bytes]:
    """Return the suffix and the bytes of a topology."""
    atoms = choice.atom_group(group)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PDB fields that the topology lacks are filled in
        for suffix in (".pdb", ".gro"):
            written = Path(folder, f"topology{suffix}")
            try:
                atoms.write(str(written))
            except ValueError:
                if suffix == ".gro":
                    raise
            else:
                break
        return suffix, written.read_bytes()


SUMS = ("file_crc32c", "column_crc32c", "table_crc32c", "segments", "piece_checksums")
"""Keys of a manifest under which checksums are, directly or of tables of them."""


@dataclass
class Repairs:
    """An output, and what the repaired one says of itself."""

    former: Layout
    """Opened without verifying, since what it says is compared one by one."""
    meta: OutputMeta
    manifest: Mapping[str, Any]
    """Of the former output."""
    made: Mapping[str, Any]
    """What fields of the plan are to be; see `Layout.made_as`."""

    def compare(self, manifest: Mapping[str, Any]) -> None:
        """Compare all checksums of the repaired output with those of the former one.

        Raises SourceError: they differ: what was written again is not what was there.
        """
        for key in SUMS:
            if key in self.manifest and manifest.get(key) != self.manifest[key]:
                raise SourceError(
                    f"{self.former.path}: this source does not give the checksums that the output "
                    "was written with, so nothing was changed; give the source (and the topology) "
                    "that it was made from, or convert again"
                )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be made, of what, and how."""

    out: Path
    files: Sequence[Path]
    """Of the source."""
    view: ViewLayout
    """The frames and atoms that are kept."""
    choice: AtomChoice
    plan: LayoutPlan
    writer: type[LayoutWriter]
    options: ConversionOptions
    striping: StripeRequest
    nbytes_in: int
    transformed: Mapping[str, Any] | None = None
    joined: Mapping[str, Any] | None = None
    topology: Topology | None = None
    """Of the atoms that are kept, if the output is to hold it."""
    appended: Appended | None = None
    """What it continues, and takes the place of."""
    repairs: Repairs | None = None
    """Of which output this is a repair."""
    stretches: Sequence[Stretch] = ()
    """Of the frames that cannot be read, those that may be several."""
    former: State | None = None
    """Of the output that it takes the place of, from before it was read; None in stores."""

    def meta(self) -> OutputMeta:
        """Return what the output says of itself."""
        made = output_meta(
            self.files,
            self.view.source.info,
            dt_ps=self.view.info.dt_ps,
            frames=self.view.runs,
            atoms=self.choice.kept,
            groups=self.choice.groups,
            transformed=self.transformed,
            joined=self.joined,
            opened=self.options.sources.source_options,
            topology=self.topology,
            unreadable=self.view.unreadable,
            stretches=self.stretches,
        )
        return replace(made, frame_data=self.view.frame_data(), recipe=self.options.recipe())

    def result(self, plan: LayoutPlan, **done: Any) -> ConvertResult:
        """Return what is told of the output, which lies as `plan` says, and of what was `done`."""
        return ConvertResult(
            out=str(self.out),
            layout=plan.layout,
            n_frames=plan.n_frames,
            n_atoms=plan.n_atoms,
            nbytes_in=self.nbytes_in,
            plan=plan,
            **done,
        )

    @cached_property
    def beside(self) -> dict[Path, bytes]:
        """The topologies that belong beside the output, with its first frame.

        Those of what is repaired are there.
        """
        if self.repairs or self.choice.universe is None:
            return {}
        first = None
        if self.transformed or (len(self.view.frames) and self.view.frames[0]):
            first = self.view.read(0, 1)
        return topology_files(self.choice, self.out, self.files, first)
