"""A plan as readable text, which ``--dry-run`` prints."""

from __future__ import annotations

import math

from mdio.core.units import FIELD_UNITS
from mdio.core.words import align_columns, human_nbytes, plural
from mdio.layouts.plan import LayoutPlan


def _stores_integers(plan: LayoutPlan) -> bool:
    """Return whether rounded positions are stored as integers."""
    return bool(plan.arrays) and not plan.writing.writes_chunks and plan.precision is not None


def _overview(plan: LayoutPlan, n_existing: int) -> dict[str, str]:
    """Return the rows of the overview, by name; empty ones are not printed."""
    fields = ", ".join(plan.native.fields) + (", box" if plan.native.has_box else "")
    sizes = sorted({min(plan.segment_frames, default=0), max(plan.segment_frames, default=0)})
    frames_text = " to ".join(f"{size:,}" for size in sizes)
    segments_text = f"{len(plan.segment_frames):,} with {frames_text} frames"
    kept_text = f", besides {n_existing:,} that stay as they are" if n_existing else ""
    rows = {
        "layout": plan.layout,
        "content": f"{plural(plan.n_frames, 'frame')} of {plural(plan.n_atoms, 'atom')}{kept_text}",
        "container": plan.container or "",
        "arrays": fields if plan.container else "",
        "segments": segments_text if plan.segment_frames else "",
        "compression": plan.compression or ("bitpack" if _stores_integers(plan) else "none"),
        "precision": "float32, not rounded" if plan.arrays else "",
    }
    if plan.precision is not None:
        all_digits_text = ", all that the XTC holds" if plan.keeps_integers else ""
        rows["precision"] = f"{plan.precision:g} angstrom{all_digits_text}"
    for name, step in plan.field_precisions.items():
        rounding = f"{step:g} {FIELD_UNITS[name]}, so off by at most {step / 2:g}"
        rows[name] = f"rounded to {rounding}"
    frames = plural(min(plan.piece_frames, plan.n_frames), "frame")
    rows["work"] = f"{plural(len(plan.write_tasks()), 'piece')} of {frames}"
    in_files = "" if n_existing else f" in {plural(plan.n_files, 'file')}"
    rows["writes"] = f"{plan.n_writes:,}{in_files}"
    if plan.arrays:
        rows |= _placement(plan)
    size = human_nbytes(plan.nbytes)
    padded = ", without padding" if plan.stripes.alignment_nbytes > 1 else ""
    is_estimate = plan.compression is not None or plan.is_rounded
    condition = " if the disk is fast" if plan.writing.direct == "auto" else ""
    direct = f"large writes bypass the page cache{condition}"
    return rows | {
        "size": f"{'at most ' if is_estimate else ''}{size}{padded}",
        "per atom": ""
        if plan.source_nbytes_per_atom is None
        else _nbytes_per_atom(plan, is_estimate),
        "writing": "rank 0 writes; the other ranks encode" if plan.writing.by_owner else "",
        "direct": direct if plan.writing.direct else "",
    }


def _placement(plan: LayoutPlan) -> dict[str, str]:
    """Return the rows on stripes, shards and alignment of arrays."""
    count, array = plan.stripes.stripe_count, plan.arrays[0]
    targets_text = {None: "the default number of", -1: "all"}.get(count, str(count))
    rows = {"stripes": f"{human_nbytes(plan.stripes.stripe_nbytes)} over {targets_text} targets"}
    parts = "arrays" if array.contiguous else "chunks"
    if not plan.writing.writes_chunks:
        shard = human_nbytes(12 * array.n_atom_chunks * array.chunk_atoms * plan.piece_frames)
        rows["shards"] = f"one per piece, {shard} of the full system before encoding"
    elif plan.stripes.alignment_nbytes > 1:
        padding = f"{100 * plan.stripes.padding:.1f}% padding"
        rows["alignment"] = f"{parts} begin on stripes, {padding}"
    else:
        rows["alignment"] = f"none: {parts} follow each other without padding"
    return rows


def _nbytes_per_atom(plan: LayoutPlan, is_estimate: bool) -> str:
    """Return bytes per atom and frame, of the output and of the source."""
    nbytes_per_atom = plan.nbytes / (plan.n_frames * plan.n_atoms)
    is_similar = _stores_integers(plan) and plan.keeps_integers and plan.compression is None
    return (
        f"{'at most ' if is_estimate else ''}{nbytes_per_atom:.2f} bytes per atom and frame, "
        + f"source: {plan.source_nbytes_per_atom:.2f}"
        + (" (usually about the same)" if is_similar else "")
    )


def _arrays(plan: LayoutPlan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("group", "array", "atoms", "chunk", "bytes", "chunks")]
    for array in plan.arrays:
        if array.contiguous:
            cells = ("contiguous", human_nbytes(12 * plan.n_frames * array.n_atoms), "none")
        else:
            n_chunks = math.ceil(plan.n_frames / array.chunk_frames) * array.n_atom_chunks
            shape = f"{array.chunk_frames:,} x {array.chunk_atoms:,}"
            cells = (shape, human_nbytes(array.chunk_nbytes), f"{n_chunks:,}")
        rows.append((array.group, array.field, f"{array.n_atoms:,}", *cells))
    return rows


def plan_table(plan: LayoutPlan, n_existing: int = 0) -> str:
    """Return `plan` as lines of text: names and values, a table of chunks, notes.

    `n_existing`: the first frames of an existing output, which are not written again; if these are
    all, there are only notes.
    """
    lines = []
    if n_existing < plan.n_frames:
        plan = plan.remaining(n_existing)
        rows = _overview(plan, n_existing).items()
        lines = align_columns([(name, value) for name, value in rows if value], 2)
        if plan.arrays:
            lines += ["", *align_columns(_arrays(plan), 2)]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)
