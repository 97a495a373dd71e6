"""A journal of what is finished of an output, with which another run goes on after an end.

It lies beside the temporary, as ``.NAME.mdio-HOST-PID-TOKEN.journal``. Its first record says what
is made, and of what; every other one that some more is stored, and what the owner of the output
needs to know of it. A record has its length and its own crc32c: what was still being written when
the process ended is none, and is dropped.

What is stored is flushed to the disk, together with what else was stored meanwhile, before its
record is written. What could not be flushed any more, since the work was stopped, says so in its
record, and is looked at before it counts.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.writing import flush, write_all
from mdio.core.kernels import crc32c

MAGIC = b"mdio journal 1\n"
_HEAD = struct.Struct("<QI")
"""Bytes of a record, and their crc32c."""
TYPES = ("<f4", "<f8", "<i8", "<u4", "|u1")
"""Of the numbers that records hold."""
FLUSH_S = 1.0
"""How long what was stored waits, at least, for more that is flushed with it."""
FLUSH_SHARE = 0.04
"""Of the time that may go into flushing: some file systems let nobody write meanwhile."""
LONGEST_WAIT_S = 30.0
"""Work of this time, at most, is done again after a power cut."""
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
    said: Mapping[str, Any]
    """Plain values."""
    arrays: Sequence[NDArray[Any]] = ()
    """Of `TYPES`."""
    flushed: bool = False

    def packed(self, *, flushed: bool) -> bytes:
        """Return the record as it lies in the journal."""
        head = {
            "frames": [self.first, self.n_frames],
            "flushed": flushed,
            "said": self.said,
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
        return cls(first, n_frames, dict(head["said"]), arrays, bool(head["flushed"]))


def journal_of(temporary: Path) -> Path:
    """Return where the journal of an output is that is built at `temporary`."""
    return temporary.with_suffix(".journal")


def read_journal(path: Path) -> tuple[list[Record], int]:
    """Return the whole records of a journal, and where they end; raises OSError."""
    data = path.read_bytes()
    found: list[Record] = []
    if not data.startswith(MAGIC):
        return found, 0
    at = len(MAGIC)
    with contextlib.suppress(ValueError, TypeError, LookupError, struct.error, OverflowError):
        while True:
            nbytes, crc = _HEAD.unpack_from(data, at)
            begin = at + _HEAD.size
            body = data[begin : begin + nbytes]
            if len(body) < nbytes or not nbytes or crc32c(body) != crc:
                break
            found.append(Record.unpacked(body))
            at = begin + nbytes
    return found, at


class Journal:
    """The journal of the output that is built at `temporary` (its owner has it).

    A context manager: leaving it writes what it was told of and has not written yet.

    `temporary`: what `publish` yielded. `said`: what the first record says, if there is no journal
    yet: plain values. Attributes: `said`: what the first record says. `records`: what former runs
    stored.
    Raises OutputError: it cannot be written.
    """

    def __init__(self, temporary: Path, said: Mapping[str, Any]) -> None:
        self.path = journal_of(temporary)
        self._waiting: deque[tuple[Record, tuple[Path, ...]]] = deque()
        self._flushing: list[tuple[Record, tuple[Path, ...]]] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._told = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        self._reserved = 0
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            records, self._end = read_journal(self.path)
            if not records:
                self._end = write_all(self._fd, 0, MAGIC)
                self._append([Record(0, 0, dict(said))], flushed=True)
                records = read_journal(self.path)[0]
            os.ftruncate(self._fd, self._end)
        except BaseException:
            os.close(self._fd)
            raise
        self.said, self.records = records[0].said, records[1:]

    def add(self, record: Record, files: Iterable[Path]) -> None:
        """Take note of a record, which is written once `files` are flushed; raises OSError."""
        if self._failure is not None:
            raise self._failure
        self._waiting.append((record, tuple(files)))
        self._told.set()
        if self._thread.ident is None:
            self._thread.start()

    def _work(self) -> None:
        """Write what waits, whether or not more comes, until there is an end or a failure."""
        wait_s = FLUSH_S
        while self._told.wait() and not self._closing.wait(wait_s):
            self._told.clear()
            with self._lock:
                self._flushing = [self._waiting.popleft() for _ in range(len(self._waiting))]
            begun = time.perf_counter()
            try:
                self._flush()
            except OSError as error:
                self._failure = error
                return
            flush_s = time.perf_counter() - begun
            wait_s = min(max(FLUSH_S, flush_s / FLUSH_SHARE), LONGEST_WAIT_S)

    def _flush(self) -> None:
        files = {path for _, some in self._flushing for path in some}
        for path in (*files, *{path.parent for path in files}):
            with contextlib.suppress(FileNotFoundError):  # it has become part of another one
                flush(path)
        with self._lock:
            if self._fd >= 0:
                self._append([record for record, _ in self._flushing], flushed=True)
                self._flushing = []
                os.fsync(self._fd)

    def _append(self, records: Iterable[Record], *, flushed: bool) -> None:
        packed = [record.packed(flushed=flushed) for record in records]
        self._end = write_all(self._fd, self._end, *packed)
        if self._end + RESERVED_NBYTES // 2 > self._reserved:
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._fd, self._end, RESERVED_NBYTES)
                self._reserved = self._end + RESERVED_NBYTES

    def close(self) -> None:
        """Write what is not written yet, flushed or not."""
        self._closing.set()
        self._told.set()
        if self._thread.ident is not None:
            self._thread.join(STOPPING_S)
        with self._lock:
            fd = self._fd
            if fd >= 0:
                try:
                    waiting = [record for record, _ in (*self._flushing, *self._waiting)]
                    self._append(waiting, flushed=False)
                finally:
                    self._fd = -1
                    os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OSError:
            if kind is None:
                raise
