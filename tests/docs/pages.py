"""The pages of the documentation and their blocks of code."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("[!_]*.md"))]
PAGES += sorted((ROOT / "docs/tutorials").glob("*.md"))

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ (?P<line>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
NO_CODE = ("text", "toml")


@dataclass(frozen=True)
class Block:
    """A block and the comment right above it.

    ``<!-- not run: why -->`` leaves it out, ``<!-- file: NAME -->`` writes it into a file.
    """

    kind: str
    text: str
    mark: str

    @property
    def runs(self):
        return self.kind not in NO_CODE and not self.mark.startswith("not run: ")

    @property
    def under_mpi(self):
        return "mpiexec" in self.text

    @property
    def file(self):
        """Name of the file that it is written into."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None

    @property
    def commands(self):
        """(command, what the page shows of its output), of a block of the kind console."""
        return [(m["line"], m["shown"]) for m in COMMAND.finditer(self.text)]


def blocks_of(page):
    return [
        Block(m["kind"], m["text"], (m["mark"] or "").strip())
        for m in BLOCK.finditer(page.read_text())
    ]


def table_rows(page, heading):
    """Yield the cells of each row of the tables below a heading."""
    section = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            yield cells
