"""``mdio analyze`` and the driver on real layouts, stored groups among them."""

import dataclasses
import json
import re

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import DCD, GRO, PSF

import mdio
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.dihedrals import Dihedrals
from mdio.analysis.kernels.geometry import RMSD
from mdio.cli.main import main
from mdio.core.errors import PlanError, SourceError
from mdio.parallel.executors import Processes

CA = "protein and name CA"
KEYS = {
    "n_frames", "seconds", "t_open_s", "t_io_s", "t_comp_s", "t_comm_s", "t_open_max_s",
    "t_io_max_s", "t_comp_max_s", "t_comm_max_s", "ratio_comp_io", "workers", "executor", "out",
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")


@pytest.fixture(scope="module")
def want():
    u = mda.Universe(PSF, DCD)
    return rms.RMSD(u.select_atoms(CA)).run().results.rmsd


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    for suffix in ("h5md", "zarr"):
        (folder / suffix).mkdir()
        code = main(
            ["convert", DCD, str(folder / suffix / f"adk.{suffix}"), "-s", PSF,
             "--group", f"ca={CA}", "--group", "arg=resname ARG and name CA CB", "--quiet"]
        )  # fmt: skip
        assert code == 0
    return folder


@pytest.mark.parametrize(
    "options",
    [[], ["-w", "2"], ["--executor", "processes", "-w", "3", "--blocks-per-worker", "2"],
     ["--executor", "serial", "-w", "2"]],
)  # fmt: skip
def test_rmsd(tmp_path, capsys, want, options):
    out, timings = tmp_path / "out.npz", tmp_path / "t.json"
    words = ["analyze", "rmsd", DCD, "-s", PSF, "--select", CA, "-o", str(out)]
    assert main([*words, "--timings", str(timings), "--json", *options]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    is_ignored = "serial" in options
    note = "mdio analyze: -w 2 is ignored: serial has 1 worker\n" if is_ignored else ""
    assert printed.err == note
    assert set(record) >= KEYS
    assert record["n_frames"] == 98
    assert record["out"] == str(out)
    workers = (
        1 if "-w" not in options or "serial" in options else int(options[options.index("-w") + 1])
    )
    assert record["workers"] == workers
    with np.load(out) as saved:
        np.testing.assert_allclose(saved["values"], want[:, 2], atol=1e-5)
        np.testing.assert_allclose(saved["time"], want[:, 1], atol=1e-9)
        assert np.array_equal(saved["frame"], np.arange(98))
    assert len(json.loads(timings.read_text())["timings"]) == record["blocks"]


def test_csv_and_frames(tmp_path, capsys, want):
    out = tmp_path / "out.csv"
    words = ["analyze", "rmsd", DCD, "-s", PSF, "--select", CA, "-o", str(out), "--ref-frame", "0"]
    assert main([*words, "--start", "10", "--stop", "-3", "--step", "7", "--repeat", "3"]) == 0
    table = np.loadtxt(out, delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, 2], want[10:-3:7, 2], atol=1e-5)
    assert out.read_text().startswith("frame,time_ps,rmsd_angstrom\n")
    assert re.search(r"rmsd: 13 frames in .*\n.*t_comp/t_IO", capsys.readouterr().out)
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_dihedrals(tmp_path):
    out = tmp_path / "out.npz"
    assert main(["analyze", "dihedrals", DCD, "-s", PSF, "-o", str(out), "--quiet"]) == 0
    with np.load(out) as saved:
        assert saved["values"].shape == (98, 848)
        assert saved["labels"].shape == (848,)
    words = ["analyze", "dihedrals", DCD, "-s", PSF, "-o", str(out), "--quiet"]
    assert main([*words, "--angles", "chi1", "--select", "resid 3:9"]) == 0
    assert all("chi1" in label for label in np.load(out)["labels"])


def test_own_function(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_kernel_31.py").write_text(
        "def span(block):\n    return block.positions.max(axis=1) - block.positions.min(axis=1)\n"
        "def wrong(block):\n    return 7\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    words = ["-s", PSF, "--select", CA, "-w", "2", "--quiet", "-o", "o.npz"]
    assert main(["analyze", "own_kernel_31:span", DCD, *words]) == 0
    assert np.load("o.npz")["values"].shape == (98, 3)
    assert main(["analyze", "own_kernel_31:wrong", DCD, *words]) == 1
    assert "one row per frame" in capsys.readouterr().err


def test_a_number_alone_is_saved(tmp_path, capsys, monkeypatch):
    import mdio.cli.analyze as command

    number = dataclasses.replace(
        analyze(DCD, kernel=RMSD(), stop=2), values=np.float64(3), per_frame=False, labels=()
    )
    monkeypatch.setattr(command, "analyze", lambda **_: number)
    assert main(["analyze", "rmsd", DCD, "-o", str(tmp_path / "o.csv")]) == 0
    assert "o.csv: 1 row of 1 value" in capsys.readouterr().out


def test_a_trajectory_whose_topology_counts_its_atoms(tmp_path, capsys):
    from MDAnalysisTests.datafiles import PRM, TRJ

    out = str(tmp_path / "out.npz")
    u = mda.Universe(PRM, TRJ)
    want = rms.RMSD(u.select_atoms("name CA")).run().results.rmsd[:, 2]
    words = ["analyze", "rmsd", TRJ, "--select", "name CA", "-o", out, "--quiet"]
    for workers in ("1", "2"):
        assert main([*words, "-s", PRM, "-w", workers]) == 0
        np.testing.assert_allclose(np.load(out)["values"], want, atol=1e-5)
    assert main([*words, "-s", PRM, "--timestep", "2"]) == 0
    assert np.load(out)["time"][1] == 2
    assert main(["analyze", "rmsd", TRJ]) == 1
    assert "give a topology with -s" in capsys.readouterr().err


def test_the_bar_on_a_terminal_counts_the_frames_that_are_chosen(tmp_path, monkeypatch, capsys):
    from MDAnalysisTests.datafiles import PRM, TRJ

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    words = ["rmsd", TRJ, "-s", PRM, "-b", "3", "--timestep", "1", "-o", str(tmp_path / "o.csv")]
    assert main(["analyze", *words]) == 0
    n_frames = len((tmp_path / "o.csv").read_text().splitlines()) - 1
    assert f"/{n_frames:.1f}" in capsys.readouterr().err


def test_a_named_format_is_cached(tmp_path):
    words = ["analyze", "rmsd", DCD, "--format", "dcd", "--cache", str(tmp_path / "kept")]
    for suffix in ("csv", "dat"):
        assert main([*words, "--quiet", "-o", str(tmp_path / f"rmsd.{suffix}")]) == 0
    assert any(path.is_file() for path in (tmp_path / "kept").rglob("*"))


def test_an_open_layout_was_joined_before():
    with pytest.raises(PlanError, match="open the layout with overlap='keep-all' instead"):
        analyze(mdio.open([DCD, DCD]), kernel=RMSD(), overlap="keep-all")
    with mdio.open([DCD, DCD], overlap="keep-all") as layout:
        assert analyze(layout, kernel=RMSD(), overlap="keep-all", stop=2).n_frames == 2


def test_several_trajectories_are_joined(tmp_path, want):
    out = tmp_path / "out.npz"
    words = ["-s", PSF, "--select", CA, "-w", "3", "-o", str(out), "--quiet"]
    assert main(["analyze", "rmsd", DCD, DCD, *words]) == 0
    np.testing.assert_allclose(np.load(out)["values"], np.tile(want[:, 2], 2), atol=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["rmsd", DCD, "--select", "name CA"], 2, "topology"),
        (["rmsd", DCD, "-s", GRO, "--select", "name CA"], 1, "3341 atoms.*47681"),
        (["rmsd", DCD, "--weights", "mass"], 2, "topology"),
        (["rmsd", DCD, "--group", "ca"], 2, "no stored groups; leave out --group ca and choose"),
        (["rmsd", "none.xtc"], 1, "none.xtc"),
        (["rmsd", DCD, "-s", "none.psf"], 1, "none.psf: no such file"),
        (["nothing", DCD], 2, "rmsd, dihedrals"),
        (["rmsd", DCD, "--start", "98"], 2, "no frame"),
        (["rmsd", DCD, "-o", "x.txt"], 2, "npz"),
        (["rmsd", DCD, "-o", "none/x.npz"], 1, "does not exist"),
        (["rmsd", DCD, "-o", f"{PSF}/x.npz"], 1, "adk.psf is not a folder; choose another place"),
        (["rmsd", DCD, "--timings", "none/x.json"], 1, "does not exist"),
        (["dihedrals", DCD, "-s", PSF, "--angles", "omega"], 2, "phi, psi, chi1"),
        (["rmsd", DCD, "--executor", "dask", "--scheduler", "nonsense://x:1"], 2, "scheduler"),
    ],
)
def test_errors(capsys, words, code, says):
    assert main(["analyze", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(says, printed.err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dihedrals", "--weights", "mass"], "--weights mass is for rmsd and rgyr, not"),
        (["dihedrals", "--ref-frame", "3"], "--ref-frame 3 is for rmsd, "),
        (["reference-distances", "--repeat", "3"], "--repeat 3 is for rmsd"),
        (["rmsd", "--angles", "psi"], "--angles psi is for dihedrals"),
        (["math:hypot", "--weights", "mass"], "not for math:hypot"),
        (["rmsd", "--gather", "one-sided"], "add --mpi"),
        (["rmsd", "--timings", "victim.dcd"], "saved as .json"),
        (
            ["rmsd", "-o", "two.csv", "--timings", "two.json", "--plot", "two.csv"],
            "writes it already",
        ),
        (["rmsd", "--report", PSF], "the same command reads it"),
        (["rmsd", "--scheduler", "tcp://h:1", "--executor", "serial"], "for --executor dask"),
    ],
)
def test_what_would_be_ignored_is_refused(capsys, words, says):
    assert main(["analyze", words[0], DCD, "-s", PSF, *words[1:]]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("word", ["false", "FALSE", "none", "maybe"])
def test_settings_that_are_switches(tmp_path, capsys, word):
    out = tmp_path / "rmsd.npz"
    words = ["analyze", "rmsd", DCD, "-s", PSF, "--select", CA, "--stop", "4", "--quiet"]
    code = main([*words, "-o", str(out), "--set", f"superpose={word}"])
    if word.lower() != "false":
        assert code == 2
        assert "superpose is" in capsys.readouterr().err
        return
    want = analyze(DCD, top=PSF, kernel=RMSD(CA, superpose=False), stop=4)
    np.testing.assert_array_equal(np.load(out)["values"], want.values)
    words = ["analyze", "dihedrals", DCD, "-s", PSF, "--stop", "2", "--set", "degrees=no"]
    assert main(words) == 2
    assert "degrees is 'no'; give True or False" in capsys.readouterr().err


def test_the_summary_names_every_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["-s", PSF, "--select", CA, "-o", "o.csv", "--timings", "t.json", "--report", "r.html"]
    assert main(["analyze", "rmsf", DCD, *words]) == 0
    said = capsys.readouterr().out
    assert "o.csv: 214 rows of 1 value" in said
    assert "t.json: timings" in said and "r.html: report" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "r.html", "t.json"]


@pytest.mark.parametrize("suffix", ["h5md", "zarr"])
class TestGroups:
    def test_group_equals_selection(self, folder, suffix, want):
        path = folder / suffix / f"adk.{suffix}"
        for arguments in (
            {"group": "ca", "kernel": RMSD()},
            {"group": "ca", "kernel": RMSD("name CA"), "top": PSF},
            {"group": "ca", "kernel": RMSD("all"), "top": PSF},
            {"group": "ca", "kernel": RMSD("name CA"), "top": folder / suffix / "adk.ca.top.pdb"},
            {"kernel": RMSD(CA), "top": PSF},
        ):
            for executor in (None, Processes(2)):
                got = analyze(path, executor=executor, **arguments).values
                np.testing.assert_allclose(got, want[:, 2], atol=1e-5)

    def test_part_of_a_group(self, folder, suffix):
        path = folder / suffix / f"adk.{suffix}"
        whole = analyze(path, kernel=RMSD("resname ARG and name CB"), top=PSF).values
        stored = analyze(path, kernel=RMSD("resname ARG and name CB"), top=PSF, group="arg").values
        assert np.array_equal(whole, stored)

    def test_masses_of_a_group(self, folder, suffix):
        u = mda.Universe(PSF, DCD)
        arg = u.select_atoms("resname ARG and name CA CB")
        masses = np.arange(1.0, 1 + u.atoms.n_atoms)
        u.atoms.masses = masses
        want = rms.RMSD(arg, weights="mass").run().results.rmsd[:, 2]
        path = folder / suffix / f"adk.{suffix}"
        got = analyze(path, kernel=RMSD(weights="mass"), top=u, group="arg").values
        np.testing.assert_allclose(got, want, atol=1e-5)

    def test_atoms_outside_of_the_group(self, folder, suffix):
        path = folder / suffix / f"adk.{suffix}"
        for kernel in (RMSD("name CB"), Dihedrals()):
            with pytest.raises(PlanError, match=r"not in the stored group 'arg'"):
                analyze(path, kernel=kernel, top=PSF, group="arg")
        with pytest.raises(SourceError, match="atoms"):
            analyze(path, kernel=RMSD("name CA"), top=GRO, group="arg")

    def test_chain_of_groups(self, folder, suffix, want):
        path = folder / suffix / f"adk.{suffix}"
        got = analyze([path, path], kernel=RMSD("name CA"), top=PSF, group="ca", step=3)
        np.testing.assert_allclose(got.values, np.tile(want[:, 2], 2)[::3], atol=1e-5)
        with pytest.raises(PlanError, match=rf"{DCD}: .* no stored groups"):
            analyze([path, DCD], kernel=RMSD(), group="ca")


@pytest.mark.parametrize(("words", "alike"), [([], False), (["--weights", "none"], True)])
def test_rgyr_weighs_by_mass_as_mdanalysis(tmp_path, words, alike):
    u = mda.Universe(PSF, DCD)
    out = tmp_path / "r.npz"
    assert main(["analyze", "rgyr", DCD, "-s", PSF, "--quiet", "-o", str(out), *words]) == 0
    if alike:
        u.atoms.masses = 1.0
    want = [u.atoms.radius_of_gyration() for _ in u.trajectory]
    np.testing.assert_allclose(np.load(out)["values"], want, atol=1e-4)


def test_rgyr_guesses_masses_as_mdanalysis(tmp_path):
    u = mda.Universe(GRO)
    out = tmp_path / "r.npz"
    assert main(["analyze", "rgyr", GRO, "-s", GRO, "--quiet", "-o", str(out)]) == 0
    want = [u.atoms.radius_of_gyration()]
    np.testing.assert_allclose(np.load(out)["values"], want, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Unknown masses")
def test_rgyr_without_masses_says_so(tmp_path, capsys):
    assert main(["analyze", "rgyr", DCD]) == 2
    said = capsys.readouterr().err
    assert "-s/--top" in said and "--weights none" in said
    path = tmp_path / "dummies.gro"
    path.write_text("t\n1\n    1DUM     QQ    1   0.000   0.000   0.000\n 1.0 1.0 1.0\n")
    assert main(["analyze", "rgyr", str(path), "-s", str(path)]) == 2
    assert "have no masses" in capsys.readouterr().err
    assert main(["analyze", "rgyr", str(path), "--weights", "none", "--quiet"]) == 0
