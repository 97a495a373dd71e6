"""Continues a conversion from its journal, and finds an output that is complete already."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from mdio._version import __version__
from mdio.converters.options import ConvertResult
from mdio.converters.strategies.job import Job, file_has
from mdio.core.errors import CorruptLayoutError, OutputError
from mdio.core.files.fingerprint import content_of, fingerprint, is_unchanged_source
from mdio.core.files.journal import Journal, Record, describe_change, describe_changed_options
from mdio.core.files.locks import TEMPORARY
from mdio.core.files.publish import output_errors
from mdio.core.files.writing import flush
from mdio.core.frames import TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.core.topology import Topology
from mdio.layouts.backend import plan_fields
from mdio.layouts.manifest import build_manifest
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import open_layout
from mdio.layouts.writer import LayoutWriter, NotFinite, OutputMeta, PieceRecord

NOT_IDENTIFYING = {
    "notes",
    "direct",
    "by_owner",
    "nbytes",
    "n_files",
    "n_pieces",
    "n_writes",
    "piece_frames",
}
"""Fields of a plan that do not change the output, or depend on others."""
WORKER_FIELDS = ("segment_frames", "piece_frames", "n_files", "nbytes")
"""Fields of a plan that depend on the workers."""
VERIFIED_NBYTES = 64 << 20
"""Bytes of pieces stored last that are verified though they were flushed."""


def conversion_identity(
    meta: OutputMeta,
    plan: LayoutPlan,
    topology: Sequence[Path] = (),
    universe_crc32c: int | None = None,
) -> dict[str, Any]:
    """Return plain values that must be equal for a conversion to be continued.

    Among them is the recipe, which need not be equal: messages on other values take from it the
    options that differ.
    """
    atom_choices = {"kept": meta.atoms}
    atom_choices |= {f"group {name}": atoms for name, atoms in (meta.groups or {}).items()}
    values = {
        "version of mdio": __version__,
        "source": meta.source,
        "topology": universe_crc32c or [fingerprint(path) for path in topology],
        "atoms": {name: _atoms_text(atoms) for name, atoms in atom_choices.items()},
        "plan": {
            name: value for name, value in plan.to_json().items() if name not in NOT_IDENTIFYING
        },
        "frames": meta.frames,
        "recipe": meta.recipe or {},
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def _atoms_text(atoms: NDArray[np.int64] | None) -> str | None:
    """Return a text that identifies chosen atoms."""
    if atoms is None:
        return None
    return f"{len(atoms):,} atoms, checksum {crc32c(np.ascontiguousarray(atoms, '<i8')):08x}"


def first_record(identity: Mapping[str, Any], meta: OutputMeta, plan: LayoutPlan) -> dict[str, Any]:
    """Return the values of the first record of a journal."""
    return {
        "of": identity,
        "n_frames": plan.n_frames,
        "uuid": meta.uuid,
        "created": meta.created,
        "striping": meta.striping,
        "division": {name: getattr(plan, name) for name in WORKER_FIELDS},
    }


@contextmanager
def _journal_errors(journal: Journal) -> Iterator[None]:
    """Raise OutputError where a journal is not as mdio writes it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise OutputError(
            f"{journal.path}: it does not record what an earlier run stored as mdio writes it "
            f"({error!r}); give --force to start again"
        ) from error


def restore_plan(
    journal: Journal, meta: OutputMeta, plan: LayoutPlan
) -> tuple[OutputMeta, LayoutPlan]:
    """Return metadata and plan of the first run: its uuid, and its segments and pieces."""
    values = journal.values
    with _journal_errors(journal):
        uuid = str(UUID(values["uuid"]))
        meta = replace(meta, uuid=uuid, created=values["created"], striping=values["striping"])
        division = {name: values["division"][name] for name in WORKER_FIELDS}
        division["segment_frames"] = tuple(division["segment_frames"])
        return meta, plan.replace(**division)


