"""Options are declared once: command line, docstrings and recipes have each of them."""

import inspect
import json
import re
import shutil

import MDAnalysis
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF, XTC

import mdio
from mdio.cli.main import command_help, main
from mdio.converters.options import (
    OPTIONS,
    ConversionOptions,
    Running,
    Selection,
    Sources,
    Storage,
    read_recipe,
)
from mdio.core.errors import PlanError, SourceError
from mdio.core.options import declared_fields, spell_option
from mdio.layouts.registry import open_layout

NOT_IN_RECIPES = {*declared_fields(Running), "verify"}
"""How a conversion runs does not change its output."""
SAMPLES = {"groups": {"ca": "name CA"}, "source_options": {"dt": 2.0}, "verify": False}
SAMPLES |= {"topology": False, "progressive": [[1 << 30, 1]], "hints": ["a=b"]}


def build_manifest(path):
    with open_layout(path) as layout:
        assert layout.info
        return layout.manifest


@pytest.mark.parametrize("name", declared_fields(*OPTIONS))
def test_an_option_is_wherever_it_belongs(name):
    one = declared_fields(*OPTIONS)[name]
    assert f"``{name}``" in mdio.convert.__doc__
    if one.metadata["spelling"]:
        assert spell_option(one) in command_help("convert").replace(",", " ").split()
    choices = one.metadata.get("choices") or one.metadata.get("values")
    sample = {"bool": True, "str": "7", "str | None": "7"}.get(one.type, 7)
    if choices and not callable(choices):
        sample = next(iter(choices))
        with pytest.raises(PlanError, match=f"{name} is '.*; give one of .*{re.escape(sample)}"):
            ConversionOptions.of(**{name: sample[:-1]})
    options = ConversionOptions.of(**{name: SAMPLES.get(name, sample)})
    assert (name in options.recipe()) is (name not in NOT_IN_RECIPES)
    assert ConversionOptions.of(**json.loads(json.dumps(options.recipe()))).recipe() == (
        options.recipe()
    )


@pytest.mark.parametrize(
    "function", [mdio.convert, mdio.append, mdio.analyze, mdio.map_reduce, mdio.advise]
)
def test_signatures_are_short_and_refuse_what_they_do_not_know(function):
    assert len(inspect.signature(function).parameters) <= 16
    with pytest.raises(TypeError, match=r"'overlaps' \(did you mean 'overlap'\?\)"):
        function(DCD, overlaps="error")


def test_no_two_options_have_one_name():
    parts = (Sources, Selection, Storage, Running)
    assert len(declared_fields(*parts)) == sum(len(declared_fields(part)) for part in parts)


def test_an_output_is_made_as_another_was(tmp_path, capsys):
    first, second, third = (tmp_path / f"{name}.zarr" for name in "abc")
    words = ["-s", PSF, "--select", "protein", "--group", "ca=name CA", "--step", "7"]
    assert main(["convert", DCD, str(first), *words, "--precision", "0.01", "-q"]) == 0
    made = {"select": "protein", "groups": {"ca": "name CA"}, "step": 7, "precision": 0.01}
    assert read_recipe(first) == {"top": PSF} | made
    assert main(["convert", "--recipe", str(first), DCD, str(second), "-q", "-w", "2"]) == 0
    ours, theirs = build_manifest(first), build_manifest(second)
    differ = ("uuid", "created", "manifest_crc32c")
    assert {key for key in ours if ours[key] != theirs[key]} <= {*differ}
    whole = mdio.open(second).read(0, 14).positions
    assert np.array_equal(whole, mdio.open(first).read(0, 14).positions)

    capsys.readouterr()
    dry = ["convert", "--dry-run", "--recipe", str(first), DCD, str(third)]
    assert main([*dry, "--step", "2", "--json"]) == 0
    printed = tmp_path / "recipe.json"
    printed.write_text(capsys.readouterr().out)
    assert read_recipe(printed) == read_recipe(first) | {"step": 2}
    assert main(dry) == 0
    assert f"recipe: {json.dumps(read_recipe(first))}" in capsys.readouterr().out
    assert main(["convert", "--recipe", str(printed), DCD, str(third), "-q"]) == 0
    assert mdio.open(third).info.n_frames == 49
    frame = tmp_path / "one.gro"
    assert main(["convert", "--recipe", str(first), DCD, str(frame), "--stop", "1"]) == 0
    assert "groups of the recipe are left out, as gro" in capsys.readouterr().err
    assert mdio.open(frame).info.n_atoms == mdio.open(first).info.n_atoms


