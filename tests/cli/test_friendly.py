"""The command line as a friend: examples, near misses, help that fits a screen."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.formats.libmdaxdr import TRRFile
from MDAnalysisTests.datafiles import DCD, DCD2, PSF, RNA_PSF, XTC

import mdio
from mdio.cli.common import parse_seconds
from mdio.cli.main import COMMANDS, main


def test_alone_it_shows_five_commands_that_parse(capsys):
    assert main([]) == 0
    shown = re.findall(r"^    (mdio .*)$", capsys.readouterr().out, re.M)
    assert len(shown) == 5
    assert {line.split()[1] for line in shown} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["convret", "a", "b"], "did you mean 'convert'?"),
        (["analyze", "rmsd", DCD, "--selct", "all"], "did you mean '--select'?"),
        (["analyze", "dihedral", DCD], "did you mean 'dihedrals'?"),
        (
            ["analyze", "rmds", DCD],
            "there is no kernel 'rmds' (did you mean 'rmsd'?); choose one of",
        ),
        (["analyze", "RMSD", DCD], "did you mean 'rmsd'?"),
        (["analyze", DCD, "rmsd"], "is a file, not a kernel; name the kernel first"),
        (["convert", DCD, "a.zarr", "--layout", "zarr"], "did you mean '--to'?"),
        (["convert", DCD, "a.zarr", "--topology", PSF], "did you mean '--top'?"),
        (["convert", DCD, "a.zarr", "--overwrite"], "did you mean '--force'?"),
        (["convert", DCD, "a.zarr", "--skip=2"], "did you mean '--step'?"),
        (["convert", DCD, "-o", "a.zarr"], "give the output last, without an option"),
        (["convert", DCD, "--output", "a.zarr"], "give the output last, without an option"),
        (["convert", DCD, "a.zarr", "-x"], "arguments: -x (see"),
        (["analyze", "rmsd", DCD, "-j", "2"], "did you mean '--workers'?"),
        (["analyze", "rmsd", DCD, "--output", "a.csv"], "did you mean '--out'?"),
        (["analyze", "json.py:rows", DCD], "no function 'rows' in"),
        (["analyze", DCD], "are required: TRAJ; write mdio analyze KERNEL TRAJ [TRAJ ...] (see"),
        (["bench"], "write mdio bench BENCH, one of scaling"),
        (["model", "fit", "a.csv"], "write mdio model fit CSV --out PROFILE.toml (see"),
        (["analyze", __file__, DCD], "which function in it? write test_friendly:FUNCTION"),
        (["convert", DCD, "a.zarr", "--compression", "zsdt"], "did you mean 'zstd'?"),
        (["convert", DCD, "a.zarr", "--select", "all"], "needs a topology; give one with -s"),
        (["mapreduce", "os:getcwd", DCD], "not a class; a map-reduce needs one with the methods"),
        (["analyze", "rmsd", DCD, "--executor", "multiprocessing"], "did you mean 'processes'?"),
        (["analyze", "rmsd", DCD, "--executor", "dsk"], "did you mean 'dask'?"),
        (["verify", "a.zarr", "--source", DCD], "did you mean '--against'?"),
        (["verify", "--against", DCD, "a.zarr"], "OUT [--against SRC [SRC ...]], in this order"),
        (["analyze", "rmsd", DCD, "-o", "a.npz", "-o", "a.csv"], "-o/--out: given twice"),
        (["analyze", "rmsd", DCD, "--plot", "a.png", "--plot", "b.png"], "--plot: given twice"),
        (["advise", DCD, "--kernel", "rgyr"], "did you mean '--analysis'?"),
        (["advise", DCD, "--pbc", "whole"], "it is an option of mdio convert and analyze)"),
        (
            ["repair", "a.zarr", DCD, "--mpi"],
            "of mdio convert, append, split, verify, analyze, map",
        ),
        (["--mpi", "convert", DCD, "a"], "it goes after the command: mdio convert --mpi ...)"),
        (["info", DCD, "--degrees"], "it is an option of mdio analyze)"),
        (
            ["analyze", "rdf", DCD],
            "analyses of MDAnalysis and its kits run on mda.Universe(TOP, FILE, format='MDIO')",
        ),
        (["analyze", "sasa", DCD], "analyses of MDAnalysis and its kits run on"),
        (["analyze", "rmsd", DCD, "-s", PSF, "--select", "same"], "it ends where more is expected"),
        (["analyze", "rmsd", DCD, "-s", PSF, "--select", "prop :"], "it ends where more is"),
        (["analyze", "rmsd", DCD, "-s", PSF, "--select", "group updating"], "is reserved"),
        (["info", DCD, "--stall-timeout", "nan"], "'nan' is not a time; write it as 30s, 10m"),
        (["info", DCD, "--stall-abort=-1"], "'-1' is not a time"),
        (["info", "a.zarr", "--output", "b.zarr"], "arguments: --output b.zarr (see"),
        (["bench", "scaling", DCD, "--worker", "2", "--topology", PSF], "did you mean '--top'?"),
    ],
)
def test_near_misses_are_named(capsys, words, says):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("given", ["missing.tpr", __file__])
def test_a_topology_that_is_none_is_told_in_a_line(capsys, given):
    assert main(["convert", DCD, "a.zarr", "-s", given, "--select", "name CA"]) == 1
    said = capsys.readouterr().err
    assert given in said and len(said) < 400


def test_files_may_follow_options(adk, tmp_path, capsys):
    a, b = map(str, (adk["dcd"], adk["xtc"]))
    keep_all, out = ["--overlap", "keep-all"], str(tmp_path / "a.zarr")
    for words in ([a, b, *keep_all, out], [a, *keep_all, b, out], [*keep_all, a, b, out]):
        assert main(["convert", *words, "--force", "-q"]) == 0
        assert mdio.open(out).info.n_frames == 196
    segments = str(tmp_path / "a.segments")
    assert main(["split", a, a, *keep_all, "-n", "3", segments, "-q"]) == 0
    assert main(["append", a, *keep_all, a, out, "-q"]) == 0
    assert mdio.open(out).info.n_frames == 392
    table = tmp_path / "a.csv"
    words = ["rgyr", a, "-s", str(adk["psf"]), *keep_all, b, "-o", str(table), "-q"]
    assert main(["analyze", *words]) == 0
    assert len(table.read_text().splitlines()) == 197
    for words in (["convert", a, "-q", b, out, "--bogus"], ["verify", a, "-q", b]):
        with pytest.raises(SystemExit):
            main(words)
        assert "unrecognized arguments" in capsys.readouterr().err


def test_functions_of_a_file_in_this_folder_are_listed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine_9.py").write_text("def ends(block): ...\n")
    assert main(["analyze", "mine_9:end", DCD]) == 2
    assert "no function 'end'" in (said := capsys.readouterr().err)
    assert "did you mean 'ends'?" in said and "it has ends" in said


@pytest.mark.parametrize("words", [["info", PSF], ["info", RNA_PSF], ["convert", PSF, "a.zarr"]])
def test_a_topology_alone_is_told_as_one(capsys, words):
    assert main(words) == 1
    assert "a topology, which holds no frames; give a trajectory" in capsys.readouterr().err


def test_a_format_that_is_meant_for_the_output_is_told(tmp_path, capsys):
    out = tmp_path / "a.h5md"
    assert main(["convert", DCD, str(out), "--format", "h5md"]) == 1
    said = capsys.readouterr().err
    assert "is dcd, and was to be read as h5md" in said and "--to" in said
    assert not out.exists()
    assert main(["convert", DCD, str(out), "--format", "dcd", "--quiet"]) == 0


@pytest.mark.parametrize("command", ["convert", "analyze"])
def test_help_fits_a_screen_and_help_all_has_everything(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match="0"):
            main([command, option])
        texts.append(capsys.readouterr().out)
    short, full = texts
    assert short.count("\n") <= 50 < full.count("\n")
    options = [set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)) for text in texts]
    assert options[0] - {"--help-all"} < options[1]
    assert "--stall-timeout" in options[1] - options[0]


@pytest.mark.parametrize("words", [["info"], ["split"], ["cache", "evict"], ["model", "fit"]])
def test_all_options_are_shown_where_help_hides_none(capsys, words):
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match="0"):
            main([*words, option])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_ranks_that_would_all_do_the_same_are_refused(capsys, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(SystemExit, match="2"):
        main(["analyze", "rmsd", DCD])
    assert "3 MPI ranks" in capsys.readouterr().err
    for words in (["advise", DCD], ["repair", "a.zarr"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert ("add --mpi" in capsys.readouterr().err) == (words[0] == "advise")
    assert main(["info", DCD, "--json"]) == 0


@pytest.mark.parametrize(("suffix", "comment"), [(".dat", "#"), (".xvg", "@"), (".csv", "frame")])
def test_text_reads_back(tmp_path, capsys, suffix, comment):
    out = tmp_path / f"rmsd{suffix}"
    words = ["analyze", "rmsd", DCD, "-s", PSF, "--select", "name CA"]
    assert main([*words, "-o", str(out), "-b", "10", "-e", "20"]) == 0
    assert main([*words, "--json", "-o", str(tmp_path / "all.npz")]) == 0
    import numpy as np

    want = np.load(tmp_path / "all.npz")
    lines = [line for line in out.read_text().splitlines() if not line.startswith(comment)]
    rows = np.array([re.split("[ ,]", line) for line in lines], dtype=float)
    kept = (want["time"] > 9.9) & (want["time"] < 20.1)
    assert kept.sum() == len(rows) == 11
    np.testing.assert_array_equal(rows[:, -1], want["values"][kept])
    np.testing.assert_array_equal(rows[:, -2], want["time"][kept])


def test_dash_prints_rows_alone():
    words = [sys.executable, "-m", "mdio.cli.main", "analyze", "rgyr", DCD, "--weights", "none"]
    done = subprocess.run([*words, "--stop", "3", "-o", "-"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "#frame time_ps rgyr_angstrom"
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2"]


def test_overview_without_out(capsys):
    assert main(["analyze", "rmsd", DCD, "-s", PSF, "--select", "name CA"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "rmsd_angstrom" in line)
    assert "mean 4.379" in line
    assert "to 6.833" in line


def test_completion_knows_commands_and_options():
    for line, expected in (
        ("mdio con", "convert"),
        ("mdio convert --chunk-f", "--chunk-frames"),
        ("mdio analyze rm", "rmsf"),
        ("mdio advise md.xtc --analysis rm", "rmsf"),
    ):
        env = os.environ | {
            "_ARGCOMPLETE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
        }
        done = subprocess.run(
            [sys.executable, "-m", "mdio.cli.main"], env=env, capture_output=True, text=True
        )
        assert expected in re.split(r"[\s\x0b]", done.stdout)


@pytest.mark.parametrize(("shell", "between"), [("fish", "\t"), ("zsh", ":")])
def test_other_shells_show_what_kernels_are(shell, between):
    line = "mdio analyze rms"
    told = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": shell}
    told |= {"_ARGCOMPLETE_DFS": "\t"} if shell == "fish" else {}
    told |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout"}
    done = subprocess.run(
        [sys.executable, "-m", "mdio.cli.main"],
        env=os.environ | told | {"COMP_LINE": line, "COMP_POINT": str(len(line))},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    found = dict(one.split(between, 1) for one in done.stdout.splitlines())
    deviation = "The root-mean-square deviation of every frame from a reference frame"
    assert found["rmsd"].strip() == deviation and "fluctuation" in found["rmsf"]


@pytest.mark.parametrize("others", [DCD2, XTC], ids=["replica", "other atoms"])
def test_files_that_do_not_join_are_listed_by_info(capsys, others):
    assert main(["info", DCD, others]) == 0
    told = capsys.readouterr()
    with mda.coordinates.core.reader(others) as reader:
        n_frames, n_atoms = len(reader), reader.n_atoms
    listed = re.findall(r"^(\S+)\n  frames +(\S+)\n  atoms +(\S+)$", told.out, re.M)
    assert listed == [(DCD, "98", "3,341"), (others, f"{n_frames}", f"{n_atoms:,}")]
    assert "not joined" in told.err and "together" not in told.out
    assert main(["info", DCD, others, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["n_atoms"] for one in facts["files"]] == [3341, n_atoms]
    assert facts["layout"] is None and facts["notes"]


@pytest.mark.parametrize("words", [[DCD, "no.xtc"], [DCD, DCD2, "--overlap", "error"]])
def test_info_of_what_is_not_there_or_must_not_overlap_fails(capsys, words):
    assert main(["info", *words]) == 1
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1


def test_info_says_how_often_velocities_come(capsys, tmp_path):
    path = str(tmp_path / "few.trr")
    with TRRFile(path, "w") as file:
        for frame in range(7):
            values = np.full((4, 3), frame, np.float32)
            args = (values, None if frame % 3 else values, values if frame in (1, 2, 5) else None)
            file.write(*args, np.eye(3, dtype=np.float32), frame, frame, 0, 4)
    assert main(["info", path]) == 0
    told = capsys.readouterr().out
    assert "velocities every 3 frames" in told and "forces not in all frames" in told


def test_what_a_users_function_has_left_open_is_written(adk, tmp_path):
    (tmp_path / "mine.py").write_text(
        "kept = open('kept.txt', 'w')\nkept.write('all of it')\n"
        "def first(block):\n    return block.positions[:, 0, 0]\n"
    )
    words = ("analyze", "mine:first", str(adk["dcd"]), "--select", "all")
    command = (sys.executable, "-m", "mdio.cli.main", *words)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "kept.txt").read_text() == "all of it"


@pytest.mark.parametrize(
    ("text", "expected_s"), [("90", 90), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000), ("10m", 600)]
)
def test_times_of_the_command_line(text, expected_s):
    assert parse_seconds(text) == expected_s
