"""Journals of the stored pieces of an output, from which another run can continue.

They lie beside temporaries, as ``.NAME.mdio-HOST-PID-TOKEN.journal``. The first record describes
the conversion, each other one a stored piece of the output. A record has its length and its own
crc32c: one that was still being written when the process ended is dropped.

A record is written as soon as a piece is stored, so that a process that is killed loses little.
Pieces are flushed to the disk from time to time, after which a mark says which records are safe;
a run that resumes checks pieces without a mark before it uses them.
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
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import OutputError
from mdio.core.files.checks import is_trusted_record, manifest_in, open_regular
from mdio.core.files.locks import Leftover, leftovers
from mdio.core.files.writing import flush, write_all
from mdio.core.kernels import crc32c
from mdio.core.words import human_nbytes

MAGIC = b"mdio journal 1\n"
RECORD_HEADER = struct.Struct("<QI")
"""Bytes of a record, and their crc32c."""
DTYPES = ("<f4", "<f8", "<i8", "<u4", "|u1")
"""Types of the arrays in records."""
FLUSH_INTERVAL_S = 30.0
"""A power cut costs at most the work of this time. Not shorter: a flush blocks all writers of a
shared file system, and takes longer the more was written."""
MARK_KEY = "flushed"
"""Key of a mark: the run of records before it that are flushed."""
MEMBERS_KEY = "members"
"""Key of the first record of an ensemble: the names under which its trajectories lie in the
temporary."""
N_REUSED_KEY = "n_taken"
"""Key of the first record where frames are added to an output: how many of its own frames stay as
they are stored."""
RESERVED_NBYTES = 64 << 10
"""Zeros reserved after the records, so that more can be written on a full disk."""
MAX_CLOSE_WAIT_S = 2.0
"""How long closing waits for a running flush."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a stored piece, which is a run of frames."""

    first: int
    """Its first frame."""
    n_frames: int
    values: Mapping[str, Any]
    """Plain values."""
    arrays: Sequence[NDArray[Any]] = ()
    """Arrays of `DTYPES`."""
    flushed: bool = False
    """Whether the journal has a mark that the piece is flushed."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the record in the journal."""
        head = {
            "frames": [self.first, self.n_frames],
            "said": self.values,
            "arrays": [[array.dtype.str, array.shape] for array in self.arrays],
        }
        data = b"".join((json.dumps(head).encode(), b"\n", *(a.tobytes() for a in self.arrays)))
        return RECORD_HEADER.pack(len(data), crc32c(data)) + data

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        """Read the result of `to_bytes`, without its header; damaged bytes raise various errors."""
        text, _, numbers = data.partition(b"\n")
        head = json.loads(text)
        arrays, offset = [], 0
        for dtype, shape in head["arrays"]:
            count = math.prod(shape)
            if dtype not in DTYPES:
                raise ValueError(f"numbers of the type {dtype}")
            arrays.append(np.frombuffer(numbers, dtype, count, offset).reshape(shape))
            offset += arrays[-1].nbytes
        first, n_frames = map(int, head["frames"])
        return cls(first, n_frames, dict(head["said"]), arrays)


def journal_path(temporary: Path) -> Path:
    """Return the path of the journal of an output that is built at `temporary`."""
    return temporary.with_suffix(".journal")