def test_chosen_atoms_come_back(tmp_path):
    out, atoms = tmp_path / "a.h5md", np.array([3, 5, 6, 7, 90])
    mdio.convert(DCD, out, select=atoms, groups={"two": atoms[:2]})
    again = read_recipe(out)
    assert np.array_equal(again["select"], atoms)
    assert np.array_equal(again["groups"]["two"], atoms[:2])


def test_what_grows_keeps_its_recipe_but_for_where_it_ended(tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(XTC, out, stop=4, precision="none", start=np.int64(0))
    mdio.append(XTC, out)
    assert read_recipe(out) == {"precision": "none", "start": 0}
    assert mdio.open(out).info.n_frames == 10


def test_what_has_no_recipe_is_refused(tmp_path, capsys):
    target = str(tmp_path / "a.zarr")
    (tmp_path / "other.json").write_text('{"colour": 1}')
    (tmp_path / "no.json").write_text("{")
    for path, code in ((DCD, 1), (tmp_path / "no.json", 1), (tmp_path / "other.json", 2)):
        assert main(["convert", "--recipe", str(path), DCD, target]) == code
        assert str(path) in capsys.readouterr().err
    with pytest.raises(PlanError, match="'colour', which this version of mdio does not have"):
        read_recipe(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("words", "now"),
    [(["--pbc", "wrap"], "--pbc wrap is called atom now"), (["--compression", "small"], "rigid")],
)
def test_former_spellings_do_what_they_did_and_say_so(tmp_path, capsys, words, now):
    assert main(["convert", XTC, str(tmp_path / "a.zarr"), "--stop", "2", "-q", *words]) == 0
    assert now in capsys.readouterr().err


def test_parts_are_given_as_one_object_and_former_names_say_where_they_went(tmp_path):
    new, old = tmp_path / "new.h5md", tmp_path / "old.h5md"
    mdio.convert(
        DCD,
        new,
        step=5,
        selection=mdio.Selection(end_ps=40),
        storage=mdio.Storage(chunk_frames=3, contiguous=False),
    )
    with pytest.warns(DeprecationWarning, match=r"give storage=mdio\.Storage\(chunk_frames=3\)"):
        mdio.convert(DCD, old, step=5, selection=mdio.Selection(end_ps=40), chunk_frames=3)
    assert read_recipe(new) == read_recipe(old) == {"step": 5, "end_ps": 40, "chunk_frames": 3}
    assert mdio.open(new).info.n_frames == 8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"step": 2, "selection": mdio.Selection(step=3)}, "step is given twice"),
        ({"storage": {"chunk_frames": 3}}, r"give mdio\.Storage\(\.\.\.\)"),
        ({"storage": mdio.Selection()}, r"give mdio\.Storage\(\.\.\.\)"),
    ],
)
def test_parts_that_are_not_what_they_should_be(tmp_path, words, says):
    with pytest.raises(TypeError, match=says):
        mdio.convert(DCD, tmp_path / "a.zarr", **words)


def test_a_recipe_that_is_none(tmp_path):
    (tmp_path / "a.json").write_text('{"recipe": "fast"}')
    with pytest.raises(SourceError, match=r"a\.json: its recipe is 'fast'"):
        read_recipe(tmp_path / "a.json")


def test_groups_of_a_recipe_are_left_out_where_none_can_be(tmp_path, capsys):
    recipe = tmp_path / "a.json"
    recipe.write_text(json.dumps({"groups": {"ca": [1, 2, 3]}, "step": 7}))
    out = tmp_path / "a.xtc"
    assert main(["convert", DCD, str(out), "--recipe", str(recipe)]) == 0
    assert "groups of the recipe are left out" in capsys.readouterr().err
    assert mdio.open(out).info.n_frames == 14


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": np.array([0.1])}, "give a number"),
        ({"precision": True}, "give a number"),
        ({"compression": 5}, "give text"),
        ({"progressive": "1G:1"}, "give a list"),
        ({"topology": "no"}, "give True or False"),
        ({"chunk_frames": 2.5}, "give a whole number"),
    ],
)
def test_values_of_another_kind(tmp_path, options, says):
    with pytest.raises(TypeError, match=says):
        mdio.convert(DCD, tmp_path / "a.zarr", storage=mdio.Storage(**options))


