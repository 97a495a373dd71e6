"""Pictures of results: what lies on which axis, for each kind of values."""

import json
import re
from dataclasses import replace
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF

import mdio
from mdio.analysis.plots import draw
from mdio.analysis.reducers import Histogram, Mean
from mdio.analysis.report import figure, save_plot
from mdio.cli.main import main

CA = "protein and name CA"


def drawn(result):
    with figure(3.0) as (_, axes):
        draw(result, axes)
    return axes


def test_a_curve_over_time():
    result = mdio.analyze(DCD, top=PSF, kernel="rmsd", select=CA)
    axes = drawn(result)
    (line,) = axes.lines
    assert np.array_equal(line.get_xydata(), np.column_stack([result.time, result.values]))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (ps)", "rmsd (Å)")


def test_frames_without_times_lie_side_by_side(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(np.random.default_rng(0).random((5, 4, 3)), time=np.zeros(5))
    axes = drawn(mdio.analyze(tmp_path / "a.zarr", kernel="rgyr", weights=None))
    assert axes.lines[0].get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert axes.get_xlabel() == "frame"


def test_a_curve_breaks_where_frames_are_missing(tmp_path):
    times = np.array([0, 2, 4, 6, 60, 62, 64, 90, 120, 122, 124.0])  # one frame is alone at 90
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(np.random.default_rng(0).random((11, 4, 3)), time=times)
    result = mdio.analyze(tmp_path / "a.zarr", kernel="rgyr", weights=None)
    (line,) = drawn(result).lines
    x, y = line.get_data()
    assert np.isnan(x).tolist() == np.isnan(y).tolist() == [n == 4 for n in range(12)]
    assert np.array_equal(np.delete(y, 4), result.values)


def test_a_single_frame_is_a_point():
    (line,) = drawn(mdio.analyze(DCD, top=PSF, kernel="rmsd", select=CA, stop=1)).lines
    assert line.get_marker() == "."


def test_fluctuations_lie_over_residues():
    result = mdio.analyze(DCD, top=PSF, kernel="rmsf", select=CA)
    axes = drawn(result)
    (line,) = axes.lines
    assert np.array_equal(line.get_xdata(), np.arange(1, 215))
    assert axes.get_xlabel() == "residue"


def test_residues_whose_names_end_in_digits(tmp_path):
    atoms = mda.Universe.empty(2, n_residues=2, atom_resindex=[0, 1], trajectory=True).atoms
    for name, values in {
        "names": ["P", "OH2"],
        "resnames": ["U3", "TIP3"],
        "resids": [4, 5],
    }.items():
        atoms.universe.add_TopologyAttr(name, values)
    atoms.write(tmp_path / "top.gro")
    with mdio.Writer(tmp_path / "two.zarr") as writer:
        writer.write_block(np.zeros((3, 2, 3)))
    axes = drawn(mdio.analyze(tmp_path / "two.zarr", top=tmp_path / "top.gro", kernel="rmsf"))
    assert axes.lines[0].get_xdata().tolist() == [4, 5]


def test_a_chain_ends_its_line():
    result = mdio.analyze(DCD, top=PSF, kernel="rmsf", select=CA)
    result.row_residues = [*range(-3, 100), *range(5, 116)]
    first, second = drawn(result).lines
    assert first.get_xdata().tolist() == list(range(-3, 100))
    assert np.array_equal(second.get_ydata(), result.values[103:])


@pytest.mark.parametrize("degrees", [False, True])
def test_phi_and_psi_are_a_map(degrees):
    result = mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(degrees=degrees))
    axes = drawn(result)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("phi (°)", "psi (°)")
    (mesh,) = axes.collections
    counts = mesh.get_array().filled(0)
    assert counts.sum() == 98 * 212
    # Most of a protein of helices lies near (-65, -40); columns are of phi, rows of psi.
    row, column = np.unravel_index(counts.argmax(), (90, 90))
    assert -80 < -180 + 4 * column < -40 and -60 < -180 + 4 * row < -20


@pytest.mark.parametrize("degrees", [False, True])
def test_residues_of_chains_without_names_are_all_drawn(degrees):
    result = mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(degrees=degrees), step=20)
    twice = replace(
        result,
        values=np.hstack([result.values, result.values]),
        labels=[*result.labels, *result.labels],
    )
    (mesh,) = drawn(twice).collections
    assert mesh.get_array().filled(0).sum() == 2 * 5 * 212


def test_angles_that_are_in_no_map_are_named():
    angles = ("phi", "psi", "chi1")
    axes = drawn(mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(angles=angles), step=20))
    assert axes.get_title() == "without chi1: draw these separately"


