"""A journal of what is finished of an output, with which another run goes on after an end.

It lies beside the temporary, as ``.NAME.mdio-HOST-PID-TOKEN.journal``. Its first record says what
is made, and of what; every other one that some more is stored, and what the owner of the output
needs to know of it. A record has its length and its own crc32c: what was still being written when
the process ended is none, and is dropped.

A record is written as soon as something is stored, so that a process that is killed loses little.
What is stored is flushed to the disk now and then, and a mark behind it says which records that
was; what has no mark is looked at before it counts.

What runs that ended before they were done have left, and another run can go on with.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import OutputError
from mdio.core.files.marks import is_own_record, manifest_in, open_regular
from mdio.core.files.turns import TEMPORARY, Leftover, leftovers
from mdio.core.files.writing import flush, write_all
from mdio.core.kernels import crc32c
from mdio.core.words import human_nbytes

MAGIC = b"mdio journal 1\n"
_HEAD = struct.Struct("<QI")
"""Bytes of a record, and their crc32c."""
TYPES = ("<f4", "<f8", "<i8", "<u4", "|u1")
"""Of the numbers that records hold."""
FLUSH_S = 30.0
"""Work of this time, at most, is done again after a power cut. Not less: where many share a file
system nobody may write while it flushes, which takes longer the more was written."""
MARK = "flushed"
"""What a mark says: which records, from and to, of those before it."""
RESERVED_NBYTES = 64 << 10
"""The file is longer than its records by this, so that a full disk does not keep it from telling
of what came before; zeros are no record."""
STOPPING_S = 2.0
"""How long the end of the work waits for what is being flushed."""


@dataclass(frozen=True, slots=True)
class Record:
    """That some frames are stored."""

    first: int
    n_frames: int
    values: Mapping[str, Any]
    """Plain values."""
    arrays: Sequence[NDArray[Any]] = ()
    """Of `TYPES`."""
    flushed: bool = False
    """Whether a mark says so."""

    def packed(self) -> bytes:
        """Return the record as it lies in the journal."""
        head = {
            "frames": [self.first, self.n_frames],
            "said": self.values,
            "arrays": [[array.dtype.str, array.shape] for array in self.arrays],
        }
        data = b"".join((json.dumps(head).encode(), b"\n", *(a.tobytes() for a in self.arrays)))
        return _HEAD.pack(len(data), crc32c(data)) + data

    @classmethod
    def unpacked(cls, data: bytes) -> Record:
        """Read what `packed` made, without its length; raises what bytes of others may raise."""
        text, _, rest = data.partition(b"\n")
        head = json.loads(text)
        arrays, at = [], 0
        for kind, shape in head["arrays"]:
            count = math.prod(shape)
            if kind not in TYPES:
                raise ValueError(f"numbers of the type {kind}")
            arrays.append(np.frombuffer(rest, kind, count, at).reshape(shape))
            at += arrays[-1].nbytes
        first, n_frames = map(int, head["frames"])
        return cls(first, n_frames, dict(head["said"]), arrays)


def journal_path(temporary: Path) -> Path:
    """Return where the journal of an output is that is built at `temporary`."""
    return temporary.with_suffix(".journal")


def read_journal(path: Path) -> tuple[list[Record], int]:
    """Return the whole records of a journal, and where they end; raises OSError."""
    with open(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if not is_own_record(
            os.fstat(file.fileno()), path.parent
        ):  # it could tell of frames that are not there
            return [], 0
        data = file.read()
    found: list[Record] = []
    if not data.startswith(MAGIC):
        return found, 0
    at = len(MAGIC)
    with contextlib.suppress(
        ValueError, TypeError, LookupError, struct.error, OverflowError, RecursionError
    ):
        while True:
            nbytes, crc = _HEAD.unpack_from(data, at)
            begin = at + _HEAD.size
            body = data[begin : begin + nbytes]
            if len(body) < nbytes or not nbytes or crc32c(body) != crc:
                break
            one = Record.unpacked(body)
            if (marked := one.values.get(MARK)) is None:
                found.append(one)
            else:
                flushed = slice(*marked)
                found[flushed] = [replace(record, flushed=True) for record in found[flushed]]
            at = begin + nbytes
    return found, at


class Journal:
    """The journal of the output that is built at `temporary` (its owner has it).

    A context manager.

    `temporary`: what `publish` yielded. `said`: what the first record says, if there is no journal
    yet: plain values. Attributes: `said`: what the first record says. `records`: what former runs
    stored.
    Raises OutputError: it cannot be written.
    """

    def __init__(self, temporary: Path, values: Mapping[str, Any]) -> None:
        self.path = journal_path(temporary)
        self._files: set[Path] = set()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        self._reserved = 0
        self._fd = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            if not is_own_record(os.fstat(self._fd), self.path.parent):
                raise OSError(errno.EPERM, "it belongs to another user", str(self.path))
            records, self._end = read_journal(self.path)
            if not records:
                self._end = write_all(self._fd, 0, MAGIC)
                self._append(Record(0, 0, dict(values)))
                records = read_journal(self.path)[0]
            os.ftruncate(self._fd, self._end)
        except BaseException:
            os.close(self._fd)
            raise
        self.values, self.records = records[0].values, records[1:]
        self._flushed = self._n_records = len(records)

    def add(self, record: Record, files: Iterable[Path]) -> None:
        """Write a record of what `files` hold, which are flushed later; raises OSError."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._append(record)
            self._n_records += 1
            self._files.update(files)
        if self._thread.ident is None:
            self._thread.start()

    def _work(self) -> None:
        """Flush what was added, whether or not more comes, until there is an end or a failure."""
        while not self._closing.wait(FLUSH_S):
            try:
                self._flush()
            except OSError as error:
                self._failure = error
                return

    def _flush(self) -> None:
        with self._lock:
            files, self._files, stop = self._files, set(), self._n_records
        if not files:
            return
        for path in (*files, *{path.parent for path in files}):
            with contextlib.suppress(FileNotFoundError):  # it has become part of another one
                flush(path)
        with self._lock:
            if self._fd >= 0:
                self._append(Record(0, 0, {MARK: [self._flushed, stop]}))
                self._flushed = stop
                os.fsync(self._fd)

    def _append(self, record: Record) -> None:
        self._end = write_all(self._fd, self._end, record.packed())
        if self._end + RESERVED_NBYTES // 2 > self._reserved:
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._fd, self._end, RESERVED_NBYTES)
                self._reserved = self._end + RESERVED_NBYTES

    def close(self) -> None:
        """Flush nothing more, and close the file."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(STOPPING_S)
        with self._lock:
            if self._fd >= 0:
                descriptor, self._fd = self._fd, -1
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        told = contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext()
        with told:  # the first error tells more
            self.close()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a run that ended has left of an output, and can be gone on with."""

    temporary: Path
    values: Mapping[str, Any]
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
        n_frames = self.values.get("n_frames", 0)
        of = f" of {n_frames:,}" if n_frames else ""  # how many an ensemble will have is not known
        return f"{self.n_frames:,}{of} frames ({human_nbytes(nbytes)}) are kept in {self.temporary}"

    def compare(self, goal: Path, begun: Mapping[str, Any]) -> None:
        """Raise OutputError unless `begun` is what the run has begun with."""
        difference = _difference(self.values.get("of"), begun)
        if difference is not None:
            raise OutputError(
                f"{goal}: a different conversion was left unfinished, which this one cannot "
                f"continue ({difference}); give the same source and options, or --force to start "
                "again"
            )


