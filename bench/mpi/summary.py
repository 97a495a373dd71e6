"""The tables of ``scaling.py``, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mdio.core.words import plural

Record = dict[str, Any]
Least = dict[tuple[str, str, int], Record]


def _least(records: Iterable[Record]) -> Least:
    """Return the fastest run of each (job, way, processes)."""
    found: Least = {}
    for record in records:
        key = record["job"], record["way"], record["n"]
        if "failed" in record:
            continue
        if key not in found or record["write_s"] < found[key]["write_s"]:
            found[key] = record
    return found


def _ratio(least: Least, job: str, one: tuple[str, int], other: tuple[str, int]) -> float | None:
    """Return how often the time of `other` goes into that of `one`."""
    first, second = least.get((job, *one)), least.get((job, *other))
    if first is None or second is None:
        return None
    return float(first["write_s"] / max(second["write_s"], 1e-9))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def table(records: Sequence[Record], ranks: Sequence[int]) -> list[str]:
    """Return the lines of a table: a row a job, least times of all rounds.

    CPU times are of all processes together, Python's and MPI's start included.
    """
    least = _least(records)
    heads = ["conversion", "GB written", "without MPI, s"]
    heads += [f"{n} rank{'s' * (n > 1)}, s" for n in ranks]
    heads += ["user + sys, s", "2 ranks", "only writing", "4 against 2", "only writing"]
    lines = [_row(heads), _row(["---"] + ["---:"] * (len(heads) - 1))]
    for name in dict.fromkeys(record["job"] for record in records):
        runs = [least.get((name, "mpi", n)) for n in ranks]
        alone = least.get((name, "alone", 1))
        nbytes = next((one["nbytes"] for one in runs if one), 0)
        cpu = [f"{one['user_s']:.1f} + {one['sys_s']:.1f}" for one in runs if one]
        cells = [name, f"{nbytes / 1e9:.2f}", _number(alone and alone["write_s"], 1)]
        cells += [_number(one and one["write_s"], 1) for one in runs]
        cells.append(", ".join(cpu))
        for first, second in ((1, 2), (2, 4)):
            for way in ("mpi", "control"):
                cells.append(_number(_ratio(least, name, (way, first), (way, second))))
        lines.append(_row(cells))
    return lines


def answers(records: Sequence[Record]) -> list[str]:
    """Return the lines of a table: what was asked, what was measured."""
    least = _least(records)
    names = list(dict.fromkeys(record["job"] for record in records))
    lines = [_row(["question", "asked", "measured"]), _row(["---"] * 3)]
    for name in names:
        two = _ratio(least, name, ("mpi", 1), ("mpi", 2))
        bound = _ratio(least, name, ("control", 1), ("control", 2))
        one = least.get((name, "mpi", 1))
        if two is not None and one is not None:
            job_s, beside = one["write_s"], "" if bound is None else f"; only writing: {bound:.2f}"
            said = f"{two:.2f} ({job_s:.0f} s on one rank{beside})"
            lines.append(_row([f"{name}: two ranks against one", "at least 1.8 times", said]))
    for name in names:
        four = _ratio(least, name, ("mpi", 4), ("mpi", 2))
        if four is not None:
            text = f"{name}: four ranks against two, time"
            lines.append(_row([text, "at most 1.15", f"{four:.2f}"]))
    for name in names:
        same = _ratio(least, name, ("mpi", 1), ("alone", 1))
        if same is not None:
            text = f"{name}: `--mpi -n 1` against no MPI, time"
            lines.append(_row([text, "0.9 to 1.1", f"{same:.2f}"]))
    return lines + _gzip_answers(least)


def _gzip_answers(least: Least) -> list[str]:
    """Compare parallel HDF5's compression with that of shards, for a frame."""
    lines = []
    for n in (1, 2, 4):
        own = least.get(("h5md, gzip:1, collective", "mpi", n))
        other = least.get(("zarr, gzip:1", "mpi", n))
        if own is not None and other is not None:
            ratio = (own["write_s"] / own["copies"]) / (other["write_s"] / other["copies"])
            text = (
                f"collective HDF5, gzip:1, against zarr, gzip:1, time a frame, {plural(n, 'rank')}"
            )
            lines.append(_row([text, "at most 2", f"{ratio:.2f}"]))
    return lines