def test_other_angles_are_distributions():
    axes = drawn(mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(angles=("chi1",))))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["chi1"]
    (steps,) = axes.patches
    heights = steps.get_xy()[:, 1]
    assert heights.max() > 0.005


def test_distances_of_named_atoms_are_no_angles():
    result = mdio.analyze(DCD, top=PSF, kernel=mdio.Pairs("resid 1:3 and name CA"), stop=5)
    axes = drawn(result)
    assert axes.get_xlabel() == "time (ps)"
    assert len(axes.lines) == 3


def outside(axes):
    """Return whether the legend lies below the axes, and the name of the x axis."""
    axes.figure.draw_without_rendering()
    top = axes.get_legend().get_window_extent().y1
    return top <= axes.xaxis.label.get_window_extent().y0 + 1


def test_distances_have_a_unit_and_a_legend_below():
    kernel = mdio.Pairs("resid 1:5 and name CA")
    result = mdio.analyze(DCD, top=PSF, kernel=kernel, stop=5)
    with figure(3.2) as (_, axes):
        draw(result, axes)
        assert axes.get_ylabel() == "distance (Å)" and outside(axes)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[0] == "4AKE:MET1:CA-4AKE:ARG2:CA" and len(names) == len(axes.lines) == 10
    one = drawn(mdio.analyze(DCD, top=PSF, kernel=mdio.Pairs("resid 1:2 and name CA"), stop=5))
    assert one.get_ylabel() == "distance (Å)"


def test_many_distances_are_a_distribution():
    result = mdio.analyze(DCD, top=PSF, kernel=mdio.Pairs("resid 1:20 and name CA"), stop=5)
    with figure(3.2) as (_, axes):
        draw(result, axes)
        assert outside(axes)
    (mean,) = axes.lines
    np.testing.assert_allclose(mean.get_ydata(), result.values.mean(axis=1))
    every, middle = (band.get_datalim(axes.transData).get_points() for band in axes.collections)
    assert every[:, 1] == pytest.approx([result.values.min(), result.values.max()])
    assert every[0, 1] < middle[0, 1] < middle[1, 1] < every[1, 1]
    assert axes.get_ylabel() == "distance (Å)"
    whole = mdio.analyze(DCD, top=PSF, kernel="rmsd", select=CA, stop=5)
    assert len(drawn(whole).lines) == 1


def test_fluctuations_of_atoms_are_points():
    result = mdio.analyze(DCD, top=PSF, kernel="rmsf", select="protein and resid 1:9")
    axes = drawn(result)
    atoms, means = axes.lines
    assert "atoms" in axes.get_xlabel() and atoms.get_linestyle() == "None"
    assert np.array_equal(atoms.get_ydata().ravel(), result.values)
    residues = np.array(result.row_residues)
    assert means.get_xdata().tolist() == list(range(1, 10))
    expected = [result.values[residues == number].mean() for number in range(1, 10)]
    np.testing.assert_allclose(means.get_ydata().ravel(), expected)


def test_a_file_is_no_axes(tmp_path):
    result = mdio.analyze(DCD, top=PSF, kernel="rmsd", select=CA, stop=9)
    with pytest.raises(TypeError, match=r"r\.png; save the picture with .*savefig\('r\.png'\)"):
        result.plot("r.png")


def test_counts_are_not_called_angstrom():
    arguments = {"top": PSF, "kernel": mdio.RMSD(CA), "stop": 9}
    counts = mdio.analyze(DCD, reducer=Histogram([0, 1, 2]), **arguments)
    assert list(counts.labels) == []
    assert list(mdio.analyze(DCD, reducer=Mean(), **arguments).labels) == ["rmsd_angstrom"]


def test_displacements_follow_a_power(tmp_path):
    walk = np.cumsum(np.random.default_rng(3).normal(size=(400, 300, 3)), axis=0)
    with mdio.Writer(tmp_path / "walk.zarr") as writer:
        writer.write_block(walk.astype("f4"))
    axes = drawn(mdio.analyze(tmp_path / "walk.zarr", kernel="msd"))
    assert axes.get_xscale() == axes.get_yscale() == "log"
    drawn_at = axes.lines[0].get_transform().transform(axes.lines[0].get_xydata())
    assert np.isfinite(drawn_at).all(axis=1).tolist() == [False] + [True] * 399  # the lag 0
    (note,) = axes.texts
    assert 0.9 < float(note.get_text().split("{")[1].split("}")[0]) < 1.1


