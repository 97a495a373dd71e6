"""Results on disk: NPZ, CSV, timings as JSON."""

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from memory_layout import MemoryLayout, save_memory

import mdio
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.dihedrals import Dihedrals
from mdio.analysis.kernels.geometry import RMSF
from mdio.analysis.reducers import Mean, Reducer
from mdio.analysis.report import save_report
from mdio.analysis.results import summary_lines
from mdio.core.errors import BlockError, MissingExtraError, OutputError, PlanError
from mdio.parallel.executors import Processes

N_FRAMES = 103


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    positions = np.random.default_rng(5).normal(size=(N_FRAMES, 17, 3)) * 10
    return save_memory(tmp_path_factory.mktemp("t") / "a.npz", positions)


@pytest.fixture(scope="module")
def positions(path):
    return np.load(path)["positions"]


def first_x(block):
    return block.positions[:, 0, 0]


def whole(block):
    return block.positions


def test_save(path, tmp_path, positions):
    got = analyze(MemoryLayout(path), kernel=first_x)
    got.save(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as saved:
        assert sorted(saved) == ["frame", "time", "values"]
        assert np.array_equal(saved["values"], positions[:, 0, 0])
        assert np.array_equal(saved["time"], got.time)
    got.save(tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "frame,time_ps,value0"
    table = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1)
    assert np.array_equal(table, np.column_stack([got.frame, got.time, got.values]))
    got.save_timings(tmp_path / "t.json")
    record = json.loads((tmp_path / "t.json").read_text())
    assert record["timings"][0]["n_frames"] == N_FRAMES
    with pytest.raises(PlanError, match=r"\.npz or \.csv"):
        got.save(tmp_path / "out.txt")
    matrix = analyze(MemoryLayout(path), kernel=whole)
    matrix.save(tmp_path / "m.csv")
    assert np.loadtxt(tmp_path / "m.csv", delimiter=",", skiprows=1).shape == (103, 2 + 51)
    rmsf = analyze(MemoryLayout(path), kernel=RMSF())
    rmsf.save(tmp_path / "r.csv")
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert lines[0] == "row,rmsf_angstrom"
    assert [float(line.split(",")[1]) for line in lines[1:]] == rmsf.values.tolist()
    with pytest.raises(OutputError, match="does not exist"):
        got.save(tmp_path / "nowhere" / "out.npz")
    with pytest.raises(OutputError, match="folder"):
        got.save_timings(tmp_path)


def test_what_a_prompt_shows_is_short(path):
    shown = repr(analyze(MemoryLayout(path), kernel=first_x, executor=Processes(2)))
    assert shown.startswith("<AnalysisResult: 103 frames, 103 float32, ")
    assert shown.endswith("s with 2 workers (processes)>")


def test_a_prompt_shows_the_times_of_all_trajectories(adk, tmp_path):
    for name, step in (("long", 1), ("short", 2)):
        mdio.convert(adk["dcd"], tmp_path / f"{name}.xtc", start=4 * step, stop=50 // step)
    paths = {name: tmp_path / f"{name}.xtc" for name in ("long", "short")}
    mdio.convert_ensemble(paths, tmp_path / "both.h5md")
    result = mdio.analyze(tmp_path / "both.h5md", kernel="rgyr", weights=None)
    times = f", {result.time.min():g} to {result.time.max():g} ps"
    assert result.time[[0, -1]].tolist() != [result.time.min(), result.time.max()]
    assert times in repr(result) and times in result._repr_html_()


def test_tables_need_pandas(path, monkeypatch):
    result = analyze(MemoryLayout(path), kernel=first_x)
    table = result.to_dataframe()
    assert table.index.names == ["frame", "time_ps"]
    assert np.array_equal(table["value0"], result.values)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"mdio-layouts\[table\]"):
        result.to_dataframe()


def test_notebooks_show_columns(path):
    result = analyze(MemoryLayout(path), kernel=first_x)
    shown = result._repr_html_()
    least, greatest = result.values.min(), result.values.max()
    assert f"<td>mean {result.values.mean():.4g}, {least:.4g} to {greatest:.4g}</td>" in shown


def test_the_mean_of_angles_is_circular(path):
    from scipy.stats import circmean

    shown = analyze(DCD, top=PSF, kernel=Dihedrals("resid 1:4", degrees=True), stop=20)
    shown.values[:, 0] = np.where(np.arange(20) % 4, 179.5, -176.0)
    mean = circmean(shown.values[:, 0], high=180, low=-180)
    assert f"circular mean {mean:.4g}, -176 to 179.5" in summary_lines(shown)[0]
    assert f"circular mean {mean:.4g}, -176 to 179.5" in shown._repr_html_()
    turned = replace(analyze(MemoryLayout(path), kernel=first_x), labels=["tilt_radians"])
    turned.values[:] = np.pi - 0.1
    turned.values[::2] = 0.1 - np.pi
    assert "circular mean" in summary_lines(turned)[0]
    assert "circular" not in summary_lines(replace(turned, labels=["x_angstrom"]))[0]


def test_a_mean_of_angles_over_frames_is_told():
    kernel = Dihedrals("resid 1:4", degrees=True)
    result = analyze(DCD, top=PSF, kernel=kernel, reducer=Mean(), stop=4)
    assert "average their cos and sin instead" in " ".join(result.notes)
    result = analyze(DCD, top=PSF, kernel=Dihedrals("resid 1:4"), reducer=Mean(), stop=4)
    assert "average" not in " ".join(result.notes)


class Nothing(Reducer):
    """A reducer that finds none of what it looks for."""

    def lift(self, rows):
        return ()

    def merge(self, earlier, later):
        return ()

    def finish(self, state):
        return np.zeros(0)


@pytest.mark.parametrize("source", ["one", "ensemble"])
def test_a_result_without_rows_is_a_table_without_rows(replicas, tmp_path, source):
    trajectory = replicas if source == "ensemble" else DCD
    result = mdio.analyze(trajectory, kernel=first_x, reducer=Nothing())
    head = ["label", "row", "value0"] if source == "ensemble" else ["row", "value0"]
    assert result.columns.shape == (0, 1) and not result.row_numbers.size
    assert result.to_dataframe().reset_index().columns.tolist() == head
    for suffix, first in ((".csv", ",".join(head)), (".dat", "#" + " ".join(head)), (".xvg", "@")):
        result.save(tmp_path / f"none{suffix}")
        lines = (tmp_path / f"none{suffix}").read_text().splitlines()
        assert lines[0].startswith(first) and not [line for line in lines[1:] if line[0] != "@"]
    result.save(tmp_path / "none.npz")
    assert np.load(tmp_path / "none.npz")["values"].shape == (0,)
    assert [text.get_text() for text in result.plot().texts] == ["no values"]
    assert "0 float64" in result._repr_html_()


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (lambda block: np.full(block.n_frames, "sheet"), "103 frames of 1 value, <U5"),
        (lambda block: block.positions[:, 0] * 1j, "103 frames of 3 values, complex64"),
        (lambda block: block.positions[:, :0, 0], "103 frames of 0 values, float32"),
    ],
)
def test_a_summary_of_what_has_no_mean_names_its_kind(path, kernel, says):
    assert summary_lines(analyze(MemoryLayout(path), kernel=kernel))[0].strip() == says


