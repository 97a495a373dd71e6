"""What is worth a trial follows from what the source's layout says of itself."""

import pytest

import mdio
from mdio.advisor.measurements import candidates
from mdio.layouts.base import container_format


def names(source, **more):
    with mdio.open(source) as layout:
        found = candidates(layout.info, container_format(layout), None, 2, **more)
    return [one.name for one in found]


@pytest.mark.parametrize(
    ("suffix", "segments"),
    [("trr", ["segments", "segments of dcd"]), ("dcd", ["segments"])],
)
def test_segments_are_copies_or_floats_but_not_the_same_twice(adk, suffix, segments):
    assert names(adk[suffix]) == [*segments, "h5md", "zarr"]
    assert names([adk[suffix]] * 2) == [*segments, "h5md", "zarr"]


def test_of_a_source_without_files_to_copy_segments_are_made(adk, tmp_path):
    mdio.convert(adk["dcd"], tmp_path / "a.zarr")
    mdio.split(adk["dcd"], tmp_path / "a.segments", 2)
    assert names(tmp_path / "a.zarr") == ["segments of dcd", "h5md", "zarr"]
    assert names(tmp_path / "a.segments") == ["segments", "h5md", "zarr"]
