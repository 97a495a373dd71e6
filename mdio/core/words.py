"""Words and numbers in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""Environment variables in which launchers of MPI programs pass the rank."""

PASSWORD = re.compile(
    r"""(:/+)[^\s@:/'"]*:[^\s@'"]+@|(?<![^\s'"(=])[^\s@:/'"][^\s@:'"]*:(?!/)[^\s@'"]+@"""
)
"""``user:password@`` after ``://``, or a mistyped one, or at the beginning of a word."""
AXIS_UNITS = {
    "_angstrom2_per_ps2": "Å²/ps²",
    "_angstrom2": "Å²",
    "_angstrom": "Å",
    "_degrees": "°",
    "_radians": "rad",
}
"""Units of columns of results, by the end of their names."""


REMOVED_OPTIONS = {
    "per_rank": "h5md is one file; in zarr and segments each rank writes files of its own"
}
"""Replacements of removed options."""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `` (did you mean 'rmsd'?)``; an empty string if no candidate is similar.

    The dashes of options do not make them similar.
    """
    if (replacement := REMOVED_OPTIONS.get(word.lstrip("-").replace("-", "_"))) is not None:
        return f" (it is gone: {replacement})"
    from difflib import get_close_matches  # imported for mistakes only

    names = {candidate.lstrip("-"): candidate for candidate in candidates}
    word = word.lstrip("-")
    similar = get_close_matches(word, names, n=3) or get_close_matches(word.lower(), names, n=3)
    # First those with the same letters in another order.
    similar.sort(key=lambda candidate: sorted(candidate) != sorted(word))
    return f" (did you mean {names[similar[0]]!r}?)" if similar else ""


def list_text(names: Sequence[str]) -> str:
    """Return names as ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def plural(number: int, noun: str) -> str:
    """Return a number and its noun: ``1 rank``, ``3 passes``, ``2 trajectories``."""
    if number != 1 and noun.endswith("ory"):
        noun = f"{noun[:-1]}ies"
    elif number != 1:
        noun += "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {noun}"