def journal_record(piece_record: PieceRecord) -> Record:
    """Return the journal's record of a stored piece."""
    values = {
        "nbytes": piece_record.nbytes,
        "crcs": {key: len(crcs) for key, crcs in piece_record.crcs.items()},
        "not_finite": None if piece_record.not_finite is None else asdict(piece_record.not_finite),
        "extra": list(piece_record.extra),
    }
    crcs = np.concatenate(
        [np.empty(0, "<u4"), *(np.array(crcs, "<u4") for crcs in piece_record.crcs.values())]
    )
    arrays: list[NDArray[Any]] = [piece_record.box, piece_record.time, piece_record.step, crcs]
    arrays += piece_record.extra.values()
    return Record(piece_record.start, piece_record.stop - piece_record.start, values, arrays)


def _piece_record(record: Record) -> PieceRecord:
    """Return the record of a piece from the journal's; the inverse of `journal_record`."""
    box, time, step, all_crcs, *extra_columns = record.arrays
    crcs, offset = {}, 0
    for key, count in record.values["crcs"].items():
        crcs[key] = all_crcs[offset : offset + count].tolist()
        offset += count
    stop = record.first + record.n_frames
    not_finite = record.values["not_finite"]
    not_finite = None if not_finite is None else NotFinite(**not_finite)
    extra = dict(zip(record.values["extra"], extra_columns, strict=True))
    return PieceRecord(
        record.first, stop, crcs, record.values["nbytes"], box, time, step, not_finite, extra
    )


def resume_from(journal: Journal, writer: LayoutWriter) -> list[PieceRecord]:
    """Have `writer` continue from pieces of earlier runs; return their records, to commit.

    Pieces that were not flushed, and those stored last, are verified.
    Raises OutputError: a flushed piece is missing or differs, so that no record can be trusted.
    """
    with _journal_errors(journal):
        pieces = {record.first: _piece_record(record) for record in journal.records}
        if any(piece.start < 0 or piece.stop > writer.plan.n_frames for piece in pieces.values()):
            raise ValueError("frames that the output does not have")
    latest = {record.first: record for record in journal.records}

    def select_intact(
        candidates: Sequence[PieceRecord], is_stored: Callable[[PieceRecord], bool]
    ) -> list[PieceRecord]:
        starts = {piece.start for piece in candidates}
        intact, verified_nbytes = [], 0
        for record in reversed(journal.records):  # in the order of writing
            if record.first not in starts or latest[record.first] is not record:
                continue
            piece = pieces[record.first]
            if not record.flushed or verified_nbytes < VERIFIED_NBYTES:
                verified_nbytes += piece.nbytes
                if not is_stored(piece):
                    if not record.flushed:
                        continue
                    name = TEMPORARY.sub(r"\1", str(writer.path))
                    raise OutputError(
                        f"{name}: what an earlier run has left is not what its journal says "
                        f"(frames {piece.start} to {piece.stop - 1} are not as they were "
                        "written); give --force to start again"
                    )
            intact.append(piece)
        return intact[::-1]

    try:
        existing = writer.find(list(pieces.values()), select_intact)
    except CorruptLayoutError as error:
        raise OutputError(
            f"{error}; what an earlier run has left is damaged: give --force"
        ) from error
    for piece in existing:
        if piece is not pieces[piece.start]:  # it was moved
            for moved, files in writer.written_pieces(piece):
                journal.add(journal_record(moved), files)
    with output_errors(writer.path):
        flush(journal.path)
        writer.finish_moving()
    return list(existing)


NOT_COMPARED_KEYS = (
    "uuid",
    "created",
    "has_box",
    "not_finite",
    "manifest_crc32c",
    "stripe",
    "recipe",
)
"""Keys of manifests that may differ, or are compared separately."""
STRIPE_KEYS = ("stripe_nbytes", "stripe_count")
NOT_COMPARED_PLAN_FIELDS = ("piece_frames", "n_files")
"""Fields of a plan that depend on the workers."""


