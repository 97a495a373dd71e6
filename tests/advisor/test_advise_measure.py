"""Measuring on real files: what comes out, and what is left behind."""

import json
import os
import re
import shlex
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO
from suites.quick_advice import QUICK, quickly

import mdio
import mdio.advisor.advise  # before a test replaces `measure.Limits`, which it imports
from mdio.advisor import measure, probes
from mdio.advisor.measure import Limits
from mdio.advisor.measurements import load_measurements, save_measurements
from mdio.advisor.recommend import recommend
from mdio.cli.main import main
from mdio.core.errors import PlanError, SourceError
from mdio.core.files.page_cache import drop_cache

SLEEP_S = 0.02


def slowly(block):
    time.sleep(SLEEP_S * block.n_frames)
    return np.zeros(block.n_frames)


def forever(block):
    time.sleep(60)
    return np.zeros(block.n_frames)


@pytest.fixture(scope="module")
def measured(adk, tmp_path_factory):
    target = tmp_path_factory.mktemp("target")
    found = quickly(adk, target, allow_lossy=0.1, local_folder=target, ranks=2)
    assert list(target.iterdir()) == []
    return found


def test_every_option_is_measured(measured):
    names = [trial.name for trial in measured.trials]
    assert names == [
        "as-is",
        "segments",
        "segments of dcd",
        "h5md",
        "zarr",
        "zarr raw floats",
        "zarr precision 0.1",
        "local-copy",
    ]
    assert [trial.problem for trial in measured.trials] == [None] * len(names)
    for trial in measured.trials:
        assert {run.workers for run in trial.runs} == {1, min(2, measured.host.cores)}
        assert all(run.t_io_frame_s.median > 0 for run in trial.runs)
        assert (trial.convert_frame_s.median > 0) == (trial.name != "as-is")
        assert 0 < trial.convert_cpu_share <= 1
        # All compute the same, so that what computing takes is the same.
        assert {run.t_comp_frame_s for run in trial.runs if run.workers == 1} == {
            measured.trials[0].runs[0].t_comp_frame_s
        }


def test_sizes_are_those_of_whole_outputs(measured, adk):
    sizes = {trial.name: trial.nbytes for trial in measured.trials}
    assert sizes["as-is"] == adk["xtc"].stat().st_size
    assert sizes["segments"] == pytest.approx(sizes["as-is"], rel=0.1)
    raw = 12 * 3341 * 98
    assert raw < sizes["h5md"] < 1.5 * raw  # and the group of 214 atoms, and padding
    assert sizes["zarr precision 0.1"] < sizes["zarr"] < raw / 2
    assert raw < sizes["zarr raw floats"] < 1.5 * raw


def test_the_group_is_that_of_the_selection(measured):
    zarr = measured.trial("zarr")
    assert zarr.groups == {"selection": "name CA"}
    assert zarr.convert_options == {"--group": "selection=name CA"}
    assert zarr.read_nbytes_frame < 6 * 214
    floats = measured.trial("zarr raw floats")
    assert floats.convert_options == {"--group": "selection=name CA", "--precision": "none"}
    assert floats.read_nbytes_frame == 12 * 214


def test_backbone_is_enough_for_dihedrals(adk, tmp_path):
    found = quickly(adk, tmp_path, analysis="dihedrals", select=None)
    (selection,) = found.trial("zarr").groups.values()
    assert "backbone" in selection
    import MDAnalysis as mda

    group = mda.Universe(str(adk["psf"]), str(adk["dcd"])).select_atoms(selection)
    assert found.question.n_selected <= len(group) < 1000


def test_fluctuations_are_one_result_of_all_frames(adk, tmp_path):
    found = quickly(adk, tmp_path, analysis="rmsf")
    assert found.question.result_nbytes_frame < 214 * 3 * 8 / 90


def test_the_source_is_left_as_it_was(adk, tmp_path):
    source = tmp_path / "adk.dcd"
    shutil.copy(adk["dcd"], source)
    before = source.read_bytes()
    target = tmp_path / "target"
    target.mkdir()
    found = quickly(adk, target, source=source)
    assert "segments of dcd" not in [trial.name for trial in found.trials]
    assert source.read_bytes() == before
    assert list(target.iterdir()) == []


