"""What is damaged in a source never gets into a new output, whichever part of it is converted."""

import numpy as np
import pytest
from suites.per_rank import convert

import mdio
from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError

KINDS = {
    "zarr": {"chunk_frames": 49},
    "h5md": {"chunk_frames": 49},
    "contiguous.h5md": {"contiguous": True},
    "parts.h5md": {"per_rank": True, "chunk_frames": 49},
    "segments": {"container": "dcd", "segments": 2},
}
PARTS = {
    "a run": {"start": 2},
    "every other": {"step": 2},
    "some atoms": {"select": np.arange(100, 900)},
    "one frame": {"start": 20, "stop": 21},
}


@pytest.fixture(params=KINDS)
def damaged(adk, tmp_path, request):
    """Return an output with a page of zeros where frame 20 has its atoms 0 to 999."""
    path = tmp_path / f"a.{request.param}"
    convert(adk["dcd"], path, **KINDS[request.param])
    with mdio.open(path) as layout:
        row = layout.read(20, 21, atoms=np.arange(200, 230)).positions
    needle = row[0, :, 0].tobytes() if path.suffix == ".segments" else row.tobytes()
    (file,) = [
        file
        for file in [path, *path.parent.glob(f"{path.name}*/**/*")]
        if file.is_file() and needle in file.read_bytes()
    ]
    data = bytearray(file.read_bytes())
    page = data.index(needle) // 4096 * 4096
    data[page : page + 4096] = bytes(4096)
    file.write_bytes(data)
    return path


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("target", ["zarr", "dcd"])
def test_a_page_of_zeros(damaged, tmp_path, part, target):
    out = tmp_path / f"new.{target}"
    with pytest.raises(CorruptLayoutError, match=r"a\."):
        mdio.convert(damaged, out, **PARTS[part])
    assert not out.exists()


def test_the_command_line(damaged, tmp_path, capsys):
    words = ["convert", str(damaged), str(tmp_path / "new.zarr"), "--start", "2"]
    assert main(words) == 1
    assert damaged.name in capsys.readouterr().err
    assert main([*words, "--no-verify"]) == 0  # asked for