def test_numbers_of_numpy_are_numbers(tmp_path):
    numbers = {"precision": np.float32(0.01), "expected_frames": np.int64(500)}
    mdio.convert(DCD, tmp_path / "a.zarr", storage=mdio.Storage(**numbers), stop=np.int64(5))
    info = mdio.open(tmp_path / "a.zarr").info
    assert (info.precision, info.n_frames) == (0.01, 5)
    with mdio.Writer(tmp_path / "b.zarr", precision=np.float32(0.1)) as writer:
        writer.write_block(np.ones((2, 3, 3)))
    assert mdio.open(tmp_path / "b.zarr").info.precision == 0.1
    mdio.split(DCD, tmp_path / "c.segments", n_segments=np.array(3))
    assert len(list((tmp_path / "c.segments").rglob("*.dcd"))) == 3


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.xtc"])
def test_steps_that_float32_does_not_hold_are_refused(tmp_path, name):
    for step in (1e-9, np.float32(1e-9)):
        with pytest.raises(PlanError, match="--precision is 1e-09: float32 holds no such steps"):
            mdio.convert(DCD, tmp_path / name, precision=step)
    assert mdio.convert(DCD, tmp_path / name, precision=1e-6, stop=2).n_frames == 2


@pytest.mark.parametrize("step", [np.inf, np.nan, 0, -1])
@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.xtc"])
def test_a_step_is_a_positive_number(tmp_path, name, step):
    with pytest.raises(PlanError, match=f"--precision (is )?{step}"):
        mdio.convert(DCD, tmp_path / name, precision=step)


def test_the_suffix_of_an_output_comes_before_the_layout_of_a_recipe(tmp_path, capsys):
    first, second, third = tmp_path / "a.out", tmp_path / "b.xtc", tmp_path / "c.out"
    words = ["--to", "zarr", "-s", PSF, "--group", "ca=name CA", "--stop", "3"]
    assert main(["convert", DCD, str(first), *words, "-q"]) == 0
    for out, layout in ((second, "xtc"), (third, "zarr")):
        assert main(["convert", "--recipe", str(first), DCD, str(out), "-q"]) == 0
        assert mdio.open(out).info.layout == layout
    assert "groups of the recipe are left out, as xtc" in capsys.readouterr().err


def test_options_of_opening_are_added_to_those_of_a_recipe(tmp_path):
    first, second = tmp_path / "a.zarr", tmp_path / "b.zarr"
    source = tmp_path / "a.xyz"
    source.write_text("1\n\nC 1 2 3\n" * 3)
    assert main(["convert", str(source), str(first), "--timestep", "5", "-q"]) == 0
    words = ["convert", "--recipe", str(first), str(source), str(second), "-q"]
    assert main([*words, "--length-unit", "nm"]) == 0
    block = mdio.open(second).read(0, 3)
    assert block.time.tolist() == [0, 5, 10]
    assert block.positions[0, 0].tolist() == [10, 20, 30]


def test_a_recipe_finds_the_file_of_a_universe_from_any_folder(tmp_path, monkeypatch):
    shutil.copy(PSF, tmp_path / "a.psf")
    monkeypatch.chdir(tmp_path)
    mdio.convert(DCD, "a.zarr", top=MDAnalysis.Universe("a.psf"), select="name CA", stop=2)
    assert read_recipe("a.zarr")["top"] == str(tmp_path / "a.psf")


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"select": {"runs": [[0, 10, 0]]}}, "a.json: its recipe has runs that are not"),
        ({"select": {"runs": [["a", 10, 1]]}}, "a.json: its recipe has runs that are not"),
        ({"select": [[1, 2], [3]]}, "give a list of indices"),
        ({"source_options": 5}, "source_options is 5; give a dict"),
    ],
)
def test_recipes_with_mistakes(tmp_path, capsys, recipe, says):
    (tmp_path / "a.json").write_text(json.dumps(recipe))
    words = ["--recipe", str(tmp_path / "a.json"), DCD, str(tmp_path / "a.zarr")]
    assert main(["convert", *words]) in (1, 2)
    assert says in capsys.readouterr().err
