"""What is worth a trial follows from what the source's layout says of itself."""

import pytest

import mdio
from mdio.advisor.measure import convert_trial
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


def test_segments_are_as_long_in_a_trial_as_they_will_be(adk, tmp_path):
    """Short ones take longer to read: a sample cut into as many seemed several times as slow."""
    with mdio.open(adk["xtc"]) as layout:
        info = layout.info.replace(n_frames=12_000)
    segments = candidates(info, "xtc", None, 4)[0]
    assert segments.segment_frames == 1_715  # about 64 MiB, decoded
    for workers in (1, 2):
        out = tmp_path / f"{workers}.segments"
        convert_trial(segments, [str(adk["xtc"])], range(90), out, workers)
        assert mdio.open(out).boundaries().tolist() == [
            0,
            *(90 * n // workers for n in range(1, workers + 1)),
        ]