def test_a_prompt_names_a_scalar(path):
    total = analyze(MemoryLayout(path), kernel=first_x, reducer=Mean())
    assert repr(total).startswith("<AnalysisResult: 103 frames, scalar float64, ")


def test_a_report_of_rows_without_columns(path, tmp_path):
    result = analyze(MemoryLayout(path), kernel=lambda block: block.positions[:, :0, 0])
    assert any("rows have the shape (0,)" in note for note in result.notes)
    save_report(result, tmp_path / "none.html", "none")
    assert "Blocks over time" in (tmp_path / "none.html").read_text()


def ragged(block):
    return np.zeros((block.n_frames, 1 + int(block.time[0] > 100)))


@pytest.fixture
def replicas(adk, tmp_path):
    trajectories = dict.fromkeys("abcd", adk["dcd"])
    mdio.convert_ensemble(trajectories, tmp_path / "all.zarr", top=adk["psf"], step=30)
    return tmp_path / "all.zarr"


def test_processes_that_are_started_for_each_trajectory_are_the_same_workers(adk, tmp_path):
    trajectories = dict.fromkeys("abc", adk["dcd"])
    mdio.convert_ensemble(trajectories, tmp_path / "all.zarr", top=adk["psf"])
    result = mdio.analyze(tmp_path / "all.zarr", kernel="rgyr", workers=2)
    assert {timing.worker for timing in result.timings} == {"worker 0", "worker 1"}
    save_report(result, tmp_path / "a.html", "title")
    assert "6 workers" not in (tmp_path / "a.html").read_text()


