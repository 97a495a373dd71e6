"""MOL2 of Tripos: a molecule begins with ``@<TRIPOS>MOLECULE``, its name and its counts."""

from __future__ import annotations

from collections.abc import Iterator

from mdio.layouts.foreign.text.format import FrameError, Lines, Span, TextFormat, plain, shown

SECTION = b"@<TRIPOS>"
CELL, END = b"CRYSIN", b"END"
OF_A_BOND = 4
"""Words: its number, two atoms, its type."""
COUNTED = (b"ATOM", b"BOND")
"""Sections whose lines the molecule counts, in that order."""


class MOL2(TextFormat):
    """Molecules, each a frame."""

    kind = "MOL2"

    def spans(self, lines: Lines, nbytes: int | None) -> Iterator[Span]:  # noqa: ARG002
        """Yield the frames."""
        while (line := lines.peek()) and not line.startswith(SECTION):
            if line.strip() and not line.startswith(b"#"):
                raise FrameError(f"{shown(line)} in place of @<TRIPOS>MOLECULE")
            lines.next()
        usual: dict[bytes, int] = {}
        while lines.peek():
            start = lines.offset
            line = lines.next()
            if line.strip() != SECTION + b"MOLECULE":
                text = f"{shown(line)} in place of @<TRIPOS>MOLECULE"
                raise FrameError(text, at_end=not line.endswith(b"\n"))
            lines.next()
            says = lines.next()
            counts = says.split()
            if not counts or not all(word.isdigit() for word in counts):
                raise FrameError(f"{shown(says)} in place of numbers of atoms and bonds")
            expected = {name: int(one) for name, one in zip(COUNTED, counts, strict=False)}
            has = self._sections(lines, expected | {CELL: 1})
            if CELL in has:
                expected[CELL] = 1
            for name, count in expected.items():
                if has.get(name, 0) != count:
                    raise FrameError(
                        f"{has.get(name, 0)} lines of section {plain(name)}, expected {count}",
                        at_end=not lines.peek(),
                    )
            usual = usual or has
            rest = lines.peek()
            is_last = not rest.endswith(b"\n")
            if rest and is_last and CELL not in usual:
                raise FrameError(f"{shown(rest)} at the end, perhaps of a section", at_end=True)
            if is_last and (missing := usual.keys() - has.keys()):
                raise FrameError(
                    f"no section {plain(min(missing))}, which the first has", at_end=True
                )
            yield Span(start, lines.offset, int(counts[0]))

    @staticmethod
    def _sections(lines: Lines, most: dict[bytes, int]) -> dict[bytes, int]:
        """Go to the next molecule, or what belongs to none; return how many lines sections have.

        `most`: how many they may have.
        """
        has: dict[bytes, int] = {}
        section = b""
        while line := lines.peek():
            is_open = line.startswith(b"@") and not line.endswith(b"\n")
            if is_open and line != SECTION + END:
                break
            if line.startswith(SECTION):
                section = line[len(SECTION) :].strip()
                if section == b"MOLECULE":
                    break
                has.setdefault(section, 0)
            elif section and line.strip() and not line.startswith(b"#"):
                if has[section] == most.get(section):
                    break
                has[section] += 1
            lines.next()
        return has

    def is_whole_without_newline(self, raw: bytes) -> bool:
        """Return whether the last section is none of coordinates or a cell, nor a bond cut."""
        section = raw[raw.rfind(SECTION) + len(SECTION) :].split()[0]
        n_words = len(raw.splitlines()[-1].split())
        return section in (b"SUBSTRUCTURE", END) or (section == b"BOND" and n_words >= OF_A_BOND)
