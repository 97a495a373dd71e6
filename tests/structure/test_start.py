"""What setup.cfg lists, what is imported when, and what is registered."""

import configparser
import re
import subprocess
import sys

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from structure.tree import ROOT, packages

from mdio.cli.main import main
from mdio.layouts import registry


def test_setup_lists_every_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    assert len(listed) == len(set(listed))
    assert set(listed) == packages().keys()
    data = setup["options.package_data"]
    assert all(package in listed for package in data)
    for package, patterns in data.items():
        for pattern in patterns.split():
            assert list(packages()[package].glob(pattern)), f"{package}: no {pattern}"


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = ("MDAnalysis", "h5py", "zarr", "netCDF4", "dask", "mpi4py", "matplotlib", "scipy")
HEAVY += ("numpy.ma",)  # np.unique imports it: a tenth of the time of imports


@pytest.mark.parametrize(
    "code",
    [
        "import mdio",
        "import mdio.cli.main as m; m._parser(None)",
        "import mdio.cli.info",
        "import mdio; mdio.open",
        "import mdio; mdio.convert",
        "import mdio.converters.strategies.write_tasks",
        "from mdio.core.blocks import aligned_blocks; aligned_blocks([0, 4, 9], range(9), 2)",
        "import mdio.cli.model, mdio.advisor.fit",
    ],
)
def test_light_imports(code):
    loaded = run_python(f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == ""


NEEDLESS = (
    "importlib.resources",
    "logging",
    "statistics",
    "decimal",
    "html",
    "difflib",
    "subprocess",
)
NEEDLESS += ("multiprocessing", "concurrent.futures", "importlib.metadata", "tempfile", "random")
NEEDLESS += ("hashlib", "secrets", "socket", "uuid", *HEAVY)


OF_WRITING = ("publish", "replacing", "journals.journal", "remote.uploading")
NEEDLESS += tuple(f"mdio.core.files.{name}" for name in OF_WRITING)
NEEDLESS += ("mdio.layouts.foreign.tree", "mdio.layouts.foreign.generic", "mdio.converters.convert")
NEEDLESS += ("mdio.converters.periodic", "mdio.layouts.plan", "mdio.layouts.writer")
NEEDLESS += ("mdio.core.cache", "mdio.layouts.caching", "mdio.layouts.views.chain")
NEEDLESS += ("mdio.core.files.index", "mdio.parallel.pool", "mdio.parallel.pool")
NEEDLESS += ("mdio.parallel.gather", "mdio.parallel.mpi_executor", "mdio.parallel.dask_executor")
NEEDLESS += ("mdio.analysis.series", "mdio.analysis.kernels.correlations")
MAX_MODULES = {("zarr", "info"): 70, ("zarr", "analyze"): 74}
MAX_MODULES |= {("h5md", "info"): 86, ("h5md", "analyze"): 90}
"""Of ours: each takes a third of a millisecond or so, and each dataclass in it half a one."""


@pytest.mark.parametrize("command", [["info"], ["analyze", "rmsd", "--select", "name CA"]])
@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
def test_a_short_command_imports_nothing_that_it_has_no_use_for(tmp_path, suffix, command):
    """Half of a short analysis is imports: topology and frames are read, all else is not needed."""
    path = tmp_path / f"adk.{suffix}"
    assert main(["convert", DCD, str(path), "-s", PSF, "-e", "3", "--quiet"]) == 0
    code = f"""
import sys
{"import h5py" if suffix == "h5md" else ""}
there = set(sys.modules)
from mdio.cli.main import main
assert main({[*command, str(path), "--quiet" if command[0] == "analyze" else "--json"]!r}) == 0
new = sys.modules.keys() - there
print(len([name for name in new if name.startswith("mdio")]))
print("needless:", *[name for name in {NEEDLESS!r} if name in new])
"""
    *_, n_modules, needless = run_python(code).splitlines()
    assert needless == "needless:"
    assert int(n_modules) <= MAX_MODULES[suffix, command[0]]


def test_a_conversion_imports_no_other_layout(tmp_path):
    """Ranks and scripts begin many: other layouts and their libraries took a seventh of each."""
    code = f"""
import sys
from mdio.cli.main import main
assert main(["convert", {DCD!r}, {str(tmp_path / "new.zarr")!r}, "--force", "-q"]) == 0
print("needless:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run_python(code).splitlines()[-1] == "needless:"


LAYOUTS = ("h5py", *(entry.reader.partition(":")[0] for entry in registry.LAYOUTS.values()))


@pytest.mark.parametrize("command", [["info"], ["analyze", "rmsd"]])
def test_a_mistyped_path_imports_no_layout(tmp_path, command):
    """Whether it is an ensemble is asked first, of every layout there is."""
    code = f"""
import sys
from mdio.cli.main import main
assert main({[*command, str(tmp_path / "none.zarr")]!r}) == 1
print("layouts:", *[name for name in {LAYOUTS!r} if name in sys.modules])
"""
    assert run_python(code).splitlines()[-1] == "layouts:"


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["nosuch"]])
def test_what_names_no_command_needs_no_numpy(words):
    code = f"""
import sys
from contextlib import suppress
from mdio.cli.main import main
with suppress(SystemExit):
    main({words!r})
print("numpy:", "numpy" in sys.modules)
"""
    assert run_python(code).splitlines()[-1] == "numpy: False"


def blas_after(code: str) -> str:
    return run_python(f"""
import os
from mdio.cli.main import main
{code}
import numpy
from threadpoolctl import threadpool_info
found = {{one["internal_api"]: one["num_threads"] for one in threadpool_info()}}
print(os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS"), found)
""").splitlines()[-1]


def test_threads_of_blas_are_for_functions_of_users():
    """Each begins with a loop that looks for work, of which no kernel of ours has any."""
    info, function = ["info", DCD], ["analyze", "numpy:ravel", DCD, "-e", "3"]
    run_of_atoms = ["analyze", "rgyr", DCD, "--select", "index 0:9", "--set", "weights=none", "-q"]
    own = ["mapreduce", "mdio.mapreduce.programs.permeation:IonPermeation", "nosuch.dcd"]
    usual = blas_after("")
    one = re.sub(r"('openblas': )\d+", r"\g<1>1", usual)
    for words in (info, run_of_atoms, own):
        assert blas_after(f"main({words!r})") == one
    assert blas_after(f"main({function!r})") == usual
    asked = 'os.environ["OMP_NUM_THREADS"] = "2"\n'
    assert blas_after(f"{asked}main({info!r})") == blas_after(asked)


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
        "mdio.readers.reader mdio.readers.reader",
        "MDAnalysis.coordinates.H5MD MDAnalysis.coordinates.XTC False False",
    ]


def test_exported_names_exist():
    import mdio

    for name in mdio.__all__:
        assert getattr(mdio, name) is not None
    assert set(mdio._HOMES) | {"__version__"} == set(mdio.__all__)
    assert dir(mdio) == sorted(mdio.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mdio.nothing  # noqa: B018


def test_source_folders_refuse_a_second_import():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "for name in ('layouts', 'converters', 'readers'):\n"
    code += "    try: __import__(name)\n    except ImportError: print(name)"
    assert run_python(code).split() == ["layouts", "converters", "readers"]
