"""What runs that ended before they were done have left, and another run can go on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.files.journals.journal import journal_of, read_journal
from mdio.core.files.marks import manifest_in
from mdio.core.files.temporaries import TEMPORARY, Leftover, leftovers, temporary_for
from mdio.core.words import human_nbytes


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a run that ended has left of an output, and can be gone on with."""

    temporary: Path
    said: Mapping[str, Any]
    """As `Journal.said`."""
    n_frames: int
    """That are stored."""

    @property
    def text(self) -> str:
        """How much there is, and where."""
        match = TEMPORARY.fullmatch(self.temporary.name)
        assert match is not None
        owner = self.temporary.name[match.end(1) :]
        beside = self.temporary.parent.glob(f".{escape(match[1])}*{escape(owner)}")
        nbytes = sum(map(allocated_nbytes, beside))
        return (
            f"{self.n_frames:,} of {self.said.get('n_frames', 0):,} frames "
            f"({human_nbytes(nbytes)}) are kept in {self.temporary}"
        )

    def compare(self, goal: Path, begun: Mapping[str, Any]) -> None:
        """Raise OutputError unless `begun` is what the run has begun with."""
        difference = _difference(self.said.get("of"), begun)
        if difference is not None:
            raise OutputError(
                f"{goal}: a different conversion was left unfinished, which this one cannot "
                f"continue ({difference}); give the same source and options, or --force to start "
                "again"
            )


def unfinished(temporary: Path) -> Unfinished | None:
    """Return what can be gone on with of the output that is built at `temporary`, if anything."""
    if not os.path.lexists(temporary):
        return None
    try:
        records = read_journal(journal_of(temporary))[0]
    except OSError:
        return None
    former = manifest_in(temporary)  # exchanged with the new output, when that was in place
    if not records or not isinstance(records[0].said.get("n_frames"), int):
        return None
    if former is not None and former["uuid"] != records[0].said.get("uuid"):
        return None
    frames = {record.first: record.n_frames for record in records[1:]}
    for path in _parts_of(temporary).glob("*.journal"):
        for begun in (part := read_journal(path)[0])[:1]:
            at = begun.said.get("first frame")
            if isinstance(at, int) and at not in frames:  # else it is finished, and counted
                frames |= {at + one.first: one.n_frames for one in part[1:]}
    return Unfinished(temporary, records[0].said, sum(frames.values())) if frames else None


def unfinished_of(left: Leftover) -> Iterator[Unfinished]:
    """Yield what of a leftover can be gone on with."""
    for name in left.journals:
        found = unfinished(left.name(left.folder / name))
        if found is not None:
            yield found


def refuse_unfinished(goal: Path, name: Path) -> None:
    """Raise OutputError if a dead process has left something of `goal` that can be gone on with.

    `name`: of the output, as the caller knows it.
    """
    for left in leftovers([goal]):
        for found in unfinished_of(left):
            raise OutputError(
                f"{name}: an earlier run did not finish; {found.text}; give --resume "
                "(resume=True in Python) to continue it, or --force (force=True) to start again"
            )


def _parts_of(temporary: Path) -> Path:
    """Return where the parts are that go with an output."""
    match = TEMPORARY.fullmatch(temporary.name)
    assert match is not None
    return temporary_for(temporary.with_name(f"{match[1]}.parts"), temporary)


def allocated_nbytes(path: Path) -> int:
    """Return the bytes that a file or a folder takes on the disk, 0 if it is not there."""
    files = [path, *(path.rglob("*") if path.is_dir() else ())] if os.path.lexists(path) else []
    return sum(512 * file.lstat().st_blocks for file in files)


def _difference(was: Any, now: Any, name: str = "") -> str | None:
    """Return the first difference of two plain values in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = [(f"{name}, {key}" if name else key, key) for key in {**was, **now}]
        found = (_difference(was.get(key), now.get(key), label) for label, key in pairs)
    elif isinstance(was, list) and isinstance(now, list):
        found = (_difference(*two, f"{name} {k}") for k, two in enumerate(zip_longest(was, now)))
    else:
        one, other = json.dumps(was)[:80], json.dumps(now)[:80]
        return None if json.dumps(was) == json.dumps(now) else f"{name}: {one} then, {other} now"
    return next((one for one in found if one is not None), None)
