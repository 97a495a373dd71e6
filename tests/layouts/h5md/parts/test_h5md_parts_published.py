"""A file and its parts are never replaced: an error names both."""

import pytest
from suites.h5md_parts_cases import copy_parts, frames_of, make_parts

import mdio
from mdio.core.errors import OutputError


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    """An output in three parts that nobody changes."""
    return make_parts(adk, tmp_path_factory.mktemp("made"))


@pytest.fixture
def mine(made, tmp_path):
    """A copy to change."""
    return copy_parts(made, tmp_path)


def test_neither_is_replaced(adk, mine):
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(adk["xtc"], mine)
    both = rf"{mine}: .*{mine}\.parts.* delete both"
    with pytest.raises(OutputError, match=both):
        mdio.convert(adk["xtc"], mine, stop=7, force=True)
    with pytest.raises(OutputError, match=both):
        mdio.convert_ensemble({"a": adk["xtc"]}, mine, stop=7, force=True)
    names = [mine.name, f"{mine.name}.parts"]
    assert sorted(path.name for path in mine.parent.iterdir()) == names
    assert mdio.verify(mine).ok and frames_of(mine).n_frames == 784


def test_parts_of_a_file_that_was_moved_away_stay(adk, mine):
    mine.rename(mine.with_name("kept.h5md"))
    mdio.convert(adk["xtc"], mine)  # one file is in nobody's way
    mdio.convert(adk["xtc"], mine, force=True)  # and has no parts to take away
    assert frames_of(mine.with_name("kept.h5md")).n_frames == 784


def test_a_part_is_not_replaced_by_what_is_made_of_it(mine):
    part = mine.with_name("a.h5md.parts") / "0001.h5md"
    with pytest.raises(OutputError, match="delete both"):
        mdio.convert(part, mine, force=True)
    assert mdio.verify(mine).ok
