"""Other distributions install a package named mdio too; that is told, with the way out."""

import subprocess
import sys
from pathlib import Path

import pytest

import mdio

PACKAGE = Path(mdio.__file__).parent


@pytest.fixture
def site(tmp_path):
    """A folder with a package like the installed one."""
    folder = tmp_path / "mdio"
    folder.mkdir()
    for path in [*PACKAGE.iterdir(), *(Path(module.__path__[0]) for module in rooms())]:
        if path.name != "__pycache__" and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())
    return tmp_path


def rooms():
    import mdio.converters
    import mdio.layouts
    import mdio.readers

    return mdio.converters, mdio.layouts, mdio.readers


def run(site, *words):
    return subprocess.run(
        [sys.executable, *words], cwd=site, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("file", "name"), [("segy", "multidimio"), ("xtcutils.pyx", "mdio"), ("mdioio.py", "mdio")]
)
def test_files_of_another_distribution(site, file, name):
    assert mdio.__version__ in run(site, "-m", "mdio", "--version").stdout
    (site / "mdio" / file).touch()
    told = run(site, "-m", "mdio", "--version")
    assert told.returncode == 1
    (line,) = told.stderr.strip().splitlines()[-1:]
    assert str(site / "mdio") in line and f"pip uninstall {name})" in line
    imported = run(site, "-W", "error", "-c", "import mdio")
    assert imported.returncode == 1 and f"pip uninstall {name})" in imported.stderr


def test_the_other_one_was_installed_last(site):
    (site / "mdio/segy").touch()
    (site / "mdio/__init__.py").unlink()
    (site / "mdio/__init__.py").write_text("theirs = True\n")
    told = run(site, "-c", "from mdio.__main__ import main; main()")
    assert told.returncode == 1
    assert told.stderr.startswith("mdio: ") and "pip uninstall multidimio)" in told.stderr


def test_no_file_of_ours_has_such_a_name():
    assert not {"segy", "xtcutils.pyx", "mdioio.py"} & {path.name for path in PACKAGE.iterdir()}
