"""No file is so long that nobody reads it."""

from structure.tree import HOMES, ROOT

MAX_LINES = 1000
"""About 600 are the aim; what is one idea may be longer, within this."""

TOPS = [ROOT / name for name in (*HOMES, "tests", "bench")]
SOURCES = [path for top in TOPS for path in sorted(top.rglob("*.py"))]
NATIVE = [path for kind in ("cpp", "h") for path in (ROOT / "mdio/native").rglob(f"*.{kind}")]


def test_files_are_small():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in [*SOURCES, *NATIVE]
    }
    assert {name: n_lines for name, n_lines in lengths.items() if n_lines > MAX_LINES} == {}
