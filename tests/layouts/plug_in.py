"""The example of a plug-in in the docs, as pip would install it."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "example-plugin"


def install(target: Path, entry_points: str = "lines = mdio_lines:LinesLayout") -> Path:
    """Install the plug-in into a folder that is to be put on ``sys.path``."""
    info = target / "mdio_lines-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mdio-lines\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[mdio.layouts]\n{entry_points}\n")
    (target / "mdio_lines.py").write_bytes((FOLDER / "mdio_lines.py").read_bytes())
    return target
