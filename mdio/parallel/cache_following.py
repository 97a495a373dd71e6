"""Keeping what a simulation writes on the nodes that will analyse it, while it is written."""

from __future__ import annotations

import glob
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mdio.core.cache.folder import Cache, node_name
from mdio.core.errors import MdioError, PlanError
from mdio.layouts.base import cache_notes
from mdio.layouts.caching.reads import cached_reads
from mdio.layouts.registry import open_layout
from mdio.parallel.assignment import preferred, unit_keys


@dataclass
class CacheFollower:
    """Takes this node's share of what is complete in files that match a pattern.

    What is done is known by the cache itself: a follower that was killed is simply started again.

    `pattern`: of paths, as a shell expands it. `cache`: this node's. `nodes`: names of all nodes
    that follow; this one takes the units that prefer it. `this`: name of this node.
    """

    pattern: str
    cache: Cache
    nodes: Sequence[str]
    this: str
    n_units: int = 0
    """Units that were kept."""
    nbytes: int = 0
    notes: list[str] = field(default_factory=list)
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def look(self, *, ended: bool = False) -> int:
        """Keep what is complete, and return how many files have changed since the last look.

        The last unit of a file is complete when nothing has changed since, or all has `ended`.
        """
        n_changed = 0
        for name in sorted(glob.glob(self.pattern, recursive=True)):
            path = Path(name)
            try:
                status = path.stat()
                now = status.st_size, status.st_mtime_ns
                changed = self._seen.get(path) != now
                n_changed += changed
                self._seen[path] = now
                self._take(path, whole=ended or not changed)
            except (MdioError, OSError) as error:
                # Its first frame is not complete, perhaps.
                self._note(f"{path}: nothing of it is kept yet ({' '.join(str(error).split())})")
        return n_changed

    def _take(self, path: Path, *, whole: bool) -> None:
        with open_layout(path, cache=self.cache) as layout:
            reads = cached_reads(layout, None)
            stops = reads.edges[1:]
            numbers = np.arange(len(stops) if whole else len(stops) - 1)
            numbers = numbers[~reads.source.held(numbers.tolist(), stops[: len(numbers)].tolist())]
            keys = unit_keys(str(reads.source.path), numbers)
            mine = preferred(keys, self.nodes) == self.nodes.index(self.this)
            for number in numbers[mine].tolist() if reads.works else ():
                unit = reads.fetch(number)
                if unit is not None and reads.source.held([number], [int(stops[number])])[0]:
                    self.n_units += 1
                    self.nbytes += unit.nbytes
            for note in cache_notes(layout):
                self._note(note)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def follow_into_cache(
    pattern: str,
    cache: Cache,
    *,
    nodes: Sequence[str] = (),
    every_s: float = 60.0,
    until_idle_s: float | None = None,
    stopped: threading.Event | None = None,
    told: Callable[[CacheFollower], None] | None = None,
) -> CacheFollower:
    """Keep what a simulation writes, as it is written, until told to end.

    `pattern`: paths of trajectories, as a shell expands it: files that grow, files and outputs that
    come. `cache`: this node's. `nodes`: names of all nodes that do so, each of which takes its
    share; this one alone by default. A name is that of the machine, or ``MDIO_NODE``. `every_s`:
    how much time lies between two looks. `until_idle_s`: end when nothing has changed for so long;
    None = do not. `stopped`: end when this is set, with what is complete by then. `told`: called
    after each look.
    Returns CacheFollower: what was kept, and what there is to tell.
    Raises PlanError: this node is not among `nodes`.
    """
    here = node_name() or socket.gethostname()
    names = list(dict.fromkeys(nodes)) or [here]
    this = next((name for name in names if name in (here, here.partition(".")[0])), None)
    if this is None:
        raise PlanError(
            f"this node is {here}, which is not among {', '.join(names)}; name it so, or set "
            "MDIO_NODE"
        )
    ended = stopped or threading.Event()
    follower = CacheFollower(pattern, cache, names, this)
    since = time.monotonic()
    while True:
        end = ended.is_set() or (
            until_idle_s is not None and time.monotonic() - since >= until_idle_s
        )
        if follower.look(ended=end):
            since = time.monotonic()
        if told is not None:
            told(follower)
        if end:
            return follower
        ended.wait(every_s if until_idle_s is None else min(every_s, until_idle_s / 2 + 0.05))