def align_columns(rows: Sequence[Sequence[str]], n_left: int) -> list[str]:
    """Return rows of cells as lines with aligned columns, the first `n_left` flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < n_left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def human_nbytes(nbytes: float) -> str:
    """Return bytes as people read them: ``23.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def nbytes_from(text: str) -> int:
    """Return the bytes that ``4M``, ``512K``, ``1GiB`` or ``1048576`` mean (powers of 1024).

    Raises ValueError: it is not a size, or less than one byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it as 4M or 1048576")
    power = " KMGT".index(match[2].upper() or " ")
    nbytes = round(float(match[1]) * (1 << 10 * power))
    if nbytes < 1:
        raise ValueError(f"{text!r} is less than one byte")
    return nbytes


def frames_text(start: int, stop: int) -> str:
    """Return a run of frames in words: ``frame 3``, ``frames 3 to 5``."""
    return f"frame {start}" if stop == start + 1 else f"frames {start} to {stop - 1}"


TIME_ROUNDING = 2e-7
"""Relative: of float32, and of a sum of them."""
MAX_RUNS = 5
"""Runs of frames that a note names."""


def runs_text(runs: Sequence[Sequence[int]], max_runs: int | None = None) -> str:
    """Return runs of numbers (start, stop, step), at most `max_runs`: ``3, 5 to 9, 20, 24``."""
    joined_runs: list[range] = []
    for numbers in (range(*run) for run in runs[:max_runs]):
        # Two are taken one by one, since the second may begin the next run.
        for part in [numbers] if len(numbers) > 2 else [range(n, n + 1) for n in numbers]:
            last = joined_runs[-1] if joined_runs else range(0)
            step = part.step if len(part) > 1 else last.step
            if last and last[-1] + step == part[0] and (len(last) == 1 or last.step == step):
                joined_runs[-1] = range(last[0], part[-1] + 1, step)
            else:
                joined_runs.append(part)
    texts: list[str] = []
    for numbers in joined_runs:
        if len(numbers) < 3:
            texts += map(str, numbers)
        else:
            by = f" by {numbers.step}" if numbers.step > 1 else ""
            texts.append(f"{numbers[0]} to {numbers[-1]}{by}")
    return ", ".join(texts + ["..."] * (max_runs is not None and len(runs) > max_runs))


def number_text(value: float) -> str:
    """Return a number, such as a time, to the digits of float32: ``1000002.5``, not ``1e+06``."""
    value = float(value)  # NumPy's warns of infinite ones
    for n_digits in (6, 9, 12):
        text = f"{value:.{n_digits}g}"
        if "e+" not in text and abs(float(text) - value) <= TIME_ROUNDING * abs(value):
            return text
    return f"{value:g}"


def are_times_even(n_frames: int, first: float, last: float, dt: float) -> bool:
    """Return whether equal intervals lead to the last time; those of joined files may differ."""
    return abs(first + (n_frames - 1) * dt - last) <= 0.25 * abs(dt)


def times_text(n_frames: int, first: float, last: float, dt: float) -> str:
    """Return the times (ps) of frames: ``0 to 98 ps, every 1 ps``."""
    steps = n_frames - 1
    if steps <= 0:
        return f"{number_text(first)} ps" if steps == 0 else ""
    if first == last:
        return f"{number_text(first)} ps, all frames"
    dt_ps = round(dt, 4) if dt >= 0.001 else dt  # times that were rounded to float32
    every = f", every {number_text(dt_ps)} ps" if are_times_even(n_frames, first, last, dt) else ""
    return f"{number_text(first)} to {number_text(last)} ps{every}"


def box_text(box: Sequence[float] | None) -> str:
    """Return a box, six numbers, in words; an empty string if there is none."""
    if box is None:
        return ""
    lengths = " x ".join(f"{length:.4g}" for length in box[:3])
    angles = ", ".join(f"{angle:.4g}" for angle in box[3:])
    return f"{lengths} angstrom" + ("" if angles == "90, 90, 90" else f", angles {angles}")


def axis_label(column: str) -> str:
    """Return the label of an axis for a column: mean distance (Å) for mean_distance_angstrom."""
    for suffix, unit in AXIS_UNITS.items():
        if column.endswith(suffix):
            return f"{column.removesuffix(suffix).replace('_', ' ')} ({unit})"
    return column


def duration(seconds: float | None) -> str:
    """Return a time as people read it: ``12.3 s``, ``61.2 ms``, ``4.1 µs``."""
    if seconds is None:
        return "–"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= 0.9995 * factor:  # 999.5 rounds to 1 of the next unit
            return f"{seconds / factor:,.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return "0 s"


def without_passwords(text: str) -> str:
    """Return a message without ``user:password@`` of URLs, mistyped ones too."""
    return PASSWORD.sub(lambda match: f"{match[1] or ''}***@", text) if "@" in text else text


def notes_by_label(
    notes: Mapping[str, Sequence[str]], paths: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the notes on several trajectories, each once, with the labels to which it applies.

    `paths`: of the trajectories. Notes that differ only in these are one, without them.
    """
    notes_of: dict[str, list[tuple[str, str]]] = {}
    for label, label_notes in notes.items():
        for note in label_notes:
            path = str(paths[label])
            shared_note = note.removeprefix(f"{path}: ").replace(path, "it")
            notes_of.setdefault(shared_note, []).append((label, note))
    return tuple(
        f"{_labels_text([label for label, _ in labelled], list(notes))}: "
        f"{labelled[0][1] if len(labelled) == 1 else shared_note}"
        for shared_note, labelled in notes_of.items()
    )


def _labels_text(labels: Sequence[str], all_labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    if len(labels) == len(all_labels):
        return f"all {len(all_labels):,} replicas"
    first = all_labels.index(labels[0])
    if labels == all_labels[first : first + len(labels)]:
        names = f"{labels[0]} to {labels[-1]}"
    else:
        names = ", ".join([*labels[:MAX_RUNS], *["..."] * (len(labels) > MAX_RUNS)])
    return f"{len(labels):,} of {len(all_labels):,} replicas ({names})"
