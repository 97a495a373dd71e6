"""TRC of GROMOS: blocks with a name, lines and END; a frame is a run of them.

https://www.gromos.net, volume 4. Positions are in POSITIONRED, steps and times in TIMESTEP, boxes
in GENBOX.
"""

from __future__ import annotations

from collections.abc import Iterator

from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import FrameError, Lines, Span, TextFormat, plain, shown

TIME, POSITIONS, BOX = "TIMESTEP", "POSITIONRED", "GENBOX"
READ = (TIME, POSITIONS, BOX)
END = b"END"
TITLE = "TITLE\none frame\nEND\n"
BOUNDARIES = {0: "none", 1: "rectangular", 2: "triclinic"}


class BlockError(FrameError):
    """There is no whole block here."""

    def __init__(self, text: str, *, at_end: bool, name: str = "") -> None:
        super().__init__(text, at_end=at_end)
        self.name = name
        """Of the block that is not whole."""


class TRC(TextFormat):
    """A trajectory of GROMOS."""

    kind = "TRC"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:  # noqa: ARG002
        """Yield the frames."""
        first, start, n_atoms = "", 0, 0
        blocks, usual = list[str](), list[str]()
        name: str | None = None
        while name != "":
            at = lines.offset
            try:
                name, n_rows = _block(lines)
            except BlockError as error:
                # What is left over behind the last block of a frame is none of that frame.
                if blocks and (not error.name or first.startswith(error.name)):
                    yield self._span(start, at, n_atoms, blocks, usual, is_last=True)
                raise
            if not first and name in READ:
                first = name
            if first and name in ("", first):
                if blocks:
                    yield self._span(start, at, n_atoms, blocks, usual, is_last=not name)
                    usual = usual or blocks
                start, blocks, n_atoms = at, [], 0
            if first:
                blocks.append(name)
            if name == POSITIONS:
                if n_atoms:
                    raise FrameError(f"two blocks {POSITIONS} in a frame")
                n_atoms = n_rows

    @staticmethod
    def _span(
        start: int, stop: int, n_atoms: int, blocks: list[str], usual: list[str], *, is_last: bool
    ) -> Span:
        """Return a frame; raises FrameError: it has no positions, or lacks what others have."""
        if POSITIONS not in blocks:
            text = f"blocks {', '.join(blocks)} without {POSITIONS}"
            raise FrameError(text, at_end=is_last)
        if is_last and (missing := [one for one in usual if one not in blocks]):
            raise FrameError(
                f"blocks {', '.join(blocks)}, without the {missing[0]} of the first frame",
                at_end=True,
            )
        return Span(start, stop, n_atoms, _fields(blocks), _remarks(blocks))

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the last block has its END."""
        return raw.rstrip().endswith(b"\n" + END)

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame behind a title."""
        return TITLE + plain(raw)

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame."""
        words = plain(raw).split()
        has = {name: name in words for name in READ}
        if has[BOX] and (key := words[words.index(BOX) + 1]) not in map(str, BOUNDARIES):
            raise FrameError(f"{BOX} with boundaries {key}, expected 0, 1 or 2")
        snapshot = super().read(raw, n_atoms)
        if not has[TIME]:
            snapshot.time = snapshot.step = None
        return snapshot


def _block(lines: Lines) -> tuple[str, int]:
    """Go over a block; return its name and rows of three numbers, no name at the end of the file.

    Raises FrameError: the file ends within it.
    """
    while (line := lines.next()) and (not line.strip() or line.lstrip().startswith(b"#")):
        pass
    name = plain(line).strip()
    if not name:
        return "", 0
    if not name.replace("0", "").isalnum() or not name.isupper():
        text = f"{shown(line)} in place of the name of a block"
        raise BlockError(text, at_end=not line.endswith(b"\n"))
    n_rows = 0
    while line := lines.next():
        if line.startswith(b"END") and line.strip() == END:
            return name, n_rows
        n_rows += not line.lstrip().startswith(b"#")
    raise BlockError(f"a block {name} without END", at_end=True, name=name)


def _fields(blocks: list[str]) -> frozenset[str]:
    return frozenset({"time"} if TIME in blocks else ())


def _remarks(blocks: list[str]) -> tuple[str, ...]:
    return tuple(f"blocks {name} are not read" for name in blocks if name not in READ)
