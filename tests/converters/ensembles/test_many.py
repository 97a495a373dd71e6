"""Many trajectories side by side: workers stay for all of them, and a note comes once."""

import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import PSF, XTC

import mdio
from mdio.analysis.kernels.geometry import RadiusOfGyration
from mdio.converters import selection
from mdio.converters.ensemble import convert_members
from mdio.core.errors import BlockError, SourceError
from mdio.core.words import notes_by_label
from mdio.parallel.executors import Processes
from mdio.parallel.pool import WorkerPool

N_REPLICAS = 12


@pytest.fixture(scope="module", params=["zarr", "h5md"])
def many(request, tmp_path_factory, adk):
    """Replicas of different lengths."""
    out = tmp_path_factory.mktemp("many") / f"all.{request.param}"
    folder = out.parent / "sources"
    folder.mkdir()
    for number in range(N_REPLICAS):
        mdio.convert(adk["xtc"], folder / f"r{number:02d}.xtc", start=number, stop=2 * number + 4)
    mdio.convert_ensemble({p.stem: p for p in sorted(folder.glob("*.xtc"))}, out, top=PSF)
    return out


@pytest.fixture
def n_started(monkeypatch):
    """Worker processes that have been started."""
    started = []
    start = WorkerPool._start

    @functools.wraps(start)
    def counted(pool):
        started.append(pool)
        return start(pool)

    monkeypatch.setattr(WorkerPool, "_start", counted)
    return started


def first_atom(block):
    return block.positions[:, 0]


class LastFrameFails:
    """Fails in the replica that has the last frames."""

    def __init__(self, last_ps):
        self.last_ps = last_ps

    def __call__(self, block):
        if block.time[-1] >= self.last_ps:
            raise ValueError("too late")
        return block.positions[:, 0]


@pytest.mark.parametrize("kernel", ["rmsd", "rmsf", "msd", first_atom])
def test_workers_stay_for_all_replicas(many, kernel, n_started):
    serial = mdio.analyze(many, kernel=kernel, select="name CA")
    seen = []
    spread = mdio.analyze(
        many, kernel=kernel, select="name CA", workers=2, progress=lambda *done: seen.append(done)
    )
    assert len(n_started) == 2
    for name in ("frame", "time", "values", "label"):
        np.testing.assert_array_equal(getattr(spread, name), getattr(serial, name))
    assert (spread.executor, spread.workers) == ("processes", 2)
    assert (spread.notes, spread.n_frames) == (serial.notes, serial.n_frames)
    assert sum(frames for frames, _ in seen) == sum(range(4, 4 + N_REPLICAS))


def test_workers_convert_whole_replicas_and_stay(many, n_started):
    sources = {path.stem: path for path in sorted((many.parent / "sources").glob("*.xtc"))}
    out, seen = many.with_name(f"spread{many.suffix}"), []
    with mdio.Processes(2) as executor:
        done = mdio.convert_ensemble(
            sources, out, top=PSF, executor=executor, progress=lambda *step: seen.append(step)
        )
        assert len(n_started) == 2
        back = many.with_name("back") / "{label}.xtc"
        back.parent.mkdir(exist_ok=True)
        convert_members(out, str(back), executor=executor, force=True)
        assert len(n_started) == 4
    assert list(done) == list(sources)
    assert sum(frames for frames, _ in seen) == sum(range(4, 4 + N_REPLICAS))
    assert sum(nbytes for _, nbytes in seen) == sum(frames for frames, _ in seen) * 12 * 3341
    for label, path in sources.items():
        with mdio.open(out, group=label) as spread, mdio.open(many, group=label) as serial:
            one, other = (whole.read(0, whole.info.n_frames) for whole in (spread, serial))
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.time, other.time)
        assert Path(str(back).format(label=label)).read_bytes() == path.read_bytes()


def test_a_bad_replica_is_named_and_nothing_left(many):
    sources = {path.stem: path for path in sorted((many.parent / "sources").glob("*.xtc"))}
    cut = many.with_name("cut.xtc")
    cut.write_bytes(sources["r07"].read_bytes()[:-100])
    assert mdio.open(cut).info.flaws  # and its index is there
    out = many.with_name(f"bad{many.suffix}")
    before = sorted(out.parent.iterdir())
    with (
        mdio.Processes(2) as executor,
        pytest.raises(SourceError, match=r"^r07: .*cut\.xtc"),
    ):
        mdio.convert_ensemble(sources | {"r07": cut}, out, top=PSF, executor=executor)
    assert sorted(out.parent.iterdir()) == before


def test_one_of_another_system_leaves_nothing(many):
    sources = {path.stem: path for path in sorted((many.parent / "sources").glob("*.xtc"))}
    out = many.with_name(f"other{many.suffix}")
    before = sorted(out.parent.iterdir())
    with (
        mdio.Processes(2) as executor,
        pytest.raises(SourceError, match=r"^other: 47681 atoms, but r00 has 3341"),
    ):
        mdio.convert_ensemble(
            {"r00": sources.pop("r00"), "other": XTC} | sources, out, executor=executor
        )
    assert not executor._pools
    assert sorted(out.parent.iterdir()) == before


def test_an_error_names_the_replica(many):
    last_ps = mdio.analyze(many, kernel=first_atom).time.max()
    with pytest.raises(BlockError, match=r"^r11: \S+: block 0 .*too late"):
        mdio.analyze(many, kernel=LastFrameFails(last_ps), workers=2)


