"""What is asked for and cannot be done is told; what goes with an output is written beside it."""

import json
import re

import MDAnalysis as mda
import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments", "a.xtc"])
def test_stripes_without_effect(adk, tmp_path, capsys, name):
    out = tmp_path / name
    words = ["convert", str(adk["xtc"]), str(out), "-e", "9", "--stripe-count", "4"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert told.count("stripes are not as asked for: ") == 1
    if (tmp_path / name).suffix != ".xtc":  # whose file keeps no manifest
        assert main(["info", str(out)]) == 0
        assert "as requested: " in capsys.readouterr().out
        assert main(["info", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["not_striped_as_asked"]
    unasked = mdio.convert(adk["xtc"], tmp_path / f"b{out.suffix}", stop=9)
    assert not any("stripes" in note for note in unasked.to_json()["notes"])


@pytest.mark.parametrize(
    "options",
    [
        {"stripe_nbytes": 65537},
        {"stripe_nbytes": 0},
        {"stripe_nbytes": -65536},
        {"stripe_nbytes": 1000},
        {"stripe_count": 0},
        {"stripe_count": -2},
        {"progressive": [(65537, 1)]},
    ],
)
def test_stripes_that_cannot_be(adk, tmp_path, options):
    with pytest.raises(PlanError, match="stripes"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", **as_options(options))
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize("stored", ["zarr", "h5md"])
@pytest.mark.parametrize("name", ["part.xtc", "part.dcd", "part.segments"])
def test_the_topology_of_a_selection_from_an_output(adk, tmp_path, stored, name):
    whole = tmp_path / f"whole.{stored}"
    mdio.convert(adk["xtc"], whole, top=adk["psf"], stop=5)
    words = ["convert", str(whole), str(tmp_path / name), "--select", "name CA"]
    assert main([*words, "-q"]) == 0
    beside = mda.Universe(str(tmp_path / "part.top.pdb"))
    expected = mda.Universe(str(adk["psf"])).select_atoms("name CA")
    assert beside.atoms.names.tolist() == expected.names.tolist()
    assert beside.atoms.resids.tolist() == expected.resids.tolist()
    with mdio.open(tmp_path / name) as layout:
        first = layout.read(0, 1).positions[0]
    assert abs(beside.atoms.positions - first).max() < 2e-3
    assert main([*words[:2], str(tmp_path / "other.xtc"), *words[3:], "--no-topology", "-q"]) == 0
    assert not (tmp_path / "other.top.pdb").exists()
    assert main([*words[:2], str(tmp_path / "inside.zarr"), *words[3:], "-q"]) == 0
    assert not (tmp_path / "inside.top.pdb").exists()  # it holds the topology itself


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"start": 3.0}, "start is 3.0"),
        ({"storage": mdio.Storage(segments="4")}, "segments is '4'"),
        ({"workers": "2"}, "'2' worker processes"),
        ({"workers": 0}, "0 worker processes"),
        ({"executor": "processes"}, "the executor is 'processes'"),
        ({"top": {}}, "{} is no topology"),
        ({"select": {1, 2}}, "--select: [{1, 2}], but atom indices must be"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_values_of_another_kind_are_one_line(adk, tmp_path, options, named):
    with pytest.raises(mdio.MdioError, match=re.escape(named)):
        mdio.convert(adk["dcd"], tmp_path / "a.segments", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_path_is_told_so(adk, tmp_path):
    universe = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    for source in (universe, 3, [universe]):
        with pytest.raises(PlanError, match="is not a path"):
            mdio.convert(source, tmp_path / "a.zarr")
        with pytest.raises(PlanError, match="is not a path"):
            mdio.analyze(source, kernel="rmsd")

    class Unread:
        """Stands in for a reader of MDAnalysis, which iterating reads as a whole."""

        n_frames = 10**9

        def __iter__(self):
            raise AssertionError

    for source in (universe, universe.atoms[:3], universe.trajectory, Unread()):
        with pytest.raises(PlanError, match=r"give that of its trajectory.*Universe as top="):
            mdio.convert(source, tmp_path / "a.zarr")
    result = mdio.convert((path for path in [adk["dcd"]]), tmp_path / "a.zarr", stop=3)
    assert result.n_frames == 3


def test_segments_that_lack_a_topology_that_was_given_are_told(adk, tmp_path):
    words = {"top": adk["psf"], "stop": 3, "force": True}
    done = mdio.convert(adk["dcd"], tmp_path / "a.segments", **words)
    assert any("no topology" in note for note in done.plan.notes)
    done = mdio.convert(adk["dcd"], tmp_path / "a.segments", select="name CA", **words)
    assert done.topologies and not any("no topology" in note for note in done.plan.notes)


def test_floats_of_an_xtc_make_the_same_xtc_again(adk, tmp_path):
    mdio.convert(adk["xtc"], tmp_path / "a.h5md", stop=3)
    result = mdio.convert(tmp_path / "a.h5md", tmp_path / "back.xtc")
    (note,) = [note for note in result.plan.notes if "rounds positions" in note]
    assert "unmoved ones from an XTC with this step stay as they are" in note
    back = mdio.open(tmp_path / "back.xtc").read(0, 3).positions
    assert np.array_equal(back, mdio.open(adk["xtc"]).read(0, 3).positions)
