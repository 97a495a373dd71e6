"""What a kernel names of its columns and rows: in any form that has an order, or refused."""

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF

import mdio
from mdio.analysis.reducers import Mean
from mdio.analysis.results import summary_lines
from mdio.core.errors import PlanError


def places(block):
    return block.positions[:, 0]


class Named(mdio.Kernel):
    """Three columns, or their means, with whatever names."""

    def __init__(self, **names):
        self.names = names

    def prepare(self, system):
        return mdio.Prepared(places, **self.names)


TEXTS = np.array(["N", "CA", "C"], dtype=object)  # as MDAnalysis has them


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (TEXTS, ("N", "CA", "C")),
        (TEXTS.astype(str), ("N", "CA", "C")),
        (["N", "CA", "C"], ["N", "CA", "C"]),
        ([4, 5, np.int64(6)], ["4", "5", "6"]),
        (np.array([4, 5, 6]), ("4", "5", "6")),
        (map(str, (4, 5, 6)), ("4", "5", "6")),
        ({"N": 0, "CA": 1, "C": 2}.keys(), ("N", "CA", "C")),
        (None, ()),
    ],
)
def test_names_of_columns_and_rows_are_texts(names, want, tmp_path):
    prepared = mdio.Prepared(places, labels=names)
    assert prepared.labels == want and {*map(type, prepared.labels)} <= {str}
    result = mdio.analyze(DCD, kernel=Named(labels=prepared.labels, quantity=None), stop=3)
    for suffix in ("npz", "csv", "dat", "xvg"):
        result.save(tmp_path / f"a.{suffix}")
    saved = np.load(tmp_path / "a.npz")  # without pickle
    assert saved.get("labels", np.array([])).tolist() == list(want)
    assert len(summary_lines(result)) == 4 and result.quantity == ""
    result.plot()
    assert list(mdio.Prepared(places, row_labels=result.labels).row_labels) == list(want)


@pytest.mark.parametrize("numbers", [range(4, 7), np.array([4, 5, 6]), iter([4, 5, 6])])
def test_numbers_of_residues_stay_numbers(numbers):
    found = mdio.Prepared(places, row_residues=numbers).row_residues
    assert found == (4, 5, 6)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"labels": {"a"}}, "labels is {'a'}; give a list of texts or numbers, one for each col"),
        ({"labels": "abc"}, "labels is 'abc'; give a list of texts or numbers"),
        ({"labels": 5}, "labels is 5; give a list"),
        ({"row_labels": {"a": 1}}, "row_labels is {'a': 1}; give a list of texts or numbers, one"),
        ({"labels": ["a", None]}, "labels has None in it; give a list of texts or numbers"),
        ({"row_residues": ["12"]}, "row_residues has '12' in it; give a list of numbers, one for"),
        ({"quantity": 5}, "the quantity is 5; give a text with the unit, such as 'dist"),
    ],
)
def test_what_names_nothing_is_refused_before_the_work(names, says):
    with pytest.raises(PlanError) as caught:
        mdio.analyze(DCD, kernel=Named(**names))
    assert str(caught.value).startswith(says)


def test_a_kernel_without_a_function_is_refused():
    with pytest.raises(PlanError, match="the function is None; give one that takes a FrameBlock"):
        mdio.Prepared(None)


def test_names_of_columns_become_those_of_their_means(tmp_path):
    kernel = Named(labels=["x", "y", "z"])
    result = mdio.analyze(DCD, top=PSF, kernel=kernel, reducer=Mean(), stop=3)
    assert result.notes == () and list(result.row_labels) == ["x", "y", "z"]
    result.save(tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["name", "x", "y", "z"]
    ticks = [text.get_text() for text in result.plot().get_xticklabels()]
    assert ticks == ["x", "y", "z"]
    named = Named(labels=["x", "y", "z"], row_labels=["a", "b", "c"])
    result = mdio.analyze(DCD, top=PSF, kernel=named, reducer=Mean(), stop=3)
    assert "3 columns (labels), but there are 1" in result.notes[0]
    assert list(result.row_labels) == ["a", "b", "c"]


def test_a_name_of_several_lines_stays_in_its_line(tmp_path):
    result = mdio.analyze(DCD, kernel=Named(labels=["a\nb", "c", "d"]), stop=3)
    result.save(tmp_path / "a.xvg")
    assert '@ s0 legend "a b"' in (tmp_path / "a.xvg").read_text().splitlines()
    result.save(tmp_path / "a.dat")
    assert np.loadtxt(tmp_path / "a.dat").shape == (3, 5)
