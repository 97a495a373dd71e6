"""A job: the output to make, its source and options, by which a strategy is chosen."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from mdio.converters.options import ConversionOptions, ConvertResult
from mdio.converters.selection import MAX_CONECT_SERIAL, SelectedAtoms
from mdio.core.errors import OutputError, SourceError
from mdio.core.files.checks import first_bytes, read_regular
from mdio.core.files.fingerprint import fingerprint
from mdio.core.files.locks import State
from mdio.core.files.store import to_path
from mdio.core.frames import FrameBlock, Stretch
from mdio.core.kernels import crc32c
from mdio.core.topology import Topology
from mdio.core.words import MAX_RUNS
from mdio.layouts.base import Layout
from mdio.layouts.continuation import Continuation
from mdio.layouts.foreign.universe import topology_of
from mdio.layouts.manifest import stored_transformations
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import open_layout, output_suffixes
from mdio.layouts.views.chain import chain_joined
from mdio.layouts.views.joining import Joining
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter, NotFinite, OutputMeta


@dataclass(frozen=True)
class ExtendedOutput:
    """An existing output that the new one continues and replaces."""

    continuation: Continuation
    source: Mapping[str, Any]
    frames: Sequence[Sequence[int]]
    """The new manifest's ``source``, and ``frames`` of it."""
    runs: Sequence[tuple[Layout, int, int]]
    """Runs of frames of the new output: of the existing one, and of sources."""
    not_finite: NotFinite | None = None
    """Coordinates that are not finite in the units that stay."""

    def meta(self, meta: OutputMeta) -> OutputMeta:
        """Return the metadata of the new output."""
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

    def expected_view(self, out: Path) -> ViewLayout:
        """Return what the new output, at `out`, should hold, to compare it with.

        Frames of the old output, which it has replaced, are those of the new one itself.
        """
        new, members, parts, n_before = open_layout(out), [], [], 0
        for number, (layout, start, stop) in enumerate(self.runs):
            is_old, n_frames = layout is self.continuation.old, stop - start
            members.append(new if is_old else layout)
            first = n_before if is_old else start
            parts.append((number, first, first + n_frames))
            n_before += n_frames
        return ViewLayout(out, source=chain_joined(members, Joining(tuple(parts), changes=True)))


def topology_file_contents(
    selected_atoms: SelectedAtoms, out: Path, sources: Sequence[Path], first: FrameBlock | None
) -> dict[Path, bytes]:
    """Return the topology files beside `out` by path: of the atoms, and of each group.

    Outputs with one stem (``md.zarr`` and ``md.h5md``) share a topology file if they have the same
    topology. If another file has its name, and is not an earlier topology of `out` alone (`out` is
    new, others have its stem, or mdio did not write the file), the name gets the suffix of `out`
    too (``md.h5md.top.pdb``).

    `sources`: the source's files, which are no outputs even if they have the stem. `first`: the
    output's first frame, whose positions and box the files get; None = those of the source's first
    frame, which the Universe has.
    Raises OutputError: a file that mdio did not write has the longer name, too.
    """
    groups: list[str | None] = [] if selected_atoms.atoms is None else [None]
    groups += selected_atoms.groups
    contents = {}
    if first is not None:
        atoms = selected_atoms.atom_group()
        atoms.positions, atoms.dimensions = first.positions[0], first.box[0]
    for group in groups:
        suffix, data = _write_topology(selected_atoms, group)
        ending = f".{group}.top{suffix}" if group else f".top{suffix}"
        path, longer_path = (out.with_name(name + ending) for name in (out.stem, out.name))
        if _has_other_contents(path, data) and (
            not (exists_or_is_link(out) and _is_by_mdio(path))
            or exists_or_is_link(longer_path)
            or _has_namesakes(out, sources)
        ):
            path = longer_path
            if _has_other_contents(path, data) and not _is_by_mdio(path):
                raise OutputError(
                    f"{path}: not a topology that mdio wrote, so it is not replaced by that of "
                    f"{out.name}; move it elsewhere or choose another name for the output"
                )
        contents[path] = data
    return contents


def exists_or_is_link(path: Path) -> bool:
    """Return whether something has this name, even a dangling link."""
    return path.is_symlink() or path.exists()


