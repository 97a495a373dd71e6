"""The command line as a user types it, from another folder."""

import importlib
import json
import subprocess
import sys

import MDAnalysis as mda
import numpy as np
import pytest

importlib.import_module("mdio")  # its readers, for the Universes of these tests
MDIO = [sys.executable, "-m", "mdio.cli.main"]


def mdio(*words, cwd, ok=True):
    done = subprocess.run(
        [*MDIO, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    if ok:
        assert done.returncode == 0, done.stderr
    return done


def test_help_lists_every_command_and_is_quick(tmp_path):
    text = mdio("--help", cwd=tmp_path).stdout
    for command in ("info", "convert", "split", "verify", "analyze"):
        assert command in text
        assert "usage: mdio" in mdio(command, "--help", cwd=tmp_path).stdout
    assert mdio("--version", cwd=tmp_path).stdout.startswith("mdio ")


INFO_KEYS = {
    "layout", "n_frames", "n_atoms", "dt_ps", "time_first_ps", "time_last_ps", "has_velocities",
    "has_forces", "has_box", "groups", "chunk_frames", "chunk_atoms", "compression", "precision",
    "nbytes", "source",
}  # fmt: skip
CONVERT_KEYS = {
    "out", "layout", "n_frames", "n_atoms", "nbytes_in", "nbytes_out", "seconds", "workers", "plan",
}  # fmt: skip
VERIFY_KEYS = {"ok", "chunks_checked", "frames_compared", "max_abs_diff_angstrom", "bad"}


@pytest.mark.parametrize("suffix", ["zarr", "h5md", "segments"])
def test_convert_info_verify(adk, tmp_path, suffix):
    out = f"adk.{suffix}"
    group = [] if suffix == "segments" else ["--group", "ca=protein and name CA"]
    done = mdio(
        "convert", adk["xtc"], out, "-s", adk["psf"], *group, "-w", 2, "--json", cwd=tmp_path
    )
    report = json.loads(done.stdout)
    assert report.keys() >= CONVERT_KEYS
    assert done.stderr == ""
    facts = json.loads(mdio("info", out, "--json", cwd=tmp_path).stdout)
    assert facts.keys() >= INFO_KEYS
    assert (facts["layout"], facts["n_frames"], facts["n_atoms"]) == (suffix, 98, 3341)
    assert (facts["time_first_ps"], facts["time_last_ps"], facts["dt_ps"]) == (5.0, 199.0, 2.0)
    assert facts["groups"] == ({} if suffix == "segments" else {"ca": 214})
    assert facts["nbytes"] >= report["nbytes_out"] > 0
    assert facts["source"]["path"] == str(adk["xtc"])
    checked = json.loads(
        mdio("verify", out, "--against", adk["xtc"], "--json", cwd=tmp_path).stdout
    )
    assert checked.keys() >= VERIFY_KEYS
    assert (checked["ok"], checked["frames_compared"], checked["bad"]) == (True, 98, [])
    assert "98" in mdio("info", out, cwd=tmp_path).stdout
    assert "ok" in mdio("verify", out, cwd=tmp_path).stdout


def test_info_of_native_files(adk, tmp_path):
    for suffix in ("xtc", "trr", "dcd", "ncdf"):
        facts = json.loads(mdio("info", adk[suffix], "--json", cwd=tmp_path).stdout)
        assert (facts["layout"], facts["n_frames"], facts["n_atoms"]) == (suffix, 98, 3341)


def test_info_of_one_frame_and_of_several_files(adk, tmp_path):
    from MDAnalysisTests.datafiles import GRO

    one = mdio("info", GRO, cwd=tmp_path).stdout
    assert "\n  time         0 ps\n" in one
    files = adk["xtc"], adk["dcd"]
    both = mdio("info", *files, "--overlap", "keep-all", cwd=tmp_path).stdout.splitlines()
    assert [line.partition(" ps, ")[0] for line in both[:3]] == [
        f"{adk['xtc']}: 98 frames, 5 to 199",
        f"{adk['dcd']}: 98 frames, 1 to 98",
        "together:",
    ]
    assert "  frames       196" in both
    assert "  time         5 to 98 ps (first and last frame), not evenly spaced" in both
    # By their times, the frames before 5 ps are kept of the one that begins at 1 ps.
    done = mdio("info", *files, cwd=tmp_path)
    assert "  frames       102\n" in done.stdout and "frames 4 to 97 (5 to 98 ps)" in done.stderr
    done = mdio("info", *files, "--json", cwd=tmp_path)
    assert "frames 4 to 97" in "".join(json.loads(done.stdout)["notes"]) and done.stderr == ""


def test_a_source_whose_topology_counts_its_atoms(tmp_path):
    from MDAnalysisTests.datafiles import PRM, TRJ

    for command in (["info", TRJ], ["convert", TRJ, "a.zarr"]):
        refused = mdio(*command, cwd=tmp_path, ok=False)
        assert refused.returncode == 1
        assert "give a topology with -s" in refused.stderr
    assert "  atoms        252\n" in mdio("info", TRJ, "-s", PRM, cwd=tmp_path).stdout
    mdio("convert", TRJ, "a.zarr", "-s", PRM, "-w", 2, "--verify", cwd=tmp_path)
    u, v = mda.Universe(PRM, TRJ), mda.Universe(PRM, str(tmp_path / "a.zarr"))
    for ours, theirs in zip(v.trajectory, u.trajectory, strict=True):
        assert np.array_equal(ours.positions, theirs.positions)
    assert (
        "11 frames compared"
        in mdio("verify", "a.zarr", "--against", TRJ, "-s", PRM, cwd=tmp_path).stdout
    )


@pytest.mark.parametrize("out", [["a.dcd"], ["a.segments", "--container", "dcd"]])
def test_times_that_dcd_cannot_hold_are_told(adk, tmp_path, out):
    from MDAnalysisTests.datafiles import NCDF  # all its frames are at 0 ps

    for name, sources in (("same", [NCDF]), ("joined", [adk["xtc"], adk["xtc"]])):
        words = [f"{name}-{out[0]}", *out[1:]]
        said = mdio("convert", *sources, *words, cwd=tmp_path).stdout
        assert said.count("times that are not equally spaced") == 1
    assert "note" not in mdio("convert", adk["xtc"], *out, cwd=tmp_path).stdout


def test_split(adk, tmp_path):
    done = mdio("split", adk["xtc"], "adk.segments", "-n", 5, "--json", cwd=tmp_path)
    assert json.loads(done.stdout).keys() >= CONVERT_KEYS
    u = mda.Universe(str(adk["psf"]), str(tmp_path / "adk.segments"))
    assert len(u.trajectory) == 98
    done = mdio("split", adk["xtc"], "b.segments", "-n", 99, cwd=tmp_path, ok=False)
    assert done.returncode != 0 and "98" in done.stderr


def test_dry_run_writes_nothing(adk, tmp_path):
    for suffix in ("zarr", "h5md", "segments", "xtc"):
        text = mdio("convert", adk["xtc"], f"a.{suffix}", "--dry-run", cwd=tmp_path).stdout
        assert "98" in text
        report = json.loads(
            mdio("convert", adk["xtc"], f"a.{suffix}", "--dry-run", "--json", cwd=tmp_path).stdout
        )
        assert report["plan"]["n_frames"] == 98
    assert list(tmp_path.iterdir()) == []


def test_convert_with_verify_and_a_summary(adk, tmp_path):
    done = mdio(
        "convert", adk["xtc"], "a.zarr", "--precision", "auto", "--verify", "--start", 10,
        "--step", 4, "--select", "name CA", "--top", adk["psf"], cwd=tmp_path,
    )  # fmt: skip
    assert "22 frames of 214 atoms" in done.stdout
    assert "a.top.pdb" in done.stdout
    assert "verified: 22 frames compared with the source, largest difference 0 angs" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.top.pdb", "a.zarr"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["convert", "nothing.xtc", "a.zarr"], 1, "nothing.xtc: no such file"),
        (["convert", "empty.xtc", "a.zarr"], 1, "empty.xtc"),
        (["convert", "text.xtc", "a.zarr"], 1, "text.xtc"),
        (["convert", "ADK", "a.nonsense"], 2, "suffix"),
        (["convert", "ADK", "a.zarr", "--precision", "-1"], 2, "precision"),
        (["convert", "ADK", "a.zarr", "--stripe-size", "4X"], 2, "4X"),
        (["convert", "ADK", "a.zarr", "--group", "ca"], 2, "--select"),
        (["convert", "ADK", "a.zarr", "--select", "name CA"], 2, "topology"),
        (["convert", "ADK", "nowhere/a.zarr"], 1, "nowhere"),
        (["convert", "ADK"], 2, "required"),
        (["info", "nothing.zarr"], 1, "nothing.zarr"),
        (["verify", "folder"], 1, "folder"),
        (["verify", "folder"], 1, "a folder, but not an output of mdio"),
        (["nonsense"], 2, "nonsense"),
        (["--nonsense"], 2, "COMMAND"),
        (["convert", "ADK", "a.zarr", "--chunkframes", "3"], 2, "mdio convert --help"),
        (["bench", "nonsense"], 2, "nonsense"),
        (["bench", "layouts", "ADK"], 2, "python bench/layouts.py"),
        (["bench", "darshan", "x.darshan"], 2, "python bench/darshan_log.py"),
        (["model", "predict", "x.toml"], 2, "--ranks"),
    ],
)
def test_one_line_errors_and_exit_codes(adk, tmp_path, words, code, text):
    (tmp_path / "empty.xtc").touch()
    (tmp_path / "text.xtc").write_text("this is no trajectory\n" * 100)
    (tmp_path / "folder").mkdir()
    words = [str(adk["xtc"]) if word == "ADK" else word for word in words]
    done = mdio(*words, cwd=tmp_path, ok=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert text in line and line.startswith("mdio")
    assert done.stdout == ""


def test_debug_shows_the_traceback(tmp_path):
    done = mdio("info", "nothing.xtc", "--debug", cwd=tmp_path, ok=False)
    assert "Traceback" in done.stderr


def test_a_damaged_output_fails_verify(adk, tmp_path):
    mdio("convert", adk["dcd"], "a.zarr", "--quiet", cwd=tmp_path)
    shard = tmp_path / "a.zarr/particles/trajectory/position/value/c.0.0.0"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 4
    shard.write_bytes(data)
    done = mdio("verify", "a.zarr", "--json", cwd=tmp_path, ok=False)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert not report["ok"] and "frames" in report["bad"][0]


def test_analyze_rmsd(adk, tmp_path):
    from MDAnalysis.analysis import rms

    mdio("convert", adk["xtc"], "a.zarr", "-s", adk["psf"], "--group", "ca=name CA", cwd=tmp_path)
    done = mdio(
        "analyze", "rmsd", "a.zarr", "-s", adk["psf"], "--select", "name CA", "--executor",
        "processes", "-w", 2, "-o", "r.npz", "--json", cwd=tmp_path,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report.keys() >= {
        "n_frames", "seconds", "t_open_s", "t_io_s", "t_comp_s", "ratio_comp_io", "workers",
    }  # fmt: skip
    u = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    expected = rms.RMSD(u.select_atoms("name CA")).run().results.rmsd
    found = np.load(tmp_path / "r.npz")
    np.testing.assert_array_equal(found["frame"], expected[:, 0])
    np.testing.assert_array_equal(found["time"], expected[:, 1])
    np.testing.assert_allclose(found["values"].ravel(), expected[:, 2], atol=1e-4)