def test_rows_of_trajectories_begin_anew(replicas, tmp_path):
    result = mdio.analyze(replicas, kernel=mdio.RMSF("resid 1:2 and name CA"))
    assert list(result.to_dataframe().index) == [(label, row) for label in "abcd" for row in (0, 1)]
    result.save(tmp_path / "rows.xvg")
    lines = (tmp_path / "rows.xvg").read_text().splitlines()
    assert [line.split()[0] for line in lines if line[0].isdigit()] == ["1", "2"] * 4
    assert lines[0].split() == ["@", "xaxis", "label", '"Residue"']
    assert lines[1].split() == ["@", "yaxis", "label", '"rmsf_angstrom"']


def test_rows_of_atoms_have_numbers_of_residues(tmp_path):
    result = mdio.analyze(DCD, top=PSF, kernel=mdio.RMSF("resid 4:5 and name CA C"), stop=4)
    result.save(tmp_path / "rows.csv")
    rows = [line.split(",")[:2] for line in (tmp_path / "rows.csv").read_text().splitlines()]
    assert rows == [["row", "residue"], ["0", "4"], ["1", "4"], ["2", "5"], ["3", "5"]]
    result.save(tmp_path / "rows.npz")
    assert np.load(tmp_path / "rows.npz")["row_residues"].tolist() == [4, 4, 5, 5]
    result.save(tmp_path / "rows.xvg")  # two atoms of one residue cannot have one x
    lines = (tmp_path / "rows.xvg").read_text().splitlines()
    assert lines[0].endswith('"Row"')
    assert [line.split()[0] for line in lines if line[0].isdigit()] == ["0", "1", "2", "3"]


def test_the_last_block_of_a_trajectory_that_a_worker_has_alone_is_sent(replicas):
    result = mdio.analyze(replicas, kernel=mdio.RMSD("name CA"), workers=2, blocks_per_worker=2)
    assert len(result.timings) == 8
    assert result.timings[2].t_comm_s < result.timings[3].t_comm_s


def test_rows_of_different_shapes(path):
    with pytest.raises(BlockError, match="different shapes"):
        analyze(MemoryLayout(path), kernel=ragged, executor=Processes(2))


def unlike(block, other):
    return np.zeros(block.n_frames, other if block.positions.any() else [("a", float)])


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("other", ["M8[s]", [("b", float)]], ids=["dates", "fields"])
def test_replicas_with_rows_of_other_types(tmp_path, workers, other):
    for name, place in (("a", 0), ("b", 1)):
        with mdio.Writer(tmp_path / f"{name}.zarr") as writer:
            writer.write_block(np.full((4, 2, 3), place, np.float32))
    paths = {name: tmp_path / f"{name}.zarr" for name in "ab"}
    mdio.convert_ensemble(paths, tmp_path / "both.zarr")

    says = r"types cannot be put side by side \(a: \[\('a', '<f8'\)\], b: "
    with pytest.raises(PlanError, match=says):
        mdio.analyze(tmp_path / "both.zarr", kernel=partial(unlike, other=other), workers=workers)


