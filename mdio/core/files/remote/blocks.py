"""Objects as files, for libraries that want one."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mdio.core.files.remote.opened import RemoteObject

BLOCK_NBYTES = 1 << 20
"""What libraries read is asked for in blocks of this size."""
MAX_BLOCKS = 16


class ObjectFile(io.RawIOBase):
    """An object as a file, for libraries that want one: it is read in blocks, which are kept."""

    def __init__(self, remote: RemoteObject) -> None:
        self._object, self._at = remote, 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where it is."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        base = (0, self._at, self._object.state.nbytes)[whence]
        if base + offset < 0:
            raise OSError(22, "before the beginning", str(self._object.path))
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill `target` from there on; return how many bytes came."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view):
            number, begin = divmod(self._at, BLOCK_NBYTES)
            wanted = min(len(view) - done, BLOCK_NBYTES - begin)
            here = self._object.held(self._at, wanted) if number not in self._blocks else None
            if here is not None:  # it came as the object was opened
                n_read = wanted
                view[done : done + n_read] = here
            elif not begin and len(view) - done > BLOCK_NBYTES:
                n_read = self._object.read_into([view[done:]], self._at)
            else:
                part = self._block(number)[begin : begin + len(view) - done]
                n_read = len(part)
                view[done : done + n_read] = part
            if not n_read:
                break
            done, self._at = done + n_read, self._at + n_read
        return done

    def _block(self, number: int) -> bytes:
        found = self._blocks.get(number)
        if found is None:
            begin = number * BLOCK_NBYTES
            room = bytearray(max(0, min(BLOCK_NBYTES, self._object.state.nbytes - begin)))
            self._object.read_into([room], begin)
            found = self._blocks[number] = bytes(room)
            if len(self._blocks) > MAX_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return found


@contextmanager
def copied_here(path: Path) -> Iterator[Path]:
    """Yield a copy of an object, for libraries that want a name; raises OSError."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mdio-") as folder:
        copy = Path(folder, path.name)
        with ObjectFile(RemoteObject(path)) as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, BLOCK_NBYTES)
        yield copy