def test_command_line(adk, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "Limits", lambda: QUICK)
    report, saved = tmp_path / "r.html", tmp_path / "m.json"
    words = ["advise", adk["xtc"], "-s", adk["psf"], "--analysis", "rmsd", "--select", "name CA"]
    words += ["--ranks", "1", "--passes", "3", "--target", tmp_path, "--machine", "local"]
    words += ["--json", "--report", report, "--save-measurements", saved]
    assert main([str(word) for word in words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bound"] in ("io", "compute", "balanced")
    assert told["ratio"] > 0
    wanted = {"layout", "chunk_frames", "groups", "stripe", "gather", "ranks"}
    assert wanted <= set(told["recommended"])
    for option in told["candidates"]:
        assert option["low_s"] <= option["predicted_total_s"] <= option["high_s"]
        assert option["convert_s"] >= 0
    assert told["break_even_passes"] is None or told["break_even_passes"] >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "r.html"]

    text = report.read_text()
    assert text.count("<svg") >= 3
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text).replace("http://www.w3", "")

    assert main(["advise", "--replay", str(saved), "--ranks", "1", "--passes", "3", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "measurements": 0} == {**told, "measurements": 0}
    assert main(["advise", "--replay", str(saved), "--select", "all", "--no-verify"]) == 2
    assert "leave out select, verify, or measure again" in capsys.readouterr().err

    assert main(["advise", "--replay", str(saved), "--ranks", "96", "--machine", "comet"]) == 0
    assert "mpiexec" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["segments of dcd", "h5md", "zarr", "zarr raw floats"])
def test_advised_commands_run(measured, adk, tmp_path, monkeypatch, capsys, name):
    source = measured.trial("as-is")
    slow = [
        replace(run, t_io_frame_s=run.t_io_frame_s.scaled(1e6), t_comp_frame_s=run.t_open_s)
        for run in source.runs
    ]
    kept = (replace(source, runs=tuple(slow)), measured.trial(name))
    question = replace(measured.question, target=str(tmp_path))
    advice = recommend(replace(measured, trials=kept, question=question), 1, 10)
    assert advice.recommended.name == name
    monkeypatch.chdir(tmp_path)
    for command in advice.commands:
        words = shlex.split(command)
        assert words[0] == "mdio"
        assert main(words[1:]) == 0
    capsys.readouterr()
    values = np.load(tmp_path / "result.npz")["values"]
    wanted = mdio.analyze(adk["xtc"], kernel=mdio.RMSD(select="name CA"), top=adk["psf"]).values
    np.testing.assert_allclose(values, wanted, atol=1e-5)
    (out,) = (path for path in tmp_path.glob("adk.*") if path.suffix != ".pdb")
    with mdio.open(out) as layout:
        groups = {} if name == "segments of dcd" else {"selection": 214}
        assert layout.info.groups == groups


def test_python(measured, tmp_path, adk):
    advice = mdio.advise(
        adk["dcd"],
        top=adk["psf"],
        analysis=slowly,
        select="name CA",
        ranks=1,
        target=tmp_path,
        limits=QUICK,
    )
    assert advice.recommended.layout == "as-is"
    assert advice.bound == "compute"
    runs = advice.measurements.trial("as-is").runs
    assert min(run.t_comp_frame_s.low for run in runs) >= SLEEP_S
    assert advice.rule.agrees == (advice.ratio > 100)  # the rule looks at the ratio alone
    assert advice.measurements.question.analysis.endswith(":slowly")
    assert "<table" in advice._repr_html_()
    assert repr(advice).startswith("<Advice: read the source as it is, ")
    with pytest.raises(PlanError, match="no trajectory"):
        mdio.advise()


def test_a_topology_that_does_not_fit(adk, tmp_path):
    with pytest.raises(SourceError, match=r"3341 .* topology .*adk_oplsaa\.gro has 476"):
        mdio.advise(adk["dcd"], top=GRO, target=tmp_path, limits=QUICK)


def test_a_function_that_takes_a_minute_a_frame(adk, tmp_path):
    begun = time.monotonic()
    advice = mdio.advise(
        adk["dcd"],
        top=adk["psf"],
        analysis=forever,
        select="name CA",
        target=tmp_path,
        ranks=1,
        limits=QUICK,
    )
    assert time.monotonic() - begun < 30
    assert any("lower bounds" in reason for reason in advice.reasons)
    assert advice.recommended.layout == "as-is"
    assert next(o for o in advice.options if o.name == "as-is").total.total_s >= 98 * 2.0


def test_a_topology_counts_the_atoms(tmp_path):
    from MDAnalysisTests.datafiles import PRM, TRJ

    found = quickly({"xtc": TRJ, "psf": PRM}, tmp_path)
    assert found.trial("as-is").runs
    assert found.trial("zarr").problem is None


def test_a_copy_has_to_fit_into_its_own_folder(adk, tmp_path, monkeypatch):
    check = measure.free_nbytes
    monkeypatch.setattr(
        measure, "free_nbytes", lambda *where: 9 if where[0].name == "local" else check(*where)
    )
    (tmp_path / "local").mkdir()
    found = quickly(adk, tmp_path, local_folder=tmp_path / "local")
    assert found.trial("zarr").fits
    assert not found.trial("local-copy").fits
    assert any(
        option.problem and option.problem.endswith("do not fit into the local folder")
        for option in recommend(found, 1, 1).options
    )


def test_one_frame_is_enough(adk, tmp_path):
    one = tmp_path / "one.dcd"
    with mdio.open(str(adk["dcd"])) as layout:
        assert layout.info.n_frames == 98
    mdio.convert(adk["dcd"], one, stop=1)
    target = tmp_path / "target"
    target.mkdir()
    found = quickly(adk, target, source=one, ranks=2)
    assert found.source.sample_frames == 1
    assert found.trial("as-is").runs