def test_names_with_commas_in_csv(tmp_path, adk):
    import csv

    result = analyze(adk["dcd"], kernel=lambda block: block.positions[:, :2, 0])
    result = replace(result, labels=["d(1,2)", 'a "b"'])
    result.save(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        first, second, *_ = csv.reader(file)
    assert first[2:] == ["d(1,2)", 'a "b"'] and len(second) == 4
    assert float(second[2]) == result.values[0, 0]


@pytest.mark.parametrize("suffix", ["dat", "xvg"])
def test_numbers_of_any_kind_are_written_as_numbers(path, tmp_path, suffix):
    def fields(block):
        rows = np.ones(block.n_frames, [("third", np.longdouble), ("is_near", bool)])
        rows["third"] /= 3
        return rows

    def switches(block):
        return block.time > 10

    result = analyze(MemoryLayout(path), kernel=fields)
    result.save(tmp_path / f"a.{suffix}")
    comments = ("#", "@")
    third, is_near = np.loadtxt(tmp_path / f"a.{suffix}", np.longdouble, comments).T[-2:]
    assert np.array_equal(third, result.values["third"]) and (is_near == 1).all()
    result = analyze(MemoryLayout(path), kernel=switches)
    result.save(tmp_path / f"a.{suffix}")
    found = np.loadtxt(tmp_path / f"a.{suffix}", comments=comments)[:, -1]
    assert np.array_equal(found, result.values) and {*found} == {0, 1}


def test_dates_keep_their_unit_and_text_stays_one_word(path, tmp_path):
    def dates(block):
        return np.datetime64("2026-01-01T00:00:00.000000000", "ns") + block.step.astype(int)

    def texts(block):
        return np.array(["two words"] * block.n_frames)

    result = analyze(MemoryLayout(path), kernel=dates)
    result.save(tmp_path / "a.csv")
    assert "2026-01-01T00:00:00.00000000" in (tmp_path / "a.csv").read_text().splitlines()[1]
    result = analyze(MemoryLayout(path), kernel=texts)
    result.save(tmp_path / "a.dat")
    assert (tmp_path / "a.dat").read_text().splitlines()[1].endswith('"two words"')
    with pytest.raises(PlanError, match="cannot be drawn"):
        result.plot()


def test_texts_read_back_as_from_csv(path, tmp_path):
    import csv

    texts = ["", 'a "b"', "#3", "two words", "CA", "α β", "'"]
    result = analyze(MemoryLayout(path), kernel=lambda block: block.time)
    result = replace(result, values=np.array([texts] * result.n_frames), labels=['"', *"bcdef", ""])
    for suffix, n_index_columns in (("dat", 2), ("xvg", 1)):
        result.save(tmp_path / f"a.{suffix}")
        with (tmp_path / f"a.{suffix}").open(newline="", encoding="utf-8") as file:
            lines = [*file]
        (row,) = csv.reader(lines[-1:], delimiter=" ")
        assert row[n_index_columns:] == texts
        if suffix == "dat":
            assert len(lines[0].split()) == len(row)
        else:
            assert """@ s0 legend "'"\n""" in lines


@pytest.mark.parametrize("suffix", ["csv", "dat", "xvg"])
def test_structured_rows_are_columns(path, tmp_path, suffix):
    def pairs(block):
        return np.ones(block.n_frames, [("a b", float), ("c", int)])

    def arrays(block):
        return np.zeros(block.n_frames, [("a", float, 2), ("b", int)])

    result = analyze(MemoryLayout(path), kernel=pairs)
    result.save(tmp_path / f"a.{suffix}")
    text = (tmp_path / f"a.{suffix}").read_text()
    assert {"csv": "a b,c", "dat": "a_b c", "xvg": "a b"}[suffix] in text
    assert text.splitlines()[-1].split("," if suffix == "csv" else None)[-2:] == ["1.0", "1"]
    result = analyze(MemoryLayout(path), kernel=arrays)
    with pytest.raises(PlanError, match=r"fields a, which hold arrays .* as \.npz"):
        result.save(tmp_path / f"b.{suffix}")
    assert not list(tmp_path.glob("b.*"))
    result.save(tmp_path / "b.npz")
    assert np.load(tmp_path / "b.npz")["values"].dtype.names == ("a", "b")
