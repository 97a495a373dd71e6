"""Trajectories of AMBER as text: a title, then numbers of format 10F8.3, perhaps a box.

https://ambermd.org/FileFormats.php#trajectory. Neither the number of atoms nor angles are in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from mdio.core.errors import AtomCountError
from mdio.layouts.foreign.snapshot import Snapshot
from mdio.layouts.foreign.text.format import FrameError, Lines, Span, TextFormat, plain, shown

PER_LINE, WIDTH = 10, 8
_NUMBERS = re.compile(rb"(?:[ \d*+-]{4}[.*][\d*]{3}){1,10}[ \t]*\r?\n?")
TITLE = "one frame\n"


class MDCRD(TextFormat):
    """A trajectory of AMBER, of coordinates that MDAnalysis does not tell from velocities."""

    kind = "MDCRD"
    needs_n_atoms: ClassVar[bool] = True
    _has_box: bool | None = None

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:
        """Yield the frames."""
        n_atoms = self.options.get("n_atoms")
        if n_atoms is None:
            raise AtomCountError("its format does not hold the number of atoms")
        n_full, rest = divmod(3 * n_atoms, PER_LINE)
        lines.next()
        if nbytes is not None and nbytes - lines.offset < 3 * n_atoms * WIDTH:
            raise FrameError(
                f"{nbytes - lines.offset} bytes, expected {3 * n_atoms} numbers of {WIDTH} for "
                f"{n_atoms} atoms",
                at_end=True,
            )
        self._has_box = True if self.kind_read == "CRDBOX" else None
        while lines.peek().strip():
            start = lines.offset
            for count in [PER_LINE] * n_full + [rest] * bool(rest):
                _expect(lines.next(), count, n_atoms)
            if self._has_box is None:
                self._check_next(lines.peek())
                # A line of three numbers is the next frame only if that has three: of one atom.
                self._has_box = n_atoms > 1 and _count(lines.peek()) == 3
            if self._has_box:
                _expect(lines.next(), 3, n_atoms)
            yield Span(start, lines.offset, n_atoms)

    @staticmethod
    def _check_next(line: bytes) -> None:
        """Raise FrameError if a line does not tell whether it is a box or the next frame."""
        if line.strip() and not line.endswith(b"\n") and len(line) <= 3 * WIDTH:
            raise FrameError(f"{shown(line)} at the end, perhaps of a box", at_end=True)

    def is_whole_without_newline(self, raw: bytes) -> bool:  # noqa: ARG002
        """Return True: numbers have a fixed width, which was looked at."""
        return True

    def text_for_mdanalysis(self, raw: bytes) -> str:
        """Return the frame behind a title."""
        return TITLE + plain(raw).rstrip("\n") + "\n"

    def reader_class(self, theirs: Any) -> Any:
        """Return MDAnalysis' reader, which need not find out whether there is a box."""
        has_box = self._has_box

        class OneFrame(theirs):  # type: ignore[misc]
            def _detect_amber_box(self) -> bool:
                self.periodic = has_box
                return bool(has_box)

        return OneFrame

    def read(self, raw: bytes, n_atoms: int) -> Snapshot:
        """Return a frame."""
        if b"*" in raw:
            raise FrameError("stars in place of a number, which was too large for its format")
        return super().read(raw, n_atoms)

    def made_up(self) -> Iterator[str]:
        """Yield what else is assumed."""
        if self._has_box:
            yield f"{self.kind_read} holds no angles of the box: assumed to be 90 degrees"


def _count(line: bytes) -> int:
    """Return how many numbers a line holds; 0 if it holds others."""
    return len(line.rstrip()) // WIDTH if _NUMBERS.fullmatch(line) else 0


def _expect(line: bytes, count: int, n_atoms: int) -> None:
    """Raise FrameError unless a line has so many numbers."""
    if _count(line) != count:
        raise FrameError(
            f"{shown(line)} in place of {count} numbers of {WIDTH} characters, as frames of "
            f"{n_atoms} atoms have them (are these the file's atoms?)",
            at_end=not line.endswith(b"\n"),
        )
