"""Files and folders are small enough to be taken in at once."""

import pytest
from structure.tree import HOMES, ROOT

MOST_LINES, MOST_TEST_LINES, MOST_FILES = 320, 480, 15

TOPS = [ROOT / name for name in (*HOMES, "tests", "bench")]
SOURCES = [path for top in TOPS for path in sorted(top.rglob("*.py"))]
NATIVE = [path for kind in ("cpp", "h") for path in (ROOT / "mdio/native").rglob(f"*.{kind}")]
FOLDERS = sorted({path.parent for path in SOURCES})


def short(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *NATIVE], ids=short)
def test_files_are_small(path):
    limit = MOST_TEST_LINES if "tests" in path.parts else MOST_LINES  # tests are lists
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("folder", FOLDERS, ids=short)
def test_folders_are_small(folder):
    n_files = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
    assert n_files <= MOST_FILES, f"{n_files} files: divide the folder"
