"""``module:function``: found in the working folder, whose other files take no library's place."""

import os
import shutil
import subprocess
import sys
from functools import partial
from typing import Optional

import numpy as np
import pytest
from MDAnalysisTests.datafiles import PSF, TRR

import mdio
from mdio.analysis import work
from mdio.analysis.kernels.kernel import Kernel, Prepared, UserKernel
from mdio.analysis.reducers import Reducer
from mdio.cli.main import main
from mdio.core.errors import BlockError, PlanError
from mdio.core.options import argument_types

KERNEL = "def heights(block):\n    return block.positions[:, :, 2].max(axis=1)\n"
SCRIPT = """import sys
from mdio.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def folder(tmp_path):
    """A working folder with a kernel, and files that are called like libraries."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mykernels.py").write_text(KERNEL)
    for name in ("MDAnalysis", "tqdm", "distributed", "h5py", "zarr"):
        (tmp_path / f"work/{name}.py").write_text("raise SystemExit('taken for a library')\n")
    return tmp_path / "work"


def analyze(folder, *words, **variables):
    """Run ``mdio analyze`` in `folder` as the installed command does: its own folder is on path."""
    script = folder.parent / "mdio_command.py"
    script.write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), "analyze", *map(str, words)]
    env |= variables
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("executor", ["serial", "processes", "dask"])
def test_files_beside_a_kernel_are_not_imported(adk, folder, executor):
    words = ["mykernels:heights", adk["xtc"], "-s", PSF, "--select", "name CA", "-o", "o.npz"]
    workers = [] if executor == "serial" else ["-w", 2]
    done = analyze(folder, *words, "--executor", executor, *workers, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert np.load(folder / "o.npz")["values"].shape == (98,)


def test_a_kernel_that_is_called_like_a_library(adk, folder):
    (folder / "wave.py").write_text(KERNEL)
    done = analyze(folder, "wave:heights", adk["xtc"])
    assert done.returncode == 2
    assert "wave.py; if you mean a file in this folder, rename it" in done.stderr
    assert "no function 'heights' in" in done.stderr


def test_a_kernel_of_the_same_name_elsewhere_is_told(adk, folder):
    """An earlier version may be installed, as one develops a kernel."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(folder / "mykernels.py", elsewhere)
    words = ["mykernels:heights", adk["xtc"], "-s", PSF, "--select", "name CA", "-q", "-o", "o.npz"]
    done = analyze(folder, *words, PYTHONPATH=str(elsewhere))
    assert done.returncode == 0
    here = folder / "mykernels.py"
    assert f"is in {elsewhere / 'mykernels.py'}, and not in {here}: give" in done.stderr


CUTOFF = """import numpy as np
from mdio.analysis.kernels.kernel import Kernel, Prepared
class Above(Kernel):
    def __init__(self, height=0.0, select=None):
        self.height = height
    def prepare(self, system):
        return Prepared(self.count)
    def count(self, block):
        return (block.positions[:, :, 2] > self.height).sum(axis=1)
"""


def test_arguments_of_a_class(adk, folder):
    (folder / "above.py").write_text(CUTOFF)
    done = analyze(folder, "above:Above", adk["xtc"], "--set", "height=5.5", "-o", "o.npz", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    with mdio.open(adk["xtc"]) as layout:
        heights = layout.read(0, 98).positions[:, :, 2]
    assert np.array_equal(np.load(folder / "o.npz")["values"], (heights > 5.5).sum(axis=1))
    done = analyze(folder, "above:Above", adk["xtc"], "--set", "depth=5.5")
    assert done.returncode == 2 and "depth" in done.stderr and "--set" in done.stderr


MISTAKES = """import mdio, numpy as np
from mdio.analysis.reducers import Mean
def boom(block): raise IndexError("no such atom")
def huge(block): raise MemoryError("too big")
def ragged(block): return [[1] * (n % 3) for n in range(block.n_frames)]
def called(block, function=None): return function(block)
class Plain: pass
class Program:
    def map(self, block): pass
    def reduce(self, key, frame, time, values): pass
class Frames(Program):
    per_frame = True
class Bare(mdio.Kernel):
    def prepare(self, system): return mdio.Prepared(boom, reducer=Mean)
class Limited(Bare):
    def __init__(self, limit): self.limit = limit
    def prepare(self, system): raise mdio.MdioError(f"the limit is {self.limit!r}")
class Absent(Bare):
    def __init__(self): open("weights.dat")
class Silent(Bare):
    def __init__(self): raise ValueError
class Weighted(Bare):
    def prepare(self, system): return mdio.Prepared(boom, system.masses(None))
def wordless(block): raise RuntimeError
def two(block, cutoff): pass
class Undefined(Program):
    def __init__(self): undefined
"""
MADE = "making it failed: "


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["analyze", "boom"], "IndexError: no such atom; --debug shows the line"),
        (["analyze", "boom", "-w", "2"], "IndexError: no such atom; --debug shows the line"),
        (["analyze", "huge"], "failed: out of memory (too big); select fewer atoms"),
        (["analyze", "huge", "-w", "2"], "failed: out of memory (too big); select"),
        (["analyze", "ragged"], "ragged returned a list that makes no array (setting an array"),
        (["analyze", "Plain"], "the class Plain is no kernel; derive it from mdio.Kernel"),
        (
            ["analyze", "Program"],
            "is no kernel; programs with map and reduce run by mdio mapreduce",
        ),
        (["mapreduce", "Program"], "map returned None; expected (keys, rows, values)"),
        (["mapreduce", "Frames"], "map returned None; expected (key, value)"),
        (["analyze", "Bare"], "the reducer is <class 'mdio.analysis.reducers.Mean'>; give one of"),
        (["analyze", "Bare", "--select", "all"], "--select (select= in Python) becomes this"),
        (["analyze", "Limited", "--set", "limit=1", "--select", "all"], "becomes this argument"),
        (["analyze", "Limited"], "required positional argument: 'limit'; arguments are given"),
        (["analyze", "Limited", "--set", "limit=-inf"], "the limit is -inf"),
        (
            ["analyze", "Absent"],
            f"mistaken_kernels:Absent: {MADE}FileNotFoundError: [Errno 2] No such",
        ),
        (["analyze", "called"], "TypeError: 'NoneType' object is not callable; --debug shows"),
        (["analyze", "Absent"], "'weights.dat'; --debug shows the line"),
        (["analyze", "Silent"], "mistaken_kernels:Silent: ValueError; arguments"),
        (["analyze", "wordless"], "failed: RuntimeError; --debug shows the line"),
        (["analyze", "wordless", "-w", "2"], "failed: RuntimeError; --debug shows the line"),
        (["analyze", "Weighted"], "masses need a topology; name one with -s/--top"),
        (["analyze", "two"], "two takes (block, cutoff); a function over blocks is called as f(b"),
        (["analyze", "two", "--set", "cutoff=5"], "with options, derive a class from mdio.Kernel"),
        (
            ["mapreduce", "Undefined"],
            f"mistaken_kernels:Undefined: {MADE}NameError: name 'undefined'",
        ),
        (["mapreduce", "Undefined"], "is not defined; --debug shows the line"),
        (["analyze", "Limited", "--set", "limit=nan"], "the limit is nan"),
        (["analyze", "Limited", *["--set", "limit=1"] * 2], "limit is given twice; give it once"),
    ],
)
def test_mistakes_are_told(adk, tmp_path, monkeypatch, capsys, words, says):
    (tmp_path / "mistaken_kernels.py").write_text(MISTAKES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    command, name, *more = words
    address = f"mistaken_kernels:{name}"
    assert main([command, address, str(adk["dcd"]), "--stop", "9", "-q", *more]) in (1, 2)
    told = capsys.readouterr().err.splitlines()[-1]
    assert says in told and "velocities" not in told and "--weights" not in told


def test_an_import_that_a_module_lacks_is_not_the_module(adk, folder):
    (folder / "lacking.py").write_text("import no_such_package\n")
    told = analyze(folder, "lacking:one", adk["xtc"]).stderr
    assert "importing it failed: ModuleNotFoundError: No module named 'no_such_package'" in told
    told = analyze(folder, "absent:one", adk["xtc"]).stderr
    assert "cannot import 'absent' (No module named 'absent'); put absent.py into" in told


@pytest.mark.parametrize("quiet", [["-q"], []])
def test_notes_on_values_are_told_without_a_summary(adk, folder, quiet):
    (folder / "mykernels.py").write_text(
        "def gap(block):\n    heights = block.positions[:, 0, 2].copy()\n"
        "    heights[0] = float('nan')\n    return heights\n"
    )
    done = analyze(folder, "mykernels:gap", adk["xtc"], "-o", "o.npz", *quiet)
    assert done.returncode == 0
    assert "not numbers (NaN)" in done.stderr and "or the kernel does" in done.stderr
    assert bool(done.stdout) == (not quiet)


def test_a_file_in_a_folder_is_written_as_a_module(adk, folder):
    (folder / "sub/deep").mkdir(parents=True)
    shutil.move(folder / "mykernels.py", folder / "sub/deep")
    told = analyze(folder, "sub/deep/mykernels.py:heights", adk["xtc"]).stderr
    assert told.rstrip().endswith("are expected, as in sub.deep.mykernels:heights")
    told = analyze(folder, f"{folder}/mykernels.py:heights", adk["xtc"]).stderr
    assert told.rstrip().endswith("are expected, as in mykernels:end_to_end")
    told = analyze(folder, ":heights", adk["xtc"]).stderr
    assert told.rstrip().endswith("are expected, as in mykernels:end_to_end")
    done = analyze(folder, "sub.deep.mykernels:heights", adk["xtc"])
    assert done.returncode == 0


def test_an_import_that_fails(adk, folder):
    (folder / "broken.py").write_text("half = 1 / 0\n")
    done = analyze(folder, "broken:half", adk["xtc"])
    assert done.returncode == 2
    assert "broken:half" in done.stderr and "ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr


def first_places(block):
    return block.positions[:, 0]


class _Unprepared(Kernel):
    def prepare(self, system):
        raise KeyError("no such ligand")


class _Named(Kernel):
    def prepare(self, system):
        return Prepared(_height, labels=["a", "b", "c"], row_residues=[1, 2])


def _height(block):
    return block.positions[:, 0, 2].copy()


def _positions(block):
    return block.positions


def _masked(block):
    return np.ma.masked_less(block.positions[:, :10, 2], 0.0)


class _Last(Reducer):
    """Keeps what it is given, as a beginner would."""

    def lift(self, rows):
        return (rows,)

    def merge(self, earlier, later):
        return (np.concatenate([earlier[0], later[0]]),)

    def finish(self, state):
        return state[0]


class _Unfinished(_Last):
    def finish(self, state):
        raise ZeroDivisionError("no frames weigh anything")


class _InPlace(_Last):
    """Its merge changes the earlier state, and returns nothing."""

    def merge(self, earlier, later):
        earlier[0][:1] += later[0][:1]


class _Unlifted(_Last):
    def lift(self, rows):
        pass


class _Unreturned(_Last):
    def finish(self, state):
        pass


class _Masking(_Last):
    def finish(self, state):
        return np.ma.masked_less(state[0], 60)


@pytest.mark.parametrize("workers", [None, 2])
def test_what_a_kernel_or_reducer_raises_names_file_and_cause(adk, workers, monkeypatch):
    monkeypatch.setattr(work, "READ_NBYTES", 1 << 20)
    for kernel, reducer, error, words in (
        (_Unprepared(), None, PlanError, (str(adk["xtc"]), "_Unprepared", "no such ligand")),
        (_masked, None, BlockError, (str(adk["xtc"]), "mask", "filled")),
        (_height, _Unfinished(), BlockError, ("_Unfinished", "no frames weigh")),
        (_height, _InPlace(), PlanError, ("_InPlace.merge() returned None; return the merged",)),
        (_height, _Unlifted(), PlanError, ("_Unlifted.lift() returned None; return the state",)),
        (_height, _Unreturned(), PlanError, ("_Unreturned.finish() returned None",)),
        (_height, _Masking(), PlanError, ("_Masking.finish() returned", "mask", "filled")),
    ):
        with pytest.raises(error) as caught:
            mdio.analyze(adk["xtc"], kernel=kernel, reducer=reducer, workers=workers)
        assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("of", [partial(UserKernel, first_places), partial(Prepared, first_places)])
def test_fields_are_names_of_a_blocks_arrays(of):
    assert of(fields="positions").fields == ("positions",)
    assert of(fields="velocities,forces").fields == ("velocities", "forces")
    for wrong in (("masses",), "velocites", None, (), 5):
        with pytest.raises(PlanError, match="choose from positions, velocities, forces"):
            of(fields=wrong)


def speeds(block):
    return (block.velocities**2).sum(axis=(1, 2))


def test_a_function_is_told_how_to_get_velocities(adk):
    with pytest.raises(BlockError, match=r"NoneType.*None unless they are asked for.*fields="):
        mdio.analyze(adk["xtc"], kernel=speeds)
    with pytest.raises(BlockError, match="NoneType") as caught:  # they were; it has none
        mdio.analyze(adk["xtc"], kernel=UserKernel(speeds, fields="velocities"))
    assert "asked for" not in str(caught.value)


def energies(block):
    return np.zeros(block.n_frames) if block.velocities is None else speeds(block)


class OfClass(Kernel):
    """States what it reads in its class."""

    fields = ("velocities",)

    def prepare(self, system):
        return Prepared(energies)


class OfPrepared(Kernel):
    """States it once it is prepared."""

    def prepare(self, system):
        return Prepared(energies, fields=("velocities",))


@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_velocities_are_asked_for_in_the_same_way_everywhere(options):
    with mdio.open(TRR) as layout:
        want = speeds(layout.read(0, layout.info.n_frames))
    for kernel in (OfClass(), OfPrepared(), UserKernel(energies, fields="velocities")):
        assert np.array_equal(mdio.analyze(TRR, kernel=kernel, **options).values, want)
    got = mdio.analyze(TRR, kernel=energies, fields="velocities", **options)
    assert np.array_equal(got.values, want)


def test_options_of_a_kernel_that_is_given_by_name(adk):
    files = {"trajectory": adk["dcd"], "top": PSF}
    for name, options, kernel in (
        ("rmsf", {"superpose": True}, mdio.RMSF("name CA", superpose=True)),
        ("rmsd", {"reference": 5, "weights": "mass"}, mdio.RMSD("name CA", 5, "mass")),
        ("msd", {"max_lag_ps": 20, "dims": "xy"}, mdio.MSD("name CA", max_lag_ps=20, dims="xy")),
    ):
        got = mdio.analyze(**files, kernel=name, select="name CA", step=2, **options)
        assert np.array_equal(got.values, mdio.analyze(**files, kernel=kernel, step=2).values)
    for wrong, says in (
        ({"kernel": "rmsf", "superpos": True}, "did you mean 'superpose'"),
        ({"kernel": "rmsf", "dims": "x"}, "no option 'dims'; it has .*superpose"),
        ({"kernel": "rmsd", "ref_frame": 5}, "no option 'ref_frame'; give reference"),
        ({"kernel": "pairs", "to_select": "name N"}, "no option 'to_select'; give to"),
        ({"kernel": "rgyr", "weights": "none"}, "'mass', None or a number"),
        ({"kernel": mdio.RMSF(), "superpose": True}, r"write RMSF\(superpose=True\) and leave out"),
        ({"kernel": _height, "superpose": True}, "no option 'superpose'"),
        ({"kernel": mdio.RMSF, "superpose": True}, r"call it: kernel=RMSF"),
    ):
        with pytest.raises(PlanError, match=says):
            mdio.analyze(**files, **wrong)


def test_names_that_do_not_fit_are_noted(adk):
    result = mdio.analyze(adk["xtc"], kernel=_Named())
    assert any("3 columns" in note and "there are 1" in note for note in result.notes)
    assert any("2 residues" in note and "there are 98" in note for note in result.notes)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_reducer_may_keep_the_rows(adk, workers, monkeypatch):
    monkeypatch.setattr("mdio.analysis.work.READ_NBYTES", 400_000)
    with mdio.open(adk["xtc"]) as layout:
        want = layout.read(0, 98).positions
    result = mdio.analyze(adk["xtc"], kernel=_positions, reducer=_Last(), workers=workers)
    assert np.array_equal(result.values, want)


def test_what_is_no_array_of_numbers_is_named(adk):
    def series(block):
        return pandas.Series(block.positions[:, 0, 0])

    pandas = pytest.importorskip("pandas")
    want = mdio.open(adk["dcd"]).read(0, 98).positions[:, 0, 0]
    assert np.array_equal(mdio.analyze(adk["dcd"], kernel=series).values, want)
    with pytest.raises(BlockError, match="ndarray, which is not an array of numbers"):
        mdio.analyze(adk["dcd"], kernel=lambda block: np.array([{}] * block.n_frames))
    with pytest.raises(BlockError, match="masked"):
        mdio.analyze(adk["dcd"], kernel=lambda block: np.ma.masked_less(block.time, 3))


def test_a_selection_that_ends_too_early(adk):
    with pytest.raises(PlanError, match=r"'name CA and' \(it ends where more is expected\)$"):
        mdio.analyze(adk["dcd"], top=PSF, kernel="rgyr", select="name CA and")


class Chosen(Kernel):
    """Heights of atoms that are given in any form."""

    def __init__(self, atoms):
        self.atoms = atoms

    def prepare(self, system):
        return Prepared(lambda block: block.positions[:, :, 2], self.atoms)


def test_atoms_of_a_kernel_are_indices_or_a_mask(adk):
    mask = np.arange(3341) % 1000 == 7
    want = mdio.open(adk["dcd"]).read(0, 98, atoms=mask).positions[:, :, 2]
    for atoms in (mask, np.flatnonzero(mask), [7, 1007, 2007, 3007]):
        assert np.array_equal(mdio.analyze(adk["dcd"], kernel=Chosen(atoms)).values, want)
    for wrong in ([5.7], [99999], [-1], np.ma.array([5, 7], mask=[False, True])):
        with pytest.raises((PlanError, IndexError), match="atom"):
            mdio.analyze(adk["dcd"], kernel=Chosen(wrong))
    block = mdio.open(adk["dcd"]).read(0, 2)
    assert np.array_equal(block.take(mask).positions, block.positions[:, mask])


class NotPrepared(Kernel):
    """Forgets to return."""

    def prepare(self, system):
        return None


class ToText(Reducer):
    """Finishes with no array."""

    def lift(self, rows):
        return (rows.sum(),)

    def merge(self, earlier, later):
        return (earlier[0] + later[0],)

    def finish(self, state):
        return {"sum": state[0]}


def test_what_returns_something_else_is_told(adk):
    with pytest.raises(PlanError, match=r"NotPrepared failed: .* returned None"):
        mdio.analyze(adk["dcd"], kernel=NotPrepared())
    with pytest.raises(BlockError, match=r"ToText failed: .* no array"):
        mdio.analyze(adk["dcd"], kernel=lambda block: block.time, reducer=ToText())


def fail(*_):
    raise ValueError("it broke")


@pytest.mark.parametrize(
    ("method", "begins"),
    [
        ("lift", r"\S+: block 0 .*: "),
        ("merge", r"\S+: block 0 .* \(in frames .*: "),
        ("finish", ""),
    ],
)
def test_the_method_of_a_reducer_that_fails_is_named(adk, monkeypatch, method, begins):
    monkeypatch.setattr(work, "READ_NBYTES", 200_000)  # several reads a block
    monkeypatch.setattr(ToText, method, fail)
    says = rf"^{begins}{method}\(\) of the reducer ToText failed: ValueError: it broke$"
    with pytest.raises(BlockError, match=says) as failure:
        mdio.analyze(adk["dcd"], kernel=lambda block: block.time, reducer=ToText())
    assert isinstance(failure.value.__cause__, ValueError)


def leave(block):
    if block.time[-1] > 40:
        sys.exit(0)
    return block.time


@pytest.mark.parametrize("workers", [1, 2])
def test_a_kernel_that_exits_is_an_error_with_its_frames(adk, workers):
    with pytest.raises(BlockError, match=r"block \d .*it called sys.exit\(0\)"):
        mdio.analyze(adk["dcd"], kernel=leave, workers=workers)


def analyze_in_a_worker(path):
    return mdio.analyze(path, kernel=leave, workers=2)


def test_workers_of_a_pool_have_none_of_their_own(adk):
    import multiprocessing

    refused = pytest.raises(PlanError, match="cannot start workers of its own")
    with multiprocessing.get_context("fork").Pool(1) as pool, refused:
        pool.apply(analyze_in_a_worker, (adk["dcd"],))


TAKES = """import mdio
class Takes(mdio.Kernel):
    def __init__(
        self, mean=False, every=1, name="x", other: str | None = "y", select="all", n: int = 2
    ):
        self.given = mean, every, name, other, select
    def prepare(self, system): raise mdio.MdioError(f"given {self.given}")
class Maps:
    def __init__(self, name="x", mean=False): raise ValueError(f"given {name!r}, {mean!r}")
"""


@pytest.mark.parametrize(
    ("command", "settings", "says"),
    [
        ("analyze", ["mean=no"], "mean is 'no'; give True or False"),
        ("analyze", ["mean=2"], "mean is 2; give True or False"),
        ("analyze", ["every=maybe"], "every is 'maybe'; give a number"),
        ("analyze", ["every=none"], "every is None; give a number"),
        ("analyze", ["every=true"], "every is True; give a number"),
        ("analyze", ["n=4.5"], "n is 4.5; give a whole number"),
        (
            "analyze",
            ["maen=1"],
            "it has mean, every, name, other, select, n (did you mean 'mean'?)",
        ),
        ("analyze", ["mean=TRUE", "every=2.5"], "given (True, 2.5, 'x', 'y', 'all')"),
        ("analyze", ["name=3", "select=none"], "given (False, 1, '3', 'y', 'none')"),
        ("analyze", ["name='3'", "other=none"], "given (False, 1, '3', None, 'all')"),
        ("analyze", ["other=true"], "given (False, 1, 'x', 'true', 'all')"),
        ("mapreduce", ["name=3"], "given '3', False"),
        ("mapreduce", ["mean=off"], "mean is 'off'; give True or False"),
    ],
)
def test_a_setting_is_read_by_the_default_of_its_argument(
    adk, tmp_path, monkeypatch, capsys, command, settings, says
):
    (tmp_path / "taking_kernels.py").write_text(TAKES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    program = "taking_kernels:" + ("Takes" if command == "analyze" else "Maps")
    words = [word for setting in settings for word in ("--set", setting)]
    assert main([command, program, str(adk["xtc"]), *words])
    assert says in capsys.readouterr().err


def test_a_module_that_exits_and_a_package_without_the_function(tmp_path, monkeypatch, capsys):
    (tmp_path / "exiting_kernels.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "empty_kernels").mkdir()
    (tmp_path / "empty_kernels/__init__.py").write_text("def g(block): return block.time\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for command in ("analyze", "mapreduce"):
        assert main([command, "exiting_kernels:f", str(TRR)]) == 2
        assert "exiting_kernels:f: importing it called sys.exit(0)" in capsys.readouterr().err
    assert main(["analyze", "empty_kernels:f", str(TRR)]) == 2
    assert "empty_kernels/__init__.py; it has g" in capsys.readouterr().err


def test_both_ways_of_writing_an_optional_argument_are_one():
    def old(o: Optional[str] = None): ...  # noqa: UP045

    def new(o: str | None = None): ...

    assert argument_types(old, "o") == argument_types(new, "o") == {"str", "None"}


def test_a_switch_in_python_is_no_text(adk, tmp_path, monkeypatch):
    (tmp_path / "switching_kernels.py").write_text(TAKES)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match="mean is 'no'; give True or False"):
        mdio.analyze(adk["xtc"], kernel="switching_kernels:Takes", mean="no")


def test_a_selection_that_looks_like_a_number_is_text(adk, capsys):
    words = ["analyze", "rmsf", str(adk["xtc"]), "-s", str(adk["psf"])]
    assert main([*words, "--set", "select=3"]) == 2
    assert "cannot select '3'" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [None, 2])
def test_frames_without_positions_are_told_of(tmp_path, workers):
    """All comparisons with NaN are false, so that what is counted is too little."""
    frames = np.ones((9, 2, 3))
    frames[np.arange(9) % 3 > 0] = np.nan
    writer = mdio.Writer(tmp_path / "a.zarr", 2, storage=mdio.Storage(chunk_frames=2))
    with pytest.warns(UserWarning, match="no positions"), writer:
        writer.write_block(frames, velocities=np.ones((9, 2, 3)))
    for options, n_told in (({}, 6), ({"start": 1, "stop": 3}, 2), ({"step": 3}, 0)):
        result = mdio.analyze(
            tmp_path / "a.zarr", kernel=n_near, fields="positions", workers=workers, **options
        )
        told = [note for note in result.notes if "have no positions" in note]
        assert [int(note.split()[0]) for note in told] == [n_told] * bool(n_told)
        assert (result.values == 0).sum() == n_told
    speeds = mdio.analyze(
        tmp_path / "a.zarr", kernel=lambda block: block.velocities[:, 0], fields="velocities"
    )
    assert not speeds.notes


def n_near(block):
    positions = np.nan_to_num(block.positions, copy=False, nan=99)  # a function may change them
    return (np.abs(positions[:, :, 0]) < 5).sum(axis=1)