def read_journal(path: Path) -> tuple[list[Record], int]:
    """Return the complete records of a journal, and the offset of their end; raises OSError."""
    with open(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        # That of another user could list frames that are not stored.
        if not is_trusted_record(os.fstat(file.fileno()), path.parent):
            return [], 0
        data = file.read()
    records: list[Record] = []
    if not data.startswith(MAGIC):
        return records, 0
    offset = len(MAGIC)
    with contextlib.suppress(
        ValueError, TypeError, LookupError, struct.error, OverflowError, RecursionError
    ):
        while True:
            nbytes, crc = RECORD_HEADER.unpack_from(data, offset)
            begin = offset + RECORD_HEADER.size
            body = data[begin : begin + nbytes]
            if len(body) < nbytes or not nbytes or crc32c(body) != crc:
                break
            record = Record.from_bytes(body)
            if (flushed_run := record.values.get(MARK_KEY)) is None:
                records.append(record)
            else:
                run = slice(*flushed_run)
                records[run] = [replace(record, flushed=True) for record in records[run]]
            offset = begin + nbytes
    return records, offset


class Journal:
    """The journal of an output that is being built, written by the owner; a context manager.

    `temporary`: the path that `publish` yielded. `values`: plain values for the first record, if
    there is no journal yet. Attributes: `values`: those of the first record. `records`: of pieces
    that earlier runs stored.
    Raises OutputError: it cannot be written.
    """

    def __init__(self, temporary: Path, values: Mapping[str, Any]) -> None:
        self.path = journal_path(temporary)
        self._files: set[Path] = set()
        self._thread = threading.Thread(target=self._flush_regularly, daemon=True)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        self._reserved_end = 0
        """End of the space that is allocated for the file on the disk."""
        self._fd = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            if not is_trusted_record(os.fstat(self._fd), self.path.parent):
                raise OSError(errno.EPERM, "it belongs to another user", str(self.path))
            records, self._end = read_journal(self.path)
            os.ftruncate(self._fd, self._end)
            if not records:
                self._end = write_all(self._fd, 0, MAGIC)
                self._append(Record(0, 0, dict(values)))
                records = read_journal(self.path)[0]
        except BaseException:
            os.close(self._fd)
            raise
        self.values, self.records = records[0].values, records[1:]
        self._n_flushed = self._n_records = len(records)

    def add(self, record: Record, files: Iterable[Path]) -> None:
        """Write the record of a piece in `files`, which are flushed later; raises OSError."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._files.update(files)
            try:
                self._append(record)
                self._n_records += 1
            except BaseException:
                # A signal may have ended this once the record was written: a mark that follows
                # must not take its place.
                with contextlib.suppress(OSError):
                    records, end = read_journal(self.path)
                    if records:
                        self._end, self._n_records = end, len(records)
                raise
        if self._thread.ident is None:
            self._thread.start()

    def _flush_regularly(self) -> None:
        """Flush added pieces at intervals until the journal is closed or a flush fails."""
        while not self._closing.wait(FLUSH_INTERVAL_S):
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
            # A file is missing if its piece was merged into another one.
            with contextlib.suppress(FileNotFoundError):
                flush(path)
        with self._lock:
            if self._fd >= 0:
                self._append(Record(0, 0, {MARK_KEY: [self._n_flushed, stop]}))
                self._n_flushed = stop
                os.fsync(self._fd)

    def _append(self, record: Record) -> None:
        self._end = write_all(self._fd, self._end, record.to_bytes())
        if self._end + RESERVED_NBYTES // 2 > self._reserved_end:
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._fd, self._end, RESERVED_NBYTES)
                self._reserved_end = self._end + RESERVED_NBYTES

    def close(self) -> None:
        """Stop flushing, and close the file."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(MAX_CLOSE_WAIT_S)
        with self._lock:
            if self._fd >= 0:
                descriptor, self._fd = self._fd, -1
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # After an error in the block, another one in closing is of no use.
        with contextlib.nullcontext() if error_type is None else contextlib.suppress(OSError):
            self.close()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The unfinished output of an earlier run, which can be continued."""

    temporary: Path
    values: Mapping[str, Any]
    """As `Journal.values`."""
    n_frames: int
    """Frames that are stored; of an ensemble, those of trajectories that are not whole."""
    nbytes: int
    """Bytes that are stored, without space that is only reserved."""
    n_complete: int = 0
    """Trajectories of an ensemble that are whole."""

    @property
    def text(self) -> str:
        """How many frames and bytes are kept, and where, for messages."""
        return f"{self._contents} ({human_nbytes(self.nbytes)}) are kept in {self.temporary}"

    @property
    def _is_append(self) -> bool:
        return self.values.get(N_REUSED_KEY) is not None

    @property
    def _contents(self) -> str:
        """How many trajectories and frames are stored, for messages."""
        members = self.values.get(MEMBERS_KEY)
        if members is None:
            n_reused_frames = self.values.get(N_REUSED_KEY)
            return stored_frames_text(self.n_frames, self.values["n_frames"], n_reused_frames)
        trajectories = f"{self.n_complete:,} of {len(members):,} trajectories"
        frames = f"{self.n_frames:,} frames"
        if not self.n_complete:
            return frames
        return f"{trajectories} and {frames} of others" if self.n_frames else trajectories

    def advice(self, *, replaces: bool) -> str:
        """Return what is kept and how to continue or restart, for the end of a message.

        `replaces`: whether there is a former output, which is kept until this one is complete.
        """
        at_least = "at least " if MEMBERS_KEY in self.values else ""
        resume, restart, conjunction = "--resume", "--force", "or"
        if replaces and self._is_append:
            resume, conjunction = "mdio append with --resume", "of mdio.append, or"
        elif replaces:
            resume, restart, conjunction = "--force --resume", "--force alone", "and"
        return (
            f"{at_least}{self.text}: use {resume} to continue, {restart} to start over "
            f"(resume=True {conjunction} force=True in Python)"
        )

    def check_continues(self, target: Path, *, continues: bool) -> None:
        """Raise OutputError if the new run `continues` an output, and this is of a conversion."""
        if continues and not self._is_append:
            raise OutputError(
                f"{target}: a conversion that was to replace it is unfinished: {self.text}; give "
                "mdio convert its source and options with --force --resume to continue that first "
                "(force=True and resume=True in Python), or --force here to drop what is kept"
            )

    def check_identity(self, target: Path, identity: Mapping[str, Any]) -> None:
        """Raise OutputError unless it is of the conversion with this `identity`."""
        stored = self.values.get("of")
        change = describe_change(stored if isinstance(stored, dict) else {}, identity)
        if change is not None:
            work, advice = "a different conversion", "give the same source and options"
            if self._is_append:
                work, advice = "an append", "give mdio append the same source with --resume"
            raise OutputError(
                f"{target}: {work} was left unfinished, which this one cannot continue "
                f"({change}); {advice}, or --force to start again"
            )


def stored_frames_text(n_stored: int, n_frames: int, n_reused_frames: int | None) -> str:
    """Return how many of `n_frames` frames are stored, in words.

    `n_reused_frames`: see `N_REUSED_KEY`.
    """
    if n_reused_frames is None:
        return f"{n_stored:,} of {n_frames:,} frames"
    return f"{n_stored:,} of the {n_frames - n_reused_frames:,} frames to write"


def find_unfinished(temporary: Path) -> Unfinished | None:
    """Return the unfinished output at `temporary`; None if there is none to continue."""
    if not os.path.lexists(temporary):
        return None
    try:
        records = read_journal(journal_path(temporary))[0]
    except OSError:
        return None
    manifest = manifest_in(temporary)  # after an exchange, the former output has this name
    if not records or not isinstance(records[0].values.get("n_frames"), int):
        return None
    values = records[0].values
    if manifest is not None and manifest["uuid"] != values.get("uuid"):
        return None
    if MEMBERS_KEY in values:
        return _unfinished_ensemble(temporary, values)
    stored = {record.first: record for record in records[1:]}.values()
    n_frames = sum(record.n_frames for record in stored)
    nbytes = sum(record.values.get("nbytes", 0) for record in stored)
    return Unfinished(temporary, values, n_frames, nbytes) if stored else None


def _unfinished_ensemble(temporary: Path, values: Mapping[str, Any]) -> Unfinished | None:
    """Return the unfinished ensemble at `temporary`; None if no frame of it is stored.

    Files are counted, since the rank that keeps the journal learns late what other ranks stored.
    """
    complete_members = [
        temporary / name for name in values[MEMBERS_KEY] if os.path.lexists(temporary / name)
    ]
    unfinished_members = list(filter(None, map(find_unfinished, temporary.glob(".*.tmp"))))
    n_frames = sum(member.n_frames for member in unfinished_members)
    nbytes = sum(map(allocated_nbytes, complete_members)) + sum(
        member.nbytes for member in unfinished_members
    )
    unfinished = Unfinished(temporary, values, n_frames, nbytes, len(complete_members))
    return unfinished if n_frames or complete_members else None


def unfinished_in(leftover: Leftover) -> Iterator[Unfinished]:
    """Yield the unfinished outputs of a leftover, which can be continued."""
    for name in leftover.journals:
        unfinished = find_unfinished(leftover.name(leftover.folder / name))
        if unfinished is not None:
            yield unfinished


def refuse_unfinished(target: Path, name: Path, *, continues: bool) -> None:
    """Raise OutputError, which names `name`, if an unfinished `target` can be continued."""
    for leftover in leftovers([target]):
        for unfinished in unfinished_in(leftover):
            unfinished.check_continues(name, continues=continues)
            raise OutputError(
                f"{name}: an earlier run did not finish; {unfinished.text}; give --resume "
                "(resume=True in Python) to continue it, or --force (force=True) to start again"
            )


def allocated_nbytes(path: Path) -> int:
    """Return the bytes that a file or a folder takes on the disk, 0 if it does not exist."""
    files = [path, *(path.rglob("*") if path.is_dir() else ())] if os.path.lexists(path) else []
    return sum(512 * file.lstat().st_blocks for file in files)


def describe_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return how a conversion differs from an earlier one; None if they are equal.

    `old`, `new`: plain values. Those under ``recipe`` only name the options that differ where other
    values do.
    """
    difference = _difference({**old, "recipe": None}, {**new, "recipe": None})
    if difference is None:
        return None
    return describe_changed_options(old.get("recipe", {}), new.get("recipe", {})) or difference


MAX_TEXT_LETTERS = 80
"""Letters of a value in a message, about where two differ."""


def _date(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).isoformat(" ", "milliseconds")


def describe_changed_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the options that differ, and how."""
    differences = (_difference(old.get(name), new.get(name), name) for name in {**old, **new})
    return ", ".join(text for text in differences if text is not None)


def _difference(old: Any, new: Any, name: str = "") -> str | None:
    """Return the first difference of two plain values in words; None if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        name = str(new["path"]) if "path" in old and "path" in new else name
        labels = {key: f"{name}, {key}" if name else key for key in {**old, **new}}
        differences = (_difference(old.get(key), new.get(key), labels[key]) for key in labels)
    elif isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(zip_longest(old, new))
        differences = (_difference(*pair, f"{name} {number}") for number, pair in pairs)
    else:
        texts = ["not given" if value is None else json.dumps(value) for value in (old, new)]
        if texts[0] == texts[1]:
            return None
        begin = 0
        if max(map(len, texts)) > MAX_TEXT_LETTERS:
            n_equal = next(n for n, (a, b) in enumerate(zip_longest(*texts)) if a != b)
            begin = max(0, n_equal - MAX_TEXT_LETTERS // 2)
        old_text, new_text = (
            "..." * bool(begin) + text[begin : begin + MAX_TEXT_LETTERS] for text in texts
        )
        if name.endswith(", mtime_ns") and isinstance(old, int) and isinstance(new, int):
            name, old_text, new_text = name.removesuffix(", mtime_ns"), _date(old), _date(new)
            return f"{name}: last changed {old_text} then, {new_text} now"
        return f"{name}: {old_text} then, {new_text} now"
    return next((text for text in differences if text is not None), None)