def find_unfinished(temporary: Path) -> Unfinished | None:
    """Return what can be gone on with of the output that is built at `temporary`, if anything."""
    if not os.path.lexists(temporary):
        return None
    try:
        records = read_journal(journal_path(temporary))[0]
    except OSError:
        return None
    former = manifest_in(temporary)  # exchanged with the new output, when that was in place
    if not records or not isinstance(records[0].values.get("n_frames"), int):
        return None
    if former is not None and former["uuid"] != records[0].values.get("uuid"):
        return None
    frames = {record.first: record.n_frames for record in records[1:]}
    return Unfinished(temporary, records[0].values, sum(frames.values())) if frames else None


def unfinished_in(left: Leftover) -> Iterator[Unfinished]:
    """Yield what of a leftover can be gone on with."""
    for name in left.journals:
        found = find_unfinished(left.name(left.folder / name))
        if found is not None:
            yield found


def refuse_unfinished(goal: Path, name: Path) -> None:
    """Raise OutputError if a dead process has left something of `goal` that can be gone on with.

    `name`: of the output, as the caller knows it.
    """
    for left in leftovers([goal]):
        for found in unfinished_in(left):
            raise OutputError(
                f"{name}: an earlier run did not finish; {found.text}; give --resume "
                "(resume=True in Python) to continue it, or --force (force=True) to start again"
            )


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