def _has_other_contents(path: Path, data: bytes) -> bool:
    """Return whether a file exists and has other bytes than these."""
    return exists_or_is_link(path) and not file_has(path, data)


def _is_by_mdio(path: Path) -> bool:
    """Return whether a file is a topology with the title that `_write_topology` gives it."""
    with suppress(OSError):
        return TOPOLOGY_TITLE in first_bytes(path, 80)
    return False


def file_has(path: Path, data: bytes) -> bool:
    """Return whether a file exists and has these bytes."""
    with suppress(OSError):  # the name may be too long for a file
        return path.is_file() and read_regular(path) == data
    return False


def _has_namesakes(out: Path, sources: Sequence[Path]) -> bool:
    """Return whether trajectories besides `out` and `sources` have its stem."""
    names = {out.stem + suffix for suffix in output_suffixes()} - {out.name}
    existing = [out.with_name(name) for name in names if exists_or_is_link(out.with_name(name))]
    source_paths = {os.path.realpath(source) for source in sources}
    return any(os.path.realpath(path) not in source_paths for path in existing)


TOPOLOGY_TITLE = b"Topology written by mdio\n"


def _write_topology(selected_atoms: SelectedAtoms, group: str | None) -> tuple[str, bytes]:
    atoms = selected_atoms.atom_group(group)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PDB fields that the topology lacks are filled in
        for suffix in (".pdb", ".gro"):
            path = Path(folder, f"topology{suffix}")
            try:
                atoms.write(str(path), **({"bonds": None} if suffix == ".pdb" else {}))
            except ValueError:
                if suffix == ".gro":
                    raise
            else:
                break
        _, _, body = path.read_bytes().partition(b"\n")  # the first line is a title
        if suffix == ".pdb":
            body = body.removesuffix(b"END\n") + _bonds_of_pdb(atoms) + b"END\n"
        return suffix, (b"TITLE     " if suffix == ".pdb" else b"") + TOPOLOGY_TITLE + body


def _bonds_of_pdb(atoms: Any) -> bytes:
    """Return the lines of bonds as MDAnalysis writes them, but without a request for each atom."""
    if not hasattr(atoms.universe, "bonds"):
        return b""
    bonds = atoms.intra_bonds
    not_guessed = ~np.asarray(bonds._guessed, bool)  # public attributes have it bond by bond
    numbers = dict(zip(atoms.ix.tolist(), range(1, len(atoms) + 1), strict=True))
    bonded: dict[int, list[int]] = defaultdict(list)
    for pair in np.unique(bonds.to_indices()[not_guessed], axis=0).tolist():
        for one, other in (pair, pair[::-1]):
            bonded[one].append(numbers[other])
    if any(numbers[atom] > MAX_CONECT_SERIAL for atom in bonded):
        return b""
    lines = (
        "".join(f"{number:5d}" for number in (numbers[atom], *sorted(others)))
        for atom, others in sorted(bonded.items())
    )
    return "".join(f"CONECT{line}\n" for line in lines).encode()


CHECKSUM_KEYS = ("file_crc32c", "column_crc32c", "table_crc32c", "segments", "piece_checksums")
"""Keys of a manifest with checksums, or checksums of tables of them."""


@dataclass
class RepairedOutput:
    """An output to repair, and the metadata of the repaired one."""

    former: Layout
    """Opened without verifying: its checksums are compared one by one."""
    meta: OutputMeta
    manifest: Mapping[str, Any]
    plan_values: Mapping[str, Any]
    """Fields that the plan must have; see `mdio.layouts.backend.plan_fields`."""

    def compare(self, manifest: Mapping[str, Any]) -> None:
        """Raise SourceError if checksums of the repaired output and of the former one differ."""
        for key in CHECKSUM_KEYS:
            names = list(_differing_names(self.manifest.get(key, {}), manifest.get(key, {})))
            if names:
                problem = "this source does not give"
                advice = "give the source (and the topology) that it was made from, or convert"
                without_steps = self.former.stored_times.step_is_frame_number
                if without_steps and "files" in manifest["source"]:
                    problem = "several DCD or NetCDF files, added one by one, may not give"
                    advice = "if these are its sources, convert them"
                raise SourceError(
                    f"{self.former.path}: {problem} the checksums that the output was written "
                    f"with ({', '.join(names[:MAX_RUNS])}), so nothing was changed; {advice} again"
                )