def find_complete_output(job: Job, plan: LayoutPlan, *, copies: bool) -> ConvertResult | str | None:
    """Return the result of a conversion whose output exists already; None if it does not.

    For an output that was made with another source or other options, returns a message that says
    which, and what to do.

    The output counts as the conversion's if its manifest is the one that the conversion would write
    (state of all source files, frames, atoms, steps, sizes, version), its arrays have the same
    chunks, and the topologies inside and beside it are equal. If frames were appended to it, the
    options are compared instead of chunks and compression, which were chosen for fewer frames.
    Native files have no manifest: their frames are compared. Outputs that depend on the bonds of a
    Universe never count.
    """
    start_s = time.perf_counter()
    always_converts = job.extended or job.repaired or job.options.running.source_grows
    if always_converts or job.universe_crc32c is not None:
        return None
    try:
        with open_layout(job.out) as layout:
            manifest, topology = layout.manifest, layout.topology()
            plan_values = plan_fields(layout)
            nbytes = layout.info.nbytes
            has_same_frames = manifest is None and _has_same_frames(job, plan, layout.info)
    except OSError:
        return None
    expected: dict[str, Any] = json.loads(json.dumps(build_manifest(plan, job.meta())))
    was_appended_to = manifest is not None and "appended_to" in manifest
    not_compared = (*NOT_COMPARED_KEYS, "compression") if was_appended_to else NOT_COMPARED_KEYS
    stored_values, new_values = (
        {key: values.get(key) for key in expected if key not in not_compared}
        | {"stripe": [values["stripe"].get(key) for key in STRIPE_KEYS]}
        | {"recipe": values.get("recipe", {})}
        for values in (manifest or expected, expected)
    )
    is_same = has_same_frames or (
        manifest is not None
        and describe_change(stored_values, new_values) is None
        and "parts" not in manifest
        and manifest.get("container") == plan.container
        and manifest.get("flavour") == plan.flavour
        and (
            stored_values["recipe"] == new_values["recipe"]
            if was_appended_to
            else all(
                getattr(plan, key) == value
                for key, value in plan_values.items()
                if key not in NOT_COMPARED_PLAN_FIELDS
            )
        )
        and _topology_bytes(topology) == _topology_bytes(job.topology)
    )
    if not (is_same and all(file_has(path, data) for path, data in job.topology_files.items())):
        if manifest is None:
            return None
        return _explain_difference(job, manifest, stored_values, new_values)
    return job.result(
        plan,
        nbytes_out=nbytes,
        seconds=time.perf_counter() - start_s,
        workers=1,
        copied=copies,
        topologies=tuple(map(str, job.topology_files)),
        found_complete=True,
    )


def _explain_difference(
    job: Job,
    manifest: Mapping[str, Any],
    stored_values: Mapping[str, Any],
    new_values: Mapping[str, Any],
) -> str:
    """Return how an output differs from the one that `job` would make, and what to do."""
    force_text, source = "--force (force=True in Python)", manifest["source"]
    options = describe_changed_options(stored_values["recipe"], new_values["recipe"])
    if not options and not {"stop", "end_ps"} & new_values["recipe"].keys():
        recorded = [content_of(record) for record in source.get("files", [source])]
        new_files = [path for path in job.files if content_of(fingerprint(path)) not in recorded]
        names = shlex.join(map(str, new_files or job.files))
        append_text = f"`mdio append {names} {shlex.quote(str(job.out))}` (mdio.append) adds what"
        if new_files and all(is_unchanged_source(path, source) for path in new_files):
            return f"{names} has grown since: {append_text} is new; {force_text} converts all again"
        if not new_files and "appended_to" in manifest:
            return (
                f"frames were added to it since: {append_text} it lacks; {force_text} converts "
                f"{names} alone"
            )
    change = describe_change(stored_values, new_values) or options or "its chunks, or its topology"
    advice = "give the same source and options, choose another name, or use"
    return f"was made differently ({change}); {advice} {force_text}"


COMPARED_NBYTES = 1 << 30
"""Decoded bytes of a finished native file that are compared with the source."""


def _has_same_frames(job: Job, plan: LayoutPlan, info: TrajectoryInfo) -> bool:
    """Return whether a native file holds these frames; of a large one a sample is compared."""
    from mdio.converters.verify import sample, verify

    is_source = os.path.realpath(job.out) in map(os.path.realpath, job.files)
    expected = (plan.layout, plan.n_frames, plan.n_atoms, plan.precision)
    if is_source or (info.layout, info.n_frames, info.n_atoms, info.precision) != expected:
        return False
    if set(info.fields) != {"positions", *plan.native.fields}:
        return False
    share = min(1.0, COMPARED_NBYTES / (info.frame_nbytes * info.n_frames))
    return verify(job.out, view=job.view, wanted=sample(share)).ok


def _topology_bytes(topology: Topology | None) -> bytes | None:
    return None if topology is None else topology.to_bytes()