def test_displacements_that_are_no_numbers_are_drawn_as_nothing(tmp_path):
    result = mdio.analyze(DCD, kernel="msd", stop=5)
    result.values[:] = np.nan  # as where a frame lacks positions
    save_plot(result, tmp_path / "a.png", "msd")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_many_columns_of_true_and_false_are_drawn_as_numbers():
    class Near(mdio.Kernel):
        def prepare(self, system):
            return mdio.Prepared(
                lambda block: block.positions[:, :40, 0] > 0, atoms=range(40), quantity="near"
            )

    axes = drawn(mdio.analyze(DCD, kernel=Near(), stop=3))
    assert axes.get_ylabel() == "near"


def test_lines_of_an_ensemble_have_names_of_their_own(tmp_path):
    both = tmp_path / "both.zarr"
    mdio.convert_ensemble({"a": DCD, "b": DCD}, both, top=PSF, step=10)
    few = drawn(mdio.analyze(both, kernel=lambda block: block.positions[:, 0, :2]))
    names = [text.get_text() for text in few.get_legend().get_texts()]
    assert names == ["a value0", "a value1", "b value0", "b value1"]
    many = drawn(mdio.analyze(both, kernel=lambda block: block.positions[:, :7, 0]))
    assert [text.get_text() for text in many.get_legend().get_texts()] == ["a", "b"]
    assert [line.get_color() for line in many.lines] == ["C0"] * 7 + ["C1"] * 7


def test_trajectories_of_an_ensemble_get_a_line_each(tmp_path):
    mdio.convert_ensemble({"a": DCD, "b": DCD}, tmp_path / "both.zarr", top=PSF, step=10)
    axes = drawn(mdio.analyze(tmp_path / "both.zarr", kernel=mdio.RMSD(CA)))
    assert len(axes.lines) == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


@pytest.mark.parametrize(
    ("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")]
)
def test_saved(tmp_path, capsys, suffix, begin):
    path = tmp_path / f"rmsd.{suffix}"
    assert main(["analyze", "rmsd", DCD, "-s", PSF, "--select", CA, "--plot", str(path)]) == 0
    assert f"{path}: picture of the results" in capsys.readouterr().out
    assert path.read_bytes().startswith(begin)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_fields_that_are_numbers_are_drawn_and_summed_up_as_columns(tmp_path, monkeypatch, capsys):
    code = """import numpy as np
def fields(block):
    rows = np.zeros(block.n_frames, [("distance", "f8"), ("count", "i8")])
    rows["distance"], rows["count"] = block.time, 3
    return rows
"""
    (tmp_path / "structured.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    result = mdio.analyze(DCD, kernel="structured:fields")
    with figure(3.0) as (_, axes):
        distance, count = result.plot(axes).lines
    assert np.array_equal(distance.get_ydata(), result.values["distance"])
    assert count.get_ydata().tolist() == [3] * 98
    assert [text.get_text() for text in axes.get_legend().texts] == ["distance", "count"]
    assert main(["analyze", "structured:fields", DCD, "--report", "a.html", "--plot", "a.png"]) == 0
    assert re.search("distance +mean 49.5.*\n  count +mean 3, 3 to 3", capsys.readouterr().out)
    page = Path("a.html").read_text()
    assert "values over time" in page and ">distance<" in page and ">count<" in page
    assert main(["analyze", "structured:fields", DCD, "-o", "a.npz"]) == 0
    assert "a.npz: 98 frames of 2 values" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_can_be_saved_is_saved_before_a_picture_fails(tmp_path, monkeypatch, capsys, more):
    code = "def f(block): return block.time * 1j"
    (tmp_path / "undrawn.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = [*more, "--plot", "a.png", "--timings", "a.json", "--report", "a.html"]
    assert main(["analyze", "undrawn:f", DCD, *words, "-o", "a.csv"]) == 2
    told = capsys.readouterr()
    assert "98 frames of 1 value" in told.out or json.loads(told.out)["out"] == "a.csv"
    assert told.err.count("\n") == 1 and "a.png: not made, since values of type complex" in told.err
    assert told.err.endswith(
        "plot values.real, or their absolute values; saved: a.csv, a.json, a.html\n"
    )
    assert {path.name for path in tmp_path.glob("a.*")} == {"a.csv", "a.json", "a.html"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-o", "a.png"], "give pictures as --plot a.png"),
        (["--plot", "a.csv"], r"a.csv: results are saved as .png or .svg or .pdf"),
        (["--plot", "no/a.png"], "no/a.png: the folder no does not exist"),
    ],
)
def test_refused_before_the_work(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "rmsd", DCD, "-s", PSF, *words]) != 0
    assert says in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
