"""A plan as text, for people: what ``--dry-run`` prints."""

from __future__ import annotations

import math

from mdio.core.units import FIELD_UNITS
from mdio.core.words import aligned, human_nbytes, plural
from mdio.layouts.plan import LayoutPlan


def _packs(plan: LayoutPlan) -> bool:
    """Return whether rounded positions are stored as integers."""
    return bool(plan.arrays) and not plan.writing.writes_chunks and plan.precision is not None


def _overview(plan: LayoutPlan) -> list[tuple[str, str]]:
    rows = [
        ("layout", plan.layout),
        ("content", f"{plural(plan.n_frames, 'frame')} of {plural(plan.n_atoms, 'atom')}"),
    ]
    if plan.container is not None:
        rows.append(("container", plan.container))
        rows.append(
            ("arrays", ", ".join(plan.native.fields) + (", box" if plan.native.has_box else ""))
        )
    if plan.segment_frames:
        low, high = min(plan.segment_frames), max(plan.segment_frames)
        frames = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows.append(("segments", f"{len(plan.segment_frames):,} with {frames} frames"))
    rows.append(("compression", plan.compression or ("bitpack" if _packs(plan) else "none")))
    if plan.precision is not None:
        exact = ", all that the XTC holds" if plan.keeps_integers else ""
        rows.append(("precision", f"{plan.precision:g} angstrom{exact}"))
    elif plan.arrays:
        rows.append(("precision", "float32 in full"))
    for name, step in plan.field_precisions.items():
        rounding = f"{step:g} {FIELD_UNITS[name]}, so off by at most {step / 2:g}"
        rows.append((name, f"rounded to {rounding}"))
    pieces = len(plan.write_tasks())
    frames = plural(min(plan.piece_frames, plan.n_frames), "frame")
    rows.append(("work", f"{plural(pieces, 'piece')} of {frames}"))
    rows.append(("writes", f"{plan.n_writes:,} in {plural(plan.n_files, 'file')}"))
    if plan.arrays:
        targets = {None: "the default number of", -1: "all"}.get(
            plan.stripes.stripe_count, str(plan.stripes.stripe_count)
        )
        rows.append(
            ("stripes", f"{human_nbytes(plan.stripes.stripe_nbytes)} over {targets} targets")
        )
        aligned_parts = "arrays" if plan.arrays[0].contiguous else "chunks"
        if not plan.writing.writes_chunks:
            shard = plan.arrays[0].n_atom_chunks * plan.arrays[0].chunk_atoms * plan.piece_frames
            rows.append(
                (
                    "shards",
                    f"one per piece, {human_nbytes(12 * shard)} of the full system before encoding",
                )
            )
        elif plan.stripes.alignment_nbytes > 1:
            padding = f"{100 * plan.stripes.padding:.1f}% padding"
            rows.append(("alignment", f"{aligned_parts} begin on stripes, {padding}"))
        else:
            rows.append(("alignment", f"none: {aligned_parts} follow each other without padding"))
    size = human_nbytes(plan.nbytes)
    estimate = plan.compression is not None or plan.is_rounded
    rows.append(("size", f"at most {size}" if estimate else size))
    if plan.source_density is not None:
        rows.append(("density", _density(plan, estimate)))
    if plan.writing.by_owner:
        rows.append(("writing", "rank 0 writes; the other ranks encode"))
    if plan.writing.direct:
        condition = " if the disk is fast" if plan.writing.direct == "auto" else ""
        rows.append(("direct", f"large writes bypass the page cache{condition}"))
    return rows


def _density(plan: LayoutPlan, estimate: bool) -> str:
    """Return bytes per atom and frame, beside those of the source."""
    density = plan.nbytes / (plan.n_frames * plan.n_atoms)
    is_similar = _packs(plan) and plan.keeps_integers
    return (
        f"{'at most ' if estimate else ''}{density:.2f} bytes per atom and frame, "
        + f"source: {plan.source_density:.2f}"
        + (" (usually about the same)" if is_similar else "")
    )


def _arrays(plan: LayoutPlan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("group", "array", "atoms", "chunk", "bytes", "chunks")]
    for array in plan.arrays:
        if array.contiguous:
            cells = ("in one piece", human_nbytes(12 * plan.n_frames * array.n_atoms), "none")
        else:
            n_chunks = math.ceil(plan.n_frames / array.chunk_frames) * array.n_atom_chunks
            shape = f"{array.chunk_frames:,} x {array.chunk_atoms:,}"
            cells = (shape, human_nbytes(array.chunk_nbytes), f"{n_chunks:,}")
        rows.append((array.group, array.field, f"{array.n_atoms:,}", *cells))
    return rows


def plan_table(plan: LayoutPlan) -> str:
    """Return `plan` as lines of text, without a newline at the end.

    Two columns of names and values; then, for layouts with chunks, a table of the chunks (frames x
    atoms) of every array; then notes.
    """
    overview = _overview(plan)
    width = max(len(name) for name, _ in overview)
    lines = [f"{name:<{width}}  {value}" for name, value in overview]
    if plan.arrays:
        lines += ["", *aligned(_arrays(plan), 2)]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)
