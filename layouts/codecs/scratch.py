"""Memory that is kept from chunk to chunk.

Fresh memory for every chunk would be cleared by the system first, a page at a time, which can take
several times as long as decoding it.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

MAX_KEPT_NBYTES = 32 << 20
"""What is larger gets fresh memory each time."""


class Scratch(threading.local):
    """Rooms for some purposes, for each thread its own."""

    def __init__(self) -> None:
        self._rooms: dict[str, NDArray[np.uint8]] = {}

    def room(self, purpose: str, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes`, valid until they are asked for again for the same purpose."""
        if nbytes > MAX_KEPT_NBYTES:
            return np.empty(nbytes, np.uint8)
        room = self._rooms.get(purpose)
        if room is None or room.nbytes < nbytes:
            room = self._rooms[purpose] = np.empty(nbytes, np.uint8)
        return room[:nbytes]