def test_a_note_that_all_have_comes_once(many):
    result = mdio.analyze(many, kernel=first_atom, select=None)
    told = [note for note in result.notes if "all 12 replicas: " in note]
    assert len(set(result.notes)) == len(result.notes) == len(told)


def test_convert_tells_a_note_once(many):
    sources = sorted(map(str, many.parent.joinpath("sources").glob("*.xtc")))
    out = many.with_name(f"again{many.suffix}")
    command = [sys.executable, "-m", "mdio.cli.main", "convert", "--ensemble", *sources, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    notes = [line for line in done.stdout.splitlines() if "note:" in line]
    assert len(notes) == len(set(notes)) <= 1
    assert all("all 12 replicas: " in note for note in notes)


def test_a_note_that_some_have_says_how_many():
    notes = {"a": ["x", "y"], "b": ["y"], "c": ["y", "z"], "d": ["z"]}
    assert notes_by_label(notes, dict.fromkeys(notes, "path")) == (
        "a: x",
        "3 of 4 replicas (a to c): y",
        "2 of 4 replicas (c to d): z",
    )


def test_replicas_that_do_not_follow_each_other_are_named_one_by_one():
    notes = {label: ["x", "y"] for label in "acegikm"} | {"b": ["x"], "c": ["x"]}
    notes = {label: notes.get(label, []) for label in "abcdefghijklm"}
    assert notes_by_label(notes, dict.fromkeys(notes, "path")) == (
        "8 of 13 replicas (a, b, c, e, g, ...): x",
        "6 of 13 replicas (a, e, g, i, k, ...): y",
    )
    notes = {label: notes[label] for label in "abcd"} | {"c": ["x", "y"]}
    assert notes_by_label(notes, dict.fromkeys(notes, "path"))[1] == "2 of 4 replicas (a, c): y"


def test_notes_that_differ_in_the_path_alone_are_one():
    paths = {label: f"all/{label}" for label in "abc"}
    notes = {label: [f"{path}: 2 boxes", f"{path} has none"] for label, path in paths.items()}
    notes["b"].append("all/b: is cut")
    assert notes_by_label(notes, paths) == (
        "all 3 replicas: 2 boxes",
        "all 3 replicas: it has none",
        "b: all/b: is cut",
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
def test_guessed_masses_are_told_once(tmp_path, adk, suffix, workers):
    top, out = tmp_path / "top.pdb", tmp_path / f"all.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a PDB has and a PSF lacks
        mda.Universe(PSF, str(adk["dcd"])).atoms.write(str(top))
    mdio.convert_ensemble({f"r{n}": adk["dcd"] for n in range(8)}, out, top=top)
    result = mdio.analyze(out, kernel=RadiusOfGyration("all"), workers=workers)
    told = [note for note in result.notes if "has no masses" in note]
    assert len(told) == 1 and told[0].startswith("all 8 replicas: it has no masses"), told


def test_many_files_are_told_with_the_layout_that_has_fewer(tmp_path, adk, monkeypatch):
    monkeypatch.setattr("mdio.converters.ensemble.MAX_FILES_WITHOUT_NOTE", 60)
    for name, n_files in (("all.zarr", 73), ("all.h5md", 3)):
        sources = dict.fromkeys(("a", "b"), adk["xtc"])
        results = mdio.convert_ensemble(sources, tmp_path / name, top=PSF, stop=3)
        files = [path for path in tmp_path.rglob("*") if path.is_file() and name in str(path)]
        assert len(files) == n_files
        told = [note for note in results["b"].notes if note.startswith("files: ")]
        few = f"{tmp_path / 'all.h5md'} would have 3 (add --compression small)"
        assert told == (
            [f"files: {tmp_path / name} has 73; where their number is limited, {few}"]
            if name == "all.zarr"
            else []
        )


@pytest.mark.parametrize("top", [PSF, Path(PSF)])
def test_a_topology_is_parsed_once_for_all(tmp_path, adk, monkeypatch, top):
    parsed = []
    read = selection._read_topology
    monkeypatch.setattr(selection, "_read_topology", lambda top: parsed.append(top) or read(top))
    choice = {"top": top, "select": "name CA", "groups": {"g": "resid 2:5"}, "stop": 3}
    mdio.convert(adk["xtc"], tmp_path / "alone.zarr", **choice)
    assert parsed == [top]
    mdio.convert_ensemble({str(n): adk["xtc"] for n in range(4)}, tmp_path / "all.zarr", **choice)
    assert parsed == [top, PSF]
    with mdio.open(tmp_path / "alone.zarr") as layout:
        topology = layout.topology().to_bytes()
    for label in ("0", "3"):
        with mdio.open(tmp_path / "all.zarr", group=label) as layout:
            assert layout.manifest["recipe"]["top"] == PSF
            assert layout.topology().to_bytes() == topology


def test_each_worker_parses_a_topology_once(tmp_path, adk, monkeypatch):
    parsed = tmp_path / "parsed"
    read = selection._read_topology

    def noted(top):
        with parsed.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return read(top)

    monkeypatch.setattr(selection, "_read_topology", noted)
    sources = {str(n): adk["xtc"] for n in range(7)}
    choice = {"top": PSF, "select": "name CA", "stop": 2, "executor": Processes(2)}
    mdio.convert_ensemble(sources, tmp_path / "all.zarr", **choice)
    process_ids = parsed.read_text().split()
    assert len({*process_ids}) == len(process_ids) > 1
