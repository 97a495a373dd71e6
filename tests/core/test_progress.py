"""What a bar shows of frames and bytes."""

import io

import mdio


def test_frames_rate_and_bytes(adk, tmp_path):
    shown = io.StringIO()
    with mdio.ProgressBar(98, "adk", file=shown, mininterval=0) as bar:
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", progress=bar)
    last = shown.getvalue().split("\r")[-1]
    assert last.startswith("adk: 100%")
    assert "98.0/98.0" in last and "MB/s" in last


def test_without_a_total():
    shown = io.StringIO()
    with mdio.ProgressBar(file=shown) as bar:
        bar(7, 0)
    assert "7.00frame" in shown.getvalue()
