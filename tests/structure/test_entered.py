"""How many files and functions of the product a call enters, as a reader with a debugger does."""

import json
import subprocess
import sys

import pytest

MAX_FILES = {"convert": 60, "append": 66, "split": 50, "analyze": 40, "verify": 32, "one frame": 10}
MAX_FUNCTIONS = {
    "convert": 700,
    "append": 900,
    "split": 570,
    "analyze": 420,
    "verify": 240,
    "one frame": 25,
}
TRACED = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import MDAnalysis as mda
from MDAnalysisTests.datafiles import DCD, PSF
import mdio

folder, root = Path(sys.argv[1]), str(Path(mdio.__file__).parents[1])
homes = tuple(f"{root}/{name}/" for name in ("mdio", "layouts", "converters", "readers"))
xtc = folder / "a.xtc"
mdio.convert(DCD, xtc, stop=4)
mdio.convert(DCD, folder / "a.h5md")
mdio.convert(DCD, folder / "a.zarr")
universe = mda.Universe(PSF, str(folder / "a.h5md"))

def append(nth):
    mdio.convert(xtc, folder / f"appended{nth}.zarr", stop=2)
    mdio.append(xtc, folder / f"appended{nth}.zarr")

CALLS = {
    "convert": lambda nth: mdio.convert(xtc, folder / f"converted{nth}.zarr"),
    "append": append,
    "split": lambda nth: mdio.split(xtc, folder / f"split{nth}.segments", 2),
    "analyze": lambda nth: mdio.analyze(
        folder / "a.zarr", top=PSF, kernel="rmsd", select="name CA"
    ),
    "verify": lambda nth: mdio.verify(folder / "a.zarr"),
    "one frame": lambda nth: universe.trajectory[40 + 30 * nth],
}
entered = {}
for name, call in CALLS.items():
    call(0)  # imports, and fills caches
    functions = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(homes):
            functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    call(1)
    sys.setprofile(None)
    entered[name] = sorted(functions)
print(json.dumps(entered))
"""


@pytest.fixture(scope="module")
def entered(tmp_path_factory):
    words = [sys.executable, "-W", "ignore", "-c", TRACED, str(tmp_path_factory.mktemp("traced"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("call", MAX_FILES)
def test_a_call_enters_few_files(entered, call):
    files = sorted({file for file, _ in entered[call]})
    assert 0 < len(files) <= MAX_FILES[call], "\n".join(files)
    assert len(entered[call]) <= MAX_FUNCTIONS[call]
