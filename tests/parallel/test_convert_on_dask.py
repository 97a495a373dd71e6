"""Conversions on a dask cluster: the same outputs as by one process, from the command line too."""

import json

import numpy as np
import pytest

import mdio
from mdio.cli.main import main


@pytest.fixture(scope="module")
def scheduler():
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        yield client.scheduler.address


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.zarr", ()),
        ("a.zarr", ("--precision", "0.01")),
        ("a.h5md", ()),
        ("a.h5md", ("--compression", "gzip:1")),
        ("a.segments", ("--container", "dcd", "--segments", "3")),
        ("a.dcd", ()),
    ],
)
def test_conversions_are_those_of_one_process(adk, tmp_path, scheduler, capsys, name, words):
    out = tmp_path / name
    source = str(adk["xtc"])
    asked = ["--scheduler", scheduler, "--chunk-frames", "10"]
    if name.endswith(("segments", "dcd")):
        asked = asked[:2]
    assert main(["convert", source, str(out), *asked, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_frames"] == 98
    alone = tmp_path / f"alone-{name}"
    assert main(["convert", source, str(alone), *asked[2:], *words, "--quiet"]) == 0
    with mdio.open(out) as one, mdio.open(alone) as other:
        for field in ("positions", "box", "time", "step"):
            found, expected = (getattr(layout.read(0, 98), field) for layout in (one, other))
            assert np.array_equal(found, expected)
    assert mdio.verify(out).ok


def test_split(adk, tmp_path, scheduler):
    out = tmp_path / "a.segments"
    words = ["-n", "5", "--executor", "dask", "--scheduler", scheduler, "--quiet"]
    assert main(["split", str(adk["xtc"]), str(out), *words]) == 0
    assert mdio.verify(out, against=adk["xtc"]).ok


def test_workers_are_in_another_folder(adk, tmp_path, scheduler, monkeypatch, capsys):
    """Names are those in the folder of who asks, whatever folder workers were started in."""
    monkeypatch.chdir(tmp_path)
    for name in ("xtc", "psf"):
        (tmp_path / f"md.{name}").write_bytes(adk[name].read_bytes())
    asked = ["--scheduler", scheduler, "--quiet"]
    for name, *words in (
        ("a.zarr", "convert"),
        ("a.h5md", "convert"),
        ("a.dcd", "convert"),
        ("b.segments", "convert"),
        ("a.segments", "split", "--executor", "dask", "-n", "3"),
    ):
        assert main([words[0], "md.xtc", name, *words[1:], *asked]) == 0, name
        assert main(["verify", name, "--executor", "dask", *asked[:2]]) == 0, name
        words = ["rmsd", name, "-s", "md.psf", "--executor", "dask", *asked[:2], "--json"]
        capsys.readouterr()
        assert main(["analyze", *words]) == 0, name
        assert json.loads(capsys.readouterr().out)["n_frames"] == 98


def test_a_scheduler_is_for_dask(adk, tmp_path, capsys):
    words = ["--executor", "processes", "--scheduler", "tcp://nowhere:1"]
    assert main(["convert", str(adk["xtc"]), str(tmp_path / "a.zarr"), *words]) == 2
    assert "--scheduler is for --executor dask, not processes" in capsys.readouterr().err
