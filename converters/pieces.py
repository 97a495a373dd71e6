"""What a conversion worker does with one piece: read, encode, store where it may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout, LayoutWriter, Receipt, Stored
from mdio.parallel.executors import Executor

__all__ = ["PieceWorker", "describe_on", "describe_piece"]

Piece = tuple[int, int]


def describe_piece(piece: Piece) -> str:
    """Return the name of a piece for messages."""
    return f"frames {piece[0]} to {piece[1] - 1}"


def describe_on(executor: Executor) -> Callable[[Piece], str]:
    """Return what names pieces for messages; under MPI with the rank, which tells of a node."""
    rank = getattr(executor, "rank", None)
    return (
        describe_piece if rank is None else lambda piece: f"{describe_piece(piece)} (rank {rank})"
    )


class PieceWorker:
    """Reads one piece from the source and hands it to the writer.

    Keeps the opened source and the memory of its frames from piece to piece.
    """

    def __init__(self, source: Layout, writer: LayoutWriter) -> None:
        self.source = source
        self.writer = writer
        self._room: FrameBlock | None = None

    def __call__(self, piece: Piece) -> tuple[Receipt, list[Stored]]:
        """Return the receipt, and the items that their owner has to store."""
        start, stop = piece
        room = self._room
        if room is None or room.n_frames < stop - start:
            room = self._room = self.source.read(start, stop)
            block = room
        else:
            block = self.source.read(start, stop, out=room.frames(slice(0, stop - start)))
        items = self.writer.encode(start, block)
        if self.writer.parallel_store:
            for item in items:
                self.writer.store(item)
        receipt = Receipt(
            start=start,
            stop=stop,
            crcs={item.key: item.crcs for item in items},
            nbytes=sum(item.nbytes for item in items),
            box=block.box.copy(),
            time=block.time.copy(),
            step=block.step.copy(),
        )
        return receipt, [] if self.writer.parallel_store else items

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_room": None}