def _differing_names(old: Any, new: Any) -> Iterator[str]:
    """Yield the names under which tables of checksums, or lists of segments, differ."""
    if isinstance(old, Mapping):
        yield from (name for name in old if new.get(name) != old[name])
    else:
        for number, (old_segment, new_segment) in enumerate(zip_longest(old, new)):
            if old_segment != new_segment:
                yield f"segment {number}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """An output to make: path, source, selection, plan and options."""

    out: Path
    files: Sequence[Path]
    """Files of the source."""
    view: ViewLayout
    """The frames and atoms to convert."""
    selected_atoms: SelectedAtoms
    plan: LayoutPlan
    writer: type[LayoutWriter]
    options: ConversionOptions
    nbytes_in: int
    """Bytes of the source."""
    transformed: Mapping[str, Any] | None = None
    """Options of the `TransformedLayout` in `view`, if there is one."""
    joined: Mapping[str, Any] | None = None
    """How the files were joined, if they were not joined as given."""
    topology: Topology | None = None
    """Topology of the atoms to convert, if the output stores it."""
    extended: ExtendedOutput | None = None
    """The output that it continues and replaces."""
    repaired: RepairedOutput | None = None
    """The output that it repairs."""
    unreadable_stretches: Sequence[Stretch] = ()
    """Damaged bytes in which several frames may be lost."""
    former_state: State | None = None
    """State of the output that it replaces, before it was read; None in stores."""
    min_nbytes: float = 0.0
    """Bytes that integers take at least when they are packed again; 0 = unknown."""

    @property
    def other_files(self) -> list[Path]:
        """The topology and the reference of a fit, where they are files."""
        files = (self.options.sources.top, (self.transformed or {}).get("fit_reference"))
        return [to_path(file) for file in files if isinstance(file, str | PathLike)]

    @cached_property
    def universe_crc32c(self) -> int | None:
        """Checksum of a Universe on which coordinates depend; None where a file was given."""
        top = self.options.sources.top
        if not self.transformed or top is None or isinstance(top, str | PathLike):
            return None
        return crc32c(topology_of(top, None).to_bytes())

    def meta(self) -> OutputMeta:
        """Return the metadata of the output."""
        view, source = self.view, self.view.source.info
        fingerprints = [fingerprint(path) for path in self.files]
        files: dict[str, Any] = {}  # frames in memory have none
        if fingerprints:
            files = fingerprints[0]
        if len(fingerprints) > 1:
            files = {"path": files["path"], "files": fingerprints}
        optional_values = {
            "treated": stored_transformations(source.source),
            "lost": list(map(asdict, source.lost)),
            "joined": self.joined,
            "opened": self.options.sources.source_options,
            "used": [fingerprint(path) for path in self.other_files if self.transformed],
            "unreadable_frames": view.unreadable,
            "unreadable_stretches": list(map(asdict, self.unreadable_stretches)),
            "made_up": list(source.made_up),
        }
        return OutputMeta(
            uuid=str(uuid4()),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            source={
                **files,
                "layout": source.layout,
                "n_frames": source.n_frames,
                "n_atoms": source.n_atoms,
                "transformed": self.transformed,
                **{name: value for name, value in optional_values.items() if value},
            },
            dt_ps=view.info.dt_ps,
            frames=view.runs,
            atoms=self.selected_atoms.atoms,
            groups=self.selected_atoms.groups,
            topology=self.topology,
            frame_data=view.frame_data(),
            recipe=self.options.recipe(),
        )

    def result(self, plan: LayoutPlan, **fields: Any) -> ConvertResult:
        """Return the result of writing the output as `plan` says; `fields`: its other fields."""
        return ConvertResult(
            out=str(self.out),
            layout=plan.layout,
            n_frames=plan.n_frames,
            n_atoms=plan.n_atoms,
            nbytes_in=self.nbytes_in,
            plan=plan,
            **fields,
        )

    @cached_property
    def topology_files(self) -> dict[Path, bytes]:
        """Contents of the topology files beside the output; none for a repair: they exist."""
        if self.repaired or self.selected_atoms.universe is None:
            return {}
        first = None
        if self.transformed or (len(self.view.frames) and self.view.frames[0]):
            first = self.view.read(0, 1)
        return topology_file_contents(self.selected_atoms, self.out, self.files, first)
