"""Handles that are kept open, the ones used last, within what the system allows a process."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, Protocol, TypeVar

SHARE = 8
"""One cache may have this part of the files that the process may have open: a reader has several
caches, and other code files of its own."""


class _Closing(Protocol):
    def close(self) -> None: ...


Key = TypeVar("Key", bound=Hashable)
Handle = TypeVar("Handle", bound=_Closing)


def handles_allowed(wanted: int) -> int:
    """Return how many handles a cache may keep that would like `wanted` of them; 1 at least."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // SHARE))


class Handles(Generic[Key, Handle]):
    """Opens what is asked for, and closes what has not been asked for the longest time.

    `open_one`: opens the one that belongs to a key. `wanted`: how many to keep open, if the system
    allows it.
    """

    def __init__(self, open_one: Callable[[Key], Handle], wanted: int) -> None:
        self._open_one = open_one
        self._limit = handles_allowed(wanted)
        self._open: OrderedDict[Key, Handle] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Leave open ones behind."""
        return {**self.__dict__, "_open": OrderedDict()}

    def __getitem__(self, key: Key) -> Handle:
        """Return the handle of `key`, open until others push it out."""
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
            return found
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)[1].close()
        found = self._open[key] = self._open_one(key)
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[Key]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Close all of them; they are opened again if they are asked for."""
        while self._open:
            self._open.popitem()[1].close()