def test_cold_reads_are_told_where_they_cannot_be(adk, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "drop_cache", lambda path: "tmpfs keeps its bytes")
    found = quickly(adk, tmp_path)
    assert found.host.cold_problem == "tmpfs keeps its bytes"
    assert {run.cache for trial in found.trials for run in trial.runs} == {"warm"}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory file system here")
def test_a_memory_file_system_cannot_be_dropped():
    path = Path("/dev/shm") / f"mdio-advise-test-{os.getpid()}"
    try:
        path.write_bytes(b"x" * (8 << 20))
        assert "stayed in the page cache" in drop_cache(path)
        found = probes.bandwidths([path], [1, 2])
        assert [(one.readers, one.cache) for one in found] == [(1, "warm"), (2, "warm")]
        assert all(one.nbytes_per_s > 1e6 for one in found)
    finally:
        path.unlink()


def test_where_the_source_is_fast_enough_nothing_else_is_tried(adk, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    words = ["advise", str(adk["xtc"]), "-s", str(adk["psf"]), "--select", "name CA"]
    assert main([*words, "--target", str(tmp_path), "--passes", "2"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("read the source as it is")
    assert "that is fast enough, and nothing else was tried" in told.out
    assert "whether converting pays was not measured" in told.out
    assert "could be measured" not in told.out and "could not be measured" not in told.out
    assert "trial conversions" not in told.err
    assert sorted(tmp_path.iterdir()) == before


def test_it_says_first_how_long_it_takes(adk, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "Limits", lambda: replace(QUICK, seconds=12.0))
    words = ["advise", str(adk["xtc"]), "--target", str(tmp_path), "--select", "all"]
    assert main(words) == 0
    assert "mdio advise: trial conversions and runs, for some 7 s\n" in capsys.readouterr().err
    assert main([*words, "--quiet"]) == 0
    assert not capsys.readouterr().err


def test_sample_is_bounded(adk):
    with mdio.open(str(adk["dcd"])) as layout:
        frame = layout.info.frame_nbytes
        few = measure._sample(layout, 1 << 40, Limits(sample_nbytes=10 * frame))
        assert len(few) == 10
        assert few.start == 44
        room = 12 * 5 * frame * 2  # half of it, for twelve outputs of five frames
        assert len(measure._sample(layout, room, Limits())) == 5
        assert len(measure._sample(layout, 0, Limits())) == 0


def test_saved_measurements_are_the_same(measured, tmp_path):
    save_measurements(measured, tmp_path / "m.json")
    assert load_measurements(tmp_path / "m.json") == measured


def test_files_are_joined_and_read_as_they_will_be(adk, tmp_path, monkeypatch):
    seen = []

    def noted(*args, **kwargs):
        seen.append((kwargs["overlap"], kwargs["verify"]))
        return analyze(*args, **kwargs)

    analyze = measure.analyze
    monkeypatch.setattr(measure, "analyze", noted)
    found = quickly(
        adk, tmp_path, source=[adk["xtc"]] * 2, overlap="keep-all", verify=False, analysis="rgyr"
    )
    assert found.source.n_frames == 196
    assert set(seen) == {("keep-all", False)}
    assert found.question.options == {"--overlap": "keep-all", "--no-verify": ""}


@pytest.mark.parametrize("name", ["as-is", "zarr"])
def test_advised_commands_have_all_options(adk, tmp_path, monkeypatch, capsys, name):
    kernel = mdio.RMSD("name CA", reference=3, weights="mass", superpose=False)
    paths, joined = [str(adk["xtc"])] * 2, "keep-all"
    found = quickly(
        adk, tmp_path, source=paths, analysis=kernel, select=None, overlap=joined, verify=False
    )
    source = found.trial("as-is")
    slow = [replace(run, t_io_frame_s=run.t_io_frame_s.scaled(1e6)) for run in source.runs]
    kept = (replace(source, runs=tuple(slow)), found.trial(name))
    advice = recommend(replace(found, trials=kept[: 1 if name == "as-is" else 2]), 1, 10)
    assert advice.recommended.name == name
    monkeypatch.chdir(tmp_path)
    for command in advice.commands:
        assert main(shlex.split(command)[1:]) == 0
    capsys.readouterr()
    wanted = mdio.analyze(paths, kernel=kernel, top=adk["psf"], overlap=joined).values
    np.testing.assert_allclose(np.load("result.npz")["values"], wanted, atol=1e-5)


def test_an_array_is_left_out_of_commands(adk, tmp_path):
    kernel = mdio.RMSD("name CA", weights=np.ones(214))
    found = quickly(adk, tmp_path, analysis=kernel, select=None)
    assert found.question.options == {}
    assert "commands leave out weights=, which only Python can give" in found.notes
