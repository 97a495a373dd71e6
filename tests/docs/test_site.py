"""The documentation site builds without a warning, and has what the program knows of itself."""

import re
import subprocess
import sys

from docs.pages import ROOT

import mdio
from mdio.cli.main import COMMANDS


def test_the_site_builds(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "_generated/commands.html").read_text()
    assert {f"usage: mdio {name} " for name in COMMANDS} <= set(
        re.findall(r"usage: mdio \w+ ", commands)
    )
    assert "--chunk-frames" in commands
    api = (tmp_path / "_generated/api.html").read_text()
    assert {name for name in mdio.__all__ if not name.startswith("_")} <= set(
        re.findall(r'id="mdio\.(\w+)"', api)
    )
    examples = [script.stem for script in (ROOT / "examples").glob("*.py")]
    gallery = (ROOT / "docs/gallery.md").read_text()
    assert len(examples) >= 3
    for name in ("rmsd", *examples):
        assert (tmp_path / f"_images/{name}.png").stat().st_size > 5_000
        assert name == "rmsd" or f"../examples/{name}.py" in gallery
