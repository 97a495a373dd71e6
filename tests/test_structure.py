"""The shape of the code: directions of imports, sizes of files, what is imported when."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "mdio/core": "mdio.core",
    "layouts": "mdio.layouts",
    "mdio/parallel": "mdio.parallel",
    "converters": "mdio.converters",
    "readers": "mdio.readers",
    "mdio/analysis": "mdio.analysis",
    "mdio/advisor": "mdio.advisor",
    "mdio/benches": "mdio.benches",
    "mdio/cli": "mdio.cli",
}
RANK = {
    "mdio.core": 0,
    "mdio.layouts": 1,
    "mdio.parallel": 2,
    "mdio.converters": 3,
    "mdio.readers": 3,
    "mdio.analysis": 4,
    "mdio.advisor": 5,
    "mdio.benches": 5,
    "mdio.cli": 6,
}
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package(name: str) -> str:
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    own = FOLDERS[str(path.parent.relative_to(ROOT))]
    for name in imported(path):
        other = package(name)
        if other in RANK and other != own:
            assert RANK[other] < RANK[own], f"{path} imports {name}: {own} lies below {other}"


@pytest.mark.parametrize(
    "path",
    [
        *SOURCES,
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "bench").rglob("*.py"),
        *(ROOT / "mdio/native").rglob("*.cpp"),
        *(ROOT / "mdio/native").rglob("*.h"),
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_files_are_small(path):
    limit = 480 if "tests" in path.parts else 320  # tests are lists; code is to be understood
    assert len(path.read_text().splitlines()) <= limit


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = ("MDAnalysis", "h5py", "zarr", "netCDF4", "dask", "mpi4py", "matplotlib", "scipy")


@pytest.mark.parametrize(
    "code",
    [
        "import mdio",
        "import mdio.cli.main as m; m._parser(None)",
        "import mdio.cli.info",
        "import mdio; mdio.open",
        "import mdio; mdio.convert",
        "import mdio.converters.pieces",
        "import mdio.cli.model, mdio.advisor.fit",
    ],
)
def test_light_imports(code):
    loaded = run_python(f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == ""


@pytest.mark.parametrize("order", ["import mdio, MDAnalysis", "import MDAnalysis, mdio"])
def test_readers_are_registered_and_take_no_name(order):
    code = f"""
{order}
names = MDAnalysis._READERS
print(names["MDIO"].__module__, names["MDIOH5"].__module__)
print(names["H5MD"].__module__, names["XTC"].__module__, "ZARR" in names, "ZARRMD" in names)
"""
    lines = run_python(code).splitlines()
    assert lines == [
        "mdio.readers.reader mdio.readers.formats",
        "MDAnalysis.coordinates.H5MD MDAnalysis.coordinates.XTC False False",
    ]


def test_exported_names_exist():
    import mdio

    for name in mdio.__all__:
        assert getattr(mdio, name) is not None
    assert set(mdio._HOMES) | {"__version__"} == set(mdio.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mdio.nothing  # noqa: B018


def test_source_folders_refuse_a_second_import():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "for name in ('layouts', 'converters', 'readers'):\n"
    code += "    try: __import__(name)\n    except ImportError: print(name)"
    assert run_python(code).split() == ["layouts", "converters", "readers"]
